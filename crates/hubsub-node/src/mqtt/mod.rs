//! MQTT clients: their packets become events of the broker, what the broker answers becomes packets. What a
//! connection has asked for and what it has not acknowledged is kept by its machine (`hubsub-wire`); here is
//! what that lacks: the broker, the socket, the clock.
//!
//! - [`claims`]: one connection a client id
//! - [`session`]: what outlives a connection
//! - [`cursors`]: where a session stands in rooms with a log
//! - [`standing`]: how it does with the broker
//! - [`sessions_shown`]: what operators see of that, and its end by their hand
//! - [`durable`]: what outlives the process
//! - [`adoption`]: how the next one takes it in
//! - [`entries`]: that in bytes
//! - [`handover`]: how it goes from one shard to another
//! - [`arrival`]: what a client waits for before it is connected
//! - [`deliver`]: records as PUBLISH packets
//! - [`large`]: long messages, whose payload is collected as it comes
//! - [`pending`]: records that wait for the window or the socket
//! - [`recalled`]: a session as it was recorded
//! - [`reading`]: how one is found that another node had
//! - [`retained`]: what topics kept, for who subscribes
//! - [`members`]: who is in a room
//! - [`message`]: a record as its packets are made from it
//! - [`plain`]: clients whose records need no look at them
//! - [`store`]: what keeps sessions beyond their process
//! - [`shares`]: what came for it as a member of groups
//! - [`actions`]: what it is to do as a device, until it has acknowledged that it has it

mod actions;
mod adoption;
mod arrival;
mod claims;
mod cursors;
mod deliver;
mod durable;
mod entries;
mod handover;
mod large;
mod members;
mod message;
mod pending;
mod plain;
mod reading;
mod recalled;
mod retained;
mod session;
mod sessions_shown;
mod shares;
mod standing;
mod store;

pub use adoption::{Found, id_of_entries, id_of_row, is_of_use};
pub use claims::{ClaimAsked, MqttMail, answered, heard, home_of, late, missed, receive};
pub use deliver::Cache;
pub use durable::{Written, look as look_whether_moved, record as record_session, written};
pub use handover::{Traveller, depart, settled};
pub use large::LongMessages;
pub use plain::Plain;
pub use reading::{Readings, adopt_orphans, came as read_of_session};
pub use retained::{Event as Retained, Pace, go_on as read_retained, is_over as row_is_over, read_on};
pub use session::{Sessions, timer as session_timer};
pub use sessions_shown::{end_session, list_sessions};
pub use standing::{Ends, learn_ends};
pub use store::{
    StoreConfig, StoreEnd, StoreState, StoreStatus, StoreThread, found_in, look as look_at_store,
};

use crate::access::Action;
use crate::conn::Flags;
use crate::control::Level;
use crate::core::Core;
use crate::rim::{REPLIES, Rim, Timer};
pub use arrival::followed;
use arrival::{Arrival, connected, recorded, refused};
use deliver::Gaps;
use durable::{Intended, Kept, Wait};
use hubsub_route::claims::{Aim, Claimant, Holder};
use hubsub_route::{
    Answer, Asker, Draft, Headers, HubsFrom, Namespace, Outcome, Publisher, Record, Start, Ticket, Wish,
};
use hubsub_types::names::filter_pattern;
use hubsub_types::{ConnKey, ErrorCode, Qos};
use hubsub_wire::mqtt::{
    Connect, DecodeLimits, Decoded, Decoder, Event, Fault, Incoming, LastWill, Machine, Names, Opened,
    Packet, ProtocolError, Reason, Refusal, Rewind, Step, Terms, packet_bytes, read_headers, rewind, shared,
};
use large::{WHOLE_BYTES, Whole};
use pending::Pending;
use retained::Reads;
use session::Session;
use shares::Shares;

