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
//! - [`Machine`]: one connection: requests, packet ids, subscriptions
//! - [`Client`]: a machine with its session and what is on its way to it; [`Connecting`] until CONNACK
//! - [`OfflineSession`], [`Sessions`]: sessions without a connection, in the slots that they keep
//! - [`Session`]: what both have: messages in flight, [`Cursors`] in rooms with a log, [`Persistence`]
//! - [`SessionPlace`]: a session wherever it is; makes its snapshots and entries as [`Write`]s
//! - `entries`, `restored`: their format, and a session restored from them; [`Found`] is one of another
//!   process
//! - [`Readings`]: reads such a session from its rooms, step by step ([`ReadAction`])
//! - [`Encodings`], [`Plain`]: a record as a PUBLISH packet, encoded once for all clients that get it alike
//! - [`Reads`]: retained messages for a new subscriber
//! - [`Left`]: messages of groups that a client leaves to other members
//!
//! Invariants: a session is in exactly one place; while a record is queued for a client, later ones are
//! queued too; a client gets no answer for a change of a persistent session before that is written. The other
//! invariants are in the heads of the modules.

mod actions;
mod backoff;
mod client;
mod cursors;
mod delete_retry;
mod delivery;
mod encodings;
mod entries;
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
mod restored;
mod retained;
pub mod rooms;
#[cfg(test)]
mod seeds;
mod session;
mod sessions;
mod shares;
mod takeover;
mod takeover_read;

pub use actions::Action;
pub use client::{Client, Connecting, Silence, reason_of};
pub use cursors::{CountedBy, Cursors};
pub use delete_retry::SessionDelete;
pub use delivery::{Next, Squeezed, Under, Way};
pub use encodings::{ARENA_BYTES_MAX, Encodings, Outcome, Outgoing, WrittenPacket};
pub use entries::{beginning_of, put_event};
pub use long_messages::{LongMessages, WHOLE_BYTES, Whole};
pub use machine::{
    Accepted, Damaged, Event, Fault, Grant, Incoming, Key, LastWill, Machine, Match, Opened, OwnAliases,
    Progress, Refusal, SessionState, Step, Terms, Topic, Window, expiry_s, read_headers, write_headers,
};
pub use message::{Content, Message};
pub use offline::{OfflineSession, QueueLimits};
pub use pending::{Item, Pending};
pub use persistence::{AfterWrite, HeadState, Intended, Persistence, Prepared, Wait};
pub use place::{SessionPlace, Snapshot, Write};
pub use plain::{Plain, encode_plain};
pub use retained::{Pace, Read, Reads, is_expired};
pub use session::{Sent, Session};
pub use sessions::Sessions;
pub use shares::{Group, Left};
pub use takeover::{Found, adds_to, will_of};
pub use takeover_read::{ReadAction, Readings, snapshot_query};
