//! Two nodes with one link between them, over a transport that delays, splits, stalls and breaks, all from a
//! seed. Each side numbers its frames per lane; each step checks the invariants.

use hubsub_message::{AskId, LogPlace, NodeMessage, Record};
use hubsub_types::{Epoch, HubId, Position, Seq, Term};
use hubsub_wire::link::{
    Breaker, Counters, End, Frame, Identity, Lane, Link, LinkLimits, Next, Now, Payload, Roster, Secret, Sent,
};
use std::collections::VecDeque;
use std::sync::Arc;

/// Time of a step, in which a node reads once, then ticks once.
pub const STEP_US: u64 = 10_000;
/// How far the second node's clock is ahead.
pub const SKEW_US: u64 = 250_000;
/// Bytes in flight in one direction.
const PIPE_BYTES_MAX: usize = 16 * 1_024;
const FRAME_BYTES_MAX: usize = 32 * 1_024;
const WALL_US: u64 = 1_700_000_000_000_000;

/// A SplitMix64 random number generator.
pub struct Random(u64);

impl Random {
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    fn nonce(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| self.below(256) as u8)
    }
}

/// Faults of the transport and load of the nodes: one in this many steps, 0 for never.
#[derive(Clone, Copy)]
pub struct Weather {
    pub stall: u64,
    pub cut: u64,
    pub send: u64,
    /// Most frames that a node handles in a step.
    pub handled_max: u64,
}

pub struct Node {
    identity: Arc<Identity>,
    pub link: Option<Link>,
    /// Bytes from the socket without a complete frame.
    input: Vec<u8>,
    /// Received frames that are not handled: lane and bytes.
    pub waiting: VecDeque<(Lane, usize)>,
    /// Unhandled bytes of live and reads.
    unhandled: [u64; 2],
    /// Last number sent in each lane, over all links.
    pub sent: [u64; 3],
    /// Last number received in each lane, over all links.
    pub came: [u64; 3],
    /// Whether a frame of the lane arrived over this link.
    began: [bool; 3],
    heard_us: u64,
    pub ends: Vec<End>,
    pub totals: Counters,
}

/// One direction of the connection.
#[derive(Default)]
struct Pipe {
    bytes: VecDeque<u8>,
    stalled_until_us: u64,
}

pub struct World {
    pub nodes: [Node; 2],
    /// From node 0, from node 1.
    pipes: [Pipe; 2],
    pub breaker: Breaker,
    roster: Roster,
    limits: Arc<LinkLimits>,
    pub random: Random,
    pub now_us: u64,
    pub dials: u64,
}

impl World {
    pub fn new(seed: u64) -> World {
        let limits = LinkLimits {
            frame_bytes_max: FRAME_BYTES_MAX,
            live_window_bytes: 4_000,
            reads_window_bytes: 2_000,
            urgent_queue_bytes_max: 3_000,
            live_queue_bytes_max: 6_000,
            reads_queue_bytes_max: 5_000,
            output_bytes_max: 2_000,
            ..LinkLimits::default()
        }
        .checked();
        let node = |name: &str| Node {
            identity: Arc::new(Identity {
                cluster: "blue".into(),
                node: name.into(),
                incarnation: 1,
                shards: 1,
                secret: Secret::new(b"secret"),
                versions: 1..=1,
            }),
            link: None,
            input: Vec::new(),
            waiting: VecDeque::new(),
            unhandled: [0; 2],
            sent: [0; 3],
            came: [0; 3],
            began: [false; 3],
            heard_us: 0,
            ends: Vec::new(),
            totals: Counters::default(),
        };
        World {
            nodes: [node("a"), node("b")],
            pipes: Default::default(),
            breaker: Breaker::new(&limits, seed),
            roster: Roster::default(),
            limits: Arc::new(limits),
            random: Random(seed),
            now_us: 0,
            dials: 0,
        }
    }

    pub fn now(&self, side: usize) -> Now {
        let skew = if side == 1 { SKEW_US } else { 0 };
        Now { mono_us: self.now_us + 77 * skew, wall_us: WALL_US + self.now_us + skew }
    }

    /// Whether both sides are up.
    pub fn is_up(&self) -> bool {
        self.nodes.iter().all(|node| node.link.as_ref().is_some_and(|link| link.peer().is_some()))
    }

    pub fn step(&mut self, weather: Weather) {
        self.now_us += STEP_US;
        if weather.cut > 0 && self.random.one_in(weather.cut) {
            self.cut();
        }
        self.dial();
        for side in [0, 1] {
            if weather.stall > 0 && self.random.one_in(weather.stall) {
                let us = self.random.below(1_500_000);
                self.stall(side, us);
            }
            for _ in 0..weather.send {
                self.send(side);
            }
            self.write(side);
        }
        for side in [0, 1] {
            self.read(side);
            self.handle(side, weather.handled_max);
            self.tick(side);
            self.check(side);
        }
    }

