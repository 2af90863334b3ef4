//! Several brokers whose messages to each other are delayed at will, and
//! subscribers that are slow at will. Order between two shards is kept, as
//! mailboxes keep it; everything else is proptest's choice.

use hubsub_route::rooms::{HistoryPart, HistoryQuery};
use hubsub_route::{
    Answer, Ask, Asker, Attached, Broker, CloseReason, Delivery, Draft, Found, HubSeed, Hubs, Known, LogRead,
    Msg, Namespace, Now, Outcome, Published, Publisher, Recalled, Record, RecordView, Settings, Sink, Start,
    Ticket, Via, Want, Wish,
};
use hubsub_types::{
    Class, ClassTable, ConnKey, Durability, ErrorCode, History, HubId, Limits, OnGap, OnSlow, Position, Seq,
    ShardId,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

const TOPICS: [&str; 3] = ["a", "b", "{a}.x"];

/// A record as a connection got it: by pattern or not, topic, position, payload.
type Got = (bool, String, Position, u32);

/// One shard's world: what its broker did.
#[derive(Default)]
struct World {
    sent: Vec<(ShardId, Msg)>,
    got: BTreeMap<u32, Vec<Got>>,
    full: BTreeSet<u32>,
    answers: Vec<(Asker, Answer)>,
    closed: Vec<u32>,
    congested: BTreeSet<u16>,
    squeezed: usize,
    gaps: usize,
    /// What the logs of this shard's hubs got: offset and record, and how much of it is safe.
    logs: BTreeMap<HubId, (Vec<Logged>, usize)>,
    refuses: Option<ErrorCode>,
    /// Questions to those logs that are not answered yet.
    asked: VecDeque<LogRead>,
    histories: BTreeMap<u32, HistoryPart>,
}

/// A record in a log: room, topic, position, payload.
type Logged = (Vec<u8>, Vec<u8>, Position, Vec<u8>);

impl World {
    /// What a log has for a question.
    fn find(&self, read: &LogRead) -> Found {
        let (log, safe) = &self.logs[&read.hub];
        let of_room = log[..*safe].iter().filter(|logged| logged.0 == *read.room);
        let fits = |logged: &&Logged| {
            let Position { epoch, seq } = logged.2;
            let is_shown = epoch != read.epoch || (read.seq_min..=read.seq_max).contains(&seq);
            is_shown && read.topic.as_ref().is_none_or(|topic| *topic == logged.1)
        };
        let mut records: Found = of_room
            .filter(fits)
            .map(|(_, topic, position, payload)| {
                let mut record = Record::new(Namespace::Global, topic, payload, "".into(), None);
                record.position = *position;
                Arc::new(record)
            })
            .collect();
        match read.want {
            Want::Back => _ = records.drain(..records.len().saturating_sub(read.count as usize)),
            Want::On(seq) => records.retain(|r| r.position.epoch == read.epoch && r.position.seq >= seq),
            Want::Since(_) => records.retain(|r| r.position.epoch == read.epoch),
        }
        if read.want != Want::Back {
            // At most three at a time, as if they weighed much.
            records.truncate((read.count as usize).min(3));
        }
        records
    }

    fn take(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) {
        let topic = String::from_utf8(record.topic.to_vec()).unwrap();
        let payload = u32::from_le_bytes(record.payload.try_into().unwrap());
        let by_pattern = matches!(via, Via::Pattern(..));
        self.got.entry(conn).or_default().push((by_pattern, topic, record.position, payload));
    }
}

impl Sink for World {
    fn record_begins(&mut self) {}
    fn deliver(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
        if self.full.contains(&conn) {
            return Delivery::Full;
        }
        self.take(conn, via, record);
        Delivery::Taken
    }
    fn squeeze(&mut self, _: u32, _: Via<'_>, _: &RecordView<'_>, _: OnSlow, _: OnGap) {
        self.squeezed += 1;
    }
    fn gap(&mut self, _: u32, _: &[u8], _: Position, _: Position, _: OnGap) {
        self.gaps += 1;
    }
    fn close(&mut self, conn: u32, _: CloseReason) {
        self.closed.push(conn);
    }
    fn wants_replay(&self, conn: u32) -> bool {
        !self.full.contains(&conn)
    }
    fn publisher(&self, conn: u32) -> Box<str> {
        conn.to_string().into()
    }
    fn recall(&self, hub: HubId, room: &[u8]) -> Option<Recalled> {
        let (log, safe) = self.logs.get(&hub)?;
        let offset = log[..*safe].iter().rposition(|logged| logged.0 == room)?;
        Some(Recalled { position: log[offset].2, offset: offset as u64 + 1 })
    }
    fn append(&mut self, hub: HubId, offset: u64, room: &[u8], record: &Record) {
        let (log, _) = self.logs.entry(hub).or_default();
        log.push((room.to_vec(), record.topic().to_vec(), record.position, record.payload().to_vec()));
        assert_eq!(log.len() as u64, offset, "offsets have no gaps");
    }
    fn read_log(&mut self, read: Box<LogRead>) {
        self.asked.push_back(*read);
    }
    fn history(&mut self, ask: Ask, part: Result<HistoryPart, ErrorCode>) {
        self.histories.insert(ask.number, part.unwrap());
    }
    fn log_refuses(&self, _: HubId) -> Option<ErrorCode> {
        self.refuses
    }
    fn send(&mut self, to: ShardId, msg: Msg) {
        self.sent.push((to, msg));
    }
    fn congested(&self, to: ShardId) -> bool {
        self.congested.contains(&to.0)
    }
    fn answer(&mut self, asker: Asker, answer: Answer) {
        self.answers.push((asker, answer));
    }
}

/// All shards and the mail between them.
struct Net {
    brokers: Vec<Broker>,
    worlds: Vec<World>,
    mail: BTreeMap<(u16, u16), VecDeque<Msg>>,
    published: u32,
    receivers: BTreeMap<u32, Published>,
    attached: BTreeMap<(u16, u32), Vec<Attached>>,
}

impl Net {
    fn new(shards: u16, conns: u32, class: Class) -> Net {
        Net::with_tail(shards, conns, class, u64::MAX)
    }

    /// With so much memory for the latest records of a logged class.
    fn with_tail(shards: u16, conns: u32, class: Class, tail_bytes_max: u64) -> Net {
        let is_logged = class.durability.is_logged();
        let classes = Arc::new(ClassTable::new(vec![class], true));
        // One more than shards, so that one shard has two.
        let seeds = (0..shards + 1).filter(|_| is_logged).map(|index| HubSeed {
            id: HubId(u32::from(index) + 1),
            class: 0,
            index,
            next: 1,
            last_us: 0,
            continuous_from: 1,
        });
        let hubs = Arc::new(Hubs { tail_bytes_max, ..Hubs::new(shards, &classes, seeds.collect()) });
        let epochs = Arc::new(AtomicU64::new(1 << 32));
        let limits = Limits { route_cache_topics_max: 2, pattern_cache_topics_max: 2, ..Limits::default() };
        let broker = |shard| {
            let (classes, epochs, hubs) = (Arc::clone(&classes), Arc::clone(&epochs), Arc::clone(&hubs));
            Broker::new(Settings { shard: ShardId(shard), hubs, classes, limits: limits.clone(), epochs })
        };
        let mut net = Net {
            brokers: (0..shards).map(broker).collect(),
            worlds: (0..shards).map(|_| World::default()).collect(),
            mail: BTreeMap::new(),
            published: 0,
            receivers: BTreeMap::new(),
            attached: BTreeMap::new(),
        };
        for broker in &mut net.brokers {
            (0..conns).for_each(|conn| broker.connected(key(conn)));
        }
        net
    }

    fn act<T>(&mut self, shard: u16, act: impl FnOnce(&mut Broker, &mut World) -> T) -> T {
        let i = usize::from(shard);
        let result = act(&mut self.brokers[i], &mut self.worlds[i]);
        for (to, msg) in self.worlds[i].sent.drain(..) {
            assert_ne!(to.0, shard, "a shard sends nothing to itself");
            self.mail.entry((shard, to.0)).or_default().push_back(msg);
        }
        for (asker, answer) in std::mem::take(&mut self.worlds[i].answers) {
            match (asker, answer) {
                (Asker::Client { slot, .. }, Answer::Published(published)) => {
                    assert!(self.receivers.insert(slot, published.unwrap()).is_none(), "one answer each");
                }
                (Asker::Client { conn, .. }, Answer::Attached(attached)) => {
                    self.attached.entry((shard, conn.index)).or_default().push(attached.unwrap());
                }
                _ => {}
            }
        }
        result
    }

    fn publish(&mut self, shard: u16, topic: &str) -> u32 {
        self.published += 1;
        let id = self.published;
        let ticket = ticket(shard, 0, id);
        let (payload, topic) = (id.to_le_bytes(), topic.as_bytes());
        let draft = Draft {
            namespace: Namespace::Global,
            topic,
            payload: &payload,
            headers: None,
            publisher: Publisher::Conn(0),
        };
        if let Outcome::Now(published) = self.act(shard, |b, w| b.publish(ticket, draft, NOW, w)) {
            self.receivers.insert(id, published.unwrap());
        }
        id
    }

    fn subscribe(&mut self, shard: u16, conn: u32, topic: &str, start: Start) {
        let wish = Wish { topic: topic.as_bytes(), namespace: Namespace::Global, start };
        let outcome = self.act(shard, |b, w| {
            let outcome = b.subscribe(ticket(shard, conn, 0), key(conn), wish, NOW, w);
            b.drained(key(conn), NOW, w);
            outcome
        });
        if let Outcome::Now(attached) = outcome {
            self.attached.entry((shard, conn)).or_default().push(attached.unwrap());
        }
    }

    /// Delivers the first message between two shards, if there is one.
    fn step(&mut self, from: u16, to: u16) -> bool {
        let Some(msg) = self.mail.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return false };
        self.act(to, |b, w| b.receive(msg, NOW, w));
        true
    }

    /// The log of one of a shard's hubs makes `count` records more safe, as far as there are any.
    fn log(&mut self, shard: u16, count: usize) -> bool {
        let logs = &mut self.worlds[usize::from(shard)].logs;
        let waiting = logs.iter_mut().find(|(_, (log, safe))| *safe < log.len());
        let Some((&hub, (log, safe))) = waiting else { return false };
        *safe = (*safe + count).min(log.len());
        let offset = *safe as u64;
        self.act(shard, |b, w| b.logged(hub, offset, w));
        true
    }

    /// A shard's log answers its first question, if it has what that is about.
    fn answer_log(&mut self, shard: u16) -> bool {
        let world = &mut self.worlds[usize::from(shard)];
        let is_ready = |read: &&LogRead| read.through as usize <= world.logs[&read.hub].1;
        if world.asked.front().filter(is_ready).is_none() {
            return false;
        }
        let Some(read) = world.asked.pop_front() else { return false };
        let found = world.find(&read);
        self.act(shard, |b, w| b.log_read(read, Ok(found), NOW, w));
        true
    }

    fn drain(&mut self, shard: u16, conn: u32) {
        self.worlds[usize::from(shard)].full.remove(&conn);
        self.act(shard, |b, w| b.drained(key(conn), NOW, w));
    }

    /// Nothing is under way, nobody is slow, nobody is behind.
    fn settle(&mut self) {
        let shards = self.brokers.len() as u16;
        for world in &mut self.worlds {
            world.congested.clear();
        }
        for _ in 0..10_000 {
            let mut busy = false;
            for shard in 0..shards {
                let full: Vec<u32> = self.worlds[usize::from(shard)].full.iter().copied().collect();
                busy |= !full.is_empty();
                full.into_iter().for_each(|conn| self.drain(shard, conn));
                busy |= self.brokers[usize::from(shard)].stalled() > 0;
                self.act(shard, |b, w| b.retry_stalled(NOW, w));
                while self.log(shard, 2) || self.answer_log(shard) {
                    busy = true;
                }
                for to in 0..shards {
                    while self.step(shard, to) {
                        busy = true;
                    }
                }
            }
            if !busy {
                return;
            }
        }
        panic!("the brokers do not come to rest");
    }

    /// Seqs of a topic's records in history, in order.
    fn history(&mut self, topic: &str) -> Vec<u64> {
        let room = if topic.starts_with("{a}") { "a" } else { topic }.as_bytes();
        let topic = Some(topic.as_bytes().to_vec());
        let query = HistoryQuery { room: room.to_vec(), count: 1_000_000, after: None, topic };
        let shard = self.brokers[0].topics.shard_of_room(room);
        let i = usize::from(shard.0);
        let ask = Ask { shard, number: 1 };
        let world = &self.worlds[i];
        let part = match self.brokers[i].rooms.history(&query, NOW, ask, |hub| world.recall(hub, room)) {
            Known::Here(part) => part,
            Known::InLog(read) => {
                let found = world.find(&read);
                self.brokers[i].log_read(*read, Ok(found), NOW, &mut self.worlds[i]);
                self.worlds[i].histories.remove(&1).unwrap()
            }
        };
        part.records.iter().map(|r| r.position.seq.0).collect()
    }

    fn got(&self, shard: u16, conn: u32) -> &[Got] {
        self.worlds[usize::from(shard)].got.get(&conn).map_or(&[], |got| got)
    }
}

