//! What topics kept, for a client that subscribes: rows are read one subscription after the other, page by page, the
//! next one when the client has taken those before.
//!
//! All clients of a shard together are read `retained_page_bytes` for in a millisecond, one after the other: so that whoever
//! reads much is no burden to those who only listen.
//!
//! A read begins when its subscription holds, and first waits until the rows are written that are under way: of the
//! topic, or for a wildcard everywhere. Live messages do not wait for it. Where one that its topic keeps came since, the row
//! is passed over: it is older, or it comes live, too.
//!
//! Hubs whose leader is not reached are passed over, and read when it is: the client is told so with SUBACK, and who runs the
//! node by the log.

use super::client::Client;
use super::deliver::Way;
use super::message::Said;
use crate::control::Level;
use crate::core::Core;
use crate::rim::Rim;
use ahash::RandomState;
use hashbrown::HashSet;
use hubsub_route::{
    Answer, Asker, Kept, LogPlace, Namespace, Outcome, Record, RowPage, RowsAsk, Ticket, is_publisher,
};
use hubsub_types::{ConnKey, OnSlow};
use hubsub_wire::mqtt::{expiry_s, topic_name};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

/// Topics whose live messages are taken note of while something is read. Beyond, the one that came first is
/// forgotten: its row was written long since.
const LIVE_MAX: usize = 4_096;

/// Pages that clients of a shard have asked other shards and nodes for, and that have not come.
const ASKED_MAX: usize = 16;

/// A page that has not come after so many ms counts no more: nobody leads its hub now, say, which is found after seconds.
/// Others do not wait for that.
const ASKED_MS: u64 = 50;

/// Something that happened to what a client reads.
pub enum Event {
    /// A subscription holds, and what its topics kept is due.
    Due(Box<[u8]>),
    /// The answer to the question of that number.
    Came(u32, Answer),
}

/// What a client reads.
#[derive(Default)]
pub struct Reads {
    /// In the order in which the subscriptions were granted; the first is under way.
    queue: VecDeque<Read>,
    /// Those of which some hubs could not be read, each filter once: they are read when their leaders are reached.
    unread: Vec<Read>,
    /// Subscriptions that were granted in this turn, and come to stand there.
    due: usize,
    /// The number of the question that is awaited. It is the shard's: connections follow each other under one key.
    awaits: Option<u32>,
    /// Whether it waits for the next millisecond.
    is_paced: bool,
    /// Topics of which a message came live that they keep.
    live: HashSet<Rc<str>, RandomState>,
    /// Those topics as they came.
    order: VecDeque<Rc<str>>,
}

/// How much clients of a shard read at once.
#[derive(Default)]
pub struct Pace {
    /// The millisecond that is counted, of the node's clock.
    ms: u64,
    /// Bytes that were read in it.
    bytes: usize,
    /// Pages that will come from elsewhere, by the numbers of their questions, and when these were asked.
    asked: VecDeque<(u32, u64)>,
    /// Who goes on in a later one, in order.
    waiting: VecDeque<ConnKey>,
}

impl Pace {
    /// How long until those that wait may go on, in ms; none if nobody does.
    #[must_use]
    pub fn wait_ms(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(1)
    }

    /// Whether one more page may be read in this millisecond.
    fn has_room(&mut self, now_ms: u64, bytes_max: usize) -> bool {
        if self.ms != now_ms {
            (self.ms, self.bytes) = (now_ms, 0);
            while self.asked.front().is_some_and(|(_, at_ms)| *at_ms + ASKED_MS <= now_ms) {
                self.asked.pop_front();
            }
        }
        self.bytes < bytes_max && self.asked.len() < ASKED_MAX
    }

    /// An answer has come, of a page or of something else.
    fn came(&mut self, number: u32) {
        self.asked.retain(|(asked, _)| *asked != number);
    }
}

/// One subscription's.
struct Read {
    filter: Box<[u8]>,
    /// The hub to be asked next, and behind which topic; none until nothing is under way that belongs to it.
    next: Option<(u16, Option<Box<[u8]>>)>,
    /// The hubs to be asked, if not all that may have rows: those that could not be before.
    only: Option<BTreeSet<u16>>,
    /// Those that could not be read.
    unread: BTreeSet<u16>,
}

