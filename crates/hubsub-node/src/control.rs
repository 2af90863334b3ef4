//! The queue to the control plane: events in one bounded queue, log lines in another ([`LogLines`]), and a
//! descriptor that is readable while either has entries. Responses are always accepted, since each follows a
//! request. Log lines are taken after all events, so they never delay a decision.

mod early;
pub mod routes;

pub use crate::io::log_lines::Level;

use crate::context::events as shard;
use crate::io::log_lines::{Fields, LogLines, Wake};
use crate::io::questions::Part;
use crate::io::report::{Report, Share};
use crate::link::{self, LeadEvent, LinkEvent};
use crate::log::{self, HubAnswer, Refusal, StreamAnswer};
use hubsub_route::Published;
use hubsub_types::ErrorCode;
use hubsub_types::class::ClassIndex;
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

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
    Log(Level, &'static str, Fields),
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

/// An event, with the peer's share that it counts towards.
type Waiting = (Event, Option<(Arc<Share>, usize)>);

pub struct Control {
    events: Mutex<VecDeque<Waiting>>,
    /// Set at a reload, read under the lock of `events`.
    events_max: AtomicUsize,
    lines: Arc<LogLines>,
    wake: Arc<Wake>,
}

impl Control {
    /// Makes a queue for `events_max` events.
    ///
    /// # Errors
    /// No descriptors are left.
    pub fn new(events_max: usize) -> std::io::Result<Control> {
        let wake = Arc::new(Wake::new()?);
        let (events_max, lines) = (AtomicUsize::new(events_max), Arc::new(LogLines::new(Arc::clone(&wake))));
        Ok(Control { events: Mutex::default(), events_max, lines, wake })
    }

    /// Changes the limit of events; events that are queued already stay.
    pub fn set_events_max(&self, events_max: usize) {
        self.events_max.store(events_max, Ordering::Relaxed);
    }

    /// The descriptor that is readable while events are queued.
    #[must_use]
    pub fn wake_fd(&self) -> RawFd {
        self.wake.fd()
    }

    /// Log lines dropped since the start.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.lines.dropped()
    }

    pub(crate) fn lines(&self) -> Arc<LogLines> {
        Arc::clone(&self.lines)
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

    pub fn log(&self, level: Level, message: &'static str, fields: Fields) {
        self.lines.log(level, message, fields);
    }

    fn add(&self, event: Event, share: Option<(&Arc<Share>, usize)>, is_bounded: bool) -> bool {
        let mut events = self.lock();
        if is_bounded && events.len() >= self.events_max.load(Ordering::Relaxed) {
            return false;
        }
        self.wake.add();
        if let Some((share, bytes)) = share {
            share.add(bytes);
        }
        events.push_back((event, share.map(|(share, bytes)| (Arc::clone(share), bytes))));
        true
    }

    /// Takes up to `events_max` events and log lines: events first, each oldest first.
    #[must_use]
    pub fn drain(&self, events_max: usize) -> Vec<Event> {
        let mut events = self.lock();
        let count = events.len().min(events_max);
        self.wake.remove(count);
        let take = |(event, share): Waiting| {
            if let Some((share, bytes)) = share {
                share.remove(bytes);
            }
            event
        };
        let mut taken: Vec<Event> = events.drain(..count).map(take).collect();
        drop(events);
        let lines = self.lines.drain(events_max - count).into_iter();
        taken.extend(lines.map(|(level, message, fields)| Event::Log(level, message, fields)));
        taken
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.events.lock().expect("nothing panics under this lock")
    }
}

impl<E: Into<Event>> Report<E> for Control {
    fn tell(&self, event: E) {
        let _ = self.add(event.into(), None, false);
    }

    fn offer(&self, event: E) -> bool {
        self.add(event.into(), None, true)
    }

    fn offer_of(&self, event: E, share: &Arc<Share>, bytes: usize) -> bool {
        self.add(event.into(), Some((share, bytes)), true)
    }

    fn tell_of(&self, event: E, share: &Arc<Share>, bytes: usize) {
        let _ = self.add(event.into(), Some((share, bytes)), false);
    }

    fn log(&self, level: Level, message: &'static str, fields: Fields) {
        self.lines.log(level, message, fields);
    }
}

impl From<shard::Event> for Event {
    fn from(event: shard::Event) -> Event {
        match event {
            shard::Event::Parts(ticket, parts) => Event::Parts(ticket, parts),
            shard::Event::Published(ticket, outcomes) => Event::Published(ticket, outcomes),
            shard::Event::RoomMiss(class, room, makes) => Event::RoomMiss(class, room, makes),
            shard::Event::Unused(ticket, rooms) => Event::Unused(ticket, rooms),
            shard::Event::Locate(number, room) => Event::Locate(number, room),
            shard::Event::Stopped(shard, reason) => Event::Stopped(shard, reason),
            shard::Event::Parted(shard) => Event::Parted(shard),
        }
    }
}

impl From<link::Event> for Event {
    fn from(event: link::Event) -> Event {
        match event {
            link::Event::Link(event) => Event::Link(event),
            link::Event::Lead(event) => Event::Lead(event),
            link::Event::Ready => Event::Ready,
            link::Event::Asked(node, number, body) => Event::Asked(node, number, body),
            link::Event::Answered(number, outcome) => Event::Answered(number, outcome),
        }
    }
}

impl From<log::Event> for Event {
    fn from(event: log::Event) -> Event {
        match event {
            log::Event::Stream(ticket, outcome) => Event::Stream(ticket, outcome),
            log::Event::Hub(ticket, outcome) => Event::Hub(ticket, outcome),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::log_lines::LINES_MAX;

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
}
