//! A node's data plane: binds, starts a thread a shard, takes requests, stops.

mod cluster;
mod threads;

use crate::classes::ClassesNow;
use crate::control::Control;
use crate::descriptors::Descriptors;
use crate::inbox::Inbox;
use crate::link::Board;
use crate::listener::{Door, Listener};
use crate::log::start::LogConfig;
use crate::log::start::Started;
use crate::log::{self, Listing, LogEnd, LogStatus, Openings, Streams};
use crate::mail::{Mail, Request};
use crate::metrics::ShardMetrics;
use crate::mqtt::{MqttMail, StoreConfig, StoreEnd, StoreStatus, StoreThread, found_in};
use crate::pages::Pages;
use crate::rim::Ends;
use crate::routes::Routes;
use crate::shard::MAILBOX;
use hubsub_route::{Hubs, Settings, Window};
use hubsub_types::names::Matcher;
use hubsub_types::{ClassTable, HubId, Limits, ShardId};
use mio::{Poll, Waker};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;
use threads::{bind, bind_shards, run_id, run_shard};

/// What a node is started with.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Its name.
    pub name: String,
    /// High half of the epochs that it gives out; larger at each start.
    pub incarnation: u32,
    /// Threads of the data plane.
    pub shards: u16,
    /// Where Redis clients connect.
    pub redis: Option<SocketAddr>,
    /// Where Redis cluster clients connect.
    pub redis_cluster: Option<SocketAddr>,
    /// Where MQTT clients connect.
    pub mqtt: Option<SocketAddr>,
    /// Where WebSockets connect.
    pub ws: Option<SocketAddr>,
    /// Origins of pages that may open them; `*` is any.
    pub ws_origins: Vec<String>,
    /// Names by which this node is called; `*` is any.
    pub hosts: Vec<String>,
    /// Topics that browsers may join: those that one of them matches.
    pub phoenix_topics: Vec<Matcher>,
    /// What of MQTT is a matter of taste.
    pub mqtt_rules: MqttRules,
    /// Where links of other nodes come, once they have begun.
    pub link: Option<SocketAddr>,
    /// Whether clients are accepted at once; else from [`Node::accept`] on.
    pub accepts: bool,
    /// Host that they are told to connect to; the bound address without one.
    pub advertise: Option<String>,
    /// Room classes.
    pub classes: ClassTable,
    /// Limits.
    pub limits: Limits,
    /// Where records of logged classes go; needed if there is such a class.
    pub log: Option<LogConfig>,
    /// What keeps sessions of MQTT clients beyond this process.
    pub inflight_store: StoreConfig,
    /// HubSub's version.
    pub version: String,
}

/// What of MQTT is a matter of taste.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MqttRules {
    /// Whether who has more messages unanswered than `mqtt_receive_max` is disconnected, as 5.0 says; else it is
    /// counted.
    pub is_strict: bool,
    /// Whether client ids of 3.1 may have more than 23 characters.
    pub long_ids: bool,
    /// Whether wills of clients without a session are recorded, where sessions are.
    pub records_wills: bool,
}

impl Default for MqttRules {
    fn default() -> MqttRules {
        MqttRules { is_strict: true, long_ids: false, records_wills: false }
    }
}

/// What all shards know of their node.
pub struct NodeInfo {
    /// Its name.
    pub name: String,
    /// Which of all processes that had it.
    pub incarnation: u32,
    /// HubSub's version.
    pub version: String,
    /// Where Redis clients connect.
    pub redis: String,
    /// Port of that.
    pub port: u16,
    /// Port where Redis cluster clients connect.
    pub cluster_port: u16,
    /// What of MQTT is a matter of taste.
    pub mqtt: MqttRules,
    /// Topics that browsers may join.
    pub phoenix_topics: Vec<Matcher>,
    /// Whether sessions are to be kept beyond this process.
    pub keeps_sessions: bool,
    /// Whose pages may ask it.
    pub pages: Pages,
    /// Which descriptors clients may have.
    pub descriptors: Descriptors,
    /// When it started.
    pub started: Instant,
    /// Client connections now.
    pub connections: AtomicU64,
    /// Members of rooms that are connected to it.
    pub members: AtomicU64,
    /// The next client's id.
    pub clients: AtomicU64,
    /// Metrics of all shards.
    pub metrics: Vec<Arc<ShardMetrics>>,
    /// While stopping: by shard how often it became busy or quiet; quiet while odd.
    pub(crate) quiet: Vec<AtomicU64>,
    /// While stopping: whether some shard saw that none has anything left to do.
    pub(crate) all_done: AtomicBool,
    /// Whether the log has said that HubSub stores no keys.
    pub hinted: AtomicBool,
    /// A random name for this run, 40 hex digits, as Redis's run_id.
    pub run_id: String,
}

