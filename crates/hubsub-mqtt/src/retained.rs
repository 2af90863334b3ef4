//! Reads of retained messages for clients that subscribe: one subscription after the other, page by page,
//! each page after the client has taken the previous one.
//!
//! All clients of a shard together read a number of bytes per millisecond, in turns, so large reads do not
//! delay other clients ([`Pace`]).
//!
//! A read first waits for a flush barrier: retained entries in flight must be written, those of the topic, or
//! of all hubs for a wildcard. Live messages do not wait. If a live message with RETAIN arrived since, the
//! entry is skipped: it is older, or it arrives live too. Hubs whose leader is unreachable are skipped and
//! read later.

use crate::machine::expiry_s;
use ahash::RandomState;
use hashbrown::HashSet;
use hubsub_route::{Kept, Record};
use hubsub_types::ConnKey;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

/// The most topics whose live messages are noted during reads; the first, written long ago, is forgotten.
const LIVE_MAX: usize = 4_096;

/// The most outstanding pages of a shard from other shards and nodes.
const ASKED_MAX: usize = 16;

/// A page outstanding longer than this, in ms, is no longer counted, so that others need not wait. Its hub
/// may have no leader, which is detected only after seconds.
const ASKED_MS: u64 = 50;

#[derive(Default)]
pub struct Reads {
    /// In the order of the subscriptions; the first is in progress.
    queue: VecDeque<Read>,
    /// Reads with hubs that were unreachable, one per filter: retried when their leaders are reached.
    unread: Vec<Read>,
    /// Subscriptions granted in this turn that are still to be added to `queue`.
    due: usize,
    /// The outstanding request; unique in the shard, because successive connections share a key.
    awaits: Option<u32>,
    is_paced: bool,
    /// Topics of which a live message with RETAIN arrived.
    live: HashSet<Rc<str>, RandomState>,
    order: VecDeque<Rc<str>>,
}

#[derive(Default)]
pub struct Pace {
    ms: u64,
    bytes: usize,
    /// Outstanding pages from other shards and nodes: request number and time.
    asked: VecDeque<(u32, u64)>,
    /// Clients that continue in a later millisecond, in order.
    pub waiting: VecDeque<ConnKey>,
}

impl Pace {
    /// The time until waiting clients may continue, in ms; none if no client waits.
    pub fn wait_ms(&self) -> Option<u64> {
        (!self.waiting.is_empty()).then_some(1)
    }

    /// True if one more page may be read in this millisecond.
    pub fn has_room(&mut self, now_ms: u64, bytes_max: usize) -> bool {
        if self.ms != now_ms {
            (self.ms, self.bytes) = (now_ms, 0);
            while self.asked.front().is_some_and(|(_, at_ms)| *at_ms + ASKED_MS <= now_ms) {
                self.asked.pop_front();
            }
        }
        self.bytes < bytes_max && self.asked.len() < ASKED_MAX
    }

    pub fn count(&mut self, bytes: usize) {
        self.bytes += bytes;
    }

    /// A page was requested from another shard or node.
    pub fn asked(&mut self, number: u32, now_ms: u64) {
        self.asked.push_back((number, now_ms));
    }

    /// An answer has arrived, to a page request or another.
    pub fn came(&mut self, number: u32) {
        self.asked.retain(|(asked, _)| *asked != number);
    }
}

pub struct Read {
    filter: Box<[u8]>,
    /// The next hub and the topic to start after; none until the flush barrier has passed.
    next: Option<(u16, Option<Box<[u8]>>)>,
    /// The hubs to read, if not all: those that were unreachable before.
    only: Option<BTreeSet<u16>>,
    unread: BTreeSet<u16>,
}

impl Read {
    fn new(filter: Box<[u8]>, only: Option<BTreeSet<u16>>) -> Read {
        Read { filter, next: None, only, unread: BTreeSet::new() }
    }

    pub fn filter(&self) -> &[u8] {
        &self.filter
    }

    /// The next hub and the topic to start after; none until the flush barrier has passed.
    pub fn next(&self) -> Option<&(u16, Option<Box<[u8]>>)> {
        self.next.as_ref()
    }

    /// The hub after `hub`, or the first, of `hubs` many. `own`: the hub of its topic, if it is no wildcard.
    pub fn hub_after(&self, hub: Option<u16>, hubs: u16, own: impl FnOnce() -> u16) -> Option<u16> {
        let from = hub.map_or(0, |hub| hub + 1);
        match &self.only {
            Some(only) => only.range(from..hubs).next().copied(),
            None if self.is_wild() => (from < hubs).then_some(from),
            None if hubs == 0 || hub.is_some() => None,
            None => Some(own()),
        }
    }

