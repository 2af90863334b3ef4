//! Decoding of client commands: an array of bulk strings, `*<n>\r\n` and n times `$<length>\r\n<bytes>\r\n`,
//! or a line of words.
//!
//! The decoder owns offsets into the caller's bytes, never the bytes (except the words of an inline command,
//! without their quotes). However the input is split, no search for a line end starts again and no argument's
//! bytes are scanned. Memory is allocated for received arguments, not for announced ones. As in Redis, the
//! byte after a header's CR and the two after an argument are skipped unchecked.

use super::error::ProtocolError;
use super::inline;
use memchr::memchr;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeLimits {
    /// Longest command, arguments and framing together, in bytes; at most 4 GiB - 1.
    pub frame_bytes_max: usize,
    pub args_max: usize,
    /// Longest inline command or header, in bytes, without its line end.
    pub inline_bytes_max: usize,
}

/// The item at the start of the input.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded {
    /// A command of at least one argument, in the first `len` bytes.
    Command {
        len: usize,
    },
    /// An empty line or an array without elements, which is ignored.
    Skip {
        len: usize,
    },
    Incomplete,
}

/// Decodes one frame after the other, over several calls if its bytes arrive in pieces. A new one owns no
/// memory. It must not be used after an error.
#[derive(Clone, Default, Debug)]
pub struct Decoder {
    /// Start of the part of the frame that is not decoded yet.
    at: usize,
    /// End of the argument at `at`, including its CRLF; 0 if none has begun.
    body_end: usize,
    /// Bytes from `at` known to contain no line end.
    scanned: usize,
    /// Remaining arguments; 0 until a header is read.
    args_left: usize,
    needed: usize,
    /// Start and end of each argument, in the input or in `words`.
    args: Vec<(u32, u32)>,
    words: Vec<u8>,
    inline: bool,
}

impl Decoder {
    /// Arguments and bytes of words for which `reset` keeps the allocation.
    const KEPT_MAX: usize = 1_024;

    /// Decodes the next item. `input` holds all bytes since the start of the frame: those of the last call
    /// plus the new ones, or, after a complete frame, those after it.
    ///
    /// # Errors
    /// The input is no command; the connection must be closed.
    #[inline]
    pub fn decode(&mut self, input: &[u8], limits: &DecodeLimits) -> Result<Decoded, ProtocolError> {
        if self.args_left == 0 {
            match input.first() {
                None => return self.incomplete(1),
                Some(b'*') => {}
                Some(_) => return self.decode_inline(input, limits),
            }
            self.begin();
            if let Some(len) = self.decode_whole(input, limits) {
                self.scanned = 0;
                return Ok(Decoded::Command { len });
            }
            self.args.clear();
            let Some(header) = self.header(input, limits, ProtocolError::TooBigMultibulkCount)? else {
                return self.incomplete(input.len() + 1);
            };
            let (count, next) = (header.number.ok_or(ProtocolError::InvalidMultibulkLength)?, header.end);
            if count <= 0 {
                return Ok(Decoded::Skip { len: next });
            }
            if count as u64 > limits.args_max as u64 {
                return Err(ProtocolError::InvalidMultibulkLength);
            }
            self.args_left = count as usize;
            self.at = next;
        }
        self.decode_args(input, limits)
    }

    /// Fast path for complete commands with short headers. After `None` the caller clears `args`.
    #[inline]
    fn decode_whole(&mut self, input: &[u8], limits: &DecodeLimits) -> Option<usize> {
        let (count, mut at) = short_header(input)?;
        if count == 0 || count > limits.args_max {
            return None;
        }
        for _ in 0..count {
            let line = input.get(at..)?;
            let (length, header) = short_header(line).filter(|_| line[0] == b'$')?;
            let (start, end) = (at + header, at + header + length);
            at = end + 2;
            if at > input.len() || at > limits.frame_bytes_max {
                return None;
            }
            self.args.push((start as u32, end as u32));
        }
        Some(at)
    }

    fn decode_args(&mut self, input: &[u8], limits: &DecodeLimits) -> Result<Decoded, ProtocolError> {
        let frame_bytes_max = limits.frame_bytes_max.min(u32::MAX as usize);
        loop {
            if self.body_end == 0 {
                let Some(header) = self.header(input, limits, ProtocolError::TooBigBulkCount)? else {
                    return self.incomplete(input.len() + 1);
                };
                if input[self.at] != b'$' {
                    return Err(ProtocolError::ExpectedBulk(input[self.at]));
                }
                let length = header.number.and_then(|length| usize::try_from(length).ok());
                let end = length.and_then(|length| header.end.checked_add(length)?.checked_add(2));
                match end {
                    Some(end) if end <= frame_bytes_max => self.body_end = end,
                    _ => return Err(ProtocolError::InvalidBulkLength),
                }
                self.at = header.end;
            }
            if input.len() < self.body_end {
                return self.incomplete(self.body_end);
            }
            self.args.push((self.at as u32, self.body_end as u32 - 2));
            self.at = self.body_end;
            self.body_end = 0;
            self.args_left -= 1;
            if self.args_left == 0 {
                let len = self.at;
                (self.at, self.needed) = (0, 0);
                return Ok(Decoded::Command { len });
            }
        }
    }

