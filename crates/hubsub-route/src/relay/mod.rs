//! Hubs that other nodes lead (docs/adr/0014): links to other nodes ([`nodes`]), and the state of a home
//! shard for the hubs that it relays ([`state`]). The behaviour is in `broker/relay`; the messages between
//! nodes are those of `hubsub_message`.

pub mod handover;
pub mod holes;
pub mod limits;
pub mod load;
pub mod messages;
pub mod misses;
pub mod moves;
pub mod nodes;
pub mod patterns;
pub mod state;
pub mod upstreams;
pub mod waiting;
pub mod watch;

pub use limits::RelayLimits;

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

/// The leader of a hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Leader {
    Me,
    Node(NodeId),
    /// No leader, as far as this node knows.
    None,
}
