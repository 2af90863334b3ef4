//! Nodes with their shards, the mail between shards, the links between nodes, and the routes that a
//! controller publishes. Messages in flight are delayed at random, in order for each pair and lane.

use crate::check::Model;
use crate::forget;
use crate::node::copy;
pub use crate::node::{CONNS, FOLLOWER, HubEntry, Link, Mail, Node, key};
use crate::rng::Rng;
use crate::world::{Did, World};
use hubsub_route::{Broker, HubLogRead, Leader, Now};
use hubsub_types::{Class, ClassTable, Durability, History, HubId, NodeId, OnSlow, Term};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub struct Net {
    pub rng: Rng,
    pub nodes: Vec<Node>,
    /// By pair, the lower node first, and link number.
    pub links: BTreeMap<(u16, u16, u16), Link>,
    pub hubs: Vec<HubEntry>,
    pub now: Now,
    pub model: Model,
    pub classes: Arc<ClassTable>,
    pub moves: u64,
    pub records: forget::Records,
}

fn classes() -> ClassTable {
    let history = Some(History { messages: 100_000, bytes: 0, age_ms: 0 });
    let named = |name: &str, glob: &str| {
        let matches = vec![hubsub_types::names::Matcher::parse(glob).expect("it is one")];
        Class { matches, ..Class::named(name) }
    };
    let plain = Class { on_slow: OnSlow::DropOldest, ..named("plain", "e:*") };
    let kept = Class { history, on_slow: OnSlow::CatchUp, ..named("kept", "h:*") };
    let durability = Durability::Durable;
    let logged = Class { history, durability, on_slow: OnSlow::CatchUp, ..named("logged", "l:*") };
    ClassTable::new(vec![plain, kept, logged], true)
}

impl Net {
    /// A cluster whose shape follows from the seed.
    pub fn new(seed: u64) -> Net {
        let mut rng = Rng::new(seed);
        let classes = Arc::new(classes());
        let count = 2 + rng.below(3) as u16;
        let mut next = rng.below(5) as u32;
        let (mut ids, mut hubs) = (Vec::new(), Vec::new());
        for class in classes.classes() {
            let of_class: Vec<HubId> = (0..1 + rng.below(2))
                .map(|_| {
                    next += 1 + rng.below(3) as u32;
                    HubId(next)
                })
                .collect();
            for &id in &of_class {
                let home = class.durability.is_logged().then(|| rng.below(usize::from(count)) as u16);
                hubs.push(HubEntry { id, term: 0, leader: None, home, is_moving: false });
            }
            ids.push(of_class);
        }
        let small = rng.percent(20);
        let records = forget::Records::new(seed);
        let is_asked = records.is_on;
        let nodes = (0..count)
            .map(|node| Node::new(node, &mut rng, &classes, &ids, &hubs, (small, is_asked)))
            .collect();
        let mut net = Net {
            rng,
            nodes,
            links: BTreeMap::new(),
            hubs,
            now: Now { mono_ms: 1_000, wall_us: 1_000_000 },
            model: Model::new(seed),
            classes,
            moves: 0,
            records,
        };
        for a in 0..count {
            for b in a + 1..count {
                for link in 0..net.link_count(a, b) {
                    net.links.insert((a, b, link), Link::default());
                }
            }
        }
        net
    }

    pub fn link_count(&self, a: u16, b: u16) -> u16 {
        let shards = |node: u16| self.nodes[usize::from(node)].brokers.len() as u16;
        shards(a).min(shards(b))
    }

    /// Runs `act` on a shard's broker, and processes its effects.
    pub fn act<T>(
        &mut self,
        node: u16,
        shard: u16,
        act: impl FnOnce(&mut Broker, &mut World, Now) -> T,
    ) -> T {
        let at = &mut self.nodes[usize::from(node)];
        let i = usize::from(shard);
        let result = act(&mut at.brokers[i], &mut at.worlds[i], self.now);
        for (to, msg) in std::mem::take(&mut at.worlds[i].sent) {
            assert_ne!(to.0, shard, "a shard sends nothing to itself");
            at.mail.entry((shard, to.0)).or_default().push_back(Mail::Broker(msg));
        }
        let frames = std::mem::take(&mut at.worlds[i].frames);
        for (to, hub, message) in frames {
            self.model.frame(node, to.0, &message);
            let way = self.nodes[usize::from(node)].worlds[i].way(to, hub);
            let (link, session) = way.expect("it was there a moment ago");
            let key = (node.min(to.0), node.max(to.0), link);
            let link = self.links.get_mut(&key).expect("nodes have links");
            // A frame sent to a link that is down is lost.
            if link.session == session && link.is_up {
                let lane = usize::from(message.is_read());
                link.frames.entry(node).or_default()[lane].push_back(copy(message));
            }
        }
        let missed = std::mem::take(&mut self.nodes[usize::from(node)].worlds[i].missed);
        self.nodes[usize::from(node)].view.asks.extend(missed);
        self.take_seen(node, shard);
        result
    }

