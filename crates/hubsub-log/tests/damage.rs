//! Any file of a data directory may have flipped bits, be truncated, duplicated or removed: then all
//! acknowledged records are read back, or the loss is reported. A repair keeps the undamaged records, and no
//! others.

use crate::support::verify;
use crate::support::{Sent, TestLog, crash, opened, read_back, read_on};
use hubsub_log::manifest::{HubEntry, Manifest};
use hubsub_log::record::{self, Record};
use hubsub_log::repair::{Repair, repair};
use hubsub_log::show::{Selection, show};
use hubsub_log::sim::{Faults, SimDisk};
use hubsub_log::{Batch, Chain, HubId, Kind, LogError, Opened, Part};
use proptest::prelude::*;
use proptest::sample::Index;
use std::ops::ControlFlow;
use std::sync::Arc;

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

/// A log with sealed and open segments, and journals in use.
fn some_log(is_clean: bool, checkpoint_at: usize) -> TestLog {
    let mut log = TestLog::new(2);
    for i in 0..60usize {
        let room = |r: usize| format!("room:{r}").into_bytes();
        let one = (room(i % 4), vec![i as u8; 30 + i * 7], Kind::Message);
        let two = (room(i % 3), vec![i as u8; 90], Kind::Message);
        log.say(&[(HubId(1), vec![one.clone(), two.clone()]), (HubId(2), vec![two])]);
        if i <= checkpoint_at {
            log.apply().unwrap();
        }
        if i == checkpoint_at {
            log.segments.checkpoint().unwrap();
        }
    }
    log.apply().unwrap();
    if is_clean {
        log.close();
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

/// Reads a hub's rooms: each read returns all records or an error.
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
        let back = read_back(&chain, &room);
        match back.outcome {
            Ok(()) => assert_eq!(back.records, all),
            Err(LogError::Damaged { .. }) => assert!(back.records.iter().all(|sent| all.contains(sent))),
            Err(e) => panic!("{e}"),
        }
        let Some(last) = all.last() else { continue };
        for from in [1, last.seq / 2 + 1] {
            let on = read_on(&chain, &room, last.epoch, from, u64::MAX);
            let rest = &all[from as usize - 1..];
            match on.outcome {
                Ok(()) => assert_eq!(on.records, rest),
                Err(LogError::Damaged { .. }) => assert_eq!(on.records, rest[..on.records.len()]),
                Err(e) => panic!("{e}"),
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 400 } else { 4000 }))]

    #[test]
    fn damage_is_told_or_harmless(
        is_clean in any::<bool>(), checkpoint_at in 0..70usize, file in any::<Index>(), damage in damages(),
    ) {
        let mut log = some_log(is_clean, checkpoint_at);
        let paths = log.disk.paths();
        let path = paths[file.index(paths.len())].clone();
        let segments = listed(&log);
        apply(&log, &path, &damage);
        repairs(&log.disk.copy(), &log, &segments, &path, &damage);
        let verified = verify(&log.disk).map(|found| found.problems);
        match log.reopen() {
            Err(LogError::Io { source, .. }) => panic!("{source}"),
            // A clear refusal; the files are unchanged.
            Err(_) => return Ok(()),
            Ok(()) => {}
        }
        let is_well = log.warnings.is_empty();
        match verified {
            // An index can be rebuilt, so its damage is no problem.
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
            // Damage to the last frame together with its mark looks like a torn tail.
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
        // The result is the same after another restart.
        let quarantined = |log: &TestLog| -> Vec<bool> {
            log.segments.manifest().hubs.iter().map(|entry| entry.quarantined.is_some()).collect()
        };
        let before = quarantined(&log);
        let kept = |log: &TestLog| log.disk.paths().iter().filter(|p| p.starts_with("quarantine/")).count();
        let before = (before, kept(&log));
        log.reopen().unwrap();
        prop_assert_eq!((quarantined(&log), kept(&log)), before);
        // A repair also works after a start has found the damage.
        repairs(&log.disk, &log, &segments, &path, &damage);
    }

    #[test]
    fn a_repair_that_is_cut_short_is_done_by_the_next_one(
        file in any::<Index>(), damage in damages(), fails_after in 0..60u64, mut seed in any::<u64>(),
    ) {
        let log = some_log(false, 40);
        let segments = listed(&log);
        let paths = log.disk.paths();
        let path = paths[file.index(paths.len())].clone();
        apply(&log, &path, &damage);
        let whole = log.disk.copy();
        repair_all(&whole).unwrap();
        log.disk.set_faults(Faults { fails_after: Some(fails_after), ..Faults::default() });
        let is_done = repair_all(&log.disk).is_ok();
        crash(&log.disk, &mut seed);
        if !is_done {
            repairs(&log.disk, &log, &segments, &path, &damage);
        }
        for hub in [HubId(1), HubId(2)] {
            prop_assert_eq!(offsets_of(&log.disk, hub), offsets_of(&whole, hub), "{} {:?}", path, damage);
        }
    }
}

