//! Leader leases of ephemeral hubs: which node may lead which hub, and until when. They work between nodes
//! without Python and without the coordinator. Bytes, sockets, clocks and threads belong to the node; see
//! docs/adr/0013-a-cluster.md, "Leader leases of ephemeral hubs", and docs/cluster.md.
//!
//! - [`LeaderLeases`]: both sides below in one, driven by a node's I/O context
//! - [`Holder`]: each node: claims, deadline, giving up, extension without a controller
//! - [`Grantor`]: the controller's node: tables, grants, what is known about each process
//! - [`LeaseGate`]: the one atomic that shards check
//!
//! docs/protocol/link.md, "Leader leases on a node", has the calls and actions of the thread that drives it.
//!
//! # Invariants
//!
//! 1. A hub is led only if a watch delivered it, it was claimed, it was in the controller's table and it was
//!    granted.
//! 2. Every deadline is counted from before its request was sent, on the requester's own clock.
//! 3. A node reports "no controller" only between two acknowledgement numbers; a number is one unbroken
//!    period.
//! 4. The controller replaces no leader by time alone unless a majority is *known to have acknowledged it
//!    until* the end of the leader leases in request (`Peer::acknowledges_until_us`, by round trip). A recent
//!    message from a node is not enough: the node may have stopped acknowledging since, and have helped a
//!    leader to extend its lease.
//!
//! Not covered: two processes with one name at once, of which the earlier has lost the coordinator but not
//! its peers. The links' roster refuses this where it can see both.

mod acknowledgement;
mod gate;
mod grantor;
mod holder;
mod leases;
mod types;
mod voters;

pub use gate::LeaseGate;
pub use grantor::{Grantor, Peer, Snapshot, Tables};
pub use holder::Holder;
pub use leases::LeaderLeases;
pub use types::{Action, Beat, Grant, HubTerm, LeaseRequest, Process, Route, SUSPECTS_MAX, Timing};
pub use voters::Voters;
