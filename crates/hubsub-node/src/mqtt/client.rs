//! How the output of an MQTT client is written, and how its connection ends.

use super::{persist, session, shares};
use crate::io::access::Action;
use crate::io::conn::Flags;
use crate::io::context::Ctx;
use crate::io::log_lines::Level;
use crate::io::shard_io::{Io, REPLIES, Timer};
use hubsub_mqtt::{Client, Fault, LastWill, Silence};
use hubsub_route::claims::Holder;
use hubsub_route::{Answer, Asker, Draft, Namespace, Outcome, Publisher, Ticket};
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::{ProtocolError, Reason, packet_bytes};

/// The MQTT client of a connection.
pub(super) fn client_ref(io: &Io, key: ConnKey) -> Option<&Client> {
    io.conns.get(key)?.mqtt.as_deref()
}

/// The MQTT client of a connection.
pub(super) fn client_mut(io: &mut Io, key: ConnKey) -> Option<&mut Client> {
    io.conns.get_mut(key)?.mqtt.as_deref_mut()
}

/// The MQTT client in a connection slot.
#[inline]
pub(super) fn client_at(io: &mut Io, conn: u32) -> Option<&mut Client> {
    io.conns.at_mut(conn)?.mqtt.as_deref_mut()
}

/// Checks whether a client has been silent for too long.
pub fn look_for_silence(ctx: &mut Ctx, key: ConnKey) {
    let io = &mut ctx.io;
    let now_ms = io.now.mono_ms;
    let Some(conn) = io.conns.get_mut(key).filter(|conn| !conn.is_closing()) else { return };
    let is_paused = conn.flags.any(Flags::PAUSED);
    let Some(client) = &mut conn.mqtt else { return };
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
    io.with_mqtt(key, |client, _| client.was_notified = true);
    io.push(key, |out, _| error.write(out));
    io.log_conn(Level::Info, "protocol error", key, vec![("error", error.to_string())]);
    io.close_soon(key);
}

/// Ends a connection from the server's side; its will is published.
pub fn end(ctx: &mut Ctx, key: ConnKey, fault: Fault) {
    let io = &mut ctx.io;
    io.with_mqtt(key, |client, out| {
        client.was_notified = true;
        client.write_end(fault, out);
    });
    let reason = format!("{} ({:#04x})", fault.what, fault.reason.number());
    io.log_conn(Level::Info, "mqtt client disconnected", key, vec![("reason", reason)]);
    io.close_soon(key);
}

pub(super) fn own_id(ctx: &Ctx, key: ConnKey) -> Box<str> {
    client_ref(&ctx.io, key).map_or_else(Box::default, |client| client.machine.client_id().into())
}

/// A connection has ended. If `outlives`, its session goes offline; else the client id is released and the
/// will is published.
pub fn gone(ctx: &mut Ctx, key: ConnKey, mut client: Box<Client>, outlives: bool) {
    ctx.io.states.mqtt.clients -= 1;
    ctx.io.states.mqtt.subscriptions -= client.machine.filters.len();
    ctx.io.output_bytes -= client.pending.bytes();
    ctx.io.states.mqtt.sessions.connected -= usize::from(client.session.is_some());
    ctx.io.states.mqtt.long_messages.remove(key);
    ctx.io.states.mqtt.readings.remove(key);
    ctx.io.states.mqtt.unread.remove(&key);
    let left = shares::take_left(ctx, &mut client);
    if outlives {
        session::leave(ctx, key, *client);
        // Where the group has no other member, the session queues them.
        return shares::redeliver(ctx, left);
    }
    shares::redeliver(ctx, left);
    let will = client.machine.take_will();
    if let Some(will) = will.filter(|_| client.connecting.is_none()) {
        publish_will(ctx, key, *will, client.machine.client_id());
    }
    let session = client.session.take();
    if session.as_ref().is_some_and(|session| session.is_released) {
        return;
    }
    let holder = Holder { shard: ctx.io.shard, conn: key };
    let persistence = session.and_then(|session| session.persistence);
    persist::release(ctx, client.machine.client_id().into(), holder, persistence);
}