/// For each hub, the range of offsets of every segment at the checkpoint.
fn listed(log: &TestLog) -> Vec<(String, HubId, std::ops::Range<u64>)> {
    let manifest = Manifest::load(&log.disk).unwrap().unwrap();
    let of_hub = |entry: &HubEntry| {
        let range = |i: usize| entry.segments[i].0..entry.end_of(i);
        let path = |i: usize| hubsub_log::segment::path(entry.hub, entry.segments[i].name(), Part::Segment);
        (0..entry.segments.len()).map(|i| (path(i), entry.hub, range(i))).collect::<Vec<_>>()
    };
    manifest.hubs.iter().flat_map(of_hub).collect()
}

fn repair_all(disk: &SimDisk) -> Result<Repair, LogError> {
    let watch = &mut |_| ControlFlow::Continue(());
    repair(&Arc::new(disk.clone()), crate::support::OPTIONS, None, true, watch)
}

/// All records of a hub in a directory.
fn held(disk: &SimDisk, hub: HubId) -> Vec<Sent> {
    let mut all = Vec::new();
    let wanted = Selection { hub: Some(hub), room: None, from: 0, count: u64::MAX };
    let unread = show(disk, &wanted, &mut |record| {
        all.push(Sent::of(record));
        ControlFlow::Continue(())
    });
    assert_eq!(unread.unwrap(), [] as [String; 0]);
    all
}

fn offsets_of(disk: &SimDisk, hub: HubId) -> Vec<u64> {
    held(disk, hub).iter().map(|sent| sent.offset).collect()
}

/// Repairs a damaged directory: it must have all undamaged records and no others.
fn repairs(
    disk: &SimDisk,
    log: &TestLog,
    segments: &[(String, HubId, std::ops::Range<u64>)],
    path: &str,
    damage: &Damage,
) {
    let before = disk.copy();
    let watch = &mut |_| ControlFlow::Continue(());
    let dry = repair(&Arc::new(disk.clone()), crate::support::OPTIONS, None, false, watch).unwrap();
    assert!(disk.paths() == before.paths() && disk.paths().iter().all(|p| disk.bytes(p) == before.bytes(p)));
    let done = repair_all(disk).unwrap();
    assert_eq!(done.is_done, !done.problems.is_empty(), "{path} {damage:?}: {:?}", done.problems);
    assert_eq!(done.left, [] as [String; 0]);
    let told = |done: &Repair| -> Vec<_> {
        done.hubs.iter().map(|h| (h.hub, h.kept, h.lost.clone(), h.next)).collect()
    };
    assert_eq!(told(&dry), told(&done), "it does what it said");
    assert_eq!(verify(disk).unwrap().problems, [] as [String; 0]);
    let there = [HubId(1), HubId(2)].map(|hub| (hub, offsets_of(disk, hub)));
    for (file, hub, offsets) in segments {
        let (_, there) = there.iter().find(|(of, _)| of == hub).unwrap();
        let missing = offsets.clone().filter(|offset| there.binary_search(offset).is_err()).count();
        if file != path {
            assert_eq!(missing, 0, "{path} {damage:?}: records of {file}");
        } else if matches!(damage, Damage::Flip(..))
            && before.paths().contains(&file.replace(".segment", ".index"))
        {
            assert!(missing <= 1, "{path} {damage:?}: {missing} of {offsets:?} are missing");
        }
    }
    for file in before.paths().iter().filter(|file| file.ends_with(".segment")) {
        // Files put aside are unchanged.
        let is_kept =
            disk.paths().iter().any(|p| p.starts_with(file.as_str()) && disk.bytes(p) == before.bytes(file));
        assert!(is_kept || !listed_in(segments, file) || file != path, "{file} is gone");
    }

    let disk = disk.copy();
    let Opened { mut segments, mut journal, warnings, .. } = opened(&disk).unwrap();
    assert_eq!(warnings, [] as [String; 0], "{path} {damage:?} {:?}", segments.manifest());
    for hub in [HubId(1), HubId(2)] {
        let (sent, there) = (&log.hubs[&hub].sent, held(&disk, hub));
        assert!(there.iter().all(|record| sent[record.offset as usize - 1] == *record));
        let chain = segments.chain(hub).unwrap();
        assert_eq!(chain.info().last_us, there.last().map_or(0, |sent| sent.offset * 10));
        rooms_have(&chain, &there);
        if let Some(mended) = done.hubs.iter().find(|mended| mended.hub == hub) {
            assert_eq!((segments.continuous_from(hub), chain.next()), (mended.next, mended.next));
            assert!(mended.next > there.last().map_or(0, |sent| sent.offset));
        }
        // The hub takes new records.
        let record = Record {
            hub,
            offset: chain.next(),
            epoch: 99,
            seq: 1,
            timestamp_us: u64::MAX,
            room: b"new",
            topic: b"new",
            ..Record::default()
        };
        let mut bytes = Vec::new();
        record::encode(&record, &mut bytes);
        let batch = Batch { hub, first: record.offset, count: 1, bytes };
        let frame = journal.append(std::slice::from_ref(&batch)).unwrap();
        journal.sync().unwrap();
        segments.apply(journal.file(), frame, vec![batch]);
        segments.flush().unwrap();
    }
    journal.append(&[]).unwrap();
    journal.sync().unwrap();
    for _ in 0..2 {
        let Opened { segments, warnings, .. } = opened(&disk).unwrap();
        assert_eq!(warnings, [] as [String; 0]);
        for hub in [HubId(1), HubId(2)] {
            let chain = segments.chain(hub).unwrap();
            assert_eq!(read_back(&chain, b"new").whole().len(), 1);
        }
    }
    assert_eq!(verify(&disk).unwrap().problems, [] as [String; 0]);
}

