//! Links of other nodes: what begins when one is up, and what is lost when it ends.

use super::{Broker, Turn};
use crate::relay::{InFlight, Leader, Relay};
use crate::{Now, Sink};
use hubsub_types::{NodeId, ShardId};

impl Broker {
    /// A link of a node is up, one of `links`. Nodes beyond the limit are not known: nothing is sent to them.
    pub fn node_up(&mut self, node: NodeId, link: u16, links: u16, now: Now, sink: &mut impl Sink) {
        if self.relay.is_alone || !self.relay.peers.up(node, link, links) {
            return;
        }
        if link == 0 && self.shard == ShardId(0) {
            self.send_patterns(node, sink);
        }
        let slots = self.slots_by(node, link);
        slots.iter().for_each(|&slot| self.watch(slot, node, sink));
        for slot in slots {
            if self.relay.hub(slot).leader == Leader::Node(node) {
                self.reach_leader(slot, &mut Turn { now, sink });
                self.update_reach(slot, sink);
            }
        }
    }

    /// A link has ended: requests in flight on it are lost, and the node's interest over it is removed.
    pub fn node_down(&mut self, node: NodeId, link: u16, now: Now, sink: &mut impl Sink) {
        let turn = &mut Turn { now, sink };
        let slots = self.slots_by(node, link);
        for &slot in &slots {
            self.forget_requests(node, slot);
        }
        self.relay.peers.down(node, link);
        let of_link = |in_flight: &InFlight| in_flight.to == node && slots.contains(&in_flight.slot);
        for ask in self.relay.requests_where(of_link) {
            self.lose(ask, turn.sink);
        }
        self.forget_missing(node, link);
        if link == 0 {
            self.suspect_rooms(node);
        }
        if link == 0 && self.shard == ShardId(0) {
            self.settled_without(node, turn.sink);
            self.lose_patterns(node, turn.sink);
        }
        for slot in slots {
            if self.relay.hub(slot).leader == Leader::Node(node) {
                self.unconfirm(slot);
                self.relay.hub_mut(slot).handover.is_unbroken = false;
            }
            self.apply_due_routes(slot, turn);
            // Requests to a former leader are sent to the next one.
            self.read_waiting(slot, turn);
            self.push_queue(slot, turn);
            self.update_reach(slot, turn.sink);
        }
    }

    /// A node temporarily does not hold this node's patterns: rooms that it leads are suspect.
    pub(crate) fn suspect_rooms(&mut self, node: NodeId) {
        let Broker { relay, rooms, .. } = self;
        for (slot, hub) in (0u16..).zip(&relay.hubs) {
            if hub.leader == Leader::Node(node) {
                let known = rooms.of_hub(slot).into_iter().filter(|&room| rooms.position(room).epoch.0 != 0);
                relay.holes.suspects.extend(known);
            }
        }
    }

    pub(crate) fn forget_requests(&mut self, node: NodeId, slot: u16) {
        let shards = self.shards;
        let Broker { relay, rooms, .. } = self;
        let Relay { hubs, early, peers, due, .. } = relay;
        hubs[usize::from(slot)].watchers.end(node);
        hubs[usize::from(slot)].early.retain(|waiting| {
            let stays = waiting.from != node;
            if !stays {
                early.remove(waiting.message.weight());
            }
            stays
        });
        if let (Some(holder), Some(place)) = (peers.holder(node, shards), peers.place(node)) {
            for room in rooms.of_hub(slot) {
                if let Some(of_room) = due.get_mut(&room) {
                    of_room.retain(|(other, _)| usize::from(*other) != place);
                }
                rooms.forget_holder(room, holder);
            }
        }
    }

    /// Slots of hubs of this shard that use a link of a node.
    fn slots_by(&self, node: NodeId, link: u16) -> Vec<u16> {
        let hubs = (0u16..).zip(&self.relay.hubs);
        hubs.filter(|(_, hub)| self.relay.peers.uses(node, hub.id, link)).map(|(slot, _)| slot).collect()
    }
}