    /// Passes the events and answers of connections to the model.
    fn take_seen(&mut self, node: u16, shard: u16) {
        let world = &mut self.nodes[usize::from(node)].worlds[usize::from(shard)];
        for did in std::mem::take(&mut world.did) {
            match did {
                Did::Saw(conn, saw) => self.model.saw((node, shard, conn), saw),
                Did::Answer(asker, answer) => self.model.answered((node, shard), asker, answer),
                Did::History(number, part) => self.model.history(number, part),
            }
        }
    }

    // -- messages in flight --

    pub fn in_flight(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for (node, at) in (0u16..).zip(&self.nodes) {
            let mail = at.mail.iter().filter(|(_, mail)| !mail.is_empty());
            steps.extend(mail.map(|(&(from, to), _)| Step::Mail(node, from, to)));
            let routes = at.routes.iter().filter(|(_, routes)| !routes.is_empty());
            steps.extend(routes.map(|(&hub, _)| Step::Route(node, hub)));
            if !at.moves.is_empty() {
                steps.push(Step::Move(node));
            }
            steps.extend(at.view.steps(node));
            for (shard, world) in (0u16..).zip(&at.worlds) {
                if world.logs.values().any(|log| log.safe < log.entries.len()) {
                    steps.push(Step::Log(node, shard));
                }
                let knows_hub = world
                    .hub_asked
                    .front()
                    .is_some_and(|asked| world.logs[&asked.read.hub].knows_of_hub(asked));
                if knows_hub || world.asked.front().is_some_and(|read| world.logs[&read.hub].knows(read)) {
                    steps.push(Step::Found(node, shard));
                }
            }
        }
        steps.extend(self.records.forgetting.as_ref().map(|_| Step::Forget));
        for (&(a, b, link), it) in &self.links {
            for (&from, lanes) in &it.frames {
                let to = if from == a { b } else { a };
                // A node that has noticed the end reads nothing more.
                if it.is_up || it.unheard.contains(&to) {
                    let lanes = lanes.iter().enumerate().filter(|(_, lane)| !lane.is_empty());
                    steps.extend(lanes.map(|(lane, _)| Step::Frame(from, to, link, lane)));
                }
            }
            steps
                .extend(it.unheard.iter().map(|&node| Step::Down(node, if node == a { b } else { a }, link)));
        }
        steps
    }

    pub fn take(&mut self, step: Step) {
        match step {
            Step::Mail(node, from, to) => {
                let at = &mut self.nodes[usize::from(node)];
                let Some(mail) = at.mail.get_mut(&(from, to)).and_then(VecDeque::pop_front) else { return };
                self.mail(node, to, mail);
            }
            Step::Frame(from, to, link, lane) => {
                let it = self.links.get_mut(&(from.min(to), from.max(to), link)).expect("nodes have links");
                let Some(message) = it.frames.get_mut(&from).and_then(|lanes| lanes[lane].pop_front()) else {
                    return;
                };
                let shards = self.nodes[usize::from(to)].brokers.len() as u16;
                let home = message.shard(shards).0;
                if home == link {
                    self.mail(to, link, Mail::Node(from, message));
                } else {
                    let mail = &mut self.nodes[usize::from(to)].mail;
                    mail.entry((link, home)).or_default().push_back(Mail::Node(from, message));
                }
            }
            Step::Down(node, peer, link) => {
                let it =
                    self.links.get_mut(&(node.min(peer), node.max(peer), link)).expect("nodes have links");
                it.unheard.remove(&node);
                it.frames.remove(&peer);
                self.notify_shards(node, link, || Mail::Down(peer, link));
            }
            Step::Route(node, hub) => {
                let routes = self.nodes[usize::from(node)].routes.get_mut(&hub);
                let Some((term, leader)) = routes.and_then(VecDeque::pop_front) else { return };
                let leader = match leader {
                    None => Leader::None,
                    Some(leader) if leader == node => Leader::Me,
                    Some(leader) => Leader::Node(NodeId(leader)),
                };
                let shards = self.nodes[usize::from(node)].brokers.len() as u16;
                let home = hubsub_message::home(hub, shards).0;
                self.mail(node, home, Mail::Route(hub, term, leader));
                if leader == Leader::None {
                    self.gave_up(node, hub);
                }
            }
            Step::Move(node) => self.hear_of_move(node),
            Step::Record(node) => self.hear_of_record(node),
            Step::Ask(node) => self.ask_for_room(node),
            Step::Answer(node) => self.hear_answer(node),
            Step::Forget => self.go_on_forgetting(),
            Step::Log(node, shard) => {
                let logs = &mut self.nodes[usize::from(node)].worlds[usize::from(shard)].logs;
                let Some((&hub, log)) = logs.iter_mut().find(|(_, log)| log.safe < log.entries.len()) else {
                    return;
                };
                log.safe += 1;
                let safe = log.safe as u64;
                self.act(node, shard, |broker, world, now| broker.logged(hub, safe, now, world));
            }
            Step::Found(node, shard) => {
                let world = &mut self.nodes[usize::from(node)].worlds[usize::from(shard)];
                let is_known = |asked: &HubLogRead| world.logs[&asked.read.hub].knows_of_hub(asked);
                if world.hub_asked.front().is_some_and(is_known) {
                    let asked = world.hub_asked.pop_front().expect("it was looked at");
                    let found = world.logs[&asked.read.hub].find_of_hub(&asked);
                    return self.act(node, shard, |broker, world, now| {
                        broker.hub_log_read(asked, Ok(found), now, world);
                    });
                }
                let Some(read) = world.asked.pop_front() else { return };
                let found = world.logs[&read.hub].find(&read);
                self.act(node, shard, |broker, world, now| broker.log_read(read, Ok(found), now, world));
            }
        }
    }