fn listed_in(segments: &[(String, HubId, std::ops::Range<u64>)], file: &str) -> bool {
    segments.iter().any(|(path, ..)| path == file)
}

/// A chain's rooms have exactly the records in `there`: all of them backwards, and those after the last hole
/// forwards.
fn rooms_have(chain: &Chain<SimDisk>, there: &[Sent]) {
    for room in (0..4).map(|r| format!("room:{r}").into_bytes()) {
        let all: Vec<Sent> = there.iter().filter(|sent| sent.room == room).cloned().collect();
        assert_eq!(read_back(chain, &room).whole(), all);
        let Some(last) = all.last() else { continue };
        let on = read_on(chain, &room, last.epoch, 1, u64::MAX).whole();
        let on: Vec<u64> = on.iter().map(|sent| sent.seq).collect();
        assert!(on.windows(2).all(|pair| pair[0] + 1 == pair[1]) && on.last() == Some(&last.seq), "{on:?}");
        assert!(on.len() <= all.len());
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
    // The bytes of a record as version 0.1 wrote them: later versions must read them for ever.
    let record = Record {
        hub: HubId(3),
        kind: Kind::Message,
        is_sharded: true,
        qos_lack: 0,
        is_retained: false,
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

#[test]
fn a_read_that_meets_damage_names_its_byte_once() {
    let log = some_log(false, 70);
    let chain = log.segments.chain(HubId(1)).unwrap();
    for is_sealed in [true, false] {
        let mut paths = log.disk.paths();
        paths.retain(|path| path.starts_with("hubs/1/") && path.ends_with(".segment"));
        let path = if is_sealed { &paths[1] } else { paths.last().unwrap() };
        let bytes = log.disk.bytes(path).unwrap();
        // The last byte of the first record's payload.
        let at = hubsub_log::segment::HEAD_BYTES;
        let (record, len) = record::decode(&bytes[at as usize..]).unwrap();
        let (room, epoch, seq) = (record.room.to_vec(), record.epoch, record.seq);
        log.disk.damage(path, |bytes| bytes[at as usize + len - 1] ^= 1);
        let back =
            chain.read_back_from(&room, &mut None, u64::MAX, |_| ControlFlow::Continue(())).unwrap_err();
        let on = chain.read_on(&room, epoch, seq, u64::MAX, |_| ControlFlow::Continue(())).unwrap_err();
        for error in [back, on] {
            let text = error.to_string();
            assert!(text.starts_with(&format!("{path} is damaged at byte {at}: ")), "{text}");
            assert_eq!(text.matches(&at.to_string()).count(), 1, "{text}");
        }
        log.disk.damage(path, |bytes| bytes[at as usize + len - 1] ^= 1);
    }
}
