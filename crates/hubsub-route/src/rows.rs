//! Retained messages: the rows of one hub of the node's class for them. A row is the latest record of its room,
//! `$system/retained/TOPIC`: payload, headers and QoS of the message, and where that stands in the room of its
//! own topic. One without a payload ends the row.
//!
//! Rows of MQTT sessions, `$system/session/ID`, stand in the same hubs: of those it knows the [`Owners`].
//!
//! Invariant: what is here is what the hub has committed.

mod owners;

pub use owners::{Owner, Owners, SESSIONS};

use crate::record::Record;
use hubsub_types::names::Filter;
use hubsub_types::{Class, Epoch, Position, Seq};
use std::borrow::Borrow;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// The class of the node's own rows.
pub const CLASS: &str = "$system";

/// What the room of a row begins with; its topic follows.
pub const PREFIX: &[u8] = b"$system/retained/";

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
    /// How many hubs there are in `away`, for who only asks whether there is one.
    hubs_away: AtomicU64,
    /// Hubs of a cluster whose leader this node does not reach, as the shard of each says.
    away: Mutex<BTreeSet<u16>>,
    /// Whether that was told since all were reached.
    is_told: AtomicBool,
}

impl RowTotals {
    /// Whether a node alone has no row, and none is being written.
    #[must_use]
    pub fn is_none(&self) -> bool {
        // In this order: one that is written is counted before it is under way no more.
        self.under_way.load(Ordering::SeqCst) == 0 && self.messages.load(Ordering::SeqCst) == 0
    }

    /// Whether no hub is away.
    #[must_use]
    pub fn reaches_all(&self) -> bool {
        self.hubs_away.load(Ordering::Relaxed) == 0
    }

    /// Whether a hub is away.
    #[must_use]
    pub fn is_away(&self, hub: u16) -> bool {
        !self.reaches_all() && self.away.lock().expect("nothing panics under this lock").contains(&hub)
    }

    /// Whether this is the first call since all were reached.
    #[must_use]
    pub fn tells_once(&self) -> bool {
        !self.is_told.swap(true, Ordering::Relaxed)
    }

    /// The leader of a hub is reached from here on, or is not.
    pub fn set_away(&self, hub: u16, is_away: bool) {
        let mut away = self.away.lock().expect("nothing panics under this lock");
        _ = if is_away { away.insert(hub) } else { away.remove(&hub) };
        self.hubs_away.store(away.len() as u64, Ordering::Relaxed);
        if away.is_empty() {
            self.is_told.store(false, Ordering::Relaxed);
        }
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
    /// Who holds sessions.
    pub owners: Owners,
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

    /// A room's latest record; of other rooms than rows' nothing is kept.
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
