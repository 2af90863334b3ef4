//! A simulated cluster, all from one seed: a coordinator, processes with clocks of their own, links that
//! lose, delay and reorder messages, and shards that are notified late. After each event it checks, in true
//! time:
//!
//! - no hub is led by two processes, and each term only by the process that it was written for, after it was
//!   written;
//! - a process extends its leader lease without a controller only among a majority that had none.

mod plane;

use crate::controller::{Change, DRIFT, HUBS};
use crate::random::Random;
use crate::store::{Hub, Store};
use hubsub_lead::{
    Action, Beat, Grant, HubTerm, LeaderLeases, LeaseRequest, Process, Tables, Timing, Voters,
};
use hubsub_types::{HubId, NodeId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};

pub const MS: u64 = 1_000;
pub const SECOND: u64 = 1_000 * MS;
const LEASE_US: u64 = 2 * SECOND;
const PING_US: u64 = 100 * MS;

#[derive(Clone, Debug)]
enum Message {
    Ping(u64, Beat),
    Pong(u64, Beat),
    Request(LeaseRequest),
    Answer(Grant),
    Gone,
}

#[derive(Debug)]
enum Event {
    Wake,
    PingTime,
    Arrives(Process, Message),
    /// A shard reads its inbox.
    Mail,
    /// The shard's answer to a `GiveUp`.
    Confirmed(HubTerm),
    /// The control plane exchanges data with the coordinator.
    Coordinates,
    /// The control plane decides, if it is the controller.
    Decides,
    TablesCome {
        controller_term: u64,
        version: u64,
        tables: Tables,
    },
    CommitCome {
        controller_term: u64,
        change: Change,
        ends: Option<HubTerm>,
    },
}

/// An elected controller. Its times are on its own clock.
struct ControllerTerm {
    number: u64,
    elected_us: u64,
    tables: Vec<(u64, Tables)>,
    version: u64,
    replacing: BTreeSet<HubTerm>,
    dead: BTreeMap<Process, u64>,
}

pub struct Node {
    pub id: Process,
    pub is_alive: bool,
    rate: f64,
    offset: u64,
    stopped_until: u64,
    waiting: VecDeque<Event>,
    leases: LeaderLeases,
    woken_at: u64,
    beat: Beat,
    /// When its heartbeat changed, in true time, and whether it had no controller from then on.
    alone: Vec<(u64, bool)>,
    // Its shard.
    mail: VecDeque<(bool, HubTerm)>,
    led: BTreeSet<HubTerm>,
    // Its control plane.
    lease_us: u64,
    hubs: BTreeMap<HubId, Hub>,
    nodes: BTreeMap<NodeId, Process>,
    voters: Voters,
    controller_term: Option<ControllerTerm>,
}

impl Node {
    fn clock(&self, now: u64) -> u64 {
        self.offset + (now as f64 * self.rate) as u64
    }

    fn true_time(&self, own: u64) -> u64 {
        (own.saturating_sub(self.offset) as f64 / self.rate) as u64
    }

    /// The hubs that its shard leads now.
    fn leading(&self, now: u64) -> impl Iterator<Item = HubTerm> + '_ {
        let is_open = self.is_alive && self.leases.gate().may_lead(self.clock(now));
        self.led.iter().copied().filter(move |_| is_open)
    }

    fn was_alone_since(&self, from: u64) -> bool {
        let at = self.alone.partition_point(|(when, _)| *when <= from);
        let before = at.checked_sub(1).map(|at| self.alone[at]);
        self.alone[at..].iter().chain(&before).any(|(_, is_alone)| *is_alone)
    }
}

/// Link quality: percent lost, percent delayed, and the delay.
#[derive(Clone, Copy)]
pub struct Weather {
    pub lost: u64,
    pub late: u64,
    pub late_us: u64,
}

pub const FAIR: Weather = Weather { lost: 1, late: 2, late_us: 60 * MS };
pub const FOUL: Weather = Weather { lost: 6, late: 25, late_us: 400 * MS };
pub const DEAF: Weather = Weather { lost: 100, late: 0, late_us: 0 };
pub const SLOW: Weather = Weather { lost: 0, late: 100, late_us: 900 * MS };

