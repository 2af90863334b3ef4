//! Phoenix channels (version 1 and 2 of its serializers), sans-I/O: messages of
//! a WebSocket in, what they do out. See docs/protocol/phoenix.md.
//!
//! ```text
//! [join_ref, ref, topic, event, payload]
//! ```
//!
//! - [`Connect`]: the version and the token that a request names
//! - [`Push`]: what a client says; its payload is checked, and left as it came
//! - [`Message`]: what a server says
//! - [`Broadcast`]: what all subscribers of a topic get, written once
//! - [`Socket`]: the channels of a connection, and what each message does
//! - [`Wanted`] and [`Present`]: who a page is, and who is in a room
//! - [`Payload::of_record`]: what a record is to a browser, whoever published it
//! - [`Flaw`] and [`Refused`]: what is wrong, and how the client is told
//!
//! Invariants:
//!
//! 1. No input panics, and none costs more than its length: nothing recurses.
//! 2. What is read borrows the message; only what was written with escapes is copied.
//! 3. A payload is JSON when it comes, so a message that it stands in is JSON too.
//! 4. What is written reads back as the same.
//!
//! Not here: whether a token is good, what a class allows, who is in which room.

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
pub use join::{BadStart, Start, joined_at};
pub use json::{DEPTH_MAX, write_text};
pub use longpoll::{
    LINES_MAX, LONGPOLL_PATH, PollStatus, PollToken, poll_token, read_lines, write_messages,
    write_poll_status,
};
pub use message::{FIELD_BYTES_MAX, Message, Payload, Push, Ref, Reply, Status, Version, is_reserved, word};
pub use presence::{BadWanted, Present, Wanted, Who, reference_text, write_diff, write_members};
pub use record::{EVENT_HEADER, FORM_HEADER, Form, record_event};
pub use socket::{Action, End, Rules, Socket, Taken};
