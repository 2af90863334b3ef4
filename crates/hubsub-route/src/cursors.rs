//! Subscribers that catch up. A cursor represents one subscription of one connection to one topic while it is
//! not live: it started in the past, or its output was too slow. Live records of the topic bypass it; it
//! reads them from the room's history, in bounded ranges as its output drains, and becomes live in the turn
//! in which it gets the room's last record. A hub sends ranges and live records to an edge in one order, so
//! nothing is lost in between.

pub mod hub;

use ahash::RandomState;
use hashbrown::HashMap;
use hub::HubCursors;
use hubsub_message::{AskId, Namespace, Record};
use hubsub_types::{ClassTable, ConnKey, Epoch, HubId, NodeId, Position, Seq, ShardId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CursorKey {
    pub pattern: Option<u32>,
    pub namespace: Namespace,
    pub topic: Arc<[u8]>,
}

#[derive(Clone, Copy, Hash)]
pub struct Key<'a>(pub Option<u32>, pub Namespace, pub &'a [u8]);

impl hashbrown::Equivalent<CursorKey> for Key<'_> {
    fn equivalent(&self, key: &CursorKey) -> bool {
        self.0 == key.pattern && self.1 == key.namespace && *self.2 == *key.topic
    }
}

#[derive(Debug)]
struct Cursor {
    /// Next record to read; none until the hub has confirmed the start.
    next: Option<Position>,
    reading: bool,
    /// Order of start: lower is earlier.
    age: u64,
    /// The record after which it continues once the hub has confirmed it, whatever later records still exist.
    goes_on: Option<Position>,
}

#[derive(Debug, Default)]
struct Lagging {
    cursors: HashMap<CursorKey, Cursor, RandomState>,
    /// Cursors that can read, oldest first.
    places: BTreeMap<u64, CursorKey>,
    reading: usize,
}

impl Lagging {
    fn place(&mut self, key: Key<'_>, next: Option<Position>) -> bool {
        let Some((key, cursor)) = self.cursors.get_key_value_mut(&key) else { return false };
        self.reading -= usize::from(cursor.reading);
        (cursor.next, cursor.reading) = (next, false);
        match next {
            Some(_) => _ = self.places.entry(cursor.age).or_insert_with(|| key.clone()),
            None => _ = self.places.remove(&cursor.age),
        }
        true
    }

    fn remove(&mut self, key: Key<'_>) -> bool {
        let Some(cursor) = self.cursors.remove(&key) else { return false };
        self.reading -= usize::from(cursor.reading);
        self.places.remove(&cursor.age);
        true
    }
}

#[derive(Clone, Debug)]
pub struct Read {
    pub from: ShardId,
    pub conn: ConnKey,
    pub pattern: Option<u32>,
    pub namespace: Namespace,
    pub topic: Arc<[u8]>,
    pub next: Position,
    /// Limit of the records' total weight, in bytes.
    pub bytes_max: usize,
    /// The other node's request, if a node requested the read.
    pub of: Option<Box<OfNode>>,
}

#[derive(Clone, Debug)]
pub struct OfNode {
    pub node: NodeId,
    pub ask: AskId,
    pub hub: HubId,
    /// The room, if records of all its topics are requested.
    pub whole: Option<Arc<[u8]>>,
    pub records_max: u32,
    /// Oldest timestamp, in µs since 1970.
    pub since_us: u64,
}

impl Read {
    pub fn room_name<'a>(&'a self, classes: &ClassTable) -> Cow<'a, [u8]> {
        match self.of.as_ref().and_then(|of| of.whole.as_deref()) {
            Some(room) => Cow::Borrowed(room),
            None => classes.room(&self.topic),
        }
    }

    pub fn wants(&self, record: &Record) -> bool {
        let is_whole = self.of.as_ref().is_some_and(|of| of.whole.is_some());
        is_whole || (record.namespace == self.namespace && record.topic() == &*self.topic)
    }
}

#[derive(Debug, Default)]
pub struct Range {
    /// Records of the topic, in order.
    pub records: Vec<Arc<Record>>,
    /// The seq at which the next read continues.
    pub next: Seq,
    /// First and last seq of the records that history no longer has.
    pub gap: Option<(Seq, Seq)>,
    /// Whether `next` is after the room's last record.
    pub at_end: bool,
    /// Whether the epoch of the read has ended.
    pub is_gone: bool,
    /// With `is_gone`: the room's current epoch, which is read from its first record. 0: the room has none,
    /// or the next records are live from its first one on.
    pub epoch: Epoch,
}