/// What of a connection only MQTT's have.
pub struct Client {
    /// What it asked for and has not acknowledged.
    pub machine: Machine<u64>,
    decoder: Decoder,
    /// What it waits for until it is connected: it is not read meanwhile.
    arrival: Option<Box<Arrival>>,
    /// What is kept of messages, if its session outlives connections.
    session: Option<Box<Session>>,
    /// Subscriptions that are not confirmed yet.
    unconfirmed: u32,
    /// Whether a message of its own waits until they are: it shall reach them.
    holds: bool,
    /// Whether one of the messages that it waits for is for a log.
    waits_for_log: bool,
    /// Records that wait for it.
    pub pending: Pending,
    /// What it is to be told that it will not get.
    gaps: Gaps,
    /// Whether its messages say where they stand.
    tells_positions: bool,
    /// What it has not acknowledged as a member of groups, or as a device; few are one.
    shares: Option<Box<Shares>>,
    /// Whether it was told why it is closed.
    pub was_told: bool,
    /// What it reads of what topics kept.
    reads: Option<Box<Reads>>,
}

impl Client {
    /// Whether it must not be read on: it is not connected yet, or too many of its requests wait.
    #[must_use]
    #[inline]
    pub fn must_pause(
        &self,
        requests_max: u64,
        is_congested: impl Fn() -> bool,
        log_is_behind: impl Fn() -> bool,
    ) -> bool {
        let pending = self.machine.pending() as u64;
        self.arrival.is_some()
            || (self.holds && self.unconfirmed > 0)
            || (pending > 0 && (pending >= requests_max || is_congested()))
            || self.reads.as_ref().is_some_and(|reads| reads.len() as u64 >= requests_max)
            || (self.waits_for_log && log_is_behind())
    }

    /// Whether it is connected under one of these ids, which are in order.
    #[must_use]
    pub fn is_any_of(&self, ids: &[String]) -> bool {
        let own = self.machine.client_id();
        self.arrival.is_none() && ids.binary_search_by(|id| id.as_str().cmp(own)).is_ok()
    }

    /// Whether more is to come as its output drains.
    #[must_use]
    pub fn wants_more(&self) -> bool {
        let kept = self.session.as_ref().and_then(|session| session.kept.as_ref());
        !self.pending.is_empty() || self.reads.is_some() || kept.is_some_and(|kept| kept.has_prepared())
    }

    /// Whether its session is recorded.
    #[must_use]
    pub fn is_recorded(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.kept.is_some())
    }

    /// Whether something that it asked for is not answered.
    #[must_use]
    pub fn waits(&self) -> bool {
        self.arrival.is_some() || self.machine.pending() > 0
    }
}

/// Takes one packet off a connection's input: its bytes; none while it is not whole, or must wait.
pub fn execute(core: &mut Core, key: ConnKey, input: &[u8]) -> Option<usize> {
    let limits = decode_limits(&core.rim);
    let second = core.rim.second();
    let conn = core.rim.conns.get_mut(key)?;
    conn.active_s = second;
    if let Some(client) = &mut conn.mqtt {
        client.holds = client.unconfirmed > 0 && is_publish(input);
        if client.holds {
            return None;
        }
    }
    let mut first = Decoder::of_client();
    if let Some(client) = &mut conn.mqtt
        && let Some((message, len)) = client.decoder.publish(input, &limits)
    {
        core.rim.metrics.mqtt_packets_total.add(1);
        match client.machine.take_plain(&message, core.rim.now.mono_ms) {
            Some(incoming) => publish(core, key, incoming, None),
            None => take(core, key, Packet::Publish(message), None),
        }
        return Some(len);
    }
    let decoder = conn.mqtt.as_mut().map_or(&mut first, |client| &mut client.decoder);
    let before = decoder.clone();
    match decoder.decode(input, &limits) {
        Ok(Decoded::Packet { packet: Packet::Connect(connect), len }) => {
            core.rim.metrics.mqtt_packets_total.add(1);
            begin(core, key, &connect, &input[..len], first);
            Some(len)
        }
        Ok(Decoded::Packet { packet, len }) => {
            core.rim.metrics.mqtt_packets_total.add(1);
            take(core, key, packet, None);
            Some(len)
        }
        Ok(Decoded::Incomplete { .. }) => None,
        Ok(Decoded::Head { publish, payload_bytes, len }) => {
            large::begin(core, key, &publish, &input[..len], (before, limits), payload_bytes);
            Some(len)
        }
        Ok(Decoded::Chunk { bytes, last, len }) => {
            large::go_on(core, key, bytes, last);
            Some(len)
        }
        Err(error) => {
            refuse_input(&mut core.rim, key, error);
            Some(input.len())
        }
    }
}

