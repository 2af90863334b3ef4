//! What a session has that is recorded: its entries, what waits for them, and what of it the next row is to say.

use super::cursors::Row;
use super::entries::{EntryHead, Head, begin, put_message};
use super::message::Message;
use super::recalled::Recalled;
use super::shares::Group;
use hubsub_route::Record;
use hubsub_route::claims::Token;
use hubsub_wire::mqtt::{Grant, PacketId};
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::rc::Rc;

/// What a session has that is recorded.
#[derive(Default)]
pub struct Kept {
    /// Which session of its client id it is, and its entries.
    pub(super) head: Own,
    /// What is going on; mostly nothing is.
    pub(super) work: Option<Box<Work>>,
    /// Whether the session is to be recorded as it is now.
    pub(super) row_is_due: bool,
    /// Whether something is to be recorded in this turn.
    pub(super) is_called: bool,
    /// Entries with messages that may be of use, and the highest key in each.
    #[allow(clippy::box_collection, reason = "most have none, and pay for a pointer")]
    pub(super) entries: Option<Box<VecDeque<(u64, u64)>>>,
    /// Entries up to this number are safe.
    pub(super) safe: u64,
    /// Entries since the row, and their bytes.
    pub(super) since_row: (u32, u32),
    /// Whether what is recorded may not be what is known here, since something could not be: then the next row brings
    /// all messages with it. So it is of a session that a store may have from the process before.
    pub(super) has_gap: bool,
    /// Whether there is a row of it, or one is under way.
    pub(super) has_row: bool,
    /// Whether where it stands in logs has changed since the row.
    pub(super) has_moved: bool,
    /// Whether it will be looked whether it has.
    pub(super) is_timed: bool,
    /// Rows that failed since the last one that did not.
    pub(super) failures: u8,
    /// Bytes of entries since the store last let go of one.
    pub(super) stored_bytes: u32,
    /// Bytes of entries that the last row with all messages brought.
    pub(super) live_bytes: u32,
    /// The number of its connection: machines of two number PUBREL and PUBCOMP alike.
    pub(super) visit: u32,
}

/// What of the head of its row is known between two rows, likewise named.
#[derive(Clone, Copy, Default)]
pub(super) struct Own {
    pub born: u64,
    pub epoch: u64,
    pub last_entry: u64,
    pub through: u64,
    pub before: u64,
}

/// How far a session is that goes to another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) enum Parting {
    /// It stays.
    #[default]
    Stays,
    /// It is recorded as it is, and what comes meanwhile.
    Recorded,
    /// It is, nothing comes any more, and what came is being written.
    Left,
}

/// What is going on of what is recorded.
#[derive(Default)]
pub(super) struct Work {
    /// What waits until the session is recorded as it is now.
    pub(super) waits: Vec<Wait>,
    /// What happened in this turn: parts of an entry.
    pub(super) parts: Vec<u8>,
    /// The highest key of messages among them; 0 if there is none.
    pub(super) parts_key: u64,
    /// What waits for these.
    pub(super) parts_wait: Vec<Wait>,
    /// Messages that go out when what is recorded of them is safe, in their order.
    pub(super) prepared: VecDeque<Prepared>,
    /// Rows and entries that are being written.
    pub(super) under_way: u32,
    /// How far it is on its way to another node.
    pub(super) parting: Parting,
}

/// A message on its way to the client.
pub(super) struct Prepared {
    pub(super) message: Rc<Message>,
    pub(super) grant: Grant,
    pub(super) group: Option<Group>,
    /// Its id and key; none of QoS 0.
    pub(super) under: Option<(PacketId, u64)>,
    /// It waits for this entry.
    pub(super) after: u64,
}

/// Entries behind a row, after which there is another one: who comes back reads no more. It bounds no queue, and
/// `mqtt_session_rows_total` counts the rows.
const ENTRIES_MAX: u32 = 512;

