//! The nodes reported to cluster clients, and their slots. The control plane gives each node the same list;
//! shards only read it.

use super::deal::{Range, deal};
use super::slot::SLOTS;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const ID_DIGITS: usize = 40;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClusterNode {
    /// Unique in the cluster; slots are assigned by it.
    pub name: String,
    /// Its id: 40 hexadecimal digits.
    pub id: String,
    /// The host of its cluster listener. Empty: the address that the client connected to.
    pub host: String,
    pub port: u16,
}

#[derive(Default, Debug)]
pub struct Roster {
    nodes: Vec<ClusterNode>,
    /// Sorted, covering all slots; empty without nodes.
    ranges: Vec<Range>,
    own: Option<u16>,
}

impl Roster {
    /// Assigns the slots to these nodes; this one is called `own`.
    ///
    /// # Errors
    /// If two nodes have the same name or id, an id is malformed, or there are more nodes than slots.
    pub fn new(own: &str, mut nodes: Vec<ClusterNode>) -> Result<Roster, String> {
        if nodes.len() > usize::from(SLOTS) {
            return Err(format!("more nodes than slots: {}", nodes.len()));
        }
        nodes.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        if let Some(pair) = nodes.windows(2).find(|pair| pair[0].name == pair[1].name) {
            return Err(format!("two nodes have one name: {}", pair[0].name));
        }
        let is_id = |id: &str| id.len() == ID_DIGITS && id.bytes().all(|b| b.is_ascii_hexdigit());
        if let Some(node) = nodes.iter().find(|node| !is_id(&node.id)) {
            return Err(format!(
                "the id of node {} has not {ID_DIGITS} hexadecimal digits: {}",
                node.name, node.id
            ));
        }
        let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
        let ranges = deal(&names);
        let own = names.iter().position(|name| *name == own).map(|place| place as u16);
        Ok(Roster { nodes, ranges, own })
    }

    /// The owner of a slot, and whether that is this node.
    pub fn owner(&self, slot: u16) -> Option<(&ClusterNode, bool)> {
        let range = self.ranges.get(self.ranges.partition_point(|range| range.last < slot))?;
        Some((&self.nodes[usize::from(range.owner)], self.own == Some(range.owner)))
    }

    pub fn is_own(&self, slot: u16) -> bool {
        self.owner(slot).is_some_and(|(_, is_own)| is_own)
    }

    /// This node and its index, if it is in the list.
    pub fn own(&self) -> Option<(u16, &ClusterNode)> {
        self.own.map(|place| (place, &self.nodes[usize::from(place)]))
    }

    /// The nodes sorted by name, each with its index.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (u16, &ClusterNode)> {
        self.nodes.iter().enumerate().map(|(place, node)| (place as u16, node))
    }

    pub fn by_id(&self, id: &[u8]) -> Option<&ClusterNode> {
        self.nodes.iter().find(|node| node.id.as_bytes() == id)
    }

    /// All ranges sorted by slot, each with its node.
    pub fn ranges(&self) -> impl ExactSizeIterator<Item = (Range, &ClusterNode)> {
        self.ranges.iter().map(|&range| (range, &self.nodes[usize::from(range.owner)]))
    }

    pub fn ranges_of(&self, place: u16) -> impl Iterator<Item = &Range> + Clone {
        self.ranges.iter().filter(move |range| range.owner == place)
    }
}

/// A node list being distributed to the shards of a node.
#[derive(Debug)]
pub struct NewRoster {
    pub roster: Arc<Roster>,
    /// The number of shards that have not applied it.
    missing: AtomicUsize,
}

impl NewRoster {
    /// For this many shards, each of which gets it once.
    pub fn new(roster: Roster, shards: usize) -> NewRoster {
        NewRoster { roster: Arc::new(roster), missing: AtomicUsize::new(shards) }
    }

    /// Counts a shard that applied it; returns whether it was the last.
    pub fn heard(&self) -> bool {
        self.missing.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str) -> ClusterNode {
        let id = format!("{:0>40}", name.bytes().map(|b| format!("{b:x}")).collect::<String>());
        ClusterNode { name: name.to_owned(), id, host: String::new(), port: 1 }
    }

    #[test]
    fn nodes_deal_alike_in_whatever_order_they_heard_of_each_other() {
        let one = Roster::new("a", vec![node("a"), node("b"), node("c")]).unwrap();
        let other = Roster::new("c", vec![node("c"), node("b"), node("a")]).unwrap();
        for slot in 0..SLOTS {
            assert_eq!(one.owner(slot).unwrap().0, other.owner(slot).unwrap().0);
            assert_eq!(one.is_own(slot), one.owner(slot).unwrap().0.name == "a");
            assert!(!(one.is_own(slot) && other.is_own(slot)));
        }
    }

    #[test]
    fn without_nodes_no_slot_has_an_owner_and_who_is_left_out_has_none() {
        assert!(Roster::default().owner(7).is_none());
        let roster = Roster::new("gone", vec![node("a")]).unwrap();
        assert!(roster.own().is_none() && !roster.is_own(7) && roster.owner(7).is_some());
    }

    #[test]
    fn a_list_that_is_ambiguous_or_malformed_is_refused_by_what_is_wrong() {
        let refused = |nodes: Vec<ClusterNode>| Roster::new("a", nodes).unwrap_err();
        assert_eq!(refused(vec![node("a"), node("b"), node("a")]), "two nodes have one name: a");
        let short = ClusterNode { id: "12".to_owned(), ..node("a") };
        assert_eq!(refused(vec![short]), "the id of node a has not 40 hexadecimal digits: 12");
        let many = (0..=SLOTS).map(|i| node(&format!("n{i}"))).collect();
        assert_eq!(refused(many), "more nodes than slots: 16385");
    }
}
