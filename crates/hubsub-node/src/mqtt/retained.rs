//! Sends retained messages to a client that subscribes: retained entries are read one subscription after the
//! other, page by page, each page after the client has taken the previous one.
//!
//! All clients of a shard together read `retained_page_bytes` per millisecond, in turns, so large reads do
//! not delay other clients.
//!
//! A read starts when its subscription is confirmed, and first waits for a flush barrier: retained entries in
//! flight must be written, those of the topic, or of all hubs for a wildcard. Live messages do not wait. If a
//! live message with RETAIN arrived since, the entry is skipped: it is older, or it arrives live too.
//!
//! Hubs whose leader is unreachable are skipped and read later; the client is notified with SUBACK and the
//! operator by the log.

use super::client::Client;
use super::deliver::Way;
use super::message::Content;
use crate::io::context::Ctx;
use crate::io::log_lines::Level;
use crate::io::shard_io::Io;
use ahash::RandomState;
use hashbrown::HashSet;
use hubsub_mqtt::expiry_s;
use hubsub_route::{
    Answer, Asker, Kept, LogPlace, Namespace, Outcome, Record, RowPage, RowsAsk, Ticket, is_publisher,
};
use hubsub_types::{ConnKey, OnSlow};
use hubsub_wire::mqtt::topic_name;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

/// The most topics whose live messages are noted during reads. Beyond that the first is forgotten; its entry
/// was written long ago.
const LIVE_MAX: usize = 4_096;

/// The most outstanding pages of a shard from other shards and nodes.
const ASKED_MAX: usize = 16;

/// A page outstanding longer than this, in ms, is no longer counted, so that others need not wait. Its hub
/// may have no leader, which is detected only after seconds.
const ASKED_MS: u64 = 50;

/// An event of a read.
pub enum Event {
    /// A subscription is confirmed: read its retained entries.
    Due(Box<[u8]>),
    /// The answer to the request of this number.
    Came(u32, Answer),
}

/// The reads of a client.
#[derive(Default)]
pub struct Reads {
    /// In the order of the subscriptions; the first is in progress.
    queue: VecDeque<Read>,
    /// Reads with hubs that were unreachable, one per filter: retried when their leaders are reached.
    unread: Vec<Read>,
    /// Subscriptions granted in this turn that are still to be added to `queue`.
    due: usize,
    /// The number of the outstanding request. It is unique in the shard, because successive connections share
    /// a key.
    awaits: Option<u32>,
    /// True if it waits for the next millisecond.
    is_paced: bool,
    /// Topics of which a live message with RETAIN arrived.
    live: HashSet<Rc<str>, RandomState>,
    /// Those topics in order of connecting.
    order: VecDeque<Rc<str>>,
}

/// The rate limit for the reads of a shard.
#[derive(Default)]
pub struct Pace {
    /// The current millisecond of the node's clock.
    ms: u64,
    /// Bytes read in it.
    bytes: usize,
    /// Outstanding pages from other shards and nodes: request number and time.
    asked: VecDeque<(u32, u64)>,
    /// Clients that continue in a later millisecond, in order.
    waiting: VecDeque<ConnKey>,
}

impl Pace {
    /// The time until waiting clients may continue, in ms; none if no client waits.
    #[must_use]
    pub fn wait_ms(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(1)
    }

    /// True if one more page may be read in this millisecond.
    fn has_room(&mut self, now_ms: u64, bytes_max: usize) -> bool {
        if self.ms != now_ms {
            (self.ms, self.bytes) = (now_ms, 0);
            while self.asked.front().is_some_and(|(_, at_ms)| *at_ms + ASKED_MS <= now_ms) {
                self.asked.pop_front();
            }
        }
        self.bytes < bytes_max && self.asked.len() < ASKED_MAX
    }

    /// An answer has arrived, to a page request or another.
    fn came(&mut self, number: u32) {
        self.asked.retain(|(asked, _)| *asked != number);
    }
}

/// A read for one subscription.
struct Read {
    filter: Box<[u8]>,
    /// The next hub and the topic to start after; none until the flush barrier has passed.
    next: Option<(u16, Option<Box<[u8]>>)>,
    /// The hubs to read, if not all: those that were unreachable before.
    only: Option<BTreeSet<u16>>,
    /// The hubs that could not be read.
    unread: BTreeSet<u16>,
}

