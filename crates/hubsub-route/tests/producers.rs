//! Producers that repeat records at random, a log that commits late at random, and crashes. Each reply to a
//! numbered record is checked against the hub's log.

use hubsub_route::producers::{Producers, Window, log_bytes_of};
use hubsub_route::rooms::HistoryPart;
use hubsub_route::{
    Answer, Ask, Asker, Broker, CloseReason, Delivery, Draft, GAPLESS, HubLogRead, HubSeed, Hubs, LogRead,
    Msg, Namespace, Now, Outcome, Producer, Published, Publisher, Recalled, Record, RecordView, Settings,
    Sink, Ticket, Via,
};
use hubsub_types::{
    Class, ClassTable, ConnKey, Durability, ErrorCode, History, HubId, Limits, OnGap, OnSlow, Position,
    ProducerId, Protocol, Qos, Seq, ShardId,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

const NOW: Now = Now { mono_ms: 1, wall_us: 1 };
const HUB: HubId = HubId(1);
/// The random producer whose sequences have no gaps.
const GAPLESS_PRODUCER: u64 = 3;

/// Marks a deletion in the log; no record has this namespace.
const DELETION: Namespace = Namespace::Shard;

type Outcomes = BTreeMap<u32, Result<Published, ErrorCode>>;

/// A copy of a record, as a log has it.
fn copy(record: &Record) -> Record {
    let mut copy =
        Record::new(record.namespace, record.topic(), record.payload(), "p".into(), record.headers.clone())
            .from_producer(record.producer());
    (copy.position, copy.timestamp_us) = (record.position, record.timestamp_us);
    copy
}

/// The effects of both shards' brokers.
#[derive(Default)]
struct World {
    log: Vec<Record>,
    safe: usize,
    sent: Vec<(ShardId, Msg)>,
    outcomes: Outcomes,
    refuses: Option<ErrorCode>,
}

impl Sink for World {
    fn record_begins(&mut self) {}
    fn deliver(&mut self, _: u32, _: Via<'_>, _: &RecordView<'_>) -> Delivery {
        Delivery::Taken
    }
    fn squeeze(&mut self, _: u32, _: Via<'_>, _: &RecordView<'_>, _: OnSlow, _: OnGap) {}
    fn gap(&mut self, _: u32, _: &[u8], _: Position, _: Position, _: OnGap) {}
    fn close(&mut self, _: u32, _: CloseReason) {}
    fn wants_replay(&self, _: u32) -> bool {
        true
    }
    fn protocol(&self, _: u32) -> Option<Protocol> {
        Some(Protocol::Redis)
    }

    fn publisher(&self, _: u32) -> Box<str> {
        "p".into()
    }
    fn recall(&self, _: HubId, room: &[u8]) -> Option<Recalled> {
        let at = self.log[..self.safe].iter().rposition(|record| record.topic() == room)?;
        if self.log[at].namespace == DELETION {
            return None;
        }
        Some(Recalled { position: self.log[at].position, offset: at as u64 + 1 })
    }
    fn recalls_through(&self, _: HubId) -> u64 {
        self.safe as u64
    }
    fn append_deletion(&mut self, _: HubId, offset: u64, room: &[u8], _: Position, _: u64) {
        self.log.push(Record::new(DELETION, room, b"", "".into(), None));
        assert_eq!(self.log.len() as u64, offset);
    }
    fn deleted(&mut self, _: Ask, _: Result<(), ErrorCode>) {}
    fn append(&mut self, _: HubId, offset: u64, _: &[u8], record: &Record) {
        self.log.push(copy(record));
        assert_eq!(self.log.len() as u64, offset);
    }
    fn log_is_behind(&self) -> bool {
        false
    }
    fn log_refuses(&self, _: HubId) -> Option<ErrorCode> {
        self.refuses
    }
    fn read_log(&mut self, _: Box<LogRead>) {}
    fn history(&mut self, _: Ask, _: Result<HistoryPart, ErrorCode>) {}
    fn send(&mut self, to: ShardId, msg: Msg) {
        self.sent.push((to, msg));
    }
    fn read_hub_log(&mut self, _: Box<HubLogRead>) {
        unreachable!("nobody follows a hub")
    }
    fn congested(&self, _: ShardId) -> bool {
        false
    }
    fn answer(&mut self, asker: Asker, answer: Answer) {
        let (Asker::Client { slot, .. }, Answer::Published(outcome)) = (asker, answer) else { return };
        assert!(self.outcomes.insert(slot, outcome).is_none(), "one answer each");
    }
}

/// The expected answer to a publish. It is due when the record with the log index `behind` is committed.
struct Expected {
    behind: usize,
    position: Position,
    is_duplicate: bool,
}

/// A node of two shards whose only hub is on the first.
struct Net {
    window: Window,
    brokers: Vec<Broker>,
    world: World,
    slots: u32,
    expected: BTreeMap<u32, Expected>,
    has_failed: bool,
}

impl Net {
    fn new(window: Window) -> Net {
        let (world, expected) = (World::default(), BTreeMap::new());
        let mut net = Net { window, brokers: Vec::new(), world, slots: 0, expected, has_failed: false };
        net.start(0);
        net
    }

    /// Starts with the log's content; the log's end is read from `early` records before the window.
    fn start(&mut self, early: usize) {
        let mut class = Class::named("all");
        class.durability = Durability::Durable;
        class.history = Some(History { messages: 0, bytes: 1 << 20, age_ms: 0 });
        let classes = Arc::new(ClassTable::new(vec![class], true));
        let next = self.world.log.len() as u64 + 1;
        self.world.safe = self.world.log.len();
        let seed = HubSeed { id: HUB, next, continuous_from: 1, ..HubSeed::default() };
        let from = self.window_start().saturating_sub(early);
        let mut producers = Producers::new(self.window);
        for (record, offset) in self.world.log.iter().zip(1u64..).skip(from) {
            let bytes = log_bytes_of(record.topic().len(), record);
            match record.producer() {
                Some(_) => producers.keep(offset, bytes, record),
                None => producers.pass(offset, bytes),
            }
        }
        let producers = Mutex::new(vec![(HUB, producers)]);
        let hubs = Arc::new(Hubs { producers, ..Hubs::new(2, &classes, vec![seed]) });
        let epochs = Arc::new(AtomicU64::new(next << 32));
        let broker = |shard| {
            let (classes, epochs, hubs) = (Arc::clone(&classes), Arc::clone(&epochs), Arc::clone(&hubs));
            let limits = Limits::default();
            Broker::new(Settings {
                shard: ShardId(shard),
                hubs,
                classes,
                limits,
                epochs,
                retained: Arc::default(),
            })
        };
        self.brokers = (0..2).map(broker).collect();
        (self.world.refuses, self.has_failed) = (None, false);
    }

    /// Index of the window's first record, computed from the log alone.
    fn window_start(&self) -> usize {
        let log = &self.world.log;
        let (mut start, mut bytes) = (log.len(), 0);
        while start > 0 && ((log.len() - start) as u64) < self.window.records {
            bytes += log_bytes_of(log[start - 1].topic().len(), &log[start - 1]);
            if bytes > self.window.bytes {
                break;
            }
            start -= 1;
        }
        start
    }

    /// The log's verdict on a record: its index if it is a duplicate, an error, or None if it is new.
    fn oracle(&self, producer: Producer, topic: &str, payload: &[u8]) -> Result<Option<usize>, ErrorCode> {
        let log = &self.world.log;
        let own = |at: &usize| log[*at].producer().is_some_and(|p| p.id == producer.id);
        let known: Vec<usize> = (self.window_start()..log.len()).filter(own).collect();
        let sequence = |at: &usize| log[*at].producer().map_or(0, |p| p.sequence);
        let is_gapless = (GAPLESS..2 * GAPLESS).contains(&producer.sequence);
        let skips = |last: u64| is_gapless && producer.sequence != last + 1;
        let (Some(first), Some(last)) = (known.first(), known.last()) else {
            return if skips(GAPLESS) { Err(ErrorCode::SequenceAhead) } else { Ok(None) };
        };
        if producer.sequence > sequence(last) {
            return if skips(sequence(last)) { Err(ErrorCode::SequenceAhead) } else { Ok(None) };
        }
        match known.iter().find(|at| sequence(at) == producer.sequence) {
            Some(&at) if log[at].topic() == topic.as_bytes() && log[at].payload() == payload => Ok(Some(at)),
            Some(_) => Err(ErrorCode::SequenceReused),
            None if producer.sequence < sequence(first) => Err(ErrorCode::SequenceTooOld),
            None => Err(ErrorCode::SequencePassed),
        }
    }

    fn publish(&mut self, shard: u16, topic: &str, payload: &[u8], producer: Option<Producer>) {
        let before = self.world.log.len();
        let verdict = producer.map_or(Ok(None), |producer| self.oracle(producer, topic, payload));
        self.slots += 1;
        let (slot, conn) = (self.slots, ConnKey { index: 0, generation: 0 });
        let ticket = Ticket { shard: ShardId(shard), asker: Asker::Client { conn, slot } };
        let draft = Draft {
            namespace: Namespace::Global,
            topic: topic.as_bytes(),
            payload,
            headers: None,
            publisher: Publisher::Conn(0),
            producer,
            qos: Qos::ExactlyOnce,
            retain: false,
        };
        let broker = &mut self.brokers[usize::from(shard)];
        if let Outcome::Now(outcome) = broker.publish(ticket, draft, NOW, &mut self.world) {
            self.world.outcomes.insert(slot, outcome);
        }
        self.deliver();
        let grown = self.world.log.len() - before;
        let outcome = self.world.outcomes.get(&slot).copied();
        match verdict {
            Err(code) => assert_eq!((grown, outcome), (0, Some(Err(code)))),
            Ok(Some(at)) if at >= self.world.safe && self.has_failed => {
                assert_eq!((grown, outcome), (0, Some(Err(ErrorCode::LogFailed))));
            }
            Ok(Some(at)) => {
                assert_eq!(grown, 0, "kept twice");
                // A waiting duplicate is answered after all records before it.
                let behind = if at < self.world.safe { at } else { before - 1 };
                let position = self.world.log[at].position;
                self.expected.insert(slot, Expected { behind, position, is_duplicate: true });
            }
            Ok(None) if self.world.refuses.is_some() => {
                assert_eq!((grown, outcome), (0, self.world.refuses.map(Err)));
            }
            Ok(None) => {
                assert_eq!(grown, 1, "not kept");
                let position = self.world.log[before].position;
                self.expected.insert(slot, Expected { behind: before, position, is_duplicate: false });
            }
        }
        self.check();
    }

    fn deliver(&mut self) {
        while !self.world.sent.is_empty() {
            for (to, msg) in std::mem::take(&mut self.world.sent) {
                self.brokers[usize::from(to.0)].receive(msg, NOW, &mut self.world);
            }
        }
    }

    fn delete(&mut self, room: &str) {
        let ask = Ask { shard: ShardId(0), number: 0 };
        // Refused while records of the room wait for the commit.
        let _ = self.brokers[0].delete_room(room.as_bytes(), ask, NOW, &mut self.world);
    }

    fn log(&mut self, count: usize) {
        if !self.has_failed {
            self.world.safe = self.world.safe.saturating_add(count).min(self.world.log.len());
            self.brokers[0].logged(HUB, self.world.safe as u64, NOW, &mut self.world);
            self.deliver();
            self.check();
        }
    }

    /// Every committed record was answered as expected, and no other one.
    fn check(&self) {
        for (slot, Expected { behind, position, is_duplicate }) in &self.expected {
            let answer = self.world.outcomes.get(slot).map(|outcome| {
                let Published { position, is_duplicate, .. } = outcome.expect("it is in the log");
                (position, is_duplicate)
            });
            let wanted = (*behind < self.world.safe).then_some((*position, *is_duplicate));
            assert_eq!(answer, wanted, "slot {slot} behind offset {}", behind + 1);
        }
    }

    fn fail(&mut self) {
        (self.has_failed, self.world.refuses) = (true, Some(ErrorCode::LogFailed));
        self.brokers[0].log_failed(NOW, &mut self.world);
        self.deliver();
        let safe = self.world.safe;
        self.expected.retain(|slot, expected| {
            let is_known = expected.behind < safe;
            assert!(is_known || self.world.outcomes[slot] == Err(ErrorCode::LogFailed));
            is_known
        });
    }

    /// The process ends; the disk has `lucky` of the uncommitted records.
    fn crash(&mut self, lucky: usize, early: usize) {
        self.world.log.truncate(self.world.safe + lucky);
        self.expected.clear();
        self.start(early);
    }
}

#[derive(Clone, Debug)]
enum Op {
    /// `step` is added to the producer's last sequence.
    Send {
        shard: u16,
        producer: u64,
        step: i64,
        bytes: usize,
    },
    /// Repeats the record that was sent `ago` sends before.
    Repeat {
        shard: u16,
        ago: usize,
    },
    Plain {
        bytes: usize,
    },
    Delete,
    Log(usize),
    Full(bool),
    Fail,
    Crash {
        lucky: usize,
        early: usize,
    },
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (0..2u16, 1..4u64, prop_oneof![4 => 1..3i64, 1 => -8..1i64], 0..200usize)
            .prop_map(|(shard, producer, step, bytes)| Op::Send { shard, producer, step, bytes }),
        6 => (0..2u16, 0..12usize).prop_map(|(shard, ago)| Op::Repeat { shard, ago }),
        2 => (0..400usize).prop_map(|bytes| Op::Plain { bytes }),
        1 => Just(Op::Delete),
        4 => (1..4usize).prop_map(Op::Log),
        1 => any::<bool>().prop_map(Op::Full),
        1 => Just(Op::Fail),
        1 => (0..4usize, 0..9usize).prop_map(|(lucky, early)| Op::Crash { lucky, early }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, ..ProptestConfig::default() })]
    #[test]
    fn a_numbered_record_is_kept_once_whatever_is_repeated_lost_or_late(
        (records, bytes) in (1..9u64, prop_oneof![Just(u64::MAX), 100..2000u64]),
        ops in prop::collection::vec(op(), 1..80),
    ) {
        let mut net = Net::new(Window { records, bytes });
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        let mut sends: Vec<(Producer, &str, Vec<u8>)> = Vec::new();
        for op in ops {
            match op {
                Op::Send { shard, producer, step, bytes } => {
                    let last = last.entry(producer).or_default();
                    let sequence = last.saturating_add_signed(step).max(1);
                    *last = sequence.max(*last);
                    let sequence = if producer == GAPLESS_PRODUCER { GAPLESS + sequence } else { sequence };
                    let producer = Producer { id: ProducerId(producer), sequence };
                    let topic = if bytes % 2 == 0 { "a" } else { "b" };
                    sends.push((producer, topic, vec![bytes as u8; bytes]));
                    net.publish(shard, topic, &vec![bytes as u8; bytes], Some(producer));
                }
                Op::Repeat { shard, ago } => {
                    let Some(at) = sends.len().checked_sub(ago + 1) else { continue };
                    let (producer, topic, payload) = sends[at].clone();
                    net.publish(shard, topic, &payload, Some(producer));
                }
                Op::Plain { bytes } => net.publish(1, "a", &vec![0; bytes], None),
                Op::Delete => net.delete("a"),
                Op::Log(count) => net.log(count),
                Op::Full(is_full) if !net.has_failed => {
                    net.world.refuses = is_full.then_some(ErrorCode::DiskFull);
                }
                Op::Fail if !net.has_failed => net.fail(),
                Op::Full(_) | Op::Fail => {}
                Op::Crash { lucky, early } => net.crash(lucky, early),
            }
        }
        net.log(usize::MAX);
    }
}