/// Why a node did not start.
#[derive(Debug)]
pub struct NotStarted {
    /// What the system said.
    pub error: io::Error,
    /// The address that cannot be bound, if it was that.
    pub address: Option<SocketAddr>,
}

impl From<io::Error> for NotStarted {
    fn from(error: io::Error) -> NotStarted {
        NotStarted { error, address: None }
    }
}

/// What a shard's thread runs.
type Run = Box<dyn FnOnce() + Send>;

/// A running node.
pub struct Node {
    /// What it says of itself.
    pub info: Arc<NodeInfo>,
    /// Events for the control plane.
    pub control: Arc<Control>,
    /// Where Redis clients connect.
    pub redis: Option<SocketAddr>,
    /// Where Redis cluster clients connect.
    pub redis_cluster: Option<SocketAddr>,
    /// Where MQTT clients connect.
    pub mqtt: Option<SocketAddr>,
    /// Where WebSockets connect.
    pub ws: Option<SocketAddr>,
    /// Where links of other nodes come.
    pub link: Option<SocketAddr>,
    /// What is known of peers.
    pub board: Arc<Board>,
    inboxes: Arc<[Inbox]>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    log: Option<Started>,
    openings: Option<Openings>,
    store: Option<StoreThread>,
    classes: Arc<ClassesNow>,
    routes: Routes,
}

impl Node {
    /// Binds the listeners and starts the shards.
    ///
    /// # Errors
    /// An address cannot be bound, the log cannot be opened, or the system is out of
    /// descriptors or threads.
    pub fn start(config: NodeConfig, control: Arc<Control>) -> Result<Node, NotStarted> {
        Node::start_on(config, control, |name, run| std::thread::Builder::new().name(name).spawn(run))
    }

