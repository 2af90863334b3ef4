//! Answers requests of other nodes, and requests to the leader.

use std::collections::BTreeSet;
use std::sync::Arc;

use openraft::async_runtime::WatchReceiver;
use openraft::errors::{ChangeMembershipError, ClientWriteError, ForwardToLeader, RaftError};
use openraft::{ChangeMembers, ReadPolicy, ServerState};
use tokio::time::{Instant, timeout_at};

use super::wire::{self, ClientReply, ClientRequest, Envelope, Piece, Reply, Request};
use super::{Inner, members};
use crate::error::{Error, Refusal};
use crate::limits::{LEASES_MAX, MEMBERS_MAX, SNAPSHOT_BYTES_MAX, STORE_BYTES_MAX};
use crate::store::{Command, LeaseId};
use crate::transport::Transport;
use crate::types::{NodeId, Peer, Snapshot, Types, Vote, decode_meta};

/// A snapshot that is being received. There is at most one, from the leader.
#[derive(Default)]
pub(super) struct Incoming {
    vote: Option<Vote>,
    total: u64,
    bytes: Vec<u8>,
}

type Forward = ForwardToLeader<Types>;

impl<T: Transport> Inner<T> {
    pub(super) async fn serve(&self, request: &[u8]) -> Reply {
        let (envelope, request) = match wire::decode::<Envelope, Request>(request) {
            Ok(decoded) => decoded,
            Err(error) => return refused(format!("the request cannot be read: {error}")),
        };
        if let Err(reply) = self.check(envelope, &request) {
            return reply;
        }
        let raft = &self.raft;
        match request {
            Request::Append(request) => {
                raft.append_entries(request).await.map_or_else(refused, Reply::Append)
            }
            Request::Vote(request) => raft.vote(request).await.map_or_else(refused, Reply::Vote),
            Request::PreVote(request) => raft.pre_vote(request).await.map_or_else(refused, Reply::Vote),
            Request::Transfer(request) => {
                raft.handle_transfer_leader(request).await.map_or_else(refused, Reply::Transfer)
            }
            Request::Snapshot(piece) => self.take_piece(piece).await,
            Request::Client(request) => {
                self.answer(request, Instant::now() + self.options.timing.request).await
            }
        }
    }

    /// Checks that a request is for this node and cluster.
    fn check(&self, to: Envelope, request: &Request) -> Result<(), Reply> {
        let ours = self.cluster.get();
        if to.to != 0 && to.to != self.id {
            return Err(refused(format!("this is node {}, not {}", self.id, to.to)));
        }
        let joins = matches!(request, Request::Client(ClientRequest::Join(..)));
        if ours == 0 && to.to == self.id && to.cluster != 0 {
            // Only a leader that this node has asked to join knows its id.
            return self.belong(to.cluster).map_err(refused);
        }
        match to.cluster == ours || (joins && to.cluster == 0) {
            true => Ok(()),
            false => Err(Reply::Failed(Refusal::OtherCluster { ours, theirs: to.cluster }.into())),
        }
    }

    async fn take_piece(&self, piece: Piece) -> Reply {
        let snapshot = {
            let mut incoming = self.incoming.borrow_mut();
            if piece.offset == 0 {
                *incoming = Incoming { vote: Some(piece.vote), total: piece.total, bytes: Vec::new() };
            }
            let fits = incoming.vote == Some(piece.vote)
                && incoming.total == piece.total
                && piece.total <= SNAPSHOT_BYTES_MAX as u64
                && incoming.bytes.len() as u64 == piece.offset
                && piece.offset + piece.bytes.0.len() as u64 <= piece.total;
            if !fits {
                *incoming = Incoming::default();
                return refused("a piece of a snapshot that does not fit the others");
            }
            incoming.bytes.extend_from_slice(&piece.bytes.0);
            if (incoming.bytes.len() as u64) < incoming.total {
                return Reply::More;
            }
            std::mem::take(&mut *incoming).bytes
        };
        let snapshot = match decode_meta(&snapshot) {
            Ok((meta, state)) => Snapshot { meta, snapshot: Arc::new(state.to_vec()) },
            Err(error) => return refused(format!("the snapshot {error}")),
        };
        let installed = self.raft.install_full_snapshot(piece.vote, snapshot).await;
        installed.map_or_else(refused, Reply::Snapshot)
    }

    /// Answers as the leader, if this node is the leader.
    pub(super) async fn answer(&self, request: ClientRequest, deadline: Instant) -> Reply {
        let late = match &request {
            ClientRequest::Propose(_) => Error::Unknown("no quorum answered in time".into()),
            _ => Refusal::NoLeader { reason: "no quorum answered in time".into() }.into(),
        };
        let answer = async {
            match request {
                ClientRequest::Propose(command) => self.propose(command).await,
                ClientRequest::ReadIndex => self.read_index().await.map(ClientReply::Index),
                ClientRequest::Renew(lease) => self.renew(lease).await,
                ClientRequest::Join(node, peer) => self.admit(node, peer).await,
                ClientRequest::Leave(node) => self.remove(node).await,
            }
        };
        match timeout_at(deadline, answer).await {
            Ok(Ok(reply)) => Reply::Client(reply),
            Ok(Err(reply)) => reply,
            Err(_) => Reply::Failed(late),
        }
    }

