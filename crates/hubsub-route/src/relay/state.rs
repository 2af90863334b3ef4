//! State of a home shard for the hubs that others lead, or that wait for a leader: their leaders, requests in
//! flight to these, and waiting requests.

use super::handover::Handover;
use super::holes::Holes;
use super::misses::Misses;
use super::moves::Moves;
use super::nodes::Peers;
use super::parked::{Load, Parked, Question};
use super::patterns::PatternSets;
use super::upstreams::{InterestRequest, Upstreams};
use super::watch::{Watched, Watchers};
use super::{Cluster, Leader, RelayLimits};
use crate::cursors::Read;
use crate::hubread::HubRead;
use crate::rooms::RoomHandle;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_message::{AskId, NodeMessage, Record};
use hubsub_types::class::ClassIndex;
use hubsub_types::{HubId, NodeId, ProducerId, Seq, ShardId, Term};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Base of the numbers of waiting publishes: up as they arrive, down for those that were here before.
const NUMBERS_FROM: u64 = 1 << 63;

#[derive(Debug, Default)]
pub struct Relay {
    /// Whether the node is in no cluster: it leads all hubs, and no message of a node is for one.
    pub is_alone: bool,
    pub(super) shard: ShardId,
    pub limits: RelayLimits,
    /// The producer of the numbers that this shard gives to forwarded records.
    pub producer: ProducerId,
    pub peers: Peers,
    /// Patterns of other nodes; used on shard 0.
    pub patterns: PatternSets,
    /// Nodes whose set of patterns this shard holds, with its version.
    pub holding: BTreeMap<NodeId, u64>,
    /// The last held version of nodes whose link for patterns has ended.
    pub held_before: BTreeMap<NodeId, u64>,
    pub hubs: Vec<HubState>,
    /// Requests in flight, in the order in which they were sent.
    pub requests: BTreeMap<AskId, InFlight>,
    pub last_ask: u64,
    /// The number of the last publish that arrived and waits.
    pub last_number: u64,
    /// One more than the number of the last publish that was put before all others.
    pub first_number: u64,
    pub upstreams: Upstreams,
    pub holes: Holes,
    /// For rooms that are led here: by node's place, the last record that was due there.
    pub due: HashMap<RoomHandle, Vec<(u16, Seq)>, RandomState>,
    /// History requests of nodes that the log has yet to answer.
    pub questions: HashMap<u32, (NodeId, AskId), RandomState>,
    pub last_question: u32,
    /// Waiting publishes and requests, of all hubs.
    pub parked: Load,
    /// Buffered messages of a later term.
    pub early: Load,
    pub misses: Misses,
    pub moves: Moves,
    /// The earliest time limit, in ms.
    pub due_ms: u64,
    /// Whether anything waits for a link to accept more.
    pub is_held_up: bool,
}

#[derive(Debug, Default)]
pub struct HubState {
    pub id: HubId,
    pub class: ClassIndex,
    pub term: Term,
    pub leader: Leader,
    /// Whether this node acts as its leader without a leader lease: for its side of a split network.
    pub serves: bool,
    /// Whether it is led here and no earlier request waits: then a publish commits at once.
    pub is_clear: bool,
    pub queue: VecDeque<Parked>,
    pub in_flight: usize,
    /// The highest number of the publishes that were sent.
    pub sent: u64,
    /// The number of publishes in flight to a former leader.
    pub former: usize,
    pub former_until_ms: u64,
    /// The time at which the leader is asked again, in ms; `u64::MAX`: never.
    pub retry_ms: u64,
    pub reads: Vec<Read>,
    pub hub_reads: Vec<HubRead>,
    /// Requests that wait for a leader, by their time limit.
    pub questions: VecDeque<Question>,
    /// Messages of nodes with a term that is not known here.
    pub early: VecDeque<Early>,
    /// The last sequence that this shard gave to a record for the hub.
    pub sequence: u64,
    /// If it is led here: nodes whose patterns its records are matched with.
    pub watchers: Watchers,
    /// If it is not led here: the records that arrived from its leader.
    pub watched: Watched,
    pub handover: Handover,
}

