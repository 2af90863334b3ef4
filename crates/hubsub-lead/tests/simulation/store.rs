//! The simulated coordinator: its records, and which process was the leader in each term.

use crate::controller::Change;
use hubsub_lead::{HubTerm, Process, Voters};
use hubsub_types::{HubId, NodeId, Term};
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Hub {
    pub revision: u64,
    pub term: Term,
    pub leader: Process,
    pub proposed: Option<NodeId>,
}

/// The content of a commit.
#[derive(Clone, Debug)]
pub enum Write {
    Hub(HubId, Hub),
    Voters(Voters),
}

#[derive(Default)]
pub struct Store {
    pub revision: u64,
    pub controller_terms: u64,
    pub hubs: BTreeMap<HubId, Hub>,
    /// Bound to leases: the world removes them.
    pub nodes: BTreeMap<NodeId, Process>,
    pub controller: Option<(Process, u64)>,
    pub voters: Voters,
    /// Every term that was ever written, and its leader.
    pub terms: BTreeMap<HubTerm, Process>,
    pub replaced: u64,
}

impl Store {
    /// Applies one write, if the controller term is current, the record has the expected revision, and no
    /// process has taken the name of a dead one.
    pub fn commit(
        &mut self,
        controller_term: u64,
        Change { revision: expected, dead, write }: Change,
    ) -> bool {
        if self.controller.is_none_or(|(_, number)| number != controller_term) {
            return false;
        }
        let found = match &write {
            Write::Hub(id, _) => self.hubs.get(id).map_or(0, |hub| hub.revision),
            Write::Voters(_) => self.voters.revision,
        };
        if found != expected || dead.iter().any(|process| self.nodes.get(&process.node) != Some(process)) {
            return false;
        }
        self.revision += 1;
        match write {
            Write::Hub(id, hub) => {
                let before = self.hubs.get(&id).map_or(Term(0), |hub| hub.term);
                assert!(hub.term == before || hub.term.0 == before.0 + 1, "a term is left out");
                let of = *self.terms.entry((id, hub.term)).or_insert(hub.leader);
                assert_eq!(of, hub.leader, "a term of two leaders");
                self.replaced += u64::from(hub.term != before);
                self.hubs.insert(id, Hub { revision: self.revision, ..hub });
            }
            Write::Voters(voters) => self.voters = Voters { revision: self.revision, ..voters },
        }
        true
    }
}
