//! The edge's table of topics: who of this shard subscribes, and where the
//! topic's room is. A topic without subscribers stays for a while as a route,
//! so that publishing to it again resolves nothing; the oldest such go first.

use crate::hubs::Hubs;
use crate::idset::IdSet;
use crate::record::Namespace;
use crate::rooms::RoomHandle;
use ahash::RandomState;
use hashbrown::HashTable;
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
    /// Whether it stands in the queue of routes, and whether its name is its room's name too.
    marks: u8,
    /// Class of its room.
    pub class: ClassIndex,
    /// Which of the class's hubs its room belongs to.
    pub hub: u16,
    /// Shard of its room's hub.
    pub shard: ShardId,
    /// Its room on that shard, as last heard.
    pub room: RoomHandle,
    /// Connections of this shard.
    pub subs: IdSet,
}

const QUEUED: u8 = 1;
const IS_ROOM: u8 = 2;

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
    names: HashTable<TopicId>,
    /// Topics that had no subscriber when they were put here, oldest first.
    routes: VecDeque<TopicId>,
    routes_max: usize,
    /// Bytes of the names in `routes`.
    route_bytes: usize,
}

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
            names: HashTable::new(),
            routes: VecDeque::new(),
            routes_max: routes_max.max(1),
            route_bytes: 0,
        }
    }

    /// Places topics as a cluster's hubs say; what was known has no subscriber any more.
    pub fn join(&mut self, hubs: Arc<Hubs>) {
        *self = Topics::new(Arc::clone(&self.classes), hubs, self.routes_max);
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

    /// Class of a room, and which of its hubs the room belongs to.
    #[must_use]
    pub fn place(&self, room: &[u8]) -> (ClassIndex, u16) {
        let class = self.classes.class_of_room(room);
        (class, self.hubs.placement.hub(class, room))
    }

    /// Looks again where a topic's room is; whether its shard or hub is another than before.
    pub fn place_again(&mut self, id: TopicId) -> bool {
        let (class, hub) = self.place(&self.classes.room(&self.get(id).name));
        let shard = self.hubs.placement.shard(class, hub);
        let topic = self.get_mut(id);
        let is_news = (topic.class, topic.hub, topic.shard) != (class, hub, shard);
        if is_news {
            (topic.class, topic.hub, topic.shard) = (class, hub, shard);
            topic.room = RoomHandle::NONE;
        }
        is_news
    }

    /// Topics of one room, those without subscribers too. It looks at all topics.
    #[must_use]
    pub fn of_room(&self, class: ClassIndex, room: &[u8]) -> Vec<TopicId> {
        let topics = (0u32..).zip(&self.slots).filter_map(|(id, topic)| Some((id, topic.as_ref()?)));
        let is_of = |topic: &Topic| topic.class == class && *self.classes.room(&topic.name) == *room;
        topics.filter(|(_, topic)| is_of(topic)).map(|(id, _)| id).collect()
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
        self.forget_oldest_route();
        let room = self.classes.room(name);
        let (class, hub) = self.place(&room);
        let shard = self.hubs.placement.shard(class, hub);
        let is_room = namespace == Namespace::Global && room.len() == name.len();
        let topic = Topic {
            name: name.into(),
            namespace,
            marks: if is_room { QUEUED | IS_ROOM } else { QUEUED },
            class,
            hub,
            shard,
            room: RoomHandle::NONE,
            subs: IdSet::Empty,
        };
        let id = self.free.pop().unwrap_or(self.slots.len() as TopicId);
        match self.slots.get_mut(id as usize) {
            Some(slot) => *slot = Some(topic),
            None => self.slots.push(Some(topic)),
        }
        let (hasher, slots) = (&self.hasher, &self.slots);
        self.names.insert_unique(hash, id, |&id| {
            let topic = slots[id as usize].as_ref().expect("names lists live topics only");
            hash_of(hasher, topic.namespace, &topic.name)
        });
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

    /// Takes a subscriber away; whether it was there. The topic stays as a route.
    pub fn unsubscribe(&mut self, id: TopicId, conn: u32) -> bool {
        let topic = self.get_mut(id);
        let was = topic.subs.remove(conn);
        if topic.subs.is_empty() && !topic.is_queued() {
            topic.marks |= QUEUED;
            self.push_route(id);
            self.forget_oldest_route();
        }
        was
    }

    /// Every topic with subscribers on this shard.
    pub fn subscribed(&self) -> impl Iterator<Item = &Topic> {
        self.slots.iter().flatten().filter(|t| !t.subs.is_empty())
    }

    /// Topics known, routes included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether none is known.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    fn push_route(&mut self, id: TopicId) {
        self.route_bytes += self.get(id).name.len();
        self.routes.push_back(id);
    }

    fn forget_oldest_route(&mut self) {
        while self.routes.len() >= self.routes_max || self.route_bytes > ROUTE_BYTES * self.routes_max {
            let Some(id) = self.routes.pop_front() else { return };
            let topic = self.get_mut(id);
            topic.marks &= !QUEUED;
            let bytes = topic.name.len();
            self.route_bytes -= bytes;
            let topic = self.get(id);
            if topic.subs.is_empty() {
                let topic = self.slots[id as usize].take().expect("queued topics are live");
                let hash = self.hash(topic.namespace, &topic.name);
                if let Ok(entry) = self.names.find_entry(hash, |&other| other == id) {
                    entry.remove();
                }
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

fn hash_of(hasher: &RandomState, namespace: Namespace, name: &[u8]) -> u64 {
    hasher.hash_one(name) ^ namespace as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(routes_max: usize) -> Topics {
        let classes = ClassTable::new(Vec::new(), true);
        let hubs = Hubs::new(2, &classes, Vec::new());
        Topics::new(Arc::new(classes), Arc::new(hubs), routes_max)
    }

    #[test]
    fn routes_are_bounded_and_subscribed_topics_stay() {
        let mut topics = table(10);
        let kept = topics.intern(Namespace::Global, b"kept");
        topics.get_mut(kept).subs.insert(7);
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
    fn long_names_take_the_place_of_several_routes() {
        let mut topics = table(10);
        for i in 0..100 {
            topics.intern(Namespace::Global, format!("{i}{}", "x".repeat(1000)).as_bytes());
        }
        assert!(topics.len() <= 4, "{}", topics.len());
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
