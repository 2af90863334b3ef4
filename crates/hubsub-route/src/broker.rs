//! One shard's broker: takes events, keeps the tables, gives actions.
//!
//! The way of a publish reads top to bottom: `publish` on the edge, `lead` on
//! the hub's shard, `commit`, `fan_out` on every shard with interest. The ways
//! of a subscription and of a lagging subscriber follow it.
//!
//! Invariants: a connection's subscriptions stand both here (`clients`) and at
//! the topic or pattern; interest that a hub counts equals the subscribers of
//! that shard, once messages under way have arrived.

use crate::counts::ShardSet;
use crate::cursors::{CursorKey, Cursors, Range, Read};
use crate::idset::IdSet;
use crate::patterns::Patterns;
use crate::record::{Headers, Namespace, Record, RecordView};
use crate::rooms::{RoomHandle, Rooms};
use crate::topics::{TopicId, Topics};
use crate::topk::TopK;
use crate::{
    Answer, Asker, Attach, Attached, CloseReason, Delivery, Msg, Now, Outcome, Published, Sink, Start,
    Ticket, Via,
};
use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use hubsub_types::{Class, ClassTable, ConnKey, ErrorCode, Limits, OnSlow, Position, Seq, ShardId};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Bytes that a cursor reads at once.
const READ_BYTES: usize = 64 * 1024;

/// Rooms that one `tick` looks at.
const SWEEP_ROOMS: usize = 2_000;

/// What a broker is made with.
pub struct Settings {
    /// Which shard it is.
    pub shard: ShardId,
    /// Of how many.
    pub shards: u16,
    /// The room classes.
    pub classes: Arc<ClassTable>,
    /// The limits.
    pub limits: Limits,
    /// The next epoch, shared by the node's shards.
    pub epochs: Arc<AtomicU64>,
}

/// A publish that has no position yet.
pub struct Draft<'a> {
    /// With the topic, where to.
    pub namespace: Namespace,
    /// See `namespace`.
    pub topic: &'a [u8],
    /// What.
    pub payload: &'a [u8],
    /// Beside it.
    pub headers: Headers,
    /// Who.
    pub publisher: Publisher<'a>,
}

/// What a connection wants to subscribe to.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// With the namespace, what.
    pub topic: &'a [u8],
    /// See `topic`.
    pub namespace: Namespace,
    /// Where it begins.
    pub start: Start,
}

/// Who publishes; its name is asked for only when the record is kept or travels.
#[derive(Clone, Copy, Debug)]
pub enum Publisher<'a> {
    /// By name.
    Name(&'a str),
    /// A connection of this shard.
    Conn(u32),
}

/// What one connection is subscribed to.
#[derive(Debug, Default)]
struct Client {
    generation: u32,
    /// Subscriptions in `Namespace::Shard`, which are counted apart.
    shard_topics: u32,
    topics: IdSet,
    patterns: Option<Box<IdSet>>,
}

/// A pattern subscription that other shards have yet to confirm. Until then
/// records pass it by, as with topics.
struct Waiting {
    asker: Asker,
    conn: ConnKey,
    pattern: u32,
    left: u16,
}

/// Subscriptions that another shard has yet to confirm, of one connection to
/// one topic.
#[derive(Clone, Copy)]
struct Attaching {
    /// The attach that counts: a later one replaces where an earlier one began.
    latest: u32,
    /// The one that adds a subscription, if it is among them.
    adding: Option<u32>,
}

