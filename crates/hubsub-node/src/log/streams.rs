//! Open scans: a reader of a hub's range as an Arrow stream has a number here and requests one chunk after
//! the other. Separate threads encode the chunks, one ahead of the request at most.
//!
//! Invariants
//! - A stream prefetches one chunk at most. A stream that failed, or that got no request for
//!   `log_stream_idle_ms`, is closed and its number is invalid.
//! - Rows come from segments only. Committed records that are not in segments yet are waited for; uncommitted
//!   ones are never included.
//! - An error is reported after the rows before it, and differs from the end of the stream.

use super::events::{Event, Refusal, StreamAnswer, refused};
use super::hubs::{LoggedHub, LoggedHubs};
use super::reading::Answer;
use super::stream::{Outcome, Search, Stream};
use super::threads::Log;
use crate::io::log_lines::Level;
use crate::io::report::Report;
use hubsub_log::arrow::Scan;
use hubsub_log::{Chain, Disk};
use hubsub_types::{ErrorCode, HubId, Limits};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

const THREADS: usize = 2;

/// The pause when all jobs wait for segments.
const WAIT: Duration = Duration::from_micros(500);

pub struct Streams {
    work: Arc<Work>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

struct Work {
    table: Mutex<Table>,
    /// Signals a new job or the end.
    came: Condvar,
    log: Arc<Log>,
    hubs: Arc<LoggedHubs>,
    control: Arc<dyn Report<Event>>,
    /// The limits `log_streams_max` and `log_stream_idle_ms`.
    streams_max: AtomicU64,
    idle_ms: AtomicU64,
}

#[derive(Default)]
struct Table {
    last: u64,
    open: HashMap<u64, Entry>,
    jobs: VecDeque<Job>,
    is_stopping: bool,
}

struct Entry {
    /// None while a thread processes it.
    stream: Option<Box<Stream>>,
    asked: Option<u64>,
    ahead: Option<Outcome>,
    touched: Instant,
}

enum Job {
    Chunk(u64),
    Offset(u64, Box<Search>),
}

impl Streams {
    /// # Errors
    /// If the system has no threads left.
    pub fn start(
        log: Arc<Log>,
        hubs: Arc<LoggedHubs>,
        control: Arc<dyn Report<Event>>,
        limits: &Limits,
    ) -> io::Result<Streams> {
        let work = Arc::new(Work {
            table: Mutex::default(),
            came: Condvar::new(),
            log,
            hubs,
            control,
            streams_max: AtomicU64::new(limits.log_streams_max),
            idle_ms: AtomicU64::new(limits.log_stream_idle_ms),
        });
        let streams = Streams { work: Arc::clone(&work), threads: Mutex::new(Vec::new()) };
        for i in 0..THREADS {
            let work = Arc::clone(&work);
            match Builder::new().name(format!("hubsub-log-stream-{i}")).spawn(move || work.run()) {
                Ok(thread) => streams.threads.lock().expect("nothing panics under this lock").push(thread),
                Err(e) => {
                    streams.stop();
                    return Err(e);
                }
            }
        }
        Ok(streams)
    }

    /// Opens a stream; the reply to the ticket is its number.
    pub fn open(&self, ticket: u64, scan: Scan) {
        self.work.tell(ticket, self.work.open(scan).map(StreamAnswer::Opened));
    }

    /// Requests the next chunk of a stream as the reply to a ticket.
    pub fn next(&self, ticket: u64, number: u64) {
        let mut table = self.work.table();
        let idle_ms = self.work.idle_ms.load(Ordering::Relaxed);
        let Some(entry) = table.open.get_mut(&number) else {
            drop(table);
            let value = format!("nothing was asked for in {idle_ms} ms (log_stream_idle_ms)");
            return self.work.tell(ticket, Err(refused(ErrorCode::TimedOut, value)));
        };
        entry.touched = Instant::now();
        match entry.ahead.take() {
            Some(outcome) => {
                if outcome.is_err() {
                    table.open.remove(&number);
                } else if entry.stream.as_ref().is_some_and(|stream| !stream.is_over()) {
                    table.jobs.push_back(Job::Chunk(number));
                    self.work.came.notify_one();
                }
                drop(table);
                self.work.tell(ticket, outcome);
            }
            None if entry.stream.as_ref().is_some_and(|stream| stream.is_over()) => {
                let over = table.open.remove(&number);
                drop((table, over));
                self.work.tell(ticket, Ok(StreamAnswer::Chunk(None)));
            }
            None => {
                let is_new = entry.asked.replace(ticket).is_none();
                // If a thread processes it already, the result is for this ticket.
                if is_new && entry.stream.is_some() && !table.jobs.iter().any(|job| job.is_of(number)) {
                    table.jobs.push_back(Job::Chunk(number));
                    self.work.came.notify_one();
                }
            }
        }
    }