const NOW: Now = Now { mono_ms: 1, wall_us: 1 };

fn key(conn: u32) -> ConnKey {
    ConnKey { index: conn, generation: 0 }
}

fn ticket(shard: u16, conn: u32, slot: u32) -> Ticket {
    Ticket { shard: ShardId(shard), asker: Asker::Client { conn: key(conn), slot } }
}

fn remembering() -> Class {
    let mut class = Class::named("all");
    class.history = Some(History { messages: 1_000_000, bytes: 0, age_ms: 0 });
    class.on_slow = OnSlow::CatchUp;
    class
}

#[derive(Clone, Debug)]
enum Op {
    Publish(u16, usize),
    Subscribe(u16, u32, usize, Option<u64>),
    Resume(u16, u32, usize),
    Unsubscribe(u16, u32, usize),
    SubscribePattern(u16, u32),
    Step(u16, u16),
    Slow(u16, u32),
    Drain(u16, u32),
    Congest(u16, u16),
    Relieve(u16),
    Log(u16, usize),
    AnswerLog(u16),
}

fn durability() -> impl Strategy<Value = Durability> {
    prop_oneof![Just(Durability::Ephemeral), Just(Durability::Replicated), Just(Durability::Durable)]
}

const SHARDS: u16 = 3;
const CONNS: u32 = 3;