/// See the module.
pub struct Broker {
    shard: ShardId,
    shards: u16,
    limits: Limits,
    classes: Arc<ClassTable>,
    /// The edge's topics and routes.
    pub topics: Topics,
    /// All patterns.
    pub patterns: Patterns,
    /// The rooms whose hub is here.
    pub rooms: Rooms,
    /// Subscriptions that catch up.
    pub cursors: Cursors,
    /// The busiest rooms of this hub.
    pub busiest: TopK,
    clients: Vec<Client>,
    waiting: HashMap<u32, Waiting, RandomState>,
    /// The entry of `waiting` that makes a connection's pattern subscription live.
    holding: HashMap<(u32, u32), u32, RandomState>,
    attaching: HashMap<(u32, TopicId), Attaching, RandomState>,
    /// Attaches under way whose subscription has ended meanwhile.
    cancelled: HashSet<u32, RandomState>,
    /// The next id of `waiting` and `attaching`.
    next_id: u32,
    /// Publishes that wait for a shard that is behind.
    stalled: VecDeque<(Ticket, Arc<Record>)>,
    /// Publishes of classes with a commit delay, by due time and arrival.
    delayed: BTreeMap<(u64, u64), (Ticket, Arc<Record>)>,
    delayed_next: u64,
    /// Times a subscription fell back to history, since the start.
    pub catch_ups: u64,
}

/// A record as a publish brought it, or as it came from another shard.
enum Body<'a> {
    Draft(Draft<'a>),
    Record(Arc<Record>),
}

