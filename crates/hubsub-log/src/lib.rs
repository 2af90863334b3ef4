//! The log of HubSub: the records of rooms whose class is replicated or durable.
//!
//! It owns a data directory and nothing else: no thread, no clock, no socket. The node calls its three parts
//! on threads of their own (`hubsub-node/src/log`):
//!
//! - [`journal`] takes the records of all hubs, writes and syncs them. After the sync they are safe.
//! - [`segments`] copies them from there into one chain of segments per hub, makes checkpoints, and removes
//!   records that are expired or replaced. Hubs can be added and removed while it runs.
//! - [`chain`] reads: a range of a hub, a room's history (through [`rooms`] and [`index`]), or the list of
//!   rooms. [`arrow`] encodes a range as an Arrow stream.
//!
//! [`open`] recovers a directory: either exactly the acknowledged records, or a clear refusal. On a directory
//! that no node uses, [`verify`] checks that everything is there, [`show`] prints records, and [`repair`]
//! repairs it. Below them, [`storage`] abstracts a disk; for tests, the feature `sim` has one that fails on demand.
//! `docs/log-format.md` documents the file formats.

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
#[cfg(any(test, feature = "sim"))]
pub mod sim;
pub mod storage;
pub mod verify;

pub use chain::{ArchiveWait, Chain, ChainInfo, ChainOptions, Cursor, Mark, Pace, Retention, Verdict};
pub use disk::Disk;
pub use error::{LogError, Result};
pub use files::Part;
pub use hubsub_types::HubId;
pub use journal::{Batch, Journal};
pub use manifest::{HubName, Keep};
pub use open::{Membership, Opened, open, open_as};
pub use record::{Kind, Record};
pub use segments::{Compaction, Opening, Ready, Segments};

/// Version of every file format. Older versions are read, newer ones refused.
pub const FORMAT: u32 = 1;

#[derive(Clone, Copy, Debug)]
pub struct LogOptions {
    pub chain: ChainOptions,
    pub journal_bytes: u64,
    pub open_files_max: usize,
    /// Disk space reserved so that acknowledged records can reach segments when the disk is full.
    pub reserve_bytes: u64,
}

/// Journal files that a log has while it takes records: the one being written, the next, and the one after
/// that, which is prepared meanwhile.
const JOURNALS: u64 = 3;

impl LogOptions {
    /// Disk space that a log needs beside its records. With less, it is full soon after its start.
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
