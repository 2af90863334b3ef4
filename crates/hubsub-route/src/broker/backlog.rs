//! Publishes that wait on the shard that leads their room, for a congested shard or for the delay of their class; and
//! reads that wait for their hub.
//!
//! Invariant: publishes of a class without a log are committed in order of arrival: while one is blocked, later
//! ones are, too.

use crate::cursors::{CURSORS_MAX, Read};
use crate::hubread::HubRead;
use crate::{Now, Ticket};
use hubsub_message::Record;
use hubsub_types::HubId;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

pub(super) type Publish = (Ticket, Arc<Record>);

#[derive(Default)]
pub(super) struct Backlog {
    /// Publishes that a congested shard blocks.
    blocked: VecDeque<Publish>,
    /// Whether such a shard also blocks a hub's log.
    pub(super) blocks_log: bool,
    /// Publishes of classes with a commit delay, by the time at which it ends, in ms, and arrival.
    delayed: BTreeMap<(u64, u64), Publish>,
    last_delayed: u64,
}

impl Backlog {
    #[inline]
    pub(super) fn is_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// The number of blocked publishes, where a blocked log counts as one.
    pub(super) fn blocked(&self) -> usize {
        self.blocked.len() + usize::from(self.blocks_log)
    }

    pub(super) fn block(&mut self, ticket: Ticket, record: Arc<Record>) {
        self.blocked.push_back((ticket, record));
    }

    /// Blocks a publish before all others.
    pub(super) fn block_first(&mut self, ticket: Ticket, record: Arc<Record>) {
        self.blocked.push_front((ticket, record));
    }

    pub(super) fn unblock(&mut self) -> Option<Publish> {
        self.blocked.pop_front()
    }

    /// Removes and returns blocked publishes, in order.
    pub(super) fn take_blocked(&mut self, mut is_meant: impl FnMut(&Publish) -> bool) -> Vec<Publish> {
        let mut taken = Vec::new();
        for publish in std::mem::take(&mut self.blocked) {
            if is_meant(&publish) {
                taken.push(publish);
            } else {
                self.blocked.push_back(publish);
            }
        }
        taken
    }

    pub(super) fn delay(&mut self, until_ms: u64, ticket: Ticket, record: Arc<Record>) {
        self.last_delayed += 1;
        self.delayed.insert((until_ms, self.last_delayed), (ticket, record));
    }

    pub(super) fn take_due(&mut self, now: Now) -> Option<Publish> {
        let first = self.delayed.first_entry().filter(|entry| entry.key().0 <= now.mono_ms)?;
        Some(first.remove())
    }

    /// Removes and returns delayed publishes, in order.
    pub(super) fn take_delayed(&mut self, is_meant: impl Fn(&Publish) -> bool) -> Vec<Publish> {
        let all = std::mem::take(&mut self.delayed).into_iter();
        let (taken, left): (BTreeMap<_, _>, _) = all.partition(|(_, publish)| is_meant(publish));
        self.delayed = left;
        taken.into_values().collect()
    }

    /// The end of the first delay, in ms.
    pub(super) fn due_ms(&self) -> Option<u64> {
        self.delayed.first_key_value().map(|(&(until_ms, _), _)| until_ms)
    }
}

/// Reads of hubs that left this node and may return, or that are not known here yet.
#[derive(Default)]
pub(super) struct BlockedReads {
    rooms: Vec<(HubId, Read)>,
    pub(super) hubs: Vec<HubRead>,
}

impl BlockedReads {
    pub(super) fn block(&mut self, hub: HubId, read: Read) {
        if self.rooms.len() >= CURSORS_MAX {
            // There can be no more cursors than that: the oldest read is of a closed connection.
            self.rooms.swap_remove(0);
        }
        self.rooms.push((hub, read));
    }

    pub(super) fn take(&mut self) -> Vec<(HubId, Read)> {
        std::mem::take(&mut self.rooms)
    }
}
