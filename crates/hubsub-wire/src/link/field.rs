//! Encoding of values in a frame. Integers are little-endian; bytes and texts have their length in front, 7
//! bits per byte, the lowest first (LEB128).

use super::error::Flaw;
use hubsub_types::{Epoch, HubId, Position, ProducerId, Seq};

/// A value in a frame: `read` decodes the output of `write`.
pub trait Field<'a>: Sized {
    fn write(&self, out: &mut Vec<u8>);
    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw>;
}

/// The bytes of a body that are not read yet.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8], Flaw> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Flaw::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// The length of the next field; never more than the remaining bytes.
    pub fn length(&mut self) -> Result<usize, Flaw> {
        let length = self.short(5)?;
        usize::try_from(length).ok().filter(|&length| length <= self.0.len()).ok_or(Flaw::Short)
    }

    /// A number of at most this many bytes, 7 bits each.
    pub fn short(&mut self, bytes_max: u32) -> Result<u64, Flaw> {
        let mut number = 0_u64;
        for shift in (0..bytes_max).map(|byte| 7 * byte) {
            let byte = u8::read(self)?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits {
                return Err(Flaw::Value(number));
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(Flaw::Value(number))
    }
}

pub(super) fn write_length(length: usize, out: &mut Vec<u8>) {
    write_short(length as u64, out);
}

/// Encodes a number for [`Reader::short`].
pub(super) fn write_short(number: u64, out: &mut Vec<u8>) {
    let mut left = number;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// A number that is usually small, 7 bits per byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Short(pub u64);

impl Field<'_> for Short {
    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        write_short(self.0, out);
    }

    #[inline]
    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        from.short(10).map(Short)
    }
}

macro_rules! integers {
    ($($type:ty)+) => {$(
        impl Field<'_> for $type {
            #[inline]
            fn write(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
                let (bytes, rest) = from.0.split_first_chunk().ok_or(Flaw::Short)?;
                from.0 = rest;
                Ok(<$type>::from_le_bytes(*bytes))
            }
        }
    )+};
}

integers! { u8 u16 u32 u64 }

macro_rules! ids {
    ($($type:ident)+) => {$(
        impl Field<'_> for $type {
            #[inline]
            fn write(&self, out: &mut Vec<u8>) {
                self.0.write(out);
            }

            #[inline]
            fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
                Field::read(from).map($type)
            }
        }
    )+};
}

ids! { HubId Epoch Seq ProducerId }

impl Field<'_> for Position {
    fn write(&self, out: &mut Vec<u8>) {
        self.epoch.write(out);
        self.seq.write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        Ok(Position { epoch: Field::read(from)?, seq: Field::read(from)? })
    }
}

impl Field<'_> for bool {
    fn write(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        match u8::read(from)? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Flaw::Value(u64::from(other))),
        }
    }
}

impl<'a> Field<'a> for &'a [u8; 32] {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(*self);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        let (bytes, rest) = from.0.split_first_chunk().ok_or(Flaw::Short)?;
        from.0 = rest;
        Ok(bytes)
    }
}

impl<'a> Field<'a> for &'a [u8] {
    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        write_length(self.len(), out);
        out.extend_from_slice(self);
    }

    #[inline]
    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        let length = from.length()?;
        from.take(length)
    }
}

impl<'a> Field<'a> for &'a str {
    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        self.as_bytes().write(out);
    }

    #[inline]
    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        std::str::from_utf8(Field::read(from)?).map_err(|_| Flaw::NotUtf8)
    }
}