impl Read {
    fn new(filter: Box<[u8]>, only: Option<BTreeSet<u16>>) -> Read {
        Read { filter, next: None, only, unread: BTreeSet::new() }
    }

    /// The hub after that one, of so many; or the first. `own`: the one of its topic, if it is no wildcard.
    fn hub_after(&self, hub: Option<u16>, hubs: u16, own: impl FnOnce() -> u16) -> Option<u16> {
        let from = hub.map_or(0, |hub| hub + 1);
        match &self.only {
            Some(only) => only.range(from..hubs).next().copied(),
            None if self.is_wild() => (from < hubs).then_some(from),
            None if hubs == 0 || hub.is_some() => None,
            None => Some(own()),
        }
    }

    fn is_wild(&self) -> bool {
        self.filter.iter().any(|byte| matches!(byte, b'+' | b'#'))
    }
}

impl Reads {
    /// Subscriptions whose rows are not read yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether something is to be done as its client takes what it gets.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.due > 0 || !self.queue.is_empty()
    }

    /// A read is over, and some hubs could not be read: they are later.
    fn keep_unread(&mut self, read: Read) {
        match self.unread.iter_mut().find(|other| other.filter == read.filter) {
            Some(other) => other.unread.extend(read.unread),
            None => self.unread.push(read),
        }
    }

    /// Reads again what could not be read, as far as it can be now.
    fn retry(&mut self, is_away: impl Fn(u16) -> bool) {
        for read in std::mem::take(&mut self.unread) {
            let (away, back) = read.unread.iter().partition::<BTreeSet<u16>, _>(|hub| is_away(**hub));
            if !back.is_empty() {
                self.queue.push_back(Read::new(read.filter.clone(), Some(back)));
            }
            if !away.is_empty() {
                self.unread.push(Read { unread: away, ..read });
            }
        }
    }

    fn note(&mut self, topic: &str) {
        if self.live.contains(topic) {
            return;
        }
        if self.order.len() >= LIVE_MAX
            && let Some(first) = self.order.pop_front()
        {
            self.live.remove(&first);
        }
        let topic: Rc<str> = topic.into();
        self.live.insert(Rc::clone(&topic));
        self.order.push_back(topic);
    }
}

/// Whether the time of a row's message is over.
#[must_use]
pub fn is_over(row: &Record, now_us: u64) -> bool {
    Kept::of(row).is_some_and(|kept| {
        let age_s = now_us.saturating_sub(kept.timestamp_us) / 1_000_000;
        expiry_s(kept.headers).is_some_and(|seconds| age_s >= u64::from(seconds))
    })
}

/// Acts on what happened in this turn.
pub fn go_on(core: &mut Core) {
    go_on_paced(core);
    while !core.rim.retained.is_empty() {
        for (key, event) in std::mem::take(&mut core.rim.retained) {
            match event {
                Event::Due(filter) => begin(core, key, filter),
                Event::Came(number, answer) => {
                    core.rim.rows_pace.came(number);
                    came(core, key, number, answer);
                }
            }
        }
    }
}

/// Those that wait go on in order, as far as there is room.
fn go_on_paced(core: &mut Core) {
    while core.rim.has_room_for_page()
        && let Some(key) = core.rim.rows_pace.waiting.pop_front()
    {
        if let Some(reads) = reads_of(&mut core.rim, key) {
            reads.is_paced = false;
            read_on(core, key);
        }
    }
}

fn begin(core: &mut Core, key: ConnKey, filter: Box<[u8]>) {
    let has_none = core.broker.rows_class().is_none() || core.broker.has_no_rows();
    let Some(reads) = reads_of(&mut core.rim, key) else { return };
    reads.due -= 1;
    if !has_none {
        reads.queue.push_back(Read::new(filter, None));
    }
    read_on(core, key);
}

fn came(core: &mut Core, key: ConnKey, number: u32, answer: Answer) {
    let Some(reads) = reads_of(&mut core.rim, key).filter(|reads| reads.awaits == Some(number)) else {
        return;
    };
    reads.awaits = None;
    act(core, key, answer);
    read_on(core, key);
}

