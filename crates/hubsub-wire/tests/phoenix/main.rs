//! Phoenix codec and state machine: each rule by a message that violates it, JSON and the real client's
//! messages by oracles, random messages encoded and decoded, random inputs, and transcripts of connections.

mod any_input;
mod broadcast_tests;
mod connect_tests;
mod drafts;
mod drafts_tests;
mod json_tests;
mod presence_tests;
mod record_tests;
mod rules_binary;
mod rules_text;
mod sample_tests;
#[path = "../support/samples.rs"]
#[allow(dead_code, reason = "it changes other bits")]
mod samples;
mod socket_tests;
mod start_tests;
mod tools;
mod transcript_tests;
mod vectors_tests;
