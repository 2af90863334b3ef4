//! A minimal controller: the rules of the control plane's `leads` and `voters` for when a leader is replaced,
//! which tables are granted, and how the voters change. Placement of hubs is random.

use crate::random::Random;
use crate::store::{Hub, Write};
use hubsub_lead::{HubTerm, Process, Snapshot, Tables, Timing, Voters};
use hubsub_types::{HubId, NodeId, Term};
use std::collections::{BTreeMap, BTreeSet};

/// Number of hubs in the class; it never changes.
pub const HUBS: u32 = 8;
/// Most that a clock may be faster or slower than another one, as a fraction of its rate.
pub const DRIFT: f64 = 0.01;
const MARGIN_US: u64 = 50_000;

/// The input of a decision; times are the controller's own.
pub struct View<'a> {
    pub now: u64,
    pub timing: Timing,
    pub snapshot: Snapshot,
    pub elected_us: u64,
    pub hubs: &'a BTreeMap<HubId, Hub>,
    pub nodes: &'a BTreeMap<NodeId, Process>,
    pub voters: &'a Voters,
    /// Dead processes, and since when that is known.
    pub dead: &'a BTreeMap<Process, u64>,
    /// Grants of the tables that apply and of those in flight.
    pub granted: Tables,
    pub replacing: &'a BTreeSet<HubTerm>,
}

/// A write and its preconditions: a revision, and processes that must still be dead.
#[derive(Debug)]
pub struct Change {
    pub revision: u64,
    pub dead: Vec<Process>,
    pub write: Write,
}

