//! Questions about a room, which make none: how many subscribe to it, what it remembers. The room's home
//! answers, or asks its leader. Where its place is not known here they wait for that, as publishes do.
//!
//! Invariant: a question that waits is answered once, by the home, or in its time by an error; where the
//! room has no place, as of a room in which nothing was said.

use super::Broker;
use crate::logread::Ask;
use crate::places::UNPLACED;
use crate::relay::NodeMessage;
use crate::relay::misses::Missing;
use crate::relay::state::{Asked, UnderWay};
use crate::ring::NOWHERE;
use crate::rooms::{HistoryPart, HistoryQuery, TopicKey};
use crate::topics::TopicId;
use crate::{Msg, Namespace, Now, Outcome, Sink, Ticket};
use hubsub_types::{ErrorCode, ShardId};

impl Broker {
    /// The shard where a room lives; none: its place is not known here.
    ///
    /// # Errors
    /// The hubs of its class are not known.
    pub fn home_of(&self, room: &[u8]) -> Result<Option<ShardId>, ErrorCode> {
        if self.is_outside(room) {
            return Err(ErrorCode::HubClosed);
        }
        let shard = self.topics.shard_of_room(room);
        Ok((shard != NOWHERE).then_some(shard))
    }

    /// How many subscribe to a topic in the whole cluster. [`Outcome::Later`] promises one
    /// [`Answer::Counted`].
    pub fn subscribers(
        &mut self,
        ticket: Ticket,
        namespace: Namespace,
        topic: &[u8],
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<u64, ErrorCode>> {
        if self.is_outside(&self.classes.room(topic)) {
            return Outcome::Now(Err(ErrorCode::HubClosed));
        }
        let id = self.topics.intern(namespace, topic);
        if self.topics.get(id).shard == NOWHERE && !self.found(id) {
            let question = Missing::Count(ticket, self.key_of(id));
            let asked = self.miss(self.classes.room(topic).as_ref().into(), question, now, sink);
            return asked.map_or(Outcome::Now(Err(ErrorCode::LinkFull)), |()| Outcome::Later);
        }
        let shard = self.topics.get(id).shard;
        if shard != self.shard {
            let key = self.key_of(id);
            sink.send(shard, Msg::Count(ticket, key));
            return Outcome::Later;
        }
        self.count_here(ticket, id, sink)
    }

    pub(in crate::broker) fn count_here(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        sink: &mut impl Sink,
    ) -> Outcome<Result<u64, ErrorCode>> {
        let (namespace, name) = self.key_of(id);
        let Some(slot) = self.relayed_slot(&self.classes.room(&name)) else {
            let room = self.rooms.find_of_topic(&name);
            let counts = room.and_then(|room| self.rooms.counts_of(room, namespace, &name));
            return Outcome::Now(Ok(counts.map_or(0, |counts| counts.total())));
        };
        self.tell_counts(sink);
        let names = self.names_of(&(namespace, name));
        let shard = self.shard;
        let relay = self.relay();
        let Some(to) = relay.leader_of(slot) else { return Outcome::Now(Err(ErrorCode::HubClosed)) };
        let ask = relay.next_ask(shard);
        let (hub, term) = (relay.hub(slot).id, relay.hub(slot).term);
        let what = Asked::Count(ticket);
        relay.asks.insert(ask, UnderWay { to, slot, term, what, records: Vec::new(), bytes: 0 });
        relay.peers.send(to, hub, NodeMessage::CountAsk { ask, hub, term, names }, sink);
        Outcome::Later
    }

    /// Likewise, asked by another shard.
    pub(in crate::broker) fn count_for(
        &mut self,
        ticket: Ticket,
        (namespace, topic): TopicKey,
        sink: &mut impl Sink,
    ) {
        let id = self.topics.intern(namespace, &topic);
        if let Outcome::Now(count) = self.count_here(ticket, id, sink) {
            self.tell_count(ticket, count, sink);
        }
    }

    /// A question for history that this shard cannot answer, as the room's place is not known or is another
    /// shard: it waits, or goes there. None: it is this shard's.
    pub(in crate::broker) fn pass_history(
        &mut self,
        query: &HistoryQuery,
        ask: Ask,
        now: Now,
        sink: &mut impl Sink,
    ) -> Option<Result<(), ErrorCode>> {
        let waits = &self.relay.as_ref()?.misses.rooms;
        if waits.contains_key(query.room.as_slice()) || self.topics.place(&query.room).1 == UNPLACED {
            let question = Missing::History(Box::new(query.clone()), ask);
            let asked = self.miss(query.room.as_slice().into(), question, now, sink);
            return Some(asked.map_err(|_| ErrorCode::LinkFull));
        }
        let home = self.topics.shard_of_room(&query.room);
        if home == self.shard {
            return None;
        }
        sink.send(home, Msg::History(Box::new((query.clone(), ask))));
        Some(Ok(()))
    }

    /// Likewise, a question that another shard has passed on, or that waited here.
    pub(in crate::broker) fn history_for(
        &mut self,
        query: &HistoryQuery,
        ask: Ask,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if let Some(part) = self.history(query, ask, now, sink).transpose() {
            sink.history(ask, part);
        }
    }

    /// The place of a room is known: a question that waited for it is asked there.
    pub(super) fn ask_placed(&mut self, question: Missing, now: Now, sink: &mut impl Sink) {
        match question {
            Missing::Count(ticket, (namespace, topic)) => {
                if let Outcome::Now(count) = self.subscribers(ticket, namespace, &topic, now, sink) {
                    self.tell_count(ticket, count, sink);
                }
            }
            Missing::History(query, ask) => self.history_for(&query, ask, now, sink),
            _ => {}
        }
    }

    /// A room has no place now: with a reason that is told, else it is as one in which nothing was said.
    pub(super) fn answer_unplaced(
        &mut self,
        question: Missing,
        refused: Option<ErrorCode>,
        sink: &mut impl Sink,
    ) {
        match question {
            Missing::Count(ticket, _) => self.tell_count(ticket, refused.map_or(Ok(0), Err), sink),
            Missing::History(query, ask) => {
                let none = HistoryPart { recovered: query.after.is_none(), ..HistoryPart::default() };
                sink.history(ask, refused.map_or(Ok(none), Err));
            }
            _ => {}
        }
    }

    /// A room has no place, and none was wanted. What was asked behind something that makes one waits for that.
    pub fn room_absent(&mut self, room: &[u8], sink: &mut impl Sink) {
        while let Some(relay) = &mut self.relay
            && let Some(miss) = relay.misses.rooms.get_mut(room)
            && miss.waits.front().is_some_and(Missing::is_question)
            && let Some(question) = miss.waits.pop_front()
        {
            if miss.waits.is_empty() {
                relay.misses.rooms.remove(room);
            }
            relay.misses.parked.0 -= 1;
            relay.misses.parked.1 -= question.weight();
            self.answer_unplaced(question, None, sink);
        }
    }
}
