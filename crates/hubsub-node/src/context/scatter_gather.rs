//! Scatter-gather requests to shards ([`super::asking`]): their mail, and those whose responses are incomplete.

use super::work::Work;
use crate::io::questions::{Part, Question};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::Published;
use hubsub_types::{ConnKey, ErrorCode, ShardId};
use hubsub_wire::resp::Proto;
use std::sync::Arc;

/// Requests and responses between shards.
pub enum GatherMail {
    /// A request; the response goes to shard `from` under this number.
    Ask { from: ShardId, number: u32, question: Arc<Question> },
    /// The response to the request of this number.
    Part { number: u32, part: Part },
}

/// Writes a reply from the collected responses.
pub type Write = Box<dyn FnOnce(&mut Vec<u8>, Proto, Vec<Part>)>;

/// The destination of the collected responses.
pub enum Then {
    /// The reply in a slot of a connection.
    Reply(ConnKey, u32, Write),
    /// The same, for a request that counts as `LISTING` requests.
    Listing(ConnKey, u32, Write),
    /// Records for a slot of a connection.
    Records(ConnKey, u32),
    /// The control plane, by ticket.
    Control(u64),
    /// The folder that asked, once the broker's call returns.
    Work(Box<dyn FnOnce(Option<Part>) -> Work>),
}

impl Then {
    /// The work that a single response leads to.
    pub fn work<W: Into<Work>>(of: impl FnOnce(Option<Part>) -> W + 'static) -> Then {
        Then::Work(Box::new(|part| of(part).into()))
    }
}

/// The shards that get a request.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum To {
    All,
    One(ShardId),
}

pub(super) struct Incomplete {
    pub(super) left: usize,
    pub(super) parts: Vec<Part>,
    pub(super) then: Then,
}

pub(super) struct Batch {
    pub(super) left: usize,
    pub(super) outcomes: Vec<Result<Published, ErrorCode>>,
}

/// Requests whose responses are incomplete.
#[derive(Default)]
pub struct ScatterGather {
    pub(super) next: u32,
    pub(super) open: HashMap<u32, Incomplete, RandomState>,
    /// Publishes of the control plane, by ticket.
    pub(super) batches: HashMap<u64, Batch, RandomState>,
}

impl ScatterGather {
    /// Whether no response is awaited.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.batches.is_empty()
    }
}
