//! Compaction by key: of a hub that keeps the latest, what a later record of the
//! same key replaces goes. The key is the pair of room and topic.
//!
//! A pass goes over sealed segments, from the oldest on, in two turns, as Kafka's
//! log cleaner does (`LogCleaner`, `SkimpyOffsetMap`). It *maps* what came since the
//! pass before: for each key the offset of its last record. Then it *copies* all
//! segments, those of passes before too, without what the map has a later record for.
//! A copy goes on with the next segment while it is less than half as long as segments are.
//!
//! Invariants
//! - Copies take the place of their segments from the oldest on. So a tombstone goes
//!   after everything that it is to hide, whenever power fails.
//! - A tombstone goes only when nothing older of its key was there for as long as
//!   tombstones are kept: a reader that has seen the value has had that time to come
//!   by (the point of Kafka's KIP-534: the record's own age says nothing of that).
//! - A room's last record, which says its seq, stays while the room has others. With
//!   the last of them the room is forgotten: made again, it has a new epoch.
//! - Records that replace others are in sealed segments that the manifest lists.

use super::{Chain, ChainOptions, Open, Sealed};
use crate::LogError;
use crate::files::Part;
use crate::manifest::{Compacted, SegmentEntry};
use crate::record::{Kind, Record};
use crate::rooms::{RoomHash, RoomTable};
use crate::segment::{self, Name};
use crate::storage::{Storage, StorageFile};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::collections::HashMap;
use std::hash::Hasher;
use std::sync::Arc;

/// Read at once.
const READ_BYTES: usize = 256 * 1024;

/// Copied records that wait to be written.
const WRITE_BYTES: usize = 256 * 1024;

/// Times of passes that are remembered within the time that tombstones are kept.
const SETTLED_MAX: u64 = 8;

/// What a pass may do.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long tombstones are kept at least, in µs.
    pub tombstone_us: u64,
    /// Keys in the map.
    pub keys_max: usize,
}

/// 128 bits of a keyed hash, so that no two keys meet.
type Key = [u64; 2];

/// See the module.
pub struct Pass<S: Storage> {
    chain: Arc<Chain<S>>,
    options: ChainOptions,
    limits: Limits,
    /// What it goes over, oldest first.
    segments: Vec<Sealed>,
    /// Offset behind them.
    behind: u64,
    /// No two records below this are of one key.
    from: u64,
    /// What is at or above this stays: it is not in the map.
    end: u64,
    /// Tombstones below this offset may go if their timestamps are below `old_us`.
    settled: u64,
    old_us: u64,
    /// The last offset of each key, and of each room's end.
    latest: HashMap<Key, u64>,
    is_mapped: bool,
    /// The segment that is read, and where.
    segment: usize,
    at: u64,
    copy: Option<Copied<S::File>>,
    /// The last record of each room among what was copied.
    before: RoomTable,
    buffer: Vec<u8>,
}

/// What has been copied of one group of segments.
struct Copied<F> {
    file: F,
    /// How many segments it has been made from, all of each.
    count: usize,
    /// With its index.
    open: Open,
    /// Records that are yet to be written.
    pending: Vec<u8>,
    forgotten: Vec<(RoomHash, u64)>,
}

/// What a turn came to.
pub enum Turn {
    /// The budget is spent.
    Paused,
    /// There is something to put in place of something else.
    Copied(Replacement),
    /// There is nothing left to do.
    Done,
}

/// A segment that is safe, and those that it is for.
pub struct Replacement {
    old: Vec<Sealed>,
    new: Sealed,
    /// Rooms that are no more, if this is still the offset of their last record.
    forgotten: Vec<(RoomHash, u64)>,
}

impl Replacement {
    /// Names of those that it replaces.
    pub fn old(&self) -> Vec<Name> {
        self.old.iter().map(|segment| segment.name).collect()
    }

    /// As the manifest lists it.
    #[must_use]
    pub fn entry(&self) -> SegmentEntry {
        self.new.entry()
    }
}

