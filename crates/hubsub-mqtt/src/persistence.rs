//! The persistence state of a session: its entries, what waits for them, and the content of the next
//! snapshot.
//!
//! Requests to persist are collected as changes occur and executed once per turn
//! ([`SessionPlace::record`](super::place::SessionPlace::record)), so all changes of a turn share one
//! snapshot or one entry.
//!
//! Invariants: CONNACK, SUBACK and UNSUBACK of a persistent session follow the snapshot that contains their
//! effect; PUBLISH of QoS 2, PUBREL and PUBCOMP follow the entry with their event.

use super::entries::{EntryHead, Head, begin, put_message};
use super::message::{CountedBy, Message};
use super::restored::Restored;
use super::shares::Group;
use crate::machine::Grant;
use hubsub_route::Record;
use hubsub_route::claims::Token;
use hubsub_types::ErrorCode;
use hubsub_wire::mqtt::PacketId;
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::rc::Rc;

#[derive(Default)]
pub struct Persistence {
    pub head: HeadState,
    pub work: Option<Box<Work>>,
    pub snapshot_is_due: bool,
    /// True if something is to be persisted in this turn.
    pub is_scheduled: bool,
    /// Entries with live messages: number and highest message key.
    #[allow(clippy::box_collection, reason = "most have none, and pay for a pointer")]
    pub entries: Option<Box<VecDeque<(u64, u64)>>>,
    /// Entries up to this number are safe.
    pub safe: u64,
    /// The number of entries since the snapshot, and their bytes.
    pub since_snapshot: (u32, u32),
    /// True if persisted state may differ from memory because a write failed: the next snapshot then includes
    /// all messages. Also set for a session that a store may have from the previous process.
    pub has_gap: bool,
    /// True if a snapshot exists or is being written.
    pub has_snapshot: bool,
    pub has_moved: bool,
    pub is_timed: bool,
    pub failures: u8,
    /// Bytes of entries since the store last removed one.
    pub stored_bytes: u32,
    /// Bytes of entries written with the last full snapshot.
    pub live_bytes: u32,
    /// The number of its connection; it distinguishes PUBREL and PUBCOMP waits of successive connections.
    pub visit: u32,
}

/// The part of the snapshot head that persists between snapshots; fields as in `Head`.
#[derive(Clone, Copy, Default)]
pub struct HeadState {
    pub born: u64,
    pub epoch: u64,
    pub last_entry: u64,
    pub through: u64,
    pub before: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Handover {
    #[default]
    Stays,
    /// A last snapshot is being written, and changes are still recorded.
    Recorded,
    /// The snapshot is written, nothing more arrives, and remaining writes are in progress.
    Left,
}

#[derive(Default)]
pub struct Work {
    pub waits: Vec<Wait>,
    /// Changes of this turn: parts of an entry.
    pub parts: Vec<u8>,
    /// The highest message key among them; 0 if none.
    pub parts_key: u64,
    /// Waits for the entry with these parts.
    pub parts_wait: Vec<Wait>,
    /// Messages to send once their entry is safe, in order.
    pub prepared: VecDeque<Prepared>,
    pub in_flight: u32,
    pub handover: Handover,
}

/// The packet id and the key under which a message is sent.
#[derive(Clone, Copy)]
pub struct Under {
    pub id: PacketId,
    pub key: u64,
    pub dup: bool,
}

pub struct Prepared {
    pub message: Rc<Message>,
    pub grant: Grant,
    pub group: Option<Group>,
    pub under: Option<Under>,
    /// The number of the entry that it waits for.
    pub after: u64,
}

/// The number of entries after which a snapshot is written, to bound what a takeover reads. It bounds no
/// queue; `mqtt_session_snapshots_total` counts snapshots.
const ENTRIES_MAX: u32 = 512;

const ENTRIES_BYTES_MAX: u32 = 1 << 20;

/// Bytes of entries in a store, the first still live, after which a snapshot rewrites all messages.
const STORED_BYTES_MAX: u32 = 32 << 20;

/// Each consecutive failed snapshot doubles the delay before the next one, up to this many times.
const FAILURES_MAX: u8 = 6;

/// The number of an entry, its bytes, and its waits.
pub type Entry = (u64, Vec<u8>, Vec<Wait>);

pub struct AfterWrite {
    /// True if the connection that caused it is still there.
    pub is_current: bool,
    /// True if a later snapshot must make up for it.
    pub must_retry: bool,
}

#[derive(Debug)]
pub enum Wait {
    /// CONNACK, with its session-present flag.
    Connected(bool),
    /// SUBACK, by the machine's number of the filter.
    Granted(u32),
    /// UNSUBACK, by the machine's number.
    Unsubscribed(u32),
    /// PUBREL or PUBCOMP, by the number that this connection's machine uses.
    Recorded(u32),
    /// A client's QoS 2 message, published afterwards even if the client has disconnected.
    Intended(Box<Intended>),
}

/// A client's QoS 2 message for a log, which gets a number of its session before it is published.
#[derive(Debug)]
pub struct Intended {
    pub number: u32,
    pub intent: u64,
    pub record: Record,
}

impl Work {
    fn is_done(&self) -> bool {
        let Work { waits, parts, parts_key: _, parts_wait, prepared, in_flight, handover } = self;
        let is_empty = waits.is_empty() && parts.is_empty() && parts_wait.is_empty() && prepared.is_empty();
        is_empty && *in_flight == 0 && *handover == Handover::Stays
    }
}

impl Persistence {
    /// Creates the state of a new session with a unique `born`.
    pub fn new(token: Token) -> Persistence {
        let Token { at_us, run, number } = token;
        // Anonymous producers have ids below 2^63, and not 0.
        let born = std::hash::RandomState::new().hash_one((at_us, run, number)) >> 1 | 1;
        Persistence {
            head: HeadState { born, epoch: 1, ..HeadState::default() },
            has_gap: true,
            ..Persistence::default()
        }
    }

