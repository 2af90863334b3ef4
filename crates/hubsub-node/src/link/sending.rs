//! Messages of a shard's broker to other nodes: over a link of this shard, or by mail over one of another.

use super::state::conn::Role;
use super::state::links::Links;
use super::state::mail::LinkMail;
use crate::context::io::Io;
use hubsub_message::NodeMessage;
use hubsub_types::{ConnKey, HubId, NodeId, ShardId};
use hubsub_wire::link::{Lane, Sent};

/// Sends a broker's message over the link of a hub; returns it if the link has no room now.
pub(crate) fn send(io: &mut Io, node: NodeId, hub: HubId, message: NodeMessage) -> Result<(), NodeMessage> {
    let Some(way) = io.states.links.reach.way(node, hub) else { return Err(message) };
    let (to, key) = (ShardId(way.link), way.key);
    if to == io.shard {
        return match io.states.links.send(key, &message) {
            Sent::Refused => Err(message),
            _ => Ok(()),
        };
    }
    if !way.gate.is_open(message.is_read()) || io.mailer.congested(to) {
        return Err(message);
    }
    io.mailer.post(to, LinkMail::Send(key, message));
    Ok(())
}

/// True if a record would be sent at once over the link of a hub.
pub(crate) fn flows(io: &Io, node: NodeId, hub: HubId) -> bool {
    let Some(way) = io.states.links.reach.way(node, hub) else { return false };
    if way.link == io.shard.0 {
        return io.states.links.flows(way.key);
    }
    way.gate.is_open(false) && !io.mailer.congested(ShardId(way.link))
}

/// True if a node is suspected on the link of a hub, whichever shard owns that.
pub(crate) fn is_silent(io: &Io, node: NodeId, hub: HubId) -> bool {
    io.states.links.reach.way(node, hub).is_some_and(|way| way.gate.is_silent())
}

impl Links {
    /// Sends a broker's message over a link of this shard.
    fn send(&mut self, key: ConnKey, message: &NodeMessage) -> Sent {
        let Some(conn) = self.conns.get_mut(key) else { return Sent::Refused };
        let sent = conn.link.send_message(message);
        self.soil(key);
        sent
    }

    /// Sends for another shard's broker, which was promised room. Only a burst of many shards can exceed it;
    /// then the link ends and is dialed again.
    pub(super) fn send_for_other(&mut self, key: ConnKey, message: &NodeMessage) {
        let is_up = |role: &Role| matches!(role, Role::Up(_));
        if self.conns.get(key).is_some_and(|conn| is_up(&conn.role))
            && self.send(key, message) == Sent::Refused
        {
            self.end_crowding(key, "messages of other shards that wait for its link");
        }
    }

    fn flows(&self, key: ConnKey) -> bool {
        self.conns.get(key).is_some_and(|conn| conn.link.flows(Lane::Live))
    }

    pub(super) fn node_of(&self, key: ConnKey) -> Option<NodeId> {
        self.conns.get(key)?.node
    }
}
