//! Traffic of one connection: totals, and rates over the last second and the last minute. Totals are counted
//! per message; rates are derived from the totals once a second, and only for connections with traffic.

/// Four counters: messages in, messages out, bytes in, bytes out.
pub type Totals = [u64; 4];

/// Indexes of the counters in `Totals`.
pub const MESSAGES_IN: usize = 0;
pub const MESSAGES_OUT: usize = 1;
pub const BYTES_IN: usize = 2;
pub const BYTES_OUT: usize = 3;

#[derive(Default)]
pub struct Meter {
    /// Totals since the connection began.
    pub totals: Totals,
    windows: Option<Box<Windows>>,
}

/// Rates as of the start of `second`.
#[derive(Clone)]
struct Windows {
    second: u32,
    /// `totals` at the start of `second`.
    at_second: Totals,
    last_second: [f32; 4],
    /// Exponentially weighted, with a time constant of a minute.
    minute: [f32; 4],
}

/// Rates per second, in the order of `Totals`.
#[derive(Clone, Copy, Default, Debug, PartialEq)]
pub struct Rates {
    /// Over the last whole second.
    pub second: [f32; 4],
    /// Over about a minute.
    pub minute: [f32; 4],
}

impl Meter {
    /// Counts a record that goes out to the client.
    #[inline]
    pub fn sent(&mut self, bytes: usize) {
        self.totals[MESSAGES_OUT] += 1;
        self.totals[BYTES_OUT] += bytes as u64;
    }

    /// Updates the rates once a second. Called with each read and write, so it usually does nothing.
    #[inline]
    pub fn roll(&mut self, second: u32) {
        match &mut self.windows {
            Some(windows) if windows.second == second => {}
            Some(windows) => windows.roll(second, &self.totals),
            None => {
                self.windows = Some(Box::new(Windows {
                    second,
                    at_second: self.totals,
                    last_second: [0.0; 4],
                    minute: [0.0; 4],
                }));
            }
        }
    }

    /// Rates as of `second`.
    pub fn rates(&self, second: u32) -> Rates {
        let Some(windows) = &self.windows else { return Rates::default() };
        let mut windows = Windows::clone(windows);
        if windows.second != second {
            windows.roll(second, &self.totals);
        }
        Rates { second: windows.last_second, minute: windows.minute }
    }
}

impl Windows {
    fn roll(&mut self, second: u32, totals: &Totals) {
        let passed = second.saturating_sub(self.second).max(1);
        let first = 1.0 - (-1.0_f32 / 60.0).exp();
        let fade = (-(passed as f32) / 60.0).exp();
        for (i, (now, before)) in totals.iter().zip(self.at_second).enumerate() {
            let count = (now - before) as f32;
            // All traffic happened in the first of the elapsed seconds.
            self.last_second[i] = if passed == 1 { count } else { 0.0 };
            self.minute[i] = self.minute[i] * fade + count * first * (fade * (1.0_f32 / 60.0).exp());
        }
        self.second = second;
        self.at_second = *totals;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_steady_stream_shows_its_rate() {
        let mut meter = Meter::default();
        for second in 0..600 {
            meter.roll(second);
            meter.totals[MESSAGES_OUT] += 50;
        }
        let rates = meter.rates(600);
        assert_eq!(rates.second[MESSAGES_OUT], 50.0);
        assert!((rates.minute[MESSAGES_OUT] - 50.0).abs() < 1.0, "{rates:?}");
        assert_eq!(rates.second[BYTES_IN], 0.0);
    }

    #[test]
    fn silence_fades() {
        let mut meter = Meter::default();
        meter.roll(0);
        meter.totals[BYTES_IN] += 6000;
        let soon = meter.rates(1);
        assert_eq!(soon.second[BYTES_IN], 6000.0);
        let later = meter.rates(61);
        assert_eq!(later.second[BYTES_IN], 0.0);
        assert!((later.minute[BYTES_IN] / soon.minute[BYTES_IN] - (-1.0_f32).exp()).abs() < 0.01);
    }
}
