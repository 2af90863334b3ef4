//! Error replies after which Redis, and so HubSub, closes a connection.

use std::fmt;

/// Input that is no command. The texts are those of Redis 7.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ProtocolError {
    InvalidMultibulkLength,
    /// An argument begins with this byte instead of `$`.
    ExpectedBulk(u8),
    /// The length of an argument is invalid, or makes the frame too large.
    InvalidBulkLength,
    TooBigMultibulkCount,
    TooBigBulkCount,
    TooBigInline,
    UnbalancedQuotes,
}

impl ProtocolError {
    pub fn write(self, out: &mut Vec<u8>) {
        out.reserve(64);
        out.extend_from_slice(b"-ERR Protocol error: ");
        match self {
            ProtocolError::ExpectedBulk(got) => {
                out.extend_from_slice(b"expected '$', got '");
                out.push(if matches!(got, b'\r' | b'\n') { b' ' } else { got });
                out.push(b'\'');
            }
            _ => out.extend_from_slice(self.words().as_bytes()),
        }
        out.extend_from_slice(b"\r\n");
    }

    fn words(self) -> &'static str {
        match self {
            ProtocolError::InvalidMultibulkLength => "invalid multibulk length",
            ProtocolError::ExpectedBulk(_) => "expected '$'",
            ProtocolError::InvalidBulkLength => "invalid bulk length",
            ProtocolError::TooBigMultibulkCount => "too big mbulk count string",
            ProtocolError::TooBigBulkCount => "too big bulk count string",
            ProtocolError::TooBigInline => "too big inline request",
            ProtocolError::UnbalancedQuotes => "unbalanced quotes in request",
        }
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())?;
        match self {
            ProtocolError::ExpectedBulk(got) => write!(f, ", got '{}'", got.escape_ascii()),
            _ => Ok(()),
        }
    }
}

impl std::error::Error for ProtocolError {}
