//! Publishes that wait: for a shard or a link that is behind, for their time, for the log.

use super::Broker;
use super::publish::Body;
use crate::{Now, Sink};

impl Broker {
    /// Publishes that a shard behind held up go on, in order, and so do those that
    /// need no log to be committed.
    pub fn retry_stalled(&mut self, now: Now, sink: &mut impl Sink) {
        self.push_relay(now, sink);
        self.retry_held_reads(now, sink);
        self.is_held_up = false;
        for i in 0..self.rooms.hubs.logged().len() {
            let slot = self.rooms.hubs.logged()[i];
            self.release(slot, now, sink);
        }
        while let Some((ticket, record)) = self.stalled.pop_front() {
            let id = self.topics.intern(record.namespace, record.topic());
            if !self.may_lead_topic(id, sink) {
                // Its lead may come back any moment.
                self.hold_up_relay();
                return self.stalled.push_front((ticket, record));
            }
            match self.commit(id, Body::Record(record), now, sink) {
                Ok(published) => self.tell_published(ticket, published, sink),
                Err(record) => return self.stalled.push_front((ticket, record)),
            }
        }
    }

    /// Publishes that wait for a shard that is behind, near enough to know whether any does.
    #[must_use]
    pub fn stalled(&self) -> usize {
        self.stalled.len() + usize::from(self.is_held_up)
    }

    /// Records that wait for the log.
    #[must_use]
    pub fn unlogged(&self) -> usize {
        self.rooms.hubs.pending()
    }

    /// When `commit_due` has work next.
    #[must_use]
    pub fn next_due_ms(&self) -> Option<u64> {
        let delayed = self.delayed.first_key_value().map(|(&(due_ms, _), _)| due_ms);
        match self.relay_due_ms() {
            Some(due_ms) => Some(delayed.map_or(due_ms, |delayed| delayed.min(due_ms))),
            None => delayed,
        }
    }

    /// Delayed commits that are due, and what time brings to what waits for other nodes.
    pub fn commit_due(&mut self, now: Now, sink: &mut impl Sink) {
        if self.relay.is_some() {
            self.relay_due(now, sink);
        }
        while let Some(entry) = self.delayed.first_entry().filter(|e| e.key().0 <= now.mono_ms) {
            let (ticket, record) = entry.remove();
            self.commit_owned(ticket, record, now, sink);
        }
    }
}
