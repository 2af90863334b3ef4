//! Three nodes of a cluster in one process, over real links, without a coordinator: the test assigns leaders
//! to hubs. Each node has two shards and clients over real sockets.

use super::{Client, PATIENCE, Value};
use hubsub_lead::{Process, Route, Voters};
use hubsub_node::LeadMail;
use hubsub_node::link::{Identity, Registered, Secret, VERSIONS};
use hubsub_node::log::start::{LogConfig, Numbering};
use hubsub_node::routes::{ClassRow, HubRow};
use hubsub_node::{Control, Event, Node, NodeConfig, StoreConfig, log};
use hubsub_types::names::Matcher;
use hubsub_types::{Class, ClassTable, Durability, History, HubId, Limits, NodeId, Term};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Instant;

pub const NAMES: [&str; 3] = ["a", "b", "c"];

/// Unique in the cluster, per process.
pub fn incarnation(at: usize) -> u64 {
    at as u64 + 1
}

/// Hubs per class, by index; their ids are consecutive.
pub const HUBS: u16 = 3;

/// Classes in order of precedence: with a log, in memory, least-busy, and all other rooms.
pub const CLASSES: [&str; 4] = ["log", "mem", "busy", "default"];

/// The term and the leader of a hub.
pub type Row = (u64, Option<usize>);

fn ephemeral(rows: &[Row], at: usize) -> impl Iterator<Item = (HubId, Term)> {
    let rows = (1..).zip(rows).skip(usize::from(HUBS));
    let mine = rows.filter(move |(_, (_, leader))| *leader == Some(at));
    mine.map(|(hub, &(term, _))| (HubId(hub), Term(term)))
}

/// Three nodes, stopped when dropped.
pub struct Trio {
    pub nodes: Vec<Node>,
    /// Term and leader per hub.
    pub rows: Vec<Row>,
    _directories: Vec<tempfile::TempDir>,
}

fn classes() -> Vec<Class> {
    let class = |name: &str| Class {
        matches: vec![Matcher::parse(&format!("{name}:*")).unwrap()],
        ..Class::named(name)
    };
    let history = Some(History { messages: 100_000, bytes: 64 << 20, age_ms: 3_600_000 });
    vec![
        Class { durability: Durability::Durable, history, ..class("log") },
        Class { history, ..class("mem") },
        class("busy"),
    ]
}

/// The id of a hub by class and index.
pub fn hub(class: &str, index: u16) -> u32 {
    let class = CLASSES.iter().position(|name| *name == class).unwrap() as u32;
    class * u32::from(HUBS) + u32::from(index) + 1
}

/// All hubs in the form for nodes.
pub fn hub_rows(rows: &[Row]) -> Vec<HubRow> {
    let row = |(hub, &(term, leader)): (u32, &Row)| HubRow {
        hub: HubId(hub),
        class: CLASSES[(hub as usize - 1) / usize::from(HUBS)].into(),
        index: ((hub - 1) % u32::from(HUBS)) as u16,
        term: Term(term),
        leader: leader.map(|leader| (NAMES[leader].into(), incarnation(leader))),
    };
    (1..).zip(rows).map(row).collect()
}

/// The classes that a node has.
pub fn class_rows(node: &Node) -> Vec<ClassRow> {
    let row = |class: &Class| ClassRow {
        class: class.clone(),
        version: 1,
        hubs: HUBS,
        is_ring: class.name != "busy",
    };
    node.classes().classes().iter().map(row).collect()
}

impl Trio {
    /// Starts linked and ready nodes; node i leads the hub of index i in each class.
    pub fn start() -> Trio {
        let directories: Vec<_> = NAMES.iter().map(|_| tempfile::tempdir().unwrap()).collect();
        let nodes = directories.iter().enumerate().map(|(at, directory)| start(at, directory.path()));
        let nodes: Vec<Node> = nodes.collect();
        let rows = (0..CLASSES.len()).flat_map(|_| (0..usize::from(HUBS)).map(|index| (1, Some(index))));
        let trio = Trio { nodes, rows: rows.collect(), _directories: directories };
        let secret = Secret::new(b"a secret of the tests");
        for (at, node) in trio.nodes.iter().enumerate() {
            node.link_begin(Identity {
                cluster: "test".into(),
                node: NAMES[at].into(),
                incarnation: incarnation(at),
                shards: 2,
                secret: secret.clone(),
                versions: VERSIONS,
            });
            node.set_classes(class_rows(node)).unwrap();
        }
        trio.link(&[0, 1, 2]);
        trio.lead();
        for (at, node) in trio.nodes.iter().enumerate() {
            let openings = node.openings().unwrap();
            (0..HUBS).for_each(|index| openings.open(u64::from(index), HubId(hub("log", index)), 0, index));
            trio.wait(at, "hubs are open", |event| matches!(event, Event::Log(log::Event::Hub(2, Ok(_)))));
        }
        trio.tell(&[0, 1, 2]);
        trio.wait_ready();
        trio
    }

