//! An MQTT client: what its connection is_blocked beside the protocol state machine (`hubsub-wire`), how output is
//! written, and how the connection ends.

use super::connect::Connecting;
use super::gaps::Gaps;
use super::pending::Pending;
use super::persist;
use super::retained::Reads;
use super::session::{self, Session};
use super::shares::{self, Shares};
use crate::io::access::Action;
use crate::io::conn::Flags;
use crate::io::context::Ctx;
use crate::io::log_lines::Level;
use crate::io::shard_io::{Io, REPLIES, Timer};
use hubsub_mqtt::{Fault, LastWill, Machine};
use hubsub_route::claims::Holder;
use hubsub_route::{Answer, Asker, Draft, Namespace, Outcome, Publisher, Ticket};
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::{Decoder, ProtocolError, Reason, packet_bytes};

/// State that only MQTT connections have.
pub struct Client {
    /// Protocol state: outstanding requests and unacknowledged messages.
    pub machine: Machine<u64>,
    pub(super) decoder: Decoder,
    /// The connect in progress; until it completes the client's input is not read.
    pub(super) connecting: Option<Box<Connecting>>,
    /// Message bookkeeping, if the session outlives connections.
    pub(super) session: Option<Box<Session>>,
    /// Subscriptions that are not confirmed yet.
    pub(super) unconfirmed: u32,
    /// True while a message of its own waits for them, because it should receive that message itself.
    pub(super) is_blocked: bool,
    /// True if one of the publishes that it waits for goes to a log.
    pub(super) waits_for_log: bool,
    /// Records that wait to be sent.
    pub pending: Pending,
    /// Dropped records that are still to be reported to it.
    pub(super) gaps: Gaps,
    /// True if its messages carry their positions.
    pub(super) reports_positions: bool,
    /// Unacknowledged messages of shared subscriptions and device actions; few clients have any.
    pub(super) shares: Option<Box<Shares>>,
    /// True if it was sent the reason for its disconnect.
    pub was_notified: bool,
    /// Its pending reads of retained messages.
    pub(super) reads: Option<Box<Reads>>,
}

impl Client {
    /// A client that sent CONNECT; `session` if it asked for one that outlives the connection.
    pub(super) fn new(
        machine: Machine<u64>,
        decoder: Decoder,
        connecting: Connecting,
        session: Option<Box<Session>>,
    ) -> Client {
        Client {
            machine,
            decoder,
            connecting: Some(Box::new(connecting)),
            session,
            unconfirmed: 0,
            is_blocked: false,
            waits_for_log: false,
            pending: Pending::default(),
            gaps: Gaps::default(),
            reports_positions: false,
            shares: None,
            was_notified: false,
            reads: None,
        }
    }

    /// True if its input must not be read: it is not connected yet, or too many of its requests are
    /// outstanding.
    #[must_use]
    #[inline]
    pub fn must_pause(
        &self,
        requests_max: u64,
        is_congested: impl Fn() -> bool,
        log_is_congested: impl Fn() -> bool,
    ) -> bool {
        let pending = self.machine.pending() as u64;
        self.connecting.is_some()
            || (self.is_blocked && self.unconfirmed > 0)
            || (pending > 0 && (pending >= requests_max || is_congested()))
            || self.reads.as_ref().is_some_and(|reads| reads.len() as u64 >= requests_max)
            || (self.waits_for_log && log_is_congested())
    }

    /// True if it is connected under one of these ids, which are sorted.
    #[must_use]
    pub fn is_any_of(&self, ids: &[String]) -> bool {
        let own = self.machine.client_id();
        self.connecting.is_none() && ids.binary_search_by(|id| id.as_str().cmp(own)).is_ok()
    }

    /// True if there is more to send once its output drains.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        let persistence = self.session.as_ref().and_then(|session| session.persistence.as_ref());
        let reads = self.reads.as_ref().is_some_and(|reads| reads.has_work());
        !self.pending.is_empty() || reads || persistence.is_some_and(|persistence| persistence.has_prepared())
    }

    /// True if its session is persisted.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.persistence.is_some())
    }

    /// True if a request of its is unanswered.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.connecting.is_some() || self.machine.pending() > 0
    }
}

impl Client {
    /// Appends the reason for the close: a refusal if the client is not connected yet.
    pub(super) fn write_end(&self, fault: Fault, out: &mut Vec<u8>) {
        match &self.connecting {
            Some(_) => self.machine.refuse(Fault::of(Reason::ServerUnavailable)).write(out),
            None => self.machine.write_fault(fault, out),
        }
    }
}

/// Checks whether a client has been silent for too long.
pub fn look_for_silence(ctx: &mut Ctx, key: ConnKey) {
    let io = &mut ctx.io;
    let now_ms = io.now.mono_ms;
    let Some(conn) = io.conns.get_mut(key).filter(|conn| !conn.is_closing()) else { return };
    let is_paused = conn.flags.any(Flags::PAUSED);
    // The timer may belong to a previous connection in this slot.
    let is_meant = |client: &&mut Box<Client>| {
        client.session.as_ref().is_none_or(|session| session.looks_at_ms <= now_ms)
    };
    let Some(client) = conn.mqtt.as_mut().filter(is_meant) else { return };
    if is_paused {
        client.machine.excuse(now_ms);
    }
    match client.machine.silent_at_ms() {
        Some(at_ms) if at_ms <= now_ms => {
            io.metrics.mqtt_silent_total.add(1);
            end(ctx, key, Fault::of(Reason::KeepAliveTimeout));
        }
        Some(at_ms) => {
            client.session.iter_mut().for_each(|session| session.looks_at_ms = at_ms);
            io.timers.set(at_ms, Timer::Silence(key));
        }
        None => {}
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
    let client = ctx.io.conns.get(key).and_then(|conn| conn.mqtt.as_ref());
    client.map_or_else(Box::default, |client| client.machine.client_id().into())
}

/// A connection has ended. If `outlives`, its session goes offline; else the client id is released and the
/// will is published.
pub fn gone(ctx: &mut Ctx, key: ConnKey, mut client: Box<Client>, outlives: bool) {
    ctx.io.states.mqtt.clients -= 1;
    ctx.io.states.mqtt.subscriptions -= client.machine.subscriptions();
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
        self.states.mqtt.subscriptions -= client.machine.subscriptions();
        let acted = act(client, arena);
        self.states.mqtt.subscriptions += client.machine.subscriptions();
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mqtt::restored::tests::opened;
    use hubsub_mqtt::Opened;
    use hubsub_wire::mqtt::Version;

    #[test]
    fn one_that_is_not_connected_is_told_so_whatever_ends_it() {
        for (version, refused) in [(Version::V311, 3), (Version::V5, 0x88)] {
            let Opened { machine, accepted, .. } = opened(version);
            let connect = Box::default();
            let connecting = Connecting { accepted, is_resumed: false, follows: None, connect };
            let mut client = Client::new(machine, Decoder::of_client(), connecting, None);
            let written = |client: &Client| {
                let mut out = Vec::new();
                client.write_end(Fault::of(Reason::ServerShuttingDown), &mut out);
                out
            };
            let connack = written(&client);
            assert_eq!((connack[0], connack[3]), (0x20, refused));
            client.connecting = None;
            assert_eq!(written(&client).first(), (version == Version::V5).then_some(&0xE0));
        }
    }

    #[test]
    fn an_idle_client_is_small() {
        // Above 256 the allocator takes 320.
        assert!(std::mem::size_of::<Client>() <= 256, "{}", std::mem::size_of::<Client>());
    }
}
