//! Retention removes exactly the records over its limits, a segment at a time.

use crate::support::verify;
use crate::support::{Sent, TestLog, read_back};
use hubsub_log::sim::Faults;
use hubsub_log::{ArchiveWait, HubId, Kind, LogError, Retention};

const HUB: HubId = HubId(1);

/// Sixty records of 500 bytes in two rooms; the room "quiet" has none after the tenth.
fn sixty() -> TestLog {
    let mut log = TestLog::new(1);
    for i in 0..60u8 {
        let room = if i < 10 && i % 2 == 0 { b"quiet" } else { b"talks" };
        log.say(&[(HUB, vec![(room.to_vec(), vec![i; 500], Kind::Message)])]);
    }
    log.apply().unwrap();
    log.segments.checkpoint().unwrap();
    log
}

fn retire(log: &mut TestLog, limits: Retention, now_us: u64, hold: Option<u64>) -> u64 {
    log.segments.retire(now_us, |_| (limits, hold)).unwrap();
    log.segments.chain(HUB).unwrap().info().earliest
}

fn room(log: &TestLog, name: &[u8]) -> Vec<Sent> {
    read_back(&log.segments.chain(HUB).unwrap(), name).whole()
}

#[test]
fn bytes_bound_a_hub_and_the_oldest_segments_go() {
    let mut log = sixty();
    let limits = Retention { bytes: 16_000, age_us: 0, ..Retention::default() };
    let earliest = retire(&mut log, limits, 0, None);
    let info = log.segments.chain(HUB).unwrap().info();
    assert!(info.bytes <= 16_000 && info.bytes > 8_000, "{info:?}");
    assert!(earliest > 20);
    let talks = room(&log, b"talks");
    assert_eq!(talks, log.hubs[&HUB].sent[earliest as usize - 1..]);
    assert_eq!(room(&log, b"quiet"), [], "all of it is gone");
    assert_eq!(info.rooms, 1);
    let paths = log.disk.paths().iter().filter(|p| p.ends_with(".segment")).count();
    assert_eq!(paths, info.segments);
    log.reopen().unwrap();
    log.check(HUB);
    assert_eq!(log.segments.chain(HUB).unwrap().info().earliest, earliest);
}

#[test]
fn age_is_that_of_a_segments_last_record() {
    let mut log = sixty();
    // Offset n has the time 10 n.
    let limits = Retention { bytes: 0, age_us: 100, ..Retention::default() };
    let earliest = retire(&mut log, limits, 400, None);
    assert!((20..=30).contains(&earliest), "{earliest}");
    assert_eq!(retire(&mut log, limits, 400, None), earliest);
}

#[test]
fn what_somebody_still_needs_stays() {
    let mut log = sixty();
    let limits = Retention { bytes: 1, age_us: 0, ..Retention::default() };
    assert!(retire(&mut log, limits, 0, Some(20)) <= 20);
    assert!(retire(&mut log, limits, 0, None) > 20);
    // The open segment always stays.
    assert!(!room(&log, b"talks").is_empty());
}

#[test]
fn what_is_not_archived_stays_up_to_a_limit() {
    let mut log = sixty();
    let waits = |bytes_max, archived| Retention {
        bytes: 9_000,
        archive: Some(ArchiveWait { bytes_max, archived }),
        ..Retention::default()
    };
    let bytes = |log: &TestLog| log.segments.chain(HUB).unwrap().info().bytes;
    let all = bytes(&log);
    assert_eq!(retire(&mut log, waits(1 << 20, 0), 0, None), 1);
    let (_, verdict) = log.segments.take_verdicts()[0];
    assert!(verdict.waiting_bytes > 9_000 && verdict.lost.is_none(), "{verdict:?}");
    // Archived records are removed, a whole segment at a time.
    let earliest = retire(&mut log, waits(1 << 20, 30), 0, None);
    assert!(earliest > 1 && earliest <= 30, "{earliest}");
    assert_eq!(log.segments.take_verdicts()[0].1.lost, None);
    // Over the size limit segments are removed one by one, and the loss is reported.
    let limit = bytes(&log) - 1;
    let lost_to = retire(&mut log, waits(limit, 30), 0, None);
    assert_eq!(log.segments.take_verdicts()[0].1.lost, Some((30, lost_to)));
    assert!(bytes(&log) <= limit && bytes(&log) > 9_000 && limit < all);
    log.reopen().unwrap();
    log.check(HUB);
}

#[test]
fn power_may_fail_in_the_middle_of_it() {
    for keeps in [true, false] {
        let mut log = sixty();
        retire(&mut log, Retention { bytes: 9_000, age_us: 0, ..Retention::default() }, 0, None);
        log.disk.crash(|| keeps);
        log.reopen().unwrap();
        assert_eq!(log.warnings, [] as [String; 0]);
        log.check(HUB);
        let found = verify(&log.disk).unwrap();
        assert_eq!(found.problems, [] as [String; 0]);
        assert_eq!(found.hubs[0].records as usize, log.held(HUB).unwrap().len());
    }
}

#[test]
fn a_room_whose_records_are_gone_goes_on_in_its_epoch() {
    let mut log = sixty();
    retire(&mut log, Retention { bytes: 9_000, age_us: 0, ..Retention::default() }, 0, None);
    assert_eq!(room(&log, b"quiet"), []);
    let epoch = log.hubs[&HUB].rooms[&b"quiet"[..]].0;
    // A subscriber keeps the room in memory, with its epoch and seq.
    for i in 0..40u8 {
        log.say(&[(HUB, vec![(b"quiet".to_vec(), vec![i; 500], Kind::Message)])]);
        log.apply().unwrap();
        let records = room(&log, b"quiet");
        assert_eq!((records.len(), records[0].seq, records[0].epoch), (usize::from(i) + 1, 6, epoch));
    }
    log.segments.checkpoint().unwrap();
    log.check(HUB);
    // A rebuilt index does not link to removed records, either.
    let indexes = log.disk.paths().into_iter().filter(|path| path.ends_with(".index"));
    indexes.for_each(|path| hubsub_log::storage::Storage::unlink(&log.disk, &path).unwrap());
    log.reopen().unwrap();
    log.check(HUB);
}

#[test]
fn a_disk_without_room_for_the_manifest_gets_its_room_back() {
    let mut log = sixty();
    let files = |log: &TestLog, end: &str| log.disk.paths().iter().filter(|p| p.ends_with(end)).count();
    let full = Faults { free_bytes: Some(0), ..Faults::default() };
    // Two checkpoints and a retirement fail for lack of space.
    for i in 0..60u8 {
        log.say(&[(HUB, vec![(b"talks".to_vec(), vec![i; 500], Kind::Message)])]);
    }
    log.apply().unwrap();
    log.disk.set_faults(full);
    assert!(matches!(log.segments.checkpoint(), Err(LogError::Full)));
    let limits = Retention { bytes: 9_000, age_us: 0, ..Retention::default() };
    assert!(matches!(log.segments.retire(0, |_| (limits, None)), Err(LogError::Full)));
    log.disk.set_faults(Faults::default());
    log.segments.retire(0, |_| (limits, None)).unwrap();
    log.segments.checkpoint().unwrap();
    log.segments.retire(0, |_| (limits, None)).unwrap();
    assert_eq!(files(&log, ".segment"), log.segments.chain(HUB).unwrap().info().segments);
    // The current one, the next one, and a spare one.
    assert!(files(&log, ".journal") <= 3, "{:?}", log.disk.paths());
    log.reopen().unwrap();
    log.check(HUB);
}
