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
pub mod requests;
pub mod ring;
pub mod rooms;
pub mod rows;
pub mod sink;
pub mod sparse;
pub mod topics;
pub mod topk;
pub mod traces;
pub mod traffic;

pub use hubsub_message::{
    AskId, Attached, Give, Headers, HubFilter, LogPlace, Names, Namespace, NodeMessage, PUBLISHER_BYTES_MAX,
    Producer, Record, RecordView, Start, is_publisher, publisher_name,
};

pub use broker::{Broker, Draft, HubsFrom, Publisher, Settings, Wish};
pub use hubread::{HubLogRead, HubRange, HubRead, HubThen};
pub use hubs::{HubSeed, Hubs};
pub use logread::{Found, Known, LogRead, Then, Want};
pub use msg::{Gap, Left, Moved, Msg};
pub use pages::Pages;
pub use producers::{GAPLESS, Producers, Window};
pub use relay::{Cluster, Leader, RelayLimits};
pub use requests::{Answer, Ask, Asker, Attach, Outcome, Published, Reply, RowsAsk, Ticket};
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
