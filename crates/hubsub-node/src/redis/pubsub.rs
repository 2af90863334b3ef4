//! PUBLISH, SUBSCRIBE and related commands, and PUBSUB.

use super::args::{ASKED_MAX, Args};
use super::caller::{allowed_to_subscribe, confirm, is_of_cluster, is_subscribed, refuse_subscription};
use super::reply::{error, quoting};
use crate::context::Ctx;
use crate::context::scatter_gather::{Then, To};
use crate::io::output::Pending;
use crate::io::questions::{Part, Question};
use hubsub_route::{Answer, Asker, Draft, Namespace, Outcome, Publisher, Sink, Start, Wish};
use hubsub_types::{ConnKey, ErrorCode, Qos};
use hubsub_wire::resp::{self, Subscription};
use std::sync::Arc;

/// `PUBLISH|SPUBLISH topic payload`: replies the number of subscribers in the cluster.
pub fn publish(ctx: &mut Ctx, key: ConnKey, args: Args<'_>, namespace: Namespace) {
    let (topic, payload) = (args[1], args[2]);
    if let Err(refused) = ctx.may_publish(key, topic) {
        ctx.count_refusal(true);
        return error(ctx, key, &*refused.resp_line());
    }
    let (ticket, now) = (ctx.io.ticket(key), ctx.io.now);
    let comes_back = may_come_back(ctx, key);
    if comes_back {
        ctx.io.wait_for_own(key, topic);
    }
    let (publisher, qos) = (Publisher::Conn(key.index), Qos::ExactlyOnce);
    let draft =
        Draft { namespace, topic, payload, headers: None, publisher, producer: None, qos, retain: false };
    match ctx.broker.publish(ticket, draft, now, &mut ctx.io) {
        Outcome::Now(Ok(published)) if !comes_back => {
            ctx.io.reply(key, |out, _| resp::int(out, published.receivers as i64))
        }
        Outcome::Now(outcome) => {
            if outcome.is_err() {
                ctx.count_refusal(true);
            }
            match outcome {
                Err(refused) if !comes_back => error(ctx, key, &*refused.resp_line()),
                outcome => Sink::answer(&mut ctx.io, ticket.asker, Answer::Published(outcome)),
            }
        }
        Outcome::Later => {
            if !comes_back {
                ctx.io.wait(key, Pending::Publish);
            }
            if ctx.broker.is_logged(namespace, topic)
                && let Asker::Client { slot, .. } = ticket.asker
            {
                ctx.io.note_logged(key, slot);
            }
        }
    }
}

/// True if a client may receive its own publish: it then gets the reply first, as in Redis since 7.2. Within
/// EXEC all records wait for the end of the array anyway, and a subscribed RESP2 client cannot publish.
fn may_come_back(ctx: &Ctx, key: ConnKey) -> bool {
    let is_resp3 = ctx.io.conns.get(key).is_some_and(|conn| conn.session.proto() == resp::Proto::Resp3);
    is_resp3 && is_receiver(ctx, key)
}

#[cold]
fn is_receiver(ctx: &Ctx, key: ConnKey) -> bool {
    is_subscribed(ctx, key) && !ctx.io.holds(key)
}

/// `SUBSCRIBE topic [topic …]`: one confirmation per topic.
pub fn subscribe(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    args[1..].iter().for_each(|topic| subscribe_to(ctx, key, Namespace::Global, topic));
}

/// `SSUBSCRIBE topic [topic …]`. Redis refuses it between MULTI and EXEC.
pub fn ssubscribe(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    if ctx.io.holds(key) {
        return error(ctx, key, "ERR SSUBSCRIBE isn't allowed for a DENY BLOCKING client");
    }
    args[1..].iter().for_each(|topic| subscribe_to(ctx, key, Namespace::Shard, topic));
}

fn subscribe_to(ctx: &mut Ctx, key: ConnKey, namespace: Namespace, topic: &[u8]) {
    if !allowed_to_subscribe(ctx, key, topic) {
        return;
    }
    let kind = match namespace {
        Namespace::Global => Subscription::Subscribe,
        Namespace::Shard => Subscription::SSubscribe,
    };
    let (ticket, now) = (ctx.io.ticket(key), ctx.io.now);
    let wish = Wish { topic, namespace, start: Start::Live };
    let outcome = ctx.broker.subscribe(ticket, key, wish, now, &mut ctx.io);
    let count = ctx.subscriptions(key, namespace) as u64;
    confirm(ctx, key, outcome, |out, proto| resp::subscription(out, proto, kind, Some(topic), count));
}

