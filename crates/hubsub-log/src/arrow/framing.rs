//! Checks the framing of an untrusted Arrow IPC stream, in parallel with the decoder.
//!
//! The decoder trusts sizes in the stream. So this rejects, before the decoder sees it, input that would take
//! memory out of proportion to the bytes sent: compressed buffers, which state their own uncompressed size,
//! and excessive lengths. It also detects whether the end-of-stream mark arrived, which the decoder does not
//! require.
//!
//! A message is a mark (four bytes of 0xff), the length of its head (u32, little-endian; 0 is the end of the
//! stream), the head, and the body, whose length is in the head.

use super::rows::RowError;
use arrow_ipc::{MessageHeader, root_as_message};

const MARK: [u8; 4] = [0xff; 4];
/// Limit of a head; a schema of our few columns takes 1 KiB.
const HEAD_BYTES_MAX: usize = 1 << 20;
/// Limit of a body: the reach of Arrow's 32-bit offsets.
const BODY_BYTES_MAX: usize = 1 << 31;

#[derive(Debug)]
enum State {
    /// Next: the mark and the length.
    Prefix,
    /// Next: a head of this many bytes.
    Head(usize),
    /// Next: this many more bytes of body.
    Body(usize),
    End,
}

#[derive(Debug)]
pub struct Framing {
    state: State,
    /// Bytes of an incomplete prefix or head.
    part: Vec<u8>,
}

impl Framing {
    pub fn new() -> Framing {
        Framing { state: State::Prefix, part: Vec::new() }
    }

    pub fn is_at_end(&self) -> bool {
        matches!(self.state, State::End)
    }

    ///
    /// # Errors
    /// The decoder must not see these bytes.
    pub fn feed(&mut self, mut bytes: &[u8]) -> Result<(), RowError> {
        while !bytes.is_empty() {
            self.state = match self.state {
                State::Prefix => match self.whole(8, &mut bytes) {
                    Some(prefix) => behind_prefix(&prefix)?,
                    None => return Ok(()),
                },
                State::Head(length) => match self.whole(length, &mut bytes) {
                    Some(head) => behind_head(&head)?,
                    None => return Ok(()),
                },
                State::Body(left) => {
                    let here = left.min(bytes.len());
                    bytes = &bytes[here..];
                    if here == left { State::Prefix } else { State::Body(left - here) }
                }
                State::End => return bad("something follows its end"),
            };
        }
        Ok(())
    }

    /// Takes `length` bytes once they have all arrived.
    fn whole(&mut self, length: usize, bytes: &mut &[u8]) -> Option<Vec<u8>> {
        let (here, rest) = bytes.split_at((length - self.part.len()).min(bytes.len()));
        self.part.extend_from_slice(here);
        *bytes = rest;
        (self.part.len() == length).then(|| std::mem::take(&mut self.part))
    }
}

fn behind_prefix(prefix: &[u8]) -> Result<State, RowError> {
    let (mark, length) = prefix.split_at(4);
    if mark != MARK {
        return bad("a message does not begin with its mark");
    }
    match u32::from_le_bytes(length.try_into().expect("four bytes")) as usize {
        0 => Ok(State::End),
        length if length > HEAD_BYTES_MAX => bad("the head of a message is too long"),
        length => Ok(State::Head(length)),
    }
}

fn behind_head(head: &[u8]) -> Result<State, RowError> {
    let message = root_as_message(head).map_err(|error| RowError::Stream(error.to_string()))?;
    if message.header_type() == MessageHeader::DictionaryBatch {
        return bad("it has dictionaries");
    }
    if message.header_as_record_batch().is_some_and(|batch| batch.compression().is_some()) {
        return bad("its buffers are compressed");
    }
    match usize::try_from(message.bodyLength()) {
        Ok(0) => Ok(State::Prefix),
        Ok(length) if length <= BODY_BYTES_MAX => Ok(State::Body(length)),
        _ => bad("the body of a message is too long"),
    }
}

fn bad<T>(reason: &str) -> Result<T, RowError> {
    Err(RowError::Stream(reason.to_owned()))
}
