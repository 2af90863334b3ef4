//! How a node comes into a cluster, why it does not start, and how it leaves: it founds one, or members let it in.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::wire::{Ask, Reply, Told};
use super::{Inner, Node};
use crate::error::{Error, Refusal};
use crate::identity::{Founding, Identity};
use crate::log::LogError;
use crate::transport::{CallError, Transport};
use crate::types::{NodeId, Peer};

/// Why a node does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its files cannot be used.
    #[error(transparent)]
    Files(#[from] LogError),
    /// The timing makes no sense to openraft.
    #[error("timing: {0}")]
    Timing(String),
    /// openraft refused what it found, or stopped.
    #[error("the coordinator does not start: {0}")]
    Raft(String),
    /// No thread, or no listener.
    #[error("the coordinator does not start: {0}")]
    Io(#[from] std::io::Error),
    /// A member said no.
    #[error("{address} lets this node not in: {refusal}")]
    #[allow(missing_docs, reason = "the message says it")]
    Refused { address: String, refusal: Refusal },
    /// The cluster's secret is another one at an address.
    #[error("the cluster's secret is another one at {0}")]
    WrongSecret(String),
    /// It was let in, and knows nothing of the others yet.
    #[error(
        "no member has reached this node since it was let into its cluster, and it founds none of its own"
    )]
    Unreached,
    /// No address led to a member: each with the reason.
    #[error("{}", failures(.0))]
    Nobody(Vec<(String, String)>),
}

impl StartError {
    /// A stable name of the error.
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
    /// Makes a cluster of this node alone. One that is in a cluster stays in it.
    ///
    /// One that was let into a cluster, and that no member has reached since, founds nothing: it would be a second
    /// cluster of the same name. A founder that died before its first entry is told from it by a file.
    pub async fn found(&self) -> Result<(), StartError> {
        let inner = &self.inner;
        let failed = |error: &dyn std::fmt::Display| StartError::Raft(error.to_string());
        let founding = Founding::of(&inner.options.directory);
        if inner.cluster.get() == 0 {
            founding.begin()?;
            inner.adopt(Identity::draw())?;
        }
        if !inner.raft.is_initialized().await.map_err(|error| failed(&error))? {
            if !founding.is_begun() {
                return Err(StartError::Unreached);
            }
            let members = BTreeMap::from([(inner.id, inner.options.peer.clone())]);
            inner.raft.initialize(members).await.map_err(|error| failed(&error))?;
        }
        Ok(founding.end()?)
    }

    /// Asks members to let this node in, until one did or the time is over. It learns from then on, and votes when a
    /// leader finds that it should. One that was let in returns when it has learned what the others knew, or when the
    /// time is over: its first requests find a store that does not lag. One that is in a cluster asks each address once,
    /// to be told if that is another cluster, and else goes on where it was.
    ///
    /// Args: `addresses` are `HOST:PORT`; a name stands for all its addresses, which are tried in turn.
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
                            match inner.ask_in(address, &shown).await? {
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

    /// Takes a node out of the cluster, this one or another. A leader hands its part over first.
    pub async fn leave(&self, node: NodeId) -> Result<(), Error> {
        self.inner.ask(Ask::Leave(node)).await.map(drop)
    }
}

impl<T: Transport> Inner<T> {
    /// Asks one address to let this node in, and the leader that it names; gives the reason if that did not happen.
    async fn ask_in(&self, address: String, shown: &str) -> Result<Option<String>, StartError> {
        let ask = Ask::Join(self.id, self.options.peer.clone());
        let mut next = Some(address);
        let mut reason = "it knows no leader".to_owned();
        for _ in 0..2 {
            let Some(address) = next.take() else { break };
            let peer = Peer { name: String::new(), address };
            match self.send(0, &peer, &ask, self.options.timing.rpc).await {
                Ok(Reply::Told(Told::Joined { cluster })) => {
                    self.belong(cluster)?;
                    return Ok(None);
                }
                Ok(Reply::NotLeader(Some((_, leader)))) => {
                    reason = format!("its leader is {leader}, who says that it is none");
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

    /// Catches up, however long ago a request of its own would have given up; at most until `deadline`.
    async fn learn(&self, deadline: Instant) {
        let caught_up = async {
            while self.catch_up().await.is_err() {
                tokio::time::sleep(self.options.timing.tick).await;
            }
        };
        // Who lags still is a member all the same, and its requests say why they fail.
        let _ = timeout_at(deadline, caught_up).await;
    }

    /// Becomes a member of a cluster of others: what it may have begun to found is over.
    pub(super) fn belong(&self, cluster: u128) -> Result<(), LogError> {
        if self.cluster.get() == 0 {
            let directory = &self.options.directory;
            Founding::of(directory).end().map_err(LogError::at(directory))?;
        }
        self.adopt(cluster)
    }

    /// Becomes a member of a cluster.
    pub(super) fn adopt(&self, cluster: u128) -> Result<(), LogError> {
        if self.cluster.get() != cluster {
            Identity { node: self.id, cluster }.save(&self.options.directory)?;
            self.cluster.set(cluster);
        }
        Ok(())
    }
}

/// Whether another member, or the same one later, would say the same to one who joins.
fn is_final(refusal: &Refusal) -> bool {
    matches!(refusal, Refusal::OtherCluster { .. } | Refusal::NameHeld { .. } | Refusal::TooManyMembers)
}
