//! The busiest rooms, in memory that does not grow with their number.
//!
//! Source: Metwally, Agrawal, El Abbadi, "Efficient Computation of Frequent and
//! Top-k Elements in Data Streams", ICDT 2005 (Space-Saving). Only every
//! `SAMPLE`th publish is counted, with that weight.

use std::sync::Arc;

/// One publish in so many is counted.
pub const SAMPLE: u32 = 16;

/// Counters kept; a room above 1/COUNTERS of all publishes is always among them.
const COUNTERS: usize = 128;

/// A Space-Saving sketch whose counts halve, so that old fame fades.
#[derive(Debug, Default)]
pub struct TopK {
    skipped: u32,
    counters: Vec<(Arc<[u8]>, u64)>,
}

impl TopK {
    /// A publish happens; whether it counts.
    #[inline]
    pub fn counts_next(&mut self) -> bool {
        self.skipped += 1;
        let counts = self.skipped == SAMPLE;
        if counts {
            self.skipped = 0;
        }
        counts
    }

    /// Counts a publish to a room.
    pub fn publish(&mut self, room: &Arc<[u8]>) {
        if let Some(counter) = self.counters.iter_mut().find(|c| c.0 == *room) {
            counter.1 += u64::from(SAMPLE);
        } else if self.counters.len() < COUNTERS {
            self.counters.push((Arc::clone(room), u64::from(SAMPLE)));
        } else if let Some(least) = self.counters.iter_mut().min_by_key(|c| c.1) {
            *least = (Arc::clone(room), least.1 + u64::from(SAMPLE));
        }
    }

    /// Called at a steady interval: halves all counts. A room with `r`
    /// publishes an interval then settles between `r` and `2 r`.
    pub fn fade(&mut self) {
        self.counters.iter_mut().for_each(|c| c.1 /= 2);
        self.counters.retain(|c| c.1 > 0);
    }

    /// Up to `limit` rooms with their counts, busiest first.
    #[must_use]
    pub fn busiest(&self, limit: usize) -> Vec<(Arc<[u8]>, u64)> {
        let mut rooms = self.counters.clone();
        rooms.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
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
                sketch.publish(&if i % 5 < 2 { Arc::clone(&busy) } else { quiet() });
            }
        }
        assert_eq!(&*sketch.busiest(1)[0].0, b"busy");
        assert!(sketch.counters.len() <= COUNTERS);
        (0..40).for_each(|_| sketch.fade());
        assert!(sketch.busiest(1).is_empty());
    }
}
