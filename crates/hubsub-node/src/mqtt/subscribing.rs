//! Subscriptions of MQTT clients: a filter becomes a broker subscription, a group membership or a presence
//! watch.

use super::client::client_mut;
use super::{members, persist, session_cursors};
use crate::context::Ctx;
use crate::context::io::Io;
use hubsub_mqtt::{Wait, reason_of};
use hubsub_route::{Asker, HubsFrom, Namespace, Outcome, Start, Ticket, Wish};
use hubsub_types::names::filter_pattern;
use hubsub_types::{ConnKey, ErrorCode, Qos};
use hubsub_wire::mqtt::{Names, Reason, Rewind, rewind, shared};

pub(super) fn subscribe(ctx: &mut Ctx, key: ConnKey, number: u32, filter: &str, qos: Qos) {
    let (group, plain) = shared(filter).map_or((None, filter), |(group, filter)| (Some(group), filter));
    let (from, plain) = rewind(plain).map_or((None, plain), |(from, plain)| (Some(from), plain));
    let is_strange =
        plain.starts_with(REWIND) || (matches!(from, Some(Rewind::Last(_))) && plain.contains(['+', '#']));
    if is_strange {
        ctx.count_refusal(false);
        let refused = Err(Reason::TopicFilterInvalid);
        ctx.io.with_mqtt(key, |client, out| client.machine.granted(number, refused, out));
        return;
    }
    let ticket = Ticket { shard: ctx.io.shard, asker: Asker::Client { conn: key, slot: number } };
    match attach(ctx, ticket, key, (group, from, plain), Some((number, qos))) {
        Outcome::Now(granted) => {
            if granted.is_err() {
                ctx.count_refusal(false);
            }
            ctx.io.mqtt_granted(key, number, granted);
            if from.is_some() && granted.is_ok() {
                ctx.broker.drained(key, ctx.io.now, &mut ctx.io);
            }
        }
        Outcome::Later => {
            if let Some(client) = client_mut(&mut ctx.io, key) {
                client.unconfirmed += 1;
            }
        }
    }
}

/// Subscribes a connection slot: group, start and filter. `asks`: the client's request number and QoS; none
/// for a restored session.
pub(super) fn attach(
    ctx: &mut Ctx,
    ticket: Ticket,
    key: ConnKey,
    (group, from, filter): (Option<&str>, Option<Rewind>, &str),
    asks: Option<(u32, Qos)>,
) -> Outcome<Result<(), ErrorCode>> {
    let principal = ctx.io.conns.get(key).map(|conn| conn.principal).unwrap_or_default();
    let topic = filter.as_bytes();
    if group.is_none() && filter.starts_with(members::PRESENCE) {
        let request = asks.map(|(number, _)| number);
        return Outcome::Now(if from.is_none() {
            members::watch(ctx, key, filter, request)
        } else {
            Err(ErrorCode::TopicLength)
        });
    }
    if !ctx.io.access.allowed_filter(principal, topic) {
        Outcome::Now(Err(ErrorCode::NotAllowed))
    } else if let Some(group) = group {
        let (group, now) = (group.as_bytes(), ctx.io.now);
        match asks {
            Some(_) => ctx.broker.join_group(ticket, key, group, topic, now, &mut ctx.io),
            None => ctx.broker.resume_group(ticket, key, group, topic, now, &mut ctx.io),
        }
    } else if filter.contains(['+', '#'])
        && from.is_none()
        && let Some((number, qos)) = asks
        && session_cursors::request_wildcard(ctx, key, number, filter, qos)
    {
        Outcome::Later
    } else if filter.contains(['+', '#']) {
        let pattern = filter_pattern(topic);
        match from.map(|from| since_us(from, ctx.io.now.wall_us)) {
            None if asks.is_none() => ctx.broker.resume_pattern(ticket, key, &pattern, &mut ctx.io),
            None => ctx.broker.subscribe_pattern(ticket, key, &pattern, &mut ctx.io),
            Some(us) => {
                let from = HubsFrom::Since(us);
                let held = ctx.broker.subscribe_pattern_from(ticket, key, &pattern, from, &mut ctx.io);
                if asks.is_some() && !matches!(held, Outcome::Now(Err(_))) {
                    session_cursors::rewound(ctx, key);
                }
                held
            }
        }
    } else {
        let start = match from {
            None => Start::Live,
            Some(Rewind::Last(count)) => Start::Last(count),
            Some(from) => Start::Since(since_us(from, ctx.io.now.wall_us)),
        };
        if let Some((number, qos)) = asks {
            session_cursors::request_topic(ctx, key, number, filter, qos);
        }
        if let Some((number, _)) = asks {
            members::subscribes(ctx, key, filter, Some(number));
        }
        let wish = Wish { topic, namespace: Namespace::Global, start };
        let now = ctx.io.now;
        let outcome = match asks {
            Some(_) => ctx.broker.subscribe(ticket, key, wish, now, &mut ctx.io),
            None => ctx.broker.resume(ticket, key, wish, now, &mut ctx.io),
        };
        match outcome {
            Outcome::Now(attached) => {
                if let Some((number, _)) = asks {
                    ctx.io.cursor_confirmed(key, number, &attached);
                }
                Outcome::Now(attached.map(|_| ()))
            }
            Outcome::Later => Outcome::Later,
        }
    }
}

