//! The way to the control plane: events in one bounded queue, log lines in another, and a descriptor that is readable
//! while there are some. Answers always fit, since each has a request before it. Log lines are taken after all events,
//! so that none delays a decision; those beyond [`LINES_MAX`] are counted and dropped. Of the lines that clients cause,
//! one a second of each kind is written, and it says how many were left out before it.

use crate::link::{LeadEvent, LinkEvent};
use crate::log::{HubAnswer, Refusal, StreamAnswer};
use crate::mail::Part;
use hubsub_route::Published;
use hubsub_types::ErrorCode;
use hubsub_types::class::ClassIndex;
use std::collections::{HashMap, VecDeque};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Log lines that wait: what a second of a busy node says, and a bound for what nobody takes.
pub const LINES_MAX: usize = 1_024;
/// Between two lines of one kind that clients cause.
const QUIET: Duration = Duration::from_secs(1);

/// How loud a log line is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// For those who look closely.
    Debug,
    /// Worth a line.
    Info,
    /// Somebody should know.
    Warning,
    /// Somebody must act.
    Error,
}

/// What the control plane hears.
#[derive(Debug)]
pub enum Event {
    /// The parts of the answer to a question.
    Parts(u64, Vec<Part>),
    /// The outcome of each publish of a batch.
    Published(u64, Vec<Result<Published, ErrorCode>>),
    /// What came of a question about a stream of records.
    Stream(u64, Result<StreamAnswer, Refusal>),
    /// What came of a request to open or close a hub.
    Hub(u64, Result<HubAnswer, Refusal>),
    /// A constant message with its data.
    Log(Level, &'static str, Vec<(&'static str, String)>),
    /// What became of a peer.
    Link(LinkEvent),
    /// What became of this process's leads, or of what a controller knows of others.
    Lead(LeadEvent),
    /// Where is this room of a class, and whether it gets a place if it has none? Told at most once while the answer is
    /// awaited, or twice where the first did not want a place.
    RoomMiss(ClassIndex, Box<[u8]>, bool),
    /// Rooms of a hub that nobody uses, or that this process gave up: the answer to a question with this ticket.
    Unused(u64, Vec<Box<[u8]>>),
    /// A client asks where a room is: the number of its question.
    Locate(u64, Box<[u8]>),
    /// Another process is ready, or not any more.
    Ready,
    /// A peer's control plane asks: its name, the number of the question, what it asks.
    Asked(Box<str>, u64, Box<[u8]>),
    /// What a peer's control plane answered.
    Answered(u64, Result<Box<[u8]>, ErrorCode>),
    /// A shard ended; with a reason if it was not asked to.
    Stopped(u16, Option<String>),
    /// The MQTT sessions of a shard are recorded, and their clients have gone.
    Parted(u16),
}

/// What one peer has in the queue: events and their bytes. Written under the queue's lock.
#[derive(Default, Debug)]
pub struct Share {
    events: AtomicUsize,
    bytes: AtomicUsize,
}

impl Share {
    /// Events that wait, and their bytes.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        (self.events.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// An event, and whose share it counts to.
type Waiting = (Event, Option<(Arc<Share>, usize)>);

/// A log line: level, constant message, data.
type Line = (Level, &'static str, Vec<(&'static str, String)>);

/// Both queues.
#[derive(Default)]
struct Queues {
    events: VecDeque<Waiting>,
    lines: VecDeque<Line>,
    /// By message of the lines that clients cause: until when it is quiet, and how many lines were left out.
    quiet: HashMap<&'static str, (Instant, u64)>,
}

impl Queues {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.lines.is_empty()
    }
}

/// See the module.
pub struct Control {
    queues: Mutex<Queues>,
    /// Set at a reload, read under the lock of `queues`.
    events_max: AtomicUsize,
    /// Log lines that found their queue full.
    dropped: AtomicU64,
    write: UnixStream,
    read: UnixStream,
}