fn op() -> impl Strategy<Value = Op> {
    let (shard, conn, topic) = (0..SHARDS, 0..CONNS, 0..TOPICS.len());
    prop_oneof![
        6 => (shard.clone(), topic.clone()).prop_map(|(s, t)| Op::Publish(s, t)),
        3 => (shard.clone(), conn.clone(), topic.clone(), proptest::option::of(0u64..5))
            .prop_map(|(s, c, t, last)| Op::Subscribe(s, c, t, last)),
        1 => (shard.clone(), conn.clone(), topic.clone()).prop_map(|(s, c, t)| Op::Resume(s, c, t)),
        1 => (shard.clone(), conn.clone(), topic).prop_map(|(s, c, t)| Op::Unsubscribe(s, c, t)),
        1 => (shard.clone(), conn.clone()).prop_map(|(s, c)| Op::SubscribePattern(s, c)),
        12 => (shard.clone(), shard.clone()).prop_map(|(a, b)| Op::Step(a, b)),
        2 => (shard.clone(), conn.clone()).prop_map(|(s, c)| Op::Slow(s, c)),
        2 => (shard.clone(), conn).prop_map(|(s, c)| Op::Drain(s, c)),
        1 => (shard.clone(), shard.clone()).prop_map(|(a, b)| Op::Congest(a, b)),
        2 => shard.clone().prop_map(Op::Relieve),
        4 => (shard.clone(), 1..4usize).prop_map(|(s, n)| Op::Log(s, n)),
        3 => shard.prop_map(Op::AnswerLog),
    ]
}

