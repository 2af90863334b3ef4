//! Gauges that are not maintained incrementally.

use crate::context::Ctx;
use hubsub_route::Namespace;

pub(crate) fn set_gauges(ctx: &Ctx) {
    let (broker, metrics) = (&ctx.broker, &ctx.io.metrics);
    let (history_bytes, history_records) = broker.rooms.history_size();
    let sessions = &ctx.io.states.mqtt.sessions;
    let gauges = [
        (&metrics.connections, ctx.io.conns.len() as u64),
        (&metrics.mqtt_connections, ctx.io.states.mqtt.clients as u64),
        (&metrics.phoenix_connections, ctx.io.states.phoenix.clients as u64),
        (&metrics.events_connections, ctx.io.states.http.streams as u64),
        (&metrics.longpoll_sessions, ctx.io.states.phoenix.polled_clients as u64),
        (&metrics.mqtt_large_bytes, ctx.io.states.mqtt.long_messages.bytes() as u64),
        (&metrics.mqtt_subscriptions, ctx.io.states.mqtt.subscriptions as u64),
        (&metrics.mqtt_sessions, (sessions.connected + sessions.offline()) as u64),
        (&metrics.mqtt_sessions_incomplete, sessions.missing.len() as u64),
        (&metrics.mqtt_session_ends_pending, sessions.deletes.len() as u64),
        (&metrics.listings, ctx.io.states.listings.waiting.len() as u64),
        (&metrics.retained_unread, ctx.io.states.mqtt.unread.len() as u64),
        (&metrics.rooms, broker.rooms.len() as u64),
        (&metrics.rooms_logged, rooms_logged(ctx)),
        (&metrics.topics, broker.topics.len() as u64),
        (&metrics.channels, broker.rooms.subscribed(Namespace::Global)),
        (&metrics.shard_channels, broker.rooms.subscribed(Namespace::Shard)),
        (&metrics.presence_members, ctx.io.states.presence.edge.members),
        (&metrics.presence_rooms, ctx.io.states.presence.machine.len() as u64),
        (&metrics.presence_unlisted_total, ctx.io.states.presence.machine.unlisted),
        (&metrics.presence_records_waiting, ctx.io.states.presence.records.waiting()),
        (&metrics.presence_records_lost_total, ctx.io.states.presence.records.lost),
        (&metrics.publishers_uncounted_total, broker.occupancy.uncounted()),
        (&metrics.patterns, broker.patterns.len() as u64),
        (&metrics.patterns_search, broker.patterns.search() as u64),
        (&metrics.patterns_bytes, (broker.patterns.bytes() + broker.groups.table.bytes()) as u64),
        (&metrics.cursors, broker.cursors.behind() as u64),
        (&metrics.stalled, broker.stalled() as u64),
        (&metrics.unlogged, broker.unlogged() as u64),
        (&metrics.log_reads_blocked, ctx.io.states.log.as_ref().map_or(0, |log| log.waiting() as u64)),
        (&metrics.retained_messages, ctx.broker.rows_size().0),
        (&metrics.retained_bytes, ctx.broker.rows_size().1),
        (&metrics.retained_refused_total, broker.retained_refused),
        (&metrics.history_records, history_records),
        (&metrics.history_bytes, history_bytes),
        (&metrics.history_expired_total, broker.rooms.expired),
        (&metrics.rooms_refused_total, broker.rooms.refused),
        (&metrics.catch_ups_total, broker.catch_ups),
        (&metrics.groups, broker.groups.table.len() as u64),
        (&metrics.shares_delivered_total, broker.groups.given),
        (&metrics.shares_redelivered_total, broker.groups.given_again),
        (&metrics.shares_lost_total, broker.groups.lost),
        (&metrics.consumers_redelivered_total, broker.consumers.redelivered),
        (&metrics.consumers_missed_total, broker.consumers.missed),
        (&metrics.consumers_full_total, broker.consumers.full),
        (&metrics.output_bytes, ctx.io.output_bytes as u64),
        (&metrics.reply_bytes, ctx.io.reply_bytes as u64),
        (&metrics.input_bytes, ctx.io.input_bytes as u64),
        (&metrics.pool_bytes, ctx.io.pool_bytes() as u64),
        (&metrics.waiting_bytes, hubsub_types::shared::waiting_bytes() as u64),
        (&metrics.connections_bytes, (ctx.io.conns.bytes() + broker.clients_bytes()) as u64),
        (&metrics.rooms_bytes, broker.rooms.table_bytes() as u64),
        (&metrics.topics_bytes, broker.topics.table_bytes() as u64),
        (&metrics.mailbox_bytes, ctx.io.mailer.own().bytes() as u64),
    ];
    gauges.iter().for_each(|(gauge, value)| gauge.set(*value));
}

fn rooms_logged(ctx: &Ctx) -> u64 {
    ctx.io.states.log.as_ref().map_or(0, |log| log.listing.count(ctx.hub_logs().map(|hub| hub.id)))
}
