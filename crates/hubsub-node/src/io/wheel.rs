//! A timer wheel. Timers are cheap to set and never cancelled: the receiver checks whether its timer still
//! matters.
//!
//! Source: Varghese and Lauck, "Hashed and Hierarchical Timing Wheels", SOSP 1987, scheme 6, with one level;
//! a timer beyond one revolution stays for another.

/// Granularity in ms, and the maximum delay of a timer.
const STEP_MS: u64 = 16;

const SLOTS: usize = 1024;

/// Timers that carry a `T`.
pub struct Wheel<T> {
    slots: Vec<Vec<(u64, T)>>,
    /// Steps whose timers were taken.
    step: u64,
    len: usize,
}

impl<T> Wheel<T> {
    /// A wheel without timers, whose time begins at `now_ms`.
    pub fn new(now_ms: u64) -> Wheel<T> {
        Wheel { slots: (0..SLOTS).map(|_| Vec::new()).collect(), step: now_ms / STEP_MS, len: 0 }
    }

    /// Schedules `what` for `due_ms` or up to `STEP_MS` later.
    pub fn set(&mut self, due_ms: u64, what: T) {
        let step = (due_ms.div_ceil(STEP_MS)).max(self.step + 1);
        self.slots[step as usize % SLOTS].push((step, what));
        self.len += 1;
    }

    /// Moves the expired timers into `due`.
    pub fn due(&mut self, now_ms: u64, due: &mut Vec<T>) {
        let until = now_ms / STEP_MS;
        if self.len == 0 {
            self.step = self.step.max(until);
        }
        // One revolution visits every slot, so more would find nothing new.
        let first = until.saturating_sub(SLOTS as u64).max(self.step);
        for step in first + 1..=until {
            let slot = &mut self.slots[step as usize % SLOTS];
            let mut i = 0;
            while i < slot.len() {
                if slot[i].0 <= until {
                    due.push(slot.swap_remove(i).1);
                    self.len -= 1;
                } else {
                    i += 1;
                }
            }
            if slot.is_empty() && slot.capacity() > 64 {
                *slot = Vec::new();
            }
        }
        self.step = self.step.max(until);
    }

    /// Time until the next timer may expire, in ms; `None` without timers.
    pub fn wait_ms(&self, now_ms: u64) -> Option<u64> {
        if self.len == 0 {
            return None;
        }
        let steps = (1..=SLOTS as u64).find(|i| !self.slots[(self.step + i) as usize % SLOTS].is_empty());
        let due_ms = (self.step + steps.unwrap_or(1)) * STEP_MS;
        Some(due_ms.saturating_sub(now_ms))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timers_fire_once_in_time_and_never_early() {
        let mut wheel = Wheel::new(5_000);
        let dues: Vec<u64> = (0..500).map(|i| 5_000 + i * 97).collect();
        dues.iter().for_each(|&due| wheel.set(due, due));
        let (mut fired, mut now) = (Vec::new(), 5_000);
        while let Some(wait) = wheel.wait_ms(now) {
            now += wait;
            let mut due = Vec::new();
            wheel.due(now, &mut due);
            assert!(
                due.iter()
                    .all(|&d| d <= now
                        && now <= d + 2 * STEP_MS + SLOTS as u64 * STEP_MS * u64::from(d < 5_000))
            );
            fired.extend(due);
        }
        fired.sort_unstable();
        assert_eq!(fired, dues);
    }

    #[test]
    fn a_jump_of_the_clock_fires_everything_that_is_due() {
        let mut wheel = Wheel::new(0);
        [10, 20_000, 90_000].iter().for_each(|&due| wheel.set(due, due));
        let mut due = Vec::new();
        wheel.due(60_000, &mut due);
        due.sort_unstable();
        assert_eq!(due, [10, 20_000]);
    }
}
