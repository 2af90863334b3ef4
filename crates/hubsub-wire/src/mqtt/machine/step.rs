//! What the machine of a client gives to its caller.

use super::super::packet::{PacketId, Qos};
use super::super::property::Properties;
use super::super::reason::Reason;
use super::super::subscribe::{Filters, Names};
use std::rc::Rc;

/// Why the server ends a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fault {
    /// As 5.0 says it.
    pub reason: Reason,
    /// What happened, for the log and for a person.
    pub what: &'static str,
}

impl Fault {
    /// A reason in its own words.
    #[must_use]
    pub fn of(reason: Reason) -> Fault {
        Fault { reason, what: reason.words() }
    }
}

/// What a packet asks the caller to do.
#[derive(Debug)]
pub enum Step<'a, K> {
    /// Nothing.
    Done,
    /// Publish this; [`Machine::published`](super::Machine::published) is to say what came of it. One of QoS 0 has no
    /// answer: that call is for those that were not settled at once, of which
    /// [`Machine::awaits`](super::Machine::awaits) is told.
    Publish(Incoming<'a>),
    /// Subscribe; [`Machine::granted`](super::Machine::granted) is to say what came of each, numbered from `first` on in their
    /// order. Some may be [shared](super::super::shared).
    Subscribe {
        /// At least one.
        filters: Filters<'a>,
        /// Number of the first.
        first: u32,
        /// Whether messages to the client are to say where they stand from now on.
        wants_positions: bool,
    },
    /// End these subscriptions, which there may not be.
    Unsubscribe {
        /// Which.
        filters: Names<'a>,
        /// Of a session that is recorded: [`Machine::unsubscribed`](super::Machine::unsubscribed) is to say that it is
        /// without them.
        number: Option<u32>,
    },
    /// A message to the client has ended: PUBACK or PUBCOMP came, or it refused it. [`super::Event::Ended`].
    Acknowledged {
        /// Free from now on.
        id: PacketId,
        /// 1 or 2.
        qos: Qos,
        /// Which message.
        key: K,
    },
    /// Record [`super::Event::Received`]; [`Machine::recorded`](super::Machine::recorded) is to say that it is.
    Received {
        /// Of the message.
        id: PacketId,
        /// What its PUBREL is called.
        number: u32,
    },
    /// Record [`super::Event::Released`]; [`Machine::recorded`](super::Machine::recorded) is to say that it is.
    Released {
        /// Of the client's message.
        id: PacketId,
        /// What its PUBCOMP is called.
        number: u32,
    },
    /// The client says goodbye; its will is gone, unless it wants it published.
    Goodbye,
}

/// A message of the client.
#[derive(Debug)]
pub struct Incoming<'a> {
    /// What its answer is called.
    pub number: u32,
    /// Where to.
    pub topic: Topic<'a>,
    /// How surely.
    pub qos: Qos,
    /// Whether its topic keeps it.
    pub retain: bool,
    /// The client's id for it; none of QoS 0.
    pub id: Option<PacketId>,
    /// Of QoS 2: its number in its session, the same whenever it is given again. See [`super::Event::Intended`].
    pub intent: Option<u64>,
    /// Of 5.0; without alias. See [`read_headers`].
    pub properties: Properties<'a>,
    /// What.
    pub payload: &'a [u8],
}

/// A topic of a packet, or one that an alias stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Topic<'a> {
    /// As the packet says it.
    Said(&'a str),
    /// As one before said it.
    Known(Rc<str>),
}

impl Topic<'_> {
    /// The topic.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Topic::Said(topic) => topic,
            Topic::Known(topic) => topic,
        }
    }
}