/// Whether a packet is a message, by its first byte.
fn is_publish(input: &[u8]) -> bool {
    input.first().is_some_and(|first| first >> 4 == 3)
}

fn decode_limits(rim: &Rim) -> DecodeLimits {
    let packet_bytes_max = rim.limits.mqtt_packet_bytes_max as usize;
    let connect_bytes_max = (rim.limits.mqtt_connect_bytes_max as usize).min(packet_bytes_max);
    DecodeLimits { packet_bytes_max, connect_bytes_max, whole_bytes_max: packet_bytes_max.min(WHOLE_BYTES) }
}

/// What clients are granted. The limits are within what their packets can say: the configuration sees to it.
fn terms(rim: &Rim, retains: bool) -> Terms {
    let limits = &rim.limits;
    Terms {
        packet_bytes_max: limits.mqtt_packet_bytes_max as u32,
        receive_max: limits.mqtt_receive_max as u16,
        is_strict: rim.info.mqtt.is_strict,
        inflight_max: limits.mqtt_inflight_max as u16,
        aliases_max: limits.mqtt_topic_aliases_max as u16,
        keep_alive_s_max: limits.mqtt_keep_alive_s_max as u16,
        retains,
        long_ids: rim.info.mqtt.long_ids,
        session_expiry_s_max: limits.mqtt_session_expiry_s_max as u32,
        session_expiry_s_default: limits.mqtt_session_expiry_s.min(limits.mqtt_session_expiry_s_max) as u32,
        has_shares: true,
    }
}

fn begin(core: &mut Core, key: ConnKey, connect: &Connect<'_>, packet: &[u8], decoder: Decoder) {
    let (retains, records) = (core.broker.rows_class().is_some(), core.records_sessions());
    let rim = &mut core.rim;
    // One that has come to its session's place goes with that.
    let is_late = rim.is_leaving && rim.sessions.get_mut(key).is_none();
    let Some(conn) = rim.conns.get_mut(key) else { return };
    conn.flags.set(Flags::HANDSHAKED, true);
    let id = conn.id;
    let is_known = connect.user_name.is_none_or(|name| name == "default");
    let opened = if is_late {
        Err(Refusal::new(connect, Fault::of(Reason::ServerUnavailable)))
    } else if is_known {
        // Unique in the cluster: the node's run is.
        let new_id = || format!("hubsub-{}-{id}", &rim.info.run_id[..12]);
        Machine::open(connect, &terms(rim, retains), rim.now.mono_ms, new_id)
    } else {
        Err(Refusal::new(connect, Fault::of(Reason::BadUserNameOrPassword)))
    };
    match opened {
        Ok(Opened { mut machine, is_clean, accepted }) => {
            let client_id = machine.client_id().into();
            let mut session = None;
            if machine.session_expiry_s() > 0 {
                let kept = records.then(|| Box::new(Kept::new(rim.new_token())));
                session = Some(Box::new(Session::new(kept, 0)));
            }
            if session.is_some() && records {
                machine.record();
            }
            rim.sessions.connected += usize::from(session.is_some());
            let connect = if is_clean { Box::default() } else { packet.into() };
            let mut client = Client {
                machine,
                decoder,
                arrival: Some(Box::new(Arrival { accepted, is_resumed: false, follows: None, connect })),
                session,
                unconfirmed: 0,
                holds: false,
                waits_for_log: false,
                pending: Pending::default(),
                gaps: Gaps::default(),
                tells_positions: false,
                shares: None,
                was_told: false,
                reads: None,
            };
            rim.mqtt_clients += 1;
            let is_kept = session::resume(rim, key, &mut client);
            if let Some(arrival) = &mut client.arrival {
                arrival.is_resumed = is_kept;
            }
            if let Some(conn) = rim.conns.get_mut(key) {
                conn.mqtt = Some(Box::new(client));
            }
            if is_kept {
                let _ = standing::go_on(core, key);
                return recorded(core, key, true);
            }
            let who = Holder { shard: rim.shard, conn: key };
            let aim = if is_clean { Aim::Clean } else { Aim::Resume };
            claims::claim(core, client_id, Claimant { who, aim });
        }
        Err(refusal) => {
            // What it would have gone on with is over, too: its place is the connection's.
            session::forget(core, key);
            let rim = &mut core.rim;
            rim.metrics.mqtt_refused_total.add(1);
            let fields = vec![
                ("client", connect.client_id.chars().take(64).collect()),
                ("reason", refusal.fault.what.to_owned()),
            ];
            rim.log_conn(Level::Info, "mqtt client refused", key, fields);
            rim.push(key, |out, _| refusal.write(out));
            rim.close_soon(key);
        }
    }
}

