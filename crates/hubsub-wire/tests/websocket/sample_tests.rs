//! A fixed sample of inputs of the fuzz target `websocket_decode`, in `fuzz/sample/websocket_decode`: all
//! kinds of frames of both sides, heads of both, and many errors. Findings of the fuzzer are added there.

use crate::any_input::{check, outcome};
use crate::samples::{samples, with_a_wrong_byte};
use hubsub_wire::websocket::Peer;

const TARGET: &str = "websocket_decode";

#[test]
fn any_cut_of_each_sample_makes_the_same_of_it() {
    for (name, input) in &samples(TARGET) {
        eprintln!("{name}");
        check(input);
    }
}

#[test]
fn a_sample_with_a_wrong_byte_brings_nothing_down() {
    with_a_wrong_byte(
        TARGET,
        |length| 1 + length / 60,
        |wrong, bytes, at| {
            for from in [Peer::Client, Peer::Server] {
                let whole = outcome(from, wrong, &[]);
                assert_eq!(outcome(from, wrong, bytes), whole, "byte {at}");
            }
        },
    );
}
