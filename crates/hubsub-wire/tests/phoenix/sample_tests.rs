//! A fixed sample of inputs of the fuzz target `phoenix_decode`, in `fuzz/sample/phoenix_decode`: messages of
//! both versions and sides, whole connections, and many errors. Findings of the fuzzer are added there.

use crate::any_input::check;
use crate::samples::samples;

const TARGET: &str = "phoenix_decode";

#[test]
fn each_sample_and_each_beginning_of_it_is_read_or_refused() {
    let sample = samples(TARGET);
    assert!(sample.len() >= 20);
    for (name, input) in &sample {
        eprintln!("{name}");
        for end in 0..=input.len() {
            check(&input[..end]);
        }
    }
}

#[test]
fn a_sample_with_a_wrong_byte_brings_nothing_down() {
    for (name, input) in samples(TARGET) {
        eprintln!("{name}");
        for at in 0..input.len() {
            for bit in [1, 5] {
                let mut wrong = input.clone();
                wrong[at] ^= 1 << bit;
                check(&wrong);
            }
        }
    }
}
