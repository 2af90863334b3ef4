use std::collections::BTreeSet;

use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::testing::log::{StoreBuilder, Suite};
use proptest::prelude::*;
use tempfile::TempDir;

use super::segment::{FRAME, HEADER};
use super::*;
use crate::machine::Machine;
use crate::store::{Command, Write};
use crate::types::{Membership, NodeId, Peer, SnapshotMeta, StoredMembership, Types};

fn entry(term: u64, index: u64, bytes: usize) -> Entry {
    let value = vec![index as u8; bytes].as_slice().into();
    let write = Write::Put { key: format!("k/{index}"), value, lease: None };
    let command = Command::Commit { expect: vec![], writes: vec![write] };
    Entry { log_id: log_id((term, 1, index)), payload: EntryPayload::Normal(command) }
}

fn all(log: &Log) -> Vec<Entry> {
    log.read(0..u64::MAX, usize::MAX).expect("entries")
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

/// A directory with one segment of three appends, its path and its entries.
fn three_batches() -> (TempDir, PathBuf, Vec<Entry>) {
    let directory = directory();
    let mut log = Log::open(directory.path()).expect("a log");
    let entries: Vec<_> = (0..6).map(|index| entry(1, index, 20)).collect();
    for batch in entries.chunks(2) {
        log.append(batch.to_vec()).expect("appended");
    }
    let path = log.segments[0].path.clone();
    (directory, path, entries)
}

struct Stores;

impl StoreBuilder<Types, LogStorage, Machine, TempDir> for Stores {
    async fn build(&self) -> Result<(TempDir, LogStorage, Machine), openraft::StorageError<Types>> {
        let directory = directory();
        let log = LogStorage::open(&directory.path().join("log")).expect("a log");
        let machine = Machine::new(Snapshots::open(directory.path()).expect("no snapshot"));
        Ok((directory, log, machine))
    }
}

#[test]
fn openrafts_own_suite_passes() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    tokio::task::LocalSet::new().block_on(&runtime, Suite::test_all(Stores)).expect("the suite passes");
}

#[test]
fn a_log_cut_anywhere_retains_all_complete_entries_before_the_cut() {
    let (directory, path, entries) = three_batches();
    let bytes = fs::read(&path).expect("a segment");
    for cut in 0..bytes.len() {
        fs::write(&path, &bytes[..cut]).expect("written");
        let mut log = Log::open(directory.path()).unwrap_or_else(|error| panic!("cut at {cut}: {error}"));
        let kept = all(&log);
        assert_eq!(kept, entries[..kept.len()], "cut at {cut}");
        let frame = |entry: &Entry| {
            let mut payload = Vec::new();
            encode_entry(entry, &mut payload);
            FRAME + payload.len()
        };
        let marks = kept.len().div_ceil(2).max(1) - 1;
        let next: usize = entries.iter().take(kept.len() + 1).map(frame).sum();
        assert!(
            kept.len() == 6 || cut < HEADER + next + (marks + 1) * FRAME,
            "cut at {cut} lost more than it had to"
        );
        let next = kept.len() as u64;
        log.append([entry(2, next, 5)]).expect("it goes on");
        drop(log);
        let log = Log::open(directory.path()).expect("a log");
        assert_eq!(all(&log).len() as u64, next + 1);
        fs::remove_file(&log.segments[0].path).expect("removed");
    }
}

#[test]
fn a_byte_flipped_anywhere_in_a_synced_log_is_refused_or_changes_nothing() {
    let (directory, path, entries) = three_batches();
    let bytes = fs::read(&path).expect("a segment");
    for at in 0..bytes.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = bytes.clone();
            damaged[at] ^= flip;
            fs::write(&path, &damaged).expect("written");
            match Log::open(directory.path()) {
                Ok(log) => assert_eq!(all(&log), entries, "byte {at} flipped by {flip:#x}"),
                Err(LogError::Damaged { .. } | LogError::Newer { .. }) => {}
                Err(error) => panic!("byte {at}: {error}"),
            }
        }
    }
}