impl Control {
    /// A queue for `events_max` events.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new(events_max: usize) -> std::io::Result<Control> {
        let (write, read) = UnixStream::pair()?;
        write.set_nonblocking(true)?;
        read.set_nonblocking(true)?;
        let events_max = AtomicUsize::new(events_max);
        Ok(Control { queues: Mutex::default(), events_max, dropped: AtomicU64::new(0), write, read })
    }

    /// Sets for how many events there is room; those that wait already stay.
    pub fn set_events_max(&self, events_max: usize) {
        self.events_max.store(events_max, Ordering::Relaxed);
    }

    /// The descriptor that is readable while events wait.
    #[must_use]
    pub fn wake_fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }

    /// Log lines dropped since the start.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Adds an event, and wakes the control plane if it was the first.
    pub fn tell(&self, event: Event) {
        let _ = self.add(event, None, false);
    }

    /// Adds an event that has no request of this node before it; false if there is no room for it.
    #[must_use]
    pub fn offer(&self, event: Event) -> bool {
        self.add(event, None, true)
    }

    /// Likewise one of so many bytes, to a peer's share.
    #[must_use]
    pub fn offer_of(&self, event: Event, share: &Arc<Share>, bytes: usize) -> bool {
        self.add(event, Some((Arc::clone(share), bytes)), true)
    }

    /// Adds the answer to a request of this node, of so many bytes, to the share of the peer that gave it.
    pub fn tell_of(&self, event: Event, share: &Arc<Share>, bytes: usize) {
        let _ = self.add(event, Some((Arc::clone(share), bytes)), false);
    }

    fn add(&self, event: Event, share: Option<(Arc<Share>, usize)>, is_bounded: bool) -> bool {
        let mut queues = self.lock();
        if is_bounded && queues.events.len() >= self.events_max.load(Ordering::Relaxed) {
            return false;
        }
        let was_empty = queues.is_empty();
        if let Some((share, bytes)) = &share {
            share.events.fetch_add(1, Ordering::Relaxed);
            share.bytes.fetch_add(*bytes, Ordering::Relaxed);
        }
        queues.events.push_back((event, share));
        drop(queues);
        self.wake(was_empty);
        true
    }

    /// Adds a log line.
    pub fn log(&self, level: Level, message: &'static str, fields: Vec<(&'static str, String)>) {
        self.add_line(self.lock(), (level, message, fields));
    }

    /// Adds a log line that a client causes, unless there was one with this message in the last second.
    pub fn log_of_client(&self, level: Level, message: &'static str, fields: Vec<(&'static str, String)>) {
        self.log_of_client_at(Instant::now(), level, message, fields);
    }

    fn log_of_client_at(
        &self,
        now: Instant,
        level: Level,
        message: &'static str,
        mut fields: Vec<(&'static str, String)>,
    ) {
        let mut queues = self.lock();
        let (until, left_out) = queues.quiet.entry(message).or_insert((now, 0));
        if now < *until {
            *left_out += 1;
            return;
        }
        *until = now + QUIET;
        let before = std::mem::take(left_out);
        if before > 0 {
            fields.push(("left_out", before.to_string()));
        }
        self.add_line(queues, (level, message, fields));
    }

    fn add_line(&self, mut queues: MutexGuard<'_, Queues>, line: Line) {
        if queues.lines.len() >= LINES_MAX {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let was_empty = queues.is_empty();
        queues.lines.push_back(line);
        drop(queues);
        self.wake(was_empty);
    }

    fn wake(&self, was_empty: bool) {
        if was_empty {
            // A full pipe is readable already, which is all that this is for.
            let _ = (&self.write).write(&[1]);
        }
    }

    /// Takes up to `events_max` events and log lines: events first, each oldest first.
    #[must_use]
    pub fn drain(&self, events_max: usize) -> Vec<Event> {
        let mut queues = self.lock();
        let count = queues.events.len().min(events_max);
        let take = |(event, share): Waiting| {
            if let Some((share, bytes)) = share {
                share.events.fetch_sub(1, Ordering::Relaxed);
                share.bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
            event
        };
        let mut taken: Vec<Event> = queues.events.drain(..count).map(take).collect();
        let count = queues.lines.len().min(events_max - count);
        let event = |(level, message, fields)| Event::Log(level, message, fields);
        taken.extend(queues.lines.drain(..count).map(event));
        if queues.is_empty() {
            let mut bytes = [0; 64];
            while matches!((&self.read).read(&mut bytes), Ok(n) if n > 0) {}
        }
        taken
    }

    fn lock(&self) -> MutexGuard<'_, Queues> {
        self.queues.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readable(control: &Control) -> bool {
        let mut poll = libc::pollfd { fd: control.wake_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, which outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_something_waits() {
        let control = Control::new(2).unwrap();
        assert!(!readable(&control));
        control.tell(Event::Ready);
        control.log(Level::Info, "x", Vec::new());
        for _ in 0..2 {
            assert!(readable(&control));
            assert_eq!(control.drain(1).len(), 1);
        }
        assert!(!readable(&control));
        control.log(Level::Info, "x", Vec::new());
        assert!(readable(&control));
        assert_eq!(control.drain(9).len(), 1);
        assert!(!readable(&control));
    }

    #[test]
    fn lines_are_taken_after_events_and_take_no_places_of_theirs() {
        let control = Control::new(1).unwrap();
        for _ in 0..LINES_MAX + 2 {
            control.log(Level::Info, "x", Vec::new());
        }
        assert_eq!(control.dropped(), 2);
        assert!(control.offer(Event::Ready));
        assert!(!control.offer(Event::Ready), "the limit of events");
        let taken = control.drain(2);
        assert!(matches!(taken[..], [Event::Ready, Event::Log(..)]), "{taken:?}");
        control.set_events_max(2);
        assert!(control.offer(Event::Ready) && control.offer(Event::Ready));
        assert_eq!(control.drain(usize::MAX).len(), 2 + LINES_MAX - 1);
    }

    #[test]
    fn of_the_lines_that_clients_cause_one_a_second_of_a_kind_is_written() {
        let control = Control::new(1).unwrap();
        let begin = Instant::now();
        let log = |ms: u64, message| {
            control.log_of_client_at(begin + Duration::from_millis(ms), Level::Info, message, Vec::new());
            control.drain(9).pop()
        };
        assert!(log(0, "a").is_some() && log(0, "b").is_some());
        assert!(log(1, "a").is_none() && log(999, "a").is_none());
        let Some(Event::Log(_, "a", fields)) = log(1_000, "a") else { panic!("no line") };
        assert_eq!(fields, [("left_out", "2".to_owned())]);
        let Some(Event::Log(_, "a", fields)) = log(2_000, "a") else { panic!("no line") };
        assert!(fields.is_empty());
    }
}
