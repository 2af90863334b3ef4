//! When a publisher may send: with a fixed number of publishes in flight (closed loop), or at a fixed rate
//! shared by all publishers (open loop).
//!
//! In open loop the k-th publish of publisher i of P is due at `start + (k·P + i) / rate`, independent of the
//! server: a publish that is sent late keeps its due time, so waiting for a slow server counts as latency.

#[derive(Clone, Debug)]
pub enum Pace {
    Closed { in_flight: u64 },
    Open(Schedule),
}

/// Due times of one publisher in open loop.
#[derive(Clone, Debug)]
pub struct Schedule {
    /// Due time of the first publish of publisher 0, in ns of the generator's clock.
    pub start_ns: u64,
    pub publisher: u64,
    /// Number of publishers that share the rate.
    pub publishers: u64,
    /// Publishes per second of all publishers together.
    pub rate: f64,
}

impl Schedule {
    /// Due time of this publisher's publish `k` (from 0), in ns of the generator's clock.
    pub fn due_ns(&self, k: u64) -> u64 {
        let place = (k * self.publishers + self.publisher) as f64;
        self.start_ns + (place * 1e9 / self.rate) as u64
    }
}

/// Picks rooms: every room of `first..first + count` equally often in the long run.
#[derive(Clone, Debug)]
pub struct RoomPick {
    first: u32,
    count: u32,
    state: u64,
}

impl RoomPick {
    /// Picks among `count` rooms from `first` on; the same seed gives the same sequence.
    pub fn new(first: u32, count: u32, seed: u64) -> RoomPick {
        assert!(count > 0, "a publisher has a room to publish to");
        RoomPick { first, count, state: splitmix(seed) | 1 }
    }

    /// The rooms to pick from.
    pub fn rooms(&self) -> std::ops::Range<u32> {
        self.first..self.first + self.count
    }

    #[inline]
    pub fn pick(&mut self) -> u32 {
        if self.count == 1 {
            return self.first;
        }
        // xorshift64*: fast, and even enough to spread publishes over rooms.
        self.state ^= self.state >> 12;
        self.state ^= self.state << 25;
        self.state ^= self.state >> 27;
        let random = self.state.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32;
        self.first + ((random * u64::from(self.count)) >> 32) as u32
    }
}

fn splitmix(seed: u64) -> u64 {
    let mixed = seed.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishers_share_the_rate_evenly_and_in_turn() {
        let of = |publisher| Schedule { start_ns: 1_000, publisher, publishers: 4, rate: 1_000.0 };
        let mut due: Vec<u64> =
            (0..4).flat_map(|p| (0..250).map(move |k| (p, k))).map(|(p, k)| of(p).due_ns(k)).collect();
        due.sort_unstable();
        let even: Vec<u64> = (0..1_000).map(|i| 1_000 + i * 1_000_000).collect();
        assert_eq!(due, even);
    }

    #[test]
    fn a_schedule_does_not_drift() {
        let schedule = Schedule { start_ns: 0, publisher: 0, publishers: 3, rate: 300_000.0 };
        assert_eq!(schedule.due_ns(100_000 * 3_600), 3_600_000_000_000);
    }

    #[test]
    fn every_room_is_picked_about_equally_often() {
        let mut pick = RoomPick::new(10, 100, 42);
        let mut times = vec![0u32; 110];
        (0..100_000).for_each(|_| times[pick.pick() as usize] += 1);
        assert!(times[..10].iter().all(|&n| n == 0));
        assert!(times[10..].iter().all(|&n| (800..1_200).contains(&n)), "{times:?}");
    }

    #[test]
    fn the_same_seed_picks_the_same_rooms() {
        let rooms = |seed| {
            let mut pick = RoomPick::new(0, 1_000, seed);
            (0..50).map(|_| pick.pick()).collect::<Vec<_>>()
        };
        assert_eq!(rooms(1), rooms(1));
        assert_ne!(rooms(1), rooms(2));
    }
}
