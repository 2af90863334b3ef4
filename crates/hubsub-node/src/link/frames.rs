//! Converts between brokers' messages and frames: to a frame without a copy, from a frame with only the
//! copies that a record needs.
//!
//! A record's frame names only its topic: the room follows from the classes, which are the same on all nodes.

use hubsub_route::relay::watch::Over;
use hubsub_route::relay::{AskId, Names, NodeMessage};
use hubsub_route::{Attached, Give, Headers, HubFilter, LogPlace, Namespace, Producer, Record, Start};
use hubsub_types::{Epoch, ErrorCode, HubId, Position, ProducerId, Qos, Seq, Term};
use hubsub_wire::link::{self, Frame, Short, Texts};
use std::sync::Arc;

#[must_use]
pub fn frame(message: &NodeMessage) -> Frame<'_> {
    match message {
        NodeMessage::Publish { ask, hub, term, record } => {
            Frame::Publish { ask: ask.0, hub: *hub, term: term.0, record: record_frame(record) }
        }
        NodeMessage::Published { ask, again, position, receivers } => {
            Frame::Published { ask: ask.0, again: *again, position: *position, receivers: *receivers }
        }
        NodeMessage::NotMine { ask, hub, term } => Frame::NotMine { ask: ask.0, hub: *hub, term: term.0 },
        NodeMessage::Denied { ask, code } => Frame::Denied { ask: ask.0, code: code.code() },
        NodeMessage::Interest { ask, hub, term, names, count, known, start } => Frame::Interest {
            ask: ask.0,
            hub: *hub,
            term: term.0,
            names: names_frame(names),
            count: *count,
            known: *known,
            start: start_frame(*start),
        },
        NodeMessage::Attached { ask, attached } => Frame::Attached {
            ask: ask.0,
            position: attached.position,
            replay_from: attached.replay_from.unwrap_or_default(),
            recovered: attached.recovered,
        },
        NodeMessage::Counts { hub, term, names, count } => {
            Frame::Counts { hub: *hub, term: term.0, names: names_frame(names), count: *count }
        }
        NodeMessage::CountAsk { ask, hub, term, names, settles } => {
            let (ask, hub, names) = (ask.0, *hub, names_frame(names));
            Frame::CountAsk { ask, hub, term: term.0, names, settles: *settles }
        }
        NodeMessage::Counted { ask, count } => Frame::Counted { ask: ask.0, count: *count },
        NodeMessage::Deliver { hub, term, previous, before, record } => Frame::Deliver {
            hub: *hub,
            term: term.0,
            position: record.position,
            previous: *previous,
            offset: Short(record.place.offset),
            before: Short(*before),
            record: record_frame(record),
        },
        NodeMessage::Give { hub, give: Give { group, record, tries, was_taken } } => Frame::Give {
            hub: *hub,
            group,
            tries: *tries,
            was_taken: *was_taken,
            position: record.position,
            offset: Short(record.place.offset),
            record: record_frame(record),
        },
        NodeMessage::Acknowledge { hub, group, position } => {
            Frame::Acknowledge { hub: *hub, group, position: *position }
        }
        NodeMessage::Pattern { version, count, pattern } => {
            Frame::Pattern { version: *version, count: *count, pattern }
        }
        NodeMessage::PatternsBegin { version, patterns } => {
            Frame::PatternsBegin { version: *version, patterns: *patterns }
        }
        NodeMessage::PatternsEntry { count, pattern } => Frame::PatternsEntry { count: *count, pattern },
        NodeMessage::PatternsEnd { version } => Frame::PatternsEnd { version: *version },
        NodeMessage::PatternsHeld { version } => Frame::PatternsHeld { version: *version },
        NodeMessage::PatternsLive { hub, term, life, due } => {
            Frame::PatternsLive { hub: *hub, term: term.0, life: life.0, due: *due }
        }
        NodeMessage::Registered { hub, term } => Frame::Registered { hub: *hub, term: term.0 },
        NodeMessage::Over { hub, term, over: Over { life, due, said } } => {
            Frame::Over { hub: *hub, term: term.0, life: life.0, due: *due, said: *said }
        }
        NodeMessage::Read { ask, hub, names, start, records_max, bytes_max } => Frame::Read {
            ask: ask.0,
            hub: *hub,
            names: names_frame(names),
            start: start_frame(*start),
            records_max: *records_max,
            bytes_max: *bytes_max,
        },
        NodeMessage::ReadHub { ask, hub, next, since_us, records_max, bytes_max, filter } => Frame::ReadHub {
            ask: ask.0,
            hub: *hub,
            next: *next,
            since_us: *since_us,
            records_max: *records_max,
            bytes_max: *bytes_max,
            filter: Texts::new(filter.sources()),
        },
        NodeMessage::HubEnd { ask, next, committed, lost } => {
            let (lost_first, lost_last) = lost.unwrap_or_default();
            Frame::HubEnd { ask: ask.0, next: *next, committed: *committed, lost_first, lost_last }
        }
        NodeMessage::Rows { ask, hub, filter, after, bytes_max } => {
            Frame::Rows { ask: ask.0, hub: *hub, filter, after, bytes_max: *bytes_max }
        }
        NodeMessage::SettleAsk { ask } => Frame::SettleAsk { ask: ask.0 },
        NodeMessage::Settled { ask } => Frame::Settled { ask: ask.0 },
        NodeMessage::Range { ask, record } => Frame::Range {
            ask: ask.0,
            position: record.position,
            hub: record.place.hub,
            offset: Short(record.place.offset),
            record: record_frame(record),
        },
        NodeMessage::RangeEnd { ask, oldest, next, gap, at_end, is_gone } => {
            let (gap_first, gap_last) = gap.unwrap_or_default();
            let (ask, oldest, next, at_end, is_gone) = (ask.0, *oldest, *next, *at_end, *is_gone);
            Frame::RangeEnd { ask, oldest, next, gap_first, gap_last, at_end, is_gone }
        }
    }
}

