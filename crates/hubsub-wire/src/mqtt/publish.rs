//! PUBLISH (section 3.3 of each version).
//!
//! ```text
//! | 3, DUP, QoS, RETAIN | remaining length | topic | id (QoS 1, 2) | properties (5.0) | payload |
//! ```
//!
//! A message is encoded once for all subscribers with the same version, QoS, retain flag and properties. Then
//! only the packet id, whose place [`Encoded`] records, and DUP of a redelivery differ. Its head may also be
//! encoded alone, so that variants share a payload or the payload follows in pieces.

use super::ack::packet_id;
use super::error::{EncodeError, Flaw};
use super::field::{Field, PacketId, Reader, Short, remaining_length_checked, short, short_len, write_short};
use super::packet::kind;
use super::property::{Place, Properties, Property};
use super::topic::topic_name;
use super::version::{Peer, Version};
use hubsub_types::Qos;

const DUP: u8 = 0x08;
const RETAIN: u8 = 0x01;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Publish<'a> {
    /// Whether it was sent before; only with QoS 1 and 2.
    pub dup: bool,
    pub qos: Qos,
    /// To a server: retain it; to a client: it was retained.
    pub retain: bool,
    /// Without wildcards; empty only with an alias.
    pub topic: &'a str,
    /// Only with QoS 1 and 2. When encoding, `None` reserves space for [`Encoded::patch`].
    pub id: Option<PacketId>,
    pub properties: Properties<'a>,
    pub payload: &'a [u8],
}

impl<'a> Publish<'a> {
    /// Checks the flags of a fixed header, before more is received.
    #[inline]
    pub(super) fn check_flags(flags: u8) -> Result<(), Flaw> {
        match Qos::from_bits(flags >> 1 & 3) {
            None => Err(Flaw::QosThree),
            Some(Qos::AtMostOnce) if flags & DUP != 0 => Err(Flaw::RepeatedQosZero),
            Some(_) => Ok(()),
        }
    }

    /// Decodes a body whose flags were checked; everything after the head is payload.
    #[inline]
    pub(super) fn read(flags: u8, body: &'a [u8], version: Version, from: Peer) -> Result<Publish<'a>, Flaw> {
        let qos = Qos::from_bits(flags >> 1 & 3).ok_or(Flaw::QosThree)?;
        let mut left = Reader(body);
        let name: &[u8] = Field::read(&mut left)?;
        let topic = if name.is_empty() { "" } else { topic_name(name)? };
        let id = if qos == Qos::AtMostOnce { None } else { Some(packet_id(&mut left)?) };
        let place = if from == Peer::Client { Place::CLIENT_PUBLISH } else { Place::SERVER_PUBLISH };
        let properties = Properties::read_of(version, &mut left, place)?;
        let alias = |property| matches!(property, Property::TopicAlias(_));
        if topic.is_empty() && !properties.iter().any(alias) {
            return Err(Flaw::TopicEmpty);
        }
        let (dup, retain) = (flags & DUP != 0, flags & RETAIN != 0);
        Ok(Publish { dup, qos, retain, topic, id, properties, payload: left.rest() })
    }

    /// Length of the head of a body of `remaining` bytes, of which `body` is the beginning.
    pub(super) fn head(
        flags: u8,
        body: &[u8],
        remaining: usize,
        head_max: usize,
        version: Version,
    ) -> Result<Head, Flaw> {
        let within = |end: usize| match end {
            _ if end > remaining => Err(Flaw::Short),
            _ if end > head_max => Err(Flaw::HeadTooLarge(head_max)),
            _ => Ok(end),
        };
        let Some(length) = body.first_chunk() else {
            return Ok(Head::Needs(2));
        };
        let id = if flags >> 1 & 3 == 0 { 0 } else { 2 };
        let end = within(2 + usize::from(u16::from_be_bytes(*length)) + id)?;
        if version < Version::V5 {
            return Ok(Head::Is(end));
        }
        match short(body.get(end..).unwrap_or_default())? {
            Some(Short { number, bytes, .. }) => within(end + bytes + number as usize).map(Head::Is),
            None if body.len().max(end) < remaining => Ok(Head::Needs(body.len().max(end) + 1)),
            None => Err(Flaw::Short),
        }
    }
}

/// Length of the head of a PUBLISH.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Head {
    /// This many bytes of the body must be received to know more.
    Needs(usize),
    /// The length in bytes.
    Is(usize),
}

