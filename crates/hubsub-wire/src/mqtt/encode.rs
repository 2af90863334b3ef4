//! Encoding of packets, for clients and servers. A body is written after one byte reserved for its length,
//! and moved if the length takes more. Only PUBLISH is optimised further, see `publish.rs`.

use super::ack::{Connack, Disconnect};
use super::error::{EncodeError, ProtocolError};
use super::field::{Writer, remaining_length_checked, write_short};
use super::packet::{Packet, kind};
use super::property::Properties;
use super::publish::write_publish;
use super::reason::Reason;
use super::version::Version;

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
        if let Packet::Publish(publish) = self {
            return write_publish(out, version, publish, packet_bytes_max).map(drop);
        }
        let start = out.len();
        let mut to = Writer { out, error: None };
        // The first byte, and one byte for the length.
        let kind = self.kind();
        to.out.extend_from_slice(&[kind << 4 | kind::flags(kind), 0]);
        match self {
            Packet::Publish(_) | Packet::Pingreq | Packet::Pingresp => {}
            Packet::Connect(connect) => connect.write(&mut to),
            Packet::Connack(connack) => connack.write(version, &mut to),
            Packet::Puback(ack) | Packet::Pubrec(ack) | Packet::Pubrel(ack) | Packet::Pubcomp(ack) => {
                ack.write(version, &mut to);
            }
            Packet::Subscribe(subscribe) => subscribe.write(version, &mut to),
            Packet::Suback(suback) => suback.write(version, &mut to),
            Packet::Unsubscribe(unsubscribe) => unsubscribe.write(version, &mut to),
            Packet::Unsuback(unsuback) => unsuback.write(version, &mut to),
            Packet::Disconnect(disconnect) => disconnect.write(version, &mut to),
            Packet::Auth(auth) => auth.write(&mut to),
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

impl ProtocolError {
    /// Appends a server's last packet before it closes: CONNACK in reply to CONNECT, later DISCONNECT, if the
    /// version has one. Not for a caller that decodes on before it has sent CONNACK.
    pub fn write(self, out: &mut Vec<u8>) {
        let (reason, properties) = (self.flaw.reason(), Properties::default());
        let (version, packet) = match self.version {
            Some(version)
                if self.first && (version == Version::V5 || reason == Reason::UnsupportedProtocolVersion) =>
            {
                (version, Packet::Connack(Connack { session_present: false, reason, properties }))
            }
            Some(version @ Version::V5) => (version, Packet::Disconnect(Disconnect { reason, properties })),
            _ => return,
        };
        packet.write(out, version, usize::MAX).expect("its few bytes are no limit's");
    }
}
