//! Incoming packets of MQTT clients: each becomes a broker event. The machine orders the replies.

use super::changes::{record_event, request_snapshot};
use super::client::{client_mut, client_ref, end, own_id, refuse_input, ticket, update_plain, with_client};
use super::retained::{self, read_on};
use super::state::work::Written;
use super::subscribing::{subscribe, unsubscribe};
use super::{connect, sending, session};
use crate::context::Ctx;
use crate::context::io::Io;
use crate::io::log_lines::Level;
use hubsub_mqtt::{Action, Event, Fault, Incoming, Intended, Step, WHOLE_BYTES, Wait, Whole, read_headers};
use hubsub_route::{Draft, Headers, Namespace, Outcome, Publisher, Record, publisher_name};
use hubsub_types::{ConnKey, ErrorCode, Qos};
use hubsub_wire::mqtt::{DecodeLimits, Decoded, Decoder, Packet, Publish, Reason};

/// Executes one packet of a connection's input and returns its length; none if it is incomplete or must wait.
pub fn execute(ctx: &mut Ctx, key: ConnKey, input: &[u8]) -> Option<usize> {
    let limits = decode_limits(&ctx.io);
    let second = ctx.io.second();
    let conn = ctx.io.conns.get_mut(key)?;
    conn.active_s = second;
    if let Some(client) = conn.session.mqtt_mut() {
        client.is_blocked = client.unconfirmed > 0 && is_publish(input);
        if client.is_blocked {
            return None;
        }
    }
    let mut first = Decoder::of_client();
    if let Some(client) = conn.session.mqtt_mut()
        && let Some((message, len)) = client.decoder.publish(input, &limits)
    {
        ctx.io.metrics.mqtt_packets_total.add(1);
        match client.machine.take_plain(&message, ctx.io.now.mono_ms) {
            Some(incoming) => publish(ctx, key, incoming, None),
            None => take(ctx, key, Packet::Publish(message), None),
        }
        return Some(len);
    }
    let decoder = conn.session.mqtt_mut().map_or(&mut first, |client| &mut client.decoder);
    let before = decoder.clone();
    match decoder.decode(input, &limits) {
        Ok(Decoded::Packet { packet: Packet::Connect(connect), len }) => {
            ctx.io.metrics.mqtt_packets_total.add(1);
            connect::begin(ctx, key, &connect, &input[..len], first);
            Some(len)
        }
        Ok(Decoded::Packet { packet, len }) => {
            ctx.io.metrics.mqtt_packets_total.add(1);
            take(ctx, key, packet, None);
            Some(len)
        }
        Ok(Decoded::Incomplete { .. }) => None,
        Ok(Decoded::Head { publish, payload_bytes, len }) => {
            begin_long(ctx, key, (&publish, payload_bytes), &input[..len], (before, limits));
            Some(len)
        }
        Ok(Decoded::Chunk { bytes, last, len }) => {
            go_on_long(ctx, key, bytes, last);
            Some(len)
        }
        Err(error) => {
            refuse_input(&mut ctx.io, key, error);
            Some(input.len())
        }
    }
}

fn is_publish(input: &[u8]) -> bool {
    input.first().is_some_and(|first| first >> 4 == 3)
}

fn decode_limits(io: &Io) -> DecodeLimits {
    let packet_bytes_max = io.limits.mqtt_packet_bytes_max as usize;
    let connect_bytes_max = (io.limits.mqtt_connect_bytes_max as usize).min(packet_bytes_max);
    // With a small sum of unfinished input a PUBLISH is taken in chunks earlier.
    let input_bytes_max = usize::try_from(io.limits.input_shard_bytes_max).unwrap_or(usize::MAX);
    let whole_bytes_max = packet_bytes_max.min(WHOLE_BYTES).min(input_bytes_max);
    DecodeLimits { packet_bytes_max, connect_bytes_max, whole_bytes_max }
}

