//! The peers that have a link to this shard, one each. If two processes have one name, the one that
//! registered later is the node.

use super::{Peer, Refusal};
use std::collections::HashMap;

#[derive(Clone, Default, Debug)]
pub struct Roster {
    peers: HashMap<Box<str>, Entry>,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    incarnation: u64,
    is_suspected: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admission {
    Fresh,
    /// There is one, of this incarnation, which must be closed.
    Replaces(u64),
}

impl Roster {
    /// Admits a peer that has proved the secret.
    ///
    /// # Errors
    /// Another process has its name: one that registered later, or one of the same incarnation that is not
    /// suspected.
    pub fn admit(&mut self, peer: &Peer) -> Result<Admission, Refusal> {
        let entry = Entry { incarnation: peer.incarnation, is_suspected: false };
        let Some(old) = self.peers.get_mut(&peer.node) else {
            self.peers.insert(peer.node.clone(), entry);
            return Ok(Admission::Fresh);
        };
        // A suspected peer may have lost its end of the link before this node did.
        if (old.incarnation, !old.is_suspected) >= (peer.incarnation, true) {
            return Err(Refusal::DuplicateNode);
        }
        Ok(Admission::Replaces(std::mem::replace(old, entry).incarnation))
    }

    pub fn suspect(&mut self, peer: &Peer, is_suspected: bool) {
        if let Some(entry) = self.peers.get_mut(&peer.node)
            && entry.incarnation == peer.incarnation
        {
            entry.is_suspected = is_suspected;
        }
    }

    /// A peer's link has ended, and no other has replaced it.
    pub fn left(&mut self, peer: &Peer) {
        if self.peers.get(&peer.node).is_some_and(|entry| entry.incarnation == peer.incarnation) {
            self.peers.remove(&peer.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(incarnation: u64) -> Peer {
        Peer { node: "b".into(), incarnation, shards: 4, link: 0, links: 4, version: 1 }
    }

    #[test]
    fn a_second_process_of_a_name_is_refused_unless_it_registered_later() {
        let mut roster = Roster::default();
        assert_eq!(roster.admit(&peer(5)), Ok(Admission::Fresh));
        assert_eq!(roster.admit(&peer(5)), Err(Refusal::DuplicateNode));
        assert_eq!(roster.admit(&peer(4)), Err(Refusal::DuplicateNode));
        assert_eq!(roster.admit(&peer(6)), Ok(Admission::Replaces(5)));
        roster.left(&peer(5));
        assert_eq!(roster.admit(&peer(5)), Err(Refusal::DuplicateNode), "the later one stayed");
    }

    #[test]
    fn a_peer_that_is_not_heard_may_come_again() {
        let mut roster = Roster::default();
        assert_eq!(roster.admit(&peer(5)), Ok(Admission::Fresh));
        roster.suspect(&peer(5), true);
        assert_eq!(roster.admit(&peer(4)), Err(Refusal::DuplicateNode));
        assert_eq!(roster.admit(&peer(5)), Ok(Admission::Replaces(5)));
        assert_eq!(roster.admit(&peer(5)), Err(Refusal::DuplicateNode), "it is heard now");
        roster.left(&peer(5));
        assert_eq!(roster.admit(&peer(1)), Ok(Admission::Fresh));
    }
}