/// A PUBLISH in a vector, and the place of the parts that differ between subscribers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoded {
    pub start: usize,
    /// Index after its last byte, or after its head if that is alone.
    pub end: usize,
    /// Index of the first of the two bytes of its id; `None` for QoS 0.
    pub id_at: Option<usize>,
}

impl Encoded {
    /// Sets its id and DUP in place.
    ///
    /// # Panics
    /// It has QoS 0, or is in another vector.
    #[inline]
    pub fn patch(&self, arena: &mut [u8], id: PacketId, dup: bool) {
        let id_at = self.id_at.expect("a message of QoS 1 or 2");
        let first = &mut arena[self.start];
        *first = *first & !DUP | if dup { DUP } else { 0 };
        arena[id_at..id_at + 2].copy_from_slice(&id.get().to_be_bytes());
    }
}

#[inline]
fn topic_len(topic: &[u8]) -> Result<u16, EncodeError> {
    u16::try_from(topic.len()).map_err(|_| EncodeError::FieldTooLong { bytes: topic.len() })
}

#[inline]
fn properties_len(properties: &[u8], version: Version) -> usize {
    if version == Version::V5 { short_len(properties.len()) + properties.len() } else { 0 }
}

/// Appends a message. Properties are omitted before 5.0.
///
/// # Errors
/// The message would be longer than `packet_bytes_max` or than the protocol allows, or its topic is; nothing
/// is appended.
#[inline]
pub fn write_publish(
    out: &mut Vec<u8>,
    version: Version,
    publish: &Publish<'_>,
    packet_bytes_max: usize,
) -> Result<Encoded, EncodeError> {
    let head = write_publish_head(out, version, publish, publish.payload.len(), packet_bytes_max)?;
    out.extend_from_slice(publish.payload);
    Ok(Encoded { end: out.len(), ..head })
}

/// Appends a QoS 0 message to a valid topic; returns start and end: the fast path of [`write_publish`].
///
/// # Errors
/// The message would be longer than the protocol allows, or its topic is; nothing is appended.
#[inline]
pub fn write_plain(
    out: &mut Vec<u8>,
    version: Version,
    topic: &[u8],
    properties: Properties<'_>,
    payload: &[u8],
) -> Result<(usize, usize), EncodeError> {
    let topic_len = topic_len(topic)?;
    let properties = properties.as_bytes();
    let properties_len = properties_len(properties, version);
    let length = (2 + topic.len() + properties_len).saturating_add(payload.len());
    let remaining = remaining_length_checked(length, usize::MAX)?;
    let start = out.len();
    out.reserve(5 + length);
    out.push(kind::PUBLISH << 4);
    write_short(out, remaining);
    out.extend_from_slice(&topic_len.to_be_bytes());
    out.extend_from_slice(topic);
    if version == Version::V5 {
        write_short(out, properties.len() as u32);
        out.extend_from_slice(properties);
    }
    out.extend_from_slice(payload);
    Ok((start, out.len()))
}

/// Appends a message without its payload, which has `payload_bytes` bytes and is appended by the caller.
///
/// # Errors
/// As for [`write_publish`].
#[inline]
pub fn write_publish_head(
    out: &mut Vec<u8>,
    version: Version,
    publish: &Publish<'_>,
    payload_bytes: usize,
    packet_bytes_max: usize,
) -> Result<Encoded, EncodeError> {
    let topic = publish.topic.as_bytes();
    let topic_len = topic_len(topic)?;
    let id_len = if publish.qos == Qos::AtMostOnce { 0 } else { 2 };
    let properties = publish.properties.as_bytes();
    let properties_len = properties_len(properties, version);
    let head = 2 + topic.len() + id_len + properties_len;
    let remaining = remaining_length_checked(head.saturating_add(payload_bytes), packet_bytes_max)?;
    let start = out.len();
    out.reserve(5 + head + publish.payload.len());
    let flags =
        if publish.dup && id_len > 0 { DUP } else { 0 } | (publish.qos as u8) << 1 | u8::from(publish.retain);
    out.push(kind::PUBLISH << 4 | flags);
    write_short(out, remaining);
    out.extend_from_slice(&topic_len.to_be_bytes());
    out.extend_from_slice(topic);
    let id_at = (id_len > 0).then_some(out.len());
    if id_len > 0 {
        out.extend_from_slice(&publish.id.map_or(0, PacketId::get).to_be_bytes());
    }
    if version == Version::V5 {
        write_short(out, properties.len() as u32);
        out.extend_from_slice(properties);
    }
    Ok(Encoded { start, end: out.len(), id_at })
}
