//! Repairs after single damages.

use crate::support::verify;
use crate::support::{OPTIONS, Sent, TestLog, read_back, read_on};
use hubsub_log::manifest::{Lost, Manifest};
use hubsub_log::record::{self, Record};
use hubsub_log::repair::{Repair, UNKNOWN_OFFSETS, repair};
use hubsub_log::show::{Selection, show};
use hubsub_log::sim::{Faults, SimDisk};
use hubsub_log::verify::{Verified, verify_watched};
use hubsub_log::{Compaction, Cursor, HubId, Keep, Kind, LogError, LogOptions, Retention};
use std::ops::ControlFlow;
use std::sync::Arc;

const HUB: HubId = HubId(1);
const NONE: [String; 0] = [];

/// Sixty records of 500 bytes in two rooms, all in segments and none in a journal (a recycled journal may
/// have older frames after the new ones); and a second hub without records.
fn sixty() -> TestLog {
    sixty_in(TestLog::new(2))
}

fn sixty_in(mut log: TestLog) -> TestLog {
    for i in 0..60u8 {
        let room = if i % 2 == 0 { b"even" } else { b"odds" };
        log.say(&[(HUB, vec![(room.to_vec(), vec![i; 500], Kind::Message)])]);
        log.apply().unwrap();
    }
    log.segments.checkpoint().unwrap();
    log.close();
    wipe_journals(&log.disk);
    log
}

fn wipe_journals(disk: &SimDisk) {
    for journal in disk.paths().iter().filter(|path| path.starts_with("journal/")) {
        disk.damage(journal, |bytes| bytes[64..].fill(0));
    }
}

fn run(disk: &SimDisk, only: Option<HubId>, accepts_loss: bool) -> Result<Repair, LogError> {
    repair(&Arc::new(disk.clone()), OPTIONS, only, accepts_loss, &mut |_| ControlFlow::Continue(()))
}

fn offsets(disk: &SimDisk, hub: HubId, room: Option<&[u8]>, from: u64, count: u64) -> Vec<u64> {
    let wanted = Selection { hub: Some(hub), room: room.map(<[u8]>::to_vec), from, count };
    let mut all = Vec::new();
    show(disk, &wanted, &mut |record| {
        all.push(record.offset);
        ControlFlow::Continue(())
    })
    .unwrap();
    all
}

fn segments(disk: &SimDisk) -> Vec<String> {
    disk.paths()
        .into_iter()
        .filter(|path| path.starts_with("hubs/1/") && path.ends_with(".segment"))
        .collect()
}

#[test]
fn a_record_that_is_damaged_leaves_a_hole_of_one() {
    let mut log = sixty();
    let path = segments(&log.disk)[2].clone();
    log.disk.damage(&path, |bytes| bytes[1000] ^= 1);
    let first: u64 = path.trim_end_matches(".segment").rsplit('/').next().unwrap().parse().unwrap();

    let dry = run(&log.disk, None, false).unwrap();
    assert_eq!((dry.is_done, dry.hubs.len()), (false, 1));
    let told = &dry.hubs[0];
    assert_eq!((told.hub, told.kept, &told.lost[..]), (HUB, (59, 0), &[Lost(first + 1, first + 1)][..]));
    assert_eq!((told.next, told.unknown_from, &told.set_aside), (61, None, &vec![path.clone()]));

    let damaged = log.disk.bytes(&path).unwrap();
    let done = run(&log.disk, None, true).unwrap();
    assert!(done.is_done && done.left.is_empty());
    assert_eq!(log.disk.bytes(&format!("{path}.damaged")).unwrap(), damaged, "it is put aside");
    let kept: Vec<u64> = (1..=60).filter(|&offset| offset != first + 1).collect();
    assert_eq!(offsets(&log.disk, HUB, None, 0, u64::MAX), kept);
    assert_eq!(run(&log.disk, None, true).unwrap().problems, NONE, "there is nothing left to do");

    // Files put aside survive restarts, and the epochs have ended.
    log.reopen().unwrap();
    assert_eq!(log.warnings, NONE);
    assert!(log.disk.bytes(&format!("{path}.damaged")).is_some());
    assert_eq!((log.segments.continuous_from(HUB), log.segments.continuous_from(HubId(2))), (61, 1));
    let chain = log.segments.chain(HUB).unwrap();
    let mut bytes = Vec::new();
    assert_eq!(
        chain.read_offsets(first + 1, 1, &mut bytes).unwrap(),
        first + 3,
        "it goes on behind the hole"
    );
    assert_eq!(chain.info().last_us, 600);
}

