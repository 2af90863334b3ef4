//! Hubs are added and closed while others are written: an opening that is interrupted anywhere leaves no hub
//! or a whole one without records, and does not affect the records of other hubs.

use crate::support::verify;
use crate::support::{IDENTITY, OPTIONS, Publish, TestLog, crash, opened};
use hubsub_log::manifest::Manifest;
use hubsub_log::sim::{Faults, SimDisk};
use hubsub_log::verify::Progress;
use hubsub_log::{HubId, HubName, Keep, Kind, LogError, LogOptions, Membership, open, open_as};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Arc;

fn name(hub: u32, class: &str, index: u16) -> HubName {
    HubName { hub: HubId(hub), class: class.to_owned(), index }
}

fn records(hub: HubId, rooms: &[u8], len: usize) -> (HubId, Vec<Publish>) {
    let of_room = |&room: &u8| (format!("room:{room}").into_bytes(), vec![room; len], Kind::Message);
    (hub, rooms.iter().map(of_room).collect())
}

fn manifest(disk: &SimDisk) -> Manifest {
    Manifest::load(disk).unwrap().unwrap()
}

/// Id of a test's hub, far from those that a log assigns itself.
fn id(n: u8) -> HubId {
    HubId(100 - u32::from(n))
}

#[test]
fn a_hub_that_comes_later_is_written_and_found_again() {
    let mut log = TestLog::new(1);
    log.say(&[records(HubId(1), &[1, 2], 300)]);
    assert!(log.open_hub(HubId(70), 6).unwrap() && log.open_hub(HubId(9), 5).unwrap());
    assert!(!log.open_hub(HubId(9), 5).unwrap(), "it is there");
    log.say(&[records(HubId(9), &[1], 40), records(HubId(1), &[1], 10)]);
    log.say(&[records(HubId(70), &[3, 3], 2000)]);
    let ids: Vec<u32> = manifest(&log.disk).hubs.iter().map(|entry| entry.hub.0).collect();
    assert_eq!(ids, [1, 9, 70], "in order of id");
    log.disk.crash(|| false);
    log.reopen().unwrap();
    assert_eq!(log.warnings, [] as [String; 0]);
    log.check_all();
    assert_eq!(log.segments.add_hub("more", 0, Keep::Log).unwrap(), HubId(71));
}

#[test]
fn an_id_or_a_place_that_is_another_hubs_is_refused_with_both() {
    let mut log = TestLog::new(1);
    log.open_hub(HubId(9), 5).unwrap();
    for (asked, here) in [
        (name(9, "chat", 4), "hub 9 (chat-5)"),
        (name(9, "orders", 5), "hub 9 (chat-5)"),
        (name(8, "chat", 5), "hub 9 (chat-5)"),
        (name(1, "orders", 0), "hub 1 (chat-0)"),
    ] {
        let refused = log.segments.opening(&asked, Keep::Log).err().unwrap();
        assert!(matches!(refused, LogError::Differs { .. }));
        assert_eq!(refused.to_string(), format!("{here} is here, {asked} was asked for"));
    }
    assert_eq!(log.segments.manifest().hubs.len(), 2);
}

#[test]
fn a_hub_that_goes_and_comes_again_goes_on_where_it_was() {
    let mut log = TestLog::new(2);
    for life in 0..3 {
        log.say(&[records(HubId(1), &[1, 2], 900), records(HubId(2), &[1], 900)]);
        log.apply().unwrap();
        let chain = log.segments.chain(HubId(1)).unwrap();
        assert!(log.segments.close_hub(HubId(1)).unwrap() && !log.segments.close_hub(HubId(1)).unwrap());
        assert_eq!((log.segments.next(HubId(1)), log.segments.chain(HubId(1)).is_none()), (None, true));
        // The records of other hubs go through the same journal.
        log.say(&[records(HubId(2), &[3], 900)]);
        log.apply().unwrap();
        if life == 1 {
            log.disk.crash(|| false);
            assert_eq!(verify(&log.disk).unwrap().problems, [] as [String; 0]);
            log.reopen().unwrap();
        } else {
            log.open_hub(HubId(1), 0).unwrap();
        }
        assert_eq!(log.warnings, [] as [String; 0]);
        log.check_all();
        assert!(!Arc::ptr_eq(&chain, &log.segments.chain(HubId(1)).unwrap()));
    }
    log.say(&[records(HubId(1), &[1], 900)]);
    log.disk.crash(|| false);
    log.reopen().unwrap();
    log.check_all();
}

