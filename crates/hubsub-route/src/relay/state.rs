//! State of a home shard for the hubs that others lead, or that wait for a leader: their leaders, requests in
//! flight to these, and waiting requests.

use super::AskId;
use super::handover::Handover;
use super::misses::{Misses, Missing};
use super::moves::Moves;
use super::nodes::Peers;
use super::patterns::PatternSets;
use super::watch::{Watched, Watchers};
use super::{Cluster, Leader, NodeMessage};
use crate::cursors::{CURSORS_MAX, Read};
use crate::hubread::HubRead;
use crate::record::Record;
use crate::rooms::{RoomHandle, TopicKey};
use crate::{Attach, Attached, Ticket};
use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use hubsub_types::class::ClassIndex;
use hubsub_types::{Epoch, HubId, NodeId, Position, ProducerId, Seq, ShardId, Term};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Base of the numbers of waiting publishes: they count up as publishes arrive, and down for publishes that
/// were here before.
const NUMBERS_FROM: u64 = 1 << 63;

/// The state of a home shard for its hubs in a cluster.
#[derive(Debug)]
pub struct Relay {
    pub cluster: Cluster,
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
    pub asks: BTreeMap<AskId, UnderWay>,
    /// The number of the last request.
    pub last_ask: u64,
    /// The number of the last publish that arrived and waits.
    pub last_number: u64,
    /// One more than the number of the last publish that was put before all others.
    pub first_number: u64,
    /// Topics of relayed hubs with subscribers here.
    pub upstreams: HashMap<TopicKey, Upstream, RandomState>,
    /// Rooms with a hole before buffered records.
    pub resuming: HashMap<RoomHandle, Resume, RandomState>,
    /// Rooms that possibly only patterns followed when their leader, or the link to it, was lost: their next
    /// message shows whether records were missed.
    pub suspects: HashSet<RoomHandle, RandomState>,
    /// For rooms that are led here: by node's place, the last record that was due there.
    pub due: HashMap<RoomHandle, Vec<(u16, Seq)>, RandomState>,
    /// Topics whose changed number of subscribers has yet to be sent to the leader.
    pub dirty: Vec<TopicKey>,
    /// History requests of nodes that the log has yet to answer.
    pub questions: HashMap<u32, (NodeId, AskId), RandomState>,
    /// The number of the last one of these.
    pub last_question: u32,
    /// The number of waiting publishes and requests, of all hubs, and their memory in bytes.
    pub parked: (usize, usize),
    /// The number of buffered messages of a later term, and their memory in bytes.
    pub early: (usize, usize),
    /// Memory of records that wait for a hole, in bytes.
    pub held_bytes: usize,
    /// The number of waiting subscriptions.
    pub attaches: usize,
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
    pub under_way: usize,
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
pub struct UnderWay {
    pub to: NodeId,
    /// Slot of the hub.
    pub slot: u16,
    /// The term that it contained.
    pub term: Term,
    pub what: Asked,
    /// Records that arrived as parts of the response.
    pub records: Vec<Arc<Record>>,
    /// Memory of these, in bytes.
    pub bytes: usize,
}

/// The kind of a request in flight.
#[derive(Debug)]
pub enum Asked {
    /// A publish that requests a position.
    Publish(Parked),
    /// Interest in a topic.
    Interest(AskedInterest),
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

/// Interest that was sent, or sent again.
#[derive(Clone, Debug)]
pub struct AskedInterest {
    pub room: RoomHandle,
    pub key: TopicKey,
    /// The room's last record here when it was sent.
    pub known: Position,
    /// Whether there were subscribers that have all records up to then.
    pub resumes: bool,
    /// The subscription whose start is requested; none: all that start with the next record.
    pub of: Option<(ShardId, u32)>,
}

/// A topic with subscribers here, in a room that another node leads.
#[derive(Debug)]
pub struct Upstream {
    /// Slot of the hub.
    pub slot: u16,
    pub room: RoomHandle,
    /// Whether the leader has confirmed the interest.
    pub is_confirmed: bool,
    /// Whether a leader ever has: then subscribers here may have received records.
    pub was_confirmed: bool,
    /// The room's epoch when it was last confirmed.
    pub life: Epoch,
    /// The request that has to be confirmed.
    pub asked: AskId,
    /// Subscriptions that wait for the confirmation.
    pub waiting: Vec<WaitingAttach>,
    /// Whether a changed number has yet to be sent to the leader.
    pub is_dirty: bool,
}

#[derive(Debug)]
pub struct WaitingAttach {
    pub attach: Attach,
    /// The edge shard that sent it.
    pub from: ShardId,
    /// Time limit, in ms.
    pub until_ms: u64,
}

/// A room that continues after a break.
#[derive(Debug, Default)]
pub struct Resume {
    /// The number of topics whose interest has to be confirmed first.
    pub pending: usize,
    /// The last record that has to be read then.
    pub upto: Seq,
    /// The read in flight.
    pub read: Option<AskId>,
    /// Records and confirmations that arrived meanwhile, in order.
    pub held: VecDeque<Held>,
}

/// A buffered message that waits for the read of a hole.
#[derive(Debug)]
pub enum Held {
    /// A record, with the seq of the previous record that was due.
    Deliver(Seq, Arc<Record>),
    /// Interest that the leader has confirmed.
    Attached(AskId, AskedInterest, Attached),
}

impl Held {
    /// Bytes that it keeps allocated.
    #[must_use]
    pub fn weight(&self) -> usize {
        match self {
            Held::Deliver(_, record) => record.weight(),
            Held::Attached(..) => size_of::<Held>(),
        }
    }
}

impl HubState {
    fn new((id, class): (HubId, ClassIndex)) -> HubState {
        HubState {
            id,
            class,
            term: Term(0),
            leader: Leader::None,
            serves: false,
            is_clear: false,
            queue: VecDeque::new(),
            under_way: 0,
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
}

impl HubState {
    /// This node led the hub: it has received all committed records.
    pub fn has_seen_own(&mut self) {
        self.watched.saw(0, self.watchers.committed());
    }
}

impl Relay {
    /// The state of the shard with this number: its hubs have no leader yet.
    #[must_use]
    pub fn new(cluster: Cluster, shard: ShardId, hubs: impl Iterator<Item = (HubId, ClassIndex)>) -> Relay {
        Relay {
            producer: ProducerId(cluster.producer.0 + u64::from(shard.0)),
            cluster,
            peers: Peers::default(),
            patterns: PatternSets::default(),
            holding: BTreeMap::new(),
            held_before: BTreeMap::new(),
            hubs: hubs.map(HubState::new).collect(),
            asks: BTreeMap::new(),
            last_ask: 0,
            last_number: NUMBERS_FROM,
            first_number: NUMBERS_FROM,
            upstreams: HashMap::default(),
            resuming: HashMap::default(),
            suspects: HashSet::default(),
            due: HashMap::default(),
            dirty: Vec::new(),
            questions: HashMap::default(),
            last_question: 0,
            parked: (0, 0),
            early: (0, 0),
            held_bytes: 0,
            attaches: 0,
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
        self.hubs = hubs.map(HubState::new).collect();
        self.producer = ProducerId(cluster.producer.0 + u64::from(shard.0));
        self.cluster = cluster;
    }

    /// Adds hubs whose home is here, after the existing ones.
    pub fn add_hubs(&mut self, hubs: impl Iterator<Item = (HubId, ClassIndex)>) {
        self.hubs.extend(hubs.map(HubState::new));
    }

    /// The slot of a hub whose home is here.
    #[must_use]
    pub fn slot_of(&self, hub: HubId) -> Option<u16> {
        self.hubs.iter().position(|state| state.id == hub).map(|slot| slot as u16)
    }

    #[must_use]
    pub fn hub(&self, slot: u16) -> &HubState {
        &self.hubs[usize::from(slot)]
    }

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

    /// Keeps a cursor's read until its hub has a leader.
    pub fn keep_read(&mut self, slot: u16, read: Read) {
        let reads = &mut self.hub_mut(slot).reads;
        if reads.len() >= CURSORS_MAX {
            // There can be no more cursors than that: the oldest read is of a closed connection.
            reads.swap_remove(0);
        }
        reads.push(read);
    }

    /// Updates whether a publish to a hub commits at once.
    pub fn settle(&mut self, slot: u16) {
        let hub = self.hub_mut(slot);
        let is_free = hub.former == 0 && hub.handover.gathers.is_none();
        hub.is_clear = hub.leader == Leader::Me && hub.queue.is_empty() && is_free;
    }

    /// The next number for a request of this shard.
    pub fn next_ask(&mut self, shard: ShardId) -> AskId {
        self.last_ask += 1;
        AskId::new(self.last_ask, shard)
    }

    /// Sets a time limit, in ms.
    pub fn wake_by(&mut self, ms: u64) {
        self.due_ms = self.due_ms.min(ms);
    }

    /// Whether there is no space for a waiting publish of this weight.
    pub fn is_full(&self, weight: usize) -> bool {
        let limits = &self.cluster.limits;
        self.parked.0 >= limits.parked_max || self.parked.1 + weight > limits.parked_bytes_max
    }

    /// The next number for a publish that arrives and waits.
    pub fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Adds a waiting publish in the order of its number.
    pub fn park(&mut self, slot: u16, parked: Parked) {
        self.parked.0 += 1;
        self.parked.1 += parked.record.weight();
        self.wake_by(parked.since_ms + self.cluster.limits.parked_ms);
        let queue = &mut self.hub_mut(slot).queue;
        let at = queue.partition_point(|other| other.number < parked.number);
        queue.insert(at, parked);
        self.settle(slot);
    }

    /// Removes and returns the first waiting publish.
    pub fn unpark(&mut self, slot: u16) -> Option<Parked> {
        let parked = self.hub_mut(slot).queue.pop_front()?;
        self.parked.0 -= 1;
        self.parked.1 -= parked.record.weight();
        Some(parked)
    }

    /// Removes a request that was answered, or will not be.
    pub fn take(&mut self, ask: AskId) -> Option<UnderWay> {
        let under_way = self.asks.remove(&ask)?;
        if let Asked::Publish(_) = under_way.what {
            let hub = self.hub_mut(under_way.slot);
            hub.under_way -= 1;
            if under_way.former(hub) {
                hub.former -= 1;
            }
        }
        Some(under_way)
    }
}

impl UnderWay {
    /// Whether it was sent to a former leader.
    fn former(&self, hub: &HubState) -> bool {
        self.term != hub.term || hub.leader != Leader::Node(self.to)
    }
}
