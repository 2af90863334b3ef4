//! Snapshots of leader leases and of ready processes, which shard 0 publishes and the control plane reads at any time.

use hubsub_lead::{Process, Snapshot};
use hubsub_types::NodeId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

/// A consistent view of leader leases.
#[derive(Clone, Default, Debug)]
pub struct LeadView {
    /// The data for a controller's decisions. Nodes have the peer table's ids.
    pub snapshot: Snapshot,
    /// Until when this process may lead the hubs granted to it, in µs of the node's clock; 0 before.
    pub until_us: u64,
    /// The controller term that this process acknowledges; 0: none.
    pub acknowledges: u64,
}

/// The latest view: written by shard 0, read by the control plane.
#[derive(Default, Debug)]
pub struct Shown(Mutex<LeadView>);

impl Shown {
    /// The current view, a few ms old at most once leader leases have begun.
    pub fn get(&self) -> LeadView {
        self.lock().clone()
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, LeadView> {
        self.0.lock().expect("nothing panics under this lock")
    }
}

/// The ready processes: written by shard 0, read by the control plane.
#[derive(Default, Debug)]
pub struct ShownReady(Mutex<BTreeMap<NodeId, u64>>);

impl ShownReady {
    /// Incarnations of the ready nodes, by the peer table's ids.
    pub fn get(&self) -> BTreeMap<NodeId, u64> {
        self.lock().clone()
    }

    /// Sets a process's state; returns whether it changed.
    pub(crate) fn set(&self, process: Process, is_ready: bool) -> bool {
        let mut ready = self.lock();
        if is_ready {
            return ready.insert(process.node, process.incarnation) != Some(process.incarnation);
        }
        let is_it = ready.get(&process.node) == Some(&process.incarnation);
        is_it && ready.remove(&process.node).is_some()
    }

    /// Removes all other processes than these; returns whether there was one.
    pub(crate) fn keep(&self, is_kept: impl Fn(Process) -> bool) -> bool {
        let mut ready = self.lock();
        let before = ready.len();
        ready.retain(|&node, &mut incarnation| is_kept(Process { node, incarnation }));
        ready.len() < before
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, u64>> {
        self.0.lock().expect("nothing panics under this lock")
    }
}
