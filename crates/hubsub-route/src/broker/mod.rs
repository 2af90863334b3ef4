//! The broker of one shard: takes events, owns the tables, emits actions.
//!
//! Its parts own their state: clients ([`clients`]), subscriptions that are not live yet ([`unconfirmed`]), waiting
//! publishes ([`backlog`]), entries in flight ([`retain`]), flush barriers ([`barrier`]), and beyond this folder the
//! tables of topics, patterns, groups, rooms, cursors and hubs' leaders.
//!
//! Its paths have a file each: publishes ([`publish`]), positions ([`commit`]), receivers ([`delivery`]),
//! subscriptions to topics ([`subscribe`]), to patterns ([`patterns`]) and to whole hubs ([`hubs`]), member counts of
//! rooms ([`occupancy`]), lagging subscribers ([`replay`]), history ([`past`]), retained messages ([`retain`],
//! [`entries`]), groups that share records ([`groups`]), named consumers ([`consumers`]), steps of followed
//! records ([`traces`]), and the cluster ([`relay`]). This file has the tables, messages from other shards, and sweeps.
//!
//! Invariants: a subscription of a connection is both at its client and at the topic or pattern; the interest that a
//! hub counts equals the subscribers of that shard once messages in flight have arrived.

mod backlog;
mod barrier;
mod clients;
mod commit;
mod consumers;
mod delivery;
mod entries;
mod groups;
mod hubs;
mod occupancy;
mod past;
mod patterns;
mod publish;
mod relay;
mod repeat;
mod replay;
mod retain;
mod subscribe;
mod traces;
mod unconfirmed;
mod waiting;

use crate::consumers::Consumers;
use crate::cursors::Cursors;
use crate::groups::Groups;
use crate::hubs::{Hub, Hubs};
use crate::occupancy::Occupancy;
use crate::patterns::Patterns;
use crate::relay::patterns::PatternChange;
use crate::relay::state::Relay;
use crate::rooms::{RoomHandle, Rooms};
use crate::rows::RowTotals;
use crate::topics::{TopicId, Topics};
use crate::topk::TopK;
use crate::traces::{StepKind, Traces};
use crate::{Answer, Msg, Now, Sink};
use hubsub_types::{ClassTable, Limits, ShardId};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use backlog::Backlog;
use barrier::Barriers;
use clients::Clients;
pub use entries::RowsAsk;
use hubs::EndsRequests;
pub use hubs::HubsFrom;
pub use publish::{Draft, Publisher};
use replay::BlockedReads;
use retain::Retaining;
pub use subscribe::Wish;
use unconfirmed::Unconfirmed;

/// Rooms that one sweep examines.
const SWEEP_ROOMS: usize = 2_000;

/// Records that a sweep drops from memory at most, because the log has them and nobody has read them for
/// long.
const SWEEP_TAILS: usize = 20_000;

pub struct Settings {
    pub shard: ShardId,
    pub hubs: Arc<Hubs>,
    pub classes: Arc<ClassTable>,
    pub limits: Limits,
    /// The next epoch, shared by the node's shards.
    pub epochs: Arc<AtomicU64>,
    /// The number of retained messages on the node, shared by its shards.
    pub retained: Arc<RowTotals>,
}

/// The broker of one shard; see the module for its invariants.
pub struct Broker {
    shard: ShardId,
    shards: u16,
    limits: Limits,
    classes: Arc<ClassTable>,
    /// Topics that this shard uses as an edge, and their routes.
    pub topics: Topics,
    pub patterns: Patterns,
    pub groups: Groups,
    pub consumers: Consumers,
    pub rooms: Rooms,
    pub cursors: Cursors,
    /// The busiest rooms of the hubs that this shard leads.
    pub busiest: TopK,
    /// Subscribers, members and publishers in rooms, of this shard.
    pub occupancy: Occupancy,
    /// The steps of records that an operator follows; empty almost always.
    pub traces: Traces,
    clients: Clients,
    unconfirmed: Unconfirmed,
    backlog: Backlog,
    /// Times a subscription fell back to history, since the start.
    pub catch_ups: u64,
    /// Records whose entries are in flight.
    retaining: Retaining,
    barriers: Barriers,
    /// Retained messages whose entries were refused, since the start.
    pub retained_refused: u64,
    blocked_reads: BlockedReads,
    ends: EndsRequests,
    /// The leaders of the hubs of this shard, requests to them, and the peer table.
    relay: Relay,
}

impl Broker {
    #[must_use]
    pub fn new(settings: Settings) -> Broker {
        let Settings { shard, hubs, classes, limits, epochs, retained } = settings;
        let shards = hubs.placement.shards();
        let routes_max = limits.route_cache_topics_max as usize;
        let cluster = hubs.cluster;
        let all_hubs = Arc::clone(&hubs);
        let rooms = Rooms::new(Arc::clone(&classes), Arc::clone(&hubs), shard, &limits, (epochs, retained));
        let id_of = |hub: &Hub| all_hubs.placement.id(hub.class, hub.index).unwrap_or_default();
        let of_shard = rooms.hubs.iter().map(|hub| (id_of(hub), hub.class));
        let relay = Relay::new(cluster, shard, of_shard);
        Broker {
            shard,
            shards,
            topics: Topics::new(Arc::clone(&classes), Arc::clone(&hubs), routes_max),
            patterns: Patterns::new(limits.pattern_cache_topics_max as usize),
            groups: Groups::new(limits.pattern_cache_topics_max as usize),
            consumers: Consumers::default(),
            rooms,
            cursors: Cursors::default(),
            busiest: TopK::default(),
            occupancy: Occupancy::default(),
            traces: Traces::default(),
            classes,
            limits,
            clients: Clients::default(),
            unconfirmed: Unconfirmed::default(),
            backlog: Backlog::default(),
            catch_ups: 0,
            retaining: Retaining::default(),
            barriers: Barriers::default(),
            retained_refused: 0,
            blocked_reads: BlockedReads::default(),
            ends: EndsRequests::default(),
            relay,
        }
    }

