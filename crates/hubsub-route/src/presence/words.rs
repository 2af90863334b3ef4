//! Messages between nodes about a room's members, as bytes: a kind, then numbers, texts and lists, encoded as
//! those of links ([`hubsub_message::field`]). A message that is too short or too long is refused.

use hubsub_message::field::{read_list, write_list, write_short};
use hubsub_message::{Field, Flaw, Reader, Short};
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
    /// A piece of all members: the first one ends the known part, the last one makes the new one valid.
    Part { number: u64, is_first: bool, is_last: bool, more: u64, members: Vec<Arc<Member>> },
    Change {
        /// The number of the part that it changes.
        after: u64,
        /// The number of the changed part.
        number: u64,
        /// The number of members that are not listed.
        more: u64,
        joins: Vec<Arc<Member>>,
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
    pub fn weight(&self) -> usize {
        self.key.len() + self.meta.len() + 34
    }
}

impl Field<'_> for Member {
    fn write(&self, out: &mut Vec<u8>) {
        write_short(self.reference, out);
        write_short(self.former, out);
        (&*self.key).write(out);
        (&*self.meta).write(out);
    }

    fn read(from: &mut Reader<'_>) -> Result<Member, Flaw> {
        let (Short(reference), Short(former)) = (Field::read(from)?, Field::read(from)?);
        let (key, meta) = (<&str>::read(from)?.into(), <&[u8]>::read(from)?.into());
        Ok(Member { reference, former, key, meta })
    }
}

impl Word {
    pub fn encode(&self, from: u64) -> Vec<u8> {
        let mut out = Vec::new();
        let begin = |kind: u8, out: &mut Vec<u8>| {
            out.push(kind);
            write_short(from, out);
        };
        match self {
            Word::Hello => begin(HELLO, &mut out),
            Word::Part { number, is_first, is_last, more, members } => {
                begin(PART, &mut out);
                out.push(if *is_first { FIRST } else { 0 } | if *is_last { LAST } else { 0 });
                write_short(*number, &mut out);
                write_short(*more, &mut out);
                write_members(members, &mut out);
            }
            Word::Change { after, number, more, joins, leaves } => {
                begin(CHANGE, &mut out);
                [after, number, more].into_iter().for_each(|number| write_short(*number, &mut out));
                write_members(joins, &mut out);
                write_list(leaves, &mut out, |&reference, out| write_short(reference, out));
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
        let mut from = Reader(bytes);
        let word = Word::read(&mut from).map_err(|_: Flaw| BadWord)?;
        if from.0.is_empty() { Ok(word) } else { Err(BadWord) }
    }

    fn read(from: &mut Reader<'_>) -> Result<(u64, Word), Flaw> {
        let (kind, Short(sender)) = (u8::read(from)?, Field::read(from)?);
        let word = match kind {
            HELLO => Word::Hello,
            PART => {
                let place = u8::read(from)?;
                if place > FIRST | LAST {
                    return Err(Flaw::Value(u64::from(place)));
                }
                let (Short(number), Short(more)) = (Field::read(from)?, Field::read(from)?);
                let (is_first, is_last) = (place & FIRST != 0, place & LAST != 0);
                Word::Part { number, is_first, is_last, more, members: read_members(from)? }
            }
            CHANGE => {
                let (Short(after), Short(number)) = (Field::read(from)?, Field::read(from)?);
                let (Short(more), joins) = (Field::read(from)?, read_members(from)?);
                let leaves = read_list(from, |from| from.short(10))?;
                Word::Change { after, number, more, joins, leaves }
            }
            BYE => Word::Bye,
            _ => return Err(Flaw::Value(u64::from(kind))),
        };
        Ok((sender, word))
    }
}

fn write_members(members: &[Arc<Member>], out: &mut Vec<u8>) {
    write_list(members, out, |member, out| member.write(out));
}

fn read_members(from: &mut Reader<'_>) -> Result<Vec<Arc<Member>>, Flaw> {
    read_list(from, |from| Member::read(from).map(Arc::new))
}
