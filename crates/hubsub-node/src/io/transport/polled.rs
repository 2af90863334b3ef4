//! A connection without a socket: its output waits until a request of another connection fetches it.

use hubsub_types::{ConnKey, ShardId};
use std::io::{self, ErrorKind, IoSlice};

/// Limit of output that waits for the next request, in bytes; further output waits as for a full socket.
const POLLED_BYTES: usize = 64 * 1024;

/// Takes the place of a socket.
pub struct Polled {
    pub(crate) secret: u128,
    /// Frames that no response has taken yet.
    pub(crate) frames: Vec<u8>,
    /// The waiting GET and its deadline, in ms.
    pub(crate) waits: Option<(Asker, u64)>,
    /// Whether a timer for that deadline is pending.
    pub(crate) is_watched: bool,
    /// The POST whose lines are not all read.
    pub(crate) posts: Option<Asker>,
}

/// The connection of a request, and the origin of its page.
#[derive(Debug)]
pub struct Asker {
    pub(crate) shard: ShardId,
    pub(crate) conn: ConnKey,
    pub(crate) origin: Option<Box<str>>,
    pub(crate) is_last: bool,
}

impl Polled {
    pub fn new(secret: u128) -> Polled {
        Polled { secret, frames: Vec::new(), waits: None, is_watched: false, posts: None }
    }

    /// Takes slices, each of whole frames, until `POLLED_BYTES` are pending.
    ///
    /// # Errors
    /// `WouldBlock` if that many are pending already.
    pub fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.frames.len() >= POLLED_BYTES {
            return Err(ErrorKind::WouldBlock.into());
        }
        let before = self.frames.len();
        for slice in from {
            self.frames.extend_from_slice(slice);
            if self.frames.len() >= POLLED_BYTES {
                break;
            }
        }
        Ok(self.frames.len() - before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waits_for_a_request_is_bounded_and_has_whole_frames() {
        let mut polled = Polled::new(0);
        let frame = [0; 48 * 1024];
        let queue = [IoSlice::new(&frame); 100];
        assert_eq!(polled.write(&queue).unwrap(), 2 * frame.len());
        assert_eq!(polled.write(&queue).unwrap_err().kind(), ErrorKind::WouldBlock);
        polled.frames.clear();
        assert_eq!(polled.write(&queue[..1]).unwrap(), frame.len());
    }
}