pub struct World {
    pub random: Random,
    pub now: u64,
    pub timing: Timing,
    pub weather: Weather,
    /// Worse quality from one node to another.
    pub bad: BTreeMap<(NodeId, NodeId), Weather>,
    pub store: Store,
    pub nodes: BTreeMap<NodeId, Node>,
    pub cut: BTreeSet<(NodeId, NodeId)>,
    /// Nodes that do not reach the coordinator.
    pub away: BTreeSet<NodeId>,
    /// How often a leader lease ended before the next one began.
    pub closed: u64,
    pub prolonged: u64,
    /// Leader leases that were resumed without a controller after they had ended.
    pub regained: u64,
    /// Controllers that were replaced before their lease had ended.
    pub deposed: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Process, u64)>>,
    events: BTreeMap<u64, Event>,
    made: u64,
    incarnations: u64,
    dead: BTreeSet<Process>,
}

impl World {
    pub fn new(seed: u64, nodes: u16) -> World {
        let mut world = World {
            random: Random::new(seed),
            now: 0,
            timing: Timing::default(),
            weather: FAIR,
            bad: BTreeMap::new(),
            store: Store::default(),
            nodes: BTreeMap::new(),
            cut: BTreeSet::new(),
            away: BTreeSet::new(),
            closed: 0,
            prolonged: 0,
            regained: 0,
            deposed: 0,
            queue: BinaryHeap::new(),
            events: BTreeMap::new(),
            made: 0,
            incarnations: 0,
            dead: BTreeSet::new(),
        };
        (0..nodes).for_each(|node| world.start(NodeId(node)));
        world
    }

    // -- Faults --

    pub fn start(&mut self, node: NodeId) {
        self.incarnations += 1;
        let id = Process { node, incarnation: self.incarnations };
        let rate = 1.0 + (self.random.below(801) as f64 / 1_000.0 - 0.4) * DRIFT;
        let leases = LeaderLeases::new(id, self.timing);
        let fresh = Node {
            id,
            is_alive: true,
            rate,
            offset: self.random.below(1_000 * SECOND),
            stopped_until: 0,
            waiting: VecDeque::new(),
            leases,
            woken_at: 0,
            beat: Beat::default(),
            alone: vec![(self.now, true)],
            mail: VecDeque::new(),
            led: BTreeSet::new(),
            lease_us: 0,
            hubs: BTreeMap::new(),
            nodes: BTreeMap::new(),
            voters: Voters::default(),
            controller_term: None,
        };
        self.nodes.insert(node, fresh);
        for event in [Event::PingTime, Event::Coordinates, Event::Decides] {
            let after = self.random.below(PING_US);
            self.push(after, id, event);
        }
    }

    pub fn kill(&mut self, node: NodeId) {
        let Some(dead) = self.nodes.get_mut(&node) else { return };
        dead.is_alive = false;
        let id = dead.id;
        self.dead.insert(id);
        for peer in self.others(node) {
            self.send(id, peer, Message::Gone);
        }
    }

    /// Stalls a process for a time; its clock goes on.
    pub fn stop(&mut self, node: NodeId, for_us: u64) {
        if let Some(node) = self.nodes.get_mut(&node) {
            node.stopped_until = self.now + for_us;
        }
    }

    /// The connection between two nodes ends, and they dial again.
    pub fn flap(&mut self, a: NodeId, b: NodeId) {
        let (a, b) = (self.nodes[&a].id, self.nodes[&b].id);
        self.send(a, b, Message::Gone);
        self.send(b, a, Message::Gone);
    }

    pub fn split(&mut self, side: &BTreeSet<NodeId>, reaching: &BTreeSet<NodeId>) {
        let all: BTreeSet<NodeId> = self.nodes.keys().copied().collect();
        self.cut =
            side.iter().flat_map(|&a| all.difference(side).map(move |&b| (a.min(b), a.max(b)))).collect();
        self.away = all.difference(reaching).copied().collect();
    }