impl View<'_> {
    pub fn decide(&self, random: &mut Random) -> (Tables, Vec<Change>) {
        let tables = self.tables();
        let mut changes = Vec::new();
        if self.voters.nodes.is_empty() || self.begun_us().is_some() {
            changes.extend(self.census_change().map(|voters| {
                let dead = if voters.before.is_empty() { self.gone().collect() } else { Vec::new() };
                Change { revision: self.voters.revision, dead, write: Write::Voters(voters) }
            }));
        }
        let candidates = self.candidates();
        if self.begun_us().is_some() && !candidates.is_empty() {
            for hub in (0..HUBS).map(HubId) {
                let before = self.hubs.get(&hub);
                let revision = before.map_or(0, |before| before.revision);
                let after = self.next(hub, before, &tables, &candidates, random);
                changes.extend(after.map(|after| Change {
                    revision,
                    dead: self.gone().collect(),
                    write: Write::Hub(hub, after),
                }));
            }
        }
        (tables, changes)
    }

    fn next(
        &self,
        id: HubId,
        before: Option<&Hub>,
        tables: &Tables,
        candidates: &[Process],
        random: &mut Random,
    ) -> Option<Hub> {
        let led = |by: Process, term: u64| Hub { revision: 0, term: Term(term), leader: by, proposed: None };
        let Some(hub) = before else { return Some(led(random.pick(candidates)?, 1)) };
        if self.replacing.contains(&(id, hub.term)) {
            return None;
        }
        let proposed = hub.proposed.and_then(|node| candidates.iter().copied().find(|of| of.node == node));
        if self.is_lost(id, hub, tables) {
            let by = proposed.or_else(|| random.pick(candidates))?;
            Some(led(by, hub.term.0 + 1))
        } else if hub.proposed.is_some() {
            proposed.is_none().then(|| Hub { proposed: None, ..hub.clone() })
        } else if random.percent(2) {
            let to = random.pick(candidates)?;
            match to == hub.leader {
                // Its members change.
                true => Some(led(to, hub.term.0 + 1)),
                false => Some(Hub { proposed: Some(to.node), ..hub.clone() }),
            }
        } else {
            None
        }
    }

    fn is_lost(&self, id: HubId, hub: &Hub, tables: &Tables) -> bool {
        let pair = (id, hub.term);
        let gave_up = self.snapshot.peers.get(&hub.leader).is_some_and(|peer| peer.gave_up.contains(&pair));
        let may_be_granted = [&self.granted, tables]
            .iter()
            .any(|tables| tables.get(&hub.leader).is_some_and(|table| table.contains(&pair)));
        gave_up || self.is_dead(hub.leader) || (!may_be_granted && self.has_ended(hub.leader))
    }

    /// Whether a majority is known to have acknowledged until the leader leases of a process ended, and until
    /// no leader lease was held any more that others granted or nodes extended.
    fn has_ended(&self, process: Process) -> bool {
        self.ends_us(process).is_some_and(|ends| self.is_proved(ends))
    }

    fn is_proved(&self, ends: u64) -> bool {
        let begun = self.begun_us();
        let until = self.reached(
            |node| {
                let (since, until) = self.heeding(node)?;
                (Some(since) <= begun).then_some(until)
            },
            |since| (Some(since) <= begun).then_some(u64::MAX),
        );
        until.is_some_and(|until| until >= ends)
    }

    fn tables(&self) -> Tables {
        let mut tables = Tables::new();
        let mut keeping = BTreeSet::new();
        for &process in self.nodes.values().filter(|process| !self.is_dead(**process)) {
            tables.insert(process, BTreeSet::new());
            let grace = if self.is_heard(process) { self.timing.lease_us } else { 0 };
            if self.ends_us(process).is_none_or(|ends| self.now < ends + grace) {
                keeping.insert(process);
            }
        }
        for (&id, hub) in self.hubs {
            let pair = (id, hub.term);
            if keeping.contains(&hub.leader) && !self.replacing.contains(&pair) {
                tables.get_mut(&hub.leader).expect("a leader of hubs has a table").insert(pair);
            }
        }
        tables
    }

    fn census_change(&self) -> Option<Voters> {
        let registered: Vec<NodeId> = self.nodes.keys().copied().collect();
        let Voters { nodes, before, .. } = self.voters.clone();
        if nodes.is_empty() {
            return Some(Voters { nodes: registered, ..Voters::default() });
        }
        if !before.is_empty() {
            let settled = self.settled_us()?.max(self.snapshot.voters_since_us + self.wait_us());
            if self.is_proved(settled) {
                return Some(Voters { nodes, ..Voters::default() });
            }
        }
        let before = if before.is_empty() { nodes.clone() } else { before };
        (nodes != registered).then_some(Voters { nodes: registered, before, revision: 0 })
    }

    /// The latest time that a majority has reached. Dead nodes count among the voters before the change, with
    /// the time that `dead` derives from when their death was noticed.
    fn reached(
        &self,
        time: impl Fn(NodeId) -> Option<u64>,
        dead: impl Fn(u64) -> Option<u64>,
    ) -> Option<u64> {
        let Voters { nodes, before, .. } = self.voters;
        let of = |nodes: &[NodeId]| Voters { nodes: nodes.to_vec(), ..Voters::default() };
        let reached = of(nodes).reached(&time)?;
        if before.is_empty() {
            return Some(reached);
        }
        let with_dead = |node| {
            let gone = self.gone().find(|process| process.node == node);
            gone.map_or_else(|| time(node), |process| dead(self.dead[&process]))
        };
        of(before).reached(with_dead).map(|before| before.min(reached))
    }

    /// Registered processes that are dead and whose names no other process has had.
    fn gone(&self) -> impl Iterator<Item = Process> + '_ {
        self.nodes.values().copied().filter(|process| self.dead.contains_key(process))
    }

    fn candidates(&self) -> Vec<Process> {
        let can = |process: &Process| {
            let until = self.snapshot.peers.get(process).and_then(|peer| peer.lease_until_us);
            self.is_heard(*process) && !self.is_dead(*process) && until > Some(self.now)
        };
        self.nodes.values().copied().filter(can).collect()
    }

    // -- Times --

    fn guard_us(&self) -> u64 {
        (self.timing.lease_us as f64 * DRIFT) as u64 + MARGIN_US
    }

    fn wait_us(&self) -> u64 {
        self.timing.lease_us + self.guard_us()
    }

    /// When a process no longer has a leader lease if it is granted none.
    fn ends_us(&self, process: Process) -> Option<u64> {
        let settled = self.settled_us()?;
        let until = self.snapshot.peers.get(&process).and_then(|peer| peer.lease_until_us);
        Some(until.map_or(settled, |until| settled.max(until + self.guard_us())))
    }

    /// From when on no leader lease is held that this controller did not grant.
    fn settled_us(&self) -> Option<u64> {
        Some(self.begun_us()?.max(self.elected_us) + self.wait_us())
    }

    /// Since when a majority acknowledges this controller.
    fn begun_us(&self) -> Option<u64> {
        // The times of `reached` count backwards here: the first majority, not the last.
        self.reached(|node| Some(u64::MAX - self.heeding(node)?.0), |since| Some(u64::MAX - since))
            .map(|since| u64::MAX - since)
    }

    /// Since and until when a node acknowledges this controller; the latest process of its name counts.
    fn heeding(&self, node: NodeId) -> Option<(u64, u64)> {
        let (process, peer) = self.snapshot.peers.iter().rfind(|(process, _)| process.node == node)?;
        let since = peer.acknowledges_us.filter(|_| self.is_heard(*process))?;
        Some((since, peer.acknowledges_until_us))
    }

    fn is_heard(&self, process: Process) -> bool {
        let heard = self.snapshot.peers.get(&process).map(|peer| peer.heard_us);
        heard.is_some_and(|heard| self.now <= heard + self.timing.silence_us)
    }

    fn is_dead(&self, process: Process) -> bool {
        let registered = self.nodes.get(&process.node);
        self.dead.contains_key(&process)
            || registered.is_some_and(|now| now.incarnation > process.incarnation)
    }
}
