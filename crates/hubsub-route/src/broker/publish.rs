//! The way of a publish: `publish` on the edge, `lead` on the hub's shard,
//! `commit`, and `fan_out` on every shard with interest. In a logged class there
//! is `append` between: the record has its position and waits for the log, and
//! `release` commits it.

use super::Broker;
use super::relay::Gone;
use crate::counts::HolderSet;
use crate::cursors::{CursorKey, Cursors, Key};
use crate::hubs::{Pending, Waits};
use crate::producers::Producer;
use crate::record::{Headers, LogPlace, Namespace, Record, RecordView};
use crate::ring::NOWHERE;
use crate::rooms::{Room, RoomHandle};
use crate::topics::TopicId;
use crate::{Answer, Asker, CloseReason, Delivery, Msg, Now, Outcome, Published, Sink, Ticket, Via};
use hubsub_types::{Class, ErrorCode, HubId, OnSlow, Position, Qos, ShardId};
use std::rc::Rc;
use std::sync::Arc;

/// A publish that has no position yet.
pub struct Draft<'a> {
    /// With the topic, where to.
    pub namespace: Namespace,
    /// See `namespace`.
    pub topic: &'a [u8],
    /// What.
    pub payload: &'a [u8],
    /// Beside it.
    pub headers: Headers,
    /// Who.
    pub publisher: Publisher<'a>,
    /// Who numbered it, if somebody did.
    pub producer: Option<Producer>,
    /// How surely it is to arrive, at most; see [`Qos::ExactlyOnce`].
    pub qos: Qos,
    /// Whether its topic keeps it, for those who subscribe later.
    pub retain: bool,
}

