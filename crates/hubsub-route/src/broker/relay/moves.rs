//! Rooms that are moved (docs/protocol/moves.md). A home closes a room that the table has elsewhere; each shard that
//! asked something of it there leaves it, and asks where it is as soon as all before is answered or given back.
//!
//! Invariants: what one shard has asked of a room and has no answer to is at one home; a subscription that was
//! confirmed is counted by that home, or is on its way to the next one; a revision that is over comes not back.

use super::Broker;
use crate::cursors::{CursorKey, Key};
use crate::places::{Change, UNPLACED};
use crate::relay::limits::RETRY_REFUSED_MS;
use crate::relay::misses::Missing;
use crate::relay::state::Parked;
use crate::ring::NOWHERE;
use crate::topics::{TopicId, UNHEARD};
use crate::{Asker, Attach, Attached, CloseReason, Left, Moved, Msg, Now, Sink, Start, Ticket};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ConnKey, ErrorCode, NodeId, Position, Seq, ShardId};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Broker {
    // -- what is told --

    /// The table has these rooms of a class, or has them elsewhere, or no more: what waits for them goes on, and this
    /// shard leaves where they were.
    pub fn rooms_placed(
        &mut self,
        class: ClassIndex,
        rooms: &[(Box<[u8]>, Change)],
        now: Now,
        sink: &mut impl Sink,
    ) {
        if self.relay.is_none() {
            return;
        }
        rooms.iter().for_each(|(_, change)| self.topics.hear(change.revision));
        let classes = Arc::clone(&self.classes);
        // By other classes a room may be of another one by now, and nothing is asked of it in this one's hubs any more.
        let is_left = |room: &[u8], change: &Change| {
            let is_moved = change.before != change.after && change.before != UNPLACED;
            is_moved && classes.class_of_room(room) == class
        };
        let moved = rooms.iter().filter(|(room, change)| is_left(room, change));
        let mut left = self.topics.leave(moved.map(|(room, _)| room.as_ref().into()));
        for (room, change) in rooms {
            if is_left(room, change) {
                let home = self.topics.shard_of_hub(class, change.before);
                let room: Arc<[u8]> = room.as_ref().into();
                // Of several moves of a room it leaves the home before the first.
                if left.remove(&room) {
                    self.tell_left(&room, home, now, sink);
                }
                self.give_back_all(&room, now, sink);
            }
            self.rehome(room, now, sink);
            if self.topics.is_unplaced(room) {
                // It was forgotten since.
                self.ask_for_again(room, sink);
            } else {
                self.go_on_placed(room, now, sink);
            }
        }
    }

    // -- the edge --

    /// Nothing more is asked of a room at that home; what comes waits until all before is answered.
    pub(in crate::broker) fn leave_room(
        &mut self,
        room: &Arc<[u8]>,
        home: ShardId,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if !self.topics.leave(std::iter::once(Arc::clone(room))).is_empty() {
            self.tell_left(room, home, now, sink);
        }
    }

    /// The home is told that this shard asks nothing more of a room there.
    fn tell_left(&mut self, room: &Arc<[u8]>, home: ShardId, now: Now, sink: &mut impl Sink) {
        self.relay().moves.leaving.insert(Arc::clone(room), home);
        if home == self.shard {
            self.leave_asked(home, room, now, sink);
        } else {
            sink.send(home, Msg::Leave(self.shard, Arc::clone(room)));
        }
    }

    /// A room is not where this shard has it: who subscribes follows it.
    pub(in crate::broker) fn moved(&mut self, moved: Moved, now: Now, sink: &mut impl Sink) {
        let is_asked_at = |shard: ShardId| shard == moved.home || shard == NOWHERE;
        let topics = self.topics.of_room(&moved.room);
        // By other classes this shard may ask elsewhere already.
        if topics.into_iter().all(|id| is_asked_at(self.topics.get(id).shard)) {
            self.leave_room(&moved.room, moved.home, now, sink);
        }
        for ((namespace, topic), left) in moved.topics {
            if let Some(id) = self.topics.find(namespace, &topic) {
                self.follow_subs(id, left, now, sink);
            }
        }
    }

    /// Those who subscribe to a topic, and were confirmed, do so anew where its room is. They had all up to this
    /// record; who was catching up, up to where that stood.
    pub(super) fn follow_subs(&mut self, id: TopicId, left: Position, now: Now, sink: &mut impl Sink) {
        let (namespace, topic) = self.key_of(id);
        let class = self.topics.get(id).class;
        for conn in self.topics.get(id).subs.as_slice().to_vec() {
            if self.attaching.contains_key(&(conn, id)) {
                // Its answer says where it goes on.
                continue;
            }
            let mut left = left;
            let key = Key(None, namespace, &topic);
            if let Some(next) = self.cursors.next_of(conn, key) {
                if next.epoch == left.epoch {
                    left.seq = Seq(next.seq.0.saturating_sub(1));
                } else {
                    let over = Position { epoch: next.epoch, seq: Seq(0) };
                    sink.gap(conn, &topic, next, over, self.classes.get(class).on_gap);
                    left.seq = Seq(0);
                }
            }
            let key = CursorKey { pattern: None, namespace, topic: Arc::clone(&topic) };
            if !self.cursors.set(conn, key, None) {
                sink.close(conn, CloseReason::TooManyCursors);
            }
            self.next_id = self.next_id.wrapping_add(1);
            let generation = self.clients[conn as usize].generation;
            let asker = Asker::Client { conn: ConnKey { index: conn, generation }, slot: u32::MAX };
            let attach = Attach {
                ticket: Ticket { shard: self.shard, asker },
                conn,
                namespace,
                topic: Arc::clone(&topic),
                start: Start::Live,
                adds: true,
                id: self.next_id,
                home: NOWHERE,
                revision: 0,
                left: Some(left),
            };
            self.await_attached(id, &attach);
            self.miss_attach(id, attach, now, sink);
        }
    }

    /// A subscription was given back, since its room is not where it was sent.
    pub(in crate::broker) fn attach_again(&mut self, attach: Attach, now: Now, sink: &mut impl Sink) {
        let id = self.topics.intern(attach.namespace, &attach.topic);
        if (self.topics.get(id).shard, self.topics.revision(id)) == (attach.home, attach.revision) {
            let room = self.classes.room(&attach.topic).as_ref().into();
            self.leave_room(&room, attach.home, now, sink);
        }
        let id = self.topics.intern(attach.namespace, &attach.topic);
        self.miss_attach(id, attach, now, sink);
    }

    /// A subscription that follows its room was refused there: it asks again later. What was confirmed is not given up.
    pub(in crate::broker) fn follow_later(&mut self, attach: Attach, now: Now) {
        let due_ms = now.mono_ms + RETRY_REFUSED_MS;
        let relay = self.relay();
        relay.moves.refused.push_back((due_ms, attach));
        relay.wake_by(due_ms);
    }

    /// It is confirmed: its subscriber is told what it missed.
    pub(in crate::broker) fn tell_followed(
        &mut self,
        attach: &Attach,
        left: Position,
        attached: Attached,
        sink: &mut impl Sink,
    ) {
        let Some(id) = self.topics.find(attach.namespace, &attach.topic) else { return };
        let on_gap = self.classes.get(self.topics.get(id).class).on_gap;
        let there = attached.position;
        let mut tell = |from: Position, to: Position| sink.gap(attach.conn, &attach.topic, from, to, on_gap);
        let mut first = Seq(1);
        if left.epoch == there.epoch {
            first = left.seq.next();
        } else if left.epoch.0 != 0 {
            let over = Position { epoch: left.epoch, seq: Seq(0) };
            tell(Position { seq: left.seq.next(), ..left }, over);
        }
        if there.seq >= first {
            tell(Position { seq: first, ..there }, there);
        }
    }

    /// All that this shard asked of a room, where that was, is answered but for these, which are asked anew.
    pub(in crate::broker) fn left(&mut self, Left { room, back }: Left, now: Now, sink: &mut impl Sink) {
        let Some(relay) = &mut self.relay else { return };
        if relay.moves.leaving.remove(&room).is_none() {
            return;
        }
        self.topics.left(&room);
        let back = back.into_iter().map(|(ticket, record)| Missing::Publish(ticket, record)).collect();
        self.miss_first(&room, back, now);
        self.go_on_placed(&room, now, sink);
    }

    /// The home that this shard's interest in a topic is counted by, and by which revision; none: by none.
    pub(in crate::broker) fn counted_at(&self, id: TopicId) -> Option<(ShardId, u64)> {
        let topic = self.topics.get(id);
        if topic.shard != NOWHERE {
            return Some((topic.shard, self.topics.revision(id)));
        }
        let relay = self.relay.as_ref()?;
        let home = relay.moves.leaving.get(&*self.classes.room(&topic.name))?;
        Some((*home, self.topics.revision(id)))
    }

    /// Whether a record of a room is of the revision by which this shard has that; else it is passed over, and who
    /// follows by patterns is told with the turn.
    pub(in crate::broker) fn is_current(
        &mut self,
        id: TopicId,
        (revision, seq): (u64, Seq),
        is_matched: bool,
    ) -> bool {
        if self.topics.revision(id) == revision || seq.0 == 0 || self.relay.is_none() {
            return true;
        }
        if self.topics.get(id).shard == NOWHERE {
            self.topics.place_again(id);
        }
        if self.topics.revision(id) == revision || self.is_new_here(id, revision) {
            return true;
        }
        let class = self.topics.get(id).class;
        if is_matched {
            let relay = self.relay();
            relay.moves.lacks.insert(class);
            relay.is_held_up = true;
        }
        false
    }

    /// Whether a room was placed just now, so that its home has not heard where, or this shard has not; and nobody here
    /// subscribes to the topic, in an earlier life perhaps.
    fn is_new_here(&self, id: TopicId, revision: u64) -> bool {
        let topic = self.topics.get(id);
        let room = self.classes.room(&topic.name);
        let is_table = || topic.shard == NOWHERE && revision == self.topics.placed(&room).1.revision;
        topic.subs.is_empty() && !self.topics.is_leaving(&room) && (revision == UNHEARD || is_table())
    }

    // -- time --

    /// What was given back and waited for too long is refused; subscriptions that were refused ask again.
    pub(super) fn moves_due(&mut self, now: Now, sink: &mut impl Sink) {
        let relay = self.relay();
        let parked_ms = relay.cluster.limits.parked_ms;
        let (mut over, mut due_ms) = (Vec::new(), u64::MAX);
        for leaver in relay.moves.leavers.values_mut() {
            let is_over = |parked: &Parked| parked.since_ms + parked_ms <= now.mono_ms;
            let back = std::mem::take(&mut leaver.back).into_iter();
            let (gone, back) = back.partition::<BTreeMap<_, _>, _>(|(_, parked)| is_over(parked));
            over.extend(gone.into_values());
            due_ms = back.values().map(|it| it.since_ms + parked_ms).fold(due_ms, u64::min);
            leaver.back = back;
        }
        relay.moves.leavers.retain(|_, leaver| leaver.is_asked || !leaver.back.is_empty());
        let weight = over.iter().map(|parked| parked.record.weight()).sum::<usize>();
        relay.parked = (relay.parked.0 - over.len(), relay.parked.1 - weight);
        relay.wake_by(due_ms);
        for parked in over {
            self.tell_published(parked.ticket, Err(ErrorCode::HubClosed), sink);
        }
        while let Some((due_ms, _)) = self.relay().moves.refused.front() {
            let due_ms = *due_ms;
            if due_ms > now.mono_ms {
                return self.relay().wake_by(due_ms);
            }
            let Some((_, attach)) = self.relay().moves.refused.pop_front() else { return };
            if !self.cancelled.remove(&attach.id) {
                let id = self.topics.intern(attach.namespace, &attach.topic);
                self.miss_attach(id, attach, now, sink);
            }
        }
    }

    /// Who follows by patterns is told of records of these classes that were passed over.
    pub(super) fn tell_passed_over(&mut self, sink: &mut impl Sink) {
        for class in std::mem::take(&mut self.relay().moves.lacks) {
            self.lack_here(class, sink);
        }
    }

    /// A node's link has ended: what it asked of rooms without a place waits no more.
    pub(super) fn forget_missing(&mut self, node: NodeId, link: u16) {
        let relay = self.relay.as_mut().expect("who asks has nodes");
        let (peers, misses) = (&relay.peers, &mut relay.misses);
        let mut weight = (0, 0);
        for miss in misses.rooms.values_mut() {
            miss.waits.retain(|what| {
                let is_its = matches!(what, Missing::Message(from, message)
                    if *from == node && message.hub().is_some_and(|hub| peers.uses(node, hub, link)));
                if is_its {
                    weight = (weight.0 + 1, weight.1 + what.weight());
                }
                !is_its
            });
        }
        misses.rooms.retain(|_, miss| !miss.waits.is_empty());
        misses.parked = (misses.parked.0 - weight.0, misses.parked.1 - weight.1);
    }
}
