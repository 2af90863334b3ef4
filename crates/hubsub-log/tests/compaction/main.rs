//! A hub that keeps the latest: whenever compaction runs and power fails, the latest record of each key
//! exists, and readers reach it.

mod oracle;
mod steps;
#[path = "../support/mod.rs"]
mod support;

use hubsub_log::repair::repair;
use hubsub_log::sim::Faults;
use hubsub_log::{Cursor, Kind, LogError};
use oracle::{HUB, Latest, OTHER, ROOMS, Reader, SMALL, TOMBSTONE_US, Test, publish, room, tombstone};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use support::{Sent, read_back, read_on, verify};

/// Fills and seals segments with other keys.
fn fill(test: &mut Test) {
    test.say((0..12).map(|n| publish(3, 80 + n)).collect());
    test.save();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 200 } else { 2000 }))]

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
        test.log.close();
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
            let all: Vec<Sent> = held.iter().filter(|sent| sent.room == room).cloned().collect();
            let back = read_back(&chain, &room);
            match back.outcome {
                Ok(()) => prop_assert_eq!(back.records, all),
                Err(e) => prop_assert!(matches!(e, LogError::Damaged { .. }), "{e}"),
            }
        }
    }
}

/// A reader has seen a value whose tombstone is old; it has a hold, or is fast.
fn reader_meets_an_old_tombstone(holds: bool) {
    let mut test = Test::new();
    test.say(vec![publish(0, 10)]);
    fill(&mut test);
    test.say(vec![tombstone(0, false)]);
    fill(&mut test);
    test.log.clock_us += 10 * TOMBSTONE_US;
    // The tombstone is old, and the record it hides was not compacted yet.
    test.readers = vec![Reader::new(holds, test.now_us())];
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
    test.readers = vec![Reader::new(true, 0)];
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
    // The room has a later record, so its tombstone is no longer needed.
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
    // One copy may be in progress.
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
                        let (mut cursor, mut through) = (Cursor::at(1), Vec::new());
                        while cursor.next() < chain.next() {
                            let some = |record: &hubsub_log::Record<'_>| {
                                through.push(record.offset);
                                match through.len() % 3 {
                                    0 => ControlFlow::Break(()),
                                    _ => ControlFlow::Continue(()),
                                }
                            };
                            chain.read_through(&mut cursor, u64::MAX, some).unwrap();
                        }
                        assert!(through.is_sorted_by(|a, b| a < b));
                        assert!(through.last().copied().unwrap_or(0) >= next - 1);
                        let back = read_back(chain, &room(0)).whole();
                        assert!(back.is_sorted_by(|a, b| a.seq < b.seq));
                        let last = back.last().map_or(0, |sent| sent.seq);
                        assert!(last >= most);
                        most = last;
                        let Some(known) = chain.rooms.get(chain.hash(&room(0))) else { continue };
                        let on = read_on(chain, &room(0), known.epoch, 1 + last / 2, u64::MAX).whole();
                        assert!(on.is_sorted_by(|a, b| a.seq < b.seq));
                        assert!(on.last().is_some_and(|sent| sent.seq >= last) && on[0].seq > last / 2);
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
    test.log.close();
    let path = test.log.disk.paths().into_iter().find(|path| path.contains("-1.segment")).unwrap();
    test.log.disk.damage(&path, |bytes| bytes[100] ^= 1);
    let before: Vec<_> = test.log.disk.paths();
    let storage = std::sync::Arc::new(test.log.disk.clone());
    let tried = repair(&storage, SMALL, None, true, &mut |_| ControlFlow::Continue(()));
    assert!(tried.unwrap_err().to_string().contains("hint:"));
    assert_eq!(test.log.disk.paths(), before);
}
