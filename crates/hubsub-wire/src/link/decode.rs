//! Bytes into frames. A frame is looked at when all of it is there; nothing is
//! kept between calls and nothing allocated, so that however the input is cut,
//! the same frames come of it.

use super::error::{Flaw, FrameError};
use super::field::Reader;
use super::frame::{Frame, LENGTH_BYTES};

/// What the input begins with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Decoded<'a> {
    /// A frame in the first `bytes` bytes.
    Frame {
        /// What it says.
        frame: Frame<'a>,
        /// Bytes to take off before the next call.
        bytes: usize,
    },
    /// A frame's beginning, perhaps none of it yet.
    Incomplete {
        /// Length of input below which another call is useless.
        needed: usize,
    },
}

/// Reads the frame that the input begins with, if it has come whole.
///
/// # Errors
/// The input is no frame, or one of more than `bytes_max` bytes.
pub fn decode(input: &[u8], bytes_max: usize) -> Result<Decoded<'_>, FrameError> {
    let Some((length, rest)) = input.split_first_chunk::<LENGTH_BYTES>() else {
        return Ok(Decoded::Incomplete { needed: LENGTH_BYTES });
    };
    let length = u32::from_le_bytes(*length);
    let bytes = LENGTH_BYTES as u64 + u64::from(length);
    if bytes > bytes_max as u64 {
        return Err(FrameError::TooLong { bytes, max: bytes_max });
    }
    let bytes = bytes as usize;
    let Some(frame) = rest.get(..bytes - LENGTH_BYTES) else {
        return Ok(Decoded::Incomplete { needed: bytes });
    };
    let (&code, body) = frame.split_first().ok_or(FrameError::Empty)?;
    let mut from = Reader(body);
    let frame = Frame::read(code, &mut from)?;
    match from.0.len() {
        0 => Ok(Decoded::Frame { frame, bytes }),
        left => Err(FrameError::Flawed { frame: frame.name(), flaw: Flaw::Trailing(left) }),
    }
}
