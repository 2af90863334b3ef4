//! Messages between brokers of two nodes: the frames of a link, as owned values. The node converts between
//! the two; this file has no bytes of frames.
//!
//! Messages about a hub travel over the hub's link, in order, except for responses to reads, which have their
//! own lane. Messages about patterns belong to no hub: they travel as if they belonged to hub 0, whose home
//! is shard 0 on every node.

use super::watch::Over;
use crate::groups::Give;
use crate::hubread::HubFilter;
use crate::record::{Namespace, Record};
use crate::{Attached, Start};
use hubsub_types::{Epoch, ErrorCode, HubId, Position, Seq, ShardId, Term};
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
    #[must_use]
    pub fn new(number: u64, shard: ShardId) -> AskId {
        AskId((number << Self::SHARD_BITS) | u64::from(shard.0))
    }

    #[must_use]
    pub fn shard(self) -> ShardId {
        ShardId((self.0 & ((1 << Self::SHARD_BITS) - 1)) as u16)
    }
}

/// A message; its frame has the same name.
#[derive(Clone, Debug)]
pub enum NodeMessage {
    /// A publish: a record without a position.
    Publish {
        ask: AskId,
        /// The hub of the room.
        hub: HubId,
        /// The term that the sender knows.
        term: Term,
        /// The record; the receiver has the only reference to it.
        record: Arc<Record>,
    },
    /// The response to a publish that is committed.
    Published {
        ask: AskId,
        /// Whether it is a repeat.
        again: bool,
        /// Position of the record; zero if no room stored it.
        position: Position,
        /// Subscribers in the whole cluster.
        receivers: u64,
    },
    /// The response of a node that does not lead the hub, or leads it in another term.
    NotMine {
        ask: AskId,
        hub: HubId,
        /// The term that the responding node knows.
        term: Term,
    },
    /// The response to a refused request.
    Denied { ask: AskId, code: ErrorCode },
    /// The number of subscribers on the sending node, on all its shards; 0 removes the interest.
    Interest {
        /// `NONE` if the interest is removed.
        ask: AskId,
        /// The hub of the room.
        hub: HubId,
        /// The term that the sender knows.
        term: Term,
        names: Names,
        count: u32,
        /// The last record of the room that the sender has.
        known: Position,
        /// The start of the newest subscription.
        start: Start,
    },
    /// The response to interest that is registered.
    Attached { ask: AskId, attached: Attached },
    /// A changed number of subscribers. From a leader to a node that it counted: it no longer does, and the
    /// number is 0.
    Counts {
        hub: HubId,
        /// The term that the sender knows.
        term: Term,
        names: Names,
        count: u32,
    },
    /// A request for the number of subscribers.
    CountAsk {
        ask: AskId,
        /// The hub of the room.
        hub: HubId,
        /// The term that the sender knows.
        term: Term,
        names: Names,
        /// Whether the response waits until the topic's entries that are in flight are written.
        settles: bool,
    },
    /// The response to `CountAsk`.
    Counted {
        ask: AskId,
        /// Subscribers in the whole cluster.
        count: u64,
    },
    /// A committed record for a node with interest.
    Deliver {
        /// The hub in which it was committed.
        hub: HubId,
        /// The term in which it was committed.
        term: Term,
        /// Seq of the room's previous record that was due to this node.
        previous: Seq,
        /// The previous offset in the hub's log that was due to this node; 0 for a hub without a log.
        before: u64,
        /// The record with its position, which is zero if no room stored it.
        record: Arc<Record>,
    },
    /// A record for a member of a group: from the leader, for one on the receiving node; to the leader, for
    /// any.
    Give {
        /// The hub in which it was committed.
        hub: HubId,
        /// The record and its group.
        give: Give,
    },
    /// To the leader: a member of a group with a position acknowledges a record.
    Acknowledge {
        /// The hub of its room.
        hub: HubId,
        /// The group and its topic, in their text form.
        group: Arc<[u8]>,
        /// Position of the record.
        position: Position,
    },
    /// A change of the sender's set of patterns.
    Pattern {
        /// Version of the set with this change.
        version: u64,
        /// Subscribers on the sending node; 0 removes the pattern.
        count: u32,
        pattern: Arc<[u8]>,
    },
    /// The sender's whole set follows.
    PatternsBegin {
        /// Version of the set.
        version: u64,
        /// The number of entries that follow.
        patterns: u32,
    },
    /// An entry of the sender's set.
    PatternsEntry {
        /// Subscribers on the sending node.
        count: u32,
        pattern: Arc<[u8]>,
    },
    /// The end of the sender's set.
    PatternsEnd {
        /// Version of the set, as in `PatternsBegin`.
        version: u64,
    },
    /// All shards of the sender hold the receiver's set up to this version.
    PatternsHeld { version: u64 },
    /// From now on the receiver is sent all records of a hub that match its patterns; the sender leads the
    /// hub.
    PatternsLive {
        hub: HubId,
        /// The term of the sender's leadership.
        term: Term,
        /// Identifies this leadership of the hub.
        life: Epoch,
        /// Records of this leadership that were due to the receiver before, or may have been.
        due: u64,
    },
    /// Interest synced: the sender has registered all its interest in rooms of a hub.
    Registered {
        hub: HubId,
        /// The term of the leader with which it is registered.
        term: Term,
    },
    /// Leadership ended: the sender commits nothing more in this leadership of a hub, and has sent all its
    /// records.
    Over {
        hub: HubId,
        /// The term of the leadership.
        term: Term,
        /// Numbers that the receiver compares with the records that arrived.
        over: Over,
    },
    /// A request for past records.
    Read {
        ask: AskId,
        /// The hub of the room.
        hub: HubId,
        names: Names,
        /// The start of the records.
        start: Start,
        records_max: u32,
        /// Limit of the response, in bytes.
        bytes_max: u32,
    },
    /// A request for records of all rooms of a hub with a log.
    ReadHub {
        ask: AskId,
        hub: HubId,
        /// The first requested offset.
        next: u64,
        /// Oldest timestamp, in µs since 1970.
        since_us: u64,
        records_max: u32,
        /// Limit of the response, in bytes.
        bytes_max: u32,
        filter: Arc<HubFilter>,
    },
    /// A request for retained messages.
    Rows {
        ask: AskId,
        /// The hub that stores their entries.
        hub: HubId,
        /// MQTT filter for topics.
        filter: Arc<[u8]>,
        /// Only topics after this one; empty: from the first one.
        after: Arc<[u8]>,
        /// Limit of the response, in bytes.
        bytes_max: u32,
    },
    /// A flush barrier: requests that the receiver's shards write all entries in flight.
    SettleAsk { ask: AskId },
    /// The response to `SettleAsk`.
    Settled { ask: AskId },
    /// A record of the response to a read, with its position.
    Range { ask: AskId, record: Arc<Record> },
    /// The end of the response to a read.
    RangeEnd {
        ask: AskId,
        /// The position before the oldest record in history.
        oldest: Position,
        /// The seq at which the next read continues.
        next: Seq,
        /// First and last seq of the records that history no longer has.
        gap: Option<(Seq, Seq)>,
        /// Whether `next` is after the room's last record.
        at_end: bool,
        /// Whether the room has another epoch than the requested one.
        is_gone: bool,
    },
    /// The end of the response to `ReadHub`.
    HubEnd {
        ask: AskId,
        /// The offset at which the next read continues.
        next: u64,
        /// The last committed offset.
        committed: u64,
        /// First and last of the offsets that the log no longer has.
        lost: Option<(u64, u64)>,
    },
}

