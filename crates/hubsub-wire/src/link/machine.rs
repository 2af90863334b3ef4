//! One link: a connection between two nodes, from its first byte to its end.
//!
//! It owns the output, the lanes' queues and credit, and the state of the peer. The owner reads the socket,
//! passes the input to `next` frame by frame, writes `output`, and calls `tick` when `wake_at` has come. It
//! reads before it ticks: bytes in the socket count as heard, however late they are read.

use super::clock::{Clock, Offset};
use super::credit::Window;
use super::decode::Raw;
use super::end::End;
use super::frame::Frame;
use super::handshake::{Handshake, Identity, Peer, Refused, Step, refused};
use super::outbox::{Counters, Outbox, Sent};
use super::parts::Status;
use super::{HANDSHAKE_FRAME_BYTES_MAX, Lane, LinkLimits, Now, Refusal};
use hubsub_message::{FrameError, NodeMessage};
use std::sync::Arc;

/// Longest text in a Bye or a Refuse, in bytes; longer ones are truncated.
const TEXT_BYTES_MAX: usize = 512;

#[derive(PartialEq, Debug)]
pub enum Next<'a> {
    /// A frame for the owner, which calls `handled` with its lane and bytes after handling it.
    Frame(Frame<'a>, usize),
    /// Acceptor: this peer has proved itself. The owner calls `welcome` or `refuse`.
    Proved(Peer, usize),
    /// The link is up: the owner may send.
    Up(usize),
    /// This many bytes, handled by the link itself.
    Own(usize),
    /// More input is needed, up to this length.
    Incomplete(usize),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Answer {
    /// When the ping was sent, on this node's monotonic clock, in µs.
    pub stamp_us: u64,
    /// The peer's status, at some time after that.
    pub status: Status,
}

#[derive(Debug)]
enum Phase {
    Shaking(Box<Handshake>),
    Up(Peer),
    Over,
}

#[derive(Debug)]
pub struct Link {
    phase: Phase,
    limits: Arc<LinkLimits>,
    out: Outbox,
    /// Windows for the peer's frames; raised after the owner has handled them.
    live_in: Window,
    reads_in: Window,
    /// When the handshake began. All times are this node's monotonic µs.
    started_us: u64,
    heard_us: u64,
    ping_at_us: u64,
    /// When `tick` reported the suspicion; reset when bytes arrive.
    suspected_us: Option<u64>,
    /// From the peer's last ping or pong.
    peer_status: Status,
    answer: Option<Answer>,
    /// Whether it sent a ping since the last [`Link::take_ping`].
    is_pinged: bool,
    clock: Clock,
}

impl Link {
    /// Dials link `link` of a peer. `expected` is the node at this address, `nonce` is random.
    #[must_use]
    pub fn dial(
        identity: Arc<Identity>,
        limits: Arc<LinkLimits>,
        link: u16,
        expected: Option<Box<str>>,
        nonce: &[u8; 32],
        now: Now,
    ) -> Link {
        let (handshake, hello) = Handshake::dial(identity, link, expected, nonce);
        let mut link = Link::new(handshake, limits, now);
        link.out.say_encoded(&hello);
        link
    }

    /// Accepts a dialed connection. `nonce` is random.
    #[must_use]
    pub fn accept(identity: Arc<Identity>, limits: Arc<LinkLimits>, nonce: [u8; 32], now: Now) -> Link {
        Link::new(Handshake::accept(identity, nonce), limits, now)
    }

    fn new(handshake: Handshake, limits: Arc<LinkLimits>, now: Now) -> Link {
        Link {
            phase: Phase::Shaking(Box::new(handshake)),
            out: Outbox::new(&limits),
            live_in: Window::new(limits.live_window_bytes),
            reads_in: Window::new(limits.reads_window_bytes),
            started_us: now.mono_us,
            heard_us: now.mono_us,
            ping_at_us: now.mono_us,
            suspected_us: None,
            peer_status: Status::default(),
            answer: None,
            is_pinged: false,
            clock: Clock::default(),
            limits,
        }
    }

    /// The socket yielded bytes. Returns true if the peer was suspected until now.
    pub fn heard(&mut self, now: Now) -> bool {
        self.heard_us = now.mono_us;
        self.suspected_us.take().is_some()
    }

    /// Handles the start of the input. Unless `Incomplete`, the owner removes its bytes and calls again.
    ///
    /// # Errors
    /// The link has ended.
    pub fn next<'a>(&mut self, input: &'a [u8], now: Now) -> Result<Next<'a>, End> {
        let (bytes_max, is_up) = match &self.phase {
            Phase::Shaking(_) => (HANDSHAKE_FRAME_BYTES_MAX, false),
            Phase::Up(_) => (self.limits.frame_bytes_max, true),
            Phase::Over => return Err(End::Left),
        };
        let raw = match Raw::split(input, bytes_max) {
            Ok(Ok(raw)) => raw,
            Ok(Err(needed)) => return Ok(Next::Incomplete(needed)),
            Err(error) => return Err(self.bad(is_up, error)),
        };
        // A frame that may not come now is refused before memory is taken for it.
        if let Some((name, lane)) = Frame::of_type(raw.code) {
            if !is_up && lane != Lane::Handshake {
                let text = format!("frame out of place: {name}");
                return Err(self.turn_away(refused(Refusal::Stranger, &text)));
            }
            if is_up && !self.has_credit(lane, raw.bytes) {
                return Err(self.fail(End::WithoutCredit(lane)));
            }
        }
        let bytes = raw.bytes;
        let frame = match raw.decode() {
            Ok(frame) => frame,
            Err(error) => return Err(self.bad(is_up, error)),
        };
        self.out.counters.frames_in += 1;
        self.out.counters.bytes_in += bytes as u64;
        if is_up { self.take(frame, bytes, now) } else { self.shake(frame, &input[..bytes], now) }
    }

    fn bad(&mut self, is_up: bool, error: FrameError) -> End {
        if is_up {
            self.fail(End::Bad(error))
        } else {
            self.turn_away(refused(Refusal::Stranger, &error.to_string()))
        }
    }

    /// Counts a frame of this lane; false if the peer may not send it yet.
    fn has_credit(&mut self, lane: Lane, bytes: usize) -> bool {
        match lane {
            Lane::Live => self.live_in.receive(bytes),
            Lane::Reads => self.reads_in.receive(bytes),
            _ => true,
        }
    }

    fn shake<'a>(&mut self, frame: Frame<'a>, raw: &[u8], now: Now) -> Result<Next<'a>, End> {
        if let Frame::Refuse { code, text, more: _ } = frame {
            self.over();
            return Err(End::RefusedByPeer(Refusal::from_number(code), text.into()));
        }
        let Phase::Shaking(handshake) = &mut self.phase else { unreachable!("called in a handshake") };
        let mut answer = Vec::new();
        let step = handshake.take(frame, raw, &mut answer);
        self.out.say_encoded(&answer);
        match step {
            Ok(Step::Waiting) => Ok(Next::Own(raw.len())),
            Ok(Step::Proved(peer)) => Ok(Next::Proved(peer, raw.len())),
            Ok(Step::Done(peer)) => {
                self.up(peer, now);
                Ok(Next::Up(raw.len()))
            }
            Err(refused) => Err(self.turn_away(refused)),
        }
    }

    fn take<'a>(&mut self, frame: Frame<'a>, bytes: usize, now: Now) -> Result<Next<'a>, End> {
        match frame {
            Frame::Ping { stamp_us, status } => {
                self.peer_status = status;
                self.is_pinged = true;
                self.out.owe_pong(stamp_us, now.wall_us);
            }
            Frame::Pong { stamp_us, wall_us, status } => {
                self.peer_status = status;
                self.answer = Some(Answer { stamp_us, status });
                self.clock.sample(stamp_us, wall_us, now);
            }
            Frame::Credit { live, reads } => self.out.raise(live, reads),
            Frame::Bye { stopping, text } => {
                self.over();
                return Err(End::Bye { stopping, text: text.into() });
            }
            _ if frame.lane() == Lane::Handshake => {
                return Err(self.fail(End::OutOfPlace(frame.name())));
            }
            _ => return Ok(Next::Frame(frame, bytes)),
        }
        Ok(Next::Own(bytes))
    }

    /// Acceptor: admits a peer that has proved itself. The link is up.
    ///
    /// # Panics
    /// `next` has not returned `Proved`.
    pub fn welcome(&mut self, now: Now) {
        let Phase::Shaking(handshake) = std::mem::replace(&mut self.phase, Phase::Over) else {
            panic!("nobody to be welcomed")
        };
        let mut answer = Vec::new();
        let peer = handshake.welcome(&mut answer);
        self.out.say_encoded(&answer);
        self.up(peer, now);
    }

    /// Acceptor: refuses the peer.
    pub fn refuse(&mut self, refusal: Refusal, value: &str) -> End {
        self.turn_away(refused(refusal, value))
    }

    fn up(&mut self, peer: Peer, now: Now) {
        self.phase = Phase::Up(peer);
        self.heard_us = now.mono_us;
        self.ping_at_us = now.mono_us;
        self.grant();
    }

    /// Sends the peer new credit, if it is worth a frame.
    fn grant(&mut self) {
        if self.live_in.is_due() || self.reads_in.is_due() {
            self.out.owe_credit(self.live_in.grant(), self.reads_in.grant());
        }
    }

    /// Sends a frame, or queues it.
    ///
    /// # Panics
    /// It is a frame that only the link itself sends.
    pub fn send(&mut self, frame: &Frame<'_>) -> Sent {
        let index = frame.lane().index().expect("frames of the link itself are not the owner's");
        match self.phase {
            Phase::Up(_) => self.out.send(frame, index),
            _ => self.out.refuse(index),
        }
    }

    pub fn send_message(&mut self, message: &NodeMessage) -> Sent {
        let index = message.lane().index().expect("brokers do not send frames of the link itself");
        match self.phase {
            Phase::Up(_) => self.out.send_message(message, index),
            _ => self.out.refuse(index),
        }
    }

    /// Whether a frame of this lane is sent at once; else a leader lets this node catch up.
    pub fn flows(&self, lane: Lane) -> bool {
        matches!(self.phase, Phase::Up(_)) && lane.index().is_some_and(|index| self.out.passes(index))
    }

    /// The owner has handled a frame of this many bytes.
    pub fn handled(&mut self, lane: Lane, bytes: usize) {
        match lane {
            Lane::Live => self.live_in.handle(bytes),
            Lane::Reads => self.reads_in.handle(bytes),
            _ => return,
        }
        if matches!(self.phase, Phase::Up(_)) {
            self.grant();
        }
    }

    pub fn output(&self) -> &[u8] {
        self.out.as_slice()
    }

    pub fn written(&mut self, bytes: usize) {
        self.out.written(bytes);
    }

    /// Checks the timers. Returns true if the peer is suspected from now on.
    ///
    /// # Errors
    /// The link has ended.
    pub fn tick(&mut self, now: Now) -> Result<bool, End> {
        let silence_us = now.mono_us.saturating_sub(self.heard_us);
        match self.phase {
            Phase::Over => return Err(End::Left),
            Phase::Shaking(_) => {
                if now.mono_us.saturating_sub(self.started_us) < self.limits.handshake_ms * 1_000 {
                    return Ok(false);
                }
                return Err(self.turn_away(refused(
                    Refusal::Late,
                    &format!("more than {} ms", self.limits.handshake_ms),
                )));
            }
            Phase::Up(_) => {}
        }
        // Counted from the suspicion: if this side did not run for long, the peer was not silent for as long.
        let patience_us = (self.limits.silence_ms - self.limits.suspect_ms) * 1_000;
        if self.suspected_us.is_some_and(|since_us| now.mono_us.saturating_sub(since_us) >= patience_us) {
            return Err(self.fail(End::Silent));
        }
        if now.mono_us >= self.ping_at_us {
            self.ping_at_us = now.mono_us + self.limits.heartbeat_ms * 1_000;
            self.out.owe_ping(now.mono_us);
        }
        let is_new = silence_us >= self.limits.suspect_ms * 1_000 && self.suspected_us.is_none();
        if is_new {
            self.suspected_us = Some(now.mono_us);
            self.out.counters.suspicions += 1;
        }
        Ok(is_new)
    }

    /// When `tick` must be called, in µs.
    pub fn wake_at(&self) -> u64 {
        let limits = &self.limits;
        match self.phase {
            Phase::Over => u64::MAX,
            Phase::Shaking(_) => self.started_us + limits.handshake_ms * 1_000,
            Phase::Up(_) => {
                let due_us = match self.suspected_us {
                    Some(since_us) => since_us + (limits.silence_ms - limits.suspect_ms) * 1_000,
                    None => self.heard_us + limits.suspect_ms * 1_000,
                };
                self.ping_at_us.min(due_us)
            }
        }
    }

    /// Sends Bye after the output. Queued frames are dropped. A dialer that has sent its proof also sends
    /// Bye: for the peer the link may be up already.
    pub fn bye(&mut self, stopping: bool, text: &str) -> End {
        let may_be_up = match &self.phase {
            Phase::Shaking(handshake) => handshake.is_to_be_welcomed(),
            Phase::Up(_) => true,
            Phase::Over => false,
        };
        if may_be_up {
            self.out.say(&Frame::Bye { stopping, text: cut(text) });
        }
        self.over();
        End::Left
    }

    pub fn eof(&mut self) -> End {
        self.over();
        End::Eof
    }

    /// Ends the link after an error; the peer gets the reason, if it still reads.
    fn fail(&mut self, end: End) -> End {
        self.out.say(&Frame::Bye { stopping: false, text: cut(&end.to_string()) });
        self.over();
        end
    }

    fn turn_away(&mut self, (refusal, text): Refused) -> End {
        let code = refusal as u8;
        self.out.say(&Frame::Refuse { code, text: cut(&text), more: Default::default() });
        self.over();
        End::Refused(refusal, text)
    }

    fn over(&mut self) {
        self.phase = Phase::Over;
        self.out.close();
    }

    pub fn peer(&self) -> Option<&Peer> {
        if let Phase::Up(peer) = &self.phase { Some(peer) } else { None }
    }

    /// Sets this node's status for the next pings and pongs.
    pub fn set_status(&mut self, status: Status) {
        self.out.status = status;
    }

    pub fn peer_status(&self) -> Status {
        self.peer_status
    }

    /// Takes the peer's last pong. The latest one is enough, since each reports the current status.
    pub fn take_answer(&mut self) -> Option<Answer> {
        self.answer.take()
    }

    /// The status in a ping that has arrived since the last call.
    pub fn take_ping(&mut self) -> Option<Status> {
        std::mem::take(&mut self.is_pinged).then_some(self.peer_status)
    }

    pub fn is_suspected(&self) -> bool {
        self.suspected_us.is_some()
    }

    /// When bytes were last received, on this node's monotonic clock in µs.
    pub fn heard_us(&self) -> u64 {
        self.heard_us
    }

    pub fn offset(&self) -> Option<Offset> {
        self.clock.offset()
    }

    pub fn counters(&self) -> Counters {
        self.out.counters
    }

    /// Queued bytes: output, then lanes in the order of [`Lane::OF_OWNER`].
    pub fn waiting(&self) -> [usize; 4] {
        self.out.waiting()
    }
}

/// The start of a text, truncated at a character boundary.
fn cut(text: &str) -> &str {
    let mut end = text.len().min(TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
