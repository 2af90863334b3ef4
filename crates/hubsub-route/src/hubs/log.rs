//! What a hub of a logged class knows of its log: the next offset, what waits for it, in the order of offsets, and
//! which records need not be kept again.

use super::HubSeed;
use crate::Ticket;
use crate::logread::Ask;
use crate::producers::{Producers, log_bytes, log_bytes_of};
use crate::record::Record;
use crate::rooms::{HistoryQuery, Recalled, RoomHandle};
use crate::sparse::spare;
use crate::traffic::Traffic;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::{Durability, ErrorCode, HubId, Position};
use std::collections::VecDeque;
use std::sync::Arc;

/// What a hub knows of its log.
#[derive(Debug)]
pub struct HubLog {
    /// Its id.
    pub id: HubId,
    /// When it may commit.
    pub durability: Durability,
    /// Rooms whose last record is below this offset begin a new epoch.
    pub continuous_from: u64,
    /// Offset of the next record.
    pub(super) next: u64,
    /// Records up to this offset are safe.
    safe: u64,
    /// It makes nothing safe any more.
    has_failed: bool,
    /// Records up to this offset are committed.
    committed: u64,
    /// Offset of the last deletion of a room.
    deleted: u64,
    /// Of records up to this offset some are in no memory.
    forgotten: u64,
    /// What waits for the log, by offset.
    pending: VecDeque<Pending>,
    /// The most that waited at once since memory was last given back.
    most: usize,
    /// How many of the records there each room has, by its place.
    of_room: HashMap<u32, u64, RandomState>,
    /// Records that need not be kept again.
    producers: Producers,
    /// What went through it.
    pub traffic: Arc<Traffic>,
}

/// What happens when the log has made an offset safe.
#[derive(Debug)]
pub struct Pending {
    /// The offset.
    pub offset: u64,
    /// A room.
    pub room: RoomHandle,
    /// What waits.
    pub waits: Waits,
}

/// What waits for a hub's log.
#[derive(Debug)]
pub enum Waits {
    /// A record that has its position, and who published it.
    Record(Ticket, Arc<Record>),
    /// Who sent a record again that waits, and that one's position.
    Repeat(Ticket, Position),
    /// Who deleted the room.
    Deletion(Ask),
    /// A question for the room's history: it sees what was published before it.
    History(Box<HistoryQuery>, Ask),
}

/// A record that its producer sent before, and its position.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// It is committed.
    Committed(Position),
    /// It waits for the log, or the log failed over it.
    Pending(Position),
}

impl HubLog {
    pub(super) fn new(seed: &HubSeed, durability: Durability, producers: Producers) -> HubLog {
        HubLog {
            id: seed.id,
            durability,
            continuous_from: seed.continuous_from,
            next: seed.next,
            safe: seed.next - 1,
            has_failed: false,
            committed: seed.next - 1,
            deleted: 0,
            forgotten: seed.next - 1,
            pending: VecDeque::new(),
            most: 0,
            of_room: HashMap::default(),
            producers,
            traffic: Arc::clone(&seed.traffic),
        }
    }

    /// Whether a record's producer sent it before; nothing if it is new.
    ///
    /// # Errors
    /// It is not in the log and will not be, or nobody knows whether it is.
    pub fn repeat(&self, record: &Record) -> Result<Option<Repeat>, ErrorCode> {
        let known = self.producers.find(record)?;
        Ok(known.map(|known| match known.offset <= self.committed {
            true => Repeat::Committed(known.position),
            false => Repeat::Pending(known.position),
        }))
    }

    /// A record was given this offset; its room's name is so long.
    pub fn took_record(&mut self, offset: u64, room_len: usize, record: &Record) {
        self.producers.keep(offset, log_bytes_of(room_len, record), record);
    }

    /// Likewise, the deletion of a room.
    pub fn took_deletion(&mut self, offset: u64, room_len: usize) {
        self.producers.pass(offset, log_bytes(room_len, room_len, 0, 0, 0));
    }