    fn mail(&mut self, node: u16, shard: u16, mail: Mail) {
        self.act(node, shard, |broker, world, now| match mail {
            Mail::Broker(msg) => broker.receive(msg, now, world),
            Mail::Up(peer, link, links, session) => {
                world.reach.insert((peer, link), session);
                world.links.insert(peer, links);
                broker.node_up(NodeId(peer), link, links, now, world);
            }
            Mail::Down(peer, link) => {
                world.reach.remove(&(peer, link));
                broker.node_down(NodeId(peer), link, now, world);
            }
            Mail::Node(from, message) => broker.node_message(NodeId(from), message, now, world),
            Mail::Route(hub, term, leader) => broker.route(hub, term, leader, now, world),
            Mail::Placed(class, rooms) => broker.rooms_placed(class, &rooms, now, world),
            Mail::Absent(room) => broker.room_absent(&room, world),
        });
    }

    /// A link event reaches the link's shard at once, and the others by mail.
    fn notify_shards(&mut self, node: u16, link: u16, mail: impl Fn() -> Mail) {
        let shards = self.nodes[usize::from(node)].brokers.len() as u16;
        for shard in (0..shards).filter(|&shard| shard != link) {
            self.nodes[usize::from(node)].mail.entry((link, shard)).or_default().push_back(mail());
        }
        self.mail(node, link, mail());
    }

    /// Brings a link up, if both sides have noticed that it was down.
    pub fn link_up(&mut self, a: u16, b: u16, link: u16) {
        let links = self.link_count(a, b);
        let it = self.links.get_mut(&(a, b, link)).expect("nodes have links");
        if it.is_up || !it.unheard.is_empty() {
            return;
        }
        it.is_up = true;
        it.session += 1;
        it.frames.clear();
        let session = it.session;
        self.notify_shards(a, link, || Mail::Up(b, link, links, session));
        self.notify_shards(b, link, || Mail::Up(a, link, links, session));
    }

    /// Takes a link down; a side that has not noticed may still read frames in flight.
    pub fn link_break(&mut self, a: u16, b: u16, link: u16) {
        let it = self.links.get_mut(&(a, b, link)).expect("nodes have links");
        if std::mem::take(&mut it.is_up) {
            it.unheard = [a, b].into();
            let lost = self.rng.percent(50);
            if lost {
                it.frames.clear();
            }
        }
    }

    // -- leadership --

    /// The controller wants another leader, or the same in a new term: the former one gives up first.
    pub fn move_hub(&mut self, at: usize) {
        let row = &mut self.hubs[at];
        if std::mem::replace(&mut row.is_moving, true) {
            return;
        }
        match row.leader {
            Some(leader) => {
                let (id, term) = (row.id, Term(row.term));
                // The others also learn of it, or only of the next route.
                let all_hear = self.rng.percent(50);
                let nodes = (0u16..).zip(&mut self.nodes);
                for (_, at) in nodes.filter(|(node, _)| all_hear || *node == leader) {
                    at.routes.entry(id).or_default().push_back((term, None));
                }
            }
            None => self.elect(at),
        }
    }

    fn gave_up(&mut self, node: u16, hub: HubId) {
        let at = self.hubs.iter().position(|row| row.id == hub && row.is_moving && row.leader == Some(node));
        if let Some(at) = at {
            self.elect(at);
        }
    }

    /// Gives a hub a new leader, in the next term.
    pub fn elect(&mut self, at: usize) {
        let count = self.nodes.len();
        let row = &mut self.hubs[at];
        let leader = row.home.unwrap_or_else(|| self.rng.below(count) as u16);
        (row.term, row.leader, row.is_moving) = (row.term + 1, Some(leader), false);
        let (id, term) = (row.id, Term(row.term));
        for node in &mut self.nodes {
            node.routes.entry(id).or_default().push_back((term, Some(leader)));
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Mail of a node, from a shard to a shard.
    Mail(u16, u16, u16),
    /// A frame from a node to a node, by this link, in this lane.
    Frame(u16, u16, u16, usize),
    /// A node notices that its link to another is down.
    Down(u16, u16, u16),
    Route(u16, HubId),
    Move(u16),
    /// A node's control plane receives a room record.
    Record(u16),
    /// It handles a lookup, or asks the controller.
    Ask(u16),
    Answer(u16),
    /// The controller continues the removal of a room record.
    Forget,
    /// A log of a shard makes one more record safe.
    Log(u16, u16),
    Found(u16, u16),
}
