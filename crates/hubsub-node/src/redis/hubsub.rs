//! Commands beyond Redis: `HUBSUB LOCATE | HISTORY | PRESENCE | SUBSCRIBE | ACK | POSITIONS`.

use super::args::{Args, integer, is};
use super::caller::{allowed_to_read, allowed_to_subscribe, confirm, refuse_subscription};
use super::reply::{NOT_A_NUMBER, SYNTAX, error, texts};
use crate::context::Ctx;
use crate::context::scatter_gather::Then;
use crate::io::output::Pending;
use crate::io::questions::{Part, Question};
use hubsub_route::rooms::HistoryQuery;
use hubsub_route::{Attached, Namespace, Outcome, Start, Wish};
use hubsub_types::{ConnKey, ErrorCode, Position};
use hubsub_wire::phoenix::reference_text;
use hubsub_wire::resp::{self, Proto};

/// The number of records of a HISTORY without COUNT.
const COUNT_DEFAULT: u64 = 100;

const BAD_POSITION: &str = "ERR position is not EPOCH-SEQ";

const BAD_CONSUMER: &str = "ERR a consumer is of a topic without + and #, and its name has no / + #";

pub const HELP: &[&str] = &[
    "LOCATE <room>",
    "    Return name and Redis address of the room's members, leader first.",
    "HISTORY <room> [COUNT <n>] [AFTER <position>]",
    "    Return [position, time in ms, topic, publisher, payload] of kept records, oldest first.",
    "PRESENCE <room>",
    "    Return how many members the room has, and [key, reference, meta as JSON] of those that are listed, by key.",
    "SUBSCRIBE <topic> (FROM <position> | LAST <n> | SINCE <ms>)",
    "    Subscribe and get the topic's past first: no record is missed or doubled in between.",
    "SUBSCRIBE <topic> AS <name> [<group>]",
    "    Share the topic's records with others of the group, which is <name> where none is named.",
    "ACK <position> [<position> ...]",
    "    Say that records which came by a group are done with.",
    "POSITIONS (ON|OFF)",
    "    Add its position to each message of this connection, and tell of gaps.",
];

/// `HUBSUB LOCATE room`: a lone node serves every room; in a cluster the control plane is asked.
pub fn locate(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    if ctx.broker.has_nodes() {
        let slot = ctx.io.open_slot(key);
        return ctx.ask_where(args[2], Then::Reply(key, slot, Box::new(write_located)));
    }
    let info = ctx.io.info.clone();
    ctx.io.reply(key, |out, _| {
        resp::array_header(out, 1);
        resp::array_header(out, 2);
        texts(out, &[&info.name, &info.redis]);
    });
}

fn write_located(out: &mut Vec<u8>, _: Proto, parts: Vec<Part>) {
    match parts.into_iter().next() {
        Some(Part::Located(Ok(members))) => {
            resp::array_header(out, members.len());
            for (name, address) in members {
                resp::array_header(out, 2);
                texts(out, &[&name, &address]);
            }
        }
        Some(Part::Located(Err(refused)) | Part::Refused(refused)) => resp::error(out, &*refused.resp_line()),
        _ => resp::error(out, &*ErrorCode::HubClosed.resp_line()),
    }
}

/// `HUBSUB HISTORY room [COUNT n] [AFTER position]`.
pub fn history(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    let room = args[2].to_vec();
    let mut query = HistoryQuery { room, count: COUNT_DEFAULT, after: None, topic: None };
    for option in args[3..].chunks(2) {
        let [option, value] = *option else { return error(ctx, key, SYNTAX) };
        if is(option, "count") {
            let Some(count) = count(value) else { return error(ctx, key, NOT_A_NUMBER) };
            query.count = count;
        } else if is(option, "after") {
            let Some(position) = position(value) else { return error(ctx, key, BAD_POSITION) };
            query.after = Some(position);
        } else {
            return error(ctx, key, SYNTAX);
        }
    }
    if !allowed_to_read(ctx, key, args[2]) {
        return;
    }
    let slot = ctx.io.open_slot(key);
    ctx.ask_home(args[2], Question::History(query), Then::Records(key, slot));
}

/// `HUBSUB PRESENCE room`: the same reply from all nodes.
pub fn presence(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    if !allowed_to_read(ctx, key, args[2]) {
        return;
    }
    let room = args[2].to_vec();
    let slot = ctx.io.open_slot(key);
    (ctx.hooks.ask_members)(ctx, room, Then::Reply(key, slot, Box::new(write_members)));
}

fn write_members(out: &mut Vec<u8>, _: Proto, parts: Vec<Part>) {
    match parts.into_iter().next() {
        Some(Part::Members(shown)) => {
            resp::array_header(out, 2);
            resp::int(out, shown.count as i64);
            resp::array_header(out, shown.members.len());
            for (run, member) in &shown.members {
                resp::array_header(out, 3);
                resp::bulk(out, member.key.as_bytes());
                resp::bulk(out, reference_text(*run, member.reference).as_bytes());
                resp::bulk(out, &member.meta);
            }
        }
        Some(Part::Refused(refused)) => resp::error(out, &*refused.resp_line()),
        other => unreachable!("members answer a question for them: {other:?}"),
    }
}