    pub fn heal(&mut self) {
        self.cut.clear();
        self.bad.clear();
        self.away.clear();
    }

    // -- Observations --

    pub fn led(&self) -> BTreeMap<HubId, NodeId> {
        let led =
            |node: &Node| node.leading(self.now).map(|(hub, _)| (hub, node.id.node)).collect::<Vec<_>>();
        self.nodes.values().flat_map(led).collect()
    }

    pub fn controller(&self) -> Option<NodeId> {
        self.store.controller.map(|(process, _)| process.node)
    }

    pub fn alive(&self) -> Vec<NodeId> {
        self.nodes.values().filter(|node| node.is_alive).map(|node| node.id.node).collect()
    }

    // -- Time --

    pub fn run(&mut self, for_us: u64) {
        let until = self.now + for_us;
        while let Some(&Reverse((at, _, _, _))) = self.queue.peek()
            && at <= until
        {
            let Reverse((at, _, to, event)) = self.queue.pop().expect("it was looked at");
            let event = self.events.remove(&event).expect("each event is taken once");
            self.now = at;
            self.expire();
            self.happens(to, event);
            self.check();
        }
        self.now = until;
        self.check();
    }

    fn push(&mut self, after: u64, to: Process, event: Event) {
        self.made += 1;
        self.queue.push(Reverse((self.now + after, self.made, to, self.made)));
        self.events.insert(self.made, event);
    }

    fn happens(&mut self, to: Process, event: Event) {
        let now = self.now;
        let Some(node) = self.nodes.get_mut(&to.node).filter(|node| node.id == to && node.is_alive) else {
            return;
        };
        if now < node.stopped_until {
            // Events for a stalled process are delivered when it resumes, in order.
            if node.waiting.is_empty() {
                let after = node.stopped_until - now;
                node.waiting.push_back(event);
                self.push(after, to, Event::Wake);
            } else {
                node.waiting.push_back(event);
            }
            return;
        }
        let waiting = std::mem::take(&mut node.waiting);
        for event in waiting.into_iter().chain([event]) {
            self.take(to, event);
            self.check();
        }
    }

    fn take(&mut self, to: Process, event: Event) {
        let node = self.nodes.get_mut(&to.node).expect("it is alive");
        let now = node.clock(self.now);
        match event {
            Event::Wake => node.leases.poll(now),
            Event::PingTime => {
                let beat = node.beat;
                self.others(to.node)
                    .into_iter()
                    .for_each(|peer| self.send(to, peer, Message::Ping(now, beat)));
                let after = PING_US - self.random.below(10 * MS);
                self.push(after, to, Event::PingTime);
                return;
            }
            Event::Arrives(from, message) => match message {
                Message::Ping(stamp, beat) => {
                    node.leases.ping(from, beat, now);
                    self.act(to);
                    let beat = self.nodes[&to.node].beat;
                    self.send(to, from, Message::Pong(stamp, beat));
                }
                Message::Pong(stamp, beat) => node.leases.pong(from, stamp, beat, now),
                Message::Request(request) => node.leases.request(from, &request, now),
                Message::Answer(grant) => {
                    node.leases.granted(from, &grant, now);
                    self.act(to);
                }
                Message::Gone => node.leases.gone(from, now),
            },
            Event::Mail => {
                let (begins, pair) = node.mail.pop_front().expect("each message comes once");
                if begins {
                    node.led.insert(pair);
                } else {
                    node.led.remove(&pair);
                    let after = self.random.below(20 * MS);
                    self.push(after, to, Event::Confirmed(pair));
                }
                return;
            }
            Event::Confirmed(pair) => {
                node.leases.gave_up(pair, now);
                self.act(to);
            }
            Event::Coordinates => self.coordinate(to),
            Event::Decides => self.decide(to),
            Event::TablesCome { controller_term, version, tables } => {
                node.leases.tables(controller_term, version, tables)
            }
            Event::CommitCome { controller_term, change, ends } => {
                self.commit(to, controller_term, change, ends)
            }
        }
        self.turn_ends(to);
    }

