//! Messages between the brokers of two shards of a node.

use crate::requests::{Ask, Attach, HistoryQuery, Published, RowsAsk, Ticket};
use crate::rooms::TopicKey;
use crate::{Attached, Give, HubRange, HubRead, Namespace, Record, RowPage};
use crate::{cursors, relay};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ErrorCode, HubId, NodeId, Position, ShardId};
use std::sync::Arc;

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
    Count(Ticket, TopicKey),
    /// To the home of a room, from the shard where the request waited for its place: a history request.
    History(Box<(HistoryQuery, Ask)>),
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
    NodePatterns(Box<relay::PatternChange>),
    /// All to shard 0: this shard holds the set of that node, session and version.
    NodePatternsHeld(ShardId, NodeId, u64, u64),
}

#[derive(Clone, Debug)]
pub struct Gap {
    pub namespace: Namespace,
    pub topic: Arc<[u8]>,
    /// The first missing record.
    pub from: Position,
    /// The last missing record; seq 0: the epoch has ended.
    pub to: Position,
}

#[derive(Clone, Debug)]
pub struct Moved {
    pub room: Arc<[u8]>,
    /// The room's previous home.
    pub home: ShardId,
    /// Its topics with subscribers on the shard, each with the last record sent there; epoch 0: none.
    pub topics: Vec<(TopicKey, Position)>,
}

#[derive(Clone, Debug)]
pub struct Left {
    pub room: Arc<[u8]>,
    /// Publishes that are returned to the shard, in order.
    pub back: Vec<(Ticket, Arc<Record>)>,
}

impl Msg {
    /// Bytes that this message keeps allocated, for limits of mailboxes.
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
