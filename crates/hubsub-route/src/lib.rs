//! The pure broker: one `Broker` a shard.
//!
//! It owns what a shard knows of topics, patterns, rooms, history and lagging
//! subscribers, and nothing else: no socket, no clock, no thread. Events come
//! in as method calls with the time as an argument; actions go out through
//! [`Sink`], which the node implements with sockets and mailboxes and the
//! tests with vectors.
//!
//! A message's way: the edge shard's [`Broker::publish`] finds the topic's
//! route; on the room's hub shard the record gets its position, enters the
//! history and is sent once to every shard with interest; each of those fans
//! it out to its own connections.
//!
//! - [`topics`]: the edge's subscription table and route cache
//! - [`patterns`]: pattern subscriptions, replicated to all shards
//! - [`groups`]: subscribers that share records
//! - [`consumers`]: those of them that keep their place
//! - [`rooms`]: the hub's table: epoch, seq, interest, history
//! - [`history`]: bounded rings, and the per-hub bound over them
//! - [`hubs`]: the hubs of a shard: offsets, and records that the log has yet to make safe
//! - [`producers`]: numbered records, of which each is kept once
//! - [`logread`]: questions to the log, for what memory has no more
//! - [`hubread`]: reads of whole hubs; [`pages`]: of whole rooms
//! - [`cursors`]: subscribers that catch up
//! - [`claims`]: who holds a client id
//! - [`rows`]: retained messages
//! - [`occupancy`]: how many are in a room
//! - [`presence`]: who is in a room
//! - [`relay`]: hubs that other nodes lead
//! - [`ring`]: which hub, and so which shard, a room belongs to
//! - [`places`]: rooms that are elsewhere than the ring has them
//! - [`topk`], [`traffic`]: what is told of busy rooms and of hubs

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
pub mod publisher;
pub mod record;
pub mod relay;
pub mod ring;
pub mod rooms;
pub mod rows;
pub mod sparse;
pub mod topics;
pub mod topk;
pub mod traffic;

use hubsub_types::class::ClassIndex;
use hubsub_types::{
    ConnKey, ErrorCode, HubId, NodeId, OnGap, OnSlow, Position, Protocol, Seq, ShardId, Term,
};
use rooms::HistoryPart;
use std::sync::Arc;

pub use broker::{Broker, Draft, HubsFrom, Publisher, RowsAsk, Settings, Wish};
pub use groups::Give;
pub use hubread::{HubFilter, HubLogRead, HubRange, HubRead, HubThen};
pub use hubs::{HubSeed, Hubs};
pub use logread::{Ask, Found, Known, LogRead, Then, Want};
pub use pages::Pages;
pub use producers::{GAPLESS, Producer, Producers, Window};
pub use publisher::{PUBLISHER_BYTES_MAX, is_publisher, publisher_name};
pub use record::{Headers, LogPlace, Namespace, Record, RecordView};
pub use relay::{AskId, Cluster, Leader, Names, NodeMessage, RelayLimits};
pub use rooms::{Recalled, RoomHandle, RoomInfo};
pub use rows::{Kept, Owner, RowPage, RowTotals, Rows};
pub use topk::Busy;
pub use traffic::{Traffic, TrafficTotals};

/// The time of an event, given by the caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct Now {
    /// Monotonic, in ms.
    pub mono_ms: u64,
    /// Since 1970, in µs.
    pub wall_us: u64,
}

/// Where an answer goes: the shard that asked, and what it wrote down there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The shard that asked.
    pub shard: ShardId,
    /// Who asked.
    pub asker: Asker,
}

/// Who waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asker {
    /// A reply slot of a connection.
    Client {
        /// The connection.
        conn: ConnKey,
        /// Its reply slot.
        slot: u32,
    },
    /// A request of the control plane: its ticket and the item of its batch.
    Control {
        /// As the control plane numbered it.
        ticket: u64,
        /// Place in the batch.
        item: u32,
    },
    /// A question that is gathered: one of several that it consists of.
    Gathering {
        /// As its shard numbered it.
        number: u32,
        /// Which of them.
        item: u32,
    },
    /// A connection that reads retained messages.
    Retained {
        /// The connection.
        conn: ConnKey,
        /// As it calls what it reads.
        number: u32,
    },
    /// The leader of a room, of a row that it writes for a record of that.
    Row(u64),
    /// Another node.
    Node {
        /// Which.
        node: NodeId,
        /// Its number for the request.
        ask: AskId,
        /// By whose link it came.
        hub: HubId,
    },
}

