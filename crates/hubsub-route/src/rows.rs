//! Retained messages: the rows of one hub of the node's class for them. A row is the latest record of its room,
//! `$system/retained/TOPIC`: payload, headers and QoS of the message, and where that stands in the room of its
//! own topic. One without a payload ends the row.
//!
//! Rows of MQTT sessions, `$system/session/ID`, stand in the same hubs. Of those it knows who wrote each last ([`Owner`]):
//! none that an older holder of the session writes counts, and those are found whose holder's process is gone.
//!
//! Invariant: what is here is what the hub has committed.

use crate::record::Record;
use hubsub_types::names::Filter;
use hubsub_types::{Class, Epoch, Position, Seq};
use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The class of the node's own rows.
pub const CLASS: &str = "$system";

/// What the room of a row begins with; its topic follows.
pub const PREFIX: &[u8] = b"$system/retained/";

/// What the room of a session's row begins with; the client id follows.
pub const SESSIONS: &[u8] = b"$system/session/";

/// The header of a session's row: who wrote it.
const OWNER: &str = "hubsub-owner";

/// The last word of that, if that holder has given it up.
const OVER: &str = "over";

/// The last header of a row: position and timestamp of its message.
const ORIGIN: &str = "hubsub-retained";

/// Rows that one page looks at: some ms of a shard.
const LOOKED_AT_MAX: usize = 20_000;

/// How many rows a node has, of all its shards.
#[derive(Debug, Default)]
pub struct RowTotals {
    /// Rows.
    pub messages: AtomicU64,
    /// Their memory.
    pub bytes: AtomicU64,
    /// Rows that are being written.
    pub under_way: AtomicU64,
}

impl RowTotals {
    /// Whether a node alone has no row, and none is being written.
    #[must_use]
    pub fn is_none(&self) -> bool {
        // In this order: one that is written is counted before it is under way no more.
        self.under_way.load(Ordering::SeqCst) == 0 && self.messages.load(Ordering::SeqCst) == 0
    }
}

/// Whether a class is that of rows, which have limits and an end of their own.
#[must_use]
pub fn is_class(class: &Class) -> bool {
    class.keeps_latest && class.name == CLASS
}

/// The topic of a row's room; none if it is another room.
#[must_use]
pub fn topic_of(room: &[u8]) -> Option<&[u8]> {
    room.strip_prefix(PREFIX)
}

/// The room of a topic's row.
#[must_use]
pub fn room_of(topic: &[u8]) -> Vec<u8> {
    [PREFIX, topic].concat()
}

/// The holder of a session that wrote its row.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Owner {
    /// Which holder, from 1; each has one more than the one before.
    pub epoch: u64,
    /// The incarnation of its process; 0: a lone node's.
    pub run: u64,
    /// Whether it has given the session up, for another node.
    pub is_over: bool,
}

impl Owner {
    /// Of a row; none if it does not say.
    #[must_use]
    pub fn of(row: &Record) -> Option<Owner> {
        let (_, value) = row.headers.as_deref()?.iter().find(|(name, _)| **name == *OWNER)?;
        let mut words = value.split(' ');
        let mut number = || words.next()?.parse().ok();
        let (epoch, run) = (number()?, number()?);
        // Another one follows it.
        let epoch = Some(epoch).filter(|&epoch| epoch < u64::MAX)?;
        Some(Owner { epoch, run, is_over: words.next() == Some(OVER) })
    }

    /// The headers of a row that it writes.
    #[must_use]
    pub fn headers(self) -> Arc<[(Box<str>, Box<str>)]> {
        let Owner { epoch, run, is_over } = self;
        let over = if is_over { OVER } else { "" };
        [(OWNER.into(), format!("{epoch} {run} {over}").trim_end().into())].into()
    }

    /// Whether it may write over a row of another holder.
    fn follows(self, before: Owner) -> bool {
        self.epoch > before.epoch || (self.epoch, self.run) == (before.epoch, before.run)
    }
}

