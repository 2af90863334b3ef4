//! The links to other nodes for a shard's broker: which are up, on this shard and others, and whether they
//! have room. Messages for a link of another shard go there by mail, addressed to that connection, so a
//! message never outlives its link.
//!
//! The shards of links send news, each in order, but unordered between shards: news of a node's previous
//! process may arrive after those of the next one, and are then ignored.

use hubsub_types::{ConnKey, HubId, NodeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A link's state, published by its shard for the others.
#[derive(Debug, Default)]
pub struct Gate {
    live: AtomicBool,
    reads: AtomicBool,
    silent: AtomicBool,
}

impl Gate {
    /// Sets whether frames of the two lanes would be sent at once. Called only by the link's shard.
    pub fn set(&self, live: bool, reads: bool) {
        self.live.store(live, Ordering::Relaxed);
        self.reads.store(reads, Ordering::Relaxed);
    }

    /// Sets whether the peer is suspected on this link. Called only by the link's shard.
    pub fn set_silent(&self, is_silent: bool) {
        self.silent.store(is_silent, Ordering::Relaxed);
    }

    pub fn is_silent(&self) -> bool {
        self.silent.load(Ordering::Relaxed)
    }

    /// True if frames of the lane would be sent at once.
    pub fn is_open(&self, is_read: bool) -> bool {
        if is_read { self.reads.load(Ordering::Relaxed) } else { self.live.load(Ordering::Relaxed) }
    }
}

#[derive(Clone, Debug)]
pub struct Way {
    /// Its number, which is also its shard.
    pub link: u16,
    pub incarnation: u64,
    /// Its connection at that shard.
    pub key: ConnKey,
    pub gate: Arc<Gate>,
}

/// The links of one node, by number.
#[derive(Default)]
struct Ways {
    incarnation: u64,
    ways: Vec<Option<Way>>,
}

/// All links that are up, by node.
#[derive(Default)]
pub struct Reach {
    nodes: Vec<Ways>,
}

impl Reach {
    fn node(&mut self, node: NodeId) -> &mut Ways {
        let place = usize::from(node.0);
        if self.nodes.len() <= place {
            self.nodes.resize_with(place + 1, Ways::default);
        }
        &mut self.nodes[place]
    }

    /// The node has this incarnation now: links of another one are removed.
    pub fn registered(&mut self, node: NodeId, incarnation: u64) {
        let known = self.node(node);
        if known.incarnation != incarnation {
            *known = Ways { incarnation, ways: Vec::new() };
        }
    }

    /// A link is up; `links` is the node's link count.
    pub fn set(&mut self, node: NodeId, links: u16, way: Way) {
        let known = self.node(node);
        if way.incarnation < known.incarnation {
            return;
        }
        if way.incarnation > known.incarnation {
            *known = Ways { incarnation: way.incarnation, ways: Vec::new() };
        }
        let link = usize::from(way.link);
        known.ways.resize(usize::from(links), None);
        known.ways[link] = Some(way);
    }

    pub fn unset(&mut self, node: NodeId, link: u16) {
        let known = self.nodes.get_mut(usize::from(node.0));
        if let Some(way) = known.and_then(|known| known.ways.get_mut(usize::from(link))) {
            *way = None;
        }
    }

    /// The link that a hub uses to a node, if it is up.
    pub fn way(&self, node: NodeId, hub: HubId) -> Option<&Way> {
        let ways = &self.nodes.get(usize::from(node.0)).filter(|known| !known.ways.is_empty())?.ways;
        ways[hub.0 as usize % ways.len()].as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(link: u16) -> Way {
        of(1, link)
    }

    fn of(incarnation: u64, link: u16) -> Way {
        Way { link, incarnation, key: ConnKey { index: 1, generation: 1 }, gate: Arc::default() }
    }

    #[test]
    fn a_hub_uses_its_link_and_no_other() {
        let mut reach = Reach::default();
        assert!(reach.way(NodeId(3), HubId(0)).is_none());
        reach.set(NodeId(3), 2, way(1));
        assert!(reach.way(NodeId(3), HubId(4)).is_none());
        assert_eq!(reach.way(NodeId(3), HubId(5)).unwrap().link, 1);
        reach.unset(NodeId(3), 1);
        reach.unset(NodeId(4), 1);
        assert!(reach.way(NodeId(3), HubId(5)).is_none());
    }

    #[test]
    fn a_process_with_fewer_links_is_reached_by_them_whatever_comes_late_of_the_one_before() {
        let (mut reach, node) = (Reach::default(), NodeId(0));
        (0..3).for_each(|link| reach.set(node, 4, of(1, link)));
        (0..2).for_each(|link| reach.set(node, 2, of(2, link)));
        // The last link of the previous process came up at a shard that lagged, and ended.
        reach.set(node, 4, of(1, 3));
        reach.unset(node, 3);
        for hub in 0..8 {
            let way = reach.way(node, HubId(hub)).expect("both links stand");
            assert_eq!((way.incarnation, u32::from(way.link)), (2, hub % 2));
        }
        reach.registered(node, 2);
        assert!(reach.way(node, HubId(0)).is_some(), "as it was known");
        reach.registered(node, 1);
        assert!(reach.way(node, HubId(0)).is_none(), "who is registered is the node");
    }
}
