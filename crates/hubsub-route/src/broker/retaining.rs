//! Entries of retained records that are in flight, and the requests that wait for them ([`super::retain`]).
//!
//! Invariant: `topics` counts the entries in flight of each topic.

use crate::requests::{Published, Ticket};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::{ErrorCode, ShardId};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Default)]
pub(super) struct Retaining {
    last: u64,
    in_flight: BTreeMap<u64, Writing>,
    topics: HashMap<Arc<[u8]>, u32, RandomState>,
    waits: Vec<(u64, Waits)>,
}

pub(super) struct Writing {
    pub(super) ticket: Ticket,
    pub(super) published: Published,
    pub(super) topic: Arc<[u8]>,
}

pub(super) enum Waits {
    Count(Ticket, Result<u64, ErrorCode>),
    Repeat(Ticket, Published),
    All(ShardId, u32),
}

impl Retaining {
    /// The entry of a record of a topic is in flight from now on; returns its number.
    pub(super) fn begin(&mut self, entry: Writing) -> u64 {
        self.last += 1;
        *self.topics.entry(Arc::clone(&entry.topic)).or_default() += 1;
        self.in_flight.insert(self.last, entry);
        self.last
    }

    pub(super) fn end(&mut self, number: u64) -> Option<Writing> {
        let entry = self.in_flight.remove(&number)?;
        if let Some(count) = self.topics.get_mut(&entry.topic) {
            *count -= 1;
            if *count == 0 {
                self.topics.remove(&entry.topic);
            }
        }
        Some(entry)
    }

    /// Lets a request wait for all entries that are in flight now; returns it if there are none.
    pub(super) fn wait(&mut self, waits: Waits) -> Option<Waits> {
        if self.in_flight.is_empty() {
            return Some(waits);
        }
        self.waits.push((self.last, waits));
        None
    }

    /// Whether an entry of this topic is in flight.
    pub(super) fn has(&self, topic: &[u8]) -> bool {
        self.topics.contains_key(topic)
    }

    pub(super) fn take_done(&mut self) -> Vec<Waits> {
        let first = self.in_flight.keys().next().copied().unwrap_or(u64::MAX);
        let waits = std::mem::take(&mut self.waits).into_iter();
        let (done, left): (Vec<_>, Vec<_>) = waits.partition(|(number, _)| *number < first);
        self.waits = left;
        done.into_iter().map(|(_, waits)| waits).collect()
    }
}