#[test]
fn a_lost_segment_is_a_hole_and_rooms_are_read_over_it_backwards_only() {
    let mut log = sixty();
    let all = segments(&log.disk);
    log.disk.lose(&all[1]);
    let done = run(&log.disk, None, true).unwrap();
    let lost = done.hubs[0].lost[0];
    assert!(lost.1 > lost.0 + 4 && done.hubs[0].set_aside.is_empty(), "{lost:?}");
    log.reopen().unwrap();
    let chain = log.segments.chain(HUB).unwrap();
    let offsets = |records: Vec<Sent>| records.iter().map(|sent| sent.offset).collect::<Vec<u64>>();
    let is_there = |offset: &u64| !(lost.0..=lost.1).contains(offset);
    let back = offsets(read_back(&chain, b"even").whole());
    assert_eq!(back, (1..=59).step_by(2).filter(is_there).collect::<Vec<u64>>());
    let on = offsets(read_on(&chain, b"even", 2, 1, u64::MAX).whole());
    assert_eq!(on, (1..=59).step_by(2).filter(|offset| *offset > lost.1).collect::<Vec<u64>>());
}

#[test]
fn who_reads_a_hub_through_is_told_of_a_hole_where_it_is() {
    let mut log = sixty();
    log.disk.lose(&segments(&log.disk)[1]);
    let lost = run(&log.disk, None, true).unwrap().hubs[0].lost[0];
    log.reopen().unwrap();
    let chain = log.segments.chain(HUB).unwrap();
    let read = |cursor: &mut Cursor<SimDisk>| {
        let mut offsets = Vec::new();
        let outcome = chain.read_through(cursor, u64::MAX, |record| {
            offsets.push(record.offset);
            ControlFlow::Continue(())
        });
        (offsets, outcome)
    };
    let mut cursor = Cursor::at(1);
    let (before, outcome) = read(&mut cursor);
    assert_eq!((before, cursor.next()), ((1..lost.0).collect(), lost.0));
    for at in [lost.0, lost.0 + 1, lost.1] {
        let (none, outcome) = read(&mut Cursor::at(at));
        let is_gone =
            |e: &LogError| matches!(*e, LogError::Gone { first, end } if (first, end) == (at, lost.1 + 1));
        assert!(none.is_empty() && outcome.is_err_and(|e| is_gone(&e)), "{at} of {lost:?}");
    }
    assert!(matches!(outcome, Err(LogError::Gone { first, end }) if (first, end) == (lost.0, lost.1 + 1)));
    let (behind, outcome) = read(&mut Cursor::at(lost.1 + 1));
    assert!(outcome.is_ok());
    assert_eq!(behind, (lost.1 + 1..chain.next()).collect::<Vec<_>>());
}

#[test]
fn an_index_that_is_lost_as_well_is_made_again_over_the_hole() {
    let mut log = sixty();
    let all = segments(&log.disk);
    log.disk.lose(&all[1]);
    run(&log.disk, None, true).unwrap();
    log.reopen().unwrap();
    let chain = log.segments.chain(HUB).unwrap();
    for path in log.disk.paths().iter().filter(|path| path.ends_with(".index")) {
        log.disk.damage(path, |bytes| bytes.fill(0));
    }
    let n = read_back(&chain, b"odds").whole().len();
    assert!(n > 20, "{n}");
}

#[test]
fn retention_takes_holes_with_it() {
    let mut log = sixty();
    let all = segments(&log.disk);
    log.disk.lose(&all[1]);
    run(&log.disk, None, true).unwrap();
    log.reopen().unwrap();
    log.segments
        .retire(0, |_| (Retention { bytes: 9_000, age_us: 0, ..Retention::default() }, None))
        .unwrap();
    let entry = log.segments.manifest().hub(HUB).unwrap();
    assert!(entry.earliest > 20 && entry.lost.is_empty(), "{entry:?}");
    log.reopen().unwrap();
    assert_eq!((&log.warnings, verify(&log.disk).unwrap().problems), (&Vec::new(), Vec::new()));
}

