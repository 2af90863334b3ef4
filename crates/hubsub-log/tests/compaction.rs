//! A hub that keeps the latest: whatever is compacted and whenever power fails, the
//! latest of each key is there, and readers come to it.

mod support;

use hubsub_log::repair::repair;
use hubsub_log::sim::Faults;
use hubsub_log::verify::verify;
use hubsub_log::{ChainOptions, Compaction, HubId, Keep, Kind, LogError, LogOptions, Record};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{OPTIONS, Publish, Sent, TestLog};

/// Keeps the latest.
const HUB: HubId = HubId(1);

/// Keeps all.
const OTHER: HubId = HubId(2);

const TOMBSTONE_US: u64 = 300;

const ROOMS: u8 = 5;

/// Segments of few records.
const SMALL: LogOptions =
    LogOptions { chain: ChainOptions { segment_bytes: 1200, run_bytes: 400 }, ..OPTIONS };

type Key = (Vec<u8>, Vec<u8>);

fn room(n: u8) -> Vec<u8> {
    format!("room:{n}").into_bytes()
}

/// Records of odd lengths have another topic than those of even ones.
fn publish(n: u8, len: u16) -> Publish {
    (room(n), vec![n ^ len as u8; usize::from(len)], Kind::Message)
}

fn tombstone(n: u8, is_odd: bool) -> Publish {
    (room(n), vec![0; usize::from(is_odd)], Kind::Tombstone)
}

/// What a reader makes of records: for each key with a value, the offset of that.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
struct Latest(HashMap<Key, u64>);

impl Latest {
    fn of<'a>(records: impl IntoIterator<Item = &'a Sent>) -> Latest {
        let mut latest = Latest::default();
        records.into_iter().for_each(|sent| latest.take(sent));
        latest
    }

    fn take(&mut self, sent: &Sent) {
        let key = (sent.room.clone(), sent.topic.clone());
        match sent.kind {
            Kind::Message => _ = self.0.insert(key, sent.offset),
            Kind::Tombstone => _ = self.0.remove(&key),
            Kind::RoomDeleted => self.0.retain(|(room, _), _| *room != sent.room),
        }
    }
}

/// Reads the hub a bit at a time, again and again.
struct Reader {
    latest: Latest,
    next: u64,
    began_us: u64,
    holds: bool,
}

struct Test {
    log: TestLog,
    readers: Vec<Reader>,
    /// The latest time that a compaction knew.
    compacted_us: u64,
}

impl Test {
    fn new() -> Test {
        let reader = |holds| Reader { latest: Latest::default(), next: 1, began_us: 0, holds };
        let readers = [false, false, true].map(reader).into();
        Test { log: TestLog::with(&[Keep::Latest, Keep::Log], SMALL), readers, compacted_us: 0 }
    }

    fn now_us(&self) -> u64 {
        self.log.clock_us + 10 * (self.log.hubs[&HUB].sent.len() as u64 + 1)
    }

    fn say(&mut self, records: Vec<Publish>) {
        self.log.append(&[(HUB, records.clone()), (OTHER, records)]).unwrap();
        self.log.sync().unwrap();
    }

    fn save(&mut self) {
        self.log.apply().unwrap();
        self.log.segments.checkpoint().unwrap();
    }

    fn compact(&mut self, budget_bytes: u64, keys_max: usize) -> Result<usize, LogError> {
        let now_us = self.now_us();
        self.compacted_us = now_us;
        let hold = self.readers.iter().filter(|reader| reader.holds).map(|reader| reader.next).min();
        let limits = Compaction { budget_bytes, pace: 0, tombstone_us: TOMBSTONE_US, keys_max };
        self.log.segments.compact(now_us, limits, |_| hold)
    }

    /// Nobody holds anything.
    fn let_go(&mut self) {
        self.readers.clear();
    }

