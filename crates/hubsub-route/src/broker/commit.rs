//! A record gets its position on the shard of its hub: `commit` does so at once. In a logged class `append`
//! first passes the record to the log, and `release` commits it once it need not wait for the log any more.

use super::publish::{Body, Draft, Publisher, own};
use super::{Broker, Turn};
use crate::hubs::{Pending, Repeat, Waits};
use crate::rooms::{Room, RoomHandle};
use crate::topics::TopicId;
use crate::traces::StepKind;
use crate::{Now, Outcome, Published, Sink, Ticket};
use hubsub_message::{LogPlace, Record, RecordView};
use hubsub_types::{ErrorCode, HubId, Position};
use std::sync::Arc;

impl Broker {
    /// Gives a record its position in its room and its offset in its hub's log, and passes it to the log. It
    /// is committed when it need not wait for the log any more; nobody gets it before that. A repeat of a
    /// producer's record gets no new position, but the reply of the first one.
    pub(super) fn append(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        mut record: Arc<Record>,
        turn: &mut Turn<impl Sink>,
    ) -> Result<Outcome<Published>, ErrorCode> {
        let room = match self.topics.get(id).room {
            room if self.rooms.get(room).is_some() => room,
            _ => {
                self.check_log(&self.classes.room(record.topic()))?;
                self.find_room(id, record.topic(), true, turn.now, turn.sink)?
            }
        };
        match self.repeated(ticket, room, &record, turn.sink)? {
            Some(Outcome::Now(published)) if record.retain => {
                // The first attempt may not have written its entry.
                let kept = Arc::make_mut(&mut record);
                (kept.position, kept.timestamp_us) = (published.position, turn.now.wall_us);
                self.retain(ticket, published, kept, turn);
                return Ok(Outcome::Later);
            }
            Some(outcome) => return Ok(outcome),
            None => {}
        }
        if let Some(refused) = self.rooms.log_of(room).and_then(|log| turn.sink.log_refuses(log.id)) {
            return Err(refused);
        }
        if !self.may_keep(&record, room)? {
            return Ok(Outcome::Now(Published::again(Position::default())));
        }
        // A record that was in flight to another node may still be in a send buffer of the link.
        let fresh = Arc::make_mut(&mut record);
        let offset = self.rooms.append(room, fresh, turn.now);
        if let (Some(log), Some(Room { name, .. })) = (self.rooms.log_of(room), self.rooms.get(room)) {
            turn.sink.append(log.id, offset, name, &record);
        }
        if self.traces.is_on() {
            self.trace_record(&record, StepKind::Logged(offset), turn.sink);
        }
        self.rooms.wait_for_log(Pending { offset, room, waits: Waits::Record(ticket, record) });
        Ok(Outcome::Later)
    }

    /// The outcome of a repeated record; none if it is new or unnumbered.
    ///
    /// # Errors
    /// It is not in the log and will not be, or its state is unknown.
    pub(super) fn repeated(
        &mut self,
        ticket: Ticket,
        room: RoomHandle,
        record: &Record,
        sink: &impl Sink,
    ) -> Result<Option<Outcome<Published>>, ErrorCode> {
        let Some(log) = self.rooms.log_of(room) else { return Ok(None) };
        let position = match log.repeat(record)? {
            None => return Ok(None),
            Some(Repeat::Committed(position)) => return Ok(Some(Outcome::Now(Published::again(position)))),
            Some(Repeat::Pending(position)) => position,
        };
        if sink.log_refuses(log.id) == Some(ErrorCode::LogFailed) {
            return Err(ErrorCode::LogFailed);
        }
        let offset = log.last();
        self.rooms.wait_for_log(Pending { offset, room, waits: Waits::Repeat(ticket, position) });
        Ok(Some(Outcome::Later))
    }
    /// A hub's log has persisted its records up to an offset.
    pub fn logged(&mut self, hub: HubId, offset: u64, now: Now, sink: &mut impl Sink) {
        if let Some(slot) = self.rooms.hubs.slot_of(hub) {
            if let Some(log) = &mut self.rooms.hubs.get_mut(slot).log {
                log.safe_to(offset);
            }
            self.release(slot, &mut Turn { now, sink });
        }
    }

    /// The log persists nothing more: what waits has an unknown outcome; history is answered from now.
    pub fn log_failed(&mut self, now: Now, sink: &mut impl Sink) {
        for waits in self.rooms.hubs.give_up() {
            match waits {
                Waits::Record(ticket, _) | Waits::Repeat(ticket, _) => {
                    self.answer_publish(ticket, Err(ErrorCode::LogFailed), sink)
                }
                Waits::Deletion(ask) => sink.deleted(ask, Err(ErrorCode::LogFailed)),
                Waits::History(query, ask) => {
                    self.answer_waiting_history(&query, ask, &mut Turn { now, sink })
                }
            }
        }
    }

