//! Power may fail at any moment: afterwards the log has all acknowledged records, and none that was not sent.

use crate::support::sim::Faults;
use crate::support::{OPTIONS, Publish, TestLog, crash};
use hubsub_log::{HubId, Keep, Kind, LogError, LogOptions};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    /// A frame: for each hub rooms and payload lengths.
    Append(Vec<(u8, Vec<(u8, u16)>)>),
    Delete(u8, u8),
    Apply,
    Checkpoint,
    CleanRestart,
    /// Seed that decides what survives, and whether a frame was in flight.
    Crash(u64, bool),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let records = prop::collection::vec((0..6u8, prop_oneof![0..200u16, 0..3000u16]), 1..5);
    let append = prop::collection::vec((0..2u8, records), 1..3).prop_map(Step::Append);
    let step = prop_oneof![
        8 => append,
        1 => (0..2u8, 0..6u8).prop_map(|(hub, room)| Step::Delete(hub, room)),
        3 => Just(Step::Apply),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::CleanRestart),
        2 => (any::<u64>(), any::<bool>()).prop_map(|(seed, half)| Step::Crash(seed, half)),
    ];
    prop::collection::vec(step, 1..40)
}

fn hub(n: u8) -> HubId {
    HubId(u32::from(n) + 1)
}

fn room(n: u8) -> Vec<u8> {
    format!("room:{n}").into_bytes()
}

fn frame(what: &[(u8, Vec<(u8, u16)>)]) -> Vec<(HubId, Vec<Publish>)> {
    let mut by_hub: std::collections::BTreeMap<HubId, Vec<_>> = Default::default();
    for (h, records) in what {
        let of = |&(r, len): &(u8, u16)| (room(r), vec![r ^ len as u8; usize::from(len)], Kind::Message);
        by_hub.entry(hub(*h)).or_default().extend(records.iter().map(of));
    }
    by_hub.into_iter().collect()
}

fn run(steps: Vec<Step>) {
    let mut log = TestLog::new(2);
    for step in steps {
        match step {
            Step::Append(what) => {
                log.say(&frame(&what));
            }
            Step::Delete(h, r) => {
                if log.hubs[&hub(h)].rooms.contains_key(&room(r)) {
                    log.say(&[(hub(h), vec![(room(r), Vec::new(), Kind::RoomDeleted)])]);
                }
            }
            Step::Apply => log.apply().unwrap(),
            Step::Checkpoint => {
                log.apply().unwrap();
                log.segments.checkpoint().unwrap();
            }
            Step::CleanRestart => {
                log.apply().unwrap();
                log.close();
                log.reopen().unwrap();
                assert_eq!(log.warnings, [] as [String; 0]);
                log.check_all();
            }
            Step::Crash(mut seed, half) => {
                if half {
                    log.append(&frame(&[(0, vec![(0, 300), (1, 10)]), (1, vec![(2, 1000)])])).unwrap();
                }
                crash(&log.disk, &mut seed);
                log.reopen().unwrap();
                assert_eq!(log.warnings, [] as [String; 0]);
                log.check_all();
            }
        }
    }
    log.apply().unwrap();
    log.check_all();
}

#[test]
fn after_a_failed_sync_there_is_no_checkpoint() {
    // A retried sync could succeed without the bytes that the first one lost.
    let mut log = TestLog::new(1);
    log.say(&frame(&[(0, vec![(0, 300)])]));
    log.apply().unwrap();
    log.disk.set_faults(Faults { fails_after: Some(0), ..Faults::default() });
    assert!(log.segments.checkpoint().is_err());
    log.disk.set_faults(Faults::default());
    assert!(matches!(log.segments.checkpoint(), Err(LogError::Broken)));
    log.disk.crash(|| false);
    log.reopen().unwrap();
    log.check_all();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 3000 }))]

    #[test]
    fn what_was_acknowledged_is_read_back_and_nothing_that_was_not_sent(steps in steps()) {
        run(steps);
    }

    #[test]
    fn a_failing_disk_loses_nothing_that_was_acknowledged(
        (frames, faults) in (prop::collection::vec(0..900u16, 1..40), prop::collection::vec((0..60u64, 1..700usize), 1..5)),
        mut seed in any::<u64>(),
    ) {
        let mut log = TestLog::new(2);
        let mut faults = faults.into_iter();
        for (i, len) in frames.into_iter().enumerate() {
            if i % 8 == 0 && let Some((calls, bytes)) = faults.next() {
                log.disk.set_faults(Faults {
                    fails_after: Some(calls),
                    write_bytes_max: Some(bytes),
                    read_bytes_max: Some(bytes),
                    ..Faults::default()
                });
            }
            let what = frame(&[(i as u8 % 2, vec![(i as u8 % 5, len), (0, 3)])]);
            let tried = log.append(&what).and_then(|()| log.sync()).and_then(|()| log.apply());
            let tried = if i % 3 == 0 { tried.and_then(|()| log.segments.checkpoint()) } else { tried };
            if tried.is_err() {
                // The node stops here, and power fails.
                crash(&log.disk, &mut seed);
                log.reopen().unwrap();
                log.check_all();
            }
        }
        log.disk.set_faults(Faults::default());
        log.reopen().unwrap();
        log.check_all();
    }

    #[test]
    fn a_full_disk_refuses_and_goes_on_when_it_has_room(
        lens in prop::collection::vec(0..1500u16, 1..60), free in 0..30_000u64,
    ) {
        let mut log = TestLog::new(2);
        log.disk.set_faults(Faults { free_bytes: Some(free), ..Faults::default() });
        let mut refused = 0;
        for (i, len) in lens.into_iter().enumerate() {
            let before = log.hubs.clone();
            let what = frame(&[(i as u8 % 2, vec![(i as u8 % 5, len)])]);
            match log.append(&what) {
                Ok(()) => log.sync().unwrap(),
                Err(LogError::Full) => {
                    log.hubs = before;
                    refused += 1;
                }
                Err(e) => panic!("{e}"),
            }
            match log.apply().and_then(|()| log.segments.checkpoint()) {
                Ok(()) | Err(LogError::Full) => {}
                Err(e) => panic!("{e}"),
            }
            if refused == 5 {
                log.disk.set_faults(Faults::default());
            }
        }
        log.disk.set_faults(Faults::default());
        log.say(&frame(&[(0, vec![(0, 10)]), (1, vec![(0, 10)])]));
        log.apply().unwrap();
        log.segments.checkpoint().unwrap();
        log.check_all();
        log.reopen().unwrap();
        log.check_all();
    }
}

