//! What can go wrong with a store of sessions.

use thiserror::Error;

/// See the module. One error may answer a whole batch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Nothing is kept of that session, so nothing can be appended to it: it has ended, or the store lost it. Its owner
    /// may save it again.
    #[error("nothing is kept of this session")]
    NoSession,
    /// An entry of that session was refused that its owner counts: it saves all of it again.
    #[error("the last entry of the session that is kept has number {last}")]
    Gap {
        /// The last one that is kept.
        last: u64,
    },
    /// An id without a byte.
    #[error("a session needs an id")]
    NoId,
    /// Entries are not numbered so far.
    #[error("no entry has that number: {0}")]
    NoNumber(u64),
    /// More bytes than a store takes.
    #[error("the {what} has {bytes} bytes, at most {max} are kept")]
    TooLong {
        /// Id, snapshot or entry.
        what: &'static str,
        /// Its length.
        bytes: usize,
        /// The limit.
        max: usize,
    },
    /// As much is kept behind the session's snapshot as may be.
    #[error("the session has {entries} entries of {bytes} bytes behind its snapshot, more are not kept")]
    Full {
        /// How many.
        entries: u64,
        /// Together.
        bytes: u64,
    },
    /// Bytes that are not what was written.
    #[error("{path} is damaged: {why}")]
    Damaged {
        /// The file.
        path: String,
        /// What is wrong.
        why: String,
    },
    /// Written by a later version.
    #[error("{path} has format {found}, this version reads formats up to {known}")]
    NewerFormat {
        /// The file.
        path: String,
        /// Its format.
        found: u32,
        /// The latest that is understood.
        known: u32,
    },
    /// The storage failed, or its server refused. Whether the batch is kept is not known; the same may succeed later.
    #[error("{0}")]
    Failed(String),
    /// The server cannot be reached, or gave no answer in time. Whether the batch was carried out is not known.
    #[error("{0}")]
    Unreachable(String),
    /// Too much waits for the store.
    #[error("too much waits for the store of sessions")]
    Busy,
    /// That says nowhere where to keep sessions.
    #[error("no server has this URL: {0}")]
    NoUrl(String),
}

impl StoreError {
    /// Whether the store itself is in trouble, and no request but this one would fare better.
    #[must_use]
    pub fn is_of_the_store(&self) -> bool {
        use StoreError::{Damaged, Failed, NewerFormat, Unreachable};
        matches!(self, Damaged { .. } | NewerFormat { .. } | Failed(_) | Unreachable(_))
    }

    /// A name that does not change.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::NoSession => "no_session",
            StoreError::Gap { .. } => "gap",
            StoreError::NoId => "no_id",
            StoreError::NoNumber(_) => "no_number",
            StoreError::TooLong { .. } => "too_long",
            StoreError::Full { .. } => "full",
            StoreError::Damaged { .. } => "damaged",
            StoreError::NewerFormat { .. } => "newer_format",
            StoreError::Failed(_) => "failed",
            StoreError::Unreachable(_) => "unreachable",
            StoreError::Busy => "busy",
            StoreError::NoUrl(_) => "no_url",
        }
    }
}
