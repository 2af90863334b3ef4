//! A decoder's position in its stream. It owns no bytes, and returns packets that borrow the caller's.
//!
//! It reports errors early: the first byte holds type and flags, the next ones the length, and a packet that
//! is not allowed there, or is too long, is refused at that point.

use super::ack::{Ack, Auth, Connack, Disconnect};
use super::connect::Connect;
use super::error::{Flaw, ProtocolError};
use super::field::{Reader, Short, short};
use super::packet::{Packet, kind};
use super::publish::{Head, Publish};
use super::reason::Carrier;
use super::subscribe::{Suback, Subscribe, Unsuback, Unsubscribe};
use super::version::{Peer, Version};

/// Greatest lengths of packets, including the fixed header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeLimits {
    /// Bytes of a PUBLISH: enough for the room class with the largest payloads. Servers announce it as
    /// Maximum Packet Size. The protocol's own limit is 268,435,460.
    pub packet_bytes_max: usize,
    /// Bytes of CONNECT, which unauthenticated peers can send.
    pub connect_bytes_max: usize,
    /// Bytes of any other packet, and of the head of a PUBLISH, of which a longer one is returned in pieces.
    pub whole_bytes_max: usize,
}

/// The item at the start of the input. Remove `len` bytes before the next call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded<'a> {
    Packet {
        packet: Packet<'a>,
        len: usize,
    },
    /// A PUBLISH without its payload, which follows in chunks.
    Head {
        publish: Publish<'a>,
        /// Length of the payload, at least 1.
        payload_bytes: usize,
        len: usize,
    },
    /// The next piece of that payload.
    Chunk {
        bytes: &'a [u8],
        last: bool,
        len: usize,
    },
    Incomplete {
        /// The input that the next call needs. The peer announced it: allocate only for received bytes.
        needed: usize,
    },
}

/// Decodes one packet after the other. It must not be used after an error.
#[derive(Clone, Debug)]
pub struct Decoder {
    from: Peer,
    /// MQTT version of the connection, or of the reply to a flawed CONNECT; `None` before CONNECT.
    version: Option<Version>,
    begun: bool,
    payload_left: u32,
}

#[derive(Clone, Copy)]
struct Header {
    kind: u8,
    flags: u8,
    bytes: usize,
    remaining: usize,
    shortest: bool,
}

impl Decoder {
    #[must_use]
    pub fn of_client() -> Decoder {
        Decoder { from: Peer::Client, version: None, begun: false, payload_left: 0 }
    }

    /// A decoder for packets from a server to a client that sent CONNECT with this version.
    #[must_use]
    pub fn of_server(version: Version) -> Decoder {
        Decoder { from: Peer::Server, version: Some(version), begun: false, payload_left: 0 }
    }

    /// MQTT version of the connection, once known.
    pub fn version(&self) -> Option<Version> {
        self.version
    }

