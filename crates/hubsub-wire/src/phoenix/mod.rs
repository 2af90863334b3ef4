//! Phoenix channels (version 1 and 2 of the serializers), sans-I/O: WebSocket messages in, actions out. See
//! docs/protocol/phoenix.md.
//!
//! ```text
//! [join_ref, ref, topic, event, payload]
//! ```
//!
//! Invariants:
//!
//! 1. No input panics, and none costs more than its length: nothing recurses.
//! 2. Decoded values borrow from the message; only texts with escapes are copied.
//! 3. A received payload is valid JSON, so a message that contains it is valid, too.
//! 4. Encoding, then decoding yields the original.
//!
//! Not here: validation of tokens, permissions of a class, membership of rooms.

mod answer;
mod broadcast;
mod client;
mod connect;
mod decode;
mod encode;
mod error;
mod join;
mod json;
mod longpoll;
mod message;
mod presence;
mod record;
mod socket;

pub use answer::Answer;
pub use broadcast::{Broadcast, Encoded};
pub use client::write_push;
pub use connect::{Connect, PATH, Refused, SUBPROTOCOL};
pub use decode::DecodeLimits;
pub use encode::EncodeError;
pub(crate) use encode::write_payload;
pub use error::Flaw;
pub use join::{BadJoin, Start, joined_at};
pub use json::{DEPTH_MAX, write_text};
pub use longpoll::{
    LINES_MAX, LONGPOLL_PATH, PollStatus, PollToken, poll_token, read_lines, write_messages,
    write_poll_status,
};
pub use message::{FIELD_BYTES_MAX, Message, Payload, Push, Ref, Reply, Status, Version, is_reserved, word};
pub use presence::{Member, PresenceRequest, Present, reference_text, write_diff, write_members};
pub use record::{EVENT_HEADER, FORM_HEADER, Form, record_event};
pub use socket::{Action, End, Rules, Socket, Taken};