/// Asks for what a client is to get next, if it has taken what it got.
pub fn read_on(core: &mut Core, key: ConnKey) {
    let has_reads = |core: &Core| {
        core.rim
            .conns
            .get(key)
            .and_then(|conn| conn.mqtt.as_ref())
            .is_some_and(|client| client.reads.is_some())
    };
    while has_reads(core) && core.rim.has_room_for_rows(key) {
        let Some(reads) = reads_of(&mut core.rim, key).filter(|reads| reads.awaits.is_none()) else { return };
        let Some(read) = reads.queue.front() else {
            if reads.due == 0
                && reads.unread.is_empty()
                && let Some(client) = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut())
            {
                client.reads = None;
            }
            return;
        };
        let (filter, is_wild, next) = (read.filter.clone(), read.is_wild(), read.next.clone());
        if next.is_some() && !core.rim.may_read_rows(key) {
            return;
        }
        let number = core.rim.retained_asked.wrapping_add(1);
        core.rim.retained_asked = number;
        if let Some(reads) = reads_of(&mut core.rim, key) {
            reads.awaits = Some(number);
        }
        let asker = Asker::Retained { conn: key, number };
        let ticket = Ticket { shard: core.rim.shard, asker };
        let now = core.rim.now;
        let outcome = match next {
            None if is_wild => {
                core.broker.settle(asker, &mut core.rim);
                Outcome::Later
            }
            None => {
                let settled = core.broker.subscribers(ticket, Namespace::Global, &filter, now, &mut core.rim);
                match settled {
                    Outcome::Now(count) => Outcome::Now(Answer::Counted(count)),
                    Outcome::Later => Outcome::Later,
                }
            }
            Some((hub, after)) => {
                let Some(class) = core.broker.rows_class() else { return };
                let bytes_max = core.rim.limits.retained_page_bytes as u32;
                let ask = RowsAsk { ticket, class, hub, filter, after, bytes_max };
                match core.broker.rows(ask, now, &mut core.rim) {
                    Outcome::Now(page) => Outcome::Now(Answer::Rows(page)),
                    Outcome::Later => {
                        core.rim.rows_pace.asked.push_back((number, now.mono_ms));
                        Outcome::Later
                    }
                }
            }
        };
        let Outcome::Now(answer) = outcome else { return };
        if let Some(reads) = reads_of(&mut core.rim, key) {
            reads.awaits = None;
        }
        act(core, key, answer);
    }
}

fn reads_of(rim: &mut Rim, key: ConnKey) -> Option<&mut Reads> {
    rim.conns.get_mut(key)?.mqtt.as_mut()?.reads.as_deref_mut()
}

/// What the first read was waiting for has come.
fn act(core: &mut Core, key: ConnKey, answer: Answer) {
    let row_hubs = core.broker.row_hubs();
    let Some(read) = reads_of(&mut core.rim, key).and_then(|reads| reads.queue.front_mut()) else { return };
    let (filter, hub) = (read.filter.clone(), read.next.as_ref().map(|next| next.0));
    let following = read.hub_after(hub, row_hubs, || core.broker.row_hub(&filter)).map(|hub| (hub, None));
    let next = match (answer, hub) {
        (Answer::Rows(Ok(page)), Some(hub)) => {
            let behind = page.rows.last().and_then(|row| hubsub_route::rows::topic_of(row.topic()));
            let behind = behind.map(Box::from);
            let is_last = page.is_last || behind.is_none();
            let bytes = page.rows.iter().map(|row| row.topic().len() + row.payload().len());
            core.rim.rows_pace.bytes += bytes.sum::<usize>();
            core.rim.send_rows(key, &filter, &page);
            if is_last { following } else { Some((hub, behind)) }
        }
        // What that hub keeps cannot be read now; others can.
        (_, Some(hub)) => {
            read.unread.insert(hub);
            core.rim.metrics.retained_unread_total.add(1);
            following
        }
        (_, None) => following,
    };
    let Some(reads) = reads_of(&mut core.rim, key) else { return };
    match (next, reads.queue.front_mut()) {
        (Some(next), Some(read)) => read.next = Some(next),
        _ => {
            let read = reads.queue.pop_front().filter(|read| !read.unread.is_empty());
            let is_unread = read.is_some();
            read.into_iter().for_each(|read| reads.keep_unread(read));
            if is_unread {
                core.rim.unread.insert(key);
            }
        }
    }
}

