//! State of a change of leader on each node: the nodes for which a new leader waits, and the routes that wait
//! until the previous leader has sent `LeadershipEnded`.
//!
//! Invariants: a waiting leader commits nothing, and waits no longer than its time limit. Waiting routes are
//! in the order of their terms, and none waits longer than its time limit.

use super::Leader;
use hubsub_types::{Epoch, NodeId, Term};
use std::collections::{BTreeSet, VecDeque};

#[derive(Debug, Default)]
pub struct Handover {
    pub interest_wait: Option<InterestWait>,
    /// The leadership and term for which this node sent `LeadershipEnded`.
    pub sent_over: Option<(Epoch, Term)>,
    /// Whether epochs of its rooms are known to have ended without missing records.
    pub has_over: bool,
    /// Whether the link to its leader has been up since the route came.
    pub is_unbroken: bool,
    pub routes: VecDeque<(Term, Leader)>,
    /// The time limit of the first waiting route, in ms.
    pub routes_until_ms: u64,
}

/// The wait of a new leader for the interest of other nodes.
#[derive(Debug)]
pub struct InterestWait {
    pub until_ms: u64,
    pub registered: BTreeSet<NodeId>,
}

impl InterestWait {
    pub fn new(until_ms: u64) -> InterestWait {
        InterestWait { until_ms, registered: BTreeSet::new() }
    }
}

impl Handover {
    /// The next time limit, in ms; `u64::MAX`: there is none.
    pub fn due_ms(&self) -> u64 {
        let gathers_ms = self.interest_wait.as_ref().map_or(u64::MAX, |interest_wait| interest_wait.until_ms);
        if self.routes.is_empty() { gathers_ms } else { gathers_ms.min(self.routes_until_ms) }
    }
}
