//! Errors of frames.

use std::fmt;

/// Invalid frame; the link ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameError {
    /// A frame announces more bytes than it may have at this point.
    TooLong {
        /// Length, including the length field.
        bytes: u64,
        /// The limit at this point.
        max: usize,
    },
    /// A frame without a type.
    Empty,
    /// A type that this version does not have.
    UnknownType(u8),
    /// The body is invalid for its type.
    Flawed { frame: &'static str, flaw: Flaw },
}

/// Error in the body of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flaw {
    /// It ends inside a field.
    Short,
    /// This many bytes follow the last field.
    Trailing(usize),
    /// A text is not UTF-8.
    NotUtf8,
    /// The value is out of range for its field.
    Value(u64),
}

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FrameError::TooLong { bytes, max } => write!(f, "frame too long: {bytes} bytes, at most {max}"),
            FrameError::Empty => f.write_str("frame without a type"),
            FrameError::UnknownType(code) => write!(f, "unknown frame type: {code}"),
            FrameError::Flawed { frame, flaw } => match flaw {
                Flaw::Short => write!(f, "{frame} ends inside a field"),
                Flaw::Trailing(bytes) => write!(f, "bytes behind {frame}: {bytes}"),
                Flaw::NotUtf8 => write!(f, "text in {frame} is not UTF-8"),
                Flaw::Value(value) => write!(f, "value in {frame} out of range: {value}"),
            },
        }
    }
}

impl std::error::Error for FrameError {}
