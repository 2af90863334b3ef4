//! Offline sessions. Each keeps the connection slot that it had, so its subscriptions stay in place, and
//! queues QoS 1 and 2 messages. Most have nothing to do, so collections that are then empty are allocated
//! separately.
//!
//! Invariant: the queue stays within its limits; the oldest messages are dropped and counted.

use super::client::Client;
use super::cursors::CountedBy;
use super::delete_retry::DeleteRetries;
use super::deliver::shared_filter;
use super::message::{Content, Message};
use super::missing_subscriptions::MissingSubscriptions;
use super::pending::Item;
use super::persist;
use super::persistence::Entry;
use super::session::Session;
use super::shares::{Group, Sharing};
use crate::io::shard_io::Io;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_mqtt::{Grant, Match, SessionState};
use hubsub_route::claims::Holder;
use hubsub_route::{Delivery, RecordView, Via, is_publisher};
use hubsub_types::names::FILTER_MARK;
use hubsub_types::{ConnKey, OnSlow, Qos};
use std::collections::VecDeque;
use std::rc::Rc;

pub struct OfflineSession {
    pub id: Box<str>,
    pub state: SessionState<u64>,
    pub(super) session: Session,
    /// The queue; none until a message arrives.
    queue: Option<Box<Queue>>,
    /// The connection that is moving to this shard to take the session over.
    pub awaits: Option<Box<Holder>>,
}

/// The queue of an offline session.
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

/// The offline sessions of a shard, by connection slot.
#[derive(Default)]
pub struct Sessions {
    by_place: HashMap<u32, (u32, Box<OfflineSession>), RandomState>,
    /// Sessions with a missing subscription.
    pub(super) missing: MissingSubscriptions,
    /// Ended sessions whose snapshot still exists.
    pub(super) deletes: DeleteRetries,
    /// Sessions that queue messages for groups, with the number of members each group had then.
    pub(super) sharing: Sharing,
    /// Connected clients whose sessions outlive their connections.
    pub connected: usize,
    /// The number of queued messages, over all sessions.
    pub queued: usize,
    /// Their memory in bytes, approximately.
    pub queued_bytes: usize,
}

impl Sessions {
    /// The number of offline sessions.
    #[must_use]
    pub fn offline(&self) -> usize {
        self.by_place.len()
    }

    pub fn get_mut(&mut self, key: ConnKey) -> Option<&mut OfflineSession> {
        let (generation, offline) = self.by_place.get_mut(&key.index)?;
        (*generation == key.generation).then_some(offline)
    }

    pub(super) fn get(&self, key: ConnKey) -> Option<&OfflineSession> {
        let (generation, offline) = self.by_place.get(&key.index)?;
        (*generation == key.generation).then_some(offline)
    }

    /// The number of sessions with a missing subscription.
    #[must_use]
    pub fn missing(&self) -> usize {
        self.missing.len()
    }

    /// The number of ended sessions whose snapshot still exists.
    #[must_use]
    pub fn deletes_pending(&self) -> usize {
        self.deletes.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = (ConnKey, &OfflineSession)> {
        self.by_place
            .iter()
            .map(|(&index, &(generation, ref offline))| (ConnKey { index, generation }, &**offline))
    }

    /// The session data of an offline session.
    pub(super) fn session_mut(&mut self, key: ConnKey) -> Option<&mut Session> {
        self.get_mut(key).map(|offline| &mut offline.session)
    }

    /// True if the session receives records from logs while offline, which is when it has no hub cursors.
    pub(super) fn reads(&self, conn: u32) -> bool {
        let has_hub_cursors =
            |session: &Session| session.cursors.as_ref().is_some_and(|cursors| cursors.has_hub_cursors);
        self.by_place.get(&conn).is_some_and(|(_, offline)| !has_hub_cursors(&offline.session))
    }

    pub(super) fn insert(&mut self, key: ConnKey, offline: OfflineSession) {
        let (messages, bytes, _) = offline.queued();
        self.queued += messages;
        self.queued_bytes += bytes;
        self.by_place.insert(key.index, (key.generation, Box::new(offline)));
    }

    pub(super) fn remove(&mut self, key: ConnKey) -> Option<OfflineSession> {
        self.get_mut(key)?;
        let (_, offline) = self.by_place.remove(&key.index)?;
        let (messages, bytes, _) = offline.queued();
        self.queued -= messages;
        self.queued_bytes -= bytes;
        Some(*offline)
    }
}

/// Overhead of a queued message, in bytes.
const ITEM_BYTES: usize = 64;

impl OfflineSession {
    /// An offline session with an empty queue.
    #[must_use]
    pub fn new(id: Box<str>, state: SessionState<u64>, session: Session) -> OfflineSession {
        OfflineSession { id, state, session, queue: None, awaits: None }
    }

