//! The internal client: a shard's own subscriptions and publishes, handled like any connection's but without
//! a socket. Its records and replies are queued by the broker's callbacks and handled in the same turn
//! ([`Core::take_own`]).
//!
//! It owns a slot among the shard's connections, from first use on, and the numbers that match replies to
//! requests.

use crate::consumers::Wanted;
use crate::io::context::Rim;
use crate::io::core::Core;
use crate::presence::{self, PresenceAsked};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::rooms::HistoryPart;
use hubsub_route::{
    Answer, Asker, Draft, Headers, Namespace, Outcome, Publisher, RecordView, Start, Ticket, Wish,
};
use hubsub_types::{ConnKey, ErrorCode, Position, Qos, ShardId};
use std::sync::Arc;

/// The origin of a request, which gets the reply.
pub enum Asked {
    /// The shard of a client id, for a request to the id's room.
    Claims(crate::mqtt::ClaimAsked),
    /// A consumer whose entry was written.
    Row(Arc<[u8]>),
    /// A consumer that dead-lettered the record at this position.
    Buried(Arc<[u8]>, Position),
    /// A pending write or read of an MQTT session.
    Session(crate::mqtt::Written),
    /// A room's shard, for a request to the nodes' presence room.
    Members(PresenceAsked),
    /// The join or leave record with this reference.
    Recorded(u64),
    /// The publisher of a room's occupancy.
    Occupancy(Arc<[u8]>),
    /// The reply is ignored.
    Nobody,
}

/// A queued input of the internal client.
enum Event {
    /// A record: topic and payload.
    Record(Box<[u8]>, Box<[u8]>),
    /// Records of this topic may be missing.
    Gap(Box<[u8]>),
    /// The reply to the request of this number.
    Answer(u32, Answer),
    Consumers(Wanted),
    /// This session must be recorded.
    Session(ConnKey),
    /// A room's history for the session that is being restored at this connection slot.
    Past(ConnKey, Result<HistoryPart, ErrorCode>),
    /// The entry of an ended session.
    Ended(Box<crate::mqtt::SessionDelete>, Result<HistoryPart, ErrorCode>),
    /// Whether a session that was taken over from another process has all its subscriptions again.
    Follows(ConnKey, bool),
    /// The outcome of a join that may watch members: connection, seat, success.
    Joined(ConnKey, u64, bool),
}

#[derive(Default)]
pub struct Own {
    key: Option<ConnKey>,
    events: Vec<Event>,
    asked: HashMap<u32, Asked, RandomState>,
    last: u32,
}

impl Own {
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether changes of sessions may not be recorded yet.
    #[must_use]
    pub fn records(&self) -> bool {
        self.has_work() || self.asked.values().any(|asked| matches!(asked, Asked::Session(_)))
    }

    /// Registers a request and returns its number.
    pub fn number(&mut self, asked: Asked) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.asked.insert(self.last, asked);
        self.last
    }

    /// Removes and returns the origin of a request.
    pub fn answered(&mut self, number: u32) -> Option<Asked> {
        self.asked.remove(&number)
    }

    /// Whether `conn` is the internal client's slot.
    #[must_use]
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

    /// Queues work for consumers.
    pub fn want(&mut self, wanted: Wanted) {
        self.events.push(Event::Consumers(wanted));
    }

    /// Queues an MQTT session to be recorded.
    pub fn record(&mut self, session: ConnKey) {
        self.events.push(Event::Session(session));
    }

    /// Queues a room's history for a session that is being restored.
    pub fn past(&mut self, session: ConnKey, part: Result<HistoryPart, ErrorCode>) {
        self.events.push(Event::Past(session, part));
    }

    /// Queues the entry of an ended session.
    pub fn found_ended(
        &mut self,
        ending: Box<crate::mqtt::SessionDelete>,
        part: Result<HistoryPart, ErrorCode>,
    ) {
        self.events.push(Event::Ended(ending, part));
    }

    /// Queues whether a session that was taken over has all its subscriptions again.
    pub fn follow(&mut self, session: ConnKey, is_held: bool) {
        self.events.push(Event::Follows(session, is_held));
    }

    /// Queues the outcome of joining the topic of a connection's seat.
    pub fn join(&mut self, key: ConnKey, seat: u64, is_done: bool) {
        self.events.push(Event::Joined(key, seat, is_done));
    }

    pub fn answer(&mut self, number: u32, answer: Answer) {
        self.events.push(Event::Answer(number, answer));
    }
}

impl Rim {
    /// Registers a request of the internal client.
    fn ask_itself(&mut self, key: ConnKey, asked: Asked) -> Ticket {
        let slot = self.own.number(asked);
        Ticket { shard: self.shard, asker: Asker::Client { conn: key, slot } }
    }
}

/// The shard, out of `shards`, that represents its node in an internal room of this name. All shards must
/// agree on it, so it does not use their hash seeds (FNV-1a).
#[must_use]
pub fn shard_of(name: &[u8], shards: u16) -> ShardId {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    let hash = name.iter().fold(0xcbf2_9ce4_8422_2325, step);
    ShardId((hash % u64::from(shards)) as u16)
}

