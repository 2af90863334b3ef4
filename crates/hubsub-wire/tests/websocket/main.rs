//! WebSocket codec: the handshake, each rule of frames by one that violates it, random inputs split anywhere,
//! and another implementation as the peer.

mod any_input;
mod autobahn;
mod frames_tests;
mod handshake_tests;
mod oracle;
mod rules;
mod sample_tests;
#[path = "../support/samples.rs"]
mod samples;
