//! Encoding of values in a frame. Integers are little-endian; bytes and texts have their length in front, 7
//! bits per byte, the lowest first (LEB128).

use crate::AskId;
use crate::error::Flaw;
use hubsub_types::{Epoch, HubId, Position, ProducerId, Seq, Term};
use std::sync::Arc;

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

/// Encodes a length for [`Reader::length`].
pub fn write_length(length: usize, out: &mut Vec<u8>) {
    write_short(length as u64, out);
}

/// Encodes a number for [`Reader::short`].
pub fn write_short(number: u64, out: &mut Vec<u8>) {
    let mut left = number;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

/// Encodes a list: its count, then its values.
pub fn write_list<T>(values: &[T], out: &mut Vec<u8>, write: impl Fn(&T, &mut Vec<u8>)) {
    write_length(values.len(), out);
    values.iter().for_each(|value| write(value, out));
}

/// Decodes a list of values of at least one byte each.
///
/// # Errors
/// The count exceeds the bytes that are left, or a value is invalid.
pub fn read_list<'a, L, T>(
    from: &mut Reader<'a>,
    mut read: impl FnMut(&mut Reader<'a>) -> Result<T, Flaw>,
) -> Result<L, Flaw>
where
    Result<L, Flaw>: FromIterator<Result<T, Flaw>>,
{
    let count = from.length()?;
    (0..count).map(|_| read(from)).collect()
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

ids! { HubId Epoch Seq ProducerId Term AskId }

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

impl Field<'_> for Arc<[u8]> {
    #[inline]
    fn write(&self, out: &mut Vec<u8>) {
        (&**self).write(out);
    }

    #[inline]
    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        <&[u8]>::read(from).map(Into::into)
    }
}

/// First and last of a range that may be empty: then both are 0.
impl<'a, T: Field<'a> + Copy + Default + PartialEq> Field<'a> for Option<(T, T)> {
    fn write(&self, out: &mut Vec<u8>) {
        let (first, last) = self.unwrap_or_default();
        first.write(out);
        last.write(out);
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        let (first, last) = (T::read(from)?, T::read(from)?);
        Ok((first != T::default()).then_some((first, last)))
    }
}

/// A hub and one of its terms: 2 to 15 bytes.
impl Field<'_> for (HubId, Term) {
    fn write(&self, out: &mut Vec<u8>) {
        write_short(u64::from(self.0.0), out);
        write_short(self.1.0, out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
        let hub = from.short(5)?;
        let hub = u32::try_from(hub).map_err(|_| Flaw::Value(hub))?;
        Ok((HubId(hub), Term(from.short(10)?)))
    }
}
