//! The channels of a client's connection: its joined topics, and the effect of each message. Events in,
//! actions out; it knows no broker and no socket.
//!
//! ```text
//!             phx_join                 joined: ok
//!   (none) ─────────────► joining ─────────────────► joined ──┐ phx_leave, close, fail,
//!      ▲                     │ joined: refused                │ another phx_join
//!      └─────────────────────┴────────────────────────────────┘
//! ```
//!
//! 1. A topic has at most one channel. A message for a channel that is joining waits until the join is
//!    answered, and so does all input after it. So a join never has to be undone.
//! 2. Each push of a channel is answered once, or ignored because its join_ref is from an earlier join.
//! 3. At most `channels_max` channels are joining or joined. A channel stores its topic and its refs, and
//!    nothing that the client pushes.

use super::answer::{Answer, reason};
use super::error::Flaw;
use super::join::{BadJoin, Start};
use super::json::Reader;
use super::message::{
    FIELD_BYTES_MAX, Message, Payload, Push, Ref, Reply, Status, Version, is_reserved, word,
};
use super::presence::PresenceRequest;
use crate::websocket::CloseCode;
use hubsub_types::names::Matcher;
use std::borrow::Cow;

/// Rules for all connections; they may change while connections are open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rules {
    pub topics: Vec<Matcher>,
    pub channels_max: usize,
    /// Most joins of one connection per second; further ones are refused.
    pub joins_per_second_max: u32,
    /// Longest silence of a client, in ms. Clients send a heartbeat every 30 s.
    pub silence_ms_max: u64,
}

impl Rules {
    /// Whether browsers may join a topic, or read it in another way.
    pub fn opens(&self, topic: &[u8]) -> bool {
        self.topics.iter().any(|pattern| pattern.matches(topic))
    }
}

/// 100 channels and 60 s, as in Phoenix, 500 joins a second, and no topic.
impl Default for Rules {
    fn default() -> Rules {
        Rules { topics: Vec::new(), channels_max: 100, joins_per_second_max: 500, silence_ms_max: 60_000 }
    }
}

const UNMATCHED: &str = "unmatched topic";

