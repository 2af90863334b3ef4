//! What can go wrong with a log.

use crate::manifest::HubName;
use std::io::{self, ErrorKind};
use thiserror::Error;

/// See the module.
#[derive(Debug, Error)]
pub enum LogError {
    /// The disk is full. Nothing was changed; the same may succeed later.
    #[error("the disk is full")]
    Full,
    /// A file could not be opened. Nothing was changed; the same may succeed later.
    #[error("{what}: {source}")]
    Unopened {
        /// What was tried.
        what: String,
        /// Why it failed.
        source: io::Error,
    },
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
    /// A hub's id, or its place in its class, is another hub's.
    #[error("{here} is here, {asked} was asked for")]
    Differs {
        /// What is here.
        here: HubName,
        /// What was asked for.
        asked: HubName,
    },
    /// Some of its records are not there, or cannot be read.
    #[error("{hub} is quarantined: {why}")]
    Quarantined {
        /// The hub.
        hub: HubName,
        /// Why.
        why: String,
    },
    /// The directory of another cluster, or of none, or a cluster's without one.
    #[error("{}", of_another(here.as_deref(), asked.as_deref()))]
    OtherCluster {
        /// That of the directory, if it is of one.
        here: Option<String>,
        /// That of its node, if it is of one.
        asked: Option<String>,
    },
    /// A directory that cannot be opened as it is.
    #[error("{0}")]
    Refused(String),
}

impl LogError {
    /// The storage failed.
    pub(crate) fn io(what: impl Into<String>, source: io::Error) -> LogError {
        let what = what.into();
        if is_unopened(&source) { LogError::Unopened { what, source } } else { LogError::Io { what, source } }
    }

    /// Whether nothing was changed, and the same may succeed later: no write and no sync has failed.
    #[must_use]
    pub fn is_passing(&self) -> bool {
        matches!(self, LogError::Full | LogError::Unopened { .. })
    }

    /// The storage failed, maybe for want of room.
    pub(crate) fn storage(what: &str, source: io::Error) -> LogError {
        if is_full(&source) { LogError::Full } else { LogError::io(what, source) }
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

/// The system's error for a file, with the file's path.
#[derive(Debug, Error)]
#[error("{path}: {source}")]
struct OfFile {
    path: String,
    source: io::Error,
}

/// Names the file that an error is of. Its kind stays.
pub(crate) fn of_file(path: &str, source: io::Error) -> io::Error {
    io::Error::new(source.kind(), OfFile { path: path.to_owned(), source })
}

/// What the system said to an attempt to open a file, as the source of a storage's error. No byte was lost by it.
#[derive(Debug, Error)]
#[error("{0}")]
struct Unopened(io::Error);

/// Marks an error as one of opening a file, unless its kind already says what to do.
pub(crate) fn unopened(e: io::Error) -> io::Error {
    match e.kind() {
        ErrorKind::NotFound | ErrorKind::AlreadyExists => e,
        _ if is_full(&e) => e,
        kind => io::Error::new(kind, Unopened(e)),
    }
}

/// Whether a file could not be opened.
pub(crate) fn is_unopened(e: &io::Error) -> bool {
    e.get_ref().is_some_and(|source| source.is::<Unopened>())
}

/// Whether there was no room: on the disk, or in what a quota leaves of it.
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
