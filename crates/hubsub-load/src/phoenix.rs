//! The subset of Phoenix channels (version 2) over a WebSocket that this generator needs.
//!
//! ```text
//! out   GET /socket/websocket   phx_join   phx_leave   heartbeat        texts, masked with zeros
//! in    HTTP/1.1 101   phx_reply   an event: [null, null, topic, event, payload]
//! ```
//! A frame is an opcode, a length in 1, 3 or 9 bytes, and a payload. An incomplete frame is `None`, never an
//! error.
//!
//! Subscribers get messages that Redis clients publish. The payload of a run is a JSON object, as web pages
//! expect: the stamp in hexadecimal, and the filler.

use serde_json::Value;

use crate::codec::Malformed;
use crate::stamp::{FILLER, STAMP_BYTES, Stamp};

/// Before and after the stamp and the filler of a payload.
const PAYLOAD: (&[u8], &[u8]) = (b"{\"s\":\"", b"\"}");
/// Smallest payload in bytes.
pub const PAYLOAD_BYTES_MIN: usize = PAYLOAD.0.len() + 2 * STAMP_BYTES + PAYLOAD.1.len();
const DIGITS: &[u8; 16] = b"0123456789abcdef";

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said {
    Connected,
    /// Reason of a failed handshake, a refused message, or a close by the server.
    Refused(String),
    /// The ref of an answered message.
    Answered(String),
    /// A delivery: its topic and its payload.
    Event(String, Vec<u8>),
    Other,
}

/// The first message of `input` and its length; `None` if it is incomplete.
pub fn said(input: &[u8]) -> Result<Option<(Said, usize)>, Malformed> {
    // Only an HTTP response begins with `H`, no frame does.
    if input.first() == Some(&b'H') {
        let Some(end) = memchr::memmem::find(input, b"\r\n\r\n") else { return Ok(None) };
        let line = String::from_utf8_lossy(input.split(|&byte| byte == b'\r').next().unwrap_or_default());
        let said = match line.starts_with("HTTP/1.1 101 ") {
            true => Said::Connected,
            false => Said::Refused(line.into_owned()),
        };
        return Ok(Some((said, end + 4)));
    }
    let Some((opcode, body, len)) = frame(input)? else { return Ok(None) };
    let said = match opcode {
        1 => text(body)?,
        8 => Said::Refused(format!(
            "closed with {:?}",
            body.get(..2).map(|code| u16::from_be_bytes([code[0], code[1]]))
        )),
        2 | 9 | 10 => Said::Other,
        _ => return Err(Malformed("a frame that a server of channels does not send")),
    };
    Ok(Some((said, len)))
}

fn text(body: &[u8]) -> Result<Said, Malformed> {
    let wrong = Malformed("a text that is no message of version 2");
    let Ok(Value::Array(fields)) = serde_json::from_slice(body) else { return Err(wrong) };
    let [_, reference, Value::String(topic), Value::String(event), payload] = &fields[..] else {
        return Err(wrong);
    };
    Ok(match (event.as_str(), payload["status"].as_str(), reference) {
        ("phx_reply", Some("ok"), Value::String(reference)) => Said::Answered(reference.clone()),
        ("phx_reply", ..) => Said::Refused(payload["response"].to_string()),
        ("phx_close", ..) => Said::Other,
        _ => Said::Event(topic.clone(), payload.to_string().into_bytes()),
    })
}

type Frame<'a> = (u8, &'a [u8], usize);

/// The first frame, which must be a whole message.
fn frame(input: &[u8]) -> Result<Option<Frame<'_>>, Malformed> {
    let [first, second, rest @ ..] = input else { return Ok(None) };
    if first & 0xF0 != 0x80 || second & 0x80 != 0 {
        return Err(Malformed("a frame in parts, with an extension, or masked"));
    }
    let (len, at) = match second {
        126 => (rest.first_chunk().map(|bytes| u64::from(u16::from_be_bytes(*bytes))), 4),
        127 => (rest.first_chunk().map(|bytes| u64::from_be_bytes(*bytes)), 10),
        len => (Some(u64::from(*len)), 2),
    };
    let Some(end) = len.map(|len| at + len as usize) else { return Ok(None) };
    Ok(input.get(at..end).map(|body| (first & 0x0F, body, end)))
}

pub fn connect(out: &mut Vec<u8>) {
    out.extend_from_slice(
        b"GET /socket/websocket?vsn=2.0.0 HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
    );
}

/// Appends a join of a topic; the answer has the same ref.
pub fn join(out: &mut Vec<u8>, topic: &str, reference: u64) {
    push(out, topic, "phx_join", reference);
}

/// Appends a leave of a topic; the answer has the same ref.
pub fn leave(out: &mut Vec<u8>, topic: &str, reference: u64) {
    push(out, topic, "phx_leave", reference);
}

/// Appends a heartbeat; the answer has the same ref.
pub fn heartbeat(out: &mut Vec<u8>, reference: u64) {
    push(out, "phoenix", "heartbeat", reference);
}