    /// Decodes the next item. `input` holds all bytes that were not removed yet.
    ///
    /// # Errors
    /// The input is invalid or not allowed here; the connection must be closed.
    #[inline]
    pub fn decode<'a>(
        &mut self,
        input: &'a [u8],
        limits: &DecodeLimits,
    ) -> Result<Decoded<'a>, ProtocolError> {
        if self.payload_left > 0 {
            return Ok(self.chunk(input));
        }
        let Some(&first) = input.first() else {
            return Ok(Decoded::Incomplete { needed: 1 });
        };
        let begins = !self.begun;
        let decoded = self.decode_packet(first, input, limits);
        decoded.map_err(|flaw| ProtocolError { flaw, version: self.version, first: begins })
    }

    /// Fast path for the usual packet: the complete PUBLISH at the start of the input, and its length. `None`
    /// for anything else, which [`Decoder::decode`] handles.
    #[inline]
    pub fn publish<'a>(&self, input: &'a [u8], limits: &DecodeLimits) -> Option<(Publish<'a>, usize)> {
        let (&first, rest) = input.split_first()?;
        if first >> 4 != kind::PUBLISH || !self.begun || self.payload_left > 0 {
            return None;
        }
        let version = self.version?;
        let Short { number, bytes, shortest } = short(rest).ok()??;
        let len = 1 + bytes + number as usize;
        let is_taken = len <= limits.packet_bytes_max.min(limits.whole_bytes_max)
            && (shortest || version < Version::V5)
            && Publish::check_flags(first & 0x0F).is_ok();
        let body = input.get(1 + bytes..len).filter(|_| is_taken)?;
        Some((Publish::read(first & 0x0F, body, version, self.from).ok()?, len))
    }

    #[inline]
    fn decode_packet<'a>(
        &mut self,
        first: u8,
        input: &'a [u8],
        limits: &DecodeLimits,
    ) -> Result<Decoded<'a>, Flaw> {
        let (kind, flags) = (first >> 4, first & 0x0F);
        self.check_first(kind, flags)?;
        let Some(Short { number, bytes, shortest }) = short(&input[1..])? else {
            return Ok(Decoded::Incomplete { needed: input.len() + 1 });
        };
        let header = Header { kind, flags, bytes: 1 + bytes, remaining: number as usize, shortest };
        let len = header.bytes + header.remaining;
        let max = match kind {
            kind::CONNECT => limits.connect_bytes_max,
            kind::PUBLISH => limits.packet_bytes_max,
            _ => limits.whole_bytes_max,
        };
        if len > max {
            return Err(Flaw::TooLarge(len, max));
        }
        match self.version {
            None => self.decode_connect(header, input),
            Some(Version::V5) if !shortest => Err(Flaw::LengthNotShortest),
            Some(version) if kind == kind::PUBLISH && len > limits.whole_bytes_max => {
                self.decode_head(header, input, version, limits)
            }
            Some(version) => match input.get(header.bytes..len) {
                None => Ok(Decoded::Incomplete { needed: len }),
                Some(body) => {
                    let packet = self.packet(header, body, version)?;
                    Ok(Decoded::Packet { packet, len })
                }
            },
        }
    }

    /// Checks by the first byte whether a packet is allowed here.
    #[inline]
    fn check_first(&self, kind: u8, flags: u8) -> Result<(), Flaw> {
        let version = self.version;
        if kind == kind::PUBLISH && self.begun {
            return Publish::check_flags(flags);
        }
        let may_begin = match self.from {
            Peer::Client => kind == kind::CONNECT,
            Peer::Server => kind == kind::CONNACK || kind == kind::AUTH && version == Some(Version::V5),
        };
        if !self.begun && !may_begin {
            let client = self.from == Peer::Client;
            return Err(if client { Flaw::NotConnect(kind) } else { Flaw::NotConnack(kind) });
        }
        if kind == 0 || kind == kind::AUTH && version != Some(Version::V5) {
            return Err(Flaw::UnknownType(kind));
        }
        let other_side = match self.from {
            Peer::Client => {
                matches!(kind, kind::CONNACK | kind::SUBACK | kind::UNSUBACK | kind::PINGRESP)
            }
            Peer::Server => {
                matches!(kind, kind::CONNECT | kind::SUBSCRIBE | kind::UNSUBSCRIBE | kind::PINGREQ)
                    || kind == kind::DISCONNECT && version != Some(Version::V5)
            }
        };
        if other_side {
            return Err(Flaw::OtherSide(kind));
        }
        if self.begun && matches!(kind, kind::CONNECT | kind::CONNACK) {
            return Err(Flaw::ConnectAgain);
        }
        let wanted = kind::flags(kind);
        // 3.1 repeats these three with DUP.
        let ignored = if wanted != 0 && version == Some(Version::V31) { 0b1000 } else { 0 };
        if flags & !ignored == wanted { Ok(()) } else { Err(Flaw::FixedHeaderFlags(flags)) }
    }

    #[cold]
    fn decode_connect<'a>(&mut self, header: Header, input: &'a [u8]) -> Result<Decoded<'a>, Flaw> {
        let len = header.bytes + header.remaining;
        let Some(body) = input.get(header.bytes..len) else {
            return Ok(Decoded::Incomplete { needed: len });
        };
        let connect = Connect::read(body).map_err(|(flaw, version)| {
            self.version = version;
            flaw
        })?;
        self.version = Some(connect.version);
        if connect.version == Version::V5 && !header.shortest {
            return Err(Flaw::LengthNotShortest);
        }
        self.begun = true;
        Ok(Decoded::Packet { packet: Packet::Connect(connect), len })
    }

    /// A PUBLISH that is too long to be in memory at once.
    #[cold]
    fn decode_head<'a>(
        &mut self,
        header: Header,
        input: &'a [u8],
        version: Version,
        limits: &DecodeLimits,
    ) -> Result<Decoded<'a>, Flaw> {
        let known = &input[header.bytes..input.len().min(header.bytes + header.remaining)];
        let head_max = limits.whole_bytes_max.saturating_sub(header.bytes);
        let (head, whole) = match Publish::head(header.flags, known, header.remaining, head_max, version)? {
            Head::Needs(bytes) => (bytes, false),
            Head::Is(bytes) => (bytes, true),
        };
        let len = header.bytes + head;
        if !whole || input.len() < len {
            return Ok(Decoded::Incomplete { needed: len });
        }
        let publish = Publish::read(header.flags, &known[..head], version, self.from)?;
        let payload_bytes = header.remaining - head;
        self.payload_left = payload_bytes as u32;
        Ok(Decoded::Head { publish, payload_bytes, len })
    }

    fn chunk<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let len = input.len().min(self.payload_left as usize);
        if len == 0 {
            return Decoded::Incomplete { needed: 1 };
        }
        self.payload_left -= len as u32;
        Decoded::Chunk { bytes: &input[..len], last: self.payload_left == 0, len }
    }

    #[inline]
    fn packet<'a>(&mut self, header: Header, body: &'a [u8], version: Version) -> Result<Packet<'a>, Flaw> {
        let from = self.from;
        let ack = |carrier| Ack::read(body, version, carrier);
        Ok(match header.kind {
            kind::PUBLISH => Packet::Publish(Publish::read(header.flags, body, version, from)?),
            kind::PUBACK => Packet::Puback(ack(Carrier::RECEIVED)?),
            kind::PUBREC => Packet::Pubrec(ack(Carrier::RECEIVED)?),
            kind::PUBREL => Packet::Pubrel(ack(Carrier::RELEASED)?),
            kind::PUBCOMP => Packet::Pubcomp(ack(Carrier::RELEASED)?),
            kind::SUBSCRIBE => Packet::Subscribe(Subscribe::read(body, version)?),
            kind::SUBACK => Packet::Suback(Suback::read(body, version)?),
            kind::UNSUBSCRIBE => Packet::Unsubscribe(Unsubscribe::read(body, version)?),
            kind::UNSUBACK => Packet::Unsuback(Unsuback::read(body, version)?),
            kind::DISCONNECT => Packet::Disconnect(Disconnect::read(body, version, from)?),
            kind::AUTH => Packet::Auth(Auth::read(body, from)?),
            kind::CONNACK => {
                let connack = Connack::read(body, version)?;
                self.begun = true;
                Packet::Connack(connack)
            }
            kind::PINGREQ | kind::PINGRESP => {
                Reader(body).end()?;
                if header.kind == kind::PINGREQ { Packet::Pingreq } else { Packet::Pingresp }
            }
            other => unreachable!("types that may not stand here were refused: {other}"),
        })
    }
}

/// Length of the packet at the start of the input; `None` until its length field is complete.
#[inline]
#[must_use]
pub fn packet_bytes(input: &[u8]) -> Option<usize> {
    let Short { number, bytes, .. } = short(input.get(1..)?).ok()??;
    Some(1 + bytes + number as usize)
}
