//! Routes: when a hub's leader changes, the hub's home begins to lead, ceases to lead, or follows another
//! node.

use super::{Broker, Turn};
use crate::relay::{Early, InFlight, Leader, Request};
use crate::rooms::{RoomHandle, TopicKey};
use crate::{Asker, Now, Sink};
use hubsub_types::{HubId, Position, Term};

impl Broker {
    /// A hub has this leader in this term; a route of an earlier term is ignored. A hub with a log must be
    /// open (`rooms.add_hub`) before this node leads it.
    pub fn route(&mut self, hub: HubId, term: Term, leader: Leader, now: Now, sink: &mut impl Sink) {
        if let Some(slot) = self.relay.slot_of(hub) {
            self.take_route(slot, (term, leader), &mut Turn { now, sink });
        }
    }

    pub(crate) fn apply_route(
        &mut self,
        slot: u16,
        (term, leader): (Term, Leader),
        turn: &mut Turn<impl Sink>,
    ) {
        let state = self.relay.hub(slot);
        let (before, ended, class) = (state.leader, state.term, state.class);
        // Another node may have led in a skipped term: the state here may be outdated.
        let is_logged = self.classes.get(class).durability.is_logged();
        let skips = !is_logged && term.0 > ended.0 + 1;
        let (ceases, begins) = match (before == Leader::Me, leader == Leader::Me) {
            (true, true) => (skips, skips),
            changes => changes,
        };
        if before == Leader::Me {
            self.send_over(slot, ended, turn.sink);
        }
        let state = self.relay.hub_mut(slot);
        (state.term, state.leader, state.retry_ms) = (term, leader, u64::MAX);
        state.handover.is_unbroken = true;
        state.watched.routed(term);
        self.count_former(slot, turn.now);
        self.lose_silent_former(slot, turn.sink);
        if ceases {
            self.cease_to_lead(slot, turn);
        }
        if !is_logged {
            self.note_epoch_ends(slot, ended);
        }
        if begins {
            self.begin_to_lead(slot, turn);
        }
        if leader == Leader::Me {
            self.wait_for_interest(slot, turn.now);
            self.watch_hub(slot, begins, turn.sink);
        } else {
            self.reach_leader(slot, turn);
        }
        self.push_queue(slot, turn);
        self.update_reach(slot, turn.sink);
        let state = self.relay.hub_mut(slot);
        let early = std::mem::take(&mut state.early);
        for Early { from, message, .. } in early {
            self.relay.early.remove(message.weight());
            self.node_message(from, message, turn.now, turn.sink);
        }
    }

    /// Whether this node acts as leader without a leader lease of a hub that its route assigns to it: for its
    /// side of a split network. The hub's rooms begin new epochs when this starts and when it ends.
    pub fn serve_alone(&mut self, hub: HubId, serves: bool, now: Now, sink: &mut impl Sink) {
        let turn = &mut Turn { now, sink };
        let Some(slot) = self.relay.slot_of(hub) else { return };
        let state = self.relay.hub_mut(slot);
        if std::mem::replace(&mut state.serves, serves) == serves || state.leader != Leader::Me {
            return;
        }
        self.begin_new_epoch(slot, turn);
        self.watch_new_epoch(slot, turn.sink);
        self.push_queue(slot, turn);
    }

    /// The rooms of a hub that is led here begin new epochs; other nodes learn of it by the next record.
    pub(crate) fn begin_new_epoch(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        for room in self.rooms.of_hub(slot) {
            self.relay.due.remove(&room);
            let topics = self.rooms.topics_of(room);
            let before = self.rooms.begin_new_epoch(room, turn.now);
            if before.epoch.0 != 0 {
                self.report_room_epoch_end(room, &topics, before, turn.sink);
            }
        }
    }

    /// This node begins to lead a hub: known interest becomes the table of its rooms, and a room begins a new
    /// epoch if the log does not contain the previous one.
    fn begin_to_lead(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        self.rooms.hubs.get_mut(slot).is_relayed = false;
        self.rooms.forget_past_of(slot);
        self.lack_of_hub(slot, self.rooms.committed_of(slot), turn.sink);
        let rooms = self.rooms.of_hub(slot);
        self.drop_requests(slot, turn.sink);
        for room in rooms {
            self.drop_resume(room);
            self.relay.holes.suspects.remove(&room);
            let topics = self.rooms.topics_of(room);
            let recall = |hub, name: &[u8]| turn.sink.recall(hub, name);
            let is_over = self.rooms.is_over(room);
            let stays = !topics.is_empty() || self.rooms.is_ahead(room, &recall);
            let (before, after) = self.rooms.begin_lead(room, turn.now, recall);
            if before.epoch.0 != 0 && before.epoch != after.epoch && !is_over {
                self.report_room_epoch_end(room, &topics, before, turn.sink);
            }
            if !stays {
                self.rooms.forget_relayed(room);
            }
        }
        self.relay.due.retain(|_, of_room| !of_room.is_empty());
        for key in self.relay.upstreams.of_hub(slot) {
            let up = self.relay.upstreams.remove(&key);
            for waiting in up.into_iter().flat_map(|up| up.waiting) {
                self.attach_counted(waiting, turn);
            }
        }
        self.read_waiting(slot, turn);
    }

    /// As `report_epoch_end`, for these topics of a room, or else for followers by pattern.
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

    fn drop_requests(&mut self, slot: u16, sink: &mut impl Sink) {
        let is_meant = |it: &InFlight| it.slot == slot && !matches!(it.what, Request::Publish(_));
        for ask in self.relay.requests_where(is_meant) {
            if let Some(in_flight) = self.relay.take(ask) {
                self.lost(ask, slot, in_flight.what, sink);
            }
        }
    }

    /// Another node leads the hub now: interest here becomes the relay's, and publishes go there.
    fn cease_to_lead(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        self.rooms.hubs.get_mut(slot).is_relayed = true;
        self.relay.hub_mut(slot).has_seen_own();
        self.rooms.forget_rows(slot);
        for room in self.rooms.of_hub(slot) {
            self.relay.due.remove(&room);
            self.rooms.end_lead(room, |hub, name: &[u8]| turn.sink.recall(hub, name));
            for key in self.rooms.topics_of(room) {
                self.add_upstream(slot, room, key, true);
            }
        }
        self.queue_stalled(slot, turn);
        // Nodes look up the leader again: all their requests are refused, so that their order is kept.
        for parked in self.relay.unpark_all(slot, |parked| parked.ticket.is_of_node()) {
            if let Asker::Node { node, ask, .. } = parked.ticket.asker {
                self.relay.not_mine(node, ask, slot, turn.sink);
            }
        }
    }

    /// A leader or its link is there, or the leader is to be asked again: registers all interest again, with
    /// the known positions, and continues waiting requests.
    pub(crate) fn reach_leader(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        self.relay.hub_mut(slot).retry_ms = u64::MAX;
        if self.relay.leader_of(slot).is_none() {
            return self.unconfirm(slot);
        }
        self.register(slot, turn.sink);
        self.send_synced(slot, turn.sink);
        self.push_queue(slot, turn);
        self.read_waiting(slot, turn);
    }
}