/// A client may have been silent for too long.
pub fn look_for_silence(core: &mut Core, key: ConnKey) {
    let rim = &mut core.rim;
    let now_ms = rim.now.mono_ms;
    let Some(conn) = rim.conns.get_mut(key).filter(|conn| !conn.is_closing()) else { return };
    let is_paused = conn.flags.any(Flags::PAUSED);
    // A timer of the connection before in its place is none of its own.
    let is_meant = |client: &&mut Box<Client>| {
        client.session.as_ref().is_none_or(|session| session.looks_at_ms <= now_ms)
    };
    let Some(client) = conn.mqtt.as_mut().filter(is_meant) else { return };
    if is_paused {
        client.machine.excuse(now_ms);
    }
    match client.machine.silent_at_ms() {
        Some(at_ms) if at_ms <= now_ms => {
            rim.metrics.mqtt_silent_total.add(1);
            end(core, key, Fault::of(Reason::KeepAliveTimeout));
        }
        Some(at_ms) => {
            client.session.iter_mut().for_each(|session| session.looks_at_ms = at_ms);
            rim.timers.set(at_ms, Timer::Silence(key));
        }
        None => {}
    }
}

fn refuse_input(rim: &mut Rim, key: ConnKey, error: ProtocolError) {
    rim.metrics.protocol_errors_total.add(1);
    rim.with_mqtt(key, |client, _| client.was_told = true);
    rim.push(key, |out, _| error.write(out));
    rim.log_conn(Level::Info, "protocol error", key, vec![("error", error.to_string())]);
    rim.close_soon(key);
}

/// The server ends a connection; its will is published.
pub fn end(core: &mut Core, key: ConnKey, fault: Fault) {
    let rim = &mut core.rim;
    rim.with_mqtt(key, |client, out| {
        client.was_told = true;
        client.machine.write_fault(fault, out);
    });
    let reason = format!("{} ({:#04x})", fault.what, fault.reason.number());
    rim.log_conn(Level::Info, "mqtt client disconnected", key, vec![("reason", reason)]);
    rim.close_soon(key);
}

/// Acts on a packet; `whole` is what of a long message is not in it.
fn take(core: &mut Core, key: ConnKey, packet: Packet<'_>, whole: Option<Whole>) {
    let now_ms = core.rim.now.mono_ms;
    let acknowledges = matches!(packet, Packet::Puback(_) | Packet::Pubrec(_) | Packet::Pubcomp(_));
    let step = core.rim.with_mqtt(key, |client, out| {
        let done = match (&mut client.shares, &packet) {
            (Some(shares), Packet::Puback(ack) | Packet::Pubrec(ack)) => shares.ended(ack.id),
            _ => None,
        };
        let action = match &packet {
            Packet::Puback(ack) | Packet::Pubrec(ack) => {
                client.ends_action(ack.id).filter(|_| !ack.reason.is_failure())
            }
            _ => None,
        };
        let step = client.machine.take(packet, now_ms, out);
        (step, client.machine.take_exceeded(), done, action)
    });
    let Some((step, exceeded, done, action)) = step else { return };
    if let Some(action) = action {
        actions::delivered(core, key, &action);
    }
    if let Some((group, position)) = done {
        core.broker.acknowledge(&group, position, core.rim.now, &mut core.rim);
    }
    core.rim.metrics.mqtt_receive_exceeded_total.add(exceeded);
    match step {
        Ok(Step::Done) => {}
        Ok(Step::Received { id, number }) => {
            durable::happened(&mut core.rim, key, &Event::Received(id), Wait::Recorded(number));
        }
        Ok(Step::Released { id, number }) => {
            durable::happened(&mut core.rim, key, &Event::Released(id), Wait::Recorded(number));
        }
        Ok(Step::Acknowledged { key: message, .. }) => core.rim.ended_mqtt(key, message),
        Ok(Step::Publish(incoming)) => publish(core, key, incoming, whole),
        Ok(Step::Subscribe { filters, first, wants_positions }) => {
            if wants_positions {
                core.rim.with_mqtt(key, |client, _| client.tells_positions = true);
            }
            for (number, (filter, options)) in (0..).map(|i| first.wrapping_add(i)).zip(filters.iter()) {
                subscribe(core, key, number, filter, options.qos);
            }
            core.rim.look_whether_plain(key.index);
        }
        Ok(Step::Unsubscribe { filters, number }) => {
            unsubscribe(core, key, filters);
            if let Some(number) = number {
                durable::due(&mut core.rim, key, Some(Wait::Unsubscribed(number)));
            }
            core.rim.look_whether_plain(key.index);
        }
        Ok(Step::Goodbye) => core.rim.close_soon(key),
        Err(fault) => {
            core.rim.metrics.protocol_errors_total.add(1);
            end(core, key, fault);
        }
    }
    if acknowledges {
        core.rim.pump_mqtt(key);
        read_on(core, key);
        if core.broker.cursors.has(key.index) {
            core.broker.drained(key, core.rim.now, &mut core.rim);
        }
    }
}

