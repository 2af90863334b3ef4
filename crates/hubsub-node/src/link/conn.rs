//! One connection of a link: its socket, the machine that knows what is said
//! over it, and what it is for.

use super::LinkMail;
use super::reach::Gate;
use crate::mail::Mail;
use hubsub_types::NodeId;
use hubsub_wire::link::{Link, Peer};
use mio::net::TcpStream;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

/// What a connection is for.
#[derive(Debug)]
pub(super) enum Role {
    /// Somebody connected, and has proved nothing yet.
    Accepted,
    /// It has proved itself; its registration is awaited until then, in µs.
    Proved(Peer, u64),
    /// This side dials.
    Dialed(Box<str>),
    /// Is there anybody at that node's port?
    Probe(Box<str>),
    /// A link with that peer.
    Up(Peer),
    /// It is over, its output is written and what comes is passed over, until then, in µs.
    Closing(u64),
}

/// See the module.
pub(super) struct Conn {
    pub socket: TcpStream,
    pub link: Link,
    pub role: Role,
    /// Whose link it is, while it stands.
    pub node: Option<NodeId>,
    /// What other shards know of it.
    pub gate: Arc<Gate>,
    /// Bytes from the start of a frame that has not come whole.
    pub input: Vec<u8>,
    /// Length of input below which it need not be looked at.
    pub needed: usize,
    /// Bytes by lane, live and reads, that were handled while other shards were
    /// behind: the peer is told when they are not.
    pub held: [usize; 2],
    /// Whether it was accepted and is not let in.
    pub is_stranger: bool,
    /// Whether the connection stands.
    pub is_connected: bool,
    /// Whether the peer sends no more, so that the end may be read.
    pub is_ended: bool,
    /// Whether it is in the list of those to write.
    pub is_dirty: bool,
    /// Whether it is in the list of those to read.
    pub is_ready: bool,
    /// Whether this side has shut its direction.
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

    /// Whether what comes is to be read.
    pub fn reads(&self) -> bool {
        self.is_connected && !matches!(self.role, Role::Proved(..))
    }

    /// When it wants to be looked at, in µs.
    pub fn wake_at(&self) -> u64 {
        match self.role {
            Role::Closing(until_us) => until_us,
            Role::Proved(_, until_us) => until_us.min(self.link.wake_at()),
            _ => self.link.wake_at(),
        }
    }

    /// Who is at the other end, for logs.
    pub fn address(&self) -> Option<SocketAddr> {
        self.socket.peer_addr().ok()
    }

    /// Tells the peer that nothing more comes, once it has been written.
    pub fn shut(&mut self) {
        if !std::mem::replace(&mut self.is_shut, true) {
            // It is closed in any case, soon.
            let _ = self.socket.shutdown(Shutdown::Write);
        }
    }
}

/// A peer that has proved itself, on its way to the shard of its link's number.
pub struct Handover {
    pub(super) socket: TcpStream,
    pub(super) link: Link,
    pub(super) peer: Peer,
    pub(super) input: Vec<u8>,
}

impl From<Handover> for Mail {
    fn from(handover: Handover) -> Mail {
        Mail::Link(LinkMail::Handover(Box::new(handover)))
    }
}
