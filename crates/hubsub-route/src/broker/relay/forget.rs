//! Rooms whose place is forgotten (docs/protocol/moves.md#a-room-is-forgotten): the control plane asks the leader of a
//! room's hub whether anybody uses the room, and has it give the room up before its record goes.
//!
//! Invariants: a room that this process gave up is served here by no revision: the table has no place for it until the
//! control plane says one, and what was asked by an earlier revision goes back as after a move. A shard that has yet to
//! hear of a change of the table gives nothing up.

use super::Broker;
use crate::Sink;
use crate::places::{Changed, UNPLACED};
use hubsub_types::{HubId, Term};

impl Broker {
    /// Of rooms of a hub whose home is here, those that nobody uses: this process leads the hub in that term, and
    /// memory has nothing of the room, neither subscribers nor records.
    #[must_use]
    pub fn unused_rooms(
        &self,
        (hub, term): (HubId, Term),
        mut rooms: Vec<Box<[u8]>>,
        sink: &impl Sink,
    ) -> Vec<Box<[u8]>> {
        let Some(relay) = &self.relay else { return Vec::new() };
        let Some(slot) = relay.slot_of(hub) else { return Vec::new() };
        let is_its = self.is_led(slot) && relay.hub(slot).term == term && self.may_lead(relay, slot, sink);
        if !is_its || self.classes.get(relay.hub(slot).class).durability.is_logged() {
            return Vec::new();
        }
        rooms.retain(|room| !self.is_used(slot, room));
        rooms
    }

    /// Likewise, and the table has no place for them in the hub's class from now on: the class, and what that changed. No
    /// other thread changes the table meanwhile, and all shards of the node are told of this ([`Broker::rooms_placed`])
    /// before they are told of later changes.
    #[must_use]
    pub fn give_up_rooms(&self, of: (HubId, Term), rooms: Vec<Box<[u8]>>, sink: &impl Sink) -> Changed {
        let class = self.relay.as_ref().and_then(|relay| Some(relay.hub(relay.slot_of(of.0)?).class));
        let Some(class) = class else { return (0, Vec::new()) };
        if !self.topics.has_heard_all() {
            return (class, Vec::new());
        }
        let unused = self.unused_rooms(of, rooms, sink).into_iter();
        let forget = |room: Box<[u8]>| self.topics.forget_place(class, &room).map(|change| (room, change));
        (class, unused.filter_map(forget).collect())
    }

    /// Whether a room is of another hub by the table of the hub's class, or anything of it is in memory or waits.
    fn is_used(&self, slot: u16, room: &[u8]) -> bool {
        let class = self.rooms.hubs.get(slot).class;
        let hub = self.topics.place_in(class, room).hub;
        let is_elsewhere = hub != UNPLACED && self.rooms.hubs.find(class, hub) != Some(slot);
        let is_missed = self.relay.as_ref().is_some_and(|relay| relay.misses.rooms.contains_key(room));
        is_elsewhere || is_missed || self.topics.is_leaving(room) || self.rooms.find(room).is_some()
    }
}
