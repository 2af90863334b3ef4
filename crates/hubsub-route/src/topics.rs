//! The edge's table of topics: who of this shard subscribes, and where the
//! topic's room is. A topic without subscribers stays for a while as a route,
//! so that publishing to it again resolves nothing; the oldest such go first.

use crate::hubs::Hubs;
use crate::idset::IdSet;
use crate::places::{Change, Place, UNPLACED};
use crate::record::Namespace;
use crate::ring::NOWHERE;
use crate::rooms::RoomHandle;
use crate::sparse::is_sparse;
use ahash::RandomState;
use hashbrown::{HashMap, HashSet, HashTable};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ClassTable, HubId, ShardId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Handle of a topic on this shard; valid while it has subscribers.
pub type TopicId = u32;

/// One topic.
#[derive(Debug)]
pub struct Topic {
    /// Its name.
    pub name: Arc<[u8]>,
    /// With the name, what it is.
    pub namespace: Namespace,
    /// Whether it stands in a queue of routes, whether its name is its room's name too, whether its room is a row.
    marks: u8,
    /// Class of its room.
    pub class: ClassIndex,
    /// Which of the class's hubs its room belongs to.
    pub hub: u16,
    /// Shard of its room's hub; [`NOWHERE`]: what this shard's clients ask of it waits.
    pub shard: ShardId,
    /// Its room on that shard, as last heard.
    pub room: RoomHandle,
    /// Connections of this shard.
    pub subs: IdSet,
}

/// Stands for the revision of a room of which this shard does not know where it is.
pub const UNHEARD: u64 = u64::MAX;

const QUEUED: u8 = 1;
const IS_ROOM: u8 = 2;
const IS_ROW: u8 = 4;

impl Topic {
    /// Whether the topic's name is its room's name too.
    #[inline]
    #[must_use]
    pub fn is_room(&self) -> bool {
        self.marks & IS_ROOM != 0
    }

    fn is_queued(&self) -> bool {
        self.marks & QUEUED != 0
    }
}

/// All topics that a shard knows.
pub struct Topics {
    pub(crate) classes: Arc<ClassTable>,
    hubs: Arc<Hubs>,
    hasher: RandomState,
    slots: Vec<Option<Topic>>,
    free: Vec<TopicId>,
    /// How often a place that had been a topic's became another one's.
    reused: u32,
    /// So many places there were, before the last ones were given back.
    high: usize,
    /// The last topic with subscribers, when it was looked for last: what stands before it is not given back.
    last: usize,
    names: HashTable<TopicId>,
    /// Bytes of the names of topics with subscribers.
    subscribed_bytes: u64,
    /// Topics that had no subscriber when they were put here.
    routes: Routes,
    /// Likewise, of rooms that are their latest record: there is one for each MQTT session and retained message, and it is
    /// written now and then.
    rows: Routes,
    /// By topic the change of the table of rooms by which this shard acts, where there is one; [`UNHEARD`]: it does not know.
    revisions: HashMap<TopicId, u64, RandomState>,
    /// The last change of the table of rooms that this shard was told.
    heard: u64,
    /// Rooms that this shard leaves: nothing is asked of them now.
    leaving: HashMap<Arc<[u8]>, bool, RandomState>,
}

/// Topics in the order in which they came.
#[derive(Debug)]
struct Routes {
    queue: VecDeque<TopicId>,
    max: usize,
    /// Bytes of their names.
    bytes: usize,
}

impl Routes {
    fn new(max: usize) -> Routes {
        Routes { queue: VecDeque::new(), max, bytes: 0 }
    }

    /// The oldest, if there are too many for one more.
    fn pop(&mut self) -> Option<TopicId> {
        let is_full = self.queue.len() >= self.max || self.bytes > ROUTE_BYTES * self.max;
        if is_full { self.queue.pop_front() } else { None }
    }
}

/// Routes of rows that a shard remembers, if it remembers so many: those that are written again in a moment.
const ROWS_MAX: usize = 256;

