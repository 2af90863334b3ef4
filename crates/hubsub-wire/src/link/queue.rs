//! A FIFO queue of encoded frames in one buffer. A frame's length field gives the start of the next, so only
//! the bytes are stored.

use hubsub_message::frame::LENGTH_BYTES;

/// Memory that an empty queue keeps.
const KEPT_BYTES_MAX: usize = 64 * 1_024;

/// Bytes from `at` are queued.
#[derive(Default, Debug)]
pub(super) struct Queue {
    bytes: Vec<u8>,
    at: usize,
}

impl Queue {
    pub fn len(&self) -> usize {
        self.bytes.len() - self.at
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[self.at..]
    }

    pub fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    pub fn undo(&mut self, bytes: usize) {
        self.bytes.truncate(self.bytes.len() - bytes);
    }

    pub fn extend(&mut self, frames: &[u8]) {
        self.bytes.extend_from_slice(frames);
    }

    pub fn front(&self) -> Option<&[u8]> {
        let waiting = self.as_slice();
        let length = waiting.first_chunk()?;
        Some(&waiting[..LENGTH_BYTES + u32::from_le_bytes(*length) as usize])
    }

    pub fn advance(&mut self, bytes: usize) {
        self.at += bytes;
        assert!(self.at <= self.bytes.len(), "more is taken than waits");
        if self.is_empty() {
            self.clear();
        } else if self.at > KEPT_BYTES_MAX && self.at > self.bytes.len() / 2 {
            self.bytes.drain(..self.at);
            self.at = 0;
        }
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.bytes.shrink_to(KEPT_BYTES_MAX);
        self.at = 0;
    }
}
