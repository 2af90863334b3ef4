//! A principal that may do nothing is refused by every command that needs leave.

use super::*;
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
use crate::redis;
use crate::shard::HOOKS;
use hubsub_route::HubFilter;
use hubsub_route::patterns::Patterns;
use hubsub_route::{Broker, Hubs, Namespace, Now, Settings};
use hubsub_types::names::filter_pattern;
use hubsub_types::{ClassTable, ConnKey, Limits, ShardId};
use mio::{Poll, Token, Waker};
use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const STRANGER: PrincipalId = PrincipalId(1);

/// A shard without a thread, and one connection of it.
struct Edge {
    ctx: Ctx,
    key: ConnKey,
    peer: TcpStream,
    /// The inbox's waker lives as long as this.
    _poll: Poll,
}

impl Edge {
    fn new() -> Edge {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        peer.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let socket = listener.accept().unwrap().0;
        socket.set_nonblocking(true).unwrap();
        let poll = Poll::new().unwrap();
        let inboxes: Arc<Inboxes<Mail>> =
            Arc::new([Inbox::new(Waker::new(poll.registry(), Token(0)).unwrap())].into_iter().collect());
        let (shard, limits, metrics) =
            (ShardId::default(), Limits::default(), Arc::<ShardMetrics>::default());
        let info = NodeInfo {
            name: "test".to_owned(),
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
            connections: Default::default(),
            members: Default::default(),
            clients: Default::default(),
            metrics: vec![Arc::clone(&metrics)],
            quiet: Vec::new(),
            all_done: Default::default(),
            hinted: Default::default(),
            run_id: String::new(),
        };
        let classes = Arc::new(ClassTable::new(Vec::new(), true));
        let hubs = Arc::new(Hubs::new(1, &classes, Vec::new()));
        let mut broker = Broker::new(Settings {
            shard,
            hubs: Arc::clone(&hubs),
            classes: Arc::clone(&classes),
            limits: limits.clone(),
            epochs: Arc::default(),
            retained: Arc::default(),
        });
        let control = Arc::new(Control::new(1000).unwrap());
        let peer_table = Arc::new(PeerTable::new(String::new(), 1, Instant::now(), control.clone()));
        let classes = Arc::new(ClassesNow::new(classes, hubs));
        let ends = Handles {
            shard,
            lines: control.lines(),
            of_links: control.clone(),
            control,
            metrics,
            log: None,
            store: None,
            peer_table,
            classes,
        };
        let mailer = Mailer::new(shard, inboxes, usize::MAX);
        let mut io = Io::new(Arc::new(info), limits, Now::default(), mailer, ends);
        let key = io.add(Conn::new(
            Transport::Plain(mio::net::TcpStream::from_std(socket)),
            ListenerKind::Redis,
            1,
            0,
        ));
        broker.connected(key);
        Edge { ctx: Ctx { broker, io, hooks: HOOKS }, key, peer, _poll: poll }
    }

    fn become_principal(&mut self, principal: PrincipalId) {
        self.ctx.io.conns.get_mut(self.key).unwrap().principal = principal;
    }

    /// Executes a command and returns its reply, as far as one read returns it.
    fn ask(&mut self, command: &str) -> String {
        let args: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        redis::execute(&mut self.ctx, self.key, &args);
        self.ctx.flush();
        let mut answer = [0; 4096];
        let len = self.peer.read(&mut answer).unwrap();
        String::from_utf8(answer[..len].to_vec()).unwrap()
    }
}

const NEED_LEAVE: &[&str] = &[
    "PUBLISH t x",
    "SPUBLISH t x",
    "HUBSUB HISTORY t",
    "CLIENT LIST",
    "CLIENT KILL ID 99",
    "CLIENT NO-EVICT ON",
    "CONFIG GET port",
    "CONFIG SET save 1",
    "CONFIG RESETSTAT",
    "CONFIG REWRITE",
    "SUBSCRIBE t",
    "SSUBSCRIBE t",
    "PSUBSCRIBE t*",
    "HUBSUB SUBSCRIBE t LAST 1",
];

#[test]
fn a_stranger_may_not_publish_subscribe_or_administer() {
    let mut edge = Edge::new();
    edge.become_principal(STRANGER);
    for command in NEED_LEAVE {
        let answer = edge.ask(command);
        assert!(answer.starts_with("-NOPERM ") && answer.matches("\r\n").count() == 1, "{command}: {answer}");
    }
    assert_eq!(edge.ctx.broker.counts(edge.key), (0, 0, 0));
    assert_eq!(edge.ask("PING"), "+PONG\r\n");
}

