//! Messages to all subscribers of a topic. They are encoded once per version and shared unchanged, since
//! clients accept a message without a join_ref for their own. A subscriber that needs its own join_ref gets a
//! copy with it in front.

use super::decode::kind;
use super::encode::{payload_bytes, write_array, write_binary, write_object};
use super::json::text_bytes;
use super::message::{FIELD_BYTES_MAX, Payload, Push, Ref, Version, ref_bytes, write_ref};
use crate::websocket::Kind;
use std::borrow::Cow;

/// Start of a broadcast of version 2.
const TEXT_HEAD: &[u8] = b"[null";

/// An event for all subscribers of its topic.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Broadcast<'a> {
    /// The topic that the subscribers joined.
    pub topic: &'a str,
    /// Must not be reserved, see [`is_reserved`](super::is_reserved).
    pub event: &'a str,
    pub payload: Payload<'a>,
    /// Used as ref, for clients that requested the positions of records. Binary messages have no field for
    /// it, so bytes are then sent as base64.
    pub position: Option<&'a str>,
}

/// A broadcast in a vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Encoded {
    /// WebSocket message kind, the same for all subscribers.
    pub kind: Kind,
    /// Index of its first byte in the vector.
    pub start: usize,
    /// Index after its last byte.
    pub end: usize,
    version: Version,
}

impl Broadcast<'_> {
    /// WebSocket message kind. Bytes are sent as base64 in an object if the version has no binary messages or
    /// a field does not fit into one.
    #[must_use]
    pub fn kind(&self, version: Version) -> Kind {
        let fits = self.topic.len() <= FIELD_BYTES_MAX && self.event.len() <= FIELD_BYTES_MAX;
        match self.payload {
            Payload::Binary(_) if version == Version::V2 && fits && self.position.is_none() => Kind::Binary,
            _ => Kind::Text,
        }
    }

    /// Bytes that [`write`](Broadcast::write) appends, for the frame header before it.
    #[must_use]
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

    /// Appends it, without a join_ref.
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
        Encoded { kind, start, end: out.len(), version }
    }
}

impl Encoded {
    /// Bytes that [`copy`](Encoded::copy) appends, for the frame header before it.
    #[must_use]
    #[inline]
    pub fn copied_bytes(&self, join_ref: &Ref<'_>) -> usize {
        let bytes = self.end - self.start;
        match (self.kind, self.version) {
            (_, Version::V1) => bytes,
            (Kind::Text, Version::V2) => bytes - "null".len() + ref_bytes(Some(join_ref)),
            (Kind::Binary, Version::V2) => bytes + 1 + join_ref.as_str().len(),
        }
    }

    /// Appends a copy with this join_ref to `out` from `arena`, which contains the broadcast.
    ///
    /// # Panics
    /// It is in another vector.
    #[inline]
    pub fn copy(&self, arena: &[u8], join_ref: &Ref<'_>, out: &mut Vec<u8>) {
        let shared = &arena[self.start..self.end];
        match (self.kind, self.version) {
            (_, Version::V1) => out.extend_from_slice(shared),
            (Kind::Text, Version::V2) => {
                out.push(b'[');
                write_ref(out, Some(join_ref));
                out.extend_from_slice(&shared[TEXT_HEAD.len()..]);
            }
            (Kind::Binary, Version::V2) => {
                let own = join_ref.as_str();
                out.extend_from_slice(&[kind::PUSH, own.len() as u8, shared[1], shared[2]]);
                out.extend_from_slice(own.as_bytes());
                out.extend_from_slice(&shared[3..]);
            }
        }
    }
}
