//! Named consumers: a group of one topic whose class has a log keeps its place there, also while it has no member.
//! It stands at the leader of the topic's room, which reads on for it, and remembers what was given and not
//! acknowledged; the place itself is a row that outlives the process. See docs/protocol/groups.md.
//!
//! Invariant: each record of the topic behind `floor` is acknowledged, given, or not read yet (`next` and behind);
//! what is written is never ahead of what is acknowledged.

use crate::record::Record;
use hubsub_types::{Epoch, Limits, Position, Seq};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A record that a member has.
#[derive(Clone, Debug)]
pub struct Given {
    /// It.
    pub record: Arc<Record>,
    /// When it is given to another one.
    pub due_ms: u64,
    /// How often it was given.
    pub tries: u32,
    /// Whether nobody took it the last time: to give it again is no further try.
    pub waits: bool,
}

/// What is told of a consumer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConsumerInfo {
    /// The group and its topic, as the broker names it.
    pub source: Arc<[u8]>,
    /// All records up to this one are acknowledged.
    pub position: Position,
    /// Records of the room behind it that are not.
    pub lag: u64,
    /// Of these, records that members have.
    pub given: u64,
    /// Members, in the whole cluster.
    pub members: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Consumer {
    /// The topic.
    pub topic: Arc<[u8]>,
    /// Of the room's life in which it stands.
    epoch: Epoch,
    /// Everything up to it is acknowledged.
    floor: Seq,
    acknowledged: BTreeSet<Seq>,
    given: BTreeMap<Seq, Given>,
    given_bytes: usize,
    next: Seq,
    /// Its row is asked for since then, in ms; none: it is known.
    pub loading_ms: Option<u64>,
    /// A read is under way: its number, and since when, in ms.
    pub reading: Option<(u32, u64)>,
    /// A row is being written since then, in ms.
    pub saving_ms: Option<u64>,
    /// It changed since.
    pub is_dirty: bool,
}

impl Consumer {
    /// One whose row is asked for; without one it begins behind this position.
    #[must_use]
    pub fn new(topic: Arc<[u8]>, at: Position, now_ms: u64) -> Consumer {
        Consumer {
            topic,
            epoch: at.epoch,
            floor: at.seq,
            acknowledged: BTreeSet::new(),
            given: BTreeMap::new(),
            given_bytes: 0,
            next: at.seq.next(),
            loading_ms: Some(now_ms),
            reading: None,
            saving_ms: None,
            is_dirty: false,
        }
    }

    /// Its row was read: it goes on there.
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
    #[must_use]
    pub fn position(&self) -> Position {
        Position { epoch: self.epoch, seq: self.floor }
    }

    /// The next record to be read.
    #[must_use]
    pub fn next(&self) -> Position {
        Position { epoch: self.epoch, seq: self.next }
    }

    /// Whether it takes more records now.
    #[must_use]
    pub fn takes(&self, limits: &Limits) -> bool {
        self.loading_ms.is_none() && !self.is_full(limits)
    }

    /// Whether its window is full: it waits for acknowledgements.
    #[must_use]
    pub fn is_full(&self, limits: &Limits) -> bool {
        (self.given.len() + self.acknowledged.len()) as u64 >= limits.consumer_window_records
            || self.given_bytes as u64 >= limits.consumer_window_bytes
    }

    /// The room begins another life, of which all is due.
    pub fn begin_life(&mut self, epoch: Epoch) {
        (self.epoch, self.floor, self.next) = (epoch, Seq(0), Seq(1));
        self.acknowledged.clear();
        self.given.clear();
        (self.given_bytes, self.reading, self.is_dirty) = (0, None, true);
    }

    /// Its next record; whether it is to be given to a member. Of records that are none of the topic's nothing is
    /// said: [`Consumer::skip_to`].
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

    /// There is nothing for it before this seq that it has not been given.
    pub fn skip_to(&mut self, next: Seq) {
        if next > self.next {
            self.next = next;
            self.settle();
        }
    }

    /// A record is acknowledged; whether it was not before.
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

    /// What is given under this position.
    pub fn given_mut(&mut self, position: Position) -> Option<&mut Given> {
        if position.epoch == self.epoch { self.given.get_mut(&position.seq) } else { None }
    }

    /// Those that are due again.
    #[must_use]
    pub fn due(&self, now_ms: u64) -> Vec<Position> {
        let due = self.given.iter().filter(|(_, given)| given.due_ms <= now_ms);
        due.map(|(&seq, _)| Position { epoch: self.epoch, seq }).collect()
    }

    /// How many members have.
    #[must_use]
    pub fn given(&self) -> usize {
        self.given.len()
    }

    /// Records of its room that it has not acknowledged, where that one is the room's last.
    #[must_use]
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

    /// Whether its row is written as it is now: what is given and not acknowledged comes again from there.
    #[must_use]
    pub fn is_in_its_row(&self) -> bool {
        self.loading_ms.is_none() && self.saving_ms.is_none() && !self.is_dirty
    }

    /// Its row: epoch, floor, and the seqs that are acknowledged above it, 8 bytes each, little-endian.
    #[must_use]
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
    // No room has a record of the last seq, behind which there is none.
    let last = Seq(u64::MAX);
    let is_sound = at.seq < last && acknowledged.iter().all(|&seq| seq > at.seq && seq < last);
    (rest.is_empty() && is_sound).then_some((at, acknowledged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Namespace;
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
        // Those that are no record of its topic are passed.
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
            // What is acknowledged behind one that is not counts too: its number is kept.
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
        consumer.begin_life(Epoch(8));
        assert_eq!(consumer.next(), Position { epoch: Epoch(8), seq: Seq(1) });
        assert!(!consumer.acknowledge(at(6)));
        assert_eq!(consumer.lag(at(9)), 9);
    }

    proptest! {
        /// Whatever is acknowledged when, and wherever it is read again from its row: each record is given until it
        /// is acknowledged, and not after.
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
