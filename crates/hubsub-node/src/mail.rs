//! What shards say to each other beside the brokers' messages: questions to
//! all shards and their answers, requests of the control plane, orders.

use crate::http::PollMail;
use crate::led::LeadMail;
use crate::link::LinkMail;
use crate::log::OpenedHub;
use crate::mqtt::{MqttMail, Traveller};
use crate::presence::{PresenceMail, Shown};
use crate::redis::cluster::{NewRoster, Roster};
use crate::routes::RouteMail;
use hubsub_route::consumers::ConsumerInfo;
use hubsub_route::occupancy::Counts;
use hubsub_route::rooms::{HistoryPart, HistoryQuery};
use hubsub_route::{Found, Headers, HubLogRead, HubRange, LogRead, Msg, Namespace, Producer, RoomInfo};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ErrorCode, HubId, Limits, Position, PrincipalId, ShardId};
use std::sync::Arc;
use std::sync::mpsc::Sender;

/// One letter.
pub enum Mail {
    /// From a broker to a broker.
    Broker(Msg),
    /// A question; the answer goes to `from`, to the gathering of that number.
    Ask {
        /// Who asked.
        from: ShardId,
        /// What the asker calls it.
        gathering: u32,
        /// What is asked.
        question: Arc<Question>,
    },
    /// The answer to a question.
    Part {
        /// As in the question.
        gathering: u32,
        /// This shard's part.
        part: Part,
    },
    /// From the control plane; its answer goes there under this ticket.
    Request(u64, Request),
    /// Records of these hubs are safe up to these offsets.
    Safe(Vec<(HubId, u64)>),
    /// The log makes nothing safe any more.
    LogFailed,
    /// A hub of this shard is open: its log, and what the broker begins with.
    HubOpened(Box<OpenedHub>),
    /// A hub of this shard gives its log nothing more; who waits for that is told.
    HubCloses(HubId, Sender<()>),
    /// All that it gave is safe, and its log is not open any more.
    HubClosed(HubId),
    /// What the log had for a question of this shard.
    Found(Box<LogRead>, Result<Found, ErrorCode>),
    /// Likewise to a question of a whole hub.
    FoundHub(Box<HubLogRead>, Result<HubRange, ErrorCode>),
    /// For this shard's links.
    Link(LinkMail),
    /// About leads of ephemeral hubs.
    Lead(LeadMail),
    /// Which hubs there are, and who leads them.
    Route(RouteMail),
    /// A connection of an MQTT client, to where its session is.
    Travel(Box<Traveller>),
    /// About client ids of MQTT.
    Mqtt(MqttMail),
    /// About members of rooms.
    Presence(PresenceMail),
    /// About long polls of browsers.
    Poll(PollMail),
    /// New limits.
    Limits(Arc<Limits>),
    /// The nodes that cluster clients are told of.
    Roster(Arc<NewRoster>),
    /// All shards have this one; clients may be told what it moved.
    RosterKnown(Arc<Roster>),
    /// Clients are accepted from now on.
    Accept,
    /// MQTT clients go from sessions that are recorded, and nobody comes for one: the node is about to leave its cluster.
    PartFromSessions,
    /// Stop accepting, let output drain until this time (ms), close, end.
    Stop(u64),
}

impl Mail {
    /// What it counts against the mailbox limit.
    #[must_use]
    pub fn weight(&self) -> usize {
        match self {
            Mail::Broker(msg) => msg.weight(),
            Mail::Link(mail) => mail.weight(),
            Mail::Lead(mail) => mail.weight(),
            Mail::Mqtt(mail) => mail.weight(),
            Mail::Presence(mail) => mail.weight(),
            Mail::Poll(mail) => mail.weight(),
            Mail::Travel(traveller) => traveller.weight(),
            Mail::Found(_, Ok(found)) => {
                std::mem::size_of::<Mail>()
                    + found.records.iter().map(|record| record.weight()).sum::<usize>()
            }
            Mail::FoundHub(_, Ok(range)) => {
                std::mem::size_of::<Mail>()
                    + range.records.iter().map(|record| record.weight()).sum::<usize>()
            }
            _ => std::mem::size_of::<Mail>(),
        }
    }
}

