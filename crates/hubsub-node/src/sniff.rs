//! What a peer speaks that does not speak Redis. It gets the clearest answer
//! that its own protocol has, a log line, and a close.

use crate::control::Level;
use crate::rim::{Once, Rim};
use hubsub_types::ConnKey;

/// Another protocol's first bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stranger {
    /// A TLS ClientHello.
    Tls,
    /// An MQTT CONNECT.
    Mqtt,
}

/// A fatal alert, handshake_failure, in a record of TLS 1.0 as every version
/// reads it (RFC 8446, sections 5.1 and 6).
const TLS_ALERT: &[u8] = &[0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x28];

/// Who speaks, by the first bytes of a connection; none if it may be Redis.
#[must_use]
pub fn stranger(first: &[u8]) -> Option<Stranger> {
    match first {
        [0x16, 0x03, ..] | [0x16] => Some(Stranger::Tls),
        [0x10, ..] => Some(Stranger::Mqtt),
        _ => None,
    }
}

/// Whether an inline command is the first line of an HTTP request.
#[must_use]
pub fn is_http(args: &[&[u8]]) -> bool {
    matches!(args, [_, _, version] if version.starts_with(b"HTTP/1."))
}

impl Stranger {
    /// What it is told.
    #[must_use]
    pub fn answer(self) -> &'static [u8] {
        match self {
            Stranger::Tls => TLS_ALERT,
            Stranger::Mqtt => b"",
        }
    }

    /// Its name in the log.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Stranger::Tls => "tls",
            Stranger::Mqtt => "mqtt",
        }
    }
}

/// What an HTTP client is told.
pub const HTTP_ANSWER: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 54\r\n\
connection: close\r\n\r\nThis is HubSub's Redis port; HTTP has one of its own.\n";

/// Answers a peer that speaks another protocol, and closes.
pub fn refuse(rim: &mut Rim, key: ConnKey, protocol: &str, answer: &[u8]) {
    rim.metrics.protocol_errors_total.add(1);
    rim.push(key, |out, _| out.extend_from_slice(answer));
    if rim.limited_log(Once::Stranger) {
        let fields = vec![("protocol", protocol.to_owned())];
        rim.log_conn(Level::Warning, "another protocol on the Redis port", key, fields);
    }
    rim.close_soon(key);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_http_answer_has_the_length_it_says() {
        let text = std::str::from_utf8(HTTP_ANSWER).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
    }

    #[test]
    fn redis_is_no_stranger() {
        for first in [&b"*1\r\n"[..], b"PING\r\n", b"\r\n", b"G", b"\x16\x01"] {
            assert_eq!(stranger(first), None);
        }
        assert_eq!(stranger(b"\x16\x03\x01"), Some(Stranger::Tls));
        assert_eq!(stranger(b"\x10\x0e\x00\x04MQTT"), Some(Stranger::Mqtt));
    }
}
