//! Requests that wait for the leader of a hub or for the place of a room, as plain data, and their number and bytes.

use crate::requests::{Ask, Attach, HistoryQuery, RowsAsk, Ticket};
use crate::rooms::TopicKey;
use hubsub_message::{NodeMessage, Record};
use hubsub_types::NodeId;
use std::sync::Arc;

/// The load of a queue: each limit of a relay counts both fields.
#[derive(Clone, Copy, Debug, Default)]
pub struct Load {
    pub number: usize,
    pub bytes: usize,
}

impl Load {
    /// Whether something of this weight, in bytes, would exceed one of the limits.
    pub fn is_full(&self, weight: usize, (number_max, bytes_max): (usize, usize)) -> bool {
        self.number >= number_max || self.bytes + weight > bytes_max
    }

    pub fn add(&mut self, weight: usize) {
        (self.number, self.bytes) = (self.number + 1, self.bytes + weight);
    }

    pub fn remove(&mut self, weight: usize) {
        (self.number, self.bytes) = (self.number - 1, self.bytes - weight);
    }

    pub fn is_empty(&self) -> bool {
        self.number == 0
    }
}

/// A publish that waits for a leader.
#[derive(Debug)]
pub struct Parked {
    /// Orders waiting publishes by arrival.
    pub number: u64,
    pub ticket: Ticket,
    pub record: Arc<Record>,
    /// Start of its time limit, in ms.
    pub since_ms: u64,
}

#[derive(Debug)]
pub struct Question {
    /// A request for which [`Missing::is_question`] is true.
    pub what: Missing,
    pub until_ms: u64,
}

#[derive(Debug)]
pub enum Missing {
    Publish(Ticket, Arc<Record>),
    Attach(Box<Attach>),
    /// A request of a node that knows the place.
    Message(NodeId, Box<NodeMessage>),
    Count(Ticket, TopicKey),
    History(Box<HistoryQuery>, Ask),
    /// A request for entries of a hub; it concerns no room.
    Rows(Box<RowsAsk>),
}

impl Missing {
    /// Whether it does not create a place, and is also answered if the room has none.
    pub fn is_question(&self) -> bool {
        matches!(self, Missing::Count(..) | Missing::History(..) | Missing::Rows(_))
    }

    /// Bytes that it keeps allocated.
    pub fn weight(&self) -> usize {
        size_of::<Missing>()
            + match self {
                Missing::Publish(_, record) => record.weight(),
                Missing::Attach(attach) => size_of::<Attach>() + attach.topic.len(),
                Missing::Message(_, message) => message.weight(),
                Missing::Count(_, (_, topic)) => topic.len(),
                Missing::Rows(ask) => {
                    size_of::<RowsAsk>()
                        + ask.filter.len()
                        + ask.after.as_ref().map_or(0, |after| after.len())
                }
                Missing::History(query, _) => {
                    let topic = query.topic.as_ref().map_or(0, Vec::len);
                    size_of::<HistoryQuery>() + query.room.len() + topic
                }
            }
    }
}
