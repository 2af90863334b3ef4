//! MQTT quality of service. Records retain it, since a subscriber gets no higher one than the publisher asked
//! for.

/// The delivery guarantee of a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
#[repr(u8)]
pub enum Qos {
    /// QoS 0: at most once.
    #[default]
    AtMostOnce = 0,
    /// QoS 1: at least once.
    AtLeastOnce = 1,
    /// QoS 2: exactly once. Also for records of protocols without QoS, so that they do not limit their
    /// subscribers.
    ExactlyOnce = 2,
}

impl Qos {
    /// Decodes two bits; `None` for 3.
    #[inline]
    pub fn from_bits(bits: u8) -> Option<Qos> {
        match bits {
            0 => Some(Qos::AtMostOnce),
            1 => Some(Qos::AtLeastOnce),
            2 => Some(Qos::ExactlyOnce),
            _ => None,
        }
    }

    /// How far it is below `ExactlyOnce`, as links and logs encode it: 0 for a record that does not limit its
    /// subscribers.
    pub fn lack(self) -> u8 {
        Qos::ExactlyOnce as u8 - self as u8
    }

    /// Decodes [`Qos::lack`]; `None` for 3.
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
