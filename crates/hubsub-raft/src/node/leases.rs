//! Deadlines of leases, in the leader's memory. They are not replicated, because each renewal would be a log
//! entry. So a new leader gives every lease its whole time again, counted from the start of its leadership,
//! which is later than any renewal that a previous leader can have confirmed, since that requires a quorum
//! after the request. A leader that lost its quorum for a while does the same when it has one again: no lease
//! could be renewed meanwhile, so none may expire for that reason.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::Instant;

use crate::limits::{EXPIRE_LEASES_MAX, LEASE_DRIFT_PART};
use crate::store::{LeaseId, Store};
use crate::types::Vote;

/// Deadlines of all leases, while this node leads.
#[derive(Default)]
pub(super) struct Leases {
    /// The leadership to which the deadlines belong.
    lead: Option<Vote>,
    deadlines: BTreeMap<LeaseId, Instant>,
    /// Leases whose end is proposed: they can no longer be renewed.
    ending: BTreeSet<LeaseId>,
}

impl Leases {
    /// Follows the store: new leases get their whole time from `now`, and all do after a change of
    /// leadership.
    pub fn follow(&mut self, lead: Vote, store: &Store, now: Instant) {
        if self.lead != Some(lead) {
            *self = Self { lead: Some(lead), ..Self::default() };
        }
        self.deadlines.retain(|lease, _| store.lease(*lease).is_some());
        self.ending.retain(|lease| store.lease(*lease).is_some());
        if self.deadlines.len() < store.leases().len() {
            for (lease, ttl_ms) in store.leases() {
                self.deadlines.entry(lease).or_insert_with(|| now + time_of(ttl_ms));
            }
        }
    }

    /// Suspends all deadlines while there is no quorum: afterwards all leases get their whole time. Leases
    /// whose end is proposed still end.
    pub fn rest(&mut self) {
        self.deadlines.clear();
    }

    /// Gives a lease its whole time from `now`; false if its end is proposed.
    pub fn renew(&mut self, lease: LeaseId, ttl_ms: u32, now: Instant) -> bool {
        if self.ending.contains(&lease) {
            return false;
        }
        let deadline = self.deadlines.entry(lease).or_insert(now);
        *deadline = (now + time_of(ttl_ms)).max(*deadline);
        true
    }

    /// Returns expired leases, which can no longer be renewed.
    pub fn expired(&mut self, now: Instant) -> Vec<LeaseId> {
        let passed = self
            .deadlines
            .iter()
            .filter(|(lease, deadline)| **deadline <= now && !self.ending.contains(lease));
        let expired: Vec<_> = passed.map(|(lease, _)| *lease).take(EXPIRE_LEASES_MAX).collect();
        self.ending.extend(&expired);
        expired
    }

    /// Makes leases expire again whose end could not be proposed.
    pub fn retry(&mut self, leases: &[LeaseId]) {
        self.ending.retain(|lease| !leases.contains(lease));
    }
}

/// The time to live plus the allowance for clock drift.
fn time_of(ttl_ms: u32) -> Duration {
    let ttl = Duration::from_millis(u64::from(ttl_ms));
    ttl + ttl / LEASE_DRIFT_PART
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Answer, Command};

    #[test]
    fn a_leader_that_heard_no_quorum_for_long_gives_leases_their_time_again_but_those_that_end() {
        let mut store = Store::default();
        let mut grant = || match store.apply(&Command::Grant { ttl_ms: 1000 }) {
            Answer::Granted(lease) => lease,
            other => panic!("no lease but {other:?}"),
        };
        let (ends, stays) = (grant(), grant());
        let began = Instant::now();
        let at = |ms| began + Duration::from_millis(ms);
        let (lead, mut leases) = (Vote::new_committed(1, 1), Leases::default());
        leases.follow(lead, &store, at(0));
        assert!(leases.renew(stays, 1000, at(900)));
        assert_eq!(leases.expired(at(1_100)), [ends]);
        leases.rest();
        assert_eq!(leases.expired(at(60_000)), []);
        leases.follow(lead, &store, at(60_000));
        assert_eq!(leases.expired(at(61_000)), [], "its whole time, and what clocks may differ by");
        assert!(leases.renew(stays, 1000, at(61_000)));
        assert!(!leases.renew(ends, 1000, at(61_000)), "its end may be written yet");
        assert_eq!(leases.expired(at(62_100)), [stays]);
    }
}
