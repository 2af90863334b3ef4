//! What named consumers need of the node (docs/protocol/groups.md): their rows, which are the last records of rooms of
//! `$consumer`; the topics of dead letters; and what Redis clients were given and have not acknowledged.

use crate::conn::Consumed;
use crate::core::Core;
use crate::gather::Then;
use crate::mail::{Part, Question};
use crate::own::Asked;
use crate::rim::Rim;
use hubsub_route::rooms::HistoryQuery;
use hubsub_route::{Delivery, Headers, Record, RecordView};
use hubsub_types::names::group_of;
use hubsub_types::{ErrorCode, Position};
use hubsub_wire::resp;
use std::sync::Arc;

/// Rooms of rows, one a consumer.
pub const ROWS: &[u8] = b"$consumer/";

/// Topics of dead letters begin so.
const DEAD: &[u8] = b"dead-letters/";

/// What is to be done for consumers, behind what the broker does.
pub enum Wanted {
    /// Read a row.
    Load(Arc<[u8]>),
    /// It was read.
    Loaded(Arc<[u8]>, Result<Option<Vec<u8>>, ErrorCode>),
    /// Write it.
    Save(Arc<[u8]>, Vec<u8>),
    /// Publish a record to the dead letters.
    Bury(Arc<[u8]>, Arc<Record>),
    /// A member has done with a record.
    Done(Box<[u8]>, Position),
}

/// The room of a consumer's row.
#[must_use]
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

/// Acts on what is wanted.
pub fn act(core: &mut Core, wanted: Wanted) {
    let now = core.rim.now;
    match wanted {
        Wanted::Load(source) => {
            let room = row_of(&source);
            let query = HistoryQuery { room: room.clone(), count: 1, after: None, topic: None };
            core.ask_home(&room, Question::History(query), Then::Consumer(source));
        }
        Wanted::Loaded(source, row) => {
            let row = row.as_ref().map(Option::as_deref).map_err(|&code| code);
            core.broker.consumer_loaded(&source, row, now, &mut core.rim);
        }
        Wanted::Save(source, row) => core.say_in(&row_of(&source), &row, Asked::Row(source)),
        Wanted::Bury(source, record) => {
            let (group, topic) = group_of(&source).unwrap_or_default();
            let to = [DEAD, group, b"/", topic].concat();
            let mut headers: Vec<(Box<str>, Box<str>)> =
                record.headers.as_deref().unwrap_or_default().to_vec();
            headers.push(("hubsub-position".into(), record.position.to_string().into()));
            let asked = Asked::Buried(Arc::clone(&source), record.position);
            core.rim.metrics.consumers_buried_total.add(1);
            core.say_with(&to, record.payload(), Some(headers.into()), asked);
        }
        Wanted::Done(group, position) => core.broker.acknowledge(&group, position, now, &mut core.rim),
    }
}

/// A row is written, or is not.
pub fn saved(core: &mut Core, source: &[u8], is_safe: bool) {
    core.broker.consumer_saved(source, is_safe, core.rim.now, &mut core.rim);
}

/// A dead letter is published: nobody is given that record again. One that is not is tried again.
pub fn buried(core: &mut Core, source: &[u8], position: Position) {
    core.broker.acknowledge(source, position, core.rim.now, &mut core.rim);
}

/// What a question for a row brought.
pub fn row(part: Option<Part>) -> Result<Option<Vec<u8>>, ErrorCode> {
    match part {
        Some(Part::History(part)) => Ok(part.records.last().map(|record| record.payload().to_vec())),
        Some(Part::Refused(code)) => Err(code),
        other => unreachable!("records answer a question for history: {other:?}"),
    }
}

/// A client acknowledges records by their positions: how many it had.
pub fn acknowledge(core: &mut Core, key: hubsub_types::ConnKey, positions: &[Position]) -> u64 {
    let Some(extra) = core.rim.conns.get_mut(key).and_then(|conn| conn.extra.as_mut()) else { return 0 };
    let mut done = Vec::new();
    extra.consumed.retain(|consumed| {
        let is_meant = positions.contains(&consumed.record.position);
        if is_meant {
            done.push((consumed.group.clone(), consumed.record.position));
        }
        !is_meant
    });
    for (group, position) in &done {
        core.broker.acknowledge(group, *position, core.rim.now, &mut core.rim);
    }
    done.len() as u64
}

/// A client is gone: what it had goes to other members.
pub fn give_away(core: &mut Core, consumed: Vec<Consumed>) {
    for Consumed { group, record } in consumed {
        core.broker.give_to_another(&group, record, core.rim.now, &mut core.rim);
    }
}

impl Rim {
    /// A record for a Redis client, as a member of a group.
    pub(crate) fn deliver_consumed(&mut self, conn: u32, group: &[u8], record: &RecordView<'_>) -> Delivery {
        let Some(key) = self.conns.key_at(conn) else { return Delivery::Full };
        let Some(c) = self.conns.get_mut(key) else { return Delivery::Full };
        let waits = c.output.as_ref().is_some_and(|output| output.pending_bytes() > 0);
        let is_full = c.extra().consumed.len() as u64 >= self.limits.consumer_window_records;
        if is_full || (waits && self.is_full_at(conn)) {
            return Delivery::Full;
        }
        let headers: Headers = (!record.headers.is_empty()).then(|| record.headers.into());
        let mut kept =
            Record::new(record.namespace, record.topic, record.payload, record.publisher.into(), headers);
        (kept.position, kept.timestamp_us, kept.qos) = (record.position, record.timestamp_us, record.qos);
        if let Some(c) = self.conns.get_mut(key) {
            let consumed = &mut c.extra().consumed;
            // What comes for the first time comes in order; of the rest it may be that this client has it. Without a
            // position, where no room is made, all is new.
            let is_again = |one: &Consumed| one.record.position == record.position && *one.group == *group;
            let Position { epoch, seq } = record.position;
            let precedes = |last: &Position| last.epoch == epoch && last.seq < seq;
            let is_later = consumed.last().is_none_or(|last| precedes(&last.record.position));
            if epoch.0 == 0 || is_later || !consumed.iter().any(is_again) {
                consumed.push(Consumed { group: group.into(), record: Arc::new(kept) });
            }
        }
        let name = group_of(group).map_or(group, |(name, _)| name);
        self.metrics.delivered_total.add(1);
        self.push_behind(key, |out, proto| {
            resp::push_header(out, proto, 5);
            resp::bulk(out, b"consume");
            resp::bulk(out, record.topic);
            resp::bulk(out, name);
            resp::bulk(out, record.position.to_string().as_bytes());
            resp::bulk(out, record.payload);
        });
        Delivery::Taken
    }
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