fn push(out: &mut Vec<u8>, topic: &str, event: &str, reference: u64) {
    // Without a join_ref, a leave applies to any join of the topic.
    let text = format!("[null,\"{reference}\",\"{topic}\",\"{event}\",{{}}]");
    out.push(0x81);
    head(out, text.len(), 0x80);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(text.as_bytes());
}

fn head(out: &mut Vec<u8>, len: usize, masked: u8) {
    match len {
        0..=125 => out.push(len as u8 | masked),
        126..=0xFFFF => {
            out.push(126 | masked);
            out.extend_from_slice(&(len as u16).to_be_bytes());
        }
        _ => {
            out.push(127 | masked);
            out.extend_from_slice(&(len as u64).to_be_bytes());
        }
    }
}

/// The fixed parts of a delivery with a payload of `payload_bytes`: before the digits at the end of `topic`,
/// between the digits and the payload, and after the payload.
pub fn around(topic: &str, digits: usize, payload_bytes: usize) -> (Vec<u8>, Vec<u8>, &'static [u8]) {
    let (before, between, behind) = ("[null,null,\"", "\",\"message\",", b"]");
    let mut first = vec![0x81];
    head(&mut first, before.len() + topic.len() + between.len() + payload_bytes + behind.len(), 0);
    first.extend_from_slice(before.as_bytes());
    first.extend_from_slice(&topic.as_bytes()[..topic.len() - digits]);
    (first, between.into(), behind)
}

/// A payload without a stamp.
pub fn filler(bytes: usize) -> Vec<u8> {
    let mut payload = PAYLOAD.0.to_vec();
    payload.resize(bytes - PAYLOAD.1.len(), FILLER);
    payload.extend_from_slice(PAYLOAD.1);
    payload
}

/// Writes a stamp into a payload that [`filler`] made.
pub fn write_stamp(stamp: &Stamp, payload: &mut [u8]) {
    let mut plain = [0; STAMP_BYTES];
    stamp.write(&mut plain);
    for (two, byte) in payload[PAYLOAD.0.len()..].chunks_exact_mut(2).zip(plain) {
        two.copy_from_slice(&[DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}

/// The stamp of such a payload.
#[inline]
pub fn stamp_of(payload: &[u8]) -> Option<Stamp> {
    let inner = payload.strip_prefix(PAYLOAD.0)?.strip_suffix(PAYLOAD.1)?;
    let (digits, filler) = inner.split_at_checked(2 * STAMP_BYTES)?;
    let mut plain = [0; STAMP_BYTES];
    let value = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    for (byte, two) in plain.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = value(two[0])? << 4 | value(two[1])?;
    }
    let is_filler = filler.iter().fold(0, |wrong, byte| wrong | (byte ^ FILLER)) == 0;
    Stamp::read(&plain).filter(|_| is_filler)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_stamp_is_read_back(publisher: u32, room: u32, seq: u64, due_ns: u64, more in 0usize..200) {
            let stamp = Stamp { publisher, room, seq, due_ns };
            let mut payload = filler(PAYLOAD_BYTES_MIN + more);
            write_stamp(&stamp, &mut payload);
            prop_assert!(serde_json::from_slice::<Value>(&payload).is_ok());
            prop_assert_eq!(stamp_of(&payload), Some(stamp));
            let last = payload.len() - 3;
            payload[last] ^= 1;
            prop_assert_ne!(stamp_of(&payload), Some(stamp));
        }

        #[test]
        fn garbage_is_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = said(&bytes);
        }
    }

    #[test]
    fn what_a_server_says_is_read_whole_and_in_order() {
        let mut stream = b"HTTP/1.1 101 Switching Protocols\r\nA: b\r\n\r\n".to_vec();
        let mut expected = vec![Said::Connected];
        let texts = [
            r#"["1","1","a","phx_reply",{"status":"ok","response":{}}]"#,
            r#"[null,null,"a","message",{"s":"x"}]"#,
            r#"["1","2","a","phx_reply",{"status":"error","response":{"reason":"no"}}]"#,
            r#"["1","1","a","phx_close",{}]"#,
        ];
        for text in texts {
            stream.push(0x81);
            head(&mut stream, text.len(), 0);
            stream.extend_from_slice(text.as_bytes());
        }
        expected.push(Said::Answered("1".into()));
        expected.push(Said::Event("a".into(), b"{\"s\":\"x\"}".to_vec()));
        expected.push(Said::Refused("{\"reason\":\"no\"}".into()));
        expected.push(Said::Other);
        stream.extend_from_slice(&[0x88, 2, 0x03, 0xF4]);
        expected.push(Said::Refused("closed with Some(1012)".into()));
        for cut in 0..=stream.len() {
            let (mut held, mut got) = (Vec::new(), Vec::new());
            for part in [&stream[..cut], &stream[cut..]] {
                held.extend_from_slice(part);
                while let Some((one, len)) = said(&held).expect("it is well-formed") {
                    got.push(one);
                    held.drain(..len);
                }
            }
            assert_eq!(got, expected);
        }
        assert_eq!(
            said(b"HTTP/1.1 403 Forbidden\r\n\r\n"),
            Ok(Some((Said::Refused("HTTP/1.1 403 Forbidden".into()), 26)))
        );
        assert!(said(&[0x81, 0x80]).is_err());
    }
}
