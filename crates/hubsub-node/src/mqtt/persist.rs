//! Persists sessions (docs/protocol/mqtt-state.md): writes what [`SessionPlace::record`] returns for each
//! session that changed in a turn, and deletes sessions that end.

use super::changes::persistence_of;
use super::state::work::Written;
use super::{claims, sending, store};
use crate::context::Ctx;
use crate::context::io::Io;
use hubsub_mqtt::{Persistence, SessionDelete, SessionPlace, Snapshot, Write};
use hubsub_route::Owner;
use hubsub_types::ConnKey;

/// Writes the entry of a session's changes in this turn, and its snapshot if one is due.
pub(super) fn persist(ctx: &mut Ctx, key: ConnKey) {
    sending::pump(&mut ctx.io, key);
    sending::prepare(&mut ctx.io, key);
    let has_store = ctx.io.states.mqtt.store.is_some();
    let hubs = &ctx.broker.cursors.hubs;
    let places = || hubs.places(key.index).map(|(hub, next, _)| (hub, next - 1)).collect();
    let Some(mut place) = place_of(&mut ctx.io, key) else { return };
    let writes = place.record(has_store, places);
    let id: Box<str> = if writes.is_empty() { Box::default() } else { place.client_id().into() };
    let visit = persistence_of(&mut ctx.io, key).map_or(0, |persistence| persistence.visit);
    for write in writes {
        execute(ctx, (key, visit), &id, write);
    }
}

fn execute(ctx: &mut Ctx, (key, visit): (ConnKey, u32), id: &str, write: Write) {
    let entry_metric = &ctx.io.metrics.mqtt_session_entries_total;
    let snapshot_metric = &ctx.io.metrics.mqtt_session_snapshots_total;
    match write {
        Write::Entry((number, entry, waits)) => {
            entry_metric.add(1);
            store::append(ctx, id.into(), entry, Written::Entry(key, visit, number, waits));
        }
        Write::Snapshot(Snapshot { bytes, waits, head, is_over }) => {
            snapshot_metric.add(1);
            let owner = Owner { is_over, ..store::owner(ctx, head.epoch, head.born) };
            let then = Written::Snapshot(key, visit, waits);
            store::save(ctx, id.into(), bytes, (owner, head.last_entry, head.through), then);
        }
        Write::All { snapshot, through, entries } => {
            snapshot_metric.add(1);
            entry_metric.add(entries.len() as u64);
            // The reply to CONNECT, which waits for the snapshot, precedes those that wait for the entries.
            let (mut all, mut bytes) = (vec![Written::Snapshot(key, visit, snapshot.waits)], Vec::new());
            for (number, entry, waits) in entries {
                bytes.push(entry);
                all.push(Written::Entry(key, visit, number, waits));
            }
            store::save_all(ctx, id.into(), snapshot.bytes, (through, bytes), Written::All(all));
        }
    }
}

/// Ends the session of a slot: deletes its snapshot, then releases its client id.
pub(super) fn release(ctx: &mut Ctx, id: Box<str>, key: ConnKey, persistence: Option<Box<Persistence>>) {
    match persistence.filter(|persistence| persistence.has_snapshot) {
        Some(persistence) => {
            let (epoch, born) = (persistence.head.epoch, persistence.head.born);
            let delete = SessionDelete::new(id.clone(), epoch, born);
            store::end(ctx, id, (epoch, born), Written::Deleted(key, delete));
        }
        None => claims::release(ctx, id, claims::here(ctx, key)),
    }
}

/// The session of a slot, beside its connection or offline.
fn place_of(io: &mut Io, key: ConnKey) -> Option<SessionPlace<'_>> {
    match io.conns.get_mut(key).and_then(|conn| conn.session.mqtt_mut()) {
        Some(client) => Some(SessionPlace::Connected(client)),
        None => io.states.mqtt.sessions.get_mut(key).map(SessionPlace::Offline),
    }
}
