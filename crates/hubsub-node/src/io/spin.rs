//! Brief spinning before a sleep. Sleeping and waking costs a thread some 30 µs, a third of what a good disk
//! needs for a sync. So a thread that expects input polls for a while before it sleeps, if that was
//! worthwhile the last time, and yields the processor between two polls.
//!
//! Invariant: no thread spins while others want the processor. A yield forfeits the rest of the time slice, 3
//! ms on some kernels: a thread that yielded 80 times would be scheduled after all others when its input
//! arrives. A sleeping thread is preferred when woken.

use std::time::{Duration, Instant};

/// Maximum time of spinning before a sleep.
const LOOK: Duration = Duration::from_micros(250);

/// Spinning was worthwhile if input arrived within this time.
const WORTH: Duration = Duration::from_micros(400);

/// A yield of this length means that another thread ran.
const TAKEN: Duration = Duration::from_micros(20);

/// After another thread ran, spinning is suspended for this time.
const WANTED: Duration = Duration::from_millis(20);

pub struct Spin {
    since: Instant,
    is_worth: bool,
    /// Time until which spinning is suspended.
    wanted_until: Option<Instant>,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin { since: Instant::now(), is_worth: false, wanted_until: None }
    }
}

impl Spin {
    pub fn begin(&mut self) {
        self.since = Instant::now();
        if self.wanted_until.is_some_and(|until| until <= self.since) {
            self.wanted_until = None;
        }
    }

    /// Yields, and returns whether to poll once more; else it is time to sleep.
    pub fn looks_again(&mut self) -> bool {
        let before = Instant::now();
        if !self.is_worth || self.wanted_until.is_some() || before >= self.since + LOOK {
            return false;
        }
        std::thread::yield_now();
        let after = Instant::now();
        if after > before + TAKEN {
            self.wanted_until = Some(after + WANTED);
        }
        true
    }

    /// Notes that the awaited input arrived.
    pub fn came(&mut self) {
        self.is_worth = self.since.elapsed() < WORTH;
    }
}
