//! Conversion of a room's records for browsers, whoever published them: computed once for all subscribers.

use super::json::{self, Reader};
use super::message::{Payload, is_reserved, word};

pub const EVENT_HEADER: &str = "event";

/// The event of a record. Any publisher may set the header, so events of the protocol are ignored.
#[must_use]
pub fn record_event(header: Option<&str>) -> &str {
    header.filter(|event| !is_reserved(event)).unwrap_or(word::MESSAGE)
}

/// Header with the form in which a browser pushed its payload: one of [`Form::as_str`].
pub const FORM_HEADER: &str = "form";

/// How a browser pushed a payload, if its bytes do not show it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Form {
    /// A value that is not an object.
    Json,
    /// Bytes, even if they are valid text.
    Binary,
}

impl Form {
    /// The form that must be stored with a payload; usually `None`.
    #[must_use]
    pub fn of(payload: Payload<'_>) -> Option<Form> {
        match payload {
            Payload::Json(text) if text.starts_with('{') => None,
            Payload::Json(_) => Some(Form::Json),
            Payload::Binary(bytes) if std::str::from_utf8(bytes).is_err() => None,
            Payload::Binary(_) => Some(Form::Binary),
        }
    }

    #[must_use]
    pub fn as_str(self) -> &'static str {
        if self == Form::Json { "json" } else { "binary" }
    }

    /// Parses the header, which any publisher may have set.
    #[must_use]
    pub fn named(text: &str) -> Option<Form> {
        [Form::Json, Form::Binary].into_iter().find(|form| form.as_str() == text)
    }
}

impl<'a> Payload<'a> {
    /// Converts a record's bytes: a JSON object unchanged, other text as `{"data": text}`, which is written
    /// into `made`, other bytes unchanged. A form takes precedence, if the bytes match it.
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
