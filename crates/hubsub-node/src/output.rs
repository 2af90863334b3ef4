//! What waits to be written to one connection, in this order: the queue that
//! its socket did not take; the pieces of this turn; replies behind one that
//! is not known yet.
//!
//! Invariants: pieces and queue are never both filled; a reply leaves its slot
//! only when all before it have; records stay behind a subscription's
//! confirmation. An idle connection has no `Output`: they are pooled.

use hubsub_route::Record;
use hubsub_types::Position;
use hubsub_wire::resp::Proto;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

/// A part of this turn's output.
pub enum Piece {
    /// Bytes of one of the turn's arenas.
    Range {
        /// Which one.
        arena: u8,
        /// First byte.
        start: u32,
        /// Behind the last byte.
        end: u32,
    },
    /// A large frame, shared by all who get it.
    Frame(Rc<[u8]>),
}

/// Bytes in the queue.
pub enum Bytes {
    /// Shared by all who get them.
    Shared(Rc<[u8]>),
    /// This connection's own.
    Own(Vec<u8>),
}

impl Bytes {
    /// The bytes.
    #[must_use]
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Shared(bytes) => bytes,
            Bytes::Own(bytes) => bytes,
        }
    }
}

/// A frame in the queue.
pub struct Frame {
    /// Encoded.
    pub bytes: Bytes,
    /// Of a record whose room's class may drop it.
    pub tag: Option<Tag>,
}

/// Which record a frame carries.
pub struct Tag {
    /// Its topic.
    pub topic: Rc<[u8]>,
    /// Its position.
    pub position: Position,
}

/// Records of one topic that gave way.
pub struct Gap {
    /// The topic.
    pub topic: Rc<[u8]>,
    /// First one missing.
    pub from: Position,
    /// Last one missing.
    pub to: Position,
}

/// What a reply that is not known yet will be.
pub enum Pending {
    /// The number of receivers of a publish.
    Publish,
    /// This confirmation of a subscription, or an error.
    Confirm(Vec<u8>),
    /// The confirmation of a subscription with a start: topic, count, and the
    /// version that the client spoke when it asked.
    Start(Box<[u8]>, u64, Proto),
    /// Whatever a question to other shards brings.
    Parts,
    /// Nothing: the client wants no reply.
    Silence,
}

/// A reply in order.
pub enum Slot {
    /// Not known yet.
    Waiting(Pending),
    /// Known; waits for those before it.
    Ready(Vec<u8>),
    /// Likewise, and records must stay behind it: it confirms a subscription,
    /// ends a transaction, tells of a gap or is a record itself.
    Confirmed(Vec<u8>),
    /// Records of a history, written as output drains: encoded from `next` on.
    Long {
        /// All of them.
        records: Vec<Arc<Record>>,
        /// How many are written.
        next: usize,
    },
}

/// See the module.
#[derive(Default)]
pub struct Output {
    /// Of this turn.
    pub pieces: Vec<Piece>,
    /// Bytes of `pieces`.
    pub turn_bytes: usize,
    /// What the socket did not take.
    pub queue: VecDeque<Frame>,
    /// Bytes of the queue's first frame that are written.
    pub head_sent: usize,
    /// Bytes of the queue that are not written.
    pub queue_bytes: usize,
    /// Replies behind one that is not known.
    pub slots: VecDeque<Slot>,
    /// Number of the first slot.
    pub first_slot: u32,
    /// What records must stay behind: slots that confirm, or will confirm, a
    /// subscription, or hold a long reply, and an EXEC that is executed.
    pub confirms: u32,
    /// While an EXEC is executed: records that come meanwhile.
    pub held: Option<Vec<u8>>,
    /// Bytes in ready slots.
    pub slot_bytes: usize,
    /// Weight of the records in long slots, which a subscriber's limit does not count.
    pub long_bytes: usize,
    /// Questions to other shards whose answers have slots.
    pub questions: u32,
    /// Since when the queue is above the soft limit, in ms.
    pub soft_since_ms: Option<u64>,
    /// To be told before the queue's next frame.
    pub gaps: Vec<Gap>,
}

