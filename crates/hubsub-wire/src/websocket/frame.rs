//! Frames (section 5.2): headers in both directions, and encoding. A server's frames are not masked; a
//! client's are, each with its own mask.

use super::close::{CloseCode, Flaw};

pub(super) const CONTROL_BYTES_MAX: usize = 125;

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Opcode {
    Continuation = 0,
    Text = 1,
    Binary = 2,
    Close = 8,
    Ping = 9,
    /// The reply to Ping, or a sign of life.
    Pong = 10,
}

impl Opcode {
    fn from_bits(bits: u8) -> Option<Opcode> {
        let all =
            [Opcode::Continuation, Opcode::Text, Opcode::Binary, Opcode::Close, Opcode::Ping, Opcode::Pong];
        all.into_iter().find(|&opcode| opcode as u8 == bits)
    }

    #[must_use]
    pub fn is_control(self) -> bool {
        self as u8 >= 8
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Header {
    pub fin: bool,
    pub opcode: Opcode,
    pub mask: Option<[u8; 4]>,
    pub payload_bytes: u64,
    pub bytes: usize,
}

impl Header {
    /// The header, or the length of input needed to decode more. Each byte is checked once it is there.
    #[inline]
    pub fn read(input: &[u8], masked: bool) -> Result<Result<Header, usize>, Flaw> {
        let Some(&first) = input.first() else { return Ok(Err(1)) };
        if first & 0x70 != 0 {
            return Err(Flaw::ReservedBits(first));
        }
        let opcode = Opcode::from_bits(first & 0x0F).ok_or(Flaw::UnknownOpcode(first & 0x0F))?;
        let fin = first & 0x80 != 0;
        if opcode.is_control() && !fin {
            return Err(Flaw::ControlFragmented);
        }
        let Some(&second) = input.get(1) else { return Ok(Err(2)) };
        match (second & 0x80 != 0, masked) {
            (false, true) => return Err(Flaw::NotMasked),
            (true, false) => return Err(Flaw::Masked),
            _ => {}
        }
        let (payload_bytes, at) = match second & 0x7F {
            126 => match input.get(2..4) {
                None => return Ok(Err(4)),
                Some(length) => (u64::from(length[0]) << 8 | u64::from(length[1]), 4),
            },
            127 => match input.get(2..).and_then(<[u8]>::first_chunk) {
                None => return Ok(Err(10)),
                Some(length) => (u64::from_be_bytes(*length), 10),
            },
            short => (u64::from(short), 2),
        };
        if payload_bytes > i64::MAX as u64 {
            return Err(Flaw::LengthTooLong);
        }
        if at == 4 && payload_bytes < 126 || at == 10 && payload_bytes <= u64::from(u16::MAX) {
            return Err(Flaw::LengthNotShortest);
        }
        if opcode.is_control() && payload_bytes > CONTROL_BYTES_MAX as u64 {
            return Err(Flaw::ControlTooLong(payload_bytes));
        }
        if !masked {
            return Ok(Ok(Header { fin, opcode, mask: None, payload_bytes, bytes: at }));
        }
        let mask = input.get(at..).and_then(<[u8]>::first_chunk).copied();
        let header = mask.map(|mask| Header { fin, opcode, mask: Some(mask), payload_bytes, bytes: at + 4 });
        Ok(header.ok_or(at + 4))
    }
}

/// Appends a header; the payload must follow, masked if there is a mask.
#[inline]
pub fn write_frame_header(
    out: &mut Vec<u8>,
    opcode: Opcode,
    fin: bool,
    payload_bytes: usize,
    mask: Option<[u8; 4]>,
) {
    out.push(opcode as u8 | if fin { 0x80 } else { 0 });
    let masked = if mask.is_some() { 0x80 } else { 0 };
    match payload_bytes {
        0..=125 => out.push(payload_bytes as u8 | masked),
        126..=0xFFFF => {
            out.push(126 | masked);
            out.extend_from_slice(&(payload_bytes as u16).to_be_bytes());
        }
        _ => {
            out.push(127 | masked);
            out.extend_from_slice(&(payload_bytes as u64).to_be_bytes());
        }
    }
    if let Some(mask) = mask {
        out.extend_from_slice(&mask);
    }
}

/// Appends a frame, masked if there is a mask.
///
/// # Panics
/// It is a control frame in fragments, or of more than 125 bytes.
#[inline]
pub fn write_frame(out: &mut Vec<u8>, opcode: Opcode, fin: bool, payload: &[u8], mask: Option<[u8; 4]>) {
    let fits = fin && payload.len() <= CONTROL_BYTES_MAX;
    assert!(fits || !opcode.is_control(), "control frames are short and whole");
    write_frame_header(out, opcode, fin, payload.len(), mask);
    let at = out.len();
    out.extend_from_slice(payload);
    if let Some(mask) = mask {
        unmask(&mut out[at..], mask);
    }
}

/// Appends a Close frame; a reason longer than 123 bytes is truncated at a character boundary.
pub fn write_close(out: &mut Vec<u8>, code: CloseCode, reason: &str, mask: Option<[u8; 4]>) {
    let longest = reason.len().min(CONTROL_BYTES_MAX - 2);
    let cut = (0..=longest).rev().find(|&at| reason.is_char_boundary(at)).unwrap_or(0);
    let payload = [&code.number().to_be_bytes(), &reason.as_bytes()[..cut]].concat();
    write_frame(out, Opcode::Close, true, &payload, mask);
}

/// Masks or unmasks bytes in place (section 5.3), eight at a time; returns the mask for the bytes after them.
#[inline]
pub fn unmask(bytes: &mut [u8], mask: [u8; 4]) -> [u8; 4] {
    let [a, b, c, d] = mask;
    let wide = u64::from_ne_bytes([a, b, c, d, a, b, c, d]);
    let (words, rest) = bytes.as_chunks_mut::<8>();
    for word in words {
        *word = (u64::from_ne_bytes(*word) ^ wide).to_ne_bytes();
    }
    for (byte, mask) in rest.iter_mut().zip(mask.iter().cycle()) {
        *byte ^= mask;
    }
    let mut mask = mask;
    mask.rotate_left(rest.len() % 4);
    mask
}
