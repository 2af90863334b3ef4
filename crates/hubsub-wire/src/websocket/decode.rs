//! A decoder's position: its frame and its message. Control frames may come inside a message; data is
//! returned as it arrives.

use super::close::{CloseCode, Flaw};
use super::frame::{Header, Opcode, unmask};
use super::utf8::Utf8;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeLimits {
    /// Longest payload of one frame, in bytes.
    pub frame_bytes_max: u64,
    /// Longest message, all its payloads together, in bytes.
    pub message_bytes_max: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Peer {
    Client,
    Server,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// UTF-8; a piece may end inside a character.
    Text,
    Binary,
}

/// The item at the start of the input. Remove `len` bytes before the next call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded<'a> {
    /// A piece of a message, possibly empty.
    Data {
        kind: Kind,
        bytes: &'a [u8],
        last: bool,
        /// Includes the header, if it is the frame's first piece.
        len: usize,
    },
    /// Must be answered by a Pong with the same payload.
    Ping {
        payload: &'a [u8],
        len: usize,
    },
    Pong {
        payload: &'a [u8],
        len: usize,
    },
    /// Must be answered by a Close, if none was sent; all input after it is ignored.
    Close {
        code: Option<CloseCode>,
        reason: &'a str,
        len: usize,
    },
    /// Input after the Close, which is ignored.
    AfterClose {
        len: usize,
    },
    /// An incomplete frame, possibly empty.
    Incomplete {
        needed: usize,
    },
}

/// Decodes one frame after the other. It must not be used after an error.
#[derive(Clone, Debug)]
pub struct Decoder {
    from: Peer,
    /// The mask, rotated to the current position in the data frame.
    mask: [u8; 4],
    frame_left: u64,
    fin: bool,
    /// The current message, between its first frame and its last.
    message: Option<Kind>,
    message_bytes: u64,
    utf8: Utf8,
    closed: bool,
}

impl Decoder {
    /// A decoder for frames of that side, after the handshake.
    pub fn new(from: Peer) -> Decoder {
        let (mask, frame_left, fin, message, message_bytes) = ([0; 4], 0, true, None, 0);
        let (utf8, closed) = (Utf8::default(), false);
        Decoder { from, mask, frame_left, fin, message, message_bytes, utf8, closed }
    }

    /// Decodes the next item. `input` holds all bytes that were not removed yet; the returned bytes are
    /// unmasked in place, and nothing else is changed.
    ///
    /// # Errors
    /// The peer violates the protocol or the limits; the connection must be closed.
    #[inline]
    pub fn decode<'a>(&mut self, input: &'a mut [u8], limits: &DecodeLimits) -> Result<Decoded<'a>, Flaw> {
        if self.closed {
            let len = input.len();
            return Ok(if len > 0 { Decoded::AfterClose { len } } else { Decoded::Incomplete { needed: 1 } });
        }
        if self.frame_left > 0 {
            if input.is_empty() {
                return Ok(Decoded::Incomplete { needed: 1 });
            }
            return self.data(input, 0);
        }
        let header = match Header::read(input, self.from == Peer::Client)? {
            Ok(header) => header,
            Err(needed) => return Ok(Decoded::Incomplete { needed }),
        };
        if header.opcode.is_control() {
            return self.control(header, input);
        }
        self.check(&header, limits)?;
        if header.payload_bytes > 0 && input.len() == header.bytes {
            return Ok(Decoded::Incomplete { needed: header.bytes + 1 });
        }
        self.begin(&header);
        self.data(input, header.bytes)
    }

    /// Checks that a data frame is allowed here and short enough.
    fn check(&self, header: &Header, limits: &DecodeLimits) -> Result<(), Flaw> {
        let continues = header.opcode == Opcode::Continuation;
        match (continues, self.message) {
            (true, None) => return Err(Flaw::NothingToContinue),
            (false, Some(_)) => return Err(Flaw::NotContinued),
            _ => {}
        }
        let (bytes, max) = (header.payload_bytes, limits.frame_bytes_max);
        if bytes > max {
            return Err(Flaw::FrameTooLarge(bytes, max));
        }
        let before = if continues { self.message_bytes } else { 0 };
        let (bytes, max) = (before.saturating_add(bytes), limits.message_bytes_max);
        if bytes > max { Err(Flaw::MessageTooLarge(bytes, max)) } else { Ok(()) }
    }

    fn begin(&mut self, header: &Header) {
        if header.opcode != Opcode::Continuation {
            self.message = Some(if header.opcode == Opcode::Text { Kind::Text } else { Kind::Binary });
            self.message_bytes = 0;
            self.utf8 = Utf8::default();
        }
        self.message_bytes += header.payload_bytes;
        self.frame_left = header.payload_bytes;
        self.fin = header.fin;
        self.mask = header.mask.unwrap_or_default();
    }

    /// The next piece of the current data frame, which begins at `at`.
    #[inline]
    fn data<'a>(&mut self, input: &'a mut [u8], at: usize) -> Result<Decoded<'a>, Flaw> {
        let there = input.len() - at;
        let bytes = usize::try_from(self.frame_left).map_or(there, |left| left.min(there));
        let piece = &mut input[at..at + bytes];
        if self.from == Peer::Client {
            self.mask = unmask(piece, self.mask);
        }
        self.frame_left -= bytes as u64;
        let last = self.fin && self.frame_left == 0;
        let kind = self.message.expect("a data frame is in a message");
        if kind == Kind::Text && (!self.utf8.read(piece) || last && !self.utf8.is_whole()) {
            return Err(Flaw::NotUtf8);
        }
        if last {
            self.message = None;
        }
        Ok(Decoded::Data { kind, bytes: piece, last, len: at + bytes })
    }

    fn control<'a>(&mut self, header: Header, input: &'a mut [u8]) -> Result<Decoded<'a>, Flaw> {
        let len = header.bytes + header.payload_bytes as usize;
        let Some(payload) = input.get_mut(header.bytes..len) else {
            return Ok(Decoded::Incomplete { needed: len });
        };
        if let Some(mask) = header.mask {
            unmask(payload, mask);
        }
        let payload = &*payload;
        match header.opcode {
            Opcode::Ping => return Ok(Decoded::Ping { payload, len }),
            Opcode::Pong => return Ok(Decoded::Pong { payload, len }),
            _ => {}
        }
        self.closed = true;
        let (code, reason) = match payload {
            [] => (None, &[][..]),
            [_] => return Err(Flaw::ClosePayload),
            [a, b, reason @ ..] => {
                let number = u16::from_be_bytes([*a, *b]);
                (Some(CloseCode::new(number).ok_or(Flaw::CloseNumber(number))?), reason)
            }
        };
        let reason = std::str::from_utf8(reason).map_err(|_| Flaw::NotUtf8)?;
        Ok(Decoded::Close { code, reason, len })
    }
}
