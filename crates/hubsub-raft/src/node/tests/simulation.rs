//! Nodes in one thread, over a network that loses, delays and cuts, in tokio's paused time. Losses, delays,
//! faults and election timeouts are drawn from a seed; the order of tasks is not, so a seed gives a similar
//! run, not the same one.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::ops::AsyncFnOnce;
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::error::Error;
use crate::node::{Node, Options, Status, Timing};
use crate::store::{Answer, Command, Expect, Write};
use crate::transport::{CallError, Lane, Transport};
use crate::types::Peer;

pub(super) type SimNode = Node<Wire>;

/// A network and its nodes, by name, which is also their address.
pub(super) struct Cluster {
    net: Rc<Net>,
    directories: RefCell<BTreeMap<String, TempDir>>,
    pub snapshot_entries: Cell<u64>,
    /// Request timeout of nodes that start from now on.
    pub request: Cell<Duration>,
}

pub(super) struct Net {
    nodes: RefCell<BTreeMap<String, SimNode>>,
    random: RefCell<SmallRng>,
    cut: RefCell<BTreeSet<(String, String)>>,
    /// Lost messages per 1000.
    pub loss: Cell<u32>,
    /// Maximum one-way delay of a message.
    pub delay_ms: Cell<u64>,
}

/// One node's access to the network.
#[derive(Clone)]
pub(super) struct Wire {
    net: Rc<Net>,
    from: String,
}

/// Runs a test on a fresh cluster, with everything drawn from `seed`.
pub(super) fn simulate<T>(seed: u64, test: impl AsyncFnOnce(Rc<Cluster>) -> T) -> T {
    println!("seed {seed}");
    crate::runtime::seed(seed);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let net = Net {
        nodes: RefCell::default(),
        random: RefCell::new(SmallRng::seed_from_u64(seed)),
        cut: RefCell::default(),
        loss: Cell::new(0),
        delay_ms: Cell::new(5),
    };
    let cluster = Cluster {
        net: Rc::new(net),
        directories: RefCell::default(),
        snapshot_entries: Cell::new(5000),
        request: Cell::new(Timing::default().request),
    };
    tokio::task::LocalSet::new().block_on(&runtime, test(Rc::new(cluster)))
}

impl Cluster {
    pub fn net(&self) -> &Net {
        &self.net
    }

    /// A random number below `end`.
    pub fn draw(&self, end: u64) -> u64 {
        self.net.draw(end)
    }

    /// Starts a node with its existing directory.
    pub async fn start(&self, name: &str) -> SimNode {
        let directory = {
            let mut directories = self.directories.borrow_mut();
            // In memory if possible: these tests do not depend on the cost of a sync.
            let shared = std::path::Path::new("/dev/shm");
            let make = || if shared.is_dir() { tempfile::tempdir_in(shared) } else { tempfile::tempdir() };
            directories.entry(name.into()).or_insert_with(|| make().expect("a directory")).path().to_owned()
        };
        let peer = Peer { name: name.into(), address: name.into() };
        let timing = Timing { request: self.request.get(), ..Timing::default() };
        let snapshot_entries = self.snapshot_entries.get();
        let options = Options { snapshot_entries, timing, ..Options::new(directory, peer) };
        let wire = Wire { net: self.net.clone(), from: name.into() };
        let node = Node::open(options, wire).await.expect("a node");
        self.net.nodes.borrow_mut().insert(name.into(), node.clone());
        node
    }

    /// Starts the first node and lets the others join it; returns when the expected number of nodes vote.
    pub async fn grow(&self, names: &[&str]) {
        self.start(names[0]).await.bootstrap().await.expect("bootstrapped");
        for name in &names[1..] {
            self.start(name).await.join(&[names[0].into()], Duration::from_secs(20)).await.expect("joined");
        }
        let voters = (names.len() - (names.len() + 1) % 2).min(3);
        self.until(|status| {
            let voting = status.members.values().filter(|(_, votes)| *votes).count();
            status.members.len() == names.len() && voting == voters && status.leader.is_some()
        })
        .await;
    }