    /// Registers these nodes on each of them.
    pub fn link(&self, which: &[usize]) {
        for &at in which {
            let peers = which.iter().map(|&peer| Registered {
                id: NodeId::default(),
                node: NAMES[peer].into(),
                incarnation: incarnation(peer),
                addresses: vec![self.nodes[peer].link.unwrap()],
                shards: 2,
            });
            self.nodes[at].link_roster(peers.collect());
        }
    }

    /// Node a grants leader leases according to `rows`, for an hour.
    pub fn lead(&self) {
        self.lead_as(&self.rows);
    }

    /// As `lead`, with other entries.
    pub fn lead_as(&self, rows: &[Row]) {
        for (at, node) in self.nodes.iter().enumerate() {
            let ids =
                |names: &[&str]| names.iter().map(|name| node.peer_table.id_of(name).unwrap()).collect();
            node.lead(LeadMail::Voters(Voters { revision: 1, nodes: ids(&NAMES), before: Vec::new() }));
            let mine = ephemeral(rows, at).map(|(hub, term)| Route { hub, term, gives_up: false });
            node.lead(LeadMail::Routes(mine.collect()));
        }
        let controller = &self.nodes[0];
        let tables = (0..NAMES.len()).map(|at| {
            let node = controller.peer_table.id_of(NAMES[at]).unwrap();
            (Process { node, incarnation: incarnation(at) }, ephemeral(rows, at).collect())
        });
        let confirmed_us = controller.peer_table.now_us();
        let until_us = confirmed_us + 3_600_000_000;
        let tables = tables.collect();
        controller.lead(LeadMail::Tables {
            ticket: 1,
            controller_term: 1,
            until_us,
            confirmed_us,
            tables,
            voters_revision: 1,
        });
    }

    /// Sends all hubs to these nodes.
    pub fn tell(&self, which: &[usize]) {
        self.tell_as(&self.rows, which);
    }

    /// As `tell`, with other entries.
    pub fn tell_as(&self, rows: &[Row], which: &[usize]) {
        which.iter().for_each(|&at| self.nodes[at].set_hubs(hub_rows(rows)));
    }

    /// Gives a hub another leader in the next term: grants the lease, then notifies all nodes.
    pub fn change(&mut self, hub: u32, leader: Option<usize>) {
        let row = &mut self.rows[hub as usize - 1];
        *row = (row.0 + 1, leader);
        self.lead();
        self.tell(&[0, 1, 2]);
    }

    /// Waits until each node has all nodes as ready.
    pub fn wait_ready(&self) {
        for (at, node) in self.nodes.iter().enumerate() {
            until(
                || (node.peer_table.ready.get().len() == NAMES.len()).then_some(()),
                || format!("{} knows as ready: {:?}", NAMES[at], node.peer_table.ready.get()),
            );
        }
    }

    /// Waits for a matching event of a node.
    pub fn wait(&self, at: usize, what: &str, is_meant: impl Fn(&Event) -> bool) -> Event {
        let control = &self.nodes[at].control;
        until(|| control.drain(1).into_iter().find(&is_meant), || format!("{}: {what}", NAMES[at]))
    }

    pub fn connect(&self, at: usize) -> Client {
        Client::new(TcpStream::connect(self.nodes[at].redis.unwrap()).unwrap())
    }
}

/// Polls until a result exists; after `PATIENCE` panics with the text of `say`.
pub fn until<T>(mut ask: impl FnMut() -> Option<T>, say: impl Fn() -> String) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Some(answer) => return answer,
            None if Instant::now() > end => panic!("{}", say()),
            None => std::thread::yield_now(),
        }
    }
}

/// Publishes; panics on a refusal. Returns the number of receivers.
pub fn publish(client: &mut Client, topic: &str, payload: &str) -> i64 {
    let answer = client.call(&["PUBLISH", topic, payload]);
    assert!(!matches!(answer, Value::Line('-', _)), "{answer:?}");
    answer.int()
}

fn start(at: usize, directory: &std::path::Path) -> Node {
    let limits = Limits { link_redial_ms_min: 10, link_redial_ms_max: 100, ..Limits::default() };
    let hubs = Numbering::Given { cluster: "test".to_owned(), adopts: false };
    let any = || Some("127.0.0.1:0".parse().unwrap());
    let config = NodeConfig {
        name: NAMES[at].to_owned(),
        incarnation: incarnation(at) as u32,
        shards: 2,
        redis: any(),
        redis_cluster: None,
        mqtt: None,
        ws: None,
        ws_origins: Vec::new(),
        hosts: Vec::new(),
        phoenix_topics: Vec::new(),
        mqtt_rules: Default::default(),
        link: any(),
        accepts: true,
        advertise: None,
        classes: ClassTable::new(classes(), true),
        log: Some(LogConfig { directory: directory.to_owned(), identity: 7, hubs }),
        inflight_store: StoreConfig::Log,
        version: "0.0.0".to_owned(),
        limits,
    };
    let control = Arc::new(Control::new(1 << 16).unwrap());
    Node::start(config, control).map_err(|e| e.error).unwrap()
}

impl Drop for Trio {
    fn drop(&mut self) {
        self.nodes.iter().for_each(|node| node.stop(0));
        self.nodes.iter().for_each(Node::join);
    }
}
