//! What the control plane tells a node of its cluster: who its peers are, the classes and hubs, leads; and what control
//! planes say to each other.

use super::Node;
use crate::led::LeadMail;
use crate::link::{Identity, LinkMail, Registered};
use crate::log::Openings;
use crate::mail::{Mail, Part};
use crate::redis::cluster::{ClusterNode, NewRoster, Roster};
use crate::routes::{ClassRow, HubRow, Routes};
use hubsub_types::{ClassTable, ErrorCode};
use std::sync::Arc;

impl Node {
    /// Tells cluster clients from now on of these nodes, among which the slots are dealt;
    /// every node must get the same ones. Without this node among them it has no slot.
    ///
    /// # Errors
    /// Two nodes have one name, an id is none, or there are more nodes than slots.
    pub fn set_cluster_nodes(&self, nodes: Vec<ClusterNode>) -> Result<(), String> {
        let roster = Roster::new(&self.info.name, nodes)?;
        let new = Arc::new(NewRoster::new(roster, self.inboxes.len()));
        for inbox in self.inboxes.iter() {
            inbox.send(&mut vec![Mail::Roster(Arc::clone(&new))]);
        }
        Ok(())
    }

    /// Says who this node is in its cluster: from now on its links are accepted and dialed.
    pub fn link_begin(&self, identity: Identity) {
        let identity = Arc::new(identity.checked());
        // Shards are of the cluster before a link brings anything.
        self.routes.begin(identity.incarnation);
        self.tell_links(|| LinkMail::Begin(Arc::clone(&identity)));
    }

    /// Sets who may have links with this node, all of them; the same again changes nothing.
    pub fn link_roster(&self, peers: Vec<Registered>) {
        let roster = self.board.set_roster(peers);
        self.routes.roster(roster.iter().map(|peer| (&*peer.node, peer.incarnation)));
        self.tell_links(|| LinkMail::Roster(Arc::clone(&roster)));
    }

    /// What this node says of itself from now on: the version of its classes.
    pub fn link_status(&self, classes: u64) {
        self.tell_links(|| LinkMail::Status(classes));
    }

    /// Answers who asked where a room is, by the number of the question: members' names and Redis addresses.
    pub fn located(&self, number: u64, members: Result<Vec<(String, String)>, ErrorCode>) {
        if let Some(inbox) = self.inboxes.get((number >> 32) as usize) {
            inbox.send(&mut vec![Mail::Part { gathering: number as u32, part: Part::Located(members) }]);
        }
    }

    /// The room classes as they are now.
    #[must_use]
    pub fn classes(&self) -> Arc<ClassTable> {
        self.classes.get()
    }

    /// Sets all classes of the cluster, in order of precedence: see [`Routes::set_classes`].
    ///
    /// # Errors
    /// As there.
    pub fn set_classes(&self, rows: Vec<ClassRow>) -> Result<(), String> {
        let is_set = self.routes.set_classes(rows);
        self.openings.iter().for_each(Openings::see_classes);
        is_set
    }

    /// Sets all hubs of the cluster: see [`Routes::set_hubs`].
    pub fn set_hubs(&self, rows: Vec<HubRow>) {
        self.routes.set_hubs(rows);
        self.openings.iter().for_each(Openings::see_classes);
    }

    /// What the control plane says of routes.
    #[must_use]
    pub fn routes(&self) -> &Routes {
        &self.routes
    }

    /// An order about leads, of the control plane: behind `link_begin`.
    pub fn lead(&self, order: LeadMail) {
        self.inboxes[0].send(&mut vec![Mail::Lead(order)]);
    }

    /// Asks a peer's control plane; the answer is an event with this ticket.
    pub fn link_ask(&self, ticket: u64, node: &str, body: Vec<u8>) {
        self.inboxes[0].send(&mut vec![Mail::Link(LinkMail::Ask(ticket, node.into(), body))]);
    }

    /// Answers what a peer's control plane has asked.
    pub fn link_answer(&self, node: &str, id: u64, body: Vec<u8>) {
        self.inboxes[0].send(&mut vec![Mail::Link(LinkMail::Answer(node.into(), id, body))]);
    }

    fn tell_links(&self, mail: impl Fn() -> LinkMail) {
        for inbox in self.inboxes.iter() {
            inbox.send(&mut vec![Mail::Link(mail())]);
        }
    }
}
