//! The busiest rooms, in memory that does not grow with their number.
//!
//! Source: Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and
//! Top-k Elements in Data Streams", ICDT 2005 (Space-Saving). Only every
//! `SAMPLE`th publish is counted, with that weight.

use std::sync::Arc;

/// One publish in this many is counted.
pub const SAMPLE: u32 = 16;

/// Counters kept; a room above 1/COUNTERS of all publishes is always among them.
const COUNTERS: usize = 128;

/// A Space-Saving sketch whose counts halve, so that old fame fades.
#[derive(Debug, Default)]
pub struct TopK {
    skipped: u32,
    counters: Vec<(Arc<[u8]>, Busy)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Busy {
    pub publishes: u64,
    /// Bytes of these publishes.
    pub bytes_in: u64,
    /// Bytes of these publishes, times their receivers.
    pub bytes_out: u64,
}

impl Busy {
    /// The counters of `publishes` publishes of `bytes` bytes each to `receivers` receivers.
    fn of(publishes: u64, bytes: u64, receivers: u64) -> Busy {
        Busy { publishes, bytes_in: publishes * bytes, bytes_out: publishes * bytes * receivers }
    }
}

impl TopK {
    #[inline]
    pub fn counts_next(&mut self) -> bool {
        self.skipped += 1;
        let counts = self.skipped == SAMPLE;
        if counts {
            self.skipped = 0;
        }
        counts
    }

    /// Counts a publish of `bytes` bytes to a room, with `receivers` receivers.
    pub fn publish(&mut self, room: &Arc<[u8]>, bytes: u64, receivers: u64) {
        let weight = u64::from(SAMPLE);
        let one = Busy::of(weight, bytes, receivers);
        if let Some((_, busy)) = self.counters.iter_mut().find(|c| c.0 == *room) {
            busy.publishes += one.publishes;
            busy.bytes_in += one.bytes_in;
            busy.bytes_out += one.bytes_out;
        } else if self.counters.len() < COUNTERS {
            self.counters.push((Arc::clone(room), one));
        } else if let Some(least) = self.counters.iter_mut().min_by_key(|c| c.1.publishes) {
            // The room's earlier publishes are taken to be like this one, whatever the replaced room had.
            *least = (Arc::clone(room), Busy::of(least.1.publishes + weight, bytes, receivers));
        }
    }

    /// Halves all counts; to be called at a steady interval. The count of a room with `r` publishes per
    /// interval then settles between `r` and `2 r`.
    pub fn fade(&mut self) {
        for (_, busy) in &mut self.counters {
            *busy = Busy {
                publishes: busy.publishes / 2,
                bytes_in: busy.bytes_in / 2,
                bytes_out: busy.bytes_out / 2,
            };
        }
        self.counters.retain(|c| c.1.publishes > 0);
    }

    /// Up to `limit` rooms with their counts, busiest first.
    pub fn busiest(&self, limit: usize) -> Vec<(Arc<[u8]>, Busy)> {
        let mut rooms = self.counters.clone();
        rooms.sort_by(|a, b| b.1.publishes.cmp(&a.1.publishes).then_with(|| a.0.cmp(&b.0)));
        rooms.truncate(limit);
        rooms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_room_is_found_among_many_quiet_ones() {
        let mut sketch = TopK::default();
        let busy: Arc<[u8]> = b"busy".as_slice().into();
        for i in 0..100_000_u32 {
            let quiet = || format!("quiet:{i}").into_bytes().into();
            if sketch.counts_next() {
                match i % 5 {
                    // Other rooms were counted in its place before: their bytes are not kept.
                    0 | 1 => sketch.publish(&busy, 100 + u64::from(i % 5) * 10, 3),
                    _ => sketch.publish(&quiet(), 9_000, 50),
                }
            }
        }
        let (name, counted) = &sketch.busiest(1)[0];
        assert_eq!(&**name, b"busy");
        assert_eq!((counted.bytes_in / counted.publishes, counted.bytes_out), (105, 3 * counted.bytes_in));
        assert!(sketch.counters.len() <= COUNTERS);
        sketch.fade();
        let (_, faded) = sketch.busiest(1)[0];
        assert_eq!(faded.bytes_in / faded.publishes, 105, "the mean does not fade");
        (0..40).for_each(|_| sketch.fade());
        assert!(sketch.busiest(1).is_empty());
    }
}
