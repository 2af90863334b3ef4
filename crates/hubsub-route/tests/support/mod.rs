//! Several brokers with arbitrarily delayed messages between them, arbitrarily slow subscribers, and
//! arbitrarily slow logs.

#![allow(dead_code, reason = "each test file uses its part")]

use hubsub_route::places::Places;
use hubsub_route::rooms::{HistoryPart, HistoryQuery};
use hubsub_route::{
    Answer, Ask, Asker, Attached, Broker, CloseReason, Cluster, Delivery, Draft, Found, HubLogRead, HubRange,
    HubSeed, Hubs, Known, LogPlace, LogRead, Msg, Namespace, NodeMessage, Now, Outcome, Published, Publisher,
    Recalled, Record, RecordView, RelayLimits, Settings, Sink, Start, Then, Ticket, Via, Want, Wish,
};
use hubsub_types::{
    Class, ClassTable, ConnKey, Durability, ErrorCode, History, HubId, Limits, NodeId, OnGap, OnSlow,
    Position, ProducerId, Protocol, Qos, Seq, ShardId,
};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub const TOPICS: [&str; 3] = ["a", "b", "{a}.x"];

/// A record as a connection got it: whether by pattern, topic, position, payload.
pub type Got = (bool, String, Position, u32);

/// The group's name and a record that a connection got as its member.
pub type Given = (Vec<u8>, Arc<Record>);

/// One shard's world: the effects of its broker.
#[derive(Default)]
pub struct World {
    pub sent: Vec<(ShardId, Msg)>,
    /// Messages to other nodes.
    pub frames: Vec<NodeMessage>,
    pub got: BTreeMap<u32, Vec<Got>>,
    pub given: BTreeMap<u32, Vec<Given>>,
    /// Consumers whose state was requested (`loads`) or written (`saves`), in order.
    pub loads: Vec<Arc<[u8]>>,
    pub saves: Vec<(Arc<[u8]>, Vec<u8>)>,
    /// Dead-lettered records, which were delivered too often.
    pub buried: Vec<Given>,
    pub full: BTreeSet<u32>,
    pub answers: Vec<(Asker, Answer)>,
    pub closed: Vec<u32>,
    pub congested: BTreeSet<u16>,
    pub squeezed: usize,
    pub gaps: usize,
    /// Gaps that were reported: from, to.
    pub told: Vec<(Position, Position)>,
    /// Logs of this shard's hubs.
    pub logs: BTreeMap<HubId, Log>,
    /// Whether readers see committed records only after `find_logged`.
    pub readers_lag: bool,
    pub refuses: Option<ErrorCode>,
    pub is_behind: bool,
    /// Reads of those logs without an answer yet.
    pub asked: VecDeque<LogRead>,
    /// Reads of whole hubs without an answer yet.
    pub hub_asked: VecDeque<HubLogRead>,
    /// Log places of the records that each connection got.
    pub places: BTreeMap<u32, Vec<LogPlace>>,
    pub histories: BTreeMap<u32, HistoryPart>,
    /// Slots of answered deletions.
    pub deleted: Vec<u32>,
    /// Each reading of the clock is 1 µs after the one before.
    pub clock_us: Cell<u64>,
}

#[derive(Clone, Default)]
pub struct Log {
    /// Its entries, from offset 1 on.
    pub entries: Vec<Entry>,
    /// Number of committed entries.
    pub safe: usize,
    /// Number of committed entries that readers see.
    pub found: usize,
}

/// A record in a log, or a deletion.
#[derive(Clone)]
pub struct Entry {
    pub room: Vec<u8>,
    pub topic: Vec<u8>,
    pub position: Position,
    /// None for the room's deletion.
    pub payload: Option<Vec<u8>>,
}