    fn read(&mut self, reader: usize) {
        let now_us = self.now_us();
        let Some(reader) = self.readers.get_mut(reader) else { return };
        if !reader.holds && now_us > reader.began_us + TOMBSTONE_US {
            *reader = Reader { latest: Latest::default(), next: 1, began_us: now_us, holds: false };
        }
        let chain = self.log.segments.chain(HUB).unwrap();
        let mut bytes = Vec::new();
        let next = chain.read_offsets(reader.next, 300, &mut bytes).unwrap();
        assert!(next > reader.next || reader.next == chain.next());
        reader.next = next;
        let mut at = 0;
        while at < bytes.len() {
            let (record, len) = hubsub_log::record::decode(&bytes[at..]).unwrap();
            reader.latest.take(&Sent::of(&record));
            at += len;
        }
        if next == chain.next() {
            let sent = &self.log.hubs[&HUB].sent[..next as usize - 1];
            assert_eq!(reader.latest, Latest::of(sent));
            reader.began_us = now_us;
        }
    }

    /// Starts again. What rooms were at is as the log says.
    fn reopen(&mut self) {
        self.log.reopen().unwrap();
        assert_eq!(self.log.warnings, [] as [String; 0]);
        self.check();
        self.log.check(OTHER);
        self.recall();
        let holds: Vec<bool> = self.readers.iter().map(|reader| reader.holds).collect();
        let (began_us, reader) =
            (self.now_us(), |holds, began_us| Reader { latest: Latest::default(), next: 1, began_us, holds });
        self.readers = holds.into_iter().map(|holds| reader(holds, began_us)).collect();
    }

    /// Rooms are as the log says.
    fn recall(&mut self) {
        let chain = self.log.segments.chain(HUB).unwrap();
        let rooms = &mut self.log.hubs.get_mut(&HUB).unwrap().rooms;
        rooms.clear();
        for room in (0..ROOMS).map(room) {
            rooms.extend(chain.rooms.get(chain.hash(&room)).map(|last| (room, (last.epoch, last.seq))));
        }
    }

    fn held(&self) -> Vec<Sent> {
        let mut held: Vec<Sent> = Vec::new();
        self.log.segments.chain(HUB).unwrap().replay(1, |record| held.push(Sent::of(record))).unwrap();
        held
    }

    fn check(&mut self) {
        let chain = self.log.segments.chain(HUB).unwrap();
        let expected = self.log.hubs.get_mut(&HUB).unwrap();
        let next = chain.next();
        let written: usize = self
            .log
            .safe
            .iter()
            .flat_map(|(.., batches)| batches)
            .fold(0, |n, batch| n + usize::from(batch.hub == HUB) * batch.count as usize);
        assert!(next as usize > expected.acknowledged - written, "acknowledged records are missing");
        if written == 0 {
            expected.sent.truncate(next as usize - 1);
            expected.acknowledged = expected.sent.len();
        }
        let sent = expected.sent[..next as usize - 1].to_vec();
        let held = self.held();
        assert!(held.is_sorted_by_key(|sent| sent.offset));
        assert!(
            held.iter().all(|held| *held == sent[held.offset as usize - 1]),
            "it holds what was not sent"
        );
        assert_eq!(Latest::of(&held), Latest::of(&sent));
        let offsets: HashSet<u64> = held.iter().map(|sent| sent.offset).collect();
        for room in (0..ROOMS).map(room) {
            self.check_room(&room, &sent, &held);
        }
        // What was said last of a key is seen for its time, even that there is nothing.
        let mut later: HashSet<Key> = HashSet::new();
        let mut ended: HashSet<&[u8]> = HashSet::new();
        for sent in sent.iter().rev() {
            let is_young = sent.timestamp_us + TOMBSTONE_US >= self.compacted_us;
            let is_last = match sent.kind {
                Kind::RoomDeleted => ended.insert(&sent.room),
                _ => later.insert((sent.room.clone(), sent.topic.clone())) && !ended.contains(&sent.room[..]),
            };
            assert!(!(is_last && is_young) || offsets.contains(&sent.offset), "{sent:?} went too early");
        }
    }

