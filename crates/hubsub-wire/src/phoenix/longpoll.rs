//! Long polling: the same messages in HTTP requests and responses, for networks without WebSockets. WebSocket
//! messages from a client become lines of a request; those from the server become texts in a response.
//!
//! ```text
//! GET  …/longpoll?vsn=2.0.0                 200  {"status":410,"token":"…"}                   session begins
//! GET  …/longpoll?vsn=2.0.0&token=…         200  {"status":200,"token":"…","messages":["…"]}  or 204, none
//! POST …/longpoll?vsn=2.0.0&token=…  lines  200  {"status":200}
//! ```
//!
//! The HTTP status is always 200; the body contains the actual status.

use super::connect::{Connect, Refused, decode_base64};
use super::decode::{fields, kind};
use super::encode::write_array;
use super::json::write_text;
use super::message::{Payload, Push};
use crate::http::{Request, query};
use crate::websocket::{DecodeLimits, Decoded, Decoder, Kind, Opcode, Peer, write_frame};
use std::borrow::Cow;
use std::fmt;

pub const LONGPOLL_PATH: &str = "/socket/longpoll";

pub const LINES_MAX: usize = 100;

/// Header for a client's own token, which is not a session's.
const TOKEN_FIELD: &str = "X-Phoenix-AuthToken";

/// Status in the body of a response.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum PollStatus {
    Taken = 200,
    Nothing = 204,
    /// The session is gone, or begins.
    Gone = 410,
    Forbidden = 403,
    Bad = 400,
    TooLong = 413,
    TooMany = 429,
    /// There are too many sessions. Clients retry after a delay, as they do for no other status.
    Full = 500,
}

/// Name of a session that cannot be guessed: 32 random hexadecimal digits, and where the session is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PollToken {
    pub secret: u128,
    pub shard: u16,
    pub place: u32,
    pub generation: u32,
}

const TOKEN_DIGITS: usize = 32 + 4 + 8 + 8;

impl fmt::Display for PollToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}{:04x}{:08x}{:08x}", self.secret, self.shard, self.place, self.generation)
    }
}

impl PollToken {
    fn read(text: &str) -> Option<PollToken> {
        let is_hex =
            |text: &str| text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte));
        if text.len() != TOKEN_DIGITS || !is_hex(text) {
            return None;
        }
        Some(PollToken {
            secret: u128::from_str_radix(&text[..32], 16).ok()?,
            shard: u16::from_str_radix(&text[32..36], 16).ok()?,
            place: u32::from_str_radix(&text[36..44], 16).ok()?,
            generation: u32::from_str_radix(&text[44..], 16).ok()?,
        })
    }
}

/// The session that a request names, if any: the last token in the query counts, since clients append it.
#[must_use]
pub fn poll_token(request: &Request<'_>) -> Option<PollToken> {
    let tokens = query::pairs(request.query).filter(|(name, _)| *name == "token");
    tokens.last().and_then(|(_, token)| PollToken::read(token))
}

