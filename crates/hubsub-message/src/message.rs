//! Messages between brokers of two nodes.
//!
//! Messages about a hub travel over the hub's link, in order, except for responses to reads, which have their
//! own lane. Messages about patterns belong to no hub: they travel as if they belonged to hub 0, whose home
//! is shard 0 on every node.

mod placed;

use crate::{Attached, HubFilter, Lane, Namespace, Record, Start, frames};
use hubsub_types::{Epoch, ErrorCode, HubId, Position, Seq, ShardId, Term};
use placed::{deliver, give, range};
use std::sync::Arc;

/// The hub over whose link messages about patterns travel.
pub const PATTERNS: HubId = HubId(0);

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    pub namespace: Namespace,
    pub room: Arc<[u8]>,
    /// The topic; empty for the whole room.
    pub topic: Arc<[u8]>,
}

/// A number that the requester gave to a request: its last bits are the requester's shard, so that the
/// response can be routed to it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AskId(pub u64);

impl AskId {
    /// No response is requested.
    pub const NONE: AskId = AskId(0);
    const SHARD_BITS: u32 = 8;

    /// The `number`th request of a shard, from 1.
    pub fn new(number: u64, shard: ShardId) -> AskId {
        AskId((number << Self::SHARD_BITS) | u64::from(shard.0))
    }

    pub fn shard(self) -> ShardId {
        ShardId((self.0 & ((1 << Self::SHARD_BITS) - 1)) as u16)
    }
}

/// A record in flight to one member of a group.
#[derive(Clone, PartialEq, Debug)]
pub struct Give {
    /// The group and its filter, in the text form of patterns.
    pub group: Arc<[u8]>,
    /// The record, with its position.
    pub record: Arc<Record>,
    /// How often no member accepted it.
    pub tries: u8,
    /// Whether a member had it and was lost.
    pub was_taken: bool,
}

/// Numbers that a leader reports of a leadership that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct LeadershipEnd {
    /// Identifies the leadership that has ended.
    pub epoch: Epoch,
    /// The number of records that were expected at this node, or may have been.
    pub expected: u64,
    /// The number of committed records.
    pub committed: u64,
}

