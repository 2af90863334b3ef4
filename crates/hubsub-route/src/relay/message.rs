//! What brokers of two nodes say to each other: the frames of a link, owned. The node
//! turns one into the other; here is no byte of them.
//!
//! What concerns a hub travels by the hub's link, in order, but for answers to reads,
//! which have a lane of their own. Patterns concern no hub: they travel as if they
//! concerned hub 0, whose home is shard 0 on every node.

use super::watch::Over;
use crate::groups::Give;
use crate::hubread::HubFilter;
use crate::record::{Namespace, Record};
use crate::{Attached, Start};
use hubsub_types::{Epoch, ErrorCode, HubId, Position, Seq, ShardId, Term};
use std::sync::Arc;

/// The hub whose link patterns take.
pub const PATTERNS: HubId = HubId(0);

/// A topic and its room.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Names {
    /// Of the topic.
    pub namespace: Namespace,
    /// The room.
    pub room: Arc<[u8]>,
    /// The topic; empty where the whole room is meant.
    pub topic: Arc<[u8]>,
}

/// A number that an asker gave to a request: its shard stands in the last bits, so that the
/// answer finds its way back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct AskId(pub u64);

impl AskId {
    /// Wants no answer.
    pub const NONE: AskId = AskId(0);
    const SHARD_BITS: u32 = 8;

    /// The `number`th of a shard, from 1.
    #[must_use]
    pub fn new(number: u64, shard: ShardId) -> AskId {
        AskId((number << Self::SHARD_BITS) | u64::from(shard.0))
    }

    /// The shard that asked.
    #[must_use]
    pub fn shard(self) -> ShardId {
        ShardId((self.0 & ((1 << Self::SHARD_BITS) - 1)) as u16)
    }
}

