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
    /// Offsets that retention has removed, or whose loss was accepted.
    #[error("offsets {first} to {} are not there any more", end - 1)]
    Gone {
        /// The first of those asked for.
        first: u64,
        /// The one behind them.
        end: u64,
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
        if is_full(&source) { LogError::Full } else { LogError::io(what, source) }
    }
}

/// Whether there was no room: on the disk, or in what a quota leaves of it.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_that_is_used_up_is_a_full_disk_and_no_broken_one() {
        use rustix::io::Errno;
        for (errno, full) in [(Errno::NOSPC, true), (Errno::DQUOT, true), (Errno::IO, false)] {
            let e = LogError::storage("cannot write", io::Error::from_raw_os_error(errno.raw_os_error()));
            assert_eq!(matches!(e, LogError::Full), full, "{errno}");
        }
    }
}
