//! Traffic of a hub with a log since the node's start. Only its shard writes it, with plain stores, where a
//! record is committed; any thread may read it at any time.

use std::sync::atomic::{AtomicU64, Ordering};

/// Three counters, on their own cache lines.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Traffic {
    deliveries: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TrafficTotals {
    /// Deliveries of records to subscribers.
    pub deliveries: u64,
    /// Bytes of topics and payloads of records.
    pub bytes_in: u64,
    /// Bytes of topics and payloads, times the subscribers of each record.
    pub bytes_out: u64,
}

impl Traffic {
    /// Counts a record of `bytes` bytes (topic and payload) for `receivers` subscribers.
    #[inline]
    pub fn count(&self, bytes: u64, receivers: u64) {
        let add = |counter: &AtomicU64, n: u64| {
            counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
        };
        add(&self.deliveries, receivers);
        add(&self.bytes_in, bytes);
        add(&self.bytes_out, bytes * receivers);
    }

    pub fn totals(&self) -> TrafficTotals {
        TrafficTotals {
            deliveries: self.deliveries.load(Ordering::Relaxed),
            bytes_in: self.bytes_in.load(Ordering::Relaxed),
            bytes_out: self.bytes_out.load(Ordering::Relaxed),
        }
    }
}