#[test]
fn a_write_that_a_crash_tore_is_cut_even_if_its_end_reached_the_disk_and_its_begin_did_not() {
    let (directory, path, entries) = three_batches();
    let whole = fs::read(&path).expect("a segment");
    let torn = &whole[..whole.len() - FRAME];
    let mut last = 0;
    for entry in &entries[4..] {
        let mut payload = Vec::new();
        encode_entry(entry, &mut payload);
        last += FRAME + payload.len();
    }
    for at in torn.len() - last..torn.len() {
        let mut torn = torn.to_vec();
        torn[at] ^= 0xff;
        fs::write(&path, &torn).expect("written");
        let log = Log::open(directory.path()).unwrap_or_else(|error| panic!("byte {at}: {error}"));
        let kept = all(&log);
        assert!((4..=5).contains(&kept.len()), "byte {at}: {} entries", kept.len());
        assert_eq!(kept, entries[..kept.len()]);
    }
}

#[test]
fn a_vote_a_snapshot_and_a_membership_are_read_back_identical_or_refused() {
    let directory = directory();
    let vote = Vote::new_committed(7, 3);
    let mut log = Log::open(directory.path()).expect("a log");
    log.save_vote(vote).expect("saved");
    log.purge(log_id((2, 1, 5))).expect("purged");
    drop(log);
    let voters: BTreeSet<NodeId> = [1, 2].into();
    let peer = |name: &str| Peer { name: name.into(), address: "127.0.0.1:1".into() };
    let nodes = [(1, peer("a")), (2, peer("b")), (3, peer("c"))];
    let membership =
        Membership::new(vec![voters], nodes.into_iter().collect::<std::collections::BTreeMap<_, _>>())
            .expect("members");
    let last_membership = StoredMembership::new(Some(log_id((1, 1, 1))), membership);
    let meta = SnapshotMeta { last_log_id: Some(log_id((2, 1, 5))), last_membership };
    let snapshots = Snapshots::open(directory.path()).expect("none");
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(snapshots.save("built", &meta, std::sync::Arc::new(b"state".to_vec()))).expect("saved");

    let log = Log::open(directory.path()).expect("a log");
    assert_eq!((log.vote(), log.last()), (Some(vote), meta.last_log_id));
    drop(log);
    let found = Snapshots::open(directory.path()).expect("one").load().expect("read").expect("a snapshot");
    assert_eq!((found.meta, found.snapshot.as_slice()), (meta, &b"state"[..]));

    for name in ["state", "snapshot"] {
        let path = directory.path().join(name);
        let bytes = fs::read(&path).expect("a file");
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x04;
            fs::write(&path, &damaged).expect("written");
            let refused = if name == "state" {
                Log::open(directory.path()).err()
            } else {
                Snapshots::open(directory.path()).err()
            };
            assert!(
                matches!(refused, Some(LogError::Damaged { .. } | LogError::Newer { .. })),
                "{name}, byte {at}"
            );
            fs::write(&path, &bytes[..at]).expect("written");
            let refused = if name == "state" {
                Log::open(directory.path()).err()
            } else {
                Snapshots::open(directory.path()).err()
            };
            assert!(matches!(refused, Some(LogError::Damaged { .. })), "{name}, cut at {at}");
        }
        fs::write(&path, &bytes).expect("written");
    }
}

#[test]
fn a_long_log_spans_segments_and_a_lost_or_damaged_one_is_refused() {
    let directory = directory();
    let mut log = Log::open(directory.path()).expect("a log");
    let large = SEGMENT_BYTES as usize / 8;
    for index in 0..20 {
        log.append([entry(1, index, large)]).expect("appended");
    }
    assert_eq!(log.segments.len(), 3);
    assert_eq!(log.read(3..20, large * 2 + 100).expect("entries").len(), 2, "reading is bounded by bytes");
    assert_eq!(log.read(3..20, 0).expect("entries").len(), 1, "but never nothing");
    log.truncate_after(Some(17)).expect("truncated");
    log.purge(log_id((1, 1, 8))).expect("purged");
    assert_eq!((log.segments.len(), log.slots.len()), (2, 9), "a segment that holds a needed entry stays");
    let paths: Vec<_> = log.segments.iter().map(|segment| segment.path.clone()).collect();
    drop(log);

    let bytes = fs::read(&paths[0]).expect("a segment");
    fs::write(&paths[0], &bytes[..bytes.len() - large]).expect("written");
    let refused = Log::open(directory.path()).err().expect("refused");
    assert!(refused.to_string().contains(&format!("{}", paths[0].display())), "{refused}");
    fs::remove_file(&paths[0]).expect("removed");
    assert!(matches!(Log::open(directory.path()), Err(LogError::Damaged { .. })));
    fs::write(&paths[0], &bytes).expect("written");
    assert_eq!(all(&Log::open(directory.path()).expect("a log")).len(), 9);
}

