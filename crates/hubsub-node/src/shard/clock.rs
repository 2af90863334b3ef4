//! Where a shard's time goes, in socket calls or in routing: one turn in
//! `SAMPLE` is measured and stands for all of them.

use crate::metrics::ShardMetrics;
use std::time::Instant;

/// One turn in so many measures where its time goes.
const SAMPLE: u64 = 16;

/// The time of the turn that is under way.
#[derive(Default)]
pub struct Clock {
    /// Turns so far.
    turns: u64,
    /// Whether this one is measured.
    is_on: bool,
    since: Option<Instant>,
    socket_ns: u64,
    routing_ns: u64,
}

impl Clock {
    /// A turn begins.
    pub fn begin_turn(&mut self) {
        let turns = self.turns + 1;
        let is_on = turns.is_multiple_of(SAMPLE);
        *self = Clock { turns, is_on, since: is_on.then(Instant::now), ..Clock::default() };
    }

    /// The time since the last call was spent in socket calls, or in routing.
    #[inline]
    pub fn split(&mut self, in_socket: bool) {
        if self.is_on {
            let now = Instant::now();
            let ns = self.since.map_or(0, |since| now.duration_since(since).as_nanos() as u64);
            if in_socket {
                self.socket_ns += ns
            } else {
                self.routing_ns += ns
            }
            self.since = Some(now);
        }
    }

    /// The turn ends.
    pub fn end_turn(&self, metrics: &ShardMetrics) {
        metrics.turns_total.add(1);
        if self.is_on {
            metrics.socket_ns_total.add(self.socket_ns * SAMPLE);
            metrics.routing_ns_total.add(self.routing_ns * SAMPLE);
        }
    }
}
