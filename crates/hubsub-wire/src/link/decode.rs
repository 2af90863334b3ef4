//! Decoding of frames. A frame is decoded once it is complete. Nothing is stored between calls, so
//! the frames do not depend on how the input is split.

use super::frame::Frame;
use hubsub_message::frame::LENGTH_BYTES;
use hubsub_message::{Flaw, FrameError, Reader};

#[derive(Clone, PartialEq, Debug)]
pub enum Decoded<'a> {
    /// A frame in the first `bytes` bytes, to be removed before the next call.
    Frame { frame: Frame<'a>, bytes: usize },
    /// An incomplete frame, possibly empty: the next call needs this much input.
    Incomplete { needed: usize },
}

/// A complete frame whose body is not decoded yet.
pub(super) struct Raw<'a> {
    pub code: u8,
    body: &'a [u8],
    pub bytes: usize,
}

impl<'a> Raw<'a> {
    /// The frame at the start of the input, or the length of input that the next call needs.
    ///
    /// # Errors
    /// The input is no frame, or one of more than `bytes_max` bytes.
    pub fn split(input: &'a [u8], bytes_max: usize) -> Result<Result<Raw<'a>, usize>, FrameError> {
        let Some((length, rest)) = input.split_first_chunk::<LENGTH_BYTES>() else {
            return Ok(Err(LENGTH_BYTES));
        };
        let length = u32::from_le_bytes(*length);
        let bytes = LENGTH_BYTES as u64 + u64::from(length);
        if bytes > bytes_max as u64 {
            return Err(FrameError::TooLong { bytes, max: bytes_max });
        }
        let bytes = bytes as usize;
        let Some(frame) = rest.get(..bytes - LENGTH_BYTES) else { return Ok(Err(bytes)) };
        let (&code, body) = frame.split_first().ok_or(FrameError::Empty)?;
        Ok(Ok(Raw { code, body, bytes }))
    }

    /// # Errors
    /// The type is unknown, or the body is invalid for it.
    pub fn decode(&self) -> Result<Frame<'a>, FrameError> {
        let mut from = Reader(self.body);
        let frame = Frame::read(self.code, &mut from)?;
        match from.0.len() {
            0 => Ok(frame),
            left => Err(FrameError::Flawed { frame: frame.name(), flaw: Flaw::Trailing(left) }),
        }
    }
}

/// Decodes the frame at the start of the input, if it is complete.
///
/// # Errors
/// The input is no frame, or one of more than `bytes_max` bytes.
pub fn decode(input: &[u8], bytes_max: usize) -> Result<Decoded<'_>, FrameError> {
    match Raw::split(input, bytes_max)? {
        Ok(raw) => Ok(Decoded::Frame { frame: raw.decode()?, bytes: raw.bytes }),
        Err(needed) => Ok(Decoded::Incomplete { needed }),
    }
}