/// What a name takes beside its bytes: it is counted by whom it is shared with, and rounded up.
const NAME_BYTES: usize = 20;

/// Bytes of names for each route that may be remembered: long ones take the place of several.
const ROUTE_BYTES: usize = 256;

impl Topics {
    /// An empty table.
    #[must_use]
    pub fn new(classes: Arc<ClassTable>, hubs: Arc<Hubs>, routes_max: usize) -> Topics {
        Topics {
            classes,
            hubs,
            hasher: RandomState::new(),
            slots: Vec::new(),
            free: Vec::new(),
            reused: 0,
            high: 0,
            last: 0,
            names: HashTable::new(),
            subscribed_bytes: 0,
            routes: Routes::new(routes_max.max(1)),
            rows: Routes::new(routes_max.clamp(1, ROWS_MAX)),
            revisions: HashMap::default(),
            heard: 0,
            leaving: HashMap::default(),
        }
    }

    /// Places topics as a cluster's hubs say; what was known has no subscriber any more.
    pub fn join(&mut self, hubs: Arc<Hubs>) {
        *self = Topics::new(Arc::clone(&self.classes), hubs, self.routes.max);
    }

    /// Classes have changed, and with them perhaps the rooms of topics: those that are in another one now, or may be.
    pub fn set_classes(&mut self, classes: Arc<ClassTable>, hubs: Arc<Hubs>) -> Vec<TopicId> {
        let before = std::mem::replace(&mut self.classes, classes);
        self.hubs = hubs;
        let is_elsewhere = |topic: &Topic| {
            let room = self.classes.room(&topic.name);
            before.room(&topic.name) != room || topic.class != self.classes.class_of_room(&room)
        };
        let topics = (0u32..).zip(&self.slots).filter_map(|(id, topic)| Some((id, topic.as_ref()?)));
        let elsewhere: Vec<TopicId> =
            topics.filter(|(_, topic)| is_elsewhere(topic)).map(|(id, _)| id).collect();
        for &id in &elsewhere {
            let topic = self.slots[id as usize].as_ref().expect("it was looked at");
            let is_room =
                topic.namespace == Namespace::Global && *self.classes.room(&topic.name) == *topic.name;
            let topic = self.get_mut(id);
            topic.marks = if is_room { topic.marks | IS_ROOM } else { topic.marks & !IS_ROOM };
        }
        elsewhere
    }

    /// The shard of a room's hub.
    #[must_use]
    pub fn shard_of_room(&self, room: &[u8]) -> ShardId {
        let (class, hub) = self.place(room);
        self.hubs.placement.shard(class, hub)
    }

    /// How many hubs a class has, as far as they are known.
    #[must_use]
    pub fn hubs_of(&self, class: ClassIndex) -> u16 {
        self.hubs.placement.hubs(class)
    }

    /// Class of a room, and which of its hubs the room belongs to, as the table has it.
    #[must_use]
    pub fn place(&self, room: &[u8]) -> (ClassIndex, u16) {
        let (class, place) = self.placed(room);
        (class, place.hub)
    }

    /// Likewise, and since which change.
    #[must_use]
    pub fn placed(&self, room: &[u8]) -> (ClassIndex, Place) {
        let class = self.classes.class_of_room(room);
        (class, self.hubs.placement.place(class, room))
    }

    /// Whether a room is to be asked for.
    #[must_use]
    pub fn is_unplaced(&self, room: &[u8]) -> bool {
        self.place(room).1 == UNPLACED
    }

    /// Where a room is if it is of that class.
    #[must_use]
    pub fn place_in(&self, class: ClassIndex, room: &[u8]) -> Place {
        self.hubs.placement.place(class, room)
    }

    /// A room of a class is to be asked for again: what that changed. None: the class has a ring.
    #[must_use]
    pub fn forget_place(&self, class: ClassIndex, room: &[u8]) -> Option<Change> {
        let is_asked = self.hubs.placement.places().is_some_and(|places| places.is_asked(class));
        if is_asked { self.hubs.placement.move_room(class, room, None) } else { None }
    }

