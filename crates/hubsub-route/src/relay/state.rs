//! What a home shard keeps for the hubs that others lead, or that wait for a leader: who leads
//! them, what is under way to there, and what waits.

use super::handover::Handover;
use super::message::AskId;
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

/// Publishes that wait are numbered from here: upwards as they come, downwards where they were here before.
const NUMBERS_FROM: u64 = 1 << 63;

/// See the module.
#[derive(Debug)]
pub struct Relay {
    /// What the node was told at its start.
    pub cluster: Cluster,
    /// Who numbers what this shard forwards.
    pub producer: ProducerId,
    /// The other nodes.
    pub peers: Peers,
    /// Of the first shard: patterns of nodes.
    pub patterns: PatternSets,
    /// Nodes whose set of patterns this shard holds, and its version.
    pub holding: BTreeMap<NodeId, u64>,
    /// Likewise, of those whose link for that has ended since.
    pub held_before: BTreeMap<NodeId, u64>,
    /// The hubs whose home is here, by place.
    pub hubs: Vec<HubState>,
    /// Requests under way, in the order in which they were sent.
    pub asks: BTreeMap<AskId, UnderWay>,
    /// The number of the last one.
    pub last_ask: u64,
    /// The number of the last publish, of those that came to wait.
    pub last_number: u64,
    /// One more than the number of the last one that was put before all others.
    pub first_number: u64,
    /// Topics of relayed hubs with subscribers here.
    pub upstreams: HashMap<TopicKey, Upstream, RandomState>,
    /// Rooms with a hole before what comes.
    pub resuming: HashMap<RoomHandle, Resume, RandomState>,
    /// Rooms that only patterns may have followed when their leader, or the link to it, went: what is
    /// said of them next shows whether records were missed.
    pub suspects: HashSet<RoomHandle, RandomState>,
    /// Of rooms that are led here: by node's place, the last record that was due there.
    pub due: HashMap<RoomHandle, Vec<(u16, Seq)>, RandomState>,
    /// Topics whose number of subscribers has changed since the leader was told.
    pub dirty: Vec<TopicKey>,
    /// Questions for history that nodes have asked and the log has yet to answer.
    pub questions: HashMap<u32, (NodeId, AskId), RandomState>,
    /// The number of the last of these.
    pub last_question: u32,
    /// Publishes and questions that wait, of all hubs, and their memory.
    pub parked: (usize, usize),
    /// Messages of a later term, and their memory.
    pub early: (usize, usize),
    /// Memory of records that wait for a hole.
    pub held_bytes: usize,
    /// Subscriptions that wait.
    pub attaches: usize,
    /// Rooms whose place was asked for.
    pub misses: Misses,
    /// Rooms that are moved.
    pub moves: Moves,
    /// When something is due at the earliest, in ms.
    pub due_ms: u64,
    /// Whether something waits for a link to take more.
    pub is_held_up: bool,
}

/// One hub.
#[derive(Debug)]
pub struct HubState {
    /// Which.
    pub id: HubId,
    /// Its class.
    pub class: ClassIndex,
    /// Of its leader.
    pub term: Term,
    /// Who leads it.
    pub leader: Leader,
    /// Whether this node acts as its leader without a lead: for its side of a network that is split.
    pub serves: bool,
    /// Whether it is led here and nothing waits before what comes: then a publish commits at once.
    pub is_clear: bool,
    /// Publishes that wait, in the order in which they came.
    pub queue: VecDeque<Parked>,
    /// Publishes under way.
    pub under_way: usize,
    /// The greatest number of those that were sent.
    pub sent: u64,
    /// How many of them were sent to a former leader.
    pub former: usize,
    /// Until when those are waited for, in ms.
    pub former_until_ms: u64,
    /// When the leader is asked again, in ms; `u64::MAX`: it need not be.
    pub retry_ms: u64,
    /// Cursors' reads that wait for a leader.
    pub reads: Vec<Read>,
    /// Reads of the whole hub likewise.
    pub hub_reads: Vec<HubRead>,
    /// Questions that wait for a leader, by when they are over.
    pub questions: VecDeque<Question>,
    /// What nodes sent of a term that is not known here.
    pub early: VecDeque<Early>,
    /// The last number that this shard gave a record for it.
    pub sequence: u64,
    /// If it is led here: nodes whose patterns its records are matched with.
    pub watchers: Watchers,
    /// If not: what came of it.
    pub watched: Watched,
    /// How its lead passes on.
    pub handover: Handover,
}

/// A publish that waits.
#[derive(Debug)]
pub struct Parked {
    /// Its place among those that came.
    pub number: u64,
    /// Who waits.
    pub ticket: Ticket,
    /// What.
    pub record: Arc<Record>,
    /// Since when, in ms.
    pub since_ms: u64,
}

/// A message that came before its term.
#[derive(Debug)]
pub struct Early {
    /// Who sent it.
    pub from: NodeId,
    /// When, in ms.
    pub since_ms: u64,
    /// What.
    pub message: NodeMessage,
}

/// A request under way.
#[derive(Debug)]
pub struct UnderWay {
    /// To whom.
    pub to: NodeId,
    /// Place of the hub.
    pub slot: u16,
    /// The term that it named.
    pub term: Term,
    /// What.
    pub what: Asked,
    /// Records that came as a part of the answer.
    pub records: Vec<Arc<Record>>,
    /// Their memory.
    pub bytes: usize,
}

/// What was asked.
#[derive(Debug)]
pub enum Asked {
    /// A record's place.
    Publish(Parked),
    /// To be sent a topic.
    Interest(AskedInterest),
    /// A cursor's records.
    Read(Box<Read>),
    /// Records of the whole hub.
    Hub(Box<HubRead>),
    /// Records of a room before those that came.
    Hole(RoomHandle),
    /// How many subscribe, or records for HISTORY.
    Question(Question),
}

