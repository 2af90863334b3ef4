//! One hub's chain of segments, shared by its writer and its readers.
//!
//! [`Appender`] is its only writer, on the segment thread. Readers ([`read`]) see all records written in this
//! process; whether a record is *safe* is decided by the journal. Invariant: the chain has every offset from
//! `earliest` to `next - 1`, except those removed by compaction and those lost and given up
//! ([`crate::repair`]): such holes are between segments, never within one.
//!
//! Sealed segments never change. Retention removes them from the chain, and compaction replaces them with
//! others that have fewer records ([`compact`]); a reader that encounters this retries.

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
pub use read::Mark;
pub use retention::{ArchiveWait, Retention, Span, Verdict};
pub use scan::{Cursor, Pace};

use crate::error::Context;
use crate::files::{Files, Part};
use crate::index::{Run, RunBuilder};
use crate::manifest::{Keep, Lost, SegmentEntry, end_before};
use crate::names::Names;
use crate::rooms::{RoomHash, RoomTable};
use crate::segment::{self, Name};
use crate::storage::{self, Storage};
use crate::{LogError, Result};
use hubsub_types::HubId;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

#[derive(Clone, Copy, Debug)]
pub struct ChainOptions {
    /// A segment is sealed at this size; below 4 GiB.
    pub segment_bytes: u64,
    /// The open segment's index is written as a run for each of this many bytes.
    pub run_bytes: u64,
}

impl Default for ChainOptions {
    fn default() -> ChainOptions {
        ChainOptions { segment_bytes: 64 << 20, run_bytes: 1 << 20 }
    }
}

pub struct Chain<S: Storage> {
    pub hub: HubId,
    /// If it keeps the latest of each key, seqs have gaps.
    pub keep: Keep,
    pub(crate) identity: u64,
    files: Arc<Files<S>>,
    /// The last record of every room.
    pub rooms: RoomTable,
    pub(crate) names: Names<S::File>,
    /// Never held during disk I/O, so readers do not wait for the disk.
    state: RwLock<State>,
    /// Copy of `open.next` that can be read without the lock.
    next: AtomicU64,
    /// Offset ranges whose loss was accepted, between segments, in order.
    lost: Vec<Lost>,
    /// Held by the reader that rebuilds an index; other readers that need it wait.
    mending: Mutex<()>,
    /// Indexes rebuilt since the start.
    index_rebuilds: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Sorted by offset, the oldest first.
    sealed: Vec<Sealed>,
    /// Number of segments sealed, removed or replaced.
    changes: u64,
    open: Open,
    /// Offset of the oldest record, or of the next one if there is none.
    earliest: u64,
}

/// A segment that is no longer written. It covers the offsets below the first of the next segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Sealed {
    name: Name,
    bytes: u64,
    /// Timestamp of its first record; 0 without one.
    first_us: u64,
    /// Head of its index, as it was when written or read last, so that a look-up need not read it.
    index: Run,
}

#[derive(Debug, Default)]
struct Open {
    name: Name,
    next: u64,
    /// Bytes in it, including the head.
    end: u64,
    first_us: u64,
    last_us: u64,
    /// Runs of its index in the file; the run after them is still in memory.
    runs: Vec<Run>,
    run: RunBuilder,
    runs_bytes: u64,
    /// Position in the segment at which the run in memory begins.
    run_start: u64,
}

impl State {
    /// State of a chain whose only segment is open.
    fn at(open: Name, earliest: u64) -> State {
        State { sealed: Vec::new(), changes: 0, open: Open::at(open), earliest }
    }

    /// First offset of the segment after a sealed one.
    fn behind(&self, sealed: usize) -> u64 {
        self.sealed.get(sealed + 1).map_or(self.open.name.first, |next| next.name.first)
    }
}

impl Sealed {
    fn entry(&self) -> SegmentEntry {
        entry(self.name, self.bytes)
    }
}

fn entry(name: Name, bytes: u64) -> SegmentEntry {
    SegmentEntry(name.first, bytes, name.generation)
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChainInfo {
    /// Offset of the oldest record, or of the next one if there is none.
    pub earliest: u64,
    pub next: u64,
    pub bytes: u64,
    /// Number of segments, including the open one.
    pub segments: usize,
    pub rooms: usize,
    /// Memory of the room table and the index, in bytes.
    pub index_bytes: usize,
    /// Timestamp of the oldest record, in µs; 0 without one.
    pub first_us: u64,
    /// Timestamp of the last record, in µs; 0 without one.
    pub last_us: u64,
    /// Indexes rebuilt since the start.
    pub index_rebuilds: u64,
}

impl<S: Storage> Chain<S> {
    pub(crate) fn storage(&self) -> &S {
        self.files.storage()
    }

    /// Blocks the writer until the returned guard is dropped.
    pub(crate) fn hold(&self) -> impl Sized {
        self.read_state()
    }

    fn read_state(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().expect("nothing panics under this lock")
    }

    fn write_state(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().expect("nothing panics under this lock")
    }

    fn file(&self, name: Name, part: Part) -> Result<Arc<S::File>> {
        let cannot = |e| LogError::io("cannot open a segment", e);
        self.files.get(self.hub, name, part).map_err(cannot)
    }

    /// Offset after the records of the segment before the one that begins with `next_first`.
    fn end_before(&self, next_first: u64) -> u64 {
        end_before(&self.lost, next_first)
    }

    /// The offset, or the first one after it that is not lost.
    fn kept_from(&self, offset: u64) -> u64 {
        let hole = self.lost.iter().find(|lost| (lost.0..=lost.1).contains(&offset));
        hole.map_or(offset, |lost| lost.1 + 1)
    }

    /// First offset of the contiguous range that contains an offset.
    fn unbroken_from(&self, offset: u64) -> u64 {
        self.lost.iter().rev().find(|lost| lost.1 < offset).map_or(0, |lost| lost.1 + 1)
    }

    /// Removes a file. If this fails, the next start removes it, since the manifest does not list it.
    fn unlink(&self, name: Name, part: Part) {
        // In this order: a file opened in between stays in the cache only until `forget`.
        let _ = self.files.storage().unlink(&segment::path(self.hub, name, part));
        self.files.forget(self.hub, name, part);
    }

    fn unlink_segment(&self, name: Name) {
        self.unlink(name, Part::Segment);
        self.unlink(name, Part::Index);
    }

    fn damaged(&self, name: Name, at: u64, why: impl Into<String>) -> LogError {
        LogError::damaged(segment::path(self.hub, name, Part::Segment), at, why)
    }

    /// Writes the index of a sealed segment and replaces the previous one.
    fn store_index(&self, name: Name, bytes: &[u8]) -> Result<Run> {
        let directory = segment::directory(self.hub);
        storage::replace(&**self.files.storage(), &directory, &name.file(Part::Index), bytes)
            .storage("cannot write an index")?;
        self.files.forget(self.hub, name, Part::Index);
        Ok(Run::of(bytes, 0).expect("a segment that is sealed has records or covers offsets"))
    }

    /// Hash of a room's name in this directory.
    pub fn hash(&self, room: &[u8]) -> RoomHash {
        RoomHash::new(self.identity, room)
    }

    /// Offset of the next record to be written.
    pub fn next(&self) -> u64 {
        self.next.load(Ordering::Acquire)
    }

    /// Number of segments sealed, removed or replaced. A reader that found an inconsistency retries if this
    /// has changed.
    fn changes(&self) -> u64 {
        self.read_state().changes
    }

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
