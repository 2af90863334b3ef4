//! Events for the control plane, as the part that reports them sees the queue: it knows its own kind of event
//! and log lines only. Reports are rare, so a call through the trait object does not matter.

use super::log_lines::{Fields, Level};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Takes events of type `E`.
pub trait Report<E>: Send + Sync {
    /// Adds an event regardless of the limit, and wakes the control plane if the queue was empty.
    fn tell(&self, event: E);
    /// Adds an event that no request of this node asked for. Returns false if the queue is full.
    #[must_use]
    fn offer(&self, event: E) -> bool;
    /// Like [`Report::offer`], for an event of `bytes` bytes that counts towards a peer's share.
    #[must_use]
    fn offer_of(&self, event: E, share: &Arc<Share>, bytes: usize) -> bool;
    /// Adds a peer's response to a request of this node; it counts `bytes` bytes towards the peer's share.
    fn tell_of(&self, event: E, share: &Arc<Share>, bytes: usize);
    fn log(&self, level: Level, message: &'static str, fields: Fields);
}

/// One peer's share of the queue: events and their bytes. Written under the queue's lock.
#[derive(Default, Debug)]
pub struct Share {
    events: AtomicUsize,
    bytes: AtomicUsize,
}

impl Share {
    /// Queued events and their bytes.
    pub fn waiting(&self) -> (usize, usize) {
        (self.events.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }

    /// Counts an event of `bytes` bytes that is queued.
    pub fn add(&self, bytes: usize) {
        self.events.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Counts an event of `bytes` bytes that was taken out.
    pub fn remove(&self, bytes: usize) {
        self.events.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }
}
