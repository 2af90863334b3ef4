//! The MQTT codec: each rule by a packet that violates it, random packets encoded and decoded, random inputs
//! split anywhere, and comparison with another implementation.

mod any_input;
mod drafts;
mod drafts_tests;
mod oracle;
mod rules_answers;
mod rules_connect;
mod rules_header;
mod rules_properties;
mod rules_publish;
mod rules_subscribe;
mod sample_tests;
#[path = "../support/samples.rs"]
mod samples;
mod tools;