impl Broker {
    /// A broker that knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Broker {
        let Settings { shard, shards, classes, limits, epochs } = settings;
        let routes_max = limits.route_cache_topics_max as usize;
        Broker {
            shard,
            shards,
            topics: Topics::new(Arc::clone(&classes), shards, routes_max),
            patterns: Patterns::new(limits.pattern_cache_topics_max as usize),
            rooms: Rooms::new(Arc::clone(&classes), shards, &limits, epochs),
            cursors: Cursors::default(),
            busiest: TopK::default(),
            classes,
            limits,
            clients: Vec::new(),
            waiting: HashMap::default(),
            holding: HashMap::default(),
            attaching: HashMap::default(),
            cancelled: HashSet::default(),
            next_id: 0,
            stalled: VecDeque::new(),
            delayed: BTreeMap::new(),
            delayed_next: 0,
            catch_ups: 0,
        }
    }

    /// Takes over limits that may change while running.
    pub fn set_limits(&mut self, limits: Limits) {
        self.rooms.set_limits(&limits);
        self.limits = limits;
    }

    /// The room classes.
    #[must_use]
    pub fn classes(&self) -> &ClassTable {
        &self.classes
    }

    // --- a publish ---------------------------------------------------------

    /// A publish from a connection of this shard. [`Outcome::Later`] promises
    /// one [`Answer::Published`] to the ticket's asker.
    pub fn publish(
        &mut self,
        ticket: Ticket,
        draft: Draft<'_>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<Published, ErrorCode>> {
        if draft.topic.len() as u64 > self.limits.topic_bytes_max {
            return Outcome::Now(Err(ErrorCode::TopicLength));
        }
        let id = self.topics.intern(draft.namespace, draft.topic);
        let topic = self.topics.get(id);
        let class = self.classes.get(topic.class);
        if draft.payload.len() as u64 > class.payload_bytes_max {
            return Outcome::Now(Err(ErrorCode::PayloadLength));
        }
        if topic.shard != self.shard {
            let shard = topic.shard;
            let record = own(draft, sink);
            sink.send(shard, Msg::Publish(ticket, record));
            return Outcome::Later;
        }
        if class.commit_delay_ms > 0 || !self.stalled.is_empty() {
            let record = own(draft, sink);
            self.lead(ticket, record, now, sink);
            return Outcome::Later;
        }
        match self.commit(id, Body::Draft(draft), now, sink) {
            Ok(published) => Outcome::Now(published),
            Err(record) => {
                self.stalled.push_back((ticket, record));
                Outcome::Later
            }
        }
    }

    /// A publish whose hub is here and whose answer is due later.
    fn lead(&mut self, ticket: Ticket, record: Arc<Record>, now: Now, sink: &mut impl Sink) {
        let id = self.topics.intern(record.namespace, record.topic());
        let delay_ms = self.classes.get(self.topics.get(id).class).commit_delay_ms;
        if delay_ms > 0 {
            self.delayed_next += 1;
            self.delayed.insert((now.mono_ms + delay_ms, self.delayed_next), (ticket, record));
        } else if self.stalled.is_empty() {
            self.commit_owned(ticket, record, now, sink);
        } else {
            self.stalled.push_back((ticket, record));
        }
    }

    fn commit_owned(&mut self, ticket: Ticket, record: Arc<Record>, now: Now, sink: &mut impl Sink) {
        let id = self.topics.intern(record.namespace, record.topic());
        match self.commit(id, Body::Record(record), now, sink) {
            Ok(published) => self.tell_published(ticket, published, sink),
            Err(record) => self.stalled.push_back((ticket, record)),
        }
    }

    fn tell_published(&self, to: Ticket, published: Result<Published, ErrorCode>, sink: &mut impl Sink) {
        if to.shard == self.shard {
            sink.answer(to.asker, Answer::Published(published));
        } else {
            sink.send(to.shard, Msg::Published(to, published));
        }
    }

    /// Gives the record its position and sends it on its way. Gives it back,
    /// with nothing done, when a shard with interest is too far behind.
    fn commit(
        &mut self,
        id: TopicId,
        body: Body<'_>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Result<Result<Published, ErrorCode>, Arc<Record>> {
        let (namespace, name) = match &body {
            Body::Draft(draft) => (draft.namespace, draft.topic),
            Body::Record(record) => (record.namespace, record.topic()),
        };
        let remembers = self.rooms.remembers(self.topics.get(id).class);
        let room = match self.room_of(id, remembers, now) {
            Ok(room) => room,
            Err(refused) => return Ok(Err(refused)),
        };
        let mut shards = ShardSet::default();
        let on_slow = self.classes.get(self.topics.get(id).class).on_slow;
        let is_room = self.topics.get(id).is_room;
        let mut receivers = room.map_or(0, |r| self.rooms.interest(r, is_room, namespace, name, &mut shards));
        let matched = self.matching(namespace, name);
        for &pattern in matched.iter().flat_map(|m| m.iter()) {
            let counts = &self.patterns.get(pattern).counts;
            counts.shards(&mut shards);
            receivers += counts.total();
        }
        let is_local = shards.remove(self.shard);
        if shards.iter().any(|shard| sink.congested(shard)) {
            return Err(match body {
                Body::Draft(draft) => own(draft, sink),
                Body::Record(record) => record,
            });
        }

        let (position, timestamp_us) = match room {
            Some(room) => self.rooms.next_position(room, now),
            None => (Position::default(), self.rooms.timestamp(now)),
        };
        if let Some(room) = room {
            let rooms = &self.rooms;
            self.busiest.publish(|| Arc::clone(&rooms.get(room).expect("opened above").name));
        }
        let travels = shards != ShardSet::default();
        match body {
            Body::Draft(draft) if !remembers && !travels => {
                if is_local {
                    let Draft { topic, payload, .. } = draft;
                    let record = RecordView { namespace, topic, payload, position, on_slow };
                    self.fan_out(id, &record, matched.as_deref(), sink);
                }
            }
            body => {
                let mut record = match body {
                    Body::Draft(draft) => own(draft, sink),
                    Body::Record(record) => record,
                };
                let fresh = Arc::get_mut(&mut record).expect("nobody else has a record before its commit");
                (fresh.position, fresh.timestamp_us) = (position, timestamp_us);
                if let (Some(room), true) = (room, remembers) {
                    self.rooms.remember(room, Arc::clone(&record));
                }
                for shard in shards.iter() {
                    sink.send(shard, Msg::Deliver(Arc::clone(&record)));
                }
                if is_local {
                    self.fan_out(id, &record.view(on_slow), matched.as_deref(), sink);
                }
            }
        }
        Ok(Ok(Published { receivers, position }))
    }

    /// The room of a topic whose hub is here; made now if its class remembers.
    fn room_of(&mut self, id: TopicId, remembers: bool, now: Now) -> Result<Option<RoomHandle>, ErrorCode> {
        let topic = self.topics.get(id);
        if self.rooms.get(topic.room).is_some() {
            return Ok(Some(topic.room));
        }
        let room = if remembers {
            let name = self.classes.room(&topic.name);
            Some(self.rooms.open(&name, now)?)
        } else {
            self.rooms.find_of_topic(&topic.name)
        };
        self.topics.get_mut(id).room = room.unwrap_or(RoomHandle::NONE);
        Ok(room)
    }

    fn matching(&mut self, namespace: Namespace, topic: &[u8]) -> Option<Rc<[u32]>> {
        let asks = namespace == Namespace::Global && !self.patterns.is_empty();
        asks.then(|| self.patterns.matching(topic))
    }

    /// A committed record for the connections of this shard: those of the topic
    /// first, then those of patterns.
    fn fan_out(
        &mut self,
        id: TopicId,
        record: &RecordView<'_>,
        matched: Option<&[u32]>,
        sink: &mut impl Sink,
    ) {
        let topic = self.topics.get(id);
        let class = self.classes.get(topic.class);
        let cursors = &mut self.cursors;
        let lagging = cursors.len();
        sink.record_begins();
        for &conn in topic.subs.as_slice() {
            deliver(cursors, class, conn, Via::Topic, record, sink);
        }
        for &id in matched.unwrap_or_default() {
            let pattern = self.patterns.get(id);
            for &conn in pattern.subs.as_slice() {
                deliver(cursors, class, conn, Via::Pattern(id, &pattern.source), record, sink);
            }
        }
        self.catch_ups += (cursors.len() - lagging) as u64;
    }

    // --- a subscription ----------------------------------------------------

    /// A connection begins. Its index was free.
    pub fn connected(&mut self, conn: ConnKey) {
        let index = conn.index as usize;
        if self.clients.len() <= index {
            self.clients.resize_with(index + 1, Client::default);
        }
        debug_assert!(self.clients[index].topics.is_empty());
        self.clients[index].generation = conn.generation;
    }

    /// A connection ends, with all its subscriptions.
    pub fn disconnected(&mut self, conn: ConnKey, now: Now, sink: &mut impl Sink) {
        self.cursors.remove_conn(conn.index);
        let client = std::mem::take(&mut self.clients[conn.index as usize]);
        for &id in client.topics.as_slice() {
            self.drop_subscription(conn.index, id, now, sink);
        }
        for &id in client.patterns.iter().flat_map(|p| p.as_slice()) {
            self.drop_pattern(conn.index, id, sink);
        }
    }

    /// Subscribes a connection to a topic. [`Outcome::Later`] promises one
    /// [`Answer::Attached`]. A repeated subscription is confirmed at once,
    /// unless it names a start: then it starts anew from there.
    pub fn subscribe(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        wish: Wish<'_>,
        now: Now,
        sink: &mut impl Sink,
    ) -> Outcome<Result<Attached, ErrorCode>> {
        let Wish { namespace, topic, start } = wish;
        if topic.len() as u64 > self.limits.topic_bytes_max {
            return Outcome::Now(Err(ErrorCode::TopicLength));
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
        if adds && self.is_full(conn) {
            return Outcome::Now(Err(ErrorCode::TooManySubscriptions));
        }
        let name = Arc::clone(&self.topics.get(id).name);
        let shard = self.topics.get(id).shard;
        if start != Start::Live || shard != self.shard {
            // Until the hub has confirmed where it begins, live records pass it by: some may
            // come by interest that is about to end, and more would be missing behind them.
            let key = CursorKey { pattern: None, namespace, topic: Arc::clone(&name) };
            if !self.cursors.set(conn.index, key, None) {
                sink.close(conn.index, CloseReason::TooManyCursors);
            }
        }
        if adds {
            let client = &mut self.clients[conn.index as usize];
            client.topics.insert(id);
            client.shard_topics += u32::from(namespace == Namespace::Shard);
            self.topics.get_mut(id).subs.insert(conn.index);
        }
        self.next_id = self.next_id.wrapping_add(1);
        let attach =
            Attach { ticket, conn: conn.index, namespace, topic: name, start, adds, id: self.next_id };
        let shard = self.topics.get(id).shard;
        if shard != self.shard {
            let attaching = self.attaching.entry((conn.index, id));
            let attaching = attaching.or_insert(Attaching { latest: attach.id, adding: None });
            attaching.latest = attach.id;
            attaching.adding = attaching.adding.or(adds.then_some(attach.id));
            sink.send(shard, Msg::Attach(Box::new(attach)));
            return Outcome::Later;
        }
        let attached = self.rooms.attach(&attach, self.shard, now).map(|(attached, room)| {
            self.topics.get_mut(id).room = room;
            attached
        });
        self.confirm(conn, &attach, &attached);
        Outcome::Now(attached)
    }

    /// Takes a subscription away; whether it was there.
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
        self.cursors.remove(conn.index, None, namespace, topic);
        self.drop_subscription(conn.index, id, now, sink);
        true
    }

    /// Subscribes a connection to a pattern. [`Outcome::Later`] promises one
    /// [`Answer::PatternHeld`].
    pub fn subscribe_pattern(
        &mut self,
        ticket: Ticket,
        conn: ConnKey,
        pattern: &[u8],
        sink: &mut impl Sink,
    ) -> Outcome<Result<(), ErrorCode>> {
        if pattern.len() as u64 > self.limits.pattern_bytes_max {
            return Outcome::Now(Err(ErrorCode::TopicLength));
        }
        let own = self.clients[conn.index as usize].patterns.as_ref();
        if let Some(id) = self.patterns.find(pattern)
            && own.is_some_and(|own| own.contains(id))
        {
            return Outcome::Now(Ok(()));
        }
        if self.is_full(conn) {
            return Outcome::Now(Err(ErrorCode::TooManySubscriptions));
        }
        let id = self.patterns.intern(pattern);
        let held = self.patterns.get_mut(id);
        held.counts.add(self.shard, self.shards);
        let source = Arc::clone(&held.source);
        self.clients[conn.index as usize].patterns.get_or_insert_default().insert(id);
        if self.shards == 1 {
            held.subs.insert(conn.index);
            return Outcome::Now(Ok(()));
        }
        self.next_id = self.next_id.wrapping_add(1);
        self.waiting
            .insert(self.next_id, Waiting { asker: ticket.asker, conn, pattern: id, left: self.shards - 1 });
        self.holding.insert((conn.index, id), self.next_id);
        for shard in (0..self.shards).map(ShardId).filter(|&s| s != self.shard) {
            sink.send(shard, Msg::Pattern(self.shard, Arc::clone(&source), true, Some(self.next_id)));
        }
        Outcome::Later
    }

    /// Takes a pattern subscription away; whether it was there.
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
        self.cursors.remove_pattern(conn.index, id);
        self.drop_pattern(conn.index, id, sink);
        true
    }

    /// Subscriptions of a connection: topics, patterns, shard channels.
    #[must_use]
    pub fn counts(&self, conn: ConnKey) -> (usize, usize, usize) {
        let client = &self.clients[conn.index as usize];
        let shard = client.shard_topics as usize;
        (client.topics.len() - shard, client.patterns.as_ref().map_or(0, |p| p.len()), shard)
    }

    /// Topics of a connection in one namespace.
    #[must_use]
    pub fn topics_of(&self, conn: ConnKey, namespace: Namespace) -> Vec<Arc<[u8]>> {
        let ids = self.clients[conn.index as usize].topics.as_slice();
        let topics = ids.iter().map(|&id| self.topics.get(id));
        topics.filter(|t| t.namespace == namespace).map(|t| Arc::clone(&t.name)).collect()
    }

    /// Patterns of a connection.
    #[must_use]
    pub fn patterns_of(&self, conn: ConnKey) -> Vec<Arc<[u8]>> {
        let ids = self.clients[conn.index as usize].patterns.iter().flat_map(|p| p.as_slice());
        ids.map(|&id| Arc::clone(&self.patterns.get(id).source)).collect()
    }

    fn is_full(&self, conn: ConnKey) -> bool {
        let (topics, patterns, shard) = self.counts(conn);
        (topics + patterns + shard) as u64 >= self.limits.subscriptions_per_client_max
    }

    fn drop_subscription(&mut self, conn: u32, id: TopicId, now: Now, sink: &mut impl Sink) {
        let topic = self.topics.get(id);
        let (namespace, name, shard) = (topic.namespace, Arc::clone(&topic.name), topic.shard);
        if shard == self.shard {
            self.rooms.detach(namespace, &name, self.shard, now);
        } else if let Some(adding) = self.attaching.remove(&(conn, id)).and_then(|a| a.adding) {
            // The hub may yet refuse it: interest is taken back when it has not.
            self.cancelled.insert(adding);
        } else {
            sink.send(shard, Msg::Detach(self.shard, namespace, name));
        }
        self.topics.unsubscribe(id, conn);
    }

    fn drop_pattern(&mut self, conn: u32, id: u32, sink: &mut impl Sink) {
        self.holding.remove(&(conn, id));
        let pattern = self.patterns.get_mut(id);
        pattern.subs.remove(conn);
        let source = Arc::clone(&pattern.source);
        self.patterns.release(id, self.shard);
        for shard in (0..self.shards).map(ShardId).filter(|&s| s != self.shard) {
            sink.send(shard, Msg::Pattern(self.shard, Arc::clone(&source), false, None));
        }
    }

    /// The answer to an attach that went to another shard.
    fn attached(&mut self, attach: Attach, attached: Result<Attached, ErrorCode>, sink: &mut impl Sink) {
        let Asker::Client { conn, .. } = attach.ticket.asker else { return };
        if self.cancelled.remove(&attach.id) {
            if attached.is_ok() {
                let id = self.topics.intern(attach.namespace, &attach.topic);
                let shard = self.topics.get(id).shard;
                sink.send(shard, Msg::Detach(self.shard, attach.namespace, Arc::clone(&attach.topic)));
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
            if is_latest || attached.is_err() {
                self.confirm(conn, &attach, &attached);
            }
        }
        sink.answer(attach.ticket.asker, Answer::Attached(attached));
        if self.clients[conn.index as usize].generation == conn.generation {
            self.drained(conn, sink);
        }
    }

    /// What the hub said of a subscription takes effect on the edge.
    fn confirm(&mut self, conn: ConnKey, attach: &Attach, attached: &Result<Attached, ErrorCode>) {
        match attached {
            Ok(attached) => match attached.replay_from {
                Some(seq) => {
                    let next = Some(Position { epoch: attached.position.epoch, seq });
                    if let Some(c) = self.cursors.get(conn.index, None, attach.namespace, &attach.topic) {
                        c.next = next;
                    }
                }
                None => self.cursors.remove(conn.index, None, attach.namespace, &attach.topic),
            },
            Err(_) => {
                self.cursors.remove(conn.index, None, attach.namespace, &attach.topic);
                if attach.adds
                    && let Some(id) = self.topics.find(attach.namespace, &attach.topic)
                {
                    // The hub counted nothing, so nothing is taken back from it.
                    let client = &mut self.clients[conn.index as usize];
                    client.topics.remove(id);
                    client.shard_topics -= u32::from(attach.namespace == Namespace::Shard);
                    self.topics.unsubscribe(id, conn.index);
                }
            }
        }
    }

    // --- subscribers that lag ----------------------------------------------

    /// A connection's output has room again: its cursors read on.
    pub fn drained(&mut self, conn: ConnKey, sink: &mut impl Sink) {
        while sink.wants_replay(conn.index) {
            let Some(read) = self.next_read(conn) else { return };
            let shard = self.topics_shard(&read);
            if shard != self.shard {
                sink.send(shard, Msg::Read(Box::new(read)));
                return;
            }
            let range = self.rooms.range(&read);
            if !self.replay(&read, range, sink) {
                return;
            }
        }
    }

    /// The read that the connection's longest waiting cursor needs next; none
    /// while one is under way.
    fn next_read(&mut self, conn: ConnKey) -> Option<Read> {
        let cursors = self.cursors.of(conn.index);
        if cursors.iter().any(|c| c.reading) {
            return None;
        }
        let cursor = cursors.iter_mut().find(|c| c.next.is_some())?;
        cursor.reading = true;
        Some(Read {
            from: self.shard,
            conn,
            pattern: cursor.key.pattern,
            namespace: cursor.key.namespace,
            topic: Arc::clone(&cursor.key.topic),
            next: cursor.next.expect("found by it"),
            bytes_max: READ_BYTES,
        })
    }

    fn topics_shard(&mut self, read: &Read) -> ShardId {
        let id = self.topics.intern(read.namespace, &read.topic);
        self.topics.get(id).shard
    }

    /// Records that a cursor asked for go to its connection. Whether the
    /// connection takes more.
    fn replay(&mut self, read: &Read, range: Range, sink: &mut impl Sink) -> bool {
        let conn = read.conn.index;
        if self.clients.get(conn as usize).is_none_or(|c| c.generation != read.conn.generation) {
            return false;
        }
        let id = self.topics.intern(read.namespace, &read.topic);
        let class = self.classes.get(self.topics.get(id).class);
        let Some(cursor) = self.cursors.get(conn, read.pattern, read.namespace, &read.topic) else {
            return true;
        };
        if !cursor.reading || cursor.next != Some(read.next) {
            return true; // It started anew from elsewhere while this was under way.
        }
        cursor.reading = false;
        let epoch = read.next.epoch;
        if let Some((from, to)) = range.gap {
            let at = |seq| Position { epoch, seq };
            sink.gap(conn, &read.topic, at(from), at(to), class.on_gap);
        }
        if range.is_gone {
            sink.gap(conn, &read.topic, read.next, Position { epoch, seq: Seq(0) }, class.on_gap);
        }
        for record in &range.records {
            let via = match read.pattern {
                Some(id) => Via::Pattern(id, &self.patterns.get(id).source),
                None => Via::Topic,
            };
            sink.record_begins();
            if sink.deliver(conn, via, &record.view(class.on_slow)) == Delivery::Full {
                cursor.next = Some(record.position);
                return false;
            }
        }
        cursor.next = Some(Position { epoch, seq: range.next });
        if range.at_end {
            self.cursors.remove(conn, read.pattern, read.namespace, &read.topic);
        }
        true
    }

    // --- other shards, and time --------------------------------------------

    /// A message from another shard's broker.
    pub fn receive(&mut self, msg: Msg, now: Now, sink: &mut impl Sink) {
        match msg {
            Msg::Publish(ticket, record) => self.lead(ticket, record, now, sink),
            Msg::Published(ticket, published) => sink.answer(ticket.asker, Answer::Published(published)),
            Msg::Attach(attach) => {
                let from = attach.ticket.shard;
                let attached = self.rooms.attach(&attach, from, now).map(|(attached, _)| attached);
                sink.send(from, Msg::Attached(Box::new((*attach, attached))));
            }
            Msg::Attached(answer) => self.attached(answer.0, answer.1, sink),
            Msg::Detach(from, namespace, topic) => self.rooms.detach(namespace, &topic, from, now),
            Msg::Pattern(from, source, true, waiting) => {
                let id = self.patterns.intern(&source);
                self.patterns.get_mut(id).counts.add(from, self.shards);
                if let Some(waiting) = waiting {
                    sink.send(from, Msg::PatternHeld(waiting));
                }
            }
            Msg::Pattern(from, source, false, _) => {
                if let Some(id) = self.patterns.find(&source) {
                    self.patterns.release(id, from);
                }
            }
            Msg::PatternHeld(id) => {
                let Some(waiting) = self.waiting.get_mut(&id) else { return };
                waiting.left -= 1;
                if waiting.left == 0
                    && let Some(Waiting { asker, conn, pattern, .. }) = self.waiting.remove(&id)
                {
                    if self.holding.get(&(conn.index, pattern)) == Some(&id) {
                        self.holding.remove(&(conn.index, pattern));
                        self.patterns.get_mut(pattern).subs.insert(conn.index);
                    }
                    sink.answer(asker, Answer::PatternHeld);
                }
            }
            Msg::Deliver(record) => {
                let id = self.topics.intern(record.namespace, record.topic());
                let on_slow = self.classes.get(self.topics.get(id).class).on_slow;
                let matched = self.matching(record.namespace, record.topic());
                self.fan_out(id, &record.view(on_slow), matched.as_deref(), sink);
            }
            Msg::Read(read) => {
                let range = self.rooms.range(&read);
                sink.send(read.from, Msg::Range(Box::new((*read, range))));
            }
            Msg::Range(answer) => {
                let (read, range) = *answer;
                let conn = read.conn;
                if self.replay(&read, range, sink) {
                    self.drained(conn, sink);
                }
            }
        }
    }

    /// Publishes that a shard behind held up go on, in order.
    pub fn retry_stalled(&mut self, now: Now, sink: &mut impl Sink) {
        while let Some((ticket, record)) = self.stalled.pop_front() {
            let id = self.topics.intern(record.namespace, record.topic());
            match self.commit(id, Body::Record(record), now, sink) {
                Ok(published) => self.tell_published(ticket, published, sink),
                Err(record) => return self.stalled.push_front((ticket, record)),
            }
        }
    }

    /// Publishes that wait for a shard that is behind.
    #[must_use]
    pub fn stalled(&self) -> usize {
        self.stalled.len()
    }

    /// When `commit_due` has work next.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        self.delayed.first_key_value().map(|(&(due_ms, _), _)| due_ms)
    }

    /// Delayed commits that are due.
    pub fn commit_due(&mut self, now: Now, sink: &mut impl Sink) {
        while let Some(entry) = self.delayed.first_entry().filter(|e| e.key().0 <= now.mono_ms) {
            let (ticket, record) = entry.remove();
            self.commit_owned(ticket, record, now, sink);
        }
    }

    /// Retention and forgetting, a part of the rooms at each call.
    pub fn sweep(&mut self, now: Now) {
        self.rooms.sweep(now, SWEEP_ROOMS);
    }
}

