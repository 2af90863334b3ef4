//! The part of HTTP/1.1 (RFC 9112) that the WebSocket listener supports besides WebSockets, sans-I/O:
//! requests in, responses out.
//!
//! Invariants: a head is parsed strictly once it is complete, and has at most [`HEAD_BYTES_MAX`] bytes; no
//! input panics.

mod answer;
pub(crate) mod head;
pub mod query;
pub(crate) mod refusal;
mod request;

pub use answer::{Answer, write_error, write_stream_head};
pub use head::HEAD_BYTES_MAX;
pub use refusal::Refusal;
pub use request::Request;
