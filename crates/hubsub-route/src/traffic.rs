//! What went through a hub with a log since the node's start. Its shard alone writes it,
//! with plain stores, where a record is committed; anybody may read it at any time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Three counters, on cache lines of their own.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Traffic {
    deliveries: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// Them at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrafficTotals {
    /// Subscribers that records went to.
    pub deliveries: u64,
    /// Topics and payloads of records.
    pub bytes_in: u64,
    /// The same for each subscriber that one went to.
    pub bytes_out: u64,
}

impl Traffic {
    /// A record of so many bytes, topic and payload, goes to so many subscribers.
    #[inline]
    pub fn count(&self, bytes: u64, receivers: u64) {
        let add = |counter: &AtomicU64, n: u64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.deliveries, receivers);
        add(&self.bytes_in, bytes);
        add(&self.bytes_out, bytes * receivers);
    }

    /// What was counted.
    #[must_use]
    pub fn totals(&self) -> TrafficTotals {
        TrafficTotals {
            deliveries: self.deliveries.load(Ordering::Relaxed),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
        }
    }
}
