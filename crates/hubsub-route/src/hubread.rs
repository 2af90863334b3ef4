//! Reads of a whole hub with a log, whatever the rooms of its records: what is asked of memory, of the log, of the
//! hub's leader, and the answer.

use crate::record::{Namespace, Record};
use crate::relay::AskId;
use hubsub_types::names::Matcher;
use hubsub_types::{ConnKey, HubId, NodeId, ShardId};
use std::sync::Arc;

/// Behind all records: who reads from here learns where the log ends.
pub const END: u64 = u64::MAX;

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

    /// Whether one of them matches. What begins with `$` is only matched by a pattern that does, too.
    #[must_use]
    pub fn wants(&self, namespace: Namespace, topic: &[u8]) -> bool {
        let least = usize::from(topic.starts_with(b"$"));
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
    },
    /// Another node.
    Node {
        /// Which.
        node: NodeId,
        /// Its number for the request.
        ask: AskId,
    },
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
        assert!(!filter.wants(Namespace::Global, b"$b") && !filter.wants(Namespace::Shard, b"x"));
    }
}
