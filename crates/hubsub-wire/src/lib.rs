//! The codecs of all protocols, sans-I/O: they read slices and append to vectors, know no socket and no
//! clock, and never panic on input.

pub mod events;
mod flaws;
pub mod http;
pub mod link;
pub mod mqtt;
pub mod phoenix;
pub mod resp;
pub mod websocket;
