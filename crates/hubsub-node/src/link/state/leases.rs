//! The leader leases of a shard: the ephemeral hubs that it leads, each with its term, and the one deadline
//! of the process.
//!
//! It owns the hubs of its shard for which leases were granted. The deadline (`LeaseGate`) is shared by all
//! shards and raised only by the thread that manages leases, shard 0; see `hubsub_lead` and `link::leads`.
//!
//! Invariants:
//!
//! 1. A hub is led in at most one term, between `Began` and `GiveUp`, and only until the deadline.
//! 2. A shard replies `GaveUp` after it has stopped leading the hub, and to each `GiveUp`. The deadline is
//!    not raised before every shard has replied.

use crate::io::inbox::LETTER_BYTES;
use hubsub_lead::{HubTerm, LeaseGate, Route, Tables, Voters};
/// The shard that leads a hub, which is where the broker has it.
pub use hubsub_message::home;
use hubsub_types::{HubId, Term};
use std::collections::BTreeMap;

/// Messages about leader leases within a node.
pub enum LeadMail {
    /// Control plane to shard 0: all hubs whose records name this process as leader.
    Routes(Vec<Route>),
    /// Control plane to shard 0: the record of the voters.
    Voters(Voters),
    /// Control plane to shard 0: the leases that this node may grant. Answered under the ticket once it
    /// applies.
    Tables {
        ticket: u64,
        /// Number of the controller term, from 1.
        controller_term: u64,
        /// End of the controller term, in µs of the node's clock. A time in the past ends it.
        until_us: u64,
        /// A time at which the coordinator still confirmed the controller term, in µs.
        confirmed_us: u64,
        tables: Tables,
        /// Revision of the voters that grants name.
        voters_revision: u64,
    },
    /// Control plane to shard 0: ticket, and number of the controller term that has ended. Answered under the
    /// ticket.
    Resign(u64, u64),
    /// Shard 0 to the others: the process's leases begin, with this deadline; earlier leases are void.
    Life(LeaseGate),
    /// Shard 0 to a hub's shard: lead the hub in this term until the deadline.
    Began(HubId, Term),
    /// Shard 0 to a hub's shard: stop leading the hub in this term. Answered by `GaveUp`.
    GiveUp(HubId, Term),
    /// A shard to shard 0: it does not lead the hub in this term.
    GaveUp(HubId, Term),
}

impl LeadMail {
    pub fn weight(&self) -> usize {
        let more = match self {
            LeadMail::Routes(routes) => size_of_val(&routes[..]),
            LeadMail::Tables { tables, .. } => {
                tables.values().map(|pairs| pairs.len() * size_of::<HubTerm>()).sum()
            }
            _ => 0,
        };
        LETTER_BYTES + more
    }
}

#[derive(Debug, Default)]
pub struct Led {
    gate: LeaseGate,
    hubs: BTreeMap<HubId, Term>,
}

impl Led {
    /// Carries out an order of shard 0. Returns the reply to it, if any. Other mail changes nothing.
    pub fn take(&mut self, order: LeadMail) -> Option<LeadMail> {
        match order {
            LeadMail::Life(gate) => *self = Led { gate, hubs: BTreeMap::new() },
            LeadMail::Began(hub, term) => drop(self.hubs.insert(hub, term)),
            LeadMail::GiveUp(hub, term) => {
                // The shard may lead the hub in a later term by now.
                if self.hubs.get(&hub) == Some(&term) {
                    self.hubs.remove(&hub);
                }
                return Some(LeadMail::GaveUp(hub, term));
            }
            _ => {}
        }
        None
    }

    /// Ends all leases, as the process stops.
    pub fn end(&self) {
        self.gate.close();
    }

    /// The term in which this shard leads a hub at `now_us` (µs of the node's clock), or `None`.
    #[inline]
    pub fn leads(&self, hub: HubId, now_us: u64) -> Option<Term> {
        if self.gate.may_lead(now_us) { self.hubs.get(&hub).copied() } else { None }
    }
}

#[cfg(test)]
pub(crate) mod tests;