#[test]
fn a_room_whose_beginning_was_retired_is_read_without_its_index() {
    let mut log = sixty();
    log.reopen().unwrap();
    log.segments
        .retire(0, |_| (Retention { bytes: 9_000, age_us: 0, ..Retention::default() }, None))
        .unwrap();
    for path in log.disk.paths().iter().filter(|path| path.ends_with(".index")) {
        log.disk.damage(path, |bytes| bytes.fill(0));
    }
    let chain = log.segments.chain(HUB).unwrap();
    let n = read_back(&chain, b"even").whole().len();
    assert!(n > 3, "{n}");
}

#[test]
fn the_beginning_and_everything_may_be_lost() {
    let log = sixty();
    let all = segments(&log.disk);
    log.disk.lose(&all[0]);
    let done = run(&log.disk, None, true).unwrap();
    assert_eq!((done.hubs[0].lost[0].0, done.hubs[0].earliest), (1, done.hubs[0].lost[0].1 + 1));
    assert_eq!(Manifest::load(&log.disk).unwrap().unwrap().hubs[0].lost, []);

    segments(&log.disk).iter().for_each(|path| log.disk.lose(path));
    let done = run(&log.disk, None, true).unwrap();
    assert_eq!((done.hubs[0].kept, done.hubs[0].earliest, done.hubs[0].next), ((0, 0), 61, 61));
    assert_eq!(verify(&log.disk).unwrap().problems, NONE);
    let mut log = log;
    log.reopen().unwrap();
    assert_eq!((&log.warnings, log.segments.chain(HUB).unwrap().next()), (&Vec::new(), 61));
}

#[test]
fn where_nobody_can_tell_how_many_are_missing_offsets_are_left_out() {
    let mut log = TestLog::new(1);
    for i in 0..20u8 {
        log.say(&[(HUB, vec![(b"r".to_vec(), vec![i; 900], Kind::Message)])]);
    }
    let journals: Vec<String> =
        log.disk.paths().into_iter().filter(|path| path.starts_with("journal/")).collect();
    assert!(journals.len() > 2);
    log.disk.lose(&journals[1]);
    log.disk.lose(&journals[2]);
    let done = run(&log.disk, None, true).unwrap();
    let hub = &done.hubs[0];
    assert!(hub.kept.0 == hub.kept.1 && hub.kept.0 > 3, "{hub:?}");
    assert_eq!((hub.unknown_from, hub.next), (Some(hub.kept.0 + 1), hub.kept.0 + 1 + UNKNOWN_OFFSETS));
    assert_eq!((&hub.lost[..], done.left), (&[][..], vec![]));
    log.reopen().unwrap();
    let chain = log.segments.chain(HUB).unwrap();
    assert_eq!((chain.next(), chain.info().last_us), (hub.next, hub.kept.0 * 10), "time does not fall");
}

#[test]
fn journals_that_a_start_put_aside_give_back_what_they_have() {
    let mut log = TestLog::new(2);
    for i in 0..12u8 {
        let to = |hub| (hub, vec![(b"r".to_vec(), vec![i; 300], Kind::Message)]);
        log.say(&[to(HUB), to(HubId(2))]);
        log.apply().unwrap();
        if i == 5 {
            log.segments.checkpoint().unwrap();
        }
    }
    let path = segments(&log.disk)[0].clone();
    log.disk.damage(&path, |bytes| bytes[200] ^= 4);
    log.reopen().unwrap();
    assert!(log.segments.chain(HUB).is_none());
    // The other hub has continued since.
    log.hubs.get_mut(&HUB).unwrap().sent.clear();
    let done = run(&log.disk, Some(HUB), true).unwrap();
    assert_eq!(done.left, NONE);
    let kept = offsets(&log.disk, HUB, None, 0, u64::MAX);
    assert!(kept.len() >= 11 && kept[kept.len() - 6..] == [7, 8, 9, 10, 11, 12], "{kept:?}");
    assert_eq!(offsets(&log.disk, HubId(2), None, 0, u64::MAX).len(), 12);
}

#[test]
fn one_hub_may_be_mended_and_the_other_left() {
    let mut log = TestLog::new(2);
    for i in 0..30u8 {
        let to = |hub| (hub, vec![(b"r".to_vec(), vec![i; 400], Kind::Message)]);
        log.say(&[to(HUB), to(HubId(2))]);
    }
    log.apply().unwrap();
    log.segments.checkpoint().unwrap();
    for hub in ["hubs/1/", "hubs/2/"] {
        let of_hub = |path: &&String| path.starts_with(hub) && path.ends_with(".segment");
        let path = log.disk.paths().iter().find(of_hub).unwrap().clone();
        log.disk.damage(&path, |bytes| bytes[300] ^= 1);
    }
    let done = run(&log.disk, Some(HubId(2)), true).unwrap();
    assert_eq!((done.hubs.len(), done.hubs[0].hub), (1, HubId(2)));
    assert!(done.left.iter().all(|problem| problem.starts_with("hub 1 ")) && !done.left.is_empty());
    assert!(run(&log.disk, Some(HubId(3)), true).unwrap_err().to_string().contains("no hub 3"));
}

