mod hub_questions;
mod questions;

use super::intake::Intake;
use super::segments::Handover;
use super::shared::Shared;
use super::*;
use crate::control::Control;
use hubsub_log::record::{self, Record};
use hubsub_log::sim::{Faults, SimDisk};
use hubsub_log::storage::Storage;
use hubsub_log::{Batch, Chain, ChainOptions, Disk, HubId, Keep, LogOptions, Opened, Retention, open};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

const OPTIONS: LogOptions = LogOptions {
    chain: ChainOptions { segment_bytes: 64 * 1024, run_bytes: 4096 },
    journal_bytes: 32 * 1024,
    open_files_max: 8,
    reserve_bytes: 0,
};

/// Sends notifications to a channel.
struct Tells(Mutex<mpsc::Sender<Option<u64>>>);

impl Listener for Tells {
    fn safe(&self, hubs: &[(HubId, u64)]) {
        for &(_, offset) in hubs {
            let _ = self.0.lock().unwrap().send(Some(offset));
        }
    }

    fn failed(&self) {
        let _ = self.0.lock().unwrap().send(None);
    }
}

struct TestLog {
    log: Log,
    news: mpsc::Receiver<Option<u64>>,
    hub: HubId,
    next: u64,
}

fn settings() -> LogSettings {
    LogSettings {
        pending_bytes_max: 1 << 20,
        unwritten_bytes_max: 1 << 20,
        checkpoint_bytes: 20_000,
        checkpoint_ms: 10_000,
        keeping: HashMap::new(),
    }
}

fn start(disk: &SimDisk) -> TestLog {
    start_keeping(disk, Keep::Log)
}

fn start_keeping(disk: &SimDisk, keep: Keep) -> TestLog {
    let mut opened = open(Arc::new(disk.clone()), 5, OPTIONS).unwrap();
    let known = opened.segments.manifest().hubs.first().map(|entry| entry.hub);
    let hub = known.unwrap_or_else(|| opened.segments.add_hub("chat", 0, keep).unwrap());
    start_opened(opened, hub, settings())
}

/// On a real disk, which readers need.
fn start_on_disk(directory: &Path, retention: Retention) -> (TestLog, Arc<Chain<Disk>>) {
    let mut opened = open(Arc::new(Disk::lock(directory).unwrap()), 5, OPTIONS).unwrap();
    let hub = opened.segments.add_hub("chat", 0, Keep::Log).unwrap();
    let chain = opened.segments.chain(hub).unwrap();
    let keeping = HashMap::from([(hub, retention.into())]);
    (start_opened(opened, hub, LogSettings { keeping, ..settings() }), chain)
}

fn start_opened<S: Storage>(opened: Opened<S>, hub: HubId, settings: LogSettings) -> TestLog {
    let next = opened.segments.chain(hub).unwrap().info().next;
    let (tell, news) = mpsc::channel();
    let control = Arc::new(Control::new(100).unwrap());
    let (log, _) = Log::start(opened, settings, Arc::new(Tells(Mutex::new(tell))), control).unwrap();
    TestLog { log, news, hub, next }
}

impl TestLog {
    /// Submits `count` records; returns the offset of the last.
    fn say(&mut self, count: u32, bytes: usize) -> u64 {
        let mut batch = Batch { hub: self.hub, first: self.next, count, bytes: Vec::new() };
        for _ in 0..count {
            let offset = self.next;
            let payload = vec![offset as u8; bytes];
            let record = Record {
                hub: self.hub,
                offset,
                epoch: 1,
                seq: offset,
                timestamp_us: offset,
                room: b"r",
                topic: if offset % 100 == 7 { b"rare" } else { b"r" },
                payload: &payload,
                ..Record::default()
            };
            record::encode(&record, &mut batch.bytes);
            self.next += 1;
        }
        self.log.submit(&mut vec![batch]);
        self.next - 1
    }

    fn wait_for(&self, offset: u64) {
        loop {
            match self.news.recv_timeout(Duration::from_secs(30)).expect("it is told in time") {
                Some(safe) if safe >= offset => return,
                Some(_) => {}
                None => panic!("the log failed: {:?}", self.log.shared.reason()),
            }
        }
    }
}

#[test]
fn what_was_told_to_be_safe_outlives_the_power() {
    let mut disk = SimDisk::default();
    for round in 1..=3u64 {
        let mut log = start(&disk);
        assert_eq!(log.next, (round - 1) * 600 + 1);
        for _ in 0..200 {
            log.say(3, 150);
        }
        log.wait_for(round * 600);
        assert!(!log.log.is_behind());
        let counters = &log.log.shared.counters;
        assert_eq!(counters.records.load(std::sync::atomic::Ordering::Relaxed), 600);
        disk = disk.crashed(|| false);
        log.log.stop();
    }
}

