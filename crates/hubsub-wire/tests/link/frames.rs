//! Random frames of all types, for property tests.

use hubsub_message::{
    AskId, Attached, Give, HubFilter, LeadershipEnd, LogPlace, Names, Namespace, NodeMessage, Producer,
    Record, Start,
};
use hubsub_types::{Epoch, ErrorCode, HubId, Position, ProducerId, Qos, Seq, Term};
use hubsub_wire::link::{Frame, List, Payload, Status};
use proptest::prelude::*;
use std::sync::Arc;

/// The types of all frames.
pub const CODES: &[u8] = &[
    1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34,
    35, 36, 37, 38, 40, 41, 42, 43, 44, 48, 49, 50,
];

const NODES: &[&str] = &["a", "node-17.example", "", "ﾉｰﾄﾞ"];

/// Random values for the fields of frames.
#[derive(Clone, Debug)]
pub struct Stuff {
    code: u8,
    bits: u8,
    numbers: [u64; 4],
    nonce: [u8; 32],
    room: Vec<u8>,
    topic: Vec<u8>,
    texts: [String; 2],
    headers: Vec<(Box<str>, Box<str>)>,
    pairs: Vec<(HubId, Term)>,
    patterns: [Arc<[u8]>; 2],
    payload: Vec<u8>,
}

/// Values for a random type.
pub fn stuff() -> impl Strategy<Value = Stuff> {
    let name = || {
        prop_oneof![
            4 => proptest::collection::vec(any::<u8>(), 0..20),
            1 => proptest::collection::vec(any::<u8>(), 120..300),
        ]
    };
    let headers = proptest::collection::vec((".{0,8}", ".{0,200}"), 0..4);
    let any_size = || prop_oneof![0_u64..200, any::<u64>()];
    let pair = (any_size(), any_size()).prop_map(|(hub, term)| (HubId(hub as u32), Term(term)));
    (
        (proptest::sample::select(CODES), any::<u8>(), any::<[u64; 4]>(), any::<[u8; 32]>()),
        (name(), name(), [".{0,40}", ".{0,150}"], headers, proptest::collection::vec(pair, 0..9)),
        proptest::collection::vec(any::<u8>(), 0..500),
    )
        .prop_map(|((code, bits, numbers, nonce), (room, topic, texts, headers, pairs), payload)| {
            Stuff {
                code,
                bits,
                numbers,
                nonce,
                patterns: [room.as_slice().into(), topic.as_slice().into()],
                room,
                topic,
                texts,
                headers: headers.into_iter().map(|(name, value)| (name.into(), value.into())).collect(),
                pairs,
                payload,
            }
        })
}

impl Stuff {
    /// The same values for this type.
    pub fn with_code(self, code: u8) -> Stuff {
        Stuff { code, ..self }
    }

    fn bit(&self, bit: u8) -> bool {
        self.bits & 1 << bit != 0
    }