/// What a connection has of a topic since it last subscribed: seqs in order.
fn seqs(got: &[Got], topic: &str, by_pattern: bool) -> Vec<u64> {
    let of_topic = got.iter().filter(|g| g.0 == by_pattern && g.1 == topic);
    of_topic.map(|g| g.2.seq.0).collect()
}

proptest! {

    /// Whatever is delayed and whoever is slow: a subscriber gets every record
    /// of its topic from where its subscription began, once and in order.
    #[test]
    fn no_record_is_lost_doubled_or_swapped(
        durability in durability(), tail in prop_oneof![Just(0), Just(700), Just(u64::MAX)], ops in proptest::collection::vec(op(), 1..120),
    ) {
        let mut net = Net::with_tail(SHARDS, CONNS, Class { durability, ..remembering() }, tail.max(1));
        let mut subscribed: BTreeSet<(u16, u32, usize)> = BTreeSet::new();
        let mut patterns: BTreeSet<(u16, u32)> = BTreeSet::new();
        let (mut kept, mut resumed) = (BTreeSet::new(), BTreeSet::new());
        for op in ops {
            match op {
                Op::Publish(shard, topic) => _ = net.publish(shard, TOPICS[topic]),
                Op::Subscribe(shard, conn, topic, last) => {
                    if subscribed.insert((shard, conn, topic)) {
                        let start = last.map_or(Start::Live, Start::Last);
                        // What it had before is no measure of a subscription that begins anew.
                        let got = net.worlds[usize::from(shard)].got.entry(conn).or_default();
                        got.retain(|g| g.0 || g.1 != TOPICS[topic]);
                        kept.remove(&(shard, conn, topic));
                        net.subscribe(shard, conn, TOPICS[topic], start);
                    }
                }
                Op::Resume(shard, conn, topic) => {
                    // From what it got last, as a client does that reconnects.
                    let last = net.got(shard, conn).iter().rev().find(|g| !g.0 && g.1 == TOPICS[topic]).map(|g| g.2);
                    if let (Some(last), false) = (last, subscribed.contains(&(shard, conn, topic))) {
                        subscribed.insert((shard, conn, topic));
                        resumed.insert((shard, conn, topic));
                        net.subscribe(shard, conn, TOPICS[topic], Start::After(last));
                    }
                }
                Op::Unsubscribe(shard, conn, topic) => {
                    if subscribed.remove(&(shard, conn, topic)) {
                        let name = TOPICS[topic].as_bytes();
                        net.act(shard, |b, w| b.unsubscribe(key(conn), Namespace::Global, name, NOW, w));
                        // Later subscriptions of it are judged alone.
                        let got = net.worlds[usize::from(shard)].got.entry(conn).or_default();
                        let last = got.iter().rev().find(|g| !g.0 && g.1 == TOPICS[topic]).cloned();
                        got.retain(|g| g.0 || g.1 != TOPICS[topic]);
                        resumed.remove(&(shard, conn, topic));
                        if last.is_some() {
                            kept.insert((shard, conn, topic));
                        }
                        got.extend(last);
                    }
                }
                Op::SubscribePattern(shard, conn) => {
                    if patterns.insert((shard, conn)) {
                        net.act(shard, |b, w| _ = b.subscribe_pattern(ticket(shard, conn, 0), key(conn), b"*", w));
                    }
                }
                Op::Step(from, to) => _ = net.step(from, to),
                Op::Slow(shard, conn) => _ = net.worlds[usize::from(shard)].full.insert(conn),
                Op::Drain(shard, conn) => net.drain(shard, conn),
                Op::Congest(shard, to) => _ = net.worlds[usize::from(shard)].congested.insert(to),
                Op::Log(shard, count) => _ = net.log(shard, count),
                Op::AnswerLog(shard) => _ = net.answer_log(shard),
                Op::Relieve(shard) => {
                    net.worlds[usize::from(shard)].congested.clear();
                    net.act(shard, |b, w| b.retry_stalled(NOW, w));
                }
            }
        }
        net.settle();
        let marks: Vec<Published> = (0..TOPICS.len())
            .map(|topic| {
                let id = net.publish(0, TOPICS[topic]);
                net.settle();
                net.receivers[&id]
            })
            .collect();

        if durability == Durability::Durable {
            for (world, broker) in net.worlds.iter().zip(&net.brokers) {
                prop_assert_eq!(broker.unlogged(), 0);
                let logged: usize = world.logs.values().map(|(log, _)| log.len()).sum();
                prop_assert!(tail < u64::MAX || broker.rooms.history_size().1 as usize == logged);
            }
        }
        // Every publish was answered, and the seqs of each epoch have no gaps.
        prop_assert_eq!(net.receivers.len() as u32, net.published);
        let mut positions: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for published in net.receivers.values() {
            positions.entry(published.position.epoch.0).or_default().push(published.position.seq.0);
        }
        for seqs in positions.values_mut() {
            seqs.sort_unstable();
            prop_assert_eq!(&*seqs, &(1..=seqs.len() as u64).collect::<Vec<_>>());
        }

        for &(shard, conn, topic) in &subscribed {
            let got = net.got(shard, conn);
            let own = seqs(got, TOPICS[topic], false);
            prop_assert!(own.is_sorted_by(|a, b| a < b), "swapped or doubled: {own:?}");
            prop_assert_eq!(own.last(), Some(&marks[topic].position.seq.0), "the last record is missing");
            // No gap from its first record on; the first may be left of an earlier subscription,
            // and then only a subscription that resumed from it has none behind it.
            let kept = kept.contains(&(shard, conn, topic)) && !resumed.contains(&(shard, conn, topic));
            let all = net.history(TOPICS[topic]);
            prop_assert!(all.ends_with(&own[usize::from(kept)..]), "gap: {own:?} of {all:?}");
        }
        for &(shard, conn) in &patterns {
            for topic in TOPICS {
                let own = seqs(net.got(shard, conn), topic, true);
                prop_assert!(own.is_sorted_by(|a, b| a < b), "swapped or doubled by pattern: {own:?}");
                let all = net.history(topic);
                prop_assert!(all.ends_with(&own), "gap by pattern: {own:?} of {all:?}");
            }
        }
        // The answer to a publish is the number of subscribers there are.
        for (topic, mark) in marks.iter().enumerate() {
            let exact = subscribed.iter().filter(|s| s.2 == topic).count();
            prop_assert_eq!(mark.receivers, (exact + patterns.len()) as u64);
        }
        prop_assert!(net.worlds.iter().all(|w| w.closed.is_empty() && w.squeezed == 0 && w.gaps == 0));
        prop_assert!(net.brokers.iter().all(|b| b.cursors.is_empty() && b.stalled() == 0));
    }

    /// When everybody has gone, nothing is left behind.
    #[test]
    fn nothing_stays_when_all_have_gone(ops in proptest::collection::vec(op(), 1..80)) {
        let mut class = Class::named("all");
        class.on_slow = OnSlow::DropOldest;
        let mut net = Net::new(SHARDS, CONNS, class);
        for op in ops {
            match op {
                Op::Publish(shard, topic) => _ = net.publish(shard, TOPICS[topic]),
                Op::Subscribe(shard, conn, topic, _) => net.subscribe(shard, conn, TOPICS[topic], Start::Live),
                Op::SubscribePattern(shard, conn) => {
                    net.act(shard, |b, w| _ = b.subscribe_pattern(ticket(shard, conn, 0), key(conn), b"*", w));
                }
                Op::Step(from, to) => _ = net.step(from, to),
                _ => {}
            }
        }
        for shard in 0..SHARDS {
            for conn in 0..CONNS {
                net.act(shard, |b, w| b.disconnected(key(conn), NOW, w));
            }
        }
        net.settle();
        for broker in &net.brokers {
            prop_assert_eq!(broker.rooms.len(), 0);
            prop_assert_eq!(broker.patterns.len(), 0);
            prop_assert_eq!(broker.topics.subscribed().count(), 0);
            prop_assert!(broker.cursors.is_empty());
        }
    }
}

