//! The seeded simulator: brokers of several nodes with several shards each, links that break and come back,
//! late frames, a controller that changes leaders while nodes learn of it at different times, publishers,
//! subscribers, patterns, logs. A run follows from one seed, and is checked against a model at every step:
//! the four invariants of docs/adr/0014, and further ones.
//!
//! 1. A subscriber gets the records of a room in order, each once, or a gap notice.
//! 2. The interest that a leader counts for a node equals the relay's, once nothing is in flight.
//! 3. For each record one frame goes to each node with interest, and none to others.
//! 4. A confirmed position is permanent: it belongs to one record, and a publisher's records keep their
//!    order.
//! 5. A record is delivered to at most one member of a group; without failures, to exactly one.
//! 6. A follower of hubs with a log gets each of their records once, those of a room in order, without gaps,
//!    even if it continues on another connection.
//! 7. A room record is removed only when its leader has no subscriber and no record of the room; the leaders
//!    of two hubs never have the same room.
//!
//! While all links are up, leadership changes without a gap, and each publish counts all subscribers.

pub mod check;
mod follow;
pub mod forget;
pub mod groups;
mod handover;
pub mod log;
pub mod moves;
pub mod net;
mod node;
mod rest;
pub mod rng;
pub mod world;

use check::{SubKey, Waits, room_of};
use forget::Flaw;
use hubsub_route::ring::NOWHERE;
use hubsub_route::rooms::HistoryQuery;
use hubsub_route::{Ask, Asker, Draft, Namespace, Outcome, Publisher, Start, Ticket, Wish};
use hubsub_types::{HubId, Position, Qos, Seq, ShardId};
use net::{CONNS, FOLLOWER, Net, key};
use std::collections::BTreeSet;

/// Topics: two rooms per class, one of them with two topics.
pub const TOPICS: [&str; 9] = ["e:a", "{e:a}.x", "e:b", "h:a", "{h:a}.x", "h:b", "l:a", "{l:a}.x", "l:b"];

const PATTERNS: [&str; 4] = ["e:*", "h:*", "l:a*", "{*"];

/// Interval between turns without other events, in ms.
const TURN_MS: u64 = 50;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Publishes with an answer: committed, and not.
    pub outcomes: (u64, u64),
    pub seen: u64,
    pub gaps: u64,
    pub lacks: u64,
    pub histories: u64,
    pub moves: u64,
    /// Records that followers of hubs received, and how often one continued on another connection.
    pub followed: (u64, u64),
    /// Removed room records, and rooms that were in use instead.
    pub forgotten: (u64, u64),
}

/// Runs a seed for `steps` steps.
///
/// # Errors
/// The error, and the step at which it occurred.
pub fn run(seed: u64, steps: usize) -> Result<Stats, String> {
    run_with(seed, steps, Flaw::None)
}

/// As [`run`], with an injected violation of a rule.
///
/// # Errors
/// The error, and the step at which it occurred.
pub fn run_with(seed: u64, steps: usize, flaw: Flaw) -> Result<Stats, String> {
    let mut net = Net::new(seed);
    net.records.flaw = flaw;
    let is_calm = net.rng.percent(30);
    let is_restless = !is_calm && net.rng.percent(30);
    let is_moving = net.rng.percent(50);
    let silent = if net.rng.percent(50) { net.rng.below(1_000) } else { 0 };
    let mut sim = Sim {
        net,
        slots: 0,
        ids: 0,
        returns: 0,
        is_calm,
        is_restless,
        is_moving,
        is_silent: true,
        served: BTreeSet::new(),
    };
    sim.begin();
    for step in 0..steps {
        sim.is_silent = step < silent;
        sim.step();
        sim.net.check_places();
        sim.fails(&format!("step {step}"))?;
    }
    if sim.net.rng.percent(30) {
        sim.starve();
        sim.fails("while nobody leads")?;
    }
    sim.settle();
    sim.fails("while it settles")?;
    sim.net.model.check_whole();
    sim.fails("when nothing is under way")?;
    sim.check_interest()?;
    sim.check_delivery()?;
    if sim.net.rng.percent(50) {
        sim.pass_on()?;
    }
    let followed = (sim.net.model.followed(), sim.returns);
    let model = &sim.net.model;
    let (outcomes, seen, gaps, histories) = (model.outcomes, model.seen, model.gaps, model.histories);
    let (moves, forgotten) = (sim.net.moves, sim.net.records.forgotten);
    Ok(Stats { outcomes, seen, gaps, lacks: model.lacks, histories, moves, followed, forgotten })
}