    /// Starts the shards on threads that `spawn` makes. Where one cannot be
    /// started, those before it are ended first: a node runs whole or not at all.
    fn start_on(
        config: NodeConfig,
        control: Arc<Control>,
        mut spawn: impl FnMut(String, Run) -> io::Result<JoinHandle<()>>,
    ) -> Result<Node, NotStarted> {
        let shards = config.shards.max(1);
        let descriptors = Descriptors::reserve(config.limits.descriptors_reserved);
        let mut sockets = (0..shards).map(|_| Vec::new()).collect::<Vec<_>>();
        let redis = bind(config.redis, Door::Redis, &mut sockets)?;
        let redis_cluster = bind(config.redis_cluster, Door::RedisCluster, &mut sockets)?;
        let mqtt = bind(config.mqtt, Door::Mqtt, &mut sockets)?;
        let ws = bind(config.ws, Door::WebSocket, &mut sockets)?;
        let (link, link_sockets) = bind_shards(config.link, shards)?;
        let polls = (0..shards).map(|_| Poll::new()).collect::<io::Result<Vec<_>>>()?;
        let wakers = polls.iter().map(|poll| Waker::new(poll.registry(), MAILBOX));
        let inboxes: Arc<[Inbox]> = wakers.map(|w| w.map(Inbox::new)).collect::<io::Result<Vec<_>>>()?.into();
        let advertised = redis.map_or_else(String::new, |bound| match &config.advertise {
            Some(host) if host.contains(':') => format!("[{host}]:{}", bound.port()),
            Some(host) => format!("{host}:{}", bound.port()),
            None => bound.to_string(),
        });
        let info = Arc::new(NodeInfo {
            name: config.name.clone(),
            incarnation: config.incarnation,
            version: config.version.clone(),
            redis: advertised,
            port: redis.map_or(0, |a| a.port()),
            cluster_port: redis_cluster.map_or(0, |a| a.port()),
            mqtt: config.mqtt_rules,
            phoenix_topics: config.phoenix_topics,
            keeps_sessions: config.inflight_store != StoreConfig::Memory,
            pages: Pages::new(config.ws_origins, config.hosts),
            descriptors,
            started: Instant::now(),
            connections: AtomicU64::new(0),
            members: AtomicU64::new(0),
            clients: AtomicU64::new(1),
            metrics: (0..shards).map(|_| Arc::new(ShardMetrics::default())).collect(),
            hinted: AtomicBool::new(false),
            quiet: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            all_done: AtomicBool::new(false),
            run_id: run_id(),
        });
        let mut store = config.inflight_store.open(&config.limits)?;
        let epochs = Arc::new(AtomicU64::new((u64::from(config.incarnation) << 32) | 1));
        let retained = Arc::default();
        let mut classes = config.classes;
        let mut started = match &config.log {
            Some(log) => {
                let files_max = descriptors.files_max(config.limits.log_open_files_max);
                let limits = Limits { log_open_files_max: files_max, ..config.limits.clone() };
                Some(log::start::start(log, &limits, &mut classes, &inboxes, &control)?)
            }
            None if classes.classes().iter().any(|class| class.durability.is_logged()) => {
                let why = "a class is replicated or durable, and there is no data directory";
                return Err(io::Error::other(why).into());
            }
            None => None,
        };
        let classes = Arc::new(classes);
        let seeds = started.as_ref().map_or_else(Vec::new, |started| started.seeds.clone());
        let tail_bytes_max = config.limits.log_tail_bytes_max;
        let windows = started.as_mut().map_or_else(Default::default, |s| std::mem::take(&mut s.producers));
        let rows = started.as_mut().map_or_else(Default::default, |s| std::mem::take(&mut s.rows));
        // Before anybody can connect: the shards find them as they begin.
        let in_log = started.as_mut().map_or_else(Vec::new, |s| std::mem::take(&mut s.sessions));
        let sessions = match (&mut store, &config.inflight_store) {
            (Some(store), _) => found_in(&mut **store)?,
            (None, StoreConfig::Log) => in_log,
            (None, _) => Vec::new(),
        };
        for found in sessions {
            let home = crate::mqtt::home_of(&found.id, shards);
            let mail = Mail::Mqtt(MqttMail::Adopt(Box::new(found)));
            inboxes[usize::from(home.0)].send(&mut vec![mail]);
        }
        let (producers, rows) = (Mutex::new(windows), Mutex::new(rows));
        let is_given = started.as_ref().is_some_and(|started| started.is_given);
        let all = Hubs::new(shards, &classes, seeds);
        let hubs = Arc::new(Hubs { tail_bytes_max, producers, rows, is_given, ..all });
        let now = Arc::new(ClassesNow::new(Arc::clone(&classes), Arc::clone(&hubs)));
        let listing = started.as_ref().map(|s| {
            let (log, logged) = (Arc::clone(&s.log), Arc::clone(&s.hubs));
            Listing::start(log, logged, Arc::clone(&now)).map(Arc::new)
        });
        let openings = started.as_ref().map(|s| {
            let (inboxes, control) = (Arc::clone(&inboxes), Arc::clone(&control));
            Openings::start(s, Arc::clone(&now), inboxes, control, Window::from(&config.limits))
        });
        let (threads, log) = (Mutex::new(Vec::new()), started);
        let board = Arc::new(Board::new(config.name, shards, info.started, Arc::clone(&control)));
        let routes = {
            let (inboxes, control) = (Arc::clone(&inboxes), Arc::clone(&control));
            Routes::new(inboxes, control, Arc::clone(&board), Arc::clone(&now))
        };
        let mut node = Node {
            info,
            control,
            redis,
            redis_cluster,
            mqtt,
            ws,
            link,
            board,
            inboxes,
            threads,
            log,
            openings: None,
            store: None,
            classes: now,
            routes,
        };
        // Only now: who stops the node ends the log's other threads too.
        node.openings = openings.transpose().inspect_err(|_| node.join())?;
        let listing = listing.transpose().inspect_err(|_| node.join())?;
        let store_bytes_max = config.limits.inflight_store_bytes_max as usize;
        let store = store.map(|store| {
            let (inboxes, control) = (Arc::clone(&node.inboxes), Arc::clone(&node.control));
            StoreThread::start(store, store_bytes_max, inboxes, control)
        });
        node.store = store.transpose().inspect_err(|_| node.join())?;
        for (((poll, sockets), link_socket), id) in
            polls.into_iter().zip(sockets).zip(link_sockets).zip(0u16..)
        {
            let shard = ShardId(id);
            let settings = Settings {
                shard,
                hubs: Arc::clone(&hubs),
                classes: Arc::clone(&classes),
                limits: config.limits.clone(),
                epochs: Arc::clone(&epochs),
                retained: Arc::clone(&retained),
            };
            let metrics = Arc::clone(&node.info.metrics[usize::from(id)]);
            let log = node.log.as_ref().zip(listing.as_ref()).map(|(s, listing)| {
                let (log, readers) = (Arc::clone(&s.log), Arc::clone(&s.readers));
                LogEnd::new(shard, log, readers, Arc::clone(listing), &s.hubs, Arc::clone(&node.inboxes))
            });
            let board = Arc::clone(&node.board);
            let (control, classes_now) = (Arc::clone(&node.control), Arc::clone(&node.classes));
            let store = node.store.as_ref().map(|store| StoreEnd::new(store, shard));
            let ends = Ends { shard, control, metrics, log, store, board, classes: classes_now };
            let (info, inboxes) = (Arc::clone(&node.info), Arc::clone(&node.inboxes));
            let accepts = config.accepts;
            let listen = |(door, socket)| Listener::new(socket, door, accepts, poll.registry());
            let listeners = sockets.into_iter().map(listen).collect::<io::Result<Vec<_>>>();
            let thread = listeners.and_then(|listeners| {
                let run = move || run_shard(settings, ends, info, inboxes, poll, (listeners, link_socket));
                spawn(format!("hubsub-shard-{id}"), Box::new(run))
            });
            match thread {
                Ok(thread) => node.threads.lock().expect("nothing panics under this lock").push(thread),
                Err(error) => {
                    node.stop(0);
                    node.join();
                    return Err(error.into());
                }
            }
        }
        Ok(node)
    }

