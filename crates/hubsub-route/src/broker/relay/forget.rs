//! Removal of unused rooms (docs/protocol/moves.md#a-room-is-forgotten): the control plane asks the leader of
//! a room's hub whether the room is in use, and has the leader give it up before its record is removed.
//!
//! Invariants: a room that this process gave up is not served here under any revision: the table has no place
//! for it until the control plane sets one, and requests of an earlier revision are returned as after a move.
//! A shard that has not been notified of a table change gives up nothing.

use super::Broker;
use crate::Sink;
use crate::places::{Changed, UNPLACED};
use crate::relay::HubState;
use hubsub_types::{HubId, Term};

impl Broker {
    /// Those of a hub's rooms that this leader in that term has no subscribers or records of.
    pub fn unused_rooms(
        &self,
        (hub, term): (HubId, Term),
        mut rooms: Vec<Box<[u8]>>,
        sink: &impl Sink,
    ) -> Vec<Box<[u8]>> {
        let Some(slot) = self.relay.slot_of(hub) else { return Vec::new() };
        let HubState { term: known, class, .. } = *self.relay.hub(slot);
        let is_its = self.is_led(slot) && known == term && self.may_lead(slot, sink);
        if !is_its || self.classes.get(class).durability.is_logged() {
            return Vec::new();
        }
        rooms.retain(|room| !self.is_used(slot, room));
        rooms
    }

    /// Removes the unused rooms from the table of the hub's class; returns the class and the changes. No
    /// other thread changes the table meanwhile, and all shards of the node are notified of these changes
    /// ([`Broker::rooms_placed`]) before later ones.
    pub fn give_up_rooms(&self, of: (HubId, Term), rooms: Vec<Box<[u8]>>, sink: &impl Sink) -> Changed {
        let Some(slot) = self.relay.slot_of(of.0) else { return (0, Vec::new()) };
        let class = self.relay.hub(slot).class;
        if !self.topics.has_heard_all() {
            return (class, Vec::new());
        }
        let unused = self.unused_rooms(of, rooms, sink).into_iter();
        let forget = |room: Box<[u8]>| self.topics.forget_place(class, &room).map(|change| (room, change));
        (class, unused.filter_map(forget).collect())
    }

    /// Whether the table has a room in another hub, or any state of it is in memory or waiting.
    fn is_used(&self, slot: u16, room: &[u8]) -> bool {
        let class = self.rooms.hubs.get(slot).class;
        let hub = self.topics.placement().hub(class, room);
        let is_elsewhere = hub != UNPLACED && self.rooms.hubs.find(class, hub) != Some(slot);
        let is_missed = self.relay.misses.rooms.contains_key(room);
        is_elsewhere || is_missed || self.topics.is_leaving(room) || self.rooms.find(room).is_some()
    }
}