impl<'a> Connect<'a> {
    /// Parses a request that begins a long-poll session.
    ///
    /// # Errors
    /// The request cannot be served, whoever the client is.
    pub fn of_poll(request: &Request<'a>) -> Result<Connect<'a>, Refused> {
        let mut connect = Connect::of_query(request.query, std::iter::empty())?;
        if let Some(token) = request.field(TOKEN_FIELD) {
            connect.token = Some(token.to_owned());
        }
        Ok(connect)
    }
}

/// Decodes the body of a request, several `lines` or one message, and appends the messages as frames of a
/// client. A message that begins like JSON is text; any other is bytes in base64.
///
/// # Errors
/// There are too many lines, or one is invalid.
pub fn read_lines(body: &[u8], lines: bool, frames: &mut Vec<u8>) -> Result<(), PollStatus> {
    let text = std::str::from_utf8(body).map_err(|_| PollStatus::Bad)?;
    let messages: Vec<&str> = match lines {
        true => text.split(['\n', '\r']).filter(|line| !line.is_empty()).take(LINES_MAX + 1).collect(),
        // One message, in which line breaks are whitespace.
        false => vec![text],
    };
    if messages.len() > LINES_MAX {
        return Err(PollStatus::TooLong);
    }
    for message in messages {
        if message.trim_start().starts_with(['[', '{']) {
            write_frame(frames, Opcode::Text, true, message.as_bytes(), Some([0; 4]));
        } else {
            let bytes = decode_base64(message).ok_or(PollStatus::Bad)?;
            write_frame(frames, Opcode::Binary, true, &bytes, Some([0; 4]));
        }
    }
    Ok(())
}

/// Appends the body of a response with the messages of a server's frames, which are complete.
pub fn write_messages(out: &mut Vec<u8>, token: &PollToken, frames: &mut [u8]) {
    let status = if frames.is_empty() { PollStatus::Nothing } else { PollStatus::Taken };
    out.extend_from_slice(
        format!("{{\"status\":{},\"token\":\"{token}\",\"messages\":[", status as u16).as_bytes(),
    );
    let limits = DecodeLimits { frame_bytes_max: u64::MAX, message_bytes_max: u64::MAX };
    let (mut decoder, mut at, mut is_first) = (Decoder::new(Peer::Server), 0, true);
    while at < frames.len() {
        match decoder.decode(&mut frames[at..], &limits).expect("a server's own frames") {
            Decoded::Data { kind, bytes, len, .. } => {
                if !std::mem::take(&mut is_first) {
                    out.push(b',');
                }
                write_message(out, kind, bytes);
                at += len;
            }
            Decoded::Ping { len, .. }
            | Decoded::Pong { len, .. }
            | Decoded::Close { len, .. }
            | Decoded::AfterClose { len } => at += len,
            Decoded::Incomplete { .. } => break,
        }
    }
    out.extend_from_slice(b"]}");
}

/// Encodes a message as a JSON text. JSON has no bytes, so a binary broadcast is sent as base64.
fn write_message(out: &mut Vec<u8>, kind: Kind, bytes: &[u8]) {
    match kind {
        Kind::Text => write_text(out, std::str::from_utf8(bytes).expect("a server's own text")),
        Kind::Binary => {
            assert_eq!(bytes.first(), Some(&kind::BROADCAST), "other messages are texts");
            let ([topic, event], data) = fields(bytes).expect("a server's own message");
            let (topic, event) = (Cow::Borrowed(topic), Cow::Borrowed(event));
            let payload = Payload::Binary(data);
            let mut text = Vec::new();
            write_array(&mut text, &Push { join_ref: None, reference: None, topic, event, payload });
            write_text(out, std::str::from_utf8(&text).expect("JSON"));
        }
    }
}

/// Appends the body of a response without messages; with the token if a session begins.
pub fn write_poll_status(out: &mut Vec<u8>, status: PollStatus, token: Option<&PollToken>) {
    let token = token.map_or_else(String::new, |token| format!(",\"token\":\"{token}\""));
    out.extend_from_slice(format!("{{\"status\":{}{token}}}", status as u16).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(target: &str) -> Vec<u8> {
        format!("GET {LONGPOLL_PATH}?{target} HTTP/1.1\r\nHost: a\r\n\r\n").into_bytes()
    }

    fn token_of(target: &str) -> Option<PollToken> {
        poll_token(&Request::read(&request(target)).unwrap().unwrap())
    }

    #[test]
    fn a_token_is_read_back_and_nothing_else_is_one() {
        let token = PollToken { secret: u128::MAX - 5, shard: 3, place: 77, generation: 9 };
        let text = token.to_string();
        assert_eq!(token_of(&format!("token={text}")), Some(token));
        assert_eq!(token_of(&format!("token=mine&vsn=2.0.0&token={text}")), Some(token));
        assert_eq!(token_of(&format!("token={text}&token=mine")), None);
        for other in ["", "&", "token=", "token=null", &format!("token={}", text.to_uppercase())] {
            assert_eq!(token_of(other), None);
        }
    }

    #[test]
    fn lines_become_frames_and_bytes_are_base64() {
        let mut frames = Vec::new();
        read_lines(b"[1]\n {\"a\":1}\r\n\nAP8i\n", true, &mut frames).unwrap();
        let mut expected = Vec::new();
        for (opcode, bytes) in
            [(Opcode::Text, &b"[1]"[..]), (Opcode::Text, b" {\"a\":1}"), (Opcode::Binary, b"\x00\xff\"")]
        {
            write_frame(&mut expected, opcode, true, bytes, Some([0; 4]));
        }
        assert_eq!(frames, expected);
        assert_eq!(read_lines(b"[1]\n!", true, &mut Vec::new()), Err(PollStatus::Bad));
        assert_eq!(read_lines(b"\xff", true, &mut Vec::new()), Err(PollStatus::Bad));
        let many = |count: usize| read_lines("[]\n".repeat(count).as_bytes(), true, &mut Vec::new());
        assert_eq!((many(LINES_MAX), many(LINES_MAX + 1)), (Ok(()), Err(PollStatus::TooLong)));
    }

    #[test]
    fn an_answer_has_the_texts_of_all_frames() {
        let token = PollToken { secret: 1, shard: 0, place: 2, generation: 3 };
        let mut frames = Vec::new();
        write_frame(&mut frames, Opcode::Text, true, b"[null,\"\\u00e9\"]", None);
        write_frame(&mut frames, Opcode::Binary, true, b"\x02\x01\x02tev\x00\xff", None);
        let mut out = Vec::new();
        write_messages(&mut out, &token, &mut frames);
        let text = String::from_utf8(out).unwrap();
        let messages = r#"["[null,\"\\u00e9\"]","[null,null,\"t\",\"ev\",{\"base64\":\"AP8=\"}]"]"#;
        assert_eq!(text, format!("{{\"status\":200,\"token\":\"{token}\",\"messages\":{messages}}}"));
        let mut out = Vec::new();
        write_messages(&mut out, &token, &mut []);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            format!("{{\"status\":204,\"token\":\"{token}\",\"messages\":[]}}")
        );
    }
}
