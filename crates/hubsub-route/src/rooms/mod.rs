//! The hub's side: the rooms that live on this shard. A room gives each record
//! its position, knows which shards are interested, and keeps its history.
//!
//! Invariants: a room of a class without history exists only while somebody
//! is interested; seqs of an epoch have no gaps; an epoch is used once.

mod interest;
mod past;

pub use past::{HistoryPart, HistoryQuery};

use crate::Now;
use crate::counts::Counts;
use crate::history::Ring;
use crate::hubs::{HubLog, Hubs, Pending, ShardHubs};
use crate::record::{Namespace, Record};
use ahash::RandomState;
use hashbrown::{HashMap, HashTable};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ClassTable, Epoch, ErrorCode, HubId, Limits, Position, Seq, ShardId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A room of one shard; stale handles are recognised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RoomHandle {
    index: u32,
    generation: u32,
}

impl RoomHandle {
    /// A handle of no room.
    pub const NONE: RoomHandle = RoomHandle { index: u32::MAX, generation: 0 };

    /// Its place in the shard's table.
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }
}

/// Interest by topic.
type Interests = HashMap<(Namespace, Arc<[u8]>), Counts, RandomState>;

/// One room.
#[derive(Debug)]
pub struct Room {
    /// Its name.
    pub name: Arc<[u8]>,
    /// Its present life.
    pub epoch: Epoch,
    /// Its last record that was committed.
    pub seq: Seq,
    /// Interest in the topic that has the room's own name.
    own: Counts,
    /// Interest in its other topics.
    others: Option<Box<Interests>>,
    ring: Option<Box<Ring>>,
    /// Last publish or change of interest, in s of the node's clock.
    used_s: u32,
    /// Place of its hub on this shard, and so its class, for life.
    hub: u16,
    /// Made by name, not by a record or a subscription: it stays without either.
    was_created: bool,
}

impl Room {
    fn interest(&self, is_room: bool, namespace: Namespace, topic: &[u8]) -> Option<&Counts> {
        if is_room {
            return Some(&self.own);
        }
        self.others.as_ref()?.get(&Key(namespace, topic))
    }

    fn is_idle(&self) -> bool {
        self.own.is_zero() && self.others.is_none()
    }

    /// Whether nothing would be lost with it, were it not for its subscribers.
    fn is_forgettable(&self) -> bool {
        self.is_empty() && !self.was_created
    }

    fn is_empty(&self) -> bool {
        self.ring.as_ref().is_none_or(|r| r.is_empty())
    }

    /// Its oldest record, or the one that will be its next.
    fn first_seq(&self) -> Seq {
        let oldest = self.ring.as_ref().and_then(|r| r.first());
        oldest.map_or(self.seq.next(), |r| r.position.seq)
    }
}

/// A borrowed key of `Room::others`.
#[derive(Hash)]
struct Key<'a>(Namespace, &'a [u8]);

impl hashbrown::Equivalent<(Namespace, Arc<[u8]>)> for Key<'_> {
    fn equivalent(&self, key: &(Namespace, Arc<[u8]>)) -> bool {
        self.0 == key.0 && *self.1 == *key.1
    }
}

/// What a log knows of a room: its last record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recalled {
    /// Its position.
    pub position: Position,
    /// Its place in the hub's log.
    pub offset: u64,
}

/// What a room tells of itself.
#[derive(Clone, Debug)]
pub struct RoomInfo {
    /// Its name.
    pub name: Arc<[u8]>,
    /// Index of its class.
    pub class: ClassIndex,
    /// The shard of its hub.
    pub shard: ShardId,
    /// Its epoch and last seq.
    pub position: Position,
    /// Its oldest record kept, or the next one.
    pub first_seq: Seq,
    /// Records kept.
    pub history: u64,
    /// Bytes kept.
    pub history_bytes: u64,
    /// Exact subscribers of all its topics.
    pub subscribers: u64,
    /// Topics with subscribers.
    pub topics: u64,
    /// Time since it was last used, in s.
    pub idle_s: u32,
}