#[test]
fn a_snapshot_ahead_of_the_log_empties_it() {
    let (directory, _, _) = three_batches();
    let mut log = Log::open(directory.path()).expect("a log");
    log.purge(log_id((3, 2, 100))).expect("purged");
    assert_eq!((log.slots.len(), log.segments.len(), log.bytes()), (0, 0, 0));
    log.append([entry(3, 101, 1)]).expect("appended");
    drop(log);
    assert_eq!(all(&Log::open(directory.path()).expect("a log")), [entry(3, 101, 1)]);
}

#[test]
fn a_directory_serves_one_process_and_an_entry_follows_the_last() {
    let (directory, _, _) = three_batches();
    let mut log = Log::open(directory.path()).expect("a log");
    assert!(matches!(Log::open(directory.path()), Err(LogError::Locked { .. })));
    assert!(matches!(log.append([entry(1, 7, 1)]), Err(LogError::Hole { last: 5, found: 7 })));
    assert!(matches!(log.append([entry(1, 6, ENTRY_BYTES_MAX)]), Err(LogError::TooLong { index: 6, .. })));
    log.append([entry(1, 6, 1)]).expect("appended");
}

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    Truncate(u64),
    Purge(u64),
    Vote(u64),
    Reopen,
}

fn a_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1..6usize).prop_map(Step::Append),
        1 => (0..5u64).prop_map(Step::Truncate),
        1 => (0..12u64).prop_map(Step::Purge),
        1 => (0..9u64).prop_map(Step::Vote),
        2 => Just(Step::Reopen),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn a_log_holds_what_a_list_would(steps in prop::collection::vec(a_step(), 1..25)) {
        let directory = directory();
        let mut log = Log::open(directory.path()).expect("a log");
        let (mut list, mut purged, mut vote, mut term): (Vec<Entry>, Option<LogId>, _, _) = (Vec::new(), None, None, 1);
        for step in steps {
            let last = list.last().map(|entry| entry.log_id).or(purged);
            match step {
                Step::Append(count) => {
                    let next = last.map_or(0, |id| id.index() + 1);
                    let mut entries: Vec<_> = (next..).take(count).map(|index| entry(term, index, index as usize)).collect();
                    entries[0] = Entry::new_blank(entries[0].log_id);
                    log.append(entries.clone()).expect("appended");
                    list.extend(entries);
                }
                Step::Truncate(count) => {
                    let floor = purged.map(|id| id.index());
                    let to = last.and_then(|id| id.index().checked_sub(count)).max(floor);
                    log.truncate_after(to).expect("truncated");
                    list.retain(|entry| to.is_some_and(|to| entry.log_id.index() <= to));
                    term += 1;
                }
                Step::Purge(ahead) => {
                    let from = list.first().map(|entry| entry.log_id.index()).or(purged.map(|id| id.index())).unwrap_or(0);
                    let upto = list.iter().find(|entry| entry.log_id.index() == from + ahead).map(|entry| entry.log_id);
                    let upto = upto.unwrap_or_else(|| log_id((term, 1, from + ahead)));
                    log.purge(upto).expect("purged");
                    purged = purged.max(Some(upto));
                    list.retain(|entry| Some(entry.log_id.index()) > purged.map(|id| id.index()));
                }
                Step::Vote(term) => {
                    vote = Some(Vote::new(term, 1));
                    log.save_vote(Vote::new(term, 1)).expect("saved");
                }
                Step::Reopen => {
                    drop(log);
                    log = Log::open(directory.path()).expect("a log");
                }
            }
            prop_assert_eq!(&all(&log), &list);
            prop_assert_eq!(log.last(), list.last().map(|entry| entry.log_id).or(purged));
            prop_assert_eq!((log.purged(), log.vote()), (purged, vote));
        }
    }
}
