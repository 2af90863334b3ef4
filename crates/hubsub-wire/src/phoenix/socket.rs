//! A client's connection as channels: which topics it has joined, and what each
//! of its messages does. Events in, actions out; it knows no broker and no socket.
//!
//! ```text
//!             phx_join                 joined: ok
//!   (none) ─────────────► joining ─────────────────► joined ──┐ phx_leave, close, fail,
//!      ▲                     │ joined: refused                │ another phx_join
//!      └─────────────────────┴────────────────────────────────┘
//! ```
//!
//! 1. A topic has at most one channel. A message for one that is joining waits
//!    until the join is answered, and with it all input behind it, so a join
//!    never has to be taken back.
//! 2. Each push of a channel is answered once, or ignored because its join_ref
//!    is of an earlier join.
//! 3. Channels that join and that have joined are at most `channels_max`; a
//!    channel holds its topic and its refs, and nothing of what it pushes.

use super::answer::{Answer, reason};
use super::error::Flaw;
use super::join::Start;
use super::json::Reader;
use super::message::{
    FIELD_BYTES_MAX, Message, Payload, Push, Ref, Reply, Status, Version, is_reserved, word,
};
use super::presence::{BadWanted, Wanted};
use crate::websocket::CloseCode;
use hubsub_types::names::Matcher;
use std::borrow::Cow;

/// What holds for all connections, and may change while they stand.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    /// Which topics may be joined: those that one of them matches.
    pub topics: Vec<Matcher>,
    /// Channels of one connection.
    pub channels_max: usize,
    /// Joins of one connection in a second: further ones are refused.
    pub joins_per_second_max: u32,
    /// How long a client may be silent, in ms. Clients say that they are there every 30 s.
    pub silence_ms_max: u64,
}

impl Rules {
    /// Whether pages may join a topic, or read it in another way.
    #[must_use]
    pub fn opens(&self, topic: &[u8]) -> bool {
        self.topics.iter().any(|pattern| pattern.matches(topic))
    }
}

/// 100 channels and 60 s, as Phoenix has them, 500 joins a second, and no topic.
impl Default for Rules {
    fn default() -> Rules {
        Rules { topics: Vec::new(), channels_max: 100, joins_per_second_max: 500, silence_ms_max: 60_000 }
    }
}

/// Why a topic has no channel.
const UNMATCHED: &str = "unmatched topic";

/// What a flood of joins is told.
const JOIN_RATE: &str = "join_rate: too many joins in a second";

/// What the owner does, in this order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action<'a> {
    /// Say it, behind the answers that were begun before.
    Say(Message<'a>),
    /// Subscribe to it, then call [`Socket::joined`]. Nothing of the topic is said before.
    Join {
        /// Where.
        topic: &'a str,
        /// From where on.
        start: Start,
        /// All that the client said, for who decides whether it may.
        params: Payload<'a>,
        /// Whether it wants to know who is there, and who it is itself.
        presence: Option<Wanted>,
    },
    /// It is subscribed to no more. Nothing of the topic is said from here on.
    Leave {
        /// Where.
        topic: &'a str,
    },
    /// The member that joined there says something else of itself; then write the answer.
    Update {
        /// Where.
        topic: &'a str,
        /// An object of JSON.
        meta: &'a str,
        /// To be written when the outcome is known.
        answer: Answer,
    },
    /// Publish it, then write the answer.
    Publish {
        /// Where.
        topic: &'a str,
        /// Never a reserved one.
        event: &'a str,
        /// Any value.
        payload: Payload<'a>,
        /// To be written when the outcome is known.
        answer: Answer,
    },
}

/// Whether a message was taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Taken {
    /// It was.
    Yes,
    /// Its topic is joining. It, and what follows it, is given again when that is answered.
    Waits,
}

/// Why a connection ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// The client sent what is no message.
    Flaw(Flaw),
    /// It was silent for too long.
    Silent,
    /// What clients have not finished is too much together, and it has most of it.
    Debtor,
    /// The server sends it away.
    Disconnected,
    /// The server stops; the client connects again, and comes to another.
    Restart,
}

impl End {
    /// The code of the Close. Clients connect again after any of them; after 1000 older ones would not.
    #[must_use]
    pub fn code(self) -> CloseCode {
        match self {
            End::Flaw(flaw) => flaw.code(),
            End::Silent | End::Disconnected => CloseCode::GOING_AWAY,
            End::Debtor => CloseCode::new(1013).expect("a registered code"),
            End::Restart => CloseCode::new(1012).expect("a registered code"),
        }
    }
}

/// The channels of one connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Socket {
    version: Version,
    /// Ordered by topic.
    channels: Vec<Channel>,
    /// When bytes last came, in ms of the owner's monotonic clock.
    heard_ms: u64,
    /// A second of that clock, and the joins in it.
    joins: (u32, u32),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Channel {
    topic: Box<str>,
    /// Which messages are of this join.
    join_ref: Option<Ref<'static>>,
    /// The join's answer, until it is known.
    joining: Option<Answer>,
}

