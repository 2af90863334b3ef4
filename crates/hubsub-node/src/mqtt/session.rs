//! Sessions that outlive their connections: how they go offline, their timers, and their end.

use super::client::{client_mut, publish_will};
use super::offline::queue_limits;
use super::{claims, handover, persist, session_cursors, shares};
use crate::context::Ctx;
use crate::context::io::{Io, Timer};
use hubsub_mqtt::{Client, OfflineSession, Session};
use hubsub_route::claims::{Heir, Holder};
use hubsub_types::ConnKey;

/// A connection has ended and its session continues: puts the session into the connection's slot.
pub(super) fn leave(ctx: &mut Ctx, key: ConnKey, client: Client) {
    let io = &mut ctx.io;
    let limits = queue_limits(io);
    let (mut offline, dropped) = OfflineSession::suspend(client, io.now.wall_us / 1000, limits);
    let yields_to = offline.session.yields_to.take();
    io.metrics.mqtt_session_dropped_total.add(dropped);
    io.states.mqtt.sessions.insert(key, offline);
    io.show_sessions();
    session_cursors::detach(ctx, key);
    ctx.io.states.mqtt.sessions.session_mut(key).into_iter().for_each(Session::shrink);
    persist::request_snapshot(&mut ctx.io, key, None);
    look_at(ctx, key);
    match yields_to.as_deref() {
        Some(Heir::Here(to)) => handover::call(ctx, key, to.who),
        Some(Heir::Away { .. }) => _ = persist::hand_over(ctx, key),
        None => {}
    }
    // It continues to read, as far as there is room.
    ctx.broker.drained(key, ctx.io.now, &mut ctx.io);
}

/// Publishes the will of an offline session and ends the session when each is due.
pub fn look_at(ctx: &mut Ctx, key: ConnKey) {
    let now_ms = ctx.io.now.wall_us / 1000;
    if persist::is_moving(&mut ctx.io, key) {
        return;
    }
    let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) else { return };
    if let Some(will) = offline.take_due_will(now_ms) {
        let id = offline.id.clone();
        publish_will(ctx, key, *will, &id);
        persist::request_snapshot(&mut ctx.io, key, None);
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
    let session = persist::session_of(&mut ctx.io, key);
    // A timer that fires after an earlier one was set instead finds that one handled.
    if let Some(session) = session.filter(|session| session.timer_ms > 0 && session.timer_ms <= now_ms) {
        session.timer_ms = 0;
        look_at(ctx, key);
    }
}

/// Ends an offline session and publishes its will if that is still to be done.
pub(super) fn end(ctx: &mut Ctx, key: ConnKey) {
    let left = ctx.io.take_shared(key, None);
    let Some(mut offline) = ctx.io.states.mqtt.sessions.remove(key) else { return };
    if let Some(will) = offline.state.take_will() {
        publish_will(ctx, key, *will, &offline.id);
    }
    ctx.io.show_sessions();
    ctx.broker.disconnected(key, ctx.io.now, &mut ctx.io);
    ctx.io.conns.give_back(key);
    let holder = Holder { shard: ctx.io.shard, conn: key };
    persist::release(ctx, offline.id, holder, offline.session.persistence);
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
    ctx.io.show_sessions();
    ctx.io.conns.give_back(key);
    let holder = Holder { shard: ctx.io.shard, conn: key };
    claims::release(ctx, offline.id, holder);
}

/// Drops the session in a slot that now holds a connection and cannot continue it.
pub(super) fn forget(ctx: &mut Ctx, key: ConnKey) {
    if let Some(offline) = ctx.io.states.mqtt.sessions.remove(key) {
        ctx.io.show_sessions();
        let holder = Holder { shard: ctx.io.shard, conn: key };
        persist::release(ctx, offline.id, holder, offline.session.persistence);
    }
}

impl Io {
    /// An acknowledgement has completed a message to a client.
    pub(super) fn ended_mqtt(&mut self, key: ConnKey, message: u64) {
        let session = client_mut(self, key).and_then(|client| client.session.as_mut());
        if session.is_some_and(|session| session.ended(message)) {
            persist::request_snapshot_later(self, key);
        }
    }
}
