//! Any file of a data directory may be flipped, cut, doubled or removed: then
//! everything acknowledged is read back, or it is said that it cannot be.

mod support;

use hubsub_log::record::{self, Record};
use hubsub_log::{HubId, Kind, LogError};
use proptest::prelude::*;
use proptest::sample::Index;
use std::ops::ControlFlow;
use support::{Sent, TestLog, opened};

#[derive(Clone, Debug)]
enum Damage {
    Flip(Index, u8),
    Cut(Index),
    Zero(Index, u16),
    Remove,
    /// By another file of the directory.
    Replace(Index),
    Double,
}

fn damages() -> impl Strategy<Value = Damage> {
    prop_oneof![
        6 => (any::<Index>(), 0..8u8).prop_map(|(at, bit)| Damage::Flip(at, bit)),
        2 => any::<Index>().prop_map(Damage::Cut),
        2 => (any::<Index>(), 1..2000u16).prop_map(|(at, n)| Damage::Zero(at, n)),
        1 => Just(Damage::Remove),
        1 => any::<Index>().prop_map(Damage::Replace),
        1 => Just(Damage::Double),
    ]
}

/// A log with sealed and open segments, and journals in use. `marked`: nothing in
/// the journal is above its last mark.
fn some_log(is_clean: bool, checkpoint_at: usize) -> TestLog {
    let mut log = TestLog::new(2);
    for i in 0..60usize {
        let room = |r: usize| format!("room:{r}").into_bytes();
        let one = (room(i % 4), vec![i as u8; 30 + i * 7], Kind::Message);
        let two = (room(i % 3), vec![i as u8; 90], Kind::Message);
        log.append(&[(HubId(1), vec![one.clone(), two.clone()]), (HubId(2), vec![two])]).unwrap();
        log.sync().unwrap();
        if i <= checkpoint_at {
            log.apply().unwrap();
        }
        if i == checkpoint_at {
            log.segments.checkpoint().unwrap();
        }
    }
    log.apply().unwrap();
    if is_clean {
        let segments = std::mem::replace(&mut log.segments, TestLog::new(0).segments);
        segments.close().unwrap();
    } else {
        assert!(log.journal.wants_mark());
        log.journal.append(&[]).unwrap();
        log.journal.sync().unwrap();
        assert!(!log.journal.wants_mark());
    }
    log
}

fn apply(log: &TestLog, path: &str, damage: &Damage) {
    let paths = log.disk.paths();
    match damage {
        Damage::Remove => log.disk.lose(path),
        Damage::Replace(with) => {
            let with = log.disk.bytes(&paths[with.index(paths.len())]).unwrap();
            log.disk.damage(path, |bytes| *bytes = with);
        }
        Damage::Double => log.disk.damage(path, |bytes| bytes.extend_from_within(..)),
        _ => log.disk.damage(path, |bytes| {
            if bytes.is_empty() {
                return;
            }
            let len = bytes.len();
            match damage {
                Damage::Flip(at, bit) => bytes[at.index(len)] ^= 1 << bit,
                Damage::Cut(at) => bytes.truncate(at.index(len)),
                Damage::Zero(at, n) => {
                    let at = at.index(len);
                    bytes[at..(at + usize::from(*n)).min(len)].fill(0);
                }
                _ => unreachable!("handled above"),
            }
        }),
    }
}

