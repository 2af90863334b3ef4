//! Retained messages: entries of the node's class for them, and what later subscribers get.

use crate::support::{NOW, Net, key, remembering, ticket};
use hubsub_route::rows::{self, topic_of};
use hubsub_route::{
    Answer, Asker, Broker, Draft, HubSeed, Hubs, Kept, Namespace, Outcome, Published, Publisher, RowPage,
    RowTotals, RowsAsk, Settings, Start, Ticket, Wish,
};
use hubsub_types::{
    Class, ClassTable, Durability, ErrorCode, History, HubId, Limits, Qos, ShardId, names::Matcher,
};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Shards that store entries, with or without a log.
fn net(shards: u16, is_logged: bool, limits: Limits) -> (Net, Arc<RowTotals>) {
    let durability = if is_logged { Durability::Durable } else { Durability::Ephemeral };
    let system = Class {
        matches: vec![Matcher::parse("$system/#").unwrap()],
        history: Some(History { messages: 1, bytes: 0, age_ms: 0 }),
        keeps_latest: true,
        durability,
        ..Class::named(rows::CLASS)
    };
    let all = Class { history: remembering().history, ..Class::named("all") };
    let mut net = Net::new(shards, 0, all.clone());
    let classes = Arc::new(ClassTable::new(vec![system, all], true));
    let seed = HubSeed { id: HubId(1), next: 1, continuous_from: 1, ..HubSeed::default() };
    let seeds = Vec::from_iter(is_logged.then_some(seed));
    let hubs = Arc::new(Hubs { producers: Mutex::default(), ..Hubs::new(shards, &classes, seeds) });
    let (epochs, retained) = (Arc::new(AtomicU64::new(1 << 32)), Arc::new(RowTotals::default()));
    net.brokers = (0..shards)
        .map(|shard| {
            let (classes, hubs, limits) = (Arc::clone(&classes), Arc::clone(&hubs), limits.clone());
            let (epochs, retained) = (Arc::clone(&epochs), Arc::clone(&retained));
            let mut broker =
                Broker::new(Settings { shard: ShardId(shard), hubs, classes, limits, epochs, retained });
            (0..4).for_each(|conn| broker.connected(key(conn)));
            broker
        })
        .collect();
    (net, retained)
}

/// Publishes a retained message. Returns the publisher's slot.
fn keep(net: &mut Net, shard: u16, topic: &str, payload: &[u8]) -> u32 {
    net.published += 1;
    let slot = net.published;
    let draft = Draft {
        namespace: Namespace::Global,
        topic: topic.as_bytes(),
        payload,
        headers: None,
        publisher: Publisher::Conn(0),
        producer: None,
        qos: Qos::AtLeastOnce,
        retain: true,
    };
    let outcome = net.act(shard, |b, w| b.publish(ticket(shard, 0, slot), draft, NOW, w));
    assert!(matches!(outcome, Outcome::Later), "it waits for its row: {outcome:?}");
    slot
}

const READER: u32 = 77;

fn reader(shard: u16) -> Asker {
    Asker::Retained { conn: key(1), number: u32::from(shard) + READER }
}

/// All entries that match, as (topic, payload), while nothing else happens.
fn all(net: &mut Net, shard: u16, filter: &str) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for hub in 0..net.brokers[0].row_hubs() {
        let mut after = None;
        loop {
            let page = page(net, shard, filter, hub, after);
            let text = |topic: &[u8]| String::from_utf8(topic.to_vec()).unwrap();
            found.extend(
                page.rows.iter().map(|row| (text(topic_of(row.topic()).unwrap()), row.payload().to_vec())),
            );
            if page.is_last {
                break;
            }
            after = page.rows.last().map(|row| topic_of(row.topic()).unwrap().into());
        }
    }
    found.sort_unstable();
    found
}

fn page(net: &mut Net, shard: u16, filter: &str, hub: u16, after: Option<Box<[u8]>>) -> RowPage {
    let ticket = Ticket { shard: ShardId(shard), asker: reader(shard) };
    let class = net.brokers[0].rows_class().unwrap();
    let ask = RowsAsk { ticket, class, hub, filter: filter.as_bytes().into(), after, bytes_max: 1 };
    let mut answers = Vec::new();
    match net.brokers[usize::from(shard)].rows(ask, NOW, &mut net.worlds[usize::from(shard)]) {
        Outcome::Now(page) => return page.unwrap(),
        Outcome::Later => {}
    }
    while answers.is_empty() {
        deliver_all(net, &mut answers);
    }
    let Some((_, Answer::Rows(page))) = answers.pop() else { panic!("rows answer a question for rows") };
    page.unwrap()
}

