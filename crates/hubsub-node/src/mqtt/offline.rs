//! Delivers records to offline sessions, and resumes one in a connection.

use super::persist;
use crate::io::shard_io::Io;
use hubsub_mqtt::{Client, Grant, Message, OfflineSession, QueueLimits};
use hubsub_route::{Delivery, RecordView, Via};
use hubsub_types::{ConnKey, Qos};
use std::rc::Rc;

pub(super) fn queue_limits(io: &Io) -> QueueLimits {
    QueueLimits {
        messages_max: io.limits.mqtt_session_queue_messages_max,
        bytes_max: io.limits.mqtt_session_queue_bytes_max,
    }
}

/// A connection that has moved to the slot of an offline session takes the session over.
pub(super) fn resume(io: &mut Io, key: ConnKey, client: &mut Client) -> bool {
    let Some(offline) = io.states.mqtt.sessions.remove(key) else { return false };
    io.states.mqtt.sessions.connected += usize::from(client.session.is_none());
    offline.resume(client);
    io.states.mqtt.subscriptions += client.machine.filters.len();
    io.output_bytes += client.pending.bytes();
    io.show_sessions();
    true
}

impl Io {
    /// Delivers a record to an offline session.
    pub(crate) fn deliver_offline(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
        let Some((key, offline)) = self.states.mqtt.sessions.at_mut(conn) else { return Delivery::Taken };
        // Online members share a group's records; an offline session queues them only if there is none.
        if let Via::Group(_) = via {
            return Delivery::Full;
        }
        if let Some((content, grant)) = offline.offer(via, record) {
            let message = self.states.mqtt.cache.message(&content);
            self.queue_offline(key, message, grant, None);
        }
        Delivery::Taken
    }

    /// Offers a group's record to an offline session when no other member takes it.
    pub(crate) fn share_with_offline(
        &mut self,
        conn: u32,
        (group, members): (&[u8], u64),
        record: &RecordView<'_>,
    ) -> Delivery {
        let Some((key, offline)) = self.states.mqtt.sessions.at_mut(conn) else {
            // The connection may be closing.
            let closing = self.conns.at(conn).filter(|conn| conn.is_closing());
            let takes = closing.and_then(|conn| conn.mqtt.as_deref()).is_some_and(|client| {
                let grant = client.outlives().then(|| client.grant(Via::Group(group), record)).flatten();
                grant.is_some_and(|grant| grant.qos > Qos::AtMostOnce)
            });
            if !takes {
                return Delivery::Full;
            }
            self.keep_for_session(conn, Via::Group(group), record);
            return Delivery::Taken;
        };
        let Some((content, grant)) = offline.offer_shared(group, record) else { return Delivery::Full };
        let message = self.states.mqtt.cache.message(&content);
        self.queue_offline(key, message, grant, Some(group));
        self.states.mqtt.sessions.sharing.insert(key, group, members);
        Delivery::Taken
    }

    fn queue_offline(&mut self, key: ConnKey, message: Rc<Message>, grant: Grant, group: Option<&[u8]>) {
        let limits = queue_limits(self);
        let group = group.map(Into::into);
        let Some(dropped) = self.states.mqtt.sessions.queue(key, message, grant, group, limits) else {
            return;
        };
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
        self.states.mqtt.sessions.is_offline(conn)
    }
}
