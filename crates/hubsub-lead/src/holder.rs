//! A node's side: the hubs it claims, those it was granted, and until when it may lead them.
//!
//! Owns the deadline of the leader lease (in its [`LeaseGate`]), the hubs that the last granted claim covers,
//! those that shards must give up and have not yet, those given up, and the nodes that report that they
//! acknowledge no controller either.
//!
//! Invariants:
//!
//! 1. A hub is led only in a term that the watch delivered and the last granted claim covered.
//! 2. The deadline is the time before a request was sent plus the lease length. The request goes to the
//!    controller's node, or to a majority of the voters that acknowledges no controller. Such a majority
//!    raises it only if the known voters are not older than any that a grant named. After the deadline has
//!    passed (the process or machine stalled), only nodes count that are known to have acknowledged none
//!    *without a break* since before it passed: their acknowledgement numbers are those that they reported
//!    then. Among them no controller can have been elected meanwhile that replaces a leader: that takes a
//!    majority that acknowledges it at the end of the leader lease.
//! 3. The deadline is not raised while a shard may still lead a hub that was given up. So a hub that is no
//!    longer granted ends with the leader lease that covered it, at the latest.
//! 4. The controller learns that a hub was given up only after the shard has confirmed it.

use crate::acknowledgement::{Acknowledged, Acknowledgement};
use crate::{
    Action, Beat, Grant, HubTerm, LeaseGate, LeaseRequest, Process, Route, SUSPECTS_MAX, Timing, Voters,
};
use hubsub_types::{HubId, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

#[derive(Clone, Copy, Debug)]
struct Requested {
    of: Process,
    stamp_us: u64,
}

/// A process that reported that it acknowledges no controller.
#[derive(Clone, Copy, Debug)]
struct Alone {
    of: Process,
    /// Number of the acknowledgement that preceded this.
    acknowledgement: u64,
    /// When it was first heard to report so under this number.
    from_us: u64,
    /// When the latest ping was sent that it answered so.
    until_us: u64,
}

/// Holds this node's leader lease; see the module. All times are this node's monotonic µs.
#[derive(Debug)]
pub struct Holder {
    me: Process,
    timing: Timing,
    acknowledgement: Acknowledgement,
    voters: Option<Voters>,
    /// Greatest revision of the voters that a grant named.
    voters_named: u64,
    /// Per node, when its pongs reported that it has no controller.
    alone: BTreeMap<NodeId, Alone>,
    suspects: BTreeSet<NodeId>,

    /// The hubs that this process leads according to the watch.
    routes: BTreeMap<HubId, Term>,
    /// The hubs that the last granted claim covered, without those given up since.
    covers: BTreeMap<HubId, Term>,
    /// The hubs that shards were asked to give up and may still lead.
    stopping: BTreeSet<HubTerm>,
    /// The part of `routes` that this process will never lead again.
    gave_up: BTreeMap<HubId, Term>,

    requested: Option<Requested>,
    request_at_us: u64,
    /// Wait before a partly granted claim is repeated; it doubles up to the usual time.
    again_us: u64,
    /// Stamp of the claim that granted `covers`.
    covered_by_us: u64,
    /// The deadline that applies once `stopping` is empty.
    wanted_us: u64,
    gate: LeaseGate,
    is_open: bool,
}

impl Holder {
    /// A process that leads nothing yet.
    pub fn new(me: Process, timing: Timing) -> Holder {
        Holder {
            me,
            again_us: timing.again_us(),
            timing: timing.checked(),
            acknowledgement: Acknowledgement::default(),
            voters: None,
            voters_named: 0,
            alone: BTreeMap::new(),
            suspects: BTreeSet::new(),
            routes: BTreeMap::new(),
            covers: BTreeMap::new(),
            stopping: BTreeSet::new(),
            gave_up: BTreeMap::new(),
            requested: None,
            request_at_us: 0,
            covered_by_us: 0,
            wanted_us: 0,
            gate: LeaseGate::default(),
            is_open: false,
        }
    }

    pub fn gate(&self) -> LeaseGate {
        self.gate.clone()
    }

    pub fn leads(&self, (hub, term): HubTerm, now: u64) -> bool {
        self.gate.may_lead(now) && self.covers.get(&hub) == Some(&term)
    }

    /// The heartbeat for pings, with the controller term that this process holds itself.
    pub(crate) fn beat(&self, controller_term: u64) -> Beat {
        self.acknowledgement.beat(controller_term)
    }

    // -- From Python's watches --

    pub fn routes(&mut self, routes: &[Route], now: u64, actions: &mut VecDeque<Action>) {
        let before =
            std::mem::replace(&mut self.routes, routes.iter().map(|route| (route.hub, route.term)).collect());
        let ended: Vec<HubTerm> = of(&self.covers).filter(|pair| !holds(&self.routes, *pair)).collect();
        for pair in ended {
            self.give_up(pair, actions);
        }
        for route in routes.iter().filter(|route| route.gives_up) {
            self.give_up((route.hub, route.term), actions);
        }
        self.gave_up.retain(|hub, term| self.routes.get(hub) == Some(term));
        if before != self.routes || routes.iter().any(|route| route.gives_up) {
            self.request_soon(now);
        }
    }

    pub fn voters(&mut self, voters: Voters) {
        self.voters = Some(voters);
    }

    // -- From shards --

    pub fn gave_up(&mut self, pair: HubTerm, now: u64, actions: &mut VecDeque<Action>) {
        if self.stopping.remove(&pair) {
            self.note_given_up(pair);
            self.request_soon(now);
            self.raise(self.wanted_us, now, actions);
        }
    }

    // -- From links --

    /// Handles a message from the holder of an unexpired controller term.
    pub fn hear(&mut self, by: Process, controller_term: u64, now: u64) {
        if self.acknowledgement.hear(by, controller_term, now) {
            self.request_soon(now);
        }
    }

    /// A process reported the controller term that it acts under, 0 for none.
    pub fn heard(&mut self, from: Process, controller_term: u64, now: u64) {
        if controller_term != 0 {
            self.hear(from, controller_term, now);
        } else {
            self.acknowledgement.lose(from);
        }
    }

    pub fn lose(&mut self, process: Process) {
        self.acknowledgement.lose(process);
    }

    /// Handles a node's pong to a ping that was sent at `stamp_us`.
    pub fn answered(&mut self, of: Process, stamp_us: u64, beat: Beat, now: u64) {
        if !beat.is_alone() {
            return;
        }
        let stamp_us = stamp_us.min(now);
        match self
            .alone
            .get_mut(&of.node)
            .filter(|known| known.of == of && known.acknowledgement == beat.acknowledgement)
        {
            Some(known) => known.until_us = known.until_us.max(stamp_us),
            None => {
                let alone =
                    Alone { of, acknowledgement: beat.acknowledgement, from_us: now, until_us: stamp_us };
                self.alone.insert(of.node, alone);
            }
        }
    }

    /// The latest time at which a majority, including this process, had no controller.
    pub fn majority_alone_us(&self, now: u64) -> Option<u64> {
        self.voters
            .as_ref()
            .filter(|_| self.acknowledgement.acknowledged().is_none())?
            .reached(|node| self.alone_until(node, now))
    }

    fn alone_until(&self, node: NodeId, now: u64) -> Option<u64> {
        if node == self.me.node { Some(now) } else { self.alone.get(&node).map(|alone| alone.until_us) }
    }

    pub fn suspects(&mut self, node: NodeId, is_suspected: bool) {
        if is_suspected {
            self.suspects.insert(node);
        } else {
            self.suspects.remove(&node);
        }
    }

    /// Handles a grant from the controller's node.
    pub fn granted(&mut self, by: Process, grant: &Grant, now: u64, actions: &mut VecDeque<Action>) {
        let is_due = |request: &Requested| request.of == by && grant.stamp_us <= request.stamp_us;
        if !self.requested.as_ref().is_some_and(is_due) || grant.stamp_us <= self.covered_by_us {
            return;
        }
        self.covered_by_us = grant.stamp_us;
        self.voters_named = self.voters_named.max(grant.voters_revision);
        let granted: BTreeMap<HubId, Term> =
            grant.granted.iter().copied().filter(|&pair| self.claims(pair)).collect();
        let lost: Vec<HubTerm> = of(&self.covers).filter(|pair| !holds(&granted, *pair)).collect();
        for pair in lost {
            self.give_up(pair, actions);
        }
        let began = of(&granted).filter(|pair| !holds(&self.covers, *pair));
        actions.extend(began.map(|(hub, term)| Action::Began(hub, term)));
        self.covers = granted;
        self.raise(grant.stamp_us + self.timing.lease_us.min(grant.lease_us), now, actions);
        // The controller's own watch may lag this one.
        if of(&self.routes).all(|pair| !self.claims(pair) || holds(&self.covers, pair)) {
            self.again_us = self.timing.again_us();
        } else {
            self.request_at_us = self.request_at_us.min(now + self.again_us);
            self.again_us = (2 * self.again_us).min(self.timing.request_interval_us());
        }
    }

    // -- Time --

    /// Sends a request, extends the lease or reports its end, if that is due.
    pub fn poll(&mut self, now: u64, actions: &mut VecDeque<Action>) {
        self.acknowledgement.lapse(now, self.timing.silence_us);
        match self.acknowledgement.acknowledged() {
            Some(Acknowledged { by, .. }) if now >= self.request_at_us => {
                self.requested = Some(Requested { of: by, stamp_us: now });
                self.request_at_us = now + self.timing.request_interval_us();
                actions.push_back(Action::Request(by, self.request(now)));
            }
            Some(_) => {}
            None => self.prolong(now, actions),
        }
        if self.is_open && !self.gate.may_lead(now) {
            self.is_open = false;
            actions.push_back(Action::Closed);
        }
    }

    pub fn wake_at(&self) -> u64 {
        let request_at =
            if self.acknowledgement.acknowledged().is_some() { self.request_at_us } else { u64::MAX };
        let closes_at = if self.is_open { self.gate.until_us() } else { u64::MAX };
        request_at.min(closes_at).min(self.acknowledgement.lapses_at(self.timing.silence_us))
    }

    fn claims(&self, pair: HubTerm) -> bool {
        holds(&self.routes, pair) && !holds(&self.gave_up, pair) && !self.stopping.contains(&pair)
    }

    fn request(&self, now: u64) -> LeaseRequest {
        LeaseRequest {
            stamp_us: now,
            claim: of(&self.routes).filter(|&pair| self.claims(pair)).collect(),
            gave_up: of(&self.gave_up).collect(),
            suspects: self.suspects.iter().copied().take(SUSPECTS_MAX).collect(),
        }
    }

    fn request_soon(&mut self, now: u64) {
        self.request_at_us = now;
        self.again_us = self.timing.again_us();
    }

    /// Stops leading a hub in a term: at once if no shard leads it, else when the shard has confirmed.
    fn give_up(&mut self, pair: HubTerm, actions: &mut VecDeque<Action>) {
        let (hub, term) = pair;
        if holds(&self.covers, pair) {
            self.covers.remove(&hub);
            self.stopping.insert(pair);
            actions.push_back(Action::GiveUp(hub, term));
        } else if !self.stopping.contains(&pair) {
            self.note_given_up(pair);
        }
    }

    fn note_given_up(&mut self, pair: HubTerm) {
        if holds(&self.routes, pair) {
            self.gave_up.insert(pair.0, pair.1);
        }
    }

    /// Extends the leader lease without a controller. Among a majority that acknowledges none, no controller
    /// can have been elected that replaces a leader.
    fn prolong(&mut self, now: u64, actions: &mut VecDeque<Action>) {
        self.note_own(now);
        let Some(voters) = self.voters.as_ref().filter(|voters| voters.revision >= self.voters_named) else {
            return;
        };
        let ended_us = self.gate.until_us();
        let is_over = !self.gate.may_lead(now);
        let alone = |node: NodeId| {
            let until_us = self.alone_until(node, now)?;
            let has_been = || self.alone.get(&node).is_some_and(|alone| alone.from_us < ended_us);
            (!is_over || has_been()).then_some(until_us)
        };
        if let Some(since_us) = voters.reached(alone) {
            self.raise(since_us + self.timing.lease_us, now, actions);
        }
    }

    /// Records that this process has no controller, since when, as for other nodes.
    fn note_own(&mut self, now: u64) {
        let beat = self.acknowledgement.beat(0);
        self.answered(self.me, now, beat, now);
    }

    fn raise(&mut self, until_us: u64, now: u64, actions: &mut VecDeque<Action>) {
        self.wanted_us = self.wanted_us.max(until_us);
        if self.stopping.is_empty() {
            self.gate.raise(self.wanted_us);
            if !self.is_open && self.gate.may_lead(now) {
                self.is_open = true;
                actions.push_back(Action::Opened);
            }
        }
    }
}

fn of(pairs: &BTreeMap<HubId, Term>) -> impl Iterator<Item = HubTerm> + '_ {
    pairs.iter().map(|(&hub, &term)| (hub, term))
}

fn holds(pairs: &BTreeMap<HubId, Term>, (hub, term): HubTerm) -> bool {
    pairs.get(&hub) == Some(&term)
}
