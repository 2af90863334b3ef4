//! Subscriptions: from the edge to the hub and back. A subscription is live only after the hub has confirmed
//! it (docs/adr/0005).

use super::{Broker, Client, keeps_names};
use crate::cursors::{CursorKey, Key};
use crate::logread::Known;
use crate::record::Namespace;
use crate::ring::NOWHERE;
use crate::topics::TopicId;
use crate::{Answer, Asker, Attach, Attached, CloseReason, Msg, Now, Outcome, Sink, Start, Ticket};
use hubsub_types::names::{Matcher, pattern_len};
use hubsub_types::{ConnKey, ErrorCode, Position, Protocol, ShardId};
use std::sync::Arc;

/// Resumed sessions may use up to this multiple of `patterns_max`, `patterns_bytes_max` and
/// `subscription_bytes_shard_max`.
pub(super) const RESUMED_TIMES: u64 = 2;

/// A subscription that a connection requests.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    pub topic: &'a [u8],
    pub namespace: Namespace,
    pub start: Start,
}

/// A pattern subscription that other shards have not confirmed yet. Until then its connection gets no
/// records, as with topics.
pub(super) struct Waiting {
    pub(super) asker: Asker,
    pub(super) conn: ConnKey,
    pub(super) pattern: u32,
    pub(super) left: u16,
}

/// Unconfirmed subscriptions of one connection to one topic at another shard.
#[derive(Clone, Copy)]
pub(super) struct Attaching {
    /// The attach that is valid: a later one replaces the start of an earlier one.
    pub(super) latest: u32,
    /// The one that adds a subscription, if there is one.
    pub(super) adding: Option<u32>,
}

impl Broker {
    /// Registers a connection. Its index was free.
    pub fn connected(&mut self, conn: ConnKey) {
        let index = conn.index as usize;
        if self.clients.len() <= index {
            self.clients.resize_with(index + 1, Client::default);
        }
        debug_assert!(self.clients[index].topics.is_empty());
        self.clients[index].generation = conn.generation;
    }

    /// Registers the node's internal client.
    pub fn connected_itself(&mut self, conn: ConnKey) {
        self.connected(conn);
        self.own_client = Some(conn.index);
    }

    /// Removes a connection with all its subscriptions.
    pub fn disconnected(&mut self, conn: ConnKey, now: Now, sink: &mut impl Sink) {
        self.cursors.remove_conn(conn.index);
        let client = std::mem::take(&mut self.clients[conn.index as usize]);
        if client.keeps_names() {
            self.kept_name_bytes -= u64::from(client.name_bytes);
        }
        for &id in client.topics.as_slice() {
            self.drop_subscription((conn.index, client.protocol), id, now, sink);
        }
        for &id in client.patterns.iter().flat_map(|p| p.as_slice()) {
            self.drop_pattern(conn.index, id, sink);
        }
        self.leave_groups(conn.index, sink);
    }

    /// Subscribes a connection to a topic. [`Outcome::Later`] promises one [`Answer::Attached`]. A repeated
    /// subscription is confirmed at once, unless it has a start: then it starts again there.
    pub fn subscribe(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        wish: Wish<'_>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<Attached, ErrorCode>> {
        self.add_topic(ticket, (conn, true), wish, now, sink)
    }

    /// As `subscribe`, for a subscription that a session had before its client went offline: subscriptions
    /// that others added meanwhile do not count against it.
    pub fn resume(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        wish: Wish<'_>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<Attached, ErrorCode>> {
        self.add_topic(ticket, (conn, false), wish, now, sink)
    }

