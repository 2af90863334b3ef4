//! Rooms of classes that place them one by one: where no entry says where a room is, what concerns it
//! waits, one question goes to the control plane, and all goes on in order when it has answered.
//!
//! Invariant: of one shard, what concerns a room goes on in the order in which it came.

use super::Broker;
use crate::places::UNPLACED;
use crate::record::Record;
use crate::relay::NodeMessage;
use crate::relay::misses::{Miss, Missing};
use crate::ring::NOWHERE;
use crate::topics::TopicId;
use crate::{Attach, Msg, Now, Outcome, Published, Sink, Ticket};
use hubsub_types::{ErrorCode, HubId, NodeId, Position};
use std::collections::VecDeque;
use std::sync::Arc;

impl Broker {
    /// A publish to a topic whose room has no place that is known, by a client of this shard.
    #[cold]
    pub(in crate::broker) fn miss_publish(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<Published, ErrorCode>> {
        if self.found(id) {
            self.publish_placed(ticket, id, record, now, sink);
            return Outcome::Later;
        }
        let room = self.classes.room(record.topic()).as_ref().into();
        match self.miss(room, Missing::Publish(ticket, record), now, sink) {
            Ok(()) => Outcome::Later,
            Err(_) => Outcome::Now(Err(ErrorCode::LinkFull)),
        }
    }

    /// Likewise, a subscription.
    #[cold]
    pub(in crate::broker) fn miss_attach(
        &mut self,
        id: TopicId,
        attach: Attach,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if self.found(id) {
            return self.attach_placed(id, attach, now, sink);
        }
        let room = self.classes.room(&attach.topic).as_ref().into();
        if let Err(Missing::Attach(attach)) = self.miss(room, Missing::Attach(Box::new(attach)), now, sink) {
            self.attached(*attach, Err(ErrorCode::LinkFull), now, sink);
        }
    }

    /// Likewise, what a node asks of a hub of this shard; given back if the room's place is known.
    pub(super) fn miss_message(
        &mut self,
        from: NodeId,
        message: NodeMessage,
        now: Now,
        sink: &mut impl Sink,
    ) -> Option<NodeMessage> {
        let room: Arc<[u8]> = match &message {
            NodeMessage::Publish { record, .. } => self.classes.room(record.topic()).as_ref().into(),
            NodeMessage::Interest { names, .. }
            | NodeMessage::Counts { names, .. }
            | NodeMessage::CountAsk { names, .. }
            | NodeMessage::Read { names, .. } => Arc::clone(&names.room),
            _ => return Some(message),
        };
        if self.topics.place(&room).1 != UNPLACED && !self.has_missing_messages(&room) {
            return Some(message);
        }
        match self.miss(Arc::clone(&room), Missing::Message(from, Box::new(message)), now, sink) {
            Err(Missing::Message(_, message)) => {
                self.refuse_overtaken_interest(from, &room, &message, sink);
                if let NodeMessage::Publish { ask, hub, .. } = *message
                    && self.has_missing_messages(&room)
                    && let Some(slot) = self.relay().slot_of(hub)
                {
                    // It would come before those that wait, where the table has a place that this shard is yet to hear of.
                    self.relay().not_mine(from, ask, slot, sink);
                    return None;
                }
                Some(*message)
            }
            _ => None,
        }
    }

    /// There is no place for a message of a node to wait in: what waits of the same node's interest in the same topic is
    /// refused, as it must not count behind this.
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
                && let Some(slot) = self.relay().slot_of(of.0)
            {
                self.relay().refuse(from, slot, &message, sink);
            }
        }
    }

    /// Whether messages of nodes wait for a room: none is to come before them.
    fn has_missing_messages(&self, room: &[u8]) -> bool {
        let miss = self.relay.as_ref().and_then(|relay| relay.misses.rooms.get(room));
        miss.is_some_and(|miss| miss.waits.iter().any(|what| matches!(what, Missing::Message(..))))
    }

    /// Whether a topic's room has a place now, and nothing waits before what comes.
    pub(in crate::broker) fn found(&mut self, id: TopicId) -> bool {
        let room = self.classes.room(&self.topics.get(id).name);
        if self.relay.as_ref().is_some_and(|relay| relay.misses.rooms.contains_key(&*room)) {
            return false;
        }
        self.topics.place_again(id);
        self.topics.get(id).shard != NOWHERE
    }

    /// Keeps what waits for a room, and asks for that, once; given back if there is no place for it.
    pub(super) fn miss(
        &mut self,
        room: Arc<[u8]>,
        what: Missing,
        now: Now,
        sink: &mut impl Sink,
    ) -> Result<(), Missing> {
        let relay = self.relay();
        let (limits, weight) = (relay.cluster.limits, what.weight());
        let parked = &mut relay.misses.parked;
        if parked.0 >= limits.parked_max || parked.1 + weight > limits.parked_bytes_max {
            return Err(what);
        }
        *parked = (parked.0 + 1, parked.1 + weight);
        if !relay.misses.rooms.contains_key(&room) && self.topics.is_unheard(&room) {
            // Where others of its topics were asked for, nothing more is: it would come before this.
            let topics = self.topics.of_room(&room).into_iter();
            let home = topics.map(|id| self.topics.get(id).shard).find(|&shard| shard != NOWHERE);
            if let Some(home) = home {
                self.leave_room(&room, home, now, sink);
            }
        }
        let relay = self.relay();
        let until_ms = now.mono_ms + limits.parked_ms;
        relay.wake_by(until_ms);
        let miss = relay.misses.rooms.entry(Arc::clone(&room)).or_insert_with(|| Miss::new(until_ms));
        miss.makes |= !what.is_question();
        miss.waits.push_back(what);
        self.ask_for(&room, sink);
        Ok(())
    }

    /// What was given back waits before what came since.
    pub(super) fn miss_first(&mut self, room: &Arc<[u8]>, back: VecDeque<Missing>, now: Now) {
        if back.is_empty() {
            return;
        }
        let relay = self.relay();
        let until_ms = now.mono_ms + relay.cluster.limits.parked_ms;
        relay.wake_by(until_ms);
        let weight = back.iter().map(Missing::weight).sum::<usize>();
        relay.misses.parked = (relay.misses.parked.0 + back.len(), relay.misses.parked.1 + weight);
        let miss = relay.misses.rooms.entry(Arc::clone(room)).or_insert_with(|| Miss::new(until_ms));
        miss.makes = true;
        back.into_iter().rev().for_each(|what| miss.waits.push_front(what));
    }

    /// Asks for the place of a room for which something waits, if it has none: once, and again where it is to get one
    /// by now.
    fn ask_for(&mut self, room: &[u8], sink: &mut impl Sink) {
        let (class, hub) = self.topics.place(room);
        if hub != UNPLACED || self.topics.is_leaving(room) {
            return;
        }
        let Some(miss) = self.relay().misses.rooms.get_mut(room) else { return };
        if miss.asked.is_none_or(|made| miss.makes && !made) {
            miss.asked = Some(miss.makes);
            let makes = miss.makes;
            sink.room_miss(class, room, makes);
        }
    }

    /// Likewise, where the answer came and counts no more.
    pub(super) fn ask_for_again(&mut self, room: &[u8], sink: &mut impl Sink) {
        if let Some(miss) = self.relay().misses.rooms.get_mut(room) {
            miss.asked = None;
            self.ask_for(room, sink);
        }
    }

    /// Takes out what waits for a room.
    fn take_miss(&mut self, room: &[u8]) -> VecDeque<Missing> {
        self.take_miss_of(room, |_| true)
    }

    fn take_miss_of(&mut self, room: &[u8], is_meant: impl Fn(&Missing) -> bool) -> VecDeque<Missing> {
        let Some(relay) = &mut self.relay else { return VecDeque::new() };
        let Some(miss) = relay.misses.rooms.get_mut(room) else { return VecDeque::new() };
        let (taken, waits) = std::mem::take(&mut miss.waits).into_iter().partition(is_meant);
        miss.waits = waits;
        if miss.waits.is_empty() {
            relay.misses.rooms.remove(room);
        }
        let taken: VecDeque<Missing> = taken;
        relay.misses.parked.0 -= taken.len();
        relay.misses.parked.1 -= taken.iter().map(Missing::weight).sum::<usize>();
        taken
    }

    /// Takes out what nodes asked.
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

    /// What waits for a room goes on, if this shard knows where that is and does not leave it. Nodes wait for its place
    /// alone.
    pub(super) fn go_on_placed(&mut self, room: &[u8], now: Now, sink: &mut impl Sink) {
        if self.topics.place(room).1 == UNPLACED {
            // What waits does so for its time.
            return self.ask_for(room, sink);
        }
        for (from, message) in self.take_messages(room) {
            self.node_message(from, message, now, sink);
        }
        if self.topics.is_leaving(room) || self.topics.is_unheard(room) {
            return;
        }
        for what in self.take_miss(room) {
            match what {
                Missing::Publish(ticket, record) => {
                    let id = self.topics.intern(record.namespace, record.topic());
                    if let Outcome::Now(refused) = self.miss_publish(ticket, id, record, now, sink) {
                        self.tell_published(ticket, refused, sink);
                    }
                }
                Missing::Attach(attach) => {
                    let id = self.topics.intern(attach.namespace, &attach.topic);
                    self.miss_attach(id, *attach, now, sink);
                }
                question => self.ask_placed(question, now, sink),
            }
        }
    }

    /// A room gets no place: what waits for it is refused with this code, unless it has one since.
    pub fn room_refused(&mut self, room: &[u8], code: ErrorCode, now: Now, sink: &mut impl Sink) {
        if self.topics.is_unplaced(room) {
            self.refuse_missing(room, code, now, sink);
        }
    }

    fn refuse_missing(&mut self, room: &[u8], code: ErrorCode, now: Now, sink: &mut impl Sink) {
        for what in self.take_miss(room) {
            match what {
                Missing::Publish(ticket, _) => self.tell_published(ticket, Err(code), sink),
                Missing::Attach(attach) => self.attached(*attach, Err(code), now, sink),
                Missing::Message(from, message) => self.deny_message(from, &message, code, sink),
                question => self.answer_unplaced(question, Some(code), sink),
            }
        }
    }

    /// Rooms that were asked for too long ago get no place.
    pub(super) fn expire_misses(&mut self, now: Now, sink: &mut impl Sink) {
        let relay = self.relay();
        let (mut due_ms, mut over) = (u64::MAX, Vec::new());
        for (room, miss) in &relay.misses.rooms {
            if miss.until_ms <= now.mono_ms {
                over.push(Arc::clone(room));
            } else {
                due_ms = due_ms.min(miss.until_ms);
            }
        }
        relay.wake_by(due_ms);
        // In an order that does not hang on a hash.
        over.sort_unstable();
        over.iter().for_each(|room| self.refuse_missing(room, ErrorCode::HubClosed, now, sink));
    }

    fn deny_message(&mut self, to: NodeId, message: &NodeMessage, code: ErrorCode, sink: &mut impl Sink) {
        let (ask, hub): (_, HubId) = match *message {
            NodeMessage::Publish { ask, hub, .. }
            | NodeMessage::Interest { ask, hub, .. }
            | NodeMessage::CountAsk { ask, hub, .. }
            | NodeMessage::Read { ask, hub, .. } => (ask, hub),
            _ => return,
        };
        if ask != crate::relay::AskId::NONE {
            self.relay().peers.send(to, hub, NodeMessage::Denied { ask, code }, sink);
        }
    }

    // -- to the home --

    /// A publish is here, and by other classes than when it came its room has another home.
    #[cold]
    pub(in crate::broker) fn lead_elsewhere(
        &mut self,
        ticket: Ticket,
        record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let id = self.topics.intern(record.namespace, record.topic());
        if let Outcome::Now(refused) = self.miss_publish(ticket, id, record, now, sink) {
            self.tell_published(ticket, refused, sink);
        }
    }

    fn publish_placed(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        match (self.topics.get(id).shard, self.topics.revision(id)) {
            (shard, revision) if shard != self.shard => {
                sink.send(shard, Msg::Publish(ticket, record, revision))
            }
            (_, revision) => self.lead(ticket, record, revision, now, sink),
        }
    }

    fn attach_placed(&mut self, id: TopicId, mut attach: Attach, now: Now, sink: &mut impl Sink) {
        (attach.home, attach.revision) = (self.topics.get(id).shard, self.topics.revision(id));
        match attach.home {
            shard if shard != self.shard => sink.send(shard, Msg::Attach(Box::new(attach))),
            _ => self.attach_for(attach, now, sink),
        }
    }

    /// Classes have changed: the subscriptions of this shard to a topic follow its room to where that is now.
    pub(super) fn follow_to_place(&mut self, id: TopicId, now: Now, sink: &mut impl Sink) {
        let (namespace, topic) = self.key_of(id);
        let (before, is_leaving) = (self.counted_at(id), self.is_left(id));
        let attached: Vec<u32> = self.topics.get(id).subs.as_slice().to_vec();
        if !self.topics.place_again(id) && !is_leaving {
            return;
        }
        let Some((before, revision)) = before else { return };
        for conn in attached {
            if !self.attaching.contains_key(&(conn, id)) {
                self.take_back(before, namespace, Arc::clone(&topic), revision, now, sink);
            }
        }
        self.follow_subs(id, Position::default(), now, sink);
    }

    fn is_left(&self, id: TopicId) -> bool {
        self.topics.is_leaving(&self.classes.room(&self.topics.get(id).name))
    }
}
