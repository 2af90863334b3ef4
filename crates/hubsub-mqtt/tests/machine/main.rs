//! The machine of a connection: each rule by its own test, random orders of packets and results against
//! models, and fixed samples of what clients may send.

mod any_client;
#[allow(dead_code, reason = "the codec's tests use the rest")]
#[path = "../../../hubsub-wire/tests/mqtt/any_input.rs"]
mod any_input;
mod machine_model;
mod machine_tests;
mod sample_tests;
#[path = "../../../hubsub-wire/tests/support/samples.rs"]
mod samples;
mod session_model;
mod session_tests;
mod snapshot_tests;
#[allow(dead_code, unused_imports, reason = "the codec's tests use the rest")]
#[path = "../../../hubsub-wire/tests/mqtt/tools.rs"]
mod tools;