/// `PSUBSCRIBE pattern [pattern …]`.
pub fn psubscribe(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    for pattern in &args[1..] {
        let principal = ctx.io.conns.get(key).map(|conn| conn.principal).unwrap_or_default();
        if !ctx.io.access.allowed_glob(principal, pattern) {
            refuse_subscription(ctx, key, ErrorCode::NotAllowed);
            continue;
        }
        let ticket = ctx.io.ticket(key);
        let outcome = ctx.broker.subscribe_pattern(ticket, key, pattern, &mut ctx.io);
        let (kind, count) = (Subscription::PSubscribe, ctx.subscriptions(key, Namespace::Global) as u64);
        confirm(ctx, key, outcome, |out, proto| resp::subscription(out, proto, kind, Some(pattern), count));
    }
}

/// `UNSUBSCRIBE|PUNSUBSCRIBE|SUNSUBSCRIBE [name …]`: without arguments, from all of that kind.
pub fn unsubscribe(ctx: &mut Ctx, key: ConnKey, args: Args<'_>, namespace: Namespace, kind: Subscription) {
    let all: Vec<Arc<[u8]>>;
    let names: Vec<&[u8]> = if args.len() > 1 {
        args[1..].to_vec()
    } else {
        all = match kind {
            Subscription::PUnsubscribe => ctx.broker.patterns_of(key),
            _ => ctx.broker.topics_of(key, namespace),
        };
        all.iter().map(|name| &**name).collect()
    };
    for name in &names {
        end(ctx, key, namespace, kind, name);
    }
    if names.is_empty() {
        tell_unsubscribed(ctx, key, kind, None, namespace);
    }
}

pub fn end(ctx: &mut Ctx, key: ConnKey, namespace: Namespace, kind: Subscription, topic: &[u8]) {
    _ = match kind {
        Subscription::PUnsubscribe => ctx.broker.unsubscribe_pattern(key, topic, &mut ctx.io),
        _ => ctx.broker.unsubscribe(key, namespace, topic, ctx.io.now, &mut ctx.io),
    };
    tell_unsubscribed(ctx, key, kind, Some(topic), namespace);
}

fn tell_unsubscribed(
    ctx: &mut Ctx,
    key: ConnKey,
    kind: Subscription,
    name: Option<&[u8]>,
    namespace: Namespace,
) {
    let count = ctx.subscriptions(key, namespace) as u64;
    ctx.io.push(key, |out, proto| resp::subscription(out, proto, kind, name, count));
}

/// `PUBSUB CHANNELS|SHARDCHANNELS [pattern]`: topics with subscribers.
pub fn channels(ctx: &mut Ctx, key: ConnKey, args: Args<'_>, namespace: Namespace) {
    if args.len() > 3 {
        let before = "ERR unknown subcommand or wrong number of arguments for '";
        return error(ctx, key, quoting(before, args[1], "'. Try PUBSUB HELP."));
    }
    if args.get(2).is_some_and(|glob| glob.len() as u64 > ctx.io.limits.pattern_bytes_max) {
        return error(ctx, key, &*ErrorCode::PatternLength.resp_line());
    }
    let bytes_max = ctx.io.limits.reply_bytes_max;
    let question = Question::Topics(namespace, args.get(2).map(|glob| glob.to_vec()), bytes_max);
    let write = |out: &mut Vec<u8>, _: resp::Proto, parts: Vec<Part>| {
        let of = |part| if let Part::Topics(topics) = part { topics } else { Vec::new() };
        let mut topics: Vec<Arc<[u8]>> = parts.into_iter().flat_map(of).collect();
        topics.sort_unstable();
        topics.dedup();
        resp::array_header(out, topics.len());
        topics.iter().for_each(|topic| resp::bulk(out, topic));
    };
    let then = ctx.io.then_list(key, Box::new(write));
    ctx.ask(To::All, question, then);
}

/// `PUBSUB NUMSUB|SHARDNUMSUB [topic …]`. Clients of the plain listener get counts of the whole cluster. A
/// cluster client queries all nodes and adds up, so it gets this node's counts.
pub fn numsub(ctx: &mut Ctx, key: ConnKey, args: Args<'_>, namespace: Namespace) {
    if args.len() - 2 > ASKED_MAX {
        return error(ctx, key, format!("ERR too many channels, at most {ASKED_MAX}"));
    }
    if ctx.broker.has_nodes() && !is_of_cluster(ctx, key) {
        return count_in_cluster(ctx, key, args, namespace);
    }
    let topics = Arc::new(args[2..].iter().map(|t| t.to_vec()).collect::<Vec<_>>());
    let question = Question::TopicCounts(namespace, Arc::clone(&topics));
    let then = then_count(ctx, key, args, move |out, _, parts| {
        resp::array_header(out, 2 * topics.len());
        for (i, topic) in topics.iter().enumerate() {
            let count = |part: &Part| if let Part::Counts(counts) = part { counts[i] } else { 0 };
            resp::bulk(out, topic);
            resp::int(out, parts.iter().map(count).sum::<u64>() as i64);
        }
    });
    ctx.ask(To::All, question, then);
}

