//! What the two sides say, and the few words that all of it uses.

use super::error::Flaw;
use super::json::{self, Reader};
use std::borrow::Cow;

/// Bytes of a ref, of an event, and of a topic in a binary message: each has one byte for its length there.
pub const FIELD_BYTES_MAX: usize = 255;

/// How messages are written, by the `vsn` of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Version {
    /// Objects, in text only.
    V1,
    /// Arrays, and binary messages.
    V2,
}

impl Version {
    /// By what a client asks for: `1.0.N` or `2.0.N`, as `~> 1.0.0` and `~> 2.0.0` mean it.
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

/// What a client calls a message by, to know its answer; mostly a text of digits.
#[derive(Clone, Debug)]
pub struct Ref<'a> {
    text: Cow<'a, str>,
    /// Whether it came as a number, and so goes back.
    is_number: bool,
}

impl<'a> Ref<'a> {
    /// One that is a text.
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

    /// A text, a whole number, or null.
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

    /// What it says.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The same, of its own.
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

    fn bytes(&self) -> usize {
        if self.is_number { self.text.len() } else { json::text_bytes(&self.text) }
    }
}

/// Binary messages know texts only, so a number is the text of its digits.
impl PartialEq for Ref<'_> {
    fn eq(&self, other: &Ref<'_>) -> bool {
        self.text == other.text
    }
}

impl Eq for Ref<'_> {}

/// Appends a ref, or null.
pub(super) fn write_ref(out: &mut Vec<u8>, reference: Option<&Ref<'_>>) {
    match reference {
        Some(reference) => reference.write(out),
        None => out.extend_from_slice(b"null"),
    }
}

/// Bytes that [`write_ref`] appends.
pub(super) fn ref_bytes(reference: Option<&Ref<'_>>) -> usize {
    reference.map_or(4, Ref::bytes)
}

/// What a message carries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Payload<'a> {
    /// One value of JSON, as it came.
    Json(&'a str),
    /// Any bytes.
    Binary(&'a [u8]),
}

impl<'a> Payload<'a> {
    /// `{}`.
    pub const EMPTY: Payload<'static> = Payload::Json("{}");

    /// What other protocols get of it.
    #[must_use]
    pub fn as_bytes(self) -> &'a [u8] {
        match self {
            Payload::Json(text) => text.as_bytes(),
            Payload::Binary(bytes) => bytes,
        }
    }
}

/// An event of a topic: what a client sends, and most of what a server does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Push<'a> {
    /// The ref of the join that it belongs to. None in version 1, as a rule; none from a server is a broadcast.
    pub join_ref: Option<Ref<'a>>,
    /// By which a reply refers to it; servers say none but in `phx_close` and `phx_error`.
    pub reference: Option<Ref<'a>>,
    /// At most as long as [`DecodeLimits`](super::DecodeLimits) say.
    pub topic: Cow<'a, str>,
    /// At most [`FIELD_BYTES_MAX`] bytes.
    pub event: Cow<'a, str>,
    /// Any value.
    pub payload: Payload<'a>,
}

/// How a push was taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Status {
    /// It was done.
    Ok,
    /// It was refused.
    Error,
}

impl Status {
    /// As it stands in a reply.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        if self == Status::Ok { "ok" } else { "error" }
    }

    pub(super) fn of(text: &str) -> Result<Status, Flaw> {
        [Status::Ok, Status::Error].into_iter().find(|of| of.as_str() == text).ok_or(Flaw::ReplyStatus)
    }
}

/// The answer to a push.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply<'a> {
    /// As in the push.
    pub join_ref: Option<Ref<'a>>,
    /// As in the push.
    pub reference: Option<Ref<'a>>,
    /// As in the push.
    pub topic: Cow<'a, str>,
    /// How it was taken.
    pub status: Status,
    /// What it says; of an error an object with a `reason`.
    pub response: Payload<'a>,
}

/// What a server says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// An event.
    Push(Push<'a>),
    /// An answer.
    Reply(Reply<'a>),
}

/// The events and the topic that are the protocol's own.
pub mod word {
    /// The topic of what concerns the connection.
    pub const PHOENIX: &str = "phoenix";
    /// A client is there.
    pub const HEARTBEAT: &str = "heartbeat";
    /// It wants what is said on a topic.
    pub const JOIN: &str = "phx_join";
    /// It wants it no more.
    pub const LEAVE: &str = "phx_leave";
    /// An answer.
    pub const REPLY: &str = "phx_reply";
    /// A topic is left, as was asked for.
    pub const CLOSE: &str = "phx_close";
    /// A topic is lost; the client joins again.
    pub const ERROR: &str = "phx_error";
    /// Records of a topic will not reach the client; the payload says which.
    pub const GAP: &str = "phx_gap";
    /// Who is in a room.
    pub const PRESENCE_STATE: &str = "presence_state";
    /// Who came and who went.
    pub const PRESENCE_DIFF: &str = "presence_diff";
    /// How many are there, where not all are listed.
    pub const PRESENCE_COUNT: &str = "presence_count";
    /// What a member pushes to say something else of itself.
    pub const PRESENCE_UPDATE: &str = "presence_update";
    /// What clients push to say the event that stands in its payload.
    pub const PUBLISH: &str = "publish";
    /// The event of a record that names none.
    pub const MESSAGE: &str = "message";
}

/// Whether an event is the protocol's own, which no client may say to others.
#[must_use]
pub fn is_reserved(event: &str) -> bool {
    let of_presence =
        [word::PRESENCE_STATE, word::PRESENCE_DIFF, word::PRESENCE_COUNT, word::PRESENCE_UPDATE];
    event.starts_with("phx_") || of_presence.contains(&event)
}
