//! Compaction by key (room and topic), of a hub that keeps the latest: removes records that a later record of
//! the same key replaces (`docs/log-format.md`).
//!
//! A pass covers sealed segments, from the oldest on, in two phases, as Kafka's log cleaner does
//! (`LogCleaner`, `SkimpyOffsetMap`). First it *maps* the records since the previous pass: for each key the
//! offset of its last record. Then it *copies* all segments without records for which the map has a later one.
//! A copy continues with the next segment while it is shorter than half a segment.
//!
//! Invariants
//! - Copies replace their segments from the oldest on. So a tombstone is removed after all records that it
//!   hides, even across power failures, and only once no older record of its key has existed for the retention
//!   time of tombstones (the point of Kafka's KIP-534; the record's own age does not show this).
//! - Records that replace others are in sealed segments that the manifest lists.

use super::{Chain, ChainOptions, Open, Sealed};
use crate::error::Context;
use crate::files::Part;
use crate::manifest::{Compacted, SegmentEntry};
use crate::record::{Kind, Record};
use crate::rooms::{RoomHash, RoomTable};
use crate::segment::{self, Name};
use crate::storage::{Storage, StorageFile};
use crate::{LogError, Result};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;

const READ_BYTES: usize = 256 * 1024;

const WRITE_BYTES: usize = 256 * 1024;

/// Number of pass times recorded within the retention time of tombstones.
const SETTLED_MAX: u64 = 8;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Minimum retention of tombstones, in µs.
    pub tombstone_us: u64,
    pub keys_max: usize,
}

/// 128 bits of a keyed hash, so that keys do not collide.
type Key = [u64; 2];

pub struct Pass<S: Storage> {
    chain: Arc<Chain<S>>,
    options: ChainOptions,
    limits: Limits,
    /// Segments of this pass, oldest first.
    segments: Vec<Sealed>,
    /// Offset after the last of `segments`.
    behind: u64,
    /// Records below this have distinct keys.
    from: u64,
    /// Records at or above this stay: they are not in the map.
    end: u64,
    /// Tombstones below this offset may be removed if their timestamps are below `old_us`.
    settled: u64,
    old_us: u64,
    /// Offset of the last record of each key, and of each room's deletion.
    latest: HashMap<Key, u64>,
    is_mapped: bool,
    /// Index of the segment that is read, and the position in it.
    segment: usize,
    at: u64,
    copy: Option<Copied<S::File>>,
    /// The last copied record of each room.
    before: RoomTable,
    buffer: Vec<u8>,
}

struct Copied<F> {
    file: F,
    /// Number of segments copied completely.
    count: usize,
    /// The new segment with its index.
    open: Open,
    pending: Vec<u8>,
    forgotten: Vec<(RoomHash, u64)>,
}

pub enum Turn {
    Paused,
    Copied(Replacement),
    Done,
}

/// A synced copy, and the segments that it replaces.
pub struct Replacement {
    old: Vec<Sealed>,
    new: Sealed,
    /// Rooms to remove if this is still the offset of their last record.
    forgotten: Vec<(RoomHash, u64)>,
}

impl Replacement {
    pub fn old(&self) -> Vec<Name> {
        self.old.iter().map(|segment| segment.name).collect()
    }

    pub fn entry(&self) -> SegmentEntry {
        self.new.entry()
    }
}

