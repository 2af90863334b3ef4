//! Messages of both sides, and their common types.

use super::error::Flaw;
use super::json::{self, Reader};
use std::borrow::Cow;

/// Longest ref and event, and longest topic in a binary message, in bytes: their length has one byte there.
pub const FIELD_BYTES_MAX: usize = 255;

/// Serializer version, by the `vsn` of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Version {
    V1,
    V2,
}

impl Version {
    /// Parses the requested version, `1.0.N` or `2.0.N`, as `~> 1.0.0` and `~> 2.0.0` match them.
    #[must_use]
    pub fn of(vsn: &str) -> Option<Version> {
        let (version, patch) = match vsn.split_at_checked(4)? {
            ("1.0.", patch) => (Version::V1, patch),
            ("2.0.", patch) => (Version::V2, patch),
            _ => return None,
        };
        let plain = !patch.is_empty() && patch.bytes().all(|byte| byte.is_ascii_digit());
        (plain && (patch == "0" || !patch.starts_with('0'))).then_some(version)
    }
}

/// Message reference chosen by a client, to recognise the reply; usually a text of digits.
#[derive(Clone, Debug)]
pub struct Ref<'a> {
    text: Cow<'a, str>,
    /// Whether it was received as a number, and is returned as one.
    is_number: bool,
}

impl<'a> Ref<'a> {
    /// A text, checked for its length.
    ///
    /// # Errors
    /// It is longer than [`FIELD_BYTES_MAX`].
    pub fn new(text: impl Into<Cow<'a, str>>) -> Result<Ref<'a>, Flaw> {
        Ref { text: text.into(), is_number: false }.checked()
    }

    fn checked(self) -> Result<Ref<'a>, Flaw> {
        match self.text.len() {
            0..=FIELD_BYTES_MAX => Ok(self),
            bytes => Err(Flaw::RefTooLong(bytes, FIELD_BYTES_MAX)),
        }
    }

    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Option<Ref<'a>>, Flaw> {
        match reader.peek() {
            Some(b'"') => Ref::new(reader.text()?).map(Some),
            Some(b'-' | b'0'..=b'9') => {
                let number = reader.value()?;
                if number.contains(['.', 'e', 'E']) {
                    return Err(Flaw::RefKind);
                }
                Ref { text: Cow::Borrowed(number), is_number: true }.checked().map(Some)
            }
            _ if reader.value()? == "null" => Ok(None),
            _ => Err(Flaw::RefKind),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }

    #[must_use]
    pub fn into_owned(self) -> Ref<'static> {
        Ref { text: Cow::Owned(self.text.into_owned()), is_number: self.is_number }
    }

    fn write(&self, out: &mut Vec<u8>) {
        if self.is_number {
            out.extend_from_slice(self.text.as_bytes())
        } else {
            json::write_text(out, &self.text)
        }
    }
}

/// Binary messages have only texts, so a number equals the text of its digits.
impl PartialEq for Ref<'_> {
    fn eq(&self, other: &Ref<'_>) -> bool {
        self.text == other.text
    }
}

impl Eq for Ref<'_> {}

pub(super) fn write_ref(out: &mut Vec<u8>, reference: Option<&Ref<'_>>) {
    match reference {
        Some(reference) => reference.write(out),
        None => out.extend_from_slice(b"null"),
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// One encoded JSON value.
    Json(&'a str),
    Binary(&'a [u8]),
}

impl<'a> Payload<'a> {
    pub const EMPTY: Payload<'static> = Payload::Json("{}");

    /// The payload for other protocols.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        match self {
            Payload::Json(text) => text.as_bytes(),
            Payload::Binary(bytes) => bytes,
        }
    }
}

/// An event of a topic: all messages of clients, and most of servers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Push<'a> {
    /// The ref of its join. Usually `None` in version 1; `None` from a server means a broadcast.
    pub join_ref: Option<Ref<'a>>,
    /// The ref that a reply repeats; servers send one only in `phx_close` and `phx_error`.
    pub reference: Option<Ref<'a>>,
    /// Length is limited by [`DecodeLimits`](super::DecodeLimits).
    pub topic: Cow<'a, str>,
    /// At most [`FIELD_BYTES_MAX`] bytes.
    pub event: Cow<'a, str>,
    pub payload: Payload<'a>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    Ok,
    Error,
}

impl Status {
    #[must_use]
    pub fn as_str(self) -> &'static str {
        if self == Status::Ok { "ok" } else { "error" }
    }

    pub(super) fn of(text: &str) -> Result<Status, Flaw> {
        [Status::Ok, Status::Error].into_iter().find(|of| of.as_str() == text).ok_or(Flaw::ReplyStatus)
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply<'a> {
    pub join_ref: Option<Ref<'a>>,
    pub reference: Option<Ref<'a>>,
    pub topic: Cow<'a, str>,
    pub status: Status,
    /// For an error, an object with a `reason`.
    pub response: Payload<'a>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    Push(Push<'a>),
    Reply(Reply<'a>),
}

/// Events and the topic that the protocol defines.
pub mod word {
    /// Topic for messages about the connection.
    pub const PHOENIX: &str = "phoenix";
    pub const HEARTBEAT: &str = "heartbeat";
    pub const JOIN: &str = "phx_join";
    pub const LEAVE: &str = "phx_leave";
    pub const REPLY: &str = "phx_reply";
    pub const CLOSE: &str = "phx_close";
    /// A channel failed; the client joins again.
    pub const ERROR: &str = "phx_error";
    /// Records of a topic will not reach the client; the payload lists them.
    pub const GAP: &str = "phx_gap";
    pub const PRESENCE_STATE: &str = "presence_state";
    pub const PRESENCE_DIFF: &str = "presence_diff";
    /// Number of members, if not all are listed.
    pub const PRESENCE_COUNT: &str = "presence_count";
    pub const PRESENCE_UPDATE: &str = "presence_update";
    /// Clients push this to publish the event in its payload.
    pub const PUBLISH: &str = "publish";
    /// The event of a record that names none.
    pub const MESSAGE: &str = "message";
}

/// Whether only the protocol itself may send an event; clients may not publish it.
#[must_use]
pub fn is_reserved(event: &str) -> bool {
    let of_presence =
        [word::PRESENCE_STATE, word::PRESENCE_DIFF, word::PRESENCE_COUNT, word::PRESENCE_UPDATE];
    event.starts_with("phx_") || of_presence.contains(&event)
}
