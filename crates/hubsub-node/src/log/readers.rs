//! The threads that read the log for shards. A job reads and sends its answer; one
//! that waits for what is on its way to the disk keeps no thread from the others.

use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What a reader does; false: it is not done, and what it waits for not there.
pub type Job = Box<dyn FnMut() -> bool + Send>;

/// Wait between two looks at jobs that wait.
const LOOK: Duration = Duration::from_micros(200);

/// See the module.
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
    running: usize,
    is_stopping: bool,
}

impl Readers {
    /// `count` threads of that name for at most `jobs_max` jobs that wait.
    ///
    /// # Errors
    /// The system is out of threads.
    pub fn start(name: &str, count: usize, jobs_max: usize) -> io::Result<Readers> {
        let queue = Arc::new(Queue { inner: Mutex::default(), came: Condvar::new(), jobs_max });
        let readers = Readers { queue: Arc::clone(&queue), threads: Mutex::new(Vec::new()) };
        for i in 0..count {
            let queue = Arc::clone(&queue);
            let thread = super::named(&format!("{name}-{i}")).spawn(move || queue.run());
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

    /// Takes a job; gives it back when too many wait.
    ///
    /// # Errors
    /// The job.
    pub fn submit(&self, job: Job) -> Result<(), Job> {
        let mut inner = self.queue.inner.lock().expect("nothing panics under this lock");
        if inner.jobs.len() >= self.queue.jobs_max || inner.is_stopping {
            return Err(job);
        }
        inner.jobs.push_back(job);
        drop(inner);
        self.queue.came.notify_one();
        Ok(())
    }

    /// How many jobs wait, and how many are done at present.
    #[must_use]
    pub fn load(&self) -> (usize, usize) {
        let inner = self.queue.inner.lock().expect("nothing panics under this lock");
        (inner.jobs.len(), inner.running)
    }

    /// Ends the threads once each has done the job it is at. Whoever would get the other
    /// answers has ended.
    pub fn stop(&self) {
        let mut inner = self.queue.inner.lock().expect("nothing panics under this lock");
        inner.is_stopping = true;
        let jobs = std::mem::take(&mut inner.jobs);
        drop((inner, jobs));
        self.queue.came.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().expect("nothing panics under this lock"));
        threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

impl Queue {
    fn run(&self) {
        // Who reads the past waits for who speaks now.
        crate::sys::yield_to_others();
        // How many jobs were tried in vain, one after the other.
        let mut unready = 0;
        loop {
            let inner = self.inner.lock().expect("nothing panics under this lock");
            let is_idle = |inner: &mut Inner| inner.jobs.is_empty() && !inner.is_stopping;
            let mut inner = self.came.wait_while(inner, is_idle).expect("nothing panics under this lock");
            let Some(mut job) = inner.jobs.pop_front() else { return };
            inner.running += 1;
            drop(inner);
            // One that panics has no answer; the others go on.
            let is_done = catch_unwind(AssertUnwindSafe(&mut job)).unwrap_or(true);
            let mut inner = self.inner.lock().expect("nothing panics under this lock");
            inner.running -= 1;
            if is_done {
                unready = 0;
                continue;
            }
            unready += 1;
            if !inner.is_stopping {
                inner.jobs.push_back(job);
            }
            if unready >= inner.jobs.len() {
                unready = 0;
                drop(inner);
                std::thread::sleep(LOOK);
            }
        }
    }
}
