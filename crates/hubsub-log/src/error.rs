//! What can go wrong with a log.

use std::io::{self, ErrorKind};
use thiserror::Error;

/// See the module.
#[derive(Debug, Error)]
pub enum LogError {
    /// The disk is full. Nothing was changed; the same may succeed later.
    #[error("the disk is full")]
    Full,
    /// Something failed before, and what reached the disk since is not known.
    #[error("a write or a sync has failed before")]
    Broken,
    /// The storage failed.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
    /// Bytes that are not what was written.
    #[error("{path} is damaged at byte {at}: {why}")]
    Damaged {
        /// The file.
        path: String,
        /// Where in it.
        at: u64,
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
    /// Who watched it told it to stop.
    #[error("it was stopped")]
    Stopped,
    /// A directory that cannot be opened as it is.
    #[error("{0}")]
    Refused(String),
}

impl LogError {
    /// The storage failed.
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> LogError {
        LogError::Io { what: what.into(), source }
    }

    /// The storage failed, maybe for want of room.
    pub(crate) fn storage(what: &str, source: io::Error) -> LogError {
        if source.kind() == ErrorKind::StorageFull { LogError::Full } else { LogError::io(what, source) }
    }
}
