//! Dispatch of the frames of a link, and sending for the broker. All frames arrive here: messages
//! of brokers, those of control planes, and those of leader leases.
//!
//! Shard `i` owns link `i`. Hub `h` belongs to shard `h mod shards`, which may differ from that of link `h
//! mod L` on nodes with different shard counts. Messages for another shard go there by mail, in order; the
//! peer gets its credit back when that shard's broker has them.
//!
//! The link's shard notifies all shards when a link comes up or ends, before any later message.

use super::LinkMail;
use super::conn::Role;
use super::links::Links;
use super::reach::Way;
use crate::context::Ctx;
use crate::context::io::Io;
use crate::presence;
use hubsub_message::NodeMessage;
use hubsub_types::{ConnKey, HubId, NodeId, ShardId};
use hubsub_wire::link::{End, Frame, Lane, Sent};
use std::sync::Arc;

/// When the credit of a frame is returned to the peer.
pub(super) enum Credit {
    /// At once: the broker is done with it.
    Now,
    /// When the shard that lags has caught up.
    Held,
    /// When another shard reports it handled.
    Elsewhere,
}

/// A change of a link, for the brokers of all shards.
#[derive(Clone)]
pub(crate) enum News {
    /// It is up; the number is the peer's link count.
    Up(NodeId, u16, Way),
    Down(NodeId, u16),
    /// The process with this run id is gone.
    Dead(u64),
}

/// Bytes of frames passed to another shard, per connection: live, then reads.
pub(super) type Owed = (ShardId, ConnKey, NodeId, [usize; 2]);

impl Ctx {
    /// Executes a frame of a link and returns when to credit it.
    ///
    /// # Errors
    /// If the link must end: no frame is ignored silently.
    pub(super) fn link_frame(
        &mut self,
        from: ConnKey,
        frame: Frame<'_>,
        bytes: usize,
    ) -> Result<Credit, End> {
        match frame {
            Frame::Message(message) => return self.broker_message(from, message, bytes),
            Frame::Control { id, is_answer, body } => {
                self.io.states.links.control_frame(from, id, is_answer, body.0);
            }
            frame => crate::link::leads::lead_frame(self, from, &frame)?,
        }
        Ok(Credit::Now)
    }

    /// Handles a message between brokers. A node without a cluster ends the link instead of ignoring it.
    fn broker_message(&mut self, via: ConnKey, message: NodeMessage, bytes: usize) -> Result<Credit, End> {
        let from = self.io.states.links.node_of(via).filter(|_| self.broker.has_nodes());
        let Some(from) = from else { return Err(End::OutOfPlace(message.name())) };
        let (to, own) = (message.shard(self.io.mailer.shards()), self.io.shard);
        if to.0 >= self.io.mailer.shards() {
            // A response that was never requested.
            return Err(End::OutOfPlace(message.name()));
        }
        if to == own {
            self.broker.node_message(from, message, self.io.now, &mut self.io);
            let is_behind = self.broker.is_behind(from) || self.io.mailer.any_congested();
            return Ok(if is_behind { Credit::Held } else { Credit::Now });
        }
        let mail = LinkMail::Message { from, shard: own, via, message, bytes };
        self.io.mailer.post(to, mail);
        Ok(Credit::Elsewhere)
    }

    /// Handles mail for, or from, this shard's links.
    pub fn link_mail(&mut self, mail: LinkMail) {
        match mail {
            LinkMail::Message { from, shard, via, message, bytes } => {
                let lane = usize::from(message.is_read());
                self.io.states.links.owe((shard, via, from), lane, bytes);
                self.broker.node_message(from, message, self.io.now, &mut self.io);
            }
            LinkMail::News(news) => self.take_news(&news),
            LinkMail::Begin(identity) => {
                let incarnation = identity.incarnation;
                self.io.states.presence.begin(&identity.node, incarnation);
                self.io.states.links.receive(LinkMail::Begin(identity));
                self.io.states.links.set_ready(false);
                crate::link::leads::begin_leads(self, incarnation);
            }
            LinkMail::Roster(roster) => {
                self.io.states.links.receive(LinkMail::Roster(Arc::clone(&roster)));
                crate::link::leads::lead_roster(self, &roster);
                crate::link::ready::ready_roster(self, &roster);
                let processes = roster.iter().map(|peer| (peer.id, &*peer.node, peer.incarnation));
                presence::registered(self, processes);
            }
            mail => self.io.states.links.receive(mail),
        }
        self.tell_news();
    }

