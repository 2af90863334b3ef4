//! Reads sessions of other processes from their rooms (docs/protocol/mqtt-state.md): for a connection that
//! was granted the client id, or to take over a session whose holder's process is gone.
//!
//! ```text
//!  granted ──► snapshot? ──► none, or Clean Start: a new session
//!                 └────────► fence ──► entries, page by page ──► the session
//! ```
//!
//! Each event of a read returns the [`ReadAction`] that continues or ends it.
//!
//! Invariant: entries are read after the reader's own fence, so later writes of an older holder are never
//! included.

use super::entries::{EntryHead, Head, begin};
use super::rooms::{entries_room, snapshot_room};
use super::takeover::{Found, adds_to};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::rooms::{HistoryPart, HistoryQuery};
use hubsub_route::{Owner, Pages};
use hubsub_types::{ConnKey, ErrorCode};
use std::collections::HashSet;

const PAGE: u64 = 256;

const TAKEOVERS_MAX: usize = 256;

/// Bytes of entries of all takeovers together. Above it only the largest one continues.
const TAKEOVER_BYTES_MAX: usize = 16 << 20;

/// The delay before a damaged session is tried again, in ms: only its client repairs it, with a new session.
const DAMAGED_MS: u64 = 3_600_000;

/// The most damaged sessions that a shard remembers; beyond that the first one due is forgotten.
const DAMAGED_MAX: usize = 1_000;

#[derive(Default)]
pub struct Readings {
    by_place: HashMap<ConnKey, Reading, RandomState>,
    /// The gone processes among those that held sessions.
    pub gone: Gone,
    /// Damaged sessions and the time of their next try.
    damaged: HashMap<Box<str>, u64, RandomState>,
    /// True if the last takeover was skipped because of `mqtt_sessions_max`.
    pub is_full: bool,
}

struct Reading {
    id: Box<str>,
    why: Why,
    epoch: u64,
    bytes: usize,
    step: Step,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// A connection in this slot; `is_clean` if it wants a new session.
    Client {
        is_clean: bool,
    },
    Takeover,
}

enum Step {
    Claim,
    Snapshot,
    /// Writing the fence; holds the snapshot.
    Fence(Vec<u8>),
    /// Reading entries; holds the snapshot, the page state and the entries so far.
    Entries(Vec<u8>, Pages, Vec<Vec<u8>>),
}

pub enum ReadAction {
    /// Nothing now, because the read waits.
    None,
    /// Append this fence to the entries of the id; its outcome goes to [`Readings::fenced`].
    Fence(Box<str>, Vec<u8>),
    /// Read this page; it goes to [`Readings::page`].
    Page(HistoryQuery),
    /// The takeover has ended: release the id and the slot.
    Release(Box<str>),
    TakeOver(Found),
    /// The connection has the session; the epoch is that of its previous holder.
    Resume(Found, u64),
    /// The connection begins a new session; the epoch is that of the previous holder.
    BeginNew(u64),
    /// Like `BeginNew`, but the previous session with this snapshot still exists.
    Clear {
        id: Box<str>,
        snapshot: Vec<u8>,
        epoch: u64,
    },
    Failed {
        id: Box<str>,
        is_clean: bool,
    },
}

#[must_use]
pub fn snapshot_query(id: &str) -> HistoryQuery {
    HistoryQuery { room: snapshot_room(id), count: 1, after: None, topic: None }
}

impl Readings {
    /// The number of takeovers in progress; none if a session may not be taken over now, because it is
    /// damaged, its takeover is in progress, or too many are.
    pub fn may_take_over(&mut self, id: &str, now_ms: u64) -> Option<usize> {
        let in_progress = self.takeovers().count();
        let is_known = self.is_damaged(id, now_ms) || self.takeovers().any(|reading| &*reading.id == id);
        (!is_known && in_progress < TAKEOVERS_MAX).then_some(in_progress)
    }

    /// Begins a takeover into this slot, which waits for its client id.
    pub fn begin_takeover(&mut self, key: ConnKey, id: Box<str>) {
        self.insert(key, id, Why::Takeover, Step::Claim);
    }

    /// The client id was granted; returns the id of a takeover, whose snapshot is read next.
    pub fn granted(&mut self, key: ConnKey) -> Option<Box<str>> {
        let reading = self.by_place.get_mut(&key)?;
        reading.step = Step::Snapshot;
        Some(reading.id.clone())
    }

    /// A connection was granted its client id: its snapshot is to be read.
    pub fn begin(&mut self, key: ConnKey, id: Box<str>, is_clean: bool) {
        self.insert(key, id, Why::Client { is_clean }, Step::Snapshot);
    }

