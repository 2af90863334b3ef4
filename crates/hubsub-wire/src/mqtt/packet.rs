//! A packet, and the few words that all of them use.

use super::ack::{Ack, Auth, Connack, Disconnect};
use super::connect::Connect;
use super::publish::Publish;
use super::subscribe::{Suback, Subscribe, Unsuback, Unsubscribe};
use std::num::NonZeroU16;

pub use hubsub_types::Qos;

/// The most bytes that can follow a fixed header.
pub const REMAINING_LENGTH_MAX: usize = 268_435_455;

/// The id of a packet that is answered; never 0.
pub type PacketId = NonZeroU16;

/// A version, by its protocol level.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Version {
    /// MQTT 3.1, whose name is `MQIsdp`.
    V31 = 3,
    /// MQTT 3.1.1.
    V311 = 4,
    /// MQTT 5.0.
    V5 = 5,
}

impl Version {
    /// The protocol's name in CONNECT.
    #[must_use]
    pub fn protocol_name(self) -> &'static str {
        if self == Version::V31 { "MQIsdp" } else { "MQTT" }
    }
}

/// Who sent what is decoded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Peer {
    /// So this is a server.
    Client,
    /// So this is a client.
    Server,
}

/// What is said. Texts and payloads are in the input; the properties of 3.1
/// and 3.1.1 are none.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// A client begins.
    Connect(Connect<'a>),
    /// The server's answer.
    Connack(Connack<'a>),
    /// A message.
    Publish(Publish<'a>),
    /// The answer to a message of QoS 1.
    Puback(Ack<'a>),
    /// The first answer to a message of QoS 2.
    Pubrec(Ack<'a>),
    /// The answer to PUBREC.
    Pubrel(Ack<'a>),
    /// The answer to PUBREL.
    Pubcomp(Ack<'a>),
    /// A client wants what matches.
    Subscribe(Subscribe<'a>),
    /// The server's answer.
    Suback(Suback<'a>),
    /// It wants it no more.
    Unsubscribe(Unsubscribe<'a>),
    /// The server's answer.
    Unsuback(Unsuback<'a>),
    /// A client is there.
    Pingreq,
    /// The server, too.
    Pingresp,
    /// The end; of servers in 5.0 only.
    Disconnect(Disconnect<'a>),
    /// A step of enhanced authentication, in 5.0 only.
    Auth(Auth<'a>),
}

/// The numbers of the types, the upper four bits of a packet.
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
