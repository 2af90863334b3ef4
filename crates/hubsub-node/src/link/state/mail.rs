//! Mail of links: orders of the control plane, and messages between the shards of a node.

use super::conn::Handover;
use super::peer_table::Registered;
use super::reach::Way;
use hubsub_message::NodeMessage;
use hubsub_types::{ConnKey, NodeId, ShardId};
use hubsub_wire::link::Identity;
use std::sync::Arc;

/// Mail of the control plane for each shard's links, and between shards.
pub enum LinkMail {
    /// This node's identity: its links begin.
    Begin(Arc<Identity>),
    /// The complete list of registered processes.
    Roster(Arc<[Registered]>),
    /// The version of this node's classes, for its status.
    Status(u64),
    /// A request of the control plane to a peer; the response returns with this ticket.
    Ask(u64, Box<str>, Vec<u8>),
    /// The control plane's response to a peer's request of this number.
    Answer(Box<str>, u64, Vec<u8>),
    /// A peer that has authenticated at another shard.
    Handover(Box<Handover>),
    /// A change of another shard's link.
    #[allow(private_interfaces, reason = "shards alone say it")]
    News(News),
    /// A broker's message that arrived on a link of another shard.
    Message {
        from: NodeId,
        /// The shard that owns the link.
        shard: ShardId,
        /// The link's connection there.
        via: ConnKey,
        message: NodeMessage,
        /// The size of its frame.
        bytes: usize,
    },
    /// A message for a link of this shard.
    Send(ConnKey, NodeMessage),
    /// Another shard's broker has handled these bytes (live, reads) of a link of this shard.
    Handled(ConnKey, [usize; 2]),
}

impl LinkMail {
    pub fn weight(&self) -> usize {
        match self {
            LinkMail::Message { message, .. } | LinkMail::Send(_, message) => message.weight(),
            LinkMail::Ask(_, _, body) | LinkMail::Answer(_, _, body) => size_of::<LinkMail>() + body.len(),
            _ => size_of::<LinkMail>(),
        }
    }
}

/// A change of a link, for the brokers of all shards.
#[derive(Clone)]
pub(crate) enum News {
    /// It is up; the number is the peer's link count.
    Up(NodeId, u16, Way),
    Down(NodeId, u16),
    /// The process with this run id is gone.
    Dead(u64),
}

impl From<Handover> for LinkMail {
    fn from(handover: Handover) -> LinkMail {
        LinkMail::Handover(Box::new(handover))
    }
}
