use super::*;
use hubsub_log::record::{self, Record};
use hubsub_log::sim::{Faults, SimDisk};
use hubsub_log::{ChainOptions, LogOptions, open};
use std::sync::mpsc;
use std::time::Duration;

const OPTIONS: LogOptions = LogOptions {
    chain: ChainOptions { segment_bytes: 64 * 1024, run_bytes: 4096 },
    journal_bytes: 32 * 1024,
    open_files_max: 8,
};

/// Tells a channel.
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
        reserve_bytes: 0,
        retention: HashMap::new(),
    }
}

fn start(disk: &SimDisk) -> TestLog {
    let mut opened = open(Arc::new(disk.clone()), 5, OPTIONS).unwrap();
    let known = opened.segments.manifest().hubs.first().map(|entry| entry.hub);
    let hub = known.unwrap_or_else(|| opened.segments.add_hub("chat", 0).unwrap());
    let next = opened.segments.chain(hub).unwrap().info().next;
    let (tell, news) = mpsc::channel();
    let control = Arc::new(Control::new(100).unwrap());
    let log = Log::start(opened, settings(), Arc::new(Tells(Mutex::new(tell))), control).unwrap();
    TestLog { log, news, hub, next }
}

impl TestLog {
    /// Submits `count` records; the offset of the last.
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
                topic: b"r",
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
                None => panic!("the log failed: {:?}", self.log.reason()),
            }
        }
    }
}

#[test]
fn what_was_told_to_be_safe_outlives_the_power() {
    let disk = SimDisk::default();
    for round in 1..=3u64 {
        let mut log = start(&disk);
        assert_eq!(log.next, (round - 1) * 600 + 1);
        for _ in 0..200 {
            log.say(3, 150);
        }
        log.wait_for(round * 600);
        assert!(!log.log.is_behind());
        let counters = log.log.counters();
        assert_eq!(counters.records.load(std::sync::atomic::Ordering::Relaxed), 600);
        disk.crash(|| false);
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
    while log.log.state() == State::Open {
        last = log.say(1, 5_000);
        std::thread::yield_now();
    }
    assert_eq!(log.log.state(), State::Full);
    assert!(log.log.reason().unwrap().contains("full"));
    disk.set_faults(Faults::default());
    log.wait_for(last);
    while log.log.state() != State::Open {
        std::thread::yield_now();
    }
    log.log.stop();
    assert_eq!(
        open(Arc::new(disk), 5, OPTIONS).unwrap().segments.chain(log.hub).unwrap().info().next,
        last + 1
    );
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
    assert_eq!(log.log.state(), State::Failed);
    disk.set_faults(Faults::default());
    log.say(1, 10);
    log.log.stop();
    assert!(log.news.try_iter().all(|news| news.is_none()));
    assert!(!open(Arc::new(disk), 5, OPTIONS).unwrap().was_clean);
}

#[test]
fn readers_do_what_waits_and_refuse_what_is_too_much() {
    let readers = Readers::start("reader", 2, 3).unwrap();
    let (hold, held) = mpsc::channel::<()>();
    let held = Arc::new(Mutex::new(held));
    let (tell, done) = mpsc::channel();
    let mut refused = 0;
    for i in 0..20 {
        let (held, tell) = (Arc::clone(&held), tell.clone());
        let job = Box::new(move || {
            let _ = held.lock().unwrap().recv();
            let _ = tell.send(i);
        });
        refused += usize::from(readers.submit(job).is_err());
    }
    assert!((15..=17).contains(&refused), "{refused}");
    drop(hold);
    readers.stop();
    assert_eq!(done.try_iter().count(), 20 - refused);
}
