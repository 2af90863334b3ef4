//! The nodes that are announced to cluster clients: [`roster`], the nodes and their ranges of slots; [`deal`],
//! which computes the ranges; [`slot`], the slot of a name.

mod deal;
mod roster;
pub(super) mod slot;

pub use roster::{ClusterNode, NewRoster, Roster};
