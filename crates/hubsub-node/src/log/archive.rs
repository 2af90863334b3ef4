//! How far each hub is archived, and what its retention keeps for the archive. The control plane writes the
//! offset; the segment thread reads it and writes the rest; status reports read all.

use hubsub_log::{ArchiveWait, Retention};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Default)]
pub struct Archive {
    /// The first offset not archived; 0 until it is reported.
    pub archived: AtomicU64,
    /// Bytes kept only because they are not archived.
    pub waiting_bytes: AtomicU64,
    /// Records removed since the start without having been archived.
    pub lost: AtomicU64,
}

#[derive(Clone, Debug, Default)]
pub struct Keeping {
    /// The limits without an archive.
    pub limits: Retention,
    /// The hub size, in bytes, up to which records are kept for the archive; 0: not at all.
    pub archive_wait_bytes: u64,
    pub archive: Arc<Archive>,
}

impl Keeping {
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
