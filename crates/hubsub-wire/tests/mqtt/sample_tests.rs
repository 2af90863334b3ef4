//! A fixed sample of what the fuzz target `mqtt_decode` is given, in
//! `fuzz/sample/mqtt_decode`: every type of packet in each version, and what is
//! wrong in many ways. A finding of the fuzzer is added there.

use crate::any_input::{check, decoders, outcome};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

fn sample() -> BTreeMap<String, Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/sample/mqtt_decode");
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
    let came: Vec<String> = sample
        .values()
        .flat_map(|input| decoders().into_iter().map(|(from, decoder)| outcome(from, decoder, input, &[])))
        .flat_map(|outcome| outcome.came)
        .collect();
    for name in [
        "Connect(",
        "Connack(",
        "Publish(",
        "Puback(",
        "Pubrec(",
        "Pubrel(",
        "Pubcomp(",
        "Subscribe(",
        "Suback(",
        "Unsubscribe(",
        "Unsuback(",
        "Pingreq",
        "Pingresp",
        "Disconnect(",
        "Auth(",
    ] {
        assert!(came.iter().any(|packet| packet.starts_with(name)), "no sample is a {name}");
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
            for (from, decoder) in decoders() {
                let whole = outcome(from, decoder.clone(), &wrong, &[]);
                assert_eq!(outcome(from, decoder, &wrong, &bytes), whole, "byte {at}");
            }
        }
    }
}
