//! Classes whose rooms are placed one by one: if the table has no place for a room, its requests wait, the
//! control plane is asked once, and all requests continue in order after its answer.
//!
//! Invariants
//! - Requests of one shard for a room continue in order of arrival.
//! - A room of a class whose hubs are not known has no home: its requests are refused. They would be passed from
//!   its supposed home to that same home without end.

use super::{Broker, Turn};
use crate::places::UNPLACED;
use crate::relay::{Miss, Missing, ask_of};
use crate::ring::NOWHERE;
use crate::topics::TopicId;
use crate::traces::StepKind;
use crate::{Attach, Msg, Now, Outcome, Published, Reply, Sink, Ticket};
use hubsub_message::{NodeMessage, PATTERNS, Record};
use hubsub_types::{ErrorCode, NodeId, Position};
use std::collections::VecDeque;
use std::sync::Arc;

impl Broker {
    /// A client of this shard publishes to a topic whose room has no known place.
    #[cold]
    pub(crate) fn miss_publish(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        record: Arc<Record>,
        turn: &mut Turn<impl Sink>,
    ) -> Reply<Published> {
        if self.is_outside(&self.classes.room(record.topic())) {
            return Outcome::Now(Err(ErrorCode::HubClosed));
        }
        if self.found(id) {
            let (shard, revision) = (self.topics.get(id).shard, self.topics.revision(id));
            if self.traces.is_on() && shard != self.shard {
                self.trace_step(ticket, StepKind::SentToShard(shard), turn.sink);
            }
            self.pass(shard, Msg::Publish(ticket, record, revision), turn);
            return Outcome::Later;
        }
        if self.traces.is_on() {
            self.trace_step(ticket, StepKind::Waits, turn.sink);
        }
        let room = self.room_of(record.topic());
        match self.miss(room, Missing::Publish(ticket, record), turn) {
            Ok(()) => Outcome::Later,
            Err(_) => Outcome::Now(Err(ErrorCode::LinkFull)),
        }
    }

    /// As `miss_publish`, for a subscription.
    #[cold]
    pub(crate) fn miss_attach(&mut self, id: TopicId, mut attach: Attach, turn: &mut Turn<impl Sink>) {
        if self.is_outside(&self.classes.room(&attach.topic)) {
            return self.attached(attach, Err(ErrorCode::HubClosed), turn);
        }
        if self.found(id) {
            (attach.home, attach.revision) = (self.topics.get(id).shard, self.topics.revision(id));
            return self.pass(attach.home, Msg::Attach(Box::new(attach)), turn);
        }
        let room = self.room_of(&attach.topic);
        if let Err(Missing::Attach(attach)) = self.miss(room, Missing::Attach(Box::new(attach)), turn) {
            self.attached(*attach, Err(ErrorCode::LinkFull), turn);
        }
    }

    /// As `miss_publish`, for a node's request to a hub of this shard; returned if the room's place is known.
    pub(crate) fn miss_message(
        &mut self,
        from: NodeId,
        message: NodeMessage,
        turn: &mut Turn<impl Sink>,
    ) -> Option<NodeMessage> {
        let room: Arc<[u8]> = match &message {
            NodeMessage::Publish { record, .. } => self.room_of(record.topic()),
            NodeMessage::Interest { names, .. }
            | NodeMessage::Counts { names, .. }
            | NodeMessage::CountAsk { names, .. }
            | NodeMessage::Read { names, .. } => Arc::clone(&names.room),
            _ => return Some(message),
        };
        if self.topics.place(&room).1 != UNPLACED && !self.has_missing_messages(&room) {
            return Some(message);
        }
        match self.miss(Arc::clone(&room), Missing::Message(from, Box::new(message)), turn) {
            Err(Missing::Message(_, message)) => {
                self.refuse_overtaken_interest(from, &room, &message, turn.sink);
                if let NodeMessage::Publish { ask, hub, .. } = *message
                    && self.has_missing_messages(&room)
                    && let Some(slot) = self.relay.slot_of(hub)
                {
                    // It would overtake waiting requests, if this shard has not been notified of the place.
                    self.relay.not_mine(from, ask, slot, turn.sink);
                    return None;
                }
                Some(*message)
            }
            _ => None,
        }
    }

