//! The head of an HTTP/1.1 message, as far as it is needed here: a start line and fields, parsed strictly.

use memchr::{memchr_iter, memmem};

/// Longest head, including its empty line, in bytes.
pub const HEAD_BYTES_MAX: usize = 16_384;

/// A complete, well-formed head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Head<'a> {
    /// The start line, without its line end.
    pub first: &'a str,
    /// The field lines, each with its line end.
    fields: &'a str,
    /// Length in bytes, including the empty line.
    pub len: usize,
}

/// Why a head is invalid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HeadFlaw {
    TooLarge,
    NotHttp,
}

impl<'a> Head<'a> {
    /// Parses the head at the start of the input; `None` while it is incomplete.
    pub fn read(input: &'a [u8]) -> Result<Option<Head<'a>>, HeadFlaw> {
        let window = &input[..input.len().min(HEAD_BYTES_MAX)];
        let Some(end) = memmem::find(window, b"\r\n\r\n") else {
            // A line end without a carriage return would never end the head.
            if memchr_iter(b'\n', window).any(|at| at == 0 || window[at - 1] != b'\r') {
                return Err(HeadFlaw::NotHttp);
            }
            return if input.len() < HEAD_BYTES_MAX { Ok(None) } else { Err(HeadFlaw::TooLarge) };
        };
        let text = std::str::from_utf8(&input[..end + 2]).map_err(|_| HeadFlaw::NotHttp)?;
        let (first, fields) = text.split_once("\r\n").ok_or(HeadFlaw::NotHttp)?;
        let head = Head { first, fields, len: end + 4 };
        let plain = |text: &str| !text.chars().any(|char| char.is_control() && char != '\t');
        let well_formed = |line: &str| {
            let name = line.split_once(':').map_or("", |(name, _)| name);
            !name.is_empty() && name.bytes().all(is_token) && plain(line)
        };
        if plain(first) && head.lines().all(well_formed) { Ok(Some(head)) } else { Err(HeadFlaw::NotHttp) }
    }

    fn lines(self) -> impl Iterator<Item = &'a str> {
        self.fields.split_terminator("\r\n")
    }

    /// Values of the fields with that name, in order.
    pub fn values(self, name: &'static str) -> impl Iterator<Item = &'a str> {
        let fields = self.lines().filter_map(|line| line.split_once(':'));
        fields
            .filter(move |(of, _)| of.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.trim_matches([' ', '\t']))
    }

    /// The value of a field that occurs exactly once.
    pub fn single(self, name: &'static str) -> Option<&'a str> {
        let mut values = self.values(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// The list items in all fields with that name, in order.
    pub fn list(self, name: &'static str) -> impl Iterator<Item = &'a str> {
        let items = self.values(name).flat_map(|value| value.split(','));
        items.map(|item| item.trim_matches([' ', '\t'])).filter(|item| !item.is_empty())
    }

    /// Whether such a list contains that word, in any case.
    pub fn lists(self, name: &'static str, word: &str) -> bool {
        self.list(name).any(|item| item.eq_ignore_ascii_case(word))
    }
}

/// A byte of a field name (RFC 9110, section 5.6.2).
pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}