impl<S: Storage> Pass<S> {
    /// A pass over segments that the manifest lists as sealed and that are below `hold`; none if there are
    /// too few new records since the previous pass.
    pub fn new(
        chain: &Arc<Chain<S>>,
        options: ChainOptions,
        limits: Limits,
        compacted: &Compacted,
        (listed, hold): (u64, u64),
        now_us: u64,
    ) -> Option<Pass<S>> {
        let (mut segments, mut behind, mut bytes, mut new_bytes) = (Vec::new(), 0, 0, 0);
        let state = chain.read_state();
        for (i, &segment) in state.sealed.iter().enumerate() {
            let next = state.behind(i);
            if next > listed.min(hold) {
                break;
            }
            segments.push(segment);
            behind = next;
            bytes += segment.bytes;
            new_bytes += if next > compacted.to { segment.bytes } else { 0 };
        }
        drop(state);
        // All bytes are read and written again, so at least half of them should be new.
        if new_bytes == 0 || new_bytes * 2 < bytes {
            return None;
        }
        let is_old = |&&(_, us): &&(u64, u64)| us.saturating_add(limits.tombstone_us) < now_us;
        Some(Pass {
            chain: Arc::clone(chain),
            options,
            limits,
            segments,
            behind,
            from: compacted.to,
            end: behind,
            settled: compacted.settled.iter().rfind(is_old).map_or(0, |&(offset, _)| offset),
            old_us: now_us.saturating_sub(limits.tombstone_us),
            latest: HashMap::new(),
            is_mapped: false,
            segment: 0,
            at: segment::HEAD_BYTES,
            copy: None,
            before: RoomTable::default(),
            buffer: Vec::new(),
        })
    }

    pub fn behind(&self) -> u64 {
        self.behind
    }

    /// Continues until the budget in bytes is used up, and deducts from it.
    ///
    /// # Errors
    /// The pass cannot continue; the chain is unchanged. `discard` the pass.
    pub fn turn(&mut self, budget_bytes: &mut u64) -> Result<Turn> {
        while *budget_bytes > 0 {
            if !self.is_mapped {
                self.map(budget_bytes)?;
            } else if self.copy.is_some() || self.begin_copy()? {
                if let Some(replacement) = self.copy(budget_bytes)? {
                    return Ok(Turn::Copied(replacement));
                }
            } else {
                return Ok(Turn::Done);
            }
        }
        // Sync in small steps: one sync of a whole segment would block the segment thread.
        self.save()?;
        Ok(Turn::Paused)
    }

    /// The new progress of the hub; call it after the pass is complete.
    pub fn compacted(&self, before: &Compacted, now_us: u64) -> Compacted {
        let needed = before.settled.iter().filter(|&&(offset, _)| offset >= self.settled);
        // A clock may have been ahead in an earlier pass, but the offset is settled by now.
        let mut settled: Vec<_> = needed.map(|&(offset, us)| (offset, us.min(now_us))).collect();
        let spacing = self.limits.tombstone_us / SETTLED_MAX;
        if settled.last().is_none_or(|&(_, us)| us.saturating_add(spacing) <= now_us) {
            settled.push((self.end, now_us));
        }
        Compacted { to: self.end, settled }
    }

    /// Removes a copy that did not replace its segments.
    pub fn discard(self) {
        if let Some(Copied { open, .. }) = self.copy {
            self.chain.unlink_segment(open.name);
        }
    }

