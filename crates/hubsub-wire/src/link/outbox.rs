//! The outgoing side of a link: the output for the socket, the lanes that are queued for it, and the link's
//! internal frames, of which at most one of each kind is queued.
//!
//! The output holds at most `output_bytes_max` and one frame; a lane's queue at most its limit, or one longer
//! frame. Control-plane messages have a queue of their own, after that of other urgent frames: however many
//! they are, there is space for leader leases.

use super::LinkLimits;
use super::credit::Credit;
use super::frame::Frame;
use super::parts::Status;
use super::queue::Queue;
use hubsub_message::NodeMessage;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    Out,
    Queued,
    /// Its lane is full, the frame is too long, or the link is not up: it was dropped and counted.
    Refused,
}

/// Totals of a link, for metrics. Lanes in the order of [`super::Lane::OF_OWNER`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Frames received, counted when complete.
    pub frames_in: u64,
    pub bytes_in: u64,
    pub bytes_out: u64,
    pub sent: [u64; 3],
    pub sent_bytes: [u64; 3],
    pub refused: [u64; 3],
    pub dropped_bytes: u64,
    pub suspicions: u64,
}

impl std::ops::Add for Counters {
    type Output = Counters;

    fn add(self, other: Counters) -> Counters {
        let lanes = |a: [u64; 3], b: [u64; 3]| std::array::from_fn(|lane| a[lane] + b[lane]);
        Counters {
            frames_in: self.frames_in + other.frames_in,
            bytes_in: self.bytes_in + other.bytes_in,
            bytes_out: self.bytes_out + other.bytes_out,
            sent: lanes(self.sent, other.sent),
            sent_bytes: lanes(self.sent_bytes, other.sent_bytes),
            refused: lanes(self.refused, other.refused),
            dropped_bytes: self.dropped_bytes + other.dropped_bytes,
            suspicions: self.suspicions + other.suspicions,
        }
    }
}

#[derive(Debug)]
struct LaneOut {
    queue: Queue,
    bytes_max: usize,
    credit: Credit,
}

const URGENT: usize = 0;
const LIVE: usize = 1;
const READS: usize = 2;
/// Index of the queue for control-plane messages, which count as urgent.
const CONTROL: usize = 3;

#[derive(Debug)]
pub(super) struct Outbox {
    output: Queue,
    output_bytes_max: usize,
    frame_bytes_max: usize,
    lanes: [LaneOut; 4],
    /// Whether reads precede live frames next time.
    reads_first: bool,
    /// When the ping was due, on this node's monotonic clock, in µs.
    ping_owed: Option<u64>,
    pong_owed: Option<(u64, u64)>,
    credit_owed: Option<(u64, u64)>,
    /// Total output up to the end of the last ping: no other ping follows before it is written.
    ping_end: u64,
    /// Written by the owner of the link.
    pub status: Status,
    /// The link writes those of received frames.
    pub counters: Counters,
}

impl Outbox {
    pub fn new(limits: &LinkLimits) -> Outbox {
        let lane = |bytes_max, credit| LaneOut { queue: Queue::default(), bytes_max, credit };
        Outbox {
            output: Queue::default(),
            output_bytes_max: limits.output_bytes_max,
            frame_bytes_max: limits.frame_bytes_max,
            lanes: [
                lane(limits.urgent_queue_bytes_max, Credit::ENDLESS),
                lane(limits.live_queue_bytes_max, Credit::NONE),
                lane(limits.reads_queue_bytes_max, Credit::NONE),
                lane(limits.urgent_queue_bytes_max, Credit::ENDLESS),
            ],
            reads_first: false,
            ping_owed: None,
            pong_owed: None,
            credit_owed: None,
            ping_end: 0,
            status: Status::default(),
            counters: Counters::default(),
        }
    }

    pub fn as_slice(&self) -> &[u8] {
        self.output.as_slice()
    }

    /// Puts a frame of the owner into the output, or into its queue.
    pub fn send(&mut self, frame: &Frame<'_>, index: usize) -> Sent {
        let place = if matches!(frame, Frame::Control { .. }) { CONTROL } else { index };
        self.put(index, place, |out| frame.encode(out))
    }

    pub fn send_message(&mut self, message: &NodeMessage, index: usize) -> Sent {
        self.put(index, index, |out| message.encode(out))
    }