/// A request number that no client uses.
pub(super) const NOBODY: u32 = u32::MAX;

pub(super) fn publish_will(ctx: &mut Ctx, key: ConnKey, will: LastWill, client_id: &str) {
    let LastWill { topic, payload, headers, qos, retain, .. } = will;
    if !ctx.io.access.allowed(Default::default(), Action::Publish, topic.as_bytes()) {
        return ctx.count_refusal(true);
    }
    let draft = Draft {
        namespace: Namespace::Global,
        topic: topic.as_bytes(),
        payload: &payload,
        headers: (!headers.is_empty()).then(|| headers.into()),
        publisher: Publisher::Name(client_id),
        producer: None,
        qos,
        retain,
    };
    // The outcome is ignored: the connection of this key is gone.
    let ticket = Ticket { shard: ctx.io.shard, asker: Asker::Client { conn: key, slot: NOBODY } };
    let outcome = ctx.broker.publish(ticket, draft, ctx.io.now, &mut ctx.io);
    if let Outcome::Now(Err(_)) = outcome {
        ctx.count_refusal(true);
    }
    ctx.io.metrics.mqtt_wills_total.add(1);
}

/// The number of complete packets in these bytes.
fn packets(mut bytes: &[u8]) -> u64 {
    let mut count = 0;
    while let Some(length) = packet_bytes(bytes) {
        bytes = bytes.get(length..).unwrap_or_default();
        count += 1;
    }
    count
}

impl Io {
    /// Runs `act` on a client; what it writes is sent in order.
    pub(super) fn with_mqtt<R>(
        &mut self,
        key: ConnKey,
        act: impl FnOnce(&mut Client, &mut Vec<u8>) -> R,
    ) -> Option<R> {
        let conn = self.conns.get_mut(key).filter(|conn| !conn.flags.any(Flags::CLOSE_NOW))?;
        let client = conn.mqtt.as_mut()?;
        let arena = &mut self.arenas[usize::from(REPLIES)];
        let start = arena.len();
        self.states.mqtt.subscriptions -= client.machine.filters.len();
        let acted = act(client, arena);
        self.states.mqtt.subscriptions += client.machine.filters.len();
        if arena.len() > start {
            self.metrics.mqtt_packets_sent_total.add(packets(&arena[start..]));
            conn.output.get_or_insert_with(|| self.pool.pop().unwrap_or_default());
            if crate::io::reply::emit(conn, arena, start, (&mut self.output_bytes, &mut self.reply_bytes)) {
                self.dirty.push(key);
            }
        }
        Some(acted)
    }

    /// Passes a broker answer to an MQTT client.
    pub(crate) fn answer_mqtt(&mut self, key: ConnKey, number: u32, answer: Answer) {
        match answer {
            Answer::HubEnds(ends) => self.states.mqtt.ends.push((key, (number, ends))),
            answer if number == NOBODY => self.resumed(key, &answer),
            Answer::Published(outcome) => {
                self.expects_more |= outcome.is_ok();
                self.mqtt_published(key, number, outcome.map(|published| published.receivers));
            }
            Answer::Attached(outcome) => {
                self.cursor_confirmed(key, number, &outcome);
                self.mqtt_confirmed(key, number, outcome.map(|_| ()));
            }
            Answer::PatternHeld => self.mqtt_confirmed(key, number, Ok(())),
            Answer::Counted(_) | Answer::Settled | Answer::Rows(_) => {
                unreachable!("no packet asks for that")
            }
        }
    }

    /// Notifies an MQTT client that the node stops.
    pub(crate) fn notify_mqtt_of_stop(&mut self, key: ConnKey) {
        if self.conns.get(key).is_some_and(|conn| !conn.is_closing()) {
            let fault = Fault::of(Reason::ServerShuttingDown);
            self.with_mqtt(key, |client, out| client.write_end(fault, out));
        }
    }
}