    fn insert(&mut self, key: ConnKey, id: Box<str>, why: Why, step: Step) {
        self.by_place.insert(key, Reading { id, why, epoch: 0, bytes: 0, step });
    }

    pub fn remove(&mut self, key: ConnKey) {
        self.by_place.remove(&key);
    }

    /// Ends a takeover; returns its client id, or none if there is none in this slot.
    pub fn end_takeover(&mut self, key: ConnKey) -> Option<Box<str>> {
        self.by_place.get(&key).filter(|reading| reading.why == Why::Takeover)?;
        self.by_place.remove(&key).map(|reading| reading.id)
    }

    pub fn page(&mut self, key: ConnKey, part: Result<HistoryPart, ErrorCode>) -> ReadAction {
        let Some(reading) = self.by_place.get_mut(&key) else { return ReadAction::None };
        let Ok(part) = part else { return self.fail(key) };
        match &mut reading.step {
            Step::Claim | Step::Fence(_) => ReadAction::None,
            Step::Snapshot => self.snapshot(key, &part),
            Step::Entries(snapshot, pages, entries) => {
                let records = pages.take(part);
                let payloads = records.iter().map(|record| record.payload());
                for entry in payloads.filter(|entry| adds_to(snapshot, entry)) {
                    reading.bytes += entry.len() + size_of::<Vec<u8>>();
                    entries.push(entry.to_vec());
                }
                if self.gives_way(key) {
                    // A later search finds it again.
                    return self.release(key);
                }
                self.read_on(key)
            }
        }
    }

    fn snapshot(&mut self, key: ConnKey, part: &HistoryPart) -> ReadAction {
        let Some(reading) = self.by_place.get_mut(&key) else { return ReadAction::None };
        let snapshot = part.records.last();
        let epoch = snapshot.and_then(|snapshot| Owner::of(snapshot)).unwrap_or_default().epoch;
        let snapshot = snapshot.map(|snapshot| snapshot.payload().to_vec()).filter(|it| !it.is_empty());
        reading.epoch = epoch;
        let id = reading.id.clone();
        match (snapshot, reading.why) {
            (Some(snapshot), Why::Takeover | Why::Client { is_clean: false }) => {
                let head = Head::read(&snapshot);
                let fence = head.map(|(head, ..)| EntryHead { born: head.born, epoch: epoch + 1, number: 0 });
                reading.step = Step::Fence(snapshot);
                match fence {
                    Ok(fence) => ReadAction::Fence(id, begin(fence)),
                    // The restore reports the damage.
                    Err(_) => self.fenced(key, true),
                }
            }
            (Some(snapshot), Why::Client { is_clean: true }) => {
                self.remove(key);
                ReadAction::Clear { id, snapshot, epoch }
            }
            (None, Why::Client { .. }) => {
                self.remove(key);
                ReadAction::BeginNew(epoch)
            }
            (None, Why::Takeover) => self.release(key),
        }
    }

    /// The fence of a session is written, or the write failed.
    pub fn fenced(&mut self, key: ConnKey, is_safe: bool) -> ReadAction {
        let Some(reading) = self.by_place.get_mut(&key) else { return ReadAction::None };
        let Step::Fence(snapshot) = &mut reading.step else { return ReadAction::None };
        if !is_safe {
            return self.fail(key);
        }
        let pages = Pages::new(&entries_room(&reading.id), None, PAGE);
        reading.step = Step::Entries(std::mem::take(snapshot), pages, Vec::new());
        self.read_on(key)
    }

    fn read_on(&mut self, key: ConnKey) -> ReadAction {
        let Some(reading) = self.by_place.get_mut(&key) else { return ReadAction::None };
        let Step::Entries(_, pages, _) = &reading.step else { return ReadAction::None };
        if let Some(query) = pages.next() {
            return ReadAction::Page(query);
        }
        let Some(Reading { id, why, epoch, step: Step::Entries(snapshot, _, entries), .. }) =
            self.by_place.remove(&key)
        else {
            unreachable!("it is one that was read")
        };
        let found = Found { id, snapshot, entries };
        match why {
            Why::Takeover => ReadAction::TakeOver(found),
            Why::Client { .. } => ReadAction::Resume(found, epoch),
        }
    }

    fn fail(&mut self, key: ConnKey) -> ReadAction {
        match self.by_place.remove(&key) {
            Some(Reading { id, why: Why::Takeover, .. }) => ReadAction::Release(id),
            Some(Reading { id, why: Why::Client { is_clean }, .. }) => ReadAction::Failed { id, is_clean },
            None => ReadAction::None,
        }
    }