    fn header(
        &mut self,
        input: &[u8],
        limits: &DecodeLimits,
        too_big: ProtocolError,
    ) -> Result<Option<Header>, ProtocolError> {
        let line = input.get(self.at..).unwrap_or_default();
        match self.line_end(line, b'\r', limits, too_big)? {
            Some(end) if line.len() > end + 1 => {
                self.scanned = 0;
                let number = number(line.get(1..end).unwrap_or_default());
                Ok(Some(Header { number, end: self.at + end + 2 }))
            }
            _ => Ok(None),
        }
    }

    #[cold]
    fn decode_inline(&mut self, input: &[u8], limits: &DecodeLimits) -> Result<Decoded, ProtocolError> {
        self.begin();
        let Some(end) = self.line_end(input, b'\n', limits, ProtocolError::TooBigInline)? else {
            return self.incomplete(input.len() + 1);
        };
        self.scanned = 0;
        let line = &input[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        inline::split(line, &mut self.words, &mut self.args)?;
        self.inline = true;
        let len = end + 1;
        Ok(if self.args.is_empty() { Decoded::Skip { len } } else { Decoded::Command { len } })
    }

    /// The end of a line, if it is known; an error if the line is too long.
    fn line_end(
        &mut self,
        line: &[u8],
        end: u8,
        limits: &DecodeLimits,
        too_big: ProtocolError,
    ) -> Result<Option<usize>, ProtocolError> {
        let max = limits.inline_bytes_max.min(u32::MAX as usize - 1);
        let window = &line[..line.len().min(max + 1)];
        let from = self.scanned.min(window.len());
        match memchr(end, &window[from..]) {
            Some(found) => {
                // If the next byte is missing, the next call finds the same line end.
                self.scanned = from + found;
                Ok(Some(from + found))
            }
            None if line.len() > max => Err(too_big),
            None => {
                self.scanned = window.len();
                Ok(None)
            }
        }
    }

    pub fn argc(&self) -> usize {
        self.args.len()
    }

    /// Argument `i` of the last command, which is in `input`.
    ///
    /// # Panics
    /// There is no such argument, or the input is another one.
    #[must_use]
    #[inline]
    pub fn arg<'a>(&'a self, input: &'a [u8], i: usize) -> &'a [u8] {
        let (start, end) = self.args[i];
        let from = if self.inline { &self.words } else { input };
        &from[start as usize..end as usize]
    }

    /// After `Incomplete`: the length of input that the next call needs; 0 after a complete frame. It may be
    /// a length that the peer only announced: read up to it, but allocate only for received bytes.
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// After `Incomplete`: the length of the whole frame if its last argument has begun; else 0.
    pub fn frame_len(&self) -> usize {
        if self.args_left == 1 { self.body_end } else { 0 }
    }

    /// Discards the current frame and frees large allocations; a small one is kept.
    pub fn reset(&mut self) {
        *self = Decoder {
            args: std::mem::take(&mut self.args),
            words: std::mem::take(&mut self.words),
            ..Decoder::default()
        };
        self.args.clear();
        self.args.shrink_to(Self::KEPT_MAX);
        self.words.clear();
        self.words.shrink_to(Self::KEPT_MAX);
    }

    fn incomplete(&mut self, needed: usize) -> Result<Decoded, ProtocolError> {
        self.needed = needed;
        Ok(Decoded::Incomplete)
    }

    fn begin(&mut self) {
        self.needed = 0;
        self.args.clear();
        self.words.clear();
        self.inline = false;
    }
}

/// The line `*<number>` or `$<number>`.
struct Header {
    number: Option<i64>,
    end: usize,
}

/// Number and length of nearly all headers: of up to four digits, the first not 0 unless alone.
#[inline]
fn short_header(line: &[u8]) -> Option<(usize, usize)> {
    let digit = |byte: u8| usize::from(byte - b'0');
    match *line {
        [_, a @ b'0'..=b'9', b'\r', _, ..] => Some((digit(a), 4)),
        [_, a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', _, ..] => Some((digit(a) * 10 + digit(b), 5)),
        [_, a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b'\r', _, ..] => {
            Some(((digit(a) * 10 + digit(b)) * 10 + digit(c), 6))
        }
        [_, a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', d @ b'0'..=b'9', b'\r', _, ..] => {
            Some((((digit(a) * 10 + digit(b)) * 10 + digit(c)) * 10 + digit(d), 7))
        }
        _ => None,
    }
}

/// Parses a decimal number as Redis does: no sign but `-`, no leading zero, 64 bits.
fn number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    match digits {
        [b'0'] if digits.len() == text.len() => Some(0),
        [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit) => {
            std::str::from_utf8(text).ok()?.parse().ok()
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
