//! The path of a publish: the edge looks its topic up once, and with it the [`Route`] of its room. Where the
//! room is led the record gets its position ([`super::commit`]) and is delivered to all shards and nodes with
//! interest ([`super::delivery`]).

use super::Broker;
use super::relay::Gone;
use crate::ring::NOWHERE;
use crate::topics::TopicId;
use crate::traces::StepKind;
use crate::{Answer, Asker, Msg, Now, Outcome, Published, Sink, Ticket};
use hubsub_message::{Headers, Namespace, Producer, Record};
use hubsub_types::{Class, ErrorCode, Qos, ShardId};
use std::sync::Arc;

/// A publish that has no position yet.
pub struct Draft<'a> {
    pub namespace: Namespace,
    pub topic: &'a [u8],
    pub payload: &'a [u8],
    pub headers: Headers,
    pub publisher: Publisher<'a>,
    /// The producer that numbered it, if any.
    pub producer: Option<Producer>,
    /// Highest QoS with which the publisher wants it delivered; see [`Qos::ExactlyOnce`].
    pub qos: Qos,
    /// Whether its topic retains it for later subscribers.
    pub retain: bool,
}

/// The publisher. Its name is resolved only when the record is stored or sent on.
#[derive(Clone, Copy, Debug)]
pub enum Publisher<'a> {
    Name(&'a str),
    /// A name that is sent with the record even where history does not store it: a subscriber of that name
    /// does not get the record. It is a name as records carry it, see [`crate::publisher_name`].
    Told(&'a str),
    /// A connection of this shard.
    Conn(u32),
}

/// A record as a client published it, or as another shard sent it.
pub(super) enum Body<'a> {
    Draft(Draft<'a>),
    Record(Arc<Record>),
}

/// The destination of a publish.
enum Route {
    /// This process leads the room, and nothing waits for it: it is committed now.
    Here(TopicId),
    /// The home of the room's hub, with this slot, is this shard: it waits for another leader, or for earlier
    /// publishes.
    Waits(u16),
    /// The home is another shard, which is sent the revision by which this shard knows the room.
    Shard(ShardId, u64),
    /// This shard knows no place of the room, or one that has changed.
    Unknown(TopicId),
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

    /// As `publish`, for a finished record: avoids a copy of a long payload.
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
        if self.traces.is_on() {
            return self.publish_traced(ticket, body, now, sink);
        }
        self.publish_routed(ticket, body, now, sink)
    }

    /// Checks a publish and takes it to where its room is led.
    #[inline]
    pub(super) fn publish_routed(
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
        let mut topic = self.topics.get(id);
        if topic.shard == NOWHERE {
            self.found(id);
            topic = self.topics.get(id);
        }
        let (shard, class) = (topic.shard, self.classes.get(topic.class));
        if payload_bytes as u64 > class.payload_bytes_max {
            return Outcome::Now(Err(ErrorCode::PayloadLength));
        }
        if is_numbered && !class.durability.is_logged() {
            return Outcome::Now(Err(ErrorCode::NotLogged));
        }
        let names_publishers = class.names_publishers();
        let (is_logged, is_delayed) = (class.durability.is_logged(), class.commit_delay_ms > 0);
        let keeps_latest = class.keeps_latest;
        if let Asker::Client { conn, .. } = ticket.asker
            && !matches!(&body, Body::Draft(Draft { publisher: Publisher::Name(_), .. }))
        {
            self.count_publish(conn.index, id, now);
        }
        let id = match self.route_of(id, shard, now, sink) {
            Route::Here(id) => id,
            Route::Waits(slot) => {
                let record = own(body, names_publishers, sink);
                return self.forward(ticket, slot, record, now, sink);
            }
            Route::Shard(shard, revision) => {
                let record = own(body, names_publishers, sink);
                if self.traces.is_on() {
                    self.trace_step(ticket, StepKind::SentToShard(shard), sink);
                }
                sink.send(shard, Msg::Publish(ticket, record, revision));
                return Outcome::Later;
            }
            Route::Unknown(id) => {
                let record = own(body, names_publishers, sink);
                return self.miss_publish(ticket, id, record, now, sink);
            }
        };
        if is_delayed || (!is_logged && (retain || keeps_latest || self.backlog.is_blocked())) {
            let record = own(body, names_publishers, sink);
            self.lead(ticket, id, record, now, sink);
            return Outcome::Later;
        }
        if is_logged {
            let record = own(body, names_publishers, sink);
            return match self.append(ticket, id, record, now, sink) {
                Ok(Outcome::Later) => Outcome::Later,
                Ok(Outcome::Now(published)) => Outcome::Now(Ok(published)),
                Err(refused) => Outcome::Now(Err(refused)),
            };
        }
        match self.commit(id, body, now, sink) {
            Ok(published) => Outcome::Now(published),
            Err(record) => {
                self.block_publish(ticket, record, sink);
                Outcome::Later
            }
        }
    }

    /// The destination of a publish to a topic whose room this shard has on `shard`.
    #[inline]
    fn route_of(&mut self, id: TopicId, shard: ShardId, now: Now, sink: &mut impl Sink) -> Route {
        if shard == self.shard && self.relay.is_alone {
            return Route::Here(id);
        }
        if shard == NOWHERE {
            return Route::Unknown(id);
        }
        let revision = self.topics.revision(id);
        if shard != self.shard {
            return Route::Shard(shard, revision);
        }
        match self.at_home(id, revision, now, sink) {
            Ok((_, slot)) if self.waits(slot, sink) => Route::Waits(slot),
            Ok((id, _)) => Route::Here(id),
            Err((id, _)) => self.route_of_gone(id, now, sink),
        }
    }

    /// As `route_of`, where the room is at this home no more: this shard leaves it.
    #[cold]
    fn route_of_gone(&mut self, id: TopicId, now: Now, sink: &mut impl Sink) -> Route {
        let (namespace, name) = self.key_of(id);
        let room = self.room_of(&name);
        self.leave_room(&room, self.shard, now, sink);
        // Closing a room looks up other topics, which may have evicted this one.
        Route::Unknown(self.topics.intern(namespace, &name))
    }

    pub fn is_logged(&mut self, namespace: Namespace, topic: &[u8]) -> bool {
        self.class_of(namespace, topic).durability.is_logged()
    }

    /// The class of a topic's room, as this shard knows it.
    #[must_use]
    pub fn class_of(&mut self, namespace: Namespace, topic: &[u8]) -> &Class {
        let id = self.topics.intern(namespace, topic);
        self.classes.get(self.topics.get(id).class)
    }

    /// Handles a publish of another shard whose hub is here. `revision` is the one by which that shard knows
    /// the room. The reply follows later.
    pub(super) fn lead_for_shard(
        &mut self,
        ticket: Ticket,
        record: Arc<Record>,
        revision: u64,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let id = self.topics.intern(record.namespace, record.topic());
        match self.at_home(id, revision, now, sink) {
            Ok(_) if self.is_to_leave(ticket.shard, &record) => {
                self.requeue_publish(ticket, record, now, sink)
            }
            Ok((id, slot)) => self.lead_or_forward(ticket, (id, slot), record, now, sink),
            Err((_, Gone::Moved)) => self.requeue_publish(ticket, record, now, sink),
            Err((_, Gone::Elsewhere)) => self.lead_elsewhere(ticket, record, now, sink),
        }
    }

    /// Handles a publish to a topic whose room is in the hub with this slot.
    #[inline]
    pub(super) fn lead_or_forward(
        &mut self,
        ticket: Ticket,
        (id, slot): (TopicId, u16),
        record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if self.waits(slot, sink) {
            return self.forward_or_refuse(ticket, slot, record, now, sink);
        }
        self.lead(ticket, id, record, now, sink);
    }

    /// Commits a publish to a room that is led here, after the delay of its class.
    fn lead(&mut self, ticket: Ticket, id: TopicId, record: Arc<Record>, now: Now, sink: &mut impl Sink) {
        let delay_ms = self.classes.get(self.topics.get(id).class).commit_delay_ms;
        if delay_ms > 0 {
            if self.traces.is_on() {
                self.trace_step(ticket, StepKind::Waits, sink);
            }
            self.backlog.delay(now.mono_ms + delay_ms, ticket, record);
        } else {
            self.commit_led(ticket, id, record, now, sink);
        }
    }

    /// The delay of a publish has passed: commits it, or forwards it if its hub is led elsewhere now.
    pub(super) fn commit_delayed(
        &mut self,
        ticket: Ticket,
        record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let id = self.topics.intern(record.namespace, record.topic());
        match self.slot_of_topic(id) {
            None => self.publish_elsewhere(ticket, record, now, sink),
            Some(slot) if self.waits(slot, sink) => self.forward_or_refuse(ticket, slot, record, now, sink),
            Some(_) => self.commit_led(ticket, id, record, now, sink),
        }
    }

    /// Commits, after blocked publishes if there are any.
    pub(super) fn commit_led(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if self.is_gone(id) {
            return self.publish_elsewhere(ticket, record, now, sink);
        }
        if self.classes.get(self.topics.get(id).class).durability.is_logged() {
            return match self.append(ticket, id, record, now, sink) {
                Ok(Outcome::Later) => {}
                Ok(Outcome::Now(published)) => self.answer_publish(ticket, Ok(published), sink),
                Err(refused) => self.answer_publish(ticket, Err(refused), sink),
            };
        }
        if self.backlog.is_blocked() {
            return self.block_publish(ticket, record, sink);
        }
        if let Err(record) = self.commit_and_answer(ticket, id, record, now, sink) {
            self.block_publish(ticket, record, sink);
        }
    }

    /// A publish waits for a congested receiver, or for earlier ones that do.
    fn block_publish(&mut self, ticket: Ticket, record: Arc<Record>, sink: &impl Sink) {
        if self.traces.is_on() {
            self.trace_step(ticket, StepKind::Waits, sink);
        }
        self.backlog.block(ticket, record);
    }

    /// Commits and replies to the publisher; for a retained record only once its entry is written. Returns
    /// the record as `commit` does.
    pub(super) fn commit_and_answer(
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
            (_, published) => self.answer_publish(ticket, published, sink),
        }
        Ok(())
    }

    pub(super) fn answer_publish(
        &mut self,
        to: Ticket,
        published: Result<Published, ErrorCode>,
        sink: &mut impl Sink,
    ) {
        if self.traces.is_on() {
            self.trace_answer(to, &published, sink);
        }
        match to.asker {
            Asker::Node { node, ask, hub } => self.answer_node_publish((node, ask, hub), published, sink),
            _ if to.shard != self.shard => sink.send(to.shard, Msg::Published(to, published)),
            Asker::Row(number) => self.entry_written(number, published, sink),
            asker => sink.answer(asker, Answer::Published(published)),
        }
    }
}

/// The record of a publish that outlives the call. The publisher's name is resolved only for history, and for
/// groups that select by publisher.
pub(super) fn own(body: Body<'_>, names_publishers: bool, sink: &impl Sink) -> Arc<Record> {
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