    /// Reads the next records of the current segment. A read error counts as damage: the rest of the disk may
    /// work.
    fn read(
        &mut self,
        budget_bytes: &mut u64,
        mut take: impl FnMut(&mut Self, &Record<'_>, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let Sealed { name, bytes, .. } = self.segments[self.segment];
        let chain = Arc::clone(&self.chain);
        let unreadable = |at, e| match e {
            LogError::Io { source, .. } => chain.damaged(name, at, source.to_string()),
            e => e,
        };
        let file = chain.file(name, Part::Segment).map_err(|e| unreadable(0, e))?;
        let (hub, range) = (chain.hub, self.at..bytes);
        let mut buffer = std::mem::take(&mut self.buffer);
        let n = READ_BYTES.min(usize::try_from(*budget_bytes).unwrap_or(usize::MAX));
        let read = segment::scan_some(&*file, hub, name, range, n, &mut buffer, |record, bytes, _| {
            take(self, record, bytes)
        });
        if buffer.capacity() <= 4 * READ_BYTES {
            self.buffer = buffer;
        }
        let at = read.map_err(|e| unreadable(self.at, e))?;
        // An empty segment has a cost, too.
        *budget_bytes = budget_bytes.saturating_sub((at - self.at).max(segment::HEAD_BYTES));
        self.at = at;
        Ok(())
    }

    fn is_read(&self) -> bool {
        self.at >= self.segments[self.segment].bytes
    }

    fn map(&mut self, budget_bytes: &mut u64) -> Result<()> {
        let next = self.segments.get(self.segment + 1).map_or(self.behind, |s| s.name.first);
        if next > self.from {
            self.read(budget_bytes, |pass, record, _| {
                pass.learn(record);
                Ok(())
            })?;
        }
        if next <= self.from || self.is_read() {
            self.segment += 1;
            self.at = segment::HEAD_BYTES;
        }
        if self.segment == self.segments.len() || self.end < self.behind {
            self.is_mapped = true;
            (self.segment, self.at) = (0, segment::HEAD_BYTES);
        }
        Ok(())
    }

    fn learn(&mut self, record: &Record<'_>) {
        if record.offset < self.from || record.offset >= self.end {
            return;
        }
        let key = match record.kind {
            Kind::Message | Kind::Tombstone => self.key(record),
            Kind::RoomDeleted => self.room_key(record),
        };
        if self.latest.len() >= self.limits.keys_max.max(1) && !self.latest.contains_key(&key) {
            self.end = record.offset;
            return;
        }
        self.latest.insert(key, record.offset);
    }

    /// Begins to copy the next group of segments; returns whether there is one.
    fn begin_copy(&mut self) -> Result<bool> {
        let Some(first) = self.segments.get(self.segment).filter(|s| s.name.first < self.end) else {
            return Ok(false);
        };
        let name = Name { generation: first.name.generation + 1, ..first.name };
        let chain = &self.chain;
        chain.unlink(name, Part::Segment);
        let cannot = |e| LogError::storage("cannot make a segment", e);
        let file = chain.files.storage().create(&segment::path(chain.hub, name, Part::Segment));
        let file = file.map_err(cannot)?;
        // The head is written last: it has the end offset of the segment.
        let pending = vec![0; segment::HEAD_BYTES as usize];
        let open = Open { end: 0, ..Open::at(name) };
        self.copy = Some(Copied { file, count: 0, open, pending, forgotten: Vec::new() });
        Ok(true)
    }

    /// Continues the copy; when the group is complete, syncs it and writes its index.
    fn copy(&mut self, budget_bytes: &mut u64) -> Result<Option<Replacement>> {
        self.read(budget_bytes, |pass, record, bytes| pass.take(record, bytes))?;
        let is_read = self.is_read();
        let copy = self.copy.as_mut().expect("it has begun");
        if copy.pending.len() >= WRITE_BYTES {
            copy.write()?;
        }
        if !is_read {
            return Ok(None);
        }
        self.segment += 1;
        self.at = segment::HEAD_BYTES;
        copy.count += 1;
        let bytes = copy.open.end + copy.pending.len() as u64 - segment::HEAD_BYTES;
        // Positions in a segment have 32 bits.
        let is_short = bytes <= self.options.segment_bytes / 2;
        let fits = |s: &Sealed| is_short && s.name.first < self.end && bytes + s.bytes <= u64::from(u32::MAX);
        if self.segments.get(self.segment).is_some_and(fits) {
            return Ok(None);
        }
        self.end_copy().map(Some)
    }

    fn take(&mut self, record: &Record<'_>, bytes: &[u8]) -> Result<()> {
        let fate = self.fate(record);
        let copy = self.copy.as_mut().expect("it has begun");
        match fate {
            Fate::Stays => {
                let position = copy.open.end + copy.pending.len() as u64;
                self.chain.note_in_order(&self.before, &mut copy.open, record, position)?;
                copy.pending.extend_from_slice(bytes);
            }
            Fate::Goes => {}
            Fate::EndsRoom => copy.forgotten.push((self.chain.hash(record.room), record.offset)),
        }
        Ok(())
    }

    fn fate(&self, record: &Record<'_>) -> Fate {
        // Every offset in the map is below `end`, and so is every settled record.
        let is_replaced = |key: Key| self.latest.get(&key).is_some_and(|&last| last > record.offset);
        let is_over = is_replaced(self.room_key(record))
            || (record.kind != Kind::RoomDeleted && is_replaced(self.key(record)));
        let is_old = record.offset < self.settled && record.timestamp_us < self.old_us;
        match record.kind {
            _ if is_over => Fate::Goes,
            Kind::RoomDeleted if is_old => Fate::Goes,
            Kind::Tombstone if is_old => {
                let room = self.chain.hash(record.room);
                let is_last = self.chain.rooms.get(room).is_some_and(|last| last.offset == record.offset);
                match (is_last, self.before.get(room)) {
                    (false, _) => Fate::Goes,
                    (true, None) => Fate::EndsRoom,
                    (true, Some(_)) => Fate::Stays,
                }
            }
            Kind::RoomDeleted | Kind::Tombstone | Kind::Message => Fate::Stays,
        }
    }

    fn save(&mut self) -> Result<()> {
        let Some(copy) = &mut self.copy else { return Ok(()) };
        copy.write()?;
        copy.file.sync().storage("cannot sync a segment")
    }

    fn end_copy(&mut self) -> Result<Replacement> {
        let next = self.segments.get(self.segment).map_or(self.behind, |s| s.name.first);
        let copy = self.copy.as_mut().expect("it has begun");
        copy.write()?;
        let Open { name, end, first_us, .. } = copy.open;
        let head = segment::head(self.chain.identity, self.chain.hub, name, next);
        copy.file.write_all_at(&head, 0).storage("cannot write a segment")?;
        copy.open.run.cover(name.first, next - 1);
        self.save()?;
        let copy = self.copy.as_mut().expect("it has begun");
        // This also syncs the directory, and so the name of the segment.
        let index = self.chain.store_index(name, &copy.open.run.encode())?;
        let old = self.segments[self.segment - copy.count..self.segment].to_vec();
        let forgotten = std::mem::take(&mut copy.forgotten);
        Ok(Replacement { old, new: Sealed { name, bytes: end, first_us, index }, forgotten })
    }

    /// Call this after the copy has replaced its segments.
    pub fn replaced(&mut self) {
        self.copy = None;
    }

    fn key(&self, record: &Record<'_>) -> Key {
        self.hash(record.room, Some(record.topic))
    }

    /// Key of the room's deletion, which replaces all of the room's earlier records.
    fn room_key(&self, record: &Record<'_>) -> Key {
        self.hash(record.room, None)
    }

    fn hash(&self, room: &[u8], topic: Option<&[u8]>) -> Key {
        let mut hasher = SipHasher13::new_with_keys(self.chain.identity, 0x6875_6273_7562_6b65);
        hasher.write_u64(room.len() as u64);
        hasher.write(room);
        if let Some(topic) = topic {
            hasher.write_u8(1);
            hasher.write(topic);
        }
        let hash = hasher.finish128();
        [hash.h1, hash.h2]
    }
}

impl<F: StorageFile> Copied<F> {
    fn write(&mut self) -> Result<()> {
        let written = self.file.write_all_at(&self.pending, self.open.end);
        written.storage("cannot write a segment")?;
        self.open.end += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

enum Fate {
    Stays,
    Goes,
    /// The record is removed, and the room with it.
    EndsRoom,
}

impl<S: Storage> Chain<S> {
    /// Replaces segments with their copy, after the manifest lists it, and removes their files; readers that
    /// have them open may continue.
    pub fn replace(&self, replacement: &Replacement) {
        let Replacement { old, new, forgotten } = replacement;
        let mut state = self.write_state();
        let at = state.sealed.iter().position(|s| s.name == old[0].name);
        let at = at.expect("nothing else takes segments off a chain that keeps the latest");
        state.sealed.splice(at..at + old.len(), [*new]);
        state.changes += 1;
        drop(state);
        forgotten.iter().for_each(|&(room, offset)| self.rooms.remove_at(room, offset));
        old.iter().for_each(|segment| self.unlink_segment(segment.name));
    }
}
