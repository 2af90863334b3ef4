//! The other nodes, as one shard knows them: the links that are up, messages that wait for them, and the
//! nodes' patterns.
//!
//! Invariant: messages for one link of one node are sent in the order in which they were passed here, or the
//! link has ended and none of them is sent.

use crate::Sink;
use crate::counts::{Holder, NODES_MAX};
use crate::patterns::Patterns;
use hubsub_message::NodeMessage;
use hubsub_types::names::group_of;
use hubsub_types::{HubId, NodeId};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

#[derive(Debug)]
pub struct Peer {
    pub node: NodeId,
    links: u16,
    /// Bit mask of the links that are up.
    up: u64,
    /// Messages that wait until their link accepts them, in order.
    unsent: VecDeque<(HubId, NodeMessage)>,
    patterns: BTreeSet<Arc<[u8]>>,
}

pub type Held<'a> = (&'a mut Patterns, &'a mut Patterns);

fn table_of<'a>(held: &'a mut Held<'_>, source: &[u8]) -> &'a mut Patterns {
    if group_of(source).is_some() { &mut *held.1 } else { &mut *held.0 }
}

/// The known nodes. A node has a place while a link of it is up or a pattern of it is held.
#[derive(Debug, Default)]
pub struct Peers {
    places: Vec<Option<Peer>>,
    unsent: usize,
}

impl Peers {
    pub fn place(&self, node: NodeId) -> Option<usize> {
        self.places.iter().position(|peer| peer.as_ref().is_some_and(|peer| peer.node == node))
    }

    /// The place of a node, which gets one if it has none; none if there are too many nodes.
    fn make_place(&mut self, node: NodeId) -> Option<usize> {
        if let Some(place) = self.place(node) {
            return Some(place);
        }
        let free = self.places.iter().position(Option::is_none);
        let place = free.unwrap_or(self.places.len());
        if place >= usize::from(NODES_MAX) {
            return None;
        }
        let (unsent, patterns) = (VecDeque::new(), BTreeSet::new());
        let peer = Peer { node, links: 1, up: 0, unsent, patterns };
        match self.places.get_mut(place) {
            Some(free) => *free = Some(peer),
            None => self.places.push(Some(peer)),
        }
        Some(place)
    }

    fn peer(&self, node: NodeId) -> Option<&Peer> {
        self.places.get(self.place(node)?)?.as_ref()
    }

    fn peer_mut(&mut self, node: NodeId) -> Option<&mut Peer> {
        let place = self.place(node)?;
        self.places[place].as_mut()
    }

    /// The holder that represents a node in the counts of this node's hubs, on a node with `shards` shards.
    pub fn holder(&self, node: NodeId, shards: u16) -> Option<Holder> {
        self.place(node).map(|place| Holder(shards + place as u16))
    }

    pub fn node_of(&self, holder: Holder, shards: u16) -> Option<NodeId> {
        let place = usize::from(holder.0.checked_sub(shards)?);
        self.places.get(place)?.as_ref().map(|peer| peer.node)
    }

    /// A link of a node is up, one of `links`; false if there are too many nodes.
    pub fn up(&mut self, node: NodeId, link: u16, links: u16) -> bool {
        let Some(place) = self.make_place(node) else { return false };
        let peer = self.places[place].as_mut().expect("just made");
        peer.links = links.max(1);
        peer.up |= 1 << (link % 64);
        true
    }

    pub fn down(&mut self, node: NodeId, link: u16) {
        let Some(peer) = self.peer_mut(node) else { return };
        peer.up &= !(1 << (link % 64));
        let (links, before) = (u32::from(peer.links), peer.unsent.len());
        peer.unsent.retain(|(hub, _)| hub.0 % links != u32::from(link));
        let lost = before - peer.unsent.len();
        self.unsent -= lost;
        self.forget_unknown(node);
    }

    fn forget_unknown(&mut self, node: NodeId) {
        if let Some(place) = self.place(node)
            && self.places[place].as_ref().is_some_and(|peer| peer.up == 0 && peer.patterns.is_empty())
        {
            self.places[place] = None;
        }
    }

    pub fn reaches(&self, node: NodeId, hub: HubId) -> bool {
        self.peer(node).is_some_and(|peer| peer.up >> (hub.0 % u32::from(peer.links)) & 1 != 0)
    }

    pub fn uses(&self, node: NodeId, hub: HubId, link: u16) -> bool {
        self.peer(node).is_some_and(|peer| hub.0 % u32::from(peer.links) == u32::from(link))
    }

    pub fn reached(&self, hub: HubId) -> impl Iterator<Item = NodeId> {
        self.places.iter().flatten().map(|peer| peer.node).filter(move |&node| self.reaches(node, hub))
    }

    /// Whether a record for a node would be sent at once.
    pub fn flows(&self, node: NodeId, hub: HubId, sink: &impl Sink) -> bool {
        self.peer(node).is_some_and(|peer| peer.unsent.is_empty()) && sink.node_flows(node, hub)
    }

    /// Sends a message now, or when the link accepts it. Returns whether the link is up.
    pub fn send(&mut self, node: NodeId, hub: HubId, message: NodeMessage, sink: &mut impl Sink) -> bool {
        if !self.reaches(node, hub) {
            return false;
        }
        let Some(peer) = self.peer_mut(node) else { return false };
        let refused = match peer.unsent.is_empty() {
            true => sink.send_node(node, hub, message).err(),
            false => Some(message),
        };
        if let Some(message) = refused {
            peer.unsent.push_back((hub, message));
            self.unsent += 1;
        }
        true
    }

    pub fn resend(&mut self, sink: &mut impl Sink) {
        if self.unsent == 0 {
            return;
        }
        for peer in self.places.iter_mut().flatten() {
            while let Some((hub, message)) = peer.unsent.pop_front() {
                if let Err(message) = sink.send_node(peer.node, hub, message) {
                    peer.unsent.push_front((hub, message));
                    break;
                }
                self.unsent -= 1;
            }
        }
    }

    /// The number of messages that wait for links of all nodes.
    pub fn unsent(&self) -> usize {
        self.unsent
    }

    pub fn unsent_of(&self, node: NodeId) -> usize {
        self.peer(node).map_or(0, |peer| peer.unsent.len())
    }

    /// Sets the number of subscribers of a node's pattern there.
    pub fn set_pattern(
        &mut self,
        node: NodeId,
        source: &Arc<[u8]>,
        count: u32,
        shards: u16,
        held: &mut Held<'_>,
    ) {
        let Some(place) = self.make_place(node) else { return };
        let peer = self.places[place].as_mut().expect("just made");
        if count == 0 {
            peer.patterns.remove(source);
        } else {
            peer.patterns.insert(Arc::clone(source));
        }
        table_of(held, source).set_holder(source, Holder(shards + place as u16), count, shards);
        self.forget_unknown(node);
    }

    /// Removes all patterns of a node, which has none any more or is about to send all again.
    pub fn clear_patterns(&mut self, node: NodeId, shards: u16, held: &mut Held<'_>) {
        let Some(place) = self.place(node) else { return };
        let peer = self.places[place].as_mut().expect("it has a place");
        for source in std::mem::take(&mut peer.patterns) {
            table_of(held, &source).set_holder(&source, Holder(shards + place as u16), 0, shards);
        }
        self.forget_unknown(node);
    }

    pub fn len(&self) -> usize {
        self.places.iter().flatten().count()
    }
}
