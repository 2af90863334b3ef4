//! Publishes of moved rooms (docs/protocol/moves.md): a home that the room has left returns waiting publishes
//! to their shards, once the requests of each shard to the leader are answered.
//!
//! Invariants: from the first returned publish of a shard on, all of its publishes are returned until the
//! shard has left; they keep their order, and none follows one that its shard has sent since.

use super::{Broker, Turn};
use crate::relay::{Leaver, Parked, Request};
use crate::topics::TopicId;
use crate::{Asker, Left, Msg, Sink, Ticket};
use hubsub_message::Record;
use hubsub_types::{ErrorCode, ShardId};
use std::collections::BTreeSet;
use std::sync::Arc;

impl Broker {
    /// Returns a room's waiting publishes to their shards, refuses those of nodes; returns the shards.
    pub(crate) fn requeue(
        &mut self,
        room: &Arc<[u8]>,
        of: Option<ShardId>,
        turn: &mut Turn<impl Sink>,
    ) -> Vec<ShardId> {
        let classes = Arc::clone(&self.classes);
        let is_meant = |ticket: &Ticket, record: &Record| {
            of.is_none_or(|of| !ticket.is_of_node() && ticket.shard == of)
                && *classes.room(record.topic()) == **room
        };
        let mut back = Vec::new();
        // In order of arrival: first those that a congested shard blocks, last those with a commit delay.
        let stalled = self.backlog.take_blocked(|(ticket, record)| is_meant(ticket, record));
        let are_stalled = !stalled.is_empty();
        for (ticket, record) in stalled {
            back.push((self.relay.number(), ticket, record));
        }
        // The room may have been in one hub of this shard, and then in another.
        let mut queued = Vec::new();
        for slot in 0..self.relay.hubs.len() as u16 {
            let is_meant = |parked: &Parked| is_meant(&parked.ticket, &parked.record);
            queued.extend(self.relay.unpark_all(slot, is_meant));
        }
        queued.sort_unstable_by_key(|parked| parked.number);
        for Parked { number, ticket, record, .. } in queued {
            // If earlier publishes were committed here, none of these was sent before.
            let number = if are_stalled { self.relay.number() } else { number };
            back.push((number, ticket, record));
        }
        let delayed = self.backlog.take_delayed(|(ticket, record)| is_meant(ticket, record));
        back.extend(delayed.into_iter().map(|(ticket, record)| (self.relay.number(), ticket, record)));
        let mut shards = Vec::new();
        for (number, ticket, record) in back {
            if let Asker::Node { node, ask, hub } = ticket.asker {
                // Over the link by which it arrived.
                if let Some(slot) = self.relay.slot_of(hub) {
                    self.relay.not_mine(node, ask, slot, turn.sink);
                }
                continue;
            }
            self.requeue_for_leaver(room, Parked { number, ticket, record, since_ms: turn.now.mono_ms });
            shards.push(ticket.shard);
        }
        shards.sort_unstable();
        shards.dedup();
        shards
    }

    fn requeue_for_leaver(&mut self, room: &Arc<[u8]>, parked: Parked) {
        self.relay.parked.add(parked.record.weight());
        self.relay.wake_by(parked.since_ms + self.relay.limits.parked_ms);
        let leaver = self.relay.moves.leavers.entry((Arc::clone(room), parked.ticket.shard)).or_default();
        leaver.back.insert(parked.number, parked);
    }

    /// Whether a shard has to leave the room of a publish: until it does, its publishes are returned.
    pub(crate) fn is_to_leave(&self, shard: ShardId, record: &Record) -> bool {
        let leavers = &self.relay.moves.leavers;
        !leavers.is_empty() && leavers.contains_key(&(Arc::from(&*self.classes.room(record.topic())), shard))
    }

    /// Keeps a shard's publish with an outdated revision; it is returned when the shard leaves.
    pub(crate) fn requeue_publish(
        &mut self,
        ticket: Ticket,
        record: Arc<Record>,
        turn: &mut Turn<impl Sink>,
    ) {
        if self.relay.is_full(record.weight()) {
            return self.answer_publish(ticket, Err(ErrorCode::LinkFull), turn.sink);
        }
        let room: Arc<[u8]> = self.room_of(record.topic());
        // Earlier publishes are returned before it.
        self.requeue_all(&room, turn);
        let number = self.relay.number();
        let is_known = self.relay.moves.leavers.contains_key(&(Arc::clone(&room), ticket.shard));
        self.requeue_for_leaver(&room, Parked { number, ticket, record, since_ms: turn.now.mono_ms });
        if !is_known {
            self.notify_moved(ticket.shard, &room, Vec::new(), turn);
        }
    }

    /// Returns all waiting publishes of a room that is elsewhere.
    pub(crate) fn requeue_all(&mut self, room: &Arc<[u8]>, turn: &mut Turn<impl Sink>) {
        for shard in self.requeue(room, None, turn) {
            self.notify_moved(shard, room, Vec::new(), turn);
        }
    }

    /// Returns publishes that wait for a hub whose room is elsewhere, before this shard is notified of it.
    pub(crate) fn requeue_moved(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        let class = self.relay.hub(slot).class;
        if !self.topics.moves(class) {
            return;
        }
        let classes = Arc::clone(&self.classes);
        let room_of = |parked: &Parked| Arc::from(&*classes.room(parked.record.topic()));
        let rooms: BTreeSet<Arc<[u8]>> = self.relay.hub(slot).queue.iter().map(room_of).collect();
        for room in rooms {
            if self.slot_of_name(&room) != Some(slot) {
                self.requeue_all(&room, turn);
            }
        }
    }

