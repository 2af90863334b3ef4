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
//!
//! - [`topics`]: the edge's subscription table and route cache
//! - [`patterns`]: pattern subscriptions, replicated to all shards
//! - [`groups`]: subscribers that share records
//! - [`consumers`]: groups with a position
//! - [`rooms`]: the hub's table: epoch, seq, interest, history
//! - [`history`]: bounded rings, and the per-hub bound over them
//! - [`hubs`]: the hubs of a shard: offsets, and records that the log has yet to persist
//! - [`producers`]: deduplication of numbered records
//! - [`logread`]: reads of the log, for records that are not in memory
//! - [`hubread`]: reads of whole hubs; [`pages`]: of whole rooms
//! - [`cursors`]: subscribers that catch up
//! - [`claims`]: ownership of client ids
//! - [`rows`]: retained messages
//! - [`occupancy`]: number of subscribers, publishers and members of a room
//! - [`presence`]: members of a room
//! - [`relay`]: hubs that other nodes lead
//! - [`ring`]: which hub, and so which shard, a room belongs to
//! - [`places`]: rooms in other hubs than the ring assigns
//! - [`topk`], [`traffic`]: statistics of busy rooms and of hubs

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
pub mod sparse;
pub mod topics;
pub mod topk;
pub mod traffic;

use hubsub_types::class::ClassIndex;
use hubsub_types::{ConnKey, ErrorCode, HubId, NodeId, OnGap, OnSlow, Position, Protocol, ShardId, Term};
use rooms::HistoryPart;
use std::sync::Arc;

pub use hubsub_message::{
    AskId, Attached, Give, Headers, HubFilter, LogPlace, Names, Namespace, NodeMessage, PUBLISHER_BYTES_MAX,
    Producer, Record, RecordView, Start, is_publisher, publisher_name, record,
};

pub use broker::{Broker, Draft, HubsFrom, Publisher, RowsAsk, Settings, Wish};
pub use hubread::{HubLogRead, HubRange, HubRead, HubThen};
pub use hubs::{HubSeed, Hubs};
pub use logread::{Ask, Found, Known, LogRead, Then, Want};
pub use pages::Pages;
pub use producers::{GAPLESS, Producers, Window};
pub use relay::{Cluster, Leader, RelayLimits};
pub use rooms::{Recalled, RoomHandle, RoomInfo};
pub use rows::{Kept, Owner, RowPage, RowTotals, Rows};
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
    #[must_use]
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
        /// The control plane's number.
        ticket: u64,
        /// Index in the batch.
        item: u32,
    },
    /// One request of a scatter-gather request.
    Gathering {
        /// Number of the scatter-gather request on its shard.
        number: u32,
        /// Index of this request in it.
        item: u32,
    },
    /// A connection that reads retained messages.
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

/// The outcome of a publish.
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
    #[must_use]
    pub fn again(position: Position) -> Published {
        Published { receivers: 0, position, is_duplicate: true }
    }
}

/// A response at once, or one that [`Sink::answer`] delivers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<T> {
    Now(T),
    /// The response follows in another turn.
    Later,
}

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
    /// To a request for a page of entries.
    Rows(Result<RowPage, ErrorCode>),
}

/// How a record matched a connection's subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via<'a> {
    Topic,
    /// By a pattern: its id, constant while it has subscribers, and its text.
    Pattern(u32, &'a [u8]),
    /// As a member of a group, by its text.
    Group(&'a [u8]),
}

/// The result of a delivery to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// It is in its output.
    Taken,
    /// Its output is at the limit; nothing was added.
    Full,
}

/// The reason for which the broker closes a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// Its output is at the limit, and its room's class requires a disconnect.
    OutputLimit,
    /// It would miss records without a notification, and its room's class requires a disconnect.
    Gap,
    /// The shard has too many subscriptions that catch up.
    TooManyCursors,
}