    /// Closes a stream; its reader gets nothing more.
    pub fn close(&self, number: u64) {
        let closed = self.work.table().open.remove(&number);
        drop(closed);
    }

    /// Searches for the first offset of a hub with this timestamp or a later one, as the reply to a ticket;
    /// the offset after the last committed one if there is none.
    pub fn offset(&self, ticket: u64, hub: HubId, timestamp_us: u64) {
        let search =
            self.work.hub(hub).map(|(chain, hub)| Search::new(chain, hub.committed() + 1, timestamp_us));
        match search {
            Ok(search) => {
                self.work.table().jobs.push_back(Job::Offset(ticket, Box::new(search)));
                self.work.came.notify_one();
            }
            Err(refusal) => self.work.tell(ticket, Err(refusal)),
        }
    }

    pub fn set_limits(&self, limits: &Limits) {
        self.work.streams_max.store(limits.log_streams_max, Ordering::Relaxed);
        self.work.idle_ms.store(limits.log_stream_idle_ms, Ordering::Relaxed);
        self.work.came.notify_all();
    }

    pub fn count(&self) -> usize {
        self.work.table().open.len()
    }

    pub fn stop(&self) {
        let mut table = self.work.table();
        table.is_stopping = true;
        let ended = (std::mem::take(&mut table.open), std::mem::take(&mut table.jobs));
        drop(table);
        drop(ended);
        self.work.came.notify_all();
        let threads = std::mem::take(&mut *self.threads.lock().expect("nothing panics under this lock"));
        threads.into_iter().for_each(|thread| _ = thread.join());
    }
}

impl Job {
    fn is_of(&self, number: u64) -> bool {
        matches!(self, Job::Chunk(of) if *of == number)
    }
}

impl Work {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().expect("nothing panics under this lock")
    }

    fn tell(&self, ticket: u64, outcome: Outcome) {
        self.control.tell(Event::Stream(ticket, outcome));
    }

    fn hub(&self, hub: HubId) -> Result<(Arc<Chain<Disk>>, Arc<LoggedHub>), Refusal> {
        let known = self.hubs.get(hub);
        let known = known.ok_or_else(|| refused(ErrorCode::NoSuchRoom, format!("hub {}", hub.0)))?;
        match known.chain().cloned() {
            Some(chain) => Ok((chain, known)),
            None => Err(refused(ErrorCode::Quarantined, known.reason().unwrap_or_default())),
        }
    }

    fn open(&self, mut scan: Scan) -> Result<u64, Refusal> {
        let (chain, hub) = self.hub(scan.hub)?;
        let committed = hub.committed();
        // All rooms of a hub have its class.
        scan.shape.device = hub.device();
        scan.filter.device = scan.shape.device.clone();
        let filter = scan.filter.prepared();
        // Skips older records that still exist. `earliest` is read afterwards, so that records removed
        // meanwhile are reported missing instead of skipped.
        let skipped = if filter.since_us > 0 { chain.offset_before_time(filter.since_us) } else { 0 };
        let (earliest, end) = (chain.info().earliest, committed + 1);
        let from = scan.from.unwrap_or(earliest);
        let until = scan.until.unwrap_or(end.max(from));
        if until.max(from) > end {
            let value = format!("{}, committed is what is below {end}", until.max(from));
            return Err(refused(ErrorCode::OffsetUnknown, value));
        }
        let begin = if from >= earliest { from.max(skipped).min(until) } else { from };
        let stream = Stream::new(chain, begin..until, filter, scan.shape, self.log.shared.turns.clone());
        let mut table = self.table();
        let streams_max = self.streams_max.load(Ordering::Relaxed);
        if table.open.len() as u64 >= streams_max || table.is_stopping {
            drop(table);
            self.log.shared.counters.streams_refused.fetch_add(1, Ordering::Relaxed);
            return Err(refused(ErrorCode::TooManyStreams, format!("log_streams_max is {streams_max}")));
        }
        table.last += 1;
        let number = table.last;
        let stream = Some(Box::new(stream));
        table.open.insert(number, Entry { stream, asked: None, ahead: None, touched: Instant::now() });
        drop(table);
        // A sleeping thread must recompute when the next stream becomes idle.
        self.came.notify_one();
        Ok(number)
    }