    /// Commits the records of a hub that need not wait for its log any more, in the order of their offsets,
    /// until a shard with interest is congested, and answers the requests that waited for them.
    pub(super) fn release(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        loop {
            let Some(log) = &self.rooms.hubs.get(slot).log else { return };
            let Some(&Pending { room, ref waits, .. }) = log.committable(turn.sink.log_is_behind()) else {
                return;
            };
            let Waits::Record(ticket, record) = waits else {
                match self.rooms.release(slot, 0) {
                    Some(Waits::History(query, ask)) => self.answer_waiting_history(&query, ask, turn),
                    Some(Waits::Deletion(ask)) => turn.sink.deleted(ask, Ok(())),
                    Some(Waits::Repeat(ticket, position)) => {
                        self.answer_repeat(ticket, Published::again(position), turn.sink);
                    }
                    Some(Waits::Record(..)) | None => unreachable!("it was looked at above"),
                }
                continue;
            };
            let (ticket, record) = (*ticket, Arc::clone(record));
            let id = self.topics.intern(record.namespace, record.topic());
            let audience = self.audience(id, room, record.namespace, record.topic(), turn.sink);
            let body = Body::Record(record);
            let (Some(audience), Some(picks)) = (audience, self.picks(id, &body, turn.sink)) else {
                self.backlog.blocks_log = true;
                return;
            };
            let Body::Record(record) = body else { unreachable!("made above") };
            let receivers = audience.receivers + picks.len() as u64;
            let position = record.position;
            if self.traces.is_on() {
                self.trace_release(slot, &record, receivers, turn.sink);
            }
            self.rooms.release(slot, receivers);
            let published = Published { receivers, position, is_duplicate: false };
            self.rooms.remember(room, Arc::clone(&record));
            self.count(id, room, record.said_bytes(), receivers);
            self.deliver_committed(id, room, &record, &audience, turn.sink);
            self.deliver_to_groups(id, &record, picks, turn);
            if record.retain {
                self.retain(ticket, published, &record, turn);
            } else {
                self.answer_publish(ticket, Ok(published), turn.sink);
            }
        }
    }

    /// Gives a record its position and delivers it; returns it if a shard with interest is congested.
    pub(super) fn commit(
        &mut self,
        id: TopicId,
        body: Body<'_>,
        turn: &mut Turn<impl Sink>,
    ) -> Result<Result<Published, ErrorCode>, Arc<Record>> {
        let (namespace, name, bytes) = match &body {
            Body::Draft(Draft { namespace, topic, payload, .. }) => {
                (*namespace, *topic, (topic.len() + payload.len()) as u64)
            }
            Body::Record(record) => (record.namespace, record.topic(), record.said_bytes()),
        };
        let topic = self.topics.get(id);
        let class = self.classes.get(topic.class);
        let (remembers, on_slow) = (class.history.is_some(), class.on_slow);
        let names = class.names_publishers();
        let room = match topic.room {
            room if self.rooms.get(room).is_some() => room,
            _ => match self.find_room(id, name, remembers, turn.now, turn.sink) {
                Ok(room) => room,
                Err(refused) => return Ok(Err(refused)),
            },
        };
        if let Body::Record(record) = &body {
            match self.may_keep(record, room) {
                Ok(true) => {}
                Ok(false) => return Ok(Ok(Published::again(Position::default()))),
                Err(refused) => return Ok(Err(refused)),
            }
        }
        let audience = self.audience(id, room, namespace, name, turn.sink);
        let (Some(audience), Some(picks)) = (audience, self.picks(id, &body, turn.sink)) else {
            return Err(own(body, names, turn.sink));
        };
        let receivers = audience.receivers + picks.len() as u64;
        let (position, timestamp_us) = self.rooms.next_position(room, turn.now);
        self.count(id, room, bytes, receivers);
        if self.traces.is_on() {
            self.trace_position((namespace, name), position, StepKind::Committed(receivers), turn.sink);
        }
        match body {
            Body::Draft(draft) if !remembers && audience.holders.is_empty() && picks.is_empty() => {
                if audience.is_local {
                    let Draft { topic, payload, ref headers, publisher, qos, retain, .. } = draft;
                    let headers = headers.as_deref().unwrap_or_default();
                    let publisher = if let Publisher::Told(name) = publisher { name } else { "" };
                    let record = RecordView {
                        namespace,
                        topic,
                        payload,
                        headers,
                        publisher,
                        position,
                        place: LogPlace::default(),
                        timestamp_us,
                        qos,
                        retain,
                        on_slow,
                    };
                    let matched = audience.matched.as_deref();
                    let of = (self.rooms.revision(room).unwrap_or(0), position.seq);
                    if self.is_current(id, of, matched.is_some_and(|ids| !ids.is_empty())) {
                        self.fan_out(id, &record, matched, turn.sink);
                    }
                }
            }
            body => {
                let mut record = own(body, names, turn.sink);
                let fresh = Arc::make_mut(&mut record);
                (fresh.position, fresh.timestamp_us) = (position, timestamp_us);
                if remembers {
                    self.rooms.remember(room, Arc::clone(&record));
                }
                self.deliver_committed(id, room, &record, &audience, turn.sink);
                self.deliver_to_groups(id, &record, picks, turn);
                self.end_row(room, &record);
            }
        }
        Ok(Ok(Published { receivers, position, is_duplicate: false }))
    }

    /// The room of a topic whose hub is here, created if its class has history; otherwise possibly none.
    fn find_room(
        &mut self,
        id: TopicId,
        name: &[u8],
        remembers: bool,
        now: Now,
        sink: &impl Sink,
    ) -> Result<RoomHandle, ErrorCode> {
        let room = if remembers {
            let name = self.classes.room(name);
            self.rooms.open(&name, now, |hub| sink.recall(hub, &name))?
        } else {
            self.rooms.find_of_topic(name).unwrap_or(RoomHandle::NONE)
        };
        self.topics.get_mut(id).room = room;
        Ok(room)
    }
}
