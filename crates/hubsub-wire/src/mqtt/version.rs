//! The versions of MQTT, and the two sides of a connection.

/// An MQTT version, by its protocol level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Version {
    /// MQTT 3.1, whose protocol name is `MQIsdp`.
    V31 = 3,
    V311 = 4,
    V5 = 5,
}

impl Version {
    #[must_use]
    pub fn protocol_name(self) -> &'static str {
        if self == Version::V31 { "MQIsdp" } else { "MQTT" }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Peer {
    Client,
    Server,
}
