//! One connection of a link: its socket, its protocol state machine, and its role.

use super::reach::Gate;
use hubsub_types::NodeId;
use hubsub_wire::link::{Link, Peer};
use mio::net::TcpStream;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

#[derive(Debug)]
pub(crate) enum Role {
    /// It was accepted and has not authenticated yet.
    Accepted,
    /// It has authenticated and waits until then, in µs, for its registration to become known here.
    Proved(Peer, u64),
    /// This side dials that node.
    Dialed(Box<str>),
    /// A probe: checks whether a process listens at that node's port.
    Probe(Box<str>),
    Up(Peer),
    /// Closing: output is still written and input discarded, until then, in µs.
    Closing(u64),
}

pub(crate) struct Conn {
    pub socket: TcpStream,
    pub link: Link,
    pub role: Role,
    /// The peer node while the link is up.
    pub node: Option<NodeId>,
    /// The link's state for other shards.
    pub gate: Arc<Gate>,
    /// The beginning of an incomplete frame.
    pub input: Vec<u8>,
    /// The input length, in bytes, from which the frame may be complete.
    pub needed: usize,
    /// Bytes per lane (live, reads) whose credit is withheld while other shards lag.
    pub held: [usize; 2],
    /// True if it was accepted and is not admitted yet.
    pub is_stranger: bool,
    /// True once the TCP connection is established.
    pub is_connected: bool,
    /// True if the peer has stopped sending, so that the end must be read.
    pub is_ended: bool,
    /// True if it is in the list of connections to write.
    pub is_dirty: bool,
    /// True if it is in the list of connections to read.
    pub is_ready: bool,
    pub is_shut: bool,
}

impl Conn {
    pub fn new(socket: TcpStream, link: Link, role: Role) -> Conn {
        Conn {
            socket,
            link,
            role,
            node: None,
            gate: Arc::default(),
            input: Vec::new(),
            needed: 0,
            held: [0; 2],
            is_stranger: false,
            is_connected: true,
            is_ended: false,
            is_dirty: false,
            is_ready: false,
            is_shut: false,
        }
    }

    pub fn reads(&self) -> bool {
        self.is_connected && !matches!(self.role, Role::Proved(..))
    }

    /// The time of its next timer, in µs.
    pub fn wake_at(&self) -> u64 {
        match self.role {
            Role::Closing(until_us) => until_us,
            Role::Proved(_, until_us) => until_us.min(self.link.wake_at()),
            _ => self.link.wake_at(),
        }
    }

    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()
    }

    /// Shuts down the sending direction once all output is written.
    pub fn shut(&mut self) {
        if !std::mem::replace(&mut self.is_shut, true) {
            // An error does not matter: it is closed soon in any case.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }
}

/// An authenticated peer on its way to the shard of its link number.
pub struct Handover {
    pub(crate) socket: TcpStream,
    pub(crate) link: Link,
    pub(crate) peer: Peer,
    pub(crate) input: Vec<u8>,
}
