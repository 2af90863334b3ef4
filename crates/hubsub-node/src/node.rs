//! A node's data plane: binds listeners, starts one thread per shard, takes requests, stops.

mod cluster;
mod threads;

use crate::context::mail::Mail;
use crate::context::states::Handles;
use crate::control::Control;
use crate::control::routes::Routes;
use crate::io::classes::ClassesNow;
use crate::io::descriptors::Descriptors;
use crate::io::inbox::{Inbox, Inboxes};
use crate::io::listener::{Listener, ListenerKind};
use crate::io::metrics::ShardMetrics;
use crate::io::node_info::{MqttRules, NodeInfo};
use crate::io::origin_check::OriginCheck;
use crate::io::questions::Request;
use crate::link::PeerTable;
use crate::log::start::{LogConfig, Started};
use crate::log::{self, Listing, LogEnd, LogStatus, Openings, Streams};
use crate::mqtt::state::mail::MqttMail;
use crate::mqtt::state::store_thread::{StoreEnd, StoreStatus, StoreThread};
use crate::mqtt::{StoreConfig, found_in};
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

#[derive(Clone, Debug)]
pub struct NodeConfig {
    pub name: String,
    /// High half of the node's epochs; larger at each start.
    pub incarnation: u32,
    pub shards: u16,
    /// The addresses of its listeners; `None`: off.
    pub redis: Option<SocketAddr>,
    pub redis_cluster: Option<SocketAddr>,
    pub mqtt: Option<SocketAddr>,
    pub ws: Option<SocketAddr>,
    /// Origins whose pages may open WebSockets; `*` is any.
    pub ws_origins: Vec<String>,
    /// Host names of this node; `*` is any.
    pub hosts: Vec<String>,
    /// Patterns of the topics that browsers may join.
    pub phoenix_topics: Vec<Matcher>,
    pub mqtt_rules: MqttRules,
    /// Address for links of other nodes, which are accepted after `link_begin`.
    pub link: Option<SocketAddr>,
    /// Whether clients are accepted at once; else from [`Node::accept`] on.
    pub accepts: bool,
    /// Host to announce to clients; `None`: the bound address.
    pub advertise: Option<String>,
    pub classes: ClassTable,
    pub limits: Limits,
    /// Log of the logged classes; required if there is such a class.
    pub log: Option<LogConfig>,
    /// Storage of MQTT sessions that outlive this process.
    pub inflight_store: StoreConfig,
    pub version: String,
}

#[derive(Debug)]
pub struct NotStarted {
    pub error: io::Error,
    /// The address that could not be bound, if that failed.
    pub address: Option<SocketAddr>,
}

impl From<io::Error> for NotStarted {
    fn from(error: io::Error) -> NotStarted {
        NotStarted { error, address: None }
    }
}

type Run = Box<dyn FnOnce() + Send>;

pub struct Node {
    pub info: Arc<NodeInfo>,
    pub control: Arc<Control>,
    /// The bound addresses of its listeners.
    pub redis: Option<SocketAddr>,
    pub redis_cluster: Option<SocketAddr>,
    pub mqtt: Option<SocketAddr>,
    pub ws: Option<SocketAddr>,
    pub link: Option<SocketAddr>,
    pub peer_table: Arc<PeerTable>,
    inboxes: Arc<Inboxes<Mail>>,
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
    /// An address cannot be bound, the log cannot be opened, or the system is out of descriptors or threads.
    pub fn start(config: NodeConfig, control: Arc<Control>) -> Result<Node, NotStarted> {
        Node::start_on(config, control, |name, run| std::thread::Builder::new().name(name).spawn(run))
    }

