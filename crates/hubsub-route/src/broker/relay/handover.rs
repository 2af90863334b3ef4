//! Passes the leadership of a hub from one node to another without loss (docs/protocol/interest.md): the
//! former leader sends `LeadershipEnded` after its last record, followers continue when they have received it,
//! and a new leader commits nothing before the nodes that it reaches have registered their interest.

use super::{Broker, Turn};
use crate::relay::{
    EARLY_BYTES_MAX, EARLY_MAX, Early, InterestWait, Leader, OVER_MS, REGISTER_MS, ROUTES_MAX,
};
use crate::rooms::RoomHandle;
use crate::{Now, Sink};
use hubsub_message::{LeadershipEnd, NodeMessage};
use hubsub_types::{HubId, NodeId, Term};

impl Broker {
    // -- the former leader --

    /// This process has given up its leader lease of a hub, in a term that its route may still name.
    pub fn gave_up(&mut self, hub: HubId, term: Term, sink: &mut impl Sink) {
        let Some(slot) = self.relay.slot_of(hub) else { return };
        let state = self.relay.hub(slot);
        if (state.term, state.leader) == (term, Leader::Me) && !state.serves {
            self.send_over(slot, term, sink);
        }
    }

    /// This process has the leader lease of a hub. If it gave it up in the same term before, rooms begin new
    /// epochs: other nodes were notified that the previous ones are complete.
    pub fn took_up(&mut self, hub: HubId, term: Term, now: Now, sink: &mut impl Sink) {
        let Some(slot) = self.relay.slot_of(hub) else { return };
        let state = self.relay.hub_mut(slot);
        let sent_over = Some((state.watchers.life, term));
        if (state.term, state.leader) == (term, Leader::Me) && state.handover.sent_over == sent_over {
            self.begin_new_epoch(slot, &mut Turn { now, sink });
            self.watch_new_epoch(slot, sink);
        }
    }

    /// Notifies other nodes, once, that a term commits nothing more; not while records wait for a log.
    pub(crate) fn send_over(&mut self, slot: u16, term: Term, sink: &mut impl Sink) {
        let waits = self.rooms.hubs.get(slot).log.as_ref().is_some_and(|log| log.pending() > 0);
        let state = self.relay.hub_mut(slot);
        let (hub, life) = (state.id, state.watchers.life);
        state.watched.ends_own(term);
        if waits || state.handover.sent_over.replace((life, term)) == Some((life, term)) {
            return;
        }
        let nodes: Vec<NodeId> = self.relay.peers.reached(hub).collect();
        for node in nodes {
            let watchers = &self.relay.hub(slot).watchers;
            let (expected, committed) = (watchers.due(node), watchers.commits());
            let end = LeadershipEnd { epoch: life, expected, committed };
            self.relay.peers.send(node, hub, NodeMessage::LeadershipEnded { hub, term, end }, sink);
        }
    }

    // -- the new leader --

    pub(crate) fn wait_for_interest(&mut self, slot: u16, now: Now) {
        let until_ms = now.mono_ms + REGISTER_MS;
        self.relay.wake_by(until_ms);
        self.relay.hub_mut(slot).handover.interest_wait = Some(InterestWait::new(until_ms));
        self.relay.settle(slot);
    }

    /// Stops waiting if all responsive nodes have registered and their patterns are here, or in time.
    pub(crate) fn check_synced(&mut self, slot: u16, now: Now, sink: &impl Sink) {
        let relay = &mut self.relay;
        let hub = relay.hub(slot);
        let Some(InterestWait { until_ms, registered }) = &hub.handover.interest_wait else { return };
        let is_there = |node: NodeId| {
            let has_all = registered.contains(&node) && relay.holding.contains_key(&node);
            has_all || sink.node_is_silent(node, hub.id)
        };
        if hub.leader != Leader::Me || *until_ms <= now.mono_ms || relay.peers.reached(hub.id).all(is_there) {
            relay.hub_mut(slot).handover.interest_wait = None;
            relay.settle(slot);
        }
    }

    pub(crate) fn interest_synced(&mut self, slot: u16, from: NodeId, turn: &mut Turn<impl Sink>) {
        if let Some(interest_wait) = &mut self.relay.hub_mut(slot).handover.interest_wait {
            interest_wait.registered.insert(from);
        }
        // An earlier message about patterns may have reached a node that did not know the hub yet.
        self.watch(slot, from, turn.sink);
        self.push_queue(slot, turn);
    }

    // -- the follower's side --

