//! Routes: when a hub's leader changes, the hub's home begins to lead, ceases to lead, or follows another
//! node.

use super::Broker;
use crate::relay::Leader;
use crate::relay::state::{Early, InFlight, Request};
use crate::rooms::{RoomHandle, TopicKey};
use crate::{Asker, Now, Sink};
use hubsub_types::{HubId, Position, Term};

impl Broker {
    /// A hub has this leader in this term; a route of an earlier term is ignored. A hub with a log must be
    /// open (`rooms.add_hub`) before this node leads it.
    pub fn route(&mut self, hub: HubId, term: Term, leader: Leader, now: Now, sink: &mut impl Sink) {
        if let Some(slot) = self.relay.slot_of(hub) {
            self.take_route(slot, (term, leader), now, sink);
        }
    }

    /// Applies a new route.
    pub(super) fn apply_route(
        &mut self,
        slot: u16,
        (term, leader): (Term, Leader),
        now: Now,
        sink: &mut impl Sink,
    ) {
        let state = self.relay.hub(slot);
        let (before, ended, class) = (state.leader, state.term, state.class);
        // Another node may have led in a skipped term without this node's knowledge: the state here may be
        // outdated.
        let is_logged = self.classes.get(class).durability.is_logged();
        let skips = !is_logged && term.0 > ended.0 + 1;
        let (ceases, begins) = match (before == Leader::Me, leader == Leader::Me) {
            (true, true) => (skips, skips),
            changes => changes,
        };
        if before == Leader::Me {
            self.send_over(slot, ended, sink);
        }
        let state = self.relay.hub_mut(slot);
        (state.term, state.leader, state.retry_ms) = (term, leader, u64::MAX);
        state.handover.is_unbroken = true;
        state.watched.routed(term);
        self.count_former(slot, now);
        self.lose_silent_former(slot, sink);
        if ceases {
            self.cease_to_lead(slot, now, sink);
        }
        if !is_logged {
            self.note_epoch_ends(slot, ended);
        }
        if begins {
            self.begin_to_lead(slot, now, sink);
        }
        if leader == Leader::Me {
            self.wait_for_interest(slot, now);
            self.watch_hub(slot, begins, sink);
        } else {
            self.reach_leader(slot, now, sink);
        }
        self.push_queue(slot, now, sink);
        self.update_reach(slot, sink);
        let state = self.relay.hub_mut(slot);
        let early = std::mem::take(&mut state.early);
        for Early { from, message, .. } in early {
            let relay = &mut self.relay;
            relay.early.remove(message.weight());
            self.node_message(from, message, now, sink);
        }
    }

    /// Whether this node acts as leader without a leader lease of a hub that its route assigns to it: for its
    /// side of a split network. The hub's rooms begin new epochs when this starts and when it ends.
    pub fn serve_alone(&mut self, hub: HubId, serves: bool, now: Now, sink: &mut impl Sink) {
        let relay = &mut self.relay;
        let Some(slot) = relay.slot_of(hub) else { return };
        let state = relay.hub_mut(slot);
        if std::mem::replace(&mut state.serves, serves) == serves || state.leader != Leader::Me {
            return;
        }
        self.begin_new_epoch(slot, now, sink);
        self.watch_new_epoch(slot, sink);
        self.push_queue(slot, now, sink);
    }

    /// The rooms of a hub that this node leads begin new epochs. Interest is unchanged; other nodes learn of
    /// it with the next record.
    pub(super) fn begin_new_epoch(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        for room in self.rooms.of_hub(slot) {
            self.relay.due.remove(&room);
            let topics = self.rooms.topics_of(room);
            let name = self.rooms.get(room).map(|it| (crate::Namespace::Global, it.name.clone()));
            let before = self.rooms.begin_new_epoch(room, now);
            // A room without topics was followed by patterns.
            let told = if topics.is_empty() { name.into_iter().collect() } else { topics };
            for key in told.iter().filter(|_| before.epoch.0 != 0) {
                self.report_epoch_end(key, before, sink);
            }
        }
    }

