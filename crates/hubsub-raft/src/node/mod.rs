//! A node of the embedded coordinator: openraft over the log and the store, plus the functions it lacks:
//! forwarding to the leader, linearizable reads, leases, the choice of voters, and the classification of
//! outcomes.
//!
//! Everything of one node runs on one thread, inside a tokio `LocalSet`. No borrow is held across an `await`.
//!
//! Invariants
//! - [`Error::Refused`] means that nothing was or will be changed. A request that was passed to openraft or
//!   sent to another node and got no answer is [`Error::Unknown`].
//! - Only idempotent requests are retried.

mod leader;
mod leases;
mod members;
mod network;
mod options;
mod serve;
mod start;
#[cfg(test)]
mod tests;
mod wire;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use openraft::Raft;
use openraft::async_runtime::WatchReceiver;
use openraft::errors::Fatal;
use tokio::time::{Instant, timeout_at};

pub use options::{Options, Timing};
pub use start::StartError;
pub use wire::PROTOCOL;
use wire::{ClientReply, ClientRequest, Envelope, Reply, Request};

use crate::error::{Error, Refusal};
use crate::identity::Identity;
use crate::log::{LogStorage, Snapshots};
use crate::machine::Machine;
use crate::store::{Answer, Batch, Command, Cursor, Item, LeaseId, Value, check_directory, check_key};
use crate::transport::{CallError, Lane, Transport};
use crate::types::{NodeId, Peer, Types};
use leases::Leases;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub node: NodeId,
    /// Id of the cluster; 0 if the node is in none yet.
    pub cluster: u128,
    pub term: u64,
    pub leader: Option<NodeId>,
    /// All members, and whether they vote.
    pub members: BTreeMap<NodeId, (Peer, bool)>,
    pub applied: u64,
    pub log_bytes: u64,
    pub store_bytes: usize,
    pub failed: Option<String>,
}

/// A node; clones share it.
pub struct Node<T> {
    inner: Rc<Inner<T>>,
}

impl<T> Clone for Node<T> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

struct Inner<T> {
    id: NodeId,
    cluster: Rc<Cell<u128>>,
    options: Options,
    raft: Raft<Types, Machine>,
    machine: Machine,
    log: LogStorage,
    transport: T,
    leases: RefCell<Leases>,
    presence: RefCell<members::Presence>,
    incoming: RefCell<serve::Incoming>,
    /// Whether a check for a dead leader process is running.
    probing: Cell<bool>,
    /// Log size in bytes at which the next snapshot is requested.
    snapshot_at: Cell<u64>,
}

impl<T: Transport> Node<T> {
    /// Opens a node's files and starts it. It is in no cluster until [`Self::bootstrap`] or [`Self::join`],
    /// unless it was before.
    pub async fn open(options: Options, transport: T) -> Result<Self, StartError> {
        let directory = &options.directory;
        let log = LogStorage::open(&directory.join("log"))?;
        let identity = Identity::open(directory)?;
        let snapshots = Snapshots::open(directory)?;
        let machine = Machine::new(snapshots);
        let config = options::config(&options).map_err(StartError::Timing)?;
        let cluster = Rc::new(Cell::new(identity.cluster));
        let network = network::Network {
            transport: transport.clone(),
            cluster: cluster.clone(),
            machine: machine.clone(),
            limit: options.timing.rpc,
        };
        let raft = Raft::new(identity.node, Arc::new(config), network, log.clone(), machine.clone());
        let raft = raft.await.map_err(|error| StartError::Raft(error.to_string()))?;
        let inner = Inner {
            id: identity.node,
            cluster,
            options,
            raft,
            machine,
            log,
            transport,
            leases: RefCell::default(),
            presence: RefCell::default(),
            incoming: RefCell::default(),
            probing: Cell::new(false),
            snapshot_at: Cell::new(0),
        };
        let node = Self { inner: Rc::new(inner) };
        tokio::task::spawn_local(leader::look_after(Rc::downgrade(&node.inner)));
        Ok(node)
    }

    /// A key's value and revision: reflects every write that was answered before the call.
    pub async fn get(&self, key: &str) -> Result<Option<(Value, u64)>, Error> {
        check_key(key)?;
        self.inner.catch_up().await?;
        Ok(self.inner.machine.with(|store| store.get(key)))
    }

