//! Whatever happens to the file of names, a listing has exactly the rooms in the table.

use crate::support::sim::Faults;
use crate::support::{Publish, TestLog, crash};
use hubsub_log::{HubId, Kind, Retention};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const HUB: HubId = HubId(1);
const NAMES: &str = "hubs/1/names";

fn room(n: u32) -> Vec<u8> {
    format!("room:{n:04}").into_bytes()
}

fn message(n: u32) -> Publish {
    (room(n), vec![n as u8; 20], Kind::Message)
}

/// Sends the records in frames of fifty and applies each at once.
fn say(log: &mut TestLog, records: impl IntoIterator<Item = Publish>) {
    let records: Vec<Publish> = records.into_iter().collect();
    for part in records.chunks(50) {
        log.say(&[(HUB, part.to_vec())]);
        log.apply().unwrap();
    }
}

fn listed(log: &TestLog) -> Vec<Vec<u8>> {
    let rooms = log.segments.chain(HUB).unwrap().rooms_page(None, usize::MAX, |_| true).unwrap();
    rooms.into_iter().map(|(name, _)| name).collect()
}

fn rooms(range: std::ops::Range<u32>) -> Vec<Vec<u8>> {
    range.map(room).collect()
}

#[test]
fn pages_are_in_order_behind_a_name_and_hold_what_matches() {
    let mut log = TestLog::new(1);
    // In mixed order, and each twice.
    say(&mut log, (0..600).map(|i| message(i * 7 % 300)));
    let chain = log.segments.chain(HUB).unwrap();
    let page = |after: Option<u32>, limit, wanted: &dyn Fn(&[u8]) -> bool| -> Vec<Vec<u8>> {
        let after = after.map(room);
        let page = chain.rooms_page(after.as_deref(), limit, wanted).unwrap();
        page.into_iter().map(|(name, _)| name).collect()
    };
    assert_eq!(page(None, 1000, &|_| true), rooms(0..300));
    assert_eq!(page(None, 7, &|_| true), rooms(0..7));
    assert_eq!(page(Some(6), 7, &|_| true), rooms(7..14));
    assert_eq!(page(Some(295), 7, &|_| true), rooms(296..300));
    assert_eq!(page(Some(299), 7, &|_| true), rooms(0..0));
    assert_eq!(page(None, 0, &|_| true), rooms(0..0));
    assert_eq!(page(Some(9), 3, &|name| name.ends_with(b"0")), [room(10), room(20), room(30)]);
    let all = chain.rooms_page(None, 1000, |_| true).unwrap();
    assert!(all.iter().all(|(name, last)| chain.rooms.get(chain.hash(name)) == Some(*last)));
}

#[test]
fn a_start_finds_the_names_and_reads_no_segment_for_them() {
    let mut log = TestLog::new(1);
    say(&mut log, (0..300).map(message));
    log.segments.checkpoint().unwrap();
    say(&mut log, (300..350).map(message));
    log.disk.crash(|| false);
    log.reopen().unwrap();
    let sealed = log.disk.paths().into_iter().filter(|path| path.ends_with(".segment")).min().unwrap();
    // A read of this segment would detect the damage.
    log.disk.damage(&sealed, |bytes| bytes[100] ^= 1);
    assert_eq!(listed(&log), rooms(0..350));
}

#[test]
fn deleted_and_retired_rooms_are_not_listed_and_the_file_is_written_anew() {
    let mut log = TestLog::new(1);
    say(&mut log, (0..4000).map(message));
    let before = log.disk.bytes(NAMES).unwrap().len();
    say(&mut log, (0..3900).map(|n| (room(n), Vec::new(), Kind::RoomDeleted)));
    assert_eq!(listed(&log), rooms(3900..4000));
    log.segments.checkpoint().unwrap();
    let after = log.disk.bytes(NAMES).unwrap().len();
    assert!(after < before / 20, "{before} bytes became {after}");
    assert!(!log.disk.paths().contains(&format!("{NAMES}.new")));
    assert_eq!(listed(&log), rooms(3900..4000));
    // Rooms that are recreated are listed again.
    say(&mut log, (0..10).map(message));
    let wanted: BTreeSet<_> = rooms(0..10).into_iter().chain(rooms(3900..4000)).collect();
    assert_eq!(listed(&log), wanted.iter().cloned().collect::<Vec<_>>());
    log.segments.retire(0, |_| (Retention { bytes: 1, age_us: 0, ..Retention::default() }, None)).unwrap();
    let chain = log.segments.chain(HUB).unwrap();
    assert!(!chain.rooms.is_empty());
    assert_eq!(listed(&log).len(), chain.rooms.len());
    log.disk.crash(|| false);
    log.reopen().unwrap();
    log.check(HUB);
}

#[test]
fn a_disk_that_has_no_room_for_names_costs_nothing_but_the_file() {
    let mut log = TestLog::new(1);
    say(&mut log, (0..50).map(message));
    log.segments.checkpoint().unwrap();
    // Enough space for the records, but at some point not for the names as well.
    let mut were_refused = 0;
    for free in (0..30_000).step_by(500) {
        let mut log = TestLog { disk: log.disk.copy(), hubs: log.hubs.clone(), ..TestLog::new(1) };
        log.reopen().unwrap();
        log.disk.set_faults(Faults { free_bytes: Some(free), ..Faults::default() });
        let records = (50..90).map(message).collect();
        match log.append(&[(HUB, records)]).and_then(|()| log.sync()).and_then(|()| log.apply()) {
            Ok(()) => {}
            Err(_) => were_refused += 1,
        }
        log.disk.set_faults(Faults::default());
        log.segments.flush().unwrap();
        log.segments.checkpoint().unwrap();
        assert_eq!(listed(&log).len(), log.segments.chain(HUB).unwrap().rooms.len(), "{free} bytes free");
    }
    assert!(were_refused > 0);
}

