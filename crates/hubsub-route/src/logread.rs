//! Reads of a hub's log, which other threads perform (a shard never waits for a disk), and their requesters.
//!
//! A room's memory is limited; older records are in the log. If memory alone cannot answer a request, the log
//! alone does: a read contains the hub's last committed offset, and the log must read everything up to it.

use crate::cursors::Read;
use crate::requests::{Ask, Attach, HistoryQuery};
use hubsub_message::{Namespace, Record};
use hubsub_types::{Epoch, HubId, Seq, ShardId};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct LogRead {
    pub hub: HubId,
    pub room: Arc<[u8]>,
    /// The log must have read all records up to this offset.
    pub through: u64,
    /// The room's current epoch.
    pub epoch: Epoch,
    /// The room's last committed record; later ones are not included.
    pub seq_max: Seq,
    /// The oldest record that its class still shows.
    pub seq_min: Seq,
    /// The oldest timestamp that its class still shows, in µs since 1970.
    pub since_us: u64,
    /// Only records of this topic; none: of all.
    pub topic: Option<Vec<u8>>,
    /// Only topics of this namespace; none: of all.
    pub namespace: Option<Namespace>,
    pub want: Want,
    pub count: u64,
    /// Limit of their total weight in bytes; the first record may exceed it.
    pub bytes_max: usize,
    pub then: Then,
}

/// The answer from memory, or the log read that finds it.
#[derive(Debug)]
pub enum Known<T> {
    Here(T),
    InLog(Box<LogRead>),
}

/// Selects records of the room. They are returned in order, oldest first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Want {
    /// Of the current epoch, from this seq on, or from the oldest available one.
    On(Seq),
    /// Of the current epoch, from the first one that is not older than this, in µs since 1970.
    Since(u64),
    /// The last ones, also of earlier epochs.
    Back,
}

#[derive(Clone, Debug)]
pub enum Then {
    Range(Box<Read>),
    /// A subscription of a shard that starts there.
    Attach(Box<Attach>, ShardId),
    /// A history request, by the number that its asker gave it.
    History(Box<HistoryQuery>, Ask),
}

#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The records found, oldest first.
    pub records: Vec<Arc<Record>>,
    /// If records from a seq on are requested: the first available one of any topic.
    pub first: Option<Seq>,
}
