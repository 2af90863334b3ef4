//! Sockets of clients that were told why their connection ends, for as long as they may need to read it.
//!
//! A socket that is closed while its peer still sends answers with a reset, and a peer whose writing fails may never
//! read what it was told last. So these are closed for writing only, and what still comes is thrown away, until the
//! peer closes or its time is over. They are no connections any more: nothing else knows of them.

use crate::transport::Transport;
use hubsub_types::Limits;
use mio::Registry;
use std::collections::VecDeque;
use std::io::ErrorKind;

/// Reads of one socket each time.
const READS_MAX: usize = 16;

/// The sockets, the oldest first, each with the time at which it is closed at the latest.
#[derive(Default)]
pub struct Parting {
    sockets: VecDeque<(u64, Transport)>,
}

impl Parting {
    /// Takes in sockets that no connection has any more. For one too many the oldest is closed; how many were.
    pub fn take_in(
        &mut self,
        sockets: Vec<Transport>,
        registry: &Registry,
        now_ms: u64,
        limits: &Limits,
    ) -> u64 {
        let mut closed = 0;
        for mut socket in sockets {
            // One that cannot be half closed, or be forgotten by the poll, is closed whole.
            if socket.end_writing().is_ok() && registry.deregister(socket.source()).is_ok() {
                self.sockets.push_back((now_ms + limits.mqtt_parting_ms, socket));
            }
            while self.sockets.len() as u64 > limits.mqtt_parting_max {
                self.sockets.pop_front();
                closed += 1;
            }
        }
        closed
    }

    /// Throws away what has come; `scratch` is where to.
    pub fn drain(&mut self, now_ms: u64, scratch: &mut [u8]) {
        self.sockets.retain_mut(|(until_ms, socket)| *until_ms > now_ms && is_open(socket, scratch));
    }
}

/// Whether the peer has not closed, as far as is known after some reads.
fn is_open(socket: &mut Transport, scratch: &mut [u8]) -> bool {
    for _ in 0..READS_MAX {
        match socket.discard(scratch) {
            Ok(0) => return false,
            Ok(_) => {}
            Err(error) => return error.kind() == ErrorKind::WouldBlock,
        }
    }
    true
}
