//! How a node enters a cluster (it bootstraps one, or members admit it), why it may fail to start, and how it
//! leaves.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::wire::{ClientReply, ClientRequest, Reply};
use super::{Inner, Node};
use crate::error::{Error, Refusal};
use crate::identity::{Bootstrap, Identity};
use crate::log::LogError;
use crate::transport::{CallError, Transport};
use crate::types::{NodeId, Peer};

#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Files(#[from] LogError),
    #[error("timing: {0}")]
    Timing(String),
    /// openraft rejected the files, or stopped.
    #[error("the coordinator does not start: {0}")]
    Raft(String),
    #[error("the coordinator does not start: {0}")]
    Io(#[from] std::io::Error),
    #[error("{address} does not admit this node: {refusal}")]
    Refused { address: String, refusal: Refusal },
    #[error("the cluster's secret is different at {0}")]
    WrongSecret(String),
    /// The node was admitted earlier, but no member has reached it yet.
    #[error(
        "no member has reached this node since its admission to a cluster, and it does not bootstrap another"
    )]
    Unreached,
    /// No address led to a member; each with the reason.
    #[error("{}", failures(.0))]
    Nobody(Vec<(String, String)>),
}

impl StartError {
    pub fn code(&self) -> &'static str {
        match self {
            Self::Files(_) => "files",
            Self::Timing(_) | Self::Raft(_) | Self::Io(_) => "failed",
            Self::Refused { refusal, .. } => refusal.code(),
            Self::WrongSecret(_) => "wrong_secret",
            Self::Nobody(_) => "nobody",
            Self::Unreached => "unreached",
        }
    }
}

fn failures(failures: &[(String, String)]) -> String {
    let each: Vec<_> = failures.iter().map(|(address, reason)| format!("{address}: {reason}")).collect();
    each.join("; ")
}

impl<T: Transport> Node<T> {
    /// Bootstraps a cluster of this node alone. A node that is in a cluster remains in it.
    ///
    /// A node that was admitted to a cluster but that no member has reached bootstraps nothing: that would be
    /// a second cluster of the same name. A file distinguishes it from the first node that died before its
    /// first entry.
    pub async fn bootstrap(&self) -> Result<(), StartError> {
        let inner = &self.inner;
        let failed = |error: &dyn std::fmt::Display| StartError::Raft(error.to_string());
        let bootstrap = Bootstrap::of(&inner.options.directory);
        if inner.cluster.get() == 0 {
            bootstrap.begin()?;
            inner.store_cluster(Identity::draw())?;
        }
        if !inner.raft.is_initialized().await.map_err(|error| failed(&error))? {
            if !bootstrap.is_begun() {
                return Err(StartError::Unreached);
            }
            let members = BTreeMap::from([(inner.id, inner.options.peer.clone())]);
            inner.raft.initialize(members).await.map_err(|error| failed(&error))?;
        }
        Ok(bootstrap.end()?)
    }

    /// Asks members to admit this node, until one does or the time is over. The node is then a learner, and
    /// becomes a voter when the leader decides so. After an admission, this returns when the node has caught
    /// up, or when the time is over, so its first requests find a store that does not lag. A node that is in
    /// a cluster asks each address once, to detect a different cluster, and then continues in its own.
    ///
    /// Args: `addresses` are `HOST:PORT`; all addresses of a name are tried in turn.
    pub async fn join(&self, addresses: &[String], within: Duration) -> Result<(), StartError> {
        let inner = &self.inner;
        let (deadline, is_member) = (Instant::now() + within, inner.cluster.get() != 0);
        loop {
            let mut failures = Vec::new();
            for name in addresses {
                match inner.transport.resolve(name).await {
                    Err(reason) => failures.push((name.clone(), reason)),
                    Ok(found) => {
                        for address in found {
                            let shown = if address == *name {
                                address.clone()
                            } else {
                                format!("{name} ({address})")
                            };
                            match inner.request_admission(address, &shown).await? {
                                None if is_member => return Ok(()),
                                None => {
                                    inner.learn(deadline).await;
                                    return Ok(());
                                }
                                Some(reason) => failures.push((shown, reason)),
                            }
                        }
                    }
                }
            }
            if is_member {
                return Ok(());
            }
            if Instant::now() >= deadline {
                return Err(StartError::Nobody(failures));
            }
            tokio::time::sleep(inner.options.timing.tick).await;
        }
    }

    /// Removes a node from the cluster, this one or another. A leader hands over its leadership first.
    pub async fn leave(&self, node: NodeId) -> Result<(), Error> {
        self.inner.execute(ClientRequest::Leave(node)).await.map(drop)
    }
}

impl<T: Transport> Inner<T> {
    /// Asks one address, and then the leader it names, to admit this node; returns the reason if that failed.
    async fn request_admission(&self, address: String, shown: &str) -> Result<Option<String>, StartError> {
        let request = ClientRequest::Join(self.id, self.options.peer.clone());
        let mut next = Some(address);
        let mut reason = "it knows no leader".to_owned();
        for _ in 0..2 {
            let Some(address) = next.take() else { break };
            let peer = Peer { name: String::new(), address };
            match self.send(0, &peer, &request, self.options.timing.rpc).await {
                Ok(Reply::Client(ClientReply::Joined { cluster })) => {
                    self.belong(cluster)?;
                    return Ok(None);
                }
                Ok(Reply::NotLeader(Some((_, leader)))) => {
                    reason = format!("its leader is {leader}, which replies that it is not");
                    next = Some(leader.address);
                }
                Ok(Reply::Failed(Error::Refused(refusal))) if is_final(&refusal) => {
                    return Err(StartError::Refused { address: shown.into(), refusal });
                }
                Ok(Reply::Failed(error)) => reason = error.to_string(),
                Ok(_) => {}
                Err(CallError::WrongSecret) => return Err(StartError::WrongSecret(shown.into())),
                Err(error) => reason = error.to_string(),
            }
        }
        Ok(Some(reason))
    }

    /// Catches up, retrying timed-out requests, at most until `deadline`.
    async fn learn(&self, deadline: Instant) {
        let caught_up = async {
            while self.catch_up().await.is_err() {
                tokio::time::sleep(self.options.timing.tick).await;
            }
        };
        // A node that still lags is a member nevertheless, and its requests report why they fail.
        let _ = timeout_at(deadline, caught_up).await;
    }

    /// Joins another node's cluster; aborts any bootstrap in progress.
    pub(super) fn belong(&self, cluster: u128) -> Result<(), LogError> {
        if self.cluster.get() == 0 {
            let directory = &self.options.directory;
            Bootstrap::of(directory).end().map_err(LogError::at(directory))?;
        }
        self.store_cluster(cluster)
    }

    pub(super) fn store_cluster(&self, cluster: u128) -> Result<(), LogError> {
        if self.cluster.get() != cluster {
            Identity { node: self.id, cluster }.save(&self.options.directory)?;
            self.cluster.set(cluster);
        }
        Ok(())
    }
}

/// Whether every member would refuse the node in the same way, now and later.
fn is_final(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::OtherCluster { .. } | Refusal::NameHeld { .. } | Refusal::TooManyMembers)
}