fn publish(core: &mut Core, key: ConnKey, incoming: Incoming<'_>, whole: Option<Whole>) {
    let Incoming { number, topic, qos, retain, id, intent, properties, payload } = incoming;
    let topic = topic.as_str().as_bytes();
    core.rim.metrics.mqtt_published_total.add(1);
    if let Some(intent) = intent
        && let Some(client) = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut())
        && let Some(session) = &mut client.session
    {
        session.intend(number, intent);
    }
    if let Err(refused) = core.may_publish(key, topic) {
        return published(core, key, number, Err(refused));
    }
    let Some(client) = core.rim.conns.get(key).and_then(|conn| conn.mqtt.as_ref()) else { return };
    let own_name = client.machine.has_no_local().then(|| client.machine.client_id().to_owned());
    let publisher = own_name.as_deref().map_or(Publisher::Conn(key.index), Publisher::Told);
    let whole = whole.map(|whole| (whole, client.machine.client_id().into()));
    let headers = (!properties.is_empty()).then(|| read_headers(properties));
    let headers: Headers = headers.filter(|headers| !headers.is_empty()).map(Into::into);
    if let (Some(id), Some(intent), true) = (id, intent, client.is_recorded())
        && core.broker.is_logged(Namespace::Global, topic)
    {
        let name: Box<str> = own_id(core, key);
        let record = match whole {
            Some((whole, _)) => whole.record(topic, name, headers),
            None => Record::new(Namespace::Global, topic, payload, name, headers),
        };
        let record = record.of_qos(qos).retained(retain);
        return durable::intend(core, key, id, Intended { number, intent, record });
    }
    if retain
        && qos == Qos::AtMostOnce
        && let Some(client) = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut())
    {
        // What its topic keeps is answered by its row, perhaps before this call is over.
        client.machine.awaits(number);
    }
    let ticket = Ticket { shard: core.rim.shard, asker: Asker::Client { conn: key, slot: number } };
    let namespace = Namespace::Global;
    let now = core.rim.now;
    let outcome = match whole {
        None => {
            let draft = Draft { namespace, topic, payload, headers, publisher, producer: None, qos, retain };
            core.broker.publish(ticket, draft, now, &mut core.rim)
        }
        Some((whole, name)) => {
            let record = whole.record(topic, name, headers).of_qos(qos).retained(retain);
            core.broker.publish_record(ticket, record, now, &mut core.rim)
        }
    };
    match outcome {
        // Nobody waits for what came of it.
        Outcome::Now(Ok(_)) if qos == Qos::AtMostOnce && !retain => {}
        Outcome::Now(outcome) => published(core, key, number, outcome.map(|p| p.receivers)),
        Outcome::Later => {
            let is_logged = core.broker.is_logged(namespace, topic);
            core.rim.expects_more |= is_logged;
            if let Some(client) = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) {
                client.waits_for_log |= is_logged || (retain && client.machine.publishes());
                if qos == Qos::AtMostOnce && !retain {
                    client.machine.awaits(number);
                }
            }
        }
    }
}

/// A client's id.
fn own_id(core: &Core, key: ConnKey) -> Box<str> {
    let client = core.rim.conns.get(key).and_then(|conn| conn.mqtt.as_ref());
    client.map_or_else(Box::default, |client| client.machine.client_id().into())
}

