//! Who leads a hub: a route comes, and the hub's home begins to lead, ceases to, or follows
//! another.

use super::Broker;
use crate::relay::state::{Asked, Early};
use crate::relay::{AskId, Leader};
use crate::rooms::{RoomHandle, TopicKey};
use crate::{Asker, Now, Sink};
use hubsub_types::{HubId, Position, Seq, Term};

impl Broker {
    /// A hub has this leader in this term; a route of an earlier term is passed over. A hub with a
    /// log must be open (`rooms.add_hub`) before this node leads it.
    pub fn route(&mut self, hub: HubId, term: Term, leader: Leader, now: Now, sink: &mut impl Sink) {
        if let Some(slot) = self.relay.as_ref().and_then(|relay| relay.slot_of(hub)) {
            self.take_route(slot, (term, leader), now, sink);
        }
    }

    /// Acts by a route that is news.
    pub(super) fn apply_route(
        &mut self,
        slot: u16,
        (term, leader): (Term, Leader),
        now: Now,
        sink: &mut impl Sink,
    ) {
        let state = self.relay().hub(slot);
        let (before, ended, class) = (state.leader, state.term, state.class);
        // Another may have led in a term between, of which this node has not heard: what it knows may be old.
        let is_logged = self.classes.get(class).durability.is_logged();
        let skips = !is_logged && term.0 > ended.0 + 1;
        let (ceases, begins) = match (before == Leader::Me, leader == Leader::Me) {
            (true, true) => (skips, skips),
            changes => changes,
        };
        if before == Leader::Me {
            self.say_over(slot, ended, sink);
        }
        let state = self.relay().hub_mut(slot);
        (state.term, state.leader, state.retry_ms) = (term, leader, u64::MAX);
        state.handover.is_unbroken = true;
        state.watched.routed(term);
        self.count_former(slot, now);
        self.lose_silent_former(slot, sink);
        if ceases {
            self.cease_to_lead(slot, now, sink);
        }
        if !is_logged {
            self.see_over(slot, ended);
        }
        if begins {
            self.begin_to_lead(slot, now, sink);
        }
        if leader == Leader::Me {
            self.gather(slot, now);
            self.watch_hub(slot, begins, sink);
        } else {
            self.reach_leader(slot, now, sink);
        }
        self.push_queue(slot, now, sink);
        self.see_reach(slot, sink);
        let state = self.relay().hub_mut(slot);
        let early = std::mem::take(&mut state.early);
        for Early { from, message, .. } in early {
            let relay = self.relay();
            relay.early = (relay.early.0 - 1, relay.early.1 - message.weight());
            self.node_message(from, message, now, sink);
        }
    }

    /// Whether this node, without a lead, acts as leader of a hub that its route gives it: for its side of a
    /// network that is split. Rooms have lives of their own as long as it does, and others again afterwards.
    pub fn serve_alone(&mut self, hub: HubId, serves: bool, now: Now, sink: &mut impl Sink) {
        let Some(relay) = &mut self.relay else { return };
        let Some(slot) = relay.slot_of(hub) else { return };
        let state = relay.hub_mut(slot);
        if std::mem::replace(&mut state.serves, serves) == serves || state.leader != Leader::Me {
            return;
        }
        self.begin_anew(slot, now, sink);
        self.watch_anew(slot, sink);
        self.push_queue(slot, now, sink);
    }

    /// The rooms of a hub that this node leads begin other lives. Who is interested stays so; other nodes hear of
    /// it with the next record.
    pub(super) fn begin_anew(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        for room in self.rooms.of_hub(slot) {
            self.relay().due.remove(&room);
            let topics = self.rooms.topics_of(room);
            let name = self.rooms.get(room).map(|it| (crate::Namespace::Global, it.name.clone()));
            let before = self.rooms.begin_anew(room, now);
            // Where there are none, patterns followed it.
            let told = if topics.is_empty() { name.into_iter().collect() } else { topics };
            for key in told.iter().filter(|_| before.epoch.0 != 0) {
                self.tell_over(key, before, sink);
            }
        }
    }

