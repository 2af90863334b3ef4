//! Encoding of values (section 1.5 of 5.0): integers big-endian, bytes and texts with two bytes of length in
//! front, short numbers 7 bits per byte, the lowest first.

use super::error::{EncodeError, Flaw};
use memchr::memchr;
use std::num::{NonZeroU16, NonZeroU32};

pub const SHORT_MAX: u32 = 268_435_455;

#[derive(Clone, Copy, Debug)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    pub fn take(&mut self, bytes: usize) -> Result<&'a [u8], Flaw> {
        let (taken, rest) = self.0.split_at_checked(bytes).ok_or(Flaw::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    pub fn rest(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.0)
    }

    /// Fails if bytes remain.
    pub fn end(self) -> Result<(), Flaw> {
        if self.0.is_empty() { Ok(()) } else { Err(Flaw::Trailing(self.0.len())) }
    }

    /// A number of at most four bytes, in its shortest encoding.
    #[inline]
    pub fn short(&mut self) -> Result<u32, Flaw> {
        match short(self.0)? {
            None => Err(Flaw::Short),
            Some(Short { shortest: false, .. }) => Err(Flaw::LengthNotShortest),
            Some(Short { number, bytes, .. }) => {
                self.0 = &self.0[bytes..];
                Ok(number)
            }
        }
    }
}

/// A number of 7 bits per byte.
#[derive(Clone, Copy, Debug)]
pub struct Short {
    pub number: u32,
    pub bytes: usize,
    pub shortest: bool,
}

/// The number at the start of the input; `None` while it is incomplete.
#[inline]
pub fn short(input: &[u8]) -> Result<Option<Short>, Flaw> {
    let mut number = 0;
    for (i, &byte) in input.iter().take(4).enumerate() {
        number |= u32::from(byte & 0x7F) << (7 * i);
        if byte < 0x80 {
            return Ok(Some(Short { number, bytes: i + 1, shortest: i == 0 || byte != 0 }));
        }
    }
    if input.len() < 4 { Ok(None) } else { Err(Flaw::LengthTooLong) }
}

/// Encodes a number for [`short`]; at most `SHORT_MAX`.
#[inline]
pub fn write_short(out: &mut Vec<u8>, number: u32) {
    let mut left = number;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

pub fn short_len(number: usize) -> usize {
    match number {
        0..0x80 => 1,
        0x80..0x4000 => 2,
        0x4000..0x20_0000 => 3,
        _ => 4,
    }
}

/// Converts a remaining length, if the protocol allows it and the packet is short enough.
#[inline]
pub fn remaining_length_checked(length: usize, packet_bytes_max: usize) -> Result<u32, EncodeError> {
    let bytes = length.saturating_add(1 + short_len(length));
    match u32::try_from(length) {
        Ok(length) if length <= SHORT_MAX && bytes <= packet_bytes_max => Ok(length),
        _ => Err(EncodeError::TooLong { bytes }),
    }
}

/// A text: UTF-8 without NUL. Surrogates are invalid; a byte order mark is retained.
#[inline]
pub fn text(bytes: &[u8]) -> Result<&str, Flaw> {
    if memchr(0, bytes).is_some() {
        return Err(Flaw::NulInText);
    }
    std::str::from_utf8(bytes).map_err(|_| Flaw::NotUtf8)
}

/// Appends a body; keeps the last error.
#[derive(Debug)]
pub struct Writer<'a> {
    pub out: &'a mut Vec<u8>,
    pub error: Option<EncodeError>,
}

/// A value in a packet: `read` decodes the output of `write`.
pub trait Field<'a>: Sized {
    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw>;
    fn write(&self, to: &mut Writer<'_>);
}

macro_rules! integers {
    ($($type:ty)+) => {$(
        impl Field<'_> for $type {
            #[inline]
            fn read(from: &mut Reader<'_>) -> Result<Self, Flaw> {
                let (bytes, rest) = from.0.split_first_chunk().ok_or(Flaw::Short)?;
                from.0 = rest;
                Ok(<$type>::from_be_bytes(*bytes))
            }

            fn write(&self, to: &mut Writer<'_>) {
                to.out.extend_from_slice(&self.to_be_bytes());
            }
        }
    )+};
}

integers! { u8 u16 u32 }

impl<'a> Field<'a> for &'a [u8] {
    #[inline]
    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        let length = u16::read(from)?;
        from.take(usize::from(length))
    }

    fn write(&self, to: &mut Writer<'_>) {
        match u16::try_from(self.len()) {
            Ok(length) => {
                length.write(to);
                to.out.extend_from_slice(self);
            }
            Err(_) => to.error = Some(EncodeError::FieldTooLong { bytes: self.len() }),
        }
    }
}

impl<'a> Field<'a> for &'a str {
    #[inline]
    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        text(Field::read(from)?)
    }

    fn write(&self, to: &mut Writer<'_>) {
        self.as_bytes().write(to);
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pair<'a> {
    /// Any text; names may be repeated.
    pub name: &'a str,
    pub value: &'a str,
}

impl<'a> Field<'a> for Pair<'a> {
    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        Ok(Pair { name: Field::read(from)?, value: Field::read(from)? })
    }

    fn write(&self, to: &mut Writer<'_>) {
        self.name.write(to);
        self.value.write(to);
    }
}

/// Packet identifier; never 0.
pub type PacketId = NonZeroU16;

/// Subscription identifier, chosen by the client: 1 to 268,435,455.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SubscriptionId(NonZeroU32);

impl SubscriptionId {
    /// `None` if the number is out of range.
    pub fn new(number: u32) -> Option<SubscriptionId> {
        NonZeroU32::new(number).filter(|number| number.get() <= SHORT_MAX).map(SubscriptionId)
    }

    #[must_use]
    pub fn get(self) -> u32 {
        self.0.get()
    }
}
