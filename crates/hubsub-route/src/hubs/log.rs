//! A hub's state of its log: the next offset, waiting requests in the order of offsets, and the records that
//! are known for deduplication.

use super::HubSeed;
use crate::Ticket;
use crate::producers::{Producers, log_bytes, log_bytes_of};
use crate::requests::{Ask, HistoryQuery};
use crate::rooms::{Recalled, RoomHandle};
use crate::sparse::spare;
use crate::traffic::Traffic;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_message::Record;
use hubsub_types::{Durability, ErrorCode, HubId, Position};
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug)]
pub struct HubLog {
    pub id: HubId,
    /// Defines when it may commit.
    pub durability: Durability,
    /// Rooms whose last record is below this offset begin a new epoch.
    pub continuous_from: u64,
    pub(super) next: u64,
    /// Records up to this offset are persisted.
    safe: u64,
    has_failed: bool,
    committed: u64,
    deleted: u64,
    /// Some records up to this offset are not in memory.
    forgotten: u64,
    pending: VecDeque<Pending>,
    /// The maximum length of `pending` since memory was last released.
    most: usize,
    of_room: HashMap<u32, u64, RandomState>,
    /// The window of numbered records, for deduplication.
    producers: Producers,
    pub traffic: Arc<Traffic>,
}

#[derive(Debug)]
pub struct Pending {
    pub offset: u64,
    pub room: RoomHandle,
    pub waits: Waits,
}

#[derive(Debug)]
pub enum Waits {
    Record(Ticket, Arc<Record>),
    /// A repeat of a waiting record, with that record's position.
    Repeat(Ticket, Position),
    Deletion(Ask),
    /// A request for the room's history: it includes records published before it.
    History(Box<HistoryQuery>, Ask),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repeat {
    Committed(Position),
    /// It waits for the log, or the log failed before persisting it.
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

    /// Whether a record repeats one of its producer; none if it is new.
    ///
    /// # Errors
    /// It is not in the log and will not be, or its state is unknown.
    pub fn repeat(&self, record: &Record) -> Result<Option<Repeat>, ErrorCode> {
        let known = self.producers.find(record)?;
        Ok(known.map(|known| match known.offset <= self.committed {
            true => Repeat::Committed(known.position),
            false => Repeat::Pending(known.position),
        }))
    }

    pub fn took_record(&mut self, offset: u64, room_len: usize, record: &Record) {
        self.producers.keep(offset, log_bytes_of(room_len, record), record);
    }

    pub fn took_deletion(&mut self, offset: u64, room_len: usize) {
        self.producers.pass(offset, log_bytes(room_len, room_len, 0, 0, 0));
    }

    pub fn of_current_epoch(&self, recalled: Option<Recalled>) -> Option<Position> {
        recalled.filter(|r| r.offset >= self.continuous_from).map(|r| r.position)
    }

    pub fn take_offset(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    /// Offset of the last record that was passed to the log.
    pub fn last(&self) -> u64 {
        self.next - 1
    }

    pub fn push(&mut self, pending: Pending) {
        match pending.waits {
            Waits::Record(..) => *self.of_room.entry(pending.room.index()).or_default() += 1,
            Waits::Deletion(_) => self.deleted = pending.offset,
            Waits::Repeat(..) | Waits::History(..) => {}
        }
        self.pending.push_back(pending);
        self.most = self.most.max(self.pending.len());
    }

    pub fn forgot(&mut self, offset: u64) {
        self.forgotten = self.forgotten.max(offset);
    }

    pub fn forgot_all(&mut self) {
        self.forgotten = self.committed;
    }

    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    pub fn deleted(&self) -> u64 {
        self.deleted
    }

    pub fn safe_to(&mut self, offset: u64) {
        self.safe = self.safe.max(offset);
    }

    /// Whether memory may drop the record of an offset, since it can be read from the log.
    pub fn has(&self, offset: u64) -> bool {
        !self.has_failed && offset <= self.safe
    }

    /// Releases memory of requests that a slow disk blocked, unless about as many wait from time to time.
    pub fn shrink(&mut self) {
        const KEPT: usize = 1024;
        let most = std::mem::replace(&mut self.most, self.pending.len());
        if let Some(places) = spare(most, self.pending.capacity(), KEPT) {
            self.pending.shrink_to(places);
        }
        if let Some(places) = spare(most, self.of_room.capacity(), KEPT) {
            self.of_room.shrink_to(places);
        }
    }

    /// The first waiting request, if it need not wait for the log any more. While the log lags, all wait for
    /// it: otherwise publishers faster than the disk would fill the memory.
    pub fn committable(&self, is_behind: bool) -> Option<&Pending> {
        let is_free = self.durability == Durability::Replicated && !is_behind;
        self.pending.front().filter(|pending| is_free || pending.offset <= self.safe)
    }

    /// Removes the first waiting request: everything up to its offset is committed.
    pub fn pop(&mut self) -> Option<Pending> {
        let pending = self.pending.pop_front()?;
        self.committed = pending.offset;
        self.left(&pending);
        Some(pending)
    }

    pub fn committed(&self) -> u64 {
        self.committed
    }

    pub(super) fn give_up(&mut self) -> Vec<Waits> {
        self.has_failed = true;
        let safe = self.pending.partition_point(|pending| pending.offset <= self.safe);
        let given_up = self.pending.split_off(safe);
        for pending in &given_up {
            self.left(pending);
        }
        given_up.into_iter().map(|pending| pending.waits).collect()
    }

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

    pub fn pending_of(&self, index: u32) -> u64 {
        if self.of_room.is_empty() { 0 } else { self.of_room.get(&index).copied().unwrap_or(0) }
    }

    pub fn pending(&self) -> usize {
        self.pending.len()
    }
}
