//! A shard's core without thread and node, for unit tests of cases that sockets cannot produce. The test
//! takes the place of the event loop.

use crate::context::Ctx;
use crate::context::conn::Conn;
use crate::context::io::Io;
use crate::context::mail::Mail;
use crate::context::states::Handles;
use crate::control::Control;
use crate::io::classes::ClassesNow;
use crate::io::inbox::{Inbox, Inboxes, Mailer};
use crate::io::listener::ListenerKind;
use crate::io::metrics::ShardMetrics;
use crate::io::node_info::NodeInfo;
use crate::io::transport::Transport;
use crate::link::PeerTable;
use crate::shard::HOOKS;
use hubsub_route::{Broker, Hubs, Now, Settings};
use hubsub_types::{Class, ClassTable, ConnKey, Limits, ShardId};
use mio::{Poll, Token, Waker};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Instant;

pub struct Lone {
    pub ctx: Ctx,
    pub control: Arc<Control>,
    listener: TcpListener,
    /// Registered with the waker; never polled.
    _poll: Poll,
}

impl Lone {
    /// A core with the default class only.
    pub fn new(limits: Limits) -> Lone {
        Lone::with(Vec::new(), limits)
    }

    pub fn with(classes: Vec<Class>, limits: Limits) -> Lone {
        let (shard, poll) = (ShardId(0), Poll::new().unwrap());
        let inboxes: Arc<Inboxes<Mail>> =
            Arc::new([Inbox::new(Waker::new(poll.registry(), Token(0)).unwrap())].into_iter().collect());
        let metrics = Arc::new(ShardMetrics::default());
        let info = Arc::new(NodeInfo {
            name: "lone".to_owned(),
            incarnation: 1,
            version: "0.0.0".to_owned(),
            redis: String::new(),
            port: 0,
            cluster_port: 0,
            mqtt: Default::default(),
            phoenix_topics: Default::default(),
            keeps_sessions: false,
            pages: Default::default(),
            descriptors: crate::io::descriptors::Descriptors::reserve(0),
            started: Instant::now(),
            connections: AtomicU64::new(0),
            members: AtomicU64::new(0),
            clients: AtomicU64::new(1),
            metrics: vec![Arc::clone(&metrics)],
            quiet: vec![AtomicU64::new(0)],
            all_done: AtomicBool::new(false),
            hinted: AtomicBool::new(false),
            run_id: String::new(),
        });
        let classes = Arc::new(ClassTable::new(classes, true));
        let hubs = Arc::new(Hubs::new(1, &classes, Vec::new()));
        let now = Arc::new(ClassesNow::new(Arc::clone(&classes), Arc::clone(&hubs)));
        let (epochs, retained) = (Arc::new(AtomicU64::new(1)), Arc::default());
        let settings = Settings { shard, hubs, classes, limits: limits.clone(), epochs, retained };
        let control = Arc::new(Control::new(64).unwrap());
        let mailer = Mailer::new(shard, inboxes, limits.mailbox_bytes_max as usize);
        let peer_table = PeerTable::new("lone".to_owned(), 1, info.started, control.clone());
        let ends = Handles {
            shard,
            lines: control.lines(),
            of_links: control.clone(),
            control: control.clone(),
            metrics,
            log: None,
            store: None,
            peer_table: Arc::new(peer_table),
            classes: now,
        };
        let io = Io::new(info, limits, Now::default(), mailer, ends);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        Lone { ctx: Ctx { broker: Broker::new(settings), io, hooks: HOOKS }, control, listener, _poll: poll }
    }

    /// Adds a connection. Returns its key and the peer's socket.
    pub fn connect(&mut self) -> (ConnKey, TcpStream) {
        let peer = TcpStream::connect(self.listener.local_addr().unwrap()).unwrap();
        let (socket, _) = self.listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let transport = Transport::Plain(mio::net::TcpStream::from_std(socket));
        let key = self.ctx.io.add(Conn::new(transport, ListenerKind::Redis, 1, 0));
        self.ctx.broker.connected(key);
        (key, peer)
    }
}
