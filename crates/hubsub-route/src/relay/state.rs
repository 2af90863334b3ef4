//! State of a home shard for the hubs that others lead, or that wait for a leader: their leaders, requests in
//! flight to these, and waiting requests.

use super::handover::Handover;
use super::holes::Holes;
use super::load::Load;
use super::misses::{Misses, Missing};
use super::moves::Moves;
use super::nodes::Peers;
use super::patterns::PatternSets;
use super::upstreams::{InterestRequest, Upstreams};
use super::watch::{Watched, Watchers};
use super::{Cluster, Leader, RelayLimits};
use crate::Ticket;
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

/// Base of the numbers of waiting publishes: they count up as publishes arrive, and down for publishes that
/// were here before.
const NUMBERS_FROM: u64 = 1 << 63;

/// The state of a home shard for its hubs in a cluster.
#[derive(Debug)]
pub struct Relay {
    /// Whether the node is no member of a cluster: then this process leads all hubs, and no message of a node is
    /// for one of them.
    pub is_alone: bool,
    pub(super) shard: ShardId,
    /// Limits of what waits for a leader.
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
    /// The hubs whose home is here, by slot.
    pub hubs: Vec<HubState>,
    /// Requests in flight, in the order in which they were sent.
    pub requests: BTreeMap<AskId, InFlight>,
    /// The number of the last request.
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
    /// The number of the last one of these.
    pub last_question: u32,
    /// Waiting publishes and requests, of all hubs.
    pub parked: Load,
    /// Buffered messages of a later term.
    pub early: Load,
    /// Rooms whose place is requested.
    pub misses: Misses,
    pub moves: Moves,
    /// The earliest time limit, in ms.
    pub due_ms: u64,
    /// Whether anything waits for a link to accept more.
    pub is_held_up: bool,
}

/// The state of one hub.
#[derive(Debug)]
pub struct HubState {
    pub id: HubId,
    pub class: ClassIndex,
    /// The term of its leader.
    pub term: Term,
    pub leader: Leader,
    /// Whether this node acts as its leader without a leader lease: for its side of a split network.
    pub serves: bool,
    /// Whether it is led here and no earlier request waits: then a publish commits at once.
    pub is_clear: bool,
    /// Waiting publishes, in order of arrival.
    pub queue: VecDeque<Parked>,
    /// The number of publishes in flight.
    pub in_flight: usize,
    /// The highest number of the publishes that were sent.
    pub sent: u64,
    /// The number of publishes in flight to a former leader.
    pub former: usize,
    /// The time limit of those, in ms.
    pub former_until_ms: u64,
    /// The time at which the leader is asked again, in ms; `u64::MAX`: never.
    pub retry_ms: u64,
    /// Cursors' reads that wait for a leader.
    pub reads: Vec<Read>,
    /// Reads of the whole hub that wait for a leader.
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
    /// The state of its change of leader.
    pub handover: Handover,
}

/// A publish that waits for its hub's leader.
#[derive(Debug)]
pub struct Parked {
    /// Orders waiting publishes by arrival.
    pub number: u64,
    pub ticket: Ticket,
    pub record: Arc<Record>,
    /// Start of its time limit, in ms.
    pub since_ms: u64,
}

/// A message that arrived before its term was known.
#[derive(Debug)]
pub struct Early {
    pub from: NodeId,
    /// Time of arrival, in ms.
    pub since_ms: u64,
    pub message: NodeMessage,
}

/// A request in flight to another node.
#[derive(Debug)]
pub struct InFlight {
    pub to: NodeId,
    /// Slot of the hub.
    pub slot: u16,
    /// The term that it contained.
    pub term: Term,
    pub what: Request,
    /// Records that arrived as parts of the response.
    pub records: Vec<Arc<Record>>,
    /// Memory of these, in bytes.
    pub bytes: usize,
}

/// The kind of a request in flight.
#[derive(Debug)]
pub enum Request {
    /// A publish that requests a position.
    Publish(Parked),
    /// Interest in a topic.
    Interest(InterestRequest),
    /// A cursor's read of a room.
    Read(Box<Read>),
    /// A read of the whole hub.
    Hub(Box<HubRead>),
    /// A read of the records of a room before the buffered ones.
    Hole(RoomHandle),
    /// A request for the number of subscribers, or for records for HISTORY.
    Question(Question),
}

/// A request about a room to its leader.
#[derive(Debug)]
pub struct Question {
    /// A request for which [`Missing::is_question`] is true.
    pub what: Missing,
    /// Time limit for waiting for a leader, in ms.
    pub until_ms: u64,
}

impl HubState {
    /// A hub of a cluster has no leader yet; a node that is alone always leads its own.
    fn new((id, class): (HubId, ClassIndex), is_alone: bool) -> HubState {
        HubState {
            id,
            class,
            term: Term(0),
            leader: if is_alone { Leader::Me } else { Leader::None },
            serves: is_alone,
            is_clear: is_alone,
            queue: VecDeque::new(),
            in_flight: 0,
            sent: 0,
            former: 0,
            former_until_ms: 0,
            retry_ms: u64::MAX,
            reads: Vec::new(),
            hub_reads: Vec::new(),
            questions: VecDeque::new(),
            early: VecDeque::new(),
            sequence: 0,
            watchers: Watchers::default(),
            watched: Watched::default(),
            handover: Handover::default(),
        }
    }

    /// This node led the hub: it has received all committed records.
    pub fn has_seen_own(&mut self) {
        self.watched.saw(0, self.watchers.committed());
    }
}

impl Relay {
    /// The state of the shard with this number in a cluster, or of a node that is alone.
    #[must_use]
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
            peers: Peers::default(),
            patterns: PatternSets::default(),
            holding: BTreeMap::new(),
            held_before: BTreeMap::new(),
            hubs: hubs.map(|hub| HubState::new(hub, is_alone)).collect(),
            requests: BTreeMap::new(),
            last_ask: 0,
            last_number: NUMBERS_FROM,
            first_number: NUMBERS_FROM,
            upstreams: Upstreams::default(),
            holes: Holes::default(),
            due: HashMap::default(),
            questions: HashMap::default(),
            last_question: 0,
            parked: Load::default(),
            early: Load::default(),
            misses: Misses::default(),
            moves: Moves::default(),
            due_ms: u64::MAX,
            is_held_up: false,
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

    /// Adds hubs whose home is here, after the existing ones.
    pub fn add_hubs(&mut self, hubs: impl Iterator<Item = (HubId, ClassIndex)>) {
        self.hubs.extend(hubs.map(|hub| HubState::new(hub, self.is_alone)));
    }

    /// The slot of a hub whose home is here. The hubs of a node that is alone have no id.
    #[must_use]
    pub fn slot_of(&self, hub: HubId) -> Option<u16> {
        let hubs = if self.is_alone { &[] } else { &self.hubs[..] };
        hubs.iter().position(|state| state.id == hub).map(|slot| slot as u16)
    }

    #[inline]
    #[must_use]
    pub fn hub(&self, slot: u16) -> &HubState {
        &self.hubs[usize::from(slot)]
    }

    #[inline]
    pub fn hub_mut(&mut self, slot: u16) -> &mut HubState {
        &mut self.hubs[usize::from(slot)]
    }

    /// The leader of a hub, if it is a node whose link for the hub is up.
    #[must_use]
    pub fn leader_of(&self, slot: u16) -> Option<NodeId> {
        let hub = self.hub(slot);
        match hub.leader {
            Leader::Node(node) if self.peers.reaches(node, hub.id) => Some(node),
            _ => None,
        }
    }

    /// Sets a time limit, in ms.
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