/// Delivers all messages in flight and collects the answers of readers.
fn deliver_all(net: &mut Net, answers: &mut Vec<(Asker, Answer)>) {
    let shards = net.brokers.len() as u16;
    for shard in 0..shards {
        let i = usize::from(shard);
        for (to, msg) in net.worlds[i].sent.drain(..) {
            net.mail.entry((shard, to.0)).or_default().push_back(msg);
        }
    }
    for from in 0..shards {
        for to in 0..shards {
            let i = usize::from(to);
            while let Some(msg) = net.mail.get_mut(&(from, to)).and_then(|mail| mail.pop_front()) {
                net.brokers[i].receive(msg, NOW, &mut net.worlds[i]);
            }
            answers.append(&mut net.worlds[i].answers);
        }
    }
}

/// The disk of a shard commits up to `count` more records. Returns whether there were any.
fn make_safe(net: &mut Net, shard: u16, count: usize) -> bool {
    let i = usize::from(shard);
    let waiting = net.worlds[i].logs.iter_mut().find(|(_, log)| log.safe < log.entries.len());
    let Some((&hub, log)) = waiting else { return false };
    log.safe = (log.safe + count).min(log.entries.len());
    log.found = log.safe;
    let offset = log.safe as u64;
    net.brokers[i].logged(hub, offset, NOW, &mut net.worlds[i]);
    true
}

#[test]
fn a_publisher_is_answered_when_its_row_is_written_and_all_shards_read_it() {
    for is_logged in [false, true] {
        let (mut net, totals) = net(3, is_logged, Limits::default());
        let slots: Vec<u32> =
            (0..30).map(|n| keep(&mut net, n % 3, &format!("t/{n}"), format!("{n}").as_bytes())).collect();
        net.settle();
        for slot in slots {
            assert_eq!(net.receivers[&slot].receivers, 0);
        }
        assert_eq!(totals.messages.load(Ordering::Relaxed), 30);
        let expected = |shard| {
            let mut rows: Vec<_> = (0..30).map(|n| (format!("t/{n}"), format!("{n}").into_bytes())).collect();
            rows.sort_unstable();
            (shard, rows)
        };
        for shard in 0..3 {
            assert_eq!((shard, all(&mut net, shard, "t/+")), expected(shard));
        }
        keep(&mut net, 0, "t/7", b"");
        net.settle();
        assert_eq!(all(&mut net, 1, "t/7"), []);
        assert_eq!(totals.messages.load(Ordering::Relaxed), 29);
    }
}

#[test]
fn a_row_that_there_is_no_room_for_is_its_publishers_refusal_and_the_record_is_told() {
    let limits = Limits { retained_messages_max: 2, ..Limits::default() };
    let (mut net, _) = net(1, false, limits);
    for (topic, refused) in [("a", false), ("b", false), ("c", true), ("a", false)] {
        net.published += 1;
        let slot = net.published;
        let draft = Draft {
            namespace: Namespace::Global,
            topic: topic.as_bytes(),
            payload: b"x",
            headers: None,
            publisher: Publisher::Conn(0),
            producer: None,
            qos: Qos::AtLeastOnce,
            retain: true,
        };
        let (broker, world) = (&mut net.brokers[0], &mut net.worlds[0]);
        let _ = broker.publish(ticket(0, 0, slot), draft, NOW, world);
        let answers = std::mem::take(&mut world.answers);
        let [(_, Answer::Published(published))] = &answers[..] else { panic!("{answers:?}") };
        let expected = if refused { Err(ErrorCode::TooManyRetained) } else { Ok(true) };
        assert_eq!(published.map(|published| published.position.seq.0 > 0), expected, "{topic}");
    }
    assert_eq!(net.brokers[0].retained_refused, 1);
    assert_eq!(all(&mut net, 0, "#").len(), 2);
}

