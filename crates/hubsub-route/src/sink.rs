//! The world of a broker: what it does through [`Sink`], and what it asks there while it handles an event.

use crate::requests::{Answer, Ask, Asker, HistoryPart};
use crate::rooms::Recalled;
use crate::{HubLogRead, LogRead, Msg, NodeMessage, Now, Record, RecordView};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ErrorCode, HubId, NodeId, OnGap, OnSlow, Position, Protocol, ShardId, Term};
use std::sync::Arc;

/// How a record matched a connection's subscription.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Via<'a> {
    Topic,
    /// By a pattern: its id, constant while it has subscribers, and its text.
    Pattern(u32, &'a [u8]),
    /// As a member of a group, by its text.
    Group(&'a [u8]),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Delivery {
    /// It is in its output.
    Taken,
    /// Its output is at the limit; nothing was added.
    Full,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// Its output is at the limit, and its room's class requires a disconnect.
    OutputLimit,
    /// It would miss records without a notification, and its room's class requires a disconnect.
    Gap,
    /// The shard has too many subscriptions that catch up.
    TooManyCursors,
}

/// The turn in which the broker handles an event.
pub(crate) struct Turn<'a, S> {
    pub(crate) now: Now,
    pub(crate) sink: &'a mut S,
}

pub trait Sink {
    /// The next calls of `deliver` are for another record than the previous ones.
    fn record_begins(&mut self);
    fn deliver(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery;
    /// A record of a group (text, number of members) that no present member accepts, for an offline session.
    fn keep_for_absent(&mut self, _conn: u32, _group: (&[u8], u64), _record: &RecordView<'_>) -> Delivery {
        Delivery::Full
    }
    /// A record for a connection whose output is at the limit, in a class that loses records: `policy` is
    /// `DropOldest` or `Conflate`. Dropped records are counted, and reported where the protocol supports
    /// that.
    fn squeeze(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>, policy: OnSlow, on_gap: OnGap);
    /// Reports that records from `from` to `to` will never reach this connection.
    fn gap(&mut self, conn: u32, topic: &[u8], from: Position, to: Position, on_gap: OnGap);
    fn close(&mut self, conn: u32, reason: CloseReason);
    /// Whether replayed records still fit into a connection's output.
    fn wants_replay(&self, conn: u32) -> bool;
    /// A connection gets past records, as fast as it accepts them.
    fn replays(&mut self, _conn: u32) {}
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
    /// Sends a read to a log; [`crate::Broker::log_read`] gets the result.
    fn read_log(&mut self, read: Box<LogRead>);
    /// As `read_log`, for records of a whole hub; [`crate::Broker::hub_log_read`] gets the result.
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
    /// Whether records for a node would be sent at once over this hub's link; otherwise it reads them.
    fn node_flows(&self, _node: NodeId, _hub: HubId) -> bool {
        false
    }
    /// Whether a node has been silent on this hub's link for so long that it may be dead.
    fn node_is_silent(&self, _node: NodeId, _hub: HubId) -> bool {
        false
    }
    /// Whether this process may lead a hub without a log in this term; always without a cluster.
    fn leads(&self, _hub: HubId, _term: Term) -> bool {
        true
    }
    /// Requests the place of a room. [`crate::Broker::rooms_placed`] or [`crate::Broker::room_refused`] gets the response.
    /// `makes`: the room gets a place if it has none; otherwise [`crate::Broker::room_absent`] reports that it has
    /// none.
    fn room_miss(&mut self, _class: ClassIndex, _room: &[u8], _makes: bool) {}
    /// Requests a consumer's stored position. [`crate::Broker::consumer_loaded`] gets it.
    fn load_consumer(&mut self, _source: &Arc<[u8]>) {}
    /// Replaces a consumer's stored position. [`crate::Broker::consumer_saved`] gets the outcome.
    fn save_consumer(&mut self, _source: &Arc<[u8]>, _row: Vec<u8>) {}
    /// Dead-letters a record that was delivered too often without acknowledgement; it is acknowledged then.
    fn bury(&mut self, _source: &Arc<[u8]>, _record: &Arc<Record>) {}
    /// The time since 1970 now, in µs, for the steps of [`crate::traces`].
    fn wall_us(&self) -> u64 {
        0
    }
    /// The response to a request whose outcome was [`crate::Outcome::Later`].
    fn answer(&mut self, asker: Asker, answer: Answer);
}
