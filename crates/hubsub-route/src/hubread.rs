//! Reads of a whole hub with a log, of all its rooms: requests to memory, to the log and to the hub's leader,
//! and the response.

use crate::cursors::CURSORS_MAX;
use hubsub_message::{AskId, HubFilter, Record};
use hubsub_types::{ConnKey, HubId, NodeId, ShardId};
use std::sync::Arc;

/// An offset after all records: a read from here finds the end of the log.
pub const END: u64 = u64::MAX;

/// Time limit of requests for the ends of logs, in ms.
pub const ENDS_MS: u64 = 5_000;

#[derive(Clone, Debug)]
pub struct HubRead {
    pub hub: HubId,
    pub filter: Arc<HubFilter>,
    /// The first requested offset, from 1; [`END`]: none.
    pub next: u64,
    /// Oldest timestamp, in µs since 1970.
    pub since_us: u64,
    pub records_max: u32,
    pub bytes_max: usize,
    pub then: HubThen,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HubThen {
    Cursor {
        shard: ShardId,
        conn: ConnKey,
        /// The pattern with its own cursors; none: all others of the connection.
        pattern: Option<u32>,
        number: u64,
    },
    /// A request for the ends of logs.
    Ends {
        shard: ShardId,
        number: u32,
        /// Time limit of the request, in ms.
        until_ms: u64,
    },
    Node {
        node: NodeId,
        ask: AskId,
    },
}

impl HubRead {
    /// Adds it to reads that wait for a log or a leader. There is at most one read of a cursor per
    /// connection: if there are too many, the oldest is of a closed connection. Requests for ends whose time
    /// has passed are removed.
    pub fn wait_among(self, reads: &mut Vec<HubRead>) {
        if let HubThen::Ends { until_ms, .. } = self.then {
            let is_late = |then: &HubThen| matches!(*then, HubThen::Ends { until_ms: of, .. } if of + ENDS_MS <= until_ms);
            reads.retain(|read| !is_late(&read.then));
        }
        if reads.len() >= CURSORS_MAX {
            reads.swap_remove(0);
        }
        reads.push(self);
    }
}

#[derive(Clone, Debug, Default)]
pub struct HubRange {
    /// Records in order of offsets.
    pub records: Vec<Arc<Record>>,
    /// The offset at which to continue: all requested records below it are included, or lost.
    pub next: u64,
    pub committed: u64,
    /// First and last of the offsets that the log no longer has.
    pub lost: Option<(u64, u64)>,
}

impl HubRange {
    /// The response when nothing from an offset on can be read.
    pub fn lost(from: u64, committed: u64) -> HubRange {
        HubRange { next: committed + 1, committed, lost: Some((from, committed)), ..HubRange::default() }
    }

    /// The response when nothing was read, and the read must be repeated.
    pub fn again(from: u64, committed: u64) -> HubRange {
        HubRange { next: from, committed, ..HubRange::default() }
    }
}

#[derive(Clone, Debug)]
pub struct HubLogRead {
    pub read: HubRead,
    /// The last committed offset: later records are not included.
    pub through: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_that_wait_go_with_their_time_and_cursors_stay() {
        let mut reads = Vec::new();
        let read = |then| HubRead {
            hub: HubId(1),
            filter: Arc::new(HubFilter::new([])),
            next: END,
            since_us: 0,
            records_max: 1,
            bytes_max: 1,
            then,
        };
        let conn = ConnKey { index: 0, generation: 0 };
        read(HubThen::Cursor { shard: ShardId(0), conn, pattern: None, number: 1 }).wait_among(&mut reads);
        for until_ms in [ENDS_MS, ENDS_MS + 1, 2 * ENDS_MS] {
            read(HubThen::Ends { shard: ShardId(0), number: 1, until_ms }).wait_among(&mut reads);
        }
        let left: Vec<_> = reads
            .iter()
            .filter_map(|read| match read.then {
                HubThen::Ends { until_ms, .. } => Some(until_ms),
                _ => None,
            })
            .collect();
        assert_eq!((left, reads.len()), (vec![ENDS_MS + 1, 2 * ENDS_MS], 3));
    }
}