fn own(draft: Draft<'_>, sink: &impl Sink) -> Arc<Record> {
    let Draft { namespace, topic, payload, headers, publisher } = draft;
    let publisher = match publisher {
        Publisher::Name(name) => name.into(),
        Publisher::Conn(conn) => sink.publisher(conn),
    };
    Arc::new(Record::new(namespace, topic, payload, publisher, headers))
}

/// One record for one connection: live, passed by, or by its class's policy.
fn deliver(
    cursors: &mut Cursors,
    class: &Class,
    conn: u32,
    via: Via<'_>,
    record: &RecordView<'_>,
    sink: &mut impl Sink,
) {
    let pattern = match via {
        Via::Topic => None,
        Via::Pattern(id, _) => Some(id),
    };
    if cursors.has(conn) && cursors.holds(conn, pattern, record.namespace, record.topic) {
        return;
    }
    if sink.deliver(conn, via, record) == Delivery::Taken {
        return;
    }
    match class.on_slow {
        OnSlow::DropOldest | OnSlow::Conflate => sink.squeeze(conn, via, record, class.on_slow, class.on_gap),
        OnSlow::CatchUp if class.history.is_some() => {
            let key = CursorKey { pattern, namespace: record.namespace, topic: record.topic.into() };
            if !cursors.set(conn, key, Some(record.position)) {
                sink.close(conn, CloseReason::TooManyCursors);
            }
        }
        OnSlow::CatchUp | OnSlow::Disconnect => sink.close(conn, CloseReason::OutputLimit),
    }
}