    /// Starts after a session of the client id with this holder epoch.
    pub fn follow(&mut self, epoch: u64) {
        self.head.epoch = epoch + 1;
    }

    /// A restored session for its next holder; `has_store`: sessions are in a store, not in a log.
    pub fn restored(restored: &mut Restored, has_store: bool) -> Persistence {
        let (Head { born, epoch, last_entry, through, .. }, entries) =
            (restored.head, std::mem::take(&mut restored.entries));
        let entries = (!entries.is_empty()).then(|| Box::new(entries));
        let head = HeadState { born, epoch: epoch + 1, last_entry, through, before: last_entry };
        Persistence {
            head,
            entries,
            safe: last_entry,
            has_snapshot: true,
            has_gap: has_store,
            ..Persistence::default()
        }
    }

    /// Another connection takes over: waits of the previous one are dropped.
    pub fn connected(&mut self) {
        self.visit = self.visit.wrapping_add(1);
        self.work.iter_mut().for_each(|work| work.waits.clear());
    }

    /// Its connection has ended: unsent messages are sent to the next one.
    pub fn disconnected(&mut self) {
        self.work.iter_mut().for_each(|work| work.prepared.clear());
    }

    /// Schedules the session to be persisted in this turn; returns false if it was.
    pub fn schedule(&mut self) -> bool {
        !std::mem::replace(&mut self.is_scheduled, true)
    }

    /// Requests a snapshot at the end of this turn; `wait` is completed by it.
    pub fn request_snapshot(&mut self, wait: Option<Wait>) {
        self.work().waits.extend(wait);
        self.snapshot_is_due = true;
    }

    /// The cursors of the session have advanced, or a write failed: requests a snapshot after a delay that
    /// doubles per failure. Returns the delay of the timer, in ms; none if it is set.
    pub fn request_snapshot_later(&mut self, delay_ms: u64) -> Option<u64> {
        self.has_moved = true;
        let is_timed = std::mem::replace(&mut self.is_timed, true);
        (!is_timed).then(|| delay_ms.saturating_mul(1 << self.failures.min(FAILURES_MAX)))
    }

    /// The snapshot timer has fired; returns whether a snapshot is to be requested.
    pub fn snapshot_timer(&mut self) -> bool {
        self.is_timed = false;
        self.has_moved
    }

    /// A snapshot that the connection of this visit requested is written, or the write failed. `has_store`:
    /// sessions are in a store, not in a log.
    pub fn snapshot_written(
        &mut self,
        visit: u32,
        outcome: Result<u64, ErrorCode>,
        has_store: bool,
    ) -> AfterWrite {
        self.work().in_flight -= 1;
        self.failures = if outcome.is_err() { self.failures.saturating_add(1) } else { 0 };
        let must_retry = !matches!(outcome, Ok(_) | Err(ErrorCode::NotAllowed));
        // A store refuses a snapshot with a missing entry. A log retains the last snapshot and all entries.
        self.has_gap |= must_retry && has_store;
        AfterWrite { is_current: self.visit == visit, must_retry }
    }

    /// An entry that the connection of this visit caused is written, or the write failed.
    pub fn entry_written(&mut self, visit: u32, number: u64, is_safe: bool) -> AfterWrite {
        self.work().in_flight -= 1;
        if is_safe {
            // Earlier entries are safe too: where one was refused, the connection ended.
            self.safe = number;
        } else {
            // An offline session has no connection to end: a snapshot compensates.
            self.has_gap = true;
        }
        AfterWrite { is_current: self.visit == visit, must_retry: !is_safe }
    }

    /// The session moves to another node; returns false if it does already.
    pub fn begin_handover(&mut self) -> bool {
        let begins = !self.is_moving();
        if begins {
            self.work().handover = Handover::Recorded;
        }
        begins
    }

    /// True for the last snapshot of a session that moves to another node: nothing more may arrive.
    pub fn handover_written(&mut self) -> bool {
        let is_last = self.work().handover == Handover::Recorded;
        if is_last {
            self.work().handover = Handover::Left;
        }
        is_last
    }