impl NodeMessage {
    /// The shard that handles the message on a receiving node with `shards` shards.
    #[must_use]
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
            | NodeMessage::Registered { hub, .. }
            | NodeMessage::Over { hub, .. }
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
    #[must_use]
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
    #[must_use]
    pub fn is_of_leader(&self) -> bool {
        matches!(self, NodeMessage::Deliver { .. } | NodeMessage::PatternsLive { .. })
    }

    /// Whether it waits for the credit of reads, and so may overtake others or be overtaken.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self, NodeMessage::Range { .. } | NodeMessage::RangeEnd { .. } | NodeMessage::HubEnd { .. })
    }

    /// Bytes that it keeps allocated.
    #[must_use]
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
#[must_use]
pub fn home(hub: HubId, shards: u16) -> ShardId {
    ShardId((hub.0 % u32::from(shards)) as u16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_goes_to_the_shard_that_asked_and_a_request_to_the_home_of_its_hub() {
        let ask = AskId::new(7, ShardId(63));
        let answer = NodeMessage::Counted { ask, count: 1 };
        assert_eq!(answer.shard(64), ShardId(63));
        let names = Names { namespace: Namespace::Global, room: (*b"r").into(), topic: (*b"r").into() };
        let hub = HubId(130);
        let request = NodeMessage::CountAsk { ask, hub, term: Term(1), names, settles: false };
        assert_eq!(request.shard(64), ShardId(2));
        assert_eq!(NodeMessage::PatternsHeld { version: 1 }.shard(64), ShardId(0));
        assert_ne!(AskId::new(1, ShardId(0)), AskId::NONE);
    }
}
