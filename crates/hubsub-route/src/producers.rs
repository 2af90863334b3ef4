//! The duplicate window of a hub: which numbered records its log has, so that one that
//! is sent again is not kept again.
//!
//! A *producer* names itself and numbers its records: a sequence from 1, rising in each
//! hub, gaps allowed (the records between may be in other hubs). What a repeat finds:
//!
//! - above the producer's last sequence: it is new, and is kept;
//! - in the window: it is there already, and its position is the answer, once it is
//!   committed; with other content it is refused (`SequenceReused`);
//! - between sequences in the window: it was never kept, and is not, since a later one was
//!   (`SequencePassed`);
//! - below the window: nobody knows any more (`SequenceTooOld`);
//! - with the log damaged within the window: nobody can tell new from old (`Quarantined`);
//! - of a producer without any record in the window: it is new, as a producer's first is.
//!
//! A *gapless* sequence counts 1, 2, 3, … above [`GAPLESS`]: a number is kept only directly after the one before it, so
//! that what is sent without waiting for answers keeps its order although one of it is refused (`SequenceAhead`).
//!
//! Invariant: the window is a function of the log: the producers' records among those that
//! the last `records` offsets and the last `bytes` bytes of the hub's log both reach. So
//! the end of a log, read from anywhere before that, gives the same window as the hub had
//! that wrote it. What the log refused is not in it.
//!
//! What a publisher does and meets stands in docs/protocol/producers.md.
//!
//! A record without a producer costs an addition and a comparison; one with a producer a
//! look into a table. Memory is bounded by `records`, and by `bytes`.

use crate::record::Record;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::{ErrorCode, Limits, Position, ProducerId};
use std::collections::VecDeque;

/// Gapless sequences count from here: the first number is one above. Those from 2^63 on are relays' own, with gaps.
pub const GAPLESS: u64 = 1 << 62;

/// Who numbered a record before it had an offset, and that number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Producer {
    /// Who.
    pub id: ProducerId,
    /// From 1, rising.
    pub sequence: u64,
}

/// How far back a window reaches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// Offsets.
    pub records: u64,
    /// Bytes, as `log_bytes` counts them.
    pub bytes: u64,
}

impl From<&Limits> for Window {
    fn from(limits: &Limits) -> Window {
        Window { records: limits.producer_window_records, bytes: limits.producer_window_bytes }
    }
}

impl Default for Window {
    fn default() -> Window {
        Window::from(&Limits::default())
    }
}

/// A record in the window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    /// Its producer's number for it.
    sequence: u64,
    /// Of its content.
    digest: u64,
    /// Its place in the hub's log.
    pub offset: u64,
    /// Its place in its room.
    pub position: Position,
}

/// Stands in the place of what cannot be read.
const NOBODY: ProducerId = ProducerId(0);

/// Where a record of a producer is in the log.
#[derive(Debug)]
struct Place {
    /// Whose it is, or `NOBODY`, which is the first if it is there.
    producer: ProducerId,
    offset: u64,
    /// Bytes of the log before it, since counting began.
    before: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Producers {
    window: Window,
    /// Bytes of the log since counting began.
    bytes: u64,
    /// By producer its records in the window, which is one at least; sequences and offsets rise.
    known: HashMap<ProducerId, VecDeque<Known>, RandomState>,
    /// All of them, by offset.
    places: VecDeque<Place>,
    digests: RandomState,
}

impl Producers {
    /// An empty window.
    #[must_use]
    pub fn new(window: Window) -> Producers {
        Producers { window, ..Producers::default() }
    }

    /// The window of a log up to this offset, which cannot be read: until it has moved past
    /// there, it tells nothing.
    #[must_use]
    pub fn damaged(window: Window, offset: u64) -> Producers {
        let place = Place { producer: NOBODY, offset, before: 0 };
        Producers { places: VecDeque::from([place]), ..Producers::new(window) }
    }

