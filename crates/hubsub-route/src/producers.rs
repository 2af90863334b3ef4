//! The duplicate window of a hub: the numbered records in its log, so that a repeated record is not stored
//! again. docs/protocol/producers.md has the results for each number, and the publisher's side. With the log
//! damaged within the window, new and repeated records cannot be distinguished (`Quarantined`).
//!
//! Invariant: the window is a function of the log: the producers' records that are both among the last
//! `records` offsets and within the last `bytes` bytes of the hub's log. So reading the end of a log, from
//! anywhere before that, reproduces the window of the hub that wrote it. Records that the log refused are not
//! in it.
//!
//! A record without a producer costs an addition and a comparison; one with a producer a table look-up.

use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_message::{Producer, Record};
use hubsub_types::{ErrorCode, Limits, Position, ProducerId};
use std::collections::VecDeque;

/// Gapless sequences count from one above this. Numbers from 2^63 on are those of relays, with gaps.
pub const GAPLESS: u64 = 1 << 62;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    pub records: u64,
    /// Bytes of the log, as `log_bytes` counts them.
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

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Known {
    sequence: u64,
    digest: u64,
    pub offset: u64,
    pub position: Position,
}

/// The producer of an unreadable part of the log.
const NOBODY: ProducerId = ProducerId(0);

#[derive(Debug)]
struct Place {
    /// Its producer; `NOBODY` can only be in the first entry.
    producer: ProducerId,
    offset: u64,
    /// Bytes of the log before it, since counting began.
    before: u64,
}

#[derive(Debug, Default)]
pub struct Producers {
    window: Window,
    /// Bytes of the log since counting began.
    bytes: u64,
    /// Records in the window by producer, at least one each; sequences and offsets rise.
    known: HashMap<ProducerId, VecDeque<Known>, RandomState>,
    places: VecDeque<Place>,
    digests: RandomState,
}

impl Producers {
    pub fn new(window: Window) -> Producers {
        Producers { window, ..Producers::default() }
    }

    /// The window of a log unreadable up to an offset: it refuses numbered records until it has passed it.
    pub fn damaged(window: Window, offset: u64) -> Producers {
        let place = Place { producer: NOBODY, offset, before: 0 };
        Producers { places: VecDeque::from([place]), ..Producers::new(window) }
    }

    /// Finds a record that may be a repeat; none if it is new or unnumbered.
    ///
    /// # Errors
    /// The record is not in the log, or that is unknown, and it will not be stored.
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

    /// Adds a record with this size in bytes and this offset, the next one in the log.
    pub fn keep(&mut self, offset: u64, bytes: u64, record: &Record) {
        let before = self.bytes;
        if let Some(Producer { id, sequence }) = record.producer() {
            let known = Known { sequence, digest: self.digest(record), offset, position: record.position };
            let of_producer = self.known.entry(id).or_insert_with(|| VecDeque::with_capacity(1));
            if of_producer.back().is_some_and(|last| sequence <= last.sequence) {
                // Its producer left the window and started again, when the window was shorter.
                of_producer.clear();
            }
            of_producer.push_back(known);
            self.places.push_back(Place { producer: id, offset, before });
        }
        self.pass(offset, bytes);
    }

    /// Adds a record without a producer, with this size in bytes and this offset.
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

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Hash of the content in which a repeat must be equal; its publisher may be another connection.
    fn digest(&self, record: &Record) -> u64 {
        self.digests.hash_one((record.namespace, record.topic(), record.payload(), &record.headers))
    }
}

/// Whether a number may follow the last known one.
fn may_follow(last: u64, sequence: u64) -> Result<(), ErrorCode> {
    let is_gapless = sequence >> 62 == GAPLESS >> 62;
    if is_gapless && sequence != last + 1 { Err(ErrorCode::SequenceAhead) } else { Ok(()) }
}

fn shrink<T>(list: &mut VecDeque<T>) {
    if list.capacity() > 16 && list.len() < list.capacity() / 4 {
        list.shrink_to(list.capacity() / 2);
    }
}

/// The size of a record in a window: that in a log which includes the name of the room.
pub fn log_bytes(room: usize, topic: usize, publisher: usize, headers: usize, payload: usize) -> u64 {
    const HEAD: usize = 80;
    (HEAD + room + topic + publisher + headers + payload) as u64
}

pub fn log_bytes_of(room: usize, record: &Record) -> u64 {
    const NAME_MAX: usize = u16::MAX as usize;
    let headers = record.headers.iter().flat_map(|headers| headers.iter());
    let headers = headers.map(|(key, value)| 6 + key.len().min(NAME_MAX) + value.len()).sum();
    log_bytes(room, record.topic().len(), record.publisher.len(), headers, record.payload().len())
}
