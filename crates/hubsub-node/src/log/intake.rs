//! The queue of batches from the shards to the journal thread.

use crate::io::spin::Spin;
use hubsub_log::Batch;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

#[derive(Default)]
pub struct Intake {
    waiting: Mutex<Waiting>,
    came: Condvar,
    /// Bytes submitted and not synced yet.
    bytes: AtomicUsize,
}

#[derive(Default)]
struct Waiting {
    batches: Vec<Batch>,
    /// True if the journal thread sleeps and must be woken.
    is_asleep: bool,
    is_stopping: bool,
}

pub enum Taken {
    /// Records, in order per hub.
    Batches(Vec<Batch>),
    Nothing,
    /// The queue is stopped and empty.
    End,
}

impl Intake {
    pub fn put(&self, batches: &mut Vec<Batch>) {
        if batches.is_empty() {
            return;
        }
        self.bytes.fetch_add(bytes_of(batches), Ordering::Relaxed);
        let mut waiting = self.waiting.lock().expect("nothing panics under this lock");
        waiting.batches.append(batches);
        let is_asleep = std::mem::take(&mut waiting.is_asleep);
        drop(waiting);
        if is_asleep {
            self.came.notify_one();
        }
    }

    /// Takes all batches; waits for one, at most for `wait`. All taken earlier are done.
    pub fn take(&self, wait: Option<Duration>, spin: &mut Spin) -> Taken {
        spin.begin();
        while self.bytes() == 0 && spin.looks_again() {}
        let taken = self.sleep(wait);
        spin.came();
        taken
    }

    fn sleep(&self, wait: Option<Duration>) -> Taken {
        let mut waiting = self.waiting.lock().expect("nothing panics under this lock");
        let is_idle = |waiting: &mut Waiting| waiting.batches.is_empty() && !waiting.is_stopping;
        let proof = "nothing panics under this lock";
        waiting.is_asleep = true;
        let mut waiting = match wait {
            Some(wait) => self.came.wait_timeout_while(waiting, wait, is_idle).expect(proof).0,
            None => self.came.wait_while(waiting, is_idle).expect(proof),
        };
        waiting.is_asleep = false;
        match (waiting.batches.is_empty(), waiting.is_stopping) {
            (false, _) => Taken::Batches(std::mem::take(&mut waiting.batches)),
            (true, false) => Taken::Nothing,
            (true, true) => Taken::End,
        }
    }

    pub fn done(&self, batches: &[Batch]) {
        self.bytes.fetch_sub(bytes_of(batches), Ordering::Relaxed);
    }

    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.waiting.lock().expect("nothing panics under this lock").is_stopping = true;
        self.came.notify_one();
    }
}

pub fn bytes_of(batches: &[Batch]) -> usize {
    batches.iter().map(|batch| batch.bytes.len()).sum()
}