#[test]
fn a_lost_or_damaged_manifest_is_made_again_from_what_hubs_say() {
    for is_lost in [true, false] {
        let mut log = sixty();
        if is_lost {
            log.disk.lose("manifest.json");
        } else {
            log.disk.damage("manifest.json", |bytes| bytes[20] ^= 1);
        }
        assert!(log.reopen().is_err());
        let done = run(&log.disk, None, true).unwrap();
        assert!(done.manifest.is_some() && done.left.is_empty());
        assert_eq!((done.hubs[0].kept.0, done.hubs[1].kept.0), (60, 0));
        assert_eq!(log.disk.paths().contains(&"manifest.json.damaged".to_owned()), !is_lost);
        assert_eq!(offsets(&log.disk, HUB, None, 0, u64::MAX), (1..=60).collect::<Vec<u64>>());
        log.reopen().unwrap();
        let manifest = log.segments.manifest();
        assert_eq!((log.warnings.len(), &*manifest.hubs[0].class, manifest.hubs[1].index), (0, "chat", 1));
        assert!(manifest.hubs.iter().all(|entry| entry.continuous_from == entry.next));
    }
}

/// The same, but the first hub keeps the latest of each key.
fn sixty_of_the_latest() -> TestLog {
    sixty_in(TestLog::with(&[Keep::Latest, Keep::Log], OPTIONS))
}

#[test]
fn a_hub_of_the_latest_that_was_never_compacted_is_mended_as_any() {
    for loses_manifest in [false, true] {
        let mut log = sixty_of_the_latest();
        let path = segments(&log.disk)[2].clone();
        log.disk.damage(&path, |bytes| bytes[1000] ^= 1);
        if loses_manifest {
            log.disk.lose("manifest.json");
        }
        let done = run(&log.disk, None, true).unwrap();
        assert!(done.is_done && done.left.is_empty(), "{:?}", done.left);
        assert_eq!((done.hubs[0].hub, done.hubs[0].kept.0), (HUB, 59));
        assert_eq!(offsets(&log.disk, HUB, None, 0, u64::MAX).len(), 59);
        log.reopen().unwrap();
        assert_eq!(log.segments.manifest().hubs[0].keep, Keep::Latest);
    }
}

#[test]
fn of_a_hub_of_the_latest_that_was_compacted_nobody_can_tell_what_is_lost() {
    for loses_manifest in [false, true] {
        let mut log = sixty_of_the_latest();
        log.reopen().unwrap();
        assert!(log.segments.compact(u64::MAX / 2, Compaction::default(), |_| None).unwrap() > 0);
        log.segments.checkpoint().unwrap();
        log.close();
        let before = log.disk.paths();
        assert_eq!(run(&log.disk, None, true).unwrap().problems, NONE, "it is whole");
        if loses_manifest {
            log.disk.lose("manifest.json");
        } else {
            let path = segments(&log.disk)[0].clone();
            log.disk.damage(&path, |bytes| bytes[1000] ^= 1);
            assert!(run(&log.disk, Some(HubId(2)), true).is_ok(), "another hub may be mended");
        }
        let refused = run(&log.disk, None, true).unwrap_err().to_string();
        assert!(refused.contains("hub 1 keeps the latest of each key"), "{refused}");
        let after: Vec<String> = log.disk.paths();
        assert!(
            before.iter().all(|path| path == "manifest.json" || after.contains(path)),
            "nothing is put aside"
        );
    }
}

#[test]
fn what_else_is_missing_beside_the_manifest_is_told() {
    let log = sixty();
    let path = segments(&log.disk)[2].clone();
    log.disk.lose("manifest.json");
    log.disk.lose(&path);
    let done = run(&log.disk, None, true).unwrap();
    let hub = &done.hubs[0];
    assert_eq!((hub.lost.len(), hub.kept.0 + hub.lost[0].1 + 1 - hub.lost[0].0), (1, 60));
    assert_eq!((hub.unknown_from, hub.next, done.left), (Some(61), 61 + UNKNOWN_OFFSETS, vec![]));
}

