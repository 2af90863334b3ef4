//! The controller's side: what may be granted to whom, and what was.
//!
//! Every node has one, which hears its peers and grants while the control plane of this node has a mandate.
//!
//! Invariants:
//!
//! 1. Nothing is granted behind the deadline of the controller's own lease at the coordinator, and no lead ends later
//!    than one lead after a time at which the mandate was *confirmed*: a majority of the census heeded it, by round
//!    trip, or the coordinator still had it. So who is elected beside a controller that is cut off, or stands still,
//!    waits for nothing but one lead from its election and from when a majority heeds it.
//! 2. What is granted was claimed, and stands in the table of that very process.
//! 3. A snapshot gives the version of the tables that apply and `lead_until_us` of one moment: no grant lies between.
//! 4. A peer heeds this mandate, without a break, from `heeds_us` to `heeds_until_us`: the first is when its number
//!    was first heard here, the second when a ping left here that it answered with the same number.
//! 5. A mandate that was not confirmed for one lead does not run, and no majority brings it back, since another may
//!    have had that one meanwhile: only the coordinator does.

use crate::{Beat, Census, Grant, HubTerm, Process, Question, SUSPECTS_MAX, Timing};
use hubsub_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

/// What each process may be granted to lead.
pub type Tables = BTreeMap<Process, BTreeSet<HubTerm>>;

/// What the controller's node knows of a process: see `view.Peer` of the control plane. Times are its monotonic µs.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Peer {
    /// When it was heard last.
    pub heard_us: u64,
    /// Since when it is known to heed this mandate; none: it does not.
    pub heeds_us: Option<u64>,
    /// Until when it is known to have heeded it since then; before `heeds_us` as long as it answered no ping.
    pub heeds_until_us: u64,
    /// When the last lead ends that was granted to it under this mandate.
    pub lead_until_us: Option<u64>,
    /// What it will never lead again, of the hubs that it knows itself to lead.
    pub gave_up: Vec<HubTerm>,
    /// Whom it suspects.
    pub suspects: Vec<NodeId>,
    /// Number of its heeding.
    heed: u64,
    /// Stamp of the question that the two lists are of.
    asked_us: u64,
}

/// All of it, at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Snapshot {
    /// That moment, on the clock of all times here, in µs.
    pub now_us: u64,
    /// The mandate that this is of; 0: none.
    pub mandate: u64,
    /// Of the tables that apply. Later ones that were given are under way.
    pub tables: u64,
    /// When that mandate was confirmed last: see the module.
    pub confirmed_us: u64,
    /// The latest time at which a majority of the census had no controller, by round trip; none: this process has one.
    pub alone_us: Option<u64>,
    /// Revision of the census that grants name, and since when all name that one or a later one.
    pub census: u64,
    /// See `census`.
    pub census_us: u64,
    /// All processes that were heard, this one too.
    pub peers: BTreeMap<Process, Peer>,
}

#[derive(Clone, Copy, Debug)]
struct Mandate {
    number: u64,
    /// Deadline of the controller's lease at the coordinator.
    until_us: u64,
    /// When it was confirmed last, without a break of one lead since the coordinator did.
    confirmed_us: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Grantor {
    timing: Timing,
    mandate: Option<Mandate>,
    census: u64,
    census_us: u64,
    /// Whose majority confirms.
    counted: Census,
    tables: Tables,
    tables_version: u64,
    peers: BTreeMap<Process, Peer>,
    /// Whether a peer heeds anew or no more, gave something up, or suspects others than before.
    is_changed: bool,
}

impl Grantor {
    /// Of a node that is no controller.
    #[must_use]
    pub fn new(timing: Timing) -> Grantor {
        Grantor {
            timing: timing.checked(),
            mandate: None,
            census: 0,
            census_us: 0,
            counted: Census::default(),
            tables: Tables::new(),
            tables_version: 0,
            peers: BTreeMap::new(),
            is_changed: false,
        }
    }

    // -- What the control plane says --

    /// This node is the controller, or still is: its lease at the coordinator runs until then, and the coordinator
    /// had the mandate at `confirmed_us` or later. Under a new mandate nothing was granted and nothing may be.
    pub fn mandate(&mut self, number: u64, until_us: u64, confirmed_us: u64, now: u64) {
        let confirmed_us = confirmed_us.min(now);
        match &mut self.mandate {
            Some(mandate) if mandate.number == number => {
                mandate.until_us = mandate.until_us.max(until_us);
                mandate.confirmed_us = mandate.confirmed_us.max(confirmed_us);
            }
            _ => {
                self.mandate = Some(Mandate { number, until_us, confirmed_us });
                (self.tables, self.tables_version) = (Tables::new(), 0);
                self.census_us = now;
                for peer in self.peers.values_mut() {
                    (peer.heeds_us, peer.lead_until_us) = (None, None);
                }
            }
        }
    }

    /// It is not, or no more.
    pub fn resign(&mut self) {
        self.mandate = None;
    }

    /// What may be granted from now on. `mandate`: who made them; those of another one change nothing.
    pub fn tables(&mut self, mandate: u64, version: u64, tables: Tables) {
        if self.mandate.is_some_and(|held| held.number == mandate) && version > self.tables_version {
            (self.tables, self.tables_version) = (tables, version);
        }
    }

