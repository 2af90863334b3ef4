//! The queue to the control plane: events in one bounded queue, log lines in another, and a descriptor that
//! is readable while either has entries. Responses are always accepted, since each follows a request. Log
//! lines are taken after all events, so they never delay a decision; above [`LINES_MAX`] they are counted and
//! dropped. Log lines that clients cause are limited to one per second and message; the next line reports how
//! many were suppressed.

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

/// An event for the control plane.
#[derive(Debug)]
pub enum Event {
    /// The responses of a scatter-gather request, by ticket.
    Parts(u64, Vec<Part>),
    /// The outcome of each publish of a batch.
    Published(u64, Vec<Result<Published, ErrorCode>>),
    /// The outcome of a request about a stream of records.
    Stream(u64, Result<StreamAnswer, Refusal>),
    /// The outcome of a request to open or close a hub.
    Hub(u64, Result<HubAnswer, Refusal>),
    /// A log line: level, constant message, data.
    Log(Level, &'static str, Vec<(&'static str, String)>),
    /// A change in the state of a peer.
    Link(LinkEvent),
    /// A change of this process's leader leases, or of a controller's view of other nodes' leases.
    Lead(LeadEvent),
    /// A shard needs the place of a room of a class; the flag is whether to place the room if it has no
    /// place. Sent at most once while the answer is awaited, or twice if the first did not ask for placement.
    RoomMiss(ClassIndex, Box<[u8]>, bool),
    /// Rooms of a hub that are unused or were released by this process, in response to the request with this
    /// ticket.
    Unused(u64, Vec<Box<[u8]>>),
    /// A client asks where a room is: request number and room.
    Locate(u64, Box<[u8]>),
    /// Another process became ready, or stopped being so.
    Ready,
    /// A request from a peer's control plane: peer name, request number, body.
    Asked(Box<str>, u64, Box<[u8]>),
    /// The response of a peer's control plane: request number, body.
    Answered(u64, Result<Box<[u8]>, ErrorCode>),
    /// A shard stopped; with a reason if it was not asked to.
    Stopped(u16, Option<String>),
    /// A shard has recorded its MQTT sessions and closed their clients.
    Parted(u16),
}

/// One peer's share of the queue: events and their bytes. Written under the queue's lock.
#[derive(Default, Debug)]
pub struct Share {
    events: AtomicUsize,
    bytes: AtomicUsize,
}

impl Share {
    /// Queued events and their bytes.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        (self.events.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

/// An event, with the peer's share that it counts towards.
type Waiting = (Event, Option<(Arc<Share>, usize)>);

/// A log line: level, constant message, data.
type Line = (Level, &'static str, Vec<(&'static str, String)>);

#[derive(Default)]
struct Queues {
    events: VecDeque<Waiting>,
    lines: VecDeque<Line>,
    /// Per message of client-caused lines: the end of its quiet interval, and the number of suppressed lines.
    quiet: HashMap<&'static str, (Instant, u64)>,
}

impl Queues {
    fn is_empty(&self) -> bool {
        self.events.is_empty() && self.lines.is_empty()
    }
}

pub struct Control {
    queues: Mutex<Queues>,
    /// Set at a reload, read under the lock of `queues`.
    events_max: AtomicUsize,
    /// Log lines dropped because their queue was full.
    dropped: AtomicU64,
    write: UnixStream,
    read: UnixStream,
}

impl Control {
    /// Makes a queue for `events_max` events.
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

    /// Changes the limit of events; events that are queued already stay.
    pub fn set_events_max(&self, events_max: usize) {
        self.events_max.store(events_max, Ordering::Relaxed);
    }

    /// The descriptor that is readable while events are queued.
    #[must_use]
    pub fn wake_fd(&self) -> RawFd {
        self.read.as_raw_fd()
    }

    /// Log lines dropped since the start.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Adds an event regardless of the limit, and wakes the control plane if the queue was empty.
    pub fn tell(&self, event: Event) {
        let _ = self.add(event, None, false);
    }

    /// Adds an event that no request of this node asked for. Returns false if the queue is full.
    #[must_use]
    pub fn offer(&self, event: Event) -> bool {
        self.add(event, None, true)
    }

    /// Like [`Control::offer`], for an event of `bytes` bytes that counts towards a peer's share.
    #[must_use]
    pub fn offer_of(&self, event: Event, share: &Arc<Share>, bytes: usize) -> bool {
        self.add(event, Some((Arc::clone(share), bytes)), true)
    }

    /// Adds a peer's response to a request of this node; it counts `bytes` bytes towards the peer's share.
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

    pub fn log(&self, level: Level, message: &'static str, fields: Vec<(&'static str, String)>) {
        self.add_line(self.lock(), (level, message, fields));
    }

    /// Adds a log line that a client caused, unless one with this message was logged within the last second.
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
            // A full pipe is readable already, so a failed write is fine.
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