const JOIN_RATE: &str = "join_rate: too many joins in a second";

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action<'a> {
    /// Send it, after the replies that were started before.
    Send(Message<'a>),
    /// Subscribe to the topic, then call [`Socket::joined`]. Nothing of the topic may be sent before.
    Join {
        topic: &'a str,
        start: Start,
        /// The client's whole payload, for authorization.
        params: Payload<'a>,
        presence: Option<PresenceRequest>,
    },
    /// Unsubscribe from the topic. Nothing of the topic may be sent from now on.
    Leave { topic: &'a str },
    /// Update the meta of the channel's member, then write the reply.
    Update { topic: &'a str, meta: &'a str, answer: Answer },
    Publish {
        topic: &'a str,
        /// Never a reserved one.
        event: &'a str,
        payload: Payload<'a>,
        answer: Answer,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Taken {
    Yes,
    /// Its topic is joining. Pass it and all later messages in again when the join is answered.
    Waits,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Flaw(Flaw),
    Silent,
    /// All clients together have too much unfinished input, and this one has most of it.
    Debtor,
    Disconnected,
    /// The server stops; the client reconnects to another one.
    Restart,
}

impl End {
    /// The code of the Close. Clients reconnect after any of them; after 1000 older ones would not.
    #[must_use]
    pub fn code(self) -> CloseCode {
        match self {
            End::Flaw(flaw) => flaw.code(),
            End::Silent | End::Disconnected => CloseCode::GOING_AWAY,
            End::Debtor => CloseCode::TRY_AGAIN_LATER,
            End::Restart => CloseCode::SERVICE_RESTART,
        }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Socket {
    version: Version,
    /// Ordered by topic, for binary search.
    channels: Vec<Channel>,
    /// When bytes last arrived, in ms of the owner's monotonic clock.
    heard_ms: u64,
    /// A second of that clock, and the number of joins in it.
    joins: (u32, u32),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Channel {
    topic: Box<str>,
    /// Identifies the messages of this join.
    join_ref: Option<Ref<'static>>,
    joining: Option<Answer>,
}

impl Socket {
    pub fn new(version: Version, now_ms: u64) -> Socket {
        Socket { version, channels: Vec::new(), heard_ms: now_ms, joins: (0, 0) }
    }

    pub fn version(&self) -> Version {
        self.version
    }

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

    fn without_channel(&mut self, push: &Push<'_>, rules: &Rules, act: &mut impl FnMut(Action<'_>)) {
        let join_ref = push.join_ref.as_ref();
        if push.event == word::LEAVE {
            return reply(push, join_ref, Status::Ok, "{}", act);
        }
        let may_be_joined = push.topic != word::PHOENIX && rules.opens(push.topic.as_bytes());
        if push.event != word::JOIN {
            return refuse(push, None, UNMATCHED, act);
        }
        if !may_be_joined {
            return refuse(push, join_ref, UNMATCHED, act);
        }
        if self.channels.len() >= rules.channels_max {
            return refuse(push, join_ref, "too many channels joined", act);
        }
        if !self.may_join(rules) {
            return refuse(push, join_ref, JOIN_RATE, act);
        }
        let read =
            Start::read(push.payload).and_then(|start| Ok((start, PresenceRequest::read(push.payload)?)));
        let (start, presence) = match read {
            Ok(read) => read,
            Err(bad) => return refuse(push, join_ref, &bad.to_string(), act),
        };
        // In version 1 messages have no join_ref, and clients identify a join by its ref.
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
        // Most connections have one channel and are idle.
        if self.channels.len() == self.channels.capacity() {
            self.channels.reserve_exact(1 + self.channels.len());
        }
        self.channels.insert(at, channel);
        act(Action::Join { topic: &push.topic, start, params: push.payload, presence });
    }

    fn update(&self, push: &Push<'_>, act: &mut impl FnMut(Action<'_>)) {
        match push.payload {
            Payload::Json(meta) if meta.starts_with('{') => {
                act(Action::Update { topic: &push.topic, meta, answer: Answer::new(self.version, push) });
            }
            _ => refuse(push, push.join_ref.as_ref(), &BadJoin::Meta.to_string(), act),
        }
    }

    /// Counts a join, in the second of the client's last message.
    fn may_join(&mut self, rules: &Rules) -> bool {
        let second = (self.heard_ms / 1000) as u32;
        if self.joins.0 != second {
            self.joins = (second, 0);
        }
        self.joins.1 += 1;
        self.joins.1 <= rules.joins_per_second_max
    }

    fn publish(&self, push: &Push<'_>, act: &mut impl FnMut(Action<'_>)) {
        match said_to_all(push) {
            Ok((event, payload)) => {
                let answer = Answer::new(self.version, push);
                act(Action::Publish { topic: &push.topic, event: &event, payload, answer });
            }
            Err(why) => refuse(push, push.join_ref.as_ref(), why, act),
        }
    }

    /// Answers a join: success with a JSON response, or an error with a reason. Appends the reply, a text
    /// message. After it the owner may send the topic's messages, and passes waiting messages in again.
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

    /// Ends a joined channel; the client does not join again. Returns whether it existed.
    pub fn close(&mut self, topic: &str, act: &mut impl FnMut(Action<'_>)) -> bool {
        let Some(old) = self.remove_joined(topic) else { return false };
        act(closed(&old));
        true
    }

    /// Ends a joined channel, if there is one, whose topic failed; the client joins again after a delay.
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

    /// The join_ref of a joined channel, for messages that carry it.
    pub fn join_ref(&self, topic: &str) -> Option<&Ref<'static>> {
        let at = self.find(topic).ok()?;
        self.channels[at].join_ref.as_ref()
    }

    /// Topics of all channels, joining or joined, in order: to be left when the connection ends.
    pub fn topics(&self) -> impl Iterator<Item = &str> {
        self.channels.iter().map(|channel| &*channel.topic)
    }

    pub fn heard(&mut self, now_ms: u64) {
        self.heard_ms = now_ms;
    }

    /// When the client will have been silent for too long. The owner ignores this while it does not read, as
    /// it must while a message waits, and calls [`heard`](Socket::heard) when it reads again.
    pub fn silent_at_ms(&self, rules: &Rules) -> u64 {
        self.heard_ms.saturating_add(rules.silence_ms_max)
    }

    fn find(&self, topic: &str) -> Result<usize, usize> {
        self.channels.binary_search_by(|channel| (*channel.topic).cmp(topic))
    }
}

/// The event and payload that a push publishes; or why it is refused.
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

fn refuse(push: &Push<'_>, join_ref: Option<&Ref<'_>>, why: &str, act: &mut impl FnMut(Action<'_>)) {
    reply(push, join_ref, Status::Error, &reason(why), act);
}

fn reply(
    push: &Push<'_>,
    join_ref: Option<&Ref<'_>>,
    status: Status,
    response: &str,
    act: &mut impl FnMut(Action<'_>),
) {
    act(Action::Send(Message::Reply(Reply {
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

/// A channel's own event, whose ref is that of the join.
fn lifecycle<'a>(channel: &'a Channel, event: &'a str, payload: &'a str) -> Action<'a> {
    Action::Send(Message::Push(Push {
        reference: channel.join_ref.clone(),
        join_ref: channel.join_ref.clone(),
        topic: Cow::Borrowed(&channel.topic),
        event: Cow::Borrowed(event),
        payload: Payload::Json(payload),
    }))
}
