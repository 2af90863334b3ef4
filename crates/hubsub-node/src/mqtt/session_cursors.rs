//! Keeps a session's [`Cursors`] in step with the broker: how they start, detach
//! when the connection ends, and resume.
//!
//! ```text
//!  SUBSCRIBE topic ──► confirmed at p: cursor after p
//!  SUBSCRIBE #     ──► request log ends ──► cursors after these offsets, for all wildcards
//!  disconnect      ──► topics are unsubscribed; request log ends ──► earlier matches have arrived
//!  reconnect       ──► subscribed after the positions, hubs read from the offsets; then CONNACK
//! ```
//!
//! While offline, a wildcard that may match rooms without a log stays subscribed, and their records are
//! queued.

use super::changes::{request_snapshot_later, session_of};
use super::client::{NOBODY, client_mut, ticket, with_client};
use super::suback;
use crate::context::Ctx;
use crate::context::io::Io;
use crate::io::log_lines::Level;
use hubsub_mqtt::{Cursors, Fault, reason_of};
use hubsub_route::{Attached, HubsFrom, Namespace, Outcome};
use hubsub_types::names::filter_pattern;
use hubsub_types::{ConnKey, ErrorCode, HubId, Position, Qos, Seq};
use hubsub_wire::mqtt::shared;

/// True for a filter with wildcards that is not shared.
fn is_wild(filter: &str) -> bool {
    filter.contains(['+', '#']) && shared(filter).is_none()
}

fn cursors(ctx: &mut Ctx, key: ConnKey) -> Option<&mut Cursors> {
    session_of(&mut ctx.io, key)?.cursors.as_deref_mut()
}

/// A client subscribes to a topic: a persistent session gets a cursor in it if its class has a log.
pub(super) fn request_topic(ctx: &mut Ctx, key: ConnKey, number: u32, topic: &str, qos: Qos) {
    if session_of(&mut ctx.io, key).is_none() || !ctx.broker.is_logged(Namespace::Global, topic.as_bytes()) {
        return;
    }
    let Some(session) = session_of(&mut ctx.io, key) else { return };
    if qos == Qos::AtMostOnce {
        return session.cursors.iter_mut().for_each(|cursors| cursors.remove_topic(topic));
    }
    let cursors = session.cursors.get_or_insert_default();
    let is_there = cursors.has(topic);
    cursors.asked.push((number, topic.into()));
    if !is_there {
        // It may be subscribed with QoS 0. Only a new subscription returns a position.
        let (namespace, now) = (Namespace::Global, ctx.io.now);
        ctx.broker.unsubscribe(key, namespace, topic.as_bytes(), now, &mut ctx.io);
    }
}

/// A client has subscribed to a wildcard from a past position, for which cursors cannot exist.
pub(super) fn rewound(ctx: &mut Ctx, key: ConnKey) {
    let has_log = !ctx.broker.logged_hubs().is_empty();
    if has_log && let Some(session) = session_of(&mut ctx.io, key) {
        let cursors = session.cursors.get_or_insert_default();
        cursors.is_queued = true;
        cursors.remove_hubs();
    }
}

/// A client subscribes to a wildcard. Returns true if that waits for the log ends.
pub(super) fn request_wildcard(ctx: &mut Ctx, key: ConnKey, number: u32, filter: &str, qos: Qos) -> bool {
    let Some(session) = session_of(&mut ctx.io, key) else { return false };
    let cursors = session.cursors.as_deref_mut();
    let has_cursors = cursors.is_some_and(|cursors| cursors.has_hub_cursors || cursors.is_queued);
    if has_cursors || qos == Qos::AtMostOnce || ctx.broker.logged_hubs().is_empty() {
        return false;
    }
    let Some(session) = session_of(&mut ctx.io, key) else { return false };
    let cursors = session.cursors.get_or_insert_default();
    cursors.waiting.push((number, filter.into()));
    if !cursors.awaits_ends {
        request_ends(ctx, key);
    }
    true
}

fn request_ends(ctx: &mut Ctx, key: ConnKey) {
    let Some(cursors) = cursors(ctx, key) else { return };
    cursors.ends = cursors.ends.wrapping_add(1);
    cursors.awaits_ends = true;
    let number = cursors.ends;
    let ticket = ticket(&ctx.io, key, number);
    if let Outcome::Now(ends) = ctx.broker.hub_ends(ticket, ctx.io.now, &mut ctx.io) {
        ctx.io.states.mqtt.ends.push((key, (number, ends)));
    }
}

pub fn learn_ends(ctx: &mut Ctx) {
    while !ctx.io.states.mqtt.ends.is_empty() {
        for (key, (number, ends)) in std::mem::take(&mut ctx.io.states.mqtt.ends) {
            let Some(cursors) = cursors(ctx, key) else { continue };
            if !cursors.awaits_ends || cursors.ends != number {
                continue;
            }
            cursors.awaits_ends = false;
            match ctx.io.conns.get(key) {
                Some(_) => start_wildcards(ctx, key, ends),
                None => detached(ctx, key, ends),
            }
        }
    }
}