/// A row as it was read: the message that it keeps.
#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    /// Where it was published.
    pub topic: &'a [u8],
    /// Its headers.
    pub headers: &'a [(Box<str>, Box<str>)],
    /// Where it stands; zero where no room took it.
    pub position: Position,
    /// When it was published, in µs since 1970.
    pub timestamp_us: u64,
}

impl<'a> Kept<'a> {
    /// What a record keeps; none if it is no row.
    #[must_use]
    pub fn of(row: &'a Record) -> Option<Kept<'a>> {
        let topic = topic_of(row.topic())?;
        let (last, headers) = row.headers.as_deref()?.split_last()?;
        let origin = last.1.split_once(' ').filter(|_| *last.0 == *ORIGIN)?;
        let (epoch, seq) = origin.0.split_once('-')?;
        let position = Position { epoch: Epoch(epoch.parse().ok()?), seq: Seq(seq.parse().ok()?) };
        Some(Kept { topic, headers, position, timestamp_us: origin.1.parse().ok()? })
    }
}

/// The headers of the row that keeps a record.
#[must_use]
pub fn headers_of(record: &Record) -> Arc<[(Box<str>, Box<str>)]> {
    let Position { epoch, seq } = record.position;
    let origin = format!("{}-{} {}", epoch.0, seq.0, record.timestamp_us);
    let own = record.headers.iter().flat_map(|headers| headers.iter().cloned());
    own.chain([(ORIGIN.into(), origin.into())]).collect()
}

/// A row, in the order of topics.
#[derive(Debug)]
struct Row(Arc<Record>);

impl Row {
    fn topic(&self) -> &[u8] {
        &self.0.topic()[PREFIX.len()..]
    }
}

impl Borrow<[u8]> for Row {
    fn borrow(&self) -> &[u8] {
        self.topic()
    }
}

impl PartialEq for Row {
    fn eq(&self, other: &Row) -> bool {
        self.topic() == other.topic()
    }
}

impl Eq for Row {}

impl PartialOrd for Row {
    fn partial_cmp(&self, other: &Row) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Row {
    fn cmp(&self, other: &Row) -> std::cmp::Ordering {
        self.topic().cmp(other.topic())
    }
}

/// Some rows, in the order of topics.
#[derive(Clone, Debug, Default)]
pub struct RowPage {
    /// Behind those of the pages before. The last one may have no payload: then it only says how far the page went.
    pub rows: Vec<Arc<Record>>,
    /// Whether there are no more.
    pub is_last: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Rows {
    rows: BTreeSet<Row>,
    bytes: u64,
    /// Behind which topic the sweep goes on.
    swept: Box<[u8]>,
    /// Sessions, by their rooms.
    sessions: BTreeMap<Box<[u8]>, Owner>,
    /// Behind which of them it was looked last whose process is gone.
    looked_at: Box<[u8]>,
}

impl Rows {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Their memory, near enough for limits.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The row of a topic.
    #[must_use]
    pub fn get(&self, topic: &[u8]) -> Option<&Arc<Record>> {
        self.rows.get(topic).map(|row| &row.0)
    }

    /// Whether a session's row may be written, which is its latest from now on; not by a holder that has another one behind it.
    /// Other rooms' may be.
    pub fn may_own(&mut self, record: &Record) -> bool {
        let (Some(owner), true) = (Owner::of(record), record.topic().starts_with(SESSIONS)) else {
            return true;
        };
        if self.sessions.get(record.topic()).is_some_and(|before| !owner.follows(*before)) {
            return false;
        }
        // One that ends the row may be under way: until it is safe that holder is the last one.
        self.sessions.insert(record.topic().into(), owner);
        true
    }

