//! Phoenix channels as bytes: every rule of messages by one that breaks it, JSON
//! and the real client's messages by oracles, any message there and back, any input.

mod any_input;
mod broadcast_tests;
mod drafts;
mod drafts_tests;
mod json_tests;
mod record_tests;
mod rules_binary;
mod rules_text;
mod sample_tests;
mod tools;
mod vectors_tests;
