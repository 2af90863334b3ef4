//! Writes to an MQTT client, and ends its connection.

use crate::context::Ctx;
use crate::context::conn::Flags;
use crate::context::io::{Io, REPLIES, Timer};
use crate::context::reply::emit;
use crate::io::log_lines::Level;
use hubsub_mqtt::{Client, Fault, Plain, Silence};
use hubsub_route::{Asker, Ticket};
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::{ProtocolError, Reason, packet_bytes};

/// A request number that no client uses.
pub(super) const NOBODY: u32 = u32::MAX;

pub(super) fn client_ref(io: &Io, key: ConnKey) -> Option<&Client> {
    io.conns.get(key)?.session.mqtt()
}

pub(super) fn client_mut(io: &mut Io, key: ConnKey) -> Option<&mut Client> {
    io.conns.get_mut(key)?.session.mqtt_mut()
}

#[inline]
pub(super) fn client_at(io: &mut Io, conn: u32) -> Option<&mut Client> {
    io.conns.at_mut(conn)?.session.mqtt_mut()
}

pub(super) fn own_id(ctx: &Ctx, key: ConnKey) -> Box<str> {
    client_ref(&ctx.io, key).map_or_else(Box::default, |client| client.machine.client_id().into())
}

/// True if a connection exists and is not being closed.
pub(super) fn is_open(io: &Io, key: ConnKey) -> bool {
    io.conns.get(key).is_some_and(|conn| !conn.is_closing())
}

/// A request of a client to the broker; `number` comes back with the answer.
pub(super) fn ticket(io: &Io, key: ConnKey, number: u32) -> Ticket {
    Ticket { shard: io.shard, asker: Asker::Client { conn: key, slot: number } }
}

/// Runs `act` on a client; what it writes is sent in order.
pub(super) fn with_client<R>(
    io: &mut Io,
    key: ConnKey,
    act: impl FnOnce(&mut Client, &mut Vec<u8>) -> R,
) -> Option<R> {
    let conn = io.conns.get_mut(key).filter(|conn| !conn.flags.any(Flags::CLOSE_NOW))?;
    let client = conn.session.mqtt_mut()?;
    let arena = &mut io.arenas[usize::from(REPLIES)];
    let start = arena.len();
    io.states.mqtt.subscriptions -= client.machine.filters.len();
    let acted = act(client, arena);
    io.states.mqtt.subscriptions += client.machine.filters.len();
    if arena.len() > start {
        io.metrics.mqtt_packets_sent_total.add(packets(&arena[start..]));
        conn.output.get_or_insert_with(|| io.pool.pop().unwrap_or_default());
        if emit(conn, arena, start, (&mut io.output_bytes, &mut io.reply_bytes)) {
            io.dirty.push(key);
        }
    }
    Some(acted)
}

fn packets(mut bytes: &[u8]) -> u64 {
    let mut count = 0;
    while let Some(length) = packet_bytes(bytes) {
        bytes = bytes.get(length..).unwrap_or_default();
        count += 1;
    }
    count
}

/// Counts a record's packet that was added to a connection's output.
#[inline]
pub(super) fn count_sent(io: &mut Io, conn: u32, bytes: usize) {
    let Some(c) = io.conns.at_mut(conn) else { return };
    c.meter.sent(bytes);
    io.metrics.delivered_total.add(1);
    io.metrics.mqtt_packets_sent_total.add(1);
    io.metrics.mqtt_delivered_total.add(1);
    if !c.flags.any(Flags::DIRTY) {
        c.flags.set(Flags::DIRTY, true);
        io.dirty.push(io.conns.key_at(conn).expect("it is there"));
    }
}

/// Reclassifies a client after a change of its subscriptions, its queue or its gaps.
pub(super) fn update_plain(io: &mut Io, conn: u32) {
    if let Some(c) = io.conns.at_mut(conn) {
        let plain = c.session.mqtt().map_or(Plain::No, |client| client.plain());
        c.session.set_plain(plain);
    }
}

pub fn look_for_silence(ctx: &mut Ctx, key: ConnKey) {
    let io = &mut ctx.io;
    let now_ms = io.now.mono_ms;
    let Some(conn) = io.conns.get_mut(key).filter(|conn| !conn.is_closing()) else { return };
    let is_paused = conn.flags.any(Flags::PAUSED);
    let Some(client) = conn.session.mqtt_mut() else { return };
    match client.look_for_silence(now_ms, is_paused) {
        Silence::TooLong => {
            io.metrics.mqtt_silent_total.add(1);
            end(ctx, key, Fault::of(Reason::KeepAliveTimeout));
        }
        Silence::LookAt(at_ms) => io.timers.set(at_ms, Timer::Silence(key)),
        Silence::None => {}
    }
}

pub(super) fn refuse_input(io: &mut Io, key: ConnKey, error: ProtocolError) {
    io.metrics.protocol_errors_total.add(1);
    with_client(io, key, |client, _| client.was_notified = true);
    io.push(key, |out, _| error.write(out));
    io.log_conn(Level::Info, "protocol error", key, vec![("error", error.to_string())]);
    io.close_soon(key);
}

/// Ends a connection from the server's side; its will is published.
pub fn end(ctx: &mut Ctx, key: ConnKey, fault: Fault) {
    let io = &mut ctx.io;
    with_client(io, key, |client, out| {
        client.was_notified = true;
        client.write_end(fault, out);
    });
    let reason = format!("{} ({:#04x})", fault.what, fault.reason.number());
    io.log_conn(Level::Info, "mqtt client disconnected", key, vec![("reason", reason)]);
    io.close_soon(key);
}

pub fn notify_of_stop(io: &mut Io, key: ConnKey) {
    if is_open(io, key) {
        let fault = Fault::of(Reason::ServerShuttingDown);
        with_client(io, key, |client, out| client.write_end(fault, out));
    }
}