impl Log {
    /// A room's records since its last deletion, with their offsets.
    pub fn of_room(&self, room: &[u8]) -> Vec<(u64, &Entry)> {
        let all = (1..).zip(&self.entries[..self.found]).filter(|(_, entry)| entry.room == room);
        let mut records: Vec<(u64, &Entry)> = all.collect();
        if let Some(deleted) = records.iter().rposition(|(_, entry)| entry.payload.is_none()) {
            records.drain(..=deleted);
        }
        records
    }
}

impl World {
    /// The log's answer to a read.
    pub fn find(&self, read: &LogRead) -> Found {
        let fits = |entry: &Entry| {
            let Position { epoch, seq } = entry.position;
            let is_shown = epoch != read.epoch || (read.seq_min..=read.seq_max).contains(&seq);
            is_shown && read.topic.as_ref().is_none_or(|topic| *topic == entry.topic)
        };
        let of_room = self.logs[&read.hub].of_room(&read.room).into_iter();
        let first = match read.want {
            Want::On(from) => of_room.clone().map(|(_, entry)| entry.position).find(|position| {
                position.epoch == read.epoch
                    && (from.max(read.seq_min)..=read.seq_max).contains(&position.seq)
            }),
            Want::Since(_) | Want::Back => None,
        };
        let found = of_room.filter(|(_, entry)| fits(entry));
        let mut records: Vec<Arc<Record>> = found
            .map(|(_, entry)| {
                let payload = entry.payload.as_deref().unwrap_or_default();
                let mut record = Record::new(Namespace::Global, &entry.topic, payload, "".into(), None);
                record.position = entry.position;
                Arc::new(record)
            })
            .collect();
        match read.want {
            Want::Back => _ = records.drain(..records.len().saturating_sub(read.count as usize)),
            Want::On(seq) => records.retain(|r| r.position.epoch == read.epoch && r.position.seq >= seq),
            Want::Since(_) => records.retain(|r| r.position.epoch == read.epoch),
        }
        if read.want != Want::Back {
            // At most three at a time, as if they were large.
            records.truncate((read.count as usize).min(3));
        }
        Found { records, first: first.map(|position| position.seq) }
    }

    /// The log's answer to a read of a whole hub, at most two records at a time, as far as readers see; None
    /// if there is nothing.
    pub fn find_of_hub(&self, asked: &HubLogRead) -> Option<HubRange> {
        let HubLogRead { read, through } = asked;
        let log = &self.logs[&read.hub];
        let until = (log.found as u64).min(*through);
        let mut range = HubRange { next: read.next, ..HubRange::default() };
        while range.next <= until && range.records.len() < 2 {
            let entry = &log.entries[range.next as usize - 1];
            if let Some(payload) =
                entry.payload.as_ref().filter(|_| read.filter.wants(Namespace::Global, &entry.topic))
            {
                let mut record = Record::new(Namespace::Global, &entry.topic, payload, "".into(), None);
                record.position = entry.position;
                record.place = LogPlace { hub: read.hub, offset: range.next };
                range.records.push(Arc::new(record));
            }
            range.next += 1;
        }
        (range.next > read.next).then_some(range)
    }

    pub fn take(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) {
        self.places.entry(conn).or_default().push(record.place);
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
        if let Via::Group(group) = via {
            let RecordView { namespace, topic, payload, position, .. } = *record;
            let mut record = Record::new(namespace, topic, payload, "".into(), None);
            record.position = position;
            self.given.entry(conn).or_default().push((group.to_vec(), Arc::new(record)));
            return Delivery::Taken;
        }
        self.take(conn, via, record);
        Delivery::Taken
    }
    fn squeeze(&mut self, _: u32, _: Via<'_>, _: &RecordView<'_>, _: OnSlow, _: OnGap) {
        self.squeezed += 1;
    }
    fn gap(&mut self, _: u32, _: &[u8], from: Position, to: Position, _: OnGap) {
        self.told.push((from, to));
        self.gaps += 1;
    }
    fn close(&mut self, conn: u32, _: CloseReason) {
        self.closed.push(conn);
    }
    fn wants_replay(&self, conn: u32) -> bool {
        !self.full.contains(&conn)
    }
    fn protocol(&self, conn: u32) -> Option<Protocol> {
        let all = [Protocol::Redis, Protocol::Mqtt, Protocol::Phoenix, Protocol::Events];
        Some(all[conn as usize % all.len()])
    }

