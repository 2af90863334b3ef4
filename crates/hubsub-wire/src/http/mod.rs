//! As much of HTTP/1.1 (RFC 9112) as the listener of WebSockets speaks beside them, sans-I/O: requests in, answers out.
//!
//! - [`Request`]: a request's head as it came; its body, of a length that it says, follows
//! - [`query`]: what a query and a path say, without their percent-encoding
//! - [`Answer`]: status, fields and body out; [`refusal`]: why there is no other
//!
//! Invariants: a head is read when it is whole, of at most [`HEAD_BYTES_MAX`] bytes, and strictly; no input panics.

mod answer;
pub(crate) mod head;
pub mod query;
pub(crate) mod refusal;
mod request;

pub use answer::{Answer, write_error, write_stream_head};
pub use head::HEAD_BYTES_MAX;
pub use refusal::Refusal;
pub use request::Request;
