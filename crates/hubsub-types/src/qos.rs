//! How surely a message arrives: MQTT's word, which records keep, since a subscriber gets
//! no more than the publisher asked for.

/// How surely a message arrives.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Qos {
    /// At most once.
    #[default]
    AtMostOnce = 0,
    /// At least once.
    AtLeastOnce = 1,
    /// Exactly once. It is also that of a record whose protocol has no such word: nothing of it
    /// bounds its subscribers.
    ExactlyOnce = 2,
}

impl Qos {
    /// By its two bits; none for 3.
    #[must_use]
    #[inline]
    pub fn from_bits(bits: u8) -> Option<Qos> {
        match bits {
            0 => Some(Qos::AtMostOnce),
            1 => Some(Qos::AtLeastOnce),
            2 => Some(Qos::ExactlyOnce),
            _ => None,
        }
    }

    /// How much of it a record lacks, as links and logs write it: 0, so nothing, where nobody bounds it.
    #[must_use]
    pub fn lack(self) -> u8 {
        Qos::ExactlyOnce as u8 - self as u8
    }

    /// By [`Qos::lack`]; none for 3.
    #[must_use]
    pub fn from_lack(lack: u8) -> Option<Qos> {
        (Qos::ExactlyOnce as u8).checked_sub(lack).and_then(Qos::from_bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_3_is_nothing() {
        for qos in [Qos::AtMostOnce, Qos::AtLeastOnce, Qos::ExactlyOnce] {
            assert_eq!(Qos::from_lack(qos.lack()), Some(qos));
            assert_eq!(Qos::from_bits(qos as u8), Some(qos));
        }
        assert_eq!((Qos::from_lack(3), Qos::from_bits(3)), (None, None));
        assert_eq!(Qos::ExactlyOnce.lack(), 0, "records of before");
    }
}
