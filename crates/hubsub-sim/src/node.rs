//! A node of the simulation: its shards, the mail between them, and its links to other nodes.

use crate::forget;
use crate::moves;
use crate::rng::Rng;
use crate::world::World;
use hubsub_route::counts::SHARDS_MAX;
use hubsub_route::places::Places;
use hubsub_route::relay::limits::{PARKED_BYTES_MAX, PARKED_MS};
use hubsub_route::{
    Broker, Cluster, Give, HubSeed, Hubs, Leader, Msg, NodeMessage, Producers, RelayLimits, Settings,
};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ClassTable, ConnKey, HubId, Limits, ProducerId, ShardId, Term};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

/// Connections per shard that subscribe at random.
pub const CONNS: u32 = 2;

/// Index of the connection that follows hubs, as a session does.
pub const FOLLOWER: u32 = CONNS;

pub enum Mail {
    /// From another shard's broker.
    Broker(Msg),
    /// A link is up: node, link, number of links, session.
    Up(u16, u16, u16, u64),
    /// A link is down: node, link.
    Down(u16, u16),
    Node(u16, NodeMessage),
    Route(HubId, Term, Leader),
    /// A room of a class was moved.
    Placed(ClassIndex, moves::Placed),
    /// A room has no place, and the lookup was not to create one.
    Absent(Box<[u8]>),
}

pub struct Node {
    pub brokers: Vec<Broker>,
    pub worlds: Vec<World>,
    /// By sender and receiver. Link events are sent by the link's shard.
    pub mail: BTreeMap<(u16, u16), VecDeque<Mail>>,
    /// Routes that the node has not received yet, in order for each hub.
    pub routes: BTreeMap<HubId, VecDeque<(Term, Option<u16>)>>,
    pub hubs: Arc<Hubs>,
    /// Room moves that it has not received yet.
    pub moves: VecDeque<moves::Move>,
    pub view: forget::View,
}

#[derive(Default)]
pub struct Link {
    /// Number of times that it was up; 0: never.
    pub session: u64,
    pub is_up: bool,
    /// Nodes of the pair that have not noticed yet that it is down.
    pub unheard: BTreeSet<u16>,
    /// By sender: live frames, and reads.
    pub frames: BTreeMap<u16, [VecDeque<NodeMessage>; 2]>,
}

/// The controller's entry for a hub.
#[derive(Clone, Debug)]
pub struct HubEntry {
    pub id: HubId,
    pub term: u64,
    pub leader: Option<u16>,
    /// The node that has its log; none if it has no log.
    pub home: Option<u16>,
    /// Whether the former leader must still give up.
    pub is_moving: bool,
}

/// A deep copy, as another process receives it.
pub(crate) fn copy(message: NodeMessage) -> NodeMessage {
    let own = |record: Arc<hubsub_route::Record>| Arc::new((*record).clone());
    match message {
        NodeMessage::Publish { ask, hub, term, record } => {
            NodeMessage::Publish { ask, hub, term, record: own(record) }
        }
        NodeMessage::Deliver { hub, term, previous, before, record } => {
            NodeMessage::Deliver { hub, term, previous, before, record: own(record) }
        }
        NodeMessage::Give { hub, give } => {
            NodeMessage::Give { hub, give: Give { record: own(give.record), ..give } }
        }
        NodeMessage::Range { ask, record } => NodeMessage::Range { ask, record: own(record) },
        message => message,
    }
}

impl Node {
    pub(crate) fn new(
        node: u16,
        rng: &mut Rng,
        classes: &Arc<ClassTable>,
        ids: &[Vec<HubId>],
        entries: &[HubEntry],
        (small, is_asked): (bool, bool),
    ) -> Node {
        let shards = 1 + rng.below(3) as u16;
        assert!(shards <= SHARDS_MAX);
        let parked_max = if small { 4 } else { 10_000 };
        let limits = RelayLimits { parked_max, parked_bytes_max: PARKED_BYTES_MAX, parked_ms: PARKED_MS };
        let producer = ProducerId((u64::from(node) + 1) << 8);
        let asked = classes.classes().iter().map(|class| is_asked && !class.durability.is_logged());
        let places = Arc::new(Places::new(asked));
        let hubs = Arc::new(Hubs::with_places(shards, ids, places, Cluster { producer, limits }));
        let epochs = Arc::new(AtomicU64::new((u64::from(node) + 1) << 32));
        let limits = Limits { route_cache_topics_max: 2, pattern_cache_topics_max: 2, ..Limits::default() };
        let broker = |shard| {
            let (classes, epochs, hubs) = (Arc::clone(classes), Arc::clone(&epochs), Arc::clone(&hubs));
            Broker::new(Settings {
                shard: ShardId(shard),
                hubs,
                classes,
                limits: limits.clone(),
                epochs,
                retained: Arc::default(),
            })
        };
        let mut brokers: Vec<Broker> = (0..shards).map(broker).collect();
        let mut worlds: Vec<World> = (0..shards).map(|_| World::default()).collect();
        for broker in &mut brokers {
            (0..=FOLLOWER).for_each(|conn| broker.connected(key(conn)));
        }
        for entry in entries.iter().filter(|entry| entry.home == Some(node)) {
            let place = ids.iter().enumerate().find_map(|(class, ids)| {
                let index = ids.iter().position(|&id| id == entry.id)?;
                Some((class as u16, index as u16))
            });
            let (class, index) = place.expect("every hub is of a class");
            let home = usize::from(hubsub_message::home(entry.id, shards).0);
            let seed =
                HubSeed { id: entry.id, class, index, next: 1, continuous_from: 1, ..HubSeed::default() };
            brokers[home].rooms.add_hub(&seed, Producers::new(hubsub_route::Window::default()));
            worlds[home].logs.insert(entry.id, crate::log::Log::default());
        }
        let (mail, routes, moves) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        let view = forget::View::default();
        Node { brokers, worlds, mail, routes, hubs, moves, view }
    }
}

#[must_use]
pub fn key(conn: u32) -> ConnKey {
    ConnKey { index: conn, generation: 0 }
}
