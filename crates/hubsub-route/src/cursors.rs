//! Subscribers that catch up. A cursor stands for one subscription of one
//! connection to one topic while it is not live: it began in the past, or it
//! was too slow. Live records of that topic pass it by; it reads them from the
//! room's history, in bounded ranges as its output drains, and becomes live in
//! the turn that brings it the room's last record. Because a hub sends ranges
//! and live records to an edge in one order, nothing falls between.

pub mod hub;

use crate::record::{Namespace, Record};
use crate::relay::AskId;
use ahash::RandomState;
use hashbrown::HashMap;
use hub::HubCursors;
use hubsub_types::{ClassTable, ConnKey, Epoch, HubId, NodeId, Position, Seq, ShardId};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which subscription a cursor stands for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct CursorKey {
    /// The pattern, if it is a pattern subscription.
    pub pattern: Option<u32>,
    /// With the topic, where it reads.
    pub namespace: Namespace,
    /// See `namespace`.
    pub topic: Arc<[u8]>,
}

/// A borrowed `CursorKey`: pattern, namespace, topic.
#[derive(Clone, Copy, Hash)]
pub struct Key<'a>(pub Option<u32>, pub Namespace, pub &'a [u8]);

impl hashbrown::Equivalent<CursorKey> for Key<'_> {
    fn equivalent(&self, key: &CursorKey) -> bool {
        self.0 == key.pattern && self.1 == key.namespace && *self.2 == *key.topic
    }
}

/// One subscription that is not live.
#[derive(Debug)]
struct Cursor {
    /// Next record to read; none while the hub has not confirmed the start.
    next: Option<Position>,
    /// Whether a read is under way.
    reading: bool,
    /// Lower if it began earlier.
    age: u64,
    /// Behind which record it goes on once the hub has confirmed it, whatever of that is there.
    goes_on: Option<Position>,
}

/// The cursors of one connection.
#[derive(Debug, Default)]
struct Lagging {
    cursors: HashMap<CursorKey, Cursor, RandomState>,
    /// Those that can read, oldest first.
    places: BTreeMap<u64, CursorKey>,
    /// How many are reading.
    reading: usize,
}

impl Lagging {
    /// Where a cursor reads next; an answer to an earlier read is not awaited.
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
    /// Another node asks, as its request says.
    pub of: Option<Box<OfNode>>,
}

/// What a node's request says beside.
#[derive(Clone, Debug)]
pub struct OfNode {
    /// The node.
    pub node: NodeId,
    /// Its number for the request.
    pub ask: AskId,
    /// The hub.
    pub hub: HubId,
    /// The room, where records of all its topics are wanted.
    pub whole: Option<Arc<[u8]>>,
    /// At most so many records.
    pub records_max: u32,
    /// None that are older, in µs since 1970.
    pub since_us: u64,
}

impl Read {
    /// The room that it reads.
    #[must_use]
    pub fn room_name<'a>(&'a self, classes: &ClassTable) -> Cow<'a, [u8]> {
        match self.of.as_ref().and_then(|of| of.whole.as_deref()) {
            Some(room) => Cow::Borrowed(room),
            None => classes.room(&self.topic),
        }
    }

    /// Whether a record of that room is wanted.
    #[must_use]
    pub fn wants(&self, record: &Record) -> bool {
        let is_whole = self.of.as_ref().is_some_and(|of| of.whole.is_some());
        is_whole || (record.namespace == self.namespace && record.topic() == &*self.topic)
    }
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
    /// The room's present one then, which is read from its first record; 0: the room has none, or what comes
    /// next is of its first record on.
    pub life: Epoch,
}

impl Range {
    /// The epoch is over; nothing can be read but of this one.
    #[must_use]
    pub fn gone(life: Epoch) -> Range {
        Range { at_end: true, is_gone: true, life, ..Range::default() }
    }

    /// The answer when nothing was read, and the same must be asked again.
    #[must_use]
    pub fn again(from: Seq) -> Range {
        Range { next: from, ..Range::default() }
    }

    /// The answer when records of the room cannot be read.
    #[must_use]
    pub fn lost(from: Seq, to: Seq) -> Range {
        Range { gap: Some((from, to)), next: to.next(), ..Range::default() }
    }
}

/// All cursors of a shard.
#[derive(Debug, Default)]
pub struct Cursors {
    by_conn: HashMap<u32, Lagging, RandomState>,
    total: usize,
    /// Cursors made since the start.
    made: u64,
    /// Of those who follow whole hubs.
    pub hubs: HubCursors,
}