    fn wall_us(&self) -> u64 {
        self.clock_us.set(self.clock_us.get() + 1);
        self.clock_us.get()
    }
    fn publisher(&self, conn: u32) -> Box<str> {
        conn.to_string().into()
    }
    fn recall(&self, hub: HubId, room: &[u8]) -> Option<Recalled> {
        let (offset, last) = self.logs.get(&hub)?.of_room(room).pop()?;
        Some(Recalled { position: last.position, offset })
    }
    fn recalls_through(&self, hub: HubId) -> u64 {
        self.logs.get(&hub).map_or(0, |log| log.found as u64)
    }
    fn append(&mut self, hub: HubId, offset: u64, room: &[u8], record: &Record) {
        let (topic, payload) = (record.topic().to_vec(), Some(record.payload().to_vec()));
        let log = self.logs.entry(hub).or_default();
        log.entries.push(Entry { room: room.to_vec(), topic, position: record.position, payload });
        assert_eq!(log.entries.len() as u64, offset, "offsets have no gaps");
    }
    fn append_deletion(&mut self, hub: HubId, offset: u64, room: &[u8], position: Position, _: u64) {
        let log = self.logs.entry(hub).or_default();
        log.entries.push(Entry { room: room.to_vec(), topic: Vec::new(), position, payload: None });
        assert_eq!(log.entries.len() as u64, offset, "offsets have no gaps");
    }
    fn deleted(&mut self, ask: Ask, outcome: Result<(), ErrorCode>) {
        outcome.unwrap();
        self.deleted.push(ask.number);
    }
    fn read_log(&mut self, read: Box<LogRead>) {
        self.asked.push_back(*read);
    }
    fn read_hub_log(&mut self, read: Box<HubLogRead>) {
        self.hub_asked.push_back(*read);
    }
    fn history(&mut self, ask: Ask, part: Result<HistoryPart, ErrorCode>) {
        self.histories.insert(ask.number, part.unwrap());
    }
    fn log_refuses(&self, _: HubId) -> Option<ErrorCode> {
        self.refuses
    }
    fn log_is_behind(&self) -> bool {
        self.is_behind
    }
    fn send(&mut self, to: ShardId, msg: Msg) {
        self.sent.push((to, msg));
    }
    fn congested(&self, to: ShardId) -> bool {
        self.congested.contains(&to.0)
    }
    fn send_node(&mut self, _: NodeId, _: HubId, message: NodeMessage) -> Result<(), NodeMessage> {
        self.frames.push(message);
        Ok(())
    }
    fn load_consumer(&mut self, source: &Arc<[u8]>) {
        self.loads.push(Arc::clone(source));
    }
    fn save_consumer(&mut self, source: &Arc<[u8]>, row: Vec<u8>) {
        self.saves.push((Arc::clone(source), row));
    }
    fn bury(&mut self, source: &Arc<[u8]>, record: &Arc<Record>) {
        self.buried.push((source.to_vec(), Arc::clone(record)));
    }
    fn answer(&mut self, asker: Asker, answer: Answer) {
        self.answers.push((asker, answer));
    }
}

/// All shards and the messages between them.
pub struct Net {
    pub brokers: Vec<Broker>,
    pub worlds: Vec<World>,
    pub mail: BTreeMap<(u16, u16), VecDeque<Msg>>,
    pub published: u32,
    pub receivers: BTreeMap<u32, Published>,
    pub attached: BTreeMap<(u16, u32), Vec<Attached>>,
}

impl Net {
    pub fn new(shards: u16, conns: u32, class: Class) -> Net {
        Net::with_tail(shards, conns, class, u64::MAX)
    }

