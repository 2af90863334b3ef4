//! Hubs that other nodes lead (docs/adr/0014): links to other nodes ([`nodes`]), and the state of a home
//! shard for the hubs that it relays ([`state`]). The behaviour is in `broker/relay`; the messages between
//! nodes are those of `hubsub_message`.

mod handover;
mod holes;
pub mod limits;
mod messages;
mod misses;
mod moves;
mod nodes;
mod parked;
mod patterns;
mod state;
mod upstreams;
mod waiting;
mod watch;

pub use limits::RelayLimits;
pub(crate) use {
    handover::*, holes::*, limits::*, messages::*, misses::*, moves::*, parked::*, patterns::*, state::*,
    upstreams::*, watch::*,
};

use hubsub_types::{NodeId, ProducerId};

/// Parameters of a node of a cluster, set at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cluster {
    /// Numbers the records that its first shard forwards into logged classes; the following ids are those of
    /// the other shards. Valid for this incarnation only.
    pub producer: ProducerId,
    /// Limits of the state while a hub has no leader.
    pub limits: RelayLimits,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Leader {
    Me,
    Node(NodeId),
    /// No leader, as far as this node knows.
    #[default]
    None,
}