impl<S: Storage> Pass<S> {
    /// A pass over segments that the manifest lists as sealed, as far as they are
    /// below `hold`; none if too little came since the pass before to be worth it.
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
            let next = state.sealed.get(i + 1).map_or(state.open.name.first, |s| s.name.first);
            if next > listed.min(hold) {
                break;
            }
            segments.push(segment);
            behind = next;
            bytes += segment.bytes;
            new_bytes += if next > compacted.to { segment.bytes } else { 0 };
        }
        drop(state);
        // All is read and written again, so at least half of it should be news.
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

    /// Offset behind what it goes over.
    pub fn behind(&self) -> u64 {
        self.behind
    }

    /// Goes on, for about as many bytes as are left of the budget, which it takes off.
    ///
    /// # Errors
    /// The pass is of no use any more; the chain is as it was. `discard` it.
    pub fn turn(&mut self, budget_bytes: &mut u64) -> Result<Turn, LogError> {
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
        // Little and often: one sync of a whole segment would hold up the segment thread.
        self.save()?;
        Ok(Turn::Paused)
    }

    /// How far the hub is compacted when all is done, which it is now.
    pub fn compacted(&self, before: &Compacted, now_us: u64) -> Compacted {
        let needed = before.settled.iter().filter(|&&(offset, _)| offset >= self.settled);
        // By now it is so, whatever a clock has said that went ahead.
        let mut settled: Vec<_> = needed.map(|&(offset, us)| (offset, us.min(now_us))).collect();
        let spacing = self.limits.tombstone_us / SETTLED_MAX;
        if settled.last().is_none_or(|&(_, us)| us.saturating_add(spacing) <= now_us) {
            settled.push((self.end, now_us));
        }
        Compacted { to: self.end, settled }
    }

    /// Takes away what was copied and not put in place.
    pub fn discard(self) {
        if let Some(Copied { open, .. }) = self.copy {
            self.chain.unlink(open.name, Part::Segment);
            self.chain.unlink(open.name, Part::Index);
        }
    }

    /// Reads the next records of the segment that is read. What cannot be read is damage:
    /// the disk may be well otherwise.
    fn read(
        &mut self,
        budget_bytes: &mut u64,
        mut take: impl FnMut(&mut Self, &Record<'_>, &[u8]) -> Result<(), LogError>,
    ) -> Result<(), LogError> {
        let Sealed { name, bytes, .. } = self.segments[self.segment];
        let chain = Arc::clone(&self.chain);
        let unreadable = |at, e| match e {
            LogError::Io { source, .. } => chain.damaged(name, at, &source.to_string()),
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
        // An empty one costs something too.
        *budget_bytes = budget_bytes.saturating_sub((at - self.at).max(segment::HEAD_BYTES));
        self.at = at;
        Ok(())
    }

    fn is_read(&self) -> bool {
        self.at >= self.segments[self.segment].bytes
    }

    fn map(&mut self, budget_bytes: &mut u64) -> Result<(), LogError> {
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

    /// Begins with the next group of segments; whether there is one.
    fn begin_copy(&mut self) -> Result<bool, LogError> {
        let Some(first) = self.segments.get(self.segment).filter(|s| s.name.first < self.end) else {
            return Ok(false);
        };
        let name = Name { generation: first.name.generation + 1, ..first.name };
        let chain = &self.chain;
        chain.unlink(name, Part::Segment);
        let cannot = |e| LogError::storage("cannot make a segment", e);
        let file = chain.files.storage().create(&segment::path(chain.hub, name, Part::Segment));
        let file = file.map_err(cannot)?;
        // The head is written last: it says how far the segment goes.
        let pending = vec![0; segment::HEAD_BYTES as usize];
        let open = Open { end: 0, ..Open::at(name) };
        self.copy = Some(Copied { file, count: 0, open, pending, forgotten: Vec::new() });
        Ok(true)
    }

    /// Copies on; when the group is copied, it is safe, and its index is written.
    fn copy(&mut self, budget_bytes: &mut u64) -> Result<Option<Replacement>, LogError> {
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
        // Places in a segment have 32 bits.
        let is_short = bytes <= self.options.segment_bytes / 2;
        let fits = |s: &Sealed| is_short && s.name.first < self.end && bytes + s.bytes <= u64::from(u32::MAX);
        if self.segments.get(self.segment).is_some_and(fits) {
            return Ok(None);
        }
        self.end_copy().map(Some)
    }

    fn take(&mut self, record: &Record<'_>, bytes: &[u8]) -> Result<(), LogError> {
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
        // Nothing in the map is at or above `end`, nor anything settled.
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

    /// Makes what was copied safe.
    fn save(&mut self) -> Result<(), LogError> {
        let Some(copy) = &mut self.copy else { return Ok(()) };
        copy.write()?;
        copy.file.sync().map_err(|e| LogError::storage("cannot sync a segment", e))
    }

    fn end_copy(&mut self) -> Result<Replacement, LogError> {
        let next = self.segments.get(self.segment).map_or(self.behind, |s| s.name.first);
        let copy = self.copy.as_mut().expect("it has begun");
        copy.write()?;
        let Open { name, end, first_us, .. } = copy.open;
        let head = segment::head(self.chain.identity, self.chain.hub, name, next);
        copy.file.write_all_at(&head, 0).map_err(|e| LogError::storage("cannot write a segment", e))?;
        copy.open.run.cover(name.first, next - 1);
        self.save()?;
        let copy = self.copy.as_mut().expect("it has begun");
        // This syncs the directory, and so the name of the segment too.
        let index = self.chain.store_index(name, &copy.open.run.encode())?;
        let old = self.segments[self.segment - copy.count..self.segment].to_vec();
        let forgotten = std::mem::take(&mut copy.forgotten);
        Ok(Replacement { old, new: Sealed { name, bytes: end, first_us, index }, forgotten })
    }

    /// Takes note that what was copied is in its place.
    pub fn replaced(&mut self) {
        self.copy = None;
    }

    fn key(&self, record: &Record<'_>) -> Key {
        self.hash(record.room, Some(record.topic))
    }

    /// Of the room's end, which replaces all its records before.
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
    fn write(&mut self) -> Result<(), LogError> {
        let written = self.file.write_all_at(&self.pending, self.open.end);
        written.map_err(|e| LogError::storage("cannot write a segment", e))?;
        self.open.end += self.pending.len() as u64;
        self.pending.clear();
        Ok(())
    }
}

/// What becomes of a record.
enum Fate {
    Stays,
    Goes,
    /// It goes, and its room with it.
    EndsRoom,
}

impl<S: Storage> Chain<S> {
    /// Puts a segment in place of others, once the manifest lists it, and takes
    /// their files away; who has them open may still read them.
    pub fn replace(&self, replacement: &Replacement) {
        let Replacement { old, new, forgotten } = replacement;
        let mut state = self.write_state();
        let at = state.sealed.iter().position(|s| s.name == old[0].name);
        let at = at.expect("nothing else takes segments off a chain that keeps the latest");
        state.sealed.splice(at..at + old.len(), [*new]);
        state.changes += 1;
        drop(state);
        forgotten.iter().for_each(|&(room, offset)| self.rooms.remove_at(room, offset));
        for segment in old {
            self.unlink(segment.name, Part::Segment);
            self.unlink(segment.name, Part::Index);
        }
    }
}