struct Sim {
    net: Net,
    slots: u32,
    ids: u32,
    /// How often a follower continued on another connection.
    returns: u64,
    /// Leaders never change and links rarely break, so a gap notice to a pattern for one hub hides no loss in
    /// another.
    is_calm: bool,
    is_restless: bool,
    is_moving: bool,
    /// No publishes yet: rooms have subscribers and no record, and leaders change.
    is_silent: bool,
    /// Hubs served without a leader lease: node, the hub's shard there, hub.
    served: BTreeSet<(u16, u16, HubId)>,
}

impl Sim {
    fn fails(&self, when: &str) -> Result<(), String> {
        let Some(failure) = &self.net.model.failure else { return Ok(()) };
        Err(format!("seed {}, {when}: {failure}", self.net.model.seed))
    }

    fn begin(&mut self) {
        let pairs: Vec<_> = self.net.links.keys().copied().collect();
        for (a, b, link) in pairs {
            if self.net.rng.percent(80) {
                self.net.link_up(a, b, link);
            }
        }
        for hub in 0..self.net.hubs.len() {
            self.net.move_hub(hub);
        }
        for node in 0..self.net.nodes.len() as u16 {
            let shard = self.net.rng.below(self.net.nodes[usize::from(node)].brokers.len()) as u16;
            if self.net.rng.percent(60) {
                self.follow((node, shard, FOLLOWER), &[], None);
            }
        }
    }

    fn step(&mut self) {
        let choice = self.net.rng.below(1000);
        match choice {
            0..650 => _ = self.take_one(),
            650..780 if !self.is_silent => self.publish_somewhere(),
            650..680 if self.is_restless => self.move_somewhere(),
            780..850 => self.subscribe_somewhere(),
            850..885 => self.unsubscribe_somewhere(),
            885..905 => self.ask_somewhere(),
            905..915 => self.lag_somewhere(),
            915..940 => self.drain_somewhere(),
            940..950 if self.is_restless => self.move_somewhere(),
            940..950 if self.net.records.is_on && choice != 940 => self.net.begin_to_forget(),
            940..947 => self.gate_somewhere(),
            947..950 if self.is_moving => self.move_room_somewhere(),
            947..950 => self.gate_somewhere(),
            950..962 if !self.is_calm || self.net.rng.percent(15) => self.link_somewhere(),
            962..970 if !self.is_calm => self.move_somewhere(),
            970..972 if !self.is_calm => self.serve_somewhere(),
            972..974 => self.return_somewhere(),
            988..993 => self.join_somewhere(),
            993..997 => self.leave_somewhere(),
            970..975 => self.pass(100 + self.net.now.mono_ms % 600),
            _ => self.turn_somewhere(),
        }
    }

    fn somewhere(&mut self) -> (u16, u16) {
        let node = self.net.rng.below(self.net.nodes.len());
        let shard = self.net.rng.below(self.net.nodes[node].brokers.len());
        (node as u16, shard as u16)
    }

    /// Executes one of the possible steps; returns whether there was any.
    fn take_one(&mut self) -> bool {
        let steps = self.net.in_flight();
        if !steps.is_empty() {
            let at = self.net.rng.below(steps.len());
            self.net.take(steps[at]);
        }
        !steps.is_empty()
    }

    fn ticket(&mut self, (_, shard, conn): check::Conn, waits: Waits) -> (Ticket, u32) {
        self.slots += 1;
        let slot = self.slots;
        self.net.model.waiting.insert(slot, waits);
        (Ticket { shard: ShardId(shard), asker: Asker::Client { conn: key(conn), slot } }, slot)
    }

    /// The result of a request, if it was answered at once.
    fn at_once<T>(&mut self, slot: u32, outcome: Outcome<T>) -> Option<T> {
        let Outcome::Now(result) = outcome else { return None };
        self.net.model.waiting.remove(&slot);
        Some(result)
    }

    fn publish_somewhere(&mut self) {
        let (node, shard) = self.somewhere();
        let conn = self.net.rng.below(CONNS as usize) as u32;
        let topic = TOPICS[self.net.rng.below(TOPICS.len())];
        self.publish((node, shard, conn), topic);
    }

    fn publish(&mut self, by: check::Conn, topic: &str) -> u32 {
        self.ids += 1;
        let id = self.ids;
        let publish = check::Publish { topic: topic.to_owned(), by, outcome: None };
        self.net.model.publishes.insert(id, publish);
        let (ticket, slot) = self.ticket(by, Waits::Publish(id));
        let payload = id.to_le_bytes();
        let outcome = self.net.act(by.0, by.1, |broker, world, now| {
            let (namespace, publisher) = (Namespace::Global, Publisher::Conn(by.2));
            let (topic, payload) = (topic.as_bytes(), &payload);
            let draft = Draft {
                namespace,
                topic,
                payload,
                headers: None,
                publisher,
                producer: None,
                qos: Qos::ExactlyOnce,
                retain: false,
            };
            broker.publish(ticket, draft, now, world)
        });
        if let Some(outcome) = self.at_once(slot, outcome) {
            self.net.model.published(id, outcome);
        }
        id
    }