    /// The census as this node's watch gave it.
    pub fn counts(&mut self, census: Census) {
        if census.revision >= self.counted.revision {
            self.counted = census;
        }
    }

    /// Revision of the census that this node knows.
    pub fn census(&mut self, revision: u64, now: u64) {
        if revision > self.census {
            (self.census, self.census_us) = (revision, now);
        }
    }

    /// Nobody asks for a process any more: another one has its name.
    pub fn forget(&mut self, process: Process) {
        self.peers.remove(&process);
    }

    /// Forgets a process that is registered no more, unless it may hold a lead that this mandate granted: what is
    /// known of that is what its hubs are withheld by. Whether it is forgotten.
    pub fn forget_left(&mut self, process: Process) -> bool {
        let has_lead = |peer: &Peer| self.mandate.is_some() && peer.lead_until_us.is_some();
        let may_go = !self.peers.get(&process).is_some_and(has_lead);
        if may_go {
            self.peers.remove(&process);
        }
        may_go
    }

    // -- What links give --

    /// The mandate that this node may act by now; 0: none.
    #[must_use]
    pub fn running(&self, now: u64) -> u64 {
        self.mandate.filter(|mandate| now < self.end_of(mandate)).map_or(0, |mandate| mandate.number)
    }

    /// When the mandate, and every lead of it that is granted now, is over if nothing confirms it.
    fn end_of(&self, mandate: &Mandate) -> u64 {
        mandate.until_us.min(mandate.confirmed_us + self.timing.lead_us)
    }

    /// Sees whether a majority confirms the mandate, which runs.
    fn confirm(&mut self, now: u64) {
        if self.running(now) == 0 {
            return;
        }
        let until_us = |node: NodeId| {
            let latest = Process { node, incarnation: u64::MAX };
            let (process, peer) = self.peers.range(..=latest).next_back()?;
            (process.node == node && peer.heeds_us.is_some()).then_some(peer.heeds_until_us)
        };
        let confirmed_us = self.counted.reached(until_us);
        if let (Some(mandate), Some(confirmed_us)) = (&mut self.mandate, confirmed_us) {
            mandate.confirmed_us = mandate.confirmed_us.max(confirmed_us);
        }
    }

    /// When a mandate that runs is over.
    #[must_use]
    pub(crate) fn ends_at(&self, mandate: u64) -> u64 {
        let held = self.mandate.filter(|held| held.number == mandate);
        held.map_or(u64::MAX, |held| self.end_of(&held))
    }

    /// A process said what it heeds.
    pub fn hear(&mut self, process: Process, beat: Beat, now: u64) {
        let mandate = self.mandate.map(|mandate| mandate.number);
        let peer = self.peers.entry(process).or_default();
        peer.heard_us = peer.heard_us.max(now);
        if mandate != Some(beat.heeds) {
            self.is_changed |= peer.heeds_us.take().is_some();
        } else if peer.heeds_us.is_none() || peer.heed != beat.heed {
            (peer.heeds_us, peer.heeds_until_us, peer.heed) = (Some(now), 0, beat.heed);
            self.is_changed = true;
        }
    }

    /// It said so in answer to a ping that was sent at `stamp_us`.
    pub fn answer(&mut self, process: Process, stamp_us: u64, beat: Beat, now: u64) {
        self.hear(process, beat, now);
        let peer = self.peers.entry(process).or_default();
        if peer.heeds_us.is_some() {
            peer.heeds_until_us = stamp_us.min(now).max(peer.heeds_until_us);
            self.confirm(now);
        }
    }

    /// A process asks for its lead. None: it has no table, or this node has no mandate that runs.
    pub fn ask(&mut self, process: Process, question: &Question, now: u64) -> Option<Grant> {
        let mandate = self.running(now);
        let peer = self.peers.entry(process).or_default();
        peer.heard_us = peer.heard_us.max(now);
        if question.stamp_us > peer.asked_us {
            peer.asked_us = question.stamp_us;
            let suspects = &question.suspects[..question.suspects.len().min(SUSPECTS_MAX)];
            self.is_changed |= peer.gave_up != question.gave_up || peer.suspects != suspects;
            peer.gave_up.clone_from(&question.gave_up);
            peer.suspects = suspects.to_vec();
        }
        let table = self.tables.get(&process).filter(|_| mandate != 0)?;
        // The asker counts it from its question, which was before now.
        let confirmed_us = self.mandate.map_or(0, |mandate| mandate.confirmed_us);
        let lead_us = (confirmed_us + self.timing.lead_us).saturating_sub(now);
        peer.lead_until_us = peer.lead_until_us.max(Some(now + lead_us));
        Some(Grant {
            stamp_us: question.stamp_us,
            lead_us,
            mandate,
            census: self.census,
            granted: question.claim.iter().copied().filter(|pair| table.contains(pair)).collect(),
        })
    }

    /// Whether something of [`Peer`] has changed, but for times that go on, since this was called last.
    pub(crate) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// What a decision is made from.
    #[must_use]
    pub fn snapshot(&self, now: u64) -> Snapshot {
        Snapshot {
            now_us: now,
            mandate: self.mandate.map_or(0, |mandate| mandate.number),
            tables: self.tables_version,
            confirmed_us: self.mandate.map_or(0, |mandate| mandate.confirmed_us),
            alone_us: None,
            census: self.census,
            census_us: self.census_us,
            peers: self.peers.clone(),
        }
    }
}