    /// Hands a request to the data plane; its answer is an event with this ticket.
    pub fn request(&self, ticket: u64, request: Request) {
        // Any shard can ask the others; spreading would only reorder publishes.
        self.inboxes[0].send(&mut vec![Mail::Request(ticket, request)]);
    }

    /// Sets the limits. Those of mailboxes and of the route cache hold from the start; who
    /// calls gives their old values.
    pub fn set_limits(&self, limits: &Limits) {
        self.control.set_events_max(limits.control_events_max as usize);
        if let Some(started) = &self.log {
            started.streams.set_limits(limits);
        }
        let limits = Arc::new(limits.clone());
        for inbox in self.inboxes.iter() {
            inbox.send(&mut vec![Mail::Limits(Arc::clone(&limits))]);
        }
    }

    /// Accepts clients from now on, those that wait since the start among them.
    pub fn accept(&self) {
        for inbox in self.inboxes.iter() {
            inbox.send(&mut vec![Mail::Accept]);
        }
    }

    /// Parts MQTT clients from sessions that are recorded, before the node leaves its cluster; who comes is refused. Each
    /// shard tells when they are recorded as they are then.
    pub fn part_from_sessions(&self) {
        for inbox in self.inboxes.iter() {
            inbox.send(&mut vec![Mail::PartFromSessions]);
        }
    }

