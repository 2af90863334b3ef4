//! Output of one connection, written in this order: the queue that its socket did not take; the pieces of
//! this turn; replies that wait for an earlier reply.
//!
//! Invariants: pieces and queue are never both filled. A reply leaves its slot only after all earlier ones.
//! Records never overtake the confirmation of a subscription. An idle connection has no `Output`: they are
//! pooled.

mod gaps;
mod slots;

pub use gaps::{Gap, Gaps, Latest, Tag};
use hubsub_types::shared::{Counted, PLACE_BYTES, Shared};
pub use slots::{Opening, Pending, Slot};
use std::collections::VecDeque;
use std::rc::Rc;

/// A part of this turn's output.
pub enum Piece {
    Range {
        /// Index of the arena.
        arena: u8,
        start: u32,
        /// End of the range, exclusive.
        end: u32,
    },
    /// A large frame, shared by its receivers.
    Frame(Shared),
}

/// Bytes of a queued frame.
pub enum Bytes {
    /// Shared by several receivers.
    Shared(Shared),
    /// Owned by this connection.
    Own(Counted),
}

impl Bytes {
    pub fn as_slice(&self) -> &[u8] {
        match self {
            Bytes::Shared(bytes) => bytes,
            Bytes::Own(bytes) => bytes,
        }
    }
}

pub struct Frame {
    pub bytes: Bytes,
    /// Set if the frame is a record that its room's class may drop.
    pub tag: Option<Tag>,
    /// Whether the frame is a record whose room's class closes a subscriber that is too slow.
    pub closes: bool,
    /// Whether it is a reply, as opposed to subscribed output.
    pub is_reply: bool,
}

impl Frame {
    /// A frame without a record, or with records that no policy applies to any more.
    pub fn plain(bytes: Bytes) -> Frame {
        Frame { bytes, tag: None, closes: false, is_reply: false }
    }
}

#[derive(Default)]
pub struct Output {
    /// Output of this turn.
    pub pieces: Vec<Piece>,
    pub turn_bytes: usize,
    /// Frames that the socket did not take.
    pub queue: VecDeque<Frame>,
    /// Bytes already written of the queue's first frame.
    pub head_sent: usize,
    /// Unwritten bytes of the queue.
    pub queue_bytes: usize,
    /// The part of `queue_bytes` that is replies.
    queue_reply_bytes: usize,
    /// Unread replies as counted in the shard's sum.
    pub counted_replies: usize,
    /// Number of queued frames that close a slow subscriber.
    pub closers: usize,
    /// Replies that wait for an earlier one.
    pub slots: VecDeque<Slot>,
    pub first_slot: u32,
    /// Number of items that records must not overtake: slots that confirm or will confirm a subscription or
    /// hold a long reply, and an EXEC in progress.
    pub confirms: u32,
    /// During an EXEC: the records that arrive meanwhile.
    pub held: Option<Vec<u8>>,
    pub slot_bytes: usize,
    /// Weight of the records in long slots, which a subscriber's limit does not count.
    pub long_bytes: usize,
    /// Weight of pending scatter-gather requests that have slots; one that is answered by a list counts as
    /// several.
    pub questions: u32,
    /// Unanswered publishes that may be delivered back to this client: their slots, and hashes of their
    /// topics. Records of these topics stay after the replies.
    pub own_publishes: VecDeque<(u32, u64)>,
    /// Slot of the latest publish that waited for the log; earlier ones may still wait.
    pub logged_slot: Option<u32>,
    /// Whether the connection is in the shard's list of writable sockets with a queue.
    pub is_writable: bool,
    /// Time at which the queue exceeded the soft limit, in ms.
    pub soft_since_ms: Option<u64>,
    /// Gaps to report before the queue's next frame.
    pub gaps: Gaps,
    /// Number of the queue's first frame; each frame keeps its number.
    popped: u64,
    /// Lower bound of the number of the first frame that may be dropped.
    oldest: u64,
    /// Upper bound of the number of emptied frames in the queue.
    empty: usize,
    /// Set while the queue conflates: the number of the latest droppable frame of each topic.
    latest: Option<Box<Latest>>,
}

impl Output {
    /// Whether it can return to the pool.
    pub fn is_idle(&self) -> bool {
        let is_empty = self.pieces.is_empty() && self.queue.is_empty() && self.slots.is_empty();
        is_empty && self.gaps.is_empty() && self.held.is_none()
    }

    /// Resets it for the pool and frees large buffers.
    pub fn recycle(&mut self) {
        const KEPT: usize = 64;
        debug_assert!(self.counted_replies == 0);
        debug_assert!(self.is_idle() && self.pending_bytes() == 0 && self.confirms + self.questions == 0);
        // This runs for each delivery to an idle client: the calls are made only if there is something to free.
        macro_rules! shrink {
            ($($list:ident),*) => { $(if self.$list.capacity() > KEPT { self.$list.shrink_to(KEPT) })* };
        }
        shrink!(pieces, queue, slots, own_publishes);
        (self.head_sent, self.first_slot, self.soft_since_ms, self.logged_slot) = (0, 0, None, None);
        (self.popped, self.oldest, self.empty, self.latest, self.is_writable) = (0, 0, 0, None, false);
    }

