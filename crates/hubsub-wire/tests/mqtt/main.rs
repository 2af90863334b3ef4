//! MQTT as bytes: every rule by a packet that breaks it, any packet there and
//! back, any input in any cut, and another implementation that reads the same.

mod any_client;
mod any_input;
mod drafts;
mod drafts_tests;
mod machine_model;
mod machine_tests;
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
mod session_model;
mod session_tests;
mod snapshot_tests;
mod tools;
