//! Encoding of packets, for clients and servers. A body is written after one byte reserved for its length,
//! and moved if the length takes more. Only PUBLISH is optimised further, see `publish.rs`.

use super::field::{SHORT_MAX, Writer, short_len, write_short};
use super::packet::{Packet, Version, kind};
use super::publish::write_publish;
use std::fmt;

/// Why a packet is not sent; the output is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EncodeError {
    /// It would be longer than its peer accepts, or than the protocol allows.
    TooLong {
        /// Length of the packet.
        bytes: usize,
    },
    /// A text or binary field is longer than 65,535 bytes.
    FieldTooLong {
        /// Length of the field.
        bytes: usize,
    },
}

impl fmt::Display for EncodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EncodeError::TooLong { bytes } => write!(f, "packet longer than the peer takes: {bytes} bytes"),
            EncodeError::FieldTooLong { bytes } => write!(f, "text longer than 65535 bytes: {bytes}"),
        }
    }
}

impl std::error::Error for EncodeError {}

impl Packet<'_> {
    /// Appends it in the format of `version`; CONNECT contains its own. Parts that the version does not have
    /// (reasons, properties, options) are omitted.
    ///
    /// # Errors
    /// The packet would be longer than `packet_bytes_max` or than the protocol allows, or a field is; nothing
    /// is appended. A reply may then be sent without its properties.
    pub fn write(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        packet_bytes_max: usize,
    ) -> Result<(), EncodeError> {
        let start = out.len();
        let mut to = Writer { out, error: None };
        // The first byte, and one byte for the length.
        let first = |kind: u8, flags: u8| [kind << 4 | flags, 0];
        let begin = |kind, to: &mut Writer<'_>| to.out.extend_from_slice(&first(kind, 0));
        let begin_marked = |kind, to: &mut Writer<'_>| to.out.extend_from_slice(&first(kind, 0b0010));
        match self {
            Packet::Publish(publish) => {
                return write_publish(to.out, version, publish, packet_bytes_max).map(drop);
            }
            Packet::Connect(connect) => {
                begin(kind::CONNECT, &mut to);
                connect.write(&mut to);
            }
            Packet::Connack(connack) => {
                begin(kind::CONNACK, &mut to);
                connack.write(version, &mut to);
            }
            Packet::Puback(ack) => {
                begin(kind::PUBACK, &mut to);
                ack.write(version, &mut to);
            }
            Packet::Pubrec(ack) => {
                begin(kind::PUBREC, &mut to);
                ack.write(version, &mut to);
            }
            Packet::Pubrel(ack) => {
                begin_marked(kind::PUBREL, &mut to);
                ack.write(version, &mut to);
            }
            Packet::Pubcomp(ack) => {
                begin(kind::PUBCOMP, &mut to);
                ack.write(version, &mut to);
            }
            Packet::Subscribe(subscribe) => {
                begin_marked(kind::SUBSCRIBE, &mut to);
                subscribe.write(version, &mut to);
            }
            Packet::Suback(suback) => {
                begin(kind::SUBACK, &mut to);
                suback.write(version, &mut to);
            }
            Packet::Unsubscribe(unsubscribe) => {
                begin_marked(kind::UNSUBSCRIBE, &mut to);
                unsubscribe.write(version, &mut to);
            }
            Packet::Unsuback(unsuback) => {
                begin(kind::UNSUBACK, &mut to);
                unsuback.write(version, &mut to);
            }
            Packet::Pingreq => begin(kind::PINGREQ, &mut to),
            Packet::Pingresp => begin(kind::PINGRESP, &mut to),
            Packet::Disconnect(disconnect) => {
                begin(kind::DISCONNECT, &mut to);
                disconnect.write(version, &mut to);
            }
            Packet::Auth(auth) => {
                begin(kind::AUTH, &mut to);
                auth.write(&mut to);
            }
        }
        let length = to.out.len() - start - 2;
        let done = match to.error {
            Some(error) => Err(error),
            None => remaining_length_checked(length, packet_bytes_max),
        };
        match done {
            Ok(length) if length < 0x80 => out[start + 1] = length as u8,
            Ok(length) => {
                let mut bytes = Vec::with_capacity(4);
                write_short(&mut bytes, length);
                out.splice(start + 1..start + 2, bytes);
            }
            Err(error) => {
                out.truncate(start);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Converts a remaining length, if the protocol allows it and the packet is short enough.
#[inline]
pub(super) fn remaining_length_checked(length: usize, packet_bytes_max: usize) -> Result<u32, EncodeError> {
    let bytes = length.saturating_add(1 + short_len(length));
    match u32::try_from(length) {
        Ok(length) if length <= SHORT_MAX && bytes <= packet_bytes_max => Ok(length),
        _ => Err(EncodeError::TooLong { bytes }),
    }
}
