//! Replies that wait for an earlier one, in slots.

use super::Output;
use ahash::RandomState;
use hubsub_route::Record;
use hubsub_types::Position;
use hubsub_wire::phoenix::Answer;
use hubsub_wire::resp::Proto;
use std::sync::Arc;

/// The state of a request for an event stream whose response waits for the broker.
pub struct Opening {
    /// The position after which records are requested, if any.
    pub after: Option<Position>,
    /// The `Origin` header of the request.
    pub origin: Option<Box<str>>,
}

/// The kind of a reply that is not known yet.
pub enum Pending {
    /// The number of receivers of a publish.
    Publish,
    /// This confirmation of a subscription, or an error.
    Confirm(Vec<u8>),
    /// The confirmation of a subscription with a start: topic, count, and the client's protocol version at
    /// the request.
    Start(Box<[u8]>, u64, Proto),
    /// The reply to a browser's push, without its outcome.
    Answer(Box<Answer>),
    /// The reply to a browser's join of this topic.
    Join(Box<str>),
    /// The start of a stream of server-sent events.
    Events(Box<Opening>),
    /// The reply to a scatter-gather request.
    Parts,
    /// No reply: the client switched replies off.
    Silence,
}

impl Pending {
    /// Whether records must stay after this reply.
    pub fn is_confirm(&self) -> bool {
        matches!(self, Pending::Confirm(_) | Pending::Start(..) | Pending::Join(_) | Pending::Events(_))
    }
}

/// The place of a reply in the order of replies.
pub enum Slot {
    /// The reply is not known yet.
    Waiting(Pending),
    /// The reply is known and waits for earlier ones.
    Ready(Vec<u8>),
    /// Like `Ready`, and records must not overtake it: it confirms a subscription, ends a transaction,
    /// reports a gap or is a record itself.
    Confirmed(Vec<u8>),
    /// Records of a history, encoded from `next` on as output drains.
    Long {
        records: Vec<Arc<Record>>,
        /// Number of records already written.
        next: usize,
    },
}

impl Output {
    pub fn push_ready(&mut self, bytes: Vec<u8>) {
        self.slot_bytes += bytes.len();
        self.slots.push_back(Slot::Ready(bytes));
    }

    /// Adds a confirmation, a gap or a record to the slots; later records stay after it.
    pub fn push_confirmed(&mut self, bytes: Vec<u8>) {
        self.slot_bytes += bytes.len();
        self.confirms += 1;
        self.slots.push_back(Slot::Confirmed(bytes));
    }

    /// Opens a slot and returns its number.
    pub fn open_slot(&mut self, pending: Pending) -> u32 {
        self.confirms += u32::from(pending.is_confirm());
        self.slots.push_back(Slot::Waiting(pending));
        self.first_slot.wrapping_add(self.slots.len() as u32 - 1)
    }

    /// Notes that the publish of the next slot may be delivered back to this client.
    pub fn note_own_publish(&mut self, topic: &[u8]) {
        self.own_publishes.push_back((self.next_slot(), topic_hash(topic)));
    }

    /// Whether a publish to this topic is unanswered, so that the topic's records wait.
    pub fn answers_first(&self, topic: &[u8]) -> bool {
        !self.own_publishes.is_empty() && {
            let hash = topic_hash(topic);
            self.own_publishes.iter().any(|(_, of)| *of == hash)
        }
    }

    /// The number of the next slot.
    pub fn next_slot(&self) -> u32 {
        self.first_slot.wrapping_add(self.slots.len() as u32)
    }

    /// The slot of this number, if it is still waiting.
    pub fn waiting(&mut self, slot: u32) -> Option<&mut Slot> {
        let place = slot.wrapping_sub(self.first_slot) as usize;
        self.slots.get_mut(place).filter(|s| matches!(s, Slot::Waiting(_)))
    }

    pub fn slot_mut(&mut self, slot: u32) -> &mut Slot {
        &mut self.slots[slot.wrapping_sub(self.first_slot) as usize]
    }

    pub fn pop_slot(&mut self) {
        match self.slots.pop_front() {
            Some(Slot::Ready(bytes)) => self.slot_bytes -= bytes.len(),
            Some(Slot::Confirmed(bytes)) => {
                self.slot_bytes -= bytes.len();
                self.confirms -= 1;
            }
            Some(Slot::Long { .. }) => self.confirms -= 1,
            _ => {}
        }
        if self.own_publishes.front().is_some_and(|(slot, _)| *slot == self.first_slot) {
            self.own_publishes.pop_front();
        }
        self.first_slot = self.first_slot.wrapping_add(1);
    }
}

/// Hashes a topic. Topics with equal hashes are held back together, which does no harm.
fn topic_hash(topic: &[u8]) -> u64 {
    RandomState::with_seeds(1, 2, 3, 4).hash_one(topic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_that_waits_for_the_log_is_not_overlooked_behind_a_later_answer() {
        let mut output = Output::default();
        let slots = [Pending::Publish, Pending::Publish].map(|pending| output.open_slot(pending));
        output.logged_slot = Some(slots[1]);
        assert!(output.waits_for_log());
        *output.waiting(slots[1]).unwrap() = Slot::Ready(Vec::new());
        assert!(output.waits_for_log(), "the first one waits still");
        *output.waiting(slots[0]).unwrap() = Slot::Ready(Vec::new());
        assert!(!output.waits_for_log());
        output.slots.clear();
        output.first_slot += 2;
        output.open_slot(Pending::Publish);
        assert!(!output.waits_for_log(), "that is of a room without a log");
    }
}
