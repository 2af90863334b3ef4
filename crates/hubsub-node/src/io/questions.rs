//! Questions of one shard to another and of the control plane to shards, with their responses.

use hubsub_route::consumers::ConsumerInfo;
use hubsub_route::occupancy::Counts;
use hubsub_route::presence::Seen;
use hubsub_route::rooms::{HistoryPart, HistoryQuery};
use hubsub_route::traces::{Bounds, Step, StepKind};
use hubsub_route::{Headers, Namespace, Producer, RoomInfo};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ErrorCode, Position, PrincipalId, ShardId};
use serde::{Serialize, Serializer};
use std::sync::Arc;

/// A request about a shard's state.
#[derive(Debug)]
pub enum Question {
    TopicCounts(Namespace, Arc<Vec<Vec<u8>>>),
    /// Topics with subscribers, all or those that match a glob; refused if their names exceed this many
    /// bytes.
    Topics(Namespace, Option<Vec<u8>>, u64),
    /// Client connections; refused if their lines exceed this many bytes.
    Clients(ClientFilter, u64),
    KillClients(ClientFilter, String),
    /// Rooms in order of name: pattern, name to start after, limit.
    Rooms(Option<Vec<u8>>, Option<Vec<u8>>, usize),
    /// One room; created if it is missing and the flag is set.
    Room(Vec<u8>, bool),
    DeleteRoom(Vec<u8>),
    History(HistoryQuery),
    /// Records of a room; refused at once if the leader of its hub is unreachable.
    Row(HistoryQuery),
    Busiest(usize),
    /// Sessions of MQTT clients in order of client id: a single id, or an id to start after and a limit.
    Sessions(Option<String>, Option<String>, usize),
    /// End the session of this client id.
    EndSession(String),
    /// Groups with a persisted position.
    Consumers,
    /// Make a group continue from its stored entry, or start afresh.
    ForgetConsumer(Vec<u8>),
    /// Members of a room, from the shard that owns them.
    Members(Vec<u8>),
    /// Number of members of a room.
    Occupancy(Vec<u8>),
    /// Follow the next records of a topic under a number.
    TraceStart(u64, Vec<u8>, Bounds),
    /// The steps of the records that are followed under a number.
    TraceSteps(u64),
    TraceEnd(u64),
}

impl Question {
    /// The room that the request concerns, if any.
    pub fn room(&self) -> Option<&[u8]> {
        match self {
            Question::Room(room, _) | Question::DeleteRoom(room) => Some(room),
            Question::History(query) | Question::Row(query) => Some(&query.room),
            _ => None,
        }
    }
}

/// Selects clients that meet all conditions.
#[derive(Clone, Debug, Default)]
pub struct ClientFilter {
    /// Any of these ids, sorted; empty means any.
    pub ids: Vec<u64>,
    /// Any of these MQTT client ids, sorted; empty means any client.
    pub client_ids: Vec<String>,
    pub addr: Option<String>,
    /// Local address of the connection.
    pub laddr: Option<String>,
    pub user: Option<String>,
    /// Redis's client type: `normal`, `pubsub`, or one that no client has.
    pub kind: Option<String>,
    /// Minimum age of the connection, in s.
    pub age_s_min: u64,
    /// Excludes this client id.
    pub except: Option<u64>,
}

#[derive(Debug)]
pub enum Part {
    /// To `TopicCounts`, in the order of the request.
    Counts(Vec<u64>),
    /// Number of subscribers in the whole cluster to the topic at this index of a request.
    Counted(u32, Result<u64, ErrorCode>),
    Topics(Vec<Arc<[u8]>>),
    Clients(Vec<ClientInfo>),
    Sessions(Vec<SessionInfo>),
    /// To `KillClients`, `DeleteRoom`, `EndSession`, `TraceStart` and `TraceEnd`: how many.
    Number(Result<u64, ErrorCode>),
    Rooms(Result<Vec<Listed>, ErrorCode>),
    History(HistoryPart),
    /// To `Busiest`: rooms with publishes, bytes in and bytes out per second.
    Busiest(Vec<(Arc<[u8]>, [f64; 3])>),
    /// Names and Redis addresses of a room's members, its leader first.
    Located(Result<Vec<(String, String)>, ErrorCode>),
    Consumers(Vec<ConsumerInfo>),
    Members(Arc<Shown>),
    Occupancy(Counts),
    TraceSteps(TraceSteps),
    /// To `Topics` and `Clients`: the limit of bytes was exceeded.
    TooLong,
    /// To any request: refused with this code.
    Refused(ErrorCode),
}

