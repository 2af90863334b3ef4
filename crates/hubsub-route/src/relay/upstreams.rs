//! Topics with subscribers on this node in rooms that other nodes lead: the interest that their leaders are sent.
//!
//! Invariant: `attaches` is the number of subscriptions that wait for a confirmation, in all topics.

use crate::Attach;
use crate::rooms::{RoomHandle, TopicKey};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_message::AskId;
use hubsub_types::{Epoch, Position, ShardId};

/// Interest that was sent, or sent again.
#[derive(Clone, Debug)]
pub struct InterestRequest {
    pub room: RoomHandle,
    pub key: TopicKey,
    /// The room's last record here when it was sent.
    pub known: Position,
    /// Whether there were subscribers that have all records up to then.
    pub resumes: bool,
    /// The subscription whose start is requested; none: all that start with the next record.
    pub of: Option<(ShardId, u32)>,
}

/// A topic with subscribers here, in a room that another node leads.
#[derive(Debug)]
pub struct Upstream {
    pub slot: u16,
    pub room: RoomHandle,
    pub is_confirmed: bool,
    /// Whether a leader ever has: then subscribers here may have received records.
    pub was_confirmed: bool,
    /// The room's epoch when it was last confirmed.
    pub epoch: Epoch,
    pub asked: AskId,
    pub waiting: Vec<WaitingAttach>,
    /// Whether a changed number has yet to be sent to the leader.
    pub is_dirty: bool,
}

#[derive(Debug)]
pub struct WaitingAttach {
    pub attach: Attach,
    pub from: ShardId,
    pub until_ms: u64,
}

#[derive(Debug, Default)]
pub struct Upstreams {
    pub by_topic: HashMap<TopicKey, Upstream, RandomState>,
    /// Topics whose changed number of subscribers has yet to be sent to the leader.
    pub dirty: Vec<TopicKey>,
    attaches: usize,
}

impl Upstreams {
    pub fn attaches(&self) -> usize {
        self.attaches
    }

    /// The topics of a hub, in an order that does not depend on hashes.
    pub fn of_hub(&self, slot: u16) -> Vec<TopicKey> {
        let of_hub = self.by_topic.iter().filter(|(_, up)| up.slot == slot);
        let mut keys: Vec<TopicKey> = of_hub.map(|(key, _)| key.clone()).collect();
        keys.sort_unstable();
        keys
    }

    pub fn changed(&mut self, key: &TopicKey) {
        if let Some(up) = self.by_topic.get_mut(key)
            && !std::mem::replace(&mut up.is_dirty, true)
        {
            self.dirty.push(key.clone());
        }
    }

    /// A subscription waits for the confirmation of its topic, which is known.
    pub fn wait(&mut self, key: &TopicKey, waiting: WaitingAttach) {
        if let Some(up) = self.by_topic.get_mut(key) {
            up.waiting.push(waiting);
            self.attaches += 1;
        }
    }

    /// Removes and returns the selected waiting subscriptions of a topic, in order.
    pub fn take_waiting(
        &mut self,
        key: &TopicKey,
        is_meant: impl Fn(&WaitingAttach) -> bool,
    ) -> Vec<WaitingAttach> {
        let Some(up) = self.by_topic.get_mut(key) else { return Vec::new() };
        let waiting = std::mem::take(&mut up.waiting).into_iter();
        let (taken, left): (Vec<_>, Vec<_>) = waiting.partition(|waiting| is_meant(waiting));
        up.waiting = left;
        self.attaches -= taken.len();
        taken
    }

    /// Nobody here is interested in a topic, or it is led here now: returns its waiting subscriptions.
    pub fn remove(&mut self, key: &TopicKey) -> Option<Upstream> {
        let up = self.by_topic.remove(key)?;
        self.attaches -= up.waiting.len();
        Some(up)
    }
}
