//! One hub's chain of segments, as its writer and its readers share it.
//!
//! [`Appender`] is its only writer, on the segment thread. Readers
//! ([`read`]) see what was written, in this process; what is *safe* is the
//! journal's business. Invariant: the chain holds every offset from `earliest`
//! to `next - 1`, except what was compacted, and what was lost and given up
//! ([`crate::repair`]): such holes are between segments, never within one.
//!
//! Sealed segments never change. They are taken off the chain by retention, or
//! replaced by others with fewer records ([`compact`]); a reader that meets this
//! looks again.

mod append;
mod compact;
mod open;
mod range;
pub mod read;
mod retention;
mod scan;
mod walk;

pub use append::Appender;
pub(crate) use compact::{Limits as PassLimits, Pass, Replacement, Turn};
pub use open::{new, open};
pub use read::{Mark, Reach};
pub use retention::{ArchiveWait, Retention, Span, Verdict};
pub use scan::{Cursor, Pace};

use crate::LogError;
use crate::files::{Files, Part};
use crate::index::{Run, RunBuilder};
use crate::manifest::{Keep, Lost, SegmentEntry, end_before};
use crate::names::Names;
use crate::rooms::{RoomHash, RoomTable};
use crate::segment::{self, Name};
use crate::storage::{self, Storage};
use hubsub_types::HubId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// How a chain is kept.
#[derive(Clone, Copy, Debug)]
pub struct ChainOptions {
    /// A segment is sealed when it is so long; below 4 GiB.
    pub segment_bytes: u64,
    /// While a segment is open, its index is written for so many bytes at a time.
    pub run_bytes: u64,
}

impl Default for ChainOptions {
    fn default() -> ChainOptions {
        ChainOptions { segment_bytes: 64 << 20, run_bytes: 1 << 20 }
    }
}

/// See the module.
pub struct Chain<S: Storage> {
    /// Whose it is.
    pub hub: HubId,
    /// What it keeps. Where that is the latest of each key, seqs have gaps.
    pub keep: Keep,
    pub(crate) identity: u64,
    files: Arc<Files<S>>,
    /// The last record of every room in it.
    pub rooms: RoomTable,
    /// What they are called.
    pub(crate) names: Names<S::File>,
    /// Never held while the disk is waited for: who only looks must not wait for it.
    state: RwLock<State>,
    /// `open.next` of that, for those who ask often how far the chain is.
    next: AtomicU64,
    /// Offsets whose loss was accepted, between segments, in order.
    lost: Vec<Lost>,
    /// Held by the reader that makes an index again: another that found the same waits for it.
    mending: Mutex<()>,
    /// Indexes that were made again, since the start.
    index_rebuilds: AtomicU64,
}

/// What changes as records come and go.
#[derive(Debug)]
struct State {
    /// Oldest first.
    sealed: Vec<Sealed>,
    /// How often segments were sealed, removed or replaced.
    changes: u64,
    open: Open,
    /// Offset of the oldest record kept, or of the next one.
    earliest: u64,
}

/// A segment that is not written any more. It is for the offsets below the next one's first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sealed {
    name: Name,
    bytes: u64,
    /// Timestamp of its first record; 0 without one.
    first_us: u64,
    /// Its index, as it was when it was made or read last: so no look-up begins with the
    /// head of a file.
    index: Run,
}

/// The segment that is written.
#[derive(Debug, Default)]
struct Open {
    name: Name,
    /// Offset of the record that comes.
    next: u64,
    /// Bytes in it, head included.
    end: u64,
    /// Timestamp of its first record, of its last one.
    first_us: u64,
    last_us: u64,
    /// What its index holds, and behind it what is still in memory.
    runs: Vec<Run>,
    run: RunBuilder,
    /// Bytes of the file of runs.
    runs_bytes: u64,
    /// Where the run in memory begins.
    run_start: u64,
}

impl State {
    /// Of a chain with one segment, which is open.
    fn at(open: Name, earliest: u64) -> State {
        State { sealed: Vec::new(), changes: 0, open: Open::at(open), earliest }
    }
}

impl Sealed {
    /// As the manifest lists it.
    fn entry(&self) -> SegmentEntry {
        entry(self.name, self.bytes)
    }
}

fn entry(name: Name, bytes: u64) -> SegmentEntry {
    SegmentEntry(name.first, bytes, name.generation)
}

