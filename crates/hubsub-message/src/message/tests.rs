use super::*;
use crate::frame::framed;
use crate::{Field, FrameError, Headers, LogPlace, Producer, Reader};
use hubsub_types::{ProducerId, Qos};

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
    let names =
        |topic: &[u8]| Names { namespace: Namespace::Shard, room: (*b"room").into(), topic: topic.into() };
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
        NodeMessage::PatternsLive { hub, term, epoch: Epoch(7), expected: 2 },
        NodeMessage::InterestSynced { hub, term },
        NodeMessage::LeadershipEnded {
            hub,
            term,
            end: LeadershipEnd { epoch: Epoch(7), expected: 2, committed: 3 },
        },
        NodeMessage::Range { ask, record: record(position) },
    ];
    messages.extend(ErrorCode::ALL.iter().map(|&code| NodeMessage::Denied { ask, code }));
    for start in [Start::Live, Start::After(position), Start::Last(2), Start::Since(3)] {
        let names = names(b"topic");
        let (records_max, bytes_max, known) = (1, 2, position);
        messages.push(NodeMessage::Interest { ask, hub, term, names: names.clone(), count: 2, known, start });
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
        messages.push(NodeMessage::RangeEnd { ask, oldest, next, gap, at_end: true, is_gone: gap.is_none() });
    }
    messages
}

#[test]
fn an_answer_goes_to_the_shard_that_asked_and_a_request_to_the_home_of_its_hub() {
    let ask = AskId::new(7, ShardId(63));
    let answer = NodeMessage::Counted { ask, count: 1 };
    assert_eq!(answer.shard(64), ShardId(63));
    let names = Names { namespace: Namespace::Global, room: (*b"r").into(), topic: (*b"r").into() };
    let hub = HubId(130);
    let request = NodeMessage::CountAsk { ask, hub, term: Term(1), names, settles: false };
    assert_eq!(request.shard(64), ShardId(2));
    assert_eq!(NodeMessage::PatternsHeld { version: 1 }.shard(64), ShardId(0));
    assert_ne!(AskId::new(1, ShardId(0)), AskId::NONE);
}

/// Decodes a whole frame of one message.
fn decoded(frame: &[u8]) -> Result<NodeMessage, FrameError> {
    let (length, rest) = frame.split_first_chunk().expect("a length");
    assert_eq!(u32::from_le_bytes(*length) as usize, rest.len());
    let mut from = Reader(&rest[1..]);
    let message = NodeMessage::read(rest[0], &mut from)?;
    assert!(from.0.is_empty(), "all of it is read");
    Ok(message)
}

#[test]
fn a_message_comes_out_as_it_went_in() {
    for sent in messages() {
        let mut bytes = Vec::new();
        sent.encode(&mut bytes);
        let came = decoded(&bytes).expect("it is whole");
        assert_eq!(format!("{came:?}"), format!("{sent:?}"));
        assert_eq!(came.is_read(), sent.is_read(), "{}", sent.name());
    }
}

#[test]
fn a_refusal_of_a_later_version_leaves_the_outcome_open() {
    let mut bytes = Vec::new();
    framed(&mut bytes, |out| {
        out.push(19);
        AskId(1).write(out);
        "no_such_code".write(out);
    });
    let NodeMessage::Denied { code, .. } = decoded(&bytes).unwrap() else { panic!("it is one") };
    assert_eq!(code, ErrorCode::TimedOut);
}

#[test]
fn a_position_and_an_offset_are_among_the_other_fields() {
    let (position, hub) = (Position { epoch: Epoch(3), seq: Seq(4) }, HubId(6));
    let encoded = |message: NodeMessage| {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        bytes[5..].to_vec()
    };
    let (ask, at) = ([5, 1, 0, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
    let (hub_bytes, offset) = ([6, 0, 0, 0], [0xAC, 2]);
    let record_bytes = [
        &[1 | 2 | 4 | 16, 1, 5][..],
        b"topic",
        &[55, 0, 0, 0, 0, 0, 0, 0],
        &[7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0],
        &[2, b'm', b'e', 1, 1, b'k', 1, b'v'],
        b"payload",
    ]
    .concat();
    let range = NodeMessage::Range { ask: AskId(0x105), record: record(position) };
    assert_eq!(encoded(range), [&ask[..], &at, &hub_bytes, &offset, &record_bytes].concat());
    let give = Give { group: (*b"g").into(), record: record(position), tries: 2, was_taken: true };
    let fields = [&hub_bytes[..], &[1, b'g', 2, 1], &at, &offset, &record_bytes].concat();
    assert_eq!(encoded(NodeMessage::Give { hub, give }), fields);
    let (term, record) = (Term(8), record(position));
    let deliver = NodeMessage::Deliver { hub, term, previous: Seq(3), before: 299, record };
    let (term, previous, before) = ([8, 0, 0, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0, 0], [0xAB, 2]);
    let fields = [&hub_bytes[..], &term, &at, &previous, &offset, &before, &record_bytes].concat();
    assert_eq!(encoded(deliver), fields);
}
