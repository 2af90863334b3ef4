//! Sends retained messages to a client that subscribes: executes its [`Reads`], within the rate limit of the
//! shard.
//!
//! A read starts when its subscription is confirmed, and first waits for a flush barrier. Hubs whose leader
//! is unreachable are read later; the client is notified with SUBACK and the operator by the log.

use super::client::{client_mut, client_ref, with_client};
use super::deliver::{has_output, queue};
use super::sending::send;
use super::state::Retained;
use crate::context::Ctx;
use crate::context::io::Io;
use crate::io::log_lines::Level;
use crate::io::output::Output;
use hubsub_mqtt::{Client, Content, Reads, Way, is_expired};
use hubsub_route::{
    Answer, Asker, Kept, LogPlace, Namespace, Outcome, Record, RowsAsk, Ticket, is_publisher,
};
use hubsub_types::{ConnKey, OnSlow};
use hubsub_wire::mqtt::topic_name;

pub fn go_on(ctx: &mut Ctx) {
    go_on_paced(ctx);
    while !ctx.io.states.mqtt.retained.is_empty() {
        for (key, event) in std::mem::take(&mut ctx.io.states.mqtt.retained) {
            match event {
                Retained::Due(filter) => begin(ctx, key, filter),
                Retained::Came(number, answer) => came(ctx, key, number, answer),
            }
        }
    }
}

/// Continues waiting reads in order, within the rate limit.
fn go_on_paced(ctx: &mut Ctx) {
    while has_room_for_page(&mut ctx.io)
        && let Some(key) = ctx.io.states.mqtt.rows_pace.waiting.pop_front()
    {
        if let Some(reads) = reads_of(&mut ctx.io, key) {
            reads.go_on();
            read_on(ctx, key);
        }
    }
}

fn begin(ctx: &mut Ctx, key: ConnKey, filter: Box<[u8]>) {
    let has_none = ctx.broker.rows_class().is_none() || ctx.broker.has_no_rows();
    let Some(reads) = reads_of(&mut ctx.io, key) else { return };
    reads.begin((!has_none).then_some(filter));
    read_on(ctx, key);
}

fn came(ctx: &mut Ctx, key: ConnKey, number: u32, answer: Answer) {
    ctx.io.states.mqtt.rows_pace.came(number);
    if reads_of(&mut ctx.io, key).is_some_and(|reads| reads.answered(number)) {
        act(ctx, key, answer);
        read_on(ctx, key);
    }
}

/// Requests the next page of a client that has taken the previous one.
pub fn read_on(ctx: &mut Ctx, key: ConnKey) {
    let has_reads = |ctx: &Ctx| client_ref(&ctx.io, key).is_some_and(|client| client.reads.is_some());
    while has_reads(ctx) && has_room_for_entries(&ctx.io, key) {
        let Some(reads) = reads_of(&mut ctx.io, key).filter(|reads| !reads.awaits()) else { return };
        let Some(read) = reads.first() else {
            let is_done = reads.is_done();
            if let Some(client) = client_mut(&mut ctx.io, key).filter(|_| is_done) {
                client.reads = None;
            }
            return;
        };
        let (filter, is_wild, next) =
            (Box::<[u8]>::from(read.filter()), read.is_wild(), read.next().cloned());
        if next.is_some() && !may_read_entries(&mut ctx.io, key) {
            return;
        }
        let number = ctx.io.states.mqtt.retained_asked.wrapping_add(1);
        ctx.io.states.mqtt.retained_asked = number;
        if let Some(reads) = reads_of(&mut ctx.io, key) {
            reads.ask(number);
        }
        let asker = Asker::Retained { conn: key, number };
        let ticket = Ticket { shard: ctx.io.shard, asker };
        let now = ctx.io.now;
        let outcome = match next {
            None if is_wild => {
                ctx.broker.settle(asker, &mut ctx.io);
                Outcome::Later
            }
            None => {
                let passed = ctx.broker.subscribers(ticket, Namespace::Global, &filter, now, &mut ctx.io);
                match passed {
                    Outcome::Now(count) => Outcome::Now(Answer::Counted(count)),
                    Outcome::Later => Outcome::Later,
                }
            }
            Some((hub, after)) => {
                let Some(class) = ctx.broker.rows_class() else { return };
                let bytes_max = ctx.io.limits.retained_page_bytes as u32;
                let ask = RowsAsk { ticket, class, hub, filter, after, bytes_max };
                match ctx.broker.rows(ask, now, &mut ctx.io) {
                    Outcome::Now(page) => Outcome::Now(Answer::Rows(page)),
                    Outcome::Later => {
                        ctx.io.states.mqtt.rows_pace.asked(number, now.mono_ms);
                        Outcome::Later
                    }
                }
            }
        };
        let Outcome::Now(answer) = outcome else { return };
        if let Some(reads) = reads_of(&mut ctx.io, key) {
            reads.answered(number);
        }
        act(ctx, key, answer);
    }
}

fn reads_of(io: &mut Io, key: ConnKey) -> Option<&mut Reads> {
    client_mut(io, key)?.reads.as_deref_mut()
}

