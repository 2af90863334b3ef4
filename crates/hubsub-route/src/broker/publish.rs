//! The path of a publish: the edge looks its topic up once, and with it the [`Route`] of its room. Where the
//! room is led the record gets its position ([`super::commit`]) and is delivered to all shards and nodes with
//! interest ([`super::delivery`]).

use super::relay::Gone;
use super::{Broker, Turn};
use crate::ring::NOWHERE;
use crate::topics::TopicId;
use crate::traces::StepKind;
use crate::{Answer, Asker, Msg, Now, Outcome, Published, Reply, Sink, Ticket};
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
    Conn(u32),
}

pub(super) enum Body<'a> {
    Draft(Draft<'a>),
    Record(Arc<Record>),
}

enum Route {
    /// This process leads the room, and nothing waits for it: it is committed now.
    Here(TopicId),
    /// The home of the room's hub, with this slot, is this shard: it waits for another leader, or for earlier
    /// publishes.
    Waits(u16),
    Shard(ShardId, u64),
    /// This shard knows no place of the room, or one that has changed.
    Unknown(TopicId),
}

impl Broker {
    /// A publish of a connection of this shard. [`Outcome::Later`] promises an [`Answer::Published`].
    pub fn publish(
        &mut self,
        ticket: Ticket,
        draft: Draft<'_>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Reply<Published> {
        self.publish_body(ticket, Body::Draft(draft), &mut Turn { now, sink })
    }

    /// As `publish`, for a finished record: avoids a copy of a long payload.
    pub fn publish_record(
        &mut self,
        ticket: Ticket,
        record: Record,
        now: Now,
        sink: &mut impl Sink,
    ) -> Reply<Published> {
        self.publish_body(ticket, Body::Record(Arc::new(record)), &mut Turn { now, sink })
    }

    #[inline]
    fn publish_body(
        &mut self,
        ticket: Ticket,
        body: Body<'_>,
        turn: &mut Turn<impl Sink>,
    ) -> Reply<Published> {
        if self.traces.is_on() {
            return self.publish_traced(ticket, body, turn.now, turn.sink);
        }
        self.publish_routed(ticket, body, turn)
    }

