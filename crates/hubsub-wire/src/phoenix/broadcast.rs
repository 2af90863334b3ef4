//! Messages to all subscribers of a topic. They are encoded once per version and shared unchanged, since
//! clients accept a message without a join_ref for their own.

use super::decode::kind;
use super::encode::{payload_bytes, write_array, write_binary, write_object};
use super::json::text_bytes;
use super::message::{FIELD_BYTES_MAX, Payload, Push, Ref, Version};
use crate::websocket::Kind;
use std::borrow::Cow;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broadcast<'a> {
    pub topic: &'a str,
    /// Must not be reserved, see [`is_reserved`](super::is_reserved).
    pub event: &'a str,
    pub payload: Payload<'a>,
    /// Used as ref, for clients that request positions. Binary messages have no ref: then bytes are base64.
    pub position: Option<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoded {
    /// WebSocket message kind, the same for all subscribers.
    pub kind: Kind,
    pub start: usize,
    pub end: usize,
}

impl Broadcast<'_> {
    /// WebSocket message kind. Bytes become base64 where the version or a field allows no binary message.
    pub fn kind(&self, version: Version) -> Kind {
        let fits = self.topic.len() <= FIELD_BYTES_MAX && self.event.len() <= FIELD_BYTES_MAX;
        match self.payload {
            Payload::Binary(_) if version == Version::V2 && fits && self.position.is_none() => Kind::Binary,
            _ => Kind::Text,
        }
    }

    /// Bytes that [`write`](Broadcast::write) appends, for the frame header before it.
    pub fn bytes(&self, version: Version) -> usize {
        if self.kind(version) == Kind::Binary {
            return 3 + self.topic.len() + self.event.len() + self.payload.as_bytes().len();
        }
        let around = match version {
            Version::V1 => "{\"topic\":,\"event\":,\"payload\":,\"ref\":null}".len(),
            Version::V2 => "[null,null,,,]".len(),
        };
        let position = self.position.map_or(0, |position| text_bytes(position) - "null".len());
        around + position + text_bytes(self.topic) + text_bytes(self.event) + payload_bytes(self.payload)
    }

    pub fn write(&self, version: Version, out: &mut Vec<u8>) -> Encoded {
        let (start, kind) = (out.len(), self.kind(version));
        out.reserve(self.bytes(version));
        let push = Push {
            join_ref: None,
            reference: self.position.and_then(|position| Ref::new(position).ok()),
            topic: Cow::Borrowed(self.topic),
            event: Cow::Borrowed(self.event),
            payload: self.payload,
        };
        match (kind, version) {
            (Kind::Binary, _) => {
                let fields = [self.topic, self.event];
                write_binary(out, kind::BROADCAST, fields, self.payload.as_bytes()).expect("its fields fit");
            }
            (Kind::Text, Version::V1) => write_object(out, &push),
            (Kind::Text, Version::V2) => write_array(out, &push),
        }
        Encoded { kind, start, end: out.len() }
    }
}