    async fn propose(&self, command: Command) -> Result<ClientReply, Reply> {
        let refuse = |refusal: Refusal| Reply::Failed(refusal.into());
        command.check().map_err(refuse)?;
        let (bytes, leases) = self.machine.with(|store| (store.bytes(), store.leases().len()));
        if command.bytes() > 0 && bytes + command.bytes() > STORE_BYTES_MAX {
            return Err(refuse(Refusal::StoreFull { bytes }));
        }
        if matches!(command, Command::Grant { .. }) && leases >= LEASES_MAX {
            return Err(refuse(Refusal::TooManyLeases));
        }
        let response = self.raft.client_write(command).await.map_err(unwritten)?;
        Ok(ClientReply::Answer(response.data))
    }

    async fn read_index(&self) -> Result<u64, Reply> {
        match self.raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
            Ok(read) => Ok(read.read_log_id().index()),
            Err(error) => Err(error.forward_to_leader().map_or(Reply::NotLeader(None), known_leader)),
        }
    }

    /// The leader confirms its leadership after it receives the renewal: a later leader gives the lease its
    /// whole time again.
    async fn renew(&self, lease: LeaseId) -> Result<ClientReply, Reply> {
        let index = self.read_index().await?;
        let applied = self.raft.wait(None).applied_index_at_least(Some(index), "a renewal").await;
        let lead = self.lead().ok_or(Reply::NotLeader(None))?;
        applied.map_err(refused)?;
        let now = Instant::now();
        let mut leases = self.leases.borrow_mut();
        let renewed = self.machine.with(|store| {
            leases.follow(lead, store, now);
            store.lease(lease).is_some_and(|ttl_ms| leases.renew(lease, ttl_ms, now))
        });
        if renewed { Ok(ClientReply::Renewed) } else { Err(Reply::Failed(Refusal::NoLease { lease }.into())) }
    }

    async fn admit(&self, node: NodeId, peer: Peer) -> Result<ClientReply, Reply> {
        self.read_index().await?;
        let (known, holder) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let membership = metrics.membership_config.membership();
            if membership.nodes().count() >= MEMBERS_MAX {
                return Err(Reply::Failed(Refusal::TooManyMembers.into()));
            }
            let holds = |(id, other): &(&NodeId, &Peer)| **id != node && other.name == peer.name;
            (membership.get_node(&node).cloned(), membership.nodes().find(holds).map(|(id, _)| *id))
        };
        if let Some(holder) = holder {
            if !self.away().contains(&holder) {
                return Err(Reply::Failed(Refusal::NameHeld { name: peer.name }.into()));
            }
            // The node that had this name lost its directory, or it would come back itself.
            Box::pin(self.remove(holder)).await?;
        }
        let change = match known {
            Some(known) if known == peer => return Ok(ClientReply::Joined { cluster: self.cluster.get() }),
            // The node restarted with another address.
            Some(_) => ChangeMembers::SetNodes([(node, peer)].into()),
            None => ChangeMembers::AddNodes([(node, peer)].into()),
        };
        self.raft.change_membership(change, true).await.map_err(unwritten)?;
        Ok(ClientReply::Joined { cluster: self.cluster.get() })
    }

    async fn remove(&self, node: NodeId) -> Result<ClientReply, Reply> {
        self.read_index().await?;
        let (voters, ready, known) = self.electorate();
        if !known.contains(&node) {
            return Ok(ClientReply::Left);
        }
        if voters.contains(&node) {
            let rest = voters.iter().copied().filter(|voter| *voter != node).collect::<BTreeSet<_>>();
            let learners = ready.into_iter().filter(|learner| *learner != node).collect::<BTreeSet<_>>();
            let Some(heir) = rest.iter().next().or(learners.iter().next()).copied() else {
                return Err(Reply::Failed(Refusal::LastVoter.into()));
            };
            if node == self.id && rest.is_empty() {
                // The last voter: its successor must be a voter before it can lead.
                let both = BTreeSet::from([node, heir]);
                self.raft.change_membership(both, true).await.map_err(unwritten)?;
            }
            if node == self.id {
                // The caller's next attempt reaches the successor, or another node.
                self.raft.trigger().transfer_leader(heir).await.map_err(refused)?;
                return Err(Reply::NotLeader(None));
            }
            let voters = members::voters(self.id, &rest, &learners, &self.away(), self.options.voters_max);
            self.raft.change_membership(voters, true).await.map_err(unwritten)?;
        }
        let gone = ChangeMembers::RemoveNodes([node].into());
        self.raft.change_membership(gone, true).await.map_err(unwritten)?;
        Ok(ClientReply::Left)
    }

    /// The vote of this node's leadership; none if it does not lead.
    pub(super) fn lead(&self) -> Option<Vote> {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        (metrics.state == ServerState::Leader).then_some(metrics.vote)
    }
}

/// Classifies a failed write: only an entry that was never appended is refused.
fn unwritten(error: RaftError<Types, ClientWriteError<Types>>) -> Reply {
    let busy = |reason: &dyn std::fmt::Display| {
        Reply::Failed(Refusal::ClusterBusy { reason: reason.to_string() }.into())
    };
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(forward)) => known_leader(&forward),
        RaftError::APIError(ClientWriteError::ChangeMembershipError(
            error @ ChangeMembershipError::InProgress(_),
        )) => busy(&error),
        error => Reply::Failed(Error::Unknown(error.to_string())),
    }
}

fn known_leader(forward: &Forward) -> Reply {
    Reply::NotLeader(forward.leader_id.zip(forward.leader_node.clone()))
}

fn refused(reason: impl ToString) -> Reply {
    Reply::Failed(Refusal::Stopped { reason: reason.to_string() }.into())
}