    /// Where a room's present life stands, by what the log knows of the room.
    #[must_use]
    pub fn of_this_life(&self, recalled: Option<Recalled>) -> Option<Position> {
        recalled.filter(|r| r.offset >= self.continuous_from).map(|r| r.position)
    }

    /// Gives the next offset out.
    pub fn take_offset(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Offset of the last record that was handed to the log.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    /// Something waits behind all that do.
    pub fn push(&mut self, pending: Pending) {
        match pending.waits {
            Waits::Record(..) => *self.of_room.entry(pending.room.index()).or_default() += 1,
            Waits::Deletion(_) => self.deleted = pending.offset,
            Waits::Repeat(..) | Waits::History(..) => {}
        }
        self.pending.push_back(pending);
        self.most = self.most.max(self.pending.len());
    }

    /// Memory has the record of an offset no more, or never had it.
    pub fn forgot(&mut self, offset: u64) {
        self.forgotten = self.forgotten.max(offset);
    }

    /// Likewise of all that is committed.
    pub fn forgot_all(&mut self) {
        self.forgotten = self.committed;
    }

    /// Of records up to this offset some are in no memory.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Offset of the last deletion of a room.
    #[must_use]
    pub fn deleted(&self) -> u64 {
        self.deleted
    }

    /// The log is safe up to an offset.
    pub fn safe_to(&mut self, offset: u64) {
        self.safe = self.safe.max(offset);
    }

    /// Whether memory may forget the record of an offset, since it is read from the log.
    #[must_use]
    pub fn has(&self, offset: u64) -> bool {
        !self.has_failed && offset <= self.safe
    }

    /// Gives back the memory of what waited once: a slow disk may have held up much. Not while about as much waits now and
    /// then.
    pub fn give_back(&mut self) {
        const KEPT: usize = 1024;
        let most = std::mem::replace(&mut self.most, self.pending.len());
        if let Some(places) = spare(most, self.pending.capacity(), KEPT) {
            self.pending.shrink_to(places);
        }
        if let Some(places) = spare(most, self.of_room.capacity(), KEPT) {
            self.of_room.shrink_to(places);
        }
    }

    /// What waits in front, if it waits for the log no more. While that is behind, nothing
    /// is free of it: who publishes faster than the disk writes would fill the memory.
    #[must_use]
    pub fn committable(&self, is_behind: bool) -> Option<&Pending> {
        let is_free = self.durability == Durability::Replicated && !is_behind;
        self.pending.front().filter(|pending| is_free || pending.offset <= self.safe)
    }

    /// Takes it out: everything up to its offset is committed.
    pub fn pop(&mut self) -> Option<Pending> {
        let pending = self.pending.pop_front()?;
        self.committed = pending.offset;
        self.left(&pending);
        Some(pending)
    }

    /// Offset of the last record that is committed.
    #[must_use]
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// What is not safe and will not be.
    pub(super) fn give_up(&mut self) -> Vec<Waits> {
        self.has_failed = true;
        let safe = self.pending.partition_point(|pending| pending.offset <= self.safe);
        let given_up = self.pending.split_off(safe);
        for pending in &given_up {
            self.left(pending);
        }
        given_up.into_iter().map(|pending| pending.waits).collect()
    }

    /// One of those that wait does no longer.
    fn left(&mut self, pending: &Pending) {
        let index = pending.room.index();
        if matches!(pending.waits, Waits::Record(..))
            && let Some(count) = self.of_room.get_mut(&index)
        {
            *count -= 1;
            if *count == 0 {
                self.of_room.remove(&index);
            }
        }
    }

    /// Records of a room that are not committed.
    #[must_use]
    pub fn pending_of(&self, index: u32) -> u64 {
        if self.of_room.is_empty() { 0 } else { self.of_room.get(&index).copied().unwrap_or(0) }
    }

    /// What waits for the log.
    #[must_use]
    pub fn pending(&self) -> usize {
        self.pending.len()
    }
}