/// The actions of a broker.
pub trait Sink {
    /// The next calls of `deliver` are for another record than the previous ones.
    fn record_begins(&mut self);
    /// Delivers a record to a connection of this shard.
    fn deliver(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery;
    /// A record of a group with this text and number of members that no present member accepts: for an
    /// offline session that may be resumed.
    fn keep_for_absent(&mut self, _conn: u32, _group: (&[u8], u64), _record: &RecordView<'_>) -> Delivery {
        Delivery::Full
    }
    /// A record for a connection whose output is at the limit, in a class that loses records: `policy` is
    /// `DropOldest` or `Conflate`. Dropped records are counted, and reported where the protocol supports
    /// that.
    fn squeeze(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>, policy: OnSlow, on_gap: OnGap);
    /// Reports that records from `from` to `to` will never reach this connection.
    fn gap(&mut self, conn: u32, topic: &[u8], from: Position, to: Position, on_gap: OnGap);
    /// Closes a connection after this turn.
    fn close(&mut self, conn: u32, reason: CloseReason);
    /// Whether replayed records still fit into a connection's output.
    fn wants_replay(&self, conn: u32) -> bool;
    /// A connection gets past records, as fast as it accepts them.
    fn replays(&mut self, _conn: u32) {}
    /// The name of a connection as a publisher.
    fn publisher(&self, conn: u32) -> Box<str>;
    /// The protocol of a connection; none for the internal client.
    fn protocol(&self, conn: u32) -> Option<Protocol>;
    /// The last record of a room in a hub's log, if there is one.
    fn recall(&self, hub: HubId, room: &[u8]) -> Option<Recalled>;
    /// The offset up to which `recall` takes the hub's log into account.
    fn recalls_through(&self, hub: HubId) -> u64;
    /// Passes a record to a hub's log, the next after the previous ones.
    fn append(&mut self, hub: HubId, offset: u64, room: &[u8], record: &Record);
    /// As `append`, for the deletion of a room with all its earlier records.
    fn append_deletion(&mut self, hub: HubId, offset: u64, room: &[u8], last: Position, timestamp_us: u64);
    /// The error with which a hub's log refuses records at present, if any.
    fn log_refuses(&self, hub: HubId) -> Option<ErrorCode>;
    /// Whether so much waits for the disk that publishers have to wait.
    fn log_is_behind(&self) -> bool;
    /// Sends a read to a log; [`Broker::log_read`] gets the result.
    fn read_log(&mut self, read: Box<LogRead>);
    /// As `read_log`, for records of a whole hub; [`Broker::hub_log_read`] gets the result.
    fn read_hub_log(&mut self, read: Box<HubLogRead>);
    /// The response to a history request that had to wait for the log.
    fn history(&mut self, ask: Ask, part: Result<HistoryPart, ErrorCode>);
    /// A room's deletion is committed to the log, or its outcome is unknown.
    fn deleted(&mut self, ask: Ask, outcome: Result<(), ErrorCode>);
    fn send(&mut self, to: ShardId, msg: Msg);
    /// Whether another shard is congested, so that nothing big should be sent to it.
    fn congested(&self, to: ShardId) -> bool;
    /// Sends a message to another node over this hub's link. Without a cluster there is no node.
    ///
    /// # Errors
    /// The link is down or accepts no more at present: returns the message, which the broker keeps until it
    /// is notified that the link has ended.
    fn send_node(&mut self, _node: NodeId, _hub: HubId, message: NodeMessage) -> Result<(), NodeMessage> {
        Err(message)
    }
    /// Whether records for a node would be sent at once over this hub's link; otherwise the node reads them
    /// later.
    fn node_flows(&self, _node: NodeId, _hub: HubId) -> bool {
        false
    }
    /// Whether a node has been silent on this hub's link for so long that it may be dead.
    fn node_is_silent(&self, _node: NodeId, _hub: HubId) -> bool {
        false
    }
    /// Whether this process may lead a hub of a class without a log in this term now. Without a cluster it
    /// always may.
    fn leads(&self, _hub: HubId, _term: Term) -> bool {
        true
    }
    /// Requests the place of a room. [`Broker::rooms_placed`] or [`Broker::room_refused`] gets the response.
    /// `makes`: the room gets a place if it has none; otherwise [`Broker::room_absent`] reports that it has
    /// none.
    fn room_miss(&mut self, _class: ClassIndex, _room: &[u8], _makes: bool) {}
    /// Requests a consumer's stored position. [`Broker::consumer_loaded`] gets it.
    fn load_consumer(&mut self, _source: &Arc<[u8]>) {}
    /// Stores a consumer's position in place of the previous one. [`Broker::consumer_saved`] gets the
    /// outcome.
    fn save_consumer(&mut self, _source: &Arc<[u8]>, _row: Vec<u8>) {}
    /// Dead-letters a record that was delivered too often without acknowledgement; it is acknowledged then.
    fn bury(&mut self, _source: &Arc<[u8]>, _record: &Arc<Record>) {}
    /// The response to a request whose outcome was [`Outcome::Later`].
    fn answer(&mut self, asker: Asker, answer: Answer);
}

/// Messages between brokers of two shards. Ordered between each pair.
#[derive(Debug)]
pub enum Msg {
    /// Edge to hub: a record without a position, with the revision by which the edge knows its room.
    Publish(Ticket, Arc<Record>, u64),
    /// Hub to edge: the outcome of a publish.
    Published(Ticket, Result<Published, ErrorCode>),
    /// Edge to hub: a new subscription, or another start of one.
    Attach(Box<Attach>),
    /// Hub to edge: the result of a subscription.
    Attached(Box<(Attach, Result<Attached, ErrorCode>)>),
    /// Edge to hub: removal of a subscription, with the revision by which it was counted.
    Detach(ShardId, Namespace, Arc<[u8]>, u64),
    /// Edge to all: `true`: one more subscription to this pattern; `false`: one less.
    Pattern(ShardId, Arc<[u8]>, bool, Option<u32>),
    /// All to edge: the pattern of that entry of the waiting list is held.
    PatternHeld(u32),
    /// Hub to edge: a committed record, with the revision of its room.
    Deliver(Arc<Record>, u64),
    /// Home to edge: a record for one of its members of a group.
    Give(Box<Give>),
    /// Edge to home: no member accepted the record, or the one that did left without acknowledging it.
    GiveAgain(ShardId, Box<Give>),
    /// Edge to home: a member of that group acknowledges the record at this position.
    Acknowledge(Arc<[u8]>, Position),
    /// Edge to hub: a read of a cursor.
    Read(Box<cursors::Read>),
    /// Hub to edge: the result of a read of a cursor.
    Range(Box<(cursors::Read, cursors::Range)>),
    /// Edge to home: a read of a whole hub.
    ReadHub(Box<HubRead>),
    /// Home to edge: the result of a read of a whole hub.
    HubRange(Box<(HubRead, HubRange)>),
    /// Home to edge: records of a hub up to this offset may be missing, or arrive late.
    HubLack(HubId, u64),
    /// Home to edge: records that no subscriber of a topic will get.
    Gap(Box<Gap>),
    /// Home to edge: followers by pattern may miss records of a hub of this class.
    Lack(ClassIndex),
    /// Home to edge: a room is no longer there, and the edge has to leave it.
    Moved(Box<Moved>),
    /// Edge to home: the edge sends no further requests for this room.
    Leave(ShardId, Arc<[u8]>),
    /// Home to edge: all requests for the room are answered, or returned.
    Left(Box<Left>),
    /// Edge to home: a request for the number of subscribers in the whole cluster.
    Count(Ticket, rooms::TopicKey),
    /// To the home of a room, from the shard where the request waited for its place: a history request.
    History(Box<(rooms::HistoryQuery, Ask)>),
    /// Home to edge: the number of subscribers.
    Counted(Ticket, Result<u64, ErrorCode>),
    /// To all: a flush barrier of that shard, with its number; the flag: include other nodes.
    Settle(ShardId, u32, bool),
    /// The flush barrier with that number is complete.
    Settled(u32),
    /// Edge to the home of a hub of entries: a request for a page.
    Rows(Box<RowsAsk>),
    /// Home to edge: a page of entries.
    RowsCame(Box<(Ticket, Result<RowPage, ErrorCode>)>),
    /// Shard 0 to all: patterns of another node.
    NodePatterns(Box<relay::patterns::PatternChange>),
    /// All to shard 0: this shard holds the set of that node, session and version.
    NodePatternsHeld(ShardId, NodeId, u64, u64),
}

/// Records that subscribers of a topic will not get.
#[derive(Clone, Debug)]
pub struct Gap {
    pub namespace: Namespace,
    pub topic: Arc<[u8]>,
    /// The first missing record.
    pub from: Position,
    /// The last missing record; seq 0: the epoch has ended.
    pub to: Position,
}

/// A room that is no longer at the home where a shard has it.
#[derive(Clone, Debug)]
pub struct Moved {
    pub room: Arc<[u8]>,
    /// The room's previous home.
    pub home: ShardId,
    /// Its topics with subscribers on the shard, each with the last record that was sent there; epoch 0:
    /// there was none.
    pub topics: Vec<(rooms::TopicKey, Position)>,
}

/// A room that a shard has left.
#[derive(Clone, Debug)]
pub struct Left {
    pub room: Arc<[u8]>,
    /// Publishes that are returned to the shard, in order.
    pub back: Vec<(Ticket, Arc<Record>)>,
}

impl Msg {
    /// Bytes that this message keeps allocated, for limits of mailboxes.
    #[must_use]
    pub fn weight(&self) -> usize {
        std::mem::size_of::<Msg>()
            + match self {
                Msg::Publish(_, record, _) | Msg::Deliver(record, _) => record.weight(),
                Msg::Give(give) | Msg::GiveAgain(_, give) => give.record.weight(),
                Msg::Left(left) => left.back.iter().map(|(_, record)| record.weight()).sum(),
                Msg::Range(b) => b.1.records.iter().map(|r| r.weight()).sum(),
                Msg::HubRange(b) => b.1.records.iter().map(|r| r.weight()).sum(),
                Msg::RowsCame(b) => b.1.iter().flat_map(|page| &page.rows).map(|row| row.weight()).sum(),
                _ => 0,
            }
    }
}

/// A subscription in flight to the hub and back.
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
    /// Set if it follows a moved room: the last record of the previous place that the subscriber has; epoch
    /// 0: it has none.
    pub left: Option<Position>,
}
