//! The peers of this shard: registered processes that have a shard of its number.

use super::Links;
use super::round::Round;
use crate::io::report::Share;
use crate::link::state::conn::Role;
use crate::link::state::peer_table::Registered;
use hubsub_types::ConnKey;
use hubsub_wire::link::Breaker;
use hubsub_wire::link::handshake::dials;
use std::sync::Arc;

pub(crate) struct PeerLink {
    pub(crate) registered: Registered,
    pub(super) dials: bool,
    /// Decides when to dial or to probe the port.
    pub(super) breaker: Breaker,
    /// The link that is up or dialed.
    pub(crate) link: Option<ConnKey>,
    /// The connection that probes the port.
    pub(super) probe: Option<ConnKey>,
    /// The last link ended without a goodbye: the process may be dead.
    pub(super) is_missed: bool,
    /// Index of the address to try first: the last one that answered.
    pub(super) first: usize,
    /// The peer's requests and responses that the control plane has not taken.
    pub(crate) questions: Arc<Share>,
    pub(crate) answers: Arc<Share>,
    pub(super) round: Option<Round>,
}

impl Links {
    pub(crate) fn set_roster(&mut self, registered: &[Registered]) {
        self.has_roster = true;
        let mut old = std::mem::take(&mut self.peers);
        let (shard, shards) = (self.shard, self.shards);
        let mut moved = Vec::new();
        registered.iter().for_each(|peer| self.reach.registered(peer.id, peer.incarnation));
        for new in registered.iter().filter(|new| shard < new.shards.min(shards)) {
            let same = |peer: &PeerLink| {
                (peer.registered.incarnation, peer.registered.shards) == (new.incarnation, new.shards)
            };
            let peer = match old.remove(&new.node) {
                Some(peer) if same(&peer) => {
                    moved.extend((peer.registered.addresses != new.addresses).then(|| new.node.clone()));
                    PeerLink { registered: new.clone(), ..peer }
                }
                former => {
                    former.into_iter().for_each(|peer| self.drop_peer(&peer, "it has registered anew"));
                    self.new_peer(new.clone())
                }
            };
            self.peers.insert(new.node.clone(), peer);
        }
        moved.iter().for_each(|node| self.moved(node));
        old.into_values().for_each(|peer| self.drop_peer(&peer, "it is not registered any more"));
        let waiting: Vec<ConnKey> = self.keys(|role| matches!(role, Role::Proved(..)));
        waiting.into_iter().for_each(|key| self.decide(key));
        self.wake_us = 0;
    }

    fn new_peer(&self, registered: Registered) -> PeerLink {
        let own = self.identity.as_ref().map_or("", |identity| &identity.node);
        let seed = u64::from_le_bytes(*crate::io::sys::random().first_chunk().expect("it is longer"));
        PeerLink {
            dials: dials(own, &registered.node),
            registered,
            breaker: Breaker::new(&self.limits, seed),
            link: None,
            probe: None,
            is_missed: false,
            first: 0,
            questions: Arc::default(),
            answers: Arc::default(),
            round: None,
        }
    }

    /// A peer has other addresses: a probe of the old ones proves nothing, and the new ones are tried at
    /// once.
    fn moved(&mut self, node: &str) {
        self.end_look(node);
        self.peers.get_mut(node).expect("it was just added").breaker.seen();
    }

    /// Ends the links with a process that is no longer registered.
    fn drop_peer(&mut self, peer: &PeerLink, why: &str) {
        for key in [peer.link, peer.probe].into_iter().flatten() {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            if let Role::Up(peer) = &conn.role {
                self.roster.left(peer);
            }
            conn.link.bye(false, why);
            self.close(key);
        }
    }
}
