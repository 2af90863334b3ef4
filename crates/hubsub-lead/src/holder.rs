//! A node's side: what it claims, what it was granted, until when it may lead that.
//!
//! Owns the deadline of the lead (in its [`LeadGate`]), what the last granted claim covered, what shards were told to
//! give up and have not yet, what was given up, and who said that they heed no controller either.
//!
//! Invariants:
//!
//! 1. A hub is led only in a term that the watch gave, and that the last granted claim covered.
//! 2. The deadline is a time before a question was sent plus the lead's length: to the controller's node, or to a
//!    majority of the census that heeds no controller. It is raised by the latter only with a census that is not older
//!    than any that a grant named, and where it has passed (a process or machine stood still) only by nodes that are
//!    known to have heeded none *without a break* since before it passed: their numbers of heeding are those that they
//!    said then. Among them nobody can have been elected meanwhile who replaces anybody: that takes a majority that
//!    heeds at the end of the lead.
//! 3. It is not raised while a shard may still lead what was given up: so what was not granted any more ends with the
//!    lead that covered it, at the latest.
//! 4. The controller hears that a hub was given up when the shard has said so, never before.

use crate::heed::{Heed, Heeded};
use crate::{Action, Beat, Census, Grant, HubTerm, LeadGate, Process, Question, Route, SUSPECTS_MAX, Timing};
use hubsub_types::{HubId, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The last question to a controller's node.
#[derive(Clone, Copy, Debug)]
struct Asked {
    of: Process,
    stamp_us: u64,
}

/// A process that said that it heeds no controller.
#[derive(Clone, Copy, Debug)]
struct Alone {
    of: Process,
    /// Number of the heeding that it was after.
    heed: u64,
    /// When it was first heard to say so under this number.
    from_us: u64,
    /// When it was pinged to which it said so last.
    until_us: u64,
}

/// See the module. All times are this node's monotonic µs.
#[derive(Debug)]
pub struct Holder {
    me: Process,
    timing: Timing,
    heed: Heed,
    census: Option<Census>,
    /// Greatest revision of a census that a grant named.
    census_named: u64,
    /// For each node, what its answers to pings say of its being without a controller.
    alone: BTreeMap<NodeId, Alone>,
    suspects: BTreeSet<NodeId>,

    /// What the watch says that this process leads.
    routes: BTreeMap<HubId, Term>,
    /// What the last granted claim covered, without what was given up since.
    covers: BTreeMap<HubId, Term>,
    /// What shards were told to give up, and may still lead.
    stopping: BTreeSet<HubTerm>,
    /// Of `routes`: what this process will never lead again.
    gave_up: BTreeMap<HubId, Term>,

    asked: Option<Asked>,
    ask_at_us: u64,
    /// Wait before a claim that was not granted whole is made again; it doubles up to the usual time.
    again_us: u64,
    /// Stamp of the claim that `covers` is of.
    covered_by_us: u64,
    /// The deadline that holds once nothing is `stopping`.
    wanted_us: u64,
    gate: LeadGate,
    is_open: bool,
}

impl Holder {
    /// Of a process that leads nothing yet.
    #[must_use]
    pub fn new(me: Process, timing: Timing) -> Holder {
        Holder {
            me,
            again_us: timing.again_us(),
            timing: timing.checked(),
            heed: Heed::default(),
            census: None,
            census_named: 0,
            alone: BTreeMap::new(),
            suspects: BTreeSet::new(),
            routes: BTreeMap::new(),
            covers: BTreeMap::new(),
            stopping: BTreeSet::new(),
            gave_up: BTreeMap::new(),
            asked: None,
            ask_at_us: 0,
            covered_by_us: 0,
            wanted_us: 0,
            gate: LeadGate::default(),
            is_open: false,
        }
    }

    /// What shards look at.
    #[must_use]
    pub fn gate(&self) -> LeadGate {
        self.gate.clone()
    }

    /// Whether this process may lead a hub in a term now.
    #[must_use]
    pub fn leads(&self, (hub, term): HubTerm, now: u64) -> bool {
        self.gate.may_lead(now) && self.covers.get(&hub) == Some(&term)
    }

    /// Which controller it heeds, for pings, next to the mandate that it holds itself.
    pub(crate) fn beat(&self, mandate: u64) -> Beat {
        self.heed.beat(mandate)
    }

    // -- What Python's watches give --

    /// All hubs whose records name this process as their leader.
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
            self.ask_soon(now);
        }
    }

    /// The record of the census.
    pub fn census(&mut self, census: Census) {
        self.census = Some(census);
    }

    // -- What shards say --

    /// A shard leads a hub no more in a term: the answer to [`Action::GiveUp`].
    pub fn gave_up(&mut self, pair: HubTerm, now: u64, actions: &mut VecDeque<Action>) {
        if self.stopping.remove(&pair) {
            self.note_given_up(pair);
            self.ask_soon(now);
            self.raise(self.wanted_us, now, actions);
        }
    }

    // -- What links give --

    /// The holder of a mandate that runs was heard.
    pub fn hear(&mut self, by: Process, mandate: u64, now: u64) {
        if self.heed.hear(by, mandate, now) {
            self.ask_soon(now);
        }
    }

    /// A process said which mandate it acts by, 0 for none.
    pub fn heard(&mut self, from: Process, mandate: u64, now: u64) {
        if mandate != 0 {
            self.hear(from, mandate, now);
        } else {
            self.heed.lose(from);
        }
    }

    /// A link has ended, or this process's own mandate: nothing more is heard of it now.
    pub fn lose(&mut self, process: Process) {
        self.heed.lose(process);
    }

    /// A node answered a ping, sent at `stamp_us`.
    pub fn answered(&mut self, of: Process, stamp_us: u64, beat: Beat, now: u64) {
        if !beat.is_alone() {
            return;
        }
        let stamp_us = stamp_us.min(now);
        match self.alone.get_mut(&of.node).filter(|known| known.of == of && known.heed == beat.heed) {
            Some(known) => known.until_us = known.until_us.max(stamp_us),
            None => {
                let alone = Alone { of, heed: beat.heed, from_us: now, until_us: stamp_us };
                self.alone.insert(of.node, alone);
            }
        }
    }

    /// The latest time at which a majority had no controller, this process among them.
    pub fn majority_alone_us(&self, now: u64) -> Option<u64> {
        self.census
            .as_ref()
            .filter(|_| self.heed.heeded().is_none())?
            .reached(|node| self.alone_until(node, now))
    }

    fn alone_until(&self, node: NodeId, now: u64) -> Option<u64> {
        if node == self.me.node { Some(now) } else { self.alone.get(&node).map(|alone| alone.until_us) }
    }

    /// A node is suspected, or no more.
    pub fn suspects(&mut self, node: NodeId, is_suspected: bool) {
        if is_suspected {
            self.suspects.insert(node);
        } else {
            self.suspects.remove(&node);
        }
    }

    /// What the controller's node granted.
    pub fn granted(&mut self, by: Process, grant: &Grant, now: u64, actions: &mut VecDeque<Action>) {
        let is_due = |asked: &Asked| asked.of == by && grant.stamp_us <= asked.stamp_us;
        if !self.asked.as_ref().is_some_and(is_due) || grant.stamp_us <= self.covered_by_us {
            return;
        }
        self.covered_by_us = grant.stamp_us;
        self.census_named = self.census_named.max(grant.census);
        let granted: BTreeMap<HubId, Term> =
            grant.granted.iter().copied().filter(|&pair| self.claims(pair)).collect();
        let lost: Vec<HubTerm> = of(&self.covers).filter(|pair| !holds(&granted, *pair)).collect();
        for pair in lost {
            self.give_up(pair, actions);
        }
        let began = of(&granted).filter(|pair| !holds(&self.covers, *pair));
        actions.extend(began.map(|(hub, term)| Action::Began(hub, term)));
        self.covers = granted;
        self.raise(grant.stamp_us + self.timing.lead_us.min(grant.lead_us), now, actions);
        // The controller's own watch may be behind this one.
        if of(&self.routes).all(|pair| !self.claims(pair) || holds(&self.covers, pair)) {
            self.again_us = self.timing.again_us();
        } else {
            self.ask_at_us = self.ask_at_us.min(now + self.again_us);
            self.again_us = (2 * self.again_us).min(self.timing.ask_us());
        }
    }

    // -- Time --

    /// What is due: a question, a longer lead, the news that it ended. Called at the end of each turn with events, and
    /// when `wake_at` has come.
    pub fn poll(&mut self, now: u64, actions: &mut VecDeque<Action>) {
        self.heed.lapse(now, self.timing.silence_us);
        match self.heed.heeded() {
            Some(Heeded { by, .. }) if now >= self.ask_at_us => {
                self.asked = Some(Asked { of: by, stamp_us: now });
                self.ask_at_us = now + self.timing.ask_us();
                actions.push_back(Action::Ask(by, self.question(now)));
            }
            Some(_) => {}
            None => self.prolong(now, actions),
        }
        if self.is_open && !self.gate.may_lead(now) {
            self.is_open = false;
            actions.push_back(Action::Closed);
        }
    }

    /// When `poll` is to be called at the latest.
    #[must_use]
    pub fn wake_at(&self) -> u64 {
        let ask_at = if self.heed.heeded().is_some() { self.ask_at_us } else { u64::MAX };
        let closes_at = if self.is_open { self.gate.until_us() } else { u64::MAX };
        ask_at.min(closes_at).min(self.heed.lapses_at(self.timing.silence_us))
    }

    // -- Below --

    fn claims(&self, pair: HubTerm) -> bool {
        holds(&self.routes, pair) && !holds(&self.gave_up, pair) && !self.stopping.contains(&pair)
    }

    fn question(&self, now: u64) -> Question {
        Question {
            stamp_us: now,
            claim: of(&self.routes).filter(|&pair| self.claims(pair)).collect(),
            gave_up: of(&self.gave_up).collect(),
            suspects: self.suspects.iter().copied().take(SUSPECTS_MAX).collect(),
        }
    }

    fn ask_soon(&mut self, now: u64) {
        self.ask_at_us = now;
        self.again_us = self.timing.again_us();
    }

    /// Leads a hub no more in a term: at once if no shard does, else when the shard has said so.
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

    /// Among a majority that heeds no controller nobody can have been elected who replaces anybody.
    fn prolong(&mut self, now: u64, actions: &mut VecDeque<Action>) {
        self.note_own(now);
        let Some(census) = self.census.as_ref().filter(|census| census.revision >= self.census_named) else {
            return;
        };
        let ended_us = self.gate.until_us();
        let is_over = !self.gate.may_lead(now);
        let alone = |node: NodeId| {
            let until_us = self.alone_until(node, now)?;
            let has_been = || self.alone.get(&node).is_some_and(|alone| alone.from_us < ended_us);
            (!is_over || has_been()).then_some(until_us)
        };
        if let Some(since_us) = census.reached(alone) {
            self.raise(since_us + self.timing.lead_us, now, actions);
        }
    }

    /// This process has no controller: since when counts as of others.
    fn note_own(&mut self, now: u64) {
        let beat = self.heed.beat(0);
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
