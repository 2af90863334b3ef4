//! Packets and their common types.

use super::ack::{Ack, Auth, Connack, Disconnect};
use super::connect::Connect;
use super::publish::Publish;
use super::subscribe::{Suback, Subscribe, Unsuback, Unsubscribe};
use std::num::NonZeroU16;

pub use hubsub_types::Qos;

/// Most bytes after a fixed header.
pub const REMAINING_LENGTH_MAX: usize = 268_435_455;

/// Packet identifier; never 0.
pub type PacketId = NonZeroU16;

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
    /// The protocol name in CONNECT.
    #[must_use]
    pub fn protocol_name(self) -> &'static str {
        if self == Version::V31 { "MQIsdp" } else { "MQTT" }
    }
}

/// The sender of the decoded packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Peer {
    /// Decoding takes place on a server.
    Client,
    /// Decoding takes place on a client.
    Server,
}

/// A packet. Texts and payloads borrow from the input; before 5.0 properties are empty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    Connect(Connect<'a>),
    /// The reply to CONNECT.
    Connack(Connack<'a>),
    Publish(Publish<'a>),
    /// The reply to a QoS 1 message.
    Puback(Ack<'a>),
    /// The first reply to a QoS 2 message.
    Pubrec(Ack<'a>),
    /// The reply to PUBREC.
    Pubrel(Ack<'a>),
    /// The reply to PUBREL.
    Pubcomp(Ack<'a>),
    Subscribe(Subscribe<'a>),
    /// The reply to SUBSCRIBE.
    Suback(Suback<'a>),
    Unsubscribe(Unsubscribe<'a>),
    /// The reply to UNSUBSCRIBE.
    Unsuback(Unsuback<'a>),
    /// Keep alive of a client.
    Pingreq,
    /// The reply to PINGREQ.
    Pingresp,
    /// The end of a connection; servers send it in 5.0 only.
    Disconnect(Disconnect<'a>),
    /// A step of enhanced authentication, in 5.0 only.
    Auth(Auth<'a>),
}

/// Packet types, the upper four bits of the first byte.
pub(super) mod kind {
    pub const CONNECT: u8 = 1;
    pub const CONNACK: u8 = 2;
    pub const PUBLISH: u8 = 3;
    pub const PUBACK: u8 = 4;
    pub const PUBREC: u8 = 5;
    pub const PUBREL: u8 = 6;
    pub const PUBCOMP: u8 = 7;
    pub const SUBSCRIBE: u8 = 8;
    pub const SUBACK: u8 = 9;
    pub const UNSUBSCRIBE: u8 = 10;
    pub const UNSUBACK: u8 = 11;
    pub const PINGREQ: u8 = 12;
    pub const PINGRESP: u8 = 13;
    pub const DISCONNECT: u8 = 14;
    pub const AUTH: u8 = 15;
}