    /// Stops accepting, gives output `grace_ms` to drain, closes. Each shard
    /// tells when it has ended.
    pub fn stop(&self, grace_ms: u64) {
        for inbox in self.inboxes.iter() {
            inbox.send(&mut vec![Mail::Stop(grace_ms)]);
        }
    }

    /// Waits for the shards to end, after `stop`.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().expect("nothing panics under this lock"));
        for thread in threads {
            // A shard that panicked has told so as its last event.
            let _ = thread.join();
        }
        if let Some(store) = &self.store {
            store.stop();
        }
        if let Some(openings) = &self.openings {
            openings.stop();
        }
        if let Some(Started { log, readers, streams, .. }) = &self.log {
            streams.stop();
            readers.stop();
            log.stop();
        }
    }

    /// Through whom hubs come and go, if any class has a log.
    #[must_use]
    pub fn openings(&self) -> Option<&Openings> {
        self.openings.as_ref()
    }

    /// Who reads much of the log, if any class has one.
    #[must_use]
    pub fn streams(&self) -> Option<&Streams> {
        self.log.as_ref().map(|started| &*started.streams)
    }

    /// Name of a room's class, and the hub that has its records, if that is kept in a log.
    #[must_use]
    pub fn logged_hub_of(&self, room: &[u8]) -> (String, Option<HubId>) {
        let (classes, hubs) = (self.classes.get(), self.classes.hubs());
        let class = classes.class_of_room(room);
        let index = hubs.placement.hub(class, room);
        let hub = self.log.as_ref().and_then(|log| log.hubs.find(class, index));
        (classes.get(class).name.clone(), hub)
    }

    /// A hub is archived up to this offset, which is not: retention need not wait for what is before it.
    pub fn log_archived(&self, hub: HubId, offset: u64) {
        if let Some(log) = &self.log {
            log.hubs.archived(hub, offset);
        }
    }

    /// What the store of sessions tells, if there is one of its own.
    #[must_use]
    pub fn store_status(&self) -> Option<StoreStatus> {
        self.store.as_ref().map(StoreThread::status)
    }

    /// What the log tells, if any class has one.
    #[must_use]
    pub fn log_status(&self) -> Option<LogStatus> {
        self.log.as_ref().map(Started::status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Event;
    use std::sync::mpsc;

    #[test]
    fn a_shard_that_cannot_start_takes_those_before_it_along() {
        let control = Arc::new(Control::new(64).unwrap());
        let config = NodeConfig {
            name: "test".to_owned(),
            incarnation: 1,
            shards: 4,
            redis: Some("127.0.0.1:0".parse().unwrap()),
            redis_cluster: Some("127.0.0.1:0".parse().unwrap()),
            mqtt: Some("127.0.0.1:0".parse().unwrap()),
            ws: Some("127.0.0.1:0".parse().unwrap()),
            ws_origins: Vec::new(),
            hosts: Vec::new(),
            phoenix_topics: Vec::new(),
            mqtt_rules: MqttRules::default(),
            link: None,
            accepts: true,
            advertise: None,
            classes: ClassTable::new(Vec::new(), true),
            limits: Limits::default(),
            log: None,
            inflight_store: StoreConfig::Memory,
            version: "0.0.0".to_owned(),
        };
        let (ended, ends) = mpsc::channel();
        let mut started = 0;
        let result = Node::start_on(config, Arc::clone(&control), |_, run| {
            if started == 2 {
                return Err(io::Error::other("no more threads"));
            }
            started += 1;
            let ended = ended.clone();
            Ok(std::thread::spawn(move || {
                run();
                ended.send(()).unwrap();
            }))
        });
        assert_eq!(result.err().unwrap().error.to_string(), "no more threads");
        assert_eq!(ends.try_iter().count(), 2, "each has ended before the error is returned");
        let is_failure = |event: &Event| matches!(event, Event::Stopped(_, Some(_)));
        assert!(!control.drain(64).iter().any(is_failure), "as at any stop");
    }
}
