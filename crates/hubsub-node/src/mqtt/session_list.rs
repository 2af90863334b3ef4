//! Lists sessions for operators, online and offline, sorted by client id, and ends one on request.

use super::changes::session_of;
use super::client::end;
use super::session;
use crate::context::Ctx;
use crate::io::questions::SessionInfo;
use hubsub_mqtt::{Client, Fault, OfflineSession};
use hubsub_types::ConnKey;
use hubsub_wire::mqtt::Reason;

/// The sessions of this shard: the one of client id `id`, or up to `limit` after `after`.
pub fn list_sessions(ctx: &Ctx, id: Option<&str>, after: Option<&str>, limit: usize) -> Vec<SessionInfo> {
    let io = &ctx.io;
    let is_meant = |own: &str| id.is_none_or(|id| own == id) && after.is_none_or(|after| own > after);
    let now_ms = io.now.wall_us / 1000;
    let offline = io.states.mqtt.sessions.iter().filter(|(_, offline)| is_meant(&offline.id));
    let offline = offline.map(|(_, offline)| of_offline(offline, io.shard.0, now_ms));
    let connected = io.conns.iter().filter_map(|(_, conn)| {
        let client = conn.session.mqtt().filter(|client| client.outlives())?;
        let is_meant = is_meant(client.machine.client_id());
        is_meant.then(|| of_client(client, conn.id, io.shard.0))
    });
    let mut found: Vec<SessionInfo> = offline.chain(connected).collect();
    found.sort_by(|a, b| a.client_id.cmp(&b.client_id));
    found.truncate(limit);
    found
}

/// Ends the session of a client id if it is here; its client is disconnected and its will published. Returns
/// the number ended.
pub fn end_session(ctx: &mut Ctx, id: &str) -> u64 {
    let sessions = ctx.io.states.mqtt.sessions.iter().filter(|(_, offline)| &*offline.id == id);
    let offline: Vec<ConnKey> = sessions.map(|(key, _)| key).collect();
    let is_its = |client: &Client| client.outlives() && client.machine.client_id() == id;
    let conns = ctx.io.conns.iter().filter(|(_, conn)| conn.session.mqtt().is_some_and(is_its));
    let connected: Vec<ConnKey> = conns.map(|(key, _)| key).collect();
    for &key in &offline {
        session::end(ctx, key);
    }
    for &key in &connected {
        if let Some(session) = session_of(&mut ctx.io, key) {
            session.is_over = true;
        }
        end(ctx, key, Fault::of(Reason::AdministrativeAction));
    }
    (offline.len() + connected.len()) as u64
}

fn of_offline(offline: &OfflineSession, shard: u16, now_ms: u64) -> SessionInfo {
    let (queued, queued_bytes, dropped) = offline.queued();
    SessionInfo {
        client_id: offline.id.to_string(),
        shard,
        conn: None,
        expiry_s: finite(offline.state.expiry_s),
        ends_in_s: offline.state.expires_at_ms().map(|at_ms| at_ms.saturating_sub(now_ms).div_ceil(1000)),
        subscriptions: offline.state.filters.iter().count() as u64,
        unacknowledged: offline.state.unacknowledged().count() as u64,
        queued: queued as u64,
        queued_bytes: queued_bytes as u64,
        dropped,
    }
}

fn of_client(client: &Client, conn: u64, shard: u16) -> SessionInfo {
    SessionInfo {
        client_id: client.machine.client_id().to_owned(),
        shard,
        conn: Some(conn),
        expiry_s: finite(client.machine.session_expiry_s()),
        ends_in_s: None,
        subscriptions: client.machine.filters.len() as u64,
        unacknowledged: client.machine.window.len() as u64,
        queued: client.pending.len() as u64,
        queued_bytes: client.pending.bytes() as u64,
        dropped: 0,
    }
}

/// The largest number means no expiry.
fn finite(expiry_s: u32) -> Option<u64> {
    (expiry_s < u32::MAX).then_some(u64::from(expiry_s))
}