    /// Whether a topic's room is not led here, or is to be closed: nothing more is committed here.
    pub(crate) fn is_gone(&self, id: TopicId) -> bool {
        !self.relay.is_alone
            && (self.is_elsewhere(id) || !self.slot_of_topic(id).is_some_and(|slot| self.is_led(slot)))
    }

    /// Whether a topic's room has another home, or the table requires that it is closed here.
    pub(crate) fn is_elsewhere(&self, id: TopicId) -> bool {
        if !self.topics.moves(self.topics.get(id).class) {
            return self.slot_of_topic(id).is_none();
        }
        let name = self.classes.room(&self.topics.get(id).name);
        let (class, place) = self.topics.placed(&name);
        let slot = self.rooms.hubs.find(class, place.hub);
        let is_its =
            |room| (self.rooms.slot_of_room(room), self.rooms.revision(room)) == (slot, Some(place.revision));
        slot.is_none() || !self.rooms.find(&name).is_none_or(is_its)
    }

    /// A publish was to be committed here, and its room is elsewhere now.
    pub(crate) fn publish_elsewhere(
        &mut self,
        ticket: Ticket,
        record: Arc<Record>,
        turn: &mut Turn<impl Sink>,
    ) {
        let room: Arc<[u8]> = self.room_of(record.topic());
        if self.topics.moves(self.classes.class_of_room(&room)) {
            // After publishes that wait to be committed, before those that wait for these.
            self.backlog.block(ticket, record);
            self.rehome(&room, turn);
            self.requeue_all(&room, turn);
        } else {
            // The classes have changed since it arrived.
            self.lead_elsewhere(ticket, record, turn);
        }
    }

    /// A leader has refused a publish: it waits again here, or is returned when its shard leaves.
    pub(crate) fn park_again(&mut self, slot: u16, parked: Parked, turn: &mut Turn<impl Sink>) {
        let room: Arc<[u8]> = self.room_of(parked.record.topic());
        let (class, hub) = self.topics.place(&room);
        if self.relay.hub(slot).class != class {
            return self.lead_elsewhere(parked.ticket, parked.record, turn);
        }
        let shard = parked.ticket.shard;
        let is_known = self.relay.moves.leavers.contains_key(&(Arc::clone(&room), shard));
        if parked.ticket.is_of_node() || (!is_known && self.rooms.hubs.find(class, hub) == Some(slot)) {
            return self.relay.park(slot, parked);
        }
        self.requeue_for_leaver(&room, parked);
        if !is_known {
            self.notify_moved(shard, &room, Vec::new(), turn);
        }
    }

    /// A publish is or may be committed: refuses earlier ones of its shard and room, to keep the order.
    pub(crate) fn refuse_overtaken(&mut self, slot: u16, done: &Parked, sink: &mut impl Sink) {
        let class = self.relay.hub(slot).class;
        if self.classes.get(class).durability.is_logged() {
            // Rooms of these classes do not move.
            return;
        }
        let classes = Arc::clone(&self.classes);
        let room = classes.room(done.record.topic());
        let is_before = |parked: &Parked| {
            !parked.ticket.is_of_node()
                && parked.number < done.number
                && parked.ticket.shard == done.ticket.shard
        };
        let mut refused = Vec::new();
        if let Some(leaver) = self.relay.moves.leavers.get_mut(&(Arc::from(&*room), done.ticket.shard)) {
            let later = leaver.back.split_off(&done.number);
            refused.extend(std::mem::replace(&mut leaver.back, later).into_values());
        }
        self.relay.uncount(&refused);
        if self.relay.hub(slot).queue.front().is_some_and(|first| first.number < done.number) {
            let is_meant = |it: &Parked| is_before(it) && *classes.room(it.record.topic()) == *room;
            refused.extend(self.relay.unpark_all(slot, is_meant));
        }
        for parked in refused {
            self.answer_publish(parked.ticket, Err(ErrorCode::HubClosed), sink);
        }
    }

    pub(crate) fn leave_asked(&mut self, from: ShardId, room: &Arc<[u8]>, turn: &mut Turn<impl Sink>) {
        self.rehome(room, turn);
        self.requeue(room, Some(from), turn);
        let own = self.shard;
        self.relay.moves.leavers.entry((Arc::clone(room), from)).or_default().is_asked = true;
        if from == own {
            // The response for which it waits may be sent in this turn.
            self.relay.is_held_up = true;
        } else {
            self.settle_leavers(false, turn);
        }
    }

    /// Shards without requests in flight have left; this shard itself only if `with_own`, between other work.
    pub(crate) fn settle_leavers(&mut self, with_own: bool, turn: &mut Turn<impl Sink>) {
        if self.relay.moves.leavers.is_empty() {
            return;
        }
        let own = self.shard;
        let classes = Arc::clone(&self.classes);
        let relay = &mut self.relay;
        let waits = |room: &[u8], shard: ShardId| {
            let is_of = |what: &Request| {
                matches!(what, Request::Publish(parked)
                    if parked.ticket.shard == shard && *classes.room(parked.record.topic()) == *room)
            };
            relay.requests.values().any(|in_flight| is_of(&in_flight.what))
        };
        let may = |((room, shard), leaver): &(&(Arc<[u8]>, ShardId), &Leaver)| {
            leaver.is_asked && (with_own || *shard != own) && !waits(room, *shard)
        };
        let done: Vec<_> = relay.moves.leavers.iter().filter(may).map(|(key, _)| key.clone()).collect();
        for key in done {
            let Some(leaver) = self.relay.moves.leavers.remove(&key) else { continue };
            leaver.back.values().for_each(|parked| self.relay.parked.remove(parked.record.weight()));
            let (room, shard) = key;
            self.pass(shard, Msg::Left(Box::new(Left { room, back: leaver.take() })), turn);
        }
    }
}