impl Socket {
    /// A connection that has just begun to speak that version.
    #[must_use]
    pub fn new(version: Version, now_ms: u64) -> Socket {
        Socket { version, channels: Vec::new(), heard_ms: now_ms, joins: (0, 0) }
    }

    /// What it speaks.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// A message came.
    pub fn receive(&mut self, push: &Push<'_>, rules: &Rules, act: &mut impl FnMut(Action<'_>)) -> Taken {
        if push.topic == word::PHOENIX && push.event == word::HEARTBEAT {
            reply(push, None, Status::Ok, "{}", act);
            return Taken::Yes;
        }
        match self.find(&push.topic) {
            Err(_) => self.without_channel(push, rules, act),
            Ok(at) if self.channels[at].joining.is_some() => return Taken::Waits,
            Ok(at) if push.event == word::JOIN => {
                let old = self.channels.remove(at);
                act(closed(&old));
                act(Action::Leave { topic: &old.topic });
                self.without_channel(push, rules, act);
            }
            Ok(at) if push.join_ref.is_some() && push.join_ref != self.channels[at].join_ref => {}
            Ok(at) if push.event == word::LEAVE => {
                let old = self.channels.remove(at);
                act(Action::Leave { topic: &old.topic });
                reply(push, push.join_ref.as_ref(), Status::Ok, "{}", act);
                act(closed(&old));
            }
            Ok(_) if push.event == word::PRESENCE_UPDATE => self.update(push, act),
            Ok(_) => self.publish(push, act),
        }
        Taken::Yes
    }

    /// A message for a topic that has no channel.
    fn without_channel(&mut self, push: &Push<'_>, rules: &Rules, act: &mut impl FnMut(Action<'_>)) {
        let join_ref = push.join_ref.as_ref();
        if push.event == word::LEAVE {
            return reply(push, join_ref, Status::Ok, "{}", act);
        }
        let may_be_joined = push.topic != word::PHOENIX && rules.opens(push.topic.as_bytes());
        if push.event != word::JOIN {
            return reply(push, None, Status::Error, &reason(UNMATCHED), act);
        }
        if !may_be_joined {
            return reply(push, join_ref, Status::Error, &reason(UNMATCHED), act);
        }
        if self.channels.len() >= rules.channels_max {
            return reply(push, join_ref, Status::Error, &reason("too many channels joined"), act);
        }
        if !self.may_join(rules) {
            return reply(push, join_ref, Status::Error, &reason(JOIN_RATE), act);
        }
        let start = match Start::read(push.payload) {
            Ok(start) => start,
            Err(bad) => return reply(push, join_ref, Status::Error, &reason(bad.reason()), act),
        };
        let presence = match Wanted::read(push.payload) {
            Ok(presence) => presence,
            Err(bad) => return reply(push, join_ref, Status::Error, &reason(bad.reason()), act),
        };
        // In version 1 messages have no join_ref, and clients know a join by its ref.
        let of_join = match self.version {
            Version::V1 => push.join_ref.as_ref().or(push.reference.as_ref()),
            Version::V2 => join_ref,
        };
        let channel = Channel {
            topic: push.topic.as_ref().into(),
            join_ref: of_join.cloned().map(Ref::into_owned),
            joining: Some(Answer::new(self.version, push)),
        };
        let at = self.find(&push.topic).expect_err("it has no channel");
        // Most have one, and most are idle.
        if self.channels.len() == self.channels.capacity() {
            self.channels.reserve_exact(1 + self.channels.len());
        }
        self.channels.insert(at, channel);
        act(Action::Join { topic: &push.topic, start, params: push.payload, presence });
    }

    /// A member says something else of itself.
    fn update(&self, push: &Push<'_>, act: &mut impl FnMut(Action<'_>)) {
        match push.payload {
            Payload::Json(meta) if meta.starts_with('{') => {
                act(Action::Update { topic: &push.topic, meta, answer: Answer::new(self.version, push) });
            }
            _ => {
                let why = reason(BadWanted::Meta.reason());
                reply(push, push.join_ref.as_ref(), Status::Error, &why, act);
            }
        }
    }

    /// Counts a join, in the second in which the client was heard.
    fn may_join(&mut self, rules: &Rules) -> bool {
        let second = (self.heard_ms / 1000) as u32;
        if self.joins.0 != second {
            self.joins = (second, 0);
        }
        self.joins.1 += 1;
        self.joins.1 <= rules.joins_per_second_max
    }

    /// An event for all who have joined.
    fn publish(&self, push: &Push<'_>, act: &mut impl FnMut(Action<'_>)) {
        match said_to_all(push) {
            Ok((event, payload)) => {
                let answer = Answer::new(self.version, push);
                act(Action::Publish { topic: &push.topic, event: &event, payload, answer });
            }
            Err(why) => reply(push, push.join_ref.as_ref(), Status::Error, &reason(why), act),
        }
    }

    /// A join is answered: done, with a response, which is JSON, or refused, with a reason. Appends the
    /// reply, a text; behind it the owner may say what comes of the topic, and gives again what waits.
    ///
    /// # Panics
    /// The topic is not joining.
    pub fn joined(&mut self, topic: &str, outcome: Result<&str, &str>, out: &mut Vec<u8>) {
        let at = self.find(topic).expect("a topic that is joining");
        let answer = self.channels[at].joining.take().expect("a topic that is joining");
        answer.write(outcome, out);
        if outcome.is_err() {
            self.channels.remove(at);
        }
    }

    /// The server ends a channel that has joined: the client is to leave it alone. Whether there was one.
    pub fn close(&mut self, topic: &str, act: &mut impl FnMut(Action<'_>)) -> bool {
        let Some(old) = self.remove_joined(topic) else { return false };
        act(closed(&old));
        true
    }

    /// A channel that has joined lost its topic: the client joins again, after a while. Whether there was one.
    pub fn fail(&mut self, topic: &str, why: &str, act: &mut impl FnMut(Action<'_>)) -> bool {
        let Some(old) = self.remove_joined(topic) else { return false };
        let response = reason(why);
        act(lifecycle(&old, word::ERROR, &response));
        true
    }

    fn remove_joined(&mut self, topic: &str) -> Option<Channel> {
        let at = self.find(topic).ok().filter(|&at| self.channels[at].joining.is_none())?;
        Some(self.channels.remove(at))
    }

    /// The join_ref of a channel that has joined, for messages that are to carry it.
    #[must_use]
    pub fn join_ref(&self, topic: &str) -> Option<&Ref<'static>> {
        let at = self.find(topic).ok()?;
        self.channels[at].join_ref.as_ref()
    }

    /// What the connection has joined or joins, in order: to be left when it ends.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.channels.iter().map(|channel| &*channel.topic)
    }

    /// Bytes came, of whatever kind.
    pub fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// When the client has been silent for too long, if it stays so. The owner passes that by while it
    /// does not read, as it must while a message waits, and calls [`heard`](Socket::heard) when it reads again.
    #[must_use]
    pub fn silent_at_ms(&self, rules: &Rules) -> u64 {
        self.heard_ms.saturating_add(rules.silence_ms_max)
    }

    fn find(&self, topic: &str) -> Result<usize, usize> {
        self.channels.binary_search_by(|channel| (*channel.topic).cmp(topic))
    }
}