/// The rooms of one shard.
pub struct Rooms {
    classes: Arc<ClassTable>,
    shards: u16,
    hasher: RandomState,
    slots: Vec<(u32, Option<Room>)>,
    free: Vec<u32>,
    names: HashTable<u32>,
    /// The node's incarnation << 32 and up: the next epoch.
    epochs: Arc<AtomicU64>,
    /// Which hub each room belongs to.
    all_hubs: Arc<Hubs>,
    /// Those that live here.
    pub hubs: ShardHubs,
    /// Latest timestamp given.
    last_us: u64,
    /// Second in which rooms were last made, and how many.
    created: (u64, u64),
    /// Where the sweep goes on.
    swept: usize,
    rooms_max: u64,
    creations_per_second_max: u64,
    history_bytes_max: u64,
    history_reply_records_max: u64,
    history_reply_bytes_max: u64,
    /// Topics with subscribers, by namespace.
    subscribed: [u64; 2],
    /// Rooms refused for a limit, since the start.
    pub refused: u64,
    /// Records that age, number or bytes made a room forget, since the start.
    pub expired: u64,
}

impl Rooms {
    /// No rooms, on one shard of those that `hubs` are spread over.
    #[must_use]
    pub fn new(
        classes: Arc<ClassTable>,
        all_hubs: Arc<Hubs>,
        shard: ShardId,
        limits: &Limits,
        epochs: Arc<AtomicU64>,
    ) -> Rooms {
        let last_us = all_hubs.seeds.iter().map(|seed| seed.last_us).max().unwrap_or(0);
        let mut rooms = Rooms {
            hubs: ShardHubs::new(&all_hubs, &classes, shard),
            shards: all_hubs.placement.shards(),
            all_hubs,
            classes,
            hasher: RandomState::new(),
            slots: Vec::new(),
            free: Vec::new(),
            names: HashTable::new(),
            epochs,
            last_us,
            created: (0, 0),
            swept: 0,
            rooms_max: 0,
            creations_per_second_max: 0,
            history_bytes_max: 0,
            history_reply_records_max: 0,
            history_reply_bytes_max: 0,
            subscribed: [0; 2],
            refused: 0,
            expired: 0,
        };
        rooms.set_limits(limits);
        rooms
    }

    /// Takes over limits that may change while running.
    pub fn set_limits(&mut self, limits: &Limits) {
        self.rooms_max = limits.rooms_max.div_ceil(u64::from(self.shards));
        self.creations_per_second_max = limits.room_creations_per_second_max;
        self.history_bytes_max = limits.history_shard_bytes_max;
        self.history_reply_records_max = limits.history_reply_records_max;
        self.history_reply_bytes_max = limits.history_reply_bytes_max;
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Topics with subscribers on any shard.
    #[must_use]
    pub fn subscribed(&self, namespace: Namespace) -> u64 {
        self.subscribed[namespace as usize]
    }

    /// Bytes and records of all histories.
    #[must_use]
    pub fn history_size(&self) -> (u64, u64) {
        self.hubs.iter().fold((0, 0), |sum, hub| (sum.0 + hub.ledger.bytes, sum.1 + hub.ledger.records))
    }

    /// A room by a handle that may be stale.
    #[must_use]
    pub fn get(&self, handle: RoomHandle) -> Option<&Room> {
        let (generation, room) = self.slots.get(handle.index as usize)?;
        room.as_ref().filter(|_| *generation == handle.generation)
    }

    fn get_mut(&mut self, handle: RoomHandle) -> Option<&mut Room> {
        let (generation, room) = self.slots.get_mut(handle.index as usize)?;
        room.as_mut().filter(|_| *generation == handle.generation)
    }

    /// A room by name.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<RoomHandle> {
        let found = self.names.find(self.hasher.hash_one(name), |&i| *self.at(i).name == *name);
        found.map(|&index| RoomHandle { index, generation: self.slots[index as usize].0 })
    }