impl Part {
    /// The records in the response to a question for history.
    pub fn history(part: Option<Part>) -> Result<HistoryPart, ErrorCode> {
        match part {
            Some(Part::History(part)) => Ok(part),
            Some(Part::Refused(code)) => Err(code),
            other => unreachable!("records answer a question for history: {other:?}"),
        }
    }
}

/// The members of a room.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// Listed members, sorted by key.
    pub members: Vec<Seen>,
    /// The number of members, including those not listed.
    pub count: u64,
}

/// A room, in memory or only in its log.
#[derive(Clone, Debug)]
pub enum Listed {
    /// In memory on the shard of its hub.
    Here(RoomInfo),
    /// Unused, and only in its hub's log.
    InLog(ColdRoom),
}

impl Listed {
    pub fn name(&self) -> &[u8] {
        match self {
            Listed::Here(room) => &room.name,
            Listed::InLog(room) => &room.name,
        }
    }
}

/// Properties of a logged room that are known without reading its records.
#[derive(Clone, Debug)]
pub struct ColdRoom {
    pub name: Box<[u8]>,
    pub class: ClassIndex,
    /// Index of its hub within the class.
    pub hub: u16,
    /// Shard of that hub.
    pub shard: ShardId,
    /// Position of its last record.
    pub position: Position,
}

impl ClientInfo {
    /// Approximate length of its line in CLIENT LIST.
    pub fn line_bytes(&self) -> u64 {
        const REST: usize = 256;
        let texts = [&self.addr, &self.laddr, &self.name, &self.lib_name, &self.lib_ver];
        (REST + texts.iter().map(|text| text.len()).sum::<usize>()) as u64
    }
}

/// A client connection as CLIENT LIST and the API show it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct ClientInfo {
    pub id: u64,
    pub shard: u16,
    pub addr: String,
    /// Local address of the connection.
    pub laddr: String,
    #[serde(skip)]
    pub descriptor: i64,
    pub name: String,
    pub lib_name: String,
    pub lib_ver: String,
    /// Protocol with its version.
    pub protocol: &'static str,
    /// Time since it connected, in s.
    pub age_s: u64,
    /// Time since its last command, in s.
    pub idle_s: u64,
    #[serde(skip)]
    pub flags: String,
    pub subscriptions: u64,
    pub patterns: u64,
    #[serde(skip)]
    pub shard_subscriptions: u64,
    /// Number of commands queued by MULTI; `None` outside of it.
    #[serde(skip)]
    pub multi: Option<u64>,
    /// Bytes of an unfinished command.
    #[serde(skip)]
    pub query_bytes: u64,
    /// Bytes of output that its socket has not taken.
    pub pending_bytes: u64,
    #[serde(skip)]
    pub pending_frames: u64,
    /// Keep-alive interval of an MQTT client, in s; 0 for other clients and if disabled.
    pub keep_alive_s: u64,
    /// Messages of QoS 1 and 2 that an MQTT client has not acknowledged.
    pub inflight: u64,
    /// Limit of `inflight`; 0 for other clients.
    pub inflight_max: u64,
    /// Records that wait for the MQTT client's send window.
    pub waiting: u64,
    /// Records dropped by its rooms' slow-subscriber policy.
    pub dropped: u64,
    pub lagging: u64,
    /// Its last command, in lower case.
    #[serde(skip)]
    pub command: &'static str,
    /// Totals, in the order of `meter`.
    #[serde(flatten, serialize_with = "totals")]
    pub totals: [u64; 4],
    /// Rates per second over the last second, in the order of `meter`.
    #[serde(flatten, serialize_with = "per_second")]
    pub per_second: [f32; 4],
    /// Rates per second over about a minute, in the order of `meter`.
    #[serde(flatten, serialize_with = "per_minute")]
    pub per_minute: [f32; 4],
}

fn totals<S: Serializer>(totals: &[u64; 4], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(["messages_in", "messages_out", "bytes_in", "bytes_out"].iter().zip(totals))
}

fn per_second<S: Serializer>(rates: &[f32; 4], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(["messages_in_1s", "messages_out_1s", "bytes_in_1s", "bytes_out_1s"].iter().zip(rates))
}

