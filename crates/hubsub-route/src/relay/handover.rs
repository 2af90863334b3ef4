//! How a hub's lead passes from one node to another, as each of them keeps it: whom a new leader waits for.
//!
//! Invariant: a leader that waits commits nothing, and it waits until its time at most.

use hubsub_types::NodeId;
use std::collections::BTreeSet;

/// Of one hub.
#[derive(Debug, Default)]
pub struct Handover {
    /// If it is led here since a moment ago: who has registered with it.
    pub gathers: Option<Gathers>,
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
        self.gathers.as_ref().map_or(u64::MAX, |gathers| gathers.until_ms)
    }
}
