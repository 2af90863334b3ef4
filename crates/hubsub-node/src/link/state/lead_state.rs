//! The state of leader leases on shard 0: the machine of `hubsub_lead`, the process of each link 0, and the
//! set of registered processes.
//!
//! Invariant: a process is forgotten when another one takes its name. An unregistered one is forgotten too,
//! unless it may hold a leader lease of this controller term: its hubs are withheld based on what is known of
//! it.

use super::events::LeadEvent;
use super::peer_table::{PeerTable, Registered};
use hubsub_lead::{LeaderLeases, LeaseGate, Process, Timing};
use hubsub_types::{ConnKey, NodeId};
use std::collections::BTreeMap;

/// Shard 0's state of leader leases, once links have begun.
pub(crate) struct LeadState {
    pub incarnation: u64,
    pub machine: LeaderLeases,
    pub gate: LeaseGate,
    /// Link 0 of each node that is up, with its process.
    pub links: BTreeMap<NodeId, (Process, ConnKey)>,
    /// The registered processes, by node id.
    pub registered: BTreeMap<NodeId, u64>,
    /// Processes that were unregistered and are not forgotten yet.
    pub left: Vec<Process>,
    /// The controller term of the last tables; `tables` counts them.
    pub controller_term: u64,
    pub tables: u64,
    pub acknowledges: u64,
    /// True if the machine was called since it was last polled.
    pub is_touched: bool,
    /// Events of this turn, for the control plane with the next view.
    pub events: Vec<LeadEvent>,
    pub is_changed: bool,
    pub shown_us: u64,
    pub wake_us: u64,
}

impl LeadState {
    pub fn new(incarnation: u64, timing: Timing) -> LeadState {
        let machine = LeaderLeases::new(Process { node: PeerTable::OWN, incarnation }, timing);
        LeadState {
            incarnation,
            gate: machine.gate(),
            machine,
            links: BTreeMap::new(),
            registered: BTreeMap::new(),
            left: Vec::new(),
            controller_term: 0,
            tables: 0,
            acknowledges: 0,
            is_touched: true,
            events: Vec::new(),
            is_changed: false,
            shown_us: 0,
            wake_us: 0,
        }
    }

    /// Forgets unregistered processes, as far as permitted.
    pub fn forget_left(&mut self) {
        let LeadState { machine, left, .. } = self;
        left.retain(|&process| !machine.forget_left(process));
    }

    pub fn set_registered(&mut self, roster: &[Registered]) {
        let new: BTreeMap<NodeId, u64> = roster.iter().map(|peer| (peer.id, peer.incarnation)).collect();
        for (node, incarnation) in std::mem::replace(&mut self.registered, new) {
            if self.registered.get(&node) != Some(&incarnation) {
                self.machine.suspects(node, false);
                self.left.push(Process { node, incarnation });
            }
        }
        let LeadState { machine, left, registered, .. } = self;
        left.retain(|&process| match registered.get(&process.node) {
            Some(&incarnation) if incarnation > process.incarnation => {
                machine.forget(process);
                false
            }
            is_there => is_there != Some(&process.incarnation),
        });
        self.forget_left();
    }
    /// When the machine is to be polled next, in µs.
    #[inline]
    pub fn wake_us(&self) -> u64 {
        if self.is_touched { 0 } else { self.wake_us }
    }

    /// A peer becomes suspected, or is heard again.
    pub fn suspects(&mut self, node: NodeId, is_suspected: bool) {
        self.machine.suspects(node, is_suspected);
        self.is_touched = true;
    }
}
