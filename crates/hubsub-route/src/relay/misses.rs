//! Requests that wait for the place of a room: on each shard, those of its clients and of other nodes.

use super::waiting::Load;
use crate::logread::Ask;
use crate::rooms::{HistoryQuery, TopicKey};
use crate::{Attach, RowsAsk, Ticket};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_message::{NodeMessage, Record};
use hubsub_types::NodeId;
use std::collections::VecDeque;
use std::sync::Arc;

#[derive(Debug, Default)]
pub struct Misses {
    pub rooms: HashMap<Arc<[u8]>, Miss, RandomState>,
    /// Waiting requests of all rooms.
    pub parked: Load,
}

/// A room whose place is requested.
#[derive(Debug)]
pub struct Miss {
    /// Whether the place was requested, and if so whether with its creation.
    pub asked: Option<bool>,
    /// Whether the room gets a place if it has none: a request waits that creates it.
    pub makes: bool,
    pub until_ms: u64,
    pub waits: VecDeque<Missing>,
}

impl Miss {
    pub fn new(until_ms: u64) -> Miss {
        Miss { asked: None, makes: false, until_ms, waits: VecDeque::new() }
    }
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
