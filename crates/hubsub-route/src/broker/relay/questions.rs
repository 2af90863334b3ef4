//! Requests about a room that do not create it: number of subscribers, history. The room's home answers, or
//! asks its leader. If the room's place is not known here, or no leader is reachable, they wait like
//! publishes; requests for entries are repeated by the requester instead.
//!
//! Invariant: a waiting request is answered once: by the home, or with an error when its time has passed; if
//! the room has no place, as for a room without records.

use super::{Broker, Turn};
use crate::places::UNPLACED;
use crate::relay::{
    HubState, InFlight, Leader, Missing, Question, READ_BYTES_MAX, READ_RECORDS_MAX, Request,
};
use crate::requests::{Ask, HistoryPart, HistoryQuery};
use crate::ring::NOWHERE;
use crate::rows::RowPage;
use crate::topics::TopicId;
use crate::{Asker, Msg, Namespace, Now, Outcome, Reply, Sink, Start, Ticket};
use hubsub_message::{Names, NodeMessage};
use hubsub_types::{ErrorCode, ShardId};

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

    /// The number of subscribers in the whole cluster. [`Outcome::Later`] promises an [`Answer::Counted`].
    pub fn subscribers(
        &mut self,
        ticket: Ticket,
        namespace: Namespace,
        topic: &[u8],
        now: Now,
        sink: &mut impl Sink,
    ) -> Reply<u64> {
        let turn = &mut Turn { now, sink };
        if self.is_outside(&self.classes.room(topic)) {
            return Outcome::Now(Err(ErrorCode::HubClosed));
        }
        let id = self.topics.intern(namespace, topic);
        if self.topics.get(id).shard == NOWHERE && !self.found(id) {
            let question = Missing::Count(ticket, self.key_of(id));
            let asked = self.miss(self.room_of(topic), question, turn);
            return asked.map_or(Outcome::Now(Err(ErrorCode::LinkFull)), |()| Outcome::Later);
        }
        let shard = self.topics.get(id).shard;
        if shard != self.shard {
            let key = self.key_of(id);
            turn.sink.send(shard, Msg::Count(ticket, key));
            return Outcome::Later;
        }
        self.count_here(ticket, id, turn)
    }

    pub(crate) fn count_here(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        turn: &mut Turn<impl Sink>,
    ) -> Reply<u64> {
        let (namespace, name) = self.key_of(id);
        let Some(slot) = self.relayed_slot(&self.classes.room(&name)) else {
            let room = self.rooms.find_of_topic(&name);
            let counts = room.and_then(|room| self.rooms.counts_of(room, namespace, &name));
            let count = Ok(counts.map_or(0, |counts| counts.total()));
            let settles = matches!(ticket.asker, Asker::Retained { .. });
            return if settles { self.count_settled(ticket, &name, count) } else { Outcome::Now(count) };
        };
        let asked = self.request_from_leader(slot, Missing::Count(ticket, (namespace, name)), turn);
        asked.map_or(Outcome::Now(Err(ErrorCode::LinkFull)), |()| Outcome::Later)
    }

    /// Passes on a history request whose room has no known place, or another home. None: it is here.
    pub(crate) fn pass_history(
        &mut self,
        query: &HistoryQuery,
        ask: Ask,
        turn: &mut Turn<impl Sink>,
    ) -> Option<Result<(), ErrorCode>> {
        let waits = self.relay.misses.rooms.contains_key(query.room.as_slice());
        if waits || self.topics.place(&query.room).1 == UNPLACED {
            let question = Missing::History(Box::new(query.clone()), ask);
            let asked = self.miss(query.room.as_slice().into(), question, turn);
            return Some(asked.map_err(|_| ErrorCode::LinkFull));
        }
        let home = self.topics.shard_of_room(&query.room);
        if home == self.shard {
            return None;
        }
        turn.sink.send(home, Msg::History(Box::new((query.clone(), ask))));
        Some(Ok(()))
    }

    /// As `history`, for a request that another shard has passed on, or that waited here.
    pub(crate) fn history_for(&mut self, query: &HistoryQuery, ask: Ask, turn: &mut Turn<impl Sink>) {
        if let Some(part) = self.history(query, ask, turn.now, turn.sink).transpose() {
            turn.sink.history(ask, part);
        }
    }

    /// Whether a room's hub has its home elsewhere or a reachable leader: otherwise a request waits.
    pub fn reaches(&self, room: &[u8]) -> bool {
        self.relayed_slot(room).is_none_or(|slot| self.relay.leader_of(slot).is_some())
    }

    pub(crate) fn update_reach(&mut self, slot: u16, sink: &mut impl Sink) {
        let hub = self.rooms.hubs.get(slot);
        if Some(hub.class) != self.rows_class() {
            return;
        }
        let index = hub.index;
        let is_away = self.relay.hub(slot).leader != Leader::Me && self.relay.leader_of(slot).is_none();
        let refused = if is_away { self.relay.take_rows(slot) } else { Vec::new() };
        self.rooms.row_totals().set_away(index, is_away);
        for question in refused {
            self.answer_unplaced(question.what, Some(ErrorCode::HubClosed), sink);
        }
    }

    /// Sends a request to a hub's leader, or lets it wait like a publish. Returned: the buffer is full.
    pub(crate) fn request_from_leader(
        &mut self,
        slot: u16,
        what: Missing,
        turn: &mut Turn<impl Sink>,
    ) -> Result<(), Missing> {
        let until_ms = turn.now.mono_ms + self.relay.limits.parked_ms;
        self.request_or_wait(slot, Question { what, until_ms }, turn.sink).map_err(|question| question.what)
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
        let what = Request::Question(question);
        self.relay.requests.insert(ask, InFlight { to, slot, term, what, records: Vec::new(), bytes: 0 });
        self.relay.peers.send(to, hub, message, sink);
        Ok(())
    }

    /// An unanswered request waits for its hub's next leader.
    pub(crate) fn keep_question(&mut self, slot: u16, question: Question, sink: &mut impl Sink) {
        if let Err(question) = self.relay.wait_for_leader(slot, question) {
            self.answer_unplaced(question.what, Some(ErrorCode::LinkFull), sink);
        }
    }

    /// Sends requests that waited for a hub's leader to where their rooms are now.
    pub(crate) fn resend_waiting(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        for _ in 0..self.relay.hub(slot).questions.len() {
            let Some(question) = self.relay.take_question(slot) else { return };
            let is_relayed = match &question.what {
                // Their hub is known, and may be led here now.
                Missing::Rows(_) => self.rooms.hubs.get(slot).is_relayed,
                Missing::Count(_, (_, topic)) => self.relayed_slot(&self.classes.room(topic)) == Some(slot),
                Missing::History(query, _) => self.relayed_slot(&query.room) == Some(slot),
                _ => continue,
            };
            if !is_relayed {
                self.send_placed(question.what, turn);
            } else if let Err(question) = self.request_or_wait(slot, question, turn.sink) {
                self.answer_unplaced(question.what, Some(ErrorCode::LinkFull), turn.sink);
            }
        }
    }

    pub(crate) fn expire_questions(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        while let Some(first) = self.relay.hub(slot).questions.front() {
            let until_ms = first.until_ms;
            if until_ms > turn.now.mono_ms {
                return self.relay.wake_by(until_ms);
            }
            if let Some(question) = self.relay.take_question(slot) {
                self.answer_unplaced(question.what, Some(ErrorCode::HubClosed), turn.sink);
            }
        }
    }

    pub(crate) fn send_placed(&mut self, question: Missing, turn: &mut Turn<impl Sink>) {
        match question {
            Missing::Count(ticket, (namespace, topic)) => {
                if let Outcome::Now(count) = self.subscribers(ticket, namespace, &topic, turn.now, turn.sink)
                {
                    self.answer_count(ticket, count, turn.sink);
                }
            }
            Missing::History(query, ask) => self.history_for(&query, ask, turn),
            Missing::Rows(ask) => self.entries_for_shard(*ask, turn),
            _ => {}
        }
    }

    /// A room has no place now: answers with the reason, or else as for a room without records.
    pub(crate) fn answer_unplaced(
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
