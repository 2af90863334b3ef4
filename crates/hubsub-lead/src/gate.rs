//! What shards ask before they act as leaders: one atomic deadline that the thread of [`crate::Leads`] raises.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// When the lead of this process ends. Clones are the same gate.
///
/// A shard reads it once a turn, with the time of that turn, and leads the hubs it was told of (`Began`) as long as
/// it is open. The deadline only grows, so a value that is read late is an earlier deadline; nothing else is
/// ordered by it, and relaxed loads and stores do.
#[derive(Clone, Debug, Default)]
pub struct LeadGate(Arc<AtomicU64>);

impl LeadGate {
    /// Whether this process may lead now, by its monotonic clock, in µs.
    #[inline]
    #[must_use]
    pub fn may_lead(&self, now_us: u64) -> bool {
        now_us < self.0.load(Ordering::Relaxed)
    }

    /// The deadline, in µs; 0 before the first lead.
    #[must_use]
    pub fn until_us(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(crate) fn raise(&self, until_us: u64) {
        self.0.fetch_max(until_us, Ordering::Relaxed);
    }
}