#[derive(Debug)]
pub struct Early {
    pub from: NodeId,
    pub since_ms: u64,
    pub message: NodeMessage,
}

#[derive(Debug)]
pub struct InFlight {
    pub to: NodeId,
    pub slot: u16,
    pub term: Term,
    pub what: Request,
    pub records: Vec<Arc<Record>>,
    pub bytes: usize,
}

#[derive(Debug)]
pub enum Request {
    Publish(Parked),
    Interest(InterestRequest),
    Read(Box<Read>),
    Hub(Box<HubRead>),
    /// A read of the records of a room before the buffered ones.
    Hole(RoomHandle),
    /// A request for the number of subscribers, or for records for HISTORY.
    Question(Question),
}

impl HubState {
    /// A hub of a cluster has no leader yet; a node that is alone always leads its own.
    fn new((id, class): (HubId, ClassIndex), is_alone: bool) -> HubState {
        let leader = if is_alone { Leader::Me } else { Leader::None };
        let (serves, is_clear, retry_ms) = (is_alone, is_alone, u64::MAX);
        HubState { id, class, leader, serves, is_clear, retry_ms, ..HubState::default() }
    }

    /// This node led the hub: it has received all committed records.
    pub fn has_seen_own(&mut self) {
        self.watched.saw(0, self.watchers.committed());
    }
}

impl Relay {
    /// The state of the shard with this number in a cluster, or of a node that is alone.
    pub fn new(
        cluster: Option<Cluster>,
        shard: ShardId,
        hubs: impl Iterator<Item = (HubId, ClassIndex)>,
    ) -> Relay {
        let is_alone = cluster.is_none();
        let Cluster { producer, limits } = cluster.unwrap_or_default();
        Relay {
            is_alone,
            shard,
            limits,
            producer: ProducerId(producer.0 + u64::from(shard.0)),
            hubs: hubs.map(|hub| HubState::new(hub, is_alone)).collect(),
            last_number: NUMBERS_FROM,
            first_number: NUMBERS_FROM,
            due_ms: u64::MAX,
            ..Relay::default()
        }
    }

    /// Replaces the hubs whose home is here; none has a leader yet. Nothing may wait for the previous ones.
    pub fn set_hubs(
        &mut self,
        cluster: Cluster,
        shard: ShardId,
        hubs: impl Iterator<Item = (HubId, ClassIndex)>,
    ) {
        self.hubs = hubs.map(|hub| HubState::new(hub, false)).collect();
        self.producer = ProducerId(cluster.producer.0 + u64::from(shard.0));
        self.limits = cluster.limits;
    }

    pub fn add_hubs(&mut self, hubs: impl Iterator<Item = (HubId, ClassIndex)>) {
        self.hubs.extend(hubs.map(|hub| HubState::new(hub, self.is_alone)));
    }

    /// The slot of a hub whose home is here. The hubs of a node that is alone have no id.
    pub fn slot_of(&self, hub: HubId) -> Option<u16> {
        let hubs = if self.is_alone { &[] } else { &self.hubs[..] };
        hubs.iter().position(|state| state.id == hub).map(|slot| slot as u16)
    }

    #[inline]
    pub fn hub(&self, slot: u16) -> &HubState {
        &self.hubs[usize::from(slot)]
    }

    #[inline]
    pub fn hub_mut(&mut self, slot: u16) -> &mut HubState {
        &mut self.hubs[usize::from(slot)]
    }

    /// The leader of a hub, if it is a node whose link for the hub is up.
    pub fn leader_of(&self, slot: u16) -> Option<NodeId> {
        let hub = self.hub(slot);
        match hub.leader {
            Leader::Node(node) if self.peers.reaches(node, hub.id) => Some(node),
            _ => None,
        }
    }

    pub fn wake_by(&mut self, ms: u64) {
        self.due_ms = self.due_ms.min(ms);
    }
}

impl InFlight {
    /// Whether it was sent to a former leader.
    pub fn is_to_former(&self, hub: &HubState) -> bool {
        self.term != hub.term || hub.leader != Leader::Node(self.to)
    }
}