    fn check_room(&self, room: &[u8], sent: &[Sent], held: &[Sent]) {
        let chain = self.log.segments.chain(HUB).unwrap();
        let of_room = |sent: &&Sent| sent.room == room;
        let end = sent.iter().filter(of_room).rfind(|sent| sent.kind == Kind::RoomDeleted);
        let end = end.map_or(0, |sent| sent.offset);
        let in_life = |sent: &&Sent| sent.room == room && sent.offset > end;
        let held: Vec<Sent> = held.iter().filter(in_life).cloned().collect();
        let all: Vec<&Sent> = sent.iter().filter(in_life).collect();
        let positions: HashSet<(u64, u64)> = all.iter().map(|sent| (sent.epoch, sent.seq)).collect();
        assert_eq!(positions.len(), all.len(), "two records have one position");

        let known = chain.rooms.get(chain.hash(room));
        match (known, all.last()) {
            (Some(known), Some(last)) => {
                assert_eq!((known.epoch, known.seq, known.offset), (last.epoch, last.seq, last.offset));
            }
            (None, Some(last)) => assert!(held.is_empty() && last.kind == Kind::Tombstone),
            (None, None) => {}
            (Some(_), None) => panic!("a room that was deleted is known"),
        }
        let mut back = Vec::new();
        let keep = |to: &mut Vec<Sent>, record: &Record<'_>| {
            to.push(Sent::of(record));
            ControlFlow::Continue(())
        };
        chain.read_back(room, |record| keep(&mut back, record)).unwrap();
        back.reverse();
        assert_eq!(back, held);
        let Some(last) = held.last() else { return };
        let some = (1..=last.seq).step_by(1 + last.seq as usize / 5).chain([last.seq, last.seq + 1]);
        for from in some {
            for wanted in [1, 3, u64::MAX] {
                let mut on = Vec::new();
                chain.read_on(room, last.epoch, from, wanted, |record| keep(&mut on, record)).unwrap();
                let is_wanted = |sent: &&Sent| sent.epoch == last.epoch && sent.seq >= from;
                assert_eq!(on, held.iter().filter(is_wanted).cloned().collect::<Vec<_>>());
            }
        }
    }

    fn verify(&self) {
        let found = verify(&self.log.disk).unwrap();
        assert_eq!(found.problems, [] as [String; 0]);
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A frame of messages (room, bytes) and tombstones (room, other topic).
    Say(Vec<Result<(u8, u16), (u8, bool)>>),
    Delete(u8),
    Apply,
    Checkpoint,
    Wait(u64),
    /// With a budget.
    Compact(u64),
    /// To the end, with so many keys at once.
    CompactAll(usize),
    /// With so much room on the disk.
    CompactFull(u64),
    /// With so many calls before the disk fails and the power with it.
    CompactFails(u64, u64),
    Read(usize),
    /// Rooms leave memory and come back.
    Recall,
    Check,
    CleanRestart,
    Crash(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let message = (0..ROOMS, prop_oneof![8 => 0..100u16, 1 => 0..1500u16]).prop_map(Ok);
    let record = prop_oneof![3 => message, 2 => (0..ROOMS, any::<bool>()).prop_map(Err)];
    let step = prop_oneof![
        10 => prop::collection::vec(record, 1..9).prop_map(Step::Say),
        1 => (0..ROOMS).prop_map(Step::Delete),
        2 => Just(Step::Apply),
        5 => Just(Step::Checkpoint),
        3 => (0..400u64).prop_map(Step::Wait),
        5 => (1..6000u64).prop_map(Step::Compact),
        3 => (1..12usize).prop_map(Step::CompactAll),
        1 => (0..6000u64).prop_map(Step::CompactFull),
        1 => (0..25u64, any::<u64>()).prop_map(|(calls, seed)| Step::CompactFails(calls, seed)),
        8 => (0..3usize).prop_map(Step::Read),
        1 => Just(Step::Recall),
        1 => Just(Step::Check),
        1 => Just(Step::CleanRestart),
        2 => any::<u64>().prop_map(Step::Crash),
    ];
    prop::collection::vec(step, 1..100)
}

/// SplitMix64.
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn run(steps: Vec<Step>) {
    let mut test = Test::new();
    for step in steps {
        match step {
            Step::Say(what) => {
                let record = |what: Result<(u8, u16), (u8, bool)>| match what {
                    Ok((room, len)) => publish(room, len),
                    Err((room, is_odd)) => tombstone(room, is_odd),
                };
                test.say(what.into_iter().map(record).collect());
            }
            Step::Delete(n) => {
                let knows = |hub| test.log.hubs[&hub].rooms.contains_key(&room(n));
                if knows(HUB) && knows(OTHER) {
                    test.say(vec![(room(n), Vec::new(), Kind::RoomDeleted)]);
                }
            }
            Step::Apply => test.log.apply().unwrap(),
            Step::Checkpoint => test.save(),
            Step::Wait(us) => test.log.clock_us += us,
            Step::Compact(budget_bytes) => _ = test.compact(budget_bytes, 100).unwrap(),
            Step::CompactAll(keys_max) => _ = test.compact(u64::MAX, keys_max).unwrap(),
            Step::CompactFull(free) => {
                test.log.disk.set_faults(Faults { free_bytes: Some(free), ..Faults::default() });
                match test.compact(u64::MAX, 100) {
                    Ok(_) | Err(LogError::Full) => {}
                    Err(e) => panic!("{e}"),
                }
                test.log.disk.set_faults(Faults::default());
            }
            Step::CompactFails(calls, mut seed) => {
                let faults = Faults {
                    fails_after: Some(calls),
                    write_bytes_max: Some(700),
                    read_bytes_max: Some(700),
                    ..Faults::default()
                };
                test.log.disk.set_faults(faults);
                let failed = test.compact(u64::MAX, 100).is_err();
                test.log.disk.set_faults(Faults::default());
                if failed {
                    test.log.disk.crash(|| random(&mut seed) & 1 == 1);
                    test.reopen();
                }
            }
            Step::Read(reader) => test.read(reader),
            Step::Recall => {
                test.log.apply().unwrap();
                test.recall();
            }
            Step::Check => test.check(),
            Step::CleanRestart => {
                test.log.apply().unwrap();
                let segments = std::mem::replace(&mut test.log.segments, TestLog::new(0).segments);
                segments.close().unwrap();
                test.verify();
                test.reopen();
            }
            Step::Crash(mut seed) => {
                test.log.disk.crash(|| random(&mut seed) & 1 == 1);
                test.reopen();
                test.verify();
            }
        }
    }
    test.save();
    test.check();
    test.verify();
    test.let_go();
    // Passes of which each may take the tombstones of those before.
    for n in 0..4 {
        test.say(
            (0..12).map(|i| publish(i % 2, 60 + i as u16)).chain([tombstone(2 + n % 3, true)]).collect(),
        );
        test.save();
        test.compact(u64::MAX, 1000).unwrap();
        test.log.clock_us += 2 * TOMBSTONE_US;
        test.check();
    }
    test.reopen();
    test.verify();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 200 } else { 2000 }))]

    #[test]
    fn the_latest_of_each_key_is_there_and_readers_come_to_it(steps in steps()) {
        run(steps);
    }

    #[test]
    fn damage_is_told_or_harmless(file in any::<Index>(), at in any::<Index>(), bit in 0..9u8) {
        let mut test = Test::new();
        test.let_go();
        for n in 0..12u16 {
            test.say((0..6).map(|room| publish(room % ROOMS, n * 7 + u16::from(room))).collect());
            test.say(vec![tombstone(n as u8 % ROOMS, n % 2 == 0)]);
            test.save();
            test.compact(2500, 1000).unwrap();
        }
        let held = test.held();
        let segments = std::mem::replace(&mut test.log.segments, TestLog::new(0).segments);
        segments.close().unwrap();
        let is_ours = |path: &String| path.starts_with("hubs/1/") && path.contains('-');
        let paths: Vec<String> = test.log.disk.paths().into_iter().filter(is_ours).collect();
        let path = &paths[file.index(paths.len())];
        test.log.disk.damage(path, |bytes| match (at.index(bytes.len()), bit) {
            (at, 8) => bytes.truncate(at),
            (at, bit) => bytes[at] ^= 1 << bit,
        });
        let problems = verify(&test.log.disk).unwrap().problems;
        prop_assert_eq!(problems.is_empty(), path.ends_with(".index"), "{:?}", problems);
        test.log.reopen().unwrap();
        let Some(chain) = test.log.segments.chain(HUB) else {
            prop_assert!(test.log.warnings.iter().any(|warning| warning.contains("quarantined")));
            return Ok(());
        };
        let mut now = Vec::new();
        match chain.replay(1, |record| now.push(Sent::of(record))) {
            Ok(_) => prop_assert_eq!(now, held.clone()),
            Err(e) => prop_assert!(matches!(e, LogError::Damaged { .. }), "{e}"),
        }
        for room in (0..ROOMS).map(room) {
            let all: Vec<&Sent> = held.iter().rev().filter(|sent| sent.room == room).collect();
            let mut back = Vec::new();
            let outcome = chain.read_back(&room, |record| {
                back.push(Sent::of(record));
                ControlFlow::Continue(())
            });
            match outcome {
                Ok(()) => prop_assert_eq!(back.iter().collect::<Vec<_>>(), all),
                Err(e) => prop_assert!(matches!(e, LogError::Damaged { .. }), "{e}"),
            }
        }
    }
}

