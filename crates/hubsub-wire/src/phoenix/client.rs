//! The client side, for tests and load: encoding of pushes, decoding of server messages.

use super::decode::{DecodeLimits, fields, kind, members, once, ref_of};
use super::encode::{EncodeError, ref_text, write_array, write_binary, write_object};
use super::error::Flaw;
use super::json::Reader;
use super::message::{Message, Payload, Push, Reply, Status, Version, word};
use crate::websocket::Kind;
use std::borrow::Cow;

/// Appends a client's push; returns its WebSocket message kind.
///
/// # Errors
/// A field of a binary message is too long; nothing is appended.
pub fn write_push(out: &mut Vec<u8>, version: Version, push: &Push<'_>) -> Result<Kind, EncodeError> {
    match (version, push.payload) {
        (Version::V1, _) => write_object(out, push),
        (Version::V2, Payload::Json(_)) => write_array(out, push),
        (Version::V2, Payload::Binary(data)) => {
            let refs = [ref_text(&push.join_ref), ref_text(&push.reference)];
            return write_binary(out, kind::PUSH, [refs[0], refs[1], &*push.topic, &*push.event], data);
        }
    }
    Ok(Kind::Text)
}

impl<'a> Message<'a> {
    /// Decodes a server's text message.
    ///
    /// # Errors
    /// The message is invalid or too long.
    pub fn read_text(version: Version, text: &'a str, limits: &DecodeLimits) -> Result<Message<'a>, Flaw> {
        let push = Push::read_text(version, text, limits)?;
        match push.payload {
            Payload::Json(payload) if push.event == word::REPLY => reply(push, payload),
            _ => Ok(Message::Push(push)),
        }
    }

    /// Decodes a server's binary message.
    ///
    /// # Errors
    /// As for [`read_text`](Message::read_text).
    pub fn read_binary(
        version: Version,
        bytes: &'a [u8],
        limits: &DecodeLimits,
    ) -> Result<Message<'a>, Flaw> {
        if version == Version::V1 {
            return Err(Flaw::BinaryInV1);
        }
        let event = |join_ref, topic, event, data| {
            let (topic, event) = (Cow::Borrowed(topic), Cow::Borrowed(event));
            let push = Push { join_ref, reference: None, topic, event, payload: Payload::Binary(data) };
            push.checked(limits).map(Message::Push)
        };
        match bytes.first() {
            None => Err(Flaw::BinaryShort),
            Some(&kind::PUSH) => {
                let ([join_ref, topic, of], data) = fields(bytes)?;
                event(ref_of(join_ref)?, topic, of, data)
            }
            Some(&kind::BROADCAST) => {
                let ([topic, of], data) = fields(bytes)?;
                event(None, topic, of, data)
            }
            Some(&kind::REPLY) => {
                let ([join_ref, reference, topic, status], data) = fields(bytes)?;
                Ok(Message::Reply(Reply {
                    join_ref: ref_of(join_ref)?,
                    reference: ref_of(reference)?,
                    topic: Cow::Borrowed(topic),
                    status: Status::of(status)?,
                    response: Payload::Binary(data),
                }))
            }
            Some(&other) => Err(Flaw::BinaryKind(other)),
        }
    }
}

fn reply<'a>(push: Push<'a>, payload: &'a str) -> Result<Message<'a>, Flaw> {
    let mut reader = Reader::new(payload);
    let (mut status, mut response) = (None, None);
    if reader.peek() != Some(b'{') {
        return Err(Flaw::ReplyForm);
    }
    members(&mut reader, |name, reader| match name {
        "status" if reader.peek() == Some(b'"') => once(&mut status, "status", Status::of(&reader.text()?)?),
        "response" => once(&mut response, "response", Payload::Json(reader.value()?)),
        _ => reader.value().map(drop),
    })?;
    Ok(Message::Reply(Reply {
        join_ref: push.join_ref,
        reference: push.reference,
        topic: push.topic,
        status: status.ok_or(Flaw::ReplyForm)?,
        response: response.ok_or(Flaw::ReplyForm)?,
    }))
}