    /// Rooms of sessions whose holder has given them up, or its process is gone: of so many hubs that are asked together, each
    /// finds its share of `max`, and looks at others with each call, in turn.
    pub fn orphans(
        &mut self,
        mut is_gone: impl FnMut(u64) -> bool,
        max: usize,
        hubs: usize,
    ) -> Vec<Box<[u8]>> {
        let (found_max, looked_at_max) = (max.div_ceil(hubs), LOOKED_AT_MAX.div_ceil(hubs));
        let (mut found, mut looked_at) = (Vec::new(), 0);
        let behind = (Bound::Excluded(&*self.looked_at), Bound::Unbounded);
        let mut last = None;
        for (room, owner) in self.sessions.range::<[u8], _>(behind) {
            if looked_at == looked_at_max || found.len() == found_max {
                break;
            }
            looked_at += 1;
            last = Some(room);
            if owner.is_over || is_gone(owner.run) {
                found.push(room.clone());
            }
        }
        let is_end = looked_at < looked_at_max && found.len() < found_max;
        self.looked_at = last.filter(|_| !is_end).cloned().unwrap_or_default();
        found
    }

    /// A room's latest record; of other rooms than rows' nothing is kept.
    pub fn set(&mut self, record: &Arc<Record>, totals: &RowTotals) {
        if record.topic().starts_with(SESSIONS) {
            return self.set_owner(record);
        }
        let Some(topic) = topic_of(record.topic()) else { return };
        let before = self.rows.take(topic);
        let taken = before.as_ref().map_or(0, |row| row.0.weight() as u64);
        let is_kept = !record.payload().is_empty();
        let added = if is_kept { record.weight() as u64 } else { 0 };
        if is_kept {
            self.rows.insert(Row(Arc::clone(record)));
        }
        self.bytes = self.bytes + added - taken;
        match (before.is_some(), is_kept) {
            (false, true) => _ = totals.messages.fetch_add(1, Ordering::SeqCst),
            (true, false) => _ = totals.messages.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
        totals.bytes.fetch_add(added, Ordering::Relaxed);
        totals.bytes.fetch_sub(taken, Ordering::Relaxed);
    }

    /// A session's row is committed. One of a later holder may be under way behind it, and counts from when it was taken.
    fn set_owner(&mut self, record: &Record) {
        let owner = Owner::of(record);
        let last = self.sessions.get(record.topic());
        if let (Some(owner), Some(last)) = (owner, last)
            && last.epoch > owner.epoch
        {
            return;
        }
        match owner.filter(|_| !record.payload().is_empty()) {
            Some(owner) => _ = self.sessions.insert(record.topic().into(), owner),
            None => _ = self.sessions.remove(record.topic()),
        }
    }

    /// Takes the place of those that there were.
    pub fn replace(&mut self, by: Rows, totals: &RowTotals) {
        totals.messages.fetch_add(by.len() as u64, Ordering::Relaxed);
        totals.bytes.fetch_add(by.bytes, Ordering::Relaxed);
        let before = std::mem::replace(self, by);
        totals.messages.fetch_sub(before.len() as u64, Ordering::Relaxed);
        totals.bytes.fetch_sub(before.bytes, Ordering::Relaxed);
    }

    /// Those behind a topic that a filter matches, as many as are no longer than that together, at least one.
    #[must_use]
    pub fn page(&self, filter: &Filter, after: Option<&[u8]>, bytes_max: usize) -> RowPage {
        let prefix = filter.literal_prefix();
        let begin = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let (mut page, mut bytes) = (RowPage::default(), 0);
        let from = self.rows.range::<[u8], _>((begin, Bound::Unbounded));
        for (row, looked_at) in from.take_while(|row| row.topic().starts_with(prefix)).zip(1..) {
            if filter.matches(row.topic()) {
                bytes += row.0.weight();
                if bytes > bytes_max && !page.rows.is_empty() {
                    return page;
                }
                page.rows.push(Arc::clone(&row.0));
            } else if looked_at >= LOOKED_AT_MAX {
                let place = Record::new(row.0.namespace, row.0.topic(), b"", Box::default(), None);
                page.rows.push(Arc::new(place));
            }
            if looked_at >= LOOKED_AT_MAX {
                return page;
            }
        }
        page.is_last = true;
        page
    }

    /// Looks at so many rows, behind those that it looked at before: topics of those of which `is_over` says so.
    pub fn sweep(&mut self, budget: usize, is_over: impl Fn(&Record) -> bool) -> Vec<Box<[u8]>> {
        let begin = (Bound::Excluded(&*self.swept), Bound::Unbounded);
        let rows: Vec<&Row> = self.rows.range::<[u8], _>(begin).take(budget).collect();
        let over = rows.iter().filter(|row| is_over(&row.0)).map(|row| row.topic().into()).collect();
        let last = rows.last().filter(|_| rows.len() == budget);
        self.swept = last.map_or_else(Box::default, |row| row.topic().into());
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Namespace;

    fn row(topic: &str, payload: &str) -> Arc<Record> {
        let mut record = Record::new(Namespace::Global, topic.as_bytes(), b"", "me".into(), None);
        record.position = Position { epoch: Epoch(7), seq: Seq(3) };
        record.timestamp_us = 55;
        let (room, headers) = (room_of(topic.as_bytes()), Some(headers_of(&record)));
        Arc::new(Record::new(Namespace::Global, &room, payload.as_bytes(), "me".into(), headers))
    }

    fn filled(totals: &RowTotals, topics: &[&str]) -> Rows {
        let mut rows = Rows::default();
        topics.iter().for_each(|topic| rows.set(&row(topic, topic), totals));
        rows
    }

    fn all(rows: &Rows, filter: &str, bytes_max: usize) -> Vec<String> {
        let filter = Filter::new(filter.as_bytes()).unwrap();
        let (mut found, mut after) = (Vec::new(), None::<Vec<u8>>);
        loop {
            let page = rows.page(&filter, after.as_deref(), bytes_max);
            let topic = |row: &Arc<Record>| topic_of(row.topic()).unwrap().to_vec();
            let text = |row: &Arc<Record>| String::from_utf8(topic(row)).unwrap();
            found.extend(page.rows.iter().filter(|row| !row.payload().is_empty()).map(text));
            if page.is_last {
                return found;
            }
            after = page.rows.last().map(topic);
        }
    }

    #[test]
    fn pages_have_each_row_that_matches_once_in_the_order_of_topics() {
        let totals = RowTotals::default();
        let rows = filled(&totals, &["b/x", "a", "a/b/c", "a/b", "a0", "c"]);
        for bytes_max in [1, 200, 1 << 20] {
            assert_eq!(all(&rows, "#", bytes_max), ["a", "a/b", "a/b/c", "a0", "b/x", "c"]);
            assert_eq!(all(&rows, "a/#", bytes_max), ["a", "a/b", "a/b/c"]);
            assert_eq!(all(&rows, "+/+", bytes_max), ["a/b", "b/x"]);
            assert_eq!(all(&rows, "a/b", bytes_max), ["a/b"]);
            assert_eq!(all(&rows, "z/#", bytes_max), [""; 0]);
        }
    }

    #[test]
    fn a_page_that_finds_little_says_how_far_it_went() {
        let totals = RowTotals::default();
        let mut rows = Rows::default();
        (0..2 * LOOKED_AT_MAX).for_each(|n| rows.set(&row(&format!("t/{n:06}"), "x"), &totals));
        rows.set(&row("t/z/last", "x"), &totals);
        let page = rows.page(&Filter::new(b"t/+/last").unwrap(), None, 1 << 20);
        assert!(!page.is_last && page.rows.len() == 1 && page.rows[0].payload().is_empty());
        assert_eq!(all(&rows, "t/+/last", 1 << 20), ["t/z/last"]);
    }

    #[test]
    fn the_latest_counts_and_one_without_a_payload_ends_the_row() {
        let totals = RowTotals::default();
        let mut rows = filled(&totals, &["a", "b"]);
        rows.set(&row("a", "longer than before"), &totals);
        assert_eq!(rows.get(b"a").unwrap().payload(), b"longer than before");
        rows.set(&row("a", ""), &totals);
        rows.set(&row("never", ""), &totals);
        assert_eq!(all(&rows, "#", 1 << 20), ["b"]);
        assert_eq!(totals.messages.load(Ordering::Relaxed), 1);
        assert_eq!(totals.bytes.load(Ordering::Relaxed), rows.bytes());
        rows.replace(Rows::default(), &totals);
        assert_eq!(totals.messages.load(Ordering::Relaxed) + totals.bytes.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_row_says_where_its_message_stands() {
        let row = row("a/b", "x");
        let kept = Kept::of(&row).unwrap();
        assert_eq!((kept.topic, kept.headers.len(), kept.timestamp_us), (&b"a/b"[..], 0, 55));
        assert_eq!(kept.position, Position { epoch: Epoch(7), seq: Seq(3) });
    }

    fn session(id: &str, payload: &str, epoch: u64, run: u64) -> Arc<Record> {
        let (room, headers) =
            ([SESSIONS, id.as_bytes()].concat(), Owner { epoch, run, is_over: run == 0 }.headers());
        Arc::new(Record::new(Namespace::Global, &room, payload.as_bytes(), "".into(), Some(headers)))
    }

    #[test]
    fn no_row_of_an_older_holder_of_a_session_counts() {
        let (mut rows, totals) = (Rows::default(), RowTotals::default());
        let write = |rows: &mut Rows, payload, epoch, run| {
            let record = session("a", payload, epoch, run);
            let may = rows.may_own(&record);
            if may {
                rows.set(&record, &totals);
            }
            may
        };
        assert!(write(&mut rows, "x", 2, 7) && write(&mut rows, "y", 2, 7), "its own are written again");
        assert!(!write(&mut rows, "z", 1, 8) && !write(&mut rows, "z", 2, 8) && !write(&mut rows, "", 1, 8));
        assert!(write(&mut rows, "z", 3, 8) && !write(&mut rows, "x", 2, 7));
        assert!(write(&mut rows, "", 3, 8), "it ends");
        assert!(write(&mut rows, "x", 1, 9), "and another one begins");
        assert!(rows.may_own(&session("b", "x", 5, 1)), "under way");
        assert!(!rows.may_own(&session("b", "x", 4, 1)));
    }

    #[test]
    fn a_row_that_is_safe_late_makes_no_place_for_its_holder_before_one_that_is_under_way() {
        for payload in ["x", ""] {
            let (mut rows, totals) = (Rows::default(), RowTotals::default());
            let (old, new) = (session("a", payload, 2, 7), session("a", "y", 3, 8));
            assert!(rows.may_own(&old) && rows.may_own(&new), "both are under way");
            rows.set(&old, &totals);
            assert!(!rows.may_own(&session("a", "z", 2, 7)), "behind that of a later holder");
            rows.set(&new, &totals);
            assert!(rows.may_own(&session("a", "z", 3, 8)));
        }
    }

    #[test]
    fn sessions_that_nobody_holds_are_found_in_turn() {
        let (mut rows, totals) = (Rows::default(), RowTotals::default());
        for (id, run) in [("a", 1), ("b", 2), ("c", 1), ("d", 0)] {
            rows.set(&session(id, "x", 1, run), &totals);
        }
        rows.set(&row("t", "x"), &totals);
        let ids = |rooms: Vec<Box<[u8]>>| -> Vec<u8> {
            rooms.iter().filter_map(|room| room.last()).copied().collect()
        };
        let found: Vec<Vec<u8>> = (0..3).map(|_| ids(rows.orphans(|run| run == 1, 4, 2))).collect();
        assert_eq!(found, [b"ac".to_vec(), b"d".to_vec(), b"ac".to_vec()]);
        assert_eq!(ids(rows.orphans(|run| run == 3, 9, 1)), b"d", "it was given up");
        assert_eq!(ids(rows.orphans(|_| true, 9, 1)), b"abcd", "and again from the first");
    }

    #[test]
    fn a_sweep_looks_at_all_in_turn() {
        let totals = RowTotals::default();
        let mut rows = filled(&totals, &["a", "b", "c", "d", "e"]);
        let is_over = |record: &Record| record.topic().ends_with(b"b") || record.topic().ends_with(b"e");
        let found: Vec<Vec<Box<[u8]>>> = (0..3).map(|_| rows.sweep(2, is_over)).collect();
        assert_eq!(found, [vec![b"b"[..].into()], vec![], vec![b"e"[..].into()]]);
        assert_eq!(rows.sweep(2, is_over), [b"b"[..].into()], "and again from the first");
    }
}
