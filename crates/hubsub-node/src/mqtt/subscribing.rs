//! Subscriptions of MQTT clients: a filter becomes a broker subscription, a group membership or a presence
//! watch.

use super::client::{NOBODY, client_mut, ticket, with_client};
use super::{members, session_cursors, suback};
use crate::context::Ctx;
use hubsub_route::{HubsFrom, Namespace, Outcome, Start, Ticket, Wish};
use hubsub_types::names::filter_pattern;
use hubsub_types::{ConnKey, ErrorCode, Qos};
use hubsub_wire::mqtt::{Names, Reason, Rewind, rewind, shared};

pub(super) fn subscribe(ctx: &mut Ctx, key: ConnKey, number: u32, filter: &str, qos: Qos) {
    let (group, plain) = parts(filter);
    let (from, plain) = rewind(plain).map_or((None, plain), |(from, plain)| (Some(from), plain));
    let is_strange =
        plain.starts_with(REWIND) || (matches!(from, Some(Rewind::Last(_))) && plain.contains(['+', '#']));
    if is_strange {
        ctx.count_refusal(false);
        let refused = Err(Reason::TopicFilterInvalid);
        with_client(&mut ctx.io, key, |client, out| client.machine.granted(number, refused, out));
        return;
    }
    let ticket = ticket(&ctx.io, key, number);
    match attach(ctx, ticket, key, (group, from, plain), Some((number, qos))) {
        Outcome::Now(granted) => {
            if granted.is_err() {
                ctx.count_refusal(false);
            }
            suback::answer(&mut ctx.io, key, number, granted);
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

#[derive(Default)]
pub(super) struct Asked {
    /// The number that will be confirmed or refused later.
    pub later: i64,
    pub refused: Option<ErrorCode>,
}

pub(super) fn subscribe_all(ctx: &mut Ctx, key: ConnKey, filters: &[Box<str>]) -> Asked {
    let ticket = ticket(&ctx.io, key, NOBODY);
    let mut asked = Asked::default();
    for filter in filters {
        let (group, filter) = parts(filter);
        match attach(ctx, ticket, key, (group, None, filter), None) {
            Outcome::Now(Ok(())) => {}
            Outcome::Now(Err(refused)) => {
                ctx.count_refusal(false);
                asked.refused = Some(refused);
            }
            Outcome::Later => asked.later += 1,
        }
    }
    asked
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
                    session_cursors::confirmed(&mut ctx.io, key, number, &attached);
                }
                Outcome::Now(attached.map(|_| ()))
            }
            Outcome::Later => Outcome::Later,
        }
    }
}

/// The group of a shared filter, and the filter without it.
fn parts(filter: &str) -> (Option<&str>, &str) {
    shared(filter).map_or((None, filter), |(group, filter)| (Some(group), filter))
}

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
