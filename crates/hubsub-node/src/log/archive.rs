//! How far each hub is archived, as the control plane was told, and what its retention
//! keeps for that. The control plane writes the offset, the segment thread reads it and
//! writes the rest; whoever tells of a hub reads all.

use hubsub_log::{ArchiveWait, Retention};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Of one hub.
#[derive(Debug, Default)]
pub struct Archive {
    /// First offset that no archive has; 0 until something is told.
    pub archived: AtomicU64,
    /// Bytes that are kept for an archive alone.
    pub waiting_bytes: AtomicU64,
    /// Records that were removed since the start and were not archived.
    pub lost: AtomicU64,
}

/// How long a hub's records are kept.
#[derive(Clone, Debug, Default)]
pub struct Keeping {
    /// Without an archive.
    pub limits: Retention,
    /// Bytes of the hub up to which an archive is waited for; 0: it is not.
    pub archive_wait_bytes: u64,
    /// How far that is.
    pub archive: Arc<Archive>,
}

impl Keeping {
    /// As it is now.
    pub fn retention(&self) -> Retention {
        let archived = self.archive.archived.load(Ordering::Relaxed);
        let bytes_max = self.archive_wait_bytes;
        let archive = (bytes_max > 0).then_some(ArchiveWait { bytes_max, archived });
        Retention { archive, ..self.limits }
    }
}

impl From<Retention> for Keeping {
    fn from(limits: Retention) -> Keeping {
        Keeping { limits, ..Keeping::default() }
    }
}
