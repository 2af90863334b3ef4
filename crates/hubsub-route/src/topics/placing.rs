//! The places of the rooms of a shard's topics: where the shard sends requests for a room, and from when on.
//!
//! Invariant: a shard sends requests for a room to a new place only after all requests to the previous place are
//! answered: until then it is leaving the room.

use super::{TopicId, Topics, UNHEARD};
use crate::hubs::Hubs;
use crate::places::{Change, Place, UNPLACED};
use crate::ring::{NOWHERE, Placement};
use crate::rooms::RoomHandle;
use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use hubsub_types::class::ClassIndex;
use hubsub_types::{HubId, ShardId};
use std::sync::Arc;

impl Topics {
    pub fn place(&self, room: &[u8]) -> (ClassIndex, u16) {
        let (class, place) = self.placed(room);
        (class, place.hub)
    }

    /// As `place`, with the revision.
    pub fn placed(&self, room: &[u8]) -> (ClassIndex, Place) {
        let class = self.classes.class_of_room(room);
        (class, self.hubs.placement.place(class, room))
    }

    pub fn shard_of_room(&self, room: &[u8]) -> ShardId {
        let (class, hub) = self.place(room);
        self.hubs.placement.shard(class, hub)
    }

    pub(crate) fn placement(&self) -> &Placement {
        &self.hubs.placement
    }

    /// The id of a hub of a class, in a known cluster.
    pub fn hub_id(&self, class: ClassIndex, hub: u16) -> Option<HubId> {
        self.hubs.placement.id(class, hub)
    }

    /// Whether this shard uses these hubs and their table.
    pub fn has_hubs(&self, hubs: &Arc<Hubs>) -> bool {
        Arc::ptr_eq(&self.hubs, hubs)
    }

    /// Whether rooms of a class may be in other hubs than its ring assigns.
    #[inline]
    pub fn moves(&self, class: ClassIndex) -> bool {
        self.hubs.placement.moves(class)
    }

    pub fn is_unplaced(&self, room: &[u8]) -> bool {
        self.place(room).1 == UNPLACED
    }

    /// Removes a room's place, which has to be requested again. None: the class has a ring.
    pub fn forget_place(&self, class: ClassIndex, room: &[u8]) -> Option<Change> {
        let is_asked = self.hubs.placement.places().is_some_and(|places| places.is_asked(class));
        if is_asked { self.hubs.placement.move_room(class, room, None) } else { None }
    }

    /// This shard was notified of all changes of the table up to this one.
    pub fn hear(&mut self, revision: u64) {
        self.heard = self.heard.max(revision);
    }

    /// Whether this shard was notified of all changes of the table.
    pub fn has_heard_all(&self) -> bool {
        self.hubs.placement.places().is_none_or(|places| places.revision() <= self.heard)
    }

    /// Whether this shard has yet to be notified of a room's place in the table, or possibly of its removal.
    pub fn is_unheard(&self, room: &[u8]) -> bool {
        let (class, place) = self.placed(room);
        let forgotten = || self.hubs.placement.places().map_or(0, |places| places.forgotten(class));
        let since = if place.hub == UNPLACED { forgotten() } else { place.revision };
        since > self.heard
    }

    /// Whether this shard is leaving the previous place of a room.
    pub fn is_leaving(&self, room: &[u8]) -> bool {
        !self.leaving.is_empty() && self.leaving.contains_key(room)
    }

    /// Stops requests for these rooms at their places; returns the new ones. It examines all topics once.
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

    /// All requests for a room at its previous place are answered.
    pub fn left(&mut self, room: &[u8]) {
        if self.leaving.remove(room) == Some(true) {
            for id in self.of_room(room) {
                self.place_again(id);
            }
        }
    }

    /// Looks up a topic's place, unless its room is left or unheard; returns whether that has changed.
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

    /// Where this shard sends requests for a room: the table's place, if it was notified and is not leaving.
    pub(super) fn asked_at(&self, room: &[u8]) -> (ClassIndex, Place, ShardId) {
        let (class, place) = self.placed(room);
        if place.revision > self.heard || self.is_leaving(room) {
            return (class, Place { hub: UNPLACED, revision: UNHEARD }, NOWHERE);
        }
        (class, place, self.hubs.placement.shard(class, place.hub))
    }

    /// Topics of one room, including those without subscribers. It examines all topics.
    pub fn of_room(&self, room: &[u8]) -> Vec<TopicId> {
        let topics = (0u32..).zip(&self.slots).filter_map(|(id, topic)| Some((id, topic.as_ref()?)));
        topics.filter(|(_, topic)| *self.classes.room(&topic.name) == *room).map(|(id, _)| id).collect()
    }
}