/// The message of a frame; none for frames that brokers do not send.
#[must_use]
pub fn message(frame: &Frame<'_>) -> Option<NodeMessage> {
    Some(match *frame {
        Frame::Publish { ask, hub, term, record } => {
            let record = owned_record(record, Position::default(), LogPlace::default());
            NodeMessage::Publish { ask: AskId(ask), hub, term: Term(term), record }
        }
        Frame::Published { ask, again, position, receivers } => {
            NodeMessage::Published { ask: AskId(ask), again, position, receivers }
        }
        Frame::NotMine { ask, hub, term } => NodeMessage::NotMine { ask: AskId(ask), hub, term: Term(term) },
        Frame::Denied { ask, code } => NodeMessage::Denied { ask: AskId(ask), code: error_code(code) },
        Frame::Interest { ask, hub, term, names, count, known, start } => NodeMessage::Interest {
            ask: AskId(ask),
            hub,
            term: Term(term),
            names: owned_names(names),
            count,
            known,
            start: owned_start(start),
        },
        Frame::Attached { ask, position, replay_from, recovered } => {
            let replay_from = (replay_from != Seq(0)).then_some(replay_from);
            let attached = Attached { position, replay_from, recovered };
            NodeMessage::Attached { ask: AskId(ask), attached }
        }
        Frame::Counts { hub, term, names, count } => {
            NodeMessage::Counts { hub, term: Term(term), names: owned_names(names), count }
        }
        Frame::CountAsk { ask, hub, term, names, settles } => {
            let (ask, term, names) = (AskId(ask), Term(term), owned_names(names));
            NodeMessage::CountAsk { ask, hub, term, names, settles }
        }
        Frame::Counted { ask, count } => NodeMessage::Counted { ask: AskId(ask), count },
        Frame::Deliver { hub, term, position, previous, offset, before, record } => {
            let record = owned_record(record, position, place(hub, offset));
            NodeMessage::Deliver { hub, term: Term(term), previous, before: before.0, record }
        }
        Frame::Give { hub, group, tries, was_taken, position, offset, record } => {
            let record = owned_record(record, position, place(hub, offset));
            NodeMessage::Give { hub, give: Give { group: group.into(), record, tries, was_taken } }
        }
        Frame::Acknowledge { hub, group, position } => {
            NodeMessage::Acknowledge { hub, group: group.into(), position }
        }
        Frame::Pattern { version, count, pattern } => {
            NodeMessage::Pattern { version, count, pattern: pattern.into() }
        }
        Frame::PatternsBegin { version, patterns } => NodeMessage::PatternsBegin { version, patterns },
        Frame::PatternsEntry { count, pattern } => {
            NodeMessage::PatternsEntry { count, pattern: pattern.into() }
        }
        Frame::PatternsEnd { version } => NodeMessage::PatternsEnd { version },
        Frame::PatternsHeld { version } => NodeMessage::PatternsHeld { version },
        Frame::PatternsLive { hub, term, life, due } => {
            NodeMessage::PatternsLive { hub, term: Term(term), life: Epoch(life), due }
        }
        Frame::Registered { hub, term } => NodeMessage::Registered { hub, term: Term(term) },
        Frame::Over { hub, term, life, due, said } => {
            NodeMessage::Over { hub, term: Term(term), over: Over { life: Epoch(life), due, said } }
        }
        Frame::Read { ask, hub, names, start, records_max, bytes_max } => NodeMessage::Read {
            ask: AskId(ask),
            hub,
            names: owned_names(names),
            start: owned_start(start),
            records_max,
            bytes_max,
        },
        Frame::ReadHub { ask, hub, next, since_us, records_max, bytes_max, filter } => {
            let (ask, filter) = (AskId(ask), Arc::new(HubFilter::new(filter.iter().map(Into::into))));
            NodeMessage::ReadHub { ask, hub, next, since_us, records_max, bytes_max, filter }
        }
        Frame::HubEnd { ask, next, committed, lost_first, lost_last } => {
            let lost = (lost_first != 0).then_some((lost_first, lost_last));
            NodeMessage::HubEnd { ask: AskId(ask), next, committed, lost }
        }
        Frame::Rows { ask, hub, filter, after, bytes_max } => {
            let (filter, after) = (filter.into(), after.into());
            NodeMessage::Rows { ask: AskId(ask), hub, filter, after, bytes_max }
        }
        Frame::SettleAsk { ask } => NodeMessage::SettleAsk { ask: AskId(ask) },
        Frame::Settled { ask } => NodeMessage::Settled { ask: AskId(ask) },
        Frame::Range { ask, position, hub, offset, record } => {
            NodeMessage::Range { ask: AskId(ask), record: owned_record(record, position, place(hub, offset)) }
        }
        Frame::RangeEnd { ask, oldest, next, gap_first, gap_last, at_end, is_gone } => {
            let gap = (gap_first != Seq(0)).then_some((gap_first, gap_last));
            NodeMessage::RangeEnd { ask: AskId(ask), oldest, next, gap, at_end, is_gone }
        }
        _ => return None,
    })
}

