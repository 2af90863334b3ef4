//! Offset of a peer's clock, from pings and pongs.
//!
//! A ping has the sender's monotonic stamp, its pong the peer's time. The pong was written at the middle of
//! the round trip, plus or minus half of it. Of the latest samples the one with the shortest round trip has
//! the smallest error (the clock filter of NTP, RFC 5905, section 10). Samples that contradict the latest are
//! older than a clock step, and are discarded.

use super::Now;

/// Number of latest samples of which the best is used.
const SAMPLES: usize = 8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offset {
    /// How far the peer's clock is ahead, in µs.
    pub offset_us: i64,
    /// Greatest error if both directions took the measured times, in µs.
    pub error_us: u64,
    pub round_trip_us: u64,
}

#[derive(Clone, Default, Debug)]
pub struct Clock {
    samples: [Option<Offset>; SAMPLES],
    next: usize,
}

impl Clock {
    /// Handles a pong received now, to the ping with `stamp_us`, in which the peer reports `wall_us`.
    pub fn sample(&mut self, stamp_us: u64, wall_us: u64, now: Now) {
        // A stamp of the future was never sent.
        let Some(round_trip_us) = now.mono_us.checked_sub(stamp_us) else { return };
        let error_us = round_trip_us.div_ceil(2);
        let middle_us = now.wall_us.saturating_sub(round_trip_us / 2);
        let offset_us = wall_us.wrapping_sub(middle_us) as i64;
        // A contradicting sample is older than a clock step.
        let agrees = |old: &Offset| old.offset_us.abs_diff(offset_us) <= old.error_us + error_us + 1;
        self.samples.iter_mut().for_each(|sample| *sample = sample.filter(agrees));
        self.samples[self.next] = Some(Offset { offset_us, error_us, round_trip_us });
        self.next = (self.next + 1) % SAMPLES;
    }

    pub fn offset(&self) -> Option<Offset> {
        self.samples.iter().flatten().min_by_key(|sample| sample.round_trip_us).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_true_offset_is_within_the_error(
            skew in -1_000_000_000_i64..1_000_000_000,
            ways in proptest::collection::vec((0_u64..100_000, 0_u64..100_000), 1..20),
        ) {
            let (mut clock, mut mono_us, base) = (Clock::default(), 0, 1_700_000_000_000_000_u64);
            for (there, back) in ways {
                let stamp = mono_us;
                let wall_us = (base + stamp + there).wrapping_add_signed(skew);
                mono_us += there + back;
                clock.sample(stamp, wall_us, Now { mono_us, wall_us: base + mono_us });
                let found = clock.offset().expect("sampled");
                prop_assert!((found.offset_us - skew).unsigned_abs() <= found.error_us + 1);
            }
        }
    }

    #[test]
    fn the_shortest_round_trip_counts_until_it_is_old() {
        let mut clock = Clock::default();
        let now = |mono_us| Now { mono_us, wall_us: 5_000 };
        clock.sample(0, 1_004_995, now(10));
        for i in 1..SAMPLES as u64 {
            clock.sample(i * 1_000, 1_004_900, now(i * 1_000 + 500));
        }
        let best = clock.offset().expect("sampled");
        assert_eq!((best.offset_us, best.round_trip_us), (1_000_000, 10));
        clock.sample(0, 1_004_900, now(600));
        assert_eq!(clock.offset().expect("sampled").round_trip_us, 500);
    }

    #[test]
    fn a_clock_that_jumps_is_followed_with_the_next_answer() {
        let mut clock = Clock::default();
        for i in 1..=SAMPLES as u64 {
            let wall_us = 1_000_000_000 + i * 1_000;
            clock.sample(i * 1_000 - 10, wall_us, Now { mono_us: i * 1_000, wall_us });
        }
        assert!(clock.offset().expect("sampled").offset_us.abs() <= 10);
        // This side's clock, set back by an hour; the pong took longer than any before.
        let now = Now { mono_us: 10_000, wall_us: 1_000_009_000 };
        clock.sample(9_000, 4_600_009_000, now);
        let found = clock.offset().expect("sampled");
        assert!((found.offset_us - 3_600_000_000).unsigned_abs() <= found.error_us, "{found:?}");
    }

    #[test]
    fn an_answer_to_what_was_never_asked_is_passed_over() {
        let mut clock = Clock::default();
        clock.sample(11, 0, Now { mono_us: 10, wall_us: 10 });
        assert_eq!(clock.offset(), None);
    }
}
