//! The edge's table of topics: this shard's subscribers, and the places of the topics' rooms. A topic without
//! subscribers stays for a while as a route, so that publishing to it again needs no look-up; the oldest
//! routes are removed first.

mod placing;

use crate::hubs::Hubs;
use crate::idset::IdSet;
use crate::places::Place;
use crate::rooms::RoomHandle;
use crate::sparse::is_sparse;
use ahash::RandomState;
use hashbrown::{HashMap, HashTable};
use hubsub_message::Namespace;
use hubsub_types::class::ClassIndex;
use hubsub_types::{ClassTable, ShardId};
use std::collections::VecDeque;
use std::sync::Arc;

/// Handle of a topic on this shard; valid while it has subscribers.
pub type TopicId = u32;

#[derive(Debug)]
pub struct Topic {
    pub name: Arc<[u8]>,
    pub namespace: Namespace,
    /// Flags: is in a queue of routes; has the name of its room; its room is an entry.
    marks: u8,
    pub class: ClassIndex,
    pub hub: u16,
    /// Shard of its room's hub; [`NOWHERE`]: requests of this shard's clients wait.
    pub shard: ShardId,
    /// Its room on that shard, as last reported.
    pub room: RoomHandle,
    pub subs: IdSet,
}

/// The revision of a room whose place this shard does not know.
pub const UNHEARD: u64 = u64::MAX;

const QUEUED: u8 = 1;
const IS_ROOM: u8 = 2;
const IS_ROW: u8 = 4;

impl Topic {
    /// Whether the topic's name is its room's name too.
    #[inline]
    pub fn is_room(&self) -> bool {
        self.marks & IS_ROOM != 0
    }

    fn is_queued(&self) -> bool {
        self.marks & QUEUED != 0
    }
}

pub struct Topics {
    pub(crate) classes: Arc<ClassTable>,
    hubs: Arc<Hubs>,
    hasher: RandomState,
    slots: Vec<Option<Topic>>,
    free: Vec<TopicId>,
    /// How often the handle of a removed topic was given to another one.
    reused: u32,
    /// The number of slots before the last release of memory.
    high: usize,
    /// The last topic with subscribers, when that was last searched: memory before it is not released.
    last: usize,
    names: HashTable<TopicId>,
    subscribed_bytes: u64,
    /// Topics that had no subscriber when they were added here.
    routes: Routes,
    /// Routes of rooms stored as their latest record: one per MQTT session and retained message.
    rows: Routes,
    /// The revision by which this shard knows a topic's room, if there is one; [`UNHEARD`]: it is unknown.
    revisions: HashMap<TopicId, u64, RandomState>,
    /// The last revision of the table of places of which this shard was notified.
    heard: u64,
    /// Rooms that this shard is leaving, without requests now, and whether they have topics here.
    leaving: HashMap<Arc<[u8]>, bool, RandomState>,
}

/// Topics in order of arrival.
#[derive(Debug)]
struct Routes {
    queue: VecDeque<TopicId>,
    max: usize,
    bytes: usize,
}

impl Routes {
    fn new(max: usize) -> Routes {
        Routes { queue: VecDeque::new(), max, bytes: 0 }
    }

    fn pop(&mut self) -> Option<TopicId> {
        let is_full = self.queue.len() >= self.max || self.bytes > ROUTE_BYTES * self.max;
        if is_full { self.queue.pop_front() } else { None }
    }
}

/// Routes of entries that a shard caches at most: those that are written again soon.
const ROWS_MAX: usize = 256;

/// Memory of a name beyond its bytes: reference counts and rounding.
const NAME_BYTES: usize = 20;

/// Bytes of names budgeted per cached route: a long name takes the space of several.
const ROUTE_BYTES: usize = 256;

impl Topics {
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

    /// Places topics by a cluster's hubs; topics known before have no subscribers any more.
    pub fn join(&mut self, hubs: Arc<Hubs>) {
        *self = Topics::new(Arc::clone(&self.classes), hubs, self.routes.max);
    }

    /// Classes have changed: returns the topics whose room has changed, or may have.
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

    /// The revision by which this shard knows the place of a topic's room; 0: there is none.
    #[inline]
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

    pub fn find(&self, namespace: Namespace, name: &[u8]) -> Option<TopicId> {
        self.names.find(self.hash(namespace, name), |&id| self.is(id, namespace, name)).copied()
    }