/// What a chain tells of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainInfo {
    /// Offset of the oldest record kept, or of the next one.
    pub earliest: u64,
    /// Offset of the next record.
    pub next: u64,
    /// Bytes of all segments.
    pub bytes: u64,
    /// How many segments there are.
    pub segments: usize,
    /// Rooms with records.
    pub rooms: usize,
    /// Memory of table and index.
    pub index_bytes: usize,
    /// Timestamp of the oldest record kept, in µs; 0 without one.
    pub first_us: u64,
    /// Timestamp of the last record; 0 without one.
    pub last_us: u64,
    /// Indexes that were made again, since the start.
    pub index_rebuilds: u64,
}

impl<S: Storage> Chain<S> {
    pub(crate) fn storage(&self) -> &S {
        self.files.storage()
    }

    /// While this is held, nothing is written.
    pub(crate) fn hold(&self) -> impl Sized {
        self.read_state()
    }

    fn read_state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("nothing panics under this lock")
    }

    fn write_state(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("nothing panics under this lock")
    }

    fn file(&self, name: Name, part: Part) -> Result<Arc<S::File>, LogError> {
        let cannot = |e| LogError::io("cannot open a segment", e);
        self.files.get(self.hub, name, part).map_err(cannot)
    }

    /// Offset behind the records of the segment before the one that begins with `next_first`.
    fn end_before(&self, next_first: u64) -> u64 {
        end_before(&self.lost, next_first)
    }

    /// An offset, or the first one behind it that is not lost.
    fn kept_from(&self, offset: u64) -> u64 {
        let hole = self.lost.iter().find(|lost| (lost.0..=lost.1).contains(&offset));
        hole.map_or(offset, |lost| lost.1 + 1)
    }

    /// First offset of the unbroken part that an offset is in.
    fn unbroken_from(&self, offset: u64) -> u64 {
        self.lost.iter().rev().find(|lost| lost.1 < offset).map_or(0, |lost| lost.1 + 1)
    }

    /// Takes a file away. What cannot be removed now is removed at the next start,
    /// since the manifest does not list it.
    fn unlink(&self, name: Name, part: Part) {
        // In this order: who opens it in between keeps a file that has no name for no longer than this.
        let _ = self.files.storage().unlink(&segment::path(self.hub, name, part));
        self.files.forget(self.hub, name, part);
    }

    /// Writes the index of a sealed segment, in place of the one it had.
    fn store_index(&self, name: Name, bytes: &[u8]) -> Result<Run, LogError> {
        let directory = segment::directory(self.hub);
        storage::replace(&**self.files.storage(), &directory, &name.file(Part::Index), bytes)
            .map_err(|e| LogError::storage("cannot write an index", e))?;
        self.files.forget(self.hub, name, Part::Index);
        Ok(Run::of(bytes, 0).expect("a segment that is sealed has records or covers offsets"))
    }

    /// The hash that stands for a room of this directory.
    #[must_use]
    pub fn hash(&self, room: &[u8]) -> RoomHash {
        RoomHash::new(self.identity, room)
    }

    /// Offset of the record that comes behind those written.
    #[must_use]
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// How often segments were sealed, removed or replaced: a reader that found
    /// something amiss looks again if this has changed.
    fn changes(&self) -> u64 {
        self.read_state().changes
    }

    /// What it tells of itself.
    #[must_use]
    pub fn info(&self) -> ChainInfo {
        let state = self.read_state();
        let first_us = state.sealed.iter().map(|segment| segment.first_us).find(|&us| us > 0);
        let sealed: u64 = state.sealed.iter().map(|segment| segment.bytes).sum();
        let memory = state.sealed.capacity() * size_of::<Sealed>()
            + state.open.runs.capacity() * size_of::<Run>()
            + state.open.run.bytes();
        ChainInfo {
            earliest: state.earliest,
            next: state.open.next,
            bytes: sealed + state.open.end,
            segments: state.sealed.len() + 1,
            rooms: self.rooms.len(),
            index_bytes: memory + self.rooms.bytes(),
            first_us: first_us.unwrap_or(state.open.first_us),
            last_us: state.open.last_us,
            index_rebuilds: self.index_rebuilds.load(Ordering::Relaxed),
        }
    }
}