    /// The rooms of a hub are this node's: what is known of interest is their table, and another
    /// life begins where the log does not know the one before.
    fn begin_to_lead(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        self.rooms.hubs.get_mut(slot).is_relayed = false;
        self.rooms.forget_past_of(slot);
        self.lack_of_hub(slot, self.rooms.committed_of(slot), sink);
        let rooms = self.rooms.of_hub(slot);
        self.drop_requests(slot, sink);
        for room in rooms {
            self.drop_resume(room);
            self.relay().suspects.remove(&room);
            let topics = self.rooms.topics_of(room);
            let recall = |hub, name: &[u8]| sink.recall(hub, name);
            let is_over = self.rooms.is_over(room);
            let stays = !topics.is_empty() || self.rooms.is_ahead(room, &recall);
            let (before, after) = self.rooms.begin_life(room, now, recall);
            if before.epoch.0 != 0 && before.epoch != after.epoch && !is_over {
                self.tell_life_over(room, &topics, before, sink);
            }
            if !stays {
                self.rooms.forget_relayed(room);
            }
        }
        let relay = self.relay();
        relay.due.retain(|_, of_room| !of_room.is_empty());
        let keys: Vec<_> =
            relay.upstreams.iter().filter(|(_, up)| up.slot == slot).map(|(key, _)| key.clone()).collect();
        for key in keys {
            let relay = self.relay();
            let Some(up) = relay.upstreams.remove(&key) else { continue };
            relay.attaches -= up.waiting.len();
            for waiting in up.waiting {
                self.attach_counted(waiting, now, sink);
            }
        }
        self.read_waiting(slot, now, sink);
    }

    /// The life of a room is over, behind that record: who subscribes to these topics is told, and where there is
    /// none, who followed it by patterns.
    fn tell_life_over(
        &mut self,
        room: RoomHandle,
        topics: &[TopicKey],
        last: Position,
        sink: &mut impl Sink,
    ) {
        topics.iter().for_each(|key| self.tell_over(key, last, sink));
        if let Some(name) = self.rooms.get(room).map(|it| it.name.clone()).filter(|_| topics.is_empty()) {
            self.tell_over(&(crate::Namespace::Global, name), last, sink);
        }
    }

    /// Requests to a leader that is none any more are not awaited, but for publishes.
    fn drop_requests(&mut self, slot: u16, sink: &mut impl Sink) {
        let relay = self.relay();
        let is_meant = |what: &Asked| !matches!(what, Asked::Publish(_));
        let asks =
            relay.asks.iter().filter(|(_, under_way)| under_way.slot == slot && is_meant(&under_way.what));
        let asks: Vec<AskId> = asks.map(|(&ask, _)| ask).collect();
        for ask in asks {
            if let Some(under_way) = self.relay().take(ask) {
                self.lost(ask, slot, under_way.what, sink);
            }
        }
    }

    /// The rooms of a hub are another's: what is known of interest on this node is the relay's, and
    /// what waited to be committed goes where the route leads.
    fn cease_to_lead(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        self.rooms.hubs.get_mut(slot).is_relayed = true;
        self.relay().hub_mut(slot).has_seen_own();
        self.rooms.forget_rows(slot);
        for room in self.rooms.of_hub(slot) {
            self.relay().due.remove(&room);
            self.rooms.end_lead(room, |hub, name: &[u8]| sink.recall(hub, name));
            for key in self.rooms.topics_of(room) {
                self.follow_topic(slot, room, key, true);
            }
        }
        self.queue_stalled(slot, now, sink);
        // Who asked from another node looks again who leads: all that it sent, so that it keeps its order.
        let relay = self.relay();
        let mut waiting = Vec::new();
        while let Some(parked) = relay.unpark(slot) {
            match parked.ticket.asker {
                Asker::Node { node, ask, .. } => relay.not_mine(node, ask, slot, sink),
                _ => waiting.push(parked),
            }
        }
        waiting.into_iter().for_each(|parked| relay.park(slot, parked));
    }

    /// A leader is there, or its link is, or it is to be asked again: all interest is registered
    /// anew, with the positions that it has, and what waits goes on.
    pub(super) fn reach_leader(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        self.relay().hub_mut(slot).retry_ms = u64::MAX;
        if self.relay().leader_of(slot).is_none() {
            return self.unconfirm(slot);
        }
        self.register(slot, now, sink);
        self.tell_registered(slot, sink);
        self.push_queue(slot, now, sink);
        self.read_waiting(slot, now, sink);
    }
}

impl crate::relay::state::Relay {
    /// What was due to the node of a place before a record, which is due now. Where nobody
    /// remembers, everything was.
    pub(super) fn was_due(&mut self, room: RoomHandle, place: u16, seq: Seq) -> Seq {
        let of_room = self.due.entry(room).or_default();
        match of_room.iter_mut().find(|(other, _)| *other == place) {
            Some((_, last)) => std::mem::replace(last, seq),
            None => {
                of_room.push((place, seq));
                Seq(seq.0 - 1)
            }
        }
    }

    /// Everything up to a position was due to a node.
    pub(super) fn set_due(&mut self, room: RoomHandle, place: u16, position: Position) {
        self.was_due(room, place, Seq(position.seq.0.max(1)));
        if let Some((_, last)) =
            self.due.get_mut(&room).and_then(|of_room| of_room.iter_mut().find(|(other, _)| *other == place))
        {
            *last = position.seq;
        }
    }
}
