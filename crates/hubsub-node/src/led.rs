//! Which ephemeral hubs a shard leads, and until when: what it was told, and the one deadline of its process.
//!
//! It owns the hubs of its shard that leads were granted for. The deadline (`LeadGate`) is shared by all shards and
//! raised by the thread of the leads alone, shard 0, which decides; see `hubsub_lead` and `link::leads`.
//!
//! Invariants:
//!
//! 1. A hub is led in one term at most, between `Began` and `GiveUp`, while the deadline has not passed.
//! 2. A shard says that it gave a hub up when it leads it no more, and it says so each time that it is told to: the
//!    deadline is not raised before each shard has.

use crate::mail::Mail;
use hubsub_lead::{HubTerm, LeadGate, Route, Tables};
/// The shard that leads a hub: where the broker has it.
pub use hubsub_route::relay::message::home;
use hubsub_types::{HubId, Term};
use std::collections::BTreeMap;

/// What is said of leads within a node.
pub enum LeadMail {
    /// The control plane to shard 0: all hubs whose records name this process as their leader.
    Routes(Vec<Route>),
    /// The control plane to shard 0: the record of the census.
    Census(hubsub_lead::Census),
    /// The control plane to shard 0: what this node may grant. Answered under the ticket once it applies.
    Tables {
        /// Of the answer.
        ticket: u64,
        /// Number of the mandate that this is of, from 1.
        mandate: u64,
        /// When the mandate is over, in µs of the node's clock. A time that has passed ends it.
        until_us: u64,
        /// The coordinator had it then, or later.
        confirmed_us: u64,
        /// What each process may be granted.
        tables: Tables,
        /// Revision of the census that grants name.
        census: u64,
    },
    /// The control plane to shard 0: that mandate is over. Answered under the ticket.
    Resign(u64, u64),
    /// Shard 0 to the others: this process's leads begin, with this deadline; there are none of before.
    Life(LeadGate),
    /// Shard 0 to a hub's shard: it leads the hub in this term, until the deadline.
    Began(HubId, Term),
    /// Shard 0 to a hub's shard: it leads the hub in this term no more. Answered by `GaveUp`.
    GiveUp(HubId, Term),
    /// A shard to shard 0: it does not lead the hub in this term.
    GaveUp(HubId, Term),
}

impl LeadMail {
    /// What it counts against the mailbox limit.
    #[must_use]
    pub fn weight(&self) -> usize {
        let more = match self {
            LeadMail::Routes(routes) => size_of_val(&routes[..]),
            LeadMail::Tables { tables, .. } => {
                tables.values().map(|pairs| pairs.len() * size_of::<HubTerm>()).sum()
            }
            _ => 0,
        };
        size_of::<Mail>() + more
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Led {
    gate: LeadGate,
    hubs: BTreeMap<HubId, Term>,
}

impl Led {
    /// Does what shard 0 says; gives what is to be said to it. Mail of another kind changes nothing.
    pub fn take(&mut self, order: LeadMail) -> Option<LeadMail> {
        match order {
            LeadMail::Life(gate) => *self = Led { gate, hubs: BTreeMap::new() },
            LeadMail::Began(hub, term) => drop(self.hubs.insert(hub, term)),
            LeadMail::GiveUp(hub, term) => {
                // A later term of the hub may be led by now.
                if self.hubs.get(&hub) == Some(&term) {
                    self.hubs.remove(&hub);
                }
                return Some(LeadMail::GaveUp(hub, term));
            }
            _ => {}
        }
        None
    }

    /// The process stops: none of its shards leads any more.
    pub fn end(&self) {
        self.gate.close();
    }

    /// The term in which this shard leads a hub at a time of this turn, in µs of the node's clock; none if it does not.
    #[inline]
    #[must_use]
    pub fn leads(&self, hub: HubId, now_us: u64) -> Option<Term> {
        if self.gate.may_lead(now_us) { self.hubs.get(&hub).copied() } else { None }
    }
}

#[cfg(test)]
pub(crate) mod tests;
