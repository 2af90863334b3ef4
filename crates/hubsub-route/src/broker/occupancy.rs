//! Subscribers, members and publishers of this shard in rooms, counted as they change.

use super::Broker;
use crate::occupancy::{Counts, Published};
use crate::topics::{Topic, TopicId};
use crate::{Namespace, Now};
use hubsub_types::{ClassTable, Protocol};
use std::sync::Arc;

fn second(now: Now) -> u32 {
    (now.mono_ms / 1_000) as u32
}

/// Whether occupancy changes of a room are published. Does not use the class stored with the topic: it may
/// date from before a change of classes.
fn tells(classes: &ClassTable, room: &[u8]) -> bool {
    classes.tells_occupancy() && classes.get(classes.class_of_room(room)).occupancy_records
}

impl Broker {
    pub fn occupancy_of(&self, room: &[u8]) -> Counts {
        let mut counts = self.occupancy.of(room);
        if tells(&self.classes, room) {
            return counts;
        }
        let topic = self.topics.find(Namespace::Global, room).map(|id| self.topics.get(id));
        for &conn in topic.filter(|topic| topic.is_room()).map_or(&[][..], |topic| topic.subs.as_slice()) {
            if let Some(protocol) = self.clients.get(conn).protocol {
                counts.subscribers[protocol as usize] += 1;
            }
        }
        counts
    }

    pub fn count_member(&mut self, room: &[u8], is_more: bool) {
        self.occupancy.member(room, is_more, tells(&self.classes, room));
    }

    /// A connection has ended: it is no publisher any more, even if its subscriptions persist in a session.
    pub fn publisher_gone(&mut self, conn: u32) {
        self.occupancy.publisher_gone(conn, |room| tells(&self.classes, room));
    }

    /// Stops counting publishers that have been silent for a while; to be called each second.
    pub fn expire_publishers(&mut self, now: Now) {
        self.occupancy.expire(second(now), |room| tells(&self.classes, room));
    }

    pub fn tells_occupancy(&self, room: &[u8]) -> bool {
        tells(&self.classes, room)
    }

    #[inline]
    pub(super) fn count_publish(&mut self, conn: u32, topic: TopicId, now: Now) {
        let (reused, second) = (self.topics.reused(), second(now));
        let published = Published { conn, topic, reused, second };
        if !self.occupancy.repeats(published) {
            self.note_publish(published);
        }
    }

    fn note_publish(&mut self, published: Published) {
        let topic = self.topics.get(published.topic);
        let room = self.classes.room(&topic.name);
        let tells = tells(&self.classes, &room);
        self.occupancy.published(published, &room, self.limits.publishers_shard_max, tells);
    }

    /// A topic gains or loses a subscription of a client with this protocol. Subscriptions to the topic that
    /// is the room itself are counted on request, unless each change is published: so a room with a single
    /// client costs nothing.
    pub(super) fn count_subscription(&mut self, id: TopicId, protocol: Option<Protocol>, is_more: bool) {
        let Some(protocol) = protocol else { return };
        let topic = self.topics.get(id);
        let room = self.classes.room(&topic.name);
        let tells = tells(&self.classes, &room);
        if topic.is_room() && !tells {
            return;
        }
        let name = || if topic.is_room() { Arc::clone(&topic.name) } else { room.as_ref().into() };
        self.occupancy.subscribed(&room, name, (protocol, is_more), tells);
    }

    pub(super) fn count_anew(&mut self, before: &ClassTable) {
        let tells = [before, &*self.classes].into_iter().any(ClassTable::tells_occupancy);
        self.occupancy.begin_anew(tells);
        let of = |(id, topic): (TopicId, &Topic)| {
            topic.subs.as_slice().iter().map(move |&conn| (id, conn)).collect::<Vec<_>>()
        };
        let subscriptions: Vec<(TopicId, u32)> = self.topics.subscriptions().flat_map(of).collect();
        for (id, conn) in subscriptions {
            let protocol = self.clients.get(conn).protocol;
            self.count_subscription(id, protocol, true);
        }
    }
}