#[test]
fn a_hub_that_is_given_what_cannot_be_written_stays() {
    let mut log = TestLog::new(1);
    log.say(&[records(HubId(1), &[1], 900)]);
    for (file, frame, batches) in log.safe.drain(..) {
        log.segments.apply(file, frame, batches);
    }
    log.disk.set_faults(Faults { free_bytes: Some(10), ..Faults::default() });
    assert!(matches!(log.segments.close_hub(HubId(1)), Err(LogError::Full)));
    log.disk.set_faults(Faults::default());
    log.apply().unwrap();
    log.check_all();
    log.segments.close_hub(HubId(1)).unwrap();
}

#[test]
fn an_opening_without_room_is_refused_leaves_nothing_and_others_go_on() {
    let mut log = TestLog::new(1);
    let before = log.disk.paths();
    for free in (0..1400).step_by(7) {
        log.disk.set_faults(Faults { free_bytes: Some(free), ..Faults::default() });
        match log.open_hub(HubId(7), 3) {
            Err(LogError::Full) => assert_eq!(log.disk.paths(), before, "with {free} bytes"),
            Err(e) => panic!("{e}"),
            Ok(_) => {
                assert!(free > 500, "{free}");
                log.disk.set_faults(Faults::default());
                log.say(&[records(HubId(7), &[1], 100), records(HubId(1), &[1], 100)]);
                log.disk.crash(|| false);
                log.reopen().unwrap();
                return log.check_all();
            }
        }
    }
    panic!("it is never opened");
}

#[test]
fn an_opening_that_is_cut_short_anywhere_leaves_no_hub_or_a_whole_empty_one() {
    let mut seen = BTreeSet::new();
    for seed in 0..8 {
        let mut seed = seed;
        for calls in 0.. {
            let mut log = TestLog::new(2);
            log.say(&[records(HubId(1), &[1, 2], 700), records(HubId(2), &[1], 700)]);
            log.apply().unwrap();
            log.say(&[records(HubId(2), &[2, 2], 50)]);
            log.disk.set_faults(Faults { fails_after: Some(calls), ..Faults::default() });
            let tried = log.open_hub(HubId(7), 3);
            crash(&log.disk, &mut seed);
            log.hubs.remove(&HubId(7));
            log.reopen().unwrap();
            assert_eq!(log.warnings, [] as [String; 0], "call {calls}");
            log.check_all();
            let is_there = manifest(&log.disk).hub(HubId(7)).is_some();
            assert!(is_there || tried.is_err(), "what was said to be there is");
            if is_there {
                let info = log.segments.chain(HubId(7)).unwrap().info();
                assert_eq!((info.next, info.earliest, info.rooms), (1, 1, 0));
            }
            seen.insert((is_there, tried.is_ok()));
            // After any interruption, the same hub can be opened, and takes records.
            log.open_hub(HubId(7), 3).unwrap();
            log.hubs.entry(HubId(7)).or_default();
            log.say(&[records(HubId(7), &[1, 5], 300), records(HubId(1), &[5], 10)]);
            crash(&log.disk, &mut seed);
            log.reopen().unwrap();
            log.check_all();
            if tried.is_ok() {
                assert!(calls > 5, "it was cut short at several places");
                break;
            }
        }
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(false, false), (true, false), (true, true)]);
}

#[test]
fn a_directory_with_records_that_the_manifest_does_not_list_is_not_taken() {
    let mut log = TestLog::new(0);
    log.open_hub(HubId(7), 3).unwrap();
    log.say(&[records(HubId(7), &[1], 300)]);
    log.apply().unwrap();
    let segment = log.disk.bytes("hubs/7/00000000000000000001.segment").unwrap();
    let other = TestLog::new(0);
    for path in ["hubs/7/00000000000000000001.segment", "hubs/7/00000000000000000009.segment"] {
        use hubsub_log::storage::Storage;
        other.disk.create(path).unwrap();
        other.disk.damage(path, |bytes| bytes.extend_from_slice(&segment));
        let opening = other.segments.opening(&name(7, "chat", 3), Keep::Log).unwrap().unwrap();
        let refused = opening.run().err().unwrap().to_string();
        assert!(refused.starts_with("hubs/7 has records, and the manifest does not list hub 7"), "{refused}");
        assert_eq!(other.disk.bytes(path), Some(segment.clone()));
        other.disk.lose(path);
    }
    assert!(other.segments.opening(&name(7, "chat", 3), Keep::Log).unwrap().unwrap().run().is_ok());
}

