//! Hubs that other nodes lead (docs/adr/0014): what nodes say to each other ([`message`]), which
//! of them are reached ([`nodes`]), and what a home shard keeps for the hubs that it relays
//! ([`state`]). What happens with it stands in `broker/relay`.

pub mod handover;
pub mod limits;
pub mod message;
pub mod misses;
pub mod moves;
pub mod nodes;
pub mod patterns;
pub mod state;
pub mod watch;

pub use limits::RelayLimits;
pub use message::{AskId, Names, NodeMessage};

use hubsub_types::{NodeId, ProducerId};

/// What a node of a cluster is told at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cluster {
    /// Who numbers the records that its first shard forwards into logged classes; those of the
    /// others are the ids behind. Of this incarnation alone.
    pub producer: ProducerId,
    /// What is kept while a hub has no leader.
    pub limits: RelayLimits,
}

/// Who leads a hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leader {
    /// This node.
    Me,
    /// Another one.
    Node(NodeId),
    /// Nobody, as far as this node knows.
    None,
}