    /// Stalls a direction for at least this time.
    pub fn stall(&mut self, from: usize, us: u64) {
        let until_us = &mut self.pipes[from].stalled_until_us;
        *until_us = (*until_us).max(self.now_us + us);
    }

    /// Breaks the connection; data in flight is lost.
    pub fn cut(&mut self) {
        for side in [0, 1] {
            if let Some(link) = &mut self.nodes[side].link {
                let end = link.eof();
                self.end(side, end);
            }
        }
    }

    fn dial(&mut self) {
        let is_free = self.nodes.iter().all(|node| node.link.is_none());
        if !is_free || !self.breaker.may_dial(self.now_us) {
            return;
        }
        self.dials += 1;
        self.pipes = Default::default();
        let (nonces, limits) = ([self.random.nonce(), self.random.nonce()], &self.limits);
        let identity = |side: usize| Arc::clone(&self.nodes[side].identity);
        let expected = Some("b".into());
        let dialer = Link::dial(identity(0), Arc::clone(limits), 0, expected, &nonces[0], self.now(0));
        let acceptor = Link::accept(identity(1), Arc::clone(limits), nonces[1], self.now(1));
        for (side, link) in [dialer, acceptor].into_iter().enumerate() {
            let node = &mut self.nodes[side];
            node.link = Some(link);
            node.input.clear();
            node.waiting.clear();
            (node.unhandled, node.began, node.heard_us) = ([0; 2], [false; 3], self.now_us);
        }
    }

    /// Sends a frame of random lane and length, with its lane's next number if it is accepted.
    pub fn send(&mut self, side: usize) -> Option<Sent> {
        let lane = self.random.below(3) as usize;
        let payload = match self.random.below(40) {
            0 => vec![7; FRAME_BYTES_MAX - 200],
            1..5 => vec![7; self.random.below(3_000) as usize],
            _ => vec![7; self.random.below(200) as usize],
        };
        let node = &mut self.nodes[side];
        let link = node.link.as_mut()?;
        let number = node.sent[lane] + 1;
        let position = Position { epoch: Epoch(1), seq: Seq(number) };
        let mut record = Record::new(Default::default(), b"room", &payload, "".into(), None);
        (record.position, record.place) = (position, LogPlace { hub: HubId(1), offset: number });
        let record = Arc::new(record);
        let frame = match lane {
            0 => Frame::Control { id: number, is_answer: false, body: Payload(&payload) },
            1 => Frame::Message(NodeMessage::Deliver {
                hub: HubId(1),
                term: Term(1),
                previous: Seq(number - 1),
                before: number - 1,
                record,
            }),
            _ => Frame::Message(NodeMessage::Range { ask: AskId(number), record }),
        };
        let flows = link.flows(frame.lane());
        let sent = link.send(&frame);
        assert!(!flows || sent == Sent::Out, "what flows goes out");
        if sent != Sent::Refused {
            node.sent[lane] = number;
        }
        Some(sent)
    }

    fn write(&mut self, side: usize) {
        let (node, pipe) = (&mut self.nodes[side], &mut self.pipes[side]);
        let Some(link) = &mut node.link else { return };
        for _ in 0..3 {
            let room = PIPE_BYTES_MAX - pipe.bytes.len();
            let takes = self.random.below(6_000) as usize;
            let bytes = link.output().len().min(room).min(takes);
            pipe.bytes.extend(&link.output()[..bytes]);
            link.written(bytes);
        }
    }

    fn read(&mut self, side: usize) {
        let now = self.now(side);
        let pipe = &mut self.pipes[1 - side];
        let bytes = pipe.bytes.len().min(self.random.below(8_000) as usize);
        if self.now_us < pipe.stalled_until_us || bytes == 0 || self.nodes[side].link.is_none() {
            return;
        }
        let node = &mut self.nodes[side];
        node.input.extend(pipe.bytes.drain(..bytes));
        node.heard_us = self.now_us;
        node.link.as_mut().expect("checked").heard(now);
        let input = std::mem::take(&mut node.input);
        let mut at = 0;
        let end = loop {
            let node = &mut self.nodes[side];
            let link = node.link.as_mut().expect("it ends only below");
            match link.next(&input[at..], now) {
                Ok(Next::Incomplete(_)) => break None,
                Ok(Next::Own(bytes)) => at += bytes,
                Ok(Next::Up(bytes)) => {
                    at += bytes;
                    self.breaker.up(self.now_us);
                }
                Ok(Next::Proved(peer, bytes)) => {
                    at += bytes;
                    match self.roster.admit(&peer) {
                        Ok(_) => link.welcome(now),
                        Err(refusal) => break Some(link.refuse(refusal, &peer.node)),
                    }
                }
                Ok(Next::Frame(frame, bytes)) => {
                    at += bytes;
                    node.take(&frame, bytes, &self.limits);
                }
                Err(end) => break Some(end),
            }
        };
        match end {
            Some(end) => self.end(side, end),
            None => self.nodes[side].input = input[at..].to_vec(),
        }
    }

