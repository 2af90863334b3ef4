//! A minimal JSON reader (RFC 8259): texts are decoded, any other value is checked and left encoded. It is
//! strict, never recurses, and limits the depth; texts without escapes are borrowed.

use super::error::Flaw;
use memchr::{memchr, memchr2};
use std::borrow::Cow;

/// Greatest nesting depth of arrays and objects in one payload.
pub const DEPTH_MAX: u32 = 128;

/// A position in a text, before the next token.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(text: &'a str) -> Reader<'a> {
        Reader { text, at: 0 }
    }

    pub fn flaw(&self) -> Flaw {
        Flaw::NotJson(self.at)
    }

    /// The first byte of the next token, not consumed.
    pub fn peek(&mut self) -> Option<u8> {
        let rest = &self.text.as_bytes()[self.at..];
        let space = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r')).count();
        self.at += space;
        rest.get(space).copied()
    }

    pub fn take(&mut self, token: u8) -> bool {
        let is_next = self.peek() == Some(token);
        self.at += usize::from(is_next);
        is_next
    }

    pub fn expect(&mut self, token: u8) -> Result<(), Flaw> {
        if self.take(token) { Ok(()) } else { Err(self.flaw()) }
    }

    pub fn end(mut self) -> Result<(), Flaw> {
        if self.peek().is_none() { Ok(()) } else { Err(self.flaw()) }
    }

    pub fn text(&mut self) -> Result<Cow<'a, str>, Flaw> {
        if self.peek() != Some(b'"') {
            return Err(self.flaw());
        }
        let start = self.at + 1;
        let escaped = self.pass_text()?;
        let inside = &self.text[start..self.at - 1];
        if escaped { unescape(inside).map(Cow::Owned) } else { Ok(Cow::Borrowed(inside)) }
    }

    pub fn name(&mut self) -> Result<Cow<'a, str>, Flaw> {
        let name = self.text()?;
        self.expect(b':').map(|()| name)
    }

    /// Reads any value; returns it encoded, without the space around it.
    pub fn value(&mut self) -> Result<&'a str, Flaw> {
        self.peek();
        let start = self.at;
        // One bit per level, the innermost is the lowest: 1 for an object.
        let (mut objects, mut depth) = (0_u128, 0);
        loop {
            match self.peek() {
                Some(open @ (b'{' | b'[')) => {
                    if depth == DEPTH_MAX {
                        return Err(Flaw::TooDeep(DEPTH_MAX));
                    }
                    self.at += 1;
                    let is_object = open == b'{';
                    if !self.take(if is_object { b'}' } else { b']' }) {
                        objects = objects << 1 | u128::from(is_object);
                        depth += 1;
                        if is_object {
                            self.pass_name()?;
                        }
                        continue;
                    }
                }
                Some(b'"') => drop(self.pass_text()?),
                Some(b'-' | b'0'..=b'9') => self.pass_number()?,
                _ => self.pass_word()?,
            }
            // A value has ended, and perhaps its container.
            loop {
                if depth == 0 {
                    return Ok(&self.text[start..self.at]);
                }
                let is_object = objects & 1 == 1;
                if self.take(b',') {
                    if is_object {
                        self.pass_name()?;
                    }
                    break;
                }
                self.expect(if is_object { b'}' } else { b']' })?;
                objects >>= 1;
                depth -= 1;
            }
        }
    }

    fn pass_name(&mut self) -> Result<(), Flaw> {
        if self.peek() != Some(b'"') {
            return Err(self.flaw());
        }
        self.pass_text()?;
        self.expect(b':')
    }

    /// Consumes a text that begins here; returns whether it has escapes.
    fn pass_text(&mut self) -> Result<bool, Flaw> {
        let bytes = self.text.as_bytes();
        let (mut at, mut escaped) = (self.at + 1, false);
        loop {
            let plain = memchr2(b'"', b'\\', &bytes[at..]).ok_or(Flaw::NotJson(bytes.len()))?;
            let is_control = |byte: &u8| *byte < 0x20;
            // Checks all bytes at once, which is several times faster than one by one.
            if bytes[at..at + plain].iter().fold(false, |any, byte| any | is_control(byte)) {
                let control = bytes[at..].iter().position(is_control).expect("there is one");
                return Err(Flaw::NotJson(at + control));
            }
            at += plain;
            if bytes[at] == b'"' {
                self.at = at + 1;
                return Ok(escaped);
            }
            escaped = true;
            let is_hex = |digits: &[u8]| digits.iter().all(u8::is_ascii_hexdigit);
            at += match bytes.get(at + 1) {
                Some(b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't') => 2,
                Some(b'u') if bytes.get(at + 2..at + 6).is_some_and(is_hex) => 6,
                _ => return Err(Flaw::NotJson(at)),
            };
        }
    }

    fn pass_number(&mut self) -> Result<(), Flaw> {
        let bytes = self.text.as_bytes();
        let byte = |at: usize| bytes.get(at).copied();
        let digits = |at: usize| bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let mut at = self.at + usize::from(byte(self.at) == Some(b'-'));
        let pass_digits = |at: usize| match digits(at) {
            0 => Err(Flaw::NotJson(at)),
            count => Ok(at + count),
        };
        at = if byte(at) == Some(b'0') { at + 1 } else { pass_digits(at)? };
        if byte(at) == Some(b'.') {
            at = pass_digits(at + 1)?;
        }
        if matches!(byte(at), Some(b'e' | b'E')) {
            let signed = matches!(byte(at + 1), Some(b'+' | b'-'));
            at = pass_digits(at + 1 + usize::from(signed))?;
        }
        self.at = at;
        Ok(())
    }

    fn pass_word(&mut self) -> Result<(), Flaw> {
        let rest = &self.text.as_bytes()[self.at..];
        let word = [&b"true"[..], b"false", b"null"].into_iter().find(|word| rest.starts_with(word));
        self.at += word.ok_or(self.flaw())?.len();
        Ok(())
    }
}

