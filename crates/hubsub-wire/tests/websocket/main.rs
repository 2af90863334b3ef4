//! WebSocket as bytes: the handshake, every rule of frames by one that breaks
//! it, any input in any cut, and another implementation at the other end.

mod any_input;
mod autobahn;
mod frames_tests;
mod handshake_tests;
mod oracle;
mod rules;
mod sample_tests;
#[path = "../support/samples.rs"]
mod samples;