#[test]
fn a_stop_makes_safe_what_was_submitted_and_ends_cleanly() {
    let disk = SimDisk::default();
    let mut log = start(&disk);
    (0..50).for_each(|_| _ = log.say(5, 500));
    log.log.stop();
    log.wait_for(250);
    let opened = open(Arc::new(disk), 5, OPTIONS).unwrap();
    assert!(opened.was_clean);
    assert_eq!(opened.segments.chain(log.hub).unwrap().info().next, 251);
}

#[test]
fn a_full_disk_holds_records_until_it_has_room() {
    let disk = SimDisk::default();
    let mut log = start(&disk);
    let first = log.say(1, 10);
    log.wait_for(first);
    disk.set_faults(Faults { free_bytes: Some(30_000), ..Faults::default() });
    let mut last = 0;
    while log.log.shared.state() == State::Open {
        last = log.say(1, 5_000);
        std::thread::yield_now();
    }
    assert_eq!(log.log.shared.state(), State::Full);
    assert!(log.log.shared.reason().unwrap().contains("full"));
    disk.set_faults(Faults::default());
    log.wait_for(last);
    while log.log.shared.state() != State::Open {
        std::thread::yield_now();
    }
    log.log.stop();
    assert_eq!(
        open(Arc::new(disk), 5, OPTIONS).unwrap().segments.chain(log.hub).unwrap().info().next,
        last + 1
    );
}

#[test]
fn a_file_that_cannot_be_opened_is_tried_again_and_ends_nothing() {
    let disk = SimDisk::default();
    let mut log = start(&disk);
    let first = log.say(1, 10);
    log.wait_for(first);
    disk.set_faults(Faults { opens_fail: true, ..Faults::default() });
    let mut last = first;
    while log.log.shared.state() == State::Open {
        if !log.log.is_behind() {
            last = log.say(1, 5_000);
        }
        std::thread::yield_now();
    }
    assert_eq!(log.log.shared.state(), State::Full);
    assert!(
        log.log.shared.reason().unwrap().contains("Too many open files"),
        "{:?}",
        log.log.shared.reason()
    );
    assert!(log.log.shared.counters.opens_failed.load(std::sync::atomic::Ordering::Relaxed) > 0);
    disk.set_faults(Faults::default());
    log.wait_for(last);
    while log.log.shared.state() != State::Open {
        std::thread::yield_now();
    }
    log.log.stop();
    let opened = open(Arc::new(disk), 5, OPTIONS).unwrap();
    assert!(opened.was_clean);
    assert_eq!(opened.segments.chain(log.hub).unwrap().info().next, last + 1);
}

/// A log with a reserve, on a disk with this much space, that accepts a record.
fn start_with_room(disk: &SimDisk, options: LogOptions, bytes: u64) -> TestLog {
    disk.set_faults(Faults { free_bytes: Some(bytes), ..Faults::default() });
    let mut opened = open(Arc::new(disk.clone()), 5, options).unwrap();
    let hub = opened.segments.add_hub("chat", 0, Keep::Log).unwrap();
    let mut log = start_opened(opened, hub, settings());
    let last = log.say(1, 10);
    log.wait_for(last);
    log
}

#[test]
fn with_the_room_that_it_asks_for_a_log_is_open_and_with_less_it_says_how_much() {
    // A journal is larger than everything else that is written.
    let options = LogOptions { journal_bytes: 1 << 20, reserve_bytes: 2 << 20, ..OPTIONS };
    let else_bytes = 64 * 1024;
    assert_eq!(options.room_bytes(), 6 << 20);
    let until = |reached: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !reached() {
            assert!(begin.elapsed() < Duration::from_secs(30), "it comes in time");
            std::thread::yield_now();
        }
    };
    let disk = SimDisk::default();
    let log = start_with_room(&disk, options, options.room_bytes() + else_bytes);
    let taken = || {
        let files = disk.paths().into_iter().filter(|path| path == "reserve" || path.starts_with("journal/"));
        files.map(|path| disk.bytes(&path).map_or(0, |bytes| bytes.len() as u64)).sum::<u64>()
    };
    until(&|| taken() == options.room_bytes());
    log.log.stop();
    assert_eq!((log.log.shared.state(), log.log.shared.reason()), (State::Open, None));

    let disk = SimDisk::default();
    let log = start_with_room(&disk, options, options.room_bytes() - else_bytes);
    let says =
        |mib: u64| log.log.shared.reason().is_some_and(|why| why.contains(&format!("has {mib} MiB free")));
    until(&|| log.log.shared.state() == State::Full && says(1));
    log.log.stop();
}

