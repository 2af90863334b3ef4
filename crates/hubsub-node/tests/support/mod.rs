//! A node on a free port, and clients that speak RESP over real sockets. Every wait has the timeout
//! `PATIENCE`, which only a hanging test reaches.

#![allow(dead_code, reason = "each test binary uses a part")]

pub mod trio;

use hubsub_node::log::start::{LogConfig, Numbering};
use hubsub_node::log::{HubAnswer, LogStatus, Refusal};
use hubsub_node::questions::{Call, ClientFilter, ClientInfo, Part, Question, Request};
use hubsub_node::{Control, Event, Node, NodeConfig, ShardEvent, StoreConfig, log};
use hubsub_types::names::Matcher;
use hubsub_types::{Class, ClassTable, ErrorCode, HubId, Limits, PrincipalId};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Far longer than any step takes.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A running node, stopped when dropped.
pub struct TestNode {
    node: Node,
    address: SocketAddr,
}

/// A class of rooms that match a glob.
pub fn class(glob: &str) -> Class {
    Class { matches: vec![Matcher::parse(glob).unwrap()], ..Class::named(glob) }
}

impl TestNode {
    pub fn start(shards: u16, classes: Vec<Class>, limits: Limits) -> TestNode {
        TestNode::start_with(shards, classes, limits, 1, None, true)
    }

    /// A node that accepts no clients before `accept`.
    pub fn start_closed(shards: u16) -> TestNode {
        TestNode::start_with(shards, Vec::new(), Limits::default(), 1, None, false)
    }

    /// Lets the node accept clients.
    pub fn accept(&self) {
        self.node.accept();
    }

    /// A node with its log in a directory, with small files and hardly any memory for records.
    pub fn start_logged(shards: u16, classes: Vec<Class>, incarnation: u32, directory: &Path) -> TestNode {
        TestNode::start_numbered(shards, classes, incarnation, directory, Numbering::Own)
    }

    /// As `start_logged`, with the given authority over its hubs.
    pub fn start_numbered(
        shards: u16,
        classes: Vec<Class>,
        incarnation: u32,
        directory: &Path,
        hubs: Numbering,
    ) -> TestNode {
        let limits = Limits {
            log_segment_bytes: 64 * 1024,
            log_journal_bytes: 256 * 1024,
            log_checkpoint_bytes: 100_000,
            log_tail_bytes_max: 4 * 1024,
            log_open_files_max: 8,
            log_reserve_bytes: 0,
            ..Limits::default()
        };
        let log = Some(LogConfig { directory: directory.to_owned(), identity: 7, hubs });
        TestNode::start_with(shards, classes, limits, incarnation, log, true)
    }

    fn start_with(
        shards: u16,
        classes: Vec<Class>,
        limits: Limits,
        incarnation: u32,
        log: Option<LogConfig>,
        accepts: bool,
    ) -> TestNode {
        let control = Arc::new(Control::new(limits.control_events_max as usize).unwrap());
        let config = NodeConfig {
            name: "test".to_owned(),
            incarnation,
            shards,
            redis: Some("127.0.0.1:0".parse().unwrap()),
            redis_cluster: None,
            mqtt: None,
            ws: None,
            ws_origins: Vec::new(),
            hosts: Vec::new(),
            phoenix_topics: Vec::new(),
            mqtt_rules: Default::default(),
            link: None,
            accepts,
            advertise: None,
            classes: ClassTable::new(classes, true),
            limits,
            log,
            inflight_store: StoreConfig::Log,
            version: "0.0.0".to_owned(),
        };
        let node = Node::start(config, control).unwrap();
        let address = node.redis.unwrap();
        TestNode { node, address }
    }

    pub fn connect(&self) -> Client {
        Client::new(TcpStream::connect(self.address).unwrap())
    }

    /// A client that uses RESP3.
    pub fn connect3(&self) -> Client {
        let mut client = self.connect();
        let hello = client.call(&["HELLO", "3"]);
        assert!(matches!(hello, Value::Many('%', _)), "{hello:?}");
        client
    }