    /// Queues a route unless its term is earlier. It waits for earlier ones, and for `LeadershipEnded`.
    pub(crate) fn take_route(&mut self, slot: u16, route: (Term, Leader), turn: &mut Turn<impl Sink>) {
        let hub = self.relay.hub_mut(slot);
        let last = hub.handover.routes.back().copied().unwrap_or((hub.term, hub.leader));
        if route.0 < last.0 || route == last {
            return;
        }
        if hub.handover.routes.is_empty() {
            hub.handover.routes_until_ms = turn.now.mono_ms + OVER_MS;
        }
        hub.handover.routes.push_back(route);
        self.apply_due_routes(slot, turn);
    }

    /// Applies routes that need not wait any more. Those of a hub with a log never do: records are read.
    pub(crate) fn apply_due_routes(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        let class = self.relay.hub(slot).class;
        let is_logged = self.classes.get(class).durability.is_logged();
        loop {
            let hub = self.relay.hub(slot);
            let Some(&route) = hub.handover.routes.front() else { return };
            let waits = !is_logged
                && matches!(hub.leader, Leader::Node(former) if self.relay.peers.reaches(former, hub.id)
                && !turn.sink.node_is_silent(former, hub.id)
                && !hub.watched.is_over(hub.term));
            let until_ms = hub.handover.routes_until_ms;
            if waits && turn.now.mono_ms < until_ms && hub.handover.routes.len() <= ROUTES_MAX {
                return self.relay.wake_by(until_ms);
            }
            let handover = &mut self.relay.hub_mut(slot).handover;
            handover.routes.pop_front();
            handover.routes_until_ms = turn.now.mono_ms + OVER_MS;
            self.apply_route(slot, route, turn);
        }
    }

    /// Whether the leader has confirmed all interest that ever was, and no room of the hub has a hole.
    pub(crate) fn is_confirmed(&self, slot: u16) -> bool {
        let is_open = self.relay.holes.rooms.keys().any(|&room| self.rooms.slot_of_room(room) == Some(slot));
        let mut topics = self.relay.upstreams.by_topic.values().filter(|up| up.slot == slot);
        !is_open && topics.all(|up| up.is_confirmed || !up.was_confirmed)
    }

    /// Whether a room lacks nothing that its leader committed before this term or since: it is in the same
    /// epoch, and the leader has kept the interest that was registered before.
    pub(crate) fn lacks_nothing(&self, room: RoomHandle) -> bool {
        let slot = self.rooms.slot_of_room(room).filter(|_| self.rooms.is_over(room));
        let hub = slot.map(|slot| self.relay.hub(slot));
        hub.is_some_and(|hub| hub.handover.is_unbroken)
    }

    /// A term's leadership is over: notes whether the hub's rooms ended without missing records here.
    pub(crate) fn note_epoch_ends(&mut self, slot: u16, ended: Term) {
        let hub = self.relay.hub_mut(slot);
        let is_next = hub.term.0 <= ended.0 + 1;
        let is_over = is_next && hub.watched.has_all_of(ended);
        if is_over || (hub.term > ended && hub.handover.has_over) {
            hub.handover.has_over = is_over;
            for room in self.rooms.of_hub(slot) {
                self.rooms.set_over(room, is_over);
            }
        }
    }

    /// Notifies the leader that all interest in a hub's rooms is registered; sent after that interest.
    pub(crate) fn send_synced(&mut self, slot: u16, sink: &mut impl Sink) {
        if let Some(to) = self.relay.leader_of(slot) {
            let (hub, term) = (self.relay.hub(slot).id, self.relay.hub(slot).term);
            self.relay.peers.send(to, hub, NodeMessage::InterestSynced { hub, term }, sink);
        }
    }

    // -- terms that are not known here yet --

    /// Buffers a message of such a term; returns it if the buffer is full.
    pub(crate) fn buffer_early(
        &mut self,
        slot: u16,
        from: NodeId,
        message: NodeMessage,
        now: Now,
    ) -> Option<NodeMessage> {
        let relay = &mut self.relay;
        let weight = message.weight();
        if relay.early.is_full(weight, (EARLY_MAX, EARLY_BYTES_MAX)) {
            return Some(message);
        }
        relay.early.add(weight);
        relay.wake_by(now.mono_ms + relay.limits.parked_ms);
        relay.hub_mut(slot).early.push_back(Early { from, since_ms: now.mono_ms, message });
        None
    }

    /// Refuses buffered messages of nodes whose term did not become known in time.
    pub(crate) fn expire_early(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        let parked_ms = self.relay.limits.parked_ms;
        while let Some(first) = self.relay.hubs[usize::from(slot)].early.front() {
            let due_ms = first.since_ms + parked_ms;
            if due_ms > turn.now.mono_ms {
                return self.relay.wake_by(due_ms);
            }
            if let Some(Early { from, message, .. }) = self.relay.hubs[usize::from(slot)].early.pop_front() {
                self.relay.early.remove(message.weight());
                self.relay.refuse(from, slot, &message, turn.sink);
                self.lack_if(slot, message.is_of_leader());
            }
        }
    }
}