#[test]
fn readers_list_while_rooms_come_and_the_file_is_lost() {
    let mut log = TestLog::new(1);
    say(&mut log, (0..100).map(message));
    let chain = log.segments.chain(HUB).unwrap();
    let (is_done, pages) = (AtomicBool::new(false), [AtomicUsize::new(0), AtomicUsize::new(0)]);
    std::thread::scope(|scope| {
        for pages in &pages {
            let (chain, is_done) = (&chain, &is_done);
            scope.spawn(move || {
                let mut most = 0;
                while !is_done.load(Ordering::Relaxed) {
                    let before = chain.rooms.len();
                    let found = chain.rooms_page(None, usize::MAX, |_| true).unwrap();
                    // A room is named by the time that its write returns.
                    assert!(found.len() + 50 >= before && found.len() >= most, "{} of {before}", found.len());
                    assert!(found.windows(2).all(|pair| pair[0].0 < pair[1].0));
                    most = found.len();
                    pages.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let mut seen = [0; 2];
        for i in 2..60 {
            say(&mut log, (i * 50..(i + 1) * 50).map(message));
            if i % 15 == 0 {
                // Damages the file once each reader has read pages since the last time; readers rebuild a
                // damaged file.
                let begin = Instant::now();
                while pages.iter().zip(seen).any(|(pages, seen)| pages.load(Ordering::Relaxed) < seen + 2) {
                    assert!(begin.elapsed() < Duration::from_secs(60), "a reader has stopped");
                    std::thread::yield_now();
                }
                log.disk.damage(NAMES, |bytes| bytes[70] ^= 1);
                seen = pages.each_ref().map(|pages| pages.load(Ordering::Relaxed));
            }
        }
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(listed(&log), rooms(0..3000));
}

#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Cut(Index),
    /// At the end of an entry, so that the rest is valid.
    CutBetween(Index),
    Zero(Index, u16),
    Remove,
    OfAnotherHub,
    Double,
    Reverse,
}

fn damages() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        2 => any::<Index>().prop_map(Damage::Cut),
        2 => any::<Index>().prop_map(Damage::CutBetween),
        2 => (any::<Index>(), 1..2000u16).prop_map(|(at, n)| Damage::Zero(at, n)),
        1 => Just(Damage::Remove),
        1 => Just(Damage::OfAnotherHub),
        1 => Just(Damage::Double),
        1 => Just(Damage::Reverse),
    ]
}

fn apply(log: &TestLog, damage: &Damage) {
    /// Bytes of an entry in this file.
    const ENTRY: usize = 6 + 9;
    match damage {
        Damage::Remove => log.disk.lose(NAMES),
        Damage::OfAnotherHub => {
            let other = log.disk.bytes("hubs/2/names").unwrap();
            log.disk.damage(NAMES, |bytes| *bytes = other);
        }
        _ => log.disk.damage(NAMES, |bytes| {
            let len = bytes.len();
            match damage {
                Damage::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
                Damage::Cut(at) => bytes.truncate(at.index(len)),
                Damage::CutBetween(at) => bytes.truncate(64 + at.index((len - 64) / ENTRY) * ENTRY),
                Damage::Zero(at, n) => {
                    let at = at.index(len);
                    bytes[at..(at + usize::from(*n)).min(len)].fill(0);
                }
                Damage::Double => bytes.extend_from_within(..),
                Damage::Reverse => bytes.reverse(),
                Damage::Remove | Damage::OfAnotherHub => unreachable!("handled above"),
            }
        }),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 150 } else { 1500 }))]

    #[test]
    fn damage_is_mended_from_the_segments(
        damage in damages(), is_open in any::<bool>(), names_first in any::<bool>(),
    ) {
        let mut log = TestLog::new(2);
        let of_both = |n: u32| vec![(HubId(1), vec![message(n)]), (HubId(2), vec![message(n + 500)])];
        for n in 0..100 {
            log.say(&of_both(n % 70));
        }
        log.apply().unwrap();
        log.segments.checkpoint().unwrap();
        if names_first {
            prop_assert_eq!(listed(&log), rooms(0..70));
        }
        apply(&log, &damage);
        if !is_open {
            log.reopen().unwrap();
        } else if matches!(damage, Damage::Remove) {
            // An open file handle still refers to the old file.
            return Ok(());
        }
        if !is_open || !matches!(damage, Damage::OfAnotherHub) {
            log.check_all();
        }
        say(&mut log, (70..75).map(message));
        log.reopen().unwrap();
        log.check_all();
    }

    #[test]
    fn a_disk_that_fails_does_not_take_the_log_along(
        calls in 0..40u64, mut seed in any::<u64>(), is_lost in any::<bool>(),
    ) {
        let mut log = TestLog::new(1);
        say(&mut log, (0..60).map(message));
        if is_lost {
            log.disk.lose(NAMES);
            log.reopen().unwrap();
        }
        log.disk.set_faults(Faults { fails_after: Some(calls), ..Faults::default() });
        // Only the reader writes: it lists all rooms, or fails.
        let chain = log.segments.chain(HUB).unwrap();
        if let Ok(found) = chain.rooms_page(None, 100, |_| true) {
            prop_assert_eq!(found.len(), 60);
        }
        log.disk.set_faults(Faults::default());
        log.check(HUB);
        crash(&log.disk, &mut seed);
        log.reopen().unwrap();
        log.check(HUB);
    }
}
