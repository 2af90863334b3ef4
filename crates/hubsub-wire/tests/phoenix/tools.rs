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
