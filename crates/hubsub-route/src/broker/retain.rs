//! Retained messages: how the leader of a topic's room handles a retained record.
//!
//! The leader commits and delivers the record, then writes the entry of its topic like any publish: entries
//! are written in the room's order. The publisher is answered when the entry is committed. Until then the
//! topic is *retaining*: a reader of entries first waits for those in flight at the time of its request
//! ([`Broker::settle`], or a count that waits for them).
//!
//! Invariant: a record that was committed before a reader's subscription began is in the entry that it reads,
//! or a later record is.

use super::retaining::{Waits, Writing};
use super::{Broker, Draft, Publisher, Turn};
use crate::rooms::RoomHandle;
use crate::rows::{self, Kept};
use crate::{Asker, Outcome, Published, Reply, Sink, Ticket};
use hubsub_message::{NodeMessage, Record};
use hubsub_types::ErrorCode;
use hubsub_types::names::topic_fits;
use std::sync::atomic::Ordering;

impl Broker {
    pub(super) fn topic_fits(&self, topic: &[u8]) -> bool {
        topic_fits(topic, self.limits.topic_bytes_max)
    }

    /// Whether the record may replace its topic's entry: false if the entry is newer.
    ///
    /// # Errors
    /// Too many entries, or they are too long; or the session of the record has another owner by now.
    pub(super) fn may_keep(&mut self, record: &Record, room: RoomHandle) -> Result<bool, ErrorCode> {
        if record.topic().starts_with(rows::SESSIONS)
            && let Some(slot) = self.rooms.slot_of_room(room)
            && !self.rooms.hubs.get_mut(slot).rows.owners.may_own(record)
        {
            return Err(ErrorCode::NotAllowed);
        }
        let Some(topic) = rows::topic_of(record.topic()) else { return Ok(true) };
        let Some(slot) = self.rooms.slot_of_room(room) else { return Ok(true) };
        let before = self.rooms.hubs.get(slot).rows.get(topic);
        if let (Some(before), Some(kept)) = (before.and_then(|row| Kept::of(row)), Kept::of(record))
            && before.position.epoch == kept.position.epoch
            && before.position.seq > kept.position.seq
        {
            return Ok(false);
        }
        let (messages, bytes) = self.rooms.rows_of_node();
        let is_more = before.is_none() && messages >= self.limits.retained_messages_max;
        let longer = (record.weight() as u64).saturating_sub(before.map_or(0, |row| row.weight() as u64));
        let is_longer = longer > 0 && bytes + longer > self.limits.retained_bytes_max;
        let is_refused = !record.payload().is_empty() && (is_more || is_longer);
        if is_refused { Err(ErrorCode::TooManyRetained) } else { Ok(true) }
    }

    pub(super) fn retain(
        &mut self,
        ticket: Ticket,
        published: Published,
        record: &Record,
        turn: &mut Turn<impl Sink>,
    ) {
        if self.rows_class().is_none() {
            return self.answer_publish(ticket, Ok(published), turn.sink);
        }
        let number = self.retaining.begin(Writing { ticket, published, topic: record.topic().into() });
        self.rooms.row_totals().in_flight.fetch_add(1, Ordering::SeqCst);
        let draft = Draft {
            namespace: crate::Namespace::Global,
            topic: &rows::room_of(record.topic()),
            payload: record.payload(),
            headers: Some(rows::headers_of(record)),
            publisher: Publisher::Told(&record.publisher),
            producer: None,
            qos: record.qos,
            retain: false,
        };
        let ticket = Ticket { shard: self.shard, asker: Asker::Row(number) };
        if let Outcome::Now(outcome) = self.publish(ticket, draft, turn.now, turn.sink) {
            self.entry_written(number, outcome, turn.sink);
        }
    }

    pub(super) fn entry_written(
        &mut self,
        number: u64,
        outcome: Result<Published, ErrorCode>,
        sink: &mut impl Sink,
    ) {
        let Some(Writing { ticket, published, .. }) = self.retaining.end(number) else { return };
        self.rooms.row_totals().in_flight.fetch_sub(1, Ordering::SeqCst);
        self.retained_refused += u64::from(outcome.is_err());
        self.answer_publish(ticket, outcome.map(|_| published), sink);
        for waits in self.retaining.take_done() {
            self.answer_waiting(waits, sink);
        }
    }

    pub(super) fn answer_waiting(&mut self, waits: Waits, sink: &mut impl Sink) {
        match waits {
            Waits::Count(ticket, count) => self.answer_waiting_count(ticket, count, sink),
            Waits::Repeat(ticket, published) => self.answer_publish(ticket, Ok(published), sink),
            Waits::All(shard, number) => self.answer_barrier(shard, number, sink),
        }
    }

    pub(super) fn answer_repeat(&mut self, ticket: Ticket, published: Published, sink: &mut impl Sink) {
        if let Some(waits) = self.retaining.wait(Waits::Repeat(ticket, published)) {
            self.answer_waiting(waits, sink);
        }
    }

    /// A count of subscribers, at once or when the topic's entries that are in flight now are written.
    pub(super) fn count_settled(
        &mut self,
        ticket: Ticket,
        topic: &[u8],
        count: Result<u64, ErrorCode>,
    ) -> Reply<u64> {
        if !self.retaining.has(topic) {
            return Outcome::Now(count);
        }
        self.retaining.wait(Waits::Count(ticket, count));
        Outcome::Later
    }

    fn answer_waiting_count(&mut self, ticket: Ticket, count: Result<u64, ErrorCode>, sink: &mut impl Sink) {
        match ticket.asker {
            Asker::Node { node, ask, hub } => {
                if let Ok(count) = count {
                    self.relay.peers.send(node, hub, NodeMessage::Counted { ask, count }, sink);
                }
            }
            _ => self.answer_count(ticket, count, sink),
        }
    }
}