/// Fills and seals segments with other keys.
fn fill(test: &mut Test) {
    test.say((0..12).map(|n| publish(3, 80 + n)).collect());
    test.save();
}

/// A reader has seen a value whose tombstone is old; it holds its place, or is quick.
fn reader_meets_an_old_tombstone(holds: bool) {
    let mut test = Test::new();
    test.say(vec![publish(0, 10)]);
    fill(&mut test);
    test.say(vec![tombstone(0, false)]);
    fill(&mut test);
    test.log.clock_us += 10 * TOMBSTONE_US;
    // The tombstone is old, and what it hides has not been compacted yet.
    test.readers = vec![Reader { latest: Latest::default(), next: 1, began_us: test.now_us(), holds }];
    test.read(0);
    assert!(test.readers[0].latest.0.contains_key(&(room(0), room(0))));
    let tombstones = |test: &Test| test.held().iter().filter(|sent| sent.kind == Kind::Tombstone).count();
    for _ in 0..if holds { 4 } else { 2 } {
        fill(&mut test);
        test.compact(u64::MAX, 1000).unwrap();
        test.log.clock_us += if holds { 2 * TOMBSTONE_US } else { 0 };
    }
    let began_us = test.readers[0].began_us;
    assert!(holds || test.now_us() <= began_us + TOMBSTONE_US, "it has time left");
    assert_eq!(tombstones(&test), 1);
    for _ in 0..100 {
        test.read(0);
    }
    assert_eq!(test.readers[0].next, test.log.segments.chain(HUB).unwrap().next(), "it came to the end");
    assert_eq!(test.readers[0].began_us, test.now_us(), "and what it has is right");
    test.let_go();
    for _ in 0..3 {
        test.log.clock_us += 2 * TOMBSTONE_US;
        fill(&mut test);
        fill(&mut test);
        test.compact(u64::MAX, 1000).unwrap();
    }
    assert_eq!(tombstones(&test), 0, "nobody needs it any more");
}

