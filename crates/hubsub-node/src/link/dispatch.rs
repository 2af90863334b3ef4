//! What frames of a link's owner do, and how its broker sends. Each frame
//! arrives here and nowhere else, by its lane: what control planes and leads
//! say, which must not wait (`urgent`), and what brokers say (`broker_frame`).
//!
//! Link `i` is shard `i`'s, and hub `h` has shard `h mod shards` for a home, which on
//! nodes of unlike numbers of shards is not that of link `h mod L`. What is for
//! another shard goes there by mail and keeps its order; the peer gets its credit
//! back when that shard's broker has it.
//!
//! All shards are told of a link that stands or has ended by the link's shard, before
//! any message that comes after.

use super::conn::Role;
use super::links::Links;
use super::reach::Way;
use super::{LinkMail, frames};
use crate::core::Core;
use crate::mail::Mail;
use crate::presence;
use crate::rim::Rim;
use hubsub_route::relay::NodeMessage;
use hubsub_types::{ConnKey, HubId, NodeId, ShardId};
use hubsub_wire::link::{End, Frame, Lane, Sent};
use std::sync::Arc;

/// When a peer gets the credit of a frame back.
pub(super) enum Credit {
    /// Its broker is done with it.
    Now,
    /// When a shard that is behind is not any more.
    Held,
    /// When another shard says so.
    Elsewhere,
}

/// What happened to a link, for the brokers of all shards.
#[derive(Clone)]
pub(crate) enum News {
    /// It stands, one of so many.
    Up(NodeId, u16, Way),
    /// It has ended.
    Down(NodeId, u16),
    /// The process of a node is gone.
    Dead(u64),
}

/// Bytes of frames that another shard has been given, by connection: live, then reads.
pub(super) type Owed = (ShardId, ConnKey, NodeId, [usize; 2]);

impl Core {
    /// Acts on a frame.
    ///
    /// # Errors
    /// The link cannot go on: nothing is passed over in silence.
    pub(super) fn link_frame(
        &mut self,
        from: ConnKey,
        frame: &Frame<'_>,
        bytes: usize,
    ) -> Result<Credit, End> {
        match frame.lane() {
            Lane::Urgent => self.urgent(from, frame).map(|()| Credit::Now),
            _ => self.broker_frame(from, frame, bytes),
        }
    }

    /// What waits for no record.
    fn urgent(&mut self, from: ConnKey, frame: &Frame<'_>) -> Result<(), End> {
        match *frame {
            Frame::Control { id, is_answer, body } => {
                self.rim.links.control_frame(from, id, is_answer, body.0);
                Ok(())
            }
            _ => self.lead_frame(from, frame),
        }
    }

    /// What a broker says to the broker of one of this node's shards. One without a cluster takes
    /// nothing: messages for it end the link, so that nothing is passed over in silence.
    fn broker_frame(&mut self, via: ConnKey, frame: &Frame<'_>, bytes: usize) -> Result<Credit, End> {
        let from = self.rim.links.node_of(via).filter(|_| self.broker.has_nodes());
        let (Some(from), Some(message)) = (from, frames::message(frame)) else {
            return Err(End::OutOfPlace(frame.name()));
        };
        let (to, own) = (message.shard(self.rim.mailer.shards()), self.rim.shard);
        if to.0 >= self.rim.mailer.shards() {
            // An answer to what was never asked.
            return Err(End::OutOfPlace(frame.name()));
        }
        if to == own {
            self.broker.node_message(from, message, self.rim.now, &mut self.rim);
            let is_behind = self.broker.is_behind(from) || self.rim.mailer.any_congested();
            return Ok(if is_behind { Credit::Held } else { Credit::Now });
        }
        let mail = LinkMail::Message { from, shard: own, via, message, bytes };
        self.rim.mailer.post(to, Mail::Link(mail));
        Ok(Credit::Elsewhere)
    }

    /// Mail for this shard's links, or by them.
    pub fn link_mail(&mut self, mail: LinkMail) {
        match mail {
            LinkMail::Message { from, shard, via, message, bytes } => {
                let lane = usize::from(message.is_read());
                self.rim.links.owe((shard, via, from), lane, bytes);
                self.broker.node_message(from, message, self.rim.now, &mut self.rim);
            }
            LinkMail::News(news) => self.take_news(&news),
            LinkMail::Begin(identity) => {
                let incarnation = identity.incarnation;
                self.rim.presence.begin(&identity.node, incarnation);
                self.rim.links.receive(LinkMail::Begin(identity));
                self.rim.links.set_ready(false);
                self.begin_leads(incarnation);
            }
            LinkMail::Roster(roster) => {
                self.rim.links.receive(LinkMail::Roster(Arc::clone(&roster)));
                self.lead_roster(&roster);
                self.ready_roster(&roster);
                let processes = roster.iter().map(|peer| (peer.id, &*peer.node, peer.incarnation));
                presence::registered(self, processes);
            }
            mail => self.rim.links.receive(mail),
        }
        self.tell_news();
    }