    /// Queued messages, their memory in bytes, and the number dropped.
    #[must_use]
    pub fn queued(&self) -> (usize, usize, u64) {
        self.queue.as_ref().map_or((0, 0, 0), |queue| (queue.messages.len(), queue.bytes, queue.dropped))
    }

    /// The key of the first queued message.
    #[must_use]
    pub fn first_key(&self) -> Option<u64> {
        self.queue.as_ref()?.messages.front().map(|queued| queued.key)
    }

    /// Queues a message and returns how many were dropped. With `key` 0 it is persisted, if the session is.
    pub(super) fn push(
        &mut self,
        message: Rc<Message>,
        grant: Grant,
        mut key: u64,
        group: Option<Group>,
        (messages_max, bytes_max): (u64, u64),
    ) -> u64 {
        if key == 0 && self.session.persistence.is_some() {
            key = self.session.next_key();
            self.session
                .persistence
                .iter_mut()
                .for_each(|persistence| persistence.put(true, key, CountedBy::None, &message, &grant));
        }
        let queue = self.queue.get_or_insert_default();
        queue.bytes += message.weight() + ITEM_BYTES;
        queue.messages.push_back(Queued { message, grant, key, group });
        let mut dropped = 0;
        while queue.messages.len() as u64 > messages_max || queue.bytes as u64 > bytes_max {
            let Some(Queued { message, .. }) = queue.messages.pop_front() else { break };
            queue.bytes -= message.weight() + ITEM_BYTES;
            dropped += 1;
        }
        queue.dropped += dropped;
        dropped
    }

