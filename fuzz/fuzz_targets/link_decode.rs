//! Any input, whole, cut at any one place or cut into single bytes, decodes to the same frames, and each frame
//! encodes to an equal one. Both ends of a link handle it in the same way: handshake, frames, replies, end.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../crates/hubsub-wire/tests/link/any_input.rs"]
mod any_input;

fuzz_target!(|input: &[u8]| any_input::check(input));
