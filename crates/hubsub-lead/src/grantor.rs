//! The controller's side: which leader leases may be granted to which process, and which were.
//!
//! Every node has one. It receives the heartbeats of its peers and grants leader leases while the control
//! plane of this node holds a controller term.
//!
//! Invariants:
//!
//! 1. Nothing is granted after the deadline of the controller's own lease at the coordinator. No leader lease
//!    ends later than one lease length after the controller term was *confirmed*: a majority of the voters
//!    acknowledged it, by round trip, or the coordinator still had it. So a successor elected while this
//!    controller is cut off or stalled waits for only one lease length after its election and after a
//!    majority acknowledges it.
//! 2. A granted hub was claimed by the process and is in the table of that very process.
//! 3. A snapshot gives the version of the current tables and `lease_until_us` at one moment: no grant happens
//!    in between.
//! 4. A peer acknowledges this controller term without a break from `acknowledges_us` to
//!    `acknowledges_until_us`. The first is when its acknowledgement number was first received here; the
//!    second is when a ping was sent from here that it answered with the same number.
//! 5. A controller term that was not confirmed for one lease length has expired. No majority restores it,
//!    since another controller may have had that majority meanwhile; only the coordinator does.

use crate::{Beat, Grant, HubTerm, LeaseRequest, Process, SUSPECTS_MAX, Timing, Voters};
use hubsub_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// The hubs and terms that may be granted to each process.
pub type Tables = BTreeMap<Process, BTreeSet<HubTerm>>;

/// State of a process at the controller's node: see `view.Peer` of the control plane. Times are the
/// node's monotonic µs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Peer {
    /// When it was last heard from.
    pub heard_us: u64,
    /// Since when it is known to acknowledge this controller term; `None` if it does not.
    pub acknowledges_us: Option<u64>,
    /// Until when it is known to have acknowledged it since then; before `acknowledges_us` until it has
    /// answered a ping.
    pub acknowledges_until_us: u64,
    /// When the last leader lease ends that was granted to it under this controller term.
    pub lease_until_us: Option<u64>,
    /// The terms that it will never lead again, among the hubs whose records name it as leader.
    pub gave_up: Vec<HubTerm>,
    /// Nodes that it suspects. It reports them only to its controller: none are known without an unexpired
    /// term.
    pub suspects: Vec<NodeId>,
    acknowledgement: u64,
    /// Stamp of the request that carried `gave_up` and `suspects`.
    requested_us: u64,
}

/// The state of the grantor at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// That moment, on the clock of all times here, in µs.
    pub now_us: u64,
    /// The controller term; 0: none.
    pub controller_term: u64,
    /// Version of the tables that apply. Later versions may still be in flight.
    pub tables: u64,
    /// When that controller term was last confirmed: see the module.
    pub confirmed_us: u64,
    /// The latest time at which a majority of the voters had no controller, by round trip; `None` while this
    /// process acknowledges one.
    pub alone_us: Option<u64>,
    /// Revision of the voters that grants name.
    pub voters_revision: u64,
    /// Since when all grants name `voters_revision` or a later revision.
    pub voters_since_us: u64,
    /// All processes that were heard from, including this one.
    pub peers: BTreeMap<Process, Peer>,
}

#[derive(Clone, Copy, Debug)]
struct ControllerTerm {
    number: u64,
    /// Deadline of the controller's lease at the coordinator.
    until_us: u64,
    /// When it was last confirmed, without a break of one lease length since the coordinator confirmed it.
    confirmed_us: u64,
}

/// Grants leader leases; see the module for the invariants.
#[derive(Debug)]
pub struct Grantor {
    timing: Timing,
    controller_term: Option<ControllerTerm>,
    voters_revision: u64,
    voters_since_us: u64,
    /// Voters whose majority confirms the controller term.
    voters: Voters,
    tables: Tables,
    tables_version: u64,
    peers: BTreeMap<Process, Peer>,
    /// Whether a peer started or stopped acknowledging, gave something up, or changed its suspects.
    is_changed: bool,
}

impl Grantor {
    /// The grantor of a node that is not the controller.
    pub fn new(timing: Timing) -> Grantor {
        Grantor {
            timing: timing.checked(),
            controller_term: None,
            voters_revision: 0,
            voters_since_us: 0,
            voters: Voters::default(),
            tables: Tables::new(),
            tables_version: 0,
            peers: BTreeMap::new(),
            is_changed: false,
        }
    }

    // -- From the control plane --

    /// Sets or renews this node's controller term. `until_us` is the deadline of its lease at the
    /// coordinator, which had the controller term at `confirmed_us` or later. A new controller term starts
    /// with no grants and empty tables.
    pub fn controller_term(&mut self, number: u64, until_us: u64, confirmed_us: u64, now: u64) {
        let confirmed_us = confirmed_us.min(now);
        match &mut self.controller_term {
            Some(term) if term.number == number => {
                term.until_us = term.until_us.max(until_us);
                term.confirmed_us = term.confirmed_us.max(confirmed_us);
            }
            _ => {
                self.controller_term = Some(ControllerTerm { number, until_us, confirmed_us });
                (self.tables, self.tables_version) = (Tables::new(), 0);
                self.voters_since_us = now;
                for peer in self.peers.values_mut() {
                    (peer.acknowledges_us, peer.lease_until_us) = (None, None);
                    peer.suspects.clear();
                }
            }
        }
    }

    pub fn resign(&mut self) {
        self.controller_term = None;
    }

    /// Replaces what may be granted from now on. Tables of another
    /// controller term are ignored.
    pub fn tables(&mut self, controller_term: u64, version: u64, tables: Tables) {
        if self.controller_term.is_some_and(|own| own.number == controller_term)
            && version > self.tables_version
        {
            (self.tables, self.tables_version) = (tables, version);
        }
    }