/// A question about a room that its leader is to answer.
#[derive(Debug)]
pub struct Question {
    /// What [`Missing::is_question`] says is one.
    pub what: Missing,
    /// Until when it waits for a leader, in ms.
    pub until_ms: u64,
}

/// Interest that was told, or told anew.
#[derive(Clone, Debug)]
pub struct AskedInterest {
    /// The room.
    pub room: RoomHandle,
    /// The topic.
    pub key: TopicKey,
    /// The room's last record here at that time.
    pub known: Position,
    /// Whether there were subscribers that have all records until then.
    pub resumes: bool,
    /// The subscription that names where it begins; none: all that begin with the next record.
    pub of: Option<(ShardId, u32)>,
}

/// A topic with subscribers here, in a room that another node leads.
#[derive(Debug)]
pub struct Upstream {
    /// Place of the hub.
    pub slot: u16,
    /// Its room.
    pub room: RoomHandle,
    /// Whether the leader holds the interest.
    pub is_confirmed: bool,
    /// Whether it ever did: then subscribers here have had records.
    pub was_confirmed: bool,
    /// The room's life in which it was confirmed last.
    pub life: Epoch,
    /// The request that is to confirm it.
    pub asked: AskId,
    /// Subscriptions that wait for it.
    pub waiting: Vec<WaitingAttach>,
    /// Whether the leader is to be told of another number.
    pub is_dirty: bool,
}

/// A subscription that waits for its hub's leader.
#[derive(Debug)]
pub struct WaitingAttach {
    /// What.
    pub attach: Attach,
    /// The edge's shard.
    pub from: ShardId,
    /// Until when it waits, in ms.
    pub until_ms: u64,
}

/// A room that goes on behind a break.
#[derive(Debug, Default)]
pub struct Resume {
    /// Topics whose interest is to be confirmed first.
    pub pending: usize,
    /// The last record that must be read then.
    pub upto: Seq,
    /// The read under way.
    pub read: Option<AskId>,
    /// What came meanwhile, in order.
    pub held: VecDeque<Held>,
}

/// What waits for a hole to be read.
#[derive(Debug)]
pub enum Held {
    /// A record, behind that seq.
    Deliver(Seq, Arc<Record>),
    /// Interest that was confirmed.
    Attached(AskId, AskedInterest, Attached),
}

impl Held {
    /// Bytes that it keeps from being freed.
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
    /// It was led here: all that was committed has come.
    pub fn has_seen_own(&mut self) {
        self.watched.saw(0, self.watchers.committed());
    }
}

impl Relay {
    /// Of the `shard`th shard: these hubs, none of which has a leader yet.
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

    /// These hubs have their home here, now that they are known; none has a leader yet. Nothing waits
    /// for those before.
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

    /// These hubs have their home here, too, behind those before.
    pub fn add_hubs(&mut self, hubs: impl Iterator<Item = (HubId, ClassIndex)>) {
        self.hubs.extend(hubs.map(HubState::new));
    }

    /// The place of a hub whose home is here.
    #[must_use]
    pub fn slot_of(&self, hub: HubId) -> Option<u16> {
        self.hubs.iter().position(|state| state.id == hub).map(|slot| slot as u16)
    }

    /// One of them.
    #[must_use]
    pub fn hub(&self, slot: u16) -> &HubState {
        &self.hubs[usize::from(slot)]
    }

    /// As `hub`.
    pub fn hub_mut(&mut self, slot: u16) -> &mut HubState {
        &mut self.hubs[usize::from(slot)]
    }

    /// The leader of a hub, if it is a node whose link for that stands.
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
            // There are no more cursors than that: the oldest is of a connection that has gone.
            reads.swap_remove(0);
        }
        reads.push(read);
    }

    /// Sees again whether a publish to a hub commits at once.
    pub fn settle(&mut self, slot: u16) {
        let hub = self.hub_mut(slot);
        let is_free = hub.former == 0 && hub.handover.gathers.is_none();
        hub.is_clear = hub.leader == Leader::Me && hub.queue.is_empty() && is_free;
    }

    /// The number of a request of this shard.
    pub fn next_ask(&mut self, shard: ShardId) -> AskId {
        self.last_ask += 1;
        AskId::new(self.last_ask, shard)
    }

    /// Something is due then, in ms.
    pub fn wake_by(&mut self, ms: u64) {
        self.due_ms = self.due_ms.min(ms);
    }

    /// Whether a publish of this weight has no place here.
    pub fn is_full(&self, weight: usize) -> bool {
        let limits = &self.cluster.limits;
        self.parked.0 >= limits.parked_max || self.parked.1 + weight > limits.parked_bytes_max
    }

    /// The number of a publish that comes to wait.
    pub fn number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Puts a publish where its number says.
    pub fn park(&mut self, slot: u16, parked: Parked) {
        self.parked.0 += 1;
        self.parked.1 += parked.record.weight();
        self.wake_by(parked.since_ms + self.cluster.limits.parked_ms);
        let queue = &mut self.hub_mut(slot).queue;
        let at = queue.partition_point(|other| other.number < parked.number);
        queue.insert(at, parked);
        self.settle(slot);
    }

    /// Takes the first out.
    pub fn unpark(&mut self, slot: u16) -> Option<Parked> {
        let parked = self.hub_mut(slot).queue.pop_front()?;
        self.parked.0 -= 1;
        self.parked.1 -= parked.record.weight();
        Some(parked)
    }

    /// Takes a request off that has been answered, or will not be.
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
    /// Whether it was sent to who leads no more.
    fn former(&self, hub: &HubState) -> bool {
        self.term != hub.term || hub.leader != Leader::Node(self.to)
    }
}
