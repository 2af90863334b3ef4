//! How a shard's broker reaches other nodes: which links stand, on this shard
//! and on others, and whether records would go out at once. What is for a link
//! of another shard goes there by mail, addressed to that very connection: a
//! message does not outlive the link that it was meant for.

use hubsub_types::{ConnKey, HubId, NodeId};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the shard of a link says of it to the others.
#[derive(Debug, Default)]
pub struct Gate {
    live: AtomicBool,
    reads: AtomicBool,
}

impl Gate {
    /// Whether frames of both lanes would go out at once. Written by the link's shard alone.
    pub fn set(&self, live: bool, reads: bool) {
        self.live.store(live, Ordering::Relaxed);
        self.reads.store(reads, Ordering::Relaxed);
    }

    /// Whether frames of the lane would.
    #[must_use]
    pub fn is_open(&self, is_read: bool) -> bool {
        if is_read { self.reads.load(Ordering::Relaxed) } else { self.live.load(Ordering::Relaxed) }
    }
}

/// A link that stands.
#[derive(Clone, Debug)]
pub struct Way {
    /// Its number, and so its shard.
    pub link: u16,
    /// Its connection there.
    pub key: ConnKey,
    /// What that shard says of it.
    pub gate: Arc<Gate>,
}

/// All links that stand, by node.
#[derive(Default)]
pub struct Reach {
    nodes: Vec<Vec<Option<Way>>>,
}

impl Reach {
    /// A link stands, of so many.
    pub fn set(&mut self, node: NodeId, links: u16, way: Way) {
        let place = usize::from(node.0);
        if self.nodes.len() <= place {
            self.nodes.resize_with(place + 1, Vec::new);
        }
        let (ways, link) = (&mut self.nodes[place], usize::from(way.link));
        ways.resize(usize::from(links), None);
        ways[link] = Some(way);
    }

    /// A link is over.
    pub fn unset(&mut self, node: NodeId, link: u16) {
        let ways = self.nodes.get_mut(usize::from(node.0));
        if let Some(way) = ways.and_then(|ways| ways.get_mut(usize::from(link))) {
            *way = None;
        }
    }

    /// The link that a hub uses to a node, if it stands.
    #[must_use]
    pub fn way(&self, node: NodeId, hub: HubId) -> Option<&Way> {
        let ways = self.nodes.get(usize::from(node.0)).filter(|ways| !ways.is_empty())?;
        ways[hub.0 as usize % ways.len()].as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(link: u16) -> Way {
        Way { link, key: ConnKey { index: 1, generation: 1 }, gate: Arc::default() }
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
}