fn published(core: &mut Core, key: ConnKey, number: u32, outcome: Result<u64, ErrorCode>) {
    if outcome.is_err() {
        core.count_refusal(true);
    }
    core.rim.mqtt_published(key, number, outcome);
}

fn subscribe(core: &mut Core, key: ConnKey, number: u32, filter: &str, qos: Qos) {
    let (group, plain) = shared(filter).map_or((None, filter), |(group, filter)| (Some(group), filter));
    let (from, plain) = rewind(plain).map_or((None, plain), |(from, plain)| (Some(from), plain));
    let is_strange =
        plain.starts_with(REWIND) || (matches!(from, Some(Rewind::Last(_))) && plain.contains(['+', '#']));
    if is_strange {
        core.count_refusal(false);
        let refused = Err(Reason::TopicFilterInvalid);
        core.rim.with_mqtt(key, |client, out| client.machine.granted(number, refused, out));
        return;
    }
    let ticket = Ticket { shard: core.rim.shard, asker: Asker::Client { conn: key, slot: number } };
    match attach(core, ticket, key, (group, from, plain), Some((number, qos))) {
        Outcome::Now(granted) => {
            if granted.is_err() {
                core.count_refusal(false);
            }
            core.rim.mqtt_granted(key, number, granted);
            if from.is_some() && granted.is_ok() {
                core.broker.drained(key, core.rim.now, &mut core.rim);
            }
        }
        Outcome::Later => {
            if let Some(client) = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) {
                client.unconfirmed += 1;
            }
        }
    }
}

/// A place among connections subscribes: by its group, from when on, to what. `asks`: the number of a client's request,
/// and the QoS that it asks for; none of a session of the process before.
fn attach(
    core: &mut Core,
    ticket: Ticket,
    key: ConnKey,
    (group, from, filter): (Option<&str>, Option<Rewind>, &str),
    asks: Option<(u32, Qos)>,
) -> Outcome<Result<(), ErrorCode>> {
    let principal = core.rim.conns.get(key).map(|conn| conn.principal).unwrap_or_default();
    let topic = filter.as_bytes();
    if group.is_none() && filter.starts_with(members::PRESENCE) {
        let request = asks.map(|(number, _)| number);
        return Outcome::Now(if from.is_none() {
            members::watch(core, key, filter, request)
        } else {
            Err(ErrorCode::TopicLength)
        });
    }
    if !core.rim.access.allowed(principal, Action::Subscribe, topic) {
        Outcome::Now(Err(ErrorCode::NotAllowed))
    } else if let Some(group) = group {
        core.broker.join_group(ticket, key, group.as_bytes(), topic, core.rim.now, &mut core.rim)
    } else if filter.contains(['+', '#'])
        && let Some((number, qos)) = asks
        && standing::asks_wildcard(core, key, number, filter, (qos, from.is_some()))
    {
        Outcome::Later
    } else if filter.contains(['+', '#']) {
        let pattern = filter_pattern(topic);
        match from.map(|from| since_us(from, core.rim.now.wall_us)) {
            None => core.broker.subscribe_pattern(ticket, key, &pattern, &mut core.rim),
            Some(us) => {
                let from = HubsFrom::Since(us);
                core.broker.subscribe_pattern_from(ticket, key, &pattern, from, &mut core.rim)
            }
        }
    } else {
        let start = match from {
            None => Start::Live,
            Some(Rewind::Last(count)) => Start::Last(count),
            Some(from) => Start::Since(since_us(from, core.rim.now.wall_us)),
        };
        if let Some((number, qos)) = asks {
            standing::asks_topic(core, key, number, filter, qos);
        }
        if let Some((number, _)) = asks {
            members::subscribes(core, key, filter, Some(number));
        }
        let wish = Wish { topic, namespace: Namespace::Global, start };
        match core.broker.subscribe(ticket, key, wish, core.rim.now, &mut core.rim) {
            Outcome::Now(attached) => {
                if let Some((number, _)) = asks {
                    core.rim.stands(key, number, &attached);
                }
                Outcome::Now(attached.map(|_| ()))
            }
            Outcome::Later => Outcome::Later,
        }
    }
}

