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

use super::state::events::Event;
use super::state::peer_table::{PeerTable, Registered};
use crate::context::Ctx;
use hubsub_lead::Process;
use hubsub_types::{NodeId, ShardId};

/// A peer has reported its state over link 0.
pub(super) fn peer_is_ready(ctx: &mut Ctx, process: Process, is_ready: bool) {
    if ctx.io.states.links.peer_table.ready.set(process, is_ready) {
        ctx.io.states.links.control.tell(Event::Ready);
    }
}

pub(super) fn ready_roster(ctx: &mut Ctx, registered: &[Registered]) {
    let is_registered = |process: Process| {
        let is_it = |peer: &Registered| (peer.id, peer.incarnation) == (process.node, process.incarnation);
        process.node == PeerTable::OWN || registered.iter().any(is_it)
    };
    if ctx.io.shard == ShardId(0) && ctx.io.states.links.peer_table.ready.keep(is_registered) {
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