fn record_frame(record: &Record) -> link::Record<'_> {
    let (producer, sequence) = record.producer().map_or_else(Default::default, |p| (p.id, p.sequence));
    link::Record {
        names: link::Names {
            sharded: record.namespace == Namespace::Shard,
            room: record.topic(),
            topic: record.topic(),
        },
        timestamp_us: record.timestamp_us,
        producer,
        sequence,
        qos_lack: record.qos.lack(),
        retain: record.retain,
        publisher: &record.publisher,
        headers: record.headers.as_ref().map_or_else(Default::default, |pairs| link::Headers::new(pairs)),
        payload: record.payload(),
    }
}

/// A hub without a log has no offsets.
fn place(hub: HubId, offset: Short) -> LogPlace {
    if offset.0 == 0 { LogPlace::default() } else { LogPlace { hub, offset: offset.0 } }
}

fn owned_record(record: link::Record<'_>, position: Position, place: LogPlace) -> Arc<Record> {
    let namespace = namespace(record.names.sharded);
    let headers: Headers = (!record.headers.is_empty())
        .then(|| record.headers.iter().map(|(name, value)| (name.into(), value.into())).collect());
    let producer = (record.producer != ProducerId(0))
        .then_some(Producer { id: record.producer, sequence: record.sequence });
    let (topic, payload, publisher) = (record.names.topic, record.payload, record.publisher.into());
    let mut owned = Record::new(namespace, topic, payload, publisher, headers)
        .of_qos(Qos::from_lack(record.qos_lack).unwrap_or(Qos::ExactlyOnce))
        .retained(record.retain)
        .from_producer(producer);
    (owned.position, owned.place, owned.timestamp_us) = (position, place, record.timestamp_us);
    Arc::new(owned)
}