#[test]
fn a_node_that_was_killed_on_a_full_disk_starts_there_and_reads_what_was_acknowledged() {
    let options = LogOptions { reserve_bytes: 64 << 10, ..OPTIONS };
    let mut log = TestLog::with(&[Keep::Log], options);
    assert!(log.segments.keep_reserve().unwrap());
    log.say(&frame(&[(0, vec![(0, 1000), (1, 1000)])]));
    log.disk.set_faults(Faults { free_bytes: Some(0), ..Faults::default() });
    log.reopen().unwrap();
    log.check_all();
    log.disk.set_faults(Faults::default());
    assert!(log.segments.keep_reserve().unwrap());
}

/// A log on a disk that other files have filled to the last byte after it was killed there.
fn killed_twice_on_a_full_disk() -> TestLog {
    // The space kept for a start is smaller than a journal.
    let options = LogOptions { reserve_bytes: 64 << 10, journal_bytes: 2 << 20, ..OPTIONS };
    let mut log = TestLog::with(&[Keep::Log, Keep::Log], options);
    assert!(log.segments.keep_reserve().unwrap());
    for i in 0..20u16 {
        log.append(&frame(&[(0, vec![(0, 1000 + i), (1, 1000)]), (1, vec![(2, 70)])])).unwrap();
        log.sync().unwrap();
    }
    log.disk.set_faults(Faults { free_bytes: Some(0), ..Faults::default() });
    log.reopen().unwrap();
    log.disk.set_faults(Faults { free_bytes: Some(0), ..Faults::default() });
    log
}

#[test]
fn a_node_that_is_killed_again_on_a_full_disk_starts_without_the_reserve_that_it_had() {
    let mut log = killed_twice_on_a_full_disk();
    for _ in 0..3 {
        log.reopen().unwrap();
        assert_eq!(log.warnings, [] as [String; 0]);
        log.check_all();
        assert!(!log.segments.keep_reserve().unwrap(), "so it takes no records");
        // The writes of a node's start succeed, too.
        log.segments.end_epochs(hub(0)).unwrap();
        log.segments.checkpoint().unwrap();
        log.disk.set_faults(Faults { free_bytes: Some(0), ..Faults::default() });
    }
    log.disk.set_faults(Faults::default());
    assert!(log.segments.keep_reserve().unwrap());
    log.append(&frame(&[(0, vec![(0, 10)]), (1, vec![(0, 10)])])).unwrap();
    log.sync().unwrap();
    log.reopen().unwrap();
    log.check_all();
}

#[test]
fn a_start_on_a_full_disk_that_is_cut_short_anywhere_loses_nothing() {
    let before = killed_twice_on_a_full_disk();
    let full = |free, calls| Faults { free_bytes: Some(free), fails_after: calls, ..Faults::default() };
    let (mut seed, mut calls) = (7, 0);
    loop {
        let mut log = TestLog { disk: before.disk.copy(), hubs: before.hubs.clone(), ..TestLog::new(0) };
        log.options = before.options;
        log.disk.set_faults(full(0, Some(calls)));
        let cut = log.reopen();
        crash(&log.disk, &mut seed);
        // The space that the start released suffices for a manifest, not for a journal.
        log.disk.set_faults(full(6000, None));
        log.reopen().unwrap();
        assert_eq!(log.warnings, [] as [String; 0], "call {calls}");
        log.check_all();
        if cut.is_ok() {
            assert!(calls > 10);
            break;
        }
        calls += 1;
    }
}

#[test]
fn a_frame_that_is_written_in_pieces_is_whole_or_nothing_after_a_crash() {
    let long = |byte| vec![(room(0), vec![byte; 5 << 20], Kind::Message)];
    let mut log = TestLog::new(2);
    let mut seed = 11;
    for byte in 0..8 {
        log.append(&[(hub(0), long(byte)), (hub(1), vec![(room(1), vec![byte; 70], Kind::Message)])])
            .unwrap();
        // Every other frame is synced before the crash; any other writes may be lost.
        if byte % 2 == 0 {
            log.sync().unwrap();
        }
        crash(&log.disk, &mut seed);
        log.reopen().unwrap();
        log.check_all();
    }
}
