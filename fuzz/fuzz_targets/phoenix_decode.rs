//! Any input, as text and as bytes of either side and as a record: what is read
//! is written to the same, and as lines of a connection it keeps to its rules.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../crates/hubsub-wire/tests/phoenix/any_input.rs"]
mod any_input;

fuzz_target!(|input: &[u8]| any_input::check(input));