    /// A client with a small receive buffer.
    pub fn connect_narrow(&self) -> Client {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(4096).unwrap();
        socket.connect(&self.address.into()).unwrap();
        Client::new(socket.into())
    }

    /// Two clients on different shards.
    pub fn connect_apart(&self) -> (Client, Client) {
        let mut clients: Vec<(Client, u16)> = Vec::new();
        for _ in 0..100 {
            let mut client = self.connect();
            let id = client.call(&["CLIENT", "ID"]).int() as u64;
            let shard = self.clients().iter().find(|info| info.id == id).unwrap().shard;
            if let Some(at) = clients.iter().position(|(_, other)| *other != shard) {
                return (client, clients.swap_remove(at).0);
            }
            clients.push((client, shard));
        }
        panic!("100 connections came to one shard");
    }

    /// Stops the node within a grace period; returns the time it took.
    pub fn stop_in(&self, grace: Duration) -> Duration {
        let begin = Instant::now();
        self.node.stop(grace.as_millis() as u64);
        self.node.join();
        begin.elapsed()
    }

    /// The clients as the control plane sees them.
    pub fn clients(&self) -> Vec<ClientInfo> {
        let call = Call::All(Question::Clients(ClientFilter::default(), u64::MAX));
        let Event::Shard(ShardEvent::Parts(_, parts)) = self.request(PrincipalId::default(), call) else {
            panic!("a question is answered by parts");
        };
        let of = |part| if let Part::Clients(infos) = part { infos } else { Vec::new() };
        parts.into_iter().flat_map(of).collect()
    }

    /// Deletes a room; returns how many existed.
    pub fn delete(&self, room: &str) -> Result<u64, ErrorCode> {
        let call = Call::Room(room.into(), Question::DeleteRoom(room.into()));
        match self.request(PrincipalId::default(), call) {
            Event::Shard(ShardEvent::Parts(_, parts)) => match &parts[..] {
                [Part::Number(number)] => *number,
                other => panic!("{other:?}"),
            },
            _ => panic!("a question is answered by parts"),
        }
    }

    /// Opens a hub of the first class; returns the offset after its records, or the refusal.
    pub fn open_hub(&self, hub: u32, index: u16) -> Result<u64, Refusal> {
        self.ask_to_open(hub, index);
        self.hub_answer().map(|answer| match answer {
            HubAnswer::Opened(status) => status.opened,
            HubAnswer::Closed(_) => panic!("it was to be opened"),
        })
    }

    /// Requests to open a hub, without waiting.
    pub fn ask_to_open(&self, hub: u32, index: u16) {
        self.node.openings().unwrap().open(7, HubId(hub), 0, index);
    }

    /// Closes a hub; returns its last offset if it was open.
    pub fn close_hub(&self, hub: u32) -> Result<Option<u64>, Refusal> {
        self.ask_to_close(hub);
        self.hub_answer().map(|answer| match answer {
            HubAnswer::Closed(last) => last,
            HubAnswer::Opened(_) => panic!("it was to be closed"),
        })
    }

    /// Requests to close a hub, without waiting.
    pub fn ask_to_close(&self, hub: u32) {
        self.node.openings().unwrap().close(7, HubId(hub));
    }

    /// The next reply to a request to open or close a hub.
    pub fn hub_answer(&self) -> Result<HubAnswer, Refusal> {
        match self.answer() {
            Event::Log(log::Event::Hub(_, outcome)) => outcome,
            other => panic!("{other:?}"),
        }
    }

    pub fn log(&self) -> LogStatus {
        self.node.log_status().unwrap()
    }

    /// Sends a request of the control plane and returns the reply.
    pub fn request(&self, principal: PrincipalId, call: Call) -> Event {
        self.node.request(7, Request { principal, call });
        self.answer()
    }

    fn answer(&self) -> Event {
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end {
            for event in self.node.control.drain(1) {
                if matches!(
                    event,
                    Event::Shard(ShardEvent::Parts(7, _) | ShardEvent::Published(7, _))
                        | Event::Log(log::Event::Hub(7, _))
                ) {
                    return event;
                }
            }
            let mut poll = libc::pollfd { fd: self.node.control.wake_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: one valid pollfd, which outlives the call.
            unsafe { libc::poll(&raw mut poll, 1, 1000) };
        }
        panic!("no answer");
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.node.stop(0);
        self.node.join();
    }
}

/// A RESP frame. Lines and bulks are text: the tests send nothing else.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Value {
    Line(char, String),
    Bulk(String),
    Many(char, Vec<Value>),
    Null,
}

