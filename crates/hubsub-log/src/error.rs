//! Errors of the log.

use crate::manifest::HubName;
use std::io::{self, ErrorKind};
use thiserror::Error;

#[derive(Debug, Error)]
pub enum LogError {
    /// The disk is full. Nothing was changed; a retry may succeed later.
    #[error("the disk is full")]
    Full,
    /// A file could not be opened. Nothing was changed; a retry may succeed later.
    #[error("{what}: {source}")]
    Unopened { what: String, source: io::Error },
    /// An earlier write or sync failed, so the state of the disk is unknown.
    #[error("a write or a sync has failed before")]
    Broken,
    #[error("{what}: {source}")]
    Io { what: String, source: io::Error },
    /// A file does not have the bytes that were written.
    #[error("{path} is damaged at byte {at}: {why}")]
    Damaged { path: String, at: u64, why: String },
    /// A later version of HubSub wrote the file.
    #[error("{path} has format {found}, this version reads formats up to {known}")]
    NewerFormat {
        path: String,
        found: u32,
        /// Latest format that this version reads.
        known: u32,
    },
    /// Retention removed these offsets, or an operator accepted their loss.
    #[error("offsets {first} to {} are not there any more", end - 1)]
    Gone {
        first: u64,
        /// Offset after the last requested one.
        end: u64,
    },
    #[error("it was stopped")]
    Stopped,
    /// Another hub already has this id, or this index in its class.
    #[error("{here} is here, {asked} was asked for")]
    Differs { here: HubName, asked: HubName },
    /// Some records of the hub are missing or cannot be read.
    #[error("{hub} is quarantined: {why}")]
    Quarantined { hub: HubName, why: String },
    /// The directory belongs to another cluster or to none, or it belongs to a cluster and the node to none.
    #[error("{}", of_another(here.as_deref(), asked.as_deref()))]
    OtherCluster { here: Option<String>, asked: Option<String> },
    /// A directory that cannot be opened as it is.
    #[error("{0}")]
    Refused(String),
}

pub type Result<T, E = LogError> = std::result::Result<T, E>;

/// Names what an error of the storage prevented, as the functions of [`LogError`] of the same names do.
pub(crate) trait Context<T> {
    fn io(self, what: &str) -> Result<T>;
    fn storage(self, what: &str) -> Result<T>;
}

impl<T> Context<T> for io::Result<T> {
    fn io(self, what: &str) -> Result<T> {
        self.map_err(|e| LogError::io(what, e))
    }

    fn storage(self, what: &str) -> Result<T> {
        self.map_err(|e| LogError::storage(what, e))
    }
}

impl LogError {
    /// Wraps a storage error; an error of opening a file becomes [`LogError::Unopened`].
    pub(crate) fn io(what: &str, source: io::Error) -> LogError {
        let what = what.to_owned();
        if is_unopened(&source) { LogError::Unopened { what, source } } else { LogError::Io { what, source } }
    }

    /// Whether nothing was changed and a retry may succeed later: no write or sync has failed.
    pub fn is_passing(&self) -> bool {
        matches!(self, LogError::Full | LogError::Unopened { .. })
    }

    /// Wraps a storage error; one caused by lack of space becomes [`LogError::Full`].
    pub(crate) fn storage(what: &str, source: io::Error) -> LogError {
        if is_full(&source) { LogError::Full } else { LogError::io(what, source) }
    }

    /// The bytes at a position of a file are not what was written.
    pub(crate) fn damaged(path: impl Into<String>, at: u64, why: impl Into<String>) -> LogError {
        LogError::Damaged { path: path.into(), at, why: why.into() }
    }
}

fn of_another(here: Option<&str>, asked: Option<&str>) -> String {
    match (here, asked) {
        (Some(here), Some(asked)) => format!("it is of cluster {here}, this node is of cluster {asked}"),
        (Some(here), None) => format!("it is of cluster {here}, this node is of none"),
        (None, Some(asked)) => {
            format!("it has hubs that its node numbered itself, this node is of cluster {asked}")
        }
        (None, None) => "it is of no cluster".to_owned(),
    }
}

/// An I/O error with the path of its file.
#[derive(Debug, Error)]
#[error("{path}: {source}")]
struct OfFile {
    path: String,
    source: io::Error,
}

/// Adds the path of the file to an error. The error's kind does not change.
pub(crate) fn of_file(path: &str, source: io::Error) -> io::Error {
    io::Error::new(source.kind(), OfFile { path: path.to_owned(), source })
}

/// Marks an error as a failure to open a file, so no bytes were lost.
#[derive(Debug, Error)]
#[error("{0}")]
struct Unopened(io::Error);

/// Marks an error as a failure to open a file, unless its kind already determines how it is handled.
pub fn unopened(e: io::Error) -> io::Error {
    match e.kind() {
        ErrorKind::NotFound | ErrorKind::AlreadyExists => e,
        _ if is_full(&e) => e,
        kind => io::Error::new(kind, Unopened(e)),
    }
}

/// Whether the error is a failure to open a file.
pub(crate) fn is_unopened(e: &io::Error) -> bool {
    e.get_ref().is_some_and(|source| source.is::<Unopened>())
}

/// Whether space ran out, on the disk or within a quota.
pub(crate) fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_cannot_be_opened_may_be_tried_again() {
        use rustix::io::Errno;
        let error = |errno: Errno| io::Error::from_raw_os_error(errno.raw_os_error());
        for errno in [Errno::MFILE, Errno::NFILE, Errno::ACCESS, Errno::IO] {
            for e in [
                LogError::io("cannot make a journal", unopened(error(errno))),
                LogError::storage("cannot make a journal", unopened(error(errno))),
            ] {
                assert!(matches!(e, LogError::Unopened { .. }) && e.is_passing(), "{errno}");
                assert!(e.to_string().starts_with("cannot make a journal: "), "{e}");
            }
            assert!(!LogError::storage("cannot write", error(errno)).is_passing(), "{errno}");
        }
        assert!(!LogError::io("cannot open", unopened(error(Errno::NOENT))).is_passing());
        assert!(matches!(LogError::storage("cannot make", unopened(error(Errno::NOSPC))), LogError::Full));
    }

    #[test]
    fn a_quota_that_is_used_up_is_a_full_disk_and_no_broken_one() {
        use rustix::io::Errno;
        for (errno, full) in [(Errno::NOSPC, true), (Errno::DQUOT, true), (Errno::IO, false)] {
            let e = LogError::storage("cannot write", io::Error::from_raw_os_error(errno.raw_os_error()));
            assert_eq!(matches!(e, LogError::Full), full, "{errno}");
        }
    }
}
