//! Delivers records to MQTT clients: passes each to its [`Client`](hubsub_mqtt::Client), and sends or queues
//! it as that decides.
//!
//! Invariant: the fast path of [`Plain`] clients sends what the full path would send.

use super::changes::schedule;
use super::client::{client_at, count_sent, update_plain};
use super::sending::send;
use crate::context::conn::Conn;
use crate::context::io::{Io, PACKETS, TURN_BYTES};
use hubsub_mqtt::{Content, CountedBy, Grant, Plain, Way, encode_plain};
use hubsub_route::{CloseReason, Delivery, RecordView, Sink, Via};
use hubsub_types::{OnGap, OnSlow, Position, Qos};

/// A slow client resumes replay when its output is below this, in bytes.
const REPLAY_BELOW: usize = 64 * 1024;

/// True if an MQTT client's output waits for its socket.
pub(super) fn has_output(conn: &Conn) -> bool {
    conn.output.as_ref().is_some_and(|output| !output.queue.is_empty())
}

#[inline]
pub fn deliver(io: &mut Io, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
    if deliver_plain(io, conn, via, record) {
        return Delivery::Taken;
    }
    deliver_full(io, conn, via, record)
}

/// Delivers a record on the fast path; false if it needs the full path.
#[inline]
fn deliver_plain(io: &mut Io, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> bool {
    let Some(c) = io.conns.at_mut(conn) else { return false };
    let Some(v5) = c.session.plain().v5(via, record) else { return false };
    let output = c.output.get_or_insert_with(|| io.pool.pop().unwrap_or_default());
    if !output.queue.is_empty() {
        return false;
    }
    let (arena, now_us) = (&mut io.arenas[usize::from(PACKETS)], io.now.wall_us);
    let made = io.states.mqtt.cache.plain(usize::from(v5), || encode_plain(arena, v5, record, now_us));
    let Some((start, end)) = made else { return false };
    output.push_range(PACKETS, start, end);
    let must_write = output.turn_bytes >= TURN_BYTES.min(io.limits.output_bytes_max as usize / 2);
    count_sent(io, conn, (end - start) as usize);
    if must_write {
        io.write_pieces(conn);
    }
    true
}

/// Delivers a record to an MQTT client that may need checks.
fn deliver_full(io: &mut Io, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
    let Some(c) = io.conns.at_mut(conn) else { return Delivery::Taken };
    let Some(client) = c.session.mqtt() else { return Delivery::Taken };
    let group = if let Via::Group(group) = via { Some(group) } else { None };
    let Some(grant) = client.grant(via, record) else {
        // A group's record goes to another member if this one has left.
        return if group.is_some() { Delivery::Full } else { Delivery::Taken };
    };
    let Some(content) = Content::of(record) else {
        io.metrics.mqtt_unsent_total.add(1);
        return Delivery::Taken;
    };
    if record.retain
        && let Some(reads) = client_at(io, conn).and_then(|client| client.reads.as_deref_mut())
    {
        reads.note(content.topic);
    }
    let Some(c) = io.conns.at(conn) else { return Delivery::Taken };
    let Some(client) = c.session.mqtt() else { return Delivery::Taken };
    let (counted, is_open) = (client.counted_by(via, record), grant.qos > Qos::AtMostOnce);
    let must_queue = client.must_queue(has_output(c), grant.qos);
    let is_full = must_queue && is_full(io, conn);
    if counted != CountedBy::None {
        let Some(client) = client_at(io, conn) else { return Delivery::Taken };
        if is_full {
            client.refuses(counted, record);
        } else if !client.takes(counted, &content, is_open) {
            return Delivery::Taken;
        }
    }
    let way = Way { group, counted: if is_open { counted } else { CountedBy::None } };
    if is_full {
        return Delivery::Full;
    }
    if must_queue {
        queue(io, conn, &content, grant, record.on_slow, way);
    } else {
        send(io, conn, &content, &grant, None, way, None);
    }
    Delivery::Taken
}

/// Queues a record for a session whose connection is closing.
pub fn keep_for_session(io: &mut Io, conn: u32, via: Via<'_>, record: &RecordView<'_>) {
    let Some(client) = client_at(io, conn) else { return };
    let counted = client.counted_by(via, record);
    if counted != CountedBy::None {
        return client.refuses(counted, record);
    }
    let grant = client.grant(via, record).filter(|grant| grant.qos > Qos::AtMostOnce);
    if let (Some(grant), Some(content)) = (grant, Content::of(record)) {
        queue(io, conn, &content, grant, record.on_slow, Way::default());
    }
}

/// True if the output queued for an MQTT client is at its limit.
fn is_full(io: &Io, conn: u32) -> bool {
    let Some(c) = io.conns.at(conn) else { return false };
    let Some(client) = c.session.mqtt() else { return false };
    let soft_since_ms = client.pending.soft_since_ms();
    let limits = &io.limits;
    let waiting = waiting_bytes(c);
    waiting >= limits.output_bytes_max as usize
        || soft_since_ms.is_some_and(|ms| io.now.mono_ms >= ms + limits.output_soft_ms)
        || (waiting > 0 && io.record_bytes() >= limits.output_shard_bytes_max as usize)
}

/// Queues a record after those that wait.
pub(super) fn queue(
    io: &mut Io,
    conn: u32,
    content: &Content<'_>,
    grant: Grant,
    on_slow: OnSlow,
    way: Way<'_>,
) {
    let message = io.states.mqtt.cache.message(content);
    let Some(c) = io.conns.at_mut(conn) else { return };
    let Some(client) = c.session.mqtt_mut() else { return };
    let must_record = grant.qos == Qos::ExactlyOnce && client.is_recorded();
    let before = client.pending.bytes();
    let dropped = client.queue(message, grant, on_slow, way);
    io.output_bytes = io.output_bytes - before + client.pending.bytes();
    c.session.set_plain(Plain::No);
    if must_record && let Some(key) = io.conns.key_at(conn) {
        schedule(io, key);
    }
    let (soft, now_ms) = (io.limits.output_soft_bytes as usize, io.now.mono_ms);
    let Some(client) = client_at(io, conn) else { return };
    let is_news = client.pending.soft_since_ms().is_none();
    if soft > 0 && client.pending.bytes() > soft && is_news {
        client.pending.set_soft_since_ms(Some(now_ms));
        io.watch_soft_limit(conn, now_ms + io.limits.output_soft_ms);
    }
    io.lose(conn, dropped);
}

/// Handles a record for an MQTT client at its output limit, in a class that drops records.
pub fn squeeze(io: &mut Io, conn: u32, via: Via<'_>, record: &RecordView<'_>, policy: OnSlow, on_gap: OnGap) {
    let Some(client) = client_at(io, conn) else { return };
    if !client.reports_gaps() && on_gap == OnGap::Disconnect {
        return io.close(conn, CloseReason::Gap);
    }
    let Some(content) = Content::of(record) else { return };
    let before = client.pending.bytes();
    let Some(squeezed) = client.squeeze(via, record, &content, policy) else { return };
    let freed = before - client.pending.bytes();
    io.output_bytes -= freed;
    if let Some((grant, counted)) = squeezed.queue {
        queue(io, conn, &content, grant, record.on_slow, Way { group: None, counted });
    }
    io.lose(conn, squeezed.dropped);
    update_plain(io, conn);
}

/// Records a gap for an MQTT client; false if its protocol version cannot report one.
pub fn note_gap(io: &mut Io, conn: u32, topic: &[u8], from: Position, to: Position) -> bool {
    match client_at(io, conn).filter(|client| client.reports_gaps()) {
        Some(client) => client.gaps.add(topic, from, to),
        None => return false,
    }
    update_plain(io, conn);
    true
}

/// True if an MQTT client has room for replayed records.
pub fn wants_replay(conn: &Conn) -> bool {
    waiting_bytes(conn) < REPLAY_BELOW
}

fn waiting_bytes(conn: &Conn) -> usize {
    let pending = conn.session.mqtt().map_or(0, |client| client.pending.bytes());
    pending + conn.output.as_ref().map_or(0, |output| output.queue_bytes + output.turn_bytes)
}