    /// Entries of a directory after `after`, and whether there are more: reflects every write that was
    /// answered before the call.
    pub async fn page(
        &self,
        directory: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Result<(Vec<Item>, bool), Error> {
        check_directory(directory)?;
        self.inner.catch_up().await?;
        Ok(self.inner.machine.with(|store| store.page(directory, after, limit)))
    }

    /// Executes a command. A commit with a failed expectation, or with a lease that does not exist, is an
    /// answer, not an error.
    pub async fn propose(&self, command: Command) -> Result<Answer, Error> {
        command.check()?;
        match self.inner.execute(ClientRequest::Propose(command)).await? {
            ClientReply::Answer(answer) => Ok(answer),
            other => Err(Error::Unknown(format!("the reply of the leader is to another request: {other:?}"))),
        }
    }

    /// Renews a lease for its whole time to live, counted from before the call.
    pub async fn renew(&self, lease: LeaseId) -> Result<(), Error> {
        self.inner.execute(ClientRequest::Renew(lease)).await.map(drop)
    }

    /// Waits at most `wait` for changes after `cursor`, and returns an empty batch if there are none. The
    /// first batch reflects every write that was answered before the call.
    pub async fn watch(
        &self,
        directory: &str,
        mut cursor: Option<Cursor>,
        wait: Duration,
    ) -> Result<Batch, Error> {
        check_directory(directory)?;
        if cursor.is_none() {
            self.inner.catch_up().await?;
        }
        let deadline = Instant::now() + wait;
        let mut changes = self.inner.machine.changes();
        loop {
            changes.mark_unchanged();
            match (self.inner.machine.with(|store| store.watch(directory, cursor.as_ref())), cursor.take()) {
                (Some(batch), _) if batch.whole_begins || batch.whole_ends || !batch.items.is_empty() => {
                    return Ok(batch);
                }
                (Some(Batch { cursor: ahead, .. }), _) | (None, Some(ahead)) => {
                    let more = timeout_at(deadline, changes.changed()).await;
                    if !matches!(more, Ok(Ok(()))) {
                        return Ok(Batch {
                            whole_begins: false,
                            whole_ends: false,
                            items: Vec::new(),
                            cursor: ahead,
                        });
                    }
                    cursor = Some(ahead);
                }
                (None, None) => unreachable!("without a cursor the whole begins"),
            }
        }
    }

    pub fn status(&self) -> Status {
        let inner = &self.inner;
        let metrics = inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let voters: Vec<_> = membership.voter_ids().collect();
        let members = membership.nodes().map(|(id, peer)| (*id, (peer.clone(), voters.contains(id))));
        Status {
            node: inner.id,
            cluster: inner.cluster.get(),
            term: metrics.current_term,
            leader: metrics.current_leader,
            members: members.collect(),
            applied: metrics.last_applied.map_or(0, |id| id.index()),
            log_bytes: inner.log.bytes(),
            store_bytes: inner.machine.with(|store| store.bytes()),
            failed: metrics.running_state.as_ref().err().map(ToString::to_string),
        }
    }

    /// Waits until the node cannot continue, and returns the reason; None if it was stopped.
    pub async fn failure(&self) -> Option<String> {
        let mut metrics = self.inner.raft.metrics();
        loop {
            let state = metrics.borrow_watched().running_state.clone();
            match state {
                Ok(()) => metrics.changed().await.ok()?,
                Err(Fatal::Stopped) => return None,
                Err(fatal) => return Some(fatal.to_string()),
            }
        }
    }

    pub async fn serve(&self, request: &[u8]) -> Vec<u8> {
        wire::encode(&(), &self.inner.serve(request).await)
    }

    /// Call this when a peer's connection to this node ended. If the leader's process is dead, which its port
    /// shows, a successor need not wait for the election timeout.
    pub async fn lost_connection(&self) {
        let inner = &self.inner;
        if !inner.probing.replace(true) {
            inner.succeed_the_dead().await;
            inner.probing.set(false);
        }
    }

    /// Stops the node. Unanswered requests have an unknown outcome.
    pub async fn stop(&self) {
        // It fails only if a task of openraft panicked, and then the node has stopped.
        let _ = self.inner.raft.shutdown().await;
    }
}

impl<T: Transport> Inner<T> {
    /// Sends a request to the leader, and retries until it answers or the request times out.
    async fn execute(&self, request: ClientRequest) -> Result<ClientReply, Error> {
        let deadline = Instant::now() + self.options.timing.request;
        let mut reason = format!("none has come to this node at {}", self.options.peer.address);
        let mut hint = None;
        while Instant::now() < deadline {
            let known = self.raft.metrics().borrow_watched().current_leader;
            let leader = hint.take().or_else(|| self.leader());
            let reply = match leader {
                None => Reply::NotLeader(None),
                Some((id, _)) if id == self.id => self.answer(request.clone(), deadline).await,
                Some((id, peer)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    // A leader that is suspended or disconnected does not answer, so switch to its successor.
                    let reply = tokio::select! {
                        reply = self.send(id, &peer, &request, left) => reply,
                        () = self.followed(id, known) => Err(CallError::Unanswered("another node leads now".into())),
                    };
                    match reply {
                        Ok(reply) => reply,
                        Err(CallError::Unanswered(what)) if !request.repeatable() => {
                            return Err(Error::Unknown(what));
                        }
                        Err(error) => {
                            reason = format!("{peer}: {error}");
                            Reply::NotLeader(None)
                        }
                    }
                }
            };
            match reply {
                Reply::Client(reply) => return Ok(reply),
                Reply::Failed(Error::Refused(Refusal::ClusterBusy { reason: busy })) => reason = busy,
                Reply::Failed(error) => return Err(error),
                Reply::NotLeader(known) => hint = known.filter(|(id, _)| *id != self.id),
                _ => return Err(Error::Unknown("the leader's reply is to another request".into())),
            }
            if hint.is_none() {
                tokio::time::sleep(self.options.timing.heartbeat / 2).await;
            }
        }
        Err(Refusal::NoLeader { reason }.into())
    }