/// The prefix of filters that start in the past.
const REWIND: &str = "$rewind/";

/// The start time, in µs since 1970.
fn since_us(from: Rewind, now_us: u64) -> u64 {
    match from {
        Rewind::Seconds(seconds) => now_us.saturating_sub(seconds.saturating_mul(1_000_000)),
        Rewind::Last(_) | Rewind::Earliest => 0,
    }
}

pub(super) fn unsubscribe(ctx: &mut Ctx, key: ConnKey, filters: Names<'_>) {
    for filter in filters.iter() {
        let filter = rewind(filter).map_or(filter, |(_, filter)| filter);
        if let Some((group, filter)) = shared(filter) {
            ctx.broker.leave_group(key, group.as_bytes(), filter.as_bytes(), &mut ctx.io);
        } else if filter.contains(['+', '#']) {
            ctx.broker.unsubscribe_pattern(key, &filter_pattern(filter.as_bytes()), &mut ctx.io);
        } else {
            let (namespace, now) = (Namespace::Global, ctx.io.now);
            ctx.broker.unsubscribe(key, namespace, filter.as_bytes(), now, &mut ctx.io);
        }
        session_cursors::unsubscribed(ctx, key, filter);
        (ctx.hooks.leave_seat)(ctx, key, filter);
    }
}

impl Io {
    /// A pending subscription is confirmed or refused.
    pub(super) fn mqtt_confirmed(&mut self, key: ConnKey, number: u32, granted: Result<(), ErrorCode>) {
        // An earlier connection of the session may have requested it.
        if let Some(client) = client_mut(self, key)
            && client.machine.waits_for(number)
        {
            client.unconfirmed = client.unconfirmed.saturating_sub(1);
        }
        self.mqtt_granted(key, number, granted);
    }

    /// A subscription is confirmed or refused. A persistent session gets its SUBACK after the snapshot.
    fn mqtt_granted(&mut self, key: ConnKey, number: u32, granted: Result<(), ErrorCode>) {
        if granted.is_ok()
            && let Some(client) = client_mut(self, key)
        {
            client.machine.confirm(number);
            if persist::request_snapshot(self, key, Some(Wait::Granted(number))) {
                return;
            }
        }
        self.mqtt_granted_now(key, number, granted);
    }

    pub(super) fn mqtt_granted_now(&mut self, key: ConnKey, number: u32, granted: Result<(), ErrorCode>) {
        self.settle_seat(key, number, granted.is_ok());
        let granted = granted.map_err(|refused| match refused {
            ErrorCode::TopicLength => Reason::TopicFilterInvalid,
            refused => reason_of(refused),
        });
        let due = self.with_mqtt(key, |client, out| client.machine.granted(number, granted, out)).flatten();
        if let Some(filter) = due {
            self.reads_retained(key, filter);
        }
        self.update_plain(key.index);
    }
}
