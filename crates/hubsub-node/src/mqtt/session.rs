//! Sessions that outlive their connections: how they go offline, their timers, and their end.

use super::changes::{hand_over, is_moving, request_snapshot, request_snapshot_later, session_of};
use super::claims::{self, here, post};
use super::offline::queue_limits;
use super::state::mail::MqttMail;
use super::wills::publish_will;
use super::{persist, session_cursors, shares};
use crate::context::Ctx;
use crate::context::io::{Io, Timer};
use hubsub_mqtt::{Client, OfflineSession, Session};
use hubsub_route::claims::{Heir, Holder};
use hubsub_types::ConnKey;

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
        leave(ctx, key, *client);
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
    let persistence = session.and_then(|session| session.persistence);
    persist::release(ctx, client.machine.client_id().into(), key, persistence);
}

/// A connection has ended and its session continues: puts the session into the connection's slot.
fn leave(ctx: &mut Ctx, key: ConnKey, client: Client) {
    let io = &mut ctx.io;
    let limits = queue_limits(io);
    let (mut offline, dropped) = OfflineSession::suspend(client, io.now.wall_us / 1000, limits);
    let yields_to = offline.session.yields_to.take();
    io.metrics.mqtt_session_dropped_total.add(dropped);
    io.states.mqtt.sessions.insert(key, offline);
    io.states.mqtt.show_sessions(&io.metrics);
    session_cursors::detach(ctx, key);
    ctx.io.states.mqtt.sessions.session_mut(key).into_iter().for_each(Session::shrink);
    request_snapshot(&mut ctx.io, key, None);
    look_at(ctx, key);
    match yields_to.as_deref() {
        Some(Heir::Here(to)) => call(ctx, key, to.who),
        Some(Heir::Away { .. }) => _ = hand_over(&mut ctx.io, key),
        None => {}
    }
    // It continues to read, as far as there is room.
    ctx.broker.drained(key, ctx.io.now, &mut ctx.io);
}

pub(super) fn call(ctx: &mut Ctx, key: ConnKey, to: Holder) {
    let here = here(ctx, key);
    let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) else { return };
    offline.awaits = Some(Box::new(to));
    post(ctx, to.shard, MqttMail::Call(to.conn, here));
}

/// Publishes the will of an offline session and ends the session when each is due.
pub(super) fn look_at(ctx: &mut Ctx, key: ConnKey) {
    let now_ms = ctx.io.now.wall_us / 1000;
    if is_moving(&mut ctx.io, key) {
        return;
    }
    let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) else { return };
    if let Some(will) = offline.take_due_will(now_ms) {
        let id = offline.id.clone();
        publish_will(ctx, key, *will, &id);
        request_snapshot(&mut ctx.io, key, None);
    }
    let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) else { return };
    if offline.awaits.is_none() && offline.is_expired(now_ms) {
        ctx.io.metrics.mqtt_sessions_expired_total.add(1);
        return end(ctx, key);
    }
    if let Some(at_ms) = offline.next_due_ms() {
        // A session that is being taken over is checked again soon.
        let wait_ms = at_ms.saturating_sub(now_ms).max(TIMER_MS_MIN);
        let at_ms = ctx.io.now.mono_ms + wait_ms;
        // Timers are never cancelled, so a pending one is reused, however often the client comes and goes.
        let timer_ms = &mut offline.session.timer_ms;
        if *timer_ms == 0 || at_ms < *timer_ms {
            *timer_ms = at_ms;
            ctx.io.timers.set(at_ms, Timer::Session(key));
        }
    }
}

/// The minimum interval between two checks of a session that cannot end just now, in ms.
const TIMER_MS_MIN: u64 = 100;

/// The timer of a session; its client may have reconnected.
pub fn timer(ctx: &mut Ctx, key: ConnKey) {
    let now_ms = ctx.io.now.mono_ms;
    let session = session_of(&mut ctx.io, key);
    // A timer that fires after an earlier one was set instead finds that one handled.
    if let Some(session) = session.filter(|session| session.timer_ms > 0 && session.timer_ms <= now_ms) {
        session.timer_ms = 0;
        look_at(ctx, key);
    }
}

/// Ends an offline session and publishes its will if that is still to be done.
pub(super) fn end(ctx: &mut Ctx, key: ConnKey) {
    let left = shares::take_shared(&mut ctx.io, key, None);
    let Some(mut offline) = ctx.io.states.mqtt.sessions.remove(key) else { return };
    if let Some(will) = offline.state.take_will() {
        publish_will(ctx, key, *will, &offline.id);
    }
    ctx.io.states.mqtt.show_sessions(&ctx.io.metrics);
    ctx.broker.disconnected(key, ctx.io.now, &mut ctx.io);
    ctx.io.conns.give_back(key);
    persist::release(ctx, offline.id, key, offline.session.persistence);
    shares::redeliver(ctx, left);
}

/// Stops deliveries to an offline session that moves to another node.
pub(super) fn comes_to_rest(ctx: &mut Ctx, key: ConnKey) {
    let Some(session) = ctx.io.states.mqtt.sessions.session_mut(key) else { return };
    session.cursors.iter_mut().for_each(|cursors| cursors.awaits_ends = false);
    ctx.broker.disconnected(key, ctx.io.now, &mut ctx.io);
}

/// The other node has all of the session: frees its slot here.
pub(super) fn part(ctx: &mut Ctx, key: ConnKey) {
    let Some(offline) = ctx.io.states.mqtt.sessions.remove(key) else { return };
    ctx.io.states.mqtt.show_sessions(&ctx.io.metrics);
    ctx.io.conns.give_back(key);
    claims::release(ctx, offline.id, here(ctx, key));
}

/// Drops the session in a slot that now holds a connection and cannot continue it.
pub(super) fn forget(ctx: &mut Ctx, key: ConnKey) {
    if let Some(offline) = ctx.io.states.mqtt.sessions.remove(key) {
        ctx.io.states.mqtt.show_sessions(&ctx.io.metrics);
        persist::release(ctx, offline.id, key, offline.session.persistence);
    }
}

/// An acknowledgement has completed a message to a client.
pub(super) fn message_ended(io: &mut Io, key: ConnKey, message: u64) {
    if session_of(io, key).is_some_and(|session| session.ended(message)) {
        request_snapshot_later(io, key);
    }
}