#[test]
fn a_room_without_history_ends_with_its_last_subscriber_and_begins_a_new_epoch() {
    let mut net = Net::new(1, 2, Class::named("all"));
    net.subscribe(0, 0, "a", Start::Live);
    let first = net.publish(0, "a");
    net.act(0, |b, w| b.unsubscribe(key(0), Namespace::Global, b"a", NOW, w));
    let nobody = net.publish(0, "a");
    net.subscribe(0, 0, "a", Start::Live);
    let second = net.publish(0, "a");
    let (first, nobody, second) = (net.receivers[&first], net.receivers[&nobody], net.receivers[&second]);
    assert_eq!((first.receivers, nobody.receivers, second.receivers), (1, 0, 1));
    assert_ne!(first.position.epoch, second.position.epoch);
    assert_eq!((first.position.seq, second.position.seq), (Seq(1), Seq(1)));
    assert_eq!(nobody.position, Position::default());
}

#[test]
fn an_unknown_epoch_is_not_recovered_and_never_mapped() {
    let mut net = Net::new(2, 2, remembering());
    net.publish(0, "a");
    net.settle();
    let foreign = Position { epoch: hubsub_types::Epoch(7), seq: Seq(1) };
    net.subscribe(0, 1, "a", Start::After(foreign));
    net.settle();
    let attached = net.attached[&(0, 1)][0];
    assert!(!attached.recovered && attached.replay_from.is_none());
    assert_eq!(net.got(0, 1), []);
}

