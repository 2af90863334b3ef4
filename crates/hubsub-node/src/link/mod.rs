//! The rim of links: sockets between this node's shards and those of others,
//! under the machines of `hubsub_wire::link`. See docs/protocol/link.md.
//!
//! - [`conn`]: one connection: its socket, its machine, what it is for
//! - [`links`]: a shard's links: who may have one, dialing, proving, ends
//! - [`intake`]: bytes in and out, bounded in each turn
//! - [`dispatch`]: what frames of an owner do: the one place where they arrive
//! - [`frames`]: brokers' messages as frames, and back
//! - [`reach`]: by which links a shard's broker reaches other nodes
//! - [`control`]: what control planes ask each other, over link 0
//! - [`leads`]: who may lead which ephemeral hub, over link 0
//! - [`ready`]: who holds what it needs to serve
//! - [`board`]: what all shards know of peers, and the events that come of it
//!
//! Invariants:
//!
//! 1. Link `i` of a pair is held by shard `i` on both sides: any shard accepts,
//!    and hands a connection on when its peer has proved itself.
//! 2. Links are held with registered processes alone, by name and incarnation.
//! 3. A peer is told as dead only if a link to it ended without a goodbye and
//!    then all its addresses refused a connection.
//! 4. A shard without links spends nothing on them.

pub mod board;
mod conn;
mod control;
mod dispatch;
mod frames;
mod intake;
mod leads;
mod links;
mod reach;
mod ready;

pub use board::{Board, Change, LinkEvent, LinkRow, PeerRow, State};
pub use conn::Handover;
pub use hubsub_wire::link::handshake::VERSIONS;
pub use hubsub_wire::link::{Counters, Identity, LinkLimits, Secret, Status};
pub use leads::{LeadEvent, LeadView, Shown, timing};
pub use links::Links;
pub use ready::ShownReady;

use dispatch::News;
use hubsub_route::relay::NodeMessage;
use hubsub_types::{ConnKey, Limits, NodeId, ShardId};
use mio::Token;
use std::net::SocketAddr;
use std::sync::Arc;

/// Token of the listener of links.
pub(crate) const LISTENER: Token = Token(usize::MAX - 2);

/// Tokens of links begin here: those of clients, which are 32 bits, end below.
pub(crate) const TOKENS: usize = 1 << 40;

/// Bytes of names and headers beside the longest command's payload.
const NAMES_BYTES: u64 = 1024 * 1024;

/// A process that may have links to this one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registered {
    /// What this process calls it; given by the board.
    pub id: NodeId,
    /// Its name.
    pub node: Box<str>,
    /// As it was issued when it registered.
    pub incarnation: u64,
    /// Where its links' listener is, tried in turn.
    pub addresses: Vec<SocketAddr>,
    /// How many shards it has.
    pub shards: u16,
}

/// What the control plane says to each shard's links, and shards to each other.
pub enum LinkMail {
    /// Who this node is: its links begin.
    Begin(Arc<Identity>),
    /// Who may have links, all of them.
    Roster(Arc<[Registered]>),
    /// The version of its classes: what this node says of itself.
    Status(u64),
    /// The control plane asks that of a peer; the answer goes there under this ticket.
    Ask(u64, Box<str>, Vec<u8>),
    /// The control plane answers a peer's question of this number.
    Answer(Box<str>, u64, Vec<u8>),
    /// A peer that has proved itself at another shard.
    Handover(Box<Handover>),
    /// What became of a link of another shard.
    #[allow(private_interfaces, reason = "shards alone say it")]
    News(News),
    /// A broker's message that came by a link of another shard.
    Message {
        /// Whose.
        from: NodeId,
        /// The link's shard.
        shard: ShardId,
        /// The link there.
        via: ConnKey,
        /// What it says.
        message: NodeMessage,
        /// Of its frame.
        bytes: usize,
    },
    /// A message for a link of this shard.
    Send(ConnKey, NodeMessage),
    /// So many bytes of a link of this shard, live and reads, are with another shard's broker.
    Handled(ConnKey, [usize; 2]),
}

impl LinkMail {
    /// What it counts against the mailbox limit.
    #[must_use]
    pub fn weight(&self) -> usize {
        match self {
            LinkMail::Message { message, .. } | LinkMail::Send(_, message) => message.weight(),
            LinkMail::Ask(_, _, body) | LinkMail::Answer(_, _, body) => size_of::<LinkMail>() + body.len(),
            _ => size_of::<LinkMail>(),
        }
    }
}

/// The bounds of links, of a node with these limits.
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
