//! A list of values, with its count in front.

use hubsub_message::field::write_length;
use hubsub_message::{Field, Flaw, Reader};

/// A slice of values to write, or a checked range of the input after reading.
#[derive(Clone, Copy, Debug)]
pub struct List<'a, T>(Values<'a, T>);

#[derive(Clone, Copy, Debug)]
enum Values<'a, T> {
    Own(&'a [T]),
    Read(usize, Reader<'a>),
}

impl<'a, T: Field<'a> + Copy> List<'a, T> {
    pub fn new(values: &'a [T]) -> List<'a, T> {
        List(Values::Own(values))
    }

    pub fn len(&self) -> usize {
        match self.0 {
            Values::Own(values) => values.len(),
            Values::Read(count, _) => count,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn iter(&self) -> impl Iterator<Item = T> + use<'a, T> {
        let (own, count, mut read) = match self.0 {
            Values::Own(values) => (values, 0, Reader(&[])),
            Values::Read(count, read) => (&[][..], count, read),
        };
        own.iter().copied().chain((0..count).map_while(move |_| T::read(&mut read).ok()))
    }
}

impl<'a, T: Field<'a> + Copy> Default for List<'a, T> {
    fn default() -> Self {
        List::new(&[])
    }
}

impl<'a, T: Field<'a> + Copy + PartialEq> PartialEq for List<'a, T> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<'a, T: Field<'a> + Copy> Field<'a> for List<'a, T> {
    fn write(&self, out: &mut Vec<u8>) {
        write_length(self.len(), out);
        self.iter().for_each(|value| value.write(out));
    }

    fn read(from: &mut Reader<'a>) -> Result<Self, Flaw> {
        // A value has at least one byte, so the count is at most the remaining length.
        let count = from.length()?;
        let start = from.0;
        for _ in 0..count {
            T::read(from)?;
        }
        Ok(List(Values::Read(count, Reader(&start[..start.len() - from.0.len()]))))
    }
}