#[test]
fn without_what_a_hub_says_of_itself_a_lost_manifest_is_refused() {
    for damages in [true, false] {
        let log = sixty();
        log.disk.lose("manifest.json");
        if damages {
            log.disk.damage("hubs/2/hub.json", |bytes| bytes[5] ^= 1);
        } else {
            log.disk.lose("hubs/2/hub.json");
        }
        let before = log.disk.paths();
        let why = run(&log.disk, None, true).unwrap_err().to_string();
        assert!(why.contains("hub.json") && why.contains("hint: bring manifest.json back"), "{why}");
        assert_eq!(log.disk.paths(), before);
    }
    let why = run(&SimDisk::default(), None, true).unwrap_err().to_string();
    assert!(why.contains("no log to mend") && why.contains("hint: start the node"), "{why}");
}

#[test]
fn what_a_hub_says_of_itself_is_written_again_when_it_is_lost() {
    let mut log = sixty();
    log.disk.lose("hubs/1/hub.json");
    log.disk.damage("hubs/2/hub.json", |bytes| bytes[5] ^= 1);
    log.reopen().unwrap();
    log.disk.lose("manifest.json");
    assert!(run(&log.disk, None, false).is_ok());
}

#[test]
fn records_inside_of_a_payload_are_never_taken_for_records() {
    // A payload that contains the bytes of records of the same hub with the following offsets: fewer than
    // really follow, as many, and more.
    for fakes in 1..6 {
        let mut log = TestLog::new(1);
        let mut payload = vec![0; 40];
        for offset in 3..3 + fakes {
            let fake = Record {
                hub: HUB,
                offset,
                epoch: 2,
                seq: offset,
                room: b"r",
                topic: b"r",
                payload: b"fake",
                ..Record::default()
            };
            record::encode(&fake, &mut payload);
        }
        for payload in
            [b"one".to_vec(), payload.clone(), b"three".to_vec(), b"four".to_vec(), b"five".to_vec()]
        {
            log.say(&[(HUB, vec![(b"r".to_vec(), payload, Kind::Message)])]);
        }
        log.apply().unwrap();
        log.segments.checkpoint().unwrap();
        let path = segments(&log.disk)[0].clone();
        // The journals would restore every record.
        wipe_journals(&log.disk);
        let bytes = log.disk.bytes(&path).unwrap();
        let second = 64 + record::decode(&bytes[64..]).unwrap().1;
        let first_fake = bytes.windows(payload.len()).position(|at| at == payload).unwrap() + 40;
        // The second record's length points into its own payload, or has one wrong bit.
        let length = (first_fake - second - record::PREFIX_BYTES) as u32;
        let real = u32::from_le_bytes(*bytes[second..].first_chunk().unwrap());
        for length in std::iter::once(length).chain((0..32).map(|bit| real ^ 1 << bit)) {
            let disk = log.disk.copy();
            disk.damage(&path, |bytes| bytes[second..second + 4].copy_from_slice(&length.to_le_bytes()));
            run(&disk, None, true).unwrap();
            let wanted = Selection { hub: Some(HUB), room: None, from: 0, count: u64::MAX };
            show(&disk, &wanted, &mut |record| {
                assert_ne!(record.payload, b"fake", "{fakes} of them, length {length}");
                ControlFlow::Continue(())
            })
            .unwrap();
        }
    }
}

#[test]
fn a_segment_of_another_directory_gives_nothing() {
    let log = sixty();
    let path = segments(&log.disk)[1].clone();
    log.disk.damage(&path, |bytes| {
        bytes[32] ^= 1;
        let checksum = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
    });
    let done = run(&log.disk, None, true).unwrap();
    let Lost(first, last) = done.hubs[0].lost[0];
    assert!(last > first + 4 && done.hubs[0].kept.0 == 60 - (last + 1 - first), "{:?}", done.hubs);
    // But a file with an unreadable head yields all its records.
    let log = sixty();
    log.disk.damage(&path, |bytes| bytes[32] ^= 1);
    assert_eq!(run(&log.disk, None, true).unwrap().hubs[0].kept.0, 60);
}

