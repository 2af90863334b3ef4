//! Error responses: tables in one format for all request handlers.

use super::head::HeadFlaw;

/// Makes an enum of a table: name, status code and phrase, stable code, text, and a hint, perhaps empty.
macro_rules! refusals {
    (#[doc = $what:literal] $of:ident; $($name:ident $status:literal $code:literal $message:literal $hint:literal;)+) => {
        #[doc = $what]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $of { $(#[doc = $message] $name,)+ }

        impl $of {
            pub const ALL: &'static [$of] = &[$($of::$name,)+];

            #[must_use]
            pub fn status(self) -> &'static str {
                match self { $($of::$name => $status,)+ }
            }

            /// Stable error code, as in the REST API.
            #[must_use]
            pub fn code(self) -> &'static str {
                match self { $($of::$name => $code,)+ }
            }

            /// Advice for the client; may be empty.
            #[must_use]
            pub fn hint(self) -> &'static str {
                match self { $($of::$name => $hint,)+ }
            }

            fn message(self) -> &'static str {
                match self { $($of::$name => $message,)+ }
            }

            /// Appends the response, with further field lines; the connection must be closed after it.
            fn write_with(self, out: &mut Vec<u8>, fields: &str) {
                let error = (self.code(), self.message(), self.hint());
                $crate::http::write_error(out, self.status(), fields, error);
            }
        }

        impl std::fmt::Display for $of {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.message())
            }
        }

        impl std::error::Error for $of {}
    };
}

pub(crate) use refusals;

refusals! {
    #[doc = "Why a request is not served to any client."]
    Refusal;
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
    Debtor "503 Service Unavailable" "too_busy"
        "max bytes of unfinished input reached, and yours was the most" "try again later";
}

impl From<HeadFlaw> for Refusal {
    fn from(flaw: HeadFlaw) -> Refusal {
        match flaw {
            HeadFlaw::TooLarge => Refusal::HeadTooLarge,
            HeadFlaw::NotHttp => Refusal::NotHttp,
        }
    }
}

impl Refusal {
    /// Appends the response; the connection must be closed after it.
    pub fn write(self, out: &mut Vec<u8>, fields: &str) {
        self.write_with(out, fields);
    }
}
