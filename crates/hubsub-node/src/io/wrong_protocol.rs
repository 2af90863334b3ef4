//! Detects peers that speak another protocol than their port's. Such a peer gets the clearest error that its
//! own protocol has, a log line, and a close.

use crate::io::listener::ListenerKind;

/// A protocol that its first bytes identify.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WrongProtocol {
    Tls,
    /// An MQTT CONNECT on another port.
    Mqtt,
    /// A Redis command on another port.
    Redis,
    Http,
}

/// A fatal alert, handshake_failure, in a TLS 1.0 record, which every version reads (RFC 8446, sections 5.1
/// and 6).
const TLS_ALERT: &[u8] = &[0x15, 0x03, 0x01, 0x00, 0x02, 0x02, 0x28];

/// The foreign protocol that a connection's first bytes show; `None` if they may be the port's own protocol.
/// An HTTP request on a Redis port is an inline command at first.
pub fn recognized(kind: ListenerKind, first: &[u8]) -> Option<WrongProtocol> {
    match (kind, first) {
        // MQTT starts after the WebSocket handshake, which has its own check.
        (ListenerKind::WebSocket, _) => None,
        (_, first) if is_tls(first) => Some(WrongProtocol::Tls),
        (ListenerKind::Mqtt, [b'*', ..]) => Some(WrongProtocol::Redis),
        (ListenerKind::Mqtt, [b'G' | b'H' | b'O' | b'P', b'A'..=b'Z', ..]) => Some(WrongProtocol::Http),
        (ListenerKind::Redis | ListenerKind::RedisCluster, [0x10, ..]) => Some(WrongProtocol::Mqtt),
        _ => None,
    }
}

/// Whether an inline command is the first line of an HTTP request.
pub fn is_http(args: &[&[u8]]) -> bool {
    matches!(args, [_, _, version] if version.starts_with(b"HTTP/1."))
}

/// Whether the first bytes of an expected HTTP request are a TLS ClientHello, as far as received.
pub fn is_tls(first: &[u8]) -> bool {
    matches!(first, [0x16, 0x03, ..] | [0x16])
}

impl std::fmt::Display for WrongProtocol {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the peer speaks {}", self.name())
    }
}

impl std::error::Error for WrongProtocol {}

impl WrongProtocol {
    /// The error for such a peer at a port.
    pub fn answer(self, kind: ListenerKind) -> &'static [u8] {
        match (self, kind) {
            (WrongProtocol::Tls, _) => TLS_ALERT,
            (WrongProtocol::Mqtt, _) => b"",
            (WrongProtocol::Redis, _) => REDIS_ANSWER,
            (WrongProtocol::Http, ListenerKind::Mqtt) => HTTP_ANSWER_OF_MQTT,
            (WrongProtocol::Http, _) => HTTP_ANSWER,
        }
    }

    /// Name of the protocol in log lines.
    pub fn name(self) -> &'static str {
        match self {
            WrongProtocol::Tls => "tls",
            WrongProtocol::Mqtt => "mqtt",
            WrongProtocol::Redis => "redis",
            WrongProtocol::Http => "http",
        }
    }
}

/// Error for a Redis client at another protocol's port.
const REDIS_ANSWER: &[u8] = b"-ERR this is HubSub's MQTT port; Redis has one of its own\r\n";

/// Error for an HTTP client at the Redis port.
const HTTP_ANSWER: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 54\r\n\
connection: close\r\n\r\nThis is HubSub's Redis port; HTTP has one of its own.\n";

/// Error for an HTTP client at the MQTT port.
const HTTP_ANSWER_OF_MQTT: &[u8] =
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\ncontent-length: 53\r\n\
connection: close\r\n\r\nThis is HubSub's MQTT port; HTTP has one of its own.\n";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_http_answers_have_the_length_they_say() {
        for answer in [HTTP_ANSWER, HTTP_ANSWER_OF_MQTT] {
            let text = std::str::from_utf8(answer).unwrap();
            let (head, body) = text.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{}", body.len());
        }
    }

    #[test]
    fn redis_is_no_stranger() {
        for first in [&b"*1\r\n"[..], b"PING\r\n", b"\r\n", b"G", b"\x16\x01"] {
            assert_eq!(recognized(ListenerKind::Redis, first), None);
        }
        assert_eq!(recognized(ListenerKind::Redis, b"\x16\x03\x01"), Some(WrongProtocol::Tls));
        assert_eq!(recognized(ListenerKind::Redis, b"\x10\x0e\x00\x04MQTT"), Some(WrongProtocol::Mqtt));
    }

    #[test]
    fn mqtt_is_no_stranger_at_its_own_port() {
        for first in [&b"\x10\x0e\x00\x04MQTT"[..], b"\x10", b"G", b"P\x05"] {
            assert_eq!(recognized(ListenerKind::Mqtt, first), None);
        }
        assert_eq!(recognized(ListenerKind::Mqtt, b"\x16\x03\x01"), Some(WrongProtocol::Tls));
        assert_eq!(recognized(ListenerKind::Mqtt, b"*1\r\n"), Some(WrongProtocol::Redis));
        assert_eq!(recognized(ListenerKind::Mqtt, b"GET / HTTP/1.1"), Some(WrongProtocol::Http));
    }
}