    /// True if the other node has all of a session that moves.
    pub fn is_handed_over(&mut self) -> bool {
        let is_scheduled = self.is_scheduled;
        let work = self.work();
        work.handover == Handover::Left && work.in_flight == 0 && !is_scheduled
    }

    /// True if messages wait to be persisted; later ones then wait too.
    pub fn has_prepared(&self) -> bool {
        self.work.as_ref().is_some_and(|work| !work.prepared.is_empty())
    }

    pub fn is_moving(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.handover != Handover::Stays)
    }

    pub fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }

    /// The session is offline: frees empty collections.
    pub fn shrink(&mut self) {
        self.work.take_if(|work| work.is_done());
        self.entries.take_if(|entries| entries.is_empty());
    }

    /// Adds a message that is queued or in flight.
    pub fn put(&mut self, is_queued: bool, key: u64, counted: CountedBy, message: &Message, grant: &Grant) {
        let work = self.work();
        put_message(is_queued, key, counted, &message.content(), grant, &mut work.parts);
        work.parts_key = work.parts_key.max(key);
    }

    /// The number of the entry that contains the changes so far.
    pub fn last_entry(&self) -> u64 {
        let has_parts = self.work.as_ref().is_some_and(|work| !work.parts.is_empty());
        self.head.last_entry + u64::from(has_parts)
    }

    /// Takes the changes of this turn as an entry, with its waits.
    pub fn take_entry(&mut self) -> Option<Entry> {
        let number = self.last_entry();
        let work = self.work.as_mut().filter(|work| !work.parts.is_empty())?;
        self.head.last_entry = number;
        let HeadState { born, epoch, .. } = self.head;
        let mut entry = begin(EntryHead { born, epoch, number });
        entry.append(&mut work.parts);
        let (key, waits) = (std::mem::take(&mut work.parts_key), std::mem::take(&mut work.parts_wait));
        if key > 0 {
            self.entries.get_or_insert_default().push_back((number, key));
        }
        let (entries, bytes) = self.since_snapshot;
        let len = u32::try_from(entry.len()).unwrap_or(u32::MAX);
        self.since_snapshot = (entries + 1, bytes.saturating_add(len));
        self.stored_bytes = self.stored_bytes.saturating_add(len);
        self.snapshot_is_due |=
            self.since_snapshot.0 >= ENTRIES_MAX || self.since_snapshot.1 >= ENTRIES_BYTES_MAX;
        Some((number, entry, waits))
    }

    /// True if the snapshot now due must include all messages: persisted state is uncertain, or most of it in
    /// a store is obsolete, since a store removes entries from the first one on.
    pub fn needs_all(&self, has_store: bool) -> bool {
        let HeadState { last_entry, through, .. } = self.head;
        let is_many = last_entry.saturating_sub(through) >= 2 * u64::from(ENTRIES_MAX)
            || self.stored_bytes >= STORED_BYTES_MAX;
        // So each message byte is written at most twice.
        self.has_gap || (has_store && is_many && self.stored_bytes >= self.live_bytes)
    }

    /// All changes and live messages as entries that replace earlier ones; `messages`: queued or not, key,
    /// cursor.
    pub fn take_all_entries<'a>(
        &mut self,
        messages: impl Iterator<Item = (bool, u64, CountedBy, &'a Message, &'a Grant)>,
    ) -> Vec<Entry> {
        (self.entries, self.has_gap, self.stored_bytes) = (None, false, 0);
        let mut entries = Vec::new();
        if self.work().parts.len() >= ENTRIES_BYTES_MAX as usize {
            entries.extend(self.take_entry());
        }
        for (is_queued, key, counted, message, grant) in messages {
            self.put(is_queued, key, counted, message, grant);
            if self.work().parts.len() >= ENTRIES_BYTES_MAX as usize {
                entries.extend(self.take_entry());
            }
        }
        entries.extend(self.take_entry());
        (self.stored_bytes, self.live_bytes) = (0, self.stored_bytes);
        entries
    }

    /// The head of a snapshot; messages in flight and queued are live from these keys.
    pub fn head(&mut self, last_key: u64, in_flight_from: u64, queued_from: u64) -> Head {
        let lowest = in_flight_from.min(queued_from);
        let entries = self.entries.as_deref_mut();
        let first = entries.and_then(|entries| {
            while entries.front().is_some_and(|&(_, key)| key < lowest) {
                entries.pop_front();
            }
            entries.front()
        });
        let through = first.map_or(self.head.last_entry, |&(number, _)| number - 1);
        if through > self.head.through {
            self.stored_bytes = self.since_snapshot.1;
        }
        (self.since_snapshot, self.head.through) = ((0, 0), through);
        let HeadState { born, epoch, last_entry, through, before } = self.head;
        Head { born, epoch, last_key, last_entry, through, before, queued_from }
    }
}
