//! Named consumers: a group of one topic whose class has a log has a position there, even without members.
//! Its state is at the leader of the topic's room, which reads ahead for it and tracks delivered,
//! unacknowledged records; the position itself is an entry that survives the process. See
//! docs/protocol/groups.md.
//!
//! Invariant: each record of the topic after `floor` is acknowledged, delivered, or not read yet (from `next`
//! on); the stored position is never ahead of the acknowledgements.

use crate::sink::Turn;
use crate::{Now, Sink};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_message::Record;
use hubsub_types::{Epoch, Limits, Position, Seq};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

#[derive(Clone, Debug)]
pub struct Given {
    pub record: Arc<Record>,
    /// The time at which it is redelivered, in ms.
    pub due_ms: u64,
    pub tries: u32,
    /// Whether no member accepted it last time: delivering it again does not count as a try.
    pub waits: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsumerInfo {
    pub source: Arc<[u8]>,
    pub position: Position,
    pub lag: u64,
    /// Records among them that were delivered to members.
    pub given: u64,
    /// The number of members, in the whole cluster.
    pub members: u64,
}

#[derive(Debug, Default)]
pub struct Consumers {
    pub(crate) by_source: HashMap<Arc<[u8]>, Consumer, RandomState>,
    pub(crate) last_read: u32,
    /// Records redelivered because they were not acknowledged in time, since the start.
    pub redelivered: u64,
    /// Records that retention removed before their consumer read them, since the start.
    pub missed: u64,
    /// Records that arrived while the window of their group was full, since the start.
    pub full: u64,
}

/// An unanswered request is repeated after this time, in ms.
const ASKED_MS: u64 = 5_000;

/// A record that no member accepted is delivered again after this time, in ms.
const RETRY_MS: u64 = 1_000;

impl Consumers {
    /// The names of all consumers, in a deterministic order, independent of hashes.
    pub(crate) fn sources(&self) -> Vec<Arc<[u8]>> {
        let mut sources: Vec<Arc<[u8]>> = self.by_source.keys().cloned().collect();
        sources.sort_unstable();
        sources
    }

    fn given_mut(&mut self, source: &[u8], position: Position) -> Option<&mut Given> {
        self.by_source.get_mut(source)?.given_mut(position)
    }

    pub(crate) fn given(&mut self, source: &[u8], position: Position) -> Option<Arc<Record>> {
        self.given_mut(source, position).map(|given| Arc::clone(&given.record))
    }

    /// No member accepts a record now: it is retried later.
    pub(crate) fn retry_later(&mut self, source: &[u8], position: Position, now: Now) {
        if let Some(given) = self.given_mut(source, position) {
            given.due_ms = given.due_ms.min(now.mono_ms + RETRY_MS);
            given.waits = true;
        }
    }

    /// Counts a redelivery of a record; one that was delivered too often is dead-lettered instead.
    pub(crate) fn may_try(
        &mut self,
        source: &Arc<[u8]>,
        position: Position,
        limits: &Limits,
        turn: &mut Turn<impl Sink>,
    ) -> bool {
        let Some(given) = self.given_mut(source, position) else { return false };
        given.due_ms = turn.now.mono_ms + limits.consumer_ack_ms;
        if std::mem::take(&mut given.waits) {
            return true;
        }
        if limits.consumer_tries_max > 0 && u64::from(given.tries) >= limits.consumer_tries_max {
            turn.sink.bury(source, &given.record);
            return false;
        }
        given.tries += 1;
        self.redelivered += 1;
        true
    }

    pub(crate) fn save(&mut self, source: &Arc<[u8]>, turn: &mut Turn<impl Sink>) {
        let Some(consumer) = self.by_source.get_mut(source) else { return };
        if consumer.is_dirty && consumer.loading_ms.is_none() && consumer.saving_ms.is_none() {
            (consumer.is_dirty, consumer.saving_ms) = (false, Some(turn.now.mono_ms));
            turn.sink.save_consumer(source, consumer.row());
        }
    }

