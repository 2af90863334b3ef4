//! Who is interested in a room's topics, and where a new subscription begins.

use super::{Key, Room, RoomHandle, Rooms, seconds};
use crate::counts::ShardSet;
use crate::record::{Namespace, Record};
use crate::{Attach, Attached, Now, Start};
use hubsub_types::{ErrorCode, Position, ShardId};
use std::sync::Arc;

impl Rooms {
    /// Registers a subscription and finds where it begins.
    pub fn attach(
        &mut self,
        attach: &Attach,
        from: ShardId,
        now: Now,
    ) -> Result<(Attached, RoomHandle), ErrorCode> {
        let classes = Arc::clone(&self.classes);
        let name = classes.room(&attach.topic);
        let handle = self.open(&name, now)?;
        let shards = self.shards;
        let room = self.get_mut(handle).expect("opened above");
        if attach.adds {
            room.used_s = seconds(now);
            let counts = if attach.namespace == Namespace::Global && *room.name == *attach.topic {
                &mut room.own
            } else {
                let key = (attach.namespace, Arc::clone(&attach.topic));
                room.others.get_or_insert_default().entry(key).or_default()
            };
            let is_first = counts.is_zero();
            counts.add(from, shards);
            let began = beginning(room, attach);
            self.subscribed[attach.namespace as usize] += u64::from(is_first);
            return Ok((began, handle));
        }
        Ok((beginning(room, attach), handle))
    }

    /// A subscription less. The room goes when it was the last and nothing is kept.
    pub fn detach(&mut self, namespace: Namespace, topic: &[u8], from: ShardId, now: Now) {
        let Some(handle) = self.find_of_topic(topic) else { return };
        let room = self.get_mut(handle).expect("found above");
        room.used_s = seconds(now);
        let mut is_last = false;
        if namespace == Namespace::Global && *room.name == *topic {
            is_last = room.own.remove(from) && room.own.is_zero();
        } else if let Some(others) = &mut room.others {
            if let Some(counts) = others.get_mut(&Key(namespace, topic)) {
                is_last = counts.remove(from) && counts.is_zero();
                if counts.is_zero() {
                    others.remove(&Key(namespace, topic));
                }
            }
            if others.is_empty() {
                room.others = None;
            }
        }
        let is_idle = room.is_idle();
        self.subscribed[namespace as usize] -= u64::from(is_last);
        if is_idle && self.classes.get(self.at(handle.index).class).history.is_none() {
            self.forget(handle);
        }
    }

    /// Shards interested in a topic of a room, and its subscribers.
    pub fn interest(
        &self,
        room: RoomHandle,
        is_room: bool,
        ns: Namespace,
        topic: &[u8],
        set: &mut ShardSet,
    ) -> u64 {
        let counts = self.get(room).and_then(|r| r.interest(is_room, ns, topic));
        counts.map_or(0, |counts| {
            counts.shards(set);
            counts.total()
        })
    }
}

/// Where a subscription begins in a room.
fn beginning(room: &Room, attach: &Attach) -> Attached {
    let position = Position { epoch: room.epoch, seq: room.seq };
    let first = room.first_seq();
    let of_topic = |r: &&Arc<Record>| r.namespace == attach.namespace && r.topic() == &*attach.topic;
    let (from, recovered) = match attach.start {
        Start::Live => (None, true),
        Start::After(p) if p.epoch != room.epoch || p.seq > room.seq => (None, false),
        Start::After(p) => (Some(p.seq.next().max(first)), p.seq.next() >= first),
        Start::Last(n) => {
            let records = room.ring.iter().flat_map(|r| r.from(first)).rev().filter(of_topic);
            let count = usize::try_from(n).unwrap_or(usize::MAX);
            (records.take(count).last().map(|r| r.position.seq), true)
        }
        Start::Since(us) => (room.ring.as_ref().and_then(|r| r.since(us)), true),
    };
    Attached { position, replay_from: from.filter(|&seq| seq <= room.seq), recovered }
}
