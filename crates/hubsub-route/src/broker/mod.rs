//! The broker of one shard: takes events, owns the tables, emits actions.
//!
//! Its parts own their state: clients ([`clients`]), subscriptions that are not live yet ([`unconfirmed`]), waiting
//! publishes and reads ([`backlog`]), entries in flight ([`retaining`]), flush barriers ([`barrier`]), requests for the
//! ends of logs ([`ends`]), and beyond this folder the tables of topics, patterns, groups, rooms, cursors and hubs'
//! leaders.
//!
//! Its paths have a file each: publishes ([`publish`]), positions ([`commit`]), receivers ([`delivery`]),
//! subscriptions to topics ([`subscribe`]), to patterns ([`patterns`]) and to whole hubs ([`hubs`]), member counts of
//! rooms ([`occupancy`]), lagging subscribers ([`replay`]), history ([`past`]), retained messages ([`retain`],
//! [`entries`], [`settle`]), groups that share records ([`groups`]), named consumers ([`consumers`]), steps of followed
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
mod ends;
mod entries;
mod groups;
mod hubs;
mod occupancy;
mod past;
mod patterns;
mod publish;
mod relay;
mod replay;
mod retain;
mod retaining;
mod settle;
mod subscribe;
mod traces;
mod unconfirmed;
mod waiting;

use crate::consumers::Consumers;
use crate::cursors::Cursors;
use crate::groups::Groups;
use crate::hubs::Hubs;
use crate::occupancy::Occupancy;
use crate::patterns::Patterns;
use crate::relay::{PatternChange, Relay};
use crate::rooms::{RoomHandle, Rooms};
use crate::rows::RowTotals;
use crate::sink::Turn;
use crate::topics::{TopicId, Topics};
use crate::topk::TopK;
use crate::traces::{StepKind, Traces};
use crate::{Answer, Msg, Now, Outcome, Sink};
use hubsub_types::{ClassTable, Limits, ShardId};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use backlog::{Backlog, BlockedReads};
use barrier::Barriers;
use clients::Clients;
use ends::EndsRequests;
pub use hubs::HubsFrom;
pub use publish::{Draft, Publisher};
use retaining::Retaining;
pub use subscribe::Wish;
use unconfirmed::Unconfirmed;

const SWEEP_ROOMS: usize = 2_000;

/// Records that a sweep drops from memory at most: the log has them, and nobody reads them.
const SWEEP_TAILS: usize = 20_000;

pub struct Settings {
    pub shard: ShardId,
    pub hubs: Arc<Hubs>,
    pub classes: Arc<ClassTable>,
    pub limits: Limits,
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
    pub topics: Topics,
    pub patterns: Patterns,
    pub groups: Groups,
    pub consumers: Consumers,
    pub rooms: Rooms,
    pub cursors: Cursors,
    pub busiest: TopK,
    pub occupancy: Occupancy,
    /// The steps of records that an operator follows; empty almost always.
    pub traces: Traces,
    clients: Clients,
    unconfirmed: Unconfirmed,
    backlog: Backlog,
    /// Times a subscription fell back to history, since the start.
    pub catch_ups: u64,
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
    pub fn new(settings: Settings) -> Broker {
        let Settings { shard, hubs, classes, limits, epochs, retained } = settings;
        let shards = hubs.placement.shards();
        let routes_max = limits.route_cache_topics_max as usize;
        let rooms = Rooms::new(Arc::clone(&classes), Arc::clone(&hubs), shard, &limits, (epochs, retained));
        let relay = Relay::new(hubs.cluster, shard, rooms.hub_ids());
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
        if self.relay.is_alone {
            self.relay = Relay::new(Some(cluster), self.shard, self.rooms.hub_ids());
        } else {
            self.relay.set_hubs(cluster, self.shard, self.rooms.hub_ids());
        }
    }

    /// As `join`, with classes that may differ from the previous ones.
    pub fn join_as(&mut self, classes: &Arc<ClassTable>, hubs: Arc<Hubs>) {
        self.classes = Arc::clone(classes);
        self.rooms.classes = Arc::clone(classes);
        self.topics.classes = Arc::clone(classes);
        self.join(hubs);
    }

    pub fn is_clustered(&self) -> bool {
        !self.relay.is_alone
    }

    /// Whether the hubs of a room's class are not known yet, in a cluster.
    pub fn is_outside(&self, room: &[u8]) -> bool {
        !self.relay.is_alone && self.topics.placement().hubs(self.classes.class_of_room(room)) == 0
    }

    /// Applies new limits; the route cache keeps its initial size.
    pub fn set_limits(&mut self, limits: Limits) {
        self.rooms.limits = limits.clone();
        for patterns in [&mut self.patterns, &mut self.groups.table] {
            patterns.set_cache_topics_max(limits.pattern_cache_topics_max as usize);
        }
        self.limits = limits;
    }

    fn other_shards(&self) -> impl Iterator<Item = ShardId> + use<> {
        let own = self.shard;
        (0..self.shards).map(ShardId).filter(move |&shard| shard != own)
    }