    /// Whether this shard was told of all changes of the table.
    #[must_use]
    pub fn has_heard_all(&self) -> bool {
        self.hubs.placement.places().is_none_or(|places| places.revision() <= self.heard)
    }

    /// Whether it acts by these hubs, and by the table that they have.
    #[must_use]
    pub fn has_hubs(&self, hubs: &Arc<Hubs>) -> bool {
        Arc::ptr_eq(&self.hubs, hubs)
    }

    /// Whether rooms of a class may be elsewhere than its ring has them.
    #[inline]
    #[must_use]
    pub fn moves(&self, class: ClassIndex) -> bool {
        self.hubs.placement.moves(class)
    }

    /// The home on this node of a hub of a class.
    #[must_use]
    pub fn shard_of_hub(&self, class: ClassIndex, hub: u16) -> ShardId {
        self.hubs.placement.shard(class, hub)
    }

    /// This shard was told of all changes of the table up to this one.
    pub fn hear(&mut self, revision: u64) {
        self.heard = self.heard.max(revision);
    }

    /// Where this shard asks for a room: as the table has it, if this shard was told, and leaves it no more.
    fn asked_at(&self, room: &[u8]) -> (ClassIndex, Place, ShardId) {
        let (class, place) = self.placed(room);
        if place.revision > self.heard || self.is_leaving(room) {
            return (class, Place { hub: UNPLACED, revision: UNHEARD }, NOWHERE);
        }
        (class, place, self.hubs.placement.shard(class, place.hub))
    }

    /// Whether this shard is to be told of a room's place, which the table has, or perhaps that it has none any more.
    #[must_use]
    pub fn is_unheard(&self, room: &[u8]) -> bool {
        let (class, place) = self.placed(room);
        let forgotten = || self.hubs.placement.places().map_or(0, |places| places.forgotten(class));
        let since = if place.hub == UNPLACED { forgotten() } else { place.revision };
        since > self.heard
    }

    /// Whether this shard leaves the place where a room was.
    #[must_use]
    pub fn is_leaving(&self, room: &[u8]) -> bool {
        !self.leaving.is_empty() && self.leaving.contains_key(room)
    }

    /// Nothing more is asked of these rooms where they were; those of which that was not so already. It looks at all
    /// topics, once.
    pub fn leave(&mut self, rooms: impl Iterator<Item = Arc<[u8]>>) -> HashSet<Arc<[u8]>, RandomState> {
        let is_news = |room: &Arc<[u8]>| !self.leaving.contains_key(room);
        let mut left: HashMap<Arc<[u8]>, bool, RandomState> =
            rooms.filter(is_news).map(|room| (room, false)).collect();
        if !left.is_empty() {
            for topic in self.slots.iter_mut().flatten() {
                if let Some(has_topics) = left.get_mut(&*self.classes.room(&topic.name)) {
                    topic.shard = NOWHERE;
                    *has_topics = true;
                }
            }
        }
        let names = left.keys().cloned().collect();
        self.leaving.extend(left);
        names
    }

    /// All that was asked of a room where it was is answered.
    pub fn left(&mut self, room: &[u8]) {
        if self.leaving.remove(room) == Some(true) {
            for id in self.of_room(room) {
                self.place_again(id);
            }
        }
    }

    /// Looks again where a topic's room is; whether its shard or hub is another than before. Who leaves a room, or was
    /// not told of its move, stays as it is.
    pub fn place_again(&mut self, id: TopicId) -> bool {
        let room = self.classes.room(&self.get(id).name);
        if self.is_leaving(&room) {
            return false;
        }
        let (class, place, shard) = self.asked_at(&room);
        let topic = self.get_mut(id);
        if place.revision == UNHEARD && topic.shard != NOWHERE {
            return false;
        }
        let is_news = (topic.class, topic.hub, topic.shard) != (class, place.hub, shard);
        if is_news {
            (topic.class, topic.hub, topic.shard) = (class, place.hub, shard);
            topic.room = RoomHandle::NONE;
        }
        self.set_revision(id, place.revision);
        is_news
    }

