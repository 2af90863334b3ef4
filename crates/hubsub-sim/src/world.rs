//! The environment of one shard's broker: it records the broker's effects.

use crate::log::{Entry, Log};
use hubsub_route::rooms::HistoryPart;
use hubsub_route::{
    Answer, Ask, Asker, CloseReason, Delivery, HubLogRead, LogRead, Msg, NodeMessage, Recalled, Record,
    RecordView, Sink, Via,
};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ErrorCode, HubId, NodeId, OnGap, OnSlow, Position, Protocol, ShardId, Term};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// An event that a connection received, in order.
#[derive(Clone, Debug)]
pub enum Saw {
    /// A record, by a pattern or by its topic.
    Record { pattern: Option<String>, topic: String, position: Position, id: u32 },
    /// A record, delivered to a member of a group.
    Given {
        /// The broker's name of the group.
        group: Vec<u8>,
        topic: String,
        position: Position,
        id: u32,
    },
    Gap {
        topic: String,
        from: Position,
        /// Last missing position; seq 0: the epoch has ended.
        to: Position,
    },
    /// A notice that records of a topic were dropped for it, as its class configures.
    Squeezed { topic: String },
}

#[derive(Clone, Debug)]
pub enum Did {
    Saw(u32, Saw),
    Answer(Asker, Answer),
    /// The answer to a history request, by its number.
    History(u32, Result<HistoryPart, ErrorCode>),
}

#[derive(Default)]
pub struct World {
    pub sent: Vec<(ShardId, Msg)>,
    pub frames: Vec<(NodeId, HubId, NodeMessage)>,
    pub did: Vec<Did>,
    /// Connections whose output is full.
    pub full: BTreeSet<u32>,
    pub congested: BTreeSet<u16>,
    /// Links that are up as far as this shard knows, by node and number, with their session.
    pub reach: BTreeMap<(u16, u16), u64>,
    pub links: BTreeMap<u16, u16>,
    pub shut: BTreeSet<(u16, u16)>,
    /// Hubs without a log for which this process has no leader lease, even if their routes name it.
    pub without_lead: BTreeSet<HubId>,
    /// Hubs that this process has given up, and the last term in which it did.
    pub gave_up: BTreeMap<HubId, Term>,
    pub logs: BTreeMap<HubId, Log>,
    pub asked: VecDeque<LogRead>,
    pub hub_asked: VecDeque<HubLogRead>,
    pub closed: Vec<u32>,
    /// Rooms to look up, and whether each gets a place if it has none.
    pub missed: Vec<(ClassIndex, Box<[u8]>, bool)>,
}

impl World {
    /// A hub's link to a node and its session, if it is up.
    pub fn way(&self, node: NodeId, hub: HubId) -> Option<(u16, u64)> {
        let links = *self.links.get(&node.0)?;
        let link = (hub.0 % u32::from(links)) as u16;
        self.reach.get(&(node.0, link)).map(|&session| (link, session))
    }
}

fn id_of(payload: &[u8]) -> u32 {
    u32::from_le_bytes(payload.try_into().expect("each payload is a number"))
}

impl Sink for World {
    fn record_begins(&mut self) {}
    fn deliver(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
        if self.full.contains(&conn) {
            return Delivery::Full;
        }
        let topic = String::from_utf8_lossy(record.topic).into_owned();
        let (position, id) = (record.position, id_of(record.payload));
        let pattern = match via {
            Via::Topic => None,
            Via::Pattern(_, source) => Some(String::from_utf8_lossy(source).into_owned()),
            Via::Group(group) => {
                let group = group.to_vec();
                self.did.push(Did::Saw(conn, Saw::Given { group, topic, position, id }));
                return Delivery::Taken;
            }
        };
        self.did.push(Did::Saw(conn, Saw::Record { pattern, topic, position, id }));
        Delivery::Taken
    }
    fn squeeze(&mut self, conn: u32, _: Via<'_>, record: &RecordView<'_>, _: OnSlow, _: OnGap) {
        let topic = String::from_utf8_lossy(record.topic).into_owned();
        self.did.push(Did::Saw(conn, Saw::Squeezed { topic }));
    }
    fn gap(&mut self, conn: u32, topic: &[u8], from: Position, to: Position, _: OnGap) {
        let topic = String::from_utf8_lossy(topic).into_owned();
        self.did.push(Did::Saw(conn, Saw::Gap { topic, from, to }));
    }
    fn close(&mut self, conn: u32, _: CloseReason) {
        self.closed.push(conn);
    }
    fn wants_replay(&self, conn: u32) -> bool {
        !self.full.contains(&conn)
    }
    fn protocol(&self, _: u32) -> Option<Protocol> {
        Some(Protocol::Redis)
    }

    fn publisher(&self, conn: u32) -> Box<str> {
        conn.to_string().into()
    }
    fn recall(&self, hub: HubId, room: &[u8]) -> Option<Recalled> {
        self.logs.get(&hub)?.recall(room)
    }
    fn recalls_through(&self, hub: HubId) -> u64 {
        self.logs.get(&hub).map_or(0, |log| log.safe as u64)
    }
    fn append(&mut self, hub: HubId, offset: u64, room: &[u8], record: &Record) {
        let log = self.logs.entry(hub).or_default();
        log.entries.push(Entry { room: room.to_vec(), record: record.clone() });
        assert_eq!(log.entries.len() as u64, offset, "offsets have no gaps");
    }
    fn append_deletion(&mut self, _: HubId, _: u64, _: &[u8], _: Position, _: u64) {
        unreachable!("no room is deleted")
    }
    fn log_refuses(&self, _: HubId) -> Option<ErrorCode> {
        None
    }
    fn log_is_behind(&self) -> bool {
        false
    }
    fn read_log(&mut self, read: Box<LogRead>) {
        self.asked.push_back(*read);
    }
    fn read_hub_log(&mut self, read: Box<HubLogRead>) {
        self.hub_asked.push_back(*read);
    }
    fn history(&mut self, ask: Ask, part: Result<HistoryPart, ErrorCode>) {
        self.did.push(Did::History(ask.number, part));
    }
    fn deleted(&mut self, _: Ask, _: Result<(), ErrorCode>) {}
    fn send(&mut self, to: ShardId, msg: Msg) {
        self.sent.push((to, msg));
    }
    fn congested(&self, to: ShardId) -> bool {
        self.congested.contains(&to.0)
    }
    fn send_node(&mut self, node: NodeId, hub: HubId, message: NodeMessage) -> Result<(), NodeMessage> {
        match self.way(node, hub) {
            Some((link, _)) if !self.shut.contains(&(node.0, link)) => {
                self.frames.push((node, hub, message));
                Ok(())
            }
            _ => Err(message),
        }
    }
    fn node_flows(&self, node: NodeId, hub: HubId) -> bool {
        self.way(node, hub).is_some_and(|(link, _)| !self.shut.contains(&(node.0, link)))
    }
    fn leads(&self, hub: HubId, term: Term) -> bool {
        !self.without_lead.contains(&hub) && self.gave_up.get(&hub).is_none_or(|&gave_up| gave_up < term)
    }
    fn room_miss(&mut self, class: ClassIndex, room: &[u8], makes: bool) {
        self.missed.push((class, room.into(), makes));
    }
    fn answer(&mut self, asker: Asker, answer: Answer) {
        self.did.push(Did::Answer(asker, answer));
    }
}
