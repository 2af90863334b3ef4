//! Decoding of frames. A frame is decoded once it is complete. Nothing is stored between calls, so
//! the frames do not depend on how the input is split.

use super::frame::Frame;
use hubsub_message::frame::LENGTH_BYTES;
use hubsub_message::{Flaw, FrameError, Reader};

/// The item at the start of the input.
#[derive(Clone, PartialEq, Debug)]
pub enum Decoded<'a> {
    /// A frame in the first `bytes` bytes.
    Frame {
        frame: Frame<'a>,
        /// Bytes to remove before the next call.
        bytes: usize,
    },
    /// An incomplete frame, possibly empty.
    Incomplete {
        /// Length of input that the next call needs.
        needed: usize,
    },
}

/// Decodes the frame at the start of the input, if it is complete.
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