    fn add_topic(
        &mut self,
        ticket: Ticket,
        (conn, is_new): (ConnKey, bool),
        wish: Wish<'_>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<Attached, ErrorCode>> {
        let Wish { namespace, topic, start } = wish;
        if !self.topic_fits(topic) {
            return Outcome::Now(Err(ErrorCode::TopicLength));
        }
        if self.relay.is_some() && self.is_outside(&self.classes.room(topic)) {
            return Outcome::Now(Err(ErrorCode::HubClosed));
        }
        let id = self.topics.intern(namespace, topic);
        let adds = !self.clients[conn.index as usize].topics.contains(id);
        if !adds && start == Start::Live {
            return Outcome::Now(Ok(Attached {
                position: Position::default(),
                replay_from: None,
                recovered: true,
            }));
        }
        if adds {
            let is_kept = !self.topics.get(id).subs.is_empty();
            if self.is_full(conn) {
                return Outcome::Now(Err(ErrorCode::TooManySubscriptions));
            } else if !self.has_bytes_for(conn, topic.len(), (is_kept, is_new), sink) {
                return Outcome::Now(Err(ErrorCode::SubscriptionBytes));
            }
        }
        let name = Arc::clone(&self.topics.get(id).name);
        let (shard, revision) = (self.topics.get(id).shard, self.topics.revision(id));
        if shard == NOWHERE {
            self.found(id);
        } else if shard == self.shard && self.relay.is_some() && self.stands(id, revision, now, sink).is_err()
        {
            let room = self.classes.room(topic).as_ref().into();
            self.leave_room(&room, self.shard, now, sink);
        }
        let id = self.topics.intern(namespace, topic);
        let (shard, revision) = (self.topics.get(id).shard, self.topics.revision(id));
        let relayed = match &self.relay {
            Some(_) if shard == self.shard => self.relayed_slot(&self.classes.room(topic)),
            _ => None,
        };
        if start != Start::Live || shard != self.shard || relayed.is_some() {
            // Until the hub confirms the start, live records bypass the subscription: some may arrive through
            // interest that is about to end, and later ones would then be missing.
            let key = CursorKey { pattern: None, namespace, topic: Arc::clone(&name) };
            if !self.cursors.set(conn.index, key, None) {
                sink.close(conn.index, CloseReason::TooManyCursors);
            }
        }
        if adds {
            let protocol = self.count_name(conn, name.len(), sink);
            let client = &mut self.clients[conn.index as usize];
            client.topics.insert(id);
            client.shard_topics += u32::from(namespace == Namespace::Shard);
            self.topics.subscribe(id, conn.index);
            self.count_subscription(id, protocol, true);
        }
        self.next_id = self.next_id.wrapping_add(1);
        let (topic, home, left) = (name, shard, None);
        let attach = Attach {
            ticket,
            conn: conn.index,
            namespace,
            topic,
            start,
            adds,
            id: self.next_id,
            home,
            revision,
            left,
        };
        if shard != self.shard {
            self.await_attached(id, &attach);
            if shard == NOWHERE {
                self.miss_attach(id, attach, now, sink);
                return Outcome::Later;
            }
            sink.send(shard, Msg::Attach(Box::new(attach)));
            return Outcome::Later;
        }
        if let Some(slot) = relayed {
            return match self.attach_relayed(slot, &attach, self.shard, now, sink) {
                Some(attached) => {
                    self.confirm(conn, &attach, &attached);
                    Outcome::Now(attached)
                }
                None => {
                    self.await_attached(id, &attach);
                    Outcome::Later
                }
            };
        }
        let recall = |hub, room: &[u8]| sink.recall(hub, room);
        let known = match self.refuses_start(&attach, sink) {
            Some(refused) => Err(refused),
            None => self.rooms.attach(&attach, self.shard, now, recall),
        };
        let attached = match known {
            Ok((attached, room)) => {
                self.topics.get_mut(id).room = room;
                match attached {
                    Known::Here(attached) => Ok(attached),
                    Known::InLog(ask) => {
                        self.await_attached(id, &attach);
                        sink.read_log(ask);
                        return Outcome::Later;
                    }
                }
            }
            Err(refused) => Err(refused),
        };
        self.confirm(conn, &attach, &attached);
        Outcome::Now(attached)
    }