/// Reads for those of which something could not be read, if it can be now; forgets what they do not subscribe to any more.
/// Once a second.
pub fn read_unread(core: &mut Core) {
    for key in core.rim.unread.iter().copied().collect::<Vec<_>>() {
        let client = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_deref_mut());
        if let Some(Client { machine, reads: Some(reads), .. }) = client {
            reads.unread.retain(|read| machine.grant_kept(&read.filter, false).is_some());
            reads.retry(|hub| core.broker.row_hub_is_away(hub));
        }
        read_on(core, key);
        if reads_of(&mut core.rim, key).is_none_or(|reads| reads.unread.is_empty()) {
            core.rim.unread.remove(&key);
        }
    }
}

/// A client is about to subscribe to a filter: it is told with SUBACK if something that is retained comes later.
pub(super) fn note_unread(core: &mut Core, key: ConnKey, number: u32, filter: &str) {
    if !core.broker.rows_are_away(filter.as_bytes()) {
        return;
    }
    let told = core.rim.with_mqtt(key, |client, _| client.machine.retained_comes_later(number));
    if told == Some(true) && core.broker.tells_rows_are_away() {
        let fields = vec![("filter", filter.chars().take(64).collect())];
        let what = "retained messages are delivered later: the leader of their hub is not reached";
        core.rim.control.log(Level::Warning, what, fields);
    }
}

