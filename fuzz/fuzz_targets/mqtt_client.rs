//! A client that says anything behind its CONNECT, cut anywhere and answered late: the same is done for it and told to
//! it, and no more is kept of it than its limits let.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../crates/hubsub-wire/tests/mqtt/any_client.rs"]
mod any_client;
#[allow(dead_code, reason = "the other target uses the rest")]
#[path = "../../crates/hubsub-wire/tests/mqtt/any_input.rs"]
mod any_input;

fuzz_target!(|input: &[u8]| any_client::check(input));