    pub fn intern(&mut self, namespace: Namespace, name: &[u8]) -> TopicId {
        let hash = self.hash(namespace, name);
        match self.names.find(hash, |&id| self.is(id, namespace, name)) {
            Some(&id) => id,
            None => self.add(namespace, name, hash),
        }
    }

    #[cold]
    fn add(&mut self, namespace: Namespace, name: &[u8], hash: u64) -> TopicId {
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

    #[inline]
    pub fn get(&self, id: TopicId) -> &Topic {
        self.slots[id as usize].as_ref().expect("a handle is dropped before its topic")
    }

    #[inline]
    pub fn get_mut(&mut self, id: TopicId) -> &mut Topic {
        self.slots[id as usize].as_mut().expect("a handle is dropped before its topic")
    }

    /// How often a removed topic's handle was given again: while unchanged, handles mean the same topics.
    #[inline]
    pub fn reused(&self) -> u32 {
        self.reused
    }

    /// Adds a subscriber that is not there yet.
    pub fn subscribe(&mut self, id: TopicId, conn: u32) {
        let topic = self.get_mut(id);
        let bytes = if topic.subs.is_empty() { topic.name.len() as u64 } else { 0 };
        topic.subs.insert(conn);
        self.subscribed_bytes += bytes;
    }

    /// Bytes of the names of all topics with subscribers.
    pub fn subscribed_bytes(&self) -> u64 {
        self.subscribed_bytes
    }

    /// Removes a subscriber; returns whether it was there. The topic stays as a route.
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

    /// Topics with subscribers in up to `places_max` slots from `place` on, and the number of these slots.
    pub fn subscribed_from(&self, place: usize, places_max: usize) -> (usize, impl Iterator<Item = &Topic>) {
        let places = self.slots.get(place..).unwrap_or_default();
        let places = &places[..places_max.min(places.len())];
        (places.len(), places.iter().flatten().filter(|topic| !topic.subs.is_empty()))
    }

    pub fn subscriptions(&self) -> impl Iterator<Item = (TopicId, &Topic)> {
        let topics = (0u32..).zip(&self.slots).filter_map(|(id, topic)| Some((id, topic.as_ref()?)));
        topics.filter(|(_, topic)| !topic.subs.is_empty())
    }

    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Approximate memory of the table, in bytes, without the sets of subscribers.
    pub fn table_bytes(&self) -> usize {
        self.slots.len() * size_of::<Option<Topic>>()
            + (self.free.len() + self.routes.queue.len() + self.revisions.capacity() * 4)
                * size_of::<TopicId>()
            + self.names.allocation_size()
            + self.names.len() * NAME_BYTES
            + self.subscribed_bytes as usize
            + self.routes.bytes
    }

    /// Releases memory if few subscribed topics remain: routes are removed, and looked up again later.
    pub fn shrink(&mut self) {
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
            // A slot that is added again later belongs to another topic.
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

    /// Whether a slot from `place` on has subscribers. While the one found last has, none is searched.
    fn is_subscribed_beyond(&mut self, place: usize) -> bool {
        let is_subscribed = |slot: &Option<Topic>| slot.as_ref().is_some_and(|topic| !topic.subs.is_empty());
        if self.last >= place && self.slots.get(self.last).is_some_and(is_subscribed) {
            return true;
        }
        let found = self.slots[place..].iter().rposition(is_subscribed);
        self.last = found.map_or(0, |at| place + at);
        found.is_some()
    }

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

    fn routes_of(&mut self, marks: u8) -> &mut Routes {
        if marks & IS_ROW == 0 { &mut self.routes } else { &mut self.rows }
    }

    /// Makes space for another topic with these flags.
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

    #[inline]
    fn is(&self, id: TopicId, namespace: Namespace, name: &[u8]) -> bool {
        let topic = self.get(id);
        *topic.name == *name && topic.namespace == namespace
    }

    #[inline]
    fn hash(&self, namespace: Namespace, name: &[u8]) -> u64 {
        hash_of(&self.hasher, namespace, name)
    }
}

fn hash_at(hasher: &RandomState, slots: &[Option<Topic>], id: TopicId) -> u64 {
    let topic = slots[id as usize].as_ref().expect("names lists live topics only");
    hash_of(hasher, topic.namespace, &topic.name)
}

#[inline]
fn hash_of(hasher: &RandomState, namespace: Namespace, name: &[u8]) -> u64 {
    hasher.hash_one(name) ^ namespace as u64
}

#[cfg(test)]
mod tests;
