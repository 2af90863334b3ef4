//! The bytes of each lane that may be in flight.
//!
//! Credit is a running total, like a stream offset: a receiver raises it, and repeats are harmless. A frame
//! may *begin* while credit is left, so one longer than the whole window passes; at most the window and one
//! frame are in flight.

/// The sender's side of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    sent: u64,
    /// No frame begins at or after this total.
    limit: u64,
}

impl Credit {
    pub const NONE: Credit = Credit { sent: 0, limit: 0 };
    pub const ENDLESS: Credit = Credit { sent: 0, limit: u64::MAX };

    pub fn is_left(&self) -> bool {
        self.sent < self.limit
    }

    pub fn spend(&mut self, bytes: usize) {
        debug_assert!(self.is_left(), "frames are held without credit");
        self.sent += bytes as u64;
    }

    /// Applies the peer's grant. A smaller total is an old one.
    pub fn raise(&mut self, limit: u64) {
        self.limit = self.limit.max(limit);
    }
}

/// The receiver's side of a lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    size: u64,
    received: u64,
    handled: u64,
    granted: u64,
}

impl Window {
    pub fn new(size: u64) -> Window {
        Window { size, received: 0, handled: 0, granted: 0 }
    }

    /// Counts a received frame; false if it began without credit.
    #[must_use]
    pub fn receive(&mut self, bytes: usize) -> bool {
        let may = self.received < self.granted;
        self.received += bytes as u64;
        may
    }

    pub fn handle(&mut self, bytes: usize) {
        self.handled += bytes as u64;
        debug_assert!(self.handled <= self.received, "more is handled than came");
    }

    /// Whether half of the window was handled since the last grant; more grants would waste frames.
    pub fn is_due(&self) -> bool {
        2 * (self.handled + self.size - self.granted) >= self.size
    }

    pub fn grant(&mut self) -> u64 {
        self.granted = self.handled + self.size;
        self.granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_longer_than_the_window_passes_and_the_next_waits() {
        let (mut credit, mut window) = (Credit::NONE, Window::new(100));
        credit.raise(window.grant());
        credit.spend(1_000);
        assert!(window.receive(1_000) && !credit.is_left());
        window.handle(1_000);
        assert!(window.is_due());
        credit.raise(window.grant());
        assert!(credit.is_left());
    }

    #[test]
    fn credit_that_is_said_again_late_takes_nothing_back() {
        let mut credit = Credit::NONE;
        credit.raise(100);
        credit.raise(0);
        assert!(credit.is_left());
    }

    #[test]
    fn a_frame_without_credit_is_noticed() {
        let mut window = Window::new(10);
        assert!(!window.receive(1), "nothing was granted");
        let mut window = Window::new(10);
        window.grant();
        assert!(window.receive(10));
        assert!(!window.receive(1));
    }

    #[test]
    fn credit_is_told_when_half_a_window_is_handled() {
        let mut window = Window::new(100);
        assert!(window.is_due(), "the first is due at once");
        window.grant();
        assert!(window.receive(99));
        window.handle(49);
        assert!(!window.is_due());
        window.handle(1);
        assert!(window.is_due());
    }
}
