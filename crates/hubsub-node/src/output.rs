//! What waits to be written to one connection, in this order: the queue that
//! its socket did not take; the pieces of this turn; replies behind one that
//! is not known yet.
//!
//! Invariants: pieces and queue are never both filled; a reply leaves its slot
//! only when all before it have; records stay behind a subscription's
//! confirmation. An idle connection has no `Output`: they are pooled.

use crate::shared::{Counted, Shared};
use ahash::RandomState;
use hubsub_route::Record;
use hubsub_types::Position;
use hubsub_wire::phoenix::Answer;
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
    Frame(Shared),
}

/// Bytes in the queue.
pub enum Bytes {
    /// Shared by all who get them.
    Shared(Shared),
    /// This connection's own.
    Own(Counted),
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
    /// Whether it is a record whose room's class closes who is too slow for it.
    pub closes: bool,
    /// Whether it is a reply: not what the client subscribed to.
    pub is_reply: bool,
}

impl Frame {
    /// Of what is no record, or of records that no policy looks at any more.
    #[must_use]
    pub fn plain(bytes: Bytes) -> Frame {
        Frame { bytes, tag: None, closes: false, is_reply: false }
    }
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
    /// The reply to a browser's push, but for its outcome.
    Answer(Box<Answer>),
    /// The reply to its join of this topic.
    Join(Box<str>),
    /// The beginning of a stream of events.
    Events(Box<crate::http::Opening>),
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
    /// Those of them that are replies.
    queue_reply_bytes: usize,
    /// Unread replies as the shard's sum has them.
    pub counted_replies: usize,
    /// Frames of the queue that close who is too slow for them.
    pub closers: usize,
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
    /// Questions to other shards whose answers have slots; one that is answered by a list counts as several.
    pub questions: u32,
    /// Publishes that may come back to this client and are not answered: their slots, and hashes of their topics. Records
    /// of these topics stay behind the replies.
    pub own_publishes: VecDeque<(u32, u64)>,
    /// Slot of its latest publish that waited for the log; those before it may wait still.
    pub logged_slot: Option<u32>,
    /// Whether the shard's list of sockets that have room for the queue has it.
    pub is_writable: bool,
    /// Since when the queue is above the soft limit, in ms.
    pub soft_since_ms: Option<u64>,
    /// To be told before the queue's next frame.
    pub gaps: Gaps,
    /// Number of the queue's first frame; frames keep theirs.
    popped: u64,
    /// No frame with a lower number may be dropped.
    oldest: u64,
    /// Frames of the queue that gave way, at most.
    empty: usize,
    /// Once records gave way to later ones of their topics: the number of the
    /// latest of each that may.
    latest: Option<Box<Latest>>,
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
        debug_assert!(self.counted_replies == 0);
        debug_assert!(self.is_idle() && self.pending_bytes() == 0 && self.confirms + self.questions == 0);
        self.pieces.shrink_to(KEPT);
        self.queue.shrink_to(KEPT);
        self.slots.shrink_to(KEPT);
        self.own_publishes.shrink_to(KEPT);
        (self.head_sent, self.first_slot, self.soft_since_ms, self.logged_slot) = (0, 0, None, None);
        (self.popped, self.oldest, self.empty, self.latest, self.is_writable) = (0, 0, 0, None, false);
    }

    /// Whether one of its publishes waits for the log.
    #[must_use]
    pub fn waits_for_log(&self) -> bool {
        let Some(last) = self.logged_slot else { return false };
        let place = last.wrapping_sub(self.first_slot) as usize;
        // An answer may overtake those before it: a refusal, or that of another hub.
        let publishes = |slot: &Slot| {
            matches!(slot, Slot::Waiting(Pending::Publish | Pending::Answer(_) | Pending::Silence))
        };
        place < self.slots.len() && self.slots.iter().take(place + 1).any(publishes)
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
    pub fn push_frame(&mut self, frame: Shared) {
        self.turn_bytes += frame.len();
        self.pieces.push(Piece::Frame(frame));
    }

    /// Adds to the queue behind what the socket did not take.
    pub fn enqueue(&mut self, frame: Frame) {
        self.queue_bytes += frame.bytes.as_slice().len();
        self.closers += usize::from(frame.closes);
        if let (Some(latest), Some(tag)) = (&mut self.latest, &frame.tag) {
            latest.insert(Rc::clone(&tag.topic), self.popped.wrapping_add(self.queue.len() as u64));
        }
        self.queue.push_back(frame);
    }

    /// Adds bytes to the queue that no policy looks at, to its last frame if that is of their kind: replies, or what a
    /// socket left of a turn's records.
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

    /// Brings a shard's sum of unread replies up to date with this client's: in the queue, and all that waits for its
    /// place among them.
    pub fn count_replies(&mut self, sum: &mut usize) {
        let bytes = self.queue_reply_bytes + self.slot_bytes + self.long_bytes;
        *sum = *sum + bytes - self.counted_replies;
        self.counted_replies = bytes;
    }

    /// `sent` more bytes of the queue are written. What has given way at its
    /// front goes, too.
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

    /// Opens a slot; its number.
    pub fn open_slot(&mut self, pending: Pending) -> u32 {
        self.confirms += u32::from(is_confirm(&pending));
        self.slots.push_back(Slot::Waiting(pending));
        self.first_slot.wrapping_add(self.slots.len() as u32 - 1)
    }

    /// The publish of the slot that is opened next may come back to this client.
    pub fn note_own_publish(&mut self, topic: &[u8]) {
        self.own_publishes.push_back((self.next_slot(), topic_hash(topic)));
    }

    /// Whether a publish to this topic is still to be answered: records of it wait.
    #[must_use]
    pub fn answers_first(&self, topic: &[u8]) -> bool {
        !self.own_publishes.is_empty() && {
            let hash = topic_hash(topic);
            self.own_publishes.iter().any(|(_, of)| *of == hash)
        }
    }

    /// Whether something may have to precede a record: queued records, confirmations, replies to its own publishes, or gaps.
    #[inline]
    #[must_use]
    pub fn holds_records(&self) -> bool {
        !self.queue.is_empty() || self.confirms > 0 || !self.own_publishes.is_empty() || !self.gaps.is_empty()
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
        while freed < needed
            && let Some(place) = self.first_droppable()
        {
            freed += self.give_way(place, tells);
            records += 1;
        }
        self.compact();
        (freed, records)
    }

    /// Keeps only the latest frame of each topic among those that may be
    /// dropped, and none of `topic`, whose next one comes. Bytes and records
    /// dropped. The first time in the life of a queue it looks at all of it.
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

    /// Whether records of a topic give way to its next one although there is
    /// room: they do until the queue that was full is written.
    #[must_use]
    pub fn conflates(&self) -> bool {
        self.latest.is_some()
    }

    /// Empties a frame that may be dropped, which keeps the places of the others; its bytes.
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

    /// Removes emptied frames once they may be more than half, but for one if
    /// there are no others: whoever waits for the queue waits for its writing.
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

    /// Place of the first record in the queue that may give way.
    pub fn first_droppable(&mut self) -> Option<usize> {
        let known = self.oldest.wrapping_sub(self.popped) as i64;
        let from = usize::try_from(known).unwrap_or(0).max(usize::from(self.head_sent > 0));
        let place = (from..self.queue.len()).find(|&i| self.queue[i].tag.is_some());
        self.oldest = self.popped.wrapping_add(place.unwrap_or(self.queue.len()) as u64);
        place
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
                // Frames before it get lower numbers; they have none that counts.
                self.queue.insert(place, frame(told));
                self.popped = self.popped.wrapping_sub(1);
            }
        }
        self.queue_bytes += bytes;
        bytes
    }

    /// A record of this topic will not reach the client.
    pub fn remember_gap(&mut self, tag: Tag) {
        self.gaps.add(tag);
    }
}