#[test]
fn a_reader_that_saw_a_value_sees_its_old_tombstone() {
    reader_meets_an_old_tombstone(false);
}

#[test]
fn a_reader_that_holds_has_all_the_time_it_wants() {
    reader_meets_an_old_tombstone(true);
}

#[test]
fn a_hold_ends_a_pass_that_is_under_way() {
    let mut test = Test::new();
    for _ in 0..8 {
        fill(&mut test);
    }
    test.let_go();
    test.compact(700, 1000).unwrap();
    let before = test.held();
    test.readers = vec![Reader { latest: Latest::default(), next: 1, began_us: 0, holds: true }];
    test.compact(u64::MAX, 1000).unwrap();
    assert_eq!(test.held(), before);
    test.let_go();
    assert!(test.compact(u64::MAX, 1000).unwrap() > 0);
    assert!(test.held().len() < before.len());
}

#[test]
fn a_room_of_which_all_is_gone_is_forgotten_and_one_with_a_value_keeps_its_seq() {
    let mut test = Test::new();
    test.let_go();
    test.say(vec![publish(0, 10), publish(1, 10), publish(1, 11), tombstone(0, false), tombstone(1, true)]);
    for _ in 0..6 {
        fill(&mut test);
        test.compact(u64::MAX, 1000).unwrap();
        test.log.clock_us += 2 * TOMBSTONE_US;
    }
    let rooms = |test: &Test, n| {
        let chain = test.log.segments.chain(HUB).unwrap();
        chain.rooms.get(chain.hash(&room(n))).map(|last| last.seq)
    };
    assert_eq!((rooms(&test, 0), rooms(&test, 1)), (None, Some(3)));
    let of = |test: &Test, n| test.held().iter().filter(|sent| sent.room == room(n)).count();
    assert_eq!((of(&test, 0), of(&test, 1)), (0, 2));
    test.reopen();
    assert_eq!((rooms(&test, 0), rooms(&test, 1)), (None, Some(3)));
    // With a record behind it, the tombstone says nothing any more.
    test.say(vec![publish(1, 10), publish(0, 10)]);
    for _ in 0..4 {
        fill(&mut test);
        test.compact(u64::MAX, 1000).unwrap();
    }
    assert_eq!((of(&test, 0), of(&test, 1)), (1, 1));
    let epochs: HashSet<u64> =
        test.log.hubs[&HUB].sent.iter().filter(|s| s.room == room(0)).map(|s| s.epoch).collect();
    assert_eq!(epochs.len(), 2, "made again, it has a new epoch");
    test.check();
}