    /// This node begins to lead a hub: known interest becomes the table of its rooms, and a room begins a new
    /// epoch if the log does not contain the previous one.
    fn begin_to_lead(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        self.rooms.hubs.get_mut(slot).is_relayed = false;
        self.rooms.forget_past_of(slot);
        self.lack_of_hub(slot, self.rooms.committed_of(slot), sink);
        let rooms = self.rooms.of_hub(slot);
        self.drop_requests(slot, sink);
        for room in rooms {
            self.drop_resume(room);
            self.relay.holes.suspects.remove(&room);
            let topics = self.rooms.topics_of(room);
            let recall = |hub, name: &[u8]| sink.recall(hub, name);
            let is_over = self.rooms.is_over(room);
            let stays = !topics.is_empty() || self.rooms.is_ahead(room, &recall);
            let (before, after) = self.rooms.begin_lead(room, now, recall);
            if before.epoch.0 != 0 && before.epoch != after.epoch && !is_over {
                self.report_room_epoch_end(room, &topics, before, sink);
            }
            if !stays {
                self.rooms.forget_relayed(room);
            }
        }
        let relay = &mut self.relay;
        relay.due.retain(|_, of_room| !of_room.is_empty());
        for key in relay.upstreams.of_hub(slot) {
            let up = self.relay.upstreams.remove(&key);
            for waiting in up.into_iter().flat_map(|up| up.waiting) {
                self.attach_counted(waiting, now, sink);
            }
        }
        self.read_waiting(slot, now, sink);
    }

    /// The epoch of a room ended after the record `last`: reports that to subscribers of these topics, or, if
    /// there are none, to followers by pattern.
    fn report_room_epoch_end(
        &mut self,
        room: RoomHandle,
        topics: &[TopicKey],
        last: Position,
        sink: &mut impl Sink,
    ) {
        topics.iter().for_each(|key| self.report_epoch_end(key, last, sink));
        if let Some(name) = self.rooms.get(room).map(|it| it.name.clone()).filter(|_| topics.is_empty()) {
            self.report_epoch_end(&(crate::Namespace::Global, name), last, sink);
        }
    }

    /// Gives up requests to a former leader, except publishes.
    fn drop_requests(&mut self, slot: u16, sink: &mut impl Sink) {
        let is_meant = |it: &InFlight| it.slot == slot && !matches!(it.what, Request::Publish(_));
        for ask in self.relay.requests_where(is_meant) {
            if let Some(in_flight) = self.relay.take(ask) {
                self.lost(ask, slot, in_flight.what, sink);
            }
        }
    }

    /// Another node leads the hub now: known interest on this node becomes the relay's, and uncommitted
    /// publishes go to the new leader.
    fn cease_to_lead(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        self.rooms.hubs.get_mut(slot).is_relayed = true;
        self.relay.hub_mut(slot).has_seen_own();
        self.rooms.forget_rows(slot);
        for room in self.rooms.of_hub(slot) {
            self.relay.due.remove(&room);
            self.rooms.end_lead(room, |hub, name: &[u8]| sink.recall(hub, name));
            for key in self.rooms.topics_of(room) {
                self.add_upstream(slot, room, key, true);
            }
        }
        self.queue_stalled(slot, now, sink);
        // Nodes with waiting requests look up the leader again: all their requests are refused, so that their
        // order is kept.
        for parked in self.relay.unpark_all(slot, |parked| parked.ticket.is_of_node()) {
            if let Asker::Node { node, ask, .. } = parked.ticket.asker {
                self.relay.not_mine(node, ask, slot, sink);
            }
        }
    }

    /// A leader or its link is there, or the leader is to be asked again: registers all interest again, with
    /// the known positions, and continues waiting requests.
    pub(super) fn reach_leader(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        self.relay.hub_mut(slot).retry_ms = u64::MAX;
        if self.relay.leader_of(slot).is_none() {
            return self.unconfirm(slot);
        }
        self.register(slot, now, sink);
        self.send_synced(slot, sink);
        self.push_queue(slot, now, sink);
        self.read_waiting(slot, now, sink);
    }
}
