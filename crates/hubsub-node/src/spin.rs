//! Waiting for what will come in a moment. To sleep and be woken costs a thread
//! some 30 µs, a third of what a good disk needs for a sync. So who expects an
//! answer looks for it a while before it sleeps, if looking was worth it the last
//! time, and lets others have the processor between two looks.

use std::time::{Duration, Instant};

/// How long to look before sleeping.
const LOOK: Duration = Duration::from_micros(250);

/// What came within this time would have been worth looking for.
const WORTH: Duration = Duration::from_micros(400);

/// See the module.
pub struct Spin {
    since: Instant,
    is_worth: bool,
}

impl Default for Spin {
    fn default() -> Spin {
        Spin { since: Instant::now(), is_worth: false }
    }
}

impl Spin {
    /// A wait begins.
    pub fn begin(&mut self) {
        self.since = Instant::now();
    }

    /// Whether to look once more, after others had the processor; else it is time to sleep.
    pub fn looks_again(&self) -> bool {
        let looks = self.is_worth && self.since.elapsed() < LOOK;
        if looks {
            std::thread::yield_now();
        }
        looks
    }

    /// What was waited for is there.
    pub fn came(&mut self) {
        self.is_worth = self.since.elapsed() < WORTH;
    }
}
