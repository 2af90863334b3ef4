//! Any input, whole, cut at any one place or cut into single bytes, decodes to the same packets, for a decoder
//! of each version and side; each packet encodes to an equivalent one.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../crates/hubsub-wire/tests/mqtt/any_input.rs"]
mod any_input;

fuzz_target!(|input: &[u8]| any_input::check(input));
