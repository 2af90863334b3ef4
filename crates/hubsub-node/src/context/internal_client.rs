//! The internal client: a shard's own subscriptions and publishes, handled like any connection's but without
//! a socket. Its records and replies are queued by the broker's callbacks and handled in the same turn
//! (`shard::internal`).
//!
//! It owns a slot among the shard's connections, from first use on, and the numbers that match replies to
//! requests.

use super::work::{Asked, Work};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::{Answer, RecordView};
use hubsub_types::{ConnKey, Position};

/// A queued input of the internal client.
pub enum Event {
    /// A record: topic and payload.
    Record(Box<[u8]>, Box<[u8]>),
    /// Records of this topic may be missing.
    Gap(Box<[u8]>),
    /// The reply to the request of this number.
    Answer(u32, Answer),
    /// A member of a group needs a record no more.
    Acknowledged(Box<[u8]>, Position),
    /// The outcome of a join that may watch members: connection, seat, success.
    Joined(ConnKey, u64, bool),
    Work(Work),
}

#[derive(Default)]
pub struct InternalClient {
    pub(super) key: Option<ConnKey>,
    events: Vec<Event>,
    asked: HashMap<u32, Asked, RandomState>,
    last: u32,
}

impl InternalClient {
    pub fn has_work(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether the reply to such a request is awaited.
    pub fn awaits(&self, is_such: impl Fn(&Asked) -> bool) -> bool {
        self.asked.values().any(is_such)
    }

    /// Registers a request and returns its number.
    pub fn number(&mut self, asked: impl Into<Asked>) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.asked.insert(self.last, asked.into());
        self.last
    }

    /// Removes and returns the origin of a request.
    pub fn answered(&mut self, number: u32) -> Option<Asked> {
        self.asked.remove(&number)
    }

    /// Whether `conn` is the internal client's slot.
    pub fn is_at(&self, conn: u32) -> bool {
        self.key.is_some_and(|key| key.index == conn)
    }

    pub fn deliver(&mut self, record: &RecordView<'_>) {
        self.events.push(Event::Record(record.topic.into(), record.payload.into()));
    }

    /// Queues a notice that records of a topic are missing.
    pub fn miss(&mut self, topic: &[u8]) {
        self.events.push(Event::Gap(topic.into()));
    }

    /// Queues work of a folder, to be done after the broker's call returns.
    pub fn queue(&mut self, work: impl Into<Work>) {
        self.events.push(Event::Work(work.into()));
    }

    /// Queues the acknowledgement of a record by a member of a group.
    pub fn acknowledge(&mut self, group: Box<[u8]>, position: Position) {
        self.events.push(Event::Acknowledged(group, position));
    }

    /// Queues the outcome of joining the topic of a connection's seat.
    pub fn join(&mut self, key: ConnKey, seat: u64, is_done: bool) {
        self.events.push(Event::Joined(key, seat, is_done));
    }

    /// Takes the queued input.
    pub fn take(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    pub fn answer(&mut self, number: u32, answer: Answer) {
        self.events.push(Event::Answer(number, answer));
    }
}