    /// Polls, executes the actions, and checks a leader lease that was extended.
    fn turn_ends(&mut self, to: Process) {
        let node = self.nodes.get_mut(&to.node).expect("it is alive");
        let now = node.clock(self.now);
        let before_us = node.leases.gate().until_us();
        node.leases.poll(now);
        let until_us = node.leases.gate().until_us();
        self.act(to);
        let node = &self.nodes[&to.node];
        if until_us > before_us && node.beat.acknowledges == 0 {
            self.prolonged += 1;
            self.regained += u64::from(before_us <= now);
            let since = node.true_time(until_us - self.timing.lease_us);
            let was_alone = |of: &NodeId| self.nodes[of].was_alone_since(since.saturating_sub(MS));
            for counted in [&node.voters.nodes, &node.voters.before] {
                let alone = counted.iter().filter(|of| was_alone(of)).count();
                assert!(
                    counted.is_empty() || 2 * alone > counted.len(),
                    "{to:?} prolongs its lead beside a controller"
                );
            }
        }
        let node = self.nodes.get_mut(&to.node).expect("it is alive");
        let wake_at = node.leases.wake_at();
        if wake_at != u64::MAX && wake_at != node.woken_at {
            node.woken_at = wake_at;
            let after = node.true_time(wake_at).saturating_sub(self.now) + self.random.below(5 * MS) + 1;
            self.push(after, to, Event::Wake);
        }
    }

    fn act(&mut self, by: Process) {
        let now = self.now;
        while let Some(action) = self.nodes.get_mut(&by.node).expect("it is alive").leases.next_action() {
            let node = self.nodes.get_mut(&by.node).expect("it is alive");
            match action {
                Action::Request(to, request) => self.send(by, to, Message::Request(request)),
                Action::Grant(to, grant) => self.send(by, to, Message::Answer(grant)),
                Action::Report(beat) => {
                    node.beat = beat;
                    node.alone.push((now, beat.is_alone()));
                }
                Action::Began(hub, term) => {
                    node.mail.push_back((true, (hub, term)));
                    self.push_mail(by);
                }
                Action::GiveUp(hub, term) => {
                    node.mail.push_back((false, (hub, term)));
                    self.push_mail(by);
                }
                Action::Opened => {}
                Action::Closed => self.closed += 1,
            }
        }
    }

    /// Shards are slower at times. Mail stays in order, whichever of its events comes first.
    fn push_mail(&mut self, by: Process) {
        let most = if self.random.percent(10) { 200 * MS } else { MS };
        let after = self.random.below(most);
        self.push(after, by, Event::Mail);
    }

    fn check(&self) {
        let mut seen = [None; HUBS as usize];
        for node in self.nodes.values() {
            for (hub, term) in node.leading(self.now) {
                let written = self.store.terms.get(&(hub, term));
                assert_eq!(
                    written,
                    Some(&node.id),
                    "{hub:?} {term:?} is led by another process than was written"
                );
                let other = seen[hub.0 as usize].replace(node.id);
                assert_eq!(other, None, "{hub:?} is led by {:?} too, in {term:?}", node.id);
            }
        }
    }

    // -- Links --

    fn others(&self, node: NodeId) -> Vec<Process> {
        self.nodes.values().map(|node| node.id).filter(|id| id.node != node).collect()
    }

    fn is_cut(&self, a: NodeId, b: NodeId) -> bool {
        self.cut.contains(&(a.min(b), a.max(b)))
    }

    fn send(&mut self, from: Process, to: Process, message: Message) {
        let Weather { lost, late, late_us } = *self.bad.get(&(from.node, to.node)).unwrap_or(&self.weather);
        if self.is_cut(from.node, to.node) || self.random.percent(lost) {
            return;
        }
        let most = if self.random.percent(late) { late_us } else { 4 * MS };
        let after = 100 + self.random.below(most);
        self.push(after, to, Event::Arrives(from, message));
    }
}
