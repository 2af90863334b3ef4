//! Sends records to MQTT clients. Queued records are sent as window and socket have room.

use super::changes::schedule;
use super::client::{client_mut, count_sent, is_open, update_plain, with_client};
use crate::context::conn::Conn;
use crate::context::io::{Io, REPLIES, TURN_BYTES};
use hubsub_mqtt::{
    ARENA_BYTES_MAX, Content, CountedBy, Grant, Message, Next, Outgoing, Prepared, Sent, Under, Way,
};
use hubsub_types::ConnKey;
use std::rc::Rc;

// A packet for a single client is written at once when the arena is longer than a few turns.
const _: () = assert!(ARENA_BYTES_MAX == 4 * TURN_BYTES);

/// The most queued bytes sent to a client in one turn.
const PUMP_BYTES: usize = 64 * 1024;

/// Sends an MQTT client its queued records, as far as window and socket have room.
pub fn pump(io: &mut Io, key: ConnKey) {
    let is_connecting = |conn: &Conn| conn.session.mqtt().is_none_or(|client| client.connecting.is_some());
    if io.conns.get(key).is_none_or(is_connecting) || !send_again(io, key) || !send_prepared(io, key) {
        return;
    }
    let (soft, now_us) = (io.limits.output_soft_bytes as usize, io.now.wall_us);
    loop {
        let Some(c) = io.conns.get_mut(key).filter(|c| !c.is_closing()) else { return };
        let has_room = has_room(c);
        let Some(client) = c.session.mqtt_mut().filter(|_| has_room) else { return };
        let item = match client.next_queued() {
            Next::Ready(item) => item,
            Next::Record => return schedule(io, key),
            Next::None | Next::Waits => return,
        };
        if client.pending.bytes() <= soft {
            client.pending.set_soft_since_ms(None);
        }
        let is_last = client.pending.is_empty();
        let under = client.send_under_key(&item, now_us);
        io.output_bytes -= item.message.weight();
        let way = Way { group: item.group.as_deref(), counted: item.counted };
        send(io, key.index, &item.message.content(), &item.grant, Some(&item.message), way, under);
        if is_last {
            return update_plain(io, key.index);
        }
    }
}

/// Resends what a client has not acknowledged on an older connection, as far as there is room; returns
/// whether all of it was sent.
fn send_again(io: &mut Io, key: ConnKey) -> bool {
    loop {
        let Some(conn) = io.conns.get(key).filter(|conn| !conn.is_closing()) else { return true };
        if !has_room(conn) {
            return false;
        }
        let next = with_client(io, key, |client, out| {
            let (id, _, number) = client.machine.send_again(out)?;
            let sent = client.session.as_ref().and_then(|session| session.sent(number).cloned());
            if sent.is_none() {
                client.machine.window.unsend(id);
            }
            Some((Under { id, key: number, dup: true }, sent))
        });
        let Some(Some((under, sent))) = next else { return true };
        if let Some(Sent { message, grant, .. }) = sent {
            let (content, way) = (message.content(), Way::default());
            send(io, key.index, &content, &grant, Some(&message), way, Some(under));
        }
    }
}

/// Sends messages whose entry is safe, as far as there is room; returns whether none is left.
fn send_prepared(io: &mut Io, key: ConnKey) -> bool {
    loop {
        let Some(conn) = io.conns.get_mut(key).filter(|conn| !conn.is_closing()) else { return false };
        let has_room = has_room(conn);
        let Some(client) = conn.session.mqtt_mut() else { return true };
        let Prepared { message, grant, group, under, .. } = match client.next_prepared(has_room) {
            Next::Ready(prepared) => prepared,
            Next::None => return true,
            Next::Waits | Next::Record => return false,
        };
        let way = Way { group: group.as_deref(), counted: CountedBy::None };
        send(io, key.index, &message.content(), &grant, Some(&message), way, under);
    }
}

/// Assigns packet ids to waiting QoS 2 messages and those after them; they are sent once that is
/// persisted.
pub(super) fn prepare(io: &mut Io, key: ConnKey) {
    let now_us = io.now.wall_us;
    if !is_open(io, key) {
        return;
    }
    let Some(client) = client_mut(io, key) else { return };
    let (bytes, expired) = client.prepare(now_us);
    io.output_bytes -= bytes;
    io.metrics.mqtt_unsent_total.add(expired);
}

/// Sends a record to a client: `queued` if it was queued, else the current record. `under`: its packet id
/// and key, if it has them.
pub(super) fn send(
    io: &mut Io,
    conn: u32,
    content: &Content<'_>,
    grant: &Grant,
    queued: Option<&Rc<Message>>,
    way: Way<'_>,
    under: Option<Under>,
) {
    let Some(c) = io.conns.at_mut(conn) else { return };
    let Some(client) = c.session.mqtt_mut() else { return };
    let arena = &mut io.arenas[usize::from(REPLIES)];
    let before = arena.len();
    let outgoing = Outgoing { content, grant, queued, way, under };
    let sent = client.send(&outgoing, &mut io.states.mqtt.cache, arena, io.now.wall_us);
    let is_final = |group: &&[u8]| sent.is_final && !group.iter().any(|byte| b"+#".contains(byte));
    if let Some(group) = way.group.filter(is_final) {
        // No acknowledgement will come, so the group's position advances now.
        io.own.acknowledge(group.into(), content.position);
    }
    let Some(packet) = sent.packet else {
        io.metrics.mqtt_unsent_total.add(1);
        return;
    };
    let mut bytes = packet.end - packet.start;
    let output = c.output.get_or_insert_with(|| io.pool.pop().unwrap_or_default());
    output.push_range(REPLIES, packet.start as u32, packet.end as u32);
    if let Some(payload) = packet.payload {
        bytes += payload.len();
        io.frame_bytes += payload.len();
        output.push_frame(payload);
    }
    let turn_bytes = output.turn_bytes;
    count_sent(io, conn, bytes);
    if packet.reports_gaps {
        update_plain(io, conn);
    }
    let is_long = io.arenas[usize::from(REPLIES)].len() > ARENA_BYTES_MAX
        && packet.start == before
        && !packet.is_cached;
    if is_long || turn_bytes >= TURN_BYTES.min(io.limits.output_bytes_max as usize / 2) {
        io.write_pieces(conn);
        if is_long {
            io.arenas[usize::from(REPLIES)].truncate(before);
        }
    }
}

/// True if an MQTT client may be sent more queued records in this turn.
fn has_room(conn: &Conn) -> bool {
    conn.output.as_ref().is_none_or(|o| o.queue.is_empty() && o.turn_bytes < PUMP_BYTES)
}