/// What came of a publish.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Published {
    /// Subscribers in the whole room, patterns included.
    pub receivers: u64,
    /// Where the record stands; zero where no room took it.
    pub position: Position,
    /// Whether it stood there before: then nobody gets it again, and `receivers` is 0.
    pub is_duplicate: bool,
}

impl Published {
    /// The answer to a record that is there already.
    #[must_use]
    pub fn again(position: Position) -> Published {
        Published { receivers: 0, position, is_duplicate: true }
    }
}

/// Where a new subscription begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// With the next record.
    Live,
    /// Behind this position.
    After(Position),
    /// With the last `n` records of the topic.
    Last(u64),
    /// With the first record that is not older than this, in µs since 1970.
    Since(u64),
}

/// What a hub confirmed to a new subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attached {
    /// The room's last record when interest began.
    pub position: Position,
    /// First record to replay; none when the subscription is live at once.
    pub replay_from: Option<Seq>,
    /// Whether everything that was asked for is there.
    pub recovered: bool,
}

/// An answer at once, or one that [`Sink::answer`] will bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome<T> {
    /// Known now.
    Now(T),
    /// To come, in another turn.
    Later,
}

/// An answer that was not known at once.
#[derive(Clone, Debug)]
pub enum Answer {
    /// To a publish.
    Published(Result<Published, ErrorCode>),
    /// To a subscription.
    Attached(Result<Attached, ErrorCode>),
    /// To a pattern subscription: every shard holds the pattern, and every node that is linked.
    PatternHeld,
    /// To a question how many subscribe to a topic in the whole cluster.
    Counted(Result<u64, ErrorCode>),
    /// To a question where the logs of all hubs end: the last committed offset of each.
    HubEnds(Result<Vec<(HubId, u64)>, ErrorCode>),
    /// To a question whether rows that were under way are written.
    Settled,
    /// To a question for rows.
    Rows(Result<RowPage, ErrorCode>),
}

/// How a record matched a connection's subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via<'a> {
    /// By its topic.
    Topic,
    /// By a pattern: its id, constant while it has subscribers, and its text.
    Pattern(u32, &'a [u8]),
    /// As a member of a group, by its text.
    Group(&'a [u8]),
}

/// What a connection did with a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// It is in its output.
    Taken,
    /// Its output is at the limit; nothing was added.
    Full,
}

/// Why the broker wants a connection closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// Its output is at the limit and its room's class says so.
    OutputLimit,
    /// It would miss records without being told, and its room's class says so.
    Gap,
    /// Too many subscriptions are catching up.
    TooManyCursors,
}

