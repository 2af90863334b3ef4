//! A fixed sample of what the fuzz target `link_decode` is given, in
//! `fuzz/sample/link_decode`: every type of frame, handshakes of both sides, and
//! what is wrong in each way. A finding of the fuzzer is added there.

use crate::any_input::{check, ends, steps};
use crate::frames::CODES;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn sample() -> BTreeMap<String, Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/sample/link_decode");
    let files = fs::read_dir(&directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let read = |file: fs::DirEntry| {
        (file.file_name().into_string().expect("plain names"), fs::read(file.path()).expect("a file"))
    };
    files.map(|file| read(file.expect("a file"))).collect()
}

#[test]
fn any_cut_of_each_sample_makes_the_same_of_it() {
    let sample = sample();
    for (name, input) in &sample {
        eprintln!("{name}");
        check(input);
    }
    let all: Vec<u8> = sample.values().filter(|input| input.len() > 4).map(|input| input[4]).collect();
    assert!(CODES.iter().all(|code| all.contains(code)), "a type of frame without a sample");
}

#[test]
fn a_sample_with_a_wrong_byte_brings_nothing_down() {
    for (name, input) in sample() {
        eprintln!("{name}");
        for at in (0..input.len()).step_by(3) {
            let mut wrong = input.clone();
            wrong[at] ^= 1 << (at % 8);
            let bytes: Vec<usize> = (0..wrong.len()).collect();
            let whole = ends().map(|end| steps(end, &wrong, &[]));
            assert_eq!(ends().map(|end| steps(end, &wrong, &bytes)), whole, "byte {at}");
        }
    }
}

#[test]
fn the_sample_has_handshakes_that_succeed_and_links_that_go_on_and_end() {
    let sample = sample();
    let of = |side: usize, name: &str| {
        let end = ends().into_iter().nth(side).expect("there are two");
        steps(end, &sample[name], &[])
    };
    for (side, name) in [(0, "dialer-up"), (1, "acceptor-up")] {
        let steps = of(side, name);
        assert_eq!(steps.end, None, "{name}");
        let up = |step: &String| step.starts_with("Up") || step.starts_with("Proved");
        assert!(steps.came.iter().any(up), "{name}: {:?}", steps.came);
    }
    let going = of(1, "acceptor-up-and-frames");
    assert!(going.came.iter().any(|step| step.starts_with("Frame(Publish")), "{:?}", going.came);
    for name in ["acceptor-wrong-secret", "acceptor-other-cluster", "acceptor-proof-first", "http"] {
        assert!(of(1, name).end.is_some(), "{name}");
    }
}