/// What a client is to be told that it will not get, by topic.
#[derive(Default)]
pub struct Gaps {
    list: Vec<Gap>,
    /// Place in `list` of each topic's last gap.
    places: Latest,
    /// Bytes that these keep, near enough for limits.
    pub bytes: usize,
}

impl Gaps {
    /// Whether there is nothing to tell.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Takes all, in the order of their beginnings.
    pub fn take(&mut self) -> Vec<Gap> {
        std::mem::take(self).list
    }

    fn add(&mut self, Tag { topic, position }: Tag) {
        let place = self.places.get(&topic).map(|&place| place as usize);
        if let Some(gap) = place.map(|place| &mut self.list[place])
            && gap.to.epoch == position.epoch
        {
            gap.to.seq = gap.to.seq.max(position.seq);
            return;
        }
        self.bytes += size_of::<Gap>() + topic.len();
        self.places.insert(Rc::clone(&topic), self.list.len() as u64);
        self.list.push(Gap { topic, from: position, to: position });
    }
}

/// Numbers by topic.
type Latest = hashbrown::HashMap<Rc<[u8]>, u64, ahash::RandomState>;

/// Topics of one hash are held back together, which does no harm.
fn topic_hash(topic: &[u8]) -> u64 {
    RandomState::with_seeds(1, 2, 3, 4).hash_one(topic)
}

/// Whether records must stay behind this reply.
#[must_use]
pub fn is_confirm(pending: &Pending) -> bool {
    matches!(pending, Pending::Confirm(_) | Pending::Start(..) | Pending::Join(_) | Pending::Events(_))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_that_waits_for_the_log_is_not_overlooked_behind_a_later_answer() {
        let mut output = Output::default();
        let slots = [Pending::Publish, Pending::Publish].map(|pending| output.open_slot(pending));
        output.logged_slot = Some(slots[1]);
        assert!(output.waits_for_log());
        *output.waiting(slots[1]).unwrap() = Slot::Ready(Vec::new());
        assert!(output.waits_for_log(), "the first one waits still");
        *output.waiting(slots[0]).unwrap() = Slot::Ready(Vec::new());
        assert!(!output.waits_for_log());
        output.slots.clear();
        output.first_slot += 2;
        output.open_slot(Pending::Publish);
        assert!(!output.waits_for_log(), "that is of a room without a log");
    }
}
