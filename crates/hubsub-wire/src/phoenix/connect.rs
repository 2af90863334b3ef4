//! The connect request: protocol version and token.
//!
//! ```text
//! GET /socket/websocket?token=x&vsn=2.0.0
//! Sec-WebSocket-Protocol: phoenix, base64url.bearer.phx.eA
//! ```

use super::message::Version;
use crate::http::query;
use crate::http::refusal::refusals;

pub const PATH: &str = "/socket/websocket";

/// The subprotocol that a client offers next to a token.
pub const SUBPROTOCOL: &str = "phoenix";

const TOKEN_PREFIX: &str = "base64url.bearer.phx.";

/// A parsed connect request. The caller validates the token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Connect<'a> {
    /// 1 if the request names none.
    pub version: Version,
    pub token: Option<String>,
    /// Whether messages must carry their positions, by `positions=true`.
    pub positions: bool,
    pub subprotocol: Option<&'static str>,
    /// The whole query, for authentication that needs more than the token.
    pub query: &'a str,
}

refusals! {
    #[doc = "Why a client is not let in."]
    Refused;
    Path "404 Not Found" "not_found" "there is no socket at this path" "/socket/websocket";
    Query "400 Bad Request" "bad_request" "vsn or token is not UTF-8 in percent-encoding" "";
    Positions "400 Bad Request" "bad_request" "positions is neither true nor false" "";
    Version "403 Forbidden" "not_allowed" "unsupported version" "vsn=1.0.0 or vsn=2.0.0";
    Token "403 Forbidden" "not_allowed" "the token among the subprotocols is not one text in base64" "";
    Subprotocol "403 Forbidden" "not_allowed" "no subprotocol that both speak" "phoenix";
    Denied "403 Forbidden" "not_allowed" "the token is not accepted" "";
}

impl Refused {
    /// Appends the response; the connection must be closed after it.
    pub fn write(self, out: &mut Vec<u8>) {
        self.write_with(out, "");
    }
}

impl<'a> Connect<'a> {
    /// Parses a request's path with its query, and its subprotocols.
    ///
    /// # Errors
    /// The request cannot be served, whoever the client is.
    pub fn read<'p>(
        path: &'a str,
        subprotocols: impl Iterator<Item = &'p str>,
    ) -> Result<Connect<'a>, Refused> {
        let (path, words) = path.split_once('?').unwrap_or((path, ""));
        if path != PATH {
            return Err(Refused::Path);
        }
        Connect::of_query(words, subprotocols)
    }

    /// Parses the query alone.
    ///
    /// # Errors
    /// As for [`read`](Connect::read).
    pub(super) fn of_query<'p>(
        words: &'a str,
        subprotocols: impl Iterator<Item = &'p str>,
    ) -> Result<Connect<'a>, Refused> {
        let (mut vsn, mut token, mut positions) = (None, None, false);
        for (name, value) in query::pairs(words) {
            match name {
                "vsn" => vsn = Some(query::value(value).ok_or(Refused::Query)?),
                "token" => token = Some(query::value(value).ok_or(Refused::Query)?),
                "positions" => positions = value.parse().map_err(|_| Refused::Positions)?,
                _ => {}
            }
        }
        let (mut of_subprotocols, mut offered, mut subprotocol) = (None, false, None);
        for name in subprotocols {
            match name.strip_prefix(TOKEN_PREFIX) {
                Some(text) => {
                    let token = decode_base64(text).and_then(|bytes| String::from_utf8(bytes).ok());
                    let token = token.filter(|_| of_subprotocols.is_none()).ok_or(Refused::Token)?;
                    of_subprotocols = Some(token);
                }
                None => {
                    offered = true;
                    subprotocol = subprotocol.or((name == SUBPROTOCOL).then_some(SUBPROTOCOL));
                }
            }
        }
        if offered && subprotocol.is_none() {
            return Err(Refused::Subprotocol);
        }
        let version = Version::of(vsn.as_deref().unwrap_or("1.0.0")).ok_or(Refused::Version)?;
        Ok(Connect { version, token: of_subprotocols.or(token), positions, subprotocol, query: words })
    }
}

/// Decodes base64 with either alphabet, with or without padding: clients have used both.
pub(super) fn decode_base64(text: &str) -> Option<Vec<u8>> {
    let text = text.trim_end_matches('=').as_bytes();
    let value = |char: u8| match char {
        b'A'..=b'Z' => Some(char - b'A'),
        b'a'..=b'z' => Some(char - b'a' + 26),
        b'0'..=b'9' => Some(char - b'0' + 52),
        b'+' | b'-' => Some(62),
        b'/' | b'_' => Some(63),
        _ => None,
    };
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for chars in text.chunks(4) {
        let mut bits = 0;
        for &char in chars {
            bits = bits << 6 | u32::from(value(char)?);
        }
        // A last group of two or three characters has four or two spare bits.
        let (spare, whole) = match chars.len() {
            4 => (0, 3),
            3 => (2, 2),
            2 => (4, 1),
            _ => return None,
        };
        if bits & ((1 << spare) - 1) != 0 {
            return None;
        }
        bytes.extend_from_slice(&(bits >> spare).to_be_bytes()[4 - whole..]);
    }
    Some(bytes)
}
