//! An offline session: the state of its machine, its session data, and a queue of QoS 1 and 2 messages. It
//! keeps the connection slot that it had, so its subscriptions stay in place. Most have nothing to do, so
//! collections that are then empty are allocated separately.
//!
//! Invariant: the queue stays within its limits; the oldest messages are dropped and counted.

use super::client::Client;
use super::delivery::matched;
use super::message::{Content, CountedBy, Message};
use super::pending::Item;
use super::persistence::Entry;
use super::session::Session;
use super::shares::{Group, shared_filter};
use crate::machine::{Grant, LastWill, SessionState};
use hubsub_route::claims::Holder;
use hubsub_route::{RecordView, Via, is_publisher};
use hubsub_types::{OnSlow, Qos};
use std::collections::VecDeque;
use std::rc::Rc;

pub struct OfflineSession {
    pub id: Box<str>,
    pub state: SessionState,
    pub session: Session,
    queue: Option<Box<Queue>>,
    /// The connection that is moving to this shard to take the session over.
    pub awaits: Option<Box<Holder>>,
}

#[derive(Default)]
struct Queue {
    messages: VecDeque<Queued>,
    bytes: usize,
    dropped: u64,
}

struct Queued {
    message: Rc<Message>,
    grant: Grant,
    /// Its key; 0 if it is not persisted.
    key: u64,
    /// The group that it was sent to while no other member was there; a member that joins gets it.
    group: Option<Group>,
}

#[derive(Clone, Copy)]
pub struct QueueLimits {
    pub messages_max: u64,
    pub bytes_max: u64,
}

const ITEM_BYTES: usize = 64;

impl OfflineSession {
    pub fn new(id: Box<str>, state: SessionState, session: Session) -> OfflineSession {
        OfflineSession { id, state, session, queue: None, awaits: None }
    }

    /// Queued messages, their memory in bytes, and the number dropped.
    pub fn queued(&self) -> (usize, usize, u64) {
        self.queue.as_ref().map_or((0, 0, 0), |queue| (queue.messages.len(), queue.bytes, queue.dropped))
    }

    pub fn first_key(&self) -> Option<u64> {
        self.queue.as_ref()?.messages.front().map(|queued| queued.key)
    }

    /// Queues a message and returns how many were dropped. With `key` 0 it is persisted, if the session is.
    pub fn push(
        &mut self,
        message: Rc<Message>,
        grant: Grant,
        mut key: u64,
        group: Option<Group>,
        limits: QueueLimits,
    ) -> u64 {
        if key == 0 && self.session.persistence.is_some() {
            key = self.session.next_key();
            let persistence = self.session.persistence.iter_mut();
            persistence.for_each(|it| it.put(true, key, CountedBy::None, &message, &grant));
        }
        let queue = self.queue.get_or_insert_default();
        queue.bytes += message.weight() + ITEM_BYTES;
        queue.messages.push_back(Queued { message, grant, key, group });
        let mut dropped = 0;
        while queue.messages.len() as u64 > limits.messages_max || queue.bytes as u64 > limits.bytes_max {
            let Some(Queued { message, .. }) = queue.messages.pop_front() else { break };
            queue.bytes -= message.weight() + ITEM_BYTES;
            dropped += 1;
        }
        queue.dropped += dropped;
        dropped
    }

    /// Takes the queued messages of one group, or of all groups, in order.
    pub fn take_shared(&mut self, of: Option<&[u8]>) -> Vec<(Group, Rc<Message>)> {
        let Some(queue) = &mut self.queue else { return Vec::new() };
        let mut taken = Vec::new();
        let is_meant = |group: &Group| of.is_none_or(|of| of == &**group);
        for Queued { message, grant, key, group } in std::mem::take(&mut queue.messages) {
            match group {
                Some(group) if is_meant(&group) => {
                    queue.bytes -= message.weight() + ITEM_BYTES;
                    taken.push((group, message));
                }
                group => queue.messages.push_back(Queued { message, grant, key, group }),
            }
        }
        taken
    }

