//! The threads that read the log for shards. A job reads and sends its answer.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;

/// What a reader does.
pub type Job = Box<dyn FnOnce() + Send>;

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

    /// Ends the threads once the jobs that wait are done.
    pub fn stop(&self) {
        self.queue.inner.lock().expect("nothing panics under this lock").is_stopping = true;
        self.queue.came.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().expect("nothing panics under this lock"));
        // A job that panicked has said so by its silence; the others go on.
        threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

impl Queue {
    fn run(&self) {
        loop {
            let inner = self.inner.lock().expect("nothing panics under this lock");
            let is_idle = |inner: &mut Inner| inner.jobs.is_empty() && !inner.is_stopping;
            let mut inner = self.came.wait_while(inner, is_idle).expect("nothing panics under this lock");
            let Some(job) = inner.jobs.pop_front() else { return };
            drop(inner);
            job();
        }
    }
}
