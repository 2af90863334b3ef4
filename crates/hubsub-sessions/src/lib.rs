//! What is kept of MQTT sessions beyond their process (docs/protocol/mqtt-state.md): of each the latest *snapshot*, and
//! the *entries* that came since, which are bytes here. One interface, [`SessionStore`]; its calls block, so they are for
//! a thread of their own.
//!
//! | part | what it owns |
//! |---|---|
//! | [`Memory`] | sessions that end with the process: what the others are held against |
//! | [`Disk`] | sessions in a file of the node's |
//! | [`Redis`] | sessions in a Redis server |
//!
//! Invariants of each store:
//! - The requests of a batch are carried out in their order, and each has its answer; a later one sees what an earlier
//!   one did. What is answered is as safe as the store makes it when the call returns.
//! - Entries of a session are numbered from 1 on without gaps, also over restarts; a number is not given twice unless
//!   the session ended between.
//! - A session is there from its first snapshot until its end. To one that is not there nothing can be appended, so
//!   nothing is left behind by what comes late.

mod disk;
mod error;
mod memory;
mod redis;

pub use disk::Disk;
pub use error::StoreError;
pub use memory::Memory;
pub use redis::Redis;

/// One request. Ids are client ids, of 1 to [`ID_BYTES_MAX`] bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// All of the session as it is now: the snapshot and these entries. Begins it, if it is not there; whatever was kept
    /// of it goes.
    Save {
        /// Whose.
        id: Box<str>,
        /// At most [`SNAPSHOT_BYTES_MAX`] bytes.
        snapshot: Vec<u8>,
        /// At most [`NUMBER_MAX`]: the entries are numbered after it.
        through: u64,
        /// Each of at most [`ENTRY_BYTES_MAX`] bytes.
        entries: Vec<Vec<u8>>,
    },
    /// A snapshot of a session that is there, with all its entries: [`StoreError::NoSession`], [`StoreError::Gap`] if the
    /// store has others than its owner believes, since one was refused.
    Update {
        /// Whose.
        id: Box<str>,
        /// At most [`SNAPSHOT_BYTES_MAX`] bytes.
        snapshot: Vec<u8>,
        /// The number of the last entry.
        last: u64,
        /// Entries up to this number are of no use with the snapshot, and are not kept any more.
        through: u64,
    },
    /// Something that happened since.
    Append {
        /// To whom; [`StoreError::NoSession`] if it is not there.
        id: Box<str>,
        /// At most [`ENTRY_BYTES_MAX`] bytes; [`StoreError::Full`] beyond the [`Limits`] of a session.
        entry: Vec<u8>,
    },
    /// All of one.
    Load {
        /// Whose.
        id: Box<str>,
    },
    /// A page of snapshots, in the order of ids as bytes.
    List {
        /// Those behind this id; all if there is none.
        after: Option<Box<str>>,
        /// At most so many, from 1 on. The page also ends with the snapshot that fills [`PAGE_BYTES`].
        max: usize,
    },
    /// Nothing of it is kept any more; it need not be there, and one that has taken its place stays.
    End {
        /// Whose.
        id: Box<str>,
        /// What its snapshot begins with, of at most [`PREFIX_BYTES_MAX`] bytes: one with another beginning is not it.
        begins_with: Vec<u8>,
    },
}

/// The answer to one request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// To [`Request::Save`] and [`Request::Update`].
    Saved,
    /// To [`Request::Append`]: the number of the entry.
    Appended(u64),
    /// To [`Request::Load`].
    Loaded {
        /// None if it is not there.
        snapshot: Option<Vec<u8>>,
        /// Those behind the snapshot, in the order of their numbers.
        entries: Vec<(u64, Vec<u8>)>,
    },
    /// To [`Request::List`]: ids and snapshots. None are left if it is empty.
    Listed(Vec<(Box<str>, Vec<u8>)>),
    /// To [`Request::End`].
    Ended,
}

/// Keeps sessions.
pub trait SessionStore: Send {
    /// Carries out a batch: as many answers as requests, in their order. Blocks, at most as long as the store's patience
    /// with a server or a disk.
    fn carry_out(&mut self, requests: &[Request]) -> Vec<Result<Answer, StoreError>>;
}

/// Bytes of an id, at most: what MQTT can say.
pub const ID_BYTES_MAX: usize = 65_535;

/// Bytes of the beginning of a snapshot by which it is known, at most.
pub const PREFIX_BYTES_MAX: usize = 64;

/// Bytes of a snapshot, at most.
pub const SNAPSHOT_BYTES_MAX: usize = 64 << 20;

/// The last number that a snapshot may name. Redis counts so far.
pub const NUMBER_MAX: u64 = 1 << 52;

/// Bytes of an entry, at most: a message of MQTT's greatest length, and what is said beside it.
pub const ENTRY_BYTES_MAX: usize = (256 << 20) + (1 << 20);

/// Bytes of snapshots and ids that fill a page of [`Request::List`].
pub const PAGE_BYTES: usize = 4 << 20;

/// How much a session may keep behind its snapshot. Its owner lets the oldest messages give way before; this is the end
/// of a store's patience with one that does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Entries of one session.
    pub entries_max: u64,
    /// Bytes of these entries together.
    pub bytes_max: u64,
}

impl Limits {
    /// Whether an entry has room behind so much.
    fn admit(&self, entries: u64, bytes: u64, entry: &[u8]) -> Result<(), StoreError> {
        if entries < self.entries_max && bytes + entry.len() as u64 <= self.bytes_max {
            Ok(())
        } else {
            Err(StoreError::Full { entries, bytes })
        }
    }
}

/// What each store refuses alike, before it looks at what it keeps.
fn check(request: &Request) -> Result<(), StoreError> {
    let (id, more) = match request {
        Request::Save { id, snapshot, .. } | Request::Update { id, snapshot, .. } => {
            (id, Some(("snapshot", snapshot.len(), SNAPSHOT_BYTES_MAX)))
        }
        Request::Append { id, entry } => (id, Some(("entry", entry.len(), ENTRY_BYTES_MAX))),
        Request::End { id, begins_with } => (id, Some(("beginning", begins_with.len(), PREFIX_BYTES_MAX))),
        Request::Load { id } => (id, None),
        // Any id has others before and behind it, also one that no session can have.
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
