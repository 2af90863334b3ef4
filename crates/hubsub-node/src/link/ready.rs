//! Which processes are ready: they hold the patterns of all nodes that are registered, so that records
//! which they order miss no subscriber, and clients that they serve miss no record.
//!
//! Shard 0 decides of its own process and says so with each ping and pong; what others say of themselves it
//! hears over link 0. The control plane reads it at any time (`ShownReady`), and is told of each change.
//!
//! Invariants: before the node was told who is registered it is not ready; whether there are hubs already does
//! not matter, since those who are ready are given them. A process that was ready once stays so, as long as it is
//! registered: while one is registered that is dead, or that has just come, the others go on to lead, and a link
//! that breaks for a moment moves no hub.

use super::{Board, Registered};
use crate::control::Event;
use crate::core::Core;
use hubsub_lead::Process;
use hubsub_types::{NodeId, ShardId};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// Who is ready: written by shard 0, read by the control plane.
#[derive(Default, Debug)]
pub struct ShownReady(Mutex<BTreeMap<NodeId, u64>>);

impl ShownReady {
    /// Nodes, as the board names them, and incarnations.
    #[must_use]
    pub fn get(&self) -> BTreeMap<NodeId, u64> {
        self.lock().clone()
    }

    /// Takes over what a process said; whether that was news.
    fn set(&self, process: Process, is_ready: bool) -> bool {
        let mut ready = self.lock();
        if is_ready {
            return ready.insert(process.node, process.incarnation) != Some(process.incarnation);
        }
        let is_it = ready.get(&process.node) == Some(&process.incarnation);
        is_it && ready.remove(&process.node).is_some()
    }

    /// Forgets others than these; whether there was one.
    fn keep(&self, registered: &[Registered]) -> bool {
        let mut ready = self.lock();
        let before = ready.len();
        let is_there = |node, incarnation| {
            registered.iter().any(|peer| peer.id == node && peer.incarnation == incarnation)
        };
        ready.retain(|&node, &mut incarnation| node == Board::OWN || is_there(node, incarnation));
        ready.len() < before
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, u64>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

impl Core {
    /// What a peer said of itself over link 0.
    pub(super) fn peer_is_ready(&mut self, process: Process, is_ready: bool) {
        if self.rim.links.board.ready.set(process, is_ready) {
            self.rim.control.tell(Event::Ready);
        }
    }

    /// These are registered, and no others.
    pub(super) fn ready_roster(&mut self, registered: &[Registered]) {
        if self.rim.shard == ShardId(0) && self.rim.links.board.ready.keep(registered) {
            self.rim.control.tell(Event::Ready);
        }
    }

    /// Sees whether this process is ready.
    pub(super) fn tick_ready(&mut self) {
        let links = &self.rim.links;
        if self.rim.shard != ShardId(0) || !self.broker.has_nodes() || links.status().is_ready {
            return;
        }
        let Some(incarnation) = links.incarnation() else { return };
        let holds = |id: NodeId| self.broker.holds_patterns_of(id);
        if links.has_roster && links.registered().all(holds) {
            self.rim.links.set_ready(true);
            self.peer_is_ready(Process { node: Board::OWN, incarnation }, true);
        }
    }
}
