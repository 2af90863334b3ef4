//! How a hub's lead passes from one node to another, as each of them keeps it: whom a new leader waits for, and the
//! routes that wait until the leader before has said that it is done.
//!
//! Invariants: a leader that waits commits nothing, and it waits until its time at most. Routes that wait are in the
//! order of their terms, and none waits longer than its time.

use super::Leader;
use hubsub_types::{Epoch, NodeId, Term};
use std::collections::{BTreeSet, VecDeque};

/// Of one hub.
#[derive(Debug, Default)]
pub struct Handover {
    /// If it is led here since a moment ago: who has registered with it.
    pub gathers: Option<Gathers>,
    /// The time of leading, and the term, of which other nodes were told that it is over.
    pub told_over: Option<(Epoch, Term)>,
    /// Whether rooms of it are known to be over, and to lack nothing.
    pub has_over: bool,
    /// Whether the link to its leader stands since the route came.
    pub is_unbroken: bool,
    /// Routes that wait.
    pub routes: VecDeque<(Term, Leader)>,
    /// Until when the first of them does, in ms.
    pub routes_until_ms: u64,
}

/// A new leader waits for the interest of other nodes.
#[derive(Debug)]
pub struct Gathers {
    /// Until then at most, in ms.
    pub until_ms: u64,
    /// Nodes that have told all interest that they have.
    pub registered: BTreeSet<NodeId>,
}

impl Gathers {
    /// Begins to wait, until then at most.
    #[must_use]
    pub fn new(until_ms: u64) -> Gathers {
        Gathers { until_ms, registered: BTreeSet::new() }
    }
}

impl Handover {
    /// When something is due, in ms; `u64::MAX`: nothing is.
    #[must_use]
    pub fn due_ms(&self) -> u64 {
        let gathers_ms = self.gathers.as_ref().map_or(u64::MAX, |gathers| gathers.until_ms);
        if self.routes.is_empty() { gathers_ms } else { gathers_ms.min(self.routes_until_ms) }
    }
}