    fn run(&self) {
        // Live traffic has priority over scans.
        crate::io::sys::yield_to_others();
        // The number of consecutive turns in which a job had to wait.
        let mut unready = 0;
        loop {
            let Some(job) = self.job() else { return };
            let waits = match job {
                Job::Chunk(number) => self.chunk(number),
                Job::Offset(ticket, search) => self.search(ticket, search),
            };
            unready = if waits { unready + 1 } else { 0 };
            if unready > 0 && unready >= self.table().jobs.len() {
                unready = 0;
                std::thread::sleep(WAIT);
            }
        }
    }

    /// The next job; none at the end. Closes idle streams while it waits.
    fn job(&self) -> Option<Job> {
        let mut table = self.table();
        loop {
            if table.is_stopping {
                return None;
            }
            let idle = Duration::from_millis(self.idle_ms.load(Ordering::Relaxed));
            let (now, before) = (Instant::now(), table.open.len());
            table.open.retain(|_, entry| entry.asked.is_some() || now < entry.touched + idle);
            let closed = before - table.open.len();
            if closed > 0 {
                self.log.shared.counters.streams_idle.fetch_add(closed as u64, Ordering::Relaxed);
            }
            if let Some(job) = table.jobs.pop_front() {
                return Some(job);
            }
            let unasked = table.open.values().filter(|entry| entry.asked.is_none());
            let next = unasked.map(|entry| entry.touched + idle).min();
            table = match next {
                None => self.came.wait(table).expect("nothing panics under this lock"),
                Some(next) => {
                    let wait = next.saturating_duration_since(now);
                    self.came.wait_timeout(table, wait).expect("nothing panics under this lock").0
                }
            };
        }
    }

    /// Runs one turn of a stream; returns whether it waits for segments.
    fn chunk(&self, number: u64) -> bool {
        let taken = self.table().open.get_mut(&number).and_then(|entry| entry.stream.take());
        let Some(mut stream) = taken else { return false };
        let turn = catch_unwind(AssertUnwindSafe(|| stream.turn(&self.log)));
        let turn =
            turn.unwrap_or_else(|_| Answer::Found(Err(refused(ErrorCode::LogFailed, "a thread panicked"))));
        if let Some(damage) = stream.damage.take() {
            self.hubs.damaged(stream.chain.hub, damage);
        }
        let outcome = match turn {
            Answer::Found(outcome) => outcome,
            Answer::GoesOn | Answer::Waits => {
                let mut table = self.table();
                if let Some(entry) = table.open.get_mut(&number) {
                    entry.stream = Some(stream);
                    table.jobs.push_back(Job::Chunk(number));
                }
                return matches!(turn, Answer::Waits);
            }
        };
        self.count(&stream, &outcome);
        let mut table = self.table();
        let Some(entry) = table.open.get_mut(&number) else { return false };
        let has_more = outcome.is_ok() && !stream.is_over();
        entry.stream = Some(stream);
        match entry.asked.take() {
            None => entry.ahead = Some(outcome),
            Some(ticket) => {
                entry.touched = Instant::now();
                if outcome.is_err() {
                    table.open.remove(&number);
                } else if has_more {
                    table.jobs.push_back(Job::Chunk(number));
                    self.came.notify_one();
                }
                drop(table);
                self.tell(ticket, outcome);
            }
        }
        false
    }

    fn count(&self, stream: &Stream, outcome: &Outcome) {
        let counters = &self.log.shared.counters;
        match outcome {
            Ok(StreamAnswer::Chunk(Some(chunk))) => {
                counters.stream_rows.fetch_add(chunk.rows as u64, Ordering::Relaxed);
                counters.stream_bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            }
            Ok(_) => {}
            Err(refusal) => {
                counters.streams_failed.fetch_add(1, Ordering::Relaxed);
                let at = stream.cursor.next().to_string();
                let hub = stream.chain.hub.0.to_string();
                let (code, value) = (refusal.code.code().to_owned(), refusal.value.clone());
                let fields = vec![("hub", hub), ("offset", at), ("code", code), ("reason", value)];
                // Loss by retention of a slow reader needs no operator action.
                let is_gone = refusal.code == ErrorCode::OffsetsLost;
                let level = if is_gone { Level::Warning } else { Level::Error };
                self.log.shared.log(level, "a stream of records broke off", fields);
            }
        }
    }

    /// Runs one turn of a search; returns whether it waits for segments.
    fn search(&self, ticket: u64, mut search: Box<Search>) -> bool {
        match search.turn(&self.log) {
            Answer::Found(outcome) => {
                self.tell(ticket, outcome.map(StreamAnswer::Offset));
                false
            }
            turn => {
                self.table().jobs.push_back(Job::Offset(ticket, search));
                matches!(turn, Answer::Waits)
            }
        }
    }
}