    /// Runs the timers of links.
    #[inline]
    pub fn tick_links(&mut self) {
        self.io.states.links.tick();
        if !self.io.states.links.news.is_empty() {
            self.tell_news();
        }
        crate::link::leads::tick_leads(self);
        crate::link::ready::tick_ready(self);
    }

    /// Notifies all shards of changes of this shard's links.
    pub(super) fn tell_news(&mut self) {
        for news in std::mem::take(&mut self.io.states.links.news) {
            let own = self.io.shard;
            for shard in (0..self.io.mailer.shards()).map(ShardId).filter(|&shard| shard != own) {
                self.io.mailer.post(shard, LinkMail::News(news.clone()));
            }
            self.take_news(&news);
        }
    }

    fn take_news(&mut self, news: &News) {
        let now = self.io.now;
        match *news {
            News::Up(node, links, ref way) => {
                self.io.states.links.reach.set(node, links, way.clone());
                self.broker.node_up(node, way.link, links, now, &mut self.io);
                if way.link == self.io.shard.0 {
                    crate::link::leads::lead_link_up(self, node, way.key);
                }
                presence::process_up(self, node);
            }
            News::Dead(run) => presence::process_gone(self, run),
            News::Down(node, link) => {
                self.io.states.links.reach.unset(node, link);
                self.broker.node_down(node, link, now, &mut self.io);
                if link == self.io.shard.0 {
                    crate::link::leads::lead_link_down(self, node);
                }
            }
        }
    }

    /// Returns withheld credit for frames that this shard's broker has handled.
    pub fn settle_credit(&mut self) {
        let Ctx { broker, io, .. } = self;
        if !io.states.links.held.is_empty() && !io.mailer.any_congested() {
            io.states.links.release(|node| broker.is_behind(node));
        }
        for owed in std::mem::take(&mut io.states.links.owed) {
            let (shard, key, node, bytes) = owed;
            if broker.is_behind(node) {
                io.states.links.owed.push(owed);
            } else {
                io.mailer.post(shard, LinkMail::Handled(key, bytes));
            }
        }
    }
}

impl Io {
    /// Sends a broker's message over the link of a hub; returns it if the link has no room now.
    pub(crate) fn send_to_node(
        &mut self,
        node: NodeId,
        hub: HubId,
        message: NodeMessage,
    ) -> Result<(), NodeMessage> {
        let Some(way) = self.states.links.reach.way(node, hub) else { return Err(message) };
        let (to, key) = (ShardId(way.link), way.key);
        if to == self.shard {
            return match self.states.links.send(key, &message) {
                Sent::Refused => Err(message),
                _ => Ok(()),
            };
        }
        if !way.gate.is_open(message.is_read()) || self.mailer.congested(to) {
            return Err(message);
        }
        self.mailer.post(to, LinkMail::Send(key, message));
        Ok(())
    }

    /// True if a record would be sent at once over the link of a hub.
    pub(crate) fn flows_to_node(&self, node: NodeId, hub: HubId) -> bool {
        let Some(way) = self.states.links.reach.way(node, hub) else { return false };
        if way.link == self.shard.0 {
            return self.states.links.flows(way.key);
        }
        way.gate.is_open(false) && !self.mailer.congested(ShardId(way.link))
    }

    /// True if a node is suspected on the link of a hub, whichever shard owns that.
    pub(crate) fn is_silent(&self, node: NodeId, hub: HubId) -> bool {
        self.states.links.reach.way(node, hub).is_some_and(|way| way.gate.is_silent())
    }
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

    fn node_of(&self, key: ConnKey) -> Option<NodeId> {
        self.conns.get(key)?.node
    }

    /// Notes credit that this shard owes for a frame of another shard's link.
    fn owe(&mut self, (shard, key, node): (ShardId, ConnKey, NodeId), lane: usize, bytes: usize) {
        let place = self.owed.iter().position(|owed| (owed.0, owed.1) == (shard, key));
        let place = place.unwrap_or_else(|| {
            self.owed.push((shard, key, node, [0; 2]));
            self.owed.len() - 1
        });
        self.owed[place].3[lane] += bytes;
    }
}
