//! MQTT clients without sockets, threads and clocks: the machine of a connection, and the session that
//! outlives it (docs/protocol/mqtt-sessions.md, docs/protocol/mqtt-state.md). The codec is below, in
//! `hubsub-wire`; the node is above: it passes events and the time in, and executes what is returned.
//!
//! ```text
//!                 packets, records, outcomes of writes, pages, the time
//!                                      │
//!        ┌─────────────────────────────▼─────────────────────────────┐
//!        │ Client                           OfflineSession           │
//!        │   Machine ──── suspend ────────►   SessionState           │
//!        │   Session ◄─── resume ─────────    Session                │
//!        │   Pending                          queue                  │
//!        └─────────────────────────────┬─────────────────────────────┘
//!                                      ▼
//!            Step, Outcome, Write, ReadAction, … : the node executes them
//! ```
//!
//! Invariants: a session is in exactly one place; while a record is queued for a client, later ones are
//! queued too; a client gets no answer for a change of a persistent session before that is written. The other
//! invariants are in the heads of the modules.

mod actions;
mod client;
mod cursors;
mod delete_retry;
mod delivery;
mod encodings;
mod entries;
mod few;
mod gaps;
mod long_messages;
mod machine;
mod message;
mod missing_subscriptions;
mod offline;
mod pending;
mod persistence;
mod place;
mod plain;
mod reader;
mod restored;
mod retained;
pub mod rooms;
mod session;
mod sessions;
mod shares;
mod takeover;
mod takeover_read;
#[cfg(test)]
mod tests;

pub use actions::Action;
pub use client::{Client, Connecting, Silence, reason_of};
pub use cursors::Cursors;
pub use delete_retry::SessionDelete;
pub use delivery::{Next, Squeezed, Way};
pub use encodings::{ARENA_BYTES_MAX, Encodings, Outcome, Outgoing, WrittenPacket};
pub use entries::{beginning_of, put_event};
pub use long_messages::{LongMessages, WHOLE_BYTES, Whole};
pub use machine::{
    Accepted, Damaged, Event, Fault, Grant, Incoming, LastWill, Machine, Match, Opened, OwnAliases, Progress,
    Refusal, SessionState, Step, Terms, Topic, Window, expiry_s, read_headers, write_headers,
};
pub use message::{Content, CountedBy, Message};
pub use offline::{OfflineSession, QueueLimits};
pub use pending::{Item, Pending};
pub use persistence::{AfterWrite, HeadState, Intended, Persistence, Prepared, Under, Wait};
pub use place::{SessionPlace, Snapshot, Write};
pub use plain::{Plain, encode_plain};
pub use retained::{Pace, Read, Reads, is_expired};
pub use session::{Sent, Session};
pub use sessions::Sessions;
pub use shares::{Group, Left};
pub use takeover::{Found, adds_to, will_of};
pub use takeover_read::{ReadAction, Readings, snapshot_query};
