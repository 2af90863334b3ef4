//! Requests about a room that do not create it: number of subscribers, history. The room's home answers, or
//! asks its leader. If the room's place is not known here, or no leader is reachable, they wait like
//! publishes; requests for entries are repeated by the requester instead.
//!
//! Invariant: a waiting request is answered once: by the home, or with an error when its time has passed; if
//! the room has no place, as for a room without records.

use super::Broker;
use crate::logread::Ask;
use crate::places::UNPLACED;
use crate::relay::Leader;
use crate::relay::limits::{READ_BYTES_MAX, READ_RECORDS_MAX};
use crate::relay::misses::Missing;
use crate::relay::state::{HubState, InFlight, Question, Request};
use crate::ring::NOWHERE;
use crate::rooms::{HistoryPart, HistoryQuery, TopicKey};
use crate::rows::RowPage;
use crate::topics::TopicId;
use crate::{Asker, Msg, Namespace, Now, Outcome, RowsAsk, Sink, Start, Ticket};
use hubsub_message::{Names, NodeMessage};
use hubsub_types::{ErrorCode, ShardId};
use std::sync::Arc;

impl Broker {
    /// The home shard of a room; none: its place is not known here.
    ///
    /// # Errors
    /// The hubs of the room's class are not known.
    pub fn home_of(&self, room: &[u8]) -> Result<Option<ShardId>, ErrorCode> {
        if self.is_outside(room) {
            return Err(ErrorCode::HubClosed);
        }
        let shard = self.topics.shard_of_room(room);
        Ok((shard != NOWHERE).then_some(shard))
    }