/// What a filter that begins in the past begins with.
const REWIND: &str = "$rewind/";

/// From when on, in µs since 1970.
fn since_us(from: Rewind, now_us: u64) -> u64 {
    match from {
        Rewind::Seconds(seconds) => now_us.saturating_sub(seconds.saturating_mul(1_000_000)),
        Rewind::Last(_) | Rewind::Earliest => 0,
    }
}

fn unsubscribe(core: &mut Core, key: ConnKey, filters: Names<'_>) {
    for filter in filters.iter() {
        let filter = rewind(filter).map_or(filter, |(_, filter)| filter);
        if let Some((group, filter)) = shared(filter) {
            core.broker.leave_group(key, group.as_bytes(), filter.as_bytes(), &mut core.rim);
        } else if filter.contains(['+', '#']) {
            core.broker.unsubscribe_pattern(key, &filter_pattern(filter.as_bytes()), &mut core.rim);
        } else {
            let (namespace, now) = (Namespace::Global, core.rim.now);
            core.broker.unsubscribe(key, namespace, filter.as_bytes(), now, &mut core.rim);
        }
        standing::leaves(core, key, filter);
        crate::presence::left(core, key, filter);
    }
}

/// A connection has ended. Its session goes on without it, if it `outlives` it; else its client id is free, and its will is
/// published.
pub fn gone(core: &mut Core, key: ConnKey, mut client: Box<Client>, outlives: bool) {
    core.rim.mqtt_clients -= 1;
    core.rim.mqtt_subscriptions -= client.machine.subscriptions();
    core.rim.output_bytes -= client.pending.bytes();
    core.rim.sessions.connected -= usize::from(client.session.is_some());
    core.rim.long_messages.remove(key);
    core.rim.readings.remove(key);
    shares::give_away(core, &mut client);
    if outlives {
        return session::leave(core, key, *client);
    }
    let will = client.machine.take_will();
    if let Some(will) = will.filter(|_| client.arrival.is_none()) {
        publish_will(core, key, *will, client.machine.client_id());
    }
    let session = client.session.take();
    if session.as_ref().is_some_and(|session| session.is_released) {
        return;
    }
    let holder = Holder { shard: core.rim.shard, conn: key };
    let kept = session.and_then(|session| session.kept);
    durable::release(core, client.machine.client_id().into(), holder, kept);
}

/// The number of a request that no client has.
const NOBODY: u32 = u32::MAX;

