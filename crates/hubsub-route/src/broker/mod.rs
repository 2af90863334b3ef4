//! One shard's broker: takes events, keeps the tables, gives actions.
//!
//! Its ways have a file each: a publish ([`publish`]), its place ([`commit`]) and who gets it ([`delivery`]), a subscription
//! ([`subscribe`]), how many are in rooms ([`occupancy`]), a subscriber that lags ([`replay`]), what rooms remember
//! ([`past`]), what topics keep ([`retain`]), who follows whole hubs ([`hubs`]), groups that share records ([`groups`]),
//! and those that keep their place ([`consumers`]). Here are its tables, what other shards tell it, and what time brings.
//!
//! Invariants: a connection's subscriptions stand both here (`clients`) and at
//! the topic or pattern; interest that a hub counts equals the subscribers of
//! that shard, once messages under way have arrived.

mod commit;
mod consumers;
mod delivery;
mod groups;
mod hubs;
mod occupancy;
mod past;
mod publish;
mod relay;
mod repeat;
mod replay;
mod retain;
mod subscribe;
mod waiting;

use crate::consumers::Consumer;
use crate::cursors::{Cursors, Read};
use crate::groups::Groups;
use crate::hubread::HubRead;
use crate::hubs::{Hub, Hubs};
use crate::idset::IdSet;
use crate::occupancy::Occupancy;
use crate::patterns::Patterns;
use crate::record::Record;
use crate::relay::patterns::PatternChange;
use crate::relay::state::Relay;
use crate::rooms::{RoomHandle, Rooms};
use crate::rows::RowTotals;
use crate::sparse::is_sparse;
use crate::topics::{TopicId, Topics};
use crate::topk::TopK;
use crate::{Answer, Msg, Now, Sink, Ticket};
use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use hubsub_types::{ClassTable, HubId, Limits, Protocol, ShardId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use hubs::Ends;
pub use hubs::HubsFrom;
pub use publish::{Draft, Publisher};
use retain::Retaining;
pub use retain::RowsAsk;
pub use subscribe::Wish;
use subscribe::{Attaching, Waiting};

/// Rooms that one `tick` looks at.
const SWEEP_ROOMS: usize = 2_000;

/// Records that leave memory in a sweep at most, since they are in the log and long not asked for.
const SWEEP_TAILS: usize = 20_000;

/// What a broker is made with.
pub struct Settings {
    /// Which shard it is.
    pub shard: ShardId,
    /// The hubs of the node.
    pub hubs: Arc<Hubs>,
    /// The room classes.
    pub classes: Arc<ClassTable>,
    /// The limits.
    pub limits: Limits,
    /// The next epoch, shared by the node's shards.
    pub epochs: Arc<AtomicU64>,
    /// How many retained messages the node has, shared by its shards.
    pub retained: Arc<RowTotals>,
}

/// What one connection is subscribed to.
#[derive(Debug, Default)]
struct Client {
    generation: u32,
    /// Subscriptions in `Namespace::Shard`, which are counted apart.
    shard_topics: u32,
    /// Bytes of the names of all its subscriptions.
    name_bytes: u32,
    /// What it speaks, once it subscribes; none: it is the node itself.
    protocol: Option<Protocol>,
    topics: IdSet,
    patterns: Option<Box<IdSet>>,
}

impl Client {
    fn keeps_names(&self) -> bool {
        keeps_names(self.protocol)
    }
}

/// Whether clients of a protocol keep the names of their subscriptions themselves, with what else they know of each.
fn keeps_names(protocol: Option<Protocol>) -> bool {
    matches!(protocol, Some(Protocol::Mqtt | Protocol::Phoenix))
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
    /// All groups.
    pub groups: Groups,
    /// Groups that keep their place in rooms that are led here.
    consumers: HashMap<Arc<[u8]>, Consumer, RandomState>,
    /// The number of their last read.
    last_read: u32,
    /// Records that were given again since they were not acknowledged in their time, since the start.
    pub consumers_given_again: u64,
    /// Records that were gone from history before their consumer came, since the start.
    pub consumers_missed: u64,
    /// Records that came while the window of their group was full.
    pub consumers_full: u64,
    /// The rooms whose hub is here.
    pub rooms: Rooms,
    /// Subscriptions that catch up.
    pub cursors: Cursors,
    /// The busiest rooms of this hub.
    pub busiest: TopK,
    /// How many of this shard are in rooms.
    pub occupancy: Occupancy,
    clients: Vec<Client>,
    /// Bytes of the names of clients that keep them themselves.
    kept_name_bytes: u64,
    /// The client that is the node itself, which no limit of clients is for.
    own_client: Option<u32>,
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
    /// Whether such a shard holds up a hub's log, too.
    is_held_up: bool,
    /// Publishes of classes with a commit delay, by due time and arrival.
    delayed: BTreeMap<(u64, u64), (Ticket, Arc<Record>)>,
    delayed_next: u64,
    /// Times a subscription fell back to history, since the start.
    pub catch_ups: u64,
    /// Records whose rows are under way.
    retaining: Retaining,
    /// Retained messages whose rows were refused, since the start.
    pub retained_refused: u64,
    /// Reads of cursors in hubs that were given back, and may come again.
    held_reads: Vec<(HubId, Read)>,
    /// Likewise of whole hubs.
    held_hub_reads: Vec<HubRead>,
    /// Questions where the logs of all hubs end, by number.
    ends: BTreeMap<u32, Ends>,
    /// In a cluster: hubs that other nodes lead, and the nodes.
    relay: Option<Box<Relay>>,
}

impl Broker {
    /// A broker that knows nothing yet.
    #[must_use]
    pub fn new(settings: Settings) -> Broker {
        let Settings { shard, hubs, classes, limits, epochs, retained } = settings;
        let shards = hubs.placement.shards();
        let routes_max = limits.route_cache_topics_max as usize;
        let cluster = hubs.cluster;
        let all_hubs = Arc::clone(&hubs);
        let rooms = Rooms::new(Arc::clone(&classes), Arc::clone(&hubs), shard, &limits, (epochs, retained));
        let id_of = |hub: &Hub| all_hubs.placement.id(hub.class, hub.index).unwrap_or_default();
        let of_shard = || rooms.hubs.iter().map(|hub| (id_of(hub), hub.class));
        let relay = cluster.map(|cluster| Box::new(Relay::new(cluster, shard, of_shard())));
        Broker {
            shard,
            shards,
            topics: Topics::new(Arc::clone(&classes), Arc::clone(&hubs), routes_max),
            patterns: Patterns::new(limits.pattern_cache_topics_max as usize),
            groups: Groups::new(limits.pattern_cache_topics_max as usize),
            consumers: HashMap::default(),
            last_read: 0,
            consumers_given_again: 0,
            consumers_missed: 0,
            consumers_full: 0,
            rooms,
            cursors: Cursors::default(),
            busiest: TopK::default(),
            occupancy: Occupancy::default(),
            classes,
            limits,
            clients: Vec::new(),
            kept_name_bytes: 0,
            own_client: None,
            waiting: HashMap::default(),
            holding: HashMap::default(),
            attaching: HashMap::default(),
            cancelled: HashSet::default(),
            next_id: 0,
            stalled: VecDeque::new(),
            is_held_up: false,
            delayed: BTreeMap::new(),
            delayed_next: 0,
            catch_ups: 0,
            retaining: Retaining::default(),
            retained_refused: 0,
            held_reads: Vec::new(),
            held_hub_reads: Vec::new(),
            ends: BTreeMap::new(),
            relay,
        }
    }

    /// The node is one of a cluster whose hubs are these, as far as they are known: rooms of a class
    /// without hubs are refused. Subscriptions, and what rooms kept in memory, are no more; hubs that
    /// are open, and what is known of nodes, stay.
    pub fn join(&mut self, hubs: Arc<Hubs>) {
        let Some(cluster) = hubs.cluster else { return };
        self.rooms.join(Arc::clone(&hubs), self.shard);
        self.topics.join(Arc::clone(&hubs));
        self.occupancy = Occupancy::default();
        let id_of = |hub: &Hub| hubs.placement.id(hub.class, hub.index).unwrap_or_default();
        let of_shard = self.rooms.hubs.iter().map(|hub| (id_of(hub), hub.class));
        match &mut self.relay {
            Some(relay) => relay.set_hubs(cluster, self.shard, of_shard),
            none => *none = Some(Box::new(Relay::new(cluster, self.shard, of_shard))),
        }
    }

    /// Likewise, with classes that may be others than before.
    pub fn join_as(&mut self, classes: &Arc<ClassTable>, hubs: Arc<Hubs>) {
        self.classes = Arc::clone(classes);
        self.rooms.classes = Arc::clone(classes);
        self.topics.classes = Arc::clone(classes);
        self.join(hubs);
    }

    /// Whether the node is one of a cluster.
    #[must_use]
    pub fn is_clustered(&self) -> bool {
        self.relay.is_some()
    }

    /// Whether the hubs of a class are not known yet, in a cluster.
    #[must_use]
    pub fn is_outside(&self, room: &[u8]) -> bool {
        self.relay.is_some() && {
            let (class, _) = self.topics.place(room);
            !self.topics.knows_hubs_of(class)
        }
    }

    /// Takes over new limits; the cache of routes keeps the size that it was made with.
    pub fn set_limits(&mut self, limits: Limits) {
        self.rooms.set_limits(&limits);
        for patterns in [&mut self.patterns, &mut self.groups.table] {
            patterns.set_cache_topics_max(limits.pattern_cache_topics_max as usize);
        }
        self.limits = limits;
    }

    /// The room classes.
    #[must_use]
    pub fn classes(&self) -> &ClassTable {
        &self.classes
    }

    /// A message from another shard's broker.
    pub fn receive(&mut self, msg: Msg, now: Now, sink: &mut impl Sink) {
        match msg {
            Msg::Publish(ticket, record, revision) => self.lead(ticket, record, revision, now, sink),
            Msg::Published(ticket, published) => self.tell_published(ticket, published, sink),
            Msg::Attach(attach) => self.attach_for(*attach, now, sink),
            Msg::Attached(answer) => self.attached(answer.0, answer.1, now, sink),
            Msg::Detach(from, namespace, topic, revision) => {
                self.detach_here(namespace, &topic, (from, revision), now, sink);
            }
            Msg::Moved(moved) => self.moved(*moved, now, sink),
            Msg::Leave(from, room) => self.leave_asked(from, &room, now, sink),
            Msg::Left(left) => self.left(*left, now, sink),
            Msg::Pattern(from, source, true, waiting) => {
                let shards = self.shards;
                let held = self.table_of(&source);
                let id = held.intern(&source);
                held.hold(id, from, shards);
                self.group_told(&source, now, sink);
                let is_held = self.shard != ShardId(0)
                    || self.pattern_changed(&source, waiting.map(|waiting| (from, waiting)), sink);
                if let Some(waiting) = waiting.filter(|_| is_held) {
                    sink.send(from, Msg::PatternHeld(waiting));
                }
            }
            Msg::Pattern(from, source, false, _) => {
                let shards = self.shards;
                let held = self.table_of(&source);
                if let Some(id) = held.find(&source) {
                    held.release(id, from, shards);
                }
                if self.shard == ShardId(0) {
                    self.pattern_changed(&source, None, sink);
                }
            }
            Msg::PatternHeld(id) => self.pattern_held(id, sink),
            Msg::Deliver(record, revision) => {
                let id = self.topics.intern(record.namespace, record.topic());
                let matched = self.matching(record.namespace, record.topic());
                self.fan_out_current(id, &record, revision, matched.as_deref(), sink);
            }
            Msg::Acknowledge(group, position) => self.acknowledged(group, position, now, sink),
            Msg::Give(give) => self.give_here(*give, now, sink),
            Msg::GiveAgain(from, give) => self.give_on(*give, from, now, sink),
            Msg::Read(read) => self.read_here(*read, now, sink),
            Msg::Range(answer) => {
                let (read, range) = *answer;
                let conn = read.conn;
                if self.replay(&read, range, sink) {
                    self.drained(conn, now, sink);
                }
            }
            Msg::ReadHub(read) => self.read_hub_here(*read, now, sink),
            Msg::HubRange(answer) => self.hub_range(answer.0, answer.1, now, sink),
            Msg::HubLack(hub, upto) => self.cursors.hubs.lacks(hub, upto),
            Msg::Gap(gap) => self.gap_here(&gap, sink),
            Msg::Lack(class) => self.lack_here(class, sink),
            Msg::Count(ticket, key) => self.count_for(ticket, key, now, sink),
            Msg::History(question) => self.history_for(&question.0, question.1, now, sink),
            Msg::Counted(ticket, count) => sink.answer(ticket.asker, Answer::Counted(count)),
            Msg::Settle(from, number, nodes) => self.settle_for(from, number, nodes, sink),
            Msg::Settled(number) => self.settled(number, sink),
            Msg::Rows(ask) => self.rows_for(*ask, now, sink),
            Msg::RowsCame(came) => sink.answer(came.0.asker, Answer::Rows(came.1)),
            Msg::NodePatterns(change) => {
                self.hold_patterns(&change, sink);
                let PatternChange { node, session, version, .. } = *change;
                sink.send(ShardId(0), Msg::NodePatternsHeld(self.shard, node, session, version));
            }
            Msg::NodePatternsHeld(shard, node, session, version) => {
                if self.relay.is_some() {
                    self.shard_holds(shard, node, session, version, sink);
                }
            }
        }
    }

    /// A record of so many bytes is committed here, for so many receivers.
    fn count(&mut self, id: TopicId, room: RoomHandle, bytes: u64, receivers: u64) {
        if self.busiest.counts_next()
            && let Some(room) = self.rooms.get(room)
        {
            self.busiest.publish(&room.name, bytes, receivers);
        }
        if self.relay.is_some() {
            self.count_commit(id);
        }
    }

    /// Memory of what this shard knows of clients and of its topics' subscribers, in bytes, near enough for a gauge: `subscriptions`
    /// that the clients have stand both at them and at the topics.
    #[must_use]
    pub fn clients_bytes(&self) -> usize {
        self.clients.capacity() * size_of::<Client>() + self.kept_name_bytes as usize
    }

    /// Retention and forgetting, a part of the rooms at each call.
    pub fn sweep(&mut self, now: Now, sink: &impl Sink) {
        // Asked in this order: what is recalled is at least as new.
        let log_knows = |hub, room: &[u8]| (sink.recalls_through(hub), sink.recall(hub, room));
        self.rooms.sweep(now, SWEEP_ROOMS, log_knows);
        if self.limits.log_tail_idle_ms > 0 {
            self.rooms.drop_idle_tails(now, self.limits.log_tail_idle_ms * 1000, SWEEP_TAILS);
        }
        self.rooms.give_back();
        self.topics.give_back();
        if is_sparse(self.attaching.len(), self.attaching.capacity()) {
            self.attaching.shrink_to(2 * self.attaching.len());
        }
        if is_sparse(self.waiting.len(), self.waiting.capacity()) {
            self.waiting.shrink_to(2 * self.waiting.len());
        }
    }
}
