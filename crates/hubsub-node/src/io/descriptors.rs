//! Limit of the process's open file descriptors, and the part that is reserved from clients.
//!
//! The system assigns the lowest free number. So a descriptor at or above the line shows that all below it
//! are in use; if clients get none above it, that many remain for files and links.

use std::os::fd::{AsRawFd, RawFd};

/// Read once at the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptors {
    /// Maximum number of open descriptors of the process.
    pub max: u64,
    /// How many of them are reserved from clients.
    pub reserved: u64,
}

impl Descriptors {
    /// Reserves `wanted` of the descriptors that are free now, or half of the free ones if that is fewer.
    #[must_use]
    pub fn reserve(wanted: u64) -> Descriptors {
        let used =
            std::fs::File::open("/dev/null").map_or(0, |file| u64::try_from(file.as_raw_fd()).unwrap_or(0));
        Descriptors::of(crate::io::sys::descriptors_max(), used, wanted)
    }

    fn of(max: u64, used: u64, wanted: u64) -> Descriptors {
        Descriptors { max, reserved: wanted.min(max.saturating_sub(used) / 2) }
    }

    /// Whether a client may use this descriptor.
    #[inline]
    pub fn serves(&self, descriptor: RawFd) -> bool {
        u64::try_from(descriptor).is_ok_and(|number| number < self.max - self.reserved)
    }

    /// Limit of open log files when `wanted` are requested: at most a quarter of the reserve, since writers
    /// and the coordinator need descriptors, too.
    pub fn files_max(&self, wanted: u64) -> u64 {
        if self.reserved == 0 { wanted } else { wanted.min(self.reserved / 4).max(1) }
    }

    /// Fields of a log line.
    pub fn fields(&self) -> Vec<(&'static str, String)> {
        vec![("descriptors_max", self.max.to_string()), ("descriptors_reserved", self.reserved.to_string())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clients_leave_what_is_reserved_and_at_least_half_is_theirs() {
        for (max, wanted, first_reserved, files) in [
            (1_048_576, 2_048, 1_046_528, 512),
            (4_112, 2_048, 2_064, 512),
            (256, 2_048, 136, 30),
            (256, 0, 256, 512),
        ] {
            let descriptors = Descriptors::of(max, 16, wanted);
            assert!(descriptors.serves(first_reserved - 1), "{max} {wanted}");
            assert!(!descriptors.serves(first_reserved), "{max} {wanted}");
            assert_eq!(descriptors.files_max(512), files, "{max} {wanted}");
        }
    }
}