    /// The room of a topic, if it exists.
    #[must_use]
    pub fn find_of_topic(&self, topic: &[u8]) -> Option<RoomHandle> {
        self.find(&self.classes.room(topic))
    }

    /// A room by name, made if it is new. `recall` is asked for what the log of a hub
    /// knows of the room.
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
        let hub = self.hubs.slot(class, self.all_hubs.placement.hub(class, name));
        let log = self.hubs.get(hub).log.as_ref();
        let recalled = log.and_then(|log| recall(log.id).filter(|r| r.offset >= log.continuous_from));
        if recalled.is_none() {
            self.may_create(now).inspect_err(|_| self.refused += 1)?;
        }
        let known = recalled.map(|recalled| recalled.position);
        let fresh = || Position { epoch: Epoch(self.epochs.fetch_add(1, Ordering::Relaxed)), seq: Seq(0) };
        let Position { epoch, seq } = known.unwrap_or_else(fresh);
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
        };
        let index = self.free.pop().unwrap_or(self.slots.len() as u32);
        match self.slots.get_mut(index as usize) {
            Some(slot) => slot.1 = Some(room),
            None => self.slots.push((0, Some(room))),
        }
        let (hasher, slots) = (&self.hasher, &self.slots);
        self.names.insert_unique(hasher.hash_one(name), index, |&i| {
            let room = slots[i as usize].1.as_ref().expect("names lists live rooms only");
            hasher.hash_one(&*room.name)
        });
        Ok(RoomHandle { index, generation: self.slots[index as usize].0 })
    }

    /// A room by name that stays when it has neither records nor subscribers,
    /// until it is deleted or its class's `idle_ms` is over.
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

    /// The position and timestamp of a room's next record; the default position
    /// for a record that no room takes.
    pub fn next_position(&mut self, handle: RoomHandle, now: Now) -> (Position, u64) {
        self.last_us = self.last_us.max(now.wall_us);
        let last_us = self.last_us;
        let position = self.get_mut(handle).map(|room| {
            room.seq = room.seq.next();
            room.used_s = seconds(now);
            Position { epoch: room.epoch, seq: room.seq }
        });
        (position.unwrap_or_default(), last_us)
    }

    /// Gives a record of a logged class its place in its room; its offset.
    pub fn append(&mut self, handle: RoomHandle, record: &mut Record, now: Now) -> u64 {
        self.last_us = self.last_us.max(now.wall_us);
        record.timestamp_us = self.last_us;
        let room = self.get_mut(handle).expect("the caller holds a live handle");
        room.used_s = seconds(now);
        let (slot, epoch, seq) = (room.hub, room.epoch, room.seq);
        let log = self.hubs.get_mut(slot).log.as_mut().expect("its class is logged");
        record.position = Position { epoch, seq: Seq(seq.0 + log.pending_of(handle.index) + 1) };
        log.take_offset()
    }

    /// A record that has its place waits for the log.
    pub fn wait_for_log(&mut self, pending: Pending) {
        let slot = self.at(pending.room.index).hub;
        self.hubs.get_mut(slot).log.as_mut().expect("its class is logged").push(pending);
    }

    /// Takes a hub's next record, which is committed now.
    pub fn release(&mut self, slot: u16) -> Option<Pending> {
        let pending = self.hubs.get_mut(slot).log.as_mut()?.pop()?;
        let room = self.get_mut(pending.room).expect("a room stays while it has records that wait");
        room.seq = pending.record.position.seq;
        Some(pending)
    }

    /// The log of a room's hub, if its class is logged.
    #[must_use]
    pub fn log_of(&self, handle: RoomHandle) -> Option<&HubLog> {
        self.hubs.get(self.get(handle)?.hub).log.as_ref()
    }

    /// Records of a room that wait for the log.
    fn waits_for_log(&self, handle: RoomHandle) -> bool {
        self.log_of(handle).is_some_and(|log| log.pending_of(handle.index) > 0)
    }

    /// What a room tells of itself.
    #[must_use]
    pub fn info(&self, handle: RoomHandle, shard: ShardId, now: Now) -> Option<RoomInfo> {
        let room = self.get(handle)?;
        let others = || room.others.iter().flat_map(|o| o.values());
        Some(RoomInfo {
            name: Arc::clone(&room.name),
            class: self.hubs.get(room.hub).class,
            shard,
            position: Position { epoch: room.epoch, seq: room.seq },
            first_seq: room.first_seq(),
            history: room.ring.as_ref().map_or(0, |r| r.len() as u64),
            history_bytes: room.ring.as_ref().map_or(0, |r| r.bytes()),
            subscribers: room.own.total() + others().map(Counts::total).sum::<u64>(),
            topics: u64::from(!room.own.is_zero()) + others().count() as u64,
            idle_s: seconds(now).saturating_sub(room.used_s),
        })
    }

    /// Up to `limit` rooms in order of name, behind `after`, that `matches` wants.
    #[must_use]
    pub fn page(
        &self,
        after: Option<&[u8]>,
        limit: usize,
        matches: impl Fn(&[u8]) -> bool,
    ) -> Vec<RoomHandle> {
        let mut rooms: Vec<(&[u8], RoomHandle)> = Vec::new();
        for (index, (generation, room)) in (0u32..).zip(&self.slots) {
            let Some(room) = room else { continue };
            if after.is_none_or(|after| *room.name > *after) && matches(&room.name) {
                rooms.push((&room.name, RoomHandle { index, generation: *generation }));
            }
        }
        if rooms.len() > limit && limit > 0 {
            rooms.select_nth_unstable_by(limit - 1, |a, b| a.0.cmp(b.0));
        }
        rooms.truncate(limit);
        rooms.sort_unstable_by(|a, b| a.0.cmp(b.0));
        rooms.into_iter().map(|(_, handle)| handle).collect()
    }

    /// Deletes a room and its history. Refused while somebody subscribes.
    pub fn delete(&mut self, name: &[u8]) -> Result<bool, ErrorCode> {
        let Some(handle) = self.find(name) else { return Ok(false) };
        if !self.at(handle.index).is_idle() || self.waits_for_log(handle) {
            return Err(ErrorCode::RoomInUse);
        }
        while !self.at(handle.index).is_empty() {
            self.drop_oldest(handle);
        }
        self.forget(handle);
        Ok(true)
    }

    fn may_create(&mut self, now: Now) -> Result<(), ErrorCode> {
        if self.len() as u64 >= self.rooms_max {
            return Err(ErrorCode::TooManyRooms);
        }
        let second = now.mono_ms / 1000;
        if self.created.0 != second {
            self.created = (second, 0);
        }
        if self.creations_per_second_max > 0 && self.created.1 >= self.creations_per_second_max {
            return Err(ErrorCode::RoomCreationRate);
        }
        self.created.1 += 1;
        Ok(())
    }

    fn forget(&mut self, handle: RoomHandle) {
        let (generation, room) = &mut self.slots[handle.index as usize];
        let room = room.take().expect("the caller holds a live handle");
        *generation = generation.wrapping_add(1);
        let hash = self.hasher.hash_one(&*room.name);
        if let Ok(entry) = self.names.find_entry(hash, |&i| i == handle.index) {
            entry.remove();
        }
        self.free.push(handle.index);
    }

    fn at(&self, index: u32) -> &Room {
        self.slots[index as usize].1.as_ref().expect("names and live handles lead to live rooms")
    }
}