    /// Starts the shards on threads that `spawn` makes. If one cannot be started, the earlier ones are
    /// stopped first: a node runs completely or not at all.
    fn start_on(
        config: NodeConfig,
        control: Arc<Control>,
        mut spawn: impl FnMut(String, Run) -> io::Result<JoinHandle<()>>,
    ) -> Result<Node, NotStarted> {
        let shards = config.shards.max(1);
        let descriptors = Descriptors::reserve(config.limits.descriptors_reserved);
        let mut sockets = (0..shards).map(|_| Vec::new()).collect::<Vec<_>>();
        let redis = bind(config.redis, ListenerKind::Redis, &mut sockets)?;
        let redis_cluster = bind(config.redis_cluster, ListenerKind::RedisCluster, &mut sockets)?;
        let mqtt = bind(config.mqtt, ListenerKind::Mqtt, &mut sockets)?;
        let ws = bind(config.ws, ListenerKind::WebSocket, &mut sockets)?;
        let (link, link_sockets) = bind_shards(config.link, shards)?;
        let polls = (0..shards).map(|_| Poll::new()).collect::<io::Result<Vec<_>>>()?;
        let wakers = polls.iter().map(|poll| Waker::new(poll.registry(), MAILBOX));
        let inboxes: Arc<Inboxes<Mail>> =
            Arc::new(wakers.map(|w| w.map(Inbox::new)).collect::<io::Result<_>>()?);
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
            pages: OriginCheck::new(config.ws_origins, config.hosts),
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
        let mut in_log = Vec::new();
        let mut started = match &config.log {
            Some(log) => {
                let files_max = descriptors.files_max(config.limits.log_open_files_max);
                let limits = Limits { log_open_files_max: files_max, ..config.limits.clone() };
                let (started, sessions) = log::start::start(
                    log,
                    &limits,
                    &mut classes,
                    inboxes.clone(),
                    control.clone(),
                    crate::mqtt::sessions_in_log,
                )?;
                in_log = sessions;
                Some(started)
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
        // Before clients can connect: the shards restore sessions as they begin.
        let sessions = match (&mut store, &config.inflight_store) {
            (Some(store), _) => found_in(&mut **store)?,
            (None, StoreConfig::Log) => in_log,
            (None, _) => Vec::new(),
        };
        for found in sessions {
            let home = crate::mqtt::home_of(&found.id, shards);
            let mail = Mail::Mqtt(MqttMail::Restore(Box::new(found)));
            inboxes[usize::from(home.0)].send(&mut vec![mail]);
        }
        let (producers, rows) = (Mutex::new(windows), Mutex::new(rows));
        let is_given = started.as_ref().is_some_and(|started| started.is_given);
        let all = Hubs::new(shards, &classes, seeds);
        let hubs = Arc::new(Hubs { tail_bytes_max, producers, rows, is_given, ..all });
        let now = Arc::new(ClassesNow::new(Arc::clone(&classes), Arc::clone(&hubs)));
        let listing = started.as_ref().map(|s| {
            let (log, logged) = (Arc::clone(&s.log), Arc::clone(&s.hubs));
            Listing::start(log, logged, Arc::clone(&now), inboxes.clone()).map(Arc::new)
        });
        let openings = started.as_ref().map(|s| {
            let (inboxes, control) = (Arc::clone(&inboxes), Arc::clone(&control));
            Openings::start(s, Arc::clone(&now), inboxes, control, Window::from(&config.limits))
        });
        let (threads, log) = (Mutex::new(Vec::new()), started);
        let peer_table = Arc::new(PeerTable::new(config.name, shards, info.started, control.clone()));
        let routes = {
            let (inboxes, control) = (Arc::clone(&inboxes), Arc::clone(&control));
            Routes::new(inboxes, control, Arc::clone(&peer_table), Arc::clone(&now))
        };
        let mut node = Node {
            info,
            control,
            redis,
            redis_cluster,
            mqtt,
            ws,
            link,
            peer_table,
            inboxes,
            threads,
            log,
            openings: None,
            store: None,
            classes: now,
            routes,
        };
        // Last, so that `node.join()` after an error stops the log's threads, too.
        node.openings = openings.transpose().inspect_err(|_| node.join())?;
        let listing = listing.transpose().inspect_err(|_| node.join())?;
        let store_bytes_max = config.limits.inflight_store_bytes_max as usize;
        let store = store.map(|store| {
            StoreThread::start(store, store_bytes_max, node.inboxes.clone(), node.control.lines())
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
                LogEnd::new(shard, log, readers, Arc::clone(listing), &s.hubs, node.inboxes.clone())
            });
            let peer_table = Arc::clone(&node.peer_table);
            let (control, classes) = (Arc::clone(&node.control), Arc::clone(&node.classes));
            let store = node.store.as_ref().map(|store| StoreEnd::new(store, shard));
            let (lines, of_links) = (control.lines(), control.clone());
            let ends = Handles { shard, control, lines, of_links, metrics, log, store, peer_table, classes };
            let (info, inboxes) = (Arc::clone(&node.info), Arc::clone(&node.inboxes));
            let accepts = config.accepts;
            let listen = |(kind, socket)| Listener::new(socket, kind, accepts, poll.registry());
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

    /// Sends a request to the data plane; its response is an event with this ticket.
    pub fn request(&self, ticket: u64, request: Request) {
        // Any shard can ask the others; spreading would only reorder publishes.
        self.inboxes[0].send(&mut vec![Mail::Request(ticket, request)]);
    }

    /// Sets the limits. Those of mailboxes and the route cache are fixed at the start; the caller passes
    /// their old values.
    pub fn set_limits(&self, limits: &Limits) {
        self.control.set_events_max(limits.control_events_max as usize);
        if let Some(started) = &self.log {
            started.streams.set_limits(limits);
        }
        let limits = Arc::new(limits.clone());
        self.inboxes.send_all(|| Mail::Limits(Arc::clone(&limits)));
    }

    /// Starts accepting clients, including those that have been waiting since the start.
    pub fn accept(&self) {
        self.inboxes.send_all(|| Mail::Accept);
    }

    /// Closes MQTT clients that have recorded sessions, before the node leaves its cluster; new ones are
    /// refused. Each shard reports once those sessions are recorded.
    pub fn part_from_sessions(&self) {
        self.inboxes.send_all(|| Mail::PartFromSessions);
    }

    /// Stops accepting, lets output drain for `grace_ms`, closes. Each shard reports when it has ended.
    pub fn stop(&self, grace_ms: u64) {
        self.inboxes.send_all(|| Mail::Stop(grace_ms));
    }

    /// Waits for the shards to end, after `stop`.
    pub fn join(&self) {
        let threads = std::mem::take(&mut *self.threads.lock().expect("nothing panics under this lock"));
        for thread in threads {
            // A shard that panicked has reported it as its last event.
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

    /// Opens and closes hubs, if any class has a log.
    pub fn openings(&self) -> Option<&Openings> {
        self.openings.as_ref()
    }

    /// Readers of long log ranges, if any class has a log.
    pub fn streams(&self) -> Option<&Streams> {
        self.log.as_ref().map(|started| &*started.streams)
    }

    /// Name of a room's class, and the hub whose log has its records, if any.
    pub fn logged_hub_of(&self, room: &[u8]) -> (String, Option<HubId>) {
        let (classes, hubs) = (self.classes.get(), self.classes.hubs());
        let class = classes.class_of_room(room);
        let index = hubs.placement.hub(class, room);
        let hub = self.log.as_ref().and_then(|log| log.hubs.find(class, index));
        (classes.get(class).name.clone(), hub)
    }

    /// Records that a hub is archived up to `offset` (exclusive), so that retention may remove what precedes
    /// it.
    pub fn log_archived(&self, hub: HubId, offset: u64) {
        if let Some(log) = &self.log {
            log.hubs.archived(hub, offset);
        }
    }

    /// Status of the store of sessions, if there is a separate one.
    pub fn store_status(&self) -> Option<StoreStatus> {
        self.store.as_ref().map(StoreThread::status)
    }

    /// Status of the log, if any class has one.
    pub fn log_status(&self) -> Option<LogStatus> {
        self.log.as_ref().map(Started::status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Event, ShardEvent};
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
        let is_failure = |event: &Event| matches!(event, Event::Shard(ShardEvent::Stopped(_, Some(_))));
        assert!(!control.drain(64).iter().any(is_failure), "as at any stop");
    }
}