    /// The change of the table of rooms by which this shard has a topic's room where it is; 0: there is none.
    #[inline]
    #[must_use]
    pub fn revision(&self, id: TopicId) -> u64 {
        if self.revisions.is_empty() { 0 } else { self.revisions.get(&id).copied().unwrap_or(0) }
    }

    fn set_revision(&mut self, id: TopicId, revision: u64) {
        if revision > 0 {
            self.revisions.insert(id, revision);
        } else if !self.revisions.is_empty() {
            self.revisions.remove(&id);
        }
    }

    /// Topics of one room, those without subscribers too. It looks at all topics.
    #[must_use]
    pub fn of_room(&self, room: &[u8]) -> Vec<TopicId> {
        let topics = (0u32..).zip(&self.slots).filter_map(|(id, topic)| Some((id, topic.as_ref()?)));
        topics.filter(|(_, topic)| *self.classes.room(&topic.name) == *room).map(|(id, _)| id).collect()
    }

    /// Whether the hubs of a class are known.
    #[must_use]
    pub fn knows_hubs_of(&self, class: ClassIndex) -> bool {
        self.hubs.placement.hubs(class) > 0
    }

    /// The id of a hub of a class, in a cluster that is known.
    #[must_use]
    pub fn hub_id(&self, class: ClassIndex, hub: u16) -> Option<HubId> {
        self.hubs.placement.id(class, hub)
    }

    /// A topic that is known.
    #[must_use]
    pub fn find(&self, namespace: Namespace, name: &[u8]) -> Option<TopicId> {
        self.names.find(self.hash(namespace, name), |&id| self.is(id, namespace, name)).copied()
    }

    /// A topic, resolved now if it is new.
    pub fn intern(&mut self, namespace: Namespace, name: &[u8]) -> TopicId {
        let hash = self.hash(namespace, name);
        if let Some(&id) = self.names.find(hash, |&id| self.is(id, namespace, name)) {
            return id;
        }
        let room = self.classes.room(name);
        let (class, Place { hub, revision }, shard) = self.asked_at(&room);
        if !self.leaving.is_empty()
            && let Some(has_topics) = self.leaving.get_mut(&*room)
        {
            *has_topics = true;
        }
        let is_room = namespace == Namespace::Global && room.len() == name.len();
        let marks = [(IS_ROOM, is_room), (IS_ROW, self.classes.get(class).keeps_latest)];
        let marks = marks.into_iter().filter(|(_, is_so)| *is_so).fold(QUEUED, |all, (mark, _)| all | mark);
        self.forget_oldest_route(marks);
        let topic = Topic {
            name: name.into(),
            namespace,
            marks,
            class,
            hub,
            shard,
            room: RoomHandle::NONE,
            subs: IdSet::Empty,
        };
        let freed = self.free.pop();
        let is_reused = freed.is_some() || self.slots.len() < self.high;
        self.reused = self.reused.wrapping_add(u32::from(is_reused));
        let id = freed.unwrap_or(self.slots.len() as TopicId);
        match self.slots.get_mut(id as usize) {
            Some(slot) => *slot = Some(topic),
            None => self.slots.push(Some(topic)),
        }
        let (hasher, slots) = (&self.hasher, &self.slots);
        self.names.insert_unique(hash, id, |&id| hash_at(hasher, slots, id));
        self.set_revision(id, revision);
        self.push_route(id);
        id
    }

    /// A topic by a valid handle.
    #[must_use]
    pub fn get(&self, id: TopicId) -> &Topic {
        self.slots[id as usize].as_ref().expect("a handle is dropped before its topic")
    }

    /// As `get`.
    pub fn get_mut(&mut self, id: TopicId) -> &mut Topic {
        self.slots[id as usize].as_mut().expect("a handle is dropped before its topic")
    }

    /// How often the handle of a forgotten topic became another one's: while this is the same, so is what a handle means.
    #[inline]
    #[must_use]
    pub fn reused(&self) -> u32 {
        self.reused
    }

