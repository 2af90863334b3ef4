//! A list of byte strings, with its count in front.

use super::error::Flaw;
use super::field::{Field, Reader, write_length};
use std::sync::Arc;

/// Shared strings to write, or a checked range of the input after reading.
#[derive(Clone, Copy, Debug)]
pub struct Texts<'a>(Kept<'a>);

#[derive(Clone, Copy, Debug)]
enum Kept<'a> {
    Own(&'a [Arc<[u8]>]),
    Read(usize, Reader<'a>),
}

impl<'a> Texts<'a> {
    #[must_use]
    pub fn new(texts: &'a [Arc<[u8]>]) -> Texts<'a> {
        Texts(Kept::Own(texts))
    }

    #[must_use]
    pub fn len(&self) -> usize {
        match self.0 {
            Kept::Own(texts) => texts.len(),
            Kept::Read(count, _) => count,
        }
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let (own, count, mut read) = match self.0 {
            Kept::Own(texts) => (texts, 0, Reader(&[])),
            Kept::Read(count, read) => (&[][..], count, read),
        };
        let read = (0..count).map_while(move |_| Field::read(&mut read).ok());
        own.iter().map(|text| &**text).chain(read)
    }
}

impl PartialEq for Texts<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<'a> Field<'a> for Texts<'a> {
    fn write(&self, out: &mut Vec<u8>) {
        write_length(self.len(), out);
        self.iter().for_each(|text| text.write(out));
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        // A text has at least one byte, so the count is at most the remaining length.
        let count = from.length()?;
        let start = from.0;
        for _ in 0..count {
            <&[u8]>::read(from)?;
        }
        Ok(Texts(Kept::Read(count, Reader(&start[..start.len() - from.0.len()]))))
    }
}