/// Who publishes; its name is asked for only when the record is kept or travels.
#[derive(Clone, Copy, Debug)]
pub enum Publisher<'a> {
    /// By name.
    Name(&'a str),
    /// By a name that travels with the record also where nobody remembers it: a subscriber of
    /// that name does not get it.
    Told(&'a str),
    /// A connection of this shard.
    Conn(u32),
}

/// Who gets a record.
struct Audience {
    /// Other shards, and nodes.
    holders: HolderSet,
    /// Whether this shard does, too.
    is_local: bool,
    /// Subscribers in the whole room, patterns included.
    receivers: u64,
    /// Patterns that match.
    matched: Option<Rc<[u32]>>,
}

/// A record as a publish brought it, or as it came from another shard.
pub(super) enum Body<'a> {
    Draft(Draft<'a>),
    Record(Arc<Record>),
}

impl Broker {
    /// A publish from a connection of this shard. [`Outcome::Later`] promises
    /// one [`Answer::Published`] to the ticket's asker.
    pub fn publish(
        &mut self,
        ticket: Ticket,
        draft: Draft<'_>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<Published, ErrorCode>> {
        self.publish_body(ticket, Body::Draft(draft), now, sink)
    }

    /// Likewise of a record that was made already: a long one, that is not to be copied.
    pub fn publish_record(
        &mut self,
        ticket: Ticket,
        record: Record,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<Published, ErrorCode>> {
        self.publish_body(ticket, Body::Record(Arc::new(record)), now, sink)
    }

    #[inline]
    fn publish_body(
        &mut self,
        ticket: Ticket,
        body: Body<'_>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<Published, ErrorCode>> {
        let (namespace, topic, payload_bytes, is_numbered, retain) = match &body {
            Body::Draft(draft) => {
                let is_numbered = draft.producer.is_some();
                (draft.namespace, draft.topic, draft.payload.len(), is_numbered, draft.retain)
            }
            Body::Record(record) => {
                let is_numbered = record.producer().is_some();
                (record.namespace, record.topic(), record.payload().len(), is_numbered, record.retain)
            }
        };
        if !self.topic_fits(topic) {
            return Outcome::Now(Err(ErrorCode::TopicLength));
        }
        let id = self.topics.intern(namespace, topic);
        let known = self.topics.get(id);
        let class = self.classes.get(known.class);
        if payload_bytes as u64 > class.payload_bytes_max {
            return Outcome::Now(Err(ErrorCode::PayloadLength));
        }
        if is_numbered && !class.durability.is_logged() {
            return Outcome::Now(Err(ErrorCode::NotLogged));
        }
        let (remembers, shard) = (class.names_publishers(), known.shard);
        if let Asker::Client { conn, .. } = ticket.asker
            && !matches!(&body, Body::Draft(Draft { publisher: Publisher::Name(_), .. }))
        {
            self.count_publish(conn.index, id, now);
        }
        if shard != self.shard {
            let revision = self.topics.revision(id);
            if shard == NOWHERE && self.found(id) {
                return self.publish_body(ticket, body, now, sink);
            }
            let record = own(body, remembers, sink);
            if shard == NOWHERE {
                return self.miss_publish(ticket, id, record, now, sink);
            }
            sink.send(shard, Msg::Publish(ticket, record, revision));
            return Outcome::Later;
        }
        if self.relay.is_some() {
            let revision = self.topics.revision(id);
            let Ok(slot) = self.stands(id, revision, now, sink) else {
                let record = own(body, remembers, sink);
                let room = self.classes.room(record.topic()).as_ref().into();
                self.leave_room(&room, self.shard, now, sink);
                let id = self.topics.intern(record.namespace, record.topic());
                return self.miss_publish(ticket, id, record, now, sink);
            };
            if self.is_held(slot, sink) {
                let record = own(body, remembers, sink);
                return self.forward(ticket, slot, record, now, sink);
            }
        }
        // Where a room was closed other topics were looked at, and this one may have been forgotten.
        let id = if self.relay.is_some() { self.topics.intern(namespace, topic) } else { id };
        let class = self.classes.get(self.topics.get(id).class);
        if class.commit_delay_ms > 0
            || (!self.stalled.is_empty() && !class.durability.is_logged())
            || ((retain || class.keeps_latest) && !class.durability.is_logged())
        {
            let record = own(body, remembers, sink);
            self.lead_now(ticket, id, record, now, sink);
            return Outcome::Later;
        }
        if class.durability.is_logged() {
            let record = own(body, remembers, sink);
            return match self.append(ticket, id, record, now, sink) {
                Ok(Outcome::Later) => Outcome::Later,
                Ok(Outcome::Now(published)) => Outcome::Now(Ok(published)),
                Err(refused) => Outcome::Now(Err(refused)),
            };
        }
        match self.commit(id, body, now, sink) {
            Ok(published) => Outcome::Now(published),
            Err(record) => {
                self.stalled.push_back((ticket, record));
                Outcome::Later
            }
        }
    }

    /// Whether publishes to a topic wait for a log.
    pub fn is_logged(&mut self, namespace: Namespace, topic: &[u8]) -> bool {
        self.class_of(namespace, topic).durability.is_logged()
    }

    /// The class of a topic's room, as this shard knows it.
    #[must_use]
    pub fn class_of(&mut self, namespace: Namespace, topic: &[u8]) -> &Class {
        let id = self.topics.intern(namespace, topic);
        self.classes.get(self.topics.get(id).class)
    }

    /// A publish of a shard whose hub is here, by the revision by which the shard knows its room, and whose answer is
    /// due later.
    pub(super) fn lead(
        &mut self,
        ticket: Ticket,
        record: Arc<Record>,
        revision: u64,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if self.relay.is_some() {
            let id = self.topics.intern(record.namespace, record.topic());
            return match self.stands(id, revision, now, sink) {
                Ok(_) if self.is_to_leave(ticket.shard, &record) => {
                    self.publish_again(ticket, record, now, sink);
                }
                Ok(slot) => self.lead_here(ticket, slot, record, now, sink),
                Err(Gone::Moved) => self.publish_again(ticket, record, now, sink),
                Err(Gone::Elsewhere) => self.lead_elsewhere(ticket, record, now, sink),
            };
        }
        let id = self.topics.intern(record.namespace, record.topic());
        self.lead_now(ticket, id, record, now, sink);
    }

    /// Likewise in a cluster, of a shard or a node, whose room is of this hub.
    pub(super) fn lead_here(
        &mut self,
        ticket: Ticket,
        slot: u16,
        record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if self.is_held(slot, sink) {
            return self.forward_or_tell(ticket, slot, record, now, sink);
        }
        let id = self.topics.intern(record.namespace, record.topic());
        self.lead_now(ticket, id, record, now, sink);
    }

    fn lead_now(&mut self, ticket: Ticket, id: TopicId, record: Arc<Record>, now: Now, sink: &mut impl Sink) {
        let delay_ms = self.classes.get(self.topics.get(id).class).commit_delay_ms;
        if delay_ms > 0 {
            self.delayed_next += 1;
            self.delayed.insert((now.mono_ms + delay_ms, self.delayed_next), (ticket, record));
        } else {
            self.commit_owned(ticket, record, now, sink);
        }
    }

    /// Commits where the hub is led by now.
    pub(super) fn commit_owned(
        &mut self,
        ticket: Ticket,
        record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if self.relay.is_some() {
            let id = self.topics.intern(record.namespace, record.topic());
            let Some(slot) = self.slot_of_topic(id) else {
                return self.publish_elsewhere(ticket, record, now, sink);
            };
            if self.is_held(slot, sink) {
                return self.forward_or_tell(ticket, slot, record, now, sink);
            }
        }
        self.commit_led(ticket, record, now, sink);
    }

    /// Commits behind those that are held up, if there are any.
    pub(super) fn commit_led(&mut self, ticket: Ticket, record: Arc<Record>, now: Now, sink: &mut impl Sink) {
        let id = self.topics.intern(record.namespace, record.topic());
        if self.relay.is_some() && self.is_gone(id) {
            return self.publish_elsewhere(ticket, record, now, sink);
        }
        if self.classes.get(self.topics.get(id).class).durability.is_logged() {
            return match self.append(ticket, id, record, now, sink) {
                Ok(Outcome::Later) => {}
                Ok(Outcome::Now(published)) => self.tell_published(ticket, Ok(published), sink),
                Err(refused) => self.tell_published(ticket, Err(refused), sink),
            };
        }
        if !self.stalled.is_empty() {
            return self.stalled.push_back((ticket, record));
        }
        if let Err(record) = self.commit_and_tell(ticket, id, record, now, sink) {
            self.stalled.push_back((ticket, record));
        }
    }

    /// Commits, and tells who published, when a record that its topic keeps is kept. Gives it back as `commit` does.
    pub(super) fn commit_and_tell(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Result<(), Arc<Record>> {
        let retained = record.retain.then(|| Arc::clone(&record));
        let published = self.commit(id, Body::Record(record), now, sink)?;
        match (retained, published) {
            (Some(mut record), Ok(published)) => {
                let kept = Arc::make_mut(&mut record);
                (kept.position, kept.timestamp_us) = (published.position, now.wall_us);
                self.retain(ticket, published, kept, now, sink);
            }
            (_, published) => self.tell_published(ticket, published, sink),
        }
        Ok(())
    }

    pub(super) fn tell_published(
        &mut self,
        to: Ticket,
        published: Result<Published, ErrorCode>,
        sink: &mut impl Sink,
    ) {
        match to.asker {
            Asker::Node { node, ask, hub } => self.tell_node_published((node, ask, hub), published, sink),
            _ if to.shard != self.shard => sink.send(to.shard, Msg::Published(to, published)),
            Asker::Row(number) => self.row_written(number, published, sink),
            asker => sink.answer(asker, Answer::Published(published)),
        }
    }

    /// Gives a record its place in its room and in its hub's log, which gets it. It is
    /// committed when the log has made it safe: nobody hears of it before. One that its
    /// producer sent before gets no place, but the answer of then.
    fn append(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        mut record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Result<Outcome<Published>, ErrorCode> {
        let room = match self.topics.get(id).room {
            room if self.rooms.get(room).is_some() => room,
            _ => {
                self.lacks_log(&self.classes.room(record.topic())).map_or(Ok(()), Err)?;
                self.find_room(id, record.topic(), true, now, sink)?
            }
        };
        match self.repeated(ticket, room, &record, sink)? {
            Some(Outcome::Now(published)) if record.retain => {
                // Its row may never have been written.
                let kept = Arc::make_mut(&mut record);
                (kept.position, kept.timestamp_us) = (published.position, now.wall_us);
                self.retain(ticket, published, kept, now, sink);
                return Ok(Outcome::Later);
            }
            Some(outcome) => return Ok(outcome),
            None => {}
        }
        if let Some(refused) = self.rooms.log_of(room).and_then(|log| sink.log_refuses(log.id)) {
            return Err(refused);
        }
        if !self.may_keep(&record, room)? {
            return Ok(Outcome::Now(Published::again(Position::default())));
        }
        // One that was under way to another node may still be on its way out there.
        let fresh = Arc::make_mut(&mut record);
        let offset = self.rooms.append(room, fresh, now);
        if let (Some(log), Some(Room { name, .. })) = (self.rooms.log_of(room), self.rooms.get(room)) {
            sink.append(log.id, offset, name, &record);
        }
        self.rooms.wait_for_log(Pending { offset, room, waits: Waits::Record(ticket, record) });
        Ok(Outcome::Later)
    }

    /// A hub's log has made its records up to an offset safe.
    pub fn logged(&mut self, hub: HubId, offset: u64, now: Now, sink: &mut impl Sink) {
        if let Some(slot) = self.rooms.hubs.slot_of(hub) {
            if let Some(log) = &mut self.rooms.hubs.get_mut(slot).log {
                log.safe_to(offset);
            }
            self.release(slot, now, sink);
        }
    }

    /// The log makes nothing safe any more: what came of the records that wait is not known.
    /// Questions that waited behind them see what there is, as later ones do.
    pub fn log_failed(&mut self, now: Now, sink: &mut impl Sink) {
        for waits in self.rooms.hubs.give_up() {
            match waits {
                Waits::Record(ticket, _) | Waits::Repeat(ticket, _) => {
                    self.tell_published(ticket, Err(ErrorCode::LogFailed), sink)
                }
                Waits::Deletion(ask) => sink.deleted(ask, Err(ErrorCode::LogFailed)),
                Waits::History(query, ask) => self.tell_history(&query, ask, now, sink),
            }
        }
    }

    /// Commits a hub's records that may be, in the order of their offsets, as far as
    /// no shard with interest is behind, and answers who waited for them.
    pub(super) fn release(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        loop {
            let Some(log) = &self.rooms.hubs.get(slot).log else { return };
            let Some(&Pending { room, ref waits, .. }) = log.committable(sink.log_is_behind()) else {
                return;
            };
            let Waits::Record(ticket, record) = waits else {
                match self.rooms.release(slot, 0) {
                    Some(Waits::History(query, ask)) => self.tell_history(&query, ask, now, sink),
                    Some(Waits::Deletion(ask)) => sink.deleted(ask, Ok(())),
                    Some(Waits::Repeat(ticket, position)) => {
                        self.tell_repeat(ticket, Published::again(position), sink);
                    }
                    Some(Waits::Record(..)) | None => unreachable!("it was looked at above"),
                }
                continue;
            };
            let (ticket, record) = (*ticket, Arc::clone(record));
            let id = self.topics.intern(record.namespace, record.topic());
            let audience = self.audience(id, room, record.namespace, record.topic(), sink);
            let body = Body::Record(record);
            let Some((audience, picks)) = audience.zip(self.picks(id, &body, sink)) else {
                self.is_held_up = true;
                return;
            };
            let Body::Record(record) = body else { unreachable!("made above") };
            let receivers = audience.receivers + picks.len() as u64;
            let position = record.position;
            self.rooms.release(slot, receivers);
            let published = Published { receivers, position, is_duplicate: false };
            self.rooms.remember(room, Arc::clone(&record));
            self.count(id, room, record.said_bytes(), receivers);
            self.hand_out(id, room, &record, &audience, sink);
            self.hand_to_groups(id, &record, picks, now, sink);
            if record.retain {
                self.retain(ticket, published, &record, now, sink);
            } else {
                self.tell_published(ticket, Ok(published), sink);
            }
        }
    }

    /// Gives the record its position and sends it on its way. Gives it back,
    /// with nothing done, when a shard with interest is too far behind.
    pub(super) fn commit(
        &mut self,
        id: TopicId,
        body: Body<'_>,
        now: Now,
        sink: &mut impl Sink,
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
            _ => match self.find_room(id, name, remembers, now, sink) {
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
        let audience = self.audience(id, room, namespace, name, sink);
        let Some((audience, picks)) = audience.zip(self.picks(id, &body, sink)) else {
            return Err(own(body, names, sink));
        };
        let receivers = audience.receivers + picks.len() as u64;
        let (position, timestamp_us) = self.rooms.next_position(room, now);
        self.count(id, room, bytes, receivers);
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
                        self.fan_out(id, &record, matched, sink);
                    }
                }
            }
            body => {
                let mut record = own(body, names, sink);
                let fresh = Arc::make_mut(&mut record);
                (fresh.position, fresh.timestamp_us) = (position, timestamp_us);
                if remembers {
                    self.rooms.remember(room, Arc::clone(&record));
                }
                self.hand_out(id, room, &record, &audience, sink);
                self.hand_to_groups(id, &record, picks, now, sink);
                self.end_row(room, &record);
            }
        }
        Ok(Ok(Published { receivers, position, is_duplicate: false }))
    }

    /// Who gets a record of a topic; nobody says, when a shard with interest is too
    /// far behind.
    fn audience(
        &mut self,
        id: TopicId,
        room: RoomHandle,
        namespace: Namespace,
        name: &[u8],
        sink: &impl Sink,
    ) -> Option<Audience> {
        let is_room = self.topics.get(id).is_room();
        let mut holders = HolderSet::default();
        let mut receivers = self.rooms.interest(room, is_room, namespace, name, &mut holders);
        let matched = self.matching(namespace, name);
        for &pattern in matched.iter().flat_map(|m| m.iter()) {
            let counts = &self.patterns.get(pattern).counts;
            counts.holders(&mut holders);
            receivers += counts.total();
        }
        let is_local = holders.remove(self.shard);
        if !holders.is_empty() && self.is_congested(id, &mut holders, sink) {
            return None;
        }
        Some(Audience { holders, is_local, receivers, matched })
    }

    /// Whether a shard with interest is behind, or a node's link takes no more. A node whose link for
    /// the topic's hub is down gets nothing.
    fn is_congested(&mut self, id: TopicId, holders: &mut HolderSet, sink: &impl Sink) -> bool {
        if holders.has_nodes(self.shards) {
            return self.is_congested_somewhere(id, holders, sink);
        }
        holders.iter().any(|shard| sink.congested(ShardId(shard.0)))
    }

    /// Sends a committed record to every shard and node with interest.
    fn hand_out(
        &mut self,
        id: TopicId,
        room: RoomHandle,
        record: &Arc<Record>,
        audience: &Audience,
        sink: &mut impl Sink,
    ) {
        let revision = self.rooms.revision(room).unwrap_or(0);
        for holder in audience.holders.iter() {
            if holder.0 < self.shards {
                sink.send(ShardId(holder.0), Msg::Deliver(Arc::clone(record), revision));
            } else {
                self.send_record(room, id, holder, record, sink);
            }
        }
        if audience.is_local {
            self.fan_out_current(id, record, revision, audience.matched.as_deref(), sink);
        }
    }

    /// A committed record for the connections of this shard, if its room is here as it was where that was committed.
    pub(super) fn fan_out_current(
        &mut self,
        id: TopicId,
        record: &Arc<Record>,
        revision: u64,
        matched: Option<&[u32]>,
        sink: &mut impl Sink,
    ) {
        let of = (revision, record.position.seq);
        if self.is_current(id, of, matched.is_some_and(|ids| !ids.is_empty())) {
            let on_slow = self.classes.get(self.topics.get(id).class).on_slow;
            self.fan_out(id, &record.view(on_slow), matched, sink);
        }
    }

    /// Looks for the room of a topic whose hub is here; makes it if its class
    /// remembers. Else there may be none.
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

    pub(super) fn matching(&mut self, namespace: Namespace, topic: &[u8]) -> Option<Rc<[u32]>> {
        let asks = namespace == Namespace::Global && !self.patterns.is_empty();
        asks.then(|| self.patterns.matching(topic))
    }

    /// A committed record for the connections of this shard: those of the topic
    /// first, then those of patterns.
    pub(super) fn fan_out(
        &mut self,
        id: TopicId,
        record: &RecordView<'_>,
        matched: Option<&[u32]>,
        sink: &mut impl Sink,
    ) {
        let topic = self.topics.get(id);
        let class = self.classes.get(topic.class);
        let cursors = &mut self.cursors;
        let lagging = cursors.len();
        cursors.hubs.record_begins();
        sink.record_begins();
        for &conn in topic.subs.as_slice() {
            deliver(cursors, class, conn, Via::Topic, record, sink);
        }
        for &id in matched.unwrap_or_default() {
            let pattern = self.patterns.get(id);
            for &conn in pattern.subs.as_slice() {
                deliver(cursors, class, conn, Via::Pattern(id, &pattern.source), record, sink);
            }
        }
        self.catch_ups += (cursors.len() - lagging) as u64;
    }
}

/// A record that outlives its publish. Only history, and groups that share by that, ask who published it.
fn own(body: Body<'_>, names_publishers: bool, sink: &impl Sink) -> Arc<Record> {
    let draft = match body {
        Body::Record(record) => return record,
        Body::Draft(draft) => draft,
    };
    let Draft { namespace, topic, payload, headers, publisher, producer, qos, retain } = draft;
    let publisher = match publisher {
        Publisher::Told(name) => name.into(),
        _ if !names_publishers => Box::default(),
        Publisher::Name(name) => name.into(),
        Publisher::Conn(conn) => sink.publisher(conn),
    };
    let record = Record::new(namespace, topic, payload, publisher, headers);
    Arc::new(record.of_qos(qos).retained(retain).from_producer(producer))
}

/// One record for one connection: live, passed by, or by its class's policy.
fn deliver(
    cursors: &mut Cursors,
    class: &Class,
    conn: u32,
    via: Via<'_>,
    record: &RecordView<'_>,
    sink: &mut impl Sink,
) {
    let pattern = match via {
        Via::Topic | Via::Group(_) => None,
        Via::Pattern(id, _) => Some(id),
    };
    if cursors.has(conn) && cursors.holds(conn, Key(pattern, record.namespace, record.topic)) {
        return;
    }
    if pattern.is_some_and(|pattern| !cursors.hubs.takes(conn, pattern, record.place)) {
        return;
    }
    if sink.deliver(conn, via, record) == Delivery::Taken {
        return;
    }
    match class.on_slow {
        OnSlow::CatchUp if pattern.is_some_and(|it| cursors.hubs.refused(conn, it, record.place)) => {}
        OnSlow::DropOldest | OnSlow::Conflate => sink.squeeze(conn, via, record, class.on_slow, class.on_gap),
        OnSlow::CatchUp if class.history.is_some() => {
            let key = CursorKey { pattern, namespace: record.namespace, topic: record.topic.into() };
            if !cursors.set(conn, key, Some(record.position)) {
                sink.close(conn, CloseReason::TooManyCursors);
            }
        }
        OnSlow::CatchUp | OnSlow::Disconnect => sink.close(conn, CloseReason::OutputLimit),
    }
}