    /// Adds a subscriber that was not there.
    pub fn subscribe(&mut self, id: TopicId, conn: u32) {
        let topic = self.get_mut(id);
        let bytes = if topic.subs.is_empty() { topic.name.len() as u64 } else { 0 };
        topic.subs.insert(conn);
        self.subscribed_bytes += bytes;
    }

    /// Bytes of the names of all topics with subscribers.
    #[must_use]
    pub fn subscribed_bytes(&self) -> u64 {
        self.subscribed_bytes
    }

    /// Takes a subscriber away; whether it was there. The topic stays as a route.
    pub fn unsubscribe(&mut self, id: TopicId, conn: u32) -> bool {
        let topic = self.get_mut(id);
        let was = topic.subs.remove(conn);
        let bytes = if was && topic.subs.is_empty() { topic.name.len() as u64 } else { 0 };
        self.subscribed_bytes -= bytes;
        let topic = self.get_mut(id);
        if topic.subs.is_empty() && !topic.is_queued() {
            topic.marks |= QUEUED;
            let marks = topic.marks;
            self.push_route(id);
            self.forget_oldest_route(marks);
        }
        was
    }

    /// Topics with subscribers on this shard, among so many places of the table from one on; how many of these there were.
    pub fn subscribed_from(&self, place: usize, places_max: usize) -> (usize, impl Iterator<Item = &Topic>) {
        let places = self.slots.get(place..).unwrap_or_default();
        let places = &places[..places_max.min(places.len())];
        (places.len(), places.iter().flatten().filter(|topic| !topic.subs.is_empty()))
    }

    /// Every topic with subscribers on this shard, and its handle.
    pub fn subscriptions(&self) -> impl Iterator<Item = (TopicId, &Topic)> {
        let topics = (0u32..).zip(&self.slots).filter_map(|(id, topic)| Some((id, topic.as_ref()?)));
        topics.filter(|(_, topic)| !topic.subs.is_empty())
    }

    /// Topics known, routes included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Memory of the table, in bytes, near enough for a gauge: the sets of those who subscribe are not in it.
    #[must_use]
    pub fn table_bytes(&self) -> usize {
        self.slots.len() * size_of::<Option<Topic>>()
            + (self.free.len() + self.routes.queue.len() + self.revisions.capacity() * 4)
                * size_of::<TopicId>()
            + self.names.allocation_size()
            + self.names.len() * NAME_BYTES
            + self.subscribed_bytes as usize
            + self.routes.bytes
    }

    /// Gives memory back where few topics with subscribers are left of many, and at least half of the table goes: routes
    /// are forgotten then, and are found again.
    pub fn give_back(&mut self) {
        let (topics, routes) = (self.names.len(), self.routes.queue.len() + self.rows.queue.len());
        let places = self.slots.len();
        if places <= 2 * self.routes.max || !is_sparse(topics.saturating_sub(routes), places) {
            return;
        }
        if self.is_subscribed_beyond(places / 2) {
            return;
        }
        for marks in [0, IS_ROW] {
            let max = std::mem::replace(&mut self.routes_of(marks).max, 0);
            self.forget_oldest_route(marks);
            self.routes_of(marks).max = max;
        }
        while let Some(None) = self.slots.last() {
            self.slots.pop();
        }
        if self.slots.len() < places {
            // What is put there again is another topic.
            self.high = self.high.max(places);
            let places = self.slots.len();
            self.free.retain(|id| (*id as usize) < places);
            self.slots.shrink_to_fit();
            self.free.shrink_to_fit();
        }
        let (hasher, slots) = (&self.hasher, &self.slots);
        self.names.shrink_to(2 * self.names.len(), |&id| hash_at(hasher, slots, id));
        self.revisions.shrink_to(2 * self.revisions.len());
        self.routes.queue.shrink_to(self.routes.queue.len());
    }