/// Cursors of one shard: past it a subscription that would need one more is closed.
pub const CURSORS_MAX: usize = 1_000_000;

impl Cursors {
    /// Whether there is none, the common case.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.total == 0 && self.hubs.is_empty()
    }

    /// How many there are of single topics.
    #[must_use]
    pub fn len(&self) -> usize {
        self.total
    }

    /// Whether a connection has any.
    #[must_use]
    pub fn has(&self, conn: u32) -> bool {
        !self.is_empty() && (self.by_conn.contains_key(&conn) || self.hubs.has(conn))
    }

    /// How many are not live, those of hubs, too.
    #[must_use]
    pub fn behind(&self) -> usize {
        self.total + self.hubs.behind(None)
    }

    /// Likewise, of a connection.
    #[must_use]
    pub fn count(&self, conn: u32) -> usize {
        if self.is_empty() {
            return 0;
        }
        let of_topics = self.by_conn.get(&conn).map_or(0, |lagging| lagging.cursors.len());
        of_topics + self.hubs.behind(Some(conn))
    }

    /// Whether a subscription is not live.
    #[must_use]
    pub fn holds(&self, conn: u32, key: Key<'_>) -> bool {
        self.by_conn.get(&conn).is_some_and(|lagging| lagging.cursors.contains_key(&key))
    }

    /// Where a subscription that is not live reads next; none if it is live, or its start is not confirmed.
    #[must_use]
    pub fn next_of(&self, conn: u32, key: Key<'_>) -> Option<Position> {
        self.by_conn.get(&conn)?.cursors.get(&key)?.next
    }

    /// Sets where a subscription reads, made now if it is live; false if there
    /// are too many cursors.
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

    /// Once the hub has confirmed a subscription, it goes on behind this record.
    pub fn goes_on(&mut self, conn: u32, key: Key<'_>, after: Position) {
        let cursor = self.by_conn.get_mut(&conn).and_then(|lagging| lagging.cursors.get_mut(&key));
        cursor.into_iter().for_each(|cursor| cursor.goes_on = Some(after));
    }

    /// Behind which record a subscription that is confirmed now goes on, of a room that lives now as `life`, if that was
    /// said.
    pub fn take_goes_on(&mut self, conn: u32, key: Key<'_>, life: Epoch) -> Option<Position> {
        let after = self.by_conn.get_mut(&conn)?.cursors.get_mut(&key)?.goes_on.take()?;
        // Of a life that had no record nothing is missing.
        let epoch = if after.seq == Seq(0) { life } else { after.epoch };
        Some(Position { epoch, seq: after.seq.next() })
    }

    /// Sets where a cursor reads; false if there is none.
    pub fn place(&mut self, conn: u32, key: Key<'_>, next: Option<Position>) -> bool {
        self.by_conn.get_mut(&conn).is_some_and(|lagging| lagging.place(key, next))
    }

    /// The read that a connection's longest waiting cursor needs next, which
    /// begins; none while one is under way.
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

    /// Whether an answer from `next` on is what a cursor waits for, which it
    /// does no longer. Another one began anew from elsewhere meanwhile.
    pub fn end_read(&mut self, conn: u32, key: Key<'_>, next: Position) -> bool {
        let Some(lagging) = self.by_conn.get_mut(&conn) else { return false };
        let cursor = lagging.cursors.get_mut(&key).filter(|c| c.reading && c.next == Some(next));
        let Some(cursor) = cursor else { return false };
        cursor.reading = false;
        lagging.reading -= 1;
        true
    }

    /// A subscription is live, or gone.
    pub fn remove(&mut self, conn: u32, key: Key<'_>) {
        let Some(lagging) = self.by_conn.get_mut(&conn) else { return };
        self.total -= usize::from(lagging.remove(key));
        if lagging.cursors.is_empty() {
            self.by_conn.remove(&conn);
        }
    }

    /// A pattern subscription is gone, with its cursors of all topics.
    pub fn remove_pattern(&mut self, conn: u32, pattern: u32) {
        self.hubs.remove_pattern(conn, pattern);
        let Some(lagging) = self.by_conn.get_mut(&conn) else { return };
        let of_pattern = |key: &&CursorKey| key.pattern == Some(pattern);
        let keys: Vec<CursorKey> = lagging.cursors.keys().filter(of_pattern).cloned().collect();
        for key in keys {
            self.remove(conn, Key(key.pattern, key.namespace, &key.topic));
        }
    }

    /// A connection is gone.
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
        // A look at each of the others takes minutes.
        assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
    }
}