#[test]
fn records_are_shown_by_hub_room_offset_and_number() {
    let mut log = sixty();
    log.reopen().unwrap();
    // Three more, in the journal only.
    for _ in 0..3 {
        log.say(&[(HUB, vec![(b"odds".to_vec(), vec![1; 10], Kind::Message)])]);
    }
    let before: Vec<_> = log.disk.paths().into_iter().map(|path| (log.disk.bytes(&path), path)).collect();
    assert_eq!(offsets(&log.disk, HUB, None, 0, u64::MAX), (1..=63).collect::<Vec<u64>>());
    assert_eq!(offsets(&log.disk, HUB, None, 58, 4), [58, 59, 60, 61]);
    assert_eq!(offsets(&log.disk, HUB, Some(b"odds"), 57, u64::MAX), [58, 60, 61, 62, 63]);
    assert!(offsets(&log.disk, HUB, Some(b"nobody"), 0, u64::MAX).is_empty());
    assert!(offsets(&log.disk, HubId(2), None, 0, u64::MAX).is_empty());
    assert!(offsets(&log.disk, HUB, None, 0, 0).is_empty());
    let after: Vec<_> = log.disk.paths().into_iter().map(|path| (log.disk.bytes(&path), path)).collect();
    assert!(before == after, "nothing has changed");
    let Verified { hubs, journal_records, problems } = verify(&log.disk).unwrap();
    assert_eq!((hubs[0].records, hubs[0].journal_records, hubs[0].next, journal_records), (60, 3, 64, 3));
    assert_eq!(problems, NONE);
}

#[test]
fn who_watches_may_stop_it() {
    let log = sixty();
    let mut seen = Vec::new();
    let stopped = verify_watched(&log.disk, &mut |progress| {
        seen.push((progress.0, progress.1));
        if seen.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert!(matches!(stopped, Err(LogError::Stopped)));
    assert!(seen.is_sorted() && seen[2].0 < seen[2].1, "{seen:?}");
}

#[test]
fn a_repair_that_was_cut_short_anywhere_is_done_again_and_keeps_as_much() {
    let log = sixty();
    let path = segments(&log.disk)[2].clone();
    // The third record's length: later records are found only through the index.
    let at = {
        let bytes = log.disk.bytes(&path).unwrap();
        let mut at = 64;
        for _ in 0..2 {
            at += record::len(&bytes[at..]).unwrap();
        }
        at
    };
    log.disk.damage(&path, |bytes| bytes[at..at + 8].fill(0xff));
    let whole = log.disk.copy();
    run(&whole, None, true).unwrap();
    let kept = offsets(&whole, HUB, None, 0, u64::MAX);
    assert_eq!(kept.len(), 59);
    for calls in 0.. {
        let disk = log.disk.copy();
        disk.set_faults(Faults { fails_after: Some(calls), ..Faults::default() });
        let is_done = run(&disk, None, true).is_ok();
        disk.set_faults(Faults::default());
        run(&disk, None, true).unwrap();
        assert_eq!(offsets(&disk, HUB, None, 0, u64::MAX), kept, "cut after {calls} calls");
        if is_done {
            return;
        }
    }
}

#[test]
fn a_repair_does_not_make_a_clean_end_of_an_unclean_one() {
    for is_clean in [false, true] {
        let mut log = sixty();
        if !is_clean {
            log.reopen().unwrap();
        }
        let path = segments(&log.disk)[2].clone();
        log.disk.damage(&path, |bytes| bytes[1000] ^= 1);
        assert!(run(&log.disk, None, true).unwrap().is_done);
        // Acknowledgements from memory alone require this, also where nothing was repaired.
        let opened = crate::support::opened(&log.disk).unwrap();
        assert_eq!(opened.was_clean, is_clean);
    }
}

#[test]
fn a_repair_on_a_full_disk_takes_what_is_kept_for_that() {
    let mut log = sixty();
    log.options = LogOptions { reserve_bytes: 256 << 10, ..OPTIONS };
    log.reopen().unwrap();
    assert!(log.segments.keep_reserve().unwrap());
    log.segments.checkpoint().unwrap();
    let path = segments(&log.disk)[2].clone();
    log.disk.damage(&path, |bytes| bytes[1000] ^= 1);
    log.disk.set_faults(Faults { free_bytes: Some(9000), ..Faults::default() });
    assert!(run(&log.disk, None, true).unwrap().is_done);
    assert_eq!(offsets(&log.disk, HUB, None, 0, u64::MAX).len(), 59);
    // The node then starts although other files have taken the released space.
    log.disk.set_faults(Faults { free_bytes: Some(0), ..Faults::default() });
    log.reopen().unwrap();
    assert_eq!(log.warnings, NONE);
}