#[test]
fn a_quarantined_hub_is_refused_with_the_reason() {
    let mut log = TestLog::new(1);
    log.say(&[records(HubId(1), &[1], 300)]);
    log.apply().unwrap();
    log.segments.checkpoint().unwrap();
    log.disk.lose("hubs/1/00000000000000000001.segment");
    log.disk.crash(|| false);
    let log = opened(&log.disk).unwrap();
    let refused = log.segments.opening(&name(1, "chat", 0), Keep::Log).err().unwrap().to_string();
    assert!(
        refused.starts_with("hub 1 (chat-0) is quarantined: ") && refused.contains("missing"),
        "{refused}"
    );
}

#[test]
fn a_directory_is_of_one_cluster_for_ever() {
    let of = |cluster, adopts| Membership::Of { cluster, adopts };
    let open = |disk: &SimDisk, membership| open_as(Arc::new(disk.clone()), IDENTITY, membership, OPTIONS);
    let disk = SimDisk::default();
    let log = open(&disk, of("red", false)).unwrap();
    assert_eq!(manifest(&disk).cluster.as_deref(), Some("red"));
    log.segments.close().unwrap();
    open(&disk, of("red", false)).unwrap().segments.close().unwrap();
    let before: Vec<_> = disk.paths().iter().map(|path| disk.bytes(path)).collect();
    let refused = |membership| open(&disk, membership).err().unwrap().to_string();
    assert_eq!(refused(of("blue", true)), "it is of cluster red, this node is of cluster blue");
    assert_eq!(refused(Membership::Alone), "it is of cluster red, this node is of none");
    assert_eq!(disk.paths().iter().map(|path| disk.bytes(path)).collect::<Vec<_>>(), before, "untouched");

    // If the node numbered the hubs itself, only the node that founds a cluster can bring them in.
    let mut log = TestLog::new(1);
    log.say(&[records(HubId(1), &[1], 300)]);
    let told = "it has hubs that its node numbered itself, this node is of cluster red";
    assert_eq!(open(&log.disk, of("red", false)).err().unwrap().to_string(), told);
    open(&log.disk, of("red", true)).unwrap();
    assert_eq!(manifest(&log.disk).cluster.as_deref(), Some("red"));
    open(&log.disk, of("red", false)).unwrap();
}

#[test]
fn a_manifest_that_is_made_again_is_of_its_cluster_and_has_no_hub_that_was_never_there() {
    let disk = SimDisk::default();
    let membership = Membership::Of { cluster: "red", adopts: false };
    let mut log = TestLog::new(0);
    let opened = open_as(Arc::new(disk.clone()), IDENTITY, membership, OPTIONS).unwrap();
    (log.disk, log.journal, log.segments) = (disk, opened.journal, opened.segments);
    log.open_hub(HubId(4), 0).unwrap();
    log.say(&[records(HubId(4), &[1], 300)]);
    log.apply().unwrap();
    log.close();
    // An opening was interrupted after its first file.
    hubsub_log::storage::Storage::create(&log.disk, "hubs/5/00000000000000000001.runs").unwrap();
    log.disk.lose("manifest.json");
    let watch = &mut |_: Progress| ControlFlow::Continue(());
    let options = LogOptions { reserve_bytes: 0, ..OPTIONS };
    let done = hubsub_log::repair::repair(&Arc::new(log.disk.clone()), options, None, true, watch).unwrap();
    assert!(done.is_done && done.left.is_empty(), "{:?}", done.left);
    let manifest = manifest(&log.disk);
    assert_eq!(manifest.cluster.as_deref(), Some("red"));
    assert_eq!(manifest.hubs.iter().map(|entry| entry.hub).collect::<Vec<_>>(), [HubId(4)]);
    assert!(open(Arc::new(log.disk), IDENTITY, OPTIONS).is_err(), "it is no directory of a node alone");
}

