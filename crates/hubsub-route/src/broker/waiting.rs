//! Waiting publishes: for a congested shard or link, for their commit delay, or for the log.

use super::{Broker, Turn};
use crate::relay::Parked;
use crate::{Now, Sink};
use hubsub_types::ErrorCode;
use std::sync::Arc;

impl Broker {
    /// Resumes, in order, publishes that a shard blocked, and commits those that need not wait for a log.
    pub fn retry_stalled(&mut self, now: Now, sink: &mut impl Sink) {
        let turn = &mut Turn { now, sink };
        self.push_relay(turn);
        self.retry_blocked_reads(turn);
        self.retry_hub_reads(turn);
        self.backlog.blocks_log = false;
        for i in 0..self.rooms.hubs.logged().len() {
            let slot = self.rooms.hubs.logged()[i];
            self.release(slot, turn);
        }
        while let Some((ticket, record)) = self.backlog.unblock() {
            let id = self.topics.intern(record.namespace, record.topic());
            if self.is_elsewhere(id) {
                // Its room has moved to another home since.
                let room: Arc<[u8]> = self.room_of(record.topic());
                if self.topics.moves(self.classes.class_of_room(&room)) {
                    self.backlog.block_first(ticket, record);
                    self.rehome(&room, turn);
                    self.requeue_all(&room, turn);
                } else {
                    self.publish_elsewhere(ticket, record, turn);
                }
                continue;
            }
            if let Some(slot) = self.unled_slot(id, turn.sink) {
                // The leader lease may return. Other hubs do not wait for it; this publish does for a while.
                self.backlog.block_first(ticket, record);
                self.queue_stalled(slot, turn);
                self.relay.is_held_up = true;
                continue;
            }
            if let Err(record) = self.commit_and_answer(ticket, id, record, turn) {
                return self.backlog.block_first(ticket, record);
            }
        }
    }

    /// This node does not lead a hub now: its uncommitted publishes wait for the leader, before later ones.
    pub(super) fn queue_stalled(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        let mut backlog = std::mem::take(&mut self.backlog);
        let of_hub = backlog.take_blocked(|(_, record)| {
            let id = self.topics.intern(record.namespace, record.topic());
            self.slot_of_topic(id) == Some(slot)
        });
        self.backlog = backlog;
        let mut refused = Vec::new();
        for (ticket, record) in of_hub.into_iter().rev() {
            if self.relay.is_full(record.weight()) {
                refused.push(ticket);
                continue;
            }
            self.relay.first_number -= 1;
            self.relay.park(
                slot,
                Parked { number: self.relay.first_number, ticket, record, since_ms: turn.now.mono_ms },
            );
        }
        for ticket in refused.into_iter().rev() {
            self.answer_publish(ticket, Err(ErrorCode::LinkFull), turn.sink);
        }
    }

    pub fn stalled(&self) -> usize {
        self.backlog.blocked()
    }

    pub fn unlogged(&self) -> usize {
        self.rooms.hubs.pending()
    }

    pub fn next_due_ms(&self) -> Option<u64> {
        [self.backlog.due_ms(), self.ends.due_ms(), self.relay_due_ms()].into_iter().flatten().min()
    }

    /// Whether requests wait here for a delay, a leader or a place. A due time alone does not show that.
    pub fn is_waiting(&self) -> bool {
        self.backlog.due_ms().is_some()
            || !self.relay.parked.is_empty()
            || self.relay.upstreams.attaches() > 0
            || !self.relay.misses.parked.is_empty()
    }

    pub fn commit_due(&mut self, now: Now, sink: &mut impl Sink) {
        let turn = &mut Turn { now, sink };
        self.relay_due(turn);
        self.ends.expire(turn);
        while let Some((ticket, record)) = self.backlog.take_due(turn.now) {
            self.commit_delayed(ticket, record, turn);
        }
    }
}