/// Executes a packet; `whole` is the collected payload of a long message.
fn take(ctx: &mut Ctx, key: ConnKey, packet: Packet<'_>, whole: Option<Whole>) {
    let now_ms = ctx.io.now.mono_ms;
    let acknowledges = matches!(packet, Packet::Puback(_) | Packet::Pubrec(_) | Packet::Pubcomp(_));
    let step = with_client(&mut ctx.io, key, |client, out| {
        let (done, action) = client.acknowledges(&packet);
        let step = client.machine.take(packet, now_ms, out);
        (step, client.machine.take_exceeded(), done, action)
    });
    let Some((step, exceeded, done, action)) = step else { return };
    if let Some(action) = action {
        report_delivery(ctx, key, action);
    }
    if let Some((group, position)) = done {
        ctx.broker.acknowledge(&group, position, ctx.io.now, &mut ctx.io);
    }
    ctx.io.metrics.mqtt_receive_exceeded_total.add(exceeded);
    match step {
        Ok(Step::Done) => {}
        Ok(Step::Received { id, number }) => {
            record_event(&mut ctx.io, key, &Event::Received(id), Wait::Recorded(number));
        }
        Ok(Step::Released { id, number }) => {
            record_event(&mut ctx.io, key, &Event::Released(id), Wait::Recorded(number));
        }
        Ok(Step::Acknowledged { key: message, .. }) => session::message_ended(&mut ctx.io, key, message),
        Ok(Step::Publish(incoming)) => publish(ctx, key, incoming, whole),
        Ok(Step::Subscribe { filters, first, wants_positions }) => {
            if wants_positions {
                with_client(&mut ctx.io, key, |client, _| client.reports_positions = true);
            }
            for (number, (filter, options)) in (0..).map(|i| first.wrapping_add(i)).zip(filters.iter()) {
                retained::note_unread(ctx, key, number, filter);
                subscribe(ctx, key, number, filter, options.qos);
            }
            update_plain(&mut ctx.io, key.index);
        }
        Ok(Step::Unsubscribe { filters, number }) => {
            unsubscribe(ctx, key, filters);
            if let Some(number) = number {
                request_snapshot(&mut ctx.io, key, Some(Wait::Unsubscribed(number)));
            }
            update_plain(&mut ctx.io, key.index);
        }
        Ok(Step::Goodbye) => ctx.io.close_soon(key),
        Err(fault) => {
            ctx.io.metrics.protocol_errors_total.add(1);
            end(ctx, key, fault);
        }
    }
    if acknowledges {
        sending::pump(&mut ctx.io, key);
        read_on(ctx, key);
        if ctx.broker.cursors.has(key.index) {
            ctx.broker.drained(key, ctx.io.now, &mut ctx.io);
        }
    }
}