#[test]
fn segments_stay_few_and_the_other_hub_is_left_alone() {
    let mut test = Test::new();
    test.let_go();
    for n in 0..200u16 {
        test.say((0..5).map(|room| publish(room, 60 + n % 40)).collect());
        test.save();
        test.compact(2000, 1000).unwrap();
    }
    let info = |hub| test.log.segments.chain(hub).unwrap().info();
    assert!(info(HUB).segments <= 16 && info(HUB).bytes < 12_000, "{:?}", info(HUB));
    assert!(info(OTHER).segments > 100);
    let is_index = |path: &&String| path.starts_with("hubs/1/") && path.contains(".index");
    let is_segment = |path: &&String| path.starts_with("hubs/1/") && path.contains(".segment");
    let count = |is: &dyn Fn(&&String) -> bool| test.log.disk.paths().iter().filter(is).count();
    let all = info(HUB).segments;
    // One may be under way.
    assert!(count(&is_segment) <= all + 1 && count(&is_index) < all, "what was replaced is gone");
    test.check();
    test.log.check(OTHER);
    test.verify();
}

#[test]
fn a_full_disk_stops_a_copy_and_room_lets_it_begin_again() {
    let mut test = Test::new();
    test.let_go();
    for _ in 0..8 {
        fill(&mut test);
    }
    let before = test.held();
    for free in [0, 60, 100] {
        test.log.disk.set_faults(Faults { free_bytes: Some(free), ..Faults::default() });
        match test.compact(u64::MAX, 1000) {
            Err(LogError::Full) => {}
            other => panic!("{other:?}"),
        }
        let listed = &test.log.segments.manifest().hub(HUB).unwrap().segments;
        let segment = |path: &&String| path.starts_with("hubs/1/") && path.contains(".segment");
        assert_eq!(test.log.disk.paths().iter().filter(segment).count(), listed.len(), "the copy is gone");
        assert_eq!(Latest::of(&test.held()), Latest::of(&before));
        test.check();
    }
    test.log.disk.set_faults(Faults::default());
    assert!(test.compact(u64::MAX, 1000).unwrap() > 0);
    assert!(test.held().len() * 2 < before.len());
    test.check();
    test.verify();
}