/// Reads a hub's rooms: all of each, or an error.
fn rooms_are_whole_or_refused(log: &TestLog, hub: HubId) {
    let chain = log.segments.chain(hub).unwrap();
    match chain.rooms_page(None, 9, |_| true) {
        Ok(listed) => {
            let listed = listed.into_iter().map(|(name, last)| (name, (last.epoch, last.seq)));
            assert_eq!(listed.collect::<std::collections::HashMap<_, _>>(), log.hubs[&hub].rooms);
        }
        Err(LogError::Damaged { .. }) => {}
        Err(e) => panic!("{e}"),
    }
    for room in (0..4).map(|r| format!("room:{r}").into_bytes()) {
        let all: Vec<Sent> = log.hubs[&hub].sent.iter().filter(|sent| sent.room == room).cloned().collect();
        let mut back = Vec::new();
        let take = |record: &Record<'_>| {
            back.push(Sent::of(record));
            ControlFlow::Continue(())
        };
        match chain.read_back(&room, take) {
            Ok(()) => {
                back.reverse();
                assert_eq!(back, all);
            }
            Err(LogError::Damaged { .. }) => assert!(back.iter().rev().all(|sent| all.contains(sent))),
            Err(e) => panic!("{e}"),
        }
        let Some(last) = all.last() else { continue };
        for from in [1, last.seq / 2 + 1] {
            let mut on = Vec::new();
            let outcome = chain.read_on(&room, last.epoch, from, None, |record| {
                on.push(Sent::of(record));
                ControlFlow::Continue(())
            });
            let rest = &all[from as usize - 1..];
            match outcome {
                Ok(_) => assert_eq!(on, rest),
                Err(LogError::Damaged { .. }) => assert_eq!(on, rest[..on.len()]),
                Err(e) => panic!("{e}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn damage_is_told_or_harmless(
        is_clean in any::<bool>(), checkpoint_at in 0..70usize, file in any::<Index>(), damage in damages(),
    ) {
        let mut log = some_log(is_clean, checkpoint_at);
        let paths = log.disk.paths();
        let path = paths[file.index(paths.len())].clone();
        apply(&log, &path, &damage);
        let verified = hubsub_log::verify::verify(&log.disk).map(|found| found.problems);
        match log.reopen() {
            Err(LogError::Io { source, .. }) => panic!("{source}"),
            // A clear refusal; the files are as they were.
            Err(_) => return Ok(()),
            Ok(()) => {}
        }
        let is_well = log.warnings.is_empty();
        match verified {
            // An index can be made again, so it is no problem.
            Ok(problems) => prop_assert!(!problems.is_empty() || is_well, "{path}: {:?}", log.warnings),
            Err(e) => prop_assert!(false, "{path} was opened, and verify says {e}"),
        }
        for hub in [HubId(1), HubId(2)] {
            let entry = log.segments.manifest().hub(hub).unwrap();
            if entry.quarantined.is_some() {
                prop_assert!(log.warnings.iter().any(|w| w.contains("quarantined")));
                prop_assert!(log.segments.chain(hub).is_none());
                continue;
            }
            // Damage that takes the last frame and its mark at once is like a torn tail.
            let sent = &log.hubs[&hub].sent;
            let may_look_torn = !is_clean && path.ends_with(".journal") && matches!(damage, Damage::Zero(..));
            match log.held(hub) {
                Ok(held) if may_look_torn && held.len() < sent.len() => {
                    prop_assert!(held == sent[..held.len()]);
                    continue;
                }
                Ok(held) => prop_assert!(held == *sent, "{path}: {} of {}", held.len(), sent.len()),
                Err(LogError::Damaged { .. }) => {}
                Err(e) => panic!("{e}"),
            }
            rooms_are_whole_or_refused(&log, hub);
        }
        // And it stays so.
        let quarantined = |log: &TestLog| -> Vec<bool> {
            log.segments.manifest().hubs.iter().map(|entry| entry.quarantined.is_some()).collect()
        };
        let before = quarantined(&log);
        let kept = |log: &TestLog| log.disk.paths().iter().filter(|p| p.starts_with("quarantine/")).count();
        let before = (before, kept(&log));
        log.reopen().unwrap();
        prop_assert_eq!((quarantined(&log), kept(&log)), before);
    }
}

#[test]
fn a_newer_format_is_refused_with_both_versions_named() {
    let log = some_log(true, 70);
    let paths = log.disk.paths();
    let segment = paths.iter().find(|path| path.ends_with(".segment")).unwrap();
    log.disk.damage(segment, |bytes| {
        bytes[8] = 9;
        let checksum = crc32c::crc32c(&bytes[..60]);
        bytes[60..64].copy_from_slice(&checksum.to_le_bytes());
    });
    let error = opened(&log.disk).err().unwrap().to_string();
    assert!(error.contains("format 9") && error.contains("up to 1"), "{error}");
}

#[test]
fn a_lost_manifest_is_refused() {
    let log = some_log(true, 70);
    log.disk.lose("manifest.json");
    assert!(opened(&log.disk).err().unwrap().to_string().contains("hint:"));
}

#[test]
fn a_segment_of_format_1_is_read() {
    // The bytes of one record as version 0.1 wrote them: they must be read for ever.
    let record = Record {
        hub: HubId(3),
        kind: Kind::Message,
        is_sharded: true,
        term: 1,
        offset: 2,
        epoch: 3,
        seq: 4,
        producer: 5,
        producer_seq: 6,
        timestamp_us: 7,
        room: b"r",
        topic: b"r/t",
        publisher: b"me",
        headers: &record::encode_headers([("k", "v")]),
        payload: b"hello",
    };
    let mut bytes = Vec::new();
    record::encode(&record, &mut bytes);
    let hex: String = bytes.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, include_str!("record-format-1.hex").trim());
}