    fn handle(&mut self, side: usize, most: u64) {
        let node = &mut self.nodes[side];
        let count = self.random.below(most + 1);
        for _ in 0..count {
            let (Some(link), Some((lane, bytes))) = (&mut node.link, node.waiting.pop_front()) else { break };
            if let Some(index) = windowed(lane) {
                node.unhandled[index] -= bytes as u64;
            }
            link.handled(lane, bytes);
        }
    }

    fn tick(&mut self, side: usize) {
        let now = self.now(side);
        let node = &mut self.nodes[side];
        let Some(link) = &mut node.link else { return };
        let was_suspected = link.is_suspected();
        let silence_us = self.now_us - node.heard_us;
        match link.tick(now) {
            Ok(true) => {
                assert!(!was_suspected, "it is said once");
                let range = 500_000..500_000 + STEP_US;
                assert!(range.contains(&silence_us), "suspected after {silence_us} us of silence");
            }
            Ok(false) => {
                let should = link.peer().is_some() && silence_us >= 500_000;
                assert_eq!(link.is_suspected(), should, "after {silence_us} us of silence");
            }
            Err(end) => self.end(side, end),
        }
    }

    fn check(&mut self, side: usize) {
        let Some(link) = &self.nodes[side].link else { return };
        let waiting = link.waiting();
        let limits = &self.limits;
        let queues = [
            limits.output_bytes_max + FRAME_BYTES_MAX,
            limits.urgent_queue_bytes_max.max(FRAME_BYTES_MAX),
            limits.live_queue_bytes_max.max(FRAME_BYTES_MAX),
            limits.reads_queue_bytes_max.max(FRAME_BYTES_MAX),
        ];
        for (waiting, most) in waiting.iter().zip(queues) {
            assert!(*waiting <= most, "{waiting} bytes wait, at most {most}");
        }
    }

    /// Ends the link of one side; the other side reads the end of the stream.
    fn end(&mut self, side: usize, end: End) {
        let may = matches!(
            end,
            End::Eof | End::Silent | End::Left | End::Bye { .. } | End::Refused(..) | End::RefusedByPeer(..)
        );
        assert!(may, "two links that agree do not end so: {end:?}");
        let refusal = end.refusal();
        self.nodes[side].end(end);
        if let Some(peer) = &mut self.nodes[1 - side].link {
            let end = peer.eof();
            self.nodes[1 - side].end(end);
        }
        self.roster = Roster::default();
        self.breaker.down(refusal, self.now_us);
    }
}

impl Node {
    fn take(&mut self, frame: &Frame<'_>, bytes: usize, limits: &LinkLimits) {
        let (lane, number) = match frame {
            Frame::Control { id, .. } => (0, *id),
            Frame::Message(NodeMessage::Deliver { record, .. }) => (1, record.position.seq.0),
            Frame::Message(NodeMessage::Range { ask, .. }) => (2, ask.0),
            other => panic!("nobody sends {other:?}"),
        };
        assert!(number > self.came[lane], "{number} after {} in lane {lane}", self.came[lane]);
        if std::mem::replace(&mut self.began[lane], true) {
            assert_eq!(number, self.came[lane] + 1, "a link loses nothing while it stands");
        }
        self.came[lane] = number;
        if let Some(index) = windowed(frame.lane()) {
            let window = [limits.live_window_bytes, limits.reads_window_bytes][index];
            assert!(self.unhandled[index] < window, "it began without credit");
            self.unhandled[index] += bytes as u64;
        }
        self.waiting.push_back((frame.lane(), bytes));
    }

    fn end(&mut self, end: End) {
        self.ends.push(end);
        let counters = self.link.take().expect("it is over").counters();
        self.totals.suspicions += counters.suspicions;
        self.totals.bytes_out += counters.bytes_out;
        for lane in 0..3 {
            self.totals.sent[lane] += counters.sent[lane];
            self.totals.refused[lane] += counters.refused[lane];
        }
    }
}

/// Index of a lane's window, if it has one.
fn windowed(lane: Lane) -> Option<usize> {
    match lane {
        Lane::Live => Some(0),
        Lane::Reads => Some(1),
        _ => None,
    }
}