/// The event that a push says to others, and its payload; or why it may not.
fn said_to_all<'a>(push: &'a Push<'_>) -> Result<(Cow<'a, str>, Payload<'a>), &'static str> {
    let (event, payload) = if push.event == word::PUBLISH {
        inner_event(push.payload).ok_or("publish takes [event, payload]")?
    } else {
        (Cow::Borrowed(&*push.event), push.payload)
    };
    match event.len() {
        0..=FIELD_BYTES_MAX if is_reserved(&event) => Err("reserved event"),
        0..=FIELD_BYTES_MAX => Ok((event, payload)),
        _ => Err("event too long"),
    }
}

/// What `publish` says: an event, and its payload.
fn inner_event(payload: Payload<'_>) -> Option<(Cow<'_, str>, Payload<'_>)> {
    let Payload::Json(text) = payload else { return None };
    let mut reader = Reader::new(text);
    if !reader.take(b'[') || reader.peek() != Some(b'"') {
        return None;
    }
    let event = reader.text().ok()?;
    reader.expect(b',').ok()?;
    let payload = reader.value().ok()?;
    reader.expect(b']').ok()?;
    Some((event, Payload::Json(payload)))
}

/// Answers a push at once.
fn reply(
    push: &Push<'_>,
    join_ref: Option<&Ref<'_>>,
    status: Status,
    response: &str,
    act: &mut impl FnMut(Action<'_>),
) {
    act(Action::Say(Message::Reply(Reply {
        join_ref: join_ref.cloned(),
        reference: push.reference.clone(),
        topic: Cow::Borrowed(&push.topic),
        status,
        response: Payload::Json(response),
    })));
}

fn closed(channel: &Channel) -> Action<'_> {
    lifecycle(channel, word::CLOSE, "{}")
}

/// An event of the channel itself: its ref is that of the join.
fn lifecycle<'a>(channel: &'a Channel, event: &'a str, payload: &'a str) -> Action<'a> {
    Action::Say(Message::Push(Push {
        reference: channel.join_ref.clone(),
        join_ref: channel.join_ref.clone(),
        topic: Cow::Borrowed(&channel.topic),
        event: Cow::Borrowed(event),
        payload: Payload::Json(payload),
    }))
}
