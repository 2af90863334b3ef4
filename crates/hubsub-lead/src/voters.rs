//! The voters of a majority: the record `meta/voters` of the coordinator.
//!
//! Registered nodes are not the voters: registrations lapse with their leases, so the few nodes on the
//! coordinator's side of a partition would become a majority. While `before` is not empty, a majority of both
//! sets is needed.

use hubsub_types::NodeId;

/// The record, as this node's watch delivered it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Voters {
    /// Revision of the record's key; a later record has a greater one.
    pub revision: u64,
    /// Voters. If empty, there is no majority.
    pub nodes: Vec<NodeId>,
    /// Voters before the current membership change; empty when none is in progress.
    pub before: Vec<NodeId>,
}

impl Voters {
    /// The latest time that a majority has reached, where `time` gives the time of each node. `None` if no
    /// majority has one.
    pub fn reached(&self, time: impl Fn(NodeId) -> Option<u64>) -> Option<u64> {
        let of = |counted: &[NodeId]| {
            let mut times: Vec<u64> = counted.iter().filter_map(|&node| time(node)).collect();
            times.sort_unstable_by(|a, b| b.cmp(a));
            times.get(counted.len() / 2).copied()
        };
        let reached = of(&self.nodes)?;
        if self.before.is_empty() {
            Some(reached)
        } else {
            of(&self.before).map(|before| before.min(reached))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voters(nodes: &[u16], before: &[u16]) -> Voters {
        let ids = |nodes: &[u16]| nodes.iter().map(|&node| NodeId(node)).collect();
        Voters { revision: 1, nodes: ids(nodes), before: ids(before) }
    }

    fn at(times: &[(u16, u64)]) -> impl Fn(NodeId) -> Option<u64> {
        move |node| times.iter().find(|(of, _)| *of == node.0).map(|(_, time)| *time)
    }

    #[test]
    fn more_than_half_reach_a_time() {
        let three = voters(&[1, 2, 3], &[]);
        assert_eq!(three.reached(at(&[(1, 10), (2, 20), (3, 30)])), Some(20));
        assert_eq!(three.reached(at(&[(1, 10), (9, 40)])), None, "a node that is no voter does not count");
        let four = voters(&[1, 2, 3, 4], &[]);
        assert_eq!(four.reached(at(&[(1, 10), (2, 20)])), None, "half is no majority");
        assert_eq!(four.reached(at(&[(1, 10), (2, 20), (3, 30)])), Some(10));
        assert_eq!(voters(&[], &[]).reached(at(&[(1, 10)])), None);
    }

    #[test]
    fn while_it_changes_both_sets_count() {
        let joint = voters(&[1, 2, 3], &[3, 4, 5]);
        assert_eq!(joint.reached(at(&[(1, 10), (2, 20), (3, 30)])), None);
        assert_eq!(joint.reached(at(&[(1, 10), (3, 30), (4, 5)])), Some(5));
    }
}