    /// Does what is due for links.
    #[inline]
    pub fn tick_links(&mut self) {
        self.rim.links.tick();
        if !self.rim.links.news.is_empty() {
            self.tell_news();
        }
        self.tick_leads();
        self.tick_ready();
    }

    /// Tells all shards what became of this shard's links.
    pub(super) fn tell_news(&mut self) {
        for news in std::mem::take(&mut self.rim.links.news) {
            let own = self.rim.shard;
            for shard in (0..self.rim.mailer.shards()).map(ShardId).filter(|&shard| shard != own) {
                self.rim.mailer.post(shard, Mail::Link(LinkMail::News(news.clone())));
            }
            self.take_news(&news);
        }
    }

    fn take_news(&mut self, news: &News) {
        let now = self.rim.now;
        match *news {
            News::Up(node, links, ref way) => {
                self.rim.links.reach.set(node, links, way.clone());
                self.broker.node_up(node, way.link, links, now, &mut self.rim);
                if way.link == self.rim.shard.0 {
                    self.lead_link_up(node, way.key);
                }
                presence::process_up(self, node);
            }
            News::Dead(run) => presence::process_gone(self, run),
            News::Down(node, link) => {
                self.rim.links.reach.unset(node, link);
                self.broker.node_down(node, link, now, &mut self.rim);
                if link == self.rim.shard.0 {
                    self.lead_link_down(node);
                }
            }
        }
    }

    /// Gives credit back that was held back, for what this shard's broker is done with.
    pub fn settle_credit(&mut self) {
        let Core { broker, rim } = self;
        if !rim.links.held.is_empty() && !rim.mailer.any_congested() {
            rim.links.release(|node| broker.is_behind(node));
        }
        for owed in std::mem::take(&mut rim.links.owed) {
            let (shard, key, node, bytes) = owed;
            if broker.is_behind(node) {
                rim.links.owed.push(owed);
            } else {
                rim.mailer.post(shard, Mail::Link(LinkMail::Handled(key, bytes)));
            }
        }
    }
}

impl Rim {
    /// Sends a broker's message by the link of a hub, or gives it back if the link takes it not now.
    pub(crate) fn send_to_node(
        &mut self,
        node: NodeId,
        hub: HubId,
        message: NodeMessage,
    ) -> Result<(), NodeMessage> {
        let Some(way) = self.links.reach.way(node, hub) else { return Err(message) };
        let (to, key) = (ShardId(way.link), way.key);
        if to == self.shard {
            return match self.links.send(key, &message) {
                Sent::Refused => Err(message),
                _ => Ok(()),
            };
        }
        if !way.gate.is_open(message.is_read()) || self.mailer.congested(to) {
            return Err(message);
        }
        self.mailer.post(to, Mail::Link(LinkMail::Send(key, message)));
        Ok(())
    }

    /// Whether records would go out at once by the link of a hub.
    pub(crate) fn flows_to_node(&self, node: NodeId, hub: HubId) -> bool {
        let Some(way) = self.links.reach.way(node, hub) else { return false };
        if way.link == self.shard.0 {
            return self.links.flows(way.key);
        }
        way.gate.is_open(false) && !self.mailer.congested(ShardId(way.link))
    }

    /// Whether a node is suspected by the link of a hub, on whatever shard that is.
    pub(crate) fn is_silent(&self, node: NodeId, hub: HubId) -> bool {
        self.links.reach.way(node, hub).is_some_and(|way| way.gate.is_silent())
    }
}

impl Links {
    /// Sends a broker's message.
    fn send(&mut self, key: ConnKey, message: &NodeMessage) -> Sent {
        let Some(conn) = self.conns.get_mut(key) else { return Sent::Refused };
        let sent = conn.link.send(&frames::frame(message));
        self.soil(key);
        sent
    }

    /// Sends what another shard's broker was told is sent. There is room for it but for a burst of many shards at
    /// once; then the link ends, and both sides begin anew.
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

    /// A frame of a link of another shard is this shard's to give credit for.
    fn owe(&mut self, (shard, key, node): (ShardId, ConnKey, NodeId), lane: usize, bytes: usize) {
        let place = self.owed.iter().position(|owed| (owed.0, owed.1) == (shard, key));
        let place = place.unwrap_or_else(|| {
            self.owed.push((shard, key, node, [0; 2]));
            self.owed.len() - 1
        });
        self.owed[place].3[lane] += bytes;
    }
}