impl Range {
    /// The response when the epoch has ended; only `epoch` can be read.
    pub fn gone(epoch: Epoch) -> Range {
        Range { at_end: true, is_gone: true, epoch, ..Range::default() }
    }

    /// The response when nothing was read, and the read must be repeated.
    pub fn again(from: Seq) -> Range {
        Range { next: from, ..Range::default() }
    }

    /// The response when records of the room cannot be read.
    pub fn lost(from: Seq, to: Seq) -> Range {
        Range { gap: Some((from, to)), next: to.next(), ..Range::default() }
    }
}

#[derive(Debug, Default)]
pub struct Cursors {
    by_conn: HashMap<u32, Lagging, RandomState>,
    total: usize,
    made: u64,
    pub hubs: HubCursors,
}

/// Limit of cursors per shard: a connection that would need one more is closed.
pub const CURSORS_MAX: usize = 1_000_000;

impl Cursors {
    /// Whether there are no cursors, the common case.
    pub fn is_empty(&self) -> bool {
        self.total == 0 && self.hubs.is_empty()
    }

    pub fn len(&self) -> usize {
        self.total
    }

    pub fn has(&self, conn: u32) -> bool {
        !self.is_empty() && (self.by_conn.contains_key(&conn) || self.hubs.has(conn))
    }

    /// The number of cursors that are not live, including those of hubs.
    pub fn behind(&self) -> usize {
        self.total + self.hubs.behind(None)
    }

    pub fn count(&self, conn: u32) -> usize {
        if self.is_empty() {
            return 0;
        }
        let of_topics = self.by_conn.get(&conn).map_or(0, |lagging| lagging.cursors.len());
        of_topics + self.hubs.behind(Some(conn))
    }

    pub fn holds(&self, conn: u32, key: Key<'_>) -> bool {
        self.by_conn.get(&conn).is_some_and(|lagging| lagging.cursors.contains_key(&key))
    }

    /// The next record that a subscription reads; none if it is live or its start not confirmed.
    pub fn next_of(&self, conn: u32, key: Key<'_>) -> Option<Position> {
        self.by_conn.get(&conn)?.cursors.get(&key)?.next
    }

    /// Sets a subscription's next record; creates its cursor if it was live. False: there are too many.
    pub fn set(&mut self, conn: u32, key: CursorKey, next: Option<Position>) -> bool {
        if self.place(conn, Key(key.pattern, key.namespace, &key.topic), next) {
            return true;
        }
        if self.total >= CURSORS_MAX {
            return false;
        }
        self.total += 1;
        self.made += 1;
        let lagging = self.by_conn.entry(conn).or_default();
        if next.is_some() {
            lagging.places.insert(self.made, key.clone());
        }
        lagging.cursors.insert(key, Cursor { next, reading: false, age: self.made, goes_on: None });
        true
    }

    /// Once the hub has confirmed a subscription, it continues after this record.
    pub fn goes_on(&mut self, conn: u32, key: Key<'_>, after: Position) {
        let cursor = self.by_conn.get_mut(&conn).and_then(|lagging| lagging.cursors.get_mut(&key));
        cursor.into_iter().for_each(|cursor| cursor.goes_on = Some(after));
    }

    /// Where a confirmed subscription continues after [`Cursors::goes_on`]; `current` is the room's epoch.
    pub fn take_goes_on(&mut self, conn: u32, key: Key<'_>, current: Epoch) -> Option<Position> {
        let after = self.by_conn.get_mut(&conn)?.cursors.get_mut(&key)?.goes_on.take()?;
        // Nothing is missing of an epoch without records.
        let epoch = if after.seq == Seq(0) { current } else { after.epoch };
        Some(Position { epoch, seq: after.seq.next() })
    }

    pub fn place(&mut self, conn: u32, key: Key<'_>, next: Option<Position>) -> bool {
        self.by_conn.get_mut(&conn).is_some_and(|lagging| lagging.place(key, next))
    }

