//! Types exchanged between a node's state machine, its peers, its shards and its control plane.

use hubsub_types::{HubId, NodeId, Term};

/// Most suspected nodes that a request names.
pub const SUSPECTS_MAX: usize = 64;

pub type HubTerm = (HubId, Term);

/// A node and its incarnation; a restarted node keeps no state of its earlier incarnation.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Process {
    /// Its index among the nodes that this process knows.
    pub node: NodeId,
    /// Issued when the node registered.
    pub incarnation: u64,
}

/// Durations in µs; the same in the whole cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// From the time before the request is sent to the deadline of the leader lease.
    pub lease_us: u64,
    /// A controller that was not heard for this long is no longer acknowledged.
    pub silence_us: u64,
}

impl Default for Timing {
    fn default() -> Self {
        Timing { lease_us: 1_000_000, silence_us: 500_000 }
    }
}

impl Timing {
    /// Why its times do not fit each other, if they do not.
    pub fn flaw(&self) -> Option<&'static str> {
        (self.silence_us + self.request_interval_us() >= self.lease_us)
            .then_some("leader leases end before silence is noticed")
    }

    /// Returns itself if its times fit each other.
    ///
    /// # Panics
    /// They do not: a leader lease would end before a node knows that it has no controller.
    #[must_use]
    pub fn checked(self) -> Timing {
        match self.flaw() {
            None => self,
            Some(flaw) => panic!("{flaw}: {self:?}"),
        }
    }

    /// Interval between two requests: two of three may get lost.
    pub fn request_interval_us(&self) -> u64 {
        self.lease_us / 3
    }

    /// First wait before a partly granted claim is repeated: two watches are rarely further apart.
    pub(crate) fn again_us(&self) -> u64 {
        self.lease_us / 64
    }
}

/// A node's report about controllers in each ping and pong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Beat {
    /// The controller term that it acts under itself; 0: it is no controller.
    pub controller_term: u64,
    /// The controller term that it acknowledges; 0: it hears no controller.
    pub acknowledges: u64,
    /// Acknowledgement number; it changes each time that the node starts to acknowledge a controller.
    pub acknowledgement: u64,
}

impl Beat {
    /// Whether it is no controller and hears none.
    pub fn is_alone(&self) -> bool {
        self.controller_term == 0 && self.acknowledges == 0
    }
}

/// A hub whose record names this process as its leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Route {
    pub hub: HubId,
    pub term: Term,
    /// The record proposes another leader, so this process must give the hub up.
    pub gives_up: bool,
}

/// A node's request to the controller's node for a leader lease.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct LeaseRequest {
    /// The requester's monotonic time before it sent the request, in µs.
    pub stamp_us: u64,
    /// The hubs it wants to lead.
    pub claim: Vec<HubTerm>,
    /// The terms that it will never lead again, among those that records still assign to it.
    pub gave_up: Vec<HubTerm>,
    /// Nodes that it suspects, at most [`SUSPECTS_MAX`].
    pub suspects: Vec<NodeId>,
}

/// The reply to a [`LeaseRequest`].
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Grant {
    /// Copied from the request.
    pub stamp_us: u64,
    /// Time from `stamp_us` to the end of the leader lease, in µs on the requester's clock.
    pub lease_us: u64,
    /// Controller term of the controller that grants it.
    pub controller_term: u64,
    /// Revision of the voters that the controller knows.
    pub voters_revision: u64,
    /// The granted part of the claim.
    pub granted: Vec<HubTerm>,
}

/// An instruction to the I/O context: see the table at the head of the crate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Send a request to a controller's node.
    Request(Process, LeaseRequest),
    /// Send a reply to the requester.
    Grant(Process, Grant),
    /// Send this with every ping and pong from now on.
    Report(Beat),
    /// This process leads a hub in a term, while the gate is open.
    Began(HubId, Term),
    /// It no longer leads it; the shard confirms when that is true.
    GiveUp(HubId, Term),
    /// The gate is open: the leader lease is valid (again).
    Opened,
    /// The leader lease has ended; the hubs it covered pause or serve, as their class defines.
    Closed,
}