fn begin_long(
    ctx: &mut Ctx,
    key: ConnKey,
    (publish, payload_bytes): (&Publish<'_>, usize),
    head: &[u8],
    read: (Decoder, DecodeLimits),
) {
    let bytes_max = ctx.io.limits.mqtt_large_bytes_max;
    if !ctx.io.states.mqtt.long_messages.begin(key, (publish, payload_bytes), head, read, bytes_max) {
        ctx.io.metrics.mqtt_large_refused_total.add(1);
        let what = "too many bytes of long messages are under way: mqtt_large_bytes_max";
        end(ctx, key, Fault { reason: Reason::QuotaExceeded, what });
    }
}

/// The next part of its payload. A complete message is handled like any PUBLISH, except that its payload is
/// not in the packet.
fn go_on_long(ctx: &mut Ctx, key: ConnKey, bytes: &[u8], is_last: bool) {
    let now_ms = ctx.io.now.mono_ms;
    let Some(client) = client_mut(&mut ctx.io, key) else { return };
    // A slow transfer is not silence.
    client.machine.excuse(now_ms);
    if let Some(message) = ctx.io.states.mqtt.long_messages.add(key, bytes, is_last) {
        ctx.io.metrics.mqtt_packets_total.add(1);
        message.take(|publish, whole| take(ctx, key, Packet::Publish(publish), Some(whole)));
    }
}

fn publish(ctx: &mut Ctx, key: ConnKey, incoming: Incoming<'_>, whole: Option<Whole>) {
    let Incoming { number, topic, qos, retain, id, intent, properties, payload } = incoming;
    let topic = topic.as_str().as_bytes();
    ctx.io.metrics.mqtt_published_total.add(1);
    if let Some(intent) = intent
        && let Some(client) = client_mut(&mut ctx.io, key)
        && let Some(session) = &mut client.session
    {
        session.intend(number, intent);
    }
    if let Err(refused) = ctx.may_publish(key, topic) {
        return published(ctx, key, number, Err(refused));
    }
    let Some(client) = client_ref(&ctx.io, key) else { return };
    let own_name =
        client.machine.has_no_local().then(|| publisher_name(client.machine.client_id()).into_owned());
    let publisher = own_name.as_deref().map_or(Publisher::Conn(key.index), Publisher::Told);
    let whole = whole.map(|whole| (whole, client.machine.client_id().into()));
    let headers = (!properties.is_empty()).then(|| read_headers(properties));
    let headers: Headers = headers.filter(|headers| !headers.is_empty()).map(Into::into);
    if let (Some(id), Some(intent), true) = (id, intent, client.is_recorded())
        && ctx.broker.is_logged(Namespace::Global, topic)
    {
        let name: Box<str> = own_id(ctx, key);
        let record = match whole {
            Some((whole, _)) => whole.record(topic, name, headers),
            None => Record::new(Namespace::Global, topic, payload, name, headers),
        };
        let record = record.of_qos(qos).retained(retain);
        // It is published after its number is persisted; the number identifies a retransmission.
        let wait = Wait::Intended(Box::new(Intended { number, intent, record }));
        return record_event(&mut ctx.io, key, &Event::Intended { id, number: intent }, wait);
    }
    if retain
        && qos == Qos::AtMostOnce
        && let Some(client) = client_mut(&mut ctx.io, key)
    {
        // A retained publish is answered when its retained entry is written, perhaps before this call
        // returns.
        client.machine.awaits(number);
    }
    let ticket = ticket(&ctx.io, key, number);
    let namespace = Namespace::Global;
    let now = ctx.io.now;
    let outcome = match whole {
        None => {
            let draft = Draft { namespace, topic, payload, headers, publisher, producer: None, qos, retain };
            ctx.broker.publish(ticket, draft, now, &mut ctx.io)
        }
        Some((whole, name)) => {
            let record = whole.record(topic, name, headers).of_qos(qos).retained(retain);
            ctx.broker.publish_record(ticket, record, now, &mut ctx.io)
        }
    };
    match outcome {
        // No reply depends on the outcome.
        Outcome::Now(Ok(_)) if qos == Qos::AtMostOnce && !retain => {}
        Outcome::Now(outcome) => published(ctx, key, number, outcome.map(|p| p.receivers)),
        Outcome::Later => {
            let is_logged = ctx.broker.is_logged(namespace, topic);
            ctx.io.expects_more |= is_logged;
            if let Some(client) = client_mut(&mut ctx.io, key) {
                client.waits_for_log |= is_logged || (retain && client.machine.publishes());
                if qos == Qos::AtMostOnce && !retain {
                    client.machine.awaits(number);
                }
            }
        }
    }
}

pub(super) fn published(ctx: &mut Ctx, key: ConnKey, number: u32, outcome: Result<u64, ErrorCode>) {
    if outcome.is_err() {
        ctx.count_refusal(true);
    }
    answer_publish(&mut ctx.io, key, number, outcome);
}

/// A client has acknowledged a device action: publishes the delivery report. If the publish fails, the
/// action's state is unchanged.
fn report_delivery(ctx: &mut Ctx, key: ConnKey, action: Action) {
    let Some(client) = client_ref(&ctx.io, key) else { return };
    if let Some((topic, headers)) = action.report(client.machine.client_id(), ctx.broker.classes()) {
        ctx.say_with(topic.as_bytes(), b"", headers, None::<Written>);
    }
}

pub(super) fn answer_publish(io: &mut Io, key: ConnKey, number: u32, outcome: Result<u64, ErrorCode>) {
    let is_closed = with_client(io, key, |client, out| client.published(number, outcome, out));
    if is_closed == Some(true) {
        let why = outcome.err().map_or("", ErrorCode::code);
        let fields = vec![("reason", why.to_owned())];
        io.log_conn(Level::Info, "mqtt client closed: no answer to its message", key, fields);
        io.close_soon(key);
    }
}
