//! The head of an HTTP/1.1 message, as far as it is needed here: a start line and fields. `httparse` splits
//! and checks the fields. It accepts more than this server does, so [`Head::read`] also refuses bare line
//! feeds, control characters, and bytes that are not UTF-8.

use httparse::{EMPTY_HEADER, Header, Status, parse_headers};
use memchr::{memchr_iter, memmem};
use std::str::from_utf8;

/// Longest head, including its empty line, in bytes. No other limit on the number of its fields is needed.
pub const HEAD_BYTES_MAX: usize = 16_384;

/// A complete, well-formed head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Head<'a> {
    /// The start line, without its line end.
    pub first: &'a str,
    fields: Vec<Header<'a>>,
    /// Length in bytes, including the empty line.
    pub len: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeadFlaw {
    TooLarge,
    NotHttp,
}

impl<'a> Head<'a> {
    /// Parses the head at the start of the input; `None` while it is incomplete.
    pub fn read(input: &'a [u8]) -> Result<Option<Head<'a>>, HeadFlaw> {
        let window = &input[..input.len().min(HEAD_BYTES_MAX)];
        let len = memmem::find(window, b"\r\n\r\n").map(|end| end + 4);
        let bytes = &window[..len.unwrap_or(window.len())];
        // Without this check, a head that has only such line ends would never be complete.
        if memchr_iter(b'\n', bytes).any(|at| at == 0 || bytes[at - 1] != b'\r') {
            return Err(HeadFlaw::NotHttp);
        }
        match len {
            Some(len) => Head::parse(bytes, len).ok_or(HeadFlaw::NotHttp).map(Some),
            None if input.len() < HEAD_BYTES_MAX => Ok(None),
            None => Err(HeadFlaw::TooLarge),
        }
    }

    fn parse(bytes: &'a [u8], len: usize) -> Option<Head<'a>> {
        let (first, lines) = from_utf8(bytes).ok()?.split_once("\r\n")?;
        let plain = |text: &str| !text.chars().any(|char| char.is_control() && !"\t\r\n".contains(char));
        if first.contains('\r') || !plain(first) || !plain(lines) {
            return None;
        }
        let mut fields = vec![EMPTY_HEADER; memchr_iter(b'\n', lines.as_bytes()).count()];
        let Ok(Status::Complete((_, found))) = parse_headers(lines.as_bytes(), &mut fields) else {
            return None;
        };
        let count = found.len();
        fields.truncate(count);
        Some(Head { first, fields, len })
    }

    pub fn request_line(&self) -> Option<(&'a str, &'a str)> {
        self.first.strip_suffix(" HTTP/1.1")?.split_once(' ').filter(|(_, target)| !target.contains(' '))
    }

    pub fn values(&self, name: &'static str) -> impl Iterator<Item = &'a str> {
        let fields = self.fields.iter().filter(move |field| field.name.eq_ignore_ascii_case(name));
        fields.filter_map(|field| from_utf8(field.value).ok())
    }

    /// The value of a field that occurs exactly once.
    pub fn single(&self, name: &'static str) -> Option<&'a str> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// The value of a field that occurs at most once.
    pub fn optional(&self, name: &'static str) -> Result<Option<&'a str>, HeadFlaw> {
        let mut values = self.values(name);
        let value = values.next();
        if values.next().is_none() { Ok(value) } else { Err(HeadFlaw::NotHttp) }
    }

    /// The list items in all fields with that name, in order.
    pub fn list(&self, name: &'static str) -> impl Iterator<Item = &'a str> {
        let items = self.values(name).flat_map(|value| value.split(','));
        items.map(|item| item.trim_matches([' ', '\t'])).filter(|item| !item.is_empty())
    }

    /// Whether such a list contains that word, in any case.
    pub fn lists(&self, name: &'static str, word: &str) -> bool {
        self.list(name).any(|item| item.eq_ignore_ascii_case(word))
    }
}
