//! The end of a run: pending requests are answered in time, all messages in flight arrive, and the final
//! state is compared with the model.

use crate::check::{SubKey, matches, room_of};
use crate::{Sim, TOPICS, TURN_MS, net};
use hubsub_route::relay::limits::PARKED_MS;
use hubsub_route::{Broker, Namespace};
use hubsub_types::{HubId, NodeId};
use net::FOLLOWER;

impl Sim {
    /// Nobody is slow or serves without a leader lease any more; processes have all leader leases or none.
    fn free(&mut self, has_leads: bool) {
        for (node, shard, hub) in std::mem::take(&mut self.served) {
            self.net.act(node, shard, |broker, world, now| broker.serve_alone(hub, false, now, world));
        }
        let hubs = || self.net.hubs.iter().map(|row| row.id).filter(|_| !has_leads);
        for world in self.net.nodes.iter_mut().flat_map(|node| &mut node.worlds) {
            world.congested.clear();
            world.shut.clear();
            world.without_lead = hubs().collect();
        }
    }

    /// Executes all possible steps; returns whether there were any.
    fn take_all(&mut self) -> bool {
        let mut is_busy = false;
        while self.net.model.failure.is_none() && self.take_one() {
            is_busy = true;
        }
        is_busy
    }

    /// No process has a leader lease for longer than the timeout of a publish: each publish must be answered.
    pub(super) fn starve(&mut self) {
        self.free(false);
        for _ in 0..3 * PARKED_MS / TURN_MS {
            self.take_all();
            self.turns();
            self.pass(TURN_MS);
        }
        self.take_all();
        self.net.model.check_answered();
    }

    /// All links are up, every hub has a leader, nobody is slow, and all messages in flight arrive.
    pub(super) fn settle(&mut self) {
        self.free(true);
        let links: Vec<_> = self.net.links.keys().copied().collect();
        let mut quiet = 0;
        for _ in 0..20_000 {
            let mut is_busy = self.take_all();
            if self.net.model.failure.is_some() {
                return;
            }
            for &(a, b, link) in &links {
                if !self.net.links[&(a, b, link)].is_up {
                    is_busy = true;
                    self.net.link_up(a, b, link);
                }
            }
            for node in 0..self.net.nodes.len() as u16 {
                for shard in 0..self.net.nodes[usize::from(node)].brokers.len() as u16 {
                    for conn in 0..=FOLLOWER {
                        self.drain_full((node, shard, conn));
                    }
                }
            }
            self.turns();
            self.pass(TURN_MS);
            quiet = if is_busy { 0 } else { quiet + 1 };
            // Longer than any timeout.
            if quiet > 130 {
                return;
            }
        }
        self.net.model.failure = Some("it does not come to rest".to_owned());
    }

    pub(super) fn homes(&self, hub: HubId) -> Vec<(u16, u16)> {
        let nodes = (0u16..).zip(&self.net.nodes);
        let home = |node: &net::Node| hubsub_message::home(hub, node.brokers.len() as u16).0;
        nodes.map(|(id, node)| (id, home(node))).collect()
    }