    /// The buffer is full: refuses waiting interest of the node, not to be counted after this message.
    fn refuse_overtaken_interest(
        &mut self,
        from: NodeId,
        room: &[u8],
        message: &NodeMessage,
        sink: &mut impl Sink,
    ) {
        let interest = |message: &NodeMessage| match message {
            NodeMessage::Interest { hub, names, .. } | NodeMessage::Counts { hub, names, .. } => {
                Some((*hub, names.namespace, Arc::clone(&names.topic)))
            }
            _ => None,
        };
        let Some(of) = interest(message) else { return };
        let is_its = |what: &Missing| matches!(what, Missing::Message(node, it) if *node == from && interest(it).as_ref() == Some(&of));
        for overtaken in self.take_miss_of(room, is_its) {
            if let Missing::Message(_, message) = overtaken
                && let Some(slot) = self.relay.slot_of(of.0)
            {
                self.relay.refuse(from, slot, &message, sink);
            }
        }
    }

    /// Whether messages of nodes wait for a room: later ones must not overtake them.
    fn has_missing_messages(&self, room: &[u8]) -> bool {
        let miss = self.relay.misses.rooms.get(room);
        miss.is_some_and(|miss| miss.waits.iter().any(|what| matches!(what, Missing::Message(..))))
    }

    /// Whether a topic's room has a place now, and no earlier request waits.
    pub(crate) fn found(&mut self, id: TopicId) -> bool {
        let room = self.classes.room(&self.topics.get(id).name);
        if self.relay.misses.rooms.contains_key(&*room) {
            return false;
        }
        self.topics.place_again(id);
        self.topics.get(id).shard != NOWHERE
    }

    /// Buffers a request for a room and asks for its place once; returns it if the buffer is full.
    pub(crate) fn miss(
        &mut self,
        room: Arc<[u8]>,
        what: Missing,
        turn: &mut Turn<impl Sink>,
    ) -> Result<(), Missing> {
        let (limits, weight) = (self.relay.limits, what.weight());
        let parked = &mut self.relay.misses.parked;
        if parked.is_full(weight, (limits.parked_max, limits.parked_bytes_max)) {
            return Err(what);
        }
        parked.add(weight);
        if !self.relay.misses.rooms.contains_key(&room) && self.topics.is_unheard(&room) {
            // If the room's topics have a home already, nothing more is sent there, to overtake this request.
            let topics = self.topics.of_room(&room).into_iter();
            let home = topics.map(|id| self.topics.get(id).shard).find(|&shard| shard != NOWHERE);
            if let Some(home) = home {
                self.leave_room(&room, home, turn);
            }
        }
        let until_ms = turn.now.mono_ms + limits.parked_ms;
        self.relay.wake_by(until_ms);
        let miss = self.relay.misses.rooms.entry(Arc::clone(&room)).or_insert_with(|| Miss::new(until_ms));
        miss.makes |= !what.is_question();
        miss.waits.push_back(what);
        self.request_place(&room, turn.sink);
        Ok(())
    }

    /// Puts returned requests before those that arrived since.
    pub(crate) fn miss_first(&mut self, room: &Arc<[u8]>, back: VecDeque<Missing>, now: Now) {
        if back.is_empty() {
            return;
        }
        let until_ms = now.mono_ms + self.relay.limits.parked_ms;
        self.relay.wake_by(until_ms);
        back.iter().for_each(|what| self.relay.misses.parked.add(what.weight()));
        let miss = self.relay.misses.rooms.entry(Arc::clone(room)).or_insert_with(|| Miss::new(until_ms));
        miss.makes = true;
        back.into_iter().rev().for_each(|what| miss.waits.push_front(what));
    }

    /// Asks for the place of a room with waiting requests: once, and again for one that creates it.
    fn request_place(&mut self, room: &[u8], sink: &mut impl Sink) {
        let (class, hub) = self.topics.place(room);
        if hub != UNPLACED || self.topics.is_leaving(room) {
            return;
        }
        let Some(miss) = self.relay.misses.rooms.get_mut(room) else { return };
        if miss.asked.is_none_or(|made| miss.makes && !made) {
            miss.asked = Some(miss.makes);
            let makes = miss.makes;
            sink.room_miss(class, room, makes);
        }
    }

    /// As `request_place`, if the answer arrived and is no longer valid.
    pub(crate) fn request_place_again(&mut self, room: &[u8], sink: &mut impl Sink) {
        if let Some(miss) = self.relay.misses.rooms.get_mut(room) {
            miss.asked = None;
            self.request_place(room, sink);
        }
    }

    fn take_miss(&mut self, room: &[u8]) -> VecDeque<Missing> {
        self.take_miss_of(room, |_| true)
    }

    fn take_miss_of(&mut self, room: &[u8], is_meant: impl Fn(&Missing) -> bool) -> VecDeque<Missing> {
        let Some(miss) = self.relay.misses.rooms.get_mut(room) else { return VecDeque::new() };
        let (taken, waits) = std::mem::take(&mut miss.waits).into_iter().partition(is_meant);
        miss.waits = waits;
        if miss.waits.is_empty() {
            self.relay.misses.rooms.remove(room);
        }
        let taken: VecDeque<Missing> = taken;
        taken.iter().for_each(|what| self.relay.misses.parked.remove(what.weight()));
        taken
    }

