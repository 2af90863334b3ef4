//! The echo server, a client's input to it, and a case: the output for that input, split in several ways.

use hubsub_wire::websocket::*;

const LIMIT: u64 = 16 << 20;
const MASK: [u8; 4] = [0x37, 0xFA, 0x21, 0x3D];

/// A server that sends each message back.
pub struct Echo {
    decoder: Decoder,
    input: Vec<u8>,
    message: Vec<u8>,
    pub out: Vec<u8>,
    pub is_closed: bool,
}

impl Echo {
    pub fn new() -> Echo {
        Echo {
            decoder: Decoder::new(Peer::Client),
            input: Vec::new(),
            message: Vec::new(),
            out: Vec::new(),
            is_closed: false,
        }
    }

    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let limits = DecodeLimits { frame_bytes_max: LIMIT, message_bytes_max: LIMIT };
        let (mut input, mut at) = (std::mem::take(&mut self.input), 0);
        while !self.is_closed {
            at += match self.decoder.decode(&mut input[at..], &limits) {
                Ok(Decoded::Incomplete { .. }) => break,
                Ok(Decoded::Data { kind, bytes, last, len }) => {
                    self.message.extend_from_slice(bytes);
                    if last {
                        let opcode = if kind == Kind::Text { Opcode::Text } else { Opcode::Binary };
                        write_frame(&mut self.out, opcode, true, &self.message, None);
                        self.message.clear();
                    }
                    len
                }
                Ok(Decoded::Ping { payload, len }) => {
                    write_frame(&mut self.out, Opcode::Pong, true, payload, None);
                    len
                }
                Ok(Decoded::Pong { len, .. } | Decoded::AfterClose { len }) => len,
                Ok(Decoded::Close { code, len, .. }) => {
                    self.close(code.unwrap_or(CloseCode::NORMAL));
                    len
                }
                Err(flaw) => {
                    self.close(flaw.code());
                    0
                }
            };
        }
        input.drain(..at);
        self.input = input;
    }

    fn close(&mut self, code: CloseCode) {
        write_close(&mut self.out, code, "", None);
        self.is_closed = true;
    }
}

/// An item that a client receives.
#[derive(Clone, PartialEq, Eq)]
pub enum Got {
    Text(Vec<u8>),
    Binary(Vec<u8>),
    Pong(Vec<u8>),
    /// The end, with this code.
    Close(u16),
}

impl std::fmt::Debug for Got {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let short = |bytes: &[u8]| format!("{} bytes, {:02x?}", bytes.len(), &bytes[..bytes.len().min(32)]);
        match self {
            Got::Text(bytes) => write!(f, "Text({})", short(bytes)),
            Got::Binary(bytes) => write!(f, "Binary({})", short(bytes)),
            Got::Pong(bytes) => write!(f, "Pong({})", short(bytes)),
            Got::Close(code) => write!(f, "Close({code})"),
        }
    }
}

pub fn got(out: &mut [u8]) -> Vec<Got> {
    let limits = DecodeLimits { frame_bytes_max: LIMIT, message_bytes_max: LIMIT };
    let (mut decoder, mut at, mut all) = (Decoder::new(Peer::Server), 0, Vec::new());
    while at < out.len() {
        at += match decoder.decode(&mut out[at..], &limits).expect("a server's frames are valid") {
            Decoded::Data { kind: Kind::Text, bytes, len, .. } => {
                all.push(Got::Text(bytes.to_vec()));
                len
            }
            Decoded::Data { kind: Kind::Binary, bytes, len, .. } => {
                all.push(Got::Binary(bytes.to_vec()));
                len
            }
            Decoded::Pong { payload, len } => {
                all.push(Got::Pong(payload.to_vec()));
                len
            }
            Decoded::Close { code, len, .. } => {
                all.push(Got::Close(code.expect("the server says one").number()));
                len
            }
            other => panic!("a server does not say this: {other:?}"),
        };
    }
    all
}

/// A frame of a client: first byte, payload.
pub fn frame(first: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_frame_header(&mut out, Opcode::Binary, true, payload.len(), Some(MASK));
    out[0] = first;
    let at = out.len();
    out.extend_from_slice(payload);
    unmask(&mut out[at..], MASK);
    out
}

pub const FIN: u8 = 0x80;
pub const TEXT: u8 = FIN | 1;
pub const BINARY: u8 = FIN | 2;
pub const CLOSE: u8 = FIN | 8;
pub const PING: u8 = FIN | 9;
pub const PONG: u8 = FIN | 10;

pub fn text(payload: &str) -> Vec<u8> {
    frame(TEXT, payload.as_bytes())
}

/// Close with a code and a reason.
pub fn close(code: u16, reason: &[u8]) -> Vec<u8> {
    frame(CLOSE, &[&code.to_be_bytes()[..], reason].concat())
}

/// A text in two frames.
pub fn halves(one: &str, two: &str) -> [Vec<u8>; 2] {
    [frame(1, one.as_bytes()), frame(FIN, two.as_bytes())]
}

pub fn echoed(payload: &str) -> Got {
    Got::Text(payload.into())
}

/// Plays a case in several ways: whole, frame by frame, and byte by byte if that is not too long.
pub fn case(name: &str, sent: &[Vec<u8>], expected: &[Got]) {
    let whole = sent.concat();
    let cuts: [&mut dyn FnMut(&mut Echo); 3] = [
        &mut |echo| echo.receive(&whole),
        &mut |echo| sent.iter().for_each(|frame| echo.receive(frame)),
        &mut |echo| match whole.len() {
            0..=70_000 => whole.iter().for_each(|byte| echo.receive(&[*byte])),
            _ => whole.chunks(997).for_each(|part| echo.receive(part)),
        },
    ];
    for (number, cut) in cuts.into_iter().enumerate() {
        let mut echo = Echo::new();
        cut(&mut echo);
        assert_eq!(got(&mut echo.out), expected, "case {name}, cut {number}");
    }
}

pub const PROTOCOL: Got = Got::Close(1002);
pub const NOT_UTF8: Got = Got::Close(1007);
pub const DONE: Got = Got::Close(1000);