fn seconds(now: Now) -> u32 {
    (now.mono_ms / 1000) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logread::{Ask, Known};
    use crate::record::Record;
    use hubsub_types::{Class, History};

    fn rooms(history: Option<History>, limits: Limits) -> Rooms {
        let mut class = Class::named("all");
        class.history = history;
        of_class(class, limits)
    }

    fn of_class(class: Class, limits: Limits) -> Rooms {
        let classes = Arc::new(ClassTable::new(vec![class], true));
        let hubs = Arc::new(Hubs::new(1, &classes, Vec::new()));
        Rooms::new(classes, hubs, ShardId(0), &limits, Arc::new(AtomicU64::new(1 << 32)))
    }

    fn say(rooms: &mut Rooms, room: &str, payload: &[u8], now: Now) -> Position {
        let handle = rooms.open(room.as_bytes(), now, |_| None).unwrap();
        let mut record = Record::new(Namespace::Global, room.as_bytes(), payload, "me".into(), None);
        (record.position, record.timestamp_us) = rooms.next_position(handle, now);
        let position = record.position;
        rooms.remember(handle, Arc::new(record));
        position
    }

    fn past(rooms: &Rooms, query: &HistoryQuery) -> HistoryPart {
        let ask = Ask { shard: ShardId(0), number: 0 };
        match rooms.history(query, Now::default(), ask, |_| None) {
            Known::Here(part) => part,
            Known::InLog(_) => unreachable!("there is no log"),
        }
    }

    fn payloads(rooms: &Rooms, room: &str, count: u64, after: Option<Position>) -> Vec<Vec<u8>> {
        let query = HistoryQuery { room: room.into(), count, after, topic: None };
        past(rooms, &query).records.iter().map(|r| r.payload().to_vec()).collect()
    }

    const NO_LIMIT: History = History { messages: 0, bytes: u64::MAX, age_ms: 0 };

    #[test]
    fn a_room_is_small() {
        assert!(
            std::mem::size_of::<(u32, Option<Room>)>() <= 88,
            "{}",
            std::mem::size_of::<(u32, Option<Room>)>()
        );
    }

    #[test]
    fn messages_bound_a_room_and_bytes_bound_the_hub_oldest_first() {
        let record = Record::new(Namespace::Global, b"a", b"0", "me".into(), None).weight() as u64;
        let mut rooms = rooms(Some(History { messages: 3, bytes: 4 * record, age_ms: 0 }), Limits::default());
        let now = Now::default();
        for payload in [b"1", b"2", b"3", b"4"] {
            say(&mut rooms, "a", payload, now);
        }
        assert_eq!(payloads(&rooms, "a", 9, None), [b"2", b"3", b"4"]);
        say(&mut rooms, "b", b"5", now);
        say(&mut rooms, "b", b"6", now);
        assert_eq!(payloads(&rooms, "a", 9, None), [b"3", b"4"]);
        assert_eq!(payloads(&rooms, "b", 9, None), [b"5", b"6"]);
        assert_eq!(rooms.history_size(), (4 * record, 4));
    }

    #[test]
    fn a_quiet_room_does_not_let_the_ledger_grow() {
        let mut rooms = rooms(Some(History { messages: 2, bytes: 0, age_ms: 0 }), Limits::default());
        say(&mut rooms, "quiet", b"x", Now::default());
        for _ in 0..100_000 {
            say(&mut rooms, "busy", b"x", Now::default());
        }
        assert!(rooms.history_size().1 == 3);
        assert_eq!(payloads(&rooms, "quiet", 9, None).len(), 1);
    }

    #[test]
    fn age_empties_a_room_and_the_sweep_forgets_it() {
        let mut rooms = rooms(Some(History { messages: 9, bytes: 0, age_ms: 1000 }), Limits::default());
        let at = |s: u64| Now { mono_ms: s * 1000, wall_us: s * 1_000_000 };
        let before = say(&mut rooms, "a", b"x", at(10));
        rooms.sweep(at(10), 10);
        assert_eq!(rooms.len(), 1);
        rooms.sweep(at(12), 10);
        assert_eq!(rooms.len(), 0);
        let after = say(&mut rooms, "a", b"y", at(13));
        assert_ne!(before.epoch, after.epoch);
        assert_eq!(after.seq, Seq(1));
        let part =
            past(&rooms, &HistoryQuery { room: b"a".to_vec(), count: 9, after: Some(before), topic: None });
        assert!(!part.recovered && part.records.is_empty());
    }

    #[test]
    fn a_created_room_stays_until_it_is_deleted_or_idle_for_too_long() {
        let at = |s: u64| Now { mono_ms: s * 1000, wall_us: s * 1_000_000 };
        let mut rooms = rooms(Some(History { messages: 9, bytes: 0, age_ms: 1000 }), Limits::default());
        rooms.create(b"a", at(1), |_| None).unwrap();
        rooms.open(b"b", at(1), |_| None).unwrap();
        rooms.sweep(at(2), 10);
        assert!(rooms.find(b"a").is_some() && rooms.find(b"b").is_none());
        let position = say(&mut rooms, "a", b"x", at(3));
        rooms.sweep(at(5), 10);
        assert_eq!(payloads(&rooms, "a", 9, None).len(), 0);
        assert_eq!(say(&mut rooms, "a", b"y", at(6)).epoch, position.epoch);
        assert_eq!(rooms.delete(b"a"), Ok(true));

        let mut class = Class::named("all");
        (class.history, class.idle_ms) = (Some(NO_LIMIT), 5000);
        let mut rooms = of_class(class, Limits::default());
        rooms.create(b"a", at(1), |_| None).unwrap();
        rooms.sweep(at(5), 10);
        assert_eq!(rooms.len(), 1);
        rooms.sweep(at(6), 10);
        assert_eq!(rooms.len(), 0);
    }

    #[test]
    fn history_reads_on_behind_a_position_and_says_when_it_cannot() {
        let mut rooms = rooms(Some(History { messages: 3, bytes: 0, age_ms: 0 }), Limits::default());
        let positions: Vec<_> = (0..5u8).map(|i| say(&mut rooms, "a", &[i], Now::default())).collect();
        assert_eq!(payloads(&rooms, "a", 1, Some(positions[2])), [[3]]);
        assert_eq!(payloads(&rooms, "a", 9, Some(positions[1])), [[2], [3], [4]]);
        let lost = HistoryQuery { room: b"a".to_vec(), count: 9, after: Some(positions[0]), topic: None };
        assert!(!past(&rooms, &lost).recovered);
        assert_eq!(payloads(&rooms, "a", 2, None), [[3], [4]]);
    }

    #[test]
    fn rooms_and_their_creation_rate_are_limited() {
        let limits = Limits { rooms_max: 2, room_creations_per_second_max: 1, ..Limits::default() };
        let mut rooms = rooms(Some(NO_LIMIT), limits);
        let at = |s: u64| Now { mono_ms: s * 1000, wall_us: 0 };
        assert!(rooms.open(b"a", at(1), |_| None).is_ok());
        assert_eq!(rooms.open(b"b", at(1), |_| None), Err(ErrorCode::RoomCreationRate));
        assert!(rooms.open(b"b", at(2), |_| None).is_ok() && rooms.open(b"a", at(2), |_| None).is_ok());
        assert_eq!(rooms.open(b"c", at(3), |_| None), Err(ErrorCode::TooManyRooms));
        assert_eq!(rooms.refused, 2);
    }

    #[test]
    fn pages_are_in_order_of_name() {
        let mut rooms = rooms(Some(NO_LIMIT), Limits::default());
        for name in ["d", "a", "c", "b", "e"] {
            rooms.open(name.as_bytes(), Now::default(), |_| None).unwrap();
        }
        let names = |handles: Vec<RoomHandle>| -> Vec<Vec<u8>> {
            handles.iter().map(|&h| rooms.get(h).unwrap().name.to_vec()).collect()
        };
        assert_eq!(names(rooms.page(None, 2, |_| true)), [b"a", b"b"]);
        assert_eq!(names(rooms.page(Some(b"b"), 2, |_| true)), [b"c", b"d"]);
        assert_eq!(names(rooms.page(Some(b"d"), 9, |n| n != b"a")), [b"e"]);
        assert!(rooms.page(None, 0, |_| true).is_empty());
    }
}