/// One message, of the frame of the same name.
#[derive(Clone, Debug)]
pub enum NodeMessage {
    /// A record without a position.
    Publish {
        /// Of the request.
        ask: AskId,
        /// Where the room lives.
        hub: HubId,
        /// Which the asker believes.
        term: Term,
        /// What is published. Nobody else has it where it is received.
        record: Arc<Record>,
    },
    /// It is committed.
    Published {
        /// As in the request.
        ask: AskId,
        /// Whether it stood there before.
        again: bool,
        /// Zero where no room took it.
        position: Position,
        /// In the whole cluster.
        receivers: u64,
    },
    /// The hub's leader is another, or the same in another term.
    NotMine {
        /// As in the request.
        ask: AskId,
        /// Likewise.
        hub: HubId,
        /// That the answering node knows.
        term: Term,
    },
    /// No.
    Denied {
        /// As in the request.
        ask: AskId,
        /// Why.
        code: ErrorCode,
    },
    /// That many subscribe on the asking node, all shards together; 0 takes the interest back.
    Interest {
        /// None where the interest is taken back.
        ask: AskId,
        /// Where the room lives.
        hub: HubId,
        /// Which the asker believes.
        term: Term,
        /// What they subscribe to.
        names: Names,
        /// How many.
        count: u32,
        /// The last record of the room that the asker has.
        known: Position,
        /// Where the newest subscription begins.
        start: Start,
    },
    /// The interest holds.
    Attached {
        /// As in the request.
        ask: AskId,
        /// Where it begins.
        attached: Attached,
    },
    /// Another number of subscribers, nothing else. Of a leader, to a node that it counted: it does not any more, and
    /// the number is 0.
    Counts {
        /// As in the interest.
        hub: HubId,
        /// Likewise.
        term: Term,
        /// Likewise.
        names: Names,
        /// How many.
        count: u32,
    },
    /// How many subscribe?
    CountAsk {
        /// Of the request.
        ask: AskId,
        /// Where the room lives.
        hub: HubId,
        /// Which the asker believes.
        term: Term,
        /// To what.
        names: Names,
        /// Whether the answer waits until the topic's retained messages that are under way are kept.
        settles: bool,
    },
    /// So many.
    Counted {
        /// As in the request.
        ask: AskId,
        /// In the whole cluster.
        count: u64,
    },
    /// A committed record, with its position.
    Deliver {
        /// Where it was committed.
        hub: HubId,
        /// In which it was.
        term: Term,
        /// The record of the room that was due to this node before.
        previous: Seq,
        /// The offset in the hub's log that was due to this node before; 0 where it has no log.
        before: u64,
        /// With its position; zero where no room took it.
        record: Arc<Record>,
    },
    /// A record for a member of a group: of the leader, on the receiving node; to the leader, anywhere.
    Give {
        /// Where it was committed.
        hub: HubId,
        /// The record, and whose.
        give: Give,
    },
    /// To the leader: a member of a group that keeps its place has done with a record.
    Acknowledge {
        /// Where it stands.
        hub: HubId,
        /// The group and its topic.
        group: Arc<[u8]>,
        /// The record's.
        position: Position,
    },
    /// A change of the sender's set of patterns.
    Pattern {
        /// Of the set, with this change.
        version: u64,
        /// Subscribers on the sending node.
        count: u32,
        /// Its text.
        pattern: Arc<[u8]>,
    },
    /// The sender's whole set follows.
    PatternsBegin {
        /// Of the set.
        version: u64,
        /// How many entries follow.
        patterns: u32,
    },
    /// One of it.
    PatternsEntry {
        /// Subscribers on the sending node.
        count: u32,
        /// Its text.
        pattern: Arc<[u8]>,
    },
    /// That was all.
    PatternsEnd {
        /// As at its begin.
        version: u64,
    },
    /// All shards of the sender hold the receiver's set up to this version.
    PatternsHeld {
        /// Of the receiver's set.
        version: u64,
    },
    /// From here on the receiver is sent what its patterns match, of a hub that the sender leads.
    PatternsLive {
        /// Which hub.
        hub: HubId,
        /// In which term it is led.
        term: Term,
        /// Told apart from other leaders, and other times, of that hub.
        life: Epoch,
        /// Records of this life that were due to the receiver before, or may have been.
        due: u64,
    },
    /// All interest that the sender has in rooms of a hub is told.
    Registered {
        /// Which hub.
        hub: HubId,
        /// Of the leader that it was told to.
        term: Term,
    },
    /// That was all of a time in which the sender led a hub, or will be: it commits nothing more in it.
    Over {
        /// Which hub.
        hub: HubId,
        /// In which term it was led.
        term: Term,
        /// What the receiver may compare with what came.
        over: Over,
    },
    /// Records of the past, please.
    Read {
        /// Of the request.
        ask: AskId,
        /// Where they stand.
        hub: HubId,
        /// Of what.
        names: Names,
        /// Where they begin.
        start: Start,
        /// At most so many.
        records_max: u32,
        /// Stop once they are so long.
        bytes_max: u32,
    },
    /// Records of all rooms of a hub with a log, please.
    ReadHub {
        /// Of the request.
        ask: AskId,
        /// Which hub.
        hub: HubId,
        /// The first offset that is wanted.
        next: u64,
        /// None that are older, in µs since 1970.
        since_us: u64,
        /// At most so many.
        records_max: u32,
        /// Stop once they are so long.
        bytes_max: u32,
        /// Which of them.
        filter: Arc<HubFilter>,
    },
    /// Retained messages, please.
    Rows {
        /// Of the request.
        ask: AskId,
        /// Which keeps them.
        hub: HubId,
        /// Topics that match.
        filter: Arc<[u8]>,
        /// Behind this one; empty: from the first on.
        after: Arc<[u8]>,
        /// Stop once they are so long.
        bytes_max: u32,
    },
    /// Are all retained messages kept that are under way from the receiver's shards?
    SettleAsk {
        /// Of the request.
        ask: AskId,
    },
    /// They are.
    Settled {
        /// As in the request.
        ask: AskId,
    },
    /// One of them, with its position.
    Range {
        /// As in the request.
        ask: AskId,
        /// The record.
        record: Arc<Record>,
    },
    /// That was all.
    RangeEnd {
        /// As in the request.
        ask: AskId,
        /// Before the oldest record that history has.
        oldest: Position,
        /// Where to read on.
        next: Seq,
        /// First and last of the records that history no longer has.
        gap: Option<(Seq, Seq)>,
        /// Whether `next` is behind the room's last record.
        at_end: bool,
        /// Whether the room has another epoch than the one that was asked for.
        is_gone: bool,
    },
    /// That was all of a hub's.
    HubEnd {
        /// As in the request.
        ask: AskId,
        /// The offset to go on at.
        next: u64,
        /// The last one that is committed.
        committed: u64,
        /// First and last of those that the log has no more.
        lost: Option<(u64, u64)>,
    },
}

impl NodeMessage {
    /// The shard, of so many, whose broker takes it where it is received.
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

    /// The hub that a request concerns.
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

    /// Whether it is what a leader says unasked: nobody sends it again.
    #[must_use]
    pub fn is_of_leader(&self) -> bool {
        matches!(self, NodeMessage::Deliver { .. } | NodeMessage::PatternsLive { .. })
    }

    /// Whether it waits for the credit of reads, and so may come before or behind others.
    #[must_use]
    pub fn is_read(&self) -> bool {
        matches!(self, NodeMessage::Range { .. } | NodeMessage::RangeEnd { .. } | NodeMessage::HubEnd { .. })
    }

    /// Bytes that it keeps from being freed.
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

/// The home of a hub on a node of so many shards: it leads the hub, or relays for it.
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