impl Read {
    fn new(filter: Box<[u8]>, only: Option<BTreeSet<u16>>) -> Read {
        Read { filter, next: None, only, unread: BTreeSet::new() }
    }

    /// The hub after `hub`, or the first, of `hubs` many. `own`: the hub of its topic, if it is no wildcard.
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
    /// Subscriptions not read completely.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True if work remains once the client takes its output.
    #[must_use]
    pub fn has_work(&self) -> bool {
        self.due > 0 || !self.queue.is_empty()
    }

    /// Keeps a finished read whose hubs were partly unreachable.
    fn keep_unread(&mut self, read: Read) {
        match self.unread.iter_mut().find(|other| other.filter == read.filter) {
            Some(other) => other.unread.extend(read.unread),
            None => self.unread.push(read),
        }
    }

    /// Starts again the reads of hubs that are reachable now.
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

/// True if the message of a retained entry has expired.
#[must_use]
pub fn is_expired(entry: &Record, now_us: u64) -> bool {
    Kept::of(entry).is_some_and(|kept| {
        let age_s = now_us.saturating_sub(kept.timestamp_us) / 1_000_000;
        expiry_s(kept.headers).is_some_and(|seconds| age_s >= u64::from(seconds))
    })
}

/// Handles this turn's events.
pub fn go_on(ctx: &mut Ctx) {
    go_on_paced(ctx);
    while !ctx.io.states.mqtt.retained.is_empty() {
        for (key, event) in std::mem::take(&mut ctx.io.states.mqtt.retained) {
            match event {
                Event::Due(filter) => begin(ctx, key, filter),
                Event::Came(number, answer) => {
                    ctx.io.states.mqtt.rows_pace.came(number);
                    came(ctx, key, number, answer);
                }
            }
        }
    }
}

/// Continues waiting reads in order, within the rate limit.
fn go_on_paced(ctx: &mut Ctx) {
    while ctx.io.has_room_for_page()
        && let Some(key) = ctx.io.states.mqtt.rows_pace.waiting.pop_front()
    {
        if let Some(reads) = reads_of(&mut ctx.io, key) {
            reads.is_paced = false;
            read_on(ctx, key);
        }
    }
}

fn begin(ctx: &mut Ctx, key: ConnKey, filter: Box<[u8]>) {
    let has_none = ctx.broker.rows_class().is_none() || ctx.broker.has_no_rows();
    let Some(reads) = reads_of(&mut ctx.io, key) else { return };
    reads.due -= 1;
    if !has_none {
        reads.queue.push_back(Read::new(filter, None));
    }
    read_on(ctx, key);
}

fn came(ctx: &mut Ctx, key: ConnKey, number: u32, answer: Answer) {
    let Some(reads) = reads_of(&mut ctx.io, key).filter(|reads| reads.awaits == Some(number)) else {
        return;
    };
    reads.awaits = None;
    act(ctx, key, answer);
    read_on(ctx, key);
}

/// Requests the next page of a client that has taken the previous one.
pub fn read_on(ctx: &mut Ctx, key: ConnKey) {
    let has_reads = |ctx: &Ctx| {
        ctx.io.conns.get(key).and_then(|conn| conn.mqtt.as_ref()).is_some_and(|client| client.reads.is_some())
    };
    while has_reads(ctx) && ctx.io.has_room_for_entries(key) {
        let Some(reads) = reads_of(&mut ctx.io, key).filter(|reads| reads.awaits.is_none()) else { return };
        let Some(read) = reads.queue.front() else {
            if reads.due == 0
                && reads.unread.is_empty()
                && let Some(client) = ctx.io.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut())
            {
                client.reads = None;
            }
            return;
        };
        let (filter, is_wild, next) = (read.filter.clone(), read.is_wild(), read.next.clone());
        if next.is_some() && !ctx.io.may_read_entries(key) {
            return;
        }
        let number = ctx.io.states.mqtt.retained_asked.wrapping_add(1);
        ctx.io.states.mqtt.retained_asked = number;
        if let Some(reads) = reads_of(&mut ctx.io, key) {
            reads.awaits = Some(number);
        }
        let asker = Asker::Retained { conn: key, number };
        let ticket = Ticket { shard: ctx.io.shard, asker };
        let now = ctx.io.now;
        let outcome = match next {
            None if is_wild => {
                ctx.broker.settle(asker, &mut ctx.io);
                Outcome::Later
            }
            None => {
                let settled = ctx.broker.subscribers(ticket, Namespace::Global, &filter, now, &mut ctx.io);
                match settled {
                    Outcome::Now(count) => Outcome::Now(Answer::Counted(count)),
                    Outcome::Later => Outcome::Later,
                }
            }
            Some((hub, after)) => {
                let Some(class) = ctx.broker.rows_class() else { return };
                let bytes_max = ctx.io.limits.retained_page_bytes as u32;
                let ask = RowsAsk { ticket, class, hub, filter, after, bytes_max };
                match ctx.broker.rows(ask, now, &mut ctx.io) {
                    Outcome::Now(page) => Outcome::Now(Answer::Rows(page)),
                    Outcome::Later => {
                        ctx.io.states.mqtt.rows_pace.asked.push_back((number, now.mono_ms));
                        Outcome::Later
                    }
                }
            }
        };
        let Outcome::Now(answer) = outcome else { return };
        if let Some(reads) = reads_of(&mut ctx.io, key) {
            reads.awaits = None;
        }
        act(ctx, key, answer);
    }
}

