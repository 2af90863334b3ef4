//! How far the patterns of nodes are followed, hub by hub: what a leader counts for each node, and what
//! the node counts itself. Where both differ, the node lacks records that its patterns match.
//!
//! Invariant: what is due to a node is at least what it was due by its patterns; as long as it is watched,
//! exactly what it was sent.

use crate::counts::NODES_MAX;
use hubsub_types::{Epoch, NodeId, Term};
use std::collections::BTreeMap;

/// Of a hub that is led here: for whom its records are matched.
#[derive(Debug, Default)]
pub struct Watchers {
    /// Of this time that the hub is led here.
    pub life: Epoch,
    commits: u64,
    nodes: BTreeMap<NodeId, Watcher>,
}

#[derive(Debug)]
struct Watcher {
    due: u64,
    /// The number of commits when it was watched no more; none: it is.
    away: Option<u64>,
}

impl Watchers {
    /// The hub is led here from now on.
    #[must_use]
    pub fn new(life: Epoch) -> Watchers {
        Watchers { life, ..Watchers::default() }
    }

    /// A record of the hub is committed.
    #[inline]
    pub fn commit(&mut self) {
        self.commits += 1;
    }

    /// A record is sent to a node.
    pub fn sent(&mut self, node: NodeId) {
        if let Some(watcher) = self.nodes.get_mut(&node).filter(|watcher| watcher.away.is_none()) {
            watcher.due += 1;
        }
    }

    /// All that a node's patterns match is sent there from now on: what was due before.
    pub fn begin(&mut self, node: NodeId) -> u64 {
        if self.nodes.len() >= 2 * usize::from(NODES_MAX) && !self.nodes.contains_key(&node) {
            // Who comes again is told that everything was due.
            self.nodes.retain(|_, watcher| watcher.away.is_none());
        }
        let commits = self.commits;
        let watcher = self.nodes.entry(node).or_insert(Watcher { due: 0, away: Some(0) });
        if let Some(away) = watcher.away.take() {
            watcher.due += commits - away;
        }
        watcher.due
    }

    /// Not all of it any more.
    pub fn end(&mut self, node: NodeId) {
        let commits = self.commits;
        if let Some(watcher) = self.nodes.get_mut(&node) {
            watcher.away.get_or_insert(commits);
        }
    }

    /// A node's patterns have changed, and nobody knows when: one record may have been due.
    pub fn doubt(&mut self, node: NodeId) {
        if let Some(watcher) = self.nodes.get_mut(&node).filter(|_| self.commits > 0) {
            watcher.due += 1;
        }
    }
}

/// Of a hub that another node leads: what came of it.
#[derive(Debug, Default)]
pub struct Watched {
    /// The leader's life, and its records that came, or that were told as missing.
    known: Option<(Epoch, u64)>,
    /// Records that came were passed over.
    pub lacks: bool,
}

impl Watched {
    /// A record came from the leader.
    pub fn came(&mut self) {
        if let Some((_, came)) = &mut self.known {
            *came += 1;
        }
    }

    /// A leader says how many were due: whether none is missing.
    pub fn live(&mut self, life: Epoch, term: Term, due: u64) -> bool {
        let is_whole = match self.known {
            Some(known) => known == (life, due),
            // There was nobody before who leads first.
            None => due == 0 && term <= Term(1),
        };
        self.known = Some((life, due));
        is_whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NODE: NodeId = NodeId(3);

    #[test]
    fn what_was_sent_and_what_was_committed_meanwhile_was_due() {
        let mut watchers = Watchers::new(Epoch(7));
        watchers.commit();
        assert_eq!(watchers.begin(NODE), 1, "committed before it was watched");
        watchers.commit();
        watchers.commit();
        watchers.sent(NODE);
        assert_eq!(watchers.begin(NODE), 2, "the other one did not match");
        watchers.end(NODE);
        watchers.end(NODE);
        watchers.commit();
        watchers.sent(NODE);
        assert_eq!(watchers.begin(NODE), 3, "counted once");
        watchers.doubt(NODE);
        assert_eq!(watchers.begin(NODE), 4);
    }

    #[test]
    fn who_got_all_of_a_life_lacks_nothing() {
        let mut watched = Watched::default();
        assert!(watched.live(Epoch(7), Term(1), 0), "the first leader of all, and nothing went by");
        watched.came();
        assert!(watched.live(Epoch(7), Term(2), 1));
        assert!(!watched.live(Epoch(7), Term(2), 2), "one is missing");
        assert!(watched.live(Epoch(7), Term(2), 2), "that was told");
        assert!(!watched.live(Epoch(8), Term(3), 2), "nobody knows what the former leader sent last");
        assert!(!Watched::default().live(Epoch(9), Term(2), 0));
    }

    #[test]
    fn nodes_that_went_are_forgotten() {
        let mut watchers = Watchers::new(Epoch(7));
        for node in 0..1_000 {
            watchers.begin(NodeId(node));
            watchers.end(NodeId(node));
        }
        assert!(watchers.nodes.len() <= 2 * usize::from(NODES_MAX));
    }
}
