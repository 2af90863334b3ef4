//! Encoding of a server's messages. Broadcasts are optimised further, see `broadcast.rs`.
//!
//! ```text
//! V2 binary  | 0 | join_ref, topic, event: a length each          | their bytes | payload |   a push
//!            | 1 | join_ref, ref, topic, status: a length each    | their bytes | payload |   a reply
//!            | 2 | topic, event: a length each                    | their bytes | payload |   a broadcast
//! ```

use super::decode::kind;
use super::json::write_text;
use super::message::{FIELD_BYTES_MAX, Message, Payload, Push, Ref, Reply, Status, Version, word, write_ref};
use crate::websocket::{Kind, base64};

/// Why a message is not sent; the output is unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EncodeError {
    /// A topic or an event.
    #[error("field of a binary message too long: {bytes} bytes, at most {FIELD_BYTES_MAX}")]
    FieldTooLong { bytes: usize },
}

impl Message<'_> {
    /// Appends it, and returns its WebSocket message kind. Version 1 has base64 for bytes, and no join_ref.
    ///
    /// # Errors
    /// A field of a binary message is too long; nothing is appended.
    pub fn write(&self, version: Version, out: &mut Vec<u8>) -> Result<Kind, EncodeError> {
        match (self, version) {
            (Message::Push(push), Version::V1) => write_object(out, push),
            (Message::Push(push), Version::V2) => match push.payload {
                Payload::Json(_) => write_array(out, push),
                Payload::Binary(data) => return write_binary_push(out, push, data),
            },
            (Message::Reply(reply), Version::V2) if matches!(reply.response, Payload::Binary(_)) => {
                return write_binary_reply(out, reply);
            }
            (Message::Reply(reply), version) => {
                let (join_ref, reference) = (reply.join_ref.as_ref(), reply.reference.as_ref());
                write_reply_head(out, version, join_ref, reference, &reply.topic);
                write_reply_tail(out, version, reply.status, reply.response);
            }
        }
        Ok(Kind::Text)
    }
}

pub(super) fn write_array(out: &mut Vec<u8>, push: &Push<'_>) {
    write_array_head(out, push.join_ref.as_ref(), push.reference.as_ref(), &push.topic);
    write_text(out, &push.event);
    out.push(b',');
    write_payload(out, push.payload);
    out.push(b']');
}

fn write_array_head(out: &mut Vec<u8>, join_ref: Option<&Ref<'_>>, reference: Option<&Ref<'_>>, topic: &str) {
    out.push(b'[');
    write_ref(out, join_ref);
    out.push(b',');
    write_ref(out, reference);
    out.push(b',');
    write_text(out, topic);
    out.push(b',');
}

pub(super) fn write_object(out: &mut Vec<u8>, push: &Push<'_>) {
    out.extend_from_slice(b"{\"topic\":");
    write_text(out, &push.topic);
    out.extend_from_slice(b",\"event\":");
    write_text(out, &push.event);
    out.extend_from_slice(b",\"payload\":");
    write_payload(out, push.payload);
    out.extend_from_slice(b",\"ref\":");
    write_ref(out, push.reference.as_ref());
    out.push(b'}');
}

pub(super) fn write_reply_head(
    out: &mut Vec<u8>,
    version: Version,
    join_ref: Option<&Ref<'_>>,
    reference: Option<&Ref<'_>>,
    topic: &str,
) {
    match version {
        Version::V1 => {
            out.extend_from_slice(b"{\"topic\":");
            write_text(out, topic);
            out.extend_from_slice(b",\"event\":");
            write_text(out, word::REPLY);
            out.extend_from_slice(b",\"ref\":");
            write_ref(out, reference);
            out.extend_from_slice(b",\"payload\":");
        }
        Version::V2 => {
            write_array_head(out, join_ref, reference, topic);
            write_text(out, word::REPLY);
            out.push(b',');
        }
    }
}

/// Encodes the rest of a reply, from its status on.
pub(super) fn write_reply_tail(out: &mut Vec<u8>, version: Version, status: Status, response: Payload<'_>) {
    out.extend_from_slice(b"{\"status\":");
    write_text(out, status.as_str());
    out.extend_from_slice(b",\"response\":");
    write_payload(out, response);
    out.extend_from_slice(if version == Version::V1 { b"}}" } else { b"}]" });
}

const BASE64_HEAD: &[u8] = b"{\"base64\":\"";
const BASE64_TAIL: &[u8] = b"\"}";

pub(crate) fn write_payload(out: &mut Vec<u8>, payload: Payload<'_>) {
    match payload {
        Payload::Json(text) => out.extend_from_slice(text.as_bytes()),
        Payload::Binary(bytes) => {
            out.extend_from_slice(BASE64_HEAD);
            let at = out.len();
            out.resize(at + base64_bytes(bytes), 0);
            base64(bytes, &mut out[at..]);
            out.extend_from_slice(BASE64_TAIL);
        }
    }
}

/// Bytes that [`write_payload`] appends.
pub(super) fn payload_bytes(payload: Payload<'_>) -> usize {
    match payload {
        Payload::Json(text) => text.len(),
        Payload::Binary(bytes) => BASE64_HEAD.len() + base64_bytes(bytes) + BASE64_TAIL.len(),
    }
}

fn base64_bytes(bytes: &[u8]) -> usize {
    bytes.len().div_ceil(3) * 4
}

/// A server's push has no ref; one without a join_ref is a broadcast.
fn write_binary_push(out: &mut Vec<u8>, push: &Push<'_>, data: &[u8]) -> Result<Kind, EncodeError> {
    match &push.join_ref {
        Some(join_ref) => write_binary(out, kind::PUSH, [join_ref.as_str(), &push.topic, &push.event], data),
        None => write_binary(out, kind::BROADCAST, [&push.topic, &push.event], data),
    }
}

pub(super) fn ref_text<'a>(reference: &'a Option<Ref<'_>>) -> &'a str {
    reference.as_ref().map_or("", Ref::as_str)
}

fn write_binary_reply(out: &mut Vec<u8>, reply: &Reply<'_>) -> Result<Kind, EncodeError> {
    let (join_ref, reference) = (ref_text(&reply.join_ref), ref_text(&reply.reference));
    let fields = [join_ref, reference, &*reply.topic, reply.status.as_str()];
    write_binary(out, kind::REPLY, fields, reply.response.as_bytes())
}

pub(super) fn write_binary<const N: usize>(
    out: &mut Vec<u8>,
    kind: u8,
    fields: [&str; N],
    data: &[u8],
) -> Result<Kind, EncodeError> {
    if let Some(long) = fields.iter().find(|field| field.len() > FIELD_BYTES_MAX) {
        return Err(EncodeError::FieldTooLong { bytes: long.len() });
    }
    out.push(kind);
    out.extend(fields.iter().map(|field| field.len() as u8));
    fields.iter().for_each(|field| out.extend_from_slice(field.as_bytes()));
    out.extend_from_slice(data);
    Ok(Kind::Binary)
}