fn numbered(sequence: u64) -> Option<Producer> {
    Some(Producer { id: ProducerId(1 << 63), sequence })
}

#[test]
fn repeats_of_a_record_that_waits_are_answered_with_it() {
    let mut net = Net::new(Window::default());
    net.publish(1, "a", b"x", numbered(1));
    net.publish(0, "a", b"x", numbered(1));
    net.publish(1, "a", b"x", numbered(1));
    assert!(net.world.outcomes.is_empty());
    net.log(1);
    let answers: Vec<_> = net.world.outcomes.values().map(|o| o.unwrap()).collect();
    assert_eq!(answers.iter().map(|a| a.is_duplicate).collect::<Vec<_>>(), [false, true, true]);
    assert!(answers.iter().all(|a| a.position == answers[0].position && a.position.seq == Seq(1)));
}

#[test]
fn a_full_disk_does_not_use_a_sequence_up() {
    let mut net = Net::new(Window::default());
    net.world.refuses = Some(ErrorCode::DiskFull);
    net.publish(0, "a", b"x", numbered(1));
    assert_eq!(net.world.outcomes[&1], Err(ErrorCode::DiskFull));
    net.world.refuses = None;
    net.publish(0, "a", b"x", numbered(1));
    net.log(1);
    assert!(!net.world.outcomes[&2].unwrap().is_duplicate);
    net.world.refuses = Some(ErrorCode::DiskFull);
    net.publish(0, "a", b"x", numbered(1));
    assert!(net.world.outcomes[&3].unwrap().is_duplicate, "what is there is told though the disk is full");
}