/// The continuation of a count: a reply with many names is limited like a list.
fn then_count(
    ctx: &mut Ctx,
    key: ConnKey,
    args: Args<'_>,
    write: impl FnOnce(&mut Vec<u8>, resp::Proto, Vec<Part>) + 'static,
) -> Then {
    const FEW_BYTES: usize = 4_096;
    let bytes: usize = args[2..].iter().map(|topic| topic.len() + size_of::<Vec<u8>>()).sum();
    if bytes > FEW_BYTES {
        return ctx.io.then_list(key, Box::new(write));
    }
    Then::Reply(key, ctx.io.open_slot(key), Box::new(write))
}

fn count_in_cluster(ctx: &mut Ctx, key: ConnKey, args: Args<'_>, namespace: Namespace) {
    let topics: Vec<Vec<u8>> = args[2..].iter().map(|t| t.to_vec()).collect();
    let write = move |out: &mut Vec<u8>, _: resp::Proto, parts: Vec<Part>| {
        let mut counts = vec![0; topics.len()];
        for part in parts {
            match part {
                Part::Counted(item, Ok(count)) => counts[item as usize] = count,
                Part::Counted(_, Err(refused)) => return resp::error(out, &*refused.resp_line()),
                _ => {}
            }
        }
        resp::array_header(out, 2 * topics.len());
        for (topic, count) in topics.iter().zip(counts) {
            resp::bulk(out, topic);
            resp::int(out, count as i64);
        }
    };
    let then = then_count(ctx, key, args, write);
    ctx.ask_counts(namespace, &args[2..], then);
}

/// `PUBSUB NUMPAT`: the patterns of this node or of the whole cluster, as for `numsub`.
pub fn numpat(ctx: &mut Ctx, key: ConnKey, _: Args<'_>) {
    let patterns = &ctx.broker.patterns;
    let count = if is_of_cluster(ctx, key) { patterns.here() } else { patterns.len() };
    ctx.io.reply(key, |out, _| resp::int(out, count as i64));
}

pub const HELP: &[&str] = &[
    "CHANNELS [<pattern>]",
    "    Return the channels with subscribers, those that match <pattern> if given.",
    "NUMPAT",
    "    Return the number of distinct patterns with subscribers.",
    "NUMSUB [<channel> ...]",
    "    Return the number of subscribers of each channel, patterns not counted.",
    "SHARDCHANNELS [<pattern>]",
    "    Return the shard channels with subscribers.",
    "SHARDNUMSUB [<shardchannel> ...]",
    "    Return the number of subscribers of each shard channel.",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lone::Lone;
    use hubsub_types::{Limits, PrincipalId};

    #[test]
    fn each_subscription_that_a_stranger_asks_for_is_refused_and_counted() {
        let mut lone = Lone::new(Limits::default());
        let (key, _peer) = lone.connect();
        lone.ctx.io.conns.get_mut(key).unwrap().principal = PrincipalId(1);
        let ctx = &mut lone.ctx;
        subscribe(ctx, key, &[b"subscribe", b"a", b"b"]);
        psubscribe(ctx, key, &[b"psubscribe", b"a*"]);
        ssubscribe(ctx, key, &[b"ssubscribe", b"a"]);
        crate::redis::hubsub::subscribe(ctx, key, &[b"hubsub", b"subscribe", b"a", b"last", b"1"]);
        assert_eq!(ctx.io.metrics.subscriptions_refused_total.get(), 5);
        assert_eq!(ctx.broker.counts(key), (0, 0, 0));
        crate::redis::hubsub::history(ctx, key, &[b"hubsub", b"history", b"a"]);
        assert_eq!(ctx.io.metrics.subscriptions_refused_total.get(), 5, "that is no subscription");
    }

    #[test]
    fn what_the_default_user_subscribes_to_counts_as_no_refusal() {
        let mut lone = Lone::new(Limits::default());
        let (key, _peer) = lone.connect();
        subscribe(&mut lone.ctx, key, &[b"subscribe", b"a"]);
        assert_eq!(lone.ctx.io.metrics.subscriptions_refused_total.get(), 0);
        assert_eq!(lone.ctx.broker.counts(key), (1, 0, 0));
    }
}
