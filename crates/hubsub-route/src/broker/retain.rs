//! Retained messages: how the leader of a topic's room handles a retained record, and how entries are read
//! ([`crate::rows`]).
//!
//! The leader commits and delivers the record, then writes the entry of its topic like any publish: entries
//! are written in the room's order. The publisher is answered when the entry is committed. Until then the
//! topic is *retaining*: a reader of entries first waits for those in flight at the time of its request
//! ([`Broker::settle`], or a count that waits for them).
//!
//! Invariant: a record that was committed before a reader's subscription began is in the entry that it reads,
//! or a later record is.

use super::{Broker, Draft, Publisher};
use crate::hubs::Hub;
use crate::record::Record;
use crate::relay::{AskId, NodeMessage};
use crate::rooms::RoomHandle;
use crate::rows::{self, Kept, RowPage, Rows};
use crate::{Answer, Asker, Msg, Now, Outcome, Published, Sink, Ticket};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_message::PATTERNS;
use hubsub_types::class::ClassIndex;
use hubsub_types::names::{Filter, topic_fits};
use hubsub_types::{ErrorCode, HubId, NodeId, ShardId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries that one sweep examines, in all hubs of a shard together.
const SWEEP_ROWS: usize = 4_000;

/// Entries that one sweep deletes at most.
const ENDED_MAX: usize = 200;

/// Bytes of a page of entries, at most.
const PAGE_BYTES_MAX: usize = 1 << 20;

/// Entries that are being written, and the requests that wait for them.
#[derive(Default)]
pub(super) struct Retaining {
    /// The number of the last entry that this shard wrote.
    last: u64,
    /// Entries in flight, by number.
    under_way: BTreeMap<u64, UnderWay>,
    /// The number of entries in flight per topic.
    topics: HashMap<Arc<[u8]>, u32, RandomState>,
    /// Requests that wait for all entries up to a number.
    waits: Vec<(u64, Waits)>,
    /// Flush barriers of this shard in progress, by number.
    settling: BTreeMap<u32, Settling>,
    last_settling: u32,
    /// Flush requests of this shard to nodes, with the barrier to which each belongs.
    asked: BTreeMap<AskId, (NodeId, u32)>,
}

/// A record whose entry is in flight.
struct UnderWay {
    ticket: Ticket,
    published: Published,
    topic: Arc<[u8]>,
}

/// A request that waits for entries.
enum Waits {
    /// A count of subscribers, which is returned then.
    Count(Ticket, Result<u64, ErrorCode>),
    /// A repeat of a record whose entry may be in flight.
    Repeat(Ticket, Published),
    /// A flush barrier of a shard.
    All(ShardId, u32),
}

/// A flush barrier: waits until all entries that were in flight are written.
struct Settling {
    /// Responses that are still missing.
    left: usize,
    then: Settled,
}

/// The requester of a flush barrier.
enum Settled {
    Asker(Asker),
    /// A shard, for which this one asks the other nodes.
    Shard(ShardId, u32),
    Node(NodeId, AskId),
}

/// A request for a page of entries.
#[derive(Clone, Debug)]
pub struct RowsAsk {
    pub ticket: Ticket,
    /// The class that stores entries.
    pub class: ClassIndex,
    /// Index of the hub in that class.
    pub hub: u16,
    /// MQTT filter for topics.
    pub filter: Box<[u8]>,
    /// Only topics after this one, in the order of pages.
    pub after: Option<Box<[u8]>>,
    /// Limit of the page, in bytes.
    pub bytes_max: u32,
}

impl Broker {
    /// The class that stores retained messages; none: this node retains nothing.
    #[must_use]
    pub fn rows_class(&self) -> Option<ClassIndex> {
        self.classes.index_of(rows::CLASS).filter(|&class| rows::is_class(self.classes.get(class)))
    }

    /// The number of hubs that store entries; a wildcard filter is sent to each.
    #[must_use]
    pub fn row_hubs(&self) -> u16 {
        self.rows_class().map_or(0, |class| self.topics.hubs_of(class))
    }

    /// Whether there are no retained messages, so that no read is needed.
    #[must_use]
    pub fn has_no_rows(&self) -> bool {
        self.relay.is_none() && self.rooms.row_totals().is_none()
    }

    /// The index of the hub that stores the entry of a topic.
    #[must_use]
    pub fn row_hub(&self, topic: &[u8]) -> u16 {
        self.topics.place(&rows::room_of(topic)).1
    }

    /// Whether entries that match a filter cannot be read now, because the leader of their hub is
    /// unreachable.
    #[must_use]
    pub fn rows_are_away(&self, filter: &[u8]) -> bool {
        let totals = self.rooms.row_totals();
        let is_wild = filter.iter().any(|byte| matches!(byte, b'+' | b'#'));
        !totals.reaches_all()
            && self.rows_class().is_some()
            && (is_wild || totals.is_away(self.row_hub(filter)))
    }

    /// Whether to log that entries are unreachable: once, until all can be read again.
    #[must_use]
    pub fn tells_rows_are_away(&self) -> bool {
        self.rooms.row_totals().tells_once()
    }

    /// Whether the leader of a hub of entries is unreachable.
    #[must_use]
    pub fn row_hub_is_away(&self, hub: u16) -> bool {
        self.rooms.row_totals().is_away(hub)
    }

    /// Whether a topic is within `topic_bytes_max`.
    pub(super) fn topic_fits(&self, topic: &[u8]) -> bool {
        topic_fits(topic, self.limits.topic_bytes_max)
    }

    /// Whether the record may replace its topic's entry: false if the entry is newer.
    ///
    /// # Errors
    /// Too many entries, or they are too long; or the session of the record has another owner by now.
    pub(super) fn may_keep(&mut self, record: &Record, room: RoomHandle) -> Result<bool, ErrorCode> {
        if record.topic().starts_with(rows::SESSIONS)
            && let Some(slot) = self.rooms.slot_of_room(room)
            && !self.rooms.hubs.get_mut(slot).rows.owners.may_own(record)
        {
            return Err(ErrorCode::NotAllowed);
        }
        let Some(topic) = rows::topic_of(record.topic()) else { return Ok(true) };
        let Some(slot) = self.rooms.slot_of_room(room) else { return Ok(true) };
        let before = self.rooms.hubs.get(slot).rows.get(topic);
        if let (Some(before), Some(kept)) = (before.and_then(|row| Kept::of(row)), Kept::of(record))
            && before.position.epoch == kept.position.epoch
            && before.position.seq > kept.position.seq
        {
            return Ok(false);
        }
        let (messages, bytes) = self.rooms.rows_of_node();
        let is_more = before.is_none() && messages >= self.limits.retained_messages_max;
        let longer = (record.weight() as u64).saturating_sub(before.map_or(0, |row| row.weight() as u64));
        let is_longer = longer > 0 && bytes + longer > self.limits.retained_bytes_max;
        let is_refused = !record.payload().is_empty() && (is_more || is_longer);
        if is_refused { Err(ErrorCode::TooManyRetained) } else { Ok(true) }
    }

    /// A retained record is committed: writes its entry, then answers its publisher.
    pub(super) fn retain(
        &mut self,
        ticket: Ticket,
        published: Published,
        record: &Record,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if self.rows_class().is_none() {
            return self.tell_published(ticket, Ok(published), sink);
        }
        let topic: Arc<[u8]> = record.topic().into();
        self.retaining.last += 1;
        let number = self.retaining.last;
        *self.retaining.topics.entry(Arc::clone(&topic)).or_default() += 1;
        self.retaining.under_way.insert(number, UnderWay { ticket, published, topic });
        self.rooms.row_totals().under_way.fetch_add(1, Ordering::SeqCst);
        let draft = Draft {
            namespace: crate::Namespace::Global,
            topic: &rows::room_of(record.topic()),
            payload: record.payload(),
            headers: Some(rows::headers_of(record)),
            publisher: Publisher::Told(&record.publisher),
            producer: None,
            qos: record.qos,
            retain: false,
        };
        let ticket = Ticket { shard: self.shard, asker: Asker::Row(number) };
        if let Outcome::Now(outcome) = self.publish(ticket, draft, now, sink) {
            self.row_written(number, outcome, sink);
        }
    }

    /// The outcome of writing an entry.
    pub(super) fn row_written(
        &mut self,
        number: u64,
        outcome: Result<Published, ErrorCode>,
        sink: &mut impl Sink,
    ) {
        let Some(UnderWay { ticket, published, topic }) = self.retaining.under_way.remove(&number) else {
            return;
        };
        if let Some(count) = self.retaining.topics.get_mut(&topic) {
            *count -= 1;
            if *count == 0 {
                self.retaining.topics.remove(&topic);
            }
        }
        self.rooms.row_totals().under_way.fetch_sub(1, Ordering::SeqCst);
        self.retained_refused += u64::from(outcome.is_err());
        self.tell_published(ticket, outcome.map(|_| published), sink);
        let first = self.retaining.under_way.keys().next().copied().unwrap_or(u64::MAX);
        let (over, waits) =
            std::mem::take(&mut self.retaining.waits).into_iter().partition(|(n, _)| *n < first);
        self.retaining.waits = waits;
        let over: Vec<(u64, Waits)> = over;
        for (_, waits) in over {
            match waits {
                Waits::Count(ticket, count) => self.tell_counted(ticket, count, sink),
                Waits::Repeat(ticket, published) => self.tell_published(ticket, Ok(published), sink),
                Waits::All(shard, number) => self.tell_settled(shard, number, sink),
            }
        }
    }

    // -- waiting for entries in flight --

    /// Answers a repeat of a record that was just committed.
    pub(super) fn tell_repeat(&mut self, ticket: Ticket, published: Published, sink: &mut impl Sink) {
        if self.retaining.under_way.is_empty() {
            return self.tell_published(ticket, Ok(published), sink);
        }
        self.retaining.waits.push((self.retaining.last, Waits::Repeat(ticket, published)));
    }

    /// Returns the count of subscribers to a topic that is led here: at once, or when the entries of the
    /// topic that are in flight now are written.
    pub(super) fn count_settled(
        &mut self,
        ticket: Ticket,
        topic: &[u8],
        count: Result<u64, ErrorCode>,
    ) -> Outcome<Result<u64, ErrorCode>> {
        if !self.retaining.topics.contains_key(topic) {
            return Outcome::Now(count);
        }
        self.retaining.waits.push((self.retaining.last, Waits::Count(ticket, count)));
        Outcome::Later
    }

    fn tell_counted(&mut self, ticket: Ticket, count: Result<u64, ErrorCode>, sink: &mut impl Sink) {
        match ticket.asker {
            Asker::Node { node, ask, hub } => {
                if let (Some(relay), Ok(count)) = (&mut self.relay, count) {
                    relay.peers.send(node, hub, NodeMessage::Counted { ask, count }, sink);
                }
            }
            _ => self.tell_count(ticket, count, sink),
        }
    }

    /// A flush barrier: answers the asker with [`Answer::Settled`] when all entries that are in flight now,
    /// on all shards of all nodes, are written.
    pub fn settle(&mut self, asker: Asker, sink: &mut impl Sink) {
        let number = self.begin_settling(usize::from(self.shards), Settled::Asker(asker));
        for shard in (0..self.shards).map(ShardId).filter(|&shard| shard != self.shard) {
            sink.send(shard, Msg::Settle(self.shard, number, true));
        }
        self.settle_for(self.shard, number, true, sink);
    }

    fn begin_settling(&mut self, left: usize, then: Settled) -> u32 {
        let retaining = &mut self.retaining;
        retaining.last_settling = retaining.last_settling.wrapping_add(1);
        retaining.settling.insert(retaining.last_settling, Settling { left, then });
        retaining.last_settling
    }

    /// A flush barrier of this shard, requested by a shard. Shard 0 also asks the other nodes, if `nodes` is
    /// set.
    pub(super) fn settle_for(&mut self, from: ShardId, number: u32, nodes: bool, sink: &mut impl Sink) {
        let reached: Vec<NodeId> = match &self.relay {
            Some(relay) if nodes && self.shard == ShardId(0) => relay.peers.reached(PATTERNS).collect(),
            _ => Vec::new(),
        };
        let (from, number) = if reached.is_empty() {
            (from, number)
        } else {
            (self.shard, self.begin_settling(1 + reached.len(), Settled::Shard(from, number)))
        };
        for node in reached {
            let shard = self.shard;
            let Some(relay) = &mut self.relay else { break };
            let ask = relay.next_ask(shard);
            self.retaining.asked.insert(ask, (node, number));
            relay.peers.send(node, PATTERNS, NodeMessage::SettleAsk { ask }, sink);
        }
        if self.retaining.under_way.is_empty() {
            return self.tell_settled(from, number, sink);
        }
        self.retaining.waits.push((self.retaining.last, Waits::All(from, number)));
    }

    /// Another node requests a flush barrier of all shards of this node.
    pub(super) fn settle_for_node(&mut self, node: NodeId, ask: AskId, sink: &mut impl Sink) {
        let number = self.begin_settling(usize::from(self.shards), Settled::Node(node, ask));
        for shard in (0..self.shards).map(ShardId).filter(|&shard| shard != self.shard) {
            sink.send(shard, Msg::Settle(self.shard, number, false));
        }
        self.settle_for(self.shard, number, false, sink);
    }

    fn tell_settled(&mut self, to: ShardId, number: u32, sink: &mut impl Sink) {
        if to == self.shard {
            self.settled(number, sink);
        } else {
            sink.send(to, Msg::Settled(number));
        }
    }

    /// One of the requested flush barriers is complete.
    pub(super) fn settled(&mut self, number: u32, sink: &mut impl Sink) {
        let Some(settling) = self.retaining.settling.get_mut(&number) else { return };
        settling.left -= 1;
        if settling.left > 0 {
            return;
        }
        let Some(Settling { then, .. }) = self.retaining.settling.remove(&number) else { return };
        match then {
            Settled::Asker(asker) => sink.answer(asker, Answer::Settled),
            Settled::Shard(shard, number) => self.tell_settled(shard, number, sink),
            Settled::Node(node, ask) => {
                if let Some(relay) = &mut self.relay {
                    relay.peers.send(node, PATTERNS, NodeMessage::Settled { ask }, sink);
                }
            }
        }
    }

    /// A node's flush barrier is complete.
    pub(super) fn node_settled(&mut self, node: NodeId, ask: AskId, sink: &mut impl Sink) {
        if self.retaining.asked.get(&ask).is_some_and(|asked| asked.0 == node)
            && let Some((_, number)) = self.retaining.asked.remove(&ask)
        {
            self.settled(number, sink);
        }
    }

    /// A node's responses will not arrive: other nodes lead its hubs now, and publishers there are not
    /// answered.
    pub(super) fn settled_without(&mut self, node: NodeId, sink: &mut impl Sink) {
        let asked = self.retaining.asked.iter().filter(|(_, asked)| asked.0 == node);
        let asks: Vec<AskId> = asked.map(|(&ask, _)| ask).collect();
        asks.into_iter().for_each(|ask| self.node_settled(node, ask, sink));
    }

    // -- reading entries --

    /// A page of the entries of a hub. [`Outcome::Later`] promises one [`Answer::Rows`].
    pub fn rows(
        &mut self,
        ask: RowsAsk,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<RowPage, ErrorCode>> {
        let home = self.topics.shard_of_hub(ask.class, ask.hub);
        if home == self.shard {
            return self.rows_here(ask, now, sink);
        }
        if usize::from(home.0) >= usize::from(self.shards) {
            return Outcome::Now(Err(ErrorCode::HubClosed));
        }
        sink.send(home, Msg::Rows(Box::new(ask)));
        Outcome::Later
    }

    fn rows_here(
        &mut self,
        ask: RowsAsk,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<RowPage, ErrorCode>> {
        let Some(slot) = self.rooms.hubs.find(ask.class, ask.hub) else {
            return Outcome::Now(Err(ErrorCode::HubClosed));
        };
        if self.rooms.hubs.get(slot).is_relayed {
            let asked = self.ask_rows(slot, ask, now, sink);
            return asked.map_or_else(|code| Outcome::Now(Err(code)), |()| Outcome::Later);
        }
        Outcome::Now(self.rows_led(slot, &ask.filter, ask.after.as_deref(), ask.bytes_max))
    }

    /// A page of the entries of a hub that is led here.
    pub(super) fn rows_led(
        &self,
        slot: u16,
        filter: &[u8],
        after: Option<&[u8]>,
        bytes_max: u32,
    ) -> Result<RowPage, ErrorCode> {
        let hub = self.rooms.hubs.get(slot);
        let class = self.classes.get(hub.class);
        if !rows::is_class(class) || (class.durability.is_logged() && hub.log.is_none()) {
            return Err(ErrorCode::HubClosed);
        }
        let filter = Filter::new(filter).map_err(|_| ErrorCode::TopicLength)?;
        Ok(hub.rows.page(&filter, after, (bytes_max as usize).clamp(1, PAGE_BYTES_MAX)))
    }

    /// Handles another shard's request for a page.
    pub(super) fn rows_for(&mut self, ask: RowsAsk, now: Now, sink: &mut impl Sink) {
        let ticket = ask.ticket;
        if let Outcome::Now(page) = self.rows_here(ask, now, sink) {
            self.tell_rows(ticket, page, sink);
        }
    }

    pub(super) fn tell_rows(&self, to: Ticket, page: Result<RowPage, ErrorCode>, sink: &mut impl Sink) {
        if to.shard == self.shard {
            sink.answer(to.asker, Answer::Rows(page));
        } else {
            sink.send(to.shard, Msg::RowsCame(Box::new((to, page))));
        }
    }

    // -- deletion of entries --

    /// A record without a payload ends a room of a class that keeps the latest record. A log does that
    /// itself.
    pub(super) fn end_row(&mut self, room: RoomHandle, record: &Record) {
        let Some(slot) = self.rooms.slot_of_room(room).filter(|_| record.payload().is_empty()) else {
            return;
        };
        let hub = self.rooms.hubs.get(slot);
        if self.classes.get(hub.class).keeps_latest && hub.log.is_none() {
            // A room in use is not deleted yet.
            let _ = self.rooms.delete(record.topic());
        }
    }

    /// Deletes expired entries, as `is_over` decides. Skips hubs with uncommitted records.
    pub fn sweep_rows(&mut self, now: Now, is_over: impl Fn(&Record) -> bool, sink: &mut impl Sink) {
        let Some(class) = self.rows_class() else { return };
        let has_rows = |hub: &Hub| hub.class == class && !hub.is_relayed && !hub.rows.is_empty();
        let slots = (0u16..).zip(self.rooms.hubs.iter());
        let slots: Vec<u16> = slots.filter(|(_, hub)| has_rows(hub)).map(|(slot, _)| slot).collect();
        let share = SWEEP_ROWS.div_ceil(slots.len().max(1));
        let mut over = Vec::new();
        for slot in slots {
            let hub = self.rooms.hubs.get_mut(slot);
            let waits = hub.log.as_ref().is_some_and(|log| log.pending() > 0);
            if !waits {
                over.extend(hub.rows.sweep(share, &is_over));
            }
        }
        for topic in over.into_iter().take(ENDED_MAX) {
            let draft = Draft {
                namespace: crate::Namespace::Global,
                topic: &rows::room_of(&topic),
                payload: b"",
                headers: None,
                publisher: Publisher::Told(""),
                producer: None,
                qos: hubsub_types::Qos::ExactlyOnce,
                retain: false,
            };
            // The outcome is ignored: the next sweep examines the entry again.
            let ticket = Ticket { shard: self.shard, asker: Asker::Row(0) };
            let _ = self.publish(ticket, draft, now, sink);
        }
    }

    /// Rooms of entries, in hubs that this shard leads, of sessions whose owner process is gone: about `max`,
    /// an equal share per hub, others in each call.
    pub fn orphans(&mut self, mut is_gone: impl FnMut(u64) -> bool, max: usize) -> Vec<Box<[u8]>> {
        let Some(class) = self.rows_class() else { return Vec::new() };
        let is_led = |hub: &Hub| hub.class == class && !hub.is_relayed && hub.log.is_some();
        let slots = (0u16..).zip(self.rooms.hubs.iter());
        let led: Vec<u16> = slots.filter(|(_, hub)| is_led(hub)).map(|(slot, _)| slot).collect();
        let mut found = Vec::new();
        for &slot in &led {
            found.extend(self.rooms.hubs.get_mut(slot).rows.owners.orphans(&mut is_gone, max, led.len()));
        }
        found
    }

    /// Number of entries of this shard, and their memory in bytes.
    #[must_use]
    pub fn rows_size(&self) -> (u64, u64) {
        self.rooms
            .hubs
            .iter()
            .fold((0, 0), |sum, hub| (sum.0 + hub.rows.len() as u64, sum.1 + hub.rows.bytes()))
    }

    /// Sets the entries of a hub whose log was opened.
    pub fn set_rows(&mut self, hub: HubId, rows: Rows) {
        self.rooms.set_rows(hub, rows);
    }
}
