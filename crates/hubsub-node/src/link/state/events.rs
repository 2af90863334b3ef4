//! The events of links for the control plane.

use hubsub_types::{ErrorCode, HubId, Term};

#[derive(Debug)]
pub enum Event {
    Link(LinkEvent),
    /// A change of this process's leader leases, or of a controller's view of other nodes' leases.
    Lead(LeadEvent),
    /// Another process became ready, or stopped being so.
    Ready,
    /// A request from a peer's control plane: peer name, request number, body.
    Asked(Box<str>, u64, Box<[u8]>),
    /// The response of a peer's control plane: request number, body.
    Answered(u64, Result<Box<[u8]>, ErrorCode>),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// All links are up.
    Up,
    /// A link was silent for `link_suspect_ms`.
    Suspected,
    /// No link is silent any more.
    Heard,
    /// A link has ended: a code, and a text for operators.
    Down(&'static str, Box<str>),
    /// It is not up, and this node or the peer refused a link: a code, and a text for operators.
    Refused(&'static str, Box<str>),
    Dead,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LinkEvent {
    pub node: Box<str>,
    pub incarnation: u64,
    pub change: Change,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LeadEvent {
    /// This process has a leader lease (again): its shards lead the hubs assigned to them.
    Opened,
    /// The leader lease has ended; its hubs wait or serve, as their class states.
    Closed,
    /// A hub's shard was ordered to lead it in this term.
    Began(HubId, Term),
    /// The hub's shard no longer leads it in this term.
    GaveUp(HubId, Term),
    /// This process acknowledges the controller of that term; 0: none.
    Acknowledges(u64),
    /// Another change of the published data: a peer acknowledges another controller, released hubs or
    /// suspects others.
    Changed,
}
