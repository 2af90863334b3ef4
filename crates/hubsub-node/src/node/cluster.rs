//! The control plane's calls that concern the cluster: peers, classes, hubs, leader leases, and messages
//! between control planes.

use super::Node;
use crate::context::mail::Mail;
use crate::context::scatter_gather::GatherMail;
use crate::control::routes::{ClassRow, HubRow, Routes};
use crate::io::questions::Part;
use crate::link::{Identity, LeadMail, LinkMail, Registered};
use crate::log::Openings;
use crate::redis::state::{ClusterNode, NewRoster, Roster};
use hubsub_types::{ClassTable, ErrorCode};
use std::sync::Arc;

impl Node {
    /// Sets the nodes to announce to cluster clients; the slots are dealt among them. Every node must get the
    /// same list. If this node is not in it, it has no slots.
    ///
    /// # Errors
    /// Two nodes have the same name, an id is invalid, or there are more nodes than slots.
    pub fn set_cluster_nodes(&self, nodes: Vec<ClusterNode>) -> Result<(), String> {
        let roster = Roster::new(&self.info.name, nodes)?;
        let new = Arc::new(NewRoster::new(roster, self.inboxes.len()));
        self.inboxes.send_all(|| Mail::Roster(Arc::clone(&new)));
        Ok(())
    }

    /// Sets this node's identity in its cluster. From now on links are accepted and dialed.
    pub fn link_begin(&self, identity: Identity) {
        let identity = Arc::new(identity.checked());
        // Shards must join the cluster before links deliver anything.
        self.routes.begin(identity.incarnation);
        self.inboxes.send_all(|| Mail::Link(LinkMail::Begin(Arc::clone(&identity))));
    }

    /// Sets all peers that may have links with this node. The same list again changes nothing.
    pub fn link_roster(&self, peers: Vec<Registered>) {
        let roster = self.peer_table.set_roster(peers);
        self.routes.roster(roster.iter().map(|peer| (&*peer.node, peer.incarnation)));
        self.inboxes.send_all(|| Mail::Link(LinkMail::Roster(Arc::clone(&roster))));
    }

    /// Sets the version of the classes that this node announces.
    pub fn link_status(&self, classes: u64) {
        self.inboxes.send_all(|| Mail::Link(LinkMail::Status(classes)));
    }

    /// Answers the client request of this number with a room's members: names and Redis addresses.
    pub fn located(&self, number: u64, members: Result<Vec<(String, String)>, ErrorCode>) {
        if let Some(inbox) = self.inboxes.get((number >> 32) as usize) {
            let part = Part::Located(members);
            inbox.send(&mut vec![Mail::Gather(GatherMail::Part { number: number as u32, part })]);
        }
    }

    pub fn classes(&self) -> Arc<ClassTable> {
        self.classes.get()
    }

    /// Sets all classes of the cluster: see [`Routes::set_classes`], also for its errors.
    pub fn set_classes(&self, rows: Vec<ClassRow>) -> Result<(), String> {
        let is_set = self.routes.set_classes(rows);
        self.openings.iter().for_each(Openings::see_classes);
        is_set
    }

    pub fn set_hubs(&self, rows: Vec<HubRow>) {
        self.routes.set_hubs(rows);
        self.openings.iter().for_each(Openings::see_classes);
    }

    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// Sends an order about leader leases; only after `link_begin`.
    pub fn lead(&self, order: LeadMail) {
        self.inboxes[0].send(&mut vec![Mail::Lead(order)]);
    }

    /// Sends a request to a peer's control plane; the response is an event with this ticket.
    pub fn link_ask(&self, ticket: u64, node: &str, body: Vec<u8>) {
        self.inboxes[0].send(&mut vec![Mail::Link(LinkMail::Ask(ticket, node.into(), body))]);
    }

    pub fn link_answer(&self, node: &str, id: u64, body: Vec<u8>) {
        self.inboxes[0].send(&mut vec![Mail::Link(LinkMail::Answer(node.into(), id, body))]);
    }
}
