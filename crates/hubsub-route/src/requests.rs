//! Requests to a broker and their responses, as plain data: shards and nodes pass them on, and the state of a broker
//! keeps those that wait.

use crate::rows::RowPage;
use hubsub_message::{AskId, Attached, Namespace, Record, Start};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ConnKey, ErrorCode, HubId, NodeId, Position, ShardId};
use std::sync::Arc;

/// The destination of a response: the shard that asked, and its own reference to the request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    pub shard: ShardId,
    pub asker: Asker,
}

impl Ticket {
    /// Whether another node requested it.
    pub fn is_of_node(&self) -> bool {
        matches!(self.asker, Asker::Node { .. })
    }
}

/// The requester that waits for a response.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asker {
    Client {
        conn: ConnKey,
        slot: u32,
    },
    /// A request of the control plane: its ticket and the item of its batch.
    Control {
        ticket: u64,
        item: u32,
    },
    /// One request of a scatter-gather request.
    Gathering {
        /// Number of the scatter-gather request on its shard.
        number: u32,
        item: u32,
    },
    Retained {
        conn: ConnKey,
        /// The connection's number for the read.
        number: u32,
    },
    /// The leader of a room that writes the entry of a retained record, by number.
    Row(u64),
    Node {
        node: NodeId,
        /// The node's number for the request.
        ask: AskId,
        /// The hub over whose link the request came.
        hub: HubId,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Published {
    /// Subscribers in the whole room, including patterns.
    pub receivers: u64,
    /// Position of the record; zero if no room stored it.
    pub position: Position,
    /// Whether the record is a repeat: then it is not delivered again, and `receivers` is 0.
    pub is_duplicate: bool,
}

impl Published {
    /// The response to a repeated record.
    pub fn again(position: Position) -> Published {
        Published { receivers: 0, position, is_duplicate: true }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<T> {
    Now(T),
    /// The response follows in another turn.
    Later,
}

pub type Reply<T> = Outcome<Result<T, ErrorCode>>;

/// A response that was not known at once.
#[derive(Clone, Debug)]
pub enum Answer {
    Published(Result<Published, ErrorCode>),
    Attached(Result<Attached, ErrorCode>),
    /// To a pattern subscription: every shard and every linked node holds the pattern.
    PatternHeld,
    /// To a request for the number of subscribers to a topic in the whole cluster.
    Counted(Result<u64, ErrorCode>),
    /// To a request for the ends of the logs of all hubs: the last committed offset of each.
    HubEnds(Result<Vec<(HubId, u64)>, ErrorCode>),
    /// To a flush barrier: entries that were in flight are written.
    Settled,
    Rows(Result<RowPage, ErrorCode>),
}

/// A history request, by the number that its shard gave it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    pub shard: ShardId,
    pub number: u32,
}

#[derive(Clone, Debug, Default)]
pub struct HistoryPart {
    /// Whether `after` was a position of this epoch that is still in history.
    pub recovered: bool,
    /// The position before the oldest record in history: a reader may start after it.
    pub start: Position,
    pub records: Vec<Arc<Record>>,
}

#[derive(Clone, Debug)]
pub struct HistoryQuery {
    pub room: Vec<u8>,
    pub count: u64,
    /// Start after this position; none: the last `count` records.
    pub after: Option<Position>,
    /// Only records of this topic; none: of all.
    pub topic: Option<Vec<u8>>,
}

#[derive(Clone, Debug)]
pub struct RowsAsk {
    pub ticket: Ticket,
    pub class: ClassIndex,
    pub hub: u16,
    /// MQTT filter for topics.
    pub filter: Box<[u8]>,
    /// Only topics after this one, in the order of pages.
    pub after: Option<Box<[u8]>>,
    pub bytes_max: u32,
}

/// A subscription of an edge, for the home of its room.
#[derive(Clone, Debug)]
pub struct Attach {
    pub ticket: Ticket,
    pub conn: u32,
    pub namespace: Namespace,
    pub topic: Arc<[u8]>,
    pub start: Start,
    /// Whether it adds a subscription, rather than starting one again.
    pub adds: bool,
    /// Unique on the edge while it is in flight.
    pub id: u32,
    /// Shard of this node to which it was sent.
    pub home: ShardId,
    /// Revision of the room by which it was sent.
    pub revision: u64,
    /// For a moved room: the last record of the previous place that the subscriber has; epoch 0: none.
    pub left: Option<Position>,
}
