//! The hub's side: the rooms that live on this shard. A room gives each record
//! its position, knows which shards are interested, and keeps its history.
//!
//! Invariants: a room of a class without history exists only while somebody
//! is interested; seqs of an epoch have no gaps; an epoch is used once.

mod hub;
mod interest;
mod limits;
mod listing;
mod logged;
mod ordered;
mod past;
mod relayed;

pub use listing::{Page, RoomInfo};
pub use relayed::TopicKey;

pub use crate::requests::{HistoryPart, HistoryQuery};

use crate::Now;
use crate::counts::Counts;
use crate::history::Ring;
use crate::hubs::{Hubs, ShardHubs};
use crate::places::Place;
use crate::rows::{self, RowTotals};
use ahash::RandomState;
use hashbrown::{HashMap, HashTable};
use hubsub_message::Namespace;
use hubsub_types::names::is_reserved;
use hubsub_types::{ClassTable, Epoch, ErrorCode, HubId, Limits, Position, Seq, ShardId};
use ordered::Ordered;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A room of one shard; stale handles are recognised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RoomHandle {
    index: u32,
    generation: u32,
}

impl RoomHandle {
    pub const NONE: RoomHandle = RoomHandle { index: u32::MAX, generation: 0 };

    pub fn index(self) -> u32 {
        self.index
    }
}

type Interests = HashMap<(Namespace, Arc<[u8]>), Counts, RandomState>;

#[derive(Debug)]
pub struct Room {
    pub name: Arc<[u8]>,
    pub epoch: Epoch,
    /// The seq of its last committed record.
    pub seq: Seq,
    /// Interest in the topic that has the room's own name.
    own: Counts,
    /// Interest in its other topics.
    others: Option<Box<Interests>>,
    ring: Option<Box<Ring>>,
    /// Last publish or change of interest, in s of the node's clock.
    used_s: u32,
    /// Slot of its hub on this shard, which determines its class; it changes only by `join`.
    hub: u16,
    /// Created by name, not by a record or a subscription: it stays without either.
    was_created: bool,
    epoch_state: EpochState,
}

/// Knowledge about a room's epochs besides its current position. One byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum EpochState {
    /// Only the current epoch is known.
    One,
    /// Its hub's log has records of an earlier epoch.
    Past,
    /// Its class has no log, its leader ended the current epoch, and no record of that is missing here.
    Over,
}

impl Room {
    fn interest(&self, is_room: bool, namespace: Namespace, topic: &[u8]) -> Option<&Counts> {
        if is_room {
            return Some(&self.own);
        }
        self.others.as_ref()?.get(&Key(namespace, topic))
    }

    fn position(&self) -> Position {
        Position { epoch: self.epoch, seq: self.seq }
    }

    fn has_past(&self) -> bool {
        self.epoch_state == EpochState::Past
    }

    fn is_idle(&self) -> bool {
        self.own.is_zero() && self.others.is_none()
    }

    /// Whether its removal would lose nothing; its subscribers are not considered.
    fn is_forgettable(&self) -> bool {
        self.is_empty() && !self.was_created
    }

    fn is_empty(&self) -> bool {
        self.ring.as_ref().is_none_or(|r| r.is_empty())
    }

    /// The seq of its oldest record in memory, or of its next record if there is none.
    fn first_seq(&self) -> Seq {
        let oldest = self.ring.as_ref().and_then(|r| r.first());
        oldest.map_or(self.seq.next(), |r| r.position.seq)
    }
}

#[derive(Hash)]
struct Key<'a>(Namespace, &'a [u8]);

impl hashbrown::Equivalent<(Namespace, Arc<[u8]>)> for Key<'_> {
    fn equivalent(&self, key: &(Namespace, Arc<[u8]>)) -> bool {
        self.0 == key.0 && *self.1 == *key.1
    }
}