    /// Ends a node as a kill does: it loses only unsynced data.
    pub async fn kill(&self, name: &str) {
        let node = self.net.nodes.borrow_mut().remove(name);
        let Some(node) = node else { return };
        node.stop().await;
        let left = Rc::downgrade(&node.inner);
        drop(node);
        for _ in 0..6000 {
            if left.strong_count() == 0 {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(left.strong_count(), 0, "somebody holds {name}");
        sleep(Duration::from_millis(10)).await;
    }

    pub fn node(&self, name: &str) -> SimNode {
        self.net.nodes.borrow()[name].clone()
    }

    pub fn running(&self) -> Vec<String> {
        self.net.nodes.borrow().keys().cloned().collect()
    }

    /// The name of the leader with the highest term.
    pub fn leader(&self) -> Option<String> {
        let nodes = self.net.nodes.borrow();
        let leads = nodes
            .iter()
            .map(|(name, node)| (name, node.status()))
            .filter(|(_, status)| status.leader == Some(status.node));
        leads.max_by_key(|(_, status)| status.term).map(|(name, _)| name.clone())
    }

    /// Waits until `shows` is true for all running nodes.
    pub async fn until(&self, shows: impl Fn(&Status) -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            let statuses: Vec<_> = self.net.nodes.borrow().values().map(Node::status).collect();
            if statuses.iter().all(&shows) {
                return;
            }
            assert!(Instant::now() < deadline, "never so: {statuses:#?}");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Waits until a running node leads.
    pub async fn led(&self) -> String {
        self.until(|status| status.leader.is_some()).await;
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(leader) = self.leader() {
                return leader;
            }
            assert!(Instant::now() < deadline, "no node leads");
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Cuts a node off from all others, in both directions.
    pub fn isolate(&self, name: &str) {
        let mut cut = self.net.cut.borrow_mut();
        for other in self.directories.borrow().keys() {
            cut.insert((name.into(), other.clone()));
            cut.insert((other.clone(), name.into()));
        }
    }

    pub fn heal(&self) {
        self.net.cut.borrow_mut().clear();
    }
}

impl Net {
    fn draw(&self, end: u64) -> u64 {
        self.random.borrow_mut().random_range(0..end)
    }

    /// Delays a message; false if it is lost.
    async fn way(&self, from: &str, to: &str) -> bool {
        sleep(Duration::from_micros(100 + self.draw(self.delay_ms.get() * 1000))).await;
        let lost = self.draw(1000) < u64::from(self.loss.get());
        !lost && !self.cut.borrow().contains(&(from.to_owned(), to.to_owned()))
    }
}

impl Transport for Wire {
    /// `one|other` is a name with both addresses.
    async fn resolve(&self, address: &str) -> Result<Vec<String>, String> {
        Ok(address.split('|').map(str::to_owned).collect())
    }

    async fn call(
        &self,
        peer: &Peer,
        _: Lane,
        request: Vec<u8>,
        limit: Duration,
    ) -> Result<Vec<u8>, CallError> {
        let (net, from, to) = (self.net.clone(), self.from.clone(), peer.address.clone());
        // Continues after the caller gave up: a sent message cannot be recalled.
        let way = tokio::task::spawn_local(async move {
            if !net.way(&from, &to).await {
                return std::future::pending().await;
            }
            let node = net.nodes.borrow().get(&to).cloned();
            let Some(node) = node else { return Err(CallError::NotSent("connection refused".into())) };
            let reply = node.serve(&request).await;
            let gone = !net.nodes.borrow().get(&to).is_some_and(|now| Rc::ptr_eq(&now.inner, &node.inner));
            drop(node);
            if gone {
                return Err(CallError::Unanswered("connection reset".into()));
            }
            if !net.way(&to, &from).await {
                return std::future::pending().await;
            }
            Ok(reply)
        });
        let end = way.abort_handle();
        match timeout(limit, way).await {
            Ok(reply) => reply.unwrap_or_else(|error| Err(CallError::Unanswered(error.to_string()))),
            Err(_) => {
                // The request is served to its end, but not for ever.
                let late = Duration::from_secs(10);
                tokio::task::spawn_local(async move {
                    sleep(late).await;
                    end.abort();
                });
                Err(CallError::Unanswered("timed out".into()))
            }
        }
    }
}

pub(super) fn put(key: &str, revision: Option<u64>, value: &str) -> Command {
    let expect = revision.map(|revision| Expect { key: key.into(), revision });
    let write = Write::Put { key: key.into(), value: value.as_bytes().into(), lease: None };
    Command::Commit { expect: expect.into_iter().collect(), writes: vec![write] }
}

pub(super) async fn all<F: Future + 'static>(futures: Vec<F>) -> Vec<F::Output> {
    let tasks: Vec<_> = futures.into_iter().map(tokio::task::spawn_local).collect();
    let mut outputs = Vec::new();
    for task in tasks {
        outputs.push(task.await.expect("no panic"));
    }
    outputs
}

/// Operations of clients and their results, checked against the order that revisions imply.
#[derive(Default)]
pub(super) struct History {
    clock: u64,
    pub operations: Vec<Operation>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    start: u64,
    end: u64,
    key: String,
    done: Done,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// A read of a revision (0: no value) and value.
    Read(u64, String),
    /// A successful commit with its expected and new revision.
    Committed {
        value: String,
        expected: u64,
        revision: u64,
    },
    /// A commit that found another revision.
    Mismatch {
        value: String,
        found: u64,
    },
    Refused {
        value: String,
    },
    Unknown {
        value: String,
    },
}

impl History {
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub fn note(&mut self, start: u64, key: &str, done: Done) {
        let end = self.tick();
        self.operations.push(Operation { start, end, key: key.into(), done });
    }

    /// Records the result of a commit of `value` to one key.
    pub fn note_commit(
        &mut self,
        start: u64,
        key: &str,
        value: String,
        expected: u64,
        answer: Result<Answer, Error>,
    ) {
        let done = match answer {
            Ok(Answer::Committed(revisions)) => Done::Committed { value, expected, revision: revisions[0] },
            Ok(Answer::Mismatch { revision, .. }) => Done::Mismatch { value, found: revision },
            Ok(other) => panic!("a commit answers {other:?}"),
            Err(Error::Refused(_)) => Done::Refused { value },
            Err(Error::Unknown(_)) => Done::Unknown { value },
        };
        self.note(start, key, done);
    }

    pub fn count(&self, is: impl Fn(&Done) -> bool) -> usize {
        self.operations.iter().filter(|operation| is(&operation.done)).count()
    }

    /// Versions order all commits, so the check is that each operation fits between its neighbours in that
    /// order, and that none sees an older state than an operation that ended before it began.
    pub fn check(&self) {
        let mut written: BTreeMap<&str, BTreeMap<u64, &str>> = BTreeMap::new();
        for Operation { key, done, .. } in &self.operations {
            let (revision, value) = match done {
                Done::Read(revision, value) if *revision > 0 => (*revision, value),
                Done::Committed { value, revision, .. } => (*revision, value),
                _ => continue,
            };
            let before = written.entry(key).or_default().insert(revision, value);
            assert!(
                before.is_none_or(|before| before == value),
                "{key} had two values in revision {revision}"
            );
        }
        let never: BTreeSet<&str> = self
            .operations
            .iter()
            .filter_map(|operation| match &operation.done {
                Done::Mismatch { value, .. } | Done::Refused { value } => Some(value.as_str()),
                _ => None,
            })
            .collect();
        for (key, values) in &written {
            let mut seen = BTreeSet::new();
            for (revision, value) in values {
                assert!(!never.contains(value), "{key} shows {value}, which was refused");
                assert!(seen.insert(value), "{value} was written twice, again in revision {revision}");
            }
        }
        let next = |key: &str, revision: u64| {
            written
                .get(key)
                .and_then(|values| values.range(revision + 1..).next())
                .map_or(u64::MAX, |(next, _)| *next)
        };
        let mut starts: Vec<&Operation> = self.operations.iter().collect();
        starts.sort_by_key(|operation| operation.start);
        let mut ended: Vec<(u64, u64)> = Vec::new();
        for operation in starts {
            let Operation { start, end, key, done } = operation;
            let least = ended.iter().filter(|(end, _)| end < start).map(|(_, low)| *low).max().unwrap_or(0);
            let (low, high) = match done {
                Done::Read(revision, _) | Done::Mismatch { found: revision, .. } => {
                    (*revision, next(key, *revision) - 1)
                }
                Done::Committed { expected, revision, .. } => {
                    assert_eq!(next(key, *expected), *revision, "another write came between: {operation:?}");
                    assert!(
                        least < *revision,
                        "an order that was not: {operation:?}, when {least} was seen before"
                    );
                    (*revision, *revision)
                }
                Done::Refused { .. } | Done::Unknown { .. } => continue,
            };
            assert!(least <= high, "older than what was seen before: {operation:?}, {least} > {high}");
            ended.push((*end, low.max(least)));
        }
    }
}