#[test]
fn the_default_user_may_do_all_of_it() {
    let mut edge = Edge::new();
    for command in NEED_LEAVE {
        assert!(!edge.ask(command).contains("NOPERM"), "{command}");
    }
}

#[test]
fn what_was_queued_by_one_principal_is_executed_with_the_leave_of_another() {
    let mut edge = Edge::new();
    for (command, answer) in [("MULTI", "+OK"), ("CONFIG GET port", "+QUEUED"), ("PUBLISH t x", "+QUEUED")] {
        assert_eq!(edge.ask(command), format!("{answer}\r\n"));
    }
    edge.become_principal(STRANGER);
    let answer = edge.ask("EXEC");
    assert!(answer.starts_with("*2\r\n-NOPERM ") && answer.matches("-NOPERM ").count() == 2, "{answer}");
}

const REFUSED_PATTERNS: &[&str] = &[
    "$*",
    "\\$*",
    "$stage/*",
    "\\$system/*",
    "$?tage/*",
    "$sta[t]s/*",
    "$SYS*",
    "\0mqtt:$stage/#",
    "\0mqtt:a/#",
    "\0share:g/f",
    "\\\0share:g/f*",
    "\0*",
    "$stats/x{$stage/q}*",
    "a{$stage}*",
    "$stage/q",
];

#[test]
fn a_pattern_is_judged_by_what_it_begins_with_when_read_as_a_pattern() {
    let mut edge = Edge::new();
    for pattern in REFUSED_PATTERNS {
        let answer = edge.ask(&format!("PSUBSCRIBE {pattern}"));
        assert!(answer.starts_with("-NOPERM "), "{pattern:?}: {answer}");
    }
    assert_eq!(edge.ctx.broker.counts(edge.key), (0, 0, 0));
    assert!(edge.ctx.broker.patterns.is_empty() && edge.ctx.broker.groups.is_empty());
    for pattern in ["*", "[$]*", "?stage/*", "$stats/*", "\\$SYS/*", "$SYS", "a{b}*"] {
        let answer = edge.ask(&format!("PSUBSCRIBE {pattern}"));
        assert!(answer.starts_with("*3\r\n$10\r\npsubscribe"), "{pattern:?}: {answer}");
    }
}

#[test]
fn a_name_that_begins_with_nul_is_refused_by_every_command() {
    let mut edge = Edge::new();
    for command in [
        "PUBLISH \0t x",
        "SPUBLISH \0t x",
        "SUBSCRIBE \0t",
        "SSUBSCRIBE \0t",
        "HUBSUB SUBSCRIBE \0t LAST 1",
        "HUBSUB HISTORY \0t",
        "PUBLISH a{\0t} x",
    ] {
        assert!(edge.ask(command).starts_with("-NOPERM "), "{command:?}");
    }
    assert_eq!(edge.ask("PUBLISH t\0 x"), ":0\r\n");
}

proptest::proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig { cases: 4000, ..Default::default() })]

    /// The invariant of [`Access`].
    #[test]
    fn who_may_subscribe_to_a_pattern_may_subscribe_to_every_topic_that_it_matches(
        glob in "(\\$|\\\\\\$|\0|\\\\\0|\\[\\$\\]|\\?)?(SYS|stats|stage)?[/a{$}*?\\[\\]^\\\\\0]{0,6}",
        filter in "(\\$|\\+/)?(SYS|stats|stage|a)?(/(\\+|a|\\{\\$a\\}|\\$|)){0,3}(/#)?",
        topics in proptest::collection::vec("(\\$|\0)?(SYS|stats|stage)?[/a{$}\\\\*\0]{0,6}", 1..20),
    ) {
        let access = Access;
        let nobody = PrincipalId::default();
        let kept = [
            (access.allowed_glob(nobody, glob.as_bytes()), glob.into_bytes()),
            (access.allowed_filter(nobody, filter.as_bytes()), filter_pattern(filter.as_bytes())),
        ];
        for (is_allowed, source) in kept {
            let mut patterns = Patterns::new(100);
            patterns.intern(&source);
            let read = HubFilter::new([source.as_slice().into()]);
            for topic in &topics {
                let topic = topic.as_bytes();
                let is_matched = !patterns.matching(topic).is_empty();
                proptest::prop_assert_eq!(is_matched, read.wants(Namespace::Global, topic));
                let may = access.allowed(nobody, Action::Subscribe, topic);
                proptest::prop_assert!(
                    may || !is_matched || !is_allowed, "{:?} {:?}", source, topic
                );
            }
        }
    }
}
