//! Any input, cut at any one place and into single bytes, decodes to the frames
//! it decodes to at once, each of which encodes to bytes that say the same; and
//! either end of a link makes the same of it: handshake, frames, answers, end.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../crates/hubsub-wire/tests/link/any_input.rs"]
mod any_input;

fuzz_target!(|input: &[u8]| any_input::check(input));