#[test]
fn a_slow_subscriber_meets_its_class() {
    for (policy, closed, squeezed) in
        [(OnSlow::Disconnect, 1, 0), (OnSlow::DropOldest, 0, 1), (OnSlow::Conflate, 0, 1)]
    {
        let mut class = Class::named("all");
        class.on_slow = policy;
        let mut net = Net::new(1, 2, class);
        net.subscribe(0, 0, "a", Start::Live);
        net.subscribe(0, 1, "a", Start::Live);
        net.worlds[0].full.insert(0);
        net.publish(0, "a");
        assert_eq!((net.worlds[0].closed.len(), net.worlds[0].squeezed), (closed, squeezed), "{policy:?}");
        assert_eq!(net.got(0, 1).len(), 1, "others are not touched");
    }
}

#[test]
fn limits_are_named_in_the_refusal() {
    let mut class = remembering();
    class.payload_bytes_max = 3;
    let mut net = Net::new(1, 1, class);
    let topic = vec![b'x'; 70_000];
    let publisher = Publisher::Conn(0);
    let draft =
        |topic, payload| Draft { namespace: Namespace::Global, topic, payload, headers: None, publisher };
    let long = net.act(0, |b, w| b.publish(ticket(0, 0, 0), draft(&topic, b"x"), NOW, w));
    assert_eq!(long, Outcome::Now(Err(ErrorCode::TopicLength)));
    let big = net.act(0, |b, w| b.publish(ticket(0, 0, 0), draft(b"a", b"xxxx"), NOW, w));
    assert_eq!(big, Outcome::Now(Err(ErrorCode::PayloadLength)));
}