#[derive(Clone, Debug)]
enum Step {
    /// A frame of records for those of these hubs that are open.
    Say(Vec<(u8, Vec<u8>, u16)>),
    /// All of them at once.
    Open(Vec<u8>),
    /// An opening that fails or loses power at some call.
    CutOpening(u8, u64, u64),
    Close(u8),
    Apply,
    Checkpoint,
    CleanRestart,
    Crash(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let of_hub = (0..5u8, prop::collection::vec(0..4u8, 1..4), prop_oneof![0..200u16, 0..2500u16]);
    let step = prop_oneof![
        8 => prop::collection::vec(of_hub, 1..4).prop_map(Step::Say),
        4 => prop::collection::vec(0..5u8, 1..4).prop_map(Step::Open),
        2 => (0..5u8, 0..30u64, any::<u64>()).prop_map(|(hub, calls, seed)| Step::CutOpening(hub, calls, seed)),
        2 => (0..5u8).prop_map(Step::Close),
        3 => Just(Step::Apply),
        1 => Just(Step::Checkpoint),
        1 => Just(Step::CleanRestart),
        2 => any::<u64>().prop_map(Step::Crash),
    ];
    prop::collection::vec(step, 1..40)
}

/// A log, and the expected state of its closed hubs.
struct Run {
    log: TestLog,
    closed: std::collections::HashMap<HubId, crate::support::Expected>,
}

impl Run {
    fn open(&mut self, hub: u8) -> Result<(), LogError> {
        if let Some(expected) = self.closed.remove(&id(hub)) {
            self.log.hubs.insert(id(hub), expected);
        }
        self.log.open_hub(id(hub), u16::from(hub)).map(drop)
    }

    /// The log restarts and opens all its hubs.
    fn restarted(&mut self) {
        self.log.reopen().unwrap();
        assert_eq!(self.log.warnings, [] as [String; 0]);
        self.log.hubs.extend(self.closed.drain());
        let manifest = manifest(&self.log.disk);
        for entry in &manifest.hubs {
            assert_eq!(entry.index, 100 - entry.hub.0 as u16);
            self.log.hubs.entry(entry.hub).or_default();
        }
        self.log.hubs.retain(|hub, expected| {
            let is_there = manifest.hub(*hub).is_some();
            assert!(is_there || expected.sent.is_empty(), "{hub:?} is gone");
            is_there
        });
        self.log.check_all();
    }

    fn step(&mut self, step: Step) {
        let log = &mut self.log;
        match step {
            Step::Say(what) => {
                let mut frame = std::collections::BTreeMap::<HubId, Vec<Publish>>::new();
                for (hub, rooms, len) in what {
                    let (hub, of_hub) = records(id(hub), &rooms, usize::from(len));
                    if log.hubs.contains_key(&hub) {
                        frame.entry(hub).or_default().extend(of_hub);
                    }
                }
                log.say(&frame.into_iter().collect::<Vec<_>>());
            }
            Step::Open(hubs) => {
                let hubs: BTreeSet<u8> = hubs.into_iter().collect();
                let openings = hubs.iter().filter_map(|&hub| {
                    let name = name(id(hub).0, "chat", u16::from(hub));
                    log.segments.opening(&name, Keep::Log).unwrap()
                });
                let ready = openings.map(|opening| opening.run().unwrap()).collect();
                log.segments.admit(ready).unwrap();
                for hub in hubs.into_iter().map(id) {
                    let expected = self.closed.remove(&hub);
                    log.hubs.entry(hub).or_insert_with(|| expected.unwrap_or_default());
                }
            }
            Step::CutOpening(hub, calls, mut seed) => {
                log.disk.set_faults(Faults { fails_after: Some(calls), ..Faults::default() });
                let _ = self.open(hub);
                crash(&self.log.disk, &mut seed);
                self.restarted();
            }
            Step::Close(hub) => {
                log.apply().unwrap();
                let was_open = log.segments.close_hub(id(hub)).unwrap();
                assert_eq!(was_open, log.hubs.contains_key(&id(hub)));
                self.closed.extend(log.hubs.remove_entry(&id(hub)));
            }
            Step::Apply => log.apply().unwrap(),
            Step::Checkpoint => {
                log.apply().unwrap();
                log.segments.checkpoint().unwrap();
            }
            Step::CleanRestart => {
                log.apply().unwrap();
                log.close();
                self.restarted();
            }
            Step::Crash(mut seed) => {
                crash(&log.disk, &mut seed);
                self.restarted();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 3000 }))]

    #[test]
    fn hubs_that_come_and_go_hold_what_they_were_given_and_others_theirs(steps in steps()) {
        let mut run = Run { log: TestLog::new(0), closed: Default::default() };
        steps.into_iter().for_each(|step| run.step(step));
        run.log.apply().unwrap();
        run.log.check_all();
    }
}