    pub(crate) fn retry_requests(&mut self, source: &Arc<[u8]>, turn: &mut Turn<impl Sink>) {
        let Some(consumer) = self.by_source.get_mut(source) else { return };
        let is_late = |since_ms: u64| since_ms + ASKED_MS <= turn.now.mono_ms;
        if consumer.loading_ms.is_some_and(is_late) {
            consumer.loading_ms = Some(turn.now.mono_ms);
            turn.sink.load_consumer(source);
        }
        if consumer.reading.is_some_and(|(_, since_ms)| is_late(since_ms)) {
            consumer.reading = None;
        }
        if consumer.saving_ms.is_some_and(is_late) {
            (consumer.saving_ms, consumer.is_dirty) = (None, true);
        }
    }
}

#[derive(Debug, Default)]
pub struct Consumer {
    pub topic: Arc<[u8]>,
    epoch: Epoch,
    floor: Seq,
    acknowledged: BTreeSet<Seq>,
    given: BTreeMap<Seq, Given>,
    given_bytes: usize,
    next: Seq,
    /// When the stored position was requested, in ms; none: it is known.
    pub loading_ms: Option<u64>,
    /// The read in flight: its number, and its start, in ms.
    pub reading: Option<(u32, u64)>,
    /// When the current write of the stored position began, in ms.
    pub saving_ms: Option<u64>,
    pub is_dirty: bool,
}

impl Consumer {
    /// A consumer whose stored position is requested; without one it starts after this position.
    pub fn new(topic: Arc<[u8]>, at: Position, now_ms: u64) -> Consumer {
        let (epoch, floor, next) = (at.epoch, at.seq, at.seq.next());
        Consumer { topic, epoch, floor, next, loading_ms: Some(now_ms), ..Consumer::default() }
    }

    pub fn loaded(&mut self, row: Option<&[u8]>) {
        self.loading_ms = None;
        match row.and_then(decode) {
            Some((at, acknowledged)) => {
                (self.epoch, self.floor, self.next) = (at.epoch, at.seq, at.seq.next());
                self.acknowledged = acknowledged;
            }
            None => self.is_dirty = true,
        }
    }

    /// All records up to this one are acknowledged.
    pub fn position(&self) -> Position {
        Position { epoch: self.epoch, seq: self.floor }
    }

    pub fn next(&self) -> Position {
        Position { epoch: self.epoch, seq: self.next }
    }

    pub fn takes(&self, limits: &Limits) -> bool {
        self.loading_ms.is_none() && !self.is_full(limits)
    }

    /// Whether its window is full: it waits for acknowledgements.
    pub fn is_full(&self, limits: &Limits) -> bool {
        (self.given.len() + self.acknowledged.len()) as u64 >= limits.consumer_window_records
            || self.given_bytes as u64 >= limits.consumer_window_bytes
    }

    pub fn begin_epoch(&mut self, epoch: Epoch) {
        (self.epoch, self.floor, self.next) = (epoch, Seq(0), Seq(1));
        self.acknowledged.clear();
        self.given.clear();
        (self.given_bytes, self.reading, self.is_dirty) = (0, None, true);
    }

    /// Adds the topic's next record; returns whether it has to be delivered. See [`Consumer::skip_to`].
    pub fn take(&mut self, record: &Arc<Record>, due_ms: u64) -> bool {
        let seq = record.position.seq;
        if record.position.epoch != self.epoch || seq < self.next {
            return false;
        }
        self.next = seq.next();
        if self.acknowledged.contains(&seq) {
            self.settle();
            return false;
        }
        self.given_bytes += record.weight();
        self.given.insert(seq, Given { record: Arc::clone(record), due_ms, tries: 1, waits: false });
        true
    }

    /// There are no further records for it before this seq.
    pub fn skip_to(&mut self, next: Seq) {
        if next > self.next {
            self.next = next;
            self.settle();
        }
    }

