//! The client side of the handshake (section 4.1), for tests and load.

use super::handshake::{accept, base64};
use crate::http::head::{Head, HeadFlaw};

const KEY_BYTES: usize = 24;

/// Why a response opens no WebSocket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum AnswerFlaw<'a> {
    /// It may also be too large.
    #[error("the answer is not HTTP/1.1")]
    NotHttp,
    /// It has another status than 101, in this line.
    #[error("no upgrade: {0}")]
    Refused(&'a str),
    #[error("the answer upgrades to something else")]
    NotUpgrade,
    #[error("the answer is to another key")]
    Accept,
    #[error("an extension that was not offered")]
    Extension,
    #[error("a subprotocol that was not offered: {0}")]
    Subprotocol(&'a str),
}

/// Appends a request to upgrade; `nonce` is random.
pub fn write_request(out: &mut Vec<u8>, host: &str, path: &str, nonce: [u8; 16], subprotocols: &[&str]) {
    let key = key(nonce);
    let key = std::str::from_utf8(&key).expect("base64 is ASCII");
    let head = format!(
        "GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
    );
    out.extend_from_slice(head.as_bytes());
    if !subprotocols.is_empty() {
        out.extend_from_slice(b"Sec-WebSocket-Protocol: ");
        out.extend_from_slice(subprotocols.join(", ").as_bytes());
        out.extend_from_slice(b"\r\n");
    }
    out.extend_from_slice(b"\r\n");
}

/// The chosen subprotocol, if any, and the length of the response; `None` while it is incomplete.
///
/// # Errors
/// The response opens no WebSocket.
pub fn read_answer<'a>(
    input: &'a [u8],
    nonce: [u8; 16],
    subprotocols: &[&str],
) -> Result<Option<(Option<&'a str>, usize)>, AnswerFlaw<'a>> {
    let flaw = |_: HeadFlaw| AnswerFlaw::NotHttp;
    let Some(head) = Head::read(input).map_err(flaw)? else { return Ok(None) };
    let status = head.first.strip_prefix("HTTP/1.1 ").ok_or(AnswerFlaw::NotHttp)?;
    if status.split(' ').next() != Some("101") {
        return Err(AnswerFlaw::Refused(status));
    }
    if !head.lists("Upgrade", "websocket") || !head.lists("Connection", "Upgrade") {
        return Err(AnswerFlaw::NotUpgrade);
    }
    if head.single("Sec-WebSocket-Accept").map(str::as_bytes) != Some(&accept(&key(nonce))) {
        return Err(AnswerFlaw::Accept);
    }
    if head.list("Sec-WebSocket-Extensions").next().is_some() {
        return Err(AnswerFlaw::Extension);
    }
    let chosen = head.values("Sec-WebSocket-Protocol").next();
    match chosen {
        Some(name) if !subprotocols.contains(&name) => Err(AnswerFlaw::Subprotocol(name)),
        _ => Ok(Some((chosen, head.len))),
    }
}

fn key(nonce: [u8; 16]) -> [u8; KEY_BYTES] {
    let mut key = [0; KEY_BYTES];
    base64(&nonce, &mut key);
    key
}
