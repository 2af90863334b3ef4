//! Records, and the messages between the brokers of two nodes.
//!
//! A message has one definition, in [`message`]: the macro [`frames!`] takes its number on the wire, its lane
//! and its fields in their order, and generates the enum that brokers match, the encoder and the decoder.
//!
//! ```text
//!  hubsub-route                    hubsub-message                         hubsub-wire, link
//!  Broker ──────── NodeMessage ──► encode: into the output of a link ───► lanes, credit, heartbeats
//!  Broker ◄─────── NodeMessage ◄── read: from the input of a link    ◄─── one frame at a time
//! ```
//!
//! - **Messages are owned.** A message outlives the socket's buffer: it waits for a log, for another shard,
//!   or in history. Encoding copies its bytes once, into the output. Decoding makes the allocations of the
//!   message and no other: a record has one for topic and payload, one for itself, and one for each of
//!   publisher, headers and producer that it has.
//! - **Fields are encoded by [`Field`]**, a type at a time. A record's frame names only its topic: the room
//!   follows from the classes, which are the same on all nodes. A few messages carry a record's position and
//!   offset between other fields; these are written in `message/placed.rs`.
//! - **The frame around a message**, its length and type, is in [`frame`], for these messages and for those
//!   that only links exchange (`hubsub_wire::link`): both use the same macro. Credit, queues, authentication
//!   and sockets are not here, so a broker can use this crate and know no protocol.
//!
//! Invariants: nothing is allocated for a list before its entries were read; a length is never more than the
//! bytes that are left; a message that was decoded encodes to a frame that decodes to an equal one.

pub mod error;
pub mod field;
mod fields;
pub mod filter;
pub mod frame;
mod lane;
pub mod message;
pub mod publisher;
pub mod record;
pub mod subscription;

pub use error::{Flaw, FrameError};
pub use field::{Field, Reader, Short};
pub use filter::HubFilter;
pub use lane::Lane;
pub use message::{AskId, Give, LeadershipEnd, Names, NodeMessage, PATTERNS, home};
pub use publisher::{PUBLISHER_BYTES_MAX, is_publisher, publisher_name};
pub use record::{Headers, LogPlace, Namespace, Producer, Record, RecordView};
pub use subscription::{Attached, Start};
