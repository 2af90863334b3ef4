//! Periodic tasks. A leader expires leases, adjusts the voters, and shortens a long log. Other nodes ensure
//! that the leader knows their address, and succeed a dead leader.

use std::collections::BTreeSet;
use std::rc::{Rc, Weak};

use openraft::Instant as _;
use openraft::async_runtime::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::wire::{ClientReply, ClientRequest, Reply};
use super::{Inner, members};
use crate::limits::SNAPSHOT_LOG_BYTES;
use crate::store::Command;
use crate::transport::Transport;
use crate::types::{NodeId, Vote};

/// A learner that lacks fewer entries than this has caught up.
const LAG_MAX: u64 = 100;

/// Runs until the node is dropped.
pub(super) async fn look_after<T: Transport>(node: Weak<Inner<T>>) {
    let mut members_changing: Option<JoinHandle<()>> = None;
    let mut moving: Option<JoinHandle<()>> = None;
    while let Some(inner) = node.upgrade() {
        let tick = inner.options.timing.tick;
        if inner.raft.metrics().borrow_watched().running_state.is_err() {
            return;
        }
        shorten_log(&inner).await;
        if inner.is_elsewhere() && moving.as_ref().is_none_or(JoinHandle::is_finished) {
            let inner = inner.clone();
            moving = Some(tokio::task::spawn_local(async move { inner.announce_address().await }));
        }
        if let Some(lead) = inner.lead() {
            end_leases(&inner);
            inner.note_presence(lead);
            if members_changing.as_ref().is_none_or(|task| task.is_finished()) {
                members_changing = inner.electorate_to_be().map(|voters| {
                    let inner = inner.clone();
                    tokio::task::spawn_local(async move {
                        // If this fails, the leader of a later tick tries again.
                        let _ = inner.raft.change_membership(voters, true).await;
                    })
                });
            }
        }
        drop(inner);
        tokio::time::sleep(tick).await;
    }
}

fn end_leases<T: Transport>(inner: &Rc<Inner<T>>) {
    let Some(lead) = inner.lead() else { return };
    let now = Instant::now();
    let expired = {
        let mut leases = inner.leases.borrow_mut();
        if !inner.hears_quorum() {
            return leases.rest();
        }
        inner.machine.with(|store| leases.follow(lead, store, now));
        leases.expired(now)
    };
    if expired.is_empty() {
        return;
    }
    let inner = inner.clone();
    tokio::task::spawn_local(async move {
        // A log entry ends them at the same point on all replicas. If it is not written, it is proposed
        // again, here or by the next leader, which renews all leases.
        if inner.raft.client_write(Command::Expire(expired.clone())).await.is_err() {
            inner.leases.borrow_mut().retry(&expired);
        }
    });
}

async fn shorten_log<T: Transport>(inner: &Inner<T>) {
    let bytes = inner.log.bytes();
    if bytes < SNAPSHOT_LOG_BYTES {
        inner.snapshot_at.set(SNAPSHOT_LOG_BYTES);
    } else if bytes >= inner.snapshot_at.get() {
        inner.snapshot_at.set(bytes + SNAPSHOT_LOG_BYTES);
        // It fails only when the node has stopped.
        let _ = inner.raft.trigger().snapshot().await;
    }
}

impl<T: Transport> Inner<T> {
    /// Whether a quorum answered this leader recently.
    fn hears_quorum(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let is_alone = metrics.membership_config.membership().voter_ids().count() <= 1;
        let heard = metrics.last_quorum_acked;
        is_alone || heard.is_none_or(|at| at.elapsed() < self.options.timing.rpc)
    }

    fn note_presence(&self, lead: Vote) {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let now = Instant::now();
        let answered = |node: &NodeId| {
            let at = metrics.heartbeat.as_ref()?.get(node).copied().flatten()?;
            now.checked_sub(at.elapsed())
        };
        let others = metrics.membership_config.membership().nodes().map(|(node, _)| *node);
        let others = others.filter(|node| *node != self.id).map(|node| (node, answered(&node)));
        self.presence.borrow_mut().follow(lead, others, now);
    }

    /// Members from which this leader has not heard for long.
    pub(super) fn away(&self) -> BTreeSet<NodeId> {
        self.presence.borrow().away(Instant::now(), self.options.timing.away)
    }

    /// Whether the membership has another address for this node than its current one.
    fn is_elsewhere(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let known = metrics.membership_config.membership().get_node(&self.id);
        known.is_some_and(|known| *known != self.options.peer)
    }

    /// Sends this node's address to the leader: without it, the leader cannot send heartbeats to this node.
    async fn announce_address(&self) {
        let request = ClientRequest::Join(self.id, self.options.peer.clone());
        if self.lead().is_some() {
            self.answer(request, Instant::now() + self.options.timing.request).await;
            return;
        }
        let members: Vec<_> = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let members = metrics.membership_config.membership().nodes();
            members.filter(|(node, _)| **node != self.id).map(|(node, peer)| (*node, peer.clone())).collect()
        };
        for (node, peer) in members {
            if let Ok(Reply::Client(ClientReply::Joined { .. })) =
                self.send(node, &peer, &request, self.options.timing.rpc).await
            {
                return;
            }
        }
    }

    /// Starts an election if the leader's process is dead. Successors do so one after another, to avoid split
    /// votes; a false detection only costs the leader its leadership.
    pub(super) async fn succeed_the_dead(&self) {
        let Some((leader, peer)) = self.leader().filter(|(leader, _)| *leader != self.id) else { return };
        let (vote, place) = {
            let metrics = self.raft.metrics();
            let metrics = metrics.borrow_watched();
            let voters = metrics.membership_config.membership().voter_ids().collect::<BTreeSet<_>>();
            (
                metrics.vote,
                voters.iter().filter(|voter| **voter != leader).position(|voter| *voter == self.id),
            )
        };
        let Some(place) = place else { return };
        if !self.transport.is_refused(&peer.address).await {
            return;
        }
        tokio::time::sleep(self.options.timing.heartbeat * place as u32).await;
        if self.raft.metrics().borrow_watched().vote == vote {
            // openraft checks the vote again; after a failure, the normal election timeout applies.
            let _ = self.raft.handle_transfer_leader(TransferLeaderRequest::new(vote, self.id, None)).await;
        }
    }

    /// Voters, learners that have caught up, and all members.
    pub(super) fn electorate(&self) -> (BTreeSet<NodeId>, BTreeSet<NodeId>, BTreeSet<NodeId>) {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let voters = membership.get_joint_config().last().cloned().unwrap_or_default();
        let (last, away) = (metrics.last_log_index.unwrap_or(0), self.away());
        let ready = membership.learner_ids().filter(|learner| !away.contains(learner)).filter(|learner| {
            let matched = metrics.replication.as_ref().and_then(|all| all.get(learner).copied().flatten());
            matched.is_some_and(|id| id.index() + LAG_MAX > last)
        });
        (voters, ready.collect(), membership.nodes().map(|(id, _)| *id).collect())
    }

    /// The voters to have, if they differ from the present ones or a change is incomplete.
    fn electorate_to_be(&self) -> Option<BTreeSet<NodeId>> {
        let (voters, ready, _) = self.electorate();
        let joint =
            self.raft.metrics().borrow_watched().membership_config.membership().get_joint_config().len() > 1;
        let should = members::voters(self.id, &voters, &ready, &self.away(), self.options.voters_max);
        (joint || should != voters).then_some(should)
    }
}
