//! Interest in a room's topics, and the start of new subscriptions.

use super::{Key, Recalled, Room, RoomHandle, Rooms, seconds};
use crate::counts::HolderSet;
use crate::logread::{Found, Known, LogRead, Then, Want};
use crate::{Attach, Attached, Now, Start};
use hubsub_message::{Namespace, Record};
use hubsub_types::{ErrorCode, HubId, Position, Seq, ShardId};
use std::sync::Arc;

impl Rooms {
    pub fn attach(
        &mut self,
        attach: &Attach,
        from: ShardId,
        now: Now,
        recall: impl FnOnce(HubId, &[u8]) -> Option<Recalled>,
    ) -> Result<(Known<Attached>, RoomHandle), ErrorCode> {
        let classes = Arc::clone(&self.classes);
        let name = classes.room(&attach.topic);
        let handle = self.open(&name, now, |hub| recall(hub, &name))?;
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
            self.subscribed[attach.namespace as usize] += u64::from(is_first);
        }
        Ok((self.beginning(self.at(handle.index), attach, from, now), handle))
    }

    fn beginning(&self, room: &Room, attach: &Attach, from: ShardId, now: Now) -> Known<Attached> {
        let (position, first) = (room.position(), room.first_seq());
        let of_topic = |r: &&Arc<Record>| r.namespace == attach.namespace && r.topic() == &*attach.topic;
        let log = || match first > Seq(1) && attach.start != Start::Live {
            true => self.ask_log(room, now, Then::Attach(Box::new(attach.clone()), from)),
            false => None,
        };
        let (replay_from, recovered) = match attach.start {
            Start::Live => (None, true),
            Start::After(p) if p.epoch != room.epoch || p.seq > room.seq => (None, false),
            Start::After(p) => {
                let next = p.seq.next();
                if let Some(log) = log().filter(|_| next < first && next <= room.seq) {
                    return Known::InLog(Box::new(LogRead { want: Want::On(next), count: 1, ..log }));
                }
                (Some(next.max(first)), next >= first)
            }
            Start::Last(n) => {
                let records = room.ring.iter().flat_map(|r| r.from(first)).rev().filter(of_topic);
                let count = usize::try_from(n).unwrap_or(usize::MAX);
                let (mut found, mut oldest) = (0, None);
                for record in records.take(count) {
                    (found, oldest) = (found + 1, Some(record.position.seq));
                }
                if let Some(log) = log().filter(|log| found < n && log.seq_min < first) {
                    let (topic, namespace) = (Some(attach.topic.to_vec()), Some(attach.namespace));
                    return Known::InLog(Box::new(LogRead {
                        want: Want::Back,
                        count: n,
                        topic,
                        namespace,
                        ..log
                    }));
                }
                (oldest, true)
            }
            Start::Since(us) => {
                let oldest = room.ring.as_ref().and_then(|r| r.first());
                let is_older = oldest.is_some_and(|r| r.timestamp_us < us);
                if let Some(log) = log().filter(|log| !is_older && log.seq_min < first) {
                    return Known::InLog(Box::new(LogRead { want: Want::Since(us), count: 1, ..log }));
                }
                (room.ring.as_ref().and_then(|r| r.since(us)), true)
            }
        };
        let replay_from = replay_from.filter(|&seq| seq <= room.seq);
        Known::Here(Attached { position, replay_from, recovered })
    }

    /// The start of a subscription, from a log read; records after `last` bypassed the subscription.
    pub fn attach_found(&self, attach: &Attach, last: Seq, found: &Found) -> Attached {
        let Some(room) = self.find_of_topic(&attach.topic).and_then(|h| self.get(h)) else {
            return Attached { position: Position::default(), replay_from: None, recovered: false };
        };
        let position = room.position();
        let of_epoch = found.records.iter().find(|r| r.position.epoch == room.epoch).map(|r| r.position.seq);
        let (from, recovered) = match attach.start {
            Start::After(p) if p.epoch != room.epoch => (None, false),
            Start::After(p) => {
                let first = of_epoch.unwrap_or_else(|| room.first_seq());
                (Some(p.seq.next().max(first)), p.seq.next() >= first)
            }
            Start::Live | Start::Last(_) | Start::Since(_) => (of_epoch, true),
        };
        let from = from.map_or(last.next(), |seq| seq.min(last.next()));
        Attached { position, replay_from: Some(from).filter(|&seq| seq <= room.seq), recovered }
    }

    /// Removes a subscription. The room is removed if it was the last and the room has no history.
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
        if is_idle && self.classes.get(self.hubs.get(self.at(handle.index).hub).class).history.is_none() {
            self.forget(handle);
        }
    }

    /// Adds the holders with interest in a topic of a room to `set`; returns the number of its subscribers.
    pub fn interest(
        &self,
        room: RoomHandle,
        is_room: bool,
        ns: Namespace,
        topic: &[u8],
        set: &mut HolderSet,
    ) -> u64 {
        let counts = self.get(room).and_then(|r| r.interest(is_room, ns, topic));
        counts.map_or(0, |counts| {
            counts.holders(set);
            counts.total()
        })
    }
}