/// Their bytes.
const ENTRIES_BYTES_MAX: u32 = 1 << 20;

/// Bytes of entries in a store, of which the first one is of use for long, after which a row brings all messages anew.
const STORED_BYTES_MAX: u32 = 32 << 20;

/// The number of an entry, its bytes, and who waits for it.
pub(super) type Entry = (u64, Vec<u8>, Vec<Wait>);

/// What waits for a session's row.
#[derive(Debug)]
pub enum Wait {
    /// CONNACK, and whether it says that the session was there.
    Connected(bool),
    /// What the machine calls the answer to a filter.
    Granted(u32),
    /// Likewise, to UNSUBSCRIBE.
    Unsubscribed(u32),
    /// PUBREL or PUBCOMP, by what the machine of this connection calls it.
    Recorded(u32),
    /// A message of QoS 2 of the client, which is published then, whoever is connected.
    Intended(Box<Intended>),
}

/// A message of QoS 2 of a client for a log, which has a number of its session before it is published.
#[derive(Debug)]
pub struct Intended {
    /// What its answer is called.
    pub number: u32,
    /// Its number in the session.
    pub intent: u64,
    /// What.
    pub record: Record,
}

impl Work {
    /// Whether there is nothing.
    fn is_done(&self) -> bool {
        let Work { waits, parts, parts_key: _, parts_wait, prepared, under_way, parting } = self;
        let is_empty = waits.is_empty() && parts.is_empty() && parts_wait.is_empty() && prepared.is_empty();
        is_empty && *under_way == 0 && *parting == Parting::Stays
    }
}

impl Kept {
    /// Of a session that begins: never the number of another one.
    pub fn new(token: Token) -> Kept {
        let Token { at_us, run, number } = token;
        // Producers without a name are below 2^63, and not 0.
        let born = std::hash::RandomState::new().hash_one((at_us, run, number)) >> 1 | 1;
        Kept { head: Own { born, epoch: 1, ..Own::default() }, has_gap: true, ..Kept::default() }
    }

    /// It begins behind a session of the client id that had this epoch.
    pub fn follows(&mut self, epoch: u64) {
        self.head.epoch = epoch + 1;
    }

    /// Of one that was found, for its next holder; `has_store`: not in a log.
    pub fn found(recalled: &mut Recalled, has_store: bool) -> Kept {
        let (Head { born, epoch, last_entry, through, .. }, entries) =
            (recalled.head, std::mem::take(&mut recalled.entries));
        let entries = (!entries.is_empty()).then(|| Box::new(entries));
        let head = Own { born, epoch: epoch + 1, last_entry, through, before: last_entry };
        Kept { head, entries, safe: last_entry, has_row: true, has_gap: has_store, ..Kept::default() }
    }

    /// Another connection has the session: what waits for the one before is nobody's.
    pub fn comes(&mut self) {
        self.visit = self.visit.wrapping_add(1);
        self.work.iter_mut().for_each(|work| work.waits.clear());
    }

    /// Its connection has ended: what was not sent goes again with the next one.
    pub fn leaves(&mut self) {
        self.work.iter_mut().for_each(|work| work.prepared.clear());
    }

    /// Whether messages wait until they are recorded: then all do.
    #[must_use]
    pub fn has_prepared(&self) -> bool {
        self.work.as_ref().is_some_and(|work| !work.prepared.is_empty())
    }

