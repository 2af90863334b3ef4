//! Measures the shard's time in socket calls and in routing, in one of `SAMPLE` turns, and extrapolates to
//! all turns.

use crate::io::metrics::ShardMetrics;
use std::time::Instant;

/// One in this many turns is measured.
const SAMPLE: u64 = 16;

#[derive(Default)]
pub struct Clock {
    turns: u64,
    is_on: bool,
    since: Option<Instant>,
    socket_ns: u64,
    routing_ns: u64,
}

impl Clock {
    pub fn begin_turn(&mut self) {
        let turns = self.turns + 1;
        let is_on = turns.is_multiple_of(SAMPLE);
        *self = Clock { turns, is_on, since: is_on.then(Instant::now), ..Clock::default() };
    }

    /// Attributes the time since the last call to socket calls or to routing.
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

    pub fn end_turn(&self, metrics: &ShardMetrics) {
        metrics.turns_total.add(1);
        if self.is_on {
            metrics.socket_ns_total.add(self.socket_ns * SAMPLE);
            metrics.routing_ns_total.add(self.routing_ns * SAMPLE);
        }
    }
}