    /// With `tail_bytes_max` bytes of memory for the latest records of a logged class.
    pub fn with_tail(shards: u16, conns: u32, class: Class, tail_bytes_max: u64) -> Net {
        let is_logged = class.durability.is_logged();
        let classes = Arc::new(ClassTable::new(vec![class], true));
        // One hub more than shards, so that one shard has two.
        let seeds = (0..shards + 1).filter(|_| is_logged).map(|index| HubSeed {
            id: HubId(u32::from(index) + 1),
            index,
            next: 1,
            continuous_from: 1,
            ..HubSeed::default()
        });
        let hubs = Arc::new(Hubs { tail_bytes_max, ..Hubs::new(shards, &classes, seeds.collect()) });
        let epochs = Arc::new(AtomicU64::new(1 << 32));
        let limits = Limits { route_cache_topics_max: 2, pattern_cache_topics_max: 2, ..Limits::default() };
        let broker = |shard| {
            let (classes, epochs, hubs) = (Arc::clone(&classes), Arc::clone(&epochs), Arc::clone(&hubs));
            Broker::new(Settings {
                shard: ShardId(shard),
                hubs,
                classes,
                limits: limits.clone(),
                epochs,
                retained: Arc::default(),
            })
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

    /// One shard of a cluster node, whose class has one hub. The hub has no leader yet.
    pub fn in_cluster(class: Class, hub: HubId) -> Net {
        let mut net = Net::new(1, 0, class.clone());
        let cluster = Cluster { producer: ProducerId(1 << 8), limits: RelayLimits::default() };
        let places = Arc::new(Places::new([false].into_iter()));
        let hubs = Arc::new(Hubs::with_places(1, &[vec![hub]], places, cluster));
        let classes = Arc::new(ClassTable::new(vec![class], true));
        let (limits, epochs) = (Limits::default(), Arc::new(AtomicU64::new(1 << 32)));
        net.brokers[0] = Broker::new(Settings {
            shard: ShardId(0),
            hubs,
            classes,
            limits,
            epochs,
            retained: Arc::default(),
        });
        net.brokers[0].connected(key(0));
        net
    }

    pub fn act<T>(&mut self, shard: u16, act: impl FnOnce(&mut Broker, &mut World) -> T) -> T {
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

    pub fn publish(&mut self, shard: u16, topic: &str) -> u32 {
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
            producer: None,
            qos: Qos::ExactlyOnce,
            retain: false,
        };
        if let Outcome::Now(published) = self.act(shard, |b, w| b.publish(ticket, draft, NOW, w)) {
            self.receivers.insert(id, published.unwrap());
        }
        id
    }

    pub fn subscribe(&mut self, shard: u16, conn: u32, topic: &str, start: Start) {
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

    /// Delivers the first message between two shards. Returns whether there was one.
    pub fn step(&mut self, from: u16, to: u16) -> bool {
        let Some(msg) = self.mail.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return false };
        self.act(to, |b, w| b.receive(msg, NOW, w));
        true
    }

    /// The log of one of a shard's hubs commits up to `count` more records. Returns whether there were any.
    pub fn log(&mut self, shard: u16, count: usize) -> bool {
        let World { logs, readers_lag, .. } = &mut self.worlds[usize::from(shard)];
        let waiting = logs.iter_mut().find(|(_, log)| log.safe < log.entries.len());
        let Some((&hub, log)) = waiting else { return false };
        log.safe = (log.safe + count).min(log.entries.len());
        if !*readers_lag {
            log.found = log.safe;
        }
        let offset = log.safe as u64;
        self.act(shard, |b, w| b.logged(hub, offset, NOW, w));
        true
    }

    /// Readers of one of a shard's logs see up to `count` more committed records. Returns whether there were
    /// any.
    pub fn find_logged(&mut self, shard: u16, count: usize) -> bool {
        let mut logs = self.worlds[usize::from(shard)].logs.values_mut();
        let Some(log) = logs.find(|log| log.found < log.safe) else { return false };
        log.found = (log.found + count).min(log.safe);
        true
    }

    /// A shard's log answers its first read, if it contains the requested records. Returns whether it did.
    pub fn answer_log(&mut self, shard: u16) -> bool {
        let world = &mut self.worlds[usize::from(shard)];
        if let Some(range) = world.hub_asked.front().and_then(|asked| world.find_of_hub(asked)) {
            let asked = world.hub_asked.pop_front().expect("it was looked at");
            self.act(shard, |b, w| b.hub_log_read(asked, Ok(range), NOW, w));
            return true;
        }
        let is_ready = |read: &&LogRead| {
            let log = &world.logs[&read.hub];
            // A reader that continues takes the records that exist.
            let (last, seq) = (
                log.of_room(&read.room).pop(),
                if let Want::On(seq) = read.want { seq } else { Seq(u64::MAX) },
            );
            let has_some = matches!(read.then, Then::Range(_) | Then::Attach(..))
                && last
                    .is_some_and(|(_, last)| last.position.epoch == read.epoch && last.position.seq >= seq);
            has_some || read.through as usize <= log.found
        };
        if world.asked.front().filter(is_ready).is_none() {
            return false;
        }
        let Some(read) = world.asked.pop_front() else { return false };
        let found = world.find(&read);
        self.act(shard, |b, w| b.log_read(read, Ok(found), NOW, w));
        true
    }

    /// A connection subscribes to a pattern; afterwards all shards know it.
    pub fn subscribe_pattern(&mut self, shard: u16, conn: u32, pattern: &str) {
        self.act(shard, |b, w| {
            let held = b.subscribe_pattern(ticket(shard, conn, 0), key(conn), pattern.as_bytes(), w);
            assert_ne!(held, Outcome::Now(Err(ErrorCode::TooManySubscriptions)));
        });
    }

    pub fn drain(&mut self, shard: u16, conn: u32) {
        self.worlds[usize::from(shard)].full.remove(&conn);
        self.act(shard, |b, w| b.drained(key(conn), NOW, w));
    }

    /// Ends all slowness and lag, and runs until no messages are in flight.
    pub fn settle(&mut self) {
        let shards = self.brokers.len() as u16;
        for world in &mut self.worlds {
            world.congested.clear();
            world.is_behind = false;
        }
        for _ in 0..10_000 {
            let mut busy = false;
            for shard in 0..shards {
                let full: Vec<u32> = self.worlds[usize::from(shard)].full.iter().copied().collect();
                busy |= !full.is_empty();
                full.into_iter().for_each(|conn| self.drain(shard, conn));
                busy |= self.brokers[usize::from(shard)].stalled() > 0;
                self.act(shard, |b, w| b.retry_stalled(NOW, w));
                while self.log(shard, 2) || self.find_logged(shard, 2) || self.answer_log(shard) {
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
    pub fn history(&mut self, topic: &str) -> Vec<u64> {
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

    pub fn got(&self, shard: u16, conn: u32) -> &[Got] {
        self.worlds[usize::from(shard)].got.get(&conn).map_or(&[], |got| got)
    }
}

pub const NOW: Now = Now { mono_ms: 1, wall_us: 1 };

pub fn key(conn: u32) -> ConnKey {
    ConnKey { index: conn, generation: 0 }
}

pub fn ticket(shard: u16, conn: u32, slot: u32) -> Ticket {
    Ticket { shard: ShardId(shard), asker: Asker::Client { conn: key(conn), slot } }
}

/// A class whose records wait for the disk.
pub fn durable() -> Class {
    Class { durability: Durability::Durable, ..remembering() }
}

pub fn remembering() -> Class {
    let mut class = Class::named("all");
    class.history = Some(History { messages: 1_000_000, bytes: 0, age_ms: 0 });
    class.on_slow = OnSlow::CatchUp;
    class
}
