//! A client sends anything after its CONNECT. However the input is cut and however late results arrive, the
//! actions and the output are the same, and its stored state stays within its limits.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../crates/hubsub-mqtt/tests/machine/any_client.rs"]
mod any_client;
#[allow(dead_code, reason = "the other target uses the rest")]
#[path = "../../crates/hubsub-wire/tests/mqtt/any_input.rs"]
mod any_input;

fuzz_target!(|input: &[u8]| any_client::check(input));