    /// Subscribes a connection to a topic after a position that it has already received, like
    /// [`Broker::subscribe`]. Records that no longer exist are reported as a gap. If the room's epoch ended,
    /// the current epoch is read from its first record. If the start is known now, [`Broker::drained`] begins
    /// to read.
    pub fn subscribe_on(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        topic: &[u8],
        after: Position,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<Attached, ErrorCode>> {
        let namespace = Namespace::Global;
        let key = CursorKey { pattern: None, namespace, topic: topic.into() };
        if !self.cursors.set(conn.index, key, None) {
            sink.close(conn.index, CloseReason::TooManyCursors);
        }
        self.cursors.goes_on(conn.index, Key(None, namespace, topic), after);
        // The hub need not look up the records that the cursor will read.
        let wish = Wish { topic, namespace, start: Start::Last(0) };
        let outcome = self.resume(ticket, conn, wish, now, sink);
        if matches!(outcome, Outcome::Now(Err(_))) {
            self.cursors.remove(conn.index, Key(None, namespace, topic));
        }
        outcome
    }

    pub(super) fn await_attached(&mut self, id: TopicId, attach: &Attach) {
        let attaching = self.attaching.entry((attach.conn, id));
        let attaching = attaching.or_insert(Attaching { latest: attach.id, adding: None });
        attaching.latest = attach.id;
        attaching.adding = attaching.adding.or(attach.adds.then_some(attach.id));
    }

    /// Removes a subscription; returns whether it existed.
    pub fn unsubscribe(
        &mut self,
        conn: ConnKey,
        namespace: Namespace,
        topic: &[u8],
        now: Now,
        sink: &mut impl Sink,
    ) -> bool {
        let Some(id) = self.topics.find(namespace, topic) else { return false };
        let client = &mut self.clients[conn.index as usize];
        if !client.topics.remove(id) {
            return false;
        }
        client.shard_topics -= u32::from(namespace == Namespace::Shard);
        self.uncount_name(conn, topic.len());
        self.cursors.remove(conn.index, Key(None, namespace, topic));
        let protocol = self.clients[conn.index as usize].protocol;
        self.drop_subscription((conn.index, protocol), id, now, sink);
        true
    }

    /// Subscribes a connection to a pattern. [`Outcome::Later`] promises one [`Answer::PatternHeld`].
    pub fn subscribe_pattern(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        pattern: &[u8],
        sink: &mut impl Sink,
    ) -> Outcome<Result<(), ErrorCode>> {
        self.hold_pattern(ticket, conn, pattern, true, sink)
    }

    /// As `subscribe_pattern`, for a pattern that the connection's session had before: it was within the
    /// limits then, and patterns that others added meanwhile do not count against it.
    pub fn resume_pattern(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        pattern: &[u8],
        sink: &mut impl Sink,
    ) -> Outcome<Result<(), ErrorCode>> {
        self.hold_pattern(ticket, conn, pattern, false, sink)
    }

    fn hold_pattern(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        pattern: &[u8],
        is_new: bool,
        sink: &mut impl Sink,
    ) -> Outcome<Result<(), ErrorCode>> {
        if pattern_len(pattern) as u64 > self.limits.pattern_bytes_max {
            return Outcome::Now(Err(ErrorCode::PatternLength));
        }
        let own = self.clients[conn.index as usize].patterns.as_ref();
        let held = self.patterns.find(pattern);
        if let Some(id) = held
            && own.is_some_and(|own| own.contains(id))
        {
            return Outcome::Now(Ok(()));
        }
        let is_limited = self.own_client != Some(conn.index);
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
        self.count_name(conn, source.len(), sink);
        self.clients[conn.index as usize].patterns.get_or_insert_default().insert(id);
        if self.tell_added(ticket, conn, id, &source, sink) {
            self.patterns.get_mut(id).subs.insert(conn.index);
            self.cursors.hubs.changed(conn.index);
            return Outcome::Now(Ok(()));
        }
        self.holding.insert((conn.index, id), self.next_id);
        Outcome::Later
    }

    /// Whether the search cost with this pattern stays within `patterns_search_max`; always true for a
    /// pattern without a search.
    fn has_search_for(&self, pattern: &[u8]) -> bool {
        let Matcher::Glob(glob) = Matcher::of_pattern(pattern) else { return true };
        let search = glob.search();
        search == 0 || (self.patterns.search() + search) as u64 <= self.limits.patterns_search_max
    }

    /// A pattern or group gains a subscriber on this shard: notifies all other shards and nodes. Returns
    /// whether no response is needed; otherwise [`Answer::PatternHeld`] follows, under the current `next_id`.
    pub(super) fn tell_added(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        id: u32,
        source: &Arc<[u8]>,
        sink: &mut impl Sink,
    ) -> bool {
        self.next_id = self.next_id.wrapping_add(1);
        let mut left = self.shards - 1;
        if self.relay.is_some() && self.shard == ShardId(0) {
            left += u16::from(!self.pattern_changed(source, Some((self.shard, self.next_id)), sink));
        }
        if left == 0 {
            return true;
        }
        self.waiting.insert(self.next_id, Waiting { asker: ticket.asker, conn, pattern: id, left });
        for shard in (0..self.shards).map(ShardId).filter(|&s| s != self.shard) {
            sink.send(shard, Msg::Pattern(self.shard, Arc::clone(source), true, Some(self.next_id)));
        }
        false
    }

    /// Removes a pattern subscription; returns whether it existed.
    pub fn unsubscribe_pattern(&mut self, conn: ConnKey, pattern: &[u8], sink: &mut impl Sink) -> bool {
        let Some(id) = self.patterns.find(pattern) else { return false };
        let client = &mut self.clients[conn.index as usize];
        let Some(patterns) = &mut client.patterns else { return false };
        if !patterns.remove(id) {
            return false;
        }
        if patterns.is_empty() {
            client.patterns = None;
        }
        self.uncount_name(conn, pattern.len());
        self.cursors.remove_pattern(conn.index, id);
        self.drop_pattern(conn.index, id, sink);
        true
    }

    /// Numbers of a connection's subscriptions: topics, patterns, shard channels.
    #[must_use]
    pub fn counts(&self, conn: ConnKey) -> (usize, usize, usize) {
        let client = &self.clients[conn.index as usize];
        let shard = client.shard_topics as usize;
        (client.topics.len() - shard, client.patterns.as_ref().map_or(0, |p| p.len()), shard)
    }

    #[must_use]
    pub fn topics_of(&self, conn: ConnKey, namespace: Namespace) -> Vec<Arc<[u8]>> {
        let ids = self.clients[conn.index as usize].topics.as_slice();
        let topics = ids.iter().map(|&id| self.topics.get(id));
        topics.filter(|t| t.namespace == namespace).map(|t| Arc::clone(&t.name)).collect()
    }

    #[must_use]
    pub fn patterns_of(&self, conn: ConnKey) -> Vec<Arc<[u8]>> {
        let ids = self.clients[conn.index as usize].patterns.iter().flat_map(|p| p.as_slice());
        ids.map(|&id| Arc::clone(&self.patterns.get(id).source)).collect()
    }

    /// Whether a client may add a subscription to a name of `bytes` bytes. `is_kept`: others subscribe to the
    /// name, or it is counted elsewhere, so that only the client's own copy is added. `is_new`: no session
    /// resumes it.
    pub(super) fn has_bytes_for(
        &self,
        conn: ConnKey,
        bytes: usize,
        (is_kept, is_new): (bool, bool),
        sink: &impl Sink,
    ) -> bool {
        if self.own_client == Some(conn.index) {
            return true;
        }
        let bytes = bytes as u64;
        let own = u64::from(self.clients[conn.index as usize].name_bytes);
        if is_new && own + bytes > self.limits.subscription_bytes_per_client_max {
            return false;
        }
        let times = if is_new { 1 } else { RESUMED_TIMES };
        let shard_max = self.limits.subscription_bytes_shard_max.saturating_mul(times);
        let copies = u64::from(!is_kept) + u64::from(keeps_names(self.protocol_of(conn, sink)));
        copies == 0 || self.subscription_bytes() + copies * bytes <= shard_max
    }

    /// Bytes of names of subscriptions: of each topic once, and of all names that clients store themselves.
    #[must_use]
    pub fn subscription_bytes(&self) -> u64 {
        self.topics.subscribed_bytes() + self.kept_name_bytes
    }

    /// A client gains a subscription whose name has `bytes` bytes; returns the client's protocol.
    pub(super) fn count_name(&mut self, conn: ConnKey, bytes: usize, sink: &impl Sink) -> Option<Protocol> {
        let protocol = self.protocol_of(conn, sink);
        let client = &mut self.clients[conn.index as usize];
        client.protocol = protocol;
        client.name_bytes += bytes as u32;
        if client.keeps_names() {
            self.kept_name_bytes += bytes as u64;
        }
        protocol
    }

    /// The protocol of a client: unchanged while any of its names are counted.
    fn protocol_of(&self, conn: ConnKey, sink: &impl Sink) -> Option<Protocol> {
        let client = &self.clients[conn.index as usize];
        if client.name_bytes > 0 { client.protocol } else { sink.protocol(conn.index) }
    }

    /// A client loses a subscription whose name has `bytes` bytes.
    pub(super) fn uncount_name(&mut self, conn: ConnKey, bytes: usize) {
        let client = &mut self.clients[conn.index as usize];
        client.name_bytes -= bytes as u32;
        if client.keeps_names() {
            self.kept_name_bytes -= bytes as u64;
        }
    }

    pub(super) fn is_full(&self, conn: ConnKey) -> bool {
        let (topics, patterns, shard) = self.counts(conn);
        let groups = self.groups.of(conn.index);
        self.own_client != Some(conn.index)
            && (topics + patterns + shard + groups) as u64 >= self.limits.subscriptions_per_client_max
    }

    fn drop_subscription(
        &mut self,
        (conn, protocol): (u32, Option<Protocol>),
        id: TopicId,
        now: Now,
        sink: &mut impl Sink,
    ) {
        self.count_subscription(id, protocol, false);
        let topic = self.topics.get(id);
        let (namespace, name, counted) = (topic.namespace, Arc::clone(&topic.name), self.counted_at(id));
        self.topics.unsubscribe(id, conn);
        if let Some(adding) = self.attaching.remove(&(conn, id)).and_then(|a| a.adding) {
            // The hub may still refuse it; if it does not, the interest is removed then.
            self.cancelled.insert(adding);
        } else if let Some((shard, revision)) = counted {
            self.take_back(shard, namespace, name, revision, now, sink);
        }
    }

    /// Notifies the hub that a subscription has ended.
    pub(super) fn take_back(
        &mut self,
        shard: ShardId,
        namespace: Namespace,
        topic: Arc<[u8]>,
        revision: u64,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if shard == self.shard {
            self.detach_here(namespace, &topic, (self.shard, revision), now, sink);
        } else {
            sink.send(shard, Msg::Detach(self.shard, namespace, topic, revision));
        }
    }

    fn drop_pattern(&mut self, conn: u32, id: u32, sink: &mut impl Sink) {
        self.holding.remove(&(conn, id));
        let pattern = self.patterns.get_mut(id);
        pattern.subs.remove(conn);
        let source = Arc::clone(&pattern.source);
        self.patterns.release(id, self.shard, self.shards);
        self.tell_dropped(&source, sink);
    }

    /// A pattern or group loses a subscriber on this shard: notifies all other shards and nodes.
    pub(super) fn tell_dropped(&mut self, source: &Arc<[u8]>, sink: &mut impl Sink) {
        if self.relay.is_some() && self.shard == ShardId(0) {
            self.pattern_changed(source, None, sink);
        }
        for shard in (0..self.shards).map(ShardId).filter(|&s| s != self.shard) {
            sink.send(shard, Msg::Pattern(self.shard, Arc::clone(source), false, None));
        }
    }

    /// The response to an attach that went to another shard, or that needed a read of the log.
    pub(super) fn attached(
        &mut self,
        attach: Attach,
        attached: Result<Attached, ErrorCode>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let Asker::Client { conn, .. } = attach.ticket.asker else { return };
        if attached == Err(ErrorCode::HubDiffers) && self.relay.is_some() {
            return self.attach_again(attach, now, sink);
        }
        let is_cancelled = self.cancelled.remove(&attach.id);
        if attach.left.is_some() && attached.is_err() && !is_cancelled {
            return self.follow_later(attach, now);
        }
        if is_cancelled {
            if attached.is_ok() && attach.adds {
                let topic = Arc::clone(&attach.topic);
                self.take_back(attach.home, attach.namespace, topic, attach.revision, now, sink);
            }
        } else if let Some(id) = self.topics.find(attach.namespace, &attach.topic)
            && let Some(attaching) = self.attaching.get_mut(&(attach.conn, id))
        {
            let is_latest = attaching.latest == attach.id;
            if attaching.adding == Some(attach.id) {
                attaching.adding = None;
            }
            if is_latest {
                self.attaching.remove(&(attach.conn, id));
            }
            if let (Some(left), Ok(attached)) = (attach.left, attached) {
                self.tell_followed(&attach, left, attached, sink);
            }
            if is_latest || attached.is_err() {
                self.confirm(conn, &attach, &attached);
            }
        }
        if attach.left.is_none() {
            sink.answer(attach.ticket.asker, Answer::Attached(attached));
        }
        if self.clients[conn.index as usize].generation == conn.generation {
            self.drained(conn, now, sink);
        }
    }

    /// Applies the hub's response to a subscription on the edge.
    fn confirm(&mut self, conn: ConnKey, attach: &Attach, attached: &Result<Attached, ErrorCode>) {
        let key = Key(None, attach.namespace, &attach.topic);
        match attached {
            Ok(attached) => {
                let life = attached.position.epoch;
                let goes_on = self.cursors.take_goes_on(conn.index, key, life);
                let next = attached.replay_from.map(|seq| Position { epoch: life, seq });
                match goes_on.or(next) {
                    Some(next) => _ = self.cursors.place(conn.index, key, Some(next)),
                    None => self.cursors.remove(conn.index, key),
                }
            }
            Err(_) => {
                self.cursors.remove(conn.index, key);
                if attach.adds
                    && let Some(id) = self.topics.find(attach.namespace, &attach.topic)
                {
                    // The hub counted nothing, so no interest is removed there.
                    let client = &mut self.clients[conn.index as usize];
                    client.topics.remove(id);
                    client.shard_topics -= u32::from(attach.namespace == Namespace::Shard);
                    let protocol = client.protocol;
                    self.uncount_name(conn, attach.topic.len());
                    self.count_subscription(id, protocol, false);
                    self.topics.unsubscribe(id, conn.index);
                }
            }
        }
    }
}
