//! A fixed sample of what the fuzz target `websocket_decode` is given, in
//! `fuzz/sample/websocket_decode`: every kind of frame of both sides, heads of both, and what is
//! wrong in many ways. A finding of the fuzzer is added there.

use crate::any_input::{check, outcome};
use hubsub_wire::websocket::Peer;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn sample() -> BTreeMap<String, Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/sample/websocket_decode");
    let files = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let read = |file: fs::DirEntry| {
        (file.file_name().into_string().expect("plain names"), fs::read(file.path()).expect("a file"))
    };
    files.map(|file| read(file.expect("a file"))).collect()
}

#[test]
fn any_cut_of_each_sample_makes_the_same_of_it() {
    for (name, input) in &sample() {
        eprintln!("{name}");
        check(input);
    }
}

#[test]
fn a_sample_with_a_wrong_byte_brings_nothing_down() {
    for (name, input) in sample() {
        eprintln!("{name}");
        for at in (0..input.len()).step_by(1 + input.len() / 60) {
            let mut wrong = input.clone();
            wrong[at] ^= 1 << (at % 8);
            let bytes: Vec<usize> = (0..wrong.len()).collect();
            for from in [Peer::Client, Peer::Server] {
                let whole = outcome(from, &wrong, &[]);
                assert_eq!(outcome(from, &wrong, &bytes), whole, "byte {at}");
            }
        }
    }
}