fn durable() -> Class {
    Class { durability: Durability::Durable, ..remembering() }
}

#[test]
fn nobody_hears_of_a_durable_record_before_it_is_safe() {
    let mut net = Net::new(1, 2, durable());
    net.subscribe(0, 0, "a", Start::Live);
    let ids = [net.publish(0, "a"), net.publish(0, "a"), net.publish(0, "a")];
    net.act(0, |b, w| b.retry_stalled(NOW, w));
    assert!(net.receivers.is_empty() && net.got(0, 0).is_empty() && net.history("a").is_empty());
    assert!(net.log(0, 2));
    assert_eq!(net.got(0, 0).len(), 2);
    let seqs = |net: &Net| net.receivers.values().map(|p| p.position.seq.0).collect::<Vec<_>>();
    assert_eq!((seqs(&net), net.receivers.contains_key(&ids[2])), (vec![1, 2], false));
    // Who comes now begins behind what is committed, and gets what is committed later.
    net.subscribe(0, 1, "a", Start::Live);
    assert_eq!(net.attached[&(0, 1)][0].position.seq, Seq(2));
    assert!(net.log(0, 1));
    assert_eq!((net.got(0, 0).len(), net.got(0, 1).len(), seqs(&net)), (3, 1, vec![1, 2, 3]));
}

#[test]
fn a_replicated_record_is_committed_in_its_turn_and_logged_behind() {
    let mut net = Net::new(1, 1, Class { durability: Durability::Replicated, ..remembering() });
    net.subscribe(0, 0, "a", Start::Live);
    let id = net.publish(0, "a");
    net.act(0, |b, w| b.retry_stalled(NOW, w));
    assert!(net.receivers.contains_key(&id) && net.got(0, 0).len() == 1);
    assert_eq!(net.worlds[0].logs.values().map(|(log, safe)| (log.len(), *safe)).max(), Some((1, 0)));
}

#[test]
fn what_comes_while_the_log_is_asked_where_to_begin_is_not_missed() {
    let mut net = Net::with_tail(1, 1, durable(), 1);
    // Records of another topic of the room, which are in no memory.
    (0..3).for_each(|_| _ = net.publish(0, "{a}.x"));
    net.settle();
    net.subscribe(0, 0, "a", Start::Last(1));
    assert_eq!(net.worlds[0].asked.len(), 1);
    net.publish(0, "a");
    assert!(net.log(0, 1));
    net.settle();
    assert_eq!(net.got(0, 0).iter().map(|got| got.2.seq.0).collect::<Vec<_>>(), [4]);
}