    /// Whether a publish of this client waits for the log.
    pub fn waits_for_log(&self) -> bool {
        let Some(last) = self.logged_slot else { return false };
        let place = last.wrapping_sub(self.first_slot) as usize;
        // Replies may arrive out of order: a refusal, or one from another hub.
        let publishes = |slot: &Slot| {
            matches!(slot, Slot::Waiting(Pending::Publish | Pending::Answer(_) | Pending::Silence))
        };
        place < self.slots.len() && self.slots.iter().take(place + 1).any(publishes)
    }

    /// Bytes pending for the client.
    pub fn pending_bytes(&self) -> usize {
        self.queue_bytes + self.turn_bytes + self.slot_bytes + self.long_bytes
    }

    /// Adds bytes of an arena; adjacent ranges become one piece.
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

    pub fn push_frame(&mut self, frame: Shared) {
        self.turn_bytes += frame.len();
        self.pieces.push(Piece::Frame(frame));
    }

    /// Appends a frame to the queue.
    pub fn enqueue(&mut self, frame: Frame) {
        self.queue_bytes += frame.bytes.as_slice().len();
        self.closers += usize::from(frame.closes);
        if let (Some(latest), Some(tag)) = (&mut self.latest, &frame.tag) {
            latest.insert(Rc::clone(&tag.topic), self.popped.wrapping_add(self.queue.len() as u64));
        }
        self.queue.push_back(frame);
    }

    /// Appends bytes that no policy applies to: replies, or what a socket left of a turn's records. They
    /// extend the last frame if it is of the same kind.
    pub fn enqueue_plain(&mut self, added: &[u8], is_reply: bool) {
        const FRAME: usize = 16 * 1024;
        self.queue_bytes += added.len();
        self.queue_reply_bytes += if is_reply { added.len() } else { 0 };
        if let Some(Frame { bytes: Bytes::Own(bytes), tag: None, is_reply: last, .. }) = self.queue.back_mut()
            && *last == is_reply
            && bytes.len() + added.len() <= FRAME
        {
            bytes.extend_from_slice(added);
            return;
        }
        self.queue.push_back(Frame { is_reply, ..Frame::plain(Bytes::Own(Counted::new(added))) });
    }

    /// Updates the shard's sum of unread replies with this client's: those in the queue, and slots.
    pub fn count_replies(&mut self, sum: &mut usize) {
        let bytes = self.queue_reply_bytes + self.slot_bytes + self.long_bytes;
        *sum = *sum + bytes - self.counted_replies;
        self.counted_replies = bytes;
    }

    /// Removes `sent` written bytes from the queue, and emptied frames that are then at its front.
    pub fn advance(&mut self, mut sent: usize) {
        self.queue_bytes -= sent;
        while let Some(head) = self.queue.front() {
            let left = head.bytes.as_slice().len() - self.head_sent;
            self.queue_reply_bytes -= if head.is_reply { sent.min(left) } else { 0 };
            if sent < left {
                self.head_sent += sent;
                return;
            }
            sent -= left;
            self.head_sent = 0;
            let head = self.queue.pop_front();
            self.closers -= usize::from(head.as_ref().is_some_and(|head| head.closes));
            self.forget_latest(head.and_then(|head| head.tag).as_ref(), self.popped);
            self.popped = self.popped.wrapping_add(1);
        }
        (self.popped, self.oldest, self.empty, self.latest, self.is_writable) = (0, 0, 0, None, false);
    }

    /// Whether something may have to precede a record: queued records, confirmations, replies to its own
    /// publishes, or gaps.
    #[inline]
    pub fn holds_records(&self) -> bool {
        !self.queue.is_empty() || self.confirms > 0 || !self.own_publishes.is_empty() || !self.gaps.is_empty()
    }

    /// Drops the oldest droppable frames until `needed` bytes are free or none is left; with `tells`, the
    /// dropped records become gaps. Returns the dropped bytes and records.
    pub fn drop_oldest(&mut self, needed: usize, tells: bool) -> (usize, u64) {
        let (mut freed, mut records) = (0, 0);
        while freed < needed
            && let Some(place) = self.first_droppable()
        {
            freed += self.give_way(place, tells);
            records += 1;
        }
        self.compact();
        (freed, records)
    }