impl Output {
    /// Whether it can go back to the pool.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let is_empty = self.pieces.is_empty() && self.queue.is_empty() && self.slots.is_empty();
        is_empty && self.gaps.is_empty() && self.held.is_none()
    }

    /// Prepares it for the pool, and gives large memory back.
    pub fn recycle(&mut self) {
        const KEPT: usize = 64;
        debug_assert!(self.is_idle() && self.pending_bytes() == 0 && self.confirms + self.questions == 0);
        self.pieces.shrink_to(KEPT);
        self.queue.shrink_to(KEPT);
        self.slots.shrink_to(KEPT);
        (self.head_sent, self.first_slot, self.soft_since_ms) = (0, 0, None);
    }

    /// Bytes that wait for the client.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.queue_bytes + self.turn_bytes + self.slot_bytes + self.long_bytes
    }

    /// Adds bytes of an arena; adjacent ones become one piece.
    #[inline]
    pub fn push_range(&mut self, arena: u8, start: u32, end: u32) {
        self.turn_bytes += (end - start) as usize;
        if let Some(Piece::Range { arena: last, end: last_end, .. }) = self.pieces.last_mut()
            && *last == arena
            && *last_end == start
        {
            *last_end = end;
            return;
        }
        self.pieces.push(Piece::Range { arena, start, end });
    }

    /// Adds a large frame.
    pub fn push_frame(&mut self, frame: Rc<[u8]>) {
        self.turn_bytes += frame.len();
        self.pieces.push(Piece::Frame(frame));
    }

    /// Adds to the queue behind what the socket did not take.
    pub fn enqueue(&mut self, bytes: Bytes, tag: Option<Tag>) {
        self.queue_bytes += bytes.as_slice().len();
        self.queue.push_back(Frame { bytes, tag });
    }

    /// Adds reply bytes to the queue, to its last frame if that is one of replies.
    pub fn enqueue_reply(&mut self, reply: &[u8]) {
        const FRAME: usize = 16 * 1024;
        self.queue_bytes += reply.len();
        if let Some(Frame { bytes: Bytes::Own(bytes), tag: None }) = self.queue.back_mut()
            && bytes.len() + reply.len() <= FRAME
        {
            bytes.extend_from_slice(reply);
            return;
        }
        self.queue.push_back(Frame { bytes: Bytes::Own(reply.to_vec()), tag: None });
    }

    /// `sent` more bytes of the queue are written.
    pub fn advance(&mut self, mut sent: usize) {
        self.queue_bytes -= sent;
        while sent > 0 {
            let head = self.queue.front().expect("no more is sent than was queued");
            let left = head.bytes.as_slice().len() - self.head_sent;
            if sent < left {
                self.head_sent += sent;
                return;
            }
            sent -= left;
            self.head_sent = 0;
            self.queue.pop_front();
        }
    }

    /// Opens a slot; its number.
    pub fn open_slot(&mut self, pending: Pending) -> u32 {
        self.confirms += u32::from(is_confirm(&pending));
        self.slots.push_back(Slot::Waiting(pending));
        self.first_slot.wrapping_add(self.slots.len() as u32 - 1)
    }

    /// The number that the next slot will have.
    #[must_use]
    pub fn next_slot(&self) -> u32 {
        self.first_slot.wrapping_add(self.slots.len() as u32)
    }

    /// A slot that waits.
    pub fn waiting(&mut self, slot: u32) -> Option<&mut Slot> {
        let place = slot.wrapping_sub(self.first_slot) as usize;
        self.slots.get_mut(place).filter(|s| matches!(s, Slot::Waiting(_)))
    }

    /// Drops the oldest frames that may be dropped until `needed` bytes are
    /// free or none is left; what was dropped is remembered as gaps if
    /// `tells`. Bytes and records dropped.
    pub fn drop_oldest(&mut self, needed: usize, tells: bool) -> (usize, u64) {
        let (mut freed, mut records) = (0, 0);
        let mut i = usize::from(self.head_sent > 0);
        while freed < needed && i < self.queue.len() {
            if self.queue[i].tag.is_none() {
                i += 1;
                continue;
            }
            let frame = self.queue.remove(i).expect("checked by the loop");
            freed += frame.bytes.as_slice().len();
            records += 1;
            if let (Some(tag), true) = (frame.tag, tells) {
                self.remember_gap(tag);
            }
        }
        self.queue_bytes -= freed;
        (freed, records)
    }

    /// Keeps only the latest frame of each topic among those that may be
    /// dropped. Bytes and records dropped.
    pub fn conflate(&mut self, tells: bool) -> (usize, u64) {
        let (mut freed, mut records) = (0, 0);
        let head = usize::from(self.head_sent > 0);
        let mut seen = hashbrown::HashSet::<Rc<[u8]>, ahash::RandomState>::default();
        let mut kept = VecDeque::with_capacity(self.queue.len());
        let mut lost = Vec::new();
        for i in (0..self.queue.len()).rev() {
            let frame = self.queue.pop_back().expect("counted by the loop");
            match frame.tag {
                Some(tag) if i >= head && !seen.insert(Rc::clone(&tag.topic)) => {
                    freed += frame.bytes.as_slice().len();
                    records += 1;
                    lost.push(tag);
                }
                tag => kept.push_front(Frame { bytes: frame.bytes, tag }),
            }
        }
        if tells {
            lost.into_iter().rev().for_each(|tag| self.remember_gap(tag));
        }
        self.queue = kept;
        self.queue_bytes -= freed;
        (freed, records)
    }

    /// Place of the first record in the queue that may give way.
    #[must_use]
    pub fn first_droppable(&self) -> Option<usize> {
        let head = usize::from(self.head_sent > 0);
        (head..self.queue.len()).find(|&i| self.queue[i].tag.is_some())
    }

    /// Puts what is told of gaps where the records would stand: before the
    /// first record that may still give way, else behind all, and never into
    /// a frame that is half written or an array that is not complete. The
    /// bytes that this adds.
    pub fn tell_gaps(&mut self, write: impl Fn(&mut Vec<u8>, &Gap)) -> usize {
        if self.gaps.is_empty() || self.held.is_some() {
            return 0;
        }
        let mut told = Vec::new();
        self.gaps.drain(..).for_each(|gap| write(&mut told, &gap));
        let bytes = told.len();
        match self.first_droppable() {
            None if self.confirms > 0 => self.push_confirmed(told),
            place => {
                self.queue_bytes += bytes;
                let frame = Frame { bytes: Bytes::Own(told), tag: None };
                self.queue.insert(place.unwrap_or(self.queue.len()), frame);
            }
        }
        bytes
    }

    /// A record of this topic will not reach the client.
    pub fn remember_gap(&mut self, tag: Tag) {
        let Tag { topic, position } = tag;
        match self.gaps.iter_mut().find(|g| g.topic == topic && g.to.epoch == position.epoch) {
            Some(gap) => gap.to.seq = gap.to.seq.max(position.seq),
            None => self.gaps.push(Gap { topic, from: position, to: position }),
        }
    }
}

/// Whether records must stay behind this reply.
#[must_use]
pub fn is_confirm(pending: &Pending) -> bool {
    matches!(pending, Pending::Confirm(_) | Pending::Start(..))
}