    /// Whether a topic with subscribers has a place of the table from one on. As long as one that was found has, it looks
    /// for no other.
    fn is_subscribed_beyond(&mut self, place: usize) -> bool {
        let is_subscribed = |slot: &Option<Topic>| slot.as_ref().is_some_and(|topic| !topic.subs.is_empty());
        if self.last >= place && self.slots.get(self.last).is_some_and(is_subscribed) {
            return true;
        }
        let found = self.slots[place..].iter().rposition(is_subscribed);
        self.last = found.map_or(0, |at| place + at);
        found.is_some()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn push_route(&mut self, id: TopicId) {
        let topic = self.get(id);
        let (bytes, marks) = (topic.name.len(), topic.marks);
        let routes = self.routes_of(marks);
        routes.bytes += bytes;
        routes.queue.push_back(id);
    }

    /// The queue of topics with these marks.
    fn routes_of(&mut self, marks: u8) -> &mut Routes {
        if marks & IS_ROW == 0 { &mut self.routes } else { &mut self.rows }
    }

    /// Makes place for another topic with these marks.
    fn forget_oldest_route(&mut self, marks: u8) {
        while let Some(id) = self.routes_of(marks).pop() {
            let topic = self.get_mut(id);
            topic.marks &= !QUEUED;
            let bytes = topic.name.len();
            self.routes_of(marks).bytes -= bytes;
            let topic = self.get(id);
            if topic.subs.is_empty() {
                let topic = self.slots[id as usize].take().expect("queued topics are live");
                let hash = self.hash(topic.namespace, &topic.name);
                if let Ok(entry) = self.names.find_entry(hash, |&other| other == id) {
                    entry.remove();
                }
                self.set_revision(id, 0);
                self.free.push(id);
            }
        }
    }

    fn is(&self, id: TopicId, namespace: Namespace, name: &[u8]) -> bool {
        let topic = self.get(id);
        *topic.name == *name && topic.namespace == namespace
    }

    fn hash(&self, namespace: Namespace, name: &[u8]) -> u64 {
        hash_of(&self.hasher, namespace, name)
    }
}

fn hash_at(hasher: &RandomState, slots: &[Option<Topic>], id: TopicId) -> u64 {
    let topic = slots[id as usize].as_ref().expect("names lists live topics only");
    hash_of(hasher, topic.namespace, &topic.name)
}

fn hash_of(hasher: &RandomState, namespace: Namespace, name: &[u8]) -> u64 {
    hasher.hash_one(name) ^ namespace as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_types::Class;
    use hubsub_types::names::Matcher;

    fn table(routes_max: usize) -> Topics {
        let classes = ClassTable::new(Vec::new(), true);
        let hubs = Hubs::new(2, &classes, Vec::new());
        Topics::new(Arc::new(classes), Arc::new(hubs), routes_max)
    }

    #[test]
    fn routes_are_bounded_and_subscribed_topics_stay() {
        let mut topics = table(10);
        let kept = topics.intern(Namespace::Global, b"kept");
        topics.subscribe(kept, 7);
        for i in 0..1000 {
            topics.intern(Namespace::Global, format!("t{i}").as_bytes());
        }
        assert!(topics.len() <= 11);
        assert_eq!(topics.find(Namespace::Global, b"kept"), Some(kept));
        assert!(topics.unsubscribe(kept, 7));
        (0..20).for_each(|i| _ = topics.intern(Namespace::Global, format!("u{i}").as_bytes()));
        assert_eq!(topics.find(Namespace::Global, b"kept"), None);
    }

    #[test]
    fn few_topics_that_are_left_of_many_give_memory_back_and_what_is_put_there_counts_as_another() {
        let mut topics = table(10);
        let name = |n: usize| format!("t{n}").into_bytes();
        let ids: Vec<TopicId> = (0..20_000)
            .map(|n| {
                let id = topics.intern(Namespace::Global, &name(n));
                topics.subscribe(id, 7);
                id
            })
            .collect();
        let full = topics.table_bytes();
        let names = |ids: std::ops::Range<usize>| ids.map(|n| name(n).len() as u64).sum::<u64>();
        assert_eq!(topics.subscribed_bytes(), names(0..20_000));
        ids[2_000..].iter().for_each(|&id| assert!(topics.unsubscribe(id, 7)));
        assert_eq!(topics.subscribed_bytes(), names(0..2_000));
        let reused = topics.reused();
        topics.give_back();
        assert_eq!((topics.len(), topics.slots.len()), (2_000, 2_000), "routes go, too");
        assert!(topics.table_bytes() < full / 4, "{} of {full}", topics.table_bytes());
        assert_eq!(topics.find(Namespace::Global, &name(1_999)), Some(ids[1_999]));
        assert_eq!(topics.find(Namespace::Global, &name(2_000)), None);
        assert_eq!(topics.intern(Namespace::Global, b"other"), 2_000);
        assert_eq!(topics.reused(), reused + 1);
    }

    #[test]
    fn routes_are_forgotten_only_where_half_of_the_table_goes_with_them() {
        const PLACES: u32 = 10_000;
        let name = |n: u32| format!("t{n}").into_bytes();
        for (last, goes) in [(PLACES / 2 - 1, true), (PLACES / 2, false), (PLACES - 1, false)] {
            let mut topics = table(10);
            for n in 0..PLACES {
                let id = topics.intern(Namespace::Global, &name(n));
                topics.subscribe(id, 7);
            }
            (0..PLACES).filter(|&n| n != last).for_each(|id| _ = topics.unsubscribe(id, 7));
            assert!(topics.intern(Namespace::Global, b"route") < PLACES, "it has a place that was free");
            let routes = topics.len() - 1;
            assert!(routes > 1);
            for _ in 0..3 {
                topics.give_back();
                let places = if goes { last + 1 } else { PLACES } as usize;
                let left = if goes { 1 } else { 1 + routes };
                assert_eq!((topics.slots.len(), topics.len()), (places, left), "the last stands at {last}");
            }
            assert_eq!(topics.find(Namespace::Global, &name(last)), Some(last));
            topics.unsubscribe(last, 7);
            topics.give_back();
            assert_eq!((topics.slots.len(), topics.len()), (0, 0), "nobody subscribes any more");
        }
    }

    #[test]
    fn long_names_take_the_place_of_several_routes() {
        let mut topics = table(10);
        for i in 0..100 {
            topics.intern(Namespace::Global, format!("{i}{}", "x".repeat(1000)).as_bytes());
        }
        assert!(topics.len() <= 4, "{}", topics.len());
    }

    #[test]
    fn routes_of_rows_are_few_and_take_no_others_place() {
        let rows = Class {
            matches: vec![Matcher::parse("$system/#").unwrap()],
            keeps_latest: true,
            ..Class::named("$system")
        };
        let classes = ClassTable::new(vec![rows, Class::named("all")], true);
        let hubs = Hubs::new(2, &classes, Vec::new());
        let mut topics = Topics::new(Arc::new(classes), Arc::new(hubs), 10_000);
        let kept = topics.intern(Namespace::Global, b"kept");
        for i in 0..1000 {
            topics.intern(Namespace::Global, format!("$system/session/{i}").as_bytes());
        }
        assert!((ROWS_MAX..=ROWS_MAX + 1).contains(&topics.len()), "{}", topics.len());
        assert_eq!(topics.find(Namespace::Global, b"kept"), Some(kept));
    }

    #[test]
    fn the_same_name_in_another_namespace_is_another_topic_of_the_same_room() {
        let mut topics = table(10);
        let a = topics.intern(Namespace::Global, b"x");
        let b = topics.intern(Namespace::Shard, b"x");
        assert_ne!(a, b);
        assert_eq!(topics.get(a).shard, topics.get(b).shard);
        assert!(topics.get(a).is_room() && !topics.get(b).is_room());
    }

    #[test]
    fn a_topic_with_one_subscriber_is_small() {
        assert!(std::mem::size_of::<Option<Topic>>() <= 48, "{}", std::mem::size_of::<Option<Topic>>());
    }
}