    fn release(&mut self, key: ConnKey) -> ReadAction {
        self.end_takeover(key).map_or(ReadAction::None, ReadAction::Release)
    }

    /// True if takeovers exceed their memory limit and this one is not the largest.
    fn gives_way(&self, key: ConnKey) -> bool {
        let bytes = |reading: &Reading| reading.bytes;
        let Some(own) = self.by_place.get(&key).filter(|reading| reading.why == Why::Takeover) else {
            return false;
        };
        self.takeovers().map(bytes).sum::<usize>() > TAKEOVER_BYTES_MAX
            && self.takeovers().map(bytes).max() > Some(own.bytes)
    }

    pub fn damaged(&mut self, id: Box<str>, now_ms: u64) {
        if self.damaged.len() >= DAMAGED_MAX
            && let Some(first) = self.damaged.iter().min_by_key(|(_, due_ms)| **due_ms)
        {
            let first = first.0.clone();
            self.damaged.remove(&first);
        }
        self.damaged.insert(id, now_ms + DAMAGED_MS);
    }

    fn is_damaged(&mut self, id: &str, now_ms: u64) -> bool {
        match self.damaged.get(id) {
            Some(&due_ms) if due_ms > now_ms => true,
            Some(_) => self.damaged.remove(id).is_none(),
            None => false,
        }
    }

    fn takeovers(&self) -> impl Iterator<Item = &Reading> {
        self.by_place.values().filter(|reading| reading.why == Why::Takeover)
    }
}

/// Processes that are gone: those that an earlier search missed too, because a new one may not be known yet.
/// They are remembered, since a search covers only some sessions.
#[derive(Default)]
pub struct Gone {
    runs: HashSet<u64>,
    /// Processes missed in earlier searches and since.
    before: HashSet<u64>,
    now: HashSet<u64>,
}

impl Gone {
    pub fn look(&mut self, runs: HashSet<u64>) {
        self.before.extend(self.now.drain());
        self.before.retain(|run| !runs.contains(run));
        self.runs = runs;
    }

    pub fn is(&mut self, run: u64) -> bool {
        if self.runs.contains(&run) {
            return false;
        }
        self.now.insert(run);
        self.before.contains(&run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_session_is_left_alone_for_a_while() {
        let mut readings = Readings::default();
        assert!(!readings.is_damaged("a", 0));
        readings.damaged("a".into(), 5);
        assert!(readings.is_damaged("a", 5) && readings.is_damaged("a", DAMAGED_MS + 4));
        assert!(!readings.is_damaged("a", DAMAGED_MS + 5), "it is tried again");
        (0..=DAMAGED_MAX as u64).for_each(|n| readings.damaged(n.to_string().into(), n));
        assert_eq!(readings.damaged.len(), DAMAGED_MAX);
        assert!(!readings.is_damaged("0", 0) && readings.is_damaged("1", 0), "the first gives way");
    }

    #[test]
    fn of_sessions_that_have_read_more_than_there_is_room_for_the_one_with_most_goes_on() {
        let mut readings = Readings::default();
        let key = |index| ConnKey { index, generation: 0 };
        let mut read = |index, why, bytes| {
            let reading = Reading { id: "a".into(), why, epoch: 1, bytes, step: Step::Snapshot };
            readings.by_place.insert(key(index), reading);
        };
        read(1, Why::Takeover, TAKEOVER_BYTES_MAX / 2);
        read(2, Why::Takeover, TAKEOVER_BYTES_MAX / 2);
        read(3, Why::Client { is_clean: false }, 1);
        assert!((1..=3).all(|index| !readings.gives_way(key(index))), "there is room");
        readings.by_place.get_mut(&key(2)).unwrap().bytes += 1;
        let gives_way: Vec<bool> = (1..=3).map(|index| readings.gives_way(key(index))).collect();
        assert_eq!(gives_way, [true, false, false], "a client waits for nobody");
    }

    #[test]
    fn a_process_is_gone_that_was_missed_before_also_where_others_were_looked_at_since() {
        let mut gone = Gone::default();
        let runs = |runs: &[u64]| runs.iter().copied().collect::<HashSet<u64>>();
        gone.look(runs(&[1]));
        assert!(!gone.is(1) && !gone.is(7) && !gone.is(7), "it may not be known yet");
        gone.look(runs(&[1]));
        assert!(!gone.is(8));
        gone.look(runs(&[1]));
        assert!(gone.is(7) && gone.is(8) && !gone.is(9) && !gone.is(1));
        gone.look(runs(&[1, 7]));
        assert!(!gone.is(7), "it is there");
        gone.look(runs(&[1]));
        assert!(!gone.is(7), "it may be back in a moment");
    }
}