/// What a shard can be asked about itself.
#[derive(Debug)]
pub enum Question {
    /// Subscribers of each topic.
    TopicCounts(Namespace, Arc<Vec<Vec<u8>>>),
    /// Topics with subscribers that match a glob, or all of them; refused if their names have more bytes than this.
    Topics(Namespace, Option<Vec<u8>>, u64),
    /// Client connections; refused if their lines have more bytes than this.
    Clients(ClientFilter, u64),
    /// Close client connections.
    KillClients(ClientFilter, String),
    /// Rooms in order of name: matching a glob, behind a name, so many.
    Rooms(Option<Vec<u8>>, Option<Vec<u8>>, usize),
    /// One room; made if it is missing and the flag is set.
    Room(Vec<u8>, bool),
    /// Delete a room.
    DeleteRoom(Vec<u8>),
    /// Records of a room.
    History(HistoryQuery),
    /// Likewise, refused at once where the leader of its hub is not reached.
    Row(HistoryQuery),
    /// The busiest rooms.
    Busiest(usize),
    /// Sessions of MQTT clients in order of their ids: that one, or so many behind an id.
    Sessions(Option<String>, Option<String>, usize),
    /// End the session of a client id.
    EndSession(String),
    /// Groups that keep their place.
    Consumers,
    /// One of them goes on from its row, or anew.
    ForgetConsumer(Vec<u8>),
    /// Who is in a room, of the shard to which its members belong.
    Members(Vec<u8>),
    /// How many are in a room.
    Occupancy(Vec<u8>),
}

impl Question {
    /// The room that it is about, if it is about one.
    #[must_use]
    pub fn room(&self) -> Option<&[u8]> {
        match self {
            Question::Room(room, _) | Question::DeleteRoom(room) => Some(room),
            Question::History(query) | Question::Row(query) => Some(&query.room),
            _ => None,
        }
    }
}

/// Which clients are meant. All conditions hold together.
#[derive(Clone, Debug, Default)]
pub struct ClientFilter {
    /// Any of these ids, in order; empty means any.
    pub ids: Vec<u64>,
    /// MQTT's client ids, any of these, in order; empty means any client.
    pub client_ids: Vec<String>,
    /// Address of the peer.
    pub addr: Option<String>,
    /// Address on this side.
    pub laddr: Option<String>,
    /// User name.
    pub user: Option<String>,
    /// Redis's client type: `normal`, `pubsub`, or one that nobody has.
    pub kind: Option<String>,
    /// Connected for at least so long, in s.
    pub age_s_min: u64,
    /// Not this client.
    pub except: Option<u64>,
}

/// One shard's answer.
#[derive(Debug)]
pub enum Part {
    /// To `TopicCounts`, in the question's order.
    Counts(Vec<u64>),
    /// How many subscribe to the topic of this place in a question, in the whole cluster.
    Counted(u32, Result<u64, ErrorCode>),
    /// To `Topics`.
    Topics(Vec<Arc<[u8]>>),
    /// To `Clients`.
    Clients(Vec<ClientInfo>),
    /// To `Sessions`.
    Sessions(Vec<SessionInfo>),
    /// To `KillClients`, `DeleteRoom` and `EndSession`: how many.
    Number(Result<u64, ErrorCode>),
    /// To `Rooms` and `Room`.
    Rooms(Result<Vec<Listed>, ErrorCode>),
    /// To `History`.
    History(HistoryPart),
    /// To `Busiest`: rooms with their publishes, bytes in and bytes out a second.
    Busiest(Vec<(Arc<[u8]>, [f64; 3])>),
    /// Names and Redis addresses of a room's members, its leader first.
    Located(Result<Vec<(String, String)>, ErrorCode>),
    /// To `Consumers`.
    Consumers(Vec<ConsumerInfo>),
    /// To `Members`.
    Members(Arc<Shown>),
    /// To `Occupancy`.
    Occupancy(Counts),
    /// To `Topics` and `Clients`: there are too many.
    TooLong,
    /// To any: who asks may not.
    Refused(ErrorCode),
}

/// A room, and who knows of it.
#[derive(Clone, Debug)]
pub enum Listed {
    /// The shard of its hub has it in memory.
    Here(RoomInfo),
    /// Nobody uses it, and it is in its hub's log alone.
    InLog(ColdRoom),
}

impl Listed {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        match self {
            Listed::Here(room) => &room.name,
            Listed::InLog(room) => &room.name,
        }
    }
}

/// What a log tells of a room without reading it.
#[derive(Clone, Debug)]
pub struct ColdRoom {
    /// Its name.
    pub name: Box<[u8]>,
    /// Index of its class.
    pub class: ClassIndex,
    /// Which of the class's hubs it belongs to.
    pub hub: u16,
    /// The shard of that.
    pub shard: ShardId,
    /// Of its last record.
    pub position: Position,
}

