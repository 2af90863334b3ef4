//! Retries the missing subscriptions of offline sessions (`hubsub_mqtt::Sessions` has them).

use super::changes::is_moving;
use super::client::client_ref;
use super::subscribing::subscribe_all;
use super::{members, session_cursors};
use crate::context::Ctx;
use crate::context::io::Io;
use crate::io::log_lines::Level;
use hubsub_mqtt::OfflineSession;
use hubsub_types::{ConnKey, ErrorCode};

/// A background subscription of a session was refused: it will be retried.
pub(super) fn note_missing(io: &mut Io, key: ConnKey, refused: ErrorCode) {
    io.metrics.mqtt_session_refusals_total.add(1);
    if !io.states.mqtt.sessions.missing.refuse(key, io.now.mono_ms) {
        return;
    }
    let offline = io.states.mqtt.sessions.get_mut(key).map(|offline| offline.id.clone());
    let id = offline.or_else(|| Some(client_ref(io, key)?.machine.client_id().into()));
    let client = id.unwrap_or_default().chars().take(64).collect();
    let fields = vec![("client", client), ("reason", refused.code().to_owned())];
    io.lines.log(Level::Warning, "mqtt session lacks a subscription", fields);
}

/// The filters that an offline session must retry now; none if nothing is missing.
pub(super) fn takes_filters(ctx: &mut Ctx, key: ConnKey) -> Option<Vec<Box<str>>> {
    let now_ms = ctx.io.now.mono_ms;
    ctx.io.states.mqtt.sessions.missing.asks(key, now_ms).then(|| {
        let offline = ctx.io.states.mqtt.sessions.get(key);
        offline.map(|offline| filters_of(ctx, offline)).unwrap_or_default()
    })
}

/// Retries for the sessions that are due. Runs once a second.
pub fn retry_missing(ctx: &mut Ctx) {
    for key in ctx.io.states.mqtt.sessions.missing.due(ctx.io.now.mono_ms) {
        // A connected client was disconnected instead, and a session that moves to another node subscribes
        // there. An ended session has no filters and is removed.
        let is_offline = ctx.io.conns.get(key).is_none() && !is_moving(&mut ctx.io, key);
        if is_offline
            && let Some(filters) = takes_filters(ctx, key)
            && let Some(refused) = subscribe_all(ctx, key, &filters).refused
        {
            note_missing(&mut ctx.io, key, refused);
        }
    }
}

pub(super) fn filters_of(ctx: &Ctx, offline: &OfflineSession) -> Vec<Box<str>> {
    let cursors = offline.session.cursors.as_deref();
    // Cursors resume these when the client is back.
    let has_cursor =
        |filter: &str| cursors.is_some_and(|cursors| session_cursors::is_resumed(ctx, cursors, filter));
    // Presence is sent once the client is connected.
    let waits = |filter: &str| filter.starts_with(members::PRESENCE) || has_cursor(filter);
    let filters = offline.state.filters.iter().map(|(filter, ..)| filter);
    filters.filter(|filter| !waits(filter)).map(Box::from).collect()
}
