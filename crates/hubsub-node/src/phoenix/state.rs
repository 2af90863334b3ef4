//! The state of browsers on a shard, and mail about their long polls.

use crate::io::node_info::NodeInfo;
use crate::io::transport::Asker;
use hubsub_types::{ConnKey, Limits};
use hubsub_wire::phoenix::{PollToken, Rules, Socket};
use hubsub_wire::websocket::{Decoder, Kind};
use std::rc::Rc;

pub struct Client {
    pub(super) socket: Socket,
    pub(super) decoder: Decoder,
    /// The part of a message that has arrived, or the message that waits.
    pub(super) message: Vec<u8>,
    /// The kind of the message that waits for the result of a join.
    pub(super) waiting: Option<Kind>,
    /// Whether no join was answered since the message began to wait.
    pub(super) is_early: bool,
    pub was_told: bool,
}

impl Client {
    /// Whether the socket must not be read: a message waits for the result of a join.
    #[inline]
    pub fn waits(&self) -> bool {
        self.waiting.is_some() && self.is_early
    }

    pub fn unfinished_bytes(&self) -> usize {
        self.message.capacity()
    }

    pub fn drop_unfinished(&mut self) {
        (self.message, self.waiting) = (Vec::new(), None);
    }
}

pub struct State {
    pub clients: usize,
    pub polled_clients: usize,
    pub rules: Rc<Rules>,
}

impl State {
    pub fn new(info: &NodeInfo, limits: &Limits) -> State {
        State { clients: 0, polled_clients: 0, rules: rules(info, limits) }
    }
}

/// The rules for all browsers of a node, from its configuration.
pub fn rules(info: &NodeInfo, limits: &Limits) -> Rc<Rules> {
    Rc::new(Rules {
        topics: info.phoenix_topics.clone(),
        channels_max: limits.phoenix_channels_max as usize,
        joins_per_second_max: u32::try_from(limits.phoenix_joins_per_second_max).unwrap_or(u32::MAX),
        silence_ms_max: limits.phoenix_silence_ms,
    })
}

#[derive(Debug)]
pub enum What {
    Get,
    /// Take these frames of the client as input.
    Post(Vec<u8>),
}

#[derive(Debug)]
pub enum PollMail {
    /// A request, to the session's shard.
    Ask(Asker, PollToken, What),
    /// The complete response, to the requesting connection, and whether the connection closes after it.
    Answer(ConnKey, Vec<u8>, bool),
}

impl PollMail {
    pub fn weight(&self) -> usize {
        let bytes = match self {
            PollMail::Ask(_, _, What::Post(bytes)) | PollMail::Answer(_, bytes, _) => bytes.len(),
            PollMail::Ask(..) => 0,
        };
        std::mem::size_of::<PollMail>() + bytes
    }
}