    /// A subscription that may exist already.
    fn some_subscription(&mut self) -> SubKey {
        let (node, shard) = self.somewhere();
        let conn = (node, shard, self.net.rng.below(CONNS as usize) as u32);
        let by_pattern = self.net.rng.percent(15);
        let name = match by_pattern {
            true => PATTERNS[self.net.rng.below(PATTERNS.len())],
            false => TOPICS[self.net.rng.below(TOPICS.len())],
        };
        (conn, by_pattern, name.to_owned())
    }

    fn subscribe_somewhere(&mut self) {
        let sub = self.some_subscription();
        let (conn, by_pattern) = (sub.0, sub.1);
        let remembers = !sub.2.contains("e:");
        if self.subscribe_to(sub, |sim| sim.some_start(remembers)) && !by_pattern {
            self.drain(conn);
        }
    }

    fn some_start(&mut self, remembers: bool) -> Start {
        match self.net.rng.below(if remembers { 6 } else { 1 }) {
            0..3 => Start::Live,
            3 => Start::Last(self.net.rng.below(5) as u64),
            4 => Start::Since(self.net.now.wall_us.saturating_sub(200_000)),
            _ => {
                let node = self.net.rng.below(self.net.nodes.len()) as u64;
                let epoch = hubsub_types::Epoch(((node + 1) << 32) + self.net.rng.below(4) as u64);
                Start::After(Position { epoch, seq: Seq(self.net.rng.below(10) as u64) })
            }
        }
    }

    /// Adds a subscription unless it exists; returns whether it did not. One to a topic begins at `start`.
    fn subscribe_to(&mut self, sub: SubKey, start: impl FnOnce(&mut Sim) -> Start) -> bool {
        if self.net.model.subs.contains_key(&sub) {
            return false;
        }
        if sub.1 {
            self.hold_pattern(sub, check::Sub::default());
            return true;
        }
        self.net.model.subs.insert(sub.clone(), check::Sub::default());
        let (ticket, slot) = self.ticket(sub.0, Waits::Subscribe(sub.clone()));
        let start = start(self);
        let ((node, shard, conn), _, topic) = &sub;
        let wish = Wish { topic: topic.as_bytes(), namespace: Namespace::Global, start };
        let outcome = self
            .net
            .act(*node, *shard, |broker, world, now| broker.subscribe(ticket, key(*conn), wish, now, world));
        if let Some(attached) = self.at_once(slot, outcome) {
            self.net.model.attached(&sub, attached);
        }
        true
    }

    /// Adds a subscription to a pattern, with the state `seen`.
    fn hold_pattern(&mut self, sub: SubKey, seen: check::Sub) {
        self.net.model.subs.insert(sub.clone(), seen);
        let (ticket, slot) = self.ticket(sub.0, Waits::Subscribe(sub.clone()));
        let ((node, shard, conn), _, pattern) = &sub;
        let outcome = self.net.act(*node, *shard, |broker, world, _| {
            broker.subscribe_pattern(ticket, key(*conn), pattern.as_bytes(), world)
        });
        if let Some(held) = self.at_once(slot, outcome) {
            assert!(held.is_ok(), "patterns are short and few");
            self.net.model.held(&sub);
        }
    }

    fn unsubscribe_somewhere(&mut self) {
        let subs = self.net.model.subs.iter().filter(|(key, sub)| sub.is_live && key.0.2 != FOLLOWER);
        let subs: Vec<SubKey> = subs.map(|(key, _)| key.clone()).collect();
        if subs.is_empty() {
            return;
        }
        let sub = subs[self.net.rng.below(subs.len())].clone();
        self.unsubscribe(sub);
    }

    fn unsubscribe(&mut self, sub: SubKey) {
        self.net.model.subs.remove(&sub);
        let ((node, shard, conn), by_pattern, name) = sub;
        self.net.act(node, shard, |broker, world, now| {
            let (conn, name) = (key(conn), name.as_bytes());
            match by_pattern {
                true => broker.unsubscribe_pattern(conn, name, world),
                false => broker.unsubscribe(conn, Namespace::Global, name, now, world),
            }
        });
    }