    /// The number of subscribers to a topic in the whole cluster. [`Outcome::Later`] promises one
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
            let asked = self.miss(self.room_of(topic), question, now, sink);
            return asked.map_or(Outcome::Now(Err(ErrorCode::LinkFull)), |()| Outcome::Later);
        }
        let shard = self.topics.get(id).shard;
        if shard != self.shard {
            let key = self.key_of(id);
            sink.send(shard, Msg::Count(ticket, key));
            return Outcome::Later;
        }
        self.count_here(ticket, id, now, sink)
    }

    pub(in crate::broker) fn count_here(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<u64, ErrorCode>> {
        let (namespace, name) = self.key_of(id);
        let Some(slot) = self.relayed_slot(&self.classes.room(&name)) else {
            let room = self.rooms.find_of_topic(&name);
            let counts = room.and_then(|room| self.rooms.counts_of(room, namespace, &name));
            let count = Ok(counts.map_or(0, |counts| counts.total()));
            let settles = matches!(ticket.asker, Asker::Retained { .. });
            return if settles { self.count_settled(ticket, &name, count) } else { Outcome::Now(count) };
        };
        match self.request_from_leader(slot, Missing::Count(ticket, (namespace, name)), now, sink) {
            Ok(()) => Outcome::Later,
            Err(_) => Outcome::Now(Err(ErrorCode::LinkFull)),
        }
    }

    /// As `subscribers`, requested by another shard.
    pub(in crate::broker) fn count_for(
        &mut self,
        ticket: Ticket,
        (namespace, topic): TopicKey,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let id = self.topics.intern(namespace, &topic);
        if let Outcome::Now(count) = self.count_here(ticket, id, now, sink) {
            self.answer_count(ticket, count, sink);
        }
    }

    /// Passes on a history request that this shard cannot answer: it waits if the room's place is unknown, or
    /// goes to the room's home shard. None: this shard answers it.
    pub(in crate::broker) fn pass_history(
        &mut self,
        query: &HistoryQuery,
        ask: Ask,
        now: Now,
        sink: &mut impl Sink,
    ) -> Option<Result<(), ErrorCode>> {
        let waits = self.relay.misses.rooms.contains_key(query.room.as_slice());
        if waits || self.topics.place(&query.room).1 == UNPLACED {
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

    /// As `history`, for a request that another shard has passed on, or that waited here.
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

    /// A history request for a room that another node leads.
    ///
    /// # Errors
    /// Too many requests wait for leaders.
    pub(in crate::broker) fn history_relayed(
        &mut self,
        slot: u16,
        query: &HistoryQuery,
        ask: Ask,
        now: Now,
        sink: &mut impl Sink,
    ) -> Result<(), ErrorCode> {
        let question = Missing::History(Box::new(query.clone()), ask);
        self.request_from_leader(slot, question, now, sink).map_err(|_| ErrorCode::LinkFull)
    }

    /// A request for the entries of a hub that another node leads. It does not wait for a leader: that would
    /// delay the reads of other hubs, and the requester retries it.
    ///
    /// # Errors
    /// No leader is reachable, or too many requests wait for leaders.
    pub(in crate::broker) fn request_entries(
        &mut self,
        slot: u16,
        ask: RowsAsk,
        now: Now,
        sink: &mut impl Sink,
    ) -> Result<(), ErrorCode> {
        if self.relay.leader_of(slot).is_none() {
            return Err(ErrorCode::HubClosed);
        }
        self.request_from_leader(slot, Missing::Rows(Box::new(ask)), now, sink)
            .map_err(|_| ErrorCode::LinkFull)
    }

    /// Whether the leader of a room's hub is reachable, if the hub's home is this shard: otherwise a request
    /// waits for it.
    #[must_use]
    pub fn reaches(&self, room: &[u8]) -> bool {
        self.relayed_slot(room).is_none_or(|slot| self.relay.leader_of(slot).is_some())
    }

    /// The reachability of a hub's leader may have changed: notes it for readers of entries.
    pub(super) fn update_reach(&mut self, slot: u16, sink: &mut impl Sink) {
        let hub = self.rooms.hubs.get(slot);
        if Some(hub.class) != self.rows_class() {
            return;
        }
        let index = hub.index;
        let relay = &mut self.relay;
        let is_away = relay.hub(slot).leader != Leader::Me && relay.leader_of(slot).is_none();
        let refused = if is_away { relay.take_rows(slot) } else { Vec::new() };
        self.rooms.row_totals().set_away(index, is_away);
        for question in refused {
            self.answer_unplaced(question.what, Some(ErrorCode::HubClosed), sink);
        }
    }

    // -- to the leader --

    /// Sends a request to the leader of a hub. If none is reachable, the request waits as long as a publish
    /// does; it is returned if the buffer is full.
    fn request_from_leader(
        &mut self,
        slot: u16,
        what: Missing,
        now: Now,
        sink: &mut impl Sink,
    ) -> Result<(), Missing> {
        let until_ms = now.mono_ms + self.relay.limits.parked_ms;
        self.request_or_wait(slot, Question { what, until_ms }, sink).map_err(|question| question.what)
    }

    fn request_or_wait(
        &mut self,
        slot: u16,
        question: Question,
        sink: &mut impl Sink,
    ) -> Result<(), Question> {
        self.send_counts(sink);
        let Some(to) = self.relay.ready_leader_of(slot) else {
            return self.relay.wait_for_leader(slot, question);
        };
        let ask = self.relay.next_ask();
        let &HubState { id: hub, term, .. } = self.relay.hub(slot);
        let message = match &question.what {
            Missing::Count(ticket, key) => {
                let settles = matches!(ticket.asker, Asker::Retained { .. });
                NodeMessage::CountAsk { ask, hub, term, names: self.names_of(key), settles }
            }
            Missing::History(query, _) => {
                let topic = query.topic.as_deref().unwrap_or_default().into();
                let room = query.room.as_slice().into();
                let count = query.count.min(READ_RECORDS_MAX);
                let start = query.after.map_or(Start::Last(count), Start::After);
                let names = Names { namespace: Namespace::Global, room, topic };
                let (records_max, bytes_max) = (count as u32, READ_BYTES_MAX as u32);
                NodeMessage::Read { ask, hub, names, start, records_max, bytes_max }
            }
            Missing::Rows(rows) => {
                let (filter, after) =
                    (rows.filter.as_ref().into(), rows.after.as_deref().unwrap_or_default());
                NodeMessage::Rows { ask, hub, filter, after: after.into(), bytes_max: rows.bytes_max }
            }
            _ => return Err(question),
        };
        let relay = &mut self.relay;
        let what = Request::Question(question);
        relay.requests.insert(ask, InFlight { to, slot, term, what, records: Vec::new(), bytes: 0 });
        relay.peers.send(to, hub, message, sink);
        Ok(())
    }

    /// An unanswered request waits for its hub's next leader.
    pub(super) fn keep_question(&mut self, slot: u16, question: Question, sink: &mut impl Sink) {
        if let Err(question) = self.relay.wait_for_leader(slot, question) {
            self.answer_unplaced(question.what, Some(ErrorCode::LinkFull), sink);
        }
    }

    /// Sends requests that waited for a hub's leader to where their rooms are now.
    pub(super) fn resend_waiting(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        for _ in 0..self.relay.hub(slot).questions.len() {
            let Some(question) = self.relay.take_question(slot) else { return };
            let room: Arc<[u8]> = match &question.what {
                // Their hub is known, and may be led here now.
                Missing::Rows(_) => {
                    if !self.rooms.hubs.get(slot).is_relayed {
                        self.send_placed(question.what, now, sink);
                    } else if let Err(question) = self.request_or_wait(slot, question, sink) {
                        self.answer_unplaced(question.what, Some(ErrorCode::LinkFull), sink);
                    }
                    continue;
                }
                Missing::Count(_, (_, topic)) => self.room_of(topic),
                Missing::History(query, _) => query.room.as_slice().into(),
                _ => continue,
            };
            if self.relayed_slot(&room) != Some(slot) {
                self.send_placed(question.what, now, sink);
            } else if let Err(question) = self.request_or_wait(slot, question, sink) {
                self.answer_unplaced(question.what, Some(ErrorCode::LinkFull), sink);
            }
        }
    }

    /// Refuses requests that have waited too long.
    pub(super) fn expire_questions(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        while let Some(first) = self.relay.hub(slot).questions.front() {
            let until_ms = first.until_ms;
            if until_ms > now.mono_ms {
                return self.relay.wake_by(until_ms);
            }
            if let Some(question) = self.relay.take_question(slot) {
                self.answer_unplaced(question.what, Some(ErrorCode::HubClosed), sink);
            }
        }
    }

    // -- rooms without a place --

    /// The place of a room is known: sends it a request that waited for it.
    pub(super) fn send_placed(&mut self, question: Missing, now: Now, sink: &mut impl Sink) {
        match question {
            Missing::Count(ticket, (namespace, topic)) => {
                if let Outcome::Now(count) = self.subscribers(ticket, namespace, &topic, now, sink) {
                    self.answer_count(ticket, count, sink);
                }
            }
            Missing::History(query, ask) => self.history_for(&query, ask, now, sink),
            Missing::Rows(ask) => self.entries_for_shard(*ask, now, sink),
            _ => {}
        }
    }

    /// A room has no place now: answers with the reason, or else as for a room without records.
    pub(super) fn answer_unplaced(
        &mut self,
        question: Missing,
        refused: Option<ErrorCode>,
        sink: &mut impl Sink,
    ) {
        match question {
            Missing::Count(ticket, _) => self.answer_count(ticket, refused.map_or(Ok(0), Err), sink),
            Missing::Rows(ask) => {
                let none = RowPage { is_last: true, ..RowPage::default() };
                self.answer_entries(ask.ticket, refused.map_or(Ok(none), Err), sink);
            }
            Missing::History(query, ask) => {
                let none = HistoryPart { recovered: query.after.is_none(), ..HistoryPart::default() };
                sink.history(ask, refused.map_or(Ok(none), Err));
            }
            _ => {}
        }
    }

    /// A room has no place, and none was to be created: answers its waiting requests up to the first publish
    /// or subscription, which creates a place; later requests wait for that. If the room got a place since,
    /// all wait until this shard has left the previous place.
    pub fn room_absent(&mut self, room: &[u8], sink: &mut impl Sink) {
        if !self.topics.is_unplaced(room) {
            return;
        }
        while let misses = &mut self.relay.misses
            && let Some(miss) = misses.rooms.get_mut(room)
            && miss.waits.front().is_some_and(Missing::is_question)
            && let Some(question) = miss.waits.pop_front()
        {
            if miss.waits.is_empty() {
                misses.rooms.remove(room);
            }
            misses.parked.remove(question.weight());
            self.answer_unplaced(question, None, sink);
        }
    }
}