#[test]
fn each_way_to_come_too_late_has_its_own_error() {
    let mut net = Net::new(Window { records: 3, bytes: u64::MAX });
    for sequence in [10, 20, 30, 40] {
        net.publish(0, "a", b"x", numbered(sequence));
    }
    net.log(4);
    let cases =
        [(10, ErrorCode::SequenceTooOld), (5, ErrorCode::SequenceTooOld), (25, ErrorCode::SequencePassed)];
    for (sequence, code) in cases {
        net.publish(0, "a", b"x", numbered(sequence));
        assert_eq!(net.world.outcomes[&net.slots], Err(code));
    }
    net.publish(0, "a", b"y", numbered(30));
    net.publish(0, "b", b"x", numbered(30));
    let reused = Err(ErrorCode::SequenceReused);
    assert_eq!([net.world.outcomes[&(net.slots - 1)], net.world.outcomes[&net.slots]], [reused, reused]);
}

#[test]
fn a_gapless_number_is_stored_only_directly_after_the_one_before_it() {
    let mut net = Net::new(Window { records: 3, bytes: u64::MAX });
    let publish = |net: &mut Net, number, payload: &[u8]| {
        net.publish(0, "a", payload, numbered(GAPLESS + number));
        net.log(1);
        net.world.outcomes[&net.slots]
    };
    assert_eq!(publish(&mut net, 2, b"2"), Err(ErrorCode::SequenceAhead), "of a producer that nobody knows");
    net.world.refuses = Some(ErrorCode::DiskFull);
    assert_eq!(publish(&mut net, 1, b"1"), Err(ErrorCode::DiskFull));
    net.world.refuses = None;
    assert_eq!(publish(&mut net, 2, b"2"), Err(ErrorCode::SequenceAhead), "the one before was refused");
    assert_eq!(publish(&mut net, 1, b"1").map(|done| done.is_duplicate), Ok(false));
    assert_eq!(publish(&mut net, 3, b"3"), Err(ErrorCode::SequenceAhead));
    assert_eq!(publish(&mut net, 2, b"2").map(|done| done.position.seq), Ok(Seq(2)));
    assert_eq!(publish(&mut net, 1, b"1").map(|done| done.is_duplicate), Ok(true));
    assert_eq!(publish(&mut net, 2, b"other"), Err(ErrorCode::SequenceReused));
    for _ in 0..3 {
        net.publish(1, "a", b"of nobody", None);
        net.log(1);
    }
    assert_eq!(publish(&mut net, 3, b"3"), Err(ErrorCode::SequenceAhead), "the producer left the window");
}

