//! A node's data plane: binds, starts a thread a shard, takes requests, stops.

use crate::control::{Control, Event, Level};
use crate::core::Core;
use crate::inbox::{Inbox, Mailer};
use crate::listener::{self, Listener};
use crate::log::start::LogConfig;
use crate::log::start::Started;
use crate::log::{self, Listing, LogEnd, LogStatus, Streams};
use crate::mail::{Mail, Request};
use crate::metrics::ShardMetrics;
use crate::rim::{Ends, Rim};
use crate::shard::{LISTENER, MAILBOX, Shard};
use hubsub_route::{Broker, Hubs, Now, Settings};
use hubsub_types::{ClassTable, HubId, Limits, ShardId};
use mio::{Poll, Waker};
use std::io;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Instant;

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
    /// Host that they are told to connect to; the bound address without one.
    pub advertise: Option<String>,
    /// Room classes.
    pub classes: ClassTable,
    /// Limits.
    pub limits: Limits,
    /// Where records of logged classes go; needed if there is such a class.
    pub log: Option<LogConfig>,
    /// HubSub's version.
    pub version: String,
}

/// What all shards know of their node.
pub struct NodeInfo {
    /// Its name.
    pub name: String,
    /// HubSub's version.
    pub version: String,
    /// Where Redis clients connect.
    pub redis: String,
    /// Port of that.
    pub port: u16,
    /// When it started.
    pub started: Instant,
    /// Client connections now.
    pub connections: AtomicU64,
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
    inboxes: Arc<[Inbox]>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    log: Option<Started>,
    hubs: Arc<Hubs>,
    classes: Arc<ClassTable>,
}

impl Node {
    /// Binds the listeners and starts the shards.
    ///
    /// # Errors
    /// An address cannot be bound, the log cannot be opened, or the system is out of
    /// descriptors or threads.
    pub fn start(config: NodeConfig, control: Arc<Control>) -> io::Result<Node> {
        Node::start_on(config, control, |name, run| std::thread::Builder::new().name(name).spawn(run))
    }