/// The first wildcards of a session start after the ends of all logs.
fn start_wildcards(ctx: &mut Ctx, key: ConnKey, ends: Result<Vec<(HubId, u64)>, ErrorCode>) {
    let Some(cursors) = cursors(ctx, key) else { return };
    let waiting = std::mem::take(&mut cursors.waiting);
    let ends = match ends {
        Ok(ends) => ends,
        Err(refused) => {
            for (number, _) in waiting {
                ctx.count_refusal(false);
                suback::confirmed(&mut ctx.io, key, number, Err(refused));
            }
            return;
        }
    };
    let has_hub_cursors = !cursors.is_queued;
    if has_hub_cursors {
        cursors.start_hubs(&ends);
    }
    for (number, filter) in waiting {
        let wants = client_mut(&mut ctx.io, key)
            .is_some_and(|client| client.machine.filters.qos_of(filter.as_bytes()).is_some());
        let outcome = if wants {
            let ticket = ticket(&ctx.io, key, number);
            let pattern = filter_pattern(filter.as_bytes());
            ctx.broker.subscribe_pattern(ticket, key, &pattern, &mut ctx.io)
        } else {
            // It was unsubscribed meanwhile, and still gets its reply.
            Outcome::Now(Ok(()))
        };
        if let Outcome::Now(granted) = outcome {
            if granted.is_err() {
                ctx.count_refusal(false);
            }
            suback::confirmed(&mut ctx.io, key, number, granted);
        }
    }
    if has_hub_cursors {
        read_hubs(ctx, key);
    }
    drop_unused_hub_cursors(ctx, key);
}

fn read_hubs(ctx: &mut Ctx, key: ConnKey) {
    let Some(cursors) = cursors(ctx, key) else { return };
    let offsets: Vec<(HubId, u64)> = cursors.offsets().collect();
    ctx.broker.follow_hubs(key, HubsFrom::Offsets(&offsets), ctx.io.now, &mut ctx.io);
}

pub(super) fn unsubscribed(ctx: &mut Ctx, key: ConnKey, filter: &str) {
    let Some(cursors) = cursors(ctx, key) else { return };
    if is_wild(filter) {
        drop_unused_hub_cursors(ctx, key);
    } else {
        cursors.remove_topic(filter);
    }
}

fn drop_unused_hub_cursors(ctx: &mut Ctx, key: ConnKey) {
    let Some(client) = client_mut(&mut ctx.io, key) else { return };
    let needs = |filter: &str, qos: Qos| is_wild(filter) && qos > Qos::AtMostOnce;
    if client.machine.filters.iter().any(|(filter, options, _)| needs(filter, options.qos)) {
        return;
    }
    let Some(cursors) = cursors(ctx, key) else { return };
    cursors.is_queued = false;
    if cursors.has_hub_cursors {
        cursors.remove_hubs();
        ctx.broker.cursors.hubs.remove_conn(key.index);
    }
}

/// The connection of a session has ended: unsubscribes from what its cursors can resume.
pub(super) fn detach(ctx: &mut Ctx, key: ConnKey) {
    let Some(cursors) = cursors(ctx, key) else { return };
    let asked = cursors.asked.iter().map(|(_, topic)| &**topic);
    let topics: Vec<Box<str>> =
        cursors.positions().map(|(topic, _)| topic).chain(asked).map(Box::from).collect();
    let has_hub_cursors = cursors.has_hub_cursors;
    cursors.detach();
    let now = ctx.io.now;
    for topic in topics {
        ctx.broker.unsubscribe(key, Namespace::Global, topic.as_bytes(), now, &mut ctx.io);
    }
    if has_hub_cursors {
        advance_hubs(ctx, key, |_| None);
        request_ends(ctx, key);
    }
}

/// Advances hub cursors to what the broker has delivered, and of live hubs to `end`.
fn advance_hubs(ctx: &mut Ctx, key: ConnKey, end: impl Fn(HubId) -> Option<u64>) {
    let places: Vec<(HubId, u64, bool)> = ctx.broker.cursors.hubs.places(key.index).collect();
    let Some(cursors) = cursors(ctx, key) else { return };
    for (hub, next, is_live) in places {
        let end = end(hub).filter(|_| is_live);
        cursors.arrived(hub, end.unwrap_or(0).max(next - 1));
    }
}

