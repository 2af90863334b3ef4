//! The node's part of named consumers (docs/protocol/groups.md): their entries, which are the last records of
//! the rooms of `$consumer`; dead-letter topics; and records that were delivered to Redis clients but not
//! acknowledged.

use crate::context::Ctx;
pub mod state;

use crate::context::conn::Consumed;
use crate::context::io::Io;
use crate::context::scatter_gather::Then;
use crate::io::questions::{Part, Question};
use hubsub_route::rooms::HistoryQuery;
use hubsub_route::{Delivery, Headers, Record, RecordView};
use hubsub_types::names::group_of;
use hubsub_types::{ErrorCode, Position};
use hubsub_wire::resp;
use state::{ConsumerAsked, Wanted};
use std::sync::Arc;

/// Prefix of the rooms that hold consumers' entries, one room per consumer.
pub const ROWS: &[u8] = b"$consumer/";

/// Prefix of dead-letter topics.
const DEAD: &[u8] = b"dead-letters/";

pub fn row_of(source: &[u8]) -> Vec<u8> {
    let (group, topic) = group_of(source).unwrap_or((source, b""));
    let mut room = ROWS.to_vec();
    for (part, end) in [(group, &b"/"[..]), (topic, b"")] {
        for &byte in part {
            match byte {
                b'%' => room.extend_from_slice(b"%25"),
                b'/' => room.extend_from_slice(b"%2F"),
                byte => room.push(byte),
            }
        }
        room.extend_from_slice(end);
    }
    room
}

pub fn act(ctx: &mut Ctx, wanted: Wanted) {
    let now = ctx.io.now;
    match wanted {
        Wanted::Load(source) => {
            let room = row_of(&source);
            let query = HistoryQuery { room: room.clone(), count: 1, after: None, topic: None };
            let then = Then::work(|part| Wanted::Loaded(source, row(part)));
            ctx.ask_home(&room, Question::History(query), then);
        }
        Wanted::Loaded(source, row) => {
            let row = row.as_ref().map(Option::as_deref).map_err(|&code| code);
            ctx.broker.consumer_loaded(&source, row, now, &mut ctx.io);
        }
        Wanted::Save(source, row) => ctx.say_in(&row_of(&source), &row, ConsumerAsked::Row(source)),
        Wanted::Bury(source, record) => {
            let (group, topic) = group_of(&source).unwrap_or_default();
            let to = [DEAD, group, b"/", topic].concat();
            let mut headers: Vec<(Box<str>, Box<str>)> =
                record.headers.as_deref().unwrap_or_default().to_vec();
            headers.push(("hubsub-position".into(), record.position.to_string().into()));
            let asked = ConsumerAsked::Buried(Arc::clone(&source), record.position);
            ctx.io.metrics.consumers_dead_lettered_total.add(1);
            ctx.say_with(&to, record.payload(), Some(headers.into()), asked);
        }
    }
}

/// Handles the outcome of a request. A record whose dead letter is published is acknowledged, so that it is not
/// redelivered; if that failed, it is retried.
pub fn answered(ctx: &mut Ctx, asked: ConsumerAsked, outcome: Result<u64, ErrorCode>) {
    let now = ctx.io.now;
    match asked {
        ConsumerAsked::Row(source) => {
            ctx.broker.consumer_saved(&source, outcome.is_ok(), now, &mut ctx.io);
        }
        ConsumerAsked::Buried(source, position) if outcome.is_ok() => {
            ctx.broker.acknowledge(&source, position, now, &mut ctx.io);
        }
        ConsumerAsked::Buried(..) => {}
    }
}

/// The entry in the response to a request for it.
fn row(part: Option<Part>) -> Result<Option<Vec<u8>>, ErrorCode> {
    Part::history(part).map(|part| part.records.last().map(|record| record.payload().to_vec()))
}

/// Redelivers a closed client's unacknowledged records to other members.
pub fn give_away(ctx: &mut Ctx, consumed: Vec<Consumed>) {
    for Consumed { group, record } in consumed {
        ctx.broker.give_to_another(&group, record, ctx.io.now, &mut ctx.io);
    }
}

/// Delivers a record to a Redis client as a member of a group.
pub(crate) fn deliver_consumed(io: &mut Io, conn: u32, group: &[u8], record: &RecordView<'_>) -> Delivery {
    let Some(key) = io.conns.key_at(conn) else { return Delivery::Full };
    let Some(c) = io.conns.get_mut(key) else { return Delivery::Full };
    let waits = c.output.as_ref().is_some_and(|output| output.pending_bytes() > 0);
    let is_full = c.extra().consumed.len() as u64 >= io.limits.consumer_window_records;
    if is_full || (waits && io.is_full_at(conn)) {
        return Delivery::Full;
    }
    let headers: Headers = (!record.headers.is_empty()).then(|| record.headers.into());
    let mut kept =
        Record::new(record.namespace, record.topic, record.payload, record.publisher.into(), headers);
    (kept.position, kept.timestamp_us, kept.qos) = (record.position, record.timestamp_us, record.qos);
    if let Some(c) = io.conns.get_mut(key) {
        let consumed = &mut c.extra().consumed;
        // New records arrive in order; a redelivered one may already be at this client. Records without a
        // position (from classes that create no room) are always new.
        let is_again = |one: &Consumed| one.record.position == record.position && *one.group == *group;
        let Position { epoch, seq } = record.position;
        let precedes = |last: &Position| last.epoch == epoch && last.seq < seq;
        let is_later = consumed.last().is_none_or(|last| precedes(&last.record.position));
        if epoch.0 == 0 || is_later || !consumed.iter().any(is_again) {
            consumed.push(Consumed { group: group.into(), record: Arc::new(kept) });
        }
    }
    let name = group_of(group).map_or(group, |(name, _)| name);
    io.metrics.delivered_total.add(1);
    let mut bytes = 0;
    io.push_behind(key, |out, proto| {
        let before = out.len();
        resp::push_header(out, proto, 5);
        resp::bulk(out, b"consume");
        resp::bulk(out, record.topic);
        resp::bulk(out, name);
        resp::bulk(out, record.position.to_string().as_bytes());
        resp::bulk(out, record.payload);
        bytes = out.len() - before;
    });
    if let Some(c) = io.conns.get_mut(key) {
        c.meter.sent(bytes);
    }
    Delivery::Taken
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_types::names::group_pattern;

    #[test]
    fn each_consumer_has_a_room_of_its_own() {
        assert_eq!(row_of(&group_pattern(b"g", b"a/b")), b"$consumer/g/a%2Fb");
        assert_eq!(row_of(&group_pattern(b"100%", b"%2F")), b"$consumer/100%25/%252F");
        assert_eq!(row_of(&group_pattern(b"", b"a")), b"$consumer//a");
    }
}
