//! Rooms whose place is forgotten (docs/protocol/moves.md#a-room-is-forgotten): the control plane asks the leader of a
//! room's hub whether anybody uses the room, and has it give the room up before its record goes.
//!
//! Invariant: a room that this process gave up is served here by no revision: the table has no place for it until the
//! control plane says one, and what was asked by an earlier revision goes back as after a move.

use super::Broker;
use crate::Sink;
use crate::places::Change;
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

    /// Likewise, and the table has no place for them from now on: what that changed. All shards of the node are to be
    /// told of it ([`Broker::rooms_placed`]), before they are told where a room is again.
    #[must_use]
    pub fn give_up_rooms(
        &self,
        of: (HubId, Term),
        rooms: Vec<Box<[u8]>>,
        sink: &impl Sink,
    ) -> Vec<(Box<[u8]>, Change)> {
        let unused = self.unused_rooms(of, rooms, sink).into_iter();
        unused.filter_map(|room| self.topics.forget_place(&room).map(|change| (room, change))).collect()
    }

    /// Whether a room is of another hub by the table, or anything of it is in memory or waits.
    fn is_used(&self, slot: u16, room: &[u8]) -> bool {
        let (class, hub) = self.topics.place(room);
        let is_elsewhere = !self.topics.is_unplaced(room) && self.rooms.hubs.find(class, hub) != Some(slot);
        let is_missed = self.relay.as_ref().is_some_and(|relay| relay.misses.rooms.contains_key(room));
        is_elsewhere || is_missed || self.topics.is_leaving(room) || self.rooms.find(room).is_some()
    }
}