    fn room_of(&self, topic: &[u8]) -> Arc<[u8]> {
        self.classes.room(topic).as_ref().into()
    }

    pub fn classes(&self) -> &ClassTable {
        &self.classes
    }

    pub fn receive(&mut self, msg: Msg, now: Now, sink: &mut impl Sink) {
        let turn = &mut Turn { now, sink };
        match msg {
            Msg::Publish(ticket, record, revision) => {
                if self.traces.is_on() && ticket.shard != self.shard {
                    self.trace_arrival(ticket, &record, StepKind::FromShard(ticket.shard), turn.sink);
                }
                self.lead_for_shard(ticket, record, revision, turn)
            }
            Msg::Published(ticket, published) => self.answer_publish(ticket, published, turn.sink),
            Msg::Attach(attach) => self.attach_for(*attach, turn),
            Msg::Attached(answer) => self.attached(answer.0, answer.1, turn),
            Msg::Detach(from, namespace, topic, revision) => {
                self.detach_here(namespace, &topic, (from, revision), turn);
            }
            Msg::Moved(moved) => self.moved(*moved, turn),
            Msg::Leave(from, room) => self.leave_asked(from, &room, turn),
            Msg::Left(left) => self.left(*left, turn),
            Msg::Pattern(from, source, true, waiting) => {
                let shards = self.shards;
                let held = self.table_of(&source);
                let id = held.intern(&source);
                held.hold(id, from, shards);
                if self.groups.table.find(&source).is_some() {
                    self.open_consumer(&source, turn);
                }
                let is_held = self.shard != ShardId(0)
                    || self.pattern_changed(&source, waiting.map(|waiting| (from, waiting)), turn.sink);
                if let Some(waiting) = waiting.filter(|_| is_held) {
                    turn.sink.send(from, Msg::PatternHeld(waiting));
                }
            }
            Msg::Pattern(from, source, false, _) => {
                let shards = self.shards;
                let held = self.table_of(&source);
                if let Some(id) = held.find(&source) {
                    held.release(id, from, shards);
                }
                if self.shard == ShardId(0) {
                    self.pattern_changed(&source, None, turn.sink);
                }
            }
            Msg::PatternHeld(id) => self.pattern_held(id, turn.sink),
            Msg::Deliver(record, revision) => {
                let id = self.topics.intern(record.namespace, record.topic());
                let matched = self.matching(record.namespace, record.topic());
                self.fan_out_current(id, &record, revision, matched.as_deref(), turn.sink);
            }
            Msg::Acknowledge(group, position) => self.acknowledged(group, position, turn),
            Msg::Give(give) => self.deliver_to_member(*give, turn),
            Msg::GiveAgain(from, give) => self.redeliver_at_home(*give, from, turn),
            Msg::Read(read) => self.read_here(*read, turn),
            Msg::Range(answer) => {
                let (read, range) = *answer;
                let conn = read.conn;
                if self.replay(&read, range, turn.sink) {
                    self.drained(conn, turn.now, turn.sink);
                }
            }
            Msg::ReadHub(read) => self.read_hub_here(*read, turn),
            Msg::HubRange(answer) => self.hub_range(answer.0, answer.1, turn),
            Msg::HubLack(hub, upto) => self.cursors.hubs.lacks(hub, upto),
            Msg::Gap(gap) => self.gap_here(&gap, turn.sink),
            Msg::Lack(class) => self.lack_here(class, turn.sink),
            Msg::Count(ticket, (namespace, topic)) => {
                let id = self.topics.intern(namespace, &topic);
                if let Outcome::Now(count) = self.count_here(ticket, id, turn) {
                    self.answer_count(ticket, count, turn.sink);
                }
            }
            Msg::History(question) => self.history_for(&question.0, question.1, turn),
            Msg::Counted(ticket, count) => turn.sink.answer(ticket.asker, Answer::Counted(count)),
            Msg::Settle(from, number, nodes) => self.settle_for(from, number, nodes, turn.sink),
            Msg::Settled(number) => self.settled(number, turn.sink),
            Msg::Rows(ask) => self.entries_for_shard(*ask, turn),
            Msg::RowsCame(came) => turn.sink.answer(came.0.asker, Answer::Rows(came.1)),
            Msg::NodePatterns(change) => {
                self.hold_patterns(&change, turn.sink);
                let PatternChange { node, session, version, .. } = *change;
                turn.sink.send(ShardId(0), Msg::NodePatternsHeld(self.shard, node, session, version));
            }
            Msg::NodePatternsHeld(shard, node, session, version) => {
                self.shard_holds(shard, node, session, version, turn.sink);
            }
        }
    }

    fn pass(&mut self, to: ShardId, msg: Msg, turn: &mut Turn<impl Sink>) {
        if to == self.shard { self.receive(msg, turn.now, turn.sink) } else { turn.sink.send(to, msg) }
    }

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

    /// Approximate memory of clients and topics' subscribers, in bytes: each subscription is at both.
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
