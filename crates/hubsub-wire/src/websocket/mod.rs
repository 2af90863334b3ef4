//! WebSocket (RFC 6455), sans-I/O, for a server, and for the client that tests and load need. See
//! docs/protocol/websocket.md.
//!
//! ```text
//! | fin, 3 reserved, opcode | masked, length | length | mask  | payload |
//! |         1 byte          |     1 byte     | 0 2 8  | 0 4   |   …     |
//! ```
//!
//! Invariants:
//!
//! 1. However the input is split, it yields the same messages or the same error.
//! 2. A decoder owns no memory, whatever a frame announces: data is returned as it arrives, and only a
//!    control frame, of at most 125 bytes, must be complete.
//! 3. No input panics. A text is valid UTF-8 when it ends; an invalid one is refused at its first wrong byte.
//! 4. A byte is unmasked once: at the call that returns it, never before.
//!
//! No extension is offered, so permessage-deflate is not supported.

mod client;
mod close;
mod decode;
mod frame;
mod handshake;
mod utf8;

pub use crate::http::HEAD_BYTES_MAX;
pub use client::{AnswerFlaw, read_answer, write_request};
pub use close::{CloseCode, Flaw};
pub use decode::{DecodeLimits, Decoded, Decoder, Kind, Peer};
pub use frame::{Opcode, unmask, write_close, write_frame, write_frame_header};
pub(crate) use handshake::base64;
pub use handshake::{Refusal, Request};
