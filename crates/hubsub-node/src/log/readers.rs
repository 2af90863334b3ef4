//! The threads that read the log for shards. A job reads and sends its result. A job that waits for the disk
//! does not block a thread, and a long one runs in turns between others.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// A job; each call is one turn.
pub type Job = Box<dyn FnMut() -> Turn + Send>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    Done,
    /// Records that it needs are not available yet.
    Waits,
    /// It has more to read.
    GoesOn,
}

/// The pause when all jobs wait.
const LOOK: Duration = Duration::from_micros(200);

pub struct Readers {
    queue: Arc<Queue>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Queue {
    inner: Mutex<Inner>,
    came: Condvar,
    jobs_max: usize,
}

#[derive(Default)]
struct Inner {
    jobs: VecDeque<Job>,
    /// Jobs that need more than one turn; they get every other turn.
    long: VecDeque<Job>,
    running: usize,
    is_stopping: bool,
}

impl Inner {
    fn len(&self) -> usize {
        self.jobs.len() + self.long.len()
    }

    /// The next job, and whether it is a long one.
    fn next(&mut self, was_long: bool) -> Option<(Job, bool)> {
        if !was_long && let Some(job) = self.long.pop_front() {
            return Some((job, true));
        }
        let job = self.jobs.pop_front().map(|job| (job, false));
        job.or_else(|| self.long.pop_front().map(|job| (job, true)))
    }
}

impl Readers {
    /// Starts `count` threads with this name prefix, for at most `jobs_max` queued jobs.
    ///
    /// # Errors
    /// If the system has no threads left.
    pub fn start(name: &str, count: usize, jobs_max: usize) -> io::Result<Readers> {
        let queue = Arc::new(Queue { inner: Mutex::default(), came: Condvar::new(), jobs_max });
        let readers = Readers { queue: Arc::clone(&queue), threads: Mutex::new(Vec::new()) };
        for i in 0..count {
            let queue = Arc::clone(&queue);
            let thread = Builder::new().name(format!("{name}-{i}")).spawn(move || queue.run());
            match thread {
                Ok(thread) => readers.threads.lock().expect("nothing panics under this lock").push(thread),
                Err(e) => {
                    readers.stop();
                    return Err(e);
                }
            }
        }
        Ok(readers)
    }

    /// # Errors
    /// The job, if the queue is full or stopped.
    pub fn submit(&self, job: Job) -> Result<(), Job> {
        let mut inner = self.queue.inner.lock().expect("nothing panics under this lock");
        if inner.len() >= self.queue.jobs_max || inner.is_stopping {
            return Err(job);
        }
        inner.jobs.push_back(job);
        drop(inner);
        self.queue.came.notify_one();
        Ok(())
    }

    pub fn load(&self) -> (usize, usize) {
        let inner = self.queue.inner.lock().expect("nothing panics under this lock");
        (inner.len(), inner.running)
    }

    /// Ends the threads after their current turns. The receivers of the other results have ended.
    pub fn stop(&self) {
        let mut inner = self.queue.inner.lock().expect("nothing panics under this lock");
        inner.is_stopping = true;
        let jobs = [std::mem::take(&mut inner.jobs), std::mem::take(&mut inner.long)];
        drop(inner);
        drop(jobs);
        self.queue.came.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().expect("nothing panics under this lock"));
        threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

impl Queue {
    fn run(&self) {
        // Live traffic has priority over history reads.
        crate::io::sys::yield_to_others();
        // The number of consecutive turns in which a job had to wait.
        let (mut unready, mut was_long) = (0, false);
        loop {
            let inner = self.inner.lock().expect("nothing panics under this lock");
            let is_idle = |inner: &mut Inner| inner.len() == 0 && !inner.is_stopping;
            let mut inner = self.came.wait_while(inner, is_idle).expect("nothing panics under this lock");
            let Some((mut job, is_long)) = inner.next(was_long) else { return };
            was_long = is_long;
            inner.running += 1;
            drop(inner);
            // A job that panics has no result; the others continue.
            let turn = catch_unwind(AssertUnwindSafe(&mut job)).unwrap_or(Turn::Done);
            // Otherwise a shard that polls for its result would get the processor back only at the next tick.
            std::thread::yield_now();
            let mut inner = self.inner.lock().expect("nothing panics under this lock");
            inner.running -= 1;
            if turn != Turn::Done && !inner.is_stopping {
                let of_its_kind = if turn == Turn::GoesOn { &mut inner.long } else { &mut inner.jobs };
                of_its_kind.push_back(job);
            }
            unready = if turn == Turn::Waits { unready + 1 } else { 0 };
            if unready > 0 && unready >= inner.len() {
                unready = 0;
                drop(inner);
                std::thread::sleep(LOOK);
            }
        }
    }
}