/// A slot's generation, incremented when a room leaves it, and its room.
type Slot = (u32, Option<Room>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recalled {
    pub position: Position,
    /// Its offset in the hub's log.
    pub offset: u64,
}

pub struct Rooms {
    pub(crate) classes: Arc<ClassTable>,
    shards: u16,
    hasher: RandomState,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// The generation of new slots; no handle of a removed slot has it.
    first_generation: u32,
    /// The last slot with a room, with too few free ones after it: while it has one, nothing shrinks.
    last_place: usize,
    names: HashTable<u32>,
    name_bytes: usize,
    ordered: Ordered,
    /// By slot: the revision of the table of places that placed the room here, if there is one.
    revisions: HashMap<u32, u64, RandomState>,
    /// The next epoch, counted from the node's incarnation << 32.
    epochs: Arc<AtomicU64>,
    retained: Arc<RowTotals>,
    /// Rooms of entries (see [`rows`]), which have limits of their own.
    row_rooms: usize,
    row_name_bytes: usize,
    /// All hubs, and the placement of rooms on them.
    all_hubs: Arc<Hubs>,
    pub hubs: ShardHubs,
    last_us: u64,
    /// The second in which rooms were last created, and how many were.
    created: (u64, u64),
    swept: usize,
    pub(crate) limits: Limits,
    subscribed: [u64; 2],
    /// Rooms refused for a limit, since the start.
    pub refused: u64,
    /// Records removed from rooms for age, number or bytes, since the start.
    pub expired: u64,
}

impl Rooms {
    /// An empty table for one of the shards over which `all_hubs` are spread.
    pub fn new(
        classes: Arc<ClassTable>,
        all_hubs: Arc<Hubs>,
        shard: ShardId,
        limits: &Limits,
        (epochs, retained): (Arc<AtomicU64>, Arc<RowTotals>),
    ) -> Rooms {
        let last_us = all_hubs.seeds.iter().map(|seed| seed.last_us).max().unwrap_or(0);
        let rooms = Rooms {
            hubs: ShardHubs::new(&all_hubs, &classes, shard),
            shards: all_hubs.placement.shards(),
            all_hubs,
            classes,
            hasher: RandomState::new(),
            slots: Vec::new(),
            free: Vec::new(),
            first_generation: 0,
            last_place: 0,
            names: HashTable::new(),
            name_bytes: 0,
            ordered: Ordered::default(),
            revisions: HashMap::default(),
            epochs,
            retained,
            row_rooms: 0,
            row_name_bytes: 0,
            last_us,
            created: (0, 0),
            swept: 0,
            limits: limits.clone(),
            subscribed: [0; 2],
            refused: 0,
            expired: 0,
        };
        for hub in rooms.hubs.iter() {
            rooms.retained.messages.fetch_add(hub.rows.len() as u64, Ordering::Relaxed);
            rooms.retained.bytes.fetch_add(hub.rows.bytes(), Ordering::Relaxed);
        }
        rooms
    }

    /// Places rooms on the hubs of a cluster from now on. Open hubs stay open, with their records that wait for
    /// the log and the rooms of these; all other rooms are removed, and nobody is subscribed any more.
    pub fn join(&mut self, all_hubs: Arc<Hubs>, shard: ShardId) {
        let mut waiting = Vec::new();
        for handle in self.all().map(|(handle, _)| handle).collect::<Vec<_>>() {
            self.drop_all(handle);
            match self.log_of(handle) {
                Some(log) if log.pending_of(handle.index) > 0 => waiting.push((handle, log.id)),
                _ => self.forget(handle),
            }
        }
        self.subscribed = [0; 2];
        (0..self.hubs.iter().count() as u16).for_each(|slot| self.forget_rows(slot));
        let none = ShardHubs::none();
        let hubs = std::mem::replace(&mut self.hubs, none);
        self.hubs = hubs.joined(&all_hubs, &self.classes, shard);
        self.all_hubs = all_hubs;
        for (handle, hub) in waiting {
            let slot = self.hubs.slot_of(hub).expect("an open hub stays open");
            self.revisions.remove(&handle.index);
            let room = self.get_mut(handle).expect("it was not removed");
            (room.hub, room.own, room.others, room.was_created) = (slot, Counts::Zero, None, false);
        }
    }

    pub fn set_classes(&mut self, classes: Arc<ClassTable>, all_hubs: Arc<Hubs>, shard: ShardId) {
        self.hubs.extend(&all_hubs, shard);
        (self.classes, self.all_hubs) = (classes, all_hubs);
    }

    /// Rooms that would have another class under `classes`, or a topic of which would be in another room.
    pub fn elsewhere(&self, classes: &ClassTable) -> Vec<RoomHandle> {
        let is_other = |(handle, room): &(RoomHandle, &Room)| {
            classes.class_of_room(&room.name) != self.hubs.get(room.hub).class
                || self.topics_of(*handle).iter().any(|(_, topic)| *classes.room(topic) != *room.name)
        };
        self.all().filter(is_other).map(|(handle, _)| handle).collect()
    }

    fn all(&self) -> impl Iterator<Item = (RoomHandle, &Room)> {
        let rooms = (0u32..).zip(&self.slots);
        rooms.filter_map(|(index, (generation, room))| {
            Some((RoomHandle { index, generation: *generation }, room.as_ref()?))
        })
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub fn subscribed(&self, namespace: Namespace) -> u64 {
        self.subscribed[namespace as usize]
    }

    pub fn history_size(&self) -> (u64, u64) {
        self.hubs.iter().fold((0, 0), |sum, hub| (sum.0 + hub.ledger.bytes, sum.1 + hub.ledger.records))
    }

    #[inline]
    pub fn get(&self, handle: RoomHandle) -> Option<&Room> {
        let (generation, room) = self.slots.get(handle.index as usize)?;
        room.as_ref().filter(|_| *generation == handle.generation)
    }

    #[inline]
    fn get_mut(&mut self, handle: RoomHandle) -> Option<&mut Room> {
        let (generation, room) = self.slots.get_mut(handle.index as usize)?;
        room.as_mut().filter(|_| *generation == handle.generation)
    }

    pub fn find(&self, name: &[u8]) -> Option<RoomHandle> {
        let found = self.names.find(self.hasher.hash_one(name), |&i| *self.at(i).name == *name);
        found.map(|&index| RoomHandle { index, generation: self.slots[index as usize].0 })
    }

    pub fn find_of_topic(&self, topic: &[u8]) -> Option<RoomHandle> {
        self.find(&self.classes.room(topic))
    }

    /// A room by name, created if it is new. `recall` returns the last record of the room in a hub's log.
    pub fn open(
        &mut self,
        name: &[u8],
        now: Now,
        recall: impl FnOnce(HubId) -> Option<Recalled>,
    ) -> Result<RoomHandle, ErrorCode> {
        if let Some(handle) = self.find(name) {
            return Ok(handle);
        }
        let class = self.classes.class_of_room(name);
        let Place { hub, revision } = self.all_hubs.placement.place(class, name);
        // It was placed elsewhere a moment ago.
        let hub = self.hubs.find(class, hub).ok_or(ErrorCode::HubClosed)?;
        let (known, has_past) = self.recalled(hub, recall);
        // A room that the log knows is not new, but takes memory like any other. Reserved rooms are opened in
        // any case, or clients' rooms could keep the node from completing its own work.
        let may = match known {
            None if self.classes.get(class).is_removed => Err(ErrorCode::ClassRemoved),
            None if rows::is_class(self.classes.get(class)) => Ok(()),
            None => self.may_create(name, now),
            Some(_) if is_reserved(name) => Ok(()),
            Some(_) => self.has_place(name),
        };
        may.inspect_err(|_| self.refused += 1)?;
        let position = known.unwrap_or_else(|| Position { epoch: self.fresh_epoch(), seq: Seq(0) });
        Ok(self.insert(name, (hub, revision), position, has_past, now))
    }

    /// The last position in a room's current epoch by its log, and whether that has only earlier epochs.
    fn recalled(
        &self,
        slot: u16,
        recall: impl FnOnce(HubId) -> Option<Recalled>,
    ) -> (Option<Position>, bool) {
        let Some(log) = &self.hubs.get(slot).log else { return (None, false) };
        let recalled = recall(log.id);
        let known = log.of_current_epoch(recalled);
        (known, recalled.is_some() && known.is_none())
    }

    fn insert(
        &mut self,
        name: &[u8],
        (hub, revision): (u16, u64),
        position: Position,
        has_past: bool,
        now: Now,
    ) -> RoomHandle {
        let Position { epoch, seq } = position;
        if self.has_rows(hub) {
            self.row_rooms += 1;
            self.row_name_bytes += name.len();
        }
        let room = Room {
            name: name.into(),
            epoch,
            seq,
            own: Counts::Zero,
            others: None,
            ring: None,
            used_s: seconds(now),
            hub,
            was_created: false,
            epoch_state: if has_past { EpochState::Past } else { EpochState::One },
        };
        let index = self.free.pop().unwrap_or(self.slots.len() as u32);
        match self.slots.get_mut(index as usize) {
            Some(slot) => slot.1 = Some(room),
            None => self.slots.push((self.first_generation, Some(room))),
        }
        self.name_bytes += name.len();
        let (hasher, slots) = (&self.hasher, &self.slots);
        self.names.insert_unique(hasher.hash_one(name), index, |&i| hasher.hash_one(name_at(slots, i)));
        self.ordered.insert(index, name, |i| name_at(slots, i));
        if revision > 0 {
            self.revisions.insert(index, revision);
        }
        RoomHandle { index, generation: self.slots[index as usize].0 }
    }

    /// A room by name that stays without records and subscribers until it is deleted or idle for long.
    pub fn create(
        &mut self,
        name: &[u8],
        now: Now,
        recall: impl FnOnce(HubId) -> Option<Recalled>,
    ) -> Result<RoomHandle, ErrorCode> {
        let handle = self.open(name, now, recall)?;
        self.get_mut(handle).expect("opened above").was_created = true;
        Ok(handle)
    }

    /// The position and timestamp of a room's next record; the default position if there is no room.
    pub fn next_position(&mut self, handle: RoomHandle, now: Now) -> (Position, u64) {
        self.last_us = self.last_us.max(now.wall_us);
        let last_us = self.last_us;
        let position = self.get_mut(handle).map(|room| {
            room.seq = room.seq.next();
            room.used_s = seconds(now);
            room.position()
        });
        (position.unwrap_or_default(), last_us)
    }

    /// Whether a room may be deleted.
    ///
    /// # Errors
    /// It has subscribers, or a published record waits for the log.
    pub fn may_delete(&self, handle: RoomHandle) -> Result<(), ErrorCode> {
        let is_used = !self.at(handle.index).is_idle() || self.waits_for_log(handle);
        if is_used { Err(ErrorCode::RoomInUse) } else { Ok(()) }
    }

    /// Deletes a room that is in memory only, and its history. Returns whether it existed.
    ///
    /// # Errors
    /// See [`Rooms::may_delete`].
    pub fn delete(&mut self, name: &[u8]) -> Result<bool, ErrorCode> {
        let Some(handle) = self.find(name) else { return Ok(false) };
        self.may_delete(handle)?;
        self.drop_all(handle);
        self.forget(handle);
        Ok(true)
    }

    fn forget(&mut self, handle: RoomHandle) {
        let slots = &self.slots;
        self.ordered.remove(name_at(slots, handle.index), |i| name_at(slots, i));
        let (generation, room) = &mut self.slots[handle.index as usize];
        let room = room.take().expect("the caller holds a live handle");
        *generation = generation.wrapping_add(1);
        if self.has_rows(room.hub) {
            self.row_rooms -= 1;
            self.row_name_bytes -= room.name.len();
        }
        let hash = self.hasher.hash_one(&*room.name);
        if let Ok(entry) = self.names.find_entry(hash, |&i| i == handle.index) {
            entry.remove();
        }
        self.name_bytes -= room.name.len();
        self.revisions.remove(&handle.index);
        self.free.push(handle.index);
    }

    /// Whether the rooms of a hub hold entries (see [`rows`]).
    fn has_rows(&self, slot: u16) -> bool {
        rows::is_class(self.classes.get(self.hubs.get(slot).class))
    }

    fn at(&self, index: u32) -> &Room {
        self.slots[index as usize].1.as_ref().expect("names and live handles lead to live rooms")
    }
}

fn name_at(slots: &[Slot], index: u32) -> &[u8] {
    &slots[index as usize].1.as_ref().expect("names and their order list live rooms only").name
}

fn seconds(now: Now) -> u32 {
    (now.mono_ms / 1000) as u32
}

#[cfg(test)]
mod tests;
