//! The number of entries that wait, and their memory.

/// The load of a queue: each limit of a relay counts both fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    pub number: usize,
    pub bytes: usize,
}

impl Load {
    /// Whether something of this weight, in bytes, would exceed one of the limits.
    #[must_use]
    pub fn is_full(&self, weight: usize, (number_max, bytes_max): (usize, usize)) -> bool {
        self.number >= number_max || self.bytes + weight > bytes_max
    }

    pub fn add(&mut self, weight: usize) {
        (self.number, self.bytes) = (self.number + 1, self.bytes + weight);
    }

    pub fn remove(&mut self, weight: usize) {
        (self.number, self.bytes) = (self.number - 1, self.bytes - weight);
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.number == 0
    }
}