    /// What became of a record that is sent, perhaps not for the first time; nothing if it
    /// is new or nobody numbered it.
    ///
    /// # Errors
    /// The record is not in the log, or nobody knows, and it will not be.
    pub fn find(&self, record: &Record) -> Result<Option<Known>, ErrorCode> {
        let Some(Producer { id, sequence }) = record.producer() else { return Ok(None) };
        if self.places.front().is_some_and(|place| place.producer == NOBODY) {
            return Err(ErrorCode::Quarantined);
        }
        let Some(known) = self.known.get(&id) else { return may_follow(GAPLESS, sequence).map(|()| None) };
        if let Some(last) = known.back().filter(|last| sequence > last.sequence) {
            return may_follow(last.sequence, sequence).map(|()| None);
        }
        match known.binary_search_by_key(&sequence, |known| known.sequence) {
            Ok(at) if known[at].digest == self.digest(record) => Ok(Some(known[at])),
            Ok(_) => Err(ErrorCode::SequenceReused),
            Err(0) => Err(ErrorCode::SequenceTooOld),
            Err(_) => Err(ErrorCode::SequencePassed),
        }
    }

    /// A record of so many bytes was given this offset; the next after those before.
    pub fn keep(&mut self, offset: u64, bytes: u64, record: &Record) {
        let before = self.bytes;
        if let Some(Producer { id, sequence }) = record.producer() {
            let known = Known { sequence, digest: self.digest(record), offset, position: record.position };
            let of_producer = self.known.entry(id).or_insert_with(|| VecDeque::with_capacity(1));
            if of_producer.back().is_some_and(|last| sequence <= last.sequence) {
                // It was forgotten and began anew, when the window was shorter.
                of_producer.clear();
            }
            of_producer.push_back(known);
            self.places.push_back(Place { producer: id, offset, before });
        }
        self.pass(offset, bytes);
    }

    /// A record of so many bytes and of no producer was given this offset.
    pub fn pass(&mut self, offset: u64, bytes: u64) {
        self.bytes += bytes;
        while let Some(place) = self.places.front() {
            let Window { records, bytes } = self.window;
            if offset - place.offset < records && self.bytes - place.before <= bytes {
                return;
            }
            self.forget_oldest();
        }
    }

    fn forget_oldest(&mut self) {
        let Some(Place { producer, offset, .. }) = self.places.pop_front() else { return };
        shrink(&mut self.places);
        let Some(known) = self.known.get_mut(&producer) else { return };
        if known.front().is_some_and(|known| known.offset == offset) {
            known.pop_front();
            shrink(known);
        }
        if known.is_empty() {
            self.known.remove(&producer);
        }
    }

    /// Records in the window.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Of what a repeat must be equal in. Its publisher may differ: it is a connection's.
    fn digest(&self, record: &Record) -> u64 {
        self.digests.hash_one((record.namespace, record.topic(), record.payload(), &record.headers))
    }
}

/// Whether a number may come next after the last one that is known.
fn may_follow(last: u64, sequence: u64) -> Result<(), ErrorCode> {
    let is_gapless = sequence >> 62 == GAPLESS >> 62;
    if is_gapless && sequence != last + 1 { Err(ErrorCode::SequenceAhead) } else { Ok(()) }
}

/// Gives memory back of what was much longer.
fn shrink<T>(list: &mut VecDeque<T>) {
    if list.capacity() > 16 && list.len() < list.capacity() / 4 {
        list.shrink_to(list.capacity() / 2);
    }
}

/// What a record counts in a window: what it takes in a log, and the name of its room also
/// where that is its topic.
#[must_use]
pub fn log_bytes(room: usize, topic: usize, publisher: usize, headers: usize, payload: usize) -> u64 {
    const HEAD: usize = 80;
    (HEAD + room + topic + publisher + headers + payload) as u64
}

/// As `log_bytes`, of a record that is not in a log yet.
#[must_use]
pub fn log_bytes_of(room: usize, record: &Record) -> u64 {
    const NAME_MAX: usize = u16::MAX as usize;
    let headers = record.headers.iter().flat_map(|headers| headers.iter());
    let headers = headers.map(|(key, value)| 6 + key.len().min(NAME_MAX) + value.len()).sum();
    log_bytes(room, record.topic().len(), record.publisher.len(), headers, record.payload().len())
}