    pub fn frame(&self) -> Frame<'_> {
        let [a, b, c, d] = self.numbers;
        let (version, shards, link) = (a as u16, b as u16, c as u16);
        let [cluster, node] = [&*self.texts[0], &*self.texts[1]];
        let (nonce, more) = (&self.nonce, Payload(&self.payload));
        let status = Status {
            classes: a,
            controller_term: b,
            acknowledged_term: c,
            acknowledgement: d,
            is_ready: a % 2 == 1,
        };
        match self.code {
            1 => Frame::Hello {
                magic: a as u32,
                version_min: version,
                version_max: link,
                cluster,
                node,
                incarnation: d,
                shards,
                link,
                nonce,
                more,
            },
            2 => Frame::Challenge { version, cluster, node, incarnation: d, shards, nonce },
            3 => Frame::Proof { mac: nonce },
            4 => Frame::Welcome { mac: nonce },
            5 => Frame::Refuse { code: a as u8, text: node, more },
            6 => Frame::Ping { stamp_us: a, status },
            7 => Frame::Pong { stamp_us: a, wall_us: b, status },
            8 => Frame::Bye { stopping: self.bit(0), text: node },
            9 => Frame::Credit { live: a, reads: b },
            48 => {
                let (claim, gave_up) = self.pairs.split_at(self.pairs.len() / 2);
                let suspects = List::new(&NODES[..usize::from(self.bits) % (NODES.len() + 1)]);
                Frame::LeadAsk { stamp_us: a, claim: List::new(claim), gave_up: List::new(gave_up), suspects }
            }
            49 => Frame::LeadGranted {
                stamp_us: a,
                lead_ms: d as u32,
                controller_term: c,
                voters_revision: d,
                granted: List::new(&self.pairs),
            },
            50 => Frame::Control { id: a, is_answer: self.bit(0), body: more },
            _ => Frame::Message(self.message()),
        }
    }

    fn message(&self) -> NodeMessage {
        let [a, b, c, d] = self.numbers;
        let (ask, hub, term, count) = (AskId(a), HubId(c as u32), Term(b), d as u32);
        let position = Position { epoch: Epoch(c), seq: Seq(d) };
        let [room, topic] = &self.patterns;
        let names = || Names {
            namespace: self.namespace(),
            room: Arc::clone(room),
            topic: Arc::clone(if self.bit(0) { room } else { topic }),
        };
        let placed = || {
            let mut record = self.record();
            (record.position, record.place) = (position, self.place());
            Arc::new(record)
        };
        let epoch = Epoch(c);
        let start = match self.bits >> 4 & 3 {
            0 => Start::Live,
            1 => Start::After(position),
            2 => Start::Last(a),
            _ => Start::Since(b),
        };
        let (records_max, bytes_max, pattern) = (count, a as u32, Arc::clone(room));
        match self.code {
            16 => NodeMessage::Publish { ask, hub, term, record: Arc::new(self.record()) },
            17 => NodeMessage::Published { ask, again: self.bit(0), position, receivers: b },
            18 => NodeMessage::NotMine { ask, hub, term },
            19 => {
                let code = ErrorCode::ALL[a as usize % ErrorCode::ALL.len()];
                NodeMessage::Denied { ask, code }
            }
            20 => NodeMessage::Interest { ask, hub, term, names: names(), count, known: position, start },
            21 => {
                let replay_from = (b != 0).then_some(Seq(b));
                NodeMessage::Attached {
                    ask,
                    attached: Attached { position, replay_from, recovered: self.bit(0) },
                }
            }
            22 => NodeMessage::Counts { hub, term, names: names(), count },
            23 => NodeMessage::CountAsk { ask, hub, term, names: names(), settles: self.bit(0) },
            24 => NodeMessage::Counted { ask, count: b },
            25 => NodeMessage::Deliver { hub, term, previous: Seq(a), before: c, record: placed() },
            26 => NodeMessage::Pattern { version: a, count, pattern },
            27 => NodeMessage::PatternsBegin { version: a, patterns: count },
            28 => NodeMessage::PatternsEntry { count, pattern },
            29 => NodeMessage::PatternsEnd { version: a },
            30 => NodeMessage::PatternsHeld { version: a },
            31 => NodeMessage::Read { ask, hub, names: names(), start, records_max, bytes_max },
            32 => NodeMessage::Range { ask, record: placed() },
            33 => NodeMessage::RangeEnd {
                ask,
                oldest: position,
                next: Seq(b),
                gap: (c != 0).then_some((Seq(c), Seq(d))),
                at_end: self.bit(0),
                is_gone: self.bit(1),
            },
            34 => NodeMessage::PatternsLive { hub, term, epoch, expected: d },
            35 => NodeMessage::InterestSynced { hub, term },
            36 => NodeMessage::LeadershipEnded {
                hub,
                term,
                end: LeadershipEnd { epoch, expected: d, committed: a },
            },
            37 => NodeMessage::ReadHub {
                ask,
                hub,
                next: b,
                since_us: d,
                records_max,
                bytes_max,
                filter: {
                    let count = usize::from(self.bits) % (self.patterns.len() + 1);
                    Arc::new(HubFilter::new(self.patterns[..count].iter().cloned()))
                },
            },
            38 => NodeMessage::HubEnd { ask, next: b, committed: c, lost: (d != 0).then_some((d, a)) },
            40 => {
                let (tries, was_taken) = (a as u8, a % 2 == 0);
                NodeMessage::Give { hub, give: Give { group: pattern, record: placed(), tries, was_taken } }
            }
            41 => NodeMessage::Acknowledge { hub, group: pattern, position },
            42 => NodeMessage::Rows { ask, hub, filter: pattern, after: Arc::clone(topic), bytes_max: count },
            43 => NodeMessage::SettleAsk { ask },
            44 => NodeMessage::Settled { ask },
            code => unreachable!("a type without a frame here: {code}"),
        }
    }

    fn namespace(&self) -> Namespace {
        if self.bit(1) { Namespace::Shard } else { Namespace::Global }
    }

    /// A record without a position.
    fn record(&self) -> Record {
        let [a, b, c, d] = self.numbers;
        let headers = (self.bit(3) && !self.headers.is_empty()).then(|| self.headers.as_slice().into());
        let producer = self.bit(2).then_some(Producer { id: ProducerId(c | 1), sequence: b });
        let (topic, publisher) = (if self.bit(0) { &self.room } else { &self.topic }, &*self.texts[1]);
        let mut record = Record::new(self.namespace(), topic, &self.payload, publisher.into(), headers)
            .of_qos(Qos::from_lack(a as u8 % 3).expect("one of three"))
            .retained(self.bit(4))
            .from_producer(producer);
        record.timestamp_us = d;
        record
    }

    /// A place in the log of the frame's hub.
    fn place(&self) -> LogPlace {
        let [_, offset, hub, _] = self.numbers;
        if offset == 0 { LogPlace::default() } else { LogPlace { hub: HubId(hub as u32), offset } }
    }
}
