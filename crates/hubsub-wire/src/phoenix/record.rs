//! What a record of a room is to a browser, whoever published it: computed once
//! for all its subscribers.

use super::json::{self, Reader};
use super::message::{Payload, is_reserved, word};

/// The header of a record that names its event.
pub const EVENT_HEADER: &str = "event";

/// The event of a record, by what that header has: any publisher may have said
/// it, so one that is the protocol's own is not believed.
#[must_use]
pub fn record_event(header: Option<&str>) -> &str {
    header.filter(|event| !is_reserved(event)).unwrap_or(word::MESSAGE)
}

/// The header of a record that says how a browser pushed its payload: one of [`Form::as_str`].
pub const FORM_HEADER: &str = "form";

/// How a browser pushed a payload, where it cannot be told from its bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// A value that is no object.
    Json,
    /// Bytes, though they may be text.
    Binary,
}

impl Form {
    /// What of a payload has to be kept beside its bytes; mostly nothing.
    #[must_use]
    pub fn of(payload: Payload<'_>) -> Option<Form> {
        match payload {
            Payload::Json(text) if text.starts_with('{') => None,
            Payload::Json(_) => Some(Form::Json),
            Payload::Binary(bytes) if std::str::from_utf8(bytes).is_err() => None,
            Payload::Binary(_) => Some(Form::Binary),
        }
    }

    /// As the header has it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        if self == Form::Json { "json" } else { "binary" }
    }

    /// By what the header has, which any publisher may have said.
    #[must_use]
    pub fn named(text: &str) -> Option<Form> {
        [Form::Json, Form::Binary].into_iter().find(|form| form.as_str() == text)
    }
}

impl<'a> Payload<'a> {
    /// A record's bytes: an object of JSON as it is, other text as `{"data": text}`, which is written into
    /// `made`, and other bytes as they are. A form goes before, if the bytes are of it.
    #[must_use]
    pub fn of_record(bytes: &'a [u8], form: Option<Form>, made: &'a mut Vec<u8>) -> Payload<'a> {
        let Ok(text) = std::str::from_utf8(bytes) else { return Payload::Binary(bytes) };
        if form == Some(Form::Binary) {
            return Payload::Binary(bytes);
        }
        let may_be_json = form == Some(Form::Json) || Reader::new(text).peek() == Some(b'{');
        if let Some(value) = may_be_json.then(|| json::whole_value(text)).and_then(Result::ok) {
            return Payload::Json(value);
        }
        made.clear();
        made.extend_from_slice(b"{\"data\":");
        json::write_text(made, text);
        made.push(b'}');
        Payload::Json(std::str::from_utf8(made).expect("texts around a text"))
    }
}
