//! The path of a publish: `publish` runs on the edge; `lead` runs on the hub's shard, where the record gets
//! its position ([`super::commit`]) and is delivered to all shards with interest ([`super::delivery`]).

use super::Broker;
use super::relay::Gone;
use crate::record::{Headers, Namespace, Producer, Record};
use crate::ring::NOWHERE;
use crate::topics::TopicId;
use crate::{Answer, Asker, Msg, Now, Outcome, Published, Sink, Ticket};
use hubsub_types::{Class, ErrorCode, Qos};
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
        // Closing a room looks up other topics, which may have evicted this one.
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

    /// As `lead` in a cluster, for a shard or a node, when the room is in this hub.
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

    /// Commits a publish whose hub was led here; forwards it if the hub is led elsewhere now.
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

    /// Commits, after blocked publishes if there are any.
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

    /// Commits and replies to the publisher; for a retained record only once its entry is written. Returns
    /// the record as `commit` does.
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