impl Core {
    pub(crate) fn own_key(&mut self) -> ConnKey {
        if let Some(key) = self.rim.own.key {
            return key;
        }
        let key = self.rim.conns.reserve();
        self.broker.connected_itself(key);
        self.rim.own.key = Some(key);
        key
    }

    /// Subscribes to an internal topic; the outcome is queued as a reply.
    pub(crate) fn watch(&mut self, topic: &[u8], asked: Asked) {
        let key = self.own_key();
        let ticket = self.rim.ask_itself(key, asked);
        let wish = Wish { topic, namespace: Namespace::Global, start: Start::Live };
        let outcome = self.broker.subscribe(ticket, key, wish, self.rim.now, &mut self.rim);
        if let Outcome::Now(attached) = outcome {
            self.rim.answer_own(ticket, Answer::Attached(attached));
        }
    }

    /// Ends a subscription of `watch`.
    pub(crate) fn unwatch(&mut self, topic: &[u8]) {
        let key = self.own_key();
        self.broker.unsubscribe(key, Namespace::Global, topic, self.rim.now, &mut self.rim);
    }

    /// Publishes to an internal topic.
    pub(crate) fn say_in(&mut self, topic: &[u8], payload: &[u8], asked: Asked) {
        self.say_with(topic, payload, None, asked);
    }

    /// Publishes to any topic, with headers.
    pub(crate) fn say_with(&mut self, topic: &[u8], payload: &[u8], headers: Headers, asked: Asked) {
        let key = self.own_key();
        let ticket = self.rim.ask_itself(key, asked);
        let draft = Draft {
            namespace: Namespace::Global,
            topic,
            payload,
            headers,
            publisher: Publisher::Name(""),
            producer: None,
            qos: Qos::ExactlyOnce,
            retain: false,
        };
        if let Outcome::Now(outcome) = self.broker.publish(ticket, draft, self.rim.now, &mut self.rim) {
            self.rim.answer_own(ticket, Answer::Published(outcome));
        }
    }

    /// Handles the internal client's queued input, and the input that this causes.
    pub fn take_own(&mut self) {
        while self.rim.own.has_work() {
            for event in std::mem::take(&mut self.rim.own.events) {
                match event {
                    Event::Record(topic, payload) => match presence::room_of(&topic) {
                        Some(room) => presence::heard(self, room, &payload),
                        None => crate::mqtt::heard(self, &topic, &payload),
                    },
                    Event::Consumers(wanted) => crate::consumers::act(self, wanted),
                    Event::Session(key) => crate::mqtt::persist_session(self, key),
                    Event::Ended(ending, part) => crate::mqtt::found_deleted(self, *ending, part),
                    Event::Past(key, part) => crate::mqtt::read_of_session(self, key, part),
                    Event::Follows(key, is_held) => crate::mqtt::followed(self, key, is_held),
                    Event::Gap(topic) => match presence::room_of(&topic) {
                        Some(room) => presence::missed(self, room),
                        None => crate::mqtt::missed(self, &topic),
                    },
                    Event::Joined(key, seat, true) => presence::joined(self, key, seat),
                    Event::Joined(key, seat, false) => presence::refused(self, key, seat),
                    Event::Answer(number, answer) => match self.rim.own.answered(number) {
                        Some(Asked::Members(asked)) => {
                            presence::answered(self, asked, outcome_of(&answer));
                        }
                        Some(Asked::Recorded(reference)) => {
                            presence::recorded(self, reference, outcome_of(&answer));
                        }
                        Some(Asked::Occupancy(room)) => {
                            presence::occupancy_told(self, &room, outcome_of(&answer).is_ok());
                        }
                        Some(Asked::Claims(asked)) => crate::mqtt::answered(self, asked, outcome_of(&answer)),
                        Some(Asked::Session(what)) => {
                            crate::mqtt::written(self, what, outcome_of(&answer));
                        }
                        Some(Asked::Row(source)) => {
                            crate::consumers::saved(self, &source, outcome_of(&answer).is_ok());
                        }
                        Some(Asked::Buried(source, position)) if outcome_of(&answer).is_ok() => {
                            crate::consumers::buried(self, &source, position);
                        }
                        Some(Asked::Buried(..) | Asked::Nobody) | None => {}
                    },
                }
            }
        }
    }
}

impl Rim {
    fn answer_own(&mut self, ticket: Ticket, answer: Answer) {
        if let Asker::Client { slot, .. } = ticket.asker {
            self.own.answer(slot, answer);
        }
    }
}

/// Number of receivers of a publish, or success of another request.
fn outcome_of(answer: &Answer) -> Result<u64, ErrorCode> {
    match answer {
        Answer::Published(outcome) => outcome.map(|published| published.receivers),
        Answer::Attached(outcome) => outcome.map(|_| 0),
        Answer::PatternHeld | Answer::Settled => Ok(0),
        Answer::Counted(count) => *count,
        Answer::HubEnds(ends) => ends.as_ref().map(|ends| ends.len() as u64).map_err(|code| *code),
        Answer::Rows(page) => page.as_ref().map(|page| page.rows.len() as u64).map_err(|refused| *refused),
    }
}
