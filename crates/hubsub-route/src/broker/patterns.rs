//! Subscriptions to patterns: every shard, and every node that can lead, holds a pattern before its subscription
//! is live.

use super::Broker;
use super::subscribe::RESUMED_TIMES;
use super::unconfirmed::UnheldPattern;
use crate::{Msg, Outcome, Reply, Sink, Ticket};
use hubsub_types::names::{Matcher, pattern_len};
use hubsub_types::{ConnKey, ErrorCode, ShardId};
use std::sync::Arc;

impl Broker {
    pub fn subscribe_pattern(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        pattern: &[u8],
        sink: &mut impl Sink,
    ) -> Reply<()> {
        self.hold_pattern(ticket, conn, pattern, true, sink)
    }

    /// As `subscribe_pattern`, for a resumed session: patterns added since do not count against it.
    pub fn resume_pattern(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        pattern: &[u8],
        sink: &mut impl Sink,
    ) -> Reply<()> {
        self.hold_pattern(ticket, conn, pattern, false, sink)
    }

    pub(super) fn hold_pattern(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        pattern: &[u8],
        is_new: bool,
        sink: &mut impl Sink,
    ) -> Reply<()> {
        if pattern_len(pattern) as u64 > self.limits.pattern_bytes_max {
            return Outcome::Now(Err(ErrorCode::PatternLength));
        }
        let own = self.clients.get(conn.index).patterns.as_ref();
        let held = self.patterns.find(pattern);
        if let Some(id) = held
            && own.is_some_and(|own| own.contains(id))
        {
            return Outcome::Now(Ok(()));
        }
        let is_limited = !self.clients.is_internal(conn.index);
        let own = own.map_or(0, |own| own.len()) as u64;
        if self.is_full(conn) || (is_limited && is_new && own >= self.limits.patterns_per_client_max) {
            return Outcome::Now(Err(ErrorCode::TooManySubscriptions));
        }
        let times = if is_new { 1 } else { RESUMED_TIMES };
        if !self.has_bytes_for(conn, pattern.len(), (true, is_new), sink) {
            return Outcome::Now(Err(ErrorCode::SubscriptionBytes));
        }
        let has_room = (self.patterns.len() as u64) < self.limits.patterns_max.saturating_mul(times)
            && (self.patterns.bytes() as u64) < self.limits.patterns_bytes_max.saturating_mul(times)
            && self.has_search_for(pattern);
        if held.is_none() && is_limited && !has_room {
            return Outcome::Now(Err(ErrorCode::TooManyPatterns));
        }
        let id = self.patterns.intern(pattern);
        self.patterns.hold(id, self.shard, self.shards);
        let source = Arc::clone(&self.patterns.get(id).source);
        self.clients.count_name(conn.index, source.len(), sink);
        self.clients.get_mut(conn.index).patterns.get_or_insert_default().insert(id);
        if self.announce_added(ticket, conn, id, &source, sink) {
            self.patterns.get_mut(id).subs.insert(conn.index);
            self.cursors.hubs.changed(conn.index);
            return Outcome::Now(Ok(()));
        }
        self.unconfirmed.makes_live(conn.index, id);
        Outcome::Later
    }

    /// Whether the search cost with this pattern stays within `patterns_search_max`.
    pub(super) fn has_search_for(&self, pattern: &[u8]) -> bool {
        let Matcher::Glob(glob) = Matcher::of_pattern(pattern) else { return true };
        let search = glob.search();
        search == 0 || (self.patterns.search() + search) as u64 <= self.limits.patterns_search_max
    }

    /// Removes a pattern subscription; returns whether it existed.
    pub fn unsubscribe_pattern(&mut self, conn: ConnKey, pattern: &[u8], sink: &mut impl Sink) -> bool {
        let Some(id) = self.patterns.find(pattern) else { return false };
        let client = self.clients.get_mut(conn.index);
        let Some(patterns) = &mut client.patterns else { return false };
        if !patterns.remove(id) {
            return false;
        }
        if patterns.is_empty() {
            client.patterns = None;
        }
        self.clients.uncount_name(conn.index, pattern.len());
        self.cursors.remove_pattern(conn.index, id);
        self.drop_pattern(conn.index, id, sink);
        true
    }

    pub fn patterns_of(&self, conn: ConnKey) -> Vec<Arc<[u8]>> {
        let ids = self.clients.get(conn.index).pattern_ids();
        ids.map(|id| Arc::clone(&self.patterns.get(id).source)).collect()
    }

    pub(super) fn drop_pattern(&mut self, conn: u32, id: u32, sink: &mut impl Sink) {
        self.unconfirmed.drop_pattern(conn, id);
        let pattern = self.patterns.get_mut(id);
        pattern.subs.remove(conn);
        let source = Arc::clone(&pattern.source);
        self.patterns.release(id, self.shard, self.shards);
        self.announce_dropped(&source, sink);
    }

    /// Notifies all of a new subscriber here. If false, [`Answer::PatternHeld`] follows.
    pub(super) fn announce_added(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        id: u32,
        source: &Arc<[u8]>,
        sink: &mut impl Sink,
    ) -> bool {
        let waiting = self.unconfirmed.next_id();
        let mut left = self.shards - 1;
        if self.shard == ShardId(0) {
            left += u16::from(!self.pattern_changed(source, Some((self.shard, waiting)), sink));
        }
        if left == 0 {
            return true;
        }
        self.unconfirmed.add_pattern(waiting, UnheldPattern { asker: ticket.asker, conn, pattern: id, left });
        for shard in self.other_shards() {
            sink.send(shard, Msg::Pattern(self.shard, Arc::clone(source), true, Some(waiting)));
        }
        false
    }

    /// A pattern or group loses a subscriber on this shard: notifies all other shards and nodes.
    pub(super) fn announce_dropped(&mut self, source: &Arc<[u8]>, sink: &mut impl Sink) {
        if self.shard == ShardId(0) {
            self.pattern_changed(source, None, sink);
        }
        for shard in self.other_shards() {
            sink.send(shard, Msg::Pattern(self.shard, Arc::clone(source), false, None));
        }
    }
}