/// The actions of a broker.
pub trait Sink {
    /// The next calls of `deliver` are of another record than those before.
    fn record_begins(&mut self);
    /// A record for a connection of this shard.
    fn deliver(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery;
    /// A record of a group of so many members that none takes who is there: for one whose client is away and comes back.
    fn keep_for_absent(&mut self, _conn: u32, _group: (&[u8], u64), _record: &RecordView<'_>) -> Delivery {
        Delivery::Full
    }
    /// A record for a connection whose output is at the limit, in a class that
    /// loses records: `policy` is `DropOldest` or `Conflate`. What gives way is
    /// counted, and told where the protocol has words.
    fn squeeze(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>, policy: OnSlow, on_gap: OnGap);
    /// Records from `from` to `to` will never reach this connection.
    fn gap(&mut self, conn: u32, topic: &[u8], from: Position, to: Position, on_gap: OnGap);
    /// Close a connection once this turn is over.
    fn close(&mut self, conn: u32, reason: CloseReason);
    /// Whether replayed records still fit into a connection's output.
    fn wants_replay(&self, conn: u32) -> bool;
    /// A connection gets records of the past, as fast as it takes them.
    fn replays(&mut self, _conn: u32) {}
    /// The name of a connection as a publisher.
    fn publisher(&self, conn: u32) -> Box<str>;
    /// What a connection speaks; none for the node itself.
    fn protocol(&self, conn: u32) -> Option<Protocol>;
    /// The last record of a room that a hub's log has, if it has any.
    fn recall(&self, hub: HubId, room: &[u8]) -> Option<Recalled>;
    /// What a recall of any room of the hub takes into account: the log up to this offset.
    fn recalls_through(&self, hub: HubId) -> u64;
    /// A record for a hub's log, the next after those before.
    fn append(&mut self, hub: HubId, offset: u64, room: &[u8], record: &Record);
    /// Likewise, that a room and all its records before are gone.
    fn append_deletion(&mut self, hub: HubId, offset: u64, room: &[u8], last: Position, timestamp_us: u64);
    /// Why a hub's log takes nothing at present, if so.
    fn log_refuses(&self, hub: HubId) -> Option<ErrorCode>;
    /// Whether so much waits for the disk that publishers must.
    fn log_is_behind(&self) -> bool;
    /// A question to a log; [`Broker::log_read`] brings the answer.
    fn read_log(&mut self, read: Box<LogRead>);
    /// Likewise for records of a whole hub; [`Broker::hub_log_read`] brings them.
    fn read_hub_log(&mut self, read: Box<HubLogRead>);
    /// The answer to a question for history that had to wait for the log.
    fn history(&mut self, ask: Ask, part: Result<HistoryPart, ErrorCode>);
    /// A room's deletion is safe, or what came of it is not known.
    fn deleted(&mut self, ask: Ask, outcome: Result<(), ErrorCode>);
    /// A message for another shard's broker.
    fn send(&mut self, to: ShardId, msg: Msg);
    /// Whether another shard is behind, so that nothing big should be sent.
    fn congested(&self, to: ShardId) -> bool;
    /// A message for another node, by this hub's link. Without a cluster there is none to send to.
    ///
    /// # Errors
    /// The link is down or takes no more at present: the message, which the broker keeps as long
    /// as it has not heard that the link has ended.
    fn send_node(&mut self, _node: NodeId, _hub: HubId, message: NodeMessage) -> Result<(), NodeMessage> {
        Err(message)
    }
    /// Whether records for a node, by this hub's link, would go out at once; else it reads
    /// them later.
    fn node_flows(&self, _node: NodeId, _hub: HubId) -> bool {
        false
    }
    /// Whether a node has not been heard by this hub's link for so long that it may be dead.
    fn node_is_silent(&self, _node: NodeId, _hub: HubId) -> bool {
        false
    }
    /// Whether this process may lead a hub of a class without a log in this term now. Without a cluster
    /// it always may.
    fn leads(&self, _hub: HubId, _term: Term) -> bool {
        true
    }
    /// Where is this room? [`Broker::rooms_placed`] or [`Broker::room_refused`] says it. `makes`: it gets a place if it
    /// has none; else [`Broker::room_absent`] says so.
    fn room_miss(&mut self, _class: ClassIndex, _room: &[u8], _makes: bool) {}
    /// Where does a consumer stand? [`Broker::consumer_loaded`] says it.
    fn load_consumer(&mut self, _source: &Arc<[u8]>) {}
    /// That is where it stands: kept instead of what was kept of it before. [`Broker::consumer_saved`] says when.
    fn save_consumer(&mut self, _source: &Arc<[u8]>, _row: Vec<u8>) {}
    /// A record was given too often and never acknowledged: it is put where such records go, and acknowledged then.
    fn bury(&mut self, _source: &Arc<[u8]>, _record: &Arc<Record>) {}
    /// The answer to a request whose outcome was [`Outcome::Later`].
    fn answer(&mut self, asker: Asker, answer: Answer);
}

/// What brokers of two shards say to each other. Ordered between each pair.
#[derive(Debug)]
pub enum Msg {
    /// Edge to hub: a record without a position yet, by the revision by which the edge knows its room.
    Publish(Ticket, Arc<Record>, u64),
    /// Hub to edge.
    Published(Ticket, Result<Published, ErrorCode>),
    /// Edge to hub: a subscription more, or another start of one.
    Attach(Box<Attach>),
    /// Hub to edge.
    Attached(Box<(Attach, Result<Attached, ErrorCode>)>),
    /// Edge to hub: a subscription less, by the revision by which it was counted.
    Detach(ShardId, Namespace, Arc<[u8]>, u64),
    /// Edge to all: `true` a subscription of this pattern more, `false` one less.
    Pattern(ShardId, Arc<[u8]>, bool, Option<u32>),
    /// All to edge: the pattern of that waiting list entry is held.
    PatternHeld(u32),
    /// Hub to edge: a committed record, by the revision of its room.
    Deliver(Arc<Record>, u64),
    /// Home to edge: a record for one of its members of a group.
    Give(Box<Give>),
    /// Edge to home: nobody took it, or who did has gone without a word.
    GiveAgain(ShardId, Box<Give>),
    /// Edge to home: a member of that group has done with the record of this position.
    Acknowledge(Arc<[u8]>, Position),
    /// Edge to hub: a cursor wants records.
    Read(Box<cursors::Read>),
    /// Hub to edge: those records.
    Range(Box<(cursors::Read, cursors::Range)>),
    /// Edge to home: records of a whole hub are wanted.
    ReadHub(Box<HubRead>),
    /// Home to edge: those records.
    HubRange(Box<(HubRead, HubRange)>),
    /// Home to edge: records of a hub up to this offset may not have come, or come late.
    HubLack(HubId, u64),
    /// Home to edge: records that nobody of a topic will get.
    Gap(Box<Gap>),
    /// Home to edge: records of a hub of this class may be missing for patterns.
    Lack(ClassIndex),
    /// Home to edge: a room is there no more, and is to be left.
    Moved(Box<Moved>),
    /// Edge to home: nothing more is asked of this room there.
    Leave(ShardId, Arc<[u8]>),
    /// Home to edge: all that was asked of the room is answered, or given back.
    Left(Box<Left>),
    /// Edge to home: how many subscribe in the whole cluster?
    Count(Ticket, rooms::TopicKey),
    /// To the home of a room, from where its place was waited for: what it remembers.
    History(Box<(rooms::HistoryQuery, Ask)>),
    /// Home to edge.
    Counted(Ticket, Result<u64, ErrorCode>),
    /// To all: are the rows written that are under way from there? By this number; the flag: on other nodes as well.
    Settle(ShardId, u32, bool),
    /// They are, by that number.
    Settled(u32),
    /// Edge to the home of a hub of rows: a page, please.
    Rows(Box<RowsAsk>),
    /// Home to edge.
    RowsCame(Box<(Ticket, Result<RowPage, ErrorCode>)>),
    /// First shard to all: patterns of another node.
    NodePatterns(Box<relay::patterns::PatternChange>),
    /// All to the first shard: those of that node, session and version are held by this shard.
    NodePatternsHeld(ShardId, NodeId, u64, u64),
}

/// Records that subscribers of a topic will not get.
#[derive(Clone, Debug)]
pub struct Gap {
    /// Of the topic.
    pub namespace: Namespace,
    /// The topic.
    pub topic: Arc<[u8]>,
    /// The first of them.
    pub from: Position,
    /// The last; seq 0: the epoch is over.
    pub to: Position,
}

/// A room that is there no more where a shard had it.
#[derive(Clone, Debug)]
pub struct Moved {
    /// The room.
    pub room: Arc<[u8]>,
    /// Where it was.
    pub home: ShardId,
    /// Its topics with subscribers on the shard, each behind the last record that went there; epoch 0: there was none.
    pub topics: Vec<(rooms::TopicKey, Position)>,
}

/// A room that a shard has left.
#[derive(Clone, Debug)]
pub struct Left {
    /// The room.
    pub room: Arc<[u8]>,
    /// Publishes that the shard gets back, in order.
    pub back: Vec<(Ticket, Arc<Record>)>,
}

impl Msg {
    /// Bytes that this message keeps from being freed, for mailbox limits.
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

/// A subscription on its way to the hub and back.
#[derive(Clone, Debug)]
pub struct Attach {
    /// Who waits for the confirmation.
    pub ticket: Ticket,
    /// The connection on the edge shard.
    pub conn: u32,
    /// With the topic, what is subscribed to.
    pub namespace: Namespace,
    /// See `namespace`.
    pub topic: Arc<[u8]>,
    /// Where it begins.
    pub start: Start,
    /// Whether this is a subscription more, not one that starts anew.
    pub adds: bool,
    /// Unique on the edge while it is under way.
    pub id: u32,
    /// Where it was sent, on this node.
    pub home: ShardId,
    /// By which revision of the room.
    pub revision: u64,
    /// Whether it follows a room that was moved, and then the last record from where that was, which the subscriber
    /// has; epoch 0: it has none.
    pub left: Option<Position>,
}