    async fn send(
        &self,
        to: NodeId,
        peer: &Peer,
        request: &ClientRequest,
        limit: Duration,
    ) -> Result<Reply, CallError> {
        let envelope = Envelope { cluster: self.cluster.get(), to };
        let bytes = wire::encode(&envelope, &Request::Client(request.clone()));
        let reply = self.transport.call(peer, Lane::Client, bytes, limit).await?;
        let ((), reply) = wire::decode(&reply).map_err(|error| CallError::Unanswered(error.to_string()))?;
        Ok(reply)
    }

    /// Completes when this node learns of a leader other than `leader` and `known`: a peer may have named
    /// `leader` before this node heard from it.
    async fn followed(&self, leader: NodeId, known: Option<NodeId>) {
        let mut metrics = self.raft.metrics();
        loop {
            let now = metrics.borrow_watched().current_leader;
            if now.is_some_and(|now| now != leader) && now != known {
                return;
            }
            if metrics.changed().await.is_err() {
                // openraft has stopped; the request runs into its timeout.
                return std::future::pending().await;
            }
        }
    }

    /// The leader and its address, if this node knows them.
    fn leader(&self) -> Option<(NodeId, Peer)> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let id = metrics.current_leader?;
        Some((id, metrics.membership_config.membership().get_node(&id)?.clone()))
    }

    /// Waits until the local store reflects every write that was answered before the call.
    async fn catch_up(&self) -> Result<(), Error> {
        let deadline = Instant::now() + self.options.timing.request;
        let ClientReply::Index(index) = self.execute(ClientRequest::ReadIndex).await? else {
            return Err(Error::Unknown("the reply of the leader is to another request".into()));
        };
        let (has, _) = self.reach();
        let left = deadline.saturating_duration_since(Instant::now());
        let applied = self.raft.wait(Some(left)).applied_index_at_least(Some(index), "a read").await;
        applied.map(drop).map_err(|_| {
            let (last, agreed) = self.reach();
            let why = if last == has && agreed > last {
                "and gets no more: it has lost entries, as in a data directory that was restored from a copy"
            } else {
                "and has not caught up"
            };
            let reason = format!("this node has {last} entries of {}, {why}", agreed.max(index));
            Refusal::NoLeader { reason }.into()
        })
    }

    /// Index of this node's last log entry, and the commit index that the leader has sent it.
    fn reach(&self) -> (u64, u64) {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let agreed = metrics.cluster_committed.as_ref().map_or(0, |id| id.index());
        (metrics.last_log_index.unwrap_or(0), agreed)
    }
}