/// The log ends after a disconnect are known: earlier matches have arrived.
fn detached(ctx: &mut Ctx, key: ConnKey, ends: Result<Vec<(HubId, u64)>, ErrorCode>) {
    let ends = ends.unwrap_or_default();
    advance_hubs(ctx, key, |hub| ends.iter().find(|(of, _)| *of == hub).map(|(_, end)| *end));
    ctx.broker.cursors.hubs.remove_conn(key.index);
    request_snapshot_later(&mut ctx.io, key);
    if !ctx.broker.has_log_everywhere() {
        return;
    }
    let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) else { return };
    let filters = offline.state.filters.iter().map(|(filter, ..)| filter).filter(|filter| is_wild(filter));
    let patterns: Vec<Vec<u8>> = filters.map(|filter| filter_pattern(filter.as_bytes())).collect();
    for pattern in patterns {
        ctx.broker.unsubscribe_pattern(key, &pattern, &mut ctx.io);
    }
}

/// Removes the cursors of a restored session whose logs no longer exist.
pub(super) fn restored(ctx: &mut Ctx, cursors: &mut Cursors) {
    let mut has_log = |topic: &str| ctx.broker.is_logged(Namespace::Global, topic.as_bytes());
    let without: Vec<Box<str>> =
        cursors.positions().map(|(topic, _)| topic).filter(|topic| !has_log(topic)).map(Box::from).collect();
    without.iter().for_each(|topic| cursors.remove_topic(topic));
    if ctx.broker.logged_hubs().is_empty() {
        cursors.remove_hubs();
    }
}

/// True if an offline session need not subscribe to a filter because its cursors resume it.
pub(super) fn is_resumed(ctx: &Ctx, cursors: &Cursors, filter: &str) -> bool {
    match is_wild(filter) {
        true => cursors.has_hub_cursors && ctx.broker.has_log_everywhere(),
        false => cursors.has(filter),
    }
}

/// Resumes the cursors of a session that is online again, before CONNACK. Returns how many subscriptions will
/// be confirmed or refused later.
pub(super) fn resume(ctx: &mut Ctx, key: ConnKey) -> i64 {
    let (now_us, mut later) = (ctx.io.now.wall_us, 0);
    let Some(cursors) = cursors(ctx, key) else { return 0 };
    cursors.resume(now_us);
    let has_hub_cursors = cursors.has_hub_cursors;
    let topics: Vec<(Box<str>, Position)> =
        cursors.positions().map(|(topic, at)| (topic.into(), at)).collect();
    let ticket = ticket(&ctx.io, key, NOBODY);
    for (topic, after) in topics {
        let now = ctx.io.now;
        let outcome = ctx.broker.subscribe_on(ticket, key, topic.as_bytes(), after, now, &mut ctx.io);
        match outcome {
            Outcome::Now(Err(refused)) => cannot_resume(&mut ctx.io, key, refused),
            Outcome::Now(Ok(_)) => {}
            Outcome::Later => later += 1,
        }
    }
    if !has_hub_cursors {
        return later;
    }
    let Some(client) = client_mut(&mut ctx.io, key) else { return later };
    let filters = client.machine.filters.iter().map(|(filter, ..)| filter).filter(|filter| is_wild(filter));
    let patterns: Vec<Vec<u8>> = filters.map(|filter| filter_pattern(filter.as_bytes())).collect();
    for pattern in patterns {
        match ctx.broker.resume_pattern(ticket, key, &pattern, &mut ctx.io) {
            Outcome::Now(Err(refused)) => cannot_resume(&mut ctx.io, key, refused),
            Outcome::Now(Ok(())) => {}
            Outcome::Later => later += 1,
        }
    }
    read_hubs(ctx, key);
    later
}

/// A topic subscription is confirmed or refused: the session that requested it gets its cursor.
pub(super) fn confirmed(io: &mut Io, key: ConnKey, number: u32, outcome: &Result<Attached, ErrorCode>) {
    let session = session_of(io, key);
    let Some(cursors) = session.and_then(|session| session.cursors.as_deref_mut()) else { return };
    let Some(place) = cursors.asked.iter().position(|(asked, _)| *asked == number) else { return };
    let (_, topic) = cursors.asked.swap_remove(place);
    // An existing subscription returns no position.
    let Ok(Attached { position, replay_from, .. }) = *outcome else { return };
    if position.epoch.0 != 0 {
        let seq = replay_from.map_or(position.seq, |from| Seq(from.0 - 1));
        cursors.start(&topic, Position { seq, ..position });
    }
}

/// A subscription of a session cannot resume now: disconnects the client; its cursors stay until the
/// client retries.
pub(super) fn cannot_resume(io: &mut Io, key: ConnKey, refused: ErrorCode) {
    let reason = reason_of(refused);
    with_client(io, key, |client, out| {
        client.was_notified = true;
        client.write_end(Fault::of(reason), out);
    });
    let fields = vec![("reason", refused.code().to_owned())];
    io.log_conn(Level::Warning, "mqtt session cannot go on", key, fields);
    io.close_soon(key);
}