    /// Begins the next read of a connection's longest waiting cursor; none while a read is in flight.
    pub fn begin_read(&mut self, conn: u32) -> Option<(CursorKey, Position)> {
        let lagging = self.by_conn.get_mut(&conn)?;
        if lagging.reading > 0 {
            return None;
        }
        let (_, key) = lagging.places.first_key_value()?;
        let cursor = lagging.cursors.get_mut(key).expect("places are of cursors");
        cursor.reading = true;
        lagging.reading += 1;
        Some((key.clone(), cursor.next.expect("a place has a position")))
    }

    /// Ends a cursor's read that waits for a response from `next` on, unless it was started again since.
    pub fn end_read(&mut self, conn: u32, key: Key<'_>, next: Position) -> bool {
        let Some(lagging) = self.by_conn.get_mut(&conn) else { return false };
        let cursor = lagging.cursors.get_mut(&key).filter(|c| c.reading && c.next == Some(next));
        let Some(cursor) = cursor else { return false };
        cursor.reading = false;
        lagging.reading -= 1;
        true
    }

    pub fn remove(&mut self, conn: u32, key: Key<'_>) {
        let Some(lagging) = self.by_conn.get_mut(&conn) else { return };
        self.total -= usize::from(lagging.remove(key));
        if lagging.cursors.is_empty() {
            self.by_conn.remove(&conn);
        }
    }

    pub fn remove_pattern(&mut self, conn: u32, pattern: u32) {
        self.hubs.remove_pattern(conn, pattern);
        let Some(lagging) = self.by_conn.get_mut(&conn) else { return };
        let of_pattern = |key: &&CursorKey| key.pattern == Some(pattern);
        let keys: Vec<CursorKey> = lagging.cursors.keys().filter(of_pattern).cloned().collect();
        for key in keys {
            self.remove(conn, Key(key.pattern, key.namespace, &key.topic));
        }
    }

    pub fn remove_conn(&mut self, conn: u32) {
        if self.is_empty() {
            return;
        }
        self.hubs.remove_conn(conn);
        if let Some(lagging) = self.by_conn.remove(&conn) {
            self.total -= lagging.cursors.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_types::Epoch;
    use std::time::{Duration, Instant};

    fn key(topic: usize) -> CursorKey {
        CursorKey { pattern: None, namespace: Namespace::Global, topic: topic.to_string().as_bytes().into() }
    }

    fn at(seq: u64) -> Position {
        Position { epoch: Epoch(1), seq: Seq(seq) }
    }

    #[test]
    fn one_cursor_of_a_connection_reads_at_a_time_the_oldest_first() {
        let mut cursors = Cursors::default();
        (0..3).for_each(|topic| assert!(cursors.set(7, key(topic), None)));
        assert!(cursors.begin_read(7).is_none());
        let topics = [key(0), key(1), key(2)];
        let borrowed = |i: usize| Key(None, Namespace::Global, &topics[i].topic);
        assert!(cursors.place(7, borrowed(2), Some(at(5))) && cursors.place(7, borrowed(1), Some(at(6))));
        assert_eq!(cursors.begin_read(7), Some((key(1), at(6))));
        assert!(cursors.begin_read(7).is_none());
        assert!(!cursors.end_read(7, borrowed(1), at(9)) && cursors.end_read(7, borrowed(1), at(6)));
        assert!(!cursors.end_read(7, borrowed(1), at(6)));
        cursors.begin_read(7);
        cursors.remove(7, borrowed(1));
        assert_eq!(cursors.begin_read(7), Some((key(2), at(5))));
        cursors.remove_conn(7);
        assert!(cursors.is_empty() && !cursors.has(7));
    }

    #[test]
    fn many_cursors_of_one_connection_cost_each_the_same() {
        let mut cursors = Cursors::default();
        let begin = Instant::now();
        (0..100_000).for_each(|topic| assert!(cursors.set(7, key(topic), None)));
        for topic in 0..100_000 {
            let key = key(topic);
            let key = Key(None, Namespace::Global, &key.topic);
            assert!(cursors.place(7, key, Some(at(1))) && cursors.begin_read(7).is_some());
            cursors.remove(7, key);
        }
        assert!(cursors.is_empty());
        // Examining each of the others takes minutes.
        assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    }
}