    /// Drops all but the latest droppable frame of each topic, and all of `topic`, whose next record follows.
    /// Returns the dropped bytes and records. The first call for a queue scans all of it.
    pub fn conflate(&mut self, topic: &[u8], tells: bool) -> (usize, u64) {
        let (mut freed, mut records) = (0, 0);
        if self.latest.is_none() {
            let mut latest = Latest::default();
            let mut older = Vec::new();
            for place in (usize::from(self.head_sent > 0)..self.queue.len()).rev() {
                let Some(tag) = &self.queue[place].tag else { continue };
                if latest.contains_key(&tag.topic) {
                    older.push(place);
                } else {
                    latest.insert(Rc::clone(&tag.topic), self.popped.wrapping_add(place as u64));
                }
            }
            self.latest = Some(Box::new(latest));
            records += older.len() as u64;
            freed += older.into_iter().rev().map(|place| self.give_way(place, tells)).sum::<usize>();
        }
        let number = self.latest.as_ref().and_then(|latest| latest.get(topic));
        let place = number.map(|number| number.wrapping_sub(self.popped) as usize);
        if let Some(place) = place.filter(|&place| place >= usize::from(self.head_sent > 0)) {
            freed += self.give_way(place, tells);
            records += 1;
        }
        self.compact();
        (freed, records)
    }

    /// Whether each record replaces older ones of its topic even if there is room: this holds until the queue
    /// that was full is written.
    pub fn conflates(&self) -> bool {
        self.latest.is_some()
    }

    /// Empties a droppable frame, keeping the indexes of the others. Returns its bytes.
    fn give_way(&mut self, place: usize, tells: bool) -> usize {
        let empty = Frame::plain(Bytes::Own(Counted::default()));
        let frame = std::mem::replace(&mut self.queue[place], empty);
        self.empty += 1;
        self.forget_latest(frame.tag.as_ref(), self.popped.wrapping_add(place as u64));
        if let (Some(tag), true) = (frame.tag, tells) {
            self.remember_gap(tag);
        }
        let bytes = frame.bytes.as_slice().len();
        self.queue_bytes -= bytes;
        bytes
    }

    fn forget_latest(&mut self, tag: Option<&Tag>, number: u64) {
        if let (Some(latest), Some(tag)) = (&mut self.latest, tag)
            && latest.get(&tag.topic) == Some(&number)
        {
            latest.remove(&tag.topic);
        }
    }

    /// Removes emptied frames once they may be more than half. If no frame would be left, one stays, because
    /// the queue is what waits for the socket to be writable.
    fn compact(&mut self) {
        if self.empty <= 64 + self.queue.len() / 2 {
            return;
        }
        self.queue.retain(|frame| !frame.bytes.as_slice().is_empty());
        if self.queue.is_empty() {
            self.queue.push_back(Frame::plain(Bytes::Own(Counted::default())));
        }
        (self.popped, self.oldest, self.empty) = (0, 0, 0);
        if let Some(latest) = &mut self.latest {
            let tags =
                self.queue.iter().zip(0..).filter_map(|(frame, number)| Some((frame.tag.as_ref()?, number)));
            **latest = tags.map(|(tag, number)| (Rc::clone(&tag.topic), number)).collect();
        }
    }

    /// Index of the first queued record that may be dropped.
    pub fn first_droppable(&mut self) -> Option<usize> {
        let known = self.oldest.wrapping_sub(self.popped) as i64;
        let from = usize::try_from(known).unwrap_or(0).max(usize::from(self.head_sent > 0));
        let place = (from..self.queue.len()).find(|&i| self.queue[i].tag.is_some());
        self.oldest = self.popped.wrapping_add(place.unwrap_or(self.queue.len()) as u64);
        place
    }

    /// Inserts gap notices where the records would be: before the first record that may still be dropped,
    /// else at the end, and never into a half-written frame or an incomplete array. Returns the added bytes.
    pub fn tell_gaps(&mut self, write: impl Fn(&mut Vec<u8>, &Gap)) -> usize {
        if self.gaps.is_empty() || self.held.is_some() {
            return 0;
        }
        let mut told = Vec::new();
        self.gaps.take().iter().for_each(|gap| write(&mut told, gap));
        let bytes = told.len();
        let frame = |told: Vec<u8>| Frame::plain(Bytes::Own(Counted::from(told)));
        match self.first_droppable() {
            None if self.confirms > 0 => {
                self.push_confirmed(told);
                return bytes;
            }
            None => self.queue.push_back(frame(told)),
            Some(place) => {
                // Numbers of the frames before it decrease; none of those is referenced.
                self.queue.insert(place, frame(told));
                self.popped = self.popped.wrapping_sub(1);
            }
        }
        self.queue_bytes += bytes;
        bytes
    }

    /// Notes that a record of this topic will not reach the client.
    pub fn remember_gap(&mut self, tag: Tag) {
        self.gaps.add(tag);
    }
}

// A receiver of shared bytes has a queue entry, and the queue may be half empty.
const _: () = assert!(PLACE_BYTES == size_of::<Frame>() * 3 / 2);
