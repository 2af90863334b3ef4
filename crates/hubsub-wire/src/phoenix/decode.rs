//! Decoding of messages. Each is complete: a WebSocket message, or a line of a long poll.
//!
//! ```text
//! V2 text    [join_ref, ref, topic, event, payload]
//! V2 binary  | 0 | join_ref, ref, topic, event: a length each | their bytes | payload |   of a client
//! V1 text    {"topic": …, "event": …, "payload": …, "ref": …}
//! ```

use super::error::Flaw;
use super::json::Reader;
use super::message::{FIELD_BYTES_MAX, Payload, Push, Ref, Version};
use std::borrow::Cow;

pub(super) mod kind {
    pub const PUSH: u8 = 0;
    pub const REPLY: u8 = 1;
    pub const BROADCAST: u8 = 2;
}

/// Length limits of the input. Refs and events have [`FIELD_BYTES_MAX`], the depth of payloads
/// [`DEPTH_MAX`](super::DEPTH_MAX), and messages the WebSocket's limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeLimits {
    pub topic_bytes_max: usize,
}

impl<'a> Push<'a> {
    /// Decodes a client's text message.
    ///
    /// # Errors
    /// The message is invalid or too long; the connection must be closed.
    pub fn read_text(version: Version, text: &'a str, limits: &DecodeLimits) -> Result<Push<'a>, Flaw> {
        let mut reader = Reader::new(text);
        let push = match version {
            Version::V1 => read_object(&mut reader)?,
            Version::V2 => read_array(&mut reader)?,
        };
        reader.end()?;
        push.checked(limits)
    }

    /// Decodes a client's binary message.
    ///
    /// # Errors
    /// As for [`read_text`](Push::read_text).
    pub fn read_binary(version: Version, bytes: &'a [u8], limits: &DecodeLimits) -> Result<Push<'a>, Flaw> {
        if version == Version::V1 {
            return Err(Flaw::BinaryInV1);
        }
        match bytes.first() {
            None => return Err(Flaw::BinaryShort),
            Some(&kind::PUSH) => {}
            Some(&other) => return Err(Flaw::BinaryKind(other)),
        }
        let ([join_ref, reference, topic, event], data) = fields(bytes)?;
        let push = Push {
            join_ref: ref_of(join_ref)?,
            reference: ref_of(reference)?,
            topic: Cow::Borrowed(topic),
            event: Cow::Borrowed(event),
            payload: Payload::Binary(data),
        };
        push.checked(limits)
    }

    pub(super) fn checked(self, limits: &DecodeLimits) -> Result<Push<'a>, Flaw> {
        let (topic, event) = (self.topic.len(), self.event.len());
        if topic > limits.topic_bytes_max {
            return Err(Flaw::TopicTooLong(topic, limits.topic_bytes_max));
        }
        if event > FIELD_BYTES_MAX {
            return Err(Flaw::EventTooLong(event, FIELD_BYTES_MAX));
        }
        Ok(self)
    }
}

fn read_array<'a>(reader: &mut Reader<'a>) -> Result<Push<'a>, Flaw> {
    if !reader.take(b'[') {
        // Input that is not JSON at all gets that error.
        return Err(reader.value().err().unwrap_or(Flaw::NotEnvelope));
    }
    let comma = |reader: &mut Reader<'a>| match reader.peek() {
        Some(b']') => Err(Flaw::NotEnvelope),
        _ => reader.expect(b','),
    };
    if reader.peek() == Some(b']') {
        return Err(Flaw::NotEnvelope);
    }
    let join_ref = Ref::read(reader)?;
    comma(reader)?;
    let reference = Ref::read(reader)?;
    comma(reader)?;
    let topic = read_word(reader, Flaw::NotEnvelope)?;
    comma(reader)?;
    let event = read_word(reader, Flaw::NotEnvelope)?;
    comma(reader)?;
    let payload = Payload::Json(reader.value()?);
    match reader.peek() {
        Some(b',') => Err(Flaw::NotEnvelope),
        _ => reader.expect(b']').map(|()| Push { join_ref, reference, topic, event, payload }),
    }
}

/// Decodes the object of version 1; unknown members are ignored.
fn read_object<'a>(reader: &mut Reader<'a>) -> Result<Push<'a>, Flaw> {
    if reader.peek() != Some(b'{') {
        return Err(reader.value().err().unwrap_or(Flaw::NotObject));
    }
    let (mut join_ref, mut reference, mut topic, mut event, mut payload) = (None, None, None, None, None);
    members(reader, |name, reader| match name {
        "join_ref" => once(&mut join_ref, "join_ref", Ref::read(reader)?),
        "ref" => once(&mut reference, "ref", Ref::read(reader)?),
        "topic" => once(&mut topic, "topic", read_word(reader, Flaw::NotObject)?),
        "event" => once(&mut event, "event", read_word(reader, Flaw::NotObject)?),
        "payload" => once(&mut payload, "payload", Payload::Json(reader.value()?)),
        _ => reader.value().map(drop),
    })?;
    Ok(Push {
        join_ref: join_ref.flatten(),
        reference: reference.flatten(),
        topic: topic.ok_or(Flaw::Missing("topic"))?,
        event: event.ok_or(Flaw::Missing("event"))?,
        payload: payload.ok_or(Flaw::Missing("payload"))?,
    })
}

/// Iterates over an object; `member` reads each value.
pub(super) fn members<'a>(
    reader: &mut Reader<'a>,
    mut member: impl FnMut(&str, &mut Reader<'a>) -> Result<(), Flaw>,
) -> Result<(), Flaw> {
    reader.expect(b'{')?;
    if reader.take(b'}') {
        return Ok(());
    }
    loop {
        let name = reader.name()?;
        member(&name, reader)?;
        if !reader.take(b',') {
            return reader.expect(b'}');
        }
    }
}

/// Passes the members of an object to `take`, encoded.
pub(super) fn each_member<'a>(object: &'a str, mut take: impl FnMut(&str, &'a str)) -> Result<(), Flaw> {
    members(&mut Reader::new(object), |name, reader| reader.value().map(|value| take(name, value)))
}

pub(super) fn once<T>(place: &mut Option<T>, name: &'static str, value: T) -> Result<(), Flaw> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Flaw::Repeated(name)),
    }
}

/// A topic or an event; the error `otherwise` if it is JSON of another type.
fn read_word<'a>(reader: &mut Reader<'a>, otherwise: Flaw) -> Result<Cow<'a, str>, Flaw> {
    match reader.peek() {
        Some(b'"') => reader.text(),
        _ => Err(reader.value().err().unwrap_or(otherwise)),
    }
}

/// The fields of a binary message, whose lengths follow its first byte, and the bytes after them.
pub(super) fn fields<const N: usize>(bytes: &[u8]) -> Result<([&str; N], &[u8]), Flaw> {
    let (lengths, mut rest) =
        bytes.get(1..).and_then(<[u8]>::split_first_chunk::<N>).ok_or(Flaw::BinaryShort)?;
    let mut fields = [""; N];
    for (field, &length) in fields.iter_mut().zip(lengths) {
        let (of_it, after) = rest.split_at_checked(length.into()).ok_or(Flaw::BinaryShort)?;
        *field = std::str::from_utf8(of_it).map_err(|_| Flaw::NotUtf8)?;
        rest = after;
    }
    Ok((fields, rest))
}

/// A ref of a binary message; an empty one is `None`.
pub(super) fn ref_of(field: &str) -> Result<Option<Ref<'_>>, Flaw> {
    if field.is_empty() { Ok(None) } else { Ref::new(field).map(Some) }
}
