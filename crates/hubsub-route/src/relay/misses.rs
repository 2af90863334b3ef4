//! Requests that wait for the place of a room: on each shard, those of its clients and of other nodes.

use super::parked::{Load, Missing};
use ahash::RandomState;
use hashbrown::HashMap;
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
