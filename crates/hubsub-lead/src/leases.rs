//! Both sides in one, driven by a node's I/O context. It answers its own requests when this node is the
//! controller.

use crate::{
    Action, Beat, Grant, Grantor, Holder, HubTerm, LeaseGate, LeaseRequest, Process, Route, Snapshot, Tables,
    Timing, Voters,
};
use hubsub_types::NodeId;
use std::collections::VecDeque;

/// The leader-lease state machine; see the head of the crate. All times are this node's monotonic µs.
#[derive(Debug)]
pub struct LeaderLeases {
    me: Process,
    holder: Holder,
    grantor: Grantor,
    sent: Beat,
    actions: VecDeque<Action>,
}

impl LeaderLeases {
    /// A process that leads nothing yet.
    ///
    /// # Panics
    /// The times of `timing` do not fit each other.
    pub fn new(me: Process, timing: Timing) -> LeaderLeases {
        LeaderLeases {
            me,
            holder: Holder::new(me, timing),
            grantor: Grantor::new(timing),
            sent: Beat::default(),
            actions: VecDeque::new(),
        }
    }

    /// The gate that every shard checks.
    pub fn gate(&self) -> LeaseGate {
        self.holder.gate()
    }

    /// Whether this process may lead a hub in a term now.
    pub fn leads(&self, pair: HubTerm, now: u64) -> bool {
        self.holder.leads(pair, now)
    }

    /// The next action to execute, in order. Taken after each call, before more input is read.
    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    // -- From the control plane --

    /// All hubs whose records name this process as their leader, after each change of them.
    pub fn routes(&mut self, routes: &[Route], now: u64) {
        self.holder.routes(routes, now, &mut self.actions);
    }

    /// The record of the voters, after each change of it.
    pub fn voters(&mut self, voters: Voters, now: u64) {
        self.grantor.names_voters(voters.revision, now);
        self.grantor.voters(voters.clone());
        self.holder.voters(voters);
    }

    /// Grants name this revision of the voters or a later one from now on: the control plane that decides may
    /// know it before `voters` is called.
    pub fn names_voters(&mut self, revision: u64, now: u64) {
        self.grantor.names_voters(revision, now);
    }

    /// Sets or renews this node's controller term until the deadline of its lease at the coordinator, which
    /// had the controller term at `confirmed_us` or later.
    pub fn controller_term(&mut self, number: u64, until_us: u64, confirmed_us: u64, now: u64) {
        self.grantor.controller_term(number, until_us, confirmed_us, now);
        self.tend(now);
    }

    /// This node is not the controller, or is no longer.
    pub fn resign(&mut self, now: u64) {
        self.grantor.resign();
        self.tend(now);
    }

    /// Replaces what may be granted from now on; snapshots name the version.
    pub fn tables(&mut self, controller_term: u64, version: u64, tables: Tables) {
        self.grantor.tables(controller_term, version, tables);
    }

    /// Forgets a process because another one now has its name, so no request for it will come.
    pub fn forget(&mut self, process: Process) {
        self.grantor.forget(process);
    }

    /// Forgets a process that is no longer registered and whose name no other process has. Returns whether it
    /// is forgotten: it is not while it may hold a leader lease granted here, and then you call this again.
    pub fn forget_left(&mut self, process: Process) -> bool {
        self.grantor.forget_left(process)
    }

    /// Whether the input of a controller's decisions, other than an advancing time, has changed since the
    /// last call: which processes acknowledge it, gave a hub up, or suspect which nodes.
    pub fn take_changed(&mut self) -> bool {
        self.grantor.take_changed()
    }

    /// The input of the controller's decisions.
    pub fn snapshot(&mut self, now: u64) -> Snapshot {
        self.tend(now);
        Snapshot { alone_us: self.holder.majority_alone_us(now), ..self.grantor.snapshot(now) }
    }

    // -- From shards --

    /// A shard no longer leads a hub in a term: the reply to [`Action::GiveUp`].
    pub fn gave_up(&mut self, pair: HubTerm, now: u64) {
        self.holder.gave_up(pair, now, &mut self.actions);
    }

    // -- From links --

    pub fn ping(&mut self, from: Process, beat: Beat, now: u64) {
        self.grantor.hear(from, beat, now);
        self.hear(from, beat, now);
    }

    /// Handles a pong; `stamp_us` is its ping's.
    pub fn pong(&mut self, from: Process, stamp_us: u64, beat: Beat, now: u64) {
        self.grantor.pong(from, stamp_us, beat, now);
        self.holder.answered(from, stamp_us, beat, now);
        self.hear(from, beat, now);
    }

    /// A link to this process ended.
    pub fn gone(&mut self, process: Process, now: u64) {
        self.holder.lose(process);
        self.tend(now);
    }

    /// A node is now suspected, or no longer.
    pub fn suspects(&mut self, node: NodeId, is_suspected: bool) {
        self.holder.suspects(node, is_suspected);
    }

    /// Handles a request for a leader lease.
    pub fn request(&mut self, from: Process, request: &LeaseRequest, now: u64) {
        if let Some(grant) = self.grantor.request(from, request, now) {
            self.actions.push_back(Action::Grant(from, grant));
        }
    }

    pub fn granted(&mut self, from: Process, grant: &Grant, now: u64) {
        self.holder.granted(from, grant, now, &mut self.actions);
    }

    // -- Time --

    /// Does what is due. Called at the end of each turn with any of the above, and when `wake_at` has come.
    pub fn poll(&mut self, now: u64) {
        self.tend(now);
        let begun = self.actions.len();
        self.holder.poll(now, &mut self.actions);
        let is_own = |action: &Action| matches!(action, Action::Request(of, _) if *of == self.me);
        if let Some(at) = self.actions.iter().skip(begun).position(is_own)
            && let Some(Action::Request(_, request)) = self.actions.remove(begun + at)
            && let Some(grant) = self.grantor.request(self.me, &request, now)
        {
            self.holder.granted(self.me, &grant, now, &mut self.actions);
        }
        self.report(now);
    }

    /// The latest time at which `poll` must be called.
    pub fn wake_at(&self) -> u64 {
        self.holder.wake_at().min(self.grantor.ends_at(self.sent.controller_term))
    }

    fn hear(&mut self, from: Process, beat: Beat, now: u64) {
        self.holder.heard(from, beat.controller_term, now);
        self.report(now);
    }

    /// A controller acknowledges itself as long as its controller term has not expired.
    fn tend(&mut self, now: u64) {
        match self.grantor.running(now) {
            0 => self.holder.lose(self.me),
            controller_term => self.holder.hear(self.me, controller_term, now),
        }
        self.report(now);
    }

    fn report(&mut self, now: u64) {
        let beat = self.holder.beat(self.grantor.running(now));
        if beat != self.sent {
            self.sent = beat;
            self.actions.push_back(Action::Report(beat));
        }
        self.grantor.pong(self.me, now, beat, now);
    }
}
