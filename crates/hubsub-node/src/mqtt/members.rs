//! Presence for MQTT clients: `$presence/ROOM` reports a room's members, and in classes with membership for
//! all subscribers a client is a member of its topic's room under its client id. Both end with the
//! connection: an offline session has no presence.

use super::client::{client_ref, own_id};
use super::sending::send;
use crate::context::Ctx;
use crate::context::io::Io;
use crate::io::access::Action;
use crate::presence::state::Wish;
use hubsub_mqtt::{Content, Way};
use hubsub_route::LogPlace;
use hubsub_types::class::Membership;
use hubsub_types::names::is_reserved;
use hubsub_types::{ConnKey, Epoch, ErrorCode, Position, Qos, Seq};

pub(super) const PRESENCE: &str = "$presence/";

/// Subscribes a client to a room's presence; `request` is the number of its SUBSCRIBE filter, if any.
pub(super) fn watch(
    ctx: &mut Ctx,
    key: ConnKey,
    filter: &str,
    request: Option<u32>,
) -> Result<(), ErrorCode> {
    let room = filter.strip_prefix(PRESENCE).unwrap_or_default();
    if room.contains(['+', '#']) {
        return Err(ErrorCode::TopicLength);
    }
    let principal = ctx.io.conns.get(key).map(|conn| conn.principal).unwrap_or_default();
    // Internal rooms have no members.
    if is_reserved(room.as_bytes()) || !ctx.io.access.allowed(principal, Action::Subscribe, room.as_bytes()) {
        return Err(ErrorCode::NotAllowed);
    }
    // A repeated subscription gets the state again.
    (ctx.hooks.leave_seat)(ctx, key, filter);
    if ctx.io.states.presence.edge.watched_by(key) as u64 >= ctx.io.limits.subscriptions_per_client_max {
        return Err(ErrorCode::TooManySubscriptions);
    }
    let (own, all) = ctx.io.states.presence.edge.name_bytes(key);
    let (limits, bytes) = (&ctx.io.limits, filter.len() as u64);
    if own + bytes > limits.subscription_bytes_per_client_max
        || all + bytes > limits.subscription_bytes_shard_max
    {
        return Err(ErrorCode::SubscriptionBytes);
    }
    let wish = Wish { topic: filter, room: room.as_bytes(), who: None, watches: true, request };
    (ctx.hooks.reserve_seat)(ctx, key, wish).map(|_| ())
}

/// A client subscribes to a topic: in classes with membership for all it becomes a member once that is
/// confirmed.
pub(super) fn subscribes(ctx: &mut Ctx, key: ConnKey, topic: &str, request: Option<u32>) {
    let room = ctx.broker.classes().room(topic.as_bytes()).into_owned();
    let classes = ctx.broker.classes();
    let is_member = classes.get(classes.class_of_room(&room)).presence == Membership::All;
    if !is_member || ctx.io.states.presence.edge.seat_of(key, topic).is_some() {
        return;
    }
    let who = Some((own_id(ctx, key), Box::from(&b"{}"[..])));
    // A refused membership is counted; the subscription continues.
    let _ = (ctx.hooks.reserve_seat)(ctx, key, Wish { topic, room: &room, who, watches: false, request });
}

/// A client is connected: its session's presence subscriptions and memberships resume.
pub(super) fn back(ctx: &mut Ctx, key: ConnKey) {
    let Some(client) = client_ref(&ctx.io, key) else { return };
    let filters: Vec<String> = client.machine.filters.iter().map(|(filter, ..)| filter.to_owned()).collect();
    for filter in filters {
        if filter.starts_with(PRESENCE) {
            // A watch that is now refused is not reported.
            let _ = watch(ctx, key, &filter, None);
        } else if !filter.contains(['+', '#']) && !filter.starts_with('$') {
            subscribes(ctx, key, &filter, None);
        }
        if let Some(seat) = ctx.io.states.presence.edge.seat_of(key, &filter) {
            ctx.io.own.join(key, seat, true);
        }
    }
}

/// Sends a client the members of a room (`is_state`: as a retained message) or a change, with QoS 0.
pub fn send_members(io: &mut Io, key: ConnKey, topic: &str, payload: &[u8], is_state: bool) {
    let Some(client) = client_ref(io, key) else { return };
    let Some(mut grant) = client.machine.filters.grant_kept(topic.as_bytes(), false) else { return };
    grant.qos = Qos::AtMostOnce;
    grant.retain = is_state;
    let content = Content {
        topic,
        payload,
        headers: &[],
        timestamp_us: io.now.wall_us,
        position: Position { epoch: Epoch(0), seq: Seq(0) },
        place: LogPlace::default(),
        qos: Qos::AtMostOnce,
        retain: is_state,
    };
    io.states.mqtt.cache.begin();
    send(io, key.index, &content, &grant, None, Way::default(), None);
}