impl Rim {
    /// A subscription holds from here on, and what its topics kept is due: what comes live is taken note of.
    pub(super) fn reads_retained(&mut self, key: ConnKey, filter: Box<[u8]>) {
        if let Some(client) = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) {
            client.reads.get_or_insert_default().due += 1;
            self.retained.push((key, Event::Due(filter)));
        }
    }

    /// Whether rows may be read for a client in this millisecond; else it is called in a later one.
    fn may_read_rows(&mut self, key: ConnKey) -> bool {
        if self.has_room_for_page() {
            return true;
        }
        let Some(reads) = reads_of(self, key) else { return false };
        if !std::mem::replace(&mut reads.is_paced, true) {
            self.rows_pace.waiting.push_back(key);
        }
        false
    }

    fn has_room_for_page(&mut self) -> bool {
        self.rows_pace.has_room(self.now.mono_ms, self.limits.retained_page_bytes as usize)
    }

    /// Whether a client has taken so much of what it was sent that it may get more of the past.
    fn has_room_for_rows(&self, key: ConnKey) -> bool {
        let Some(conn) = self.conns.get(key).filter(|conn| !conn.is_closing()) else { return false };
        let Some(client) = &conn.mqtt else { return false };
        let has_room = |o: &crate::output::Output| {
            o.queue.is_empty() && o.turn_bytes < self.limits.retained_page_bytes as usize
        };
        client.pending.is_empty() && conn.output.as_deref().is_none_or(has_room)
    }

    /// A message that its topic keeps comes live to a client that reads such messages, perhaps.
    pub(super) fn note_live(&mut self, conn: u32, said: &Said<'_>) {
        let reads = self.conns.at_mut(conn).and_then(|conn| conn.mqtt.as_mut()?.reads.as_deref_mut());
        if let Some(reads) = reads {
            reads.note(said.topic);
        }
    }

    /// Rows for a client, by one of its subscriptions.
    fn send_rows(&mut self, key: ConnKey, filter: &[u8], page: &RowPage) {
        for row in page.rows.iter().filter(|row| !row.payload().is_empty()) {
            self.send_row(key, filter, row);
        }
    }

    fn send_row(&mut self, key: ConnKey, filter: &[u8], row: &Record) {
        let now_us = self.now.wall_us;
        let Some(conn) = self.conns.get(key).filter(|conn| !conn.is_closing()) else { return };
        let Some(client) = &conn.mqtt else { return };
        let is_own = is_publisher(&row.publisher, client.machine.client_id());
        let Some(grant) = client.machine.grant_kept(filter, is_own) else { return };
        let Some(kept) = Kept::of(row).filter(|_| !is_over(row, now_us)) else { return };
        let Ok(topic) = topic_name(kept.topic) else {
            self.metrics.mqtt_unsent_total.add(1);
            return;
        };
        if client.reads.as_ref().is_some_and(|reads| reads.live.contains(topic)) {
            return;
        }
        let said = Said {
            topic,
            payload: row.payload(),
            headers: kept.headers,
            timestamp_us: kept.timestamp_us,
            position: kept.position,
            place: LogPlace::default(),
            qos: row.qos,
            retain: true,
        };
        let mut grant = grant;
        grant.qos = grant.qos.min(row.qos);
        let waits = client.is_behind(conn.output.as_deref(), grant.qos);
        self.encoded.mqtt.begin();
        if waits {
            self.keep_mqtt(key.index, &said, grant, OnSlow::CatchUp, Way::default());
        } else {
            self.send_mqtt(key.index, &said, &grant, None, Way::default(), None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_in_a_millisecond_is_bounded_and_so_are_pages_that_are_under_way() {
        let mut pace = Pace::default();
        assert!(pace.has_room(1, 10));
        pace.bytes += 10;
        assert!(!pace.has_room(1, 10) && pace.has_room(2, 10));
        pace.asked.extend((0..ASKED_MAX as u32).map(|number| (number, 2)));
        assert!(!pace.has_room(2, 10) && !pace.has_room(3, 10), "they are of no millisecond yet");
        pace.came(ASKED_MAX as u32);
        assert!(!pace.has_room(3, 10), "it is the answer to another question");
        pace.came(5);
        assert!(pace.has_room(3, 10));
    }

    #[test]
    fn a_page_that_does_not_come_keeps_others_waiting_for_a_moment_only() {
        let mut pace = Pace::default();
        let asks = |pace: &mut Pace, at_ms| {
            pace.asked.extend((0..ASKED_MAX as u32).map(|number| (number + at_ms as u32, at_ms)));
        };
        asks(&mut pace, 1);
        assert!(!pace.has_room(ASKED_MS, 10));
        assert!(pace.has_room(ASKED_MS + 1, 10));
        asks(&mut pace, ASKED_MS + 1);
        pace.came(1);
        assert!(!pace.has_room(ASKED_MS + 2, 10), "one that comes late makes no room twice");
    }

    #[test]
    fn hubs_that_could_not_be_read_are_read_when_they_can_be_each_once() {
        let mut reads = Reads::default();
        let passed = |filter: &[u8], unread: &[u16]| {
            let mut read = Read::new(filter.into(), None);
            read.unread.extend(unread);
            read
        };
        reads.keep_unread(passed(b"#", &[1, 3]));
        reads.keep_unread(passed(b"a", &[3]));
        reads.keep_unread(passed(b"#", &[3, 5]));
        assert_eq!((reads.unread.len(), reads.has_work()), (2, false), "each filter stands once");
        reads.retry(|_| true);
        assert!(!reads.has_work());
        reads.retry(|hub| hub == 3);
        assert!(reads.has_work());
        let wild = reads.queue.pop_front().unwrap();
        let none = || unreachable!("it has its hubs");
        let hubs = [None, Some(1), Some(5)].map(|hub| wild.hub_after(hub, 9, none));
        assert_eq!(hubs, [Some(1), Some(5), None]);
        assert!(reads.queue.is_empty() && reads.unread.len() == 2);
        reads.retry(|_| false);
        assert_eq!((reads.queue.len(), reads.unread.len()), (2, 0));
    }

    #[test]
    fn the_hubs_of_a_read_follow_each_other() {
        let wild = Read::new((*b"a/#").into(), None);
        let none = || unreachable!("it asks all");
        assert_eq!(
            [None, Some(0), Some(1)].map(|hub| wild.hub_after(hub, 2, none)),
            [Some(0), Some(1), None]
        );
        assert_eq!(wild.hub_after(None, 0, none), None);
        let topic = Read::new((*b"a").into(), None);
        assert_eq!([None, Some(7)].map(|hub| topic.hub_after(hub, 9, || 7)), [Some(7), None]);
        assert_eq!(topic.hub_after(None, 0, || 7), None);
    }

    #[test]
    fn a_few_thousand_topics_are_taken_note_of_and_the_first_gives_way() {
        let mut reads = Reads::default();
        (0..=LIVE_MAX).for_each(|n| reads.note(&n.to_string()));
        reads.note("1");
        assert_eq!((reads.live.len(), reads.order.len()), (LIVE_MAX, LIVE_MAX));
        assert!(!reads.live.contains("0") && reads.live.contains("1"));
    }
}