#[test]
fn a_subscription_that_ends_while_the_log_is_asked_leaves_nothing() {
    for shard in [0, 1] {
        let mut net = Net::with_tail(2, 1, durable(), 1);
        (0..3).for_each(|_| _ = net.publish(0, "a"));
        net.settle();
        net.subscribe(shard, 0, "a", Start::Last(2));
        let hub = net.brokers[0].topics.shard_of_room(b"a").0;
        while net.step(shard, hub) {}
        assert_eq!(net.worlds[usize::from(hub)].asked.len(), 1);
        net.act(shard, |b, w| b.unsubscribe(key(0), Namespace::Global, b"a", NOW, w));
        net.settle();
        let id = net.publish(0, "a");
        net.settle();
        assert_eq!((net.receivers[&id].receivers, net.got(shard, 0).len()), (0, 0));
        assert!(net.brokers.iter().all(|b| b.cursors.is_empty()));
    }
}

#[test]
fn a_shard_that_is_behind_holds_up_what_is_safe_and_is_named() {
    let mut net = Net::new(2, 1, durable());
    let hub = net.brokers[0].topics.shard_of_room(b"a").0;
    let other = 1 - hub;
    net.subscribe(other, 0, "a", Start::Live);
    net.settle();
    net.worlds[usize::from(hub)].congested.insert(other);
    let id = net.publish(hub, "a");
    assert!(net.log(hub, 1));
    assert_eq!((net.brokers[usize::from(hub)].stalled(), net.receivers.len()), (1, 0));
    net.settle();
    assert_eq!((net.receivers[&id].receivers, net.got(other, 0).len()), (1, 1));
}

#[test]
fn a_log_that_takes_nothing_refuses_and_one_that_fails_says_so() {
    let mut net = Net::new(1, 1, durable());
    net.subscribe(0, 0, "a", Start::Live);
    net.worlds[0].refuses = Some(ErrorCode::DiskFull);
    let draft = Draft {
        namespace: Namespace::Global,
        topic: b"a",
        payload: &7u32.to_le_bytes(),
        headers: None,
        publisher: Publisher::Conn(0),
    };
    let outcome = net.act(0, |b, w| b.publish(ticket(0, 0, 9), draft, NOW, w));
    assert_eq!(outcome, Outcome::Now(Err(ErrorCode::DiskFull)));
    net.worlds[0].refuses = None;
    net.publish(0, "a");
    let (broker, world) = (&mut net.brokers[0], &mut net.worlds[0]);
    broker.log_failed(world);
    let answers: Vec<_> = world.answers.drain(..).map(|(_, answer)| answer).collect();
    assert!(matches!(answers[..], [Answer::Published(Err(ErrorCode::LogFailed))]));
    assert_eq!((broker.unlogged(), net.got(0, 0).len()), (0, 0));
}

#[test]
fn a_room_in_no_memory_goes_on_where_its_log_ends() {
    let mut net = Net::new(1, 1, durable());
    let id = net.publish(0, "a");
    net.settle();
    let before = net.receivers[&id].position;
    // The same log under a new broker, as after a restart; the room is in no memory.
    let logs = std::mem::take(&mut net.worlds[0].logs);
    let mut net = Net::new(1, 1, durable());
    let (hub, (log, _)) = logs.into_iter().next().unwrap();
    let seed =
        HubSeed { id: hub, class: 0, index: hub.0 as u16 - 1, next: 2, last_us: 50, continuous_from: 1 };
    let classes = Arc::new(ClassTable::new(vec![durable()], true));
    for (continuous_from, seq) in [(1, 2), (2, 1)] {
        let seeds = (0..2u16).map(|i| {
            if i == seed.index {
                HubSeed { continuous_from, ..seed }
            } else {
                HubSeed { id: HubId(u32::from(i) + 1), index: i, next: 1, ..seed }
            }
        });
        let hubs = Arc::new(Hubs::new(1, &classes, seeds.collect()));
        let epochs = Arc::new(AtomicU64::new(9 << 32));
        let (classes, limits) = (Arc::clone(&classes), Limits::default());
        net.brokers[0] = Broker::new(Settings { shard: ShardId(0), hubs, classes, limits, epochs });
        net.brokers[0].connected(key(0));
        net.worlds[0] = World::default();
        net.worlds[0].logs.insert(hub, (log.clone(), 1));
        assert_eq!(net.history("a"), [1], "what is old is read from the log");
        let id = net.publish(0, "a");
        net.settle();
        let after = net.receivers[&id].position;
        assert_eq!((after.seq.0, after.epoch == before.epoch), (seq, seq == 2));
        net.receivers.clear();
    }
}