    pub fn take_all_entries(&mut self) -> Vec<Entry> {
        let OfflineSession { session, queue, .. } = self;
        let waiting = queue.iter().flat_map(|queue| &queue.messages).filter(|one| one.key > 0);
        session.take_all_entries(waiting.map(|one| (one.key, &*one.message, &one.grant)))
    }

    /// The outcome of a publish that was in flight when the connection ended.
    pub fn published(&mut self, number: u32, is_ok: bool) {
        if let Some(intent) = self.session.take_intent(number).filter(|_| is_ok) {
            self.state.published(intent);
        }
    }

    /// When its will or its end is due, in ms of wall time; none if never.
    pub fn next_due_ms(&self) -> Option<u64> {
        [self.state.will_at_ms(), self.state.expires_at_ms()].into_iter().flatten().min()
    }

    /// Its connection has ended at this wall time, in ms; the session continues. Also the messages dropped.
    #[must_use]
    pub fn suspend(mut client: Client, now_ms: u64, limits: QueueLimits) -> (OfflineSession, u64) {
        let mut session = client.session.take().map_or_else(Session::default, |session| *session);
        session.requests = client.machine.next_request();
        session.record_sent();
        let id: Box<str> = client.machine.client_id().into();
        let mut offline = OfflineSession::new(id, client.machine.suspend(now_ms), session);
        if let Some(cursors) = &mut offline.session.cursors {
            cursors.take_back_all(&client.pending);
        }
        let is_queued = |item: &Item| item.grant.qos > Qos::AtMostOnce && item.counted == CountedBy::None;
        let mut dropped = 0;
        for item in client.pending.into_items().filter(is_queued) {
            dropped += offline.push(item.message, item.grant, item.key, None, limits);
        }
        (offline, dropped)
    }

    /// A client that has just connected takes the session over.
    pub fn resume(self, client: &mut Client) {
        let OfflineSession { state, mut session, queue, .. } = self;
        if let Some(persistence) = &mut session.persistence {
            persistence.connected();
            client.machine.record();
        }
        client.machine.resume(state);
        client.machine.number_requests_from(session.requests);
        client.session = Some(Box::new(session));
        for Queued { message, grant, key, .. } in queue.into_iter().flat_map(|queue| queue.messages) {
            let counted = CountedBy::None;
            client.pending.push(Item { message, grant, on_slow: OnSlow::CatchUp, group: None, key, counted });
        }
    }

    pub fn take_due_will(&mut self, now_ms: u64) -> Option<Box<LastWill>> {
        let is_due = self.state.will_at_ms().is_some_and(|at_ms| at_ms <= now_ms);
        is_due.then(|| self.state.take_will()).flatten()
    }

    pub fn is_expired(&self, now_ms: u64) -> bool {
        self.state.expires_at_ms().is_some_and(|at_ms| at_ms <= now_ms)
    }

    /// How a record of a subscription is queued; none if it has QoS 0, or will be read from the log.
    pub fn offer<'a>(&mut self, via: Via<'_>, record: &RecordView<'a>) -> Option<(Content<'a>, Grant)> {
        let by = matched(via)?;
        if let Some(cursors) = &mut self.session.cursors {
            let counted = cursors.counted_by(matches!(via, Via::Topic), record.topic, record.place.offset);
            if counted != CountedBy::None {
                cursors.refuse(counted, record.place.hub, record.place.offset);
                return None;
            }
        }
        let is_own = is_publisher(record.publisher, &self.id);
        queued(self.state.filters.grant(by, record.topic, is_own)?, record)
    }

    /// How a record of a group is queued that no other member takes; none if it is not.
    pub fn offer_shared<'a>(&self, group: &[u8], record: &RecordView<'a>) -> Option<(Content<'a>, Grant)> {
        queued(self.state.filters.grant_shared(&shared_filter(group)?)?, record)
    }
}

fn queued<'a>(grant: Grant, record: &RecordView<'a>) -> Option<(Content<'a>, Grant)> {
    let grant = Grant { qos: grant.qos.min(record.qos), ..grant };
    let content = Content::of(record).filter(|_| grant.qos > Qos::AtMostOnce)?;
    Some((content, grant))
}
