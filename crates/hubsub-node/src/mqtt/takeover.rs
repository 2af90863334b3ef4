//! Takes over sessions of other processes (docs/protocol/mqtt-state.md): each becomes an offline session, or
//! that of a connection.

use super::changes::request_snapshot;
use super::claims::{self, here};
use super::client::{client_mut, client_ref, is_open};
use super::connack::{displaced, follow, recorded};
use super::missing_subscriptions::{filters_of, note_missing};
use super::state::work::Written;
use super::subscribing::subscribe_all;
use super::wills::{publish_will, publish_will_of};
use super::{delete_retry, offline, session, session_cursors, store};
use crate::context::Ctx;
use crate::io::log_lines::Level;
use hubsub_mqtt::{Found, Grant, Message, OfflineSession, SessionDelete};
use hubsub_types::{ConnKey, ErrorCode};

struct Revived {
    offline: OfflineSession,
    queue: Vec<(u64, Message, Grant)>,
    /// The filters that it must subscribe to also while offline.
    filters: Vec<Box<str>>,
}

/// Restores a session. None if it is damaged, which is logged.
fn revive(ctx: &mut Ctx, found: Found) -> Option<Revived> {
    let id = found.id.clone();
    match found.revive(ctx.io.states.mqtt.store.is_some(), ctx.io.now.wall_us / 1000) {
        Ok((mut offline, queue)) => {
            if let Some(cursors) = &mut offline.session.cursors {
                session_cursors::restored(ctx, cursors);
            }
            let filters = filters_of(ctx, &offline);
            Some(Revived { offline, queue, filters })
        }
        Err(damaged) => {
            ctx.io.metrics.mqtt_sessions_damaged_total.add(1);
            let fields = vec![("client", id.chars().take(64).collect()), ("error", damaged.to_string())];
            ctx.io.lines.log(Level::Error, "a session is lost", fields);
            None
        }
    }
}

/// The shard of a client id, on a lone node, takes over a session of the previous process, before any client
/// connects.
pub(super) fn restore_previous(ctx: &mut Ctx, found: Found) {
    let key = ctx.io.conns.reserve();
    let here = here(ctx, key);
    ctx.io.states.mqtt.claims.hold(found.id.clone(), here);
    take_over_offline(ctx, key, found);
}

/// Takes over a session into a reserved slot that holds its client id.
pub(super) fn take_over_offline(ctx: &mut Ctx, key: ConnKey, found: Found) {
    let id = found.id.clone();
    let Some(Revived { offline, queue, filters }) = revive(ctx, found) else {
        ctx.io.states.mqtt.readings.damaged(id.clone(), ctx.io.now.mono_ms);
        ctx.io.conns.give_back(key);
        return claims::release(ctx, id, here(ctx, key));
    };
    offline::insert_restored(&mut ctx.io, key, offline, queue);
    ctx.io.metrics.mqtt_session_takeovers_total.add(1);
    ctx.broker.connected(key);
    if let Some(refused) = subscribe_all(ctx, key, &filters).refused {
        note_missing(&mut ctx.io, key, refused);
    }
    if store::reads_sessions(ctx) {
        // A snapshot records that the session has a holder.
        request_snapshot(&mut ctx.io, key, None);
    }
    session::look_at(ctx, key);
}

/// A connection takes over another process's session; `epoch` is that of the previous holder.
pub(super) fn take_over(ctx: &mut Ctx, key: ConnKey, found: Found, epoch: u64) {
    let (id, snapshot) = (found.id.clone(), found.snapshot.clone());
    let Some(Revived { mut offline, queue, filters }) = revive(ctx, found) else {
        // Its CONNACK reports no session.
        return begin_new(ctx, key, epoch);
    };
    let now_ms = ctx.io.now.wall_us / 1000;
    if offline.is_expired(now_ms) {
        ctx.io.metrics.mqtt_sessions_expired_total.add(1);
        return clear(ctx, key, id, &snapshot, epoch);
    }
    if let Some(will) = offline.take_due_will(now_ms) {
        publish_will(ctx, key, *will, &id);
    }
    let Some(mut client) = ctx.io.conns.get_mut(key).and_then(|conn| conn.session.take_mqtt()) else {
        return;
    };
    offline::insert_restored(&mut ctx.io, key, offline, queue);
    offline::resume(&mut ctx.io, key, &mut client);
    if let Some(connecting) = &mut client.connecting {
        connecting.is_resumed = true;
    }
    if let Some(conn) = ctx.io.conns.get_mut(key) {
        conn.session.put_mqtt(client);
    }
    ctx.io.metrics.mqtt_session_takeovers_total.add(1);
    follow(ctx, key, &filters);
}

/// A connection whose client id had a session starts a new one; `epoch` is that of the previous holder.
pub(super) fn begin_new(ctx: &mut Ctx, key: ConnKey, epoch: u64) {
    let session = client_mut(&mut ctx.io, key).and_then(|client| client.session.as_mut());
    if let Some(persistence) = session.and_then(|session| session.persistence.as_mut()) {
        persistence.follow(epoch);
    }
    recorded(ctx, key, false);
}

/// Like [`begin_new`], but another process's session still exists: ends it and publishes its will.
pub(super) fn clear(ctx: &mut Ctx, key: ConnKey, id: Box<str>, snapshot: &[u8], epoch: u64) {
    let born = publish_will_of(ctx, key, &id, snapshot);
    match client_ref(&ctx.io, key).map(|client| client.is_recorded()) {
        // Its own snapshot replaces that one.
        Some(true) => begin_new(ctx, key, epoch),
        Some(false) => {
            let delete = SessionDelete::new(id.clone(), epoch + 1, born);
            store::end(ctx, id, (epoch + 1, born), Written::Cleared(key, delete));
        }
        None => {}
    }
}

/// The delete of a snapshot that a connection does not continue has completed or will be retried, unless
/// another holder owns it.
pub(super) fn cleared(ctx: &mut Ctx, key: ConnKey, delete: SessionDelete, outcome: Result<u64, ErrorCode>) {
    let is_open = is_open(&ctx.io, key);
    delete_retry::done(&mut ctx.io, delete, outcome);
    match outcome {
        _ if !is_open => {}
        Err(ErrorCode::NotAllowed) => displaced(ctx, key),
        _ => recorded(ctx, key, false),
    }
}
