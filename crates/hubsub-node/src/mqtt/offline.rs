//! Delivers records to offline sessions, and resumes one in a connection.

use super::changes::schedule;
use super::deliver::keep_for_session;
use crate::context::io::Io;
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
    io.states.mqtt.show_sessions(&io.metrics);
    true
}

pub fn deliver_offline(io: &mut Io, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
    let Some((key, offline)) = io.states.mqtt.sessions.at_mut(conn) else { return Delivery::Taken };
    // Online members share a group's records; an offline session queues them only if there is none.
    if let Via::Group(_) = via {
        return Delivery::Full;
    }
    if let Some((content, grant)) = offline.offer(via, record) {
        let message = io.states.mqtt.cache.message(&content);
        queue(io, key, message, grant, None);
    }
    Delivery::Taken
}

/// Offers a group's record to an offline session when no other member takes it.
pub fn share_with_offline(
    io: &mut Io,
    conn: u32,
    (group, members): (&[u8], u64),
    record: &RecordView<'_>,
) -> Delivery {
    let Some((key, offline)) = io.states.mqtt.sessions.at_mut(conn) else {
        // The connection may be closing.
        let closing = io.conns.at(conn).filter(|conn| conn.is_closing());
        let takes = closing.and_then(|conn| conn.session.mqtt()).is_some_and(|client| {
            let grant = client.outlives().then(|| client.grant(Via::Group(group), record)).flatten();
            grant.is_some_and(|grant| grant.qos > Qos::AtMostOnce)
        });
        if !takes {
            return Delivery::Full;
        }
        keep_for_session(io, conn, Via::Group(group), record);
        return Delivery::Taken;
    };
    let Some((content, grant)) = offline.offer_shared(group, record) else { return Delivery::Full };
    let message = io.states.mqtt.cache.message(&content);
    queue(io, key, message, grant, Some(group));
    io.states.mqtt.sessions.sharing.insert(key, group, members);
    Delivery::Taken
}

fn queue(io: &mut Io, key: ConnKey, message: Rc<Message>, grant: Grant, group: Option<&[u8]>) {
    let limits = queue_limits(io);
    let group = group.map(Into::into);
    let Some(dropped) = io.states.mqtt.sessions.queue(key, message, grant, group, limits) else {
        return;
    };
    io.metrics.mqtt_session_queued_total.add(1);
    io.metrics.mqtt_session_dropped_total.add(dropped);
    io.states.mqtt.show_sessions(&io.metrics);
    schedule(io, key);
}

/// Inserts a session of the previous process with its queue, sorted by key.
pub(super) fn insert_restored(
    io: &mut Io,
    key: ConnKey,
    mut offline: OfflineSession,
    queue: Vec<(u64, Message, Grant)>,
) {
    let limits = queue_limits(io);
    for (key, message, grant) in queue {
        // Messages dropped here were counted by the previous process.
        offline.push(Rc::new(message), grant, key, None, limits);
    }
    io.states.mqtt.sessions.insert(key, offline);
    io.states.mqtt.show_sessions(&io.metrics);
}

/// True if this many additional sessions exceed this shard's share of `mqtt_sessions_max`.
pub(super) fn has_no_room(io: &Io, more: usize) -> bool {
    let share = io.limits.mqtt_sessions_max.div_ceil(u64::from(io.mailer.shards()));
    (io.states.mqtt.sessions.connected + io.states.mqtt.sessions.offline() + more) as u64 > share
}