fn per_minute<S: Serializer>(rates: &[f32; 4], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(["messages_in_60s", "messages_out_60s", "bytes_in_60s", "bytes_out_60s"].iter().zip(rates))
}

/// An MQTT session that outlives its connection, as the API shows it.
#[derive(Clone, Debug, Serialize)]
pub struct SessionInfo {
    pub client_id: String,
    pub shard: u16,
    /// Id of its connection, if it is connected.
    #[serde(rename = "client")]
    pub conn: Option<u64>,
    /// Session expiry interval after disconnection, in s; `None`: it never expires.
    pub expiry_s: Option<u64>,
    /// Time until it expires while offline, in s.
    pub ends_in_s: Option<u64>,
    pub subscriptions: u64,
    /// Messages sent to the client but not acknowledged.
    pub unacknowledged: u64,
    /// Messages queued for it.
    pub queued: u64,
    /// Memory of the queued messages, in bytes.
    pub queued_bytes: u64,
    /// Messages dropped while it was offline.
    pub dropped: u64,
}

/// The steps of followed records.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TraceSteps {
    /// Positions of which all shards have all steps: those after this one,
    pub after: Option<(u64, u64)>,
    /// and up to this one.
    pub until: Option<(u64, u64)>,
    /// Whether a shard takes no more records.
    pub is_full: bool,
    pub steps: Vec<TraceStep>,
}

impl TraceSteps {
    /// Adds those of another shard.
    pub fn add(&mut self, other: TraceSteps) {
        self.after = self.after.max(other.after);
        self.until = self.until.into_iter().chain(other.until).min();
        self.is_full |= other.is_full;
        self.steps.extend(other.steps);
    }
}

/// A step of a followed record, as the API shows it.
#[derive(Clone, Debug, Serialize)]
pub struct TraceStep {
    /// Position of the record.
    pub epoch: u64,
    pub seq: u64,
    /// Time since 1970, in µs.
    pub at_us: u64,
    pub shard: u16,
    pub kind: &'static str,
    /// The subscribers, or the offset in the hub's log.
    pub count: Option<u64>,
    /// The shard of this node that sent or gets the record.
    pub peer_shard: Option<u16>,
    /// Id of the other node in this process.
    pub peer_node: Option<u16>,
}

impl TraceStep {
    pub fn new(shard: ShardId, position: Position, step: &Step) -> TraceStep {
        let (kind, count, peer_shard, peer_node) = match step.kind {
            StepKind::Received => ("received", None, None, None),
            StepKind::Waits => ("waits", None, None, None),
            StepKind::SentToShard(to) => ("sent_to_shard", None, Some(to.0), None),
            StepKind::SentToLeader(to) => ("sent_to_leader", None, None, Some(to.0)),
            StepKind::FromShard(from) => ("from_shard", None, Some(from.0), None),
            StepKind::FromNode(from) => ("from_node", None, None, Some(from.0)),
            StepKind::Logged(offset) => ("logged", Some(offset), None, None),
            StepKind::Synced => ("synced", None, None, None),
            StepKind::Committed(receivers) => ("committed", Some(receivers), None, None),
            StepKind::SentToNode(to) => ("sent_to_node", None, None, Some(to.0)),
            StepKind::FromLeader(from) => ("from_leader", None, None, Some(from.0)),
            StepKind::Delivered(count) => ("delivered", Some(count), None, None),
            StepKind::Answered => ("answered", None, None, None),
            StepKind::Acknowledged => ("acknowledged", None, None, None),
        };
        let (epoch, seq) = (position.epoch.0, position.seq.0);
        TraceStep { epoch, seq, at_us: step.at_us, shard: shard.0, kind, count, peer_shard, peer_node }
    }
}

#[derive(Clone, Debug)]
pub struct Item {
    pub topic: Vec<u8>,
    pub payload: Vec<u8>,
    pub headers: Headers,
    pub publisher: String,
    /// Producer and sequence number, if the publisher assigned one.
    pub producer: Option<Producer>,
}

/// A request of the control plane on behalf of a principal.
pub struct Request {
    /// The principal whose permissions apply.
    pub principal: PrincipalId,
    pub call: Call,
}

/// Operations that the control plane can request.
pub enum Call {
    /// Publish these in order.
    Publish(Vec<Item>),
    /// A request to all shards.
    All(Question),
    /// A request to the shard of a room.
    Room(Vec<u8>, Question),
    /// Members of a room.
    Members(Vec<u8>),
}