    fn take_messages(&mut self, room: &[u8]) -> Vec<(NodeId, NodeMessage)> {
        if !self.has_missing_messages(room) {
            return Vec::new();
        }
        let waits = self.take_miss_of(room, |what| matches!(what, Missing::Message(..)));
        let message = |what| match what {
            Missing::Message(from, message) => Some((from, *message)),
            _ => None,
        };
        waits.into_iter().filter_map(message).collect()
    }

    /// Continues a room's requests if its place is known and not being left; nodes need only the place.
    pub(crate) fn resume_placed(&mut self, room: &[u8], turn: &mut Turn<impl Sink>) {
        if self.topics.place(room).1 == UNPLACED {
            // Waiting requests keep their time limit.
            return self.request_place(room, turn.sink);
        }
        for (from, message) in self.take_messages(room) {
            self.node_message(from, message, turn.now, turn.sink);
        }
        if self.topics.is_leaving(room) || self.topics.is_unheard(room) {
            return;
        }
        for what in self.take_miss(room) {
            match what {
                Missing::Publish(ticket, record) => {
                    let id = self.topics.intern(record.namespace, record.topic());
                    if let Outcome::Now(refused) = self.miss_publish(ticket, id, record, turn) {
                        self.answer_publish(ticket, refused, turn.sink);
                    }
                }
                Missing::Attach(attach) => {
                    let id = self.topics.intern(attach.namespace, &attach.topic);
                    self.miss_attach(id, *attach, turn);
                }
                question => self.send_placed(question, turn),
            }
        }
    }

    /// A room gets no place: refuses its waiting requests with this code, unless it has one since.
    pub fn room_refused(&mut self, room: &[u8], code: ErrorCode, now: Now, sink: &mut impl Sink) {
        if self.topics.is_unplaced(room) {
            self.refuse_missing(room, code, &mut Turn { now, sink });
        }
    }

    fn refuse_missing(&mut self, room: &[u8], code: ErrorCode, turn: &mut Turn<impl Sink>) {
        for what in self.take_miss(room) {
            match what {
                Missing::Publish(ticket, _) => self.answer_publish(ticket, Err(code), turn.sink),
                Missing::Attach(attach) => self.attached(*attach, Err(code), turn),
                Missing::Message(from, message) => {
                    let hub = message.hub().unwrap_or(PATTERNS);
                    self.relay.deny((from, hub), ask_of(&message), code, turn.sink);
                }
                question => self.answer_unplaced(question, Some(code), turn.sink),
            }
        }
    }

    pub(crate) fn expire_misses(&mut self, turn: &mut Turn<impl Sink>) {
        let (mut due_ms, mut over) = (u64::MAX, Vec::new());
        for (room, miss) in &self.relay.misses.rooms {
            if miss.until_ms <= turn.now.mono_ms {
                over.push(Arc::clone(room));
            } else {
                due_ms = due_ms.min(miss.until_ms);
            }
        }
        self.relay.wake_by(due_ms);
        // A deterministic order, independent of hashes.
        over.sort_unstable();
        over.iter().for_each(|room| self.refuse_missing(room, ErrorCode::HubClosed, turn));
    }

    /// Forwards a publish whose room has another home since the classes changed.
    #[cold]
    pub(crate) fn lead_elsewhere(&mut self, ticket: Ticket, record: Arc<Record>, turn: &mut Turn<impl Sink>) {
        let id = self.topics.intern(record.namespace, record.topic());
        if let Outcome::Now(refused) = self.miss_publish(ticket, id, record, turn) {
            self.answer_publish(ticket, refused, turn.sink);
        }
    }

    /// Classes have changed: moves this shard's subscriptions to a topic to its room's current place.
    pub(crate) fn resubscribe_elsewhere(&mut self, id: TopicId, turn: &mut Turn<impl Sink>) {
        let (namespace, topic) = self.key_of(id);
        let (before, is_leaving) = (self.counted_at(id), self.topics.is_leaving(&self.classes.room(&topic)));
        let attached: Vec<u32> = self.topics.get(id).subs.as_slice().to_vec();
        if !self.topics.place_again(id) && !is_leaving {
            return;
        }
        let Some((before, revision)) = before else { return };
        for conn in attached {
            if !self.unconfirmed.is_attaching(conn, id) {
                let msg = Msg::Detach(self.shard, namespace, Arc::clone(&topic), revision);
                self.pass(before, msg, turn);
            }
        }
        self.resubscribe(id, Position::default(), turn);
    }
}
