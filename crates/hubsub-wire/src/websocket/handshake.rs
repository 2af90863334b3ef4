//! The server side of the handshake (section 4.2): a request is parsed, checked, and answered with 101 or an
//! error.

use crate::http::head::{Head, HeadFlaw};
use crate::http::refusal::refusals;
use sha1::{Digest, Sha1};

/// The protocol appends this to a key before hashing.
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

pub(super) const ACCEPT_BYTES: usize = 28;

/// A request to upgrade, valid by section 4.2.1. The caller checks its path, its origin and its subprotocols.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request<'a> {
    pub path: &'a str,
    pub host: &'a str,
    /// Origin of the page in a browser; `None` for other clients.
    pub origin: Option<&'a str>,
    pub len: usize,
    key: &'a str,
    head: Head<'a>,
}

refusals! {
    #[doc = "Why there is no upgrade."]
    Refusal;
    HeadTooLarge "431 Request Header Fields Too Large" "bad_request" "the request's head is too large"
        "at most 16 KiB";
    NotHttp "400 Bad Request" "bad_request" "this is not a request of HTTP/1.1" "";
    Method "405 Method Not Allowed" "method_not_allowed" "this path does not take that method" "GET";
    NoHost "400 Bad Request" "bad_request" "the request does not have one Host" "";
    Body "400 Bad Request" "bad_request" "a request for a WebSocket has no body" "";
    NotUpgrade "426 Upgrade Required" "bad_request" "there are only WebSockets here" "Upgrade: websocket";
    Version "426 Upgrade Required" "bad_request" "unsupported WebSocket version" "Sec-WebSocket-Version: 13";
    Key "400 Bad Request" "bad_request" "the request does not have one Sec-WebSocket-Key" "16 bytes in base64";
    Path "404 Not Found" "not_found" "there is no WebSocket at this path" "/socket/websocket, /mqtt";
    Origin "403 Forbidden" "not_allowed" "pages of this origin are not welcome" "ws_origins";
    Subprotocol "400 Bad Request" "bad_request" "no subprotocol that both speak" "mqtt";
}

impl Refusal {
    /// Appends the response; the connection must be closed after it.
    pub fn write(self, out: &mut Vec<u8>) {
        self.write_with(
            out,
            match self {
                Refusal::NotUpgrade | Refusal::Version => {
                    "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
                }
                Refusal::Method => "Allow: GET\r\n",
                _ => "",
            },
        );
    }
}

impl From<HeadFlaw> for Refusal {
    fn from(flaw: HeadFlaw) -> Refusal {
        match flaw {
            HeadFlaw::TooLarge => Refusal::HeadTooLarge,
            HeadFlaw::NotHttp => Refusal::NotHttp,
        }
    }
}

impl<'a> Request<'a> {
    /// Parses the request at the start of the input; `None` while it is incomplete.
    ///
    /// # Errors
    /// It is no request to upgrade.
    pub fn read(input: &'a [u8]) -> Result<Option<Request<'a>>, Refusal> {
        let Some(head) = Head::read(input)? else { return Ok(None) };
        let (method, path) = head.request_line().ok_or(Refusal::NotHttp)?;
        if method != "GET" {
            return Err(Refusal::Method);
        }
        if !path.starts_with('/') {
            return Err(Refusal::NotHttp);
        }
        let host = head.single("Host").ok_or(Refusal::NoHost)?;
        let empty = head.values("Content-Length").all(|length| length == "0");
        if !empty || head.values("Transfer-Encoding").next().is_some() {
            return Err(Refusal::Body);
        }
        if !head.lists("Upgrade", "websocket") || !head.lists("Connection", "Upgrade") {
            return Err(Refusal::NotUpgrade);
        }
        if head.single("Sec-WebSocket-Version") != Some("13") {
            return Err(Refusal::Version);
        }
        let key = head.single("Sec-WebSocket-Key").filter(|key| is_key(key)).ok_or(Refusal::Key)?;
        let origin = head.optional("Origin")?;
        Ok(Some(Request { path, host, origin, len: head.len, key, head }))
    }

    /// Subprotocols that the client offers, in order of preference.
    pub fn subprotocols(&self) -> impl Iterator<Item = &'a str> {
        self.head.list("Sec-WebSocket-Protocol")
    }

    pub fn choose_subprotocol(&self, spoken: &[&'static str]) -> Option<&'static str> {
        self.subprotocols().find_map(|offered| spoken.iter().copied().find(|&word| word == offered))
    }

    /// Appends the response that opens the WebSocket, without extensions.
    pub fn write_accept(&self, out: &mut Vec<u8>, subprotocol: Option<&str>) {
        out.extend_from_slice(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n");
        out.extend_from_slice(b"Connection: Upgrade\r\nSec-WebSocket-Accept: ");
        out.extend_from_slice(&accept(self.key.as_bytes()));
        out.extend_from_slice(b"\r\n");
        if let Some(subprotocol) = subprotocol {
            out.extend_from_slice(b"Sec-WebSocket-Protocol: ");
            out.extend_from_slice(subprotocol.as_bytes());
            out.extend_from_slice(b"\r\n");
        }
        out.extend_from_slice(b"\r\n");
    }
}

/// Proof that a WebSocket server has read the key.
pub(super) fn accept(key: &[u8]) -> [u8; ACCEPT_BYTES] {
    let hash = Sha1::new().chain_update(key).chain_update(GUID).finalize();
    let mut text = [0; ACCEPT_BYTES];
    base64(&hash, &mut text);
    text
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Encodes bytes as base64 into a text of exactly the encoded length.
pub(crate) fn base64(bytes: &[u8], text: &mut [u8]) {
    for (three, four) in bytes.chunks(3).zip(text.chunks_mut(4)) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for (i, char) in four.iter_mut().enumerate() {
            let sextet = bits >> (18 - 6 * i) & 0x3F;
            *char = if i <= three.len() { ALPHABET[sextet as usize] } else { b'=' };
        }
    }
}

fn is_key(key: &str) -> bool {
    let Some(chars) = key.strip_suffix("==").map(str::as_bytes) else { return false };
    let value = |char: &u8| ALPHABET.iter().position(|of| of == char);
    // The last character has four spare bits.
    chars.len() == 22
        && chars.iter().all(|char| value(char).is_some())
        && value(&chars[21]).is_some_and(|v| v % 16 == 0)
}