    /// Sends a request for history, for end offsets, or for a subscriber count.
    fn ask_somewhere(&mut self) {
        let (node, shard) = self.somewhere();
        let topic = TOPICS[self.net.rng.below(TOPICS.len())];
        if self.net.rng.percent(20) {
            return self.ask_ends((node, shard, 0));
        }
        if self.net.rng.percent(50) {
            let (ticket, slot) = self.ticket((node, shard, 0), Waits::Count);
            let outcome = self.net.act(node, shard, |broker, world, now| {
                broker.subscribers(ticket, Namespace::Global, topic.as_bytes(), now, world)
            });
            let _ = self.at_once(slot, outcome);
            return;
        }
        let room = room_of(topic).into_bytes();
        let home = self.net.nodes[usize::from(node)].brokers[0].topics.shard_of_room(&room);
        let home = if home == NOWHERE { ShardId(shard) } else { home };
        let topic = self.net.rng.percent(50).then(|| topic.as_bytes().to_vec());
        let query = HistoryQuery { room, count: 1 + self.net.rng.below(10) as u64, after: None, topic };
        self.slots += 1;
        let ask = Ask { shard: home, number: self.slots };
        let part = self.net.act(node, home.0, |broker, world, now| broker.history(&query, ask, now, world));
        if let Ok(Some(part)) = part {
            self.net.model.history(ask.number, Ok(part));
        }
    }

    fn lag_somewhere(&mut self) {
        let (node, shard) = self.somewhere();
        let conn = self.net.rng.below(FOLLOWER as usize + 1) as u32;
        self.net.nodes[usize::from(node)].worlds[usize::from(shard)].full.insert(conn);
    }

    fn drain_somewhere(&mut self) {
        let (node, shard) = self.somewhere();
        let conn = self.net.rng.below(FOLLOWER as usize + 1) as u32;
        self.drain_full((node, shard, conn));
    }

    fn drain_full(&mut self, conn: check::Conn) {
        self.net.nodes[usize::from(conn.0)].worlds[usize::from(conn.1)].full.remove(&conn.2);
        self.drain(conn);
    }

    fn drain(&mut self, (node, shard, conn): check::Conn) {
        self.net.act(node, shard, |broker, world, now| broker.drained(key(conn), now, world));
    }

    /// A link blocks or unblocks; or a shard becomes slow, or a process loses its leader lease.
    fn gate_somewhere(&mut self) {
        let (node, shard) = self.somewhere();
        let other = self.net.rng.below(self.net.nodes.len()) as u16;
        let link = self.net.rng.below(3) as u16;
        let (is_gate, is_lead) = (self.net.rng.percent(70), self.net.rng.percent(30));
        let hub = self.net.hubs[self.net.rng.below(self.net.hubs.len())].id;
        let world = &mut self.net.nodes[usize::from(node)].worlds[usize::from(shard)];
        if is_lead {
            if !world.without_lead.remove(&hub) {
                world.without_lead.insert(hub);
            }
        } else if is_gate {
            if !world.shut.remove(&(other, link)) {
                world.shut.insert((other, link));
            }
        } else if !world.congested.remove(&link) && link != shard {
            world.congested.insert(link);
        }
    }

    /// A node begins or ends to serve a hub without a leader lease, whoever is its leader.
    fn serve_somewhere(&mut self) {
        let at = self.net.rng.below(self.net.hubs.len());
        if self.net.hubs[at].home.is_some() {
            return; // Hubs with a log need no leader lease.
        }
        let homes = self.homes(self.net.hubs[at].id);
        let (node, shard) = homes[self.net.rng.below(homes.len())];
        let hub = self.net.hubs[at].id;
        let serves = !self.served.remove(&(node, shard, hub));
        if serves {
            self.served.insert((node, shard, hub));
        }
        self.net.act(node, shard, |broker, world, now| broker.serve_alone(hub, serves, now, world));
    }

    fn link_somewhere(&mut self) {
        let links: Vec<_> = self.net.links.keys().copied().collect();
        let (a, b, link) = links[self.net.rng.below(links.len())];
        if self.net.links[&(a, b, link)].is_up && self.net.rng.percent(40) {
            self.net.link_break(a, b, link);
        } else {
            self.net.link_up(a, b, link);
        }
    }

    fn move_somewhere(&mut self) {
        let at = self.net.rng.below(self.net.hubs.len());
        self.net.move_hub(at);
    }

    fn turn_somewhere(&mut self) {
        let (node, shard) = self.somewhere();
        self.turn(node, shard);
        self.pass(1);
    }

    fn turn(&mut self, node: u16, shard: u16) {
        self.net.act(node, shard, |broker, world, now| {
            broker.commit_due(now, world);
            broker.retry_stalled(now, world);
        });
    }

    fn pass(&mut self, ms: u64) {
        self.net.now.mono_ms += ms;
        self.net.now.wall_us += ms * 1000;
    }

    fn turns(&mut self) {
        for node in 0..self.net.nodes.len() as u16 {
            for shard in 0..self.net.nodes[usize::from(node)].brokers.len() as u16 {
                self.turn(node, shard);
            }
        }
    }
}