/// Handles the answer to the first read's request.
fn act(ctx: &mut Ctx, key: ConnKey, answer: Answer) {
    let row_hubs = ctx.broker.row_hubs();
    let Some(read) = reads_of(&mut ctx.io, key).and_then(|reads| reads.first()) else { return };
    let (filter, hub) = (Box::<[u8]>::from(read.filter()), read.next().map(|next| next.0));
    let following = read.hub_after(hub, row_hubs, || ctx.broker.row_hub(&filter)).map(|hub| (hub, None));
    let next = match (answer, hub) {
        (Answer::Rows(Ok(page)), Some(hub)) => {
            let after = page.rows.last().and_then(|row| hubsub_route::rows::topic_of(row.topic()));
            let after = after.map(Box::from);
            let is_last = page.is_last || after.is_none();
            let bytes = page.rows.iter().map(|row| row.topic().len() + row.payload().len());
            ctx.io.states.mqtt.rows_pace.count(bytes.sum::<usize>());
            for row in page.rows.iter().filter(|row| !row.payload().is_empty()) {
                send_entry(&mut ctx.io, key, &filter, row);
            }
            if is_last { following } else { Some((hub, after)) }
        }
        // This hub cannot be read now; others can.
        (_, Some(hub)) => {
            reads_of(&mut ctx.io, key).into_iter().for_each(|reads| reads.miss(hub));
            ctx.io.metrics.retained_unread_total.add(1);
            following
        }
        (_, None) => following,
    };
    if reads_of(&mut ctx.io, key).is_some_and(|reads| reads.advance(next)) {
        ctx.io.states.mqtt.unread.insert(key);
    }
}

/// Retries unreachable hubs, and forgets filters that clients no longer subscribe to. Runs once a second.
pub fn read_unread(ctx: &mut Ctx) {
    for key in ctx.io.states.mqtt.unread.iter().copied().collect::<Vec<_>>() {
        if let Some(Client { machine, reads: Some(reads), .. }) = client_mut(&mut ctx.io, key) {
            let is_subscribed = |filter: &[u8]| machine.filters.grant_kept(filter, false).is_some();
            reads.retry_unread(is_subscribed, |hub| ctx.broker.row_hub_is_away(hub));
        }
        read_on(ctx, key);
        if reads_of(&mut ctx.io, key).is_none_or(|reads| !reads.has_unread()) {
            ctx.io.states.mqtt.unread.remove(&key);
        }
    }
}

/// Before a subscription: SUBACK reports that retained messages come later, if hubs are unreachable.
pub(super) fn note_unread(ctx: &mut Ctx, key: ConnKey, number: u32, filter: &str) {
    if !ctx.broker.rows_are_away(filter.as_bytes()) {
        return;
    }
    let is_notified = with_client(&mut ctx.io, key, |client, _| client.machine.retained_comes_later(number));
    if is_notified == Some(true) && ctx.broker.tells_rows_are_away() {
        let fields = vec![("filter", filter.chars().take(64).collect())];
        let what = "retained messages are delivered later: the leader of their hub is not reached";
        ctx.io.lines.log(Level::Warning, what, fields);
    }
}

/// A subscription is confirmed: schedules its read and notes live messages from now on.
pub(super) fn read(io: &mut Io, key: ConnKey, filter: Box<[u8]>) {
    if let Some(client) = client_mut(io, key) {
        client.reads.get_or_insert_default().grant();
        io.states.mqtt.retained.push((key, Retained::Due(filter)));
    }
}

/// True if a client may read a page in this millisecond; else it is queued for a later one.
fn may_read_entries(io: &mut Io, key: ConnKey) -> bool {
    if has_room_for_page(io) {
        return true;
    }
    let Some(reads) = reads_of(io, key) else { return false };
    if reads.wait() {
        io.states.mqtt.rows_pace.waiting.push_back(key);
    }
    false
}

fn has_room_for_page(io: &mut Io) -> bool {
    io.states.mqtt.rows_pace.has_room(io.now.mono_ms, io.limits.retained_page_bytes as usize)
}

/// True if a client has taken enough output to receive more retained messages.
fn has_room_for_entries(io: &Io, key: ConnKey) -> bool {
    let Some(conn) = io.conns.get(key).filter(|conn| !conn.is_closing()) else { return false };
    let Some(client) = conn.session.mqtt() else { return false };
    let has_room = |o: &Output| o.queue.is_empty() && o.turn_bytes < io.limits.retained_page_bytes as usize;
    client.pending.is_empty() && conn.output.as_deref().is_none_or(has_room)
}

fn send_entry(io: &mut Io, key: ConnKey, filter: &[u8], row: &Record) {
    let now_us = io.now.wall_us;
    let Some(conn) = io.conns.get(key).filter(|conn| !conn.is_closing()) else { return };
    let Some(client) = conn.session.mqtt() else { return };
    let is_own = is_publisher(&row.publisher, client.machine.client_id());
    let Some(mut grant) = client.machine.filters.grant_kept(filter, is_own) else { return };
    let Some(kept) = Kept::of(row).filter(|_| !is_expired(row, now_us)) else { return };
    let Ok(topic) = topic_name(kept.topic) else {
        io.metrics.mqtt_unsent_total.add(1);
        return;
    };
    if client.reads.as_ref().is_some_and(|reads| reads.has_live(topic)) {
        return;
    }
    let content = Content {
        topic,
        payload: row.payload(),
        headers: kept.headers,
        timestamp_us: kept.timestamp_us,
        position: kept.position,
        place: LogPlace::default(),
        qos: row.qos,
        retain: true,
    };
    grant.qos = grant.qos.min(row.qos);
    let waits = client.must_queue(has_output(conn), grant.qos);
    io.states.mqtt.cache.begin();
    if waits {
        queue(io, key.index, &content, grant, OnSlow::CatchUp, Way::default());
    } else {
        send(io, key.index, &content, &grant, None, Way::default(), None);
    }
}
