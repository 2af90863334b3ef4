//! Subscribers that catch up. A cursor stands for one subscription of one
//! connection to one topic while it is not live: it began in the past, or it
//! was too slow. Live records of that topic pass it by; it reads them from the
//! room's history, in bounded ranges as its output drains, and becomes live in
//! the turn that brings it the room's last record. Because a hub sends ranges
//! and live records to an edge in one order, nothing falls between.

use crate::record::{Namespace, Record};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::{ConnKey, Position, Seq, ShardId};
use std::sync::Arc;

/// Which subscription a cursor stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CursorKey {
    /// The pattern, if it is a pattern subscription.
    pub pattern: Option<u32>,
    /// With the topic, where it reads.
    pub namespace: Namespace,
    /// See `namespace`.
    pub topic: Arc<[u8]>,
}

/// One subscription that is not live.
#[derive(Debug)]
pub struct Cursor {
    /// Which one.
    pub key: CursorKey,
    /// Next record to read; none while the hub has not confirmed the start.
    pub next: Option<Position>,
    /// Whether a read is under way.
    pub reading: bool,
}

/// Asks a hub for records of a topic.
#[derive(Clone, Debug)]
pub struct Read {
    /// The edge that asks.
    pub from: ShardId,
    /// The connection there.
    pub conn: ConnKey,
    /// As of the cursor.
    pub pattern: Option<u32>,
    /// As of the cursor.
    pub namespace: Namespace,
    /// As of the cursor.
    pub topic: Arc<[u8]>,
    /// First record wanted.
    pub next: Position,
    /// Stop once records weigh so much.
    pub bytes_max: usize,
}

/// The answer.
#[derive(Debug, Default)]
pub struct Range {
    /// Of the topic, in order.
    pub records: Vec<Arc<Record>>,
    /// Where to read on.
    pub next: Seq,
    /// Records that history no longer has: first and last seq.
    pub gap: Option<(Seq, Seq)>,
    /// Whether `next` is behind the room's last record.
    pub at_end: bool,
    /// Whether the room's epoch is over.
    pub is_gone: bool,
}

impl Range {
    /// The epoch is over; nothing can be read.
    #[must_use]
    pub fn gone() -> Range {
        Range { at_end: true, is_gone: true, ..Range::default() }
    }
}

/// All cursors of a shard.
#[derive(Debug, Default)]
pub struct Cursors {
    by_conn: HashMap<u32, Vec<Cursor>, RandomState>,
    total: usize,
}

/// Cursors of one shard: past it a subscription that would need one more is closed.
pub const CURSORS_MAX: usize = 1_000_000;

impl Cursors {
    /// Whether there is none, the common case.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.total
    }

    /// How many connections have some.
    #[must_use]
    pub fn conns(&self) -> usize {
        self.by_conn.len()
    }

    /// Whether a connection has any.
    #[must_use]
    pub fn has(&self, conn: u32) -> bool {
        !self.is_empty() && self.by_conn.contains_key(&conn)
    }

    /// How many a connection has.
    #[must_use]
    pub fn count(&self, conn: u32) -> usize {
        if self.is_empty() { 0 } else { self.by_conn.get(&conn).map_or(0, Vec::len) }
    }

    /// Whether a subscription is not live.
    #[must_use]
    pub fn holds(&self, conn: u32, pattern: Option<u32>, namespace: Namespace, topic: &[u8]) -> bool {
        let cursors = self.by_conn.get(&conn).into_iter().flatten();
        cursors.into_iter().any(|c| c.is(pattern, namespace, topic))
    }

    /// The cursors of a connection, the one that waits longest first.
    pub fn of(&mut self, conn: u32) -> &mut [Cursor] {
        self.by_conn.get_mut(&conn).map_or(&mut [], |cursors| cursors)
    }

    /// One cursor.
    pub fn get(
        &mut self,
        conn: u32,
        pattern: Option<u32>,
        ns: Namespace,
        topic: &[u8],
    ) -> Option<&mut Cursor> {
        self.of(conn).iter_mut().find(|c| c.is(pattern, ns, topic))
    }

    /// Sets where a subscription reads; false if there are too many cursors.
    pub fn set(&mut self, conn: u32, key: CursorKey, next: Option<Position>) -> bool {
        if let Some(cursor) = self.get(conn, key.pattern, key.namespace, &key.topic) {
            cursor.next = next;
            cursor.reading = false;
            return true;
        }
        if self.total >= CURSORS_MAX {
            return false;
        }
        self.total += 1;
        self.by_conn.entry(conn).or_default().push(Cursor { key, next, reading: false });
        true
    }

    /// A subscription is live, or gone.
    pub fn remove(&mut self, conn: u32, pattern: Option<u32>, namespace: Namespace, topic: &[u8]) {
        let Some(cursors) = self.by_conn.get_mut(&conn) else { return };
        let before = cursors.len();
        cursors.retain(|c| !c.is(pattern, namespace, topic));
        self.total -= before - cursors.len();
        if cursors.is_empty() {
            self.by_conn.remove(&conn);
        }
    }

    /// A pattern subscription is gone, with its cursors of all topics.
    pub fn remove_pattern(&mut self, conn: u32, pattern: u32) {
        let Some(cursors) = self.by_conn.get_mut(&conn) else { return };
        let before = cursors.len();
        cursors.retain(|c| c.key.pattern != Some(pattern));
        self.total -= before - cursors.len();
        if cursors.is_empty() {
            self.by_conn.remove(&conn);
        }
    }

    /// A connection is gone.
    pub fn remove_conn(&mut self, conn: u32) {
        if !self.is_empty()
            && let Some(cursors) = self.by_conn.remove(&conn)
        {
            self.total -= cursors.len();
        }
    }
}

impl Cursor {
    fn is(&self, pattern: Option<u32>, namespace: Namespace, topic: &[u8]) -> bool {
        self.key.pattern == pattern && self.key.namespace == namespace && *self.key.topic == *topic
    }
}
