//! The log of HubSub: what was said in rooms of classes that remember it.
//!
//! It owns a data directory and nothing else: no thread, no clock, no socket. The
//! node calls its three parts on threads of their own (`hubsub-node/src/log`):
//!
//! - [`journal`] takes what all hubs said, writes and syncs it: then it is safe;
//! - [`segments`] takes it from there into one chain of segments for each hub,
//!   makes checkpoints, removes what is too old or was replaced; hubs come and go
//!   there while it runs;
//! - [`chain`] reads: a range of a hub, a room's past by [`rooms`] and [`index`], or
//!   which rooms there are. [`arrow`] makes an Arrow stream of a range.
//!
//! [`open`] brings a directory back to where it was: exactly what was acknowledged,
//! or a clear refusal. On a directory that no node uses, [`verify`] says whether
//! all is there, [`show`] what is, and [`repair`] mends it. Below them, [`storage`] is what a disk is, and [`sim`] one
//! that fails on demand. What the files hold stands in `docs/log-format.md`.

pub mod arrow;
pub mod chain;
pub mod disk;
mod error;
mod files;
pub mod index;
pub mod journal;
pub mod manifest;
mod names;
mod open;
pub mod record;
pub mod repair;
mod reserve;
pub mod rooms;
mod salvage;
pub mod segment;
pub mod segments;
pub mod show;
pub mod sim;
pub mod storage;
pub mod verify;

pub use chain::{ArchiveWait, Chain, ChainInfo, ChainOptions, Cursor, Mark, Pace, Reach, Retention, Verdict};
pub use disk::Disk;
pub use error::LogError;
pub use files::Part;
pub use hubsub_types::HubId;
pub use journal::{Batch, Journal};
pub use manifest::{HubName, Keep};
pub use open::{Membership, Opened, open, open_as};
pub use record::{Kind, Record};
pub use segments::{Compaction, Opening, Ready, Segments};

/// Version of everything that is written; older ones are read, newer ones refused.
pub const FORMAT: u32 = 1;

/// How a log is kept.
#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    /// Of chains.
    pub chain: ChainOptions,
    /// Size of a journal file.
    pub journal_bytes: u64,
    /// Segments and indexes open at once.
    pub open_files_max: usize,
    /// Space that is kept for what was acknowledged.
    pub reserve_bytes: u64,
}

/// Journals that a log has while it takes records: the one that is written, the next, and
/// the one behind that, which is made ready meanwhile.
const JOURNALS: u64 = 3;

impl LogOptions {
    /// Bytes of its disk that a log takes beside its records. With less it is full, soon
    /// after its start.
    #[must_use]
    pub fn room_bytes(&self) -> u64 {
        reserve::len(self.reserve_bytes).saturating_add(self.journal_bytes.saturating_mul(JOURNALS))
    }
}

impl Default for LogOptions {
    fn default() -> LogOptions {
        LogOptions {
            chain: ChainOptions::default(),
            journal_bytes: 64 << 20,
            open_files_max: 512,
            reserve_bytes: 0,
        }
    }
}
