//! The check that shards make before they act as leaders: one atomic deadline that the thread of
//! [`crate::LeaderLeases`] raises.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// When the leader lease of this process ends. Clones share the deadline.
///
/// A shard reads it once per turn, with the time of that turn, and leads the hubs that `Began` named as long
/// as it is open. The deadline only grows until the process stops, so a stale read yields an earlier
/// deadline. Nothing else is ordered by it, so relaxed loads and stores suffice.
#[derive(Clone, Debug, Default)]
pub struct LeaseGate(Arc<AtomicU64>);

/// The deadline of a stopping process: later than any other, so that nothing raises it.
const CLOSED: u64 = u64::MAX;

impl LeaseGate {
    /// Whether this process may lead now, by its monotonic clock, in µs.
    #[inline]
    pub fn may_lead(&self, now_us: u64) -> bool {
        now_us < self.until_us()
    }

    /// The deadline, in µs; 0 before the first leader lease and when the gate is closed.
    #[inline]
    pub fn until_us(&self) -> u64 {
        let until_us = self.0.load(Ordering::Relaxed);
        if until_us == CLOSED { 0 } else { until_us }
    }

    /// Stops this process from leading, whatever it is granted: it is about to send its goodbye, after which
    /// others take over.
    pub fn close(&self) {
        self.0.store(CLOSED, Ordering::SeqCst);
    }

    pub(crate) fn raise(&self, until_us: u64) {
        self.0.fetch_max(until_us.min(CLOSED - 1), Ordering::Relaxed);
    }
}