    pub fn acknowledge(&mut self, position: Position) -> bool {
        if position.epoch != self.epoch {
            return false;
        }
        let Some(given) = self.given.remove(&position.seq) else { return false };
        self.given_bytes -= given.record.weight();
        self.acknowledged.insert(position.seq);
        self.settle();
        true
    }

    pub fn given_mut(&mut self, position: Position) -> Option<&mut Given> {
        if position.epoch == self.epoch { self.given.get_mut(&position.seq) } else { None }
    }

    pub fn due(&self, now_ms: u64) -> Vec<Position> {
        let due = self.given.iter().filter(|(_, given)| given.due_ms <= now_ms);
        due.map(|(&seq, _)| Position { epoch: self.epoch, seq }).collect()
    }

    pub fn given(&self) -> usize {
        self.given.len()
    }

    pub fn lag(&self, last: Position) -> u64 {
        let floor = if last.epoch == self.epoch { self.floor } else { Seq(0) };
        last.seq.0.saturating_sub(floor.0).saturating_sub(self.acknowledged.len() as u64)
    }

    fn settle(&mut self) {
        let before = self.given.first_key_value().map_or(self.next, |(&seq, _)| seq);
        let floor = Seq(before.0 - 1);
        if floor > self.floor {
            self.floor = floor;
            self.acknowledged = self.acknowledged.split_off(&before);
        }
        self.is_dirty = true;
    }

    /// Whether its stored position is up to date: unacknowledged records are read again from there.
    pub fn is_in_its_row(&self) -> bool {
        self.loading_ms.is_none() && self.saving_ms.is_none() && !self.is_dirty
    }