    /// Takes the queued messages of one group, or of all groups, in order.
    pub(super) fn take_shared(&mut self, of: Option<&[u8]>) -> Vec<(Group, Rc<Message>)> {
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

    /// Entries with all its persisted messages.
    pub(super) fn take_all_entries(&mut self) -> Vec<Entry> {
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

    pub(super) fn next_due_ms(&self) -> Option<u64> {
        [self.state.will_at_ms(), self.state.expires_at_ms()].into_iter().flatten().min()
    }
}

pub(super) fn queue_limits(io: &Io) -> (u64, u64) {
    (io.limits.mqtt_session_queue_messages_max, io.limits.mqtt_session_queue_bytes_max)
}

/// A connection that has moved to the slot of an offline session takes the session over.
pub(super) fn resume(io: &mut Io, key: ConnKey, client: &mut Client) -> bool {
    let Some(offline) = io.states.mqtt.sessions.remove(key) else { return false };
    let OfflineSession { state, mut session, queue, .. } = offline;
    if let Some(persistence) = &mut session.persistence {
        persistence.connected();
        client.machine.record();
    }
    client.machine.resume(state);
    client.machine.number_requests_from(session.requests);
    io.states.mqtt.subscriptions += client.machine.subscriptions();
    io.states.mqtt.sessions.connected += usize::from(client.session.is_none());
    client.session = Some(Box::new(session));
    for Queued { message, grant, key, .. } in queue.into_iter().flat_map(|queue| queue.messages) {
        let counted = CountedBy::None;
        client.pending.push(Item { message, grant, on_slow: OnSlow::CatchUp, group: None, key, counted });
    }
    io.output_bytes += client.pending.bytes();
    io.show_sessions();
    true
}

impl Io {
    /// Delivers a record to an offline session.
    pub(crate) fn deliver_offline(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
        let Some((generation, offline)) = self.states.mqtt.sessions.by_place.get_mut(&conn) else {
            return Delivery::Taken;
        };
        let by = match via {
            Via::Topic => Match::Topic,
            Via::Pattern(_, source) => match source.strip_prefix(FILTER_MARK) {
                Some(filter) => Match::Filter(filter),
                None => return Delivery::Taken,
            },
            // Online members share a group's records; an offline session queues them only if there is none.
            Via::Group(_) => return Delivery::Full,
        };
        if let Some(cursors) = &mut offline.session.cursors {
            let counted = cursors.counted_by(matches!(via, Via::Topic), record.topic, record.place.offset);
            if counted != CountedBy::None {
                // It is read from the log after the reconnect.
                cursors.refuse(counted, record.place.hub, record.place.offset);
                return Delivery::Taken;
            }
        }
        let is_own = is_publisher(record.publisher, &offline.id);
        let Some(grant) = offline.state.grant(by, record.topic, is_own) else { return Delivery::Taken };
        let grant = Grant { qos: grant.qos.min(record.qos), ..grant };
        let Some(content) = Content::of(record).filter(|_| grant.qos > Qos::AtMostOnce) else {
            return Delivery::Taken;
        };
        let message = self.states.mqtt.cache.message(&content);
        let key = ConnKey { index: conn, generation: *generation };
        self.queue_offline(key, message, grant, None);
        Delivery::Taken
    }

    /// Offers a group's record to an offline session when no other member takes it.
    pub(crate) fn share_with_offline(
        &mut self,
        conn: u32,
        (group, members): (&[u8], u64),
        record: &RecordView<'_>,
    ) -> Delivery {
        let Some(filter) = shared_filter(group) else { return Delivery::Full };
        let is_persisted = |grant: Grant| grant.qos.min(record.qos) > Qos::AtMostOnce;
        let Some((generation, offline)) = self.states.mqtt.sessions.by_place.get(&conn) else {
            // The connection may be closing.
            let closing = self.conns.at(conn).filter(|conn| conn.is_closing());
            let outlives = |client: &Client| {
                client.outlives() && client.machine.grant_shared(&filter).is_some_and(is_persisted)
            };
            let takes = closing.and_then(|conn| conn.mqtt.as_deref()).is_some_and(outlives);
            if !takes {
                return Delivery::Full;
            }
            self.keep_for_session(conn, Via::Group(group), record);
            return Delivery::Taken;
        };
        let key = ConnKey { index: conn, generation: *generation };
        let grant = offline.state.grant_shared(&filter);
        let grant = grant.map(|grant| Grant { qos: grant.qos.min(record.qos), ..grant });
        let (Some(grant), Some(content)) = (grant.filter(|g| g.qos > Qos::AtMostOnce), Content::of(record))
        else {
            return Delivery::Full;
        };
        let message = self.states.mqtt.cache.message(&content);
        self.queue_offline(key, message, grant, Some(group.into()));
        self.states.mqtt.sessions.sharing.insert(key, group, members);
        Delivery::Taken
    }

    fn queue_offline(&mut self, key: ConnKey, message: Rc<Message>, grant: Grant, group: Option<Group>) {
        let limits = queue_limits(self);
        let Some(offline) = self.states.mqtt.sessions.get_mut(key) else { return };
        let (len, bytes, _) = offline.queued();
        let dropped = offline.push(message, grant, 0, group, limits);
        let (len_now, bytes_now, _) = offline.queued();
        self.states.mqtt.sessions.queued = self.states.mqtt.sessions.queued + len_now - len;
        self.states.mqtt.sessions.queued_bytes = self.states.mqtt.sessions.queued_bytes + bytes_now - bytes;
        self.metrics.mqtt_session_queued_total.add(1);
        self.metrics.mqtt_session_dropped_total.add(dropped);
        self.show_sessions();
        persist::schedule(self, key);
    }

    /// Inserts a session of the previous process with its queue, sorted by key.
    pub(super) fn insert_restored(
        &mut self,
        key: ConnKey,
        mut offline: OfflineSession,
        queue: Vec<(u64, Message, Grant)>,
    ) {
        let limits = queue_limits(self);
        for (key, message, grant) in queue {
            // Messages dropped here were counted by the previous process.
            offline.push(Rc::new(message), grant, key, None, limits);
        }
        self.states.mqtt.sessions.insert(key, offline);
        self.show_sessions();
    }

    /// Updates the session gauges.
    pub(super) fn show_sessions(&self) {
        let (sessions, metrics) = (&self.states.mqtt.sessions, &self.metrics);
        metrics.mqtt_sessions.set((sessions.connected + sessions.offline()) as u64);
        metrics.mqtt_sessions_offline.set(sessions.offline() as u64);
        metrics.mqtt_session_queued.set(sessions.queued as u64);
        metrics.mqtt_session_queued_bytes.set(sessions.queued_bytes as u64);
    }

    /// True if the slot belongs to an offline session.
    pub(crate) fn is_offline(&self, conn: u32) -> bool {
        self.states.mqtt.sessions.by_place.contains_key(&conn)
    }
}