    /// Checks that the interest counted by leaders equals that of relays, and the actual subscribers.
    pub(super) fn check_interest(&self) -> Result<(), String> {
        let seed = self.net.model.seed;
        for topic in TOPICS {
            let room = room_of(topic);
            let class = self.net.classes.class_of_room(room.as_bytes());
            let leaders = self.net.hubs.iter().filter_map(|row| {
                let (node, home) = self.homes(row.id).into_iter().find(|home| Some(home.0) == row.leader)?;
                let broker = &self.net.nodes[usize::from(node)].brokers[usize::from(home)];
                let (of_class, index) = broker.topics.place(room.as_bytes());
                let is_its = of_class == class && broker.topics.hub_id(class, index) == Some(row.id);
                is_its.then_some((row.id, node, broker))
            });
            let leaders: Vec<_> = leaders.collect();
            let has_subs = self.net.model.subs.keys().any(|key| !key.1 && key.2 == topic);
            if self.net.records.is_on && leaders.is_empty() && !has_subs {
                continue; // Nobody uses the room, or it was removed.
            }
            let [(hub, leader, broker)] = leaders[..] else {
                return Err(format!("seed {seed}: {topic} has {} leaders", leaders.len()));
            };
            if broker.leads(hub).is_none() {
                return Err(format!("seed {seed}: node {leader} does not lead the hub of {topic}"));
            }
            for (node, home) in self.homes(hub) {
                let relay = &self.net.nodes[usize::from(node)].brokers[usize::from(home)];
                let here = relay.interest_here(Namespace::Global, topic.as_bytes());
                let subs = self.net.model.subs.keys();
                let subscribed = subs.filter(|key| key.0.0 == node && !key.1 && key.2 == topic).count();
                if here as usize != subscribed {
                    return Err(format!(
                        "seed {seed}: node {node} counts {here} of {topic}, not {subscribed}"
                    ));
                }
                if node == leader {
                    continue;
                }
                let there = broker.interest_of(NodeId(node), Namespace::Global, topic.as_bytes());
                if there != here {
                    let text = format!("node {leader} counts {there} on node {node} of {topic}, not {here}");
                    return Err(format!("seed {seed}: {text}"));
                }
            }
        }
        for (id, node) in (0u16..).zip(&self.net.nodes) {
            for room in TOPICS.map(room_of) {
                let of = |broker: &Broker| broker.occupancy_of(room.as_bytes()).subscriptions();
                let counted: u64 = node.brokers.iter().map(of).sum();
                let is_there = |key: &&SubKey| key.0.0 == id && !key.1 && room_of(&key.2) == room;
                let subscribed = self.net.model.subs.keys().filter(is_there).count();
                if counted as usize != subscribed {
                    return Err(format!(
                        "seed {seed}: node {id} counts {counted} in {room}, not {subscribed}"
                    ));
                }
            }
            for (other, _) in (0u16..).zip(&self.net.nodes).filter(|(other, _)| *other != id) {
                if !node.brokers[0].holds_patterns_of(NodeId(other)) {
                    return Err(format!("seed {seed}: node {id} does not hold the patterns of node {other}"));
                }
            }
        }
        Ok(())
    }

    /// Checks that a record to each topic reaches all subscribers, with one frame for each node that has any.
    pub(super) fn check_delivery(&mut self) -> Result<(), String> {
        let seed = self.net.model.seed;
        let mut published = Vec::new();
        for topic in TOPICS {
            let (node, shard) = self.somewhere();
            published.push((topic, self.publish((node, shard, 0), topic)));
        }
        self.settle();
        self.fails("in the last round")?;
        for (topic, id) in published {
            let outcome = self.net.model.publishes[&id].outcome;
            let Some(Ok(outcome)) = outcome else {
                return Err(format!("seed {seed}: the last record of {topic} came to {outcome:?}"));
            };
            let wants = |key: &SubKey| if key.1 { matches(&key.2, topic) } else { key.2 == topic };
            let subs: Vec<_> = self.net.model.subs.iter().filter(|(key, _)| wants(key)).collect();
            let groups = self.net.model.groups_for(topic);
            if outcome.receivers != (subs.len() + groups.len()) as u64 {
                let (is, should) = (outcome.receivers, subs.len() + groups.len());
                return Err(format!(
                    "seed {seed}: the last record of {topic} has {is} receivers, not {should}"
                ));
            }
            for (key, sub) in &subs {
                if outcome.position.seq.0 > 0 && !sub.is_lossy() && !sub.has(topic, outcome.position) {
                    return Err(format!("seed {seed}: {key:?} lacks the last record of {topic}"));
                }
            }
            for group in groups {
                if !self.net.model.shares.given.contains_key(&(group, id)) {
                    let group = crate::groups::GROUPS[group];
                    return Err(format!(
                        "seed {seed}: nobody of {group:?} was given the last record of {topic}"
                    ));
                }
            }
            let leader = self.net.hubs.iter().find_map(|row| {
                let broker = &self.net.nodes[0].brokers[0];
                let (class, index) = broker.topics.place(room_of(topic).as_bytes());
                let index = self.net.records.place(room_of(topic).as_bytes()).unwrap_or(index);
                (broker.topics.hub_id(class, index) == Some(row.id)).then_some(row.leader).flatten()
            });
            let mut nodes: Vec<u16> = subs.iter().map(|(key, _)| key.0.0).collect();
            nodes.sort_unstable();
            nodes.dedup();
            nodes.retain(|&node| Some(node) != leader);
            let mut sent = self.net.model.frames.get(&id).cloned().unwrap_or_default();
            sent.sort_unstable();
            if sent != nodes {
                return Err(format!(
                    "seed {seed}: the last record of {topic} went to {sent:?}, not {nodes:?}"
                ));
            }
        }
        Ok(())
    }
}
