//! Waiting publishes: for a congested shard or link, for their commit delay, or for the log.

use super::Broker;
use crate::relay::state::{Parked, Relay};
use crate::{Now, Sink};
use hubsub_types::ErrorCode;
use std::sync::Arc;

impl Broker {
    /// Resumes, in order, publishes that a congested shard blocked, and commits those that no longer wait for
    /// a log.
    pub fn retry_stalled(&mut self, now: Now, sink: &mut impl Sink) {
        self.push_relay(now, sink);
        self.retry_held_reads(now, sink);
        self.retry_hub_reads(now, sink);
        self.is_held_up = false;
        for i in 0..self.rooms.hubs.logged().len() {
            let slot = self.rooms.hubs.logged()[i];
            self.release(slot, now, sink);
        }
        while let Some((ticket, record)) = self.stalled.pop_front() {
            let id = self.topics.intern(record.namespace, record.topic());
            if self.relay.is_some() && self.is_elsewhere(id) {
                // Its room has moved to another home since.
                let room: Arc<[u8]> = self.classes.room(record.topic()).as_ref().into();
                if self.topics.moves(self.classes.class_of_room(&room)) {
                    self.stalled.push_front((ticket, record));
                    self.rehome(&room, now, sink);
                    self.give_back_all(&room, now, sink);
                } else {
                    self.publish_elsewhere(ticket, record, now, sink);
                }
                continue;
            }
            if let Some(slot) = self.unled_slot(id, sink) {
                // The leader lease may return at any moment. Other hubs do not wait for it, and this publish
                // waits only for a limited time.
                self.stalled.push_front((ticket, record));
                self.queue_stalled(slot, now, sink);
                self.hold_up_relay();
                continue;
            }
            if let Err(record) = self.commit_and_tell(ticket, id, record, now, sink) {
                return self.stalled.push_front((ticket, record));
            }
        }
    }

    /// This node does not lead a hub now: its uncommitted publishes wait for its leader, before all later
    /// ones.
    pub(super) fn queue_stalled(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        let stalled = std::mem::take(&mut self.stalled);
        let mut of_hub = Vec::new();
        for (ticket, record) in stalled {
            let id = self.topics.intern(record.namespace, record.topic());
            if self.slot_of_topic(id) == Some(slot) {
                of_hub.push((ticket, record));
            } else {
                self.stalled.push_back((ticket, record));
            }
        }
        let Some(relay) = &mut self.relay else { return };
        let mut refused = Vec::new();
        for (ticket, record) in of_hub.into_iter().rev() {
            if relay.is_full(record.weight()) {
                refused.push(ticket);
                continue;
            }
            relay.first_number -= 1;
            relay.park(slot, Parked { number: relay.first_number, ticket, record, since_ms: now.mono_ms });
        }
        for ticket in refused.into_iter().rev() {
            self.tell_published(ticket, Err(ErrorCode::LinkFull), sink);
        }
    }

    /// Publishes that wait for a congested shard; approximate, but 0 only if none waits.
    #[must_use]
    pub fn stalled(&self) -> usize {
        self.stalled.len() + usize::from(self.is_held_up)
    }

    /// Number of records and requests that wait for the log.
    #[must_use]
    pub fn unlogged(&self) -> usize {
        self.rooms.hubs.pending()
    }

    /// The time at which `commit_due` next has work, in ms.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        let delayed = self.delayed.first_key_value().map(|(&(due_ms, _), _)| due_ms);
        let ends = self.ends.values().map(|ends| ends.until_ms).min();
        let delayed = delayed.into_iter().chain(ends).min();
        match self.relay_due_ms() {
            Some(due_ms) => Some(delayed.map_or(due_ms, |delayed| delayed.min(due_ms))),
            None => delayed,
        }
    }

    /// Whether a publish or a subscription waits here for its commit delay, a leader, or the place of its
    /// room. A due time alone does not show that: its request may be complete.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        let waits = |relay: &Relay| relay.parked.0 > 0 || relay.attaches > 0 || relay.misses.parked.0 > 0;
        !self.delayed.is_empty() || self.relay.as_deref().is_some_and(waits)
    }

    /// Commits due delayed publishes, and expires requests that wait for other nodes.
    pub fn commit_due(&mut self, now: Now, sink: &mut impl Sink) {
        if self.relay.is_some() {
            self.relay_due(now, sink);
        }
        self.expire_ends(now, sink);
        while let Some(entry) = self.delayed.first_entry().filter(|e| e.key().0 <= now.mono_ms) {
            let (ticket, record) = entry.remove();
            self.commit_owned(ticket, record, now, sink);
        }
    }
}
