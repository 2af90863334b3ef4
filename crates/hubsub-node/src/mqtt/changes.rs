//! Requests to persist what changed in a session. The changes of a turn are written at its end
//! ([`persist`](super::persist)), so this module only queues work.

use super::client::client_mut;
use super::state::work::Work;
use crate::context::Ctx;
use crate::context::io::{Io, Timer};
use hubsub_mqtt::{Event, Persistence, Session, Wait, put_event};
use hubsub_types::ConnKey;

pub(super) fn session_of(io: &mut Io, key: ConnKey) -> Option<&mut Session> {
    match io.conns.get_mut(key).and_then(|conn| conn.session.mqtt_mut()) {
        Some(client) => client.session.as_deref_mut(),
        None => io.states.mqtt.sessions.session_mut(key),
    }
}

pub(super) fn persistence_of(io: &mut Io, key: ConnKey) -> Option<&mut Persistence> {
    session_of(io, key)?.persistence.as_deref_mut()
}

pub(super) fn schedule(io: &mut Io, key: ConnKey) {
    if persistence_of(io, key).is_some_and(|persistence| persistence.schedule()) {
        io.own.queue(Work::Record(key));
    }
}

/// Schedules a snapshot for the end of this turn; `wait` is completed by it. Returns whether the session is
/// persistent.
pub(super) fn request_snapshot(io: &mut Io, key: ConnKey, wait: Option<Wait>) -> bool {
    let Some(persistence) = persistence_of(io, key) else { return false };
    persistence.request_snapshot(wait);
    schedule(io, key);
    true
}

/// The cursors of a session have advanced, or a write failed: schedules a snapshot after a delay.
pub(super) fn request_snapshot_later(io: &mut Io, key: ConnKey) {
    let delay_ms = io.limits.mqtt_session_snapshot_ms;
    let persistence = persistence_of(io, key);
    if let Some(delay_ms) = persistence.and_then(|it| it.request_snapshot_later(delay_ms)) {
        io.timers.set(io.now.mono_ms + delay_ms, Timer::Snapshot(key));
    }
}

pub fn snapshot_timer(ctx: &mut Ctx, key: ConnKey) {
    if persistence_of(&mut ctx.io, key).is_some_and(|persistence| persistence.snapshot_timer()) {
        request_snapshot(&mut ctx.io, key, None);
    }
}

/// Adds an event to the entry of this turn; `wait` is completed by it.
pub(super) fn record_event(io: &mut Io, key: ConnKey, event: &Event, wait: Wait) {
    let Some(client) = client_mut(io, key) else { return };
    let number = client.machine.next_event();
    if let Some(persistence) = client.session.as_mut().and_then(|session| session.persistence.as_mut()) {
        let work = persistence.work();
        put_event(number, event, &mut work.parts);
        work.parts_wait.push(wait);
        schedule(io, key);
    }
}

/// Hands an offline session over to another node, if it is persistent: after a last snapshot its slot here
/// ends and its client id is released.
pub(super) fn hand_over(io: &mut Io, key: ConnKey) -> bool {
    let Some(persistence) = persistence_of(io, key) else { return false };
    if persistence.begin_handover() {
        request_snapshot(io, key, None);
    }
    true
}

/// True if a session moves to another node, which then executes its timers.
pub(super) fn is_moving(io: &mut Io, key: ConnKey) -> bool {
    persistence_of(io, key).is_some_and(|persistence| persistence.is_moving())
}
