//! When a peer is dialed again: at once after success, with doubling waits after failures. One breaker per
//! link of a peer, on the dialing side.
//!
//! ```text
//!            dialed                     up
//!  Closed ───────────► Half open ───────────────► Up
//!    ▲                   ▲     │ failed           │ down
//!    │       may_dial    │     ▼                  ▼
//!    └ new               └──── Open, for a wait ◄─┘
//! ```
//!
//! While it is open, frames for the peer are refused at once.

use super::{LinkLimits, Refusal};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// New or reset: dialing is allowed.
    Closed,
    /// Dialing is not allowed before this monotonic time.
    Open {
        until_us: u64,
    },
    HalfOpen,
    /// The link is up since this monotonic time.
    Up {
        since_us: u64,
    },
}

#[derive(Clone, Debug)]
pub struct Breaker {
    state: State,
    /// Failures since a link was up for `stable_us`.
    failures: u32,
    wait_us_min: u64,
    wait_us_max: u64,
    stable_us: u64,
    /// State of the jitter, which prevents that all peers dial a returned node at once.
    random: u64,
}

impl Breaker {
    /// A closed breaker. Different seeds give different waits.
    pub fn new(limits: &LinkLimits, seed: u64) -> Breaker {
        Breaker {
            state: State::Closed,
            failures: 0,
            wait_us_min: limits.redial_ms_min * 1_000,
            wait_us_max: limits.redial_ms_max * 1_000,
            stable_us: limits.stable_ms * 1_000,
            random: seed,
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    /// Whether to dial now; if so, dialing counts as started.
    pub fn may_dial(&mut self, now_us: u64) -> bool {
        let may = match self.state {
            State::Closed => true,
            State::Open { until_us } => now_us >= until_us,
            State::HalfOpen | State::Up { .. } => false,
        };
        if may {
            self.state = State::HalfOpen;
        }
        may
    }

    pub fn up(&mut self, now_us: u64) {
        self.state = State::Up { since_us: now_us };
    }

    /// Dialing failed or the link is down; `refusal` if the peer or this node refused.
    pub fn down(&mut self, refusal: Option<Refusal>, now_us: u64) {
        if let State::Up { since_us } = self.state
            && now_us.saturating_sub(since_us) >= self.stable_us
        {
            self.failures = 0;
        }
        let doubled = self.wait_us_min.saturating_mul(1 << self.failures.min(32));
        let wait_us = match refusal {
            Some(refusal) if refusal.lasts() => self.wait_us_max,
            _ => doubled.min(self.wait_us_max),
        };
        self.failures = self.failures.saturating_add(1);
        self.state = State::Open { until_us: now_us + self.jittered(wait_us) };
    }

    /// The peer was seen again, for example because it registered: ends the wait.
    pub fn seen(&mut self) {
        self.failures = 0;
        if let State::Open { .. } = self.state {
            self.state = State::Closed;
        }
    }

    /// A random time between half of the wait and the whole wait.
    fn jittered(&mut self, wait_us: u64) -> u64 {
        // SplitMix64 (Steele, Lea, Flood, OOPSLA 2014).
        self.random = self.random.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^= z >> 31;
        wait_us - z % (wait_us / 2 + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wait(breaker: &mut Breaker, refusal: Option<Refusal>, now_us: u64) -> u64 {
        breaker.down(refusal, now_us);
        let State::Open { until_us } = breaker.state() else { panic!("open after a failure") };
        assert!(!breaker.may_dial(until_us - 1));
        assert!(breaker.may_dial(until_us), "the wait is over");
        assert!(!breaker.may_dial(until_us + 1), "one try at a time");
        until_us - now_us
    }

    #[test]
    fn waits_double_up_to_the_longest_and_differ_by_seed() {
        let limits = LinkLimits::default();
        for seed in 0..200 {
            let mut breaker = Breaker::new(&limits, seed);
            assert!(breaker.may_dial(0), "the first is at once");
            for doubled in [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000] {
                let wait = wait(&mut breaker, None, 7);
                assert!((doubled * 500..=doubled * 1_000).contains(&wait), "seed {seed}: {wait}");
            }
        }
        let first = |seed| wait(&mut Breaker::new(&limits, seed), None, 0);
        assert_ne!(first(1), first(2));
        assert_eq!(first(1), first(1));
    }

    #[test]
    fn a_link_that_stood_begins_with_the_shortest_wait_and_one_that_flaps_does_not() {
        let mut breaker = Breaker::new(&LinkLimits::default(), 1);
        for _ in 0..6 {
            wait(&mut breaker, None, 0);
        }
        breaker.up(0);
        assert!(wait(&mut breaker, None, 9_999_000) > 1_000_000, "it flapped");
        breaker.up(0);
        assert!(wait(&mut breaker, None, 10_000_000) <= 100_000, "it stood");
    }

    #[test]
    fn what_only_a_person_can_mend_is_tried_seldom_until_the_peer_is_seen() {
        let mut breaker = Breaker::new(&LinkLimits::default(), 1);
        assert!(wait(&mut breaker, Some(Refusal::WrongSecret), 0) >= 2_500_000);
        breaker.down(Some(Refusal::WrongSecret), 0);
        breaker.seen();
        assert!(breaker.may_dial(1));
    }
}