fn names_frame(names: &Names) -> link::Names<'_> {
    let sharded = names.namespace == Namespace::Shard;
    link::Names { sharded, room: &names.room, topic: &names.topic }
}

fn owned_names(names: link::Names<'_>) -> Names {
    let room: Arc<[u8]> = names.room.into();
    let topic = if names.topic == names.room { Arc::clone(&room) } else { names.topic.into() };
    Names { namespace: namespace(names.sharded), room, topic }
}

fn namespace(sharded: bool) -> Namespace {
    if sharded { Namespace::Shard } else { Namespace::Global }
}

fn start_frame(start: Start) -> link::Start {
    match start {
        Start::Live => link::Start::Live,
        Start::After(position) => link::Start::After(position),
        Start::Last(count) => link::Start::Last(count),
        Start::Since(us) => link::Start::Since(us),
    }
}

fn owned_start(start: link::Start) -> Start {
    match start {
        link::Start::Live => Start::Live,
        link::Start::After(position) => Start::After(position),
        link::Start::Last(count) => Start::Last(count),
        link::Start::Since(us) => Start::Since(us),
    }
}

/// An error by its stable code. An unknown code of a newer version becomes `TimedOut`, which leaves the
/// outcome open.
fn error_code(code: &str) -> ErrorCode {
    ErrorCode::from_code(code).unwrap_or(ErrorCode::TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_types::ShardId;

    fn record(position: Position) -> Arc<Record> {
        let headers: Headers = Some([("k".into(), "v".into())].into());
        let producer = Some(Producer { id: ProducerId(7), sequence: 9 });
        let mut record = Record::new(Namespace::Shard, b"topic", b"payload", "me".into(), headers);
        record = record.from_producer(producer).of_qos(Qos::AtLeastOnce).retained(true);
        (record.position, record.timestamp_us) = (position, 55);
        if position != Position::default() {
            record.place = LogPlace { hub: HubId(6), offset: 300 };
        }
        Arc::new(record)
    }

    fn bare() -> Arc<Record> {
        Arc::new(Record::new(Namespace::Global, b"t", b"", "".into(), None))
    }

    fn messages() -> Vec<NodeMessage> {
        let position = Position { epoch: Epoch(3), seq: Seq(4) };
        let names = |topic: &[u8]| Names {
            namespace: Namespace::Shard,
            room: (*b"room").into(),
            topic: topic.into(),
        };
        let (ask, hub, term) = (AskId::new(5, ShardId(2)), HubId(6), Term(8));
        let mut messages = vec![
            NodeMessage::Publish { ask, hub, term, record: record(Position::default()) },
            NodeMessage::Publish { ask, hub, term, record: bare() },
            NodeMessage::Published { ask, again: true, position, receivers: 3 },
            NodeMessage::NotMine { ask, hub, term },
            NodeMessage::Counts { hub, term, names: names(b"room"), count: 2 },
            NodeMessage::CountAsk { ask, hub, term, names: names(b""), settles: true },
            NodeMessage::Rows { ask, hub, filter: (*b"a/#").into(), after: (*b"a/b").into(), bytes_max: 9 },
            NodeMessage::SettleAsk { ask },
            NodeMessage::Settled { ask },
            NodeMessage::Counted { ask, count: 4 },
            NodeMessage::Deliver { hub, term, previous: Seq(3), before: 299, record: record(position) },
            NodeMessage::Give {
                hub,
                give: Give { group: (*b"g").into(), record: record(position), tries: 2, was_taken: true },
            },
            NodeMessage::Acknowledge { hub, group: (*b"g").into(), position },
            NodeMessage::Pattern { version: 1, count: 2, pattern: (*b"p*").into() },
            NodeMessage::PatternsBegin { version: 1, patterns: 2 },
            NodeMessage::PatternsEntry { count: 2, pattern: (*b"p*").into() },
            NodeMessage::PatternsEnd { version: 1 },
            NodeMessage::PatternsHeld { version: 1 },
            NodeMessage::PatternsLive { hub, term, life: Epoch(7), due: 2 },
            NodeMessage::Registered { hub, term },
            NodeMessage::Over { hub, term, over: Over { life: Epoch(7), due: 2, said: 3 } },
            NodeMessage::Range { ask, record: record(position) },
        ];
        messages.extend(ErrorCode::ALL.iter().map(|&code| NodeMessage::Denied { ask, code }));
        for start in [Start::Live, Start::After(position), Start::Last(2), Start::Since(3)] {
            let names = names(b"topic");
            let (records_max, bytes_max, known) = (1, 2, position);
            messages.push(NodeMessage::Interest {
                ask,
                hub,
                term,
                names: names.clone(),
                count: 2,
                known,
                start,
            });
            messages.push(NodeMessage::Read { ask, hub, names, start, records_max, bytes_max });
        }
        for replay_from in [None, Some(Seq(2))] {
            let attached = Attached { position, replay_from, recovered: replay_from.is_none() };
            messages.push(NodeMessage::Attached { ask, attached });
        }
        for lost in [None, Some((1, 6))] {
            messages.push(NodeMessage::HubEnd { ask, next: 7, committed: 9, lost });
        }
        for sources in [vec![], vec![(*b"a/*").into(), (*b"").into()]] {
            messages.push(NodeMessage::ReadHub {
                ask,
                hub,
                next: u64::MAX,
                since_us: 3,
                records_max: 4,
                bytes_max: 5,
                filter: Arc::new(HubFilter::new(sources)),
            });
        }
        for gap in [None, Some((Seq(1), Seq(2)))] {
            let (oldest, next) = (position, Seq(9));
            messages.push(NodeMessage::RangeEnd {
                ask,
                oldest,
                next,
                gap,
                at_end: true,
                is_gone: gap.is_none(),
            });
        }
        messages
    }

    #[test]
    fn a_message_comes_out_as_it_went_in() {
        for sent in messages() {
            let mut bytes = Vec::new();
            frame(&sent).encode(&mut bytes);
            let decoded = link::decode(&bytes, 1 << 20).unwrap();
            let link::Decoded::Frame { frame, .. } = decoded else { panic!("it is whole") };
            let came = message(&frame).expect("brokers send it");
            assert_eq!(format!("{came:?}"), format!("{sent:?}"));
            let is_read = frame.lane() == link::Lane::Reads;
            assert_eq!(came.is_read(), is_read, "{}", frame.name());
        }
    }

    #[test]
    fn a_refusal_of_a_later_version_leaves_the_outcome_open() {
        let frame = Frame::Denied { ask: 1, code: "no_such_code" };
        let Some(NodeMessage::Denied { code, .. }) = message(&frame) else { panic!("it is one") };
        assert_eq!(code, ErrorCode::TimedOut);
    }

    #[test]
    fn what_is_not_of_brokers_is_no_message() {
        let control = Frame::Control { id: 1, is_answer: false, body: link::Payload(b"") };
        assert!(message(&control).is_none());
    }
}
