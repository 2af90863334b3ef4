//! The I/O context of links: sockets between this node's shards and those of others, driven by the state
//! machines of `hubsub_wire::link`. See docs/protocol/link.md.
//!
//! - [`conn`]: one connection: its socket, its machine, its role
//! - [`links`]: a shard's links: admission, dialing, ends
//! - [`intake`]: input and output, bounded per turn
//! - [`dispatch`]: handles all frames of a link
//! - [`reach`]: the links to other nodes for a shard's broker
//! - [`control`]: requests between control planes, over link 0
//! - [`leads`]: leader leases of ephemeral hubs, over link 0
//! - [`leases`]: the leases of a shard
//! - [`ready`]: which processes are ready to serve
//! - [`peer_table`]: the peer table and its events
//!
//! Invariants:
//!
//! 1. Link `i` of a pair is owned by shard `i` on both sides: any shard accepts, and hands the connection
//!    over once its peer has authenticated.
//! 2. Links exist only with registered processes, identified by name and incarnation.
//! 3. A peer is reported dead only if a link to it ended without a goodbye and then all its addresses refused
//!    a connection.
//! 4. A shard without links spends nothing on them.

mod conn;
mod control;
mod dispatch;
pub(crate) mod intake;
pub(crate) mod leads;
pub mod leases;
mod links;
pub mod peer_table;
mod reach;
mod ready;

pub use conn::Handover;
pub use hubsub_wire::link::handshake::VERSIONS;
pub use hubsub_wire::link::{Counters, Identity, LinkLimits, Secret, Status};
pub use leads::{LeadEvent, LeadView, Shown, timing};
pub use links::Links;
pub use peer_table::{Change, LinkEvent, LinkRow, PeerRow, PeerTable, State};
pub use ready::ShownReady;

/// An event of the links for the control plane.
#[derive(Debug)]
pub enum Event {
    /// A change in the state of a peer.
    Link(LinkEvent),
    /// A change of this process's leader leases, or of a controller's view of other nodes' leases.
    Lead(LeadEvent),
    /// Another process became ready, or stopped being so.
    Ready,
    /// A request from a peer's control plane: peer name, request number, body.
    Asked(Box<str>, u64, Box<[u8]>),
    /// The response of a peer's control plane: request number, body.
    Answered(u64, Result<Box<[u8]>, ErrorCode>),
}

use dispatch::News;
use hubsub_message::NodeMessage;
use hubsub_types::{ConnKey, ErrorCode, Limits, NodeId, ShardId};
use mio::Token;
use std::net::SocketAddr;
use std::sync::Arc;

/// The poll token of the link listener.
pub(crate) const LISTENER: Token = Token(usize::MAX - 2);

/// The first poll token of links; client tokens are below 2^32.
pub(crate) const TOKENS: usize = 1 << 40;

/// Bytes for names and headers in addition to the longest command's payload.
const NAMES_BYTES: u64 = 1024 * 1024;

/// A registered process, which may have links to this one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registered {
    /// This process's id of it; assigned by the peer table.
    pub id: NodeId,
    pub node: Box<str>,
    /// Issued at its registration.
    pub incarnation: u64,
    /// Addresses of its link listener, tried in turn.
    pub addresses: Vec<SocketAddr>,
    /// The number of its shards.
    pub shards: u16,
}

/// Mail of the control plane for each shard's links, and between shards.
pub enum LinkMail {
    /// This node's identity: its links begin.
    Begin(Arc<Identity>),
    /// The complete list of registered processes.
    Roster(Arc<[Registered]>),
    /// The version of this node's classes, for its status.
    Status(u64),
    /// A request of the control plane to a peer; the response returns with this ticket.
    Ask(u64, Box<str>, Vec<u8>),
    /// The control plane's response to a peer's request of this number.
    Answer(Box<str>, u64, Vec<u8>),
    /// A peer that has authenticated at another shard.
    Handover(Box<Handover>),
    /// A change of another shard's link.
    #[allow(private_interfaces, reason = "shards alone say it")]
    News(News),
    /// A broker's message that arrived on a link of another shard.
    Message {
        from: NodeId,
        /// The shard that owns the link.
        shard: ShardId,
        /// The link's connection there.
        via: ConnKey,
        message: NodeMessage,
        /// The size of its frame.
        bytes: usize,
    },
    /// A message for a link of this shard.
    Send(ConnKey, NodeMessage),
    /// Another shard's broker has handled these bytes (live, reads) of a link of this shard.
    Handled(ConnKey, [usize; 2]),
}

impl LinkMail {
    /// Its memory in bytes, for mailbox limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        match self {
            LinkMail::Message { message, .. } | LinkMail::Send(_, message) => message.weight(),
            LinkMail::Ask(_, _, body) | LinkMail::Answer(_, _, body) => size_of::<LinkMail>() + body.len(),
            _ => size_of::<LinkMail>(),
        }
    }
}

/// The link limits of a node with these limits.
#[must_use]
pub fn limits(limits: &Limits) -> LinkLimits {
    LinkLimits {
        frame_bytes_max: (limits.frame_bytes_max + NAMES_BYTES).min(u64::from(u32::MAX) - 1) as usize,
        handshake_ms: limits.link_handshake_ms,
        heartbeat_ms: limits.link_heartbeat_ms,
        suspect_ms: limits.link_suspect_ms,
        silence_ms: limits.link_silence_ms,
        live_window_bytes: limits.link_live_window_bytes,
        reads_window_bytes: limits.link_reads_window_bytes,
        urgent_queue_bytes_max: limits.link_urgent_queue_bytes_max as usize,
        live_queue_bytes_max: limits.link_live_queue_bytes_max as usize,
        reads_queue_bytes_max: limits.link_reads_queue_bytes_max as usize,
        output_bytes_max: limits.link_output_bytes_max as usize,
        redial_ms_min: limits.link_redial_ms_min,
        redial_ms_max: limits.link_redial_ms_max,
        stable_ms: limits.link_stable_ms,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_those_of_the_machines() {
        assert_eq!(limits(&Limits::default()), LinkLimits::default());
        assert_eq!(timing(&Limits::default()), hubsub_lead::Timing::default());
    }
}
