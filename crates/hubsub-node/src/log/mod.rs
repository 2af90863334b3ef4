//! The log's threads and their interface to shards. Shards only submit and receive notifications here.
//!
//! ```text
//!   shards ── batches ──► journal thread ── frames ──► segment thread
//!     ▲                      │    ▲                      │
//!     └───── safe, failed ───┘    └── next journal file ─┘
//!   shards ── jobs ──► readers, listing ── results ──► shards
//!   control plane ── requests ──► streams ── chunks ──► control plane
//!   control plane ── hubs ──► openings ── tasks ──► segment thread
//!                                └── seeds ──► shards
//! ```
//!
//! Layers, from below:
//!
//! 1. [`archive`], [`intake`], [`turns`], [`readers`] and [`health`] know nothing of the others
//! 2. [`hubs`], those with a log; [`events`]; [`shared`], what the threads share
//! 3. [`segments`] and [`journal`], the threads; [`threads`], a running log
//! 4. searches: [`reading`], [`hub_reading`], [`stream`], and [`producers`] at an opening
//! 5. [`hub`], an opened one; [`mail`]; [`listing`]; [`streams`]; [`end`], a shard's handle
//! 6. [`start`], [`openings`], [`status`]
//!
//! Invariants: only synced records are reported safe; segments get nothing before it is synced; each queue
//! has a limit, at which the sender waits or is refused.

mod archive;
mod end;
mod events;
mod health;
mod hub;
mod hub_reading;
mod hubs;
mod intake;
mod journal;
mod listing;
mod mail;
mod openings;
mod producers;
mod readers;
mod reading;
mod segments;
mod shared;
pub mod start;
mod status;
mod stream;
mod streams;
mod threads;
mod turns;

pub use end::{LogEnd, Question as LogQuestion};
pub use events::{Event, HubAnswer, Refusal, StreamAnswer};
pub use health::{Counters, State};
pub use hub::Opened as OpenedHub;
pub use hubs::{HubStatus, LoggedHub, LoggedHubs};
pub use listing::{Listing, Wanted};
pub use mail::LogMail;
pub use openings::Openings;
pub use readers::{Readers, Turn};
pub use shared::{Listener, LogSettings};
pub use status::LogStatus;
pub use streams::Streams;
pub use threads::Log;

#[cfg(test)]
mod tests;
