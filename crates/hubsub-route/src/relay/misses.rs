//! What waits for the place of a room: on each shard, what its own clients and nodes asked of it.

use super::NodeMessage;
use crate::logread::Ask;
use crate::record::Record;
use crate::rooms::{HistoryQuery, TopicKey};
use crate::{Attach, RowsAsk, Ticket};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::NodeId;
use std::collections::VecDeque;
use std::sync::Arc;

/// See the module.
#[derive(Debug, Default)]
pub struct Misses {
    /// Rooms that were asked for.
    pub rooms: HashMap<Arc<[u8]>, Miss, RandomState>,
    /// What waits, of all rooms, and its memory.
    pub parked: (usize, usize),
}

/// One room.
#[derive(Debug)]
pub struct Miss {
    /// Whether its place was asked for, and that it gets one.
    pub asked: Option<bool>,
    /// Whether it is to get a place if it has none: something but questions waits.
    pub makes: bool,
    /// Until when it is waited for, in ms.
    pub until_ms: u64,
    /// What waits, in the order in which it came.
    pub waits: VecDeque<Missing>,
}

impl Miss {
    /// Nothing waits yet; it would until then.
    #[must_use]
    pub fn new(until_ms: u64) -> Miss {
        Miss { asked: None, makes: false, until_ms, waits: VecDeque::new() }
    }
}

/// One thing that waits.
#[derive(Debug)]
pub enum Missing {
    /// A publish.
    Publish(Ticket, Arc<Record>),
    /// A subscription.
    Attach(Box<Attach>),
    /// What a node asked, which knows the place.
    Message(NodeId, Box<NodeMessage>),
    /// How many subscribe?
    Count(Ticket, TopicKey),
    /// What does it remember?
    History(Box<HistoryQuery>, Ask),
    /// Which retained messages does a hub keep? It concerns no room.
    Rows(Box<RowsAsk>),
}

impl Missing {
    /// Whether it is answered too where the room has no place, and makes none.
    #[must_use]
    pub fn is_question(&self) -> bool {
        matches!(self, Missing::Count(..) | Missing::History(..) | Missing::Rows(_))
    }

    /// Bytes that it keeps from being freed.
    #[must_use]
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
