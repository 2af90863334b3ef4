//! History of rooms: a ring per room, and limits over all rooms of a hub.
//!
//! `messages` and `age` are limits of a room; `bytes` is a limit of the hub: the oldest record of the hub is
//! dropped first, whatever its room. A second limit over all hubs of the shard works in the same way.

use hubsub_message::Record;
use hubsub_types::Seq;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug, Default)]
pub struct Ring {
    records: VecDeque<Arc<Record>>,
    bytes: u64,
}

impl Ring {
    pub fn push(&mut self, record: Arc<Record>) {
        debug_assert!(self.records.back().is_none_or(|last| last.position.seq.next() == record.position.seq));
        self.bytes += record.weight() as u64;
        self.records.push_back(record);
    }

    pub fn pop(&mut self) -> u64 {
        let Some(record) = self.records.pop_front() else { return 0 };
        let bytes = record.weight() as u64;
        self.bytes -= bytes;
        if self.records.capacity() > 64 && self.records.len() < self.records.capacity() / 4 {
            self.records.shrink_to(self.records.len() * 2);
        }
        bytes
    }

    pub fn first(&self) -> Option<&Arc<Record>> {
        self.records.front()
    }

    pub fn len(&self) -> usize {
        self.records.len()
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Records from `seq` on, or from the oldest if that one is no longer there.
    pub fn from(&self, seq: Seq) -> impl DoubleEndedIterator<Item = &Arc<Record>> {
        let first = self.first().map_or(0, |r| r.position.seq.0);
        let skip = usize::try_from(seq.0.saturating_sub(first)).unwrap_or(usize::MAX);
        self.records.range(skip.min(self.records.len())..)
    }

    /// Seq of the first record that is not older than `timestamp_us`; none if all are.
    pub fn since(&self, timestamp_us: u64) -> Option<Seq> {
        let at = self.records.partition_point(|r| r.timestamp_us < timestamp_us);
        self.records.get(at).map(|r| r.position.seq)
    }
}

/// Arrival order of the records of one hub, and their bytes. Entries of records that their room dropped by
/// its own limits remain until they reach the front or outnumber the others.
#[derive(Debug, Default)]
pub struct Ledger {
    entries: VecDeque<Entry>,
    pub bytes: u64,
    pub records: u64,
}

/// A record in the arrival order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub room: crate::rooms::RoomHandle,
    pub seq: Seq,
    /// Its offset in the hub's log; 0 without one.
    pub offset: u64,
}

impl Ledger {
    /// The records of a hub with a log, from an offset on.
    pub fn from(&self, offset: u64) -> impl Iterator<Item = &Entry> {
        let at = self.entries.partition_point(|entry| entry.offset < offset);
        self.entries.range(at..)
    }

    pub fn kept(&mut self, entry: Entry, bytes: u64) {
        self.entries.push_back(entry);
        self.bytes += bytes;
        self.records += 1;
    }

    pub fn dropped(&mut self, bytes: u64) {
        self.bytes -= bytes;
        self.records -= 1;
    }

    pub fn first(&self) -> Option<&Entry> {
        self.entries.front()
    }

    pub fn oldest(&mut self) -> Option<Entry> {
        let entry = self.entries.pop_front();
        if self.entries.capacity() > 1024 && self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
        entry
    }

    /// Removes entries of dropped records once they are more than half.
    pub fn tidy(&mut self, is_kept: impl Fn(&Entry) -> bool) {
        if self.entries.len() as u64 > 2 * self.records + 1024 {
            self.entries.retain(is_kept);
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }
}
