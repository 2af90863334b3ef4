//! Random frames of all types, for property tests.

use hubsub_types::{Epoch, HubId, Position, ProducerId, Seq, Term};
use hubsub_wire::link::{Frame, Headers, List, Names, Payload, Record, Short, Start, Status, Texts};
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
        let (ask, term, hub, count) = (a, b, HubId(c as u32), d as u32);
        let position = Position { epoch: Epoch(c), seq: Seq(d) };
        let (nonce, more) = (&self.nonce, Payload(&self.payload));
        let topic = if self.bit(0) { &self.room } else { &self.topic };
        let names = Names { sharded: self.bit(1), room: &self.room, topic };
        let record = Record {
            names,
            timestamp_us: d,
            producer: ProducerId(if self.bit(2) { c | 1 } else { 0 }),
            sequence: if self.bit(2) { b } else { 0 },
            qos_lack: a as u8 % 3,
            retain: self.bit(4),
            publisher: &self.texts[1],
            headers: Headers::new(if self.bit(3) { &self.headers } else { &[] }),
            payload: &self.payload,
        };
        let status = Status { classes: a, mandate: b, heeds: c, heed: d, is_ready: a % 2 == 1 };
        let start = match self.bits >> 4 & 3 {
            0 => Start::Live,
            1 => Start::After(position),
            2 => Start::Last(a),
            _ => Start::Since(b),
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
            16 => Frame::Publish { ask, hub, term, record },
            17 => Frame::Published { ask, again: self.bit(0), position, receivers: b },
            18 => Frame::NotMine { ask, hub, term },
            19 => Frame::Denied { ask, code: cluster },
            20 => Frame::Interest { ask, hub, term, names, count, known: position, start },
            21 => Frame::Attached { ask, position, replay_from: Seq(b), recovered: self.bit(0) },
            22 => Frame::Counts { hub, term, names, count },
            23 => Frame::CountAsk { ask, hub, term, names, settles: self.bit(0) },
            24 => Frame::Counted { ask, count: b },
            25 => Frame::Deliver {
                hub,
                term,
                position,
                previous: Seq(a),
                offset: Short(b),
                before: Short(c),
                record,
            },
            26 => Frame::Pattern { version: a, count, pattern: &self.room },
            27 => Frame::PatternsBegin { version: a, patterns: count },
            28 => Frame::PatternsEntry { count, pattern: &self.room },
            29 => Frame::PatternsEnd { version: a },
            30 => Frame::PatternsHeld { version: a },
            31 => Frame::Read { ask, hub, names, start, records_max: count, bytes_max: a as u32 },
            32 => Frame::Range { ask, position, hub, offset: Short(b), record },
            33 => Frame::RangeEnd {
                ask,
                oldest: position,
                next: Seq(b),
                gap_first: Seq(c),
                gap_last: Seq(d),
                at_end: self.bit(0),
                is_gone: self.bit(1),
            },
            34 => Frame::PatternsLive { hub, term, life: c, due: d },
            35 => Frame::Registered { hub, term },
            36 => Frame::Over { hub, term, life: c, due: d, said: a },
            42 => Frame::Rows { ask, hub, filter: &self.room, after: &self.topic, bytes_max: count },
            43 => Frame::SettleAsk { ask },
            44 => Frame::Settled { ask },
            40 => Frame::Give {
                hub,
                group: &self.room,
                tries: a as u8,
                was_taken: a % 2 == 0,
                position,
                offset: Short(b),
                record,
            },
            37 => Frame::ReadHub {
                ask,
                hub,
                next: b,
                since_us: d,
                records_max: count,
                bytes_max: a as u32,
                filter: Texts::new(&self.patterns[..usize::from(self.bits) % (self.patterns.len() + 1)]),
            },
            38 => Frame::HubEnd { ask, next: b, committed: c, lost_first: d, lost_last: a },
            41 => Frame::Acknowledge { hub, group: &self.room, position },
            48 => {
                let (claim, gave_up) = self.pairs.split_at(self.pairs.len() / 2);
                let suspects = List::new(&NODES[..usize::from(self.bits) % (NODES.len() + 1)]);
                Frame::LeadAsk { stamp_us: a, claim: List::new(claim), gave_up: List::new(gave_up), suspects }
            }
            49 => Frame::LeadGranted {
                stamp_us: a,
                lead_ms: count,
                mandate: c,
                census: d,
                granted: List::new(&self.pairs),
            },
            50 => Frame::Control { id: a, is_answer: self.bit(0), body: more },
            code => unreachable!("a type without a frame here: {code}"),
        }
    }
}
