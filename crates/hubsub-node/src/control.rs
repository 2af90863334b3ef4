//! The way to the control plane: events in one bounded queue and a descriptor
//! that is readable while there are some. Answers always fit, since each has a
//! request before it; log lines beyond the limit are counted and dropped.

use crate::link::{LeadEvent, LinkEvent};
use crate::log::{HubAnswer, Refusal, StreamAnswer};
use crate::mail::Part;
use hubsub_route::Published;
use hubsub_types::ErrorCode;
use hubsub_types::class::ClassIndex;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

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

/// See the module.
pub struct Control {
    events: Mutex<VecDeque<Waiting>>,
    /// Set at a reload, read under the lock of `events`.
    events_max: AtomicUsize,
    /// Log lines that found the queue full.
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
        let events = Mutex::new(VecDeque::new());
        let events_max = AtomicUsize::new(events_max);
        Ok(Control { events, events_max, dropped: AtomicU64::new(0), write, read })
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
        let is_log = matches!(event, Event::Log(..));
        if !self.add(event, None, is_log) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
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
        let mut events = self.events.lock().expect("nothing panics under this lock");
        if is_bounded && events.len() >= self.events_max.load(Ordering::Relaxed) {
            return false;
        }
        let was_empty = events.is_empty();
        if let Some((share, bytes)) = &share {
            share.events.fetch_add(1, Ordering::Relaxed);
            share.bytes.fetch_add(*bytes, Ordering::Relaxed);
        }
        events.push_back((event, share));
        drop(events);
        if was_empty {
            // A full pipe is readable already, which is all that this is for.
            let _ = (&self.write).write(&[1]);
        }
        true
    }

    /// Adds a log line.
    pub fn log(&self, level: Level, message: &'static str, fields: Vec<(&'static str, String)>) {
        self.tell(Event::Log(level, message, fields));
    }

    /// Takes up to `events_max` events, oldest first.
    #[must_use]
    pub fn drain(&self, events_max: usize) -> Vec<Event> {
        let mut events = self.events.lock().expect("nothing panics under this lock");
        let count = events.len().min(events_max);
        let take = |(event, share): Waiting| {
            if let Some((share, bytes)) = share {
                share.events.fetch_sub(1, Ordering::Relaxed);
                share.bytes.fetch_sub(bytes, Ordering::Relaxed);
            }
            event
        };
        let taken: Vec<Event> = events.drain(..count).map(take).collect();
        if events.is_empty() {
            let mut bytes = [0; 64];
            while matches!((&self.read).read(&mut bytes), Ok(n) if n > 0) {}
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_descriptor_is_readable_exactly_while_events_wait() {
        let control = Control::new(2).unwrap();
        let readable = || {
            let mut poll = libc::pollfd { fd: control.wake_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid pollfd, which outlives the call.
            unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
        };
        assert!(!readable());
        for _ in 0..3 {
            control.log(Level::Info, "x", Vec::new());
        }
        assert!(readable());
        assert_eq!(control.drain(1).len(), 1);
        assert!(readable());
        assert_eq!(control.drain(9).len(), 1);
        assert!(!readable());
        assert_eq!(control.dropped(), 1);
    }

    #[test]
    fn a_new_limit_holds_for_the_next_line() {
        let control = Control::new(1).unwrap();
        let log = || control.log(Level::Info, "x", Vec::new());
        (0..3).for_each(|_| log());
        assert_eq!(control.dropped(), 2);
        control.set_events_max(3);
        (0..3).for_each(|_| log());
        assert_eq!((control.dropped(), control.drain(9).len()), (3, 3));
    }
}
