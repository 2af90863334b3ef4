//! Fields of a session's records. Numbers have 7 bits per byte, the lowest first, or are little-endian of a
//! fixed length; texts and bytes have their length in front.

use crate::machine::Damaged;

pub(crate) const SHORT: Damaged = Damaged("a field ends behind its record, or is no number");

/// Encodes a number for [`Reader::number`].
pub(crate) fn write_number(number: u64, out: &mut Vec<u8>) {
    let mut left = number;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

pub(crate) fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    write_number(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

/// The bytes that are not decoded yet.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    /// Decodes a number in its shortest encoding.
    pub fn number<T: TryFrom<u64>>(&mut self) -> Result<T, Damaged> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits {
                return Err(SHORT);
            }
            number |= bits << shift;
            if byte < 0x80 {
                let is_shortest = byte > 0 || shift == 0;
                return T::try_from(number).ok().filter(|_| is_shortest).ok_or(SHORT);
            }
        }
        Err(SHORT)
    }

    pub fn byte(&mut self) -> Result<u8, Damaged> {
        self.chunk().map(|[byte]| byte)
    }

    pub fn chunk<const N: usize>(&mut self) -> Result<[u8; N], Damaged> {
        let (chunk, rest) = self.0.split_first_chunk().ok_or(SHORT)?;
        self.0 = rest;
        Ok(*chunk)
    }

    pub fn take(&mut self, length: usize) -> Result<&'a [u8], Damaged> {
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(SHORT)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub fn bytes(&mut self) -> Result<&'a [u8], Damaged> {
        let length = self.number()?;
        self.take(length)
    }

    pub fn text(&mut self) -> Result<&'a str, Damaged> {
        utf8(self.bytes()?)
    }
}

pub(crate) fn utf8(bytes: &[u8]) -> Result<&str, Damaged> {
    std::str::from_utf8(bytes).map_err(|_| Damaged("a text that is not UTF-8"))
}
