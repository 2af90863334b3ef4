//! Hand-written packets, and helpers to decode them.

use crate::any_input::{WIDE, begun};
use hubsub_wire::mqtt::*;

pub use Peer::{Client, Server};
pub use Version::{V5, V31, V311};

/// A packet with that first byte and a body of up to 16,383 bytes.
pub fn packet(first: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![first];
    match body.len() {
        len @ 0..0x80 => bytes.push(len as u8),
        len => bytes.extend_from_slice(&[len as u8 | 0x80, (len >> 7) as u8]),
    }
    bytes.extend_from_slice(body);
    bytes
}

/// An encoded text field.
pub fn text(bytes: &[u8]) -> Vec<u8> {
    let mut field = (bytes.len() as u16).to_be_bytes().to_vec();
    field.extend_from_slice(bytes);
    field
}

/// A CONNECT with that level and those flags; `rest` follows its keep alive.
pub fn connect(name: &str, level: u8, flags: u8, rest: &[&[u8]]) -> Vec<u8> {
    let body = [&text(name.as_bytes())[..], &[level, flags, 0, 60], &rest.concat()].concat();
    packet(0x10, &body)
}

/// Decodes a packet after the start of a connection.
pub fn decode(from: Peer, version: Version, bytes: &[u8]) -> Result<Packet<'_>, ProtocolError> {
    whole(begun(from, version).decode(bytes, &WIDE), bytes.len())
}

/// Decodes the first packet of a connection.
pub fn decode_first(bytes: &[u8]) -> Result<Packet<'_>, ProtocolError> {
    whole(Decoder::of_client().decode(bytes, &WIDE), bytes.len())
}

fn whole(decoded: Result<Decoded<'_>, ProtocolError>, bytes: usize) -> Result<Packet<'_>, ProtocolError> {
    match decoded? {
        Decoded::Packet { packet, len } if len == bytes => Ok(packet),
        other => panic!("not a whole packet: {other:?}"),
    }
}

/// The error for these bytes.
pub fn flaw(from: Peer, version: Version, bytes: &[u8]) -> Flaw {
    match decode(from, version, bytes) {
        Err(error) => error.flaw,
        Ok(packet) => panic!("taken: {packet:?}"),
    }
}

/// The error for a connection's first bytes, and the reply.
pub fn first_flaw(bytes: &[u8]) -> (Flaw, Vec<u8>) {
    match decode_first(bytes) {
        Err(error) => (error.flaw, answer(error)),
        Ok(packet) => panic!("taken: {packet:?}"),
    }
}

/// The reply to the peer.
pub fn answer(error: ProtocolError) -> Vec<u8> {
    let mut out = Vec::new();
    error.write(&mut out);
    out
}

/// A PUBLISH of a client in 5.0, with those properties.
pub fn publish_with(properties: &[u8]) -> Vec<u8> {
    let length = [properties.len() as u8];
    packet(0x30, &[&text(b"t")[..], &length, properties, b"payload"].concat())
}