    #[inline]
    pub(super) fn publish_routed(
        &mut self,
        ticket: Ticket,
        body: Body<'_>,
        turn: &mut Turn<impl Sink>,
    ) -> Reply<Published> {
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
            self.count_publish(conn.index, id, turn.now);
        }
        let id = match self.route_of(id, shard, turn) {
            Route::Here(id) => id,
            Route::Waits(slot) => {
                let record = own(body, names_publishers, turn.sink);
                return self.forward(ticket, slot, record, turn);
            }
            Route::Shard(shard, revision) => {
                let record = own(body, names_publishers, turn.sink);
                if self.traces.is_on() {
                    self.trace_step(ticket, StepKind::SentToShard(shard), turn.sink);
                }
                turn.sink.send(shard, Msg::Publish(ticket, record, revision));
                return Outcome::Later;
            }
            Route::Unknown(id) => {
                let record = own(body, names_publishers, turn.sink);
                return self.miss_publish(ticket, id, record, turn);
            }
        };
        if is_delayed || (!is_logged && (retain || keeps_latest || self.backlog.is_blocked())) {
            let record = own(body, names_publishers, turn.sink);
            self.lead(ticket, id, record, turn);
            return Outcome::Later;
        }
        if is_logged {
            let record = own(body, names_publishers, turn.sink);
            return match self.append(ticket, id, record, turn) {
                Ok(Outcome::Later) => Outcome::Later,
                Ok(Outcome::Now(published)) => Outcome::Now(Ok(published)),
                Err(refused) => Outcome::Now(Err(refused)),
            };
        }
        match self.commit(id, body, turn) {
            Ok(published) => Outcome::Now(published),
            Err(record) => {
                self.block_publish(ticket, record, turn.sink);
                Outcome::Later
            }
        }
    }

    #[inline]
    fn route_of(&mut self, id: TopicId, shard: ShardId, turn: &mut Turn<impl Sink>) -> Route {
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
        match self.at_home(id, revision, turn) {
            Ok((_, slot)) if self.waits(slot, turn.sink) => Route::Waits(slot),
            Ok((id, _)) => Route::Here(id),
            Err((id, _)) => self.route_of_gone(id, turn),
        }
    }

    /// As `route_of`, where the room is at this home no more: this shard leaves it.
    #[cold]
    fn route_of_gone(&mut self, id: TopicId, turn: &mut Turn<impl Sink>) -> Route {
        let (namespace, name) = self.key_of(id);
        let room = self.room_of(&name);
        self.leave_room(&room, self.shard, turn);
        // Closing a room looks up other topics, which may have evicted this one.
        Route::Unknown(self.topics.intern(namespace, &name))
    }

    pub fn is_logged(&mut self, namespace: Namespace, topic: &[u8]) -> bool {
        self.class_of(namespace, topic).durability.is_logged()
    }

    #[must_use]
    pub fn class_of(&mut self, namespace: Namespace, topic: &[u8]) -> &Class {
        let id = self.topics.intern(namespace, topic);
        self.classes.get(self.topics.get(id).class)
    }

    /// A publish of a shard that knows the room by `revision`; its hub is here. The reply follows later.
    pub(super) fn lead_for_shard(
        &mut self,
        ticket: Ticket,
        record: Arc<Record>,
        revision: u64,
        turn: &mut Turn<impl Sink>,
    ) {
        let id = self.topics.intern(record.namespace, record.topic());
        match self.at_home(id, revision, turn) {
            Ok(_) if self.is_to_leave(ticket.shard, &record) => self.requeue_publish(ticket, record, turn),
            Ok((id, slot)) => self.lead_or_forward(ticket, (id, slot), record, turn),
            Err((_, Gone::Moved)) => self.requeue_publish(ticket, record, turn),
            Err((_, Gone::Elsewhere)) => self.lead_elsewhere(ticket, record, turn),
        }
    }

    #[inline]
    pub(super) fn lead_or_forward(
        &mut self,
        ticket: Ticket,
        (id, slot): (TopicId, u16),
        record: Arc<Record>,
        turn: &mut Turn<impl Sink>,
    ) {
        if self.waits(slot, turn.sink) {
            return self.forward_or_refuse(ticket, slot, record, turn);
        }
        self.lead(ticket, id, record, turn);
    }

    fn lead(&mut self, ticket: Ticket, id: TopicId, record: Arc<Record>, turn: &mut Turn<impl Sink>) {
        let delay_ms = self.classes.get(self.topics.get(id).class).commit_delay_ms;
        if delay_ms > 0 {
            if self.traces.is_on() {
                self.trace_step(ticket, StepKind::Waits, turn.sink);
            }
            self.backlog.delay(turn.now.mono_ms + delay_ms, ticket, record);
        } else {
            self.commit_led(ticket, id, record, turn);
        }
    }

    /// The delay of a publish has passed: commits it, or forwards it if its hub is led elsewhere now.
    pub(super) fn commit_delayed(&mut self, ticket: Ticket, record: Arc<Record>, turn: &mut Turn<impl Sink>) {
        let id = self.topics.intern(record.namespace, record.topic());
        match self.slot_of_topic(id) {
            None => self.publish_elsewhere(ticket, record, turn),
            Some(slot) if self.waits(slot, turn.sink) => self.forward_or_refuse(ticket, slot, record, turn),
            Some(_) => self.commit_led(ticket, id, record, turn),
        }
    }

    /// Commits, after blocked publishes if there are any.
    pub(super) fn commit_led(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        record: Arc<Record>,
        turn: &mut Turn<impl Sink>,
    ) {
        if self.is_gone(id) {
            return self.publish_elsewhere(ticket, record, turn);
        }
        if self.classes.get(self.topics.get(id).class).durability.is_logged() {
            return match self.append(ticket, id, record, turn) {
                Ok(Outcome::Later) => {}
                Ok(Outcome::Now(published)) => self.answer_publish(ticket, Ok(published), turn.sink),
                Err(refused) => self.answer_publish(ticket, Err(refused), turn.sink),
            };
        }
        if self.backlog.is_blocked() {
            return self.block_publish(ticket, record, turn.sink);
        }
        if let Err(record) = self.commit_and_answer(ticket, id, record, turn) {
            self.block_publish(ticket, record, turn.sink);
        }
    }

    /// A publish waits for a congested receiver, or for earlier ones that do.
    fn block_publish(&mut self, ticket: Ticket, record: Arc<Record>, sink: &impl Sink) {
        if self.traces.is_on() {
            self.trace_step(ticket, StepKind::Waits, sink);
        }
        self.backlog.block(ticket, record);
    }

    /// As `commit`, and replies to the publisher: for a retained record once its entry is written.
    pub(super) fn commit_and_answer(
        &mut self,
        ticket: Ticket,
        id: TopicId,
        record: Arc<Record>,
        turn: &mut Turn<impl Sink>,
    ) -> Result<(), Arc<Record>> {
        let retained = record.retain.then(|| Arc::clone(&record));
        let published = self.commit(id, Body::Record(record), turn)?;
        match (retained, published) {
            (Some(mut record), Ok(published)) => {
                let kept = Arc::make_mut(&mut record);
                (kept.position, kept.timestamp_us) = (published.position, turn.now.wall_us);
                self.retain(ticket, published, kept, turn);
            }
            (_, published) => self.answer_publish(ticket, published, turn.sink),
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
