//! The protocol between two nodes: encoding of frames, handshakes, and pairs of links over a transport that
//! stalls and breaks.

mod any_input;
mod frames;
mod frames_tests;
mod handshake;
mod pair;
mod pair_tests;
mod sample_tests;
#[path = "../support/samples.rs"]
mod samples;