#[test]
fn numbers_below_and_above_the_gapless_ones_may_have_gaps() {
    let mut net = Net::new(Window::default());
    for sequence in [1, GAPLESS - 1, 2 * GAPLESS, 2 * GAPLESS + 5] {
        net.publish(0, "a", b"x", numbered(sequence));
        net.log(1);
        assert!(net.world.outcomes[&net.slots].is_ok(), "{sequence}");
    }
}

#[test]
fn a_class_without_a_log_takes_no_numbered_record() {
    let classes = Arc::new(ClassTable::new(Vec::new(), true));
    let hubs = Arc::new(Hubs::new(1, &classes, Vec::new()));
    let (limits, epochs) = (Limits::default(), Arc::new(AtomicU64::new(1)));
    let mut broker =
        Broker::new(Settings { shard: ShardId(0), hubs, classes, limits, epochs, retained: Arc::default() });
    let draft = Draft {
        namespace: Namespace::Global,
        topic: b"t",
        payload: b"x",
        headers: None,
        publisher: Publisher::Conn(0),
        producer: numbered(1),
        qos: Qos::ExactlyOnce,
        retain: false,
    };
    let asker = Asker::Control { ticket: 1, item: 0 };
    let ticket = Ticket { shard: ShardId(0), asker };
    let outcome = broker.publish(ticket, draft, NOW, &mut World::default());
    assert_eq!(outcome, Outcome::Now(Err(ErrorCode::NotLogged)));
}

