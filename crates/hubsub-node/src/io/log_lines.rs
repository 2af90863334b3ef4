//! Log lines on their way to the control plane, which writes them. The queue is bounded: above [`LINES_MAX`]
//! lines are counted and dropped. Lines that clients cause are limited to one per second and message; the next
//! line reports how many were suppressed.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Limit of queued log lines: about what a busy node logs in a second.
pub const LINES_MAX: usize = 1_024;
/// Minimum interval between two client-caused lines with the same message.
const QUIET: Duration = Duration::from_secs(1);

/// Severity of a log line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    Debug,
    Info,
    /// Something may need attention.
    Warning,
    /// An operator must act.
    Error,
}

/// Data of a log line.
pub type Fields = Vec<(&'static str, String)>;

/// A log line: level, constant message, data.
pub type Line = (Level, &'static str, Fields);

/// A descriptor that is readable while anything waits for the control plane, in any of several queues.
pub struct Wake {
    /// Number of entries in all queues.
    waiting: Mutex<usize>,
    write: UnixStream,
    read: UnixStream,
}

impl Wake {
    /// # Errors
    /// No descriptors are left.
    pub fn new() -> io::Result<Wake> {
        let (write, read) = UnixStream::pair()?;
        write.set_nonblocking(true)?;
        read.set_nonblocking(true)?;
        Ok(Wake { waiting: Mutex::default(), write, read })
    }

    pub fn fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }

    /// Counts an entry that its queue, which is locked, is about to get.
    pub fn add(&self) {
        let mut waiting = self.waiting();
        if *waiting == 0 {
            // A full pipe is readable already, so a failed write is fine.
            let _ = (&self.write).write(&[1]);
        }
        *waiting += 1;
    }

    /// Counts entries that were taken out.
    pub fn remove(&self, count: usize) {
        let mut waiting = self.waiting();
        *waiting -= count;
        if *waiting == 0 {
            let mut bytes = [0; 64];
            while matches!((&self.read).read(&mut bytes), Ok(n) if n > 0) {}
        }
    }

    fn waiting(&self) -> MutexGuard<'_, usize> {
        self.waiting.lock().expect("nothing panics under this lock")
    }
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<Line>,
    /// Per message of client-caused lines: the end of its quiet interval, and the number of suppressed lines.
    quiet: HashMap<&'static str, (Instant, u64)>,
}

pub struct LogLines {
    queue: Mutex<Queue>,
    /// Lines dropped because the queue was full.
    dropped: AtomicU64,
    wake: Arc<Wake>,
}

impl LogLines {
    pub fn new(wake: Arc<Wake>) -> LogLines {
        LogLines { queue: Mutex::default(), dropped: AtomicU64::new(0), wake }
    }

    /// Lines dropped since the start.
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    pub fn log(&self, level: Level, message: &'static str, fields: Fields) {
        self.add(self.lock(), (level, message, fields));
    }

    /// Adds a log line that a client caused, unless one with this message was logged within the last second.
    pub fn log_of_client(&self, level: Level, message: &'static str, fields: Fields) {
        self.log_of_client_at(Instant::now(), level, message, fields);
    }

    fn log_of_client_at(&self, now: Instant, level: Level, message: &'static str, mut fields: Fields) {
        let mut queue = self.lock();
        let (until, left_out) = queue.quiet.entry(message).or_insert((now, 0));
        if now < *until {
            *left_out += 1;
            return;
        }
        *until = now + QUIET;
        let before = std::mem::take(left_out);
        if before > 0 {
            fields.push(("left_out", before.to_string()));
        }
        self.add(queue, (level, message, fields));
    }

    fn add(&self, mut queue: MutexGuard<'_, Queue>, line: Line) {
        if queue.lines.len() >= LINES_MAX {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.wake.add();
        queue.lines.push_back(line);
    }

    /// Takes up to `lines_max` lines, oldest first.
    pub fn drain(&self, lines_max: usize) -> Vec<Line> {
        let mut queue = self.lock();
        let count = queue.lines.len().min(lines_max);
        self.wake.remove(count);
        queue.lines.drain(..count).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_the_lines_that_clients_cause_one_a_second_of_a_kind_is_written() {
        let lines = LogLines::new(Arc::new(Wake::new().unwrap()));
        let begin = Instant::now();
        let log = |ms: u64, message| {
            lines.log_of_client_at(begin + Duration::from_millis(ms), Level::Info, message, Vec::new());
            lines.drain(9).pop()
        };
        assert!(log(0, "a").is_some() && log(0, "b").is_some());
        assert!(log(1, "a").is_none() && log(999, "a").is_none());
        let Some((Level::Info, "a", fields)) = log(1_000, "a") else { panic!("no line") };
        assert_eq!(fields, [("left_out", "2".to_owned())]);
        let Some((Level::Info, "a", fields)) = log(2_000, "a") else { panic!("no line") };
        assert!(fields.is_empty());
    }
}
