//! Reads of a whole hub with a log, whatever the rooms of its records: what is asked of memory, of the log, of the
//! hub's leader, and the answer.

use crate::cursors::CURSORS_MAX;
use crate::record::{Namespace, Record};
use crate::relay::AskId;
use hubsub_types::names::{Matcher, pattern_prefix_min};
use hubsub_types::{ConnKey, HubId, NodeId, ShardId};
use std::sync::Arc;

/// Behind all records: who reads from here learns where the log ends.
pub const END: u64 = u64::MAX;

/// How long it is waited to hear where logs end, in ms.
pub const ENDS_MS: u64 = 5_000;

/// Which records of a hub are wanted: those whose topic one of some patterns matches.
#[derive(Debug)]
pub struct HubFilter {
    sources: Box<[Arc<[u8]>]>,
    matchers: Box<[Matcher]>,
}

impl HubFilter {
    /// Of patterns as they are kept.
    #[must_use]
    pub fn new(sources: impl IntoIterator<Item = Arc<[u8]>>) -> HubFilter {
        let sources: Box<[Arc<[u8]>]> = sources.into_iter().collect();
        let matchers = sources.iter().map(|source| Matcher::of_pattern(source)).collect();
        HubFilter { sources, matchers }
    }

    /// Their texts.
    #[must_use]
    pub fn sources(&self) -> &[Arc<[u8]>] {
        &self.sources
    }

    /// Whether one of them matches that may: see [`pattern_prefix_min`].
    #[must_use]
    pub fn wants(&self, namespace: Namespace, topic: &[u8]) -> bool {
        let Some(least) = pattern_prefix_min(topic) else { return false };
        let fits = |matcher: &Matcher| matcher.literal_prefix().len() >= least && matcher.matches(topic);
        namespace == Namespace::Global && self.matchers.iter().any(fits)
    }
}

/// Asks a hub for records of all its rooms.
#[derive(Clone, Debug)]
pub struct HubRead {
    /// The hub.
    pub hub: HubId,
    /// Which records.
    pub filter: Arc<HubFilter>,
    /// The first offset that is wanted, from 1; [`END`]: none.
    pub next: u64,
    /// None that are older, in µs since 1970.
    pub since_us: u64,
    /// At most so many.
    pub records_max: u32,
    /// Stop once they weigh so much.
    pub bytes_max: usize,
    /// Who wants them.
    pub then: HubThen,
}

/// Who waits for a hub's records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HubThen {
    /// A cursor.
    Cursor {
        /// The edge.
        shard: ShardId,
        /// The connection there.
        conn: ConnKey,
        /// The pattern that has cursors of its own; none: all others of the connection.
        pattern: Option<u32>,
        /// Its number for the read.
        number: u64,
    },
    /// A question where logs end.
    Ends {
        /// The shard that asks.
        shard: ShardId,
        /// Its number for the question.
        number: u32,
        /// Until when it waits, in ms.
        until_ms: u64,
    },
    /// Another node.
    Node {
        /// Which.
        node: NodeId,
        /// Its number for the request.
        ask: AskId,
    },
}

impl HubRead {
    /// Adds it to those that wait for a log or a leader. Of cursors there is one for each connection at most: where
    /// there are too many the oldest is of one that has gone. Questions that have waited for their time go.
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

/// The answer.
#[derive(Clone, Debug, Default)]
pub struct HubRange {
    /// In order of offsets.
    pub records: Vec<Arc<Record>>,
    /// The offset to go on at: all that is wanted below it is there, or lost.
    pub next: u64,
    /// The last offset that the hub had committed.
    pub committed: u64,
    /// Offsets that the log has no more: first and last.
    pub lost: Option<(u64, u64)>,
}

impl HubRange {
    /// Nothing from an offset on can be read.
    #[must_use]
    pub fn lost(from: u64, committed: u64) -> HubRange {
        HubRange { next: committed + 1, committed, lost: Some((from, committed)), ..HubRange::default() }
    }

    /// Nothing was read, and the same must be asked again.
    #[must_use]
    pub fn again(from: u64, committed: u64) -> HubRange {
        HubRange { next: from, committed, ..HubRange::default() }
    }
}

/// A question to a hub's log for what memory has no more.
#[derive(Clone, Debug)]
pub struct HubLogRead {
    /// What is wanted.
    pub read: HubRead,
    /// The last offset that is committed: later ones are not given.
    pub through: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_matches_as_patterns_do() {
        let filter = HubFilter::new([(*b"*").into(), (*b"$a/*").into()]);
        assert!(filter.wants(Namespace::Global, b"x") && filter.wants(Namespace::Global, b"$a/x"));
        assert!(!filter.wants(Namespace::Global, b"x{$a}") && !filter.wants(Namespace::Global, b"$a/{$a}"));
        assert!(!filter.wants(Namespace::Global, b"$b") && !filter.wants(Namespace::Shard, b"x"));
    }

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
