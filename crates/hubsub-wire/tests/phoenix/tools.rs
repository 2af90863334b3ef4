//! Hand-written messages, and helpers to decode them.

use hubsub_wire::phoenix::*;
use hubsub_wire::websocket::Kind;
use std::borrow::Cow;

pub use Version::{V1, V2};

/// Above all topics of the tests.
pub const WIDE: DecodeLimits = DecodeLimits { topic_bytes_max: 65_535 };

pub fn read(version: Version, text: &str) -> Result<Push<'_>, Flaw> {
    Push::read_text(version, text, &WIDE)
}

pub fn flaw(version: Version, text: &str) -> Flaw {
    match read(version, text) {
        Err(flaw) => flaw,
        Ok(push) => panic!("taken: {push:?}"),
    }
}

pub fn reference(text: &str) -> Option<Ref<'_>> {
    Some(Ref::new(text).expect("short"))
}

pub fn push<'a>(
    refs: [Option<Ref<'a>>; 2],
    topic: &'a str,
    event: &'a str,
    payload: Payload<'a>,
) -> Push<'a> {
    let [join_ref, reference] = refs;
    Push { join_ref, reference, topic: Cow::Borrowed(topic), event: Cow::Borrowed(event), payload }
}

/// Encodes a server message that is text.
pub fn said(version: Version, message: &Message<'_>) -> String {
    let mut out = Vec::new();
    assert_eq!(message.write(version, &mut out), Ok(Kind::Text));
    String::from_utf8(out).expect("a text")
}

/// Appends a copy of a broadcast with a subscriber's own join_ref: the other form that clients accept.
pub fn copy(encoded: &Encoded, version: Version, arena: &[u8], join_ref: &Ref<'_>, out: &mut Vec<u8>) {
    let (shared, own) = (&arena[encoded.start..encoded.end], join_ref.as_str());
    match (encoded.kind, version) {
        (_, Version::V1) => out.extend_from_slice(shared),
        (Kind::Text, Version::V2) => {
            out.push(b'[');
            write_text(out, own);
            out.extend_from_slice(&shared["[null".len()..]);
        }
        (Kind::Binary, Version::V2) => {
            out.extend_from_slice(&[0, own.len() as u8, shared[1], shared[2]]);
            out.extend_from_slice(own.as_bytes());
            out.extend_from_slice(&shared[3..]);
        }
    }
}
