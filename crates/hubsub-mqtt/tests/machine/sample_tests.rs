//! Fixed samples of fuzz inputs, in `fuzz/sample/mqtt_client`: inputs of clients after their CONNECT.
//! Findings of the fuzzer are added there.

use crate::any_client;
use crate::samples::{samples, with_a_wrong_byte};

const CLIENT: &str = "mqtt_client";

#[test]
fn any_cut_of_what_a_client_says_has_the_same_done_and_told() {
    let sample = samples(CLIENT);
    let mut seen: Vec<String> = Vec::new();
    for (name, input) in &sample {
        eprintln!("{name}");
        any_client::check(input);
        let outcome = any_client::outcome(input, usize::MAX);
        seen.extend(outcome.steps.into_iter().chain(outcome.end));
    }
    for what in ["publish a", "Subscribe", "Unsubscribe", "Done", "goodbye", "receive maximum", "alias"] {
        assert!(seen.iter().any(|step| step.contains(what)), "no sample has {what}: {seen:?}");
    }
}

#[test]
fn a_client_with_a_wrong_byte_brings_nothing_down() {
    with_a_wrong_byte(CLIENT, |length| 1 + length / 60, |wrong, _, _| any_client::check(wrong));
}
