//! The pure broker: one `Broker` per shard.
//! It owns what a shard knows of topics, patterns, rooms, history and lagging
//! subscribers, and nothing else: no socket, no clock, no thread. Events come
//! in as method calls with the time as an argument; actions go out through
//! [`Sink`], which the node implements with sockets and mailboxes and the
//! tests with vectors.
//!
//! Path of a message: the edge shard's [`Broker::publish`] finds the topic's route; on the room's hub shard
//! the record gets its position, enters the history and is sent once to every shard with interest; each of
//! those delivers it to its own connections.

pub mod broker;
pub mod claims;
pub mod consumers;
pub mod counts;
pub mod cursors;
pub mod groups;
pub mod history;
pub mod hubread;
pub mod hubs;
pub mod idset;
pub mod logread;
pub mod msg;
pub mod occupancy;
pub mod pages;
pub mod patterns;
pub mod places;
pub mod presence;
pub mod producers;
pub mod relay;
pub mod ring;
pub mod rooms;
pub mod rows;
pub mod sink;
pub mod sparse;
pub mod topics;
pub mod topk;
pub mod traces;
pub mod traffic;

use hubsub_types::{ConnKey, ErrorCode, HubId, NodeId, Position, ShardId};

pub use hubsub_message::{
    AskId, Attached, Give, Headers, HubFilter, LogPlace, Names, Namespace, NodeMessage, PUBLISHER_BYTES_MAX,
    Producer, Record, RecordView, Start, is_publisher, publisher_name,
};

pub use broker::{Broker, Draft, HubsFrom, Publisher, RowsAsk, Settings, Wish};
pub use hubread::{HubLogRead, HubRange, HubRead, HubThen};
pub use hubs::{HubSeed, Hubs};
pub use logread::{Ask, Found, Known, LogRead, Then, Want};
pub use msg::{Attach, Gap, Left, Moved, Msg};
pub use pages::Pages;
pub use producers::{GAPLESS, Producers, Window};
pub use relay::{Cluster, Leader, RelayLimits};
pub use rooms::{Recalled, RoomHandle, RoomInfo};
pub use rows::{Kept, Owner, RowPage, RowTotals, Rows};
pub use sink::{CloseReason, Delivery, Sink, Via};
pub use topk::Busy;
pub use traffic::{Traffic, TrafficTotals};

/// The time of an event, given by the caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Monotonic time, in ms.
    pub mono_ms: u64,
    /// Since 1970, in µs.
    pub wall_us: u64,
}

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
