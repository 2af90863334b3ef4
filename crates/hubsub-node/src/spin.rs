//! Waiting for what will come in a moment. To sleep and be woken costs a thread
//! some 30 µs, a third of what a good disk needs for a sync. So who expects an
//! answer looks for it a while before it sleeps, if looking was worth it the last
//! time, and lets others have the processor between two looks.
//!
//! Invariant: nobody looks while others want the processor. To give it away forfeits
//! the rest of a time slice, 3 ms on some kernels; who looked 80 times was behind all
//! others when the answer came, and waited for them. Who sleeps is preferred when woken.

use std::time::{Duration, Instant};

/// How long to look before sleeping.
const LOOK: Duration = Duration::from_micros(250);

/// What came within this time would have been worth looking for.
const WORTH: Duration = Duration::from_micros(400);

/// Who gave the processor away for so long gave it to somebody.
const TAKEN: Duration = Duration::from_micros(20);

/// Where others wanted the processor, they are expected to want it for so long.
const WANTED: Duration = Duration::from_millis(20);

/// See the module.
pub struct Spin {
    since: Instant,
    is_worth: bool,
    /// Until when others are expected to want the processor.
    wanted_until: Option<Instant>,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin { since: Instant::now(), is_worth: false, wanted_until: None }
    }
}

impl Spin {
    /// A wait begins.
    pub fn begin(&mut self) {
        self.since = Instant::now();
        if self.wanted_until.is_some_and(|until| until <= self.since) {
            self.wanted_until = None;
        }
    }

    /// Whether to look once more, after others had the processor; else it is time to sleep.
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

    /// What was waited for is there.
    pub fn came(&mut self) {
        self.is_worth = self.since.elapsed() < WORTH;
    }
}