    /// Starts the shards on threads that `spawn` makes. Where one cannot be
    /// started, those before it are ended first: a node runs whole or not at all.
    fn start_on(
        config: NodeConfig,
        control: Arc<Control>,
        mut spawn: impl FnMut(String, Run) -> io::Result<JoinHandle<()>>,
    ) -> io::Result<Node> {
        let shards = config.shards.max(1);
        let (redis, sockets) = match config.redis {
            Some(address) => {
                let (bound, sockets) = listener::bind(address, shards)?;
                (Some(bound), sockets.into_iter().map(Some).collect())
            }
            None => (None, (0..shards).map(|_| None).collect::<Vec<_>>()),
        };
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
            version: config.version.clone(),
            redis: advertised,
            port: redis.map_or(0, |a| a.port()),
            started: Instant::now(),
            connections: AtomicU64::new(0),
            clients: AtomicU64::new(1),
            metrics: (0..shards).map(|_| Arc::new(ShardMetrics::default())).collect(),
            hinted: AtomicBool::new(false),
            quiet: (0..shards).map(|_| AtomicU64::new(0)).collect(),
            all_done: AtomicBool::new(false),
            run_id: run_id(),
        });
        let epochs = Arc::new(AtomicU64::new((u64::from(config.incarnation) << 32) | 1));
        let mut classes = config.classes;
        let mut started = match &config.log {
            Some(log) => Some(log::start::start(log, &config.limits, &mut classes, &inboxes, &control)?),
            None if classes.classes().iter().any(|class| class.durability.is_logged()) => {
                return Err(io::Error::other(
                    "a class is replicated or durable, and there is no data directory",
                ));
            }
            None => None,
        };
        let classes = Arc::new(classes);
        let seeds = started.as_ref().map_or_else(Vec::new, |started| started.seeds.clone());
        let tail_bytes_max = config.limits.log_tail_bytes_max;
        let windows = started.as_mut().map_or_else(Default::default, |s| std::mem::take(&mut s.producers));
        let producers = Mutex::new(windows);
        let hubs = Arc::new(Hubs { tail_bytes_max, producers, ..Hubs::new(shards, &classes, seeds) });
        let listing = started.as_ref().map(|s| {
            let (log, chains, logged) = (Arc::clone(&s.log), Arc::clone(&s.chains), Arc::clone(&s.hubs));
            Listing::start(log, chains, logged, Arc::clone(&hubs), Arc::clone(&classes)).map(Arc::new)
        });
        let (threads, log) = (Mutex::new(Vec::new()), started);
        let (of_node, table) = (Arc::clone(&hubs), Arc::clone(&classes));
        let node = Node { info, control, redis, inboxes, threads, log, hubs: of_node, classes: table };
        // Only now: who stops the node ends the log's other threads too.
        let listing = listing.transpose().inspect_err(|_| node.join())?;
        for ((poll, socket), id) in polls.into_iter().zip(sockets).zip(0u16..) {
            let shard = ShardId(id);
            let settings = Settings {
                shard,
                hubs: Arc::clone(&hubs),
                classes: Arc::clone(&classes),
                limits: config.limits.clone(),
                epochs: Arc::clone(&epochs),
            };
            let metrics = Arc::clone(&node.info.metrics[usize::from(id)]);
            let log = node.log.as_ref().zip(listing.as_ref()).map(|(s, listing)| {
                let (log, readers) = (Arc::clone(&s.log), Arc::clone(&s.readers));
                let (chains, known) = (Arc::clone(&s.chains), Arc::clone(&s.hubs));
                let listing = Arc::clone(listing);
                LogEnd::new(shard, log, readers, chains, listing, known, Arc::clone(&node.inboxes))
            });
            let ends = Ends { shard, control: Arc::clone(&node.control), metrics, log };
            let (info, inboxes) = (Arc::clone(&node.info), Arc::clone(&node.inboxes));
            let listener = socket.map(|s| Listener::new(s, poll.registry(), LISTENER)).transpose();
            let thread = listener.and_then(|listener| {
                let run = move || run_shard(settings, ends, info, inboxes, poll, listener);
                spawn(format!("hubsub-shard-{id}"), Box::new(run))
            });
            match thread {
                Ok(thread) => node.threads.lock().expect("nothing panics under this lock").push(thread),
                Err(error) => {
                    node.stop(0);
                    node.join();
                    return Err(error);
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
        if let Some(Started { log, readers, streams, .. }) = &self.log {
            streams.stop();
            readers.stop();
            log.stop();
        }
    }

    /// Who reads much of the log, if any class has one.
    #[must_use]
    pub fn streams(&self) -> Option<&Streams> {
        self.log.as_ref().map(|started| &*started.streams)
    }

    /// Name of a room's class, and the hub that has its records, if that is kept in a log.
    #[must_use]
    pub fn logged_hub_of(&self, room: &[u8]) -> (&str, Option<HubId>) {
        let class = self.classes.class_of_room(room);
        let index = self.hubs.placement.hub(class, room);
        let seed = self.hubs.seeds.iter().find(|seed| (seed.class, seed.index) == (class, index));
        (&self.classes.get(class).name, seed.map(|seed| seed.id))
    }

    /// Whether the records of a topic are kept in a log.
    #[must_use]
    pub fn is_logged(&self, topic: &[u8]) -> bool {
        let class = self.classes.class_of_room(&self.classes.room(topic));
        self.classes.get(class).durability.is_logged()
    }

    /// A hub is archived up to this offset, which is not: retention need not wait for what is before it.
    pub fn log_archived(&self, hub: HubId, offset: u64) {
        if let Some(log) = &self.log {
            log.hubs.archived(hub, offset);
        }
    }

    /// What the log tells, if any class has one.
    #[must_use]
    pub fn log_status(&self) -> Option<LogStatus> {
        self.log.as_ref().map(Started::status)
    }
}

fn run_shard(
    settings: Settings,
    ends: Ends,
    info: Arc<NodeInfo>,
    inboxes: Arc<[Inbox]>,
    poll: Poll,
    listener: Option<Listener>,
) {
    let (shard, control, started) = (ends.shard, Arc::clone(&ends.control), info.started);
    let limits = settings.limits.clone();
    let body = || {
        let mailer = Mailer::new(shard, inboxes, limits.mailbox_bytes_max as usize);
        let rim = Rim::new(info, limits, Now::default(), mailer, ends);
        Shard::new(Core { broker: Broker::new(settings), rim }, poll, listener, started).run()
    };
    let reason = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("panic").to_owned()
        }
    };
    control.log(
        Level::Error,
        "shard failed",
        vec![("shard", shard.0.to_string()), ("reason", reason.clone())],
    );
    control.tell(Event::Stopped(shard.0, Some(reason)));
}

fn run_id() -> String {
    let random = || ahash::RandomState::new().hash_one(Instant::now());
    format!("{:016x}{:016x}{:08x}", random(), random(), random() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_shard_that_cannot_start_takes_those_before_it_along() {
        let control = Arc::new(Control::new(64).unwrap());
        let config = NodeConfig {
            name: "test".to_owned(),
            incarnation: 1,
            shards: 4,
            redis: Some("127.0.0.1:0".parse().unwrap()),
            advertise: None,
            classes: ClassTable::new(Vec::new(), true),
            limits: Limits::default(),
            log: None,
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
        assert_eq!(result.err().unwrap().to_string(), "no more threads");
        assert_eq!(ends.try_iter().count(), 2, "each has ended before the error is returned");
        let is_failure = |event: &Event| matches!(event, Event::Stopped(_, Some(_)));
        assert!(!control.drain(64).iter().any(is_failure), "as at any stop");
    }
}