fn reads_of(io: &mut Io, key: ConnKey) -> Option<&mut Reads> {
    io.conns.get_mut(key)?.mqtt.as_mut()?.reads.as_deref_mut()
}

/// Handles the answer to the first read's request.
fn act(ctx: &mut Ctx, key: ConnKey, answer: Answer) {
    let row_hubs = ctx.broker.row_hubs();
    let Some(read) = reads_of(&mut ctx.io, key).and_then(|reads| reads.queue.front_mut()) else { return };
    let (filter, hub) = (read.filter.clone(), read.next.as_ref().map(|next| next.0));
    let following = read.hub_after(hub, row_hubs, || ctx.broker.row_hub(&filter)).map(|hub| (hub, None));
    let next = match (answer, hub) {
        (Answer::Rows(Ok(page)), Some(hub)) => {
            let after = page.rows.last().and_then(|row| hubsub_route::rows::topic_of(row.topic()));
            let after = after.map(Box::from);
            let is_last = page.is_last || after.is_none();
            let bytes = page.rows.iter().map(|row| row.topic().len() + row.payload().len());
            ctx.io.states.mqtt.rows_pace.bytes += bytes.sum::<usize>();
            ctx.io.send_entries(key, &filter, &page);
            if is_last { following } else { Some((hub, after)) }
        }
        // This hub cannot be read now; others can.
        (_, Some(hub)) => {
            read.unread.insert(hub);
            ctx.io.metrics.retained_unread_total.add(1);
            following
        }
        (_, None) => following,
    };
    let Some(reads) = reads_of(&mut ctx.io, key) else { return };
    match (next, reads.queue.front_mut()) {
        (Some(next), Some(read)) => read.next = Some(next),
        _ => {
            let read = reads.queue.pop_front().filter(|read| !read.unread.is_empty());
            let is_unread = read.is_some();
            read.into_iter().for_each(|read| reads.keep_unread(read));
            if is_unread {
                ctx.io.states.mqtt.unread.insert(key);
            }
        }
    }
}

/// Retries unreachable hubs, and forgets filters that clients no longer subscribe to. Runs once a second.
pub fn read_unread(ctx: &mut Ctx) {
    for key in ctx.io.states.mqtt.unread.iter().copied().collect::<Vec<_>>() {
        let client = ctx.io.conns.get_mut(key).and_then(|conn| conn.mqtt.as_deref_mut());
        if let Some(Client { machine, reads: Some(reads), .. }) = client {
            reads.unread.retain(|read| machine.grant_kept(&read.filter, false).is_some());
            reads.retry(|hub| ctx.broker.row_hub_is_away(hub));
        }
        read_on(ctx, key);
        if reads_of(&mut ctx.io, key).is_none_or(|reads| reads.unread.is_empty()) {
            ctx.io.states.mqtt.unread.remove(&key);
        }
    }
}

