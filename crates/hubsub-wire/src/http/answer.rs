//! Answers, and why a request gets none but that.

use super::head::HeadFlaw;
use std::fmt;

/// An answer that is whole.
#[derive(Clone, Copy, Debug)]
pub struct Answer<'a> {
    /// The status line's code and phrase.
    pub status: &'a str,
    /// Of the body; empty where there is none.
    pub content_type: &'a str,
    /// Further fields, each with its end of line.
    pub fields: &'a str,
    /// The body.
    pub body: &'a [u8],
    /// Whether the connection ends behind it.
    pub is_last: bool,
}

impl Answer<'_> {
    /// Appends it.
    pub fn write(&self, out: &mut Vec<u8>) {
        let Answer { status, content_type, fields, body, is_last } = self;
        let mut head = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n{fields}", body.len());
        if !content_type.is_empty() {
            head += &format!("Content-Type: {content_type}\r\n");
        }
        head += if *is_last { "Connection: close\r\n\r\n" } else { "\r\n" };
        out.extend_from_slice(head.as_bytes());
        out.extend_from_slice(body);
    }
}

/// Appends the head of an answer that goes on until the connection ends.
pub fn write_stream_head(out: &mut Vec<u8>, content_type: &str, fields: &str) {
    let head =
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: {content_type}\r\n{fields}\r\n");
    out.extend_from_slice(head.as_bytes());
}

/// Appends an error as the REST API has them, `{code, message, hint}`; the connection ends behind it. Its words are
/// the server's own: none has a quote in it.
pub fn write_error(out: &mut Vec<u8>, status: &str, fields: &str, (code, message, hint): (&str, &str, &str)) {
    let body = format!("{{\"code\":\"{code}\",\"message\":\"{message}\",\"hint\":\"{hint}\"}}");
    let content_type = "application/json";
    Answer { status, content_type, fields, body: body.as_bytes(), is_last: true }.write(out);
}

macro_rules! refusals {
    ($($name:ident $status:literal $code:literal $words:literal $hint:literal;)+) => {
        /// Why a request is not served, whoever asks.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Refusal { $(#[doc = $words] $name,)+ }

        impl Refusal {
            /// All of them, for the tests that walk them.
            pub const ALL: &'static [Refusal] = &[$(Refusal::$name,)+];

            /// The status line's code and phrase.
            #[must_use]
            pub fn status(self) -> &'static str {
                match self { $(Refusal::$name => $status,)+ }
            }

            /// The stable code.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $(Refusal::$name => $code,)+ }
            }

            fn words(self) -> &'static str {
                match self { $(Refusal::$name => $words,)+ }
            }

            /// What to do instead.
            #[must_use]
            pub fn hint(self) -> &'static str {
                match self { $(Refusal::$name => $hint,)+ }
            }
        }
    };
}

impl Refusal {
    /// Appends the answer; the connection is to be closed behind it.
    pub fn write(self, out: &mut Vec<u8>, fields: &str) {
        write_error(out, self.status(), fields, (self.code(), self.words(), self.hint()));
    }
}

refusals! {
    HeadTooLarge "431 Request Header Fields Too Large" "bad_request" "the request's head is too large"
        "at most 16 KiB";
    NotHttp "400 Bad Request" "bad_request" "this is not a request of HTTP/1.1" "one Host, one length";
    Path "404 Not Found" "not_found" "there is nothing at this path"
        "/socket/websocket, /socket/longpoll, /v1/rooms/{room}/events, /mqtt";
    Method "405 Method Not Allowed" "method_not_allowed" "this path does not take that method" "GET";
    Origin "403 Forbidden" "not_allowed" "pages of this origin are not welcome" "ws_origins";
    Host "403 Forbidden" "not_allowed" "this is no name of the node" "hosts";
    Denied "403 Forbidden" "not_allowed" "the token is not accepted" "";
    Token "400 Bad Request" "bad_request" "the token is not UTF-8 in percent-encoding" "";
    Topic "400 Bad Request" "bad_request" "the room's name is not percent-encoded" "%2F for /";
    After "400 Bad Request" "bad_request" "after or Last-Event-ID is no position" "EPOCH-SEQ";
    Rewind "400 Bad Request" "bad_request" "rewind is neither a count nor a time" "20 or 10s";
    Both "400 Bad Request" "bad_request" "either rewind or after" "";
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

impl std::error::Error for Refusal {}

impl From<HeadFlaw> for Refusal {
    fn from(flaw: HeadFlaw) -> Refusal {
        match flaw {
            HeadFlaw::TooLarge => Refusal::HeadTooLarge,
            HeadFlaw::NotHttp => Refusal::NotHttp,
        }
    }
}