impl Value {
    pub fn int(&self) -> i64 {
        match self {
            Value::Line(':', text) => text.parse().unwrap(),
            other => panic!("no integer: {other:?}"),
        }
    }

    pub fn items(&self) -> &[Value] {
        match self {
            Value::Many(_, items) => items,
            other => panic!("no array: {other:?}"),
        }
    }

    /// The text of a bulk or a line.
    pub fn text(&self) -> &str {
        match self {
            Value::Line(_, text) | Value::Bulk(text) => text,
            other => panic!("no text: {other:?}"),
        }
    }

    /// True for an array or push whose first item is this word.
    pub fn is_a(&self, word: &str) -> bool {
        matches!(self, Value::Many(_, items) if items.first().is_some_and(|v| *v == bulk(word)))
    }
}

pub fn bulk(text: &str) -> Value {
    Value::Bulk(text.to_owned())
}

pub fn simple(text: &str) -> Value {
    Value::Line('+', text.to_owned())
}

pub fn number(number: i64) -> Value {
    Value::Line(':', number.to_string())
}

/// A blocking connection that speaks RESP.
pub struct Client {
    pub socket: TcpStream,
    reader: BufReader<TcpStream>,
}

impl Client {
    pub fn new(socket: TcpStream) -> Client {
        socket.set_nodelay(true).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        let reader = BufReader::new(socket.try_clone().unwrap());
        Client { socket, reader }
    }

    pub fn send(&mut self, args: &[&str]) {
        self.socket.write_all(&encode(args)).unwrap();
    }

    /// Sends several commands in one write.
    pub fn send_all(&mut self, commands: &[&[&str]]) {
        let bytes: Vec<u8> = commands.iter().flat_map(|args| encode(args)).collect();
        self.socket.write_all(&bytes).unwrap();
    }

    pub fn call(&mut self, args: &[&str]) -> Value {
        self.send(args);
        self.read()
    }

    /// Reads the next frame; panics on invalid RESP.
    pub fn read(&mut self) -> Value {
        let mut line = Vec::new();
        self.reader.read_until(b'\n', &mut line).expect("bytes come in time");
        let line = String::from_utf8(line).expect("text");
        let mark = line.chars().next().expect("the server did not close");
        let rest = line[1..].strip_suffix("\r\n").unwrap_or_else(|| panic!("no line of RESP: {line:?}"));
        let count = || rest.parse::<usize>().unwrap_or_else(|_| panic!("no count: {line:?}"));
        match mark {
            '_' => Value::Null,
            '$' | '*' if rest == "-1" => Value::Null,
            '$' | '=' => {
                let mut bytes = vec![0; count() + 2];
                self.reader.read_exact(&mut bytes).expect("bytes come in time");
                let text = String::from_utf8(bytes).expect("text");
                Value::Bulk(text.strip_suffix("\r\n").expect("a bulk ends in CRLF").to_owned())
            }
            '%' => Value::Many(mark, self.read_many(2 * count())),
            '*' | '>' | '~' => Value::Many(mark, self.read_many(count())),
            '+' | '-' | ':' => Value::Line(mark, rest.to_owned()),
            _ => panic!("no frame begins with {line:?}"),
        }
    }

    pub fn read_many(&mut self, count: usize) -> Vec<Value> {
        (0..count).map(|_| self.read()).collect()
    }

    /// Asserts that the server closes without sending anything.
    pub fn assert_closed(&mut self) {
        match self.reader.fill_buf() {
            Ok(bytes) => assert_eq!(bytes, b""),
            Err(e) => assert_eq!(e.kind(), ErrorKind::ConnectionReset),
        }
    }
}

pub fn encode(args: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len());
    args.iter().for_each(|arg| bytes.push_str(&format!("${}\r\n{arg}\r\n", arg.len())));
    bytes.into_bytes()
}