frames! {
    /// A message between brokers of two nodes.
    ///
    /// `ask` is the requester's number for a request; a response returns it. `hub` is the hub of the room,
    /// and `term` its term, as the sender knows them. Any request may be answered by `NotMine` or `Denied`.
    pub enum NodeMessage {
        /// Edge to leader: a record without a position yet.
        16 Publish Live {
            ask: AskId,
            hub: HubId,
            term: Term,
            /// With the edge's own sequence number. The receiver has the only reference to it.
            record: Arc<Record>,
        }
        /// Leader to edge: the record is committed.
        17 Published Live {
            ask: AskId,
            /// Whether it is a duplicate, committed before.
            again: bool,
            /// The record's position; zero if no room stored it.
            position: Position,
            /// Subscribers in the whole cluster.
            receivers: u64,
        }
        /// Response to any request: this node does not lead the hub, or leads it in another term.
        18 NotMine Live {
            ask: AskId,
            hub: HubId,
            /// The term that the responding node knows.
            term: Term,
        }
        /// Response to any request: it is refused.
        19 Denied Live {
            ask: AskId,
            code: ErrorCode,
        }
        /// Edge to leader: the number of its clients that subscribe to a topic, at first or again; 0 removes
        /// the interest.
        20 Interest Live {
            /// `NONE` if the interest is removed.
            ask: AskId,
            hub: HubId,
            term: Term,
            names: Names,
            /// Subscribers on the edge, all its shards together.
            count: u32,
            /// The last record of the room that the edge has; zero if it has none.
            known: Position,
            /// Where the newest subscription starts.
            start: Start,
        }
        /// Leader to edge: the interest is registered, and records after this position will be sent.
        21 Attached Live {
            ask: AskId,
            attached: Attached,
        }
        /// Edge to leader: only the number of subscribers changed. From a leader to a node that it counted:
        /// it no longer does, and the number is 0.
        22 Counts Live {
            hub: HubId,
            term: Term,
            names: Names,
            count: u32,
        }
        /// To a leader: requests the number of subscribers.
        23 CountAsk Live {
            ask: AskId,
            hub: HubId,
            term: Term,
            names: Names,
            /// Whether the response waits until the topic's retained messages in flight are stored.
            settles: bool,
        }
        /// The response to `CountAsk`.
        24 Counted Live {
            ask: AskId,
            /// Subscribers in the whole cluster.
            count: u64,
        }
        /// Leader to a node with interest: a committed record.
        25 Deliver Live by deliver {
            hub: HubId,
            term: Term,
            /// Seq of the room's previous record that was expected at this node.
            previous: Seq,
            /// The previous offset in the hub's log that was expected at this node; 0 for a hub without a
            /// log.
            before: u64,
            /// The record with its position, which is zero if no room stored it and only patterns match.
            record: Arc<Record>,
        }
        /// Edge to all possible leaders: the number of its clients that subscribe to a pattern; 0 removes it.
        /// Each change increments the version of the edge's set of patterns.
        26 Pattern Live {
            /// Version of the edge's set, including this change.
            version: u64,
            count: u32,
            /// The subscribed pattern, encoded by `hubsub_types::names`.
            pattern: Arc<[u8]>,
        }
        /// Edge to a node that has joined: begins a copy of the edge's whole set.
        27 PatternsBegin Live {
            version: u64,
            /// Number of entries that follow.
            patterns: u32,
        }
        /// One entry of the set.
        28 PatternsEntry Live {
            count: u32,
            pattern: Arc<[u8]>,
        }
        /// End of the copy.
        29 PatternsEnd Live {
            version: u64,
        }
        /// The response: all shards of the sender hold the receiver's set up to this version.
        30 PatternsHeld Live {
            version: u64,
        }
        /// Edge to a member: requests records from history.
        31 Read Live {
            ask: AskId,
            hub: HubId,
            /// Topic and room; an empty topic selects the whole room.
            names: Names,
            /// Where the records start.
            start: Start,
            /// Most records in the response.
            records_max: u32,
            /// Limit of the response, in bytes.
            bytes_max: u32,
        }
        /// Member to edge: one record of the response, with its position.
        32 Range Reads by range {
            ask: AskId,
            record: Arc<Record>,
        }
        /// Member to edge: end of the response.
        33 RangeEnd Reads {
            ask: AskId,
            /// Position before the oldest record in history, after which a reader may start.
            oldest: Position,
            /// The seq at which the next read continues.
            next: Seq,
            /// First and last seq of the records that history no longer has.
            gap: Option<(Seq, Seq)>,
            /// Whether `next` is after the room's last record.
            at_end: bool,
            /// Whether the room's epoch differs from the requested one.
            is_gone: bool,
        }
        /// Leader to a node: from here on the leader sends it all records of a hub that match its patterns.
        34 PatternsLive Live {
            hub: HubId,
            term: Term,
            /// Distinguishes this leadership of the hub from others.
            epoch: Epoch,
            /// Records of this leadership that were expected at the node so far, or may have been.
            expected: u64,
        }
        /// Edge to a leader: interest is synced: the edge has registered all its interest in rooms of a hub.
        35 InterestSynced Live {
            hub: HubId,
            /// The term of the leader with which it is registered.
            term: Term,
        }
        /// Leader to a node: its leadership of a hub ended: it commits nothing more in it, and has sent all
        /// its records.
        36 LeadershipEnded Live {
            hub: HubId,
            term: Term,
            /// Numbers that the receiver compares with the records that arrived.
            end: LeadershipEnd,
        }
        /// Edge to a member: requests records of all rooms of a hub with a log.
        37 ReadHub Live {
            ask: AskId,
            hub: HubId,
            /// The first requested offset; the greatest number requests only the end of the log.
            next: u64,
            /// Time of the oldest requested record, in µs since 1970.
            since_us: u64,
            /// Most records in the response.
            records_max: u32,
            /// Limit of the response, in bytes.
            bytes_max: u32,
            /// Patterns of which one must match the topic.
            filter: Arc<HubFilter>,
        }
        /// Member to edge: end of the response, after its records.
        38 HubEnd Reads {
            ask: AskId,
            /// The offset at which the next read continues.
            next: u64,
            /// The last committed offset.
            committed: u64,
            /// First and last of the offsets that the log no longer has.
            lost: Option<(u64, u64)>,
        }
        /// Leader to a node with members of a group: delivers a record to one of them. Node to leader: no
        /// member took it, or the member that took it is lost.
        40 Give Live by give {
            hub: HubId,
            give: Give,
        }
        /// To the leader: a member of a group with a stored cursor has acknowledged a record.
        41 Acknowledge Live {
            hub: HubId,
            /// The group and its topic, encoded as in `Pattern`.
            group: Arc<[u8]>,
            position: Position,
        }
        /// Edge to a hub of retained messages: requests those whose topic matches a filter. The responses are
        /// `Range` and `RangeEnd`.
        42 Rows Live {
            ask: AskId,
            hub: HubId,
            /// MQTT filter for the topics.
            filter: Arc<[u8]>,
            /// Only topics after this one; empty: from the first.
            after: Arc<[u8]>,
            /// Limit of the response, in bytes.
            bytes_max: u32,
        }
        /// A flush barrier, to any node: requests a response once all retained messages in flight from its
        /// shards are stored.
        43 SettleAsk Live {
            ask: AskId,
        }
        /// The response, once they are stored.
        44 Settled Live {
            ask: AskId,
        }
    }
}

