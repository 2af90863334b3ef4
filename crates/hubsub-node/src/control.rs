//! The queue to the control plane: events in one bounded queue, log lines in another ([`LogLines`]), and a
//! descriptor that is readable while either has entries. Responses are always accepted, since each follows a
//! request. Log lines are taken after all events, so they never delay a decision.

mod early;
pub mod routes;

pub use crate::context::events::Event as ShardEvent;
pub use crate::io::log_lines::Level;

use crate::io::log_lines::{Fields, LogLines, Wake};
use crate::io::report::{Report, Share};
use crate::{link, log};
use std::collections::VecDeque;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Debug)]
pub enum Event {
    Shard(ShardEvent),
    Link(link::Event),
    Log(log::Event),
    /// A log line: level, constant message, data.
    Line(Level, &'static str, Fields),
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
    pub fn wake_fd(&self) -> RawFd {
        self.wake.fd()
    }

    /// Log lines dropped since the start.
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
        taken.extend(lines.map(|(level, message, fields)| Event::Line(level, message, fields)));
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

impl From<ShardEvent> for Event {
    fn from(event: ShardEvent) -> Event {
        Event::Shard(event)
    }
}

impl From<link::Event> for Event {
    fn from(event: link::Event) -> Event {
        Event::Link(event)
    }
}

impl From<log::Event> for Event {
    fn from(event: log::Event) -> Event {
        Event::Log(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::log_lines::LINES_MAX;

    const READY: Event = Event::Link(link::Event::Ready);

    fn readable(control: &Control) -> bool {
        let mut poll = libc::pollfd { fd: control.wake_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid pollfd, which outlives the call.
        unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
    }

    #[test]
    fn the_descriptor_is_readable_exactly_while_something_waits() {
        let control = Control::new(2).unwrap();
        assert!(!readable(&control));
        control.tell(READY);
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
        assert!(control.offer(READY));
        assert!(!control.offer(READY), "the limit of events");
        let taken = control.drain(2);
        assert!(matches!(taken[..], [Event::Link(link::Event::Ready), Event::Line(..)]), "{taken:?}");
        control.set_events_max(2);
        assert!(control.offer(READY) && control.offer(READY));
        assert_eq!(control.drain(usize::MAX).len(), 2 + LINES_MAX - 1);
    }
}
