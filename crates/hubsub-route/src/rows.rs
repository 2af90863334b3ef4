//! Retained messages: the entries of one hub of the class `$system`. An entry is the latest record of its
//! room, `$system/retained/TOPIC`: payload, headers and QoS of the message, and its position in the room of
//! its own topic. A record without a payload deletes the entry.
//!
//! Entries of MQTT sessions, `$system/session/ID`, are in the same hubs: of these only the [`Owners`] are
//! kept here.
//!
//! Invariant: the entries here are those that the hub has committed.

mod owners;

pub use owners::{Owner, Owners, SESSIONS};

use hubsub_message::Record;
use hubsub_types::names::Filter;
use hubsub_types::{Class, Epoch, Position, Seq};
use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The class of the node's own entries.
pub const CLASS: &str = "$system";

/// Prefix of the room of an entry; its topic follows.
pub const PREFIX: &[u8] = b"$system/retained/";

/// The last header of an entry: position and timestamp of its message.
const ORIGIN: &str = "hubsub-retained";

/// Entries that one page examines, at most: some ms of a shard.
const LOOKED_AT_MAX: usize = 20_000;

/// Numbers of a node's entries, over all its shards.
#[derive(Debug, Default)]
pub struct RowTotals {
    pub messages: AtomicU64,
    pub bytes: AtomicU64,
    pub in_flight: AtomicU64,
    hubs_away: AtomicU64,
    /// Hubs of a cluster whose leader this node does not reach, as reported by their shards.
    away: Mutex<BTreeSet<u16>>,
    /// Whether that was logged since all were last reachable.
    is_told: AtomicBool,
}

impl RowTotals {
    /// Whether a single node has no entries, and none is being written.
    pub fn is_none(&self) -> bool {
        // The order matters: a written entry is counted before it leaves `in_flight`.
        self.in_flight.load(Ordering::SeqCst) == 0 && self.messages.load(Ordering::SeqCst) == 0
    }

    pub fn reaches_all(&self) -> bool {
        self.hubs_away.load(Ordering::Relaxed) == 0
    }

    pub fn is_away(&self, hub: u16) -> bool {
        !self.reaches_all() && self.away.lock().expect("nothing panics under this lock").contains(&hub)
    }

    /// Whether this is the first call since all were last reachable.
    pub fn tells_once(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
    }

    pub fn set_away(&self, hub: u16, is_away: bool) {
        let mut away = self.away.lock().expect("nothing panics under this lock");
        _ = if is_away { away.insert(hub) } else { away.remove(&hub) };
        self.hubs_away.store(away.len() as u64, Ordering::Relaxed);
        if away.is_empty() {
            self.is_told.store(false, Ordering::Relaxed);
        }
    }
}

/// Whether a class is that of entries, which have their own limits and deletion.
pub fn is_class(class: &Class) -> bool {
    class.keeps_latest && class.name == CLASS
}

pub fn topic_of(room: &[u8]) -> Option<&[u8]> {
    room.strip_prefix(PREFIX)
}

pub fn room_of(topic: &[u8]) -> Vec<u8> {
    [PREFIX, topic].concat()
}

#[derive(Clone, Copy, Debug)]
pub struct Kept<'a> {
    pub topic: &'a [u8],
    pub headers: &'a [(Box<str>, Box<str>)],
    /// Position of the message; zero if no room stored it.
    pub position: Position,
    /// Time of the publish, in µs since 1970.
    pub timestamp_us: u64,
}

impl<'a> Kept<'a> {
    pub fn of(row: &'a Record) -> Option<Kept<'a>> {
        let topic = topic_of(row.topic())?;
        let (last, headers) = row.headers.as_deref()?.split_last()?;
        let origin = last.1.split_once(' ').filter(|_| *last.0 == *ORIGIN)?;
        let (epoch, seq) = origin.0.split_once('-')?;
        let position = Position { epoch: Epoch(epoch.parse().ok()?), seq: Seq(seq.parse().ok()?) };
        Some(Kept { topic, headers, position, timestamp_us: origin.1.parse().ok()? })
    }
}

pub fn headers_of(record: &Record) -> Arc<[(Box<str>, Box<str>)]> {
    let Position { epoch, seq } = record.position;
    let origin = format!("{}-{} {}", epoch.0, seq.0, record.timestamp_us);
    let own = record.headers.iter().flat_map(|headers| headers.iter().cloned());
    own.chain([(ORIGIN.into(), origin.into())]).collect()
}

/// An entry, ordered by topic.
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

/// A page of entries, in the order of topics.
#[derive(Clone, Debug, Default)]
pub struct RowPage {
    /// Entries after those of the previous pages. The last one may have no payload: then it only marks how
    /// far the page went.
    pub rows: Vec<Arc<Record>>,
    pub is_last: bool,
}

#[derive(Debug, Default)]
pub struct Rows {
    rows: BTreeSet<Row>,
    bytes: u64,
    /// The topic after which the next sweep continues.
    swept: Box<[u8]>,
    pub owners: Owners,
}

impl Rows {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Approximate memory of the entries, in bytes, for limits.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn get(&self, topic: &[u8]) -> Option<&Arc<Record>> {
        self.rows.get(topic).map(|row| &row.0)
    }

    /// Sets the latest record of a room; rooms without an entry are ignored.
    pub fn set(&mut self, record: &Arc<Record>, totals: &RowTotals) {
        if record.topic().starts_with(SESSIONS) {
            return self.owners.set(record);
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

    pub fn replace(&mut self, by: Rows, totals: &RowTotals) {
        totals.messages.fetch_add(by.len() as u64, Ordering::Relaxed);
        totals.bytes.fetch_add(by.bytes, Ordering::Relaxed);
        let before = std::mem::replace(self, by);
        totals.messages.fetch_sub(before.len() as u64, Ordering::Relaxed);
        totals.bytes.fetch_sub(before.bytes, Ordering::Relaxed);
    }

    /// Entries after a topic that match a filter, up to a total weight of `bytes_max`, but at least one.
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

    /// Examines `budget` entries after the last call's; returns the topics for which `is_over` is true.
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