    /// Puts the frame that `encode` appends into the output, or into the queue at `place`.
    fn put(&mut self, index: usize, place: usize, encode: impl FnOnce(&mut Vec<u8>) -> usize) -> Sent {
        let passes = self.passes(place);
        let lane = &mut self.lanes[place];
        let (target, bytes_max) = match passes {
            true => (&mut self.output, usize::MAX),
            false => (&mut lane.queue, lane.bytes_max),
        };
        let waiting = target.len();
        if waiting >= bytes_max {
            return self.refuse(index);
        }
        let bytes = encode(target.end());
        // A frame may be longer than the limit of an empty queue, so that every frame can pass.
        if bytes > self.frame_bytes_max || (waiting > 0 && waiting + bytes > bytes_max) {
            target.undo(bytes);
            return self.refuse(index);
        }
        self.counters.sent[index] += 1;
        self.counters.sent_bytes[index] += bytes as u64;
        if !passes {
            return Sent::Queued;
        }
        lane.credit.spend(bytes);
        Sent::Out
    }

    pub fn refuse(&mut self, index: usize) -> Sent {
        self.counters.refused[index] += 1;
        Sent::Refused
    }

    /// Whether a frame of this lane goes into the output at once.
    pub fn passes(&self, index: usize) -> bool {
        let lane = &self.lanes[index];
        let passes = lane.credit.is_left() && self.output.len() < self.output_bytes_max;
        debug_assert!(!passes || lane.queue.is_empty(), "`fill` follows whatever makes room");
        passes
    }

    /// Sends a frame of the handshake, or the last of the link.
    pub fn say(&mut self, frame: &Frame<'_>) {
        frame.encode(self.output.end());
    }

    pub fn say_encoded(&mut self, frames: &[u8]) {
        self.output.extend(frames);
    }

    pub fn owe_ping(&mut self, stamp_us: u64) {
        self.ping_owed = Some(stamp_us);
        self.fill();
    }

    pub fn owe_pong(&mut self, stamp_us: u64, wall_us: u64) {
        self.pong_owed = Some((stamp_us, wall_us));
        self.fill();
    }

    pub fn owe_credit(&mut self, live: u64, reads: u64) {
        self.credit_owed = Some((live, reads));
        self.fill();
    }

    pub fn raise(&mut self, live: u64, reads: u64) {
        self.lanes[LIVE].credit.raise(live);
        self.lanes[READS].credit.raise(reads);
        self.fill();
    }

    pub fn written(&mut self, bytes: usize) {
        self.output.advance(bytes);
        self.counters.bytes_out += bytes as u64;
        self.fill();
    }

    /// Drops everything that is not in the output.
    pub fn close(&mut self) {
        (self.ping_owed, self.pong_owed, self.credit_owed) = (None, None, None);
        for lane in &mut self.lanes {
            self.counters.dropped_bytes += lane.queue.len() as u64;
            lane.queue.clear();
        }
    }

    pub fn waiting(&self) -> [usize; 4] {
        let [urgent, live, reads, control] = &self.lanes;
        [self.output.len(), urgent.queue.len() + control.queue.len(), live.queue.len(), reads.queue.len()]
    }

    /// Fills the output: the link's internal frames, urgent ones, then live and reads in turn.
    fn fill(&mut self) {
        while self.output.len() < self.output_bytes_max {
            let (first, second) = if self.reads_first { (READS, LIVE) } else { (LIVE, READS) };
            let moved = self.fill_own()
                || [URGENT, CONTROL, first, second].into_iter().any(|index| self.fill_from(index));
            if !moved {
                break;
            }
        }
    }

    fn fill_own(&mut self) -> bool {
        if let Some((stamp_us, wall_us)) = self.pong_owed.take() {
            Frame::Pong { stamp_us, wall_us, status: self.status }.encode(self.output.end());
        } else if let Some((live, reads)) = self.credit_owed.take() {
            Frame::Credit { live, reads }.encode(self.output.end());
        } else if let Some(stamp_us) = self.ping_owed.take_if(|_| self.counters.bytes_out >= self.ping_end) {
            Frame::Ping { stamp_us, status: self.status }.encode(self.output.end());
            self.ping_end = self.counters.bytes_out + self.output.len() as u64;
        } else {
            return false;
        }
        true
    }

    fn fill_from(&mut self, index: usize) -> bool {
        let lane = &mut self.lanes[index];
        let Some(frame) = lane.queue.front().filter(|_| lane.credit.is_left()) else { return false };
        let bytes = frame.len();
        self.output.extend(frame);
        lane.queue.advance(bytes);
        lane.credit.spend(bytes);
        if index == LIVE || index == READS {
            self.reads_first = index == LIVE;
        }
        true
    }
}
