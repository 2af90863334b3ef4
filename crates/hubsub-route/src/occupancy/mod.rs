//! Occupancy of rooms: subscriptions by protocol, publishers and members. See docs/presence.md.
//!
//! - this file: the counts of one shard, of its own connections; they are exact after each event.
//!   Subscriptions to a room itself are counted on request (`Broker::occupancy_of`), unless each change is
//!   published
//! - [`publishers`]: connections that published to a room recently
//! - [`telling`]: publishing changes of the sum over all nodes
//!
//! Invariant: a room is in the table while any of its counts is not 0; its counted subscriptions are those of
//! its topics in the table of topics, without those of the internal client.

mod publishers;
mod telling;
#[cfg(test)]
mod tests;

pub use telling::{Action, EACH_MS, Telling};

use crate::topics::TopicId;
use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use hubsub_types::Protocol;
use publishers::Publishers;
use std::iter::Sum;
use std::sync::Arc;

/// A connection is a publisher of a room for this time after its last publish there, in s.
pub const PUBLISHER_S: u32 = 60;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Number of subscriptions to its topics, by [`Protocol`].
    pub subscribers: [u32; Protocol::NAMES.len()],
    /// Number of connections that published to it within [`PUBLISHER_S`].
    pub publishers: u32,
    pub members: u32,
}

impl Counts {
    pub fn is_none(&self) -> bool {
        *self == Counts::default()
    }

    pub fn subscriptions(&self) -> u64 {
        self.subscribers.iter().map(|&count| u64::from(count)).sum()
    }

    fn numbers(&self) -> [u32; Protocol::NAMES.len() + 2] {
        let [redis, mqtt, phoenix, events] = self.subscribers;
        [redis, mqtt, phoenix, events, self.publishers, self.members]
    }

    fn of(numbers: [u32; Protocol::NAMES.len() + 2]) -> Counts {
        let [redis, mqtt, phoenix, events, publishers, members] = numbers;
        Counts { subscribers: [redis, mqtt, phoenix, events], publishers, members }
    }

    /// The message between nodes: six 32-bit numbers, little-endian, then the name of the room.
    pub fn encode(&self, room: &[u8]) -> Box<[u8]> {
        let numbers = self.numbers().into_iter().flat_map(u32::to_le_bytes);
        numbers.chain(room.iter().copied()).collect()
    }

    /// Decodes the counts and the room; none if the bytes are too short.
    pub fn decode(bytes: &[u8]) -> Option<(Counts, &[u8])> {
        let (numbers, room) = bytes.split_first_chunk::<{ 4 * (Protocol::NAMES.len() + 2) }>()?;
        let (numbers, _) = numbers.as_chunks::<4>();
        let mut each = numbers.iter().map(|bytes| u32::from_le_bytes(*bytes));
        Some((Counts::of(std::array::from_fn(|_| each.next().unwrap_or_default())), room))
    }
}

impl<'a> Sum<&'a Counts> for Counts {
    fn sum<I: Iterator<Item = &'a Counts>>(counts: I) -> Counts {
        counts.fold(Counts::default(), |all, one| {
            let (all, one) = (all.numbers(), one.numbers());
            Counts::of(std::array::from_fn(|at| all[at].saturating_add(one[at])))
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Published {
    pub conn: u32,
    pub topic: TopicId,
    /// The count of reused topic handles: while it is unchanged, `topic` means the same topic.
    pub reused: u32,
    pub second: u32,
}

#[derive(Debug, Default)]
pub struct Occupancy {
    rooms: HashMap<Arc<[u8]>, Counts, RandomState>,
    /// Rooms with changed counts, of classes that publish changes.
    changed: HashSet<Arc<[u8]>, RandomState>,
    publishers: Publishers,
}

impl Occupancy {
    pub fn of(&self, room: &[u8]) -> Counts {
        self.rooms.get(room).copied().unwrap_or_default()
    }

    /// A room gains or loses a subscription. `name` is the room's; `tells`: changes are published.
    pub fn subscribed(
        &mut self,
        room: &[u8],
        name: impl FnOnce() -> Arc<[u8]>,
        (protocol, is_more): (Protocol, bool),
        tells: bool,
    ) {
        self.count(room, name, tells, |counts| step(&mut counts.subscribers[protocol as usize], is_more));
    }

    pub fn member(&mut self, room: &[u8], is_more: bool, tells: bool) {
        self.count(room, || room.into(), tells, |counts| step(&mut counts.members, is_more));
    }

    /// Whether a publish repeats the connection's last one, to the same topic in the same second.
    #[inline]
    pub fn repeats(&self, published: Published) -> bool {
        self.publishers.repeats(published)
    }

    /// A connection published to a room. At most `max` pairs of connection and room are stored.
    pub fn published(&mut self, published: Published, room: &[u8], max: u64, tells: bool) {
        let known =
            || self.rooms.get_key_value(room).map_or_else(|| room.into(), |(name, _)| Arc::clone(name));
        if let Some(name) = self.publishers.published(published, room, known, max) {
            self.count(room, || name, tells, |counts| step(&mut counts.publishers, true));
        }
    }

    pub fn publisher_gone(&mut self, conn: u32, tells: impl Fn(&[u8]) -> bool) {
        for room in self.publishers.gone(conn) {
            let tells = tells(&room);
            self.count(&room, || Arc::clone(&room), tells, |counts| step(&mut counts.publishers, false));
        }
    }

    pub fn expire(&mut self, second: u32, tells: impl Fn(&[u8]) -> bool) {
        for room in self.publishers.expire(second) {
            let tells = tells(&room);
            self.count(&room, || Arc::clone(&room), tells, |counts| step(&mut counts.publishers, false));
        }
    }

    pub fn uncounted(&self) -> u64 {
        self.publishers.uncounted
    }

    pub fn has_changed(&self) -> bool {
        !self.changed.is_empty()
    }

    /// Removes and returns the rooms with changed counts, of classes that publish changes.
    pub fn take_changed(&mut self) -> Vec<Arc<[u8]>> {
        self.changed.drain().collect()
    }

    /// Rooms of topics have changed: subscriptions are counted again. `tells`: all are marked changed.
    pub fn begin_anew(&mut self, tells: bool) {
        for (room, counts) in &mut self.rooms {
            counts.subscribers = Default::default();
            if tells {
                self.changed.insert(Arc::clone(room));
            }
        }
        self.rooms.retain(|_, counts| !counts.is_none());
    }

    fn count(
        &mut self,
        room: &[u8],
        name: impl FnOnce() -> Arc<[u8]>,
        tells: bool,
        count: impl FnOnce(&mut Counts),
    ) {
        let (name, is_over) = match self.rooms.get_key_value_mut(room) {
            Some((name, counts)) => {
                count(counts);
                (tells.then(|| Arc::clone(name)), counts.is_none())
            }
            None => {
                let (name, mut counts) = (name(), Counts::default());
                count(&mut counts);
                if !counts.is_none() {
                    self.rooms.insert(Arc::clone(&name), counts);
                }
                (tells.then_some(name), false)
            }
        };
        self.changed.extend(name);
        if is_over {
            self.rooms.remove(room);
        }
    }
}

fn step(count: &mut u32, is_more: bool) {
    *count = if is_more { count.saturating_add(1) } else { count.saturating_sub(1) };
}
