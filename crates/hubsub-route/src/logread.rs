//! Questions to a hub's log, which others read (a shard never waits for a disk),
//! and who waits for the answers.
//!
//! A room's memory ends somewhere; what is older is in the log. What memory alone
//! cannot answer, the log answers alone: a read names the hub's last committed
//! offset, and everything up to there must be in what is read.

use crate::Attach;
use crate::cursors::Read;
use crate::record::{Namespace, Record};
use crate::rooms::HistoryQuery;
use hubsub_types::{Epoch, HubId, Seq, ShardId};
use std::sync::Arc;

/// A question to a hub's log.
#[derive(Clone, Debug)]
pub struct LogRead {
    /// The hub.
    pub hub: HubId,
    /// The room.
    pub room: Arc<[u8]>,
    /// Records up to this offset must be in what is read.
    pub through: u64,
    /// The room's present epoch.
    pub epoch: Epoch,
    /// Its last committed record; later ones are not given.
    pub seq_max: Seq,
    /// The oldest one that its class still shows.
    pub seq_min: Seq,
    /// Likewise by timestamp, in µs since 1970.
    pub since_us: u64,
    /// Only records of this topic.
    pub topic: Option<Vec<u8>>,
    /// Only topics of this namespace.
    pub namespace: Option<Namespace>,
    /// Which of them.
    pub want: Want,
    /// How many at most.
    pub count: u64,
    /// How much they weigh at most, but for the first.
    pub bytes_max: usize,
    /// Who wants it.
    pub then: Then,
}

/// What memory knows, or the question to the log that will tell.
#[derive(Debug)]
pub enum Known<T> {
    /// Memory knows it.
    Here(T),
    /// The log does.
    InLog(Box<LogRead>),
}

/// Which records are wanted. They come in order, oldest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Of the present epoch, from this seq or the oldest left on.
    On(Seq),
    /// Of the present epoch, from the first on that is not older than this, in µs since 1970.
    Since(u64),
    /// The last ones, of earlier epochs too.
    Back,
}

/// Who waits for the answer.
#[derive(Clone, Debug)]
pub enum Then {
    /// A cursor.
    Range(Box<Read>),
    /// A subscription that begins there, of a shard.
    Attach(Box<Attach>, ShardId),
    /// A question for history, by the number that its asker gave it.
    History(Box<HistoryQuery>, Ask),
}

/// A question of a shard, as it numbers them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ask {
    /// Who asks.
    pub shard: ShardId,
    /// Its number for it.
    pub number: u32,
}

/// What a log gave.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// Oldest first.
    pub records: Vec<Arc<Record>>,
    /// Where records from a seq on are wanted: the first of them that is left, of any topic.
    pub first: Option<Seq>,
}