/// Decodes the inside of a text, whose escapes were checked.
fn unescape(inside: &str) -> Result<String, Flaw> {
    let (mut text, mut rest) = (String::with_capacity(inside.len()), inside);
    while let Some(at) = memchr(b'\\', rest.as_bytes()) {
        text.push_str(&rest[..at]);
        let (char, bytes) = match rest.as_bytes()[at + 1] {
            b'b' => ('\u{8}', 2),
            b'f' => ('\u{c}', 2),
            b'n' => ('\n', 2),
            b'r' => ('\r', 2),
            b't' => ('\t', 2),
            b'u' => numbered(&rest[at..])?,
            other => (char::from(other), 2),
        };
        text.push(char);
        rest = &rest[at + bytes..];
    }
    text.push_str(rest);
    Ok(text)
}

/// Decodes `\u` with its number, or two surrogate halves; also returns its length in the text.
fn numbered(text: &str) -> Result<(char, usize), Flaw> {
    let half = |at: usize| {
        let digits = text.get(at..at + 6).filter(|escape| escape.starts_with("\\u"));
        digits.and_then(|digits| u16::from_str_radix(&digits[2..], 16).ok())
    };
    let halves = [half(0), half(6)].into_iter().map_while(|half| half);
    let char = char::decode_utf16(halves).next().and_then(Result::ok).ok_or(Flaw::HalfCharacter)?;
    Ok((char, 6 * char.len_utf16()))
}

/// The escape of a byte and its length, if it needs one; the same escapes as browsers use.
fn escape(byte: u8) -> Option<([u8; 6], usize)> {
    let digit = |value: u8| b"0123456789abcdef"[usize::from(value)];
    let short = match byte {
        b'"' | b'\\' => byte,
        0x08 => b'b',
        0x0C => b'f',
        b'\n' => b'n',
        b'\r' => b'r',
        b'\t' => b't',
        0..0x20 => return Some(([b'\\', b'u', b'0', b'0', digit(byte >> 4), digit(byte & 15)], 6)),
        _ => return None,
    };
    Some(([b'\\', short, 0, 0, 0, 0], 2))
}

pub fn write_text(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    let (bytes, mut written) = (text.as_bytes(), 0);
    for (at, &byte) in bytes.iter().enumerate() {
        if let Some((escaped, len)) = escape(byte) {
            out.extend_from_slice(&bytes[written..at]);
            out.extend_from_slice(&escaped[..len]);
            written = at + 1;
        }
    }
    out.extend_from_slice(&bytes[written..]);
    out.push(b'"');
}

/// Bytes that [`write_text`] appends.
pub(super) fn text_bytes(text: &str) -> usize {
    let more = |byte: u8| escape(byte).map_or(0, |(_, len)| len - 1);
    2 + text.len() + text.bytes().map(more).sum::<usize>()
}

/// Checks that a text is one value; returns it without the space around it.
pub(super) fn whole_value(text: &str) -> Result<&str, Flaw> {
    let mut reader = Reader::new(text);
    let value = reader.value()?;
    reader.end().map(|()| value)
}