    pub fn voters(&mut self, voters: Voters) {
        if voters.revision >= self.voters.revision {
            self.voters = voters;
        }
    }

    /// Sets the revision of the voters that grants name.
    pub fn names_voters(&mut self, revision: u64, now: u64) {
        if revision > self.voters_revision {
            (self.voters_revision, self.voters_since_us) = (revision, now);
        }
    }

    pub fn forget(&mut self, process: Process) {
        self.peers.remove(&process);
    }

    /// Forgets a process that is no longer registered, unless it may hold a leader lease that this controller
    /// term granted: the end of that lease decides how long its hubs are withheld. Returns whether it is
    /// forgotten.
    pub fn forget_left(&mut self, process: Process) -> bool {
        let has_lead = |peer: &Peer| self.controller_term.is_some() && peer.lease_until_us.is_some();
        let may_go = !self.peers.get(&process).is_some_and(has_lead);
        if may_go {
            self.peers.remove(&process);
        }
        may_go
    }

    // -- From links --

    /// The controller term that this node may act under now; 0: none.
    pub fn running(&self, now: u64) -> u64 {
        self.controller_term.filter(|term| now < self.end_of(term)).map_or(0, |term| term.number)
    }

    /// When the controller term, and every leader lease granted under it now, ends if nothing confirms it.
    fn end_of(&self, term: &ControllerTerm) -> u64 {
        term.until_us.min(term.confirmed_us + self.timing.lease_us)
    }

    /// Confirms an unexpired controller term if a majority acknowledges it.
    fn confirm(&mut self, now: u64) {
        if self.running(now) == 0 {
            return;
        }
        let until_us = |node: NodeId| {
            let latest = Process { node, incarnation: u64::MAX };
            let (process, peer) = self.peers.range(..=latest).next_back()?;
            (process.node == node && peer.acknowledges_us.is_some()).then_some(peer.acknowledges_until_us)
        };
        let confirmed_us = self.voters.reached(until_us);
        if let (Some(term), Some(confirmed_us)) = (&mut self.controller_term, confirmed_us) {
            term.confirmed_us = term.confirmed_us.max(confirmed_us);
        }
    }

    /// When a controller term that has not expired ends.
    pub(crate) fn ends_at(&self, controller_term: u64) -> u64 {
        let own = self.controller_term.filter(|own| own.number == controller_term);
        own.map_or(u64::MAX, |own| self.end_of(&own))
    }

    /// Handles a process's report of the controller term that it acknowledges.
    pub fn hear(&mut self, process: Process, beat: Beat, now: u64) {
        let controller_term = self.controller_term.map(|term| term.number);
        let peer = self.peers.entry(process).or_default();
        peer.heard_us = peer.heard_us.max(now);
        if controller_term != Some(beat.acknowledges) {
            self.is_changed |= peer.acknowledges_us.take().is_some();
        } else if peer.acknowledges_us.is_none() || peer.acknowledgement != beat.acknowledgement {
            (peer.acknowledges_us, peer.acknowledges_until_us, peer.acknowledgement) =
                (Some(now), 0, beat.acknowledgement);
            self.is_changed = true;
        }
    }

    /// Handles such a report in a pong to the ping that was sent at `stamp_us`.
    pub fn pong(&mut self, process: Process, stamp_us: u64, beat: Beat, now: u64) {
        self.hear(process, beat, now);
        let peer = self.peers.entry(process).or_default();
        if peer.acknowledges_us.is_some() {
            peer.acknowledges_until_us = stamp_us.min(now).max(peer.acknowledges_until_us);
            self.confirm(now);
        }
    }

    /// Handles a process's request for a leader lease. `None` if the process has no table or this node has no
    /// unexpired controller term.
    pub fn request(&mut self, process: Process, request: &LeaseRequest, now: u64) -> Option<Grant> {
        let controller_term = self.running(now);
        let peer = self.peers.entry(process).or_default();
        peer.heard_us = peer.heard_us.max(now);
        if request.stamp_us > peer.requested_us {
            peer.requested_us = request.stamp_us;
            let suspects = &request.suspects[..request.suspects.len().min(SUSPECTS_MAX)];
            self.is_changed |= peer.gave_up != request.gave_up || peer.suspects != suspects;
            peer.gave_up.clone_from(&request.gave_up);
            peer.suspects = suspects.to_vec();
        }
        let table = self.tables.get(&process).filter(|_| controller_term != 0)?;
        // The requester counts the lease from when it sent the request, which was before now.
        let confirmed_us = self.controller_term.map_or(0, |term| term.confirmed_us);
        let lease_us = (confirmed_us + self.timing.lease_us).saturating_sub(now);
        peer.lease_until_us = peer.lease_until_us.max(Some(now + lease_us));
        Some(Grant {
            stamp_us: request.stamp_us,
            lease_us,
            controller_term,
            voters_revision: self.voters_revision,
            granted: request.claim.iter().copied().filter(|pair| table.contains(pair)).collect(),
        })
    }

    /// Whether a field of [`Peer`] other than an advancing time has changed since the last call.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    pub fn snapshot(&self, now: u64) -> Snapshot {
        let mut peers = self.peers.clone();
        if self.running(now) == 0 {
            peers.values_mut().for_each(|peer| peer.suspects.clear());
        }
        Snapshot {
            now_us: now,
            controller_term: self.controller_term.map_or(0, |term| term.number),
            tables: self.tables_version,
            confirmed_us: self.controller_term.map_or(0, |term| term.confirmed_us),
            alone_us: None,
            voters_revision: self.voters_revision,
            voters_since_us: self.voters_since_us,
            peers,
        }
    }
}
