//! Errors of session stores.

use thiserror::Error;

/// One error may be the reply to a whole batch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    /// Nothing is stored for that session, so nothing can be appended: it has ended, or the store lost it.
    /// Its owner may save it again.
    #[error("nothing is stored of this session")]
    NoSession,
    /// An entry of that session was refused, but its owner counts it: the owner must save the whole session
    /// again.
    #[error("the last stored entry of the session has number {last}")]
    Gap { last: u64 },
    #[error("a session needs an id")]
    NoId,
    /// The number is above [`crate::NUMBER_MAX`].
    #[error("no entry has that number: {0}")]
    NoNumber(u64),
    /// A value is longer than a store accepts.
    #[error("the {what} has {bytes} bytes, at most {max} are stored")]
    TooLong {
        /// Id, snapshot, entry or beginning.
        what: &'static str,
        bytes: usize,
        max: usize,
    },
    /// The entries after the session's snapshot have reached a limit.
    #[error("the session has {entries} entries of {bytes} bytes after its snapshot, more are not stored")]
    Full { entries: u64, bytes: u64 },
    /// The file's bytes are not those that were written.
    #[error("{path} is damaged: {why}")]
    Damaged { path: String, why: String },
    #[error("{path} has format {found}, this version reads formats up to {known}")]
    NewerFormat { path: String, found: u32, known: u32 },
    /// The storage failed, or its server refused. Whether the batch is stored is unknown; a retry may
    /// succeed.
    #[error("{0}")]
    Failed(String),
    /// The server is unreachable, or did not reply in time. Whether the batch was executed is unknown.
    #[error("{0}")]
    Unreachable(String),
    #[error("too much waits for the store of sessions")]
    Busy,
    /// The URL does not name a session server.
    #[error("no server has this URL: {0}")]
    NoUrl(String),
}

impl StoreError {
    /// Whether the store itself has a problem, so that other requests would fail, too.
    pub fn is_of_the_store(&self) -> bool {
        use StoreError::{Damaged, Failed, NewerFormat, Unreachable};
        matches!(self, Damaged { .. } | NewerFormat { .. } | Failed(_) | Unreachable(_))
    }

    /// Stable error code, for logs and replies.
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
