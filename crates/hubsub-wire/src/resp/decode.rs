//! Commands as clients send them: an array of bulk strings,
//! `*<n>\r\n` and n times `$<length>\r\n<bytes>\r\n`, or a line of words.
//!
//! The decoder owns offsets into the caller's bytes, never the bytes (only the
//! words of an inline command, whose quotes are gone). However the input is cut,
//! no search for an end of line begins anew and no argument's bytes are looked
//! at; memory is taken for arguments that are there, not for those announced.
//! As in Redis, the byte after a header's CR and the two after an argument are
//! skipped unread.

use super::error::ProtocolError;
use super::inline;
use memchr::memchr;

/// What one command may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeLimits {
    /// Bytes of a command, arguments and framing together; at most 4 GiB - 1.
    pub frame_bytes_max: usize,
    /// Arguments of a command.
    pub args_max: usize,
    /// Bytes of an inline command, or of a header, without their end of line.
    pub inline_bytes_max: usize,
}

/// What the input begins with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Decoded {
    /// A command of at least one argument, in the first `len` bytes.
    Command {
        /// Bytes to take off before the next call.
        len: usize,
    },
    /// An empty line or an array without elements, which are passed over.
    Skip {
        /// Bytes to take off before the next call.
        len: usize,
    },
    /// A command's beginning, perhaps none of it yet.
    Incomplete,
}

/// Reads one frame after the other, each in as many calls as its bytes take to
/// come. A new one owns no memory. One that has refused its input is done for.
#[derive(Clone, Default, Debug)]
pub struct Decoder {
    /// First byte of the frame that no finished part covers.
    at: usize,
    /// End of the argument at `at`, its CRLF included; 0 while none is begun.
    body_end: usize,
    /// Bytes from `at` known to hold no end of line.
    scanned: usize,
    /// Arguments still to come; 0 while no header is read.
    args_left: usize,
    /// Length of input without which the next call finds nothing.
    needed: usize,
    /// Start and end of each argument, in the input or in `words`.
    args: Vec<(u32, u32)>,
    /// The words of an inline command.
    words: Vec<u8>,
    inline: bool,
}

impl Decoder {
    /// Arguments and bytes of words for which `reset` keeps the memory.
    const KEPT_MAX: usize = 1_024;

    /// Reads on. `input` is every byte since the start of the frame: the same
    /// as at the last call plus what has come, or, after a whole frame, what
    /// follows it.
    ///
    /// # Errors
    /// The input is no command; the connection is to be closed.
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

    /// Nearly every command: whole, of short headers. Of any other nothing is
    /// kept but arguments, which are to be forgotten.
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

    /// The header at `at`; none while it is not whole.
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

    /// Where a line ends, if that is known; an error if it is too long.
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
                // The next byte may be missing still: then the line ends here at the next call, too.
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

    /// Number of arguments of the last command.
    #[must_use]
    pub fn argc(&self) -> usize {
        self.args.len()
    }

    /// Argument `i` of the last command, whose input this is.
    ///
    /// # Panics
    /// If there is no such argument, or the input is another one.
    #[must_use]
    #[inline]
    pub fn arg<'a>(&'a self, input: &'a [u8], i: usize) -> &'a [u8] {
        let (start, end) = self.args[i];
        let from = if self.inline { &self.words } else { input };
        &from[start as usize..end as usize]
    }

    /// After `Incomplete`: the length of input below which another call is
    /// useless; 0 after a whole frame. It is what an argument announced, not yet paid for: read until
    /// there, but allocate for what comes.
    #[must_use]
    pub fn needed(&self) -> usize {
        self.needed
    }

    /// Forgets the frame at hand and gives large memory back, so that the next
    /// call begins a frame. A small allocation is kept.
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

/// `*<number>` or `$<number>`.
struct Header {
    /// None if it is not a number.
    number: Option<i64>,
    /// Place behind it.
    end: usize,
}

/// The number and the length of nearly every header: of up to four digits, the
/// first not 0 unless alone.
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

/// A decimal number as Redis takes it: no sign but `-`, no leading zero, 64 bits.
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