    pub fn is_wild(&self) -> bool {
        self.filter.iter().any(|byte| matches!(byte, b'+' | b'#'))
    }
}

impl Reads {
    #[allow(clippy::len_without_is_empty, reason = "it is a figure, and no collection")]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// True if work remains once the client takes its output.
    pub fn has_work(&self) -> bool {
        self.due > 0 || !self.queue.is_empty()
    }

    /// A subscription was granted in this turn; [`Reads::begin`] follows.
    pub fn grant(&mut self) {
        self.due += 1;
    }

    /// Begins the read of a subscription that was granted, unless there is nothing to read.
    pub fn begin(&mut self, filter: Option<Box<[u8]>>) {
        self.due -= 1;
        self.queue.extend(filter.map(|filter| Read::new(filter, None)));
    }

    /// The answer to the request of this number has arrived; false if another one, or none, is outstanding.
    pub fn answered(&mut self, number: u32) -> bool {
        let is_it = self.awaits == Some(number);
        if is_it {
            self.awaits = None;
        }
        is_it
    }

    /// The read in progress requests something under this number.
    pub fn ask(&mut self, number: u32) {
        self.awaits = Some(number);
    }

    pub fn awaits(&self) -> bool {
        self.awaits.is_some()
    }

    /// True if nothing is left to read, now or later.
    pub fn is_done(&self) -> bool {
        !self.has_work() && self.unread.is_empty()
    }

    pub fn first(&self) -> Option<&Read> {
        self.queue.front()
    }

    /// Waits for the next millisecond; false if it does already.
    pub fn wait(&mut self) -> bool {
        !std::mem::replace(&mut self.is_paced, true)
    }

    pub fn go_on(&mut self) {
        self.is_paced = false;
    }

    /// The read in progress continues with this hub and the topic to start after, or ends. Returns whether it
    /// ended with hubs that could not be read.
    pub fn advance(&mut self, next: Option<(u16, Option<Box<[u8]>>)>) -> bool {
        if let (Some(next), Some(read)) = (next, self.queue.front_mut()) {
            read.next = Some(next);
            return false;
        }
        let Some(read) = self.queue.pop_front().filter(|read| !read.unread.is_empty()) else { return false };
        match self.unread.iter_mut().find(|other| other.filter == read.filter) {
            Some(other) => other.unread.extend(read.unread),
            None => self.unread.push(read),
        }
        true
    }

    /// The hub that the read in progress has asked cannot be read.
    pub fn miss(&mut self, hub: u16) {
        if let Some(read) = self.queue.front_mut() {
            read.unread.insert(hub);
        }
    }

    pub fn has_unread(&self) -> bool {
        !self.unread.is_empty()
    }

    /// Forgets unread hubs of filters that have ended; starts again the reads of those that are reachable.
    pub fn retry_unread(&mut self, is_subscribed: impl Fn(&[u8]) -> bool, is_away: impl Fn(u16) -> bool) {
        self.unread.retain(|read| is_subscribed(&read.filter));
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

    /// True if a live message with RETAIN of this topic arrived.
    pub fn has_live(&self, topic: &str) -> bool {
        self.live.contains(topic)
    }

    pub fn note(&mut self, topic: &str) {
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
        reads.queue.push_back(passed(b"#", &[1, 3]));
        assert!(reads.advance(None));
        reads.queue.push_back(passed(b"a", &[3]));
        assert!(reads.advance(None));
        reads.queue.push_back(passed(b"#", &[3, 5]));
        assert!(reads.advance(None));
        assert_eq!((reads.unread.len(), reads.has_work()), (2, false), "each filter stands once");
        reads.retry_unread(|_| true, |_| true);
        assert!(!reads.has_work());
        reads.retry_unread(|_| true, |hub| hub == 3);
        assert!(reads.has_work());
        let wild = reads.queue.pop_front().unwrap();
        let none = || unreachable!("it has its hubs");
        let hubs = [None, Some(1), Some(5)].map(|hub| wild.hub_after(hub, 9, none));
        assert_eq!(hubs, [Some(1), Some(5), None]);
        assert!(reads.queue.is_empty() && reads.unread.len() == 2);
        reads.retry_unread(|_| true, |_| false);
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
