//! Messages between nodes about a room's members, as bytes: a kind, then numbers of 7 bits per byte, and
//! texts preceded by their lengths. A message that is too short or too long is refused.

use std::fmt;
use std::sync::Arc;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Member {
    /// Identifies the member on its node; never used there again.
    pub reference: u64,
    /// The member's reference before it changed its metadata; 0: it has not changed it.
    pub former: u64,
    /// Identity of the member. A key may occur several times, for example for a user with two pages.
    pub key: Box<str>,
    /// Metadata of the member: a JSON object.
    pub meta: Box<[u8]>,
}

/// A message. All but [`Word::Hello`] contain the number of the node's part after them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Word {
    /// This node does not know all members: others send their parts.
    Hello,
    /// A piece of all members of this node; the first piece ends the known part, the last one makes the new
    /// part valid.
    Part {
        number: u64,
        is_first: bool,
        is_last: bool,
        /// The number of members that are not listed.
        more: u64,
        /// Members in the piece.
        members: Vec<Arc<Member>>,
    },
    /// Changes of this node's part.
    Change {
        /// The number of the part that it changes.
        after: u64,
        /// The number of the changed part.
        number: u64,
        /// The number of members that are not listed.
        more: u64,
        /// Members that joined since that part.
        joins: Vec<Arc<Member>>,
        /// References of members that left.
        leaves: Vec<u64>,
    },
    /// This node has no members any more, and ends its subscription.
    Bye,
}

/// Bytes that are no message of this version.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadWord;

impl fmt::Display for BadWord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no word of members that this version knows")
    }
}

impl std::error::Error for BadWord {}

const HELLO: u8 = 1;
const PART: u8 = 2;
const CHANGE: u8 = 3;
const BYE: u8 = 4;
const FIRST: u8 = 1;
const LAST: u8 = 2;

impl Member {
    /// Approximate size in a message, in bytes; an upper bound.
    #[must_use]
    pub fn weight(&self) -> usize {
        self.key.len() + self.meta.len() + 34
    }

    fn write(&self, out: &mut Vec<u8>) {
        write_number(self.reference, out);
        write_number(self.former, out);
        write_bytes(self.key.as_bytes(), out);
        write_bytes(&self.meta, out);
    }
}

impl Word {
    /// Encodes a message from the node with this incarnation.
    #[must_use]
    pub fn encode(&self, from: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let begin = |kind: u8, out: &mut Vec<u8>| {
            out.push(kind);
            write_number(from, out);
        };
        match self {
            Word::Hello => begin(HELLO, &mut out),
            Word::Part { number, is_first, is_last, more, members } => {
                begin(PART, &mut out);
                out.push(if *is_first { FIRST } else { 0 } | if *is_last { LAST } else { 0 });
                write_number(*number, &mut out);
                write_number(*more, &mut out);
                write_all(members, &mut out);
            }
            Word::Change { after, number, more, joins, leaves } => {
                begin(CHANGE, &mut out);
                [after, number, more].into_iter().for_each(|number| write_number(*number, &mut out));
                write_all(joins, &mut out);
                write_number(leaves.len() as u64, &mut out);
                leaves.iter().for_each(|&reference| write_number(reference, &mut out));
            }
            Word::Bye => begin(BYE, &mut out),
        }
        out
    }

    /// Decodes the incarnation of the sending node, and the message.
    ///
    /// # Errors
    /// [`BadWord`] if the bytes are no message.
    pub fn decode(bytes: &[u8]) -> Result<(u64, Word), BadWord> {
        let mut reader = Reader(bytes);
        let kind = reader.byte()?;
        let from = reader.number()?;
        let word = match kind {
            HELLO => Word::Hello,
            PART => {
                let place = reader.byte()?;
                if place > FIRST | LAST {
                    return Err(BadWord);
                }
                let (number, more) = (reader.number()?, reader.number()?);
                let (is_first, is_last) = (place & FIRST != 0, place & LAST != 0);
                Word::Part { number, is_first, is_last, more, members: reader.members()? }
            }
            CHANGE => {
                let (after, number, more) = (reader.number()?, reader.number()?, reader.number()?);
                Word::Change { after, number, more, joins: reader.members()?, leaves: reader.leaves()? }
            }
            BYE => Word::Bye,
            _ => return Err(BadWord),
        };
        if reader.0.is_empty() { Ok((from, word)) } else { Err(BadWord) }
    }
}

fn write_number(number: u64, out: &mut Vec<u8>) {
    let mut left = number;
    while left >= 0x80 {
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    out.push(left as u8);
}

fn write_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    write_number(bytes.len() as u64, out);
    out.extend_from_slice(bytes);
}

fn write_all(members: &[Arc<Member>], out: &mut Vec<u8>) {
    write_number(members.len() as u64, out);
    members.iter().for_each(|member| member.write(out));
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Result<u8, BadWord> {
        let (&byte, rest) = self.0.split_first().ok_or(BadWord)?;
        self.0 = rest;
        Ok(byte)
    }

    fn number(&mut self) -> Result<u64, BadWord> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7F);
            if bits << shift >> shift != bits {
                return Err(BadWord);
            }
            number |= bits << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(BadWord)
    }

    fn bytes(&mut self) -> Result<&'a [u8], BadWord> {
        let length = usize::try_from(self.number()?).map_err(|_| BadWord)?;
        let (bytes, rest) = self.0.split_at_checked(length).ok_or(BadWord)?;
        self.0 = rest;
        Ok(bytes)
    }

    /// Number of the items that follow, each of at least one byte.
    fn count(&mut self) -> Result<usize, BadWord> {
        let count = usize::try_from(self.number()?).map_err(|_| BadWord)?;
        if count <= self.0.len() { Ok(count) } else { Err(BadWord) }
    }

    fn members(&mut self) -> Result<Vec<Arc<Member>>, BadWord> {
        let count = self.count()?;
        (0..count).map(|_| self.member().map(Arc::new)).collect()
    }

    fn member(&mut self) -> Result<Member, BadWord> {
        let (reference, former) = (self.number()?, self.number()?);
        let key = std::str::from_utf8(self.bytes()?).map_err(|_| BadWord)?.into();
        Ok(Member { reference, former, key, meta: self.bytes()?.into() })
    }

    fn leaves(&mut self) -> Result<Vec<u64>, BadWord> {
        let count = self.count()?;
        (0..count).map(|_| self.number()).collect()
    }
}