impl NodeMessage {
    /// The shard that handles the message on a receiving node with `shards` shards.
    pub fn shard(&self, shards: u16) -> ShardId {
        match self {
            NodeMessage::Publish { hub, .. }
            | NodeMessage::Interest { hub, .. }
            | NodeMessage::Counts { hub, .. }
            | NodeMessage::CountAsk { hub, .. }
            | NodeMessage::Deliver { hub, .. }
            | NodeMessage::Give { hub, .. }
            | NodeMessage::Acknowledge { hub, .. }
            | NodeMessage::PatternsLive { hub, .. }
            | NodeMessage::InterestSynced { hub, .. }
            | NodeMessage::LeadershipEnded { hub, .. }
            | NodeMessage::Rows { hub, .. }
            | NodeMessage::Read { hub, .. }
            | NodeMessage::ReadHub { hub, .. } => home(*hub, shards),
            NodeMessage::Published { ask, .. }
            | NodeMessage::NotMine { ask, .. }
            | NodeMessage::Denied { ask, .. }
            | NodeMessage::Attached { ask, .. }
            | NodeMessage::Counted { ask, .. }
            | NodeMessage::Settled { ask }
            | NodeMessage::Range { ask, .. }
            | NodeMessage::RangeEnd { ask, .. }
            | NodeMessage::HubEnd { ask, .. } => ask.shard(),
            NodeMessage::SettleAsk { .. }
            | NodeMessage::Pattern { .. }
            | NodeMessage::PatternsBegin { .. }
            | NodeMessage::PatternsEntry { .. }
            | NodeMessage::PatternsEnd { .. }
            | NodeMessage::PatternsHeld { .. } => home(PATTERNS, shards),
        }
    }

    /// The hub of a request.
    pub fn hub(&self) -> Option<HubId> {
        match self {
            NodeMessage::Publish { hub, .. }
            | NodeMessage::Interest { hub, .. }
            | NodeMessage::Counts { hub, .. }
            | NodeMessage::CountAsk { hub, .. }
            | NodeMessage::Rows { hub, .. }
            | NodeMessage::Read { hub, .. }
            | NodeMessage::ReadHub { hub, .. } => Some(*hub),
            _ => None,
        }
    }

    /// Whether a leader sends it without a request: nobody repeats it.
    pub fn is_of_leader(&self) -> bool {
        matches!(self, NodeMessage::Deliver { .. } | NodeMessage::PatternsLive { .. })
    }

    /// Whether it waits for the credit of reads, and so may overtake others or be overtaken.
    pub fn is_read(&self) -> bool {
        self.lane() == Lane::Reads
    }

    /// Bytes that it keeps allocated.
    pub fn weight(&self) -> usize {
        let own = match self {
            NodeMessage::Publish { record, .. }
            | NodeMessage::Deliver { record, .. }
            | NodeMessage::Range { record, .. } => record.weight(),
            NodeMessage::Interest { names, .. }
            | NodeMessage::Counts { names, .. }
            | NodeMessage::CountAsk { names, .. }
            | NodeMessage::Read { names, .. } => names.room.len() + names.topic.len(),
            NodeMessage::Give { give, .. } => give.record.weight() + give.group.len(),
            NodeMessage::ReadHub { filter, .. } => filter.sources().iter().map(|source| source.len()).sum(),
            NodeMessage::Rows { filter, after, .. } => filter.len() + after.len(),
            NodeMessage::Pattern { pattern, .. } | NodeMessage::PatternsEntry { pattern, .. } => {
                pattern.len()
            }
            _ => 0,
        };
        std::mem::size_of::<NodeMessage>() + own
    }
}

/// The home of a hub on a node with `shards` shards: it leads the hub, or relays for it.
pub fn home(hub: HubId, shards: u16) -> ShardId {
    ShardId((hub.0 % u32::from(shards)) as u16)
}

#[cfg(test)]
mod tests;
