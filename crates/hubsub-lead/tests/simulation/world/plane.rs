//! The control plane of a node, as leader leases need it: its lease, its controller term, what it watches,
//! decides and commits.

use super::{ControllerTerm, Event, LEASE_US, MS, World};
use crate::controller::{Change, View};
use hubsub_lead::{HubTerm, Process, Route, Tables};
use hubsub_types::NodeId;
use std::collections::{BTreeMap, BTreeSet};

impl World {
    fn reaches(&self, process: Process) -> bool {
        self.nodes.get(&process.node).is_some_and(|node| node.id == process && node.is_alive)
            && !self.away.contains(&process.node)
    }

    /// A lease ends some time after its deadline, never before.
    pub(super) fn expire(&mut self) {
        let has_ended = |process: &Process| match self.nodes.get(&process.node) {
            Some(node) if node.id == *process => node.clock(self.now) > node.lease_us + 100 * MS,
            // Another process has the name: its lease expires like any other.
            _ => true,
        };
        self.store.nodes.retain(|_, process| !has_ended(process));
        self.store.controller.take_if(|(process, _)| has_ended(process));
    }

    pub(super) fn coordinate(&mut self, process: Process) {
        let again = 30 * MS + self.random.below(90 * MS);
        self.push(again, process, Event::Coordinates);
        if !self.reaches(process) || self.random.percent(20) {
            return;
        }
        let gone = self.gone_to(process.node);
        let node = self.nodes.get_mut(&process.node).expect("it is alive");
        let (store, now) = (&mut self.store, node.clock(self.now));
        node.lease_us = now + LEASE_US;
        store.nodes.entry(process.node).or_insert(process);
        if store.nodes[&process.node] != process {
            return;
        }
        // The lease of a controller that a majority does not hear is not waited for.
        let alone_us = node.leases.snapshot(now).alone_us;
        let is_deserted = alone_us.is_some_and(|alone| now <= alone + self.timing.silence_us);
        if store.controller.is_none_or(|(by, _)| gone.contains(&by) || (by != process && is_deserted)) {
            self.deposed += u64::from(store.controller.is_some_and(|(by, _)| !gone.contains(&by)));
            store.controller_terms += 1;
            store.controller = Some((process, store.controller_terms));
            node.controller_term = Some(ControllerTerm {
                number: store.controller_terms,
                elected_us: now,
                tables: vec![(0, Tables::new())],
                version: 0,
                replacing: BTreeSet::new(),
                dead: BTreeMap::new(),
            });
        }
        let held = store.controller.filter(|(by, _)| *by == process);
        match held {
            Some((_, number)) => node.leases.controller_term(number, node.lease_us, now, now),
            None if node.controller_term.take().is_some() => node.leases.resign(now),
            None => {}
        }
        self.watch(process);
    }

    /// Delivers the whole current state to the watches of a node.
    fn watch(&mut self, process: Process) {
        let node = self.nodes.get_mut(&process.node).expect("it is alive");
        let now = node.clock(self.now);
        node.hubs = self.store.hubs.clone();
        node.nodes = self.store.nodes.clone();
        node.voters = self.store.voters.clone();
        let mine = node.hubs.iter().filter(|(_, hub)| hub.leader == process);
        let routes: Vec<Route> = mine
            .map(|(&id, hub)| Route { hub: id, term: hub.term, gives_up: hub.proposed.is_some() })
            .collect();
        node.leases.routes(&routes, now);
        node.leases.voters(node.voters.clone(), now);
    }

    pub(super) fn decide(&mut self, process: Process) {
        let again = 20 * MS + self.random.below(100 * MS);
        self.push(again, process, Event::Decides);
        let now = self.nodes[&process.node].clock(self.now);
        let gone: Vec<Process> = self.gone_to(process.node);
        let node = self.nodes.get_mut(&process.node).expect("it is alive");
        let Some(controller_term) = node.controller_term.as_mut().filter(|_| now < node.lease_us) else {
            return;
        };
        gone.into_iter().for_each(|process| _ = controller_term.dead.entry(process).or_insert(now));
        let snapshot = node.leases.snapshot(now);
        controller_term.tables.retain(|(version, _)| *version >= snapshot.tables);
        let mut granted = Tables::new();
        for (of, table) in controller_term.tables.iter().flat_map(|(_, tables)| tables) {
            granted.entry(*of).or_default().extend(table);
        }
        let view = View {
            now,
            timing: self.timing,
            snapshot,
            elected_us: controller_term.elected_us,
            hubs: &node.hubs,
            nodes: &node.nodes,
            voters: &node.voters,
            dead: &controller_term.dead,
            granted,
            replacing: &controller_term.replacing,
        };
        let (tables, changes) = view.decide(&mut self.random);
        controller_term.version += 1;
        controller_term.tables.push((controller_term.version, tables.clone()));
        let (number, version) = (controller_term.number, controller_term.version);
        let mut events = vec![(
            self.random.below(70 * MS),
            Event::TablesCome { controller_term: number, version, tables },
        )];
        for change in changes {
            let ends = match &change.write {
                crate::store::Write::Hub(id, hub) => {
                    let before = node.hubs.get(id).filter(|before| before.term != hub.term);
                    before.map(|before| (*id, before.term))
                }
                crate::store::Write::Voters(_) => None,
            };
            controller_term.replacing.extend(ends);
            let after = self.random.below(150 * MS);
            events.push((after, Event::CommitCome { controller_term: number, change, ends }));
        }
        events.into_iter().for_each(|(after, event)| self.push(after, process, event));
    }

    /// Processes that a node knows to be dead: their links ended and their ports refuse.
    fn gone_to(&self, node: NodeId) -> Vec<Process> {
        self.dead.iter().copied().filter(|process| !self.is_cut(node, process.node)).collect()
    }

    pub(super) fn commit(
        &mut self,
        process: Process,
        controller_term: u64,
        change: Change,
        ends: Option<HubTerm>,
    ) {
        let is_held = self.nodes[&process.node]
            .controller_term
            .as_ref()
            .is_some_and(|held| held.number == controller_term);
        if !is_held {
            return;
        }
        if !self.reaches(process) {
            // The outcome is unknown, so the commit is retried.
            self.push(100 * MS, process, Event::CommitCome { controller_term, change, ends });
            return;
        }
        self.store.commit(controller_term, change);
        self.watch(process);
        if let (Some(ends), Some(held)) =
            (ends, &mut self.nodes.get_mut(&process.node).expect("alive").controller_term)
        {
            held.replacing.remove(&ends);
        }
    }
}