/// The next action of a reader.
enum Step {
    Subscribing,
    Settling,
    Reading,
    Done,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whenever a client subscribes, and however messages and disk delay each other, it gets in the end the
    /// topic's last message: from its entry, or live.
    #[test]
    fn who_subscribes_at_any_time_knows_the_last_message(
        is_logged: bool,
        is_wild: bool,
        begin in 0..12_u32,
        moves in proptest::collection::vec(any::<u16>(), 0..200),
    ) {
        let (mut net, _) = net(3, is_logged, Limits::default());
        let (mut step, mut row, mut told) = (Step::Done, None, 0_u32);
        let mut came: Vec<u32> = Vec::new();
        let filter = if is_wild { "t/+" } else { "t/x" };
        let mut moves = moves.into_iter().chain(std::iter::repeat_n(0, 20_000)).enumerate();
        let mut answers: Vec<(Asker, Answer)> = Vec::new();
        let mut hub = 0;
        let subscribe_at = begin * 5;
        loop {
            let Some((turn, one)) = moves.next() else { panic!("it comes to no end") };
            if turn as u32 == subscribe_at {
                step = Step::Subscribing;
                let (broker, world) = (&mut net.brokers[2], &mut net.worlds[2]);
                let now = if is_wild {
                    let pattern = hubsub_types::names::filter_pattern(filter.as_bytes());
                    matches!(broker.subscribe_pattern(ticket(2, 1, 0), key(1), &pattern, world), Outcome::Now(_))
                } else {
                    let wish = Wish { topic: b"t/x", namespace: Namespace::Global, start: Start::Live };
                    matches!(broker.subscribe(ticket(2, 1, 0), key(1), wish, NOW, world), Outcome::Now(_))
                };
                if now {
                    answers.push((Asker::Client { conn: key(1), slot: 0 }, Answer::PatternHeld));
                }
            }
            // One message of a pair of shards, a commit or a publish.
            match one % 12 {
                pair @ 0..=8 => {
                    let (from, to) = (pair / 3, pair % 3);
                    if let Some(msg) = net.mail.get_mut(&(from, to)).and_then(|mail| mail.pop_front()) {
                        let to = usize::from(to);
                        net.brokers[to].receive(msg, NOW, &mut net.worlds[to]);
                    }
                }
                9 if told < 8 => {
                    told += 1;
                    let draft = Draft {
                        namespace: Namespace::Global,
                        topic: b"t/x",
                        payload: &told.to_le_bytes(),
                        headers: None,
                        publisher: Publisher::Conn(0),
                        producer: None,
                        qos: Qos::AtLeastOnce,
                        retain: true,
                    };
                    let (broker, world) = (&mut net.brokers[0], &mut net.worlds[0]);
                    let _ = broker.publish(ticket(0, 0, told), draft, NOW, world);
                }
                _ => {
                    make_safe(&mut net, 0, 1);
                }
            }
            if turn > 220 {
                (0..3).for_each(|shard| while make_safe(&mut net, shard, 9) {});
                deliver_all(&mut net, &mut answers);
            }
            for shard in 0..3_u16 {
                let world = &mut net.worlds[usize::from(shard)];
                for (to, msg) in world.sent.drain(..) {
                    net.mail.entry((shard, to.0)).or_default().push_back(msg);
                }
                answers.append(&mut world.answers);
            }
            for (asker, answer) in std::mem::take(&mut answers) {
                let (broker, world) = (&mut net.brokers[2], &mut net.worlds[2]);
                let ticket = Ticket { shard: ShardId(2), asker: reader(2) };
                let reads = |broker: &mut Broker, world: &mut crate::support::World, hub: u16| {
                    let class = broker.rows_class().unwrap();
                    let filter = filter.as_bytes().into();
                    broker.rows(RowsAsk { ticket, class, hub, filter, after: None, bytes_max: 1 << 20 }, NOW, world)
                };
                let next = match (&step, asker, answer) {
                    (Step::Subscribing, Asker::Client { conn, .. }, Answer::Attached(_) | Answer::PatternHeld)
                        if conn == key(1) =>
                    {
                        step = Step::Settling;
                        if is_wild {
                            broker.settle(reader(2), world);
                            None
                        } else {
                            match broker.subscribers(ticket, Namespace::Global, b"t/x", NOW, world) {
                                Outcome::Now(count) => Some(Answer::Counted(count)),
                                Outcome::Later => None,
                            }
                        }
                    }
                    (Step::Settling, Asker::Retained { .. }, Answer::Counted(_) | Answer::Settled) => {
                        step = Step::Reading;
                        hub = if is_wild { 0 } else { broker.row_hub(b"t/x") };
                        match reads(broker, world, hub) {
                            Outcome::Now(page) => Some(Answer::Rows(page)),
                            Outcome::Later => None,
                        }
                    }
                    (Step::Reading, Asker::Retained { .. }, Answer::Rows(page)) => {
                        let page = page.unwrap();
                        for found in &page.rows {
                            let payload = u32::from_le_bytes(found.payload().try_into().unwrap());
                            row = Some((payload, Kept::of(found).unwrap().position));
                        }
                        hub += 1;
                        if is_wild && hub < broker.row_hubs() {
                            match reads(broker, world, hub) {
                                Outcome::Now(page) => Some(Answer::Rows(page)),
                                Outcome::Later => None,
                            }
                        } else {
                            step = Step::Done;
                            None
                        }
                    }
                    (_, Asker::Client { conn, .. }, Answer::Published(published)) if conn == key(0) => {
                        let Published { position, .. } = published.unwrap();
                        prop_assert!(position.seq.0 > 0);
                        None
                    }
                    _ => None,
                };
                answers.extend(next.map(|answer| (reader(2), answer)));
            }
            let is_quiet = net.mail.values().all(|mail| mail.is_empty()) && answers.is_empty();
            if turn > 230 && is_quiet && matches!(step, Step::Done) && turn as u32 > subscribe_at {
                break;
            }
        }
        came.extend(net.got(2, 1).iter().map(|got| got.3));
        let knows = came.last().copied().unwrap_or(0).max(row.map_or(0, |row| row.0));
        prop_assert_eq!(knows, told, "row {:?}, live {:?}", row, came);
    }
}
