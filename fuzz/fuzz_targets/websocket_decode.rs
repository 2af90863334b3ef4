//! Any input, cut at any one place and into single bytes, decodes to what it
//! decodes to at once, as frames of either side and as heads of a handshake.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../crates/hubsub-wire/tests/websocket/any_input.rs"]
mod any_input;

fuzz_target!(|input: &[u8]| any_input::check(input));
