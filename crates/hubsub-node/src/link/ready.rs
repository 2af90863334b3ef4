//! Which processes are ready: they have the patterns of all registered nodes, so records that they order
//! reach all subscribers, and their clients get all records.
//!
//! Shard 0 decides for its own process and sends the result with each ping and pong; that of others arrives
//! over link 0. The control plane reads the set at any time (`ShownReady`) and is notified of each change.
//!
//! Invariants: a node is not ready before it knows the registered nodes. Whether hubs exist does not matter,
//! because ready nodes are assigned them. A process that was ready stays so while it is registered: if a
//! registered one is dead or has just started, the others continue to lead, and a short link failure moves no
//! hub.

use super::Event;
use super::{PeerTable, Registered};
use crate::context::Ctx;
use hubsub_lead::Process;
use hubsub_types::{NodeId, ShardId};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// The ready processes: written by shard 0, read by the control plane.
#[derive(Default, Debug)]
pub struct ShownReady(Mutex<BTreeMap<NodeId, u64>>);

impl ShownReady {
    /// Incarnations of the ready nodes, by the peer table's ids.
    #[must_use]
    pub fn get(&self) -> BTreeMap<NodeId, u64> {
        self.lock().clone()
    }

    /// Sets a process's state; returns whether it changed.
    fn set(&self, process: Process, is_ready: bool) -> bool {
        let mut ready = self.lock();
        if is_ready {
            return ready.insert(process.node, process.incarnation) != Some(process.incarnation);
        }
        let is_it = ready.get(&process.node) == Some(&process.incarnation);
        is_it && ready.remove(&process.node).is_some()
    }

    /// Removes processes that are not registered; returns whether there was one.
    fn keep(&self, registered: &[Registered]) -> bool {
        let mut ready = self.lock();
        let before = ready.len();
        let is_there = |node, incarnation| {
            registered.iter().any(|peer| peer.id == node && peer.incarnation == incarnation)
        };
        ready.retain(|&node, &mut incarnation| node == PeerTable::OWN || is_there(node, incarnation));
        ready.len() < before
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, u64>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

/// A peer has reported its state over link 0.
pub(super) fn peer_is_ready(ctx: &mut Ctx, process: Process, is_ready: bool) {
    if ctx.io.states.links.peer_table.ready.set(process, is_ready) {
        ctx.io.states.links.control.tell(Event::Ready);
    }
}

/// Applies the registered processes.
pub(super) fn ready_roster(ctx: &mut Ctx, registered: &[Registered]) {
    if ctx.io.shard == ShardId(0) && ctx.io.states.links.peer_table.ready.keep(registered) {
        ctx.io.states.links.control.tell(Event::Ready);
    }
}

/// Checks whether this process has become ready.
pub(super) fn tick_ready(ctx: &mut Ctx) {
    let links = &ctx.io.states.links;
    if ctx.io.shard != ShardId(0) || !ctx.broker.has_nodes() || links.status().is_ready {
        return;
    }
    let Some(incarnation) = links.incarnation() else { return };
    let holds = |id: NodeId| ctx.broker.holds_patterns_of(id);
    if links.has_roster && links.registered().all(holds) {
        ctx.io.states.links.set_ready(true);
        peer_is_ready(ctx, Process { node: PeerTable::OWN, incarnation }, true);
    }
}