impl ClientInfo {
    /// About as many bytes as a line of CLIENT LIST has.
    #[must_use]
    pub fn line_bytes(&self) -> u64 {
        const REST: usize = 256;
        let texts = [&self.addr, &self.laddr, &self.name, &self.lib_name, &self.lib_ver];
        (REST + texts.iter().map(|text| text.len()).sum::<usize>()) as u64
    }
}

/// A client connection as CLIENT LIST and the API show it.
#[derive(Clone, Debug, Default)]
pub struct ClientInfo {
    /// Unique on this node.
    pub id: u64,
    /// Its shard.
    pub shard: u16,
    /// Address of the peer.
    pub addr: String,
    /// Address on this side.
    pub laddr: String,
    /// The socket's descriptor.
    pub descriptor: i64,
    /// As CLIENT SETNAME set it.
    pub name: String,
    /// As CLIENT SETINFO set it.
    pub lib_name: String,
    /// As CLIENT SETINFO set it.
    pub lib_ver: String,
    /// What it speaks, with its version.
    pub protocol: &'static str,
    /// Since it connected, in s.
    pub age_s: u64,
    /// Since its last command, in s.
    pub idle_s: u64,
    /// Redis's client flags.
    pub flags: String,
    /// Topics it subscribes to.
    pub subscriptions: u64,
    /// Patterns it subscribes to.
    pub patterns: u64,
    /// Shard channels it subscribes to.
    pub shard_subscriptions: u64,
    /// Commands queued by MULTI; none outside of it.
    pub multi: Option<u64>,
    /// Bytes of an unfinished command.
    pub query_bytes: u64,
    /// Output that its socket has not taken.
    pub pending_bytes: u64,
    /// Frames that wait.
    pub pending_frames: u64,
    /// Of an MQTT client, in s; 0 for others, and where it has none.
    pub keep_alive_s: u64,
    /// Messages of QoS 1 and 2 that an MQTT client has not acknowledged.
    pub inflight: u64,
    /// How many these may be; 0 for others.
    pub inflight_max: u64,
    /// Records that wait until an MQTT client takes them.
    pub waiting: u64,
    /// Records it lost to its room's policy.
    pub dropped: u64,
    /// Subscriptions that are catching up.
    pub lagging: u64,
    /// Its last command, in lower case.
    pub command: &'static str,
    /// In the order of `meter`.
    pub totals: [u64; 4],
    /// In the order of `meter`.
    pub per_second: [f32; 4],
    /// In the order of `meter`.
    pub per_minute: [f32; 4],
}

/// A session of an MQTT client that outlives its connection, as the API shows it.
#[derive(Clone, Debug)]
pub struct SessionInfo {
    /// The client's id.
    pub client_id: String,
    /// Its shard.
    pub shard: u16,
    /// Its connection, if it has one.
    pub conn: Option<u64>,
    /// How long it outlives that, in s; none: for ever.
    pub expiry_s: Option<u64>,
    /// Until it ends, in s, while it is without a connection.
    pub ends_in_s: Option<u64>,
    /// Filters that it subscribes to.
    pub subscriptions: u64,
    /// Messages that the client was sent and has not acknowledged.
    pub unacknowledged: u64,
    /// Messages that wait for it.
    pub queued: u64,
    /// Their memory, in bytes.
    pub queued_bytes: u64,
    /// Messages that gave way while it was without a connection.
    pub dropped: u64,
}

/// A publish of the control plane.
#[derive(Clone, Debug)]
pub struct Item {
    /// Where to.
    pub topic: Vec<u8>,
    /// What.
    pub payload: Vec<u8>,
    /// Beside it.
    pub headers: Headers,
    /// Who.
    pub publisher: String,
    /// Who numbered it, if somebody did.
    pub producer: Option<Producer>,
}

/// What the control plane asks for, and for whom.
pub struct Request {
    /// Who must be allowed to.
    pub principal: PrincipalId,
    /// What is to be done.
    pub call: Call,
}

/// What the control plane can ask for.
pub enum Call {
    /// Publish in order.
    Publish(Vec<Item>),
    /// A question to all shards.
    All(Question),
    /// A question to the shard of a room.
    Room(Vec<u8>, Question),
    /// Who is in a room.
    Members(Vec<u8>),
}
