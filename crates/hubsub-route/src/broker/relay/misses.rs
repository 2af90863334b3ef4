//! Rooms of classes that place them one by one: where no entry says where a room is, what concerns it
//! waits, one question goes to the control plane, and all goes on in order when it has answered.
//!
//! Invariant: of one shard, what concerns a room goes on in the order in which it came.

use super::Broker;
use crate::places::UNPLACED;
use crate::record::Record;
use crate::relay::NodeMessage;
use crate::relay::misses::{Miss, Missing};
use crate::relay::state::WaitingAttach;
use crate::ring::NOWHERE;
use crate::rooms::RoomHandle;
use crate::topics::TopicId;
use crate::{Asker, Attach, Msg, Now, Outcome, Published, Sink, Start, Ticket};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ErrorCode, HubId, NodeId};
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
        if self.topics.place(&room).1 != UNPLACED {
            return Some(message);
        }
        match self.miss(room, Missing::Message(from, Box::new(message)), now, sink) {
            Err(Missing::Message(_, message)) => Some(*message),
            _ => None,
        }
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
        let class = self.classes.class_of_room(&room);
        let relay = self.relay();
        let (limits, weight) = (relay.cluster.limits, what.weight());
        let parked = &mut relay.misses.parked;
        if parked.0 >= limits.parked_max || parked.1 + weight > limits.parked_bytes_max {
            return Err(what);
        }
        *parked = (parked.0 + 1, parked.1 + weight);
        let until_ms = now.mono_ms + limits.parked_ms;
        relay.wake_by(until_ms);
        let makes = !what.is_question();
        if let Some(miss) = relay.misses.rooms.get_mut(&room) {
            miss.waits.push_back(what);
            if makes && !std::mem::replace(&mut miss.makes, true) {
                sink.room_miss(class, &room, true);
            }
            return Ok(());
        }
        sink.room_miss(class, &room, makes);
        relay.misses.rooms.insert(room, Miss { class, makes, until_ms, waits: VecDeque::from([what]) });
        Ok(())
    }

    /// Takes out what waits for a room.
    fn take_miss(&mut self, room: &[u8]) -> VecDeque<Missing> {
        let Some(relay) = &mut self.relay else { return VecDeque::new() };
        let Some(miss) = relay.misses.rooms.remove(room) else { return VecDeque::new() };
        for what in &miss.waits {
            relay.misses.parked.0 -= 1;
            relay.misses.parked.1 -= what.weight();
        }
        miss.waits
    }

    /// The table has places of these rooms now, or others: what waits for them goes on, and who subscribes to
    /// those that were moved does so where they are.
    pub fn rooms_placed(
        &mut self,
        class: ClassIndex,
        rooms: &[(Box<[u8]>, bool)],
        now: Now,
        sink: &mut impl Sink,
    ) {
        for (room, was_moved) in rooms {
            if *was_moved {
                self.rehome(room, now, sink);
                // First: publishes go by where the topic is, and who subscribes is told apart by where it was.
                self.follow_room(class, room, now, sink);
                self.follow_parked(class, room, now, sink);
            }
            if self.topics.place(room).1 == UNPLACED {
                // What waits does so for its time.
                continue;
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
                    Missing::Message(from, message) => self.node_message(from, *message, now, sink),
                    question => self.ask_placed(question, now, sink),
                }
            }
        }
    }

    /// A room gets no place now: what waits for it is refused.
    pub fn room_refused(&mut self, room: &[u8], now: Now, sink: &mut impl Sink) {
        for what in self.take_miss(room) {
            match what {
                Missing::Publish(ticket, _) => self.tell_published(ticket, Err(ErrorCode::HubClosed), sink),
                Missing::Attach(attach) => self.attached(*attach, Err(ErrorCode::HubClosed), now, sink),
                Missing::Message(from, message) => self.deny_message(from, &message, sink),
                question => self.answer_unplaced(question, Some(ErrorCode::HubClosed), sink),
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
        over.iter().for_each(|room| self.room_refused(room, now, sink));
    }

    fn deny_message(&mut self, to: NodeId, message: &NodeMessage, sink: &mut impl Sink) {
        let (ask, hub): (_, HubId) = match *message {
            NodeMessage::Publish { ask, hub, .. }
            | NodeMessage::Interest { ask, hub, .. }
            | NodeMessage::CountAsk { ask, hub, .. }
            | NodeMessage::Read { ask, hub, .. } => (ask, hub),
            _ => return,
        };
        if ask != crate::relay::AskId::NONE {
            let code = ErrorCode::HubClosed;
            self.relay().peers.send(to, hub, NodeMessage::Denied { ask, code }, sink);
        }
    }

    /// A room that is kept here as one of another hub, from before it was moved, is forgotten: who subscribes
    /// does so anew where it is.
    pub(super) fn rehome(&mut self, name: &[u8], now: Now, sink: &mut impl Sink) {
        let Some(room) = self.rooms.find(name).filter(|_| self.relay.is_some()) else { return };
        let (class, hub) = self.topics.place(name);
        if hub == UNPLACED || self.rooms.slot_of_room(room) == self.rooms.hubs.find(class, hub) {
            return;
        }
        for waiting in self.forget_here(room, sink) {
            self.answer_attach(waiting.attach, waiting.from, Err(ErrorCode::HubClosed), now, sink);
        }
    }

    /// Forgets a room that is elsewhere; its leader is told, and what waits for that is given.
    pub(super) fn forget_here(&mut self, room: RoomHandle, sink: &mut impl Sink) -> Vec<WaitingAttach> {
        let known = self.rooms.position(room);
        let mut waiting = Vec::new();
        for key in self.rooms.topics_of(room) {
            let names = self.names_of(&key);
            let relay = self.relay();
            let Some(up) = relay.upstreams.remove(&key) else { continue };
            relay.attaches -= up.waiting.len();
            waiting.extend(up.waiting);
            if let Some(to) = relay.leader_of(up.slot) {
                let (hub, term) = (relay.hub(up.slot).id, relay.hub(up.slot).term);
                let (ask, count, start) = (crate::relay::AskId::NONE, 0, Start::Live);
                let message = NodeMessage::Interest { ask, hub, term, names, count, known, start };
                relay.peers.send(to, hub, message, sink);
            }
        }
        self.drop_resume(room);
        self.relay().due.remove(&room);
        self.rooms.forget_moved(room);
        waiting
    }

    // -- to the home --

    /// A publish came here, and this shard knows another home of its room, or none.
    #[cold]
    pub(in crate::broker) fn lead_elsewhere(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) {
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
        match self.topics.get(id).shard {
            shard if shard != self.shard => sink.send(shard, Msg::Publish(ticket, record)),
            _ => self.lead(ticket, record, now, sink),
        }
    }

    fn attach_placed(&mut self, id: TopicId, attach: Attach, now: Now, sink: &mut impl Sink) {
        match self.topics.get(id).shard {
            shard if shard != self.shard => sink.send(shard, Msg::Attach(Box::new(attach))),
            _ => self.attach_for(attach, now, sink),
        }
    }

    /// Publishes of a room that wait for the leader of the hub that it was in go where it is.
    fn follow_parked(&mut self, class: ClassIndex, room: &[u8], now: Now, sink: &mut impl Sink) {
        for slot in 0..self.relay().hubs.len() as u16 {
            let classes = Arc::clone(&self.classes);
            let hub = self.relay().hub(slot);
            let is_of = |record: &Record| *classes.room(record.topic()) == *room;
            if hub.class != class || !hub.queue.iter().any(|parked| is_of(&parked.record)) {
                continue;
            }
            let mut moved = Vec::new();
            let mut stays = Vec::new();
            while let Some(parked) = self.relay().unpark(slot) {
                if is_of(&parked.record) { &mut moved } else { &mut stays }.push(parked);
            }
            stays.into_iter().for_each(|parked| self.relay().park(slot, parked));
            self.relay().settle(slot);
            for parked in moved {
                let id = self.topics.intern(parked.record.namespace, parked.record.topic());
                self.topics.place_again(id);
                if self.slot_of_topic(id) == Some(slot) {
                    self.relay().park(slot, parked);
                    continue;
                }
                self.lead(parked.ticket, parked.record, now, sink);
            }
        }
    }

    /// A room is elsewhere than before: the subscriptions of this shard follow it.
    fn follow_room(&mut self, class: ClassIndex, room: &[u8], now: Now, sink: &mut impl Sink) {
        for id in self.topics.of_room(class, room) {
            self.follow_to_place(id, now, sink);
        }
    }

    /// The subscriptions of this shard to a topic follow its room to where that is now.
    pub(super) fn follow_to_place(&mut self, id: TopicId, now: Now, sink: &mut impl Sink) {
        let (namespace, topic) = self.key_of(id);
        let it = self.topics.get(id);
        let (before, of_hub, subs) = (it.shard, it.hub, it.subs.as_slice().to_vec());
        if !self.topics.place_again(id) || before == NOWHERE || of_hub == UNPLACED {
            return;
        }
        for conn in subs {
            if self.attaching.contains_key(&(conn, id)) {
                // It is counted where it is answered from.
                continue;
            }
            self.take_back(before, namespace, Arc::clone(&topic), now, sink);
            self.next_id = self.next_id.wrapping_add(1);
            let asker = Asker::Gathering { number: 0, item: 0 };
            let attach = Attach {
                ticket: Ticket { shard: self.shard, asker },
                conn,
                namespace,
                topic: Arc::clone(&topic),
                start: Start::Live,
                adds: true,
                id: self.next_id,
            };
            self.miss_attach(id, attach, now, sink);
        }
    }
}
