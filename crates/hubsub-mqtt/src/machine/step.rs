//! Instructions of a client's state machine to its caller.

use hubsub_wire::mqtt::{Filters, Names, PacketId, Properties, Qos, Reason};
use std::rc::Rc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    pub reason: Reason,
    /// Cause of the end, for logs and people.
    pub what: &'static str,
}

impl Fault {
    #[must_use]
    pub fn of(reason: Reason) -> Fault {
        Fault { reason, what: reason.words() }
    }
}

#[derive(Debug)]
pub enum Step<'a> {
    Done,
    /// Publish this message and pass the outcome to [`Machine::published`](super::Machine::published). A QoS
    /// 0 message has no reply: that call is only for one whose outcome was not known at once, after
    /// [`Machine::awaits`](super::Machine::awaits).
    Publish(Incoming<'a>),
    /// Subscribe, and pass each result to [`Machine::granted`](super::Machine::granted), numbered from
    /// `first` in order. Some may be [shared](hubsub_wire::mqtt::shared).
    Subscribe {
        filters: Filters<'a>,
        first: u32,
        /// Whether messages to the client must carry their positions from now on.
        wants_positions: bool,
    },
    /// End these subscriptions, which need not exist.
    Unsubscribe {
        filters: Names<'a>,
        /// If the session is recorded: call [`Machine::unsubscribed`](super::Machine::unsubscribed) with it
        /// once the session is recorded without them.
        number: Option<u32>,
    },
    /// PUBACK or PUBCOMP arrived, or the client refused the message. [`super::Event::Ended`].
    Acknowledged {
        id: PacketId,
        qos: Qos,
        key: u64,
    },
    /// Record [`super::Event::Received`], then call [`Machine::recorded`](super::Machine::recorded).
    Received {
        id: PacketId,
        number: u32,
    },
    /// Record [`super::Event::Released`], then call [`Machine::recorded`](super::Machine::recorded).
    Released {
        id: PacketId,
        number: u32,
    },
    /// The client sent DISCONNECT; its will is discarded, unless it requested publication.
    Goodbye,
}

#[derive(Debug)]
pub struct Incoming<'a> {
    pub number: u32,
    pub topic: Topic<'a>,
    pub qos: Qos,
    pub retain: bool,
    /// The client's packet id; `None` for QoS 0.
    pub id: Option<PacketId>,
    /// For QoS 2: its number in the session, however often it is passed. See [`super::Event::Intended`].
    pub intent: Option<u64>,
    /// Properties of MQTT 5.0, without alias. See [`super::read_headers`].
    pub properties: Properties<'a>,
    pub payload: &'a [u8],
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Topic<'a> {
    Said(&'a str),
    /// Set by an earlier packet with the same alias.
    Known(Rc<str>),
}

impl Topic<'_> {
    #[inline]
    pub fn as_str(&self) -> &str {
        match self {
            Topic::Said(topic) => topic,
            Topic::Known(topic) => topic,
        }
    }
}