/// Before a subscription: SUBACK reports that retained messages come later, if hubs are unreachable.
pub(super) fn note_unread(ctx: &mut Ctx, key: ConnKey, number: u32, filter: &str) {
    if !ctx.broker.rows_are_away(filter.as_bytes()) {
        return;
    }
    let is_notified = ctx.io.with_mqtt(key, |client, _| client.machine.retained_comes_later(number));
    if is_notified == Some(true) && ctx.broker.tells_rows_are_away() {
        let fields = vec![("filter", filter.chars().take(64).collect())];
        let what = "retained messages are delivered later: the leader of their hub is not reached";
        ctx.io.lines.log(Level::Warning, what, fields);
    }
}

impl Io {
    /// A subscription is confirmed: schedules its read and notes live messages from now on.
    pub(super) fn reads_retained(&mut self, key: ConnKey, filter: Box<[u8]>) {
        if let Some(client) = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) {
            client.reads.get_or_insert_default().due += 1;
            self.states.mqtt.retained.push((key, Event::Due(filter)));
        }
    }

    /// True if a client may read a page in this millisecond; else it is queued for a later one.
    fn may_read_entries(&mut self, key: ConnKey) -> bool {
        if self.has_room_for_page() {
            return true;
        }
        let Some(reads) = reads_of(self, key) else { return false };
        if !std::mem::replace(&mut reads.is_paced, true) {
            self.states.mqtt.rows_pace.waiting.push_back(key);
        }
        false
    }

    fn has_room_for_page(&mut self) -> bool {
        self.states.mqtt.rows_pace.has_room(self.now.mono_ms, self.limits.retained_page_bytes as usize)
    }

    /// True if a client has taken enough output to receive more retained messages.
    fn has_room_for_entries(&self, key: ConnKey) -> bool {
        let Some(conn) = self.conns.get(key).filter(|conn| !conn.is_closing()) else { return false };
        let Some(client) = &conn.mqtt else { return false };
        let has_room = |o: &crate::io::output::Output| {
            o.queue.is_empty() && o.turn_bytes < self.limits.retained_page_bytes as usize
        };
        client.pending.is_empty() && conn.output.as_deref().is_none_or(has_room)
    }

    /// Notes a live message with RETAIN for a client with reads in progress.
    pub(super) fn note_live(&mut self, conn: u32, content: &Content<'_>) {
        let reads = self.conns.at_mut(conn).and_then(|conn| conn.mqtt.as_mut()?.reads.as_deref_mut());
        if let Some(reads) = reads {
            reads.note(content.topic);
        }
    }

    /// Sends retained entries to a client.
    fn send_entries(&mut self, key: ConnKey, filter: &[u8], page: &RowPage) {
        for row in page.rows.iter().filter(|row| !row.payload().is_empty()) {
            self.send_entry(key, filter, row);
        }
    }

    fn send_entry(&mut self, key: ConnKey, filter: &[u8], row: &Record) {
        let now_us = self.now.wall_us;
        let Some(conn) = self.conns.get(key).filter(|conn| !conn.is_closing()) else { return };
        let Some(client) = &conn.mqtt else { return };
        let is_own = is_publisher(&row.publisher, client.machine.client_id());
        let Some(grant) = client.machine.grant_kept(filter, is_own) else { return };
        let Some(kept) = Kept::of(row).filter(|_| !is_expired(row, now_us)) else { return };
        let Ok(topic) = topic_name(kept.topic) else {
            self.metrics.mqtt_unsent_total.add(1);
            return;
        };
        if client.reads.as_ref().is_some_and(|reads| reads.live.contains(topic)) {
            return;
        }
        let content = Content {
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
        let waits = client.must_queue(conn.output.as_deref(), grant.qos);
        self.states.mqtt.cache.begin();
        if waits {
            self.queue_mqtt(key.index, &content, grant, OnSlow::CatchUp, Way::default());
        } else {
            self.send_mqtt(key.index, &content, &grant, None, Way::default(), None);
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