#[test]
fn a_log_that_cannot_be_read_tells_nothing_until_the_window_has_passed_it() {
    let numbered = |sequence| {
        Record::new(Namespace::Global, b"t", b"x", "".into(), None).from_producer(numbered(sequence))
    };
    for window in [Window { records: 3, bytes: u64::MAX }, Window { records: 9, bytes: 299 }] {
        let mut producers = Producers::damaged(window, 10);
        for offset in 11..=13 {
            assert_eq!(producers.find(&numbered(offset)).unwrap_err(), ErrorCode::Quarantined);
            producers.pass(offset, 100);
        }
        assert_eq!(producers.find(&numbered(1)), Ok(None));
        producers.keep(14, 100, &numbered(1));
        assert_eq!(producers.find(&numbered(1)).unwrap().unwrap().offset, 14);
    }
}

#[test]
fn a_window_holds_no_more_than_its_records_and_gives_memory_back() {
    let mut producers = Producers::new(Window { records: 1000, bytes: u64::MAX });
    for offset in 1..=20_000u64 {
        // A thousand records of each producer in turn, and one producer that is always there.
        let id = if offset % 10 == 0 { 7 } else { 1000 + offset / 1000 };
        let producer = Producer { id: ProducerId(id), sequence: offset };
        let record =
            Record::new(Namespace::Global, b"t", b"x", "".into(), None).from_producer(Some(producer));
        producers.keep(offset, 100, &record);
        assert!(producers.len() as u64 == offset.min(1000));
    }
    for offset in 20_001..=21_000 {
        producers.pass(offset, 100);
    }
    assert!(producers.is_empty());
}
