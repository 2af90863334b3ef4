//! Persisted state of MQTT sessions (docs/protocol/mqtt-state.md): per session the latest *snapshot* and the
//! *entries* since then, as opaque bytes. The interface is [`SessionStore`]; its calls block, so they belong
//! on a thread of their own.
//!
//! | part | owns |
//! |---|---|
//! | [`Memory`] | sessions that end with the process: the reference for the others |
//! | [`Disk`] | sessions in a file of the node |
//! | [`Redis`] | sessions in a Redis server |
//!
//! Invariants of each store:
//! - The requests of a batch are executed in order, and each has its reply; a later one sees the effect of an
//!   earlier one. When the call returns, the results are as durable as the store makes them.
//! - Entries of a session are numbered from 1 without gaps, also across restarts. A number is not reused
//!   unless the session ended in between.
//! - A session exists from its first snapshot until its end. Nothing can be appended to one that does not
//!   exist, so a late request leaves nothing in the store.

mod disk;
mod error;
mod memory;
mod redis;

pub use disk::Disk;
pub use error::StoreError;
pub use memory::Memory;
pub use redis::Redis;

/// One request. Ids are client ids of 1 to [`ID_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Replaces the whole session with this snapshot and these entries, or creates it.
    Save {
        id: Box<str>,
        /// At most [`SNAPSHOT_BYTES_MAX`] bytes.
        snapshot: Vec<u8>,
        /// At most [`NUMBER_MAX`]; the entries are numbered from the next number on.
        through: u64,
        /// Each has at most [`ENTRY_BYTES_MAX`] bytes.
        entries: Vec<Vec<u8>>,
    },
    /// Replaces the snapshot of an existing session, with all its entries. [`StoreError::NoSession`] if there
    /// is none; [`StoreError::Gap`] if the store has other entries than its owner assumes, since one was
    /// refused.
    Update {
        id: Box<str>,
        /// At most [`SNAPSHOT_BYTES_MAX`] bytes.
        snapshot: Vec<u8>,
        /// Number of the last entry.
        last: u64,
        /// Entries up to this number are covered by the snapshot and are removed.
        through: u64,
    },
    Append {
        /// The session; [`StoreError::NoSession`] if it does not exist.
        id: Box<str>,
        /// At most [`ENTRY_BYTES_MAX`] bytes; [`StoreError::Full`] beyond the [`Limits`] of a session.
        entry: Vec<u8>,
    },
    Load {
        id: Box<str>,
    },
    /// A page of snapshots, ordered by the bytes of the ids.
    List {
        /// Only ids after this one; `None`: from the first.
        after: Option<Box<str>>,
        /// Most snapshots, from 1. The page also ends with the snapshot that fills [`PAGE_BYTES`].
        max: usize,
    },
    /// Removes a session if it exists and its snapshot has this beginning; a successor under the same id is
    /// unaffected.
    End {
        id: Box<str>,
        /// The beginning of its snapshot, of at most [`PREFIX_BYTES_MAX`] bytes.
        begins_with: Vec<u8>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Save`] and [`Request::Update`].
    Saved,
    /// To [`Request::Append`]: the number of the entry.
    Appended(u64),
    /// To [`Request::Load`]: the session, as stored.
    Loaded {
        /// `None` if the session does not exist.
        snapshot: Option<Vec<u8>>,
        /// The entries after the snapshot, by number.
        entries: Vec<(u64, Vec<u8>)>,
    },
    /// To [`Request::List`]: ids and snapshots; empty after the last page.
    Listed(Vec<(Box<str>, Vec<u8>)>),
    Ended,
}

/// The interface of all session stores.
pub trait SessionStore: Send {
    /// Executes a batch; returns one reply per request, in order. Blocks at most for the store's timeout for
    /// its server or disk.
    fn carry_out(&mut self, requests: &[Request]) -> Vec<Result<Answer, StoreError>>;
}

/// Longest id, in bytes: MQTT's limit.
pub const ID_BYTES_MAX: usize = 65_535;

/// Longest `begins_with` of [`Request::End`], in bytes.
pub const PREFIX_BYTES_MAX: usize = 64;

/// Longest snapshot, in bytes.
pub const SNAPSHOT_BYTES_MAX: usize = 64 << 20;

/// Greatest number that a snapshot may name. Redis counts exactly up to it.
pub const NUMBER_MAX: u64 = 1 << 52;

/// Longest entry, in bytes: a message of MQTT's greatest length and its metadata.
pub const ENTRY_BYTES_MAX: usize = (256 << 20) + (1 << 20);

/// Bytes of snapshots and ids that fill a page of [`Request::List`].
pub const PAGE_BYTES: usize = 4 << 20;

/// Limits of the entries after a session's snapshot. Its owner drops the oldest messages before these are
/// reached; they protect the store from an owner that does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub entries_max: u64,
    /// Total bytes of these entries.
    pub bytes_max: u64,
}

impl Limits {
    /// Whether another entry is accepted after these.
    fn admit(&self, entries: u64, bytes: u64, entry: &[u8]) -> Result<(), StoreError> {
        if entries < self.entries_max && bytes + entry.len() as u64 <= self.bytes_max {
            Ok(())
        } else {
            Err(StoreError::Full { entries, bytes })
        }
    }
}

/// Checks that are the same for all stores, before they read their state.
fn check(request: &Request) -> Result<(), StoreError> {
    let (id, more) = match request {
        Request::Save { id, snapshot, .. } | Request::Update { id, snapshot, .. } => {
            (id, Some(("snapshot", snapshot.len(), SNAPSHOT_BYTES_MAX)))
        }
        Request::Append { id, entry } => (id, Some(("entry", entry.len(), ENTRY_BYTES_MAX))),
        Request::End { id, begins_with } => (id, Some(("beginning", begins_with.len(), PREFIX_BYTES_MAX))),
        Request::Load { id } => (id, None),
        // Any id is a valid start of a page, also one that no session can have.
        Request::List { .. } => return Ok(()),
    };
    if id.is_empty() {
        return Err(StoreError::NoId);
    }
    let (number, entries) = match request {
        Request::Save { through, entries, .. } => (*through, &entries[..]),
        Request::Update { last, .. } => (*last, &[][..]),
        _ => (0, &[][..]),
    };
    if number > NUMBER_MAX {
        return Err(StoreError::NoNumber(number));
    }
    let entries = entries.iter().map(|entry| ("entry", entry.len(), ENTRY_BYTES_MAX));
    for (what, bytes, max) in [("id", id.len(), ID_BYTES_MAX)].into_iter().chain(more).chain(entries) {
        if bytes > max {
            return Err(StoreError::TooLong { what, bytes, max });
        }
    }
    Ok(())
}