fn publish_will(core: &mut Core, key: ConnKey, will: LastWill, client_id: &str) {
    let LastWill { topic, payload, headers, qos, retain, .. } = will;
    if !core.rim.access.allowed(Default::default(), Action::Publish, topic.as_bytes()) {
        return core.count_refusal(true);
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
    // Nobody waits for what comes of it: the connection of this key is no more.
    let ticket = Ticket { shard: core.rim.shard, asker: Asker::Client { conn: key, slot: NOBODY } };
    let outcome = core.broker.publish(ticket, draft, core.rim.now, &mut core.rim);
    if let Outcome::Now(Err(_)) = outcome {
        core.count_refusal(true);
    }
    core.rim.metrics.mqtt_wills_total.add(1);
}

/// How many packets these bytes are, none of them in part.
fn packets(mut bytes: &[u8]) -> u64 {
    let mut count = 0;
    while let Some(length) = packet_bytes(bytes) {
        bytes = bytes.get(length..).unwrap_or_default();
        count += 1;
    }
    count
}

impl Rim {
    /// A client's part acts, and what it writes goes out in order.
    fn with_mqtt<R>(&mut self, key: ConnKey, act: impl FnOnce(&mut Client, &mut Vec<u8>) -> R) -> Option<R> {
        let conn = self.conns.get_mut(key).filter(|conn| !conn.flags.any(Flags::CLOSE_NOW))?;
        let client = conn.mqtt.as_mut()?;
        let arena = &mut self.arenas[usize::from(REPLIES)];
        let start = arena.len();
        self.mqtt_subscriptions -= client.machine.subscriptions();
        let acted = act(client, arena);
        self.mqtt_subscriptions += client.machine.subscriptions();
        if arena.len() > start {
            self.metrics.mqtt_packets_sent_total.add(packets(&arena[start..]));
            conn.output.get_or_insert_with(|| self.pool.pop().unwrap_or_default());
            if crate::reply::emit(conn, arena, start, &mut self.output_bytes) {
                self.dirty.push(key);
            }
        }
        Some(acted)
    }

    /// What the broker answers to an MQTT client.
    pub(crate) fn answer_mqtt(&mut self, key: ConnKey, number: u32, answer: Answer) {
        match answer {
            Answer::HubEnds(ends) => self.ends.push((key, (number, ends))),
            answer if number == NOBODY => self.gone_on(key, &answer),
            Answer::Published(outcome) => {
                self.expects_more |= outcome.is_ok();
                self.mqtt_published(key, number, outcome.map(|published| published.receivers));
            }
            Answer::Attached(outcome) => {
                self.stands(key, number, &outcome);
                self.mqtt_confirmed(key, number, outcome.map(|_| ()));
            }
            Answer::PatternHeld => self.mqtt_confirmed(key, number, Ok(())),
            Answer::Counted(_) | Answer::Settled | Answer::Rows(_) => {
                unreachable!("no packet asks for that")
            }
        }
    }

    fn mqtt_published(&mut self, key: ConnKey, number: u32, outcome: Result<u64, ErrorCode>) {
        let reason = match outcome {
            Ok(0) => Reason::NoMatchingSubscribers,
            Ok(_) => Reason::Success,
            Err(refused) => Reason::from_number(refused.mqtt_reason()).unwrap_or(Reason::Unspecified),
        };
        let fault = self.with_mqtt(key, |client, out| {
            let intent = client.session.as_mut().and_then(|session| session.take_intent(number));
            if let Some(intent) = intent.filter(|_| outcome.is_ok()) {
                client.machine.published_before(intent);
            }
            let fault = client.machine.published(number, reason, out).err();
            client.waits_for_log &= client.machine.publishes();
            fault
        });
        if let Some(Some(_)) = fault {
            let why = outcome.err().map_or("", ErrorCode::code);
            self.log_conn(
                Level::Info,
                "mqtt client closed: no answer to its message",
                key,
                vec![("reason", why.to_owned())],
            );
            self.close_soon(key);
        }
    }

    /// What came of a subscription that was not known at once; perhaps one that this connection did not ask for.
    fn mqtt_confirmed(&mut self, key: ConnKey, number: u32, granted: Result<(), ErrorCode>) {
        let client = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
        // It may be one that an older connection of the session asked for.
        if let Some(client) = client
            && client.machine.waits_for(number)
        {
            client.unconfirmed = client.unconfirmed.saturating_sub(1);
        }
        self.mqtt_granted(key, number, granted);
    }

    /// What came of a subscription; where the session is recorded, its client is told when that is with it.
    fn mqtt_granted(&mut self, key: ConnKey, number: u32, granted: Result<(), ErrorCode>) {
        let client = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
        if granted.is_ok()
            && let Some(client) = client
        {
            client.machine.confirm(number);
            if durable::due(self, key, Some(Wait::Granted(number))) {
                return;
            }
        }
        self.mqtt_granted_now(key, number, granted);
    }

    fn mqtt_granted_now(&mut self, key: ConnKey, number: u32, granted: Result<(), ErrorCode>) {
        self.settle_seat(key, number, granted.is_ok());
        let granted = granted.map_err(|refused| match refused {
            ErrorCode::TopicLength => Reason::TopicFilterInvalid,
            refused => Reason::from_number(refused.mqtt_reason()).unwrap_or(Reason::Unspecified),
        });
        let due = self.with_mqtt(key, |client, out| client.machine.granted(number, granted, out)).flatten();
        if let Some(filter) = due {
            self.reads_retained(key, filter);
        }
        self.look_whether_plain(key.index);
    }

    /// Tells the MQTT client that the node stops.
    pub(crate) fn tell_mqtt_of_stop(&mut self, key: ConnKey) {
        if self.conns.get(key).is_some_and(|conn| !conn.is_closing()) {
            let fault = Fault::of(Reason::ServerShuttingDown);
            self.with_mqtt(key, |client, out| client.machine.write_fault(fault, out));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_client_is_small() {
        // Above 256 the allocator takes 320.
        assert!(std::mem::size_of::<Client>() <= 256, "{}", std::mem::size_of::<Client>());
    }
}
