//! Lingering close: sockets of clients that were sent the reason why their connection ends, until they had
//! time to read it.
//!
//! If a socket is closed while its peer still sends, the kernel responds with a reset, and a peer whose write
//! fails may never read its last input. So these sockets are shut down for writing only, and their input is
//! discarded, until the peer closes or the time is over. They are not connections any more: nothing else
//! knows them.

use crate::io::transport::Transport;
use hubsub_types::Limits;
use mio::Registry;
use std::collections::VecDeque;
use std::io::ErrorKind;

/// Limit of reads per socket and turn.
const READS_MAX: usize = 16;

/// The sockets, oldest first, each with its deadline in ms.
#[derive(Default)]
pub struct LingeringClose {
    sockets: VecDeque<(u64, Transport)>,
}

impl LingeringClose {
    /// Adds sockets whose connections are removed. Above the limit it closes the oldest ones. Returns how
    /// many.
    pub fn take_in(
        &mut self,
        sockets: Vec<Transport>,
        registry: &Registry,
        now_ms: u64,
        limits: &Limits,
    ) -> u64 {
        let mut closed = 0;
        for mut socket in sockets {
            // One that cannot be half closed, or deregistered from the poll, is closed completely.
            if socket.end_writing().is_ok() && registry.deregister(socket.source()).is_ok() {
                self.sockets.push_back((now_ms + limits.mqtt_lingering_ms, socket));
            }
            while self.sockets.len() as u64 > limits.mqtt_lingering_max {
                self.sockets.pop_front();
                closed += 1;
            }
        }
        closed
    }

    /// Reads and discards input, using `scratch` as buffer, and drops sockets that are closed or past their
    /// deadline.
    pub fn drain(&mut self, now_ms: u64, scratch: &mut [u8]) {
        self.sockets.retain_mut(|(until_ms, socket)| *until_ms > now_ms && is_open(socket, scratch));
    }
}

/// Discards input with a few reads. Returns whether the peer is still open.
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
