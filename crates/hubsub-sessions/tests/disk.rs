//! Faults that the file of sessions survives, and the errors for the others.

use hubsub_sessions::{Answer, Disk, Limits, Request, SessionStore, StoreError};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const LIMITS: Limits = Limits { entries_max: 1_000_000, bytes_max: 1 << 30 };

/// Environment variable with the file that the killed process writes.
const FILE: &str = "HUBSUB_SESSIONS_FILE";

const IDS: [&str; 3] = ["a", "b", "c"];

/// Requests of one batch; odd, so that batches end at different ids.
const TOGETHER: u64 = 7;

/// How often a process is killed.
const KILLS: u64 = 8;

type Entries = Vec<(u64, Vec<u8>)>;

fn load(store: &mut Disk, id: &str) -> (Option<Vec<u8>>, Entries) {
    match store.carry_out(&[Request::Load { id: id.into() }]).remove(0) {
        Ok(Answer::Loaded { snapshot, entries }) => (snapshot, entries),
        other => panic!("{other:?}"),
    }
}

/// Writes entries until it is killed, and prints each acknowledged number.
#[test]
#[ignore = "a part of the test below, which starts it as a process of its own"]
fn writes_until_it_is_killed() {
    let path = PathBuf::from(std::env::var_os(FILE).expect("it is started by the other test"));
    let mut store = Disk::open(&path, LIMITS).unwrap();
    let save =
        |id: &str| Request::Save { id: id.into(), snapshot: id.into(), through: 0, entries: Vec::new() };
    let saved = store.carry_out(&IDS.map(save));
    assert!(saved.iter().all(Result::is_ok));
    for batch in 0.. {
        let id = |n| IDS[((batch * TOGETHER + n) % IDS.len() as u64) as usize];
        let requests: Vec<Request> = (0..TOGETHER)
            .map(|n| Request::Append { id: id(n).into(), entry: vec![n as u8; 3_000] })
            .collect();
        let mut line = String::from("answered");
        for (n, answer) in (0..).zip(store.carry_out(&requests)) {
            let Ok(Answer::Appended(number)) = answer else { panic!("{answer:?}") };
            line += &format!(" {}:{number}", id(n));
        }
        println!("{line}");
    }
}

#[test]
fn acknowledged_batches_survive_kill_9_and_batches_are_atomic() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("sessions.redb");
    for kill in 0..KILLS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "writes_until_it_is_killed", "--ignored", "--nocapture"])
            .env(FILE, &path)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut answered = std::collections::HashMap::new();
        // It goes on writing until the kill, which therefore may hit any point of a batch.
        let seen = lines.by_ref().filter(|line| line.starts_with("answered")).take(1 + 3 * kill as usize);
        let mut note = |line: String| {
            for (id, number) in line.split(' ').skip(1).filter_map(|word| word.split_once(':')) {
                answered.insert(id.to_owned(), number.parse::<u64>().unwrap());
            }
        };
        seen.for_each(&mut note);
        child.kill().unwrap();
        child.wait().unwrap();
        // A truncated line does not count.
        lines.filter(|line| line.split(' ').count() as u64 == TOGETHER + 1).for_each(&mut note);
        assert_eq!(answered.len(), IDS.len(), "each has had an answer");
        let mut store = Disk::open(&path, LIMITS).unwrap();
        assert!(!store.was_repaired(), "a kill is no damage");
        let mut all = 0;
        for id in IDS {
            let (snapshot, entries) = load(&mut store, id);
            assert_eq!(snapshot.as_deref(), Some(id.as_bytes()));
            let numbers: Vec<u64> = entries.iter().map(|(number, _)| *number).collect();
            let last = numbers.len() as u64;
            assert_eq!(numbers, (1..=last).collect::<Vec<_>>(), "kill {kill}: without gaps");
            assert!(
                last >= answered[id],
                "kill {kill}: {last} of {id} are there, {} were acknowledged",
                answered[id]
            );
            assert!(
                entries.iter().all(|(_, entry)| entry.len() == 3_000 && entry.iter().all(|b| *b == entry[0]))
            );
            all += last;
        }
        assert_eq!(all % TOGETHER, 0, "kill {kill}: whole batches");
    }
}

fn a_file(directory: &Path) -> PathBuf {
    let path = directory.join("sessions.redb");
    let mut store = Disk::open(&path, LIMITS).unwrap();
    let save = |n: u32| Request::Save {
        id: n.to_string().into(),
        snapshot: vec![7; 500],
        through: 0,
        entries: Vec::new(),
    };
    store.carry_out(&(0..2_000).map(save).collect::<Vec<_>>());
    path
}

#[test]
fn a_file_that_is_none_of_sessions_is_refused_and_left_as_it_is() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("sessions.redb");
    for content in ["", "x", &"not a file of sessions ".repeat(1_000)] {
        fs::write(&path, content).unwrap();
        let error = Disk::open(&path, LIMITS).map(|_| ()).unwrap_err();
        assert_eq!(error.code(), "damaged", "{error}");
        assert!(error.to_string().contains("sessions.redb"), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
}

#[test]
fn a_file_that_lost_its_end_is_refused() {
    let directory = TempDir::new().unwrap();
    let path = a_file(directory.path());
    let whole = fs::read(&path).unwrap();
    for len in [whole.len() / 2, 4096, 100] {
        let path = directory.path().join(format!("{len}.redb"));
        fs::write(&path, &whole[..len]).unwrap();
        let error = Disk::open(&path, LIMITS).map(|_| ()).unwrap_err();
        assert_eq!(error.code(), "damaged", "{len}: {error}");
    }
}

#[test]
fn damage_anywhere_in_stored_data_is_found_when_the_file_is_opened() {
    let directory = TempDir::new().unwrap();
    let path = a_file(directory.path());
    let whole = fs::read(&path).unwrap();
    let pages: Vec<usize> = (0..whole.len() / 4096)
        .filter(|page| whole[page * 4096..][..4096].windows(64).any(|w| w == [7; 64]))
        .collect();
    assert!(pages.len() > 100);
    for page in pages.iter().step_by(pages.len() / 8) {
        let mut bytes = whole.clone();
        bytes[page * 4096 + 2_000] ^= 0x55;
        let path = directory.path().join(format!("{page}.redb"));
        fs::write(&path, &bytes).unwrap();
        match Disk::open(&path, LIMITS) {
            Err(error) => assert_eq!(error.code(), "damaged", "{error}"),
            Ok(store) => assert!(store.was_repaired(), "page {page}"),
        }
    }
}

#[test]
fn a_start_that_was_killed_before_the_file_was_made_is_made_up_for() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("sessions.redb");
    fs::write(directory.path().join("sessions.new"), "half").unwrap();
    let mut store = Disk::open(&path, LIMITS).unwrap();
    assert_eq!(load(&mut store, "a"), (None, Vec::new()));
    assert!(!directory.path().join("sessions.new").exists());
}

#[test]
fn a_file_that_another_has_open_is_not_opened() {
    let directory = TempDir::new().unwrap();
    let path = a_file(directory.path());
    let _open = Disk::open(&path, LIMITS).unwrap();
    let error = Disk::open(&path, LIMITS).map(|_| ()).unwrap_err();
    assert!(matches!(&error, StoreError::Failed(why) if why.starts_with("another process uses")), "{error}");
}
