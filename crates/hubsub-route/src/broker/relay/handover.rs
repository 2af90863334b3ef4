//! How a hub's lead passes from one node to another without a loss (docs/protocol/interest.md): a new leader commits
//! nothing before the nodes that it reaches have registered their interest with it.

use super::{Admit, Broker};
use crate::relay::handover::Gathers;
use crate::relay::limits::REGISTER_MS;
use crate::relay::{Leader, NodeMessage};
use crate::{Now, Sink};
use hubsub_types::{HubId, NodeId, Term};

impl Broker {
    // -- the new leader --

    /// A hub is led here from now on: what is published in it waits for other nodes' interest.
    pub(super) fn gather(&mut self, slot: u16, now: Now) {
        let until_ms = now.mono_ms + REGISTER_MS;
        let relay = self.relay();
        relay.wake_by(until_ms);
        relay.hub_mut(slot).handover.gathers = Some(Gathers::new(until_ms));
        relay.settle(slot);
    }

    /// Waits no more if all nodes that are reached have registered and have their patterns held here, or if it has
    /// waited long enough.
    pub(super) fn see_gathered(&mut self, slot: u16, now: Now) {
        let Some(relay) = &mut self.relay else { return };
        let hub = relay.hub(slot);
        let Some(Gathers { until_ms, registered }) = &hub.handover.gathers else { return };
        let is_there = |node: NodeId| registered.contains(&node) && relay.holding.contains_key(&node);
        if hub.leader != Leader::Me || *until_ms <= now.mono_ms || relay.peers.reached(hub.id).all(is_there) {
            relay.hub_mut(slot).handover.gathers = None;
            relay.settle(slot);
        }
    }

    /// A node has told all its interest in a hub's rooms.
    pub(super) fn registered(
        &mut self,
        from: NodeId,
        (hub, term): (HubId, Term),
        now: Now,
        sink: &mut impl Sink,
    ) {
        let relay = self.relay();
        let Some(slot) = relay.slot_of(hub) else { return };
        match relay.admit(slot, term) {
            Admit::No => {}
            // Where there is no place for it, its time is waited for.
            Admit::Early => _ = self.keep_early(slot, from, NodeMessage::Registered { hub, term }, now),
            Admit::Mine => {
                if let Some(gathers) = &mut relay.hub_mut(slot).handover.gathers {
                    gathers.registered.insert(from);
                    self.push_queue(slot, now, sink);
                }
            }
        }
    }

    // -- who follows --

    /// All interest in a hub's rooms is told to its leader: that is said behind it.
    pub(super) fn tell_registered(&mut self, slot: u16, sink: &mut impl Sink) {
        let relay = self.relay();
        if let Some(to) = relay.leader_of(slot) {
            let (hub, term) = (relay.hub(slot).id, relay.hub(slot).term);
            relay.peers.send(to, hub, NodeMessage::Registered { hub, term }, sink);
        }
    }
}
