//! The end of a connect: CONNACK once the session has its subscriptions and its snapshot is written, or a
//! refusal.

use super::changes::{request_snapshot, session_of};
use super::client::{client_mut, end, is_open, update_plain, with_client};
use super::missing_subscriptions::note_missing;
use super::state::work::Work;
use super::subscribing::subscribe_all;
use super::{members, sending, session_cursors, store};
use crate::context::Ctx;
use crate::context::io::{Io, Timer};
use crate::io::log_lines::Level;
use hubsub_mqtt::{Fault, Wait};
use hubsub_route::Answer;
use hubsub_route::claims::Heir;
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::Reason;

/// Subscribes a connection's restored session and resumes its cursors; CONNACK follows once all subscriptions
/// are confirmed.
pub(super) fn follow(ctx: &mut Ctx, key: ConnKey, filters: &[Box<str>]) {
    let client = client_mut(&mut ctx.io, key);
    let Some(connecting) = client.and_then(|client| client.connecting.as_mut()) else { return };
    connecting.follows = Some(0);
    let asked = subscribe_all(ctx, key, filters);
    if let Some(refused) = asked.refused {
        note_missing(&mut ctx.io, key, refused);
        return followed(ctx, key, false);
    }
    let later = asked.later + session_cursors::resume(ctx, key);
    let client = client_mut(&mut ctx.io, key);
    if client.and_then(|client| client.awaits_confirmations(later)) == Some(true) {
        recorded(ctx, key, true);
    }
}

/// The outcome of a subscription of a session that resumes. Where the session needs all of them before
/// CONNACK, they are counted.
pub(super) fn resumed(io: &mut Io, key: ConnKey, answer: &Answer) {
    let counted = client_mut(io, key).and_then(|client| client.confirmed());
    if let Answer::Attached(Err(refused)) = *answer {
        note_missing(io, key, refused);
        match counted {
            Some(_) => io.own.queue(Work::Follows(key, false)),
            None => session_cursors::cannot_resume(io, key, refused),
        }
    } else if counted == Some(true) {
        io.own.queue(Work::Follows(key, true));
    }
}

/// The subscriptions of a connecting client's session are complete, or one was refused.
pub(super) fn followed(ctx: &mut Ctx, key: ConnKey, is_held: bool) {
    if is_held {
        return recorded(ctx, key, true);
    }
    if store::reads_sessions(ctx) {
        // Here the session would lack the refused subscription. The next connect reads it from its rooms and
        // subscribes to all again.
        if let Some(session) = session_of(&mut ctx.io, key) {
            session.yields_to = Some(Box::new(Heir::Away { is_clean: false }));
        }
    }
    refused(ctx, key, Reason::ServerUnavailable);
}

/// Connects a client without a session although its will cannot be persisted: the will is lost if this node
/// fails. Returns whether it is such a client.
pub(super) fn forgo_will(io: &mut Io, key: ConnKey) -> bool {
    let is_its = client_mut(io, key).is_some_and(|client| client.forgo_will());
    if is_its {
        io.states.mqtt.sessions.connected -= 1;
        io.metrics.mqtt_wills_unrecorded_total.add(1);
    }
    is_its
}

/// A client has its session; it is connected once the snapshot is written, where sessions are persisted.
pub(super) fn recorded(ctx: &mut Ctx, key: ConnKey, session_present: bool) {
    if !is_open(&ctx.io, key) {
        return;
    }
    if !request_snapshot(&mut ctx.io, key, Some(Wait::Connected(session_present))) {
        connected(ctx, key, session_present);
    }
}

/// Sends CONNACK, starts the keep-alive timer and delivers what waits.
pub(super) fn connected(ctx: &mut Ctx, key: ConnKey, session_present: bool) {
    let io = &mut ctx.io;
    let now_ms = io.now.mono_ms;
    let silent_at_ms =
        with_client(io, key, |client, out| client.connected(session_present, now_ms, out).flatten());
    if let Some(Some(silent_at_ms)) = silent_at_ms {
        io.timers.set(silent_at_ms, Timer::Silence(key));
    }
    sending::pump(io, key);
    update_plain(io, key.index);
    members::back(ctx, key);
    // Its hub subscriptions continue from where they were while it was offline.
    ctx.broker.drained(key, ctx.io.now, &mut ctx.io);
}

/// A connecting client was superseded by a later one. No request of its was refused, so it gets CONNACK, then
/// DISCONNECT "session taken over" and its will is published, as for a connected client. Before 5.0 its
/// connection is closed.
pub(super) fn displaced(ctx: &mut Ctx, key: ConnKey) {
    let io = &mut ctx.io;
    if !is_open(io, key) {
        return;
    }
    if with_client(io, key, |client, out| client.displaced(out)) == Some(true) {
        io.metrics.mqtt_taken_over_total.add(1);
        end(ctx, key, Fault::of(Reason::SessionTakenOver));
    }
}

/// Refuses a connect and closes the connection.
pub(super) fn refused(ctx: &mut Ctx, key: ConnKey, reason: Reason) {
    let io = &mut ctx.io;
    if !is_open(io, key) {
        return;
    }
    let notified = with_client(io, key, |client, out| {
        client.connecting.as_ref()?;
        client.machine.refuse(Fault::of(reason)).write(out);
        Some(())
    });
    if notified.flatten().is_some() {
        io.metrics.mqtt_refused_total.add(1);
        let fields = vec![("reason", reason.words().to_owned())];
        io.log_conn(Level::Info, "mqtt client refused", key, fields);
        io.close_soon(key);
    }
}