#[test]
fn damage_ends_the_compaction_of_that_hub_alone_and_is_told_once() {
    let mut test = Test::new();
    test.let_go();
    for _ in 0..8 {
        fill(&mut test);
    }
    test.log.disk.damage(&format!("hubs/1/{:020}.segment", 1), |bytes| bytes[200] ^= 1);
    assert!(matches!(test.compact(u64::MAX, 1000), Err(LogError::Damaged { .. })));
    assert_eq!(test.compact(u64::MAX, 1000).unwrap(), 0);
    fill(&mut test);
}

#[test]
fn readers_get_a_whole_state_while_segments_are_replaced() {
    let mut test = Test::new();
    test.let_go();
    let chain = test.log.segments.chain(HUB).unwrap();
    let is_done = AtomicBool::new(false);
    let (writes, reads) = std::thread::scope(|scope| {
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (chain, is_done) = (&chain, &is_done);
                scope.spawn(move || {
                    let mut rounds = 0;
                    let mut most = 0;
                    while !is_done.load(Ordering::Relaxed) {
                        let mut offsets = Vec::new();
                        let next = chain.next();
                        chain.replay(1, |record| offsets.push(record.offset)).unwrap();
                        assert!(offsets.is_sorted_by(|a, b| a < b));
                        assert_eq!(
                            offsets.last().copied().unwrap_or(0).max(next - 1),
                            offsets.last().copied().unwrap_or(0)
                        );
                        let mut back = Vec::new();
                        let keep = |to: &mut Vec<u64>, record: &Record<'_>| {
                            to.push(record.seq);
                            ControlFlow::Continue(())
                        };
                        chain.read_back(&room(0), |record| keep(&mut back, record)).unwrap();
                        assert!(back.is_sorted_by(|a, b| a > b));
                        let last = back.first().copied().unwrap_or(0);
                        assert!(last >= most);
                        most = last;
                        let Some(known) = chain.rooms.get(chain.hash(&room(0))) else { continue };
                        let mut on = Vec::new();
                        chain
                            .read_on(&room(0), known.epoch, 1 + last / 2, u64::MAX, |record| {
                                keep(&mut on, record)
                            })
                            .unwrap();
                        assert!(on.is_sorted_by(|a, b| a < b));
                        assert!(on.last().is_some_and(|&seq| seq >= last) && on[0] > last / 2);
                        rounds += 1;
                    }
                    rounds
                })
            })
            .collect();
        let mut writes = 0;
        for n in 0..400u16 {
            test.say((0..5).map(|room| publish(room, 60 + n % 40)).collect());
            test.save();
            writes += test.compact(3000, 1000).unwrap();
        }
        is_done.store(true, Ordering::Relaxed);
        (writes, readers.into_iter().map(|reader| reader.join().unwrap()).collect::<Vec<u64>>())
    });
    assert!(writes > 100 && reads.iter().all(|&rounds| rounds > 10), "{writes} {reads:?}");
    test.check();
}

#[test]
fn a_repair_leaves_a_damaged_hub_as_it_is_and_says_so() {
    let mut test = Test::new();
    test.let_go();
    for _ in 0..8 {
        fill(&mut test);
    }
    test.compact(u64::MAX, 1000).unwrap();
    let segments = std::mem::replace(&mut test.log.segments, TestLog::new(0).segments);
    segments.close().unwrap();
    let path = test.log.disk.paths().into_iter().find(|path| path.contains("-1.segment")).unwrap();
    test.log.disk.damage(&path, |bytes| bytes[100] ^= 1);
    let before: Vec<_> = test.log.disk.paths();
    let storage = std::sync::Arc::new(test.log.disk.clone());
    let tried = repair(&storage, SMALL, None, true, &mut |_| ControlFlow::Continue(()));
    assert!(tried.unwrap_err().to_string().contains("hint:"));
    assert_eq!(test.log.disk.paths(), before);
}
