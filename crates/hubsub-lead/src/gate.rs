//! What shards ask before they act as leaders: one atomic deadline that the thread of [`crate::Leads`] raises.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// When the lead of this process ends. Clones are the same gate.
///
/// A shard reads it once a turn, with the time of that turn, and leads the hubs it was told of (`Began`) as long as
/// it is open. The deadline only grows until the process stops, so a value that is read late is an earlier deadline;
/// nothing else is ordered by it, and relaxed loads and stores do.
#[derive(Clone, Debug, Default)]
pub struct LeadGate(Arc<AtomicU64>);

/// Stands for the deadline of a process that stops: later than any, so that nothing raises it.
const CLOSED: u64 = u64::MAX;

impl LeadGate {
    /// Whether this process may lead now, by its monotonic clock, in µs.
    #[inline]
    #[must_use]
    pub fn may_lead(&self, now_us: u64) -> bool {
        now_us < self.until_us()
    }

    /// The deadline, in µs; 0 before the first lead, and when the gate is closed.
    #[inline]
    #[must_use]
    pub fn until_us(&self) -> u64 {
        let until_us = self.0.load(Ordering::Relaxed);
        if until_us == CLOSED { 0 } else { until_us }
    }

    /// This process leads no more, whatever it is granted: it is about to say goodbye, and others take over then.
    pub fn close(&self) {
        self.0.store(CLOSED, Ordering::SeqCst);
    }

    pub(crate) fn raise(&self, until_us: u64) {
        self.0.fetch_max(until_us.min(CLOSED - 1), Ordering::Relaxed);
    }
}
