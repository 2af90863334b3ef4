//! Schedules disk access: publishers wait for a sync, while reads of history are not urgent.
//!
//! Invariants: the journal never waits for a reader, except for one piece being read. While records are
//! synced, one reader reads one piece at a time, between two syncs; a reader that found no such moment in
//! [`LONGEST`] reads anyway, so none starves.

use hubsub_log::Pace;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// For this long after a sync more are expected.
const CROWDED: Duration = Duration::from_millis(20);

/// How long a reader waits for a moment between two syncs.
const LONGEST: Duration = Duration::from_millis(2);

/// The poll interval of a waiting reader.
const LOOK: Duration = Duration::from_micros(50);

/// Schedules disk reads between syncs.
pub struct Turns {
    began: Instant,
    is_syncing: AtomicBool,
    /// End of the last sync, in µs since `began`; 0 before the first.
    synced_us: AtomicU64,
    reader: Mutex<()>,
}

impl Turns {
    pub fn new() -> Turns {
        let (is_syncing, synced_us) = (AtomicBool::new(false), AtomicU64::new(0));
        Turns { began: Instant::now(), is_syncing, synced_us, reader: Mutex::new(()) }
    }

    /// Runs a sync that publishers wait for.
    pub fn sync<T>(&self, sync: impl FnOnce() -> T) -> T {
        self.is_syncing.store(true, Ordering::Relaxed);
        let done = sync();
        self.synced_us.store(self.now_us().max(1), Ordering::Relaxed);
        self.is_syncing.store(false, Ordering::Relaxed);
        done
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }
}

impl Pace for Turns {
    fn is_crowded(&self) -> bool {
        let synced_us = self.synced_us.load(Ordering::Relaxed);
        let is_recent = || self.now_us() < synced_us + CROWDED.as_micros() as u64;
        self.is_syncing.load(Ordering::Relaxed) || (synced_us > 0 && is_recent())
    }

    fn in_turn(&self, read: &mut dyn FnMut()) {
        let _turn = self.reader.lock().expect("nothing panics under this lock");
        let until = Instant::now() + LONGEST;
        while self.is_syncing.load(Ordering::Relaxed) && Instant::now() < until {
            std::thread::sleep(LOOK);
        }
        read();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn a_reader_waits_for_a_sync_but_not_for_ever() {
        let turns = Turns::new();
        assert!(!turns.is_crowded(), "nobody has published");
        std::thread::scope(|scope| {
            let (begun, (end, ended)) = (channel(), channel());
            let turns = &turns;
            scope.spawn(move || {
                turns.sync(|| {
                    begun.0.send(()).unwrap();
                    ended.recv().unwrap()
                });
            });
            begun.1.recv().unwrap();
            assert!(turns.is_crowded());
            let (asked, mut reads) = (Instant::now(), 0);
            turns.in_turn(&mut || reads += 1);
            assert!(reads == 1 && asked.elapsed() >= LONGEST, "the sync goes on");
            end.send(()).unwrap();
        });
        assert!(!turns.is_syncing.load(Ordering::Relaxed) && turns.synced_us.load(Ordering::Relaxed) > 0);
        let mut reads = 0;
        turns.in_turn(&mut || reads += 1);
        assert_eq!(reads, 1);
    }
}