    /// Its stored position: epoch, floor, and the acknowledged seqs above it, 8 bytes each, little-endian.
    pub fn row(&self) -> Vec<u8> {
        let numbers =
            [self.epoch.0, self.floor.0].into_iter().chain(self.acknowledged.iter().map(|seq| seq.0));
        numbers.flat_map(u64::to_le_bytes).collect()
    }
}

fn decode(row: &[u8]) -> Option<(Position, BTreeSet<Seq>)> {
    let (numbers, rest) = row.as_chunks::<8>();
    let mut numbers = numbers.iter().map(|bytes| u64::from_le_bytes(*bytes));
    let at = Position { epoch: Epoch(numbers.next()?), seq: Seq(numbers.next()?) };
    let acknowledged: BTreeSet<Seq> = numbers.map(Seq).collect();
    // No room has a record with the last seq, which has no successor.
    let last = Seq(u64::MAX);
    let is_sound = at.seq < last && acknowledged.iter().all(|&seq| seq > at.seq && seq < last);
    (rest.is_empty() && is_sound).then_some((at, acknowledged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_message::Namespace;
    use proptest::prelude::*;

    const EPOCH: Epoch = Epoch(7);

    fn at(seq: u64) -> Position {
        Position { epoch: EPOCH, seq: Seq(seq) }
    }

    fn record(seq: u64) -> Arc<Record> {
        let mut record = Record::new(Namespace::Global, b"t", b"x", "".into(), None);
        record.position = at(seq);
        Arc::new(record)
    }

    fn open(seq: u64) -> Consumer {
        let mut consumer = Consumer::new((*b"t").into(), at(seq), 0);
        consumer.loaded(None);
        consumer
    }

    #[test]
    fn its_place_is_before_the_lowest_that_is_not_acknowledged() {
        let mut consumer = open(10);
        assert!((11..16).all(|seq| consumer.take(&record(seq), 5)));
        assert!(!consumer.take(&record(15), 5), "it was given");
        assert_eq!((consumer.lag(at(15)), consumer.due(5).len(), consumer.due(4).len()), (5, 5, 0));
        assert!(consumer.acknowledge(at(12)) && consumer.acknowledge(at(13)));
        assert!(!consumer.acknowledge(at(12)) && !consumer.acknowledge(at(99)));
        assert_eq!((consumer.position(), consumer.lag(at(15))), (at(10), 3));
        assert!(consumer.acknowledge(at(11)));
        assert_eq!((consumer.position(), consumer.lag(at(15))), (at(13), 2));
        // Records of other topics are skipped.
        consumer.skip_to(Seq(20));
        assert!(consumer.acknowledge(at(14)) && consumer.acknowledge(at(15)));
        assert_eq!(consumer.position(), at(19));
    }

    #[test]
    fn a_group_is_given_no_more_than_its_window() {
        let bytes = 10 * record(1).weight() as u64;
        for limits in [
            Limits { consumer_window_records: 10, ..Limits::default() },
            Limits { consumer_window_bytes: bytes, ..Limits::default() },
        ] {
            let mut consumer = open(0);
            let mut seq = 0;
            while consumer.takes(&limits) {
                seq += 1;
                consumer.take(&record(seq), 0);
            }
            assert_eq!(consumer.given(), 10);
            // Acknowledgements after an unacknowledged record count, too: their numbers are stored.
            (2..=seq).for_each(|seq| _ = consumer.acknowledge(at(seq)));
            assert_eq!(consumer.is_full(&limits), limits.consumer_window_records == 10);
            consumer.acknowledge(at(1));
            assert!(consumer.takes(&limits));
        }
    }

    #[test]
    fn a_room_that_begins_anew_is_read_from_its_first_record() {
        let mut consumer = open(5);
        consumer.take(&record(6), 0);
        consumer.begin_epoch(Epoch(8));
        assert_eq!(consumer.next(), Position { epoch: Epoch(8), seq: Seq(1) });
        assert!(!consumer.acknowledge(at(6)));
        assert_eq!(consumer.lag(at(9)), 9);
    }

    proptest! {
        /// In any order of acknowledgements, and wherever it is read again from its stored position, each
        /// record is delivered until it is acknowledged, and not afterwards.
        #[test]
        fn from_its_row_it_goes_on_with_all_that_is_not_acknowledged(
            acknowledged in proptest::collection::btree_set(1u64..40, 0..40), again in 1u64..40,
        ) {
            let mut consumer = open(0);
            for seq in 1..again {
                consumer.take(&record(seq), 0);
            }
            let early: Vec<u64> = acknowledged.iter().copied().filter(|&seq| seq < again).collect();
            early.iter().rev().for_each(|&seq| assert!(consumer.acknowledge(at(seq))));
            let row = consumer.row();
            let mut consumer = Consumer::new((*b"t").into(), at(40), 0);
            consumer.loaded(Some(&row));
            let given: Vec<u64> = (1..40).filter(|&seq| consumer.take(&record(seq), 0)).collect();
            prop_assert_eq!(given, (1..40).filter(|seq| !early.contains(seq)).collect::<Vec<_>>());
            for seq in (1..40).filter(|seq| !early.contains(seq)) {
                consumer.acknowledge(at(seq));
            }
            prop_assert_eq!((consumer.position(), consumer.lag(at(39)), consumer.given()), (at(39), 0, 0));
        }

        #[test]
        fn a_row_that_is_damaged_is_none_and_no_row_puts_it_where_it_cannot_go_on(
            numbers in proptest::collection::vec(prop_oneof![0..5u64, u64::MAX - 2..=u64::MAX], 0..5),
            cut in 0..8usize,
        ) {
            let mut bytes: Vec<u8> = numbers.iter().copied().flat_map(u64::to_le_bytes).collect();
            bytes.truncate(bytes.len().saturating_sub(cut));
            let is_sound = |row: &[u64]| row[1] < u64::MAX && row[2..].iter().all(|&n| n > row[1] && n < u64::MAX);
            let is_row = bytes.len() == 8 * numbers.len() && numbers.len() >= 2 && is_sound(&numbers);
            prop_assert_eq!(decode(&bytes).is_some(), is_row);
            let mut consumer = Consumer::new((*b"t").into(), at(3), 0);
            consumer.loaded(Some(&bytes));
            prop_assert!(consumer.next().seq > consumer.position().seq);
            prop_assert_eq!(consumer.next() == at(4), !is_row || numbers[..2] == [EPOCH.0, 3]);
        }
    }
}
