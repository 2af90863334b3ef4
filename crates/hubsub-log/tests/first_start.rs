//! A first start may fail or be killed at any point: the next one starts as if it were the first. But a
//! directory with a record is never taken for a new one.

use crate::support::sim::{Faults, SimDisk};
use crate::support::{OPTIONS, TestLog, crash, opened};
use hubsub_log::storage::Storage;
use hubsub_log::{HubId, Kind, LogError};

fn faults(free: u64) -> Faults {
    Faults { free_bytes: Some(free), ..Faults::default() }
}

#[test]
fn a_first_start_without_room_leaves_nothing_and_the_next_with_room_begins() {
    for free in [0, 10, OPTIONS.journal_bytes - 1, OPTIONS.journal_bytes, OPTIONS.journal_bytes + 20] {
        let disk = SimDisk::default();
        disk.set_faults(faults(free));
        assert!(matches!(opened(&disk), Err(LogError::Full)), "{free}");
        assert!(disk.paths().is_empty(), "{free}: {:?}", disk.paths());
        disk.set_faults(Faults::default());
        assert_eq!(opened(&disk).unwrap().journal.file(), 1);
    }
}

#[test]
fn a_first_start_that_ended_at_any_call_is_begun_anew() {
    let mut seed = 7;
    let mut calls = 0;
    loop {
        let disk = SimDisk::default();
        disk.set_faults(Faults { fails_after: Some(calls), ..Faults::default() });
        let is_whole = opened(&disk).is_ok();
        let killed = disk.copy();
        assert_eq!(opened(&killed).map(|opened| opened.warnings).unwrap(), [""; 0], "after {calls} calls");
        crash(&disk, &mut seed);
        assert_eq!(opened(&disk).map(|opened| opened.warnings).unwrap(), [""; 0], "after {calls} calls");
        if is_whole {
            break;
        }
        calls += 1;
    }
    assert!(calls > 4, "it was cut short at several places: {calls}");
}

#[test]
fn journals_of_nothing_without_a_manifest_are_a_first_start() {
    // Left by a start that ran out of space, before its cleanup.
    let disk = SimDisk::default();
    disk.create("journal/00000001.journal").unwrap();
    assert!(opened(&disk).is_ok());
    assert_eq!(disk.paths(), ["journal/00000001.journal", "manifest.json"]);
}

#[test]
fn a_directory_with_a_byte_of_a_record_and_no_manifest_is_not_new() {
    let mut log = TestLog::new(1);
    log.say(&[(HubId(1), vec![(b"room".to_vec(), vec![1; 30], Kind::Message)])]);
    for path in log.disk.paths().into_iter().filter(|path| !path.starts_with("journal/")) {
        log.disk.lose(&path);
    }
    let journals = log.disk.paths();
    assert!(opened(&log.disk).err().unwrap().to_string().contains("no manifest.json"));
    // Also if neither head is readable.
    for path in &journals {
        log.disk.damage(path, |bytes| bytes[..64 + 40].fill(0));
    }
    assert!(opened(&log.disk).err().unwrap().to_string().contains("no manifest.json"));
    assert_eq!(log.disk.paths(), journals);
    // A segment, a journal that was put aside, or a foreign file.
    for path in ["hubs/1/hub.json", "quarantine/00000001.journal", "journal/mine"] {
        let disk = SimDisk::default();
        disk.create(path).unwrap();
        assert!(opened(&disk).err().unwrap().to_string().contains("no manifest.json"), "{path}");
    }
}
