//! WebSocket (RFC 6455), sans-I/O, for a server, and for the client that tests
//! and load need. See docs/protocol/websocket.md.
//!
//! ```text
//! | fin, 3 reserved, opcode | masked, length | length | mask  | payload |
//! |         1 byte          |     1 byte     | 0 2 8  | 0 4   |   …     |
//! ```
//!
//! - [`Request`]: an upgrade as it came; checked, then accepted or refused
//! - [`Decoder`]: frames in, messages piece by piece out, unmasked where they lie
//! - [`write_frame`], [`write_close`]: frames out
//! - [`Flaw`] and [`Refusal`]: what is wrong, and the bytes that say so
//!
//! Invariants:
//!
//! 1. However the input is cut, the same messages or the same error come of it.
//! 2. A decoder owns no memory, whatever a frame announces: data is given as it
//!    comes, and only a control frame, of at most 125 bytes, is waited for.
//! 3. No input panics. A text that ends is UTF-8, and one that is not is refused
//!    at its first wrong byte.
//! 4. A byte is unmasked once: at the call that takes it off, never before.
//!
//! Extensions are not offered, so permessage-deflate is not spoken.

mod client;
mod close;
mod decode;
mod frame;
mod handshake;
mod mask;
mod utf8;

pub use crate::http::HEAD_BYTES_MAX;
pub use client::{AnswerFlaw, read_answer, write_request};
pub use close::{CloseCode, Flaw};
pub use decode::{DecodeLimits, Decoded, Decoder, Kind, Peer};
pub use frame::{Opcode, write_close, write_frame, write_frame_header};
pub(crate) use handshake::base64;
pub use handshake::{Refusal, Request};
pub use mask::unmask;
