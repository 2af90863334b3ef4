//! The node's own client: what a shard itself subscribes to and publishes, as any connection does, but without a socket.
//! What comes for it is noted as the broker says it, and acted on in the same turn ([`Core::take_own`]).
//!
//! It owns a place among the shard's connections, from when it is first needed, and the numbers by which answers find
//! who asked.

use crate::consumers::Wanted;
use crate::core::Core;
use crate::presence::{self, PresenceAsked};
use crate::rim::Rim;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::rooms::HistoryPart;
use hubsub_route::{
    Answer, Asker, Draft, Headers, Namespace, Outcome, Publisher, RecordView, Start, Ticket, Wish,
};
use hubsub_types::{ConnKey, ErrorCode, Position, Qos, ShardId};
use std::sync::Arc;

/// Who waits for an answer.
pub enum Asked {
    /// A client id's shard, for what it asked of the id's room.
    Claims(crate::mqtt::ClaimAsked),
    /// A consumer whose row was written.
    Row(Arc<[u8]>),
    /// One of whose records went to the dead letters.
    Buried(Arc<[u8]>, Position),
    /// Who waits for something of an MQTT session.
    Session(crate::mqtt::Written),
    /// A room's shard, for what it asked of the room of nodes.
    Members(PresenceAsked),
    /// A record that somebody came to a room or went, under that reference.
    Recorded(u64),
    /// Who told how many are in a room.
    Occupancy(Arc<[u8]>),
    /// Nobody.
    Nobody,
}

/// What came.
enum Event {
    /// A record of a topic: its payload.
    Record(Box<[u8]>, Box<[u8]>),
    /// Records of this topic may be missing.
    Gap(Box<[u8]>),
    /// An answer to what was asked under this number.
    Answer(u32, Answer),
    /// Something for consumers.
    Consumers(Wanted),
    /// A session is to be recorded.
    Session(ConnKey),
    /// What a room has of a session that is read for that place.
    Past(ConnKey, Result<HistoryPart, ErrorCode>),
    /// The row of a session that has ended.
    Ended(Box<crate::mqtt::Ending>, Result<HistoryPart, ErrorCode>),
    /// A session in that place, which another process had, is subscribed to all that it was, or is not.
    Follows(ConnKey, bool),
    /// What came of a join, of one who may want to know who is there.
    Joined(ConnKey, u64, bool),
}

/// See the module.
#[derive(Default)]
pub struct Own {
    key: Option<ConnKey>,
    events: Vec<Event>,
    asked: HashMap<u32, Asked, RandomState>,
    last: u32,
}

impl Own {
    /// Whether there is something to act on.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.events.is_empty()
    }

    /// Whether what was to be recorded of sessions is not, as far as is known.
    #[must_use]
    pub fn records(&self) -> bool {
        self.has_work() || self.asked.values().any(|asked| matches!(asked, Asked::Session(_)))
    }

    /// Numbers a question, and keeps who asks it.
    pub fn number(&mut self, asked: Asked) -> u32 {
        self.last = self.last.wrapping_add(1);
        self.asked.insert(self.last, asked);
        self.last
    }

    /// Who asked that is not waited for any more.
    pub fn answered(&mut self, number: u32) -> Option<Asked> {
        self.asked.remove(&number)
    }

    /// Whether that is its place among connections.
    #[must_use]
    pub fn is_at(&self, conn: u32) -> bool {
        self.key.is_some_and(|key| key.index == conn)
    }

    /// A record for it.
    pub fn deliver(&mut self, record: &RecordView<'_>) {
        self.events.push(Event::Record(record.topic.into(), record.payload.into()));
    }

    /// Records of that topic will not come.
    pub fn miss(&mut self, topic: &[u8]) {
        self.events.push(Event::Gap(topic.into()));
    }

    /// Something is to be done for consumers.
    pub fn want(&mut self, wanted: Wanted) {
        self.events.push(Event::Consumers(wanted));
    }

    /// An MQTT session of that place is to be recorded.
    pub fn record(&mut self, session: ConnKey) {
        self.events.push(Event::Session(session));
    }

    /// What a room has of a session that is read for that place.
    pub fn past(&mut self, session: ConnKey, part: Result<HistoryPart, ErrorCode>) {
        self.events.push(Event::Past(session, part));
    }

    /// The row of a session that has ended.
    pub fn found_ended(&mut self, ending: Box<crate::mqtt::Ending>, part: Result<HistoryPart, ErrorCode>) {
        self.events.push(Event::Ended(ending, part));
    }

    /// A session in that place, which another process had, is subscribed to all that it was, or is not.
    pub fn follow(&mut self, session: ConnKey, is_held: bool) {
        self.events.push(Event::Follows(session, is_held));
    }

    /// The topic of a connection's seat is joined, or was refused.
    pub fn join(&mut self, key: ConnKey, seat: u64, is_done: bool) {
        self.events.push(Event::Joined(key, seat, is_done));
    }

    /// An answer for it.
    pub fn answer(&mut self, number: u32, answer: Answer) {
        self.events.push(Event::Answer(number, answer));
    }
}

impl Rim {
    /// Numbers a question of the node's own client.
    fn ask_itself(&mut self, key: ConnKey, asked: Asked) -> Ticket {
        let slot = self.own.number(asked);
        Ticket { shard: self.shard, asker: Asker::Client { conn: key, slot } }
    }
}

/// The shard, of so many, that speaks for its node in a room of that name of the node's own: the same for all shards, so
/// not by their seeds (FNV-1a).
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

    /// Subscribes to a topic of the node's own; what came of it is told like all that comes.
    pub(crate) fn watch(&mut self, topic: &[u8], asked: Asked) {
        let key = self.own_key();
        let ticket = self.rim.ask_itself(key, asked);
        let wish = Wish { topic, namespace: Namespace::Global, start: Start::Live };
        let outcome = self.broker.subscribe(ticket, key, wish, self.rim.now, &mut self.rim);
        if let Outcome::Now(attached) = outcome {
            self.rim.answer_own(ticket, Answer::Attached(attached));
        }
    }

    /// Ends that.
    pub(crate) fn unwatch(&mut self, topic: &[u8]) {
        let key = self.own_key();
        self.broker.unsubscribe(key, Namespace::Global, topic, self.rim.now, &mut self.rim);
    }

    /// Publishes to a topic of the node's own.
    pub(crate) fn say_in(&mut self, topic: &[u8], payload: &[u8], asked: Asked) {
        self.say_with(topic, payload, None, asked);
    }

    /// Likewise, with headers, and to any topic.
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

    /// Acts on what came for the node's own client, and on what comes of that.
    pub fn take_own(&mut self) {
        while self.rim.own.has_work() {
            for event in std::mem::take(&mut self.rim.own.events) {
                match event {
                    Event::Record(topic, payload) => match presence::room_of(&topic) {
                        Some(room) => presence::heard(self, room, &payload),
                        None => crate::mqtt::heard(self, &topic, &payload),
                    },
                    Event::Consumers(wanted) => crate::consumers::act(self, wanted),
                    Event::Session(key) => crate::mqtt::record_session(self, key),
                    Event::Ended(ending, part) => crate::mqtt::found_ended(self, *ending, part),
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

/// How many received what was published, or that a subscription holds.
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