/// `HUBSUB SUBSCRIBE topic (FROM position | LAST n | SINCE ms)`.
pub fn subscribe(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    let (topic, word, value) = (args[2], args[3], args[4]);
    if is(word, "as") && args.len() <= 6 {
        return consume(ctx, key, topic, args.get(5).unwrap_or(&value));
    }
    if args.len() > 5 {
        return error(ctx, key, SYNTAX);
    }
    let start = if is(word, "from") {
        let Some(position) = position(value) else { return error(ctx, key, BAD_POSITION) };
        Start::After(position)
    } else if is(word, "last") || is(word, "since") {
        let Some(number) = count(value) else { return error(ctx, key, NOT_A_NUMBER) };
        if is(word, "last") { Start::Last(number) } else { Start::Since(number.saturating_mul(1000)) }
    } else {
        return error(ctx, key, SYNTAX);
    };
    if !allowed_to_subscribe(ctx, key, topic) {
        return;
    }
    let (ticket, now) = (ctx.io.ticket(key), ctx.io.now);
    let wish = Wish { topic, namespace: Namespace::Global, start };
    let outcome = ctx.broker.subscribe(ticket, key, wish, now, &mut ctx.io);
    let count = ctx.subscriptions(key, Namespace::Global) as u64;
    match outcome {
        Outcome::Now(Ok(attached)) => {
            ctx.io.push(key, |out, proto| write_started(out, proto, topic, count, &attached));
            ctx.broker.drained(key, ctx.io.now, &mut ctx.io);
        }
        Outcome::Now(Err(refused)) => refuse_subscription(ctx, key, refused),
        Outcome::Later => {
            let Some(proto) = ctx.io.conns.get(key).map(|c| c.session.proto()) else { return };
            ctx.io.wait(key, Pending::Start(topic.into(), count, proto));
        }
    }
}

/// `HUBSUB SUBSCRIBE topic AS name [group]`.
fn consume(ctx: &mut Ctx, key: ConnKey, topic: &[u8], group: &[u8]) {
    let has = |text: &[u8], marks: &[u8]| text.iter().any(|byte| marks.contains(byte));
    if topic.is_empty() || group.is_empty() || has(topic, b"+#\0") || has(group, b"/+#\0") {
        return error(ctx, key, BAD_CONSUMER);
    }
    if !allowed_to_subscribe(ctx, key, topic) {
        return;
    }
    let (ticket, now) = (ctx.io.ticket(key), ctx.io.now);
    let outcome = ctx.broker.join_group(ticket, key, group, topic, now, &mut ctx.io);
    confirm(ctx, key, outcome, |out, proto| {
        resp::push_header(out, proto, 3);
        [&b"consuming"[..], topic, group].iter().for_each(|text| resp::bulk(out, text));
    });
}

/// `HUBSUB ACK position [position …]`: replies how many of these records were unacknowledged deliveries of
/// this connection.
pub fn ack(ctx: &mut Ctx, key: ConnKey, args: Args<'_>) {
    let Some(positions) = args[2..].iter().map(|arg| position(arg)).collect::<Option<Vec<Position>>>() else {
        return error(ctx, key, BAD_POSITION);
    };
    let count = acknowledge(ctx, key, &positions);
    ctx.io.reply(key, |out, _| resp::int(out, count as i64));
}

/// Writes `[subscribe, topic, count, position, recovered]`.
pub fn write_started(out: &mut Vec<u8>, proto: Proto, topic: &[u8], count: u64, attached: &Attached) {
    resp::push_header(out, proto, 5);
    resp::bulk(out, b"subscribe");
    resp::bulk(out, topic);
    resp::int(out, count as i64);
    resp::bulk(out, attached.position.to_string().as_bytes());
    resp::int(out, i64::from(attached.recovered));
}

fn count(arg: &[u8]) -> Option<u64> {
    integer(arg).and_then(|n| u64::try_from(n).ok())
}

fn position(arg: &[u8]) -> Option<Position> {
    std::str::from_utf8(arg).ok()?.parse().ok()
}

/// Acknowledges records of a client by position. Returns how many of them the client had.
fn acknowledge(ctx: &mut Ctx, key: ConnKey, positions: &[Position]) -> u64 {
    let Some(extra) = ctx.io.conns.get_mut(key).and_then(|conn| conn.extra.as_mut()) else { return 0 };
    let mut done = Vec::new();
    extra.consumed.retain(|consumed| {
        let is_meant = positions.contains(&consumed.record.position);
        if is_meant {
            done.push((consumed.group.clone(), consumed.record.position));
        }
        !is_meant
    });
    for (group, position) in &done {
        ctx.broker.acknowledge(group, *position, ctx.io.now, &mut ctx.io);
    }
    done.len() as u64
}