#[test]
fn a_failed_sync_is_told_and_nothing_is_safe_from_then_on() {
    let disk = SimDisk::default();
    let mut log = start(&disk);
    let first = log.say(1, 10);
    log.wait_for(first);
    disk.set_faults(Faults { fails_after: Some(0), ..Faults::default() });
    log.say(1, 10);
    assert_eq!(log.news.recv_timeout(Duration::from_secs(30)), Ok(None));
    assert_eq!(log.log.shared.state(), State::Failed);
    disk.set_faults(Faults::default());
    log.say(1, 2 << 20);
    assert!(log.log.pending_bytes() > 2 << 20 && !log.log.is_behind(), "nobody waits for what will not come");
    log.log.stop();
    assert!(log.log.shared.has_ended());
    assert!(log.news.try_iter().all(|news| news.is_none()));
    assert!(!open(Arc::new(disk), 5, OPTIONS).unwrap().was_clean);
}

#[test]
fn a_stop_that_gives_records_up_is_no_clean_end() {
    let opened = open(Arc::new(SimDisk::default()), 5, OPTIONS).unwrap();
    let (tell, news) = mpsc::channel();
    let control = Arc::new(Control::new(100).unwrap());
    let shared = Arc::new(Shared::new(control, Arc::new(Tells(Mutex::new(tell)))));
    // No thread provides another journal file, as if there were no room; all other files exist already.
    let (intake, handover) = (Arc::new(Intake::default()), Arc::new(Handover::default()));
    let batch = |first| Batch { hub: HubId(1), first, count: 1, bytes: vec![0; 30_000] };
    let mut journal = opened.journal;
    journal.append(&[batch(1)]).unwrap();
    journal.sync().unwrap();
    intake.put(&mut vec![batch(2)]);
    shared.begin_to_stop();
    intake.stop();
    let unwritten_bytes_max = 1 << 20;
    let of_run = Arc::clone(&shared);
    journal::Thread { journal, intake, shared: of_run, handover, unwritten_bytes_max }.run();
    assert_eq!(shared.state(), State::Failed);
    assert_eq!(news.try_iter().collect::<Vec<_>>(), [None]);
}

#[test]
fn a_thread_that_panics_is_a_log_that_has_failed() {
    struct Panics(Mutex<mpsc::Sender<()>>);
    impl Listener for Panics {
        fn safe(&self, _: &[(HubId, u64)]) {
            panic!("as a test wants it");
        }
        fn failed(&self) {
            let _ = self.0.lock().unwrap().send(());
        }
    }
    let mut opened = open(Arc::new(SimDisk::default()), 5, OPTIONS).unwrap();
    let hub = opened.segments.add_hub("chat", 0, Keep::Log).unwrap();
    let (tell, news) = mpsc::channel();
    let control = Arc::new(Control::new(100).unwrap());
    let (log, _) = Log::start(opened, settings(), Arc::new(Panics(Mutex::new(tell))), control).unwrap();
    let (_, news_of_none) = mpsc::channel();
    let mut log = TestLog { log, news: news_of_none, hub, next: 1 };
    log.say(1, 10);
    news.recv_timeout(Duration::from_secs(30)).expect("it says that it has failed");
    assert_eq!(log.log.shared.state(), State::Failed);
    log.log.stop();
}

#[test]
fn a_hub_that_keeps_the_latest_is_compacted_while_it_runs() {
    let disk = SimDisk::default();
    let mut log = start_keeping(&disk, Keep::Latest);
    let segments = || disk.paths().iter().filter(|path| path.ends_with(".segment")).count();
    for _ in 0..40 {
        // All records have one key.
        let last = log.say(10, 1000);
        log.wait_for(last);
    }
    assert!(segments() > 5);
    let begin = std::time::Instant::now();
    while segments() > 2 {
        assert!(begin.elapsed() < Duration::from_secs(30), "{} segments are left", segments());
        std::thread::yield_now();
    }
    log.log.stop();
    let opened = open(Arc::new(disk), 5, OPTIONS).unwrap();
    assert!(opened.was_clean);
    let mut last = 0;
    opened.segments.chain(log.hub).unwrap().replay(1, |record| last = record.offset).unwrap();
    assert_eq!(last, log.next - 1);
}