    /// Whether it goes to another node.
    pub(super) fn parts(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.parting != Parting::Stays)
    }

    pub(super) fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }

    /// Nobody is connected: what is empty takes no memory.
    pub(super) fn rest(&mut self) {
        self.work.take_if(|work| work.is_done());
        self.entries.take_if(|entries| entries.is_empty());
    }

    /// Adds a message that waits, or is under way.
    pub fn put(&mut self, is_queued: bool, key: u64, row: Row, message: &Message, grant: &Grant) {
        let work = self.work();
        put_message(is_queued, key, row, &message.said(), grant, &mut work.parts);
        work.parts_key = work.parts_key.max(key);
    }

    /// The number of the entry that what happened is in.
    pub(super) fn last_entry(&self) -> u64 {
        let has_parts = self.work.as_ref().is_some_and(|work| !work.parts.is_empty());
        self.head.last_entry + u64::from(has_parts)
    }

    /// Takes what happened in this turn, as an entry, and who waits for it.
    pub(super) fn take_entry(&mut self) -> Option<Entry> {
        let number = self.last_entry();
        let work = self.work.as_mut().filter(|work| !work.parts.is_empty())?;
        self.head.last_entry = number;
        let Own { born, epoch, .. } = self.head;
        let mut entry = begin(EntryHead { born, epoch, number });
        entry.append(&mut work.parts);
        let (key, waits) = (std::mem::take(&mut work.parts_key), std::mem::take(&mut work.parts_wait));
        if key > 0 {
            self.entries.get_or_insert_default().push_back((number, key));
        }
        let (entries, bytes) = self.since_row;
        let len = u32::try_from(entry.len()).unwrap_or(u32::MAX);
        self.since_row = (entries + 1, bytes.saturating_add(len));
        self.stored_bytes = self.stored_bytes.saturating_add(len);
        self.row_is_due |= self.since_row.0 >= ENTRIES_MAX || self.since_row.1 >= ENTRIES_BYTES_MAX;
        Some((number, entry, waits))
    }

    /// Whether the row that is written now is to have all messages with it: what is recorded is not known, or is mostly
    /// of no use in a store, which lets go of entries from the first one on.
    pub(super) fn needs_all(&self, has_store: bool) -> bool {
        let Own { last_entry, through, .. } = self.head;
        let is_many = last_entry.saturating_sub(through) >= 2 * u64::from(ENTRIES_MAX)
            || self.stored_bytes >= STORED_BYTES_MAX;
        // So that no byte of a message is written more than twice for it.
        self.has_gap || (has_store && is_many && self.stored_bytes >= self.live_bytes)
    }

    /// Takes what happened in this turn, with all messages that are of use, as entries that take the place of those before;
    /// `messages`: whether each waits, its key, which cursor counts it.
    pub(super) fn take_all<'a>(
        &mut self,
        messages: impl Iterator<Item = (bool, u64, Row, &'a Message, &'a Grant)>,
    ) -> Vec<Entry> {
        (self.entries, self.has_gap, self.stored_bytes) = (None, false, 0);
        let mut entries = Vec::new();
        if self.work().parts.len() >= ENTRIES_BYTES_MAX as usize {
            entries.extend(self.take_entry());
        }
        for (is_queued, key, row, message, grant) in messages {
            self.put(is_queued, key, row, message, grant);
            if self.work().parts.len() >= ENTRIES_BYTES_MAX as usize {
                entries.extend(self.take_entry());
            }
        }
        entries.extend(self.take_entry());
        (self.stored_bytes, self.live_bytes) = (0, self.stored_bytes);
        entries
    }

    /// The head of a row, where messages with these keys and later ones are of use: those that are under way, those that
    /// wait.
    pub(super) fn head(&mut self, last_key: u64, under_way_from: u64, queued_from: u64) -> Head {
        let lowest = under_way_from.min(queued_from);
        let entries = self.entries.as_deref_mut();
        let first = entries.and_then(|entries| {
            while entries.front().is_some_and(|&(_, key)| key < lowest) {
                entries.pop_front();
            }
            entries.front()
        });
        let through = first.map_or(self.head.last_entry, |&(number, _)| number - 1);
        if through > self.head.through {
            self.stored_bytes = self.since_row.1;
        }
        (self.since_row, self.head.through) = ((0, 0), through);
        let Own { born, epoch, last_entry, through, before } = self.head;
        Head { born, epoch, last_key, last_entry, through, before, queued_from }
    }
}