    /// The node joins a cluster with these hubs, as far as they are known: rooms of a class without hubs are
    /// refused. Subscriptions and records in memory are dropped; open hubs, and the state of nodes, remain.
    pub fn join(&mut self, hubs: Arc<Hubs>) {
        let Some(cluster) = hubs.cluster else { return };
        self.rooms.join(Arc::clone(&hubs), self.shard);
        self.topics.join(Arc::clone(&hubs));
        self.occupancy = Occupancy::default();
        let id_of = |hub: &Hub| hubs.placement.id(hub.class, hub.index).unwrap_or_default();
        let of_shard = self.rooms.hubs.iter().map(|hub| (id_of(hub), hub.class));
        if self.relay.is_alone {
            self.relay = Relay::new(Some(cluster), self.shard, of_shard);
        } else {
            self.relay.set_hubs(cluster, self.shard, of_shard);
        }
    }

    /// As `join`, with classes that may differ from the previous ones.
    pub fn join_as(&mut self, classes: &Arc<ClassTable>, hubs: Arc<Hubs>) {
        self.classes = Arc::clone(classes);
        self.rooms.classes = Arc::clone(classes);
        self.topics.classes = Arc::clone(classes);
        self.join(hubs);
    }

    #[must_use]
    pub fn is_clustered(&self) -> bool {
        !self.relay.is_alone
    }

    /// Whether the hubs of a room's class are not known yet, in a cluster.
    #[must_use]
    pub fn is_outside(&self, room: &[u8]) -> bool {
        !self.relay.is_alone && !self.topics.knows_hubs_of(self.classes.class_of_room(room))
    }

    /// Applies new limits; the route cache keeps its initial size.
    pub fn set_limits(&mut self, limits: Limits) {
        self.rooms.set_limits(&limits);
        for patterns in [&mut self.patterns, &mut self.groups.table] {
            patterns.set_cache_topics_max(limits.pattern_cache_topics_max as usize);
        }
        self.limits = limits;
    }

    fn other_shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        let own = self.shard;
        (0..self.shards).map(ShardId).filter(move |&shard| shard != own)
    }

    /// The name of a topic's room.
    fn room_of(&self, topic: &[u8]) -> Arc<[u8]> {
        self.classes.room(topic).as_ref().into()
    }

    #[must_use]
    pub fn classes(&self) -> &ClassTable {
        &self.classes
    }

    /// Handles a message from another shard's broker.
    pub fn receive(&mut self, msg: Msg, now: Now, sink: &mut impl Sink) {
        match msg {
            Msg::Publish(ticket, record, revision) => {
                if self.traces.is_on() {
                    self.trace_arrival(ticket, &record, StepKind::FromShard(ticket.shard), sink);
                }
                self.lead_for_shard(ticket, record, revision, now, sink)
            }
            Msg::Published(ticket, published) => self.answer_publish(ticket, published, sink),
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
                self.group_changed(&source, now, sink);
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
            Msg::Give(give) => self.deliver_to_member(*give, now, sink),
            Msg::GiveAgain(from, give) => self.redeliver_at_home(*give, from, now, sink),
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
            Msg::Rows(ask) => self.entries_for_shard(*ask, now, sink),
            Msg::RowsCame(came) => sink.answer(came.0.asker, Answer::Rows(came.1)),
            Msg::NodePatterns(change) => {
                self.hold_patterns(&change, sink);
                let PatternChange { node, session, version, .. } = *change;
                sink.send(ShardId(0), Msg::NodePatternsHeld(self.shard, node, session, version));
            }
            Msg::NodePatternsHeld(shard, node, session, version) => {
                self.shard_holds(shard, node, session, version, sink);
            }
        }
    }

    /// Counts a committed record of `bytes` bytes with `receivers` receivers.
    fn count(&mut self, id: TopicId, room: RoomHandle, bytes: u64, receivers: u64) {
        if self.busiest.counts_next()
            && let Some(room) = self.rooms.get(room)
        {
            self.busiest.publish(&room.name, bytes, receivers);
        }
        if !self.relay.is_alone {
            self.count_commit(id);
        }
    }

    /// Approximate memory of clients and of the subscribers of topics, in bytes: each subscription is stored
    /// at the client and at the topic.
    #[must_use]
    pub fn clients_bytes(&self) -> usize {
        self.clients.bytes()
    }

    /// Applies retention and removes unused rooms, some of the rooms in each call.
    pub fn sweep(&mut self, now: Now, sink: &impl Sink) {
        // The order matters: the room's state is read after the offset, so it is at least as recent.
        let log_knows = |hub, room: &[u8]| (sink.recalls_through(hub), sink.recall(hub, room));
        self.rooms.sweep(now, SWEEP_ROOMS, log_knows);
        if self.limits.log_tail_idle_ms > 0 {
            self.rooms.drop_idle_tails(now, self.limits.log_tail_idle_ms * 1000, SWEEP_TAILS);
        }
        self.rooms.shrink();
        self.topics.shrink();
        self.unconfirmed.shrink();
        self.traces.expire(now);
    }
}
