//! What can go wrong with a store of sessions.

use thiserror::Error;

/// See the module. One error may answer a whole batch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Nothing is kept of that session, so nothing can be appended to it: it has ended, or the store lost it. Its owner
    /// may save it again.
    #[error("nothing is kept of this session")]
    NoSession,
    /// An id without a byte.
    #[error("a session needs an id")]
    NoId,
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
}

impl StoreError {
    /// A name that does not change.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            StoreError::NoSession => "no_session",
            StoreError::NoId => "no_id",
            StoreError::TooLong { .. } => "too_long",
            StoreError::Full { .. } => "full",
        }
    }
}
