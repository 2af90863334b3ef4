//! Moves of rooms (docs/protocol/moves.md). A home closes a room that the table has elsewhere; each shard
//! that sent it requests for the room leaves, and sends requests to the new place once all earlier ones are
//! answered or returned.
//!
//! Invariants: all unanswered requests of one shard for a room are at one home; a confirmed subscription is
//! counted by that home, or is on its way to the next one; an outdated revision never returns.

use super::{Broker, Turn};
use crate::cursors::{CursorKey, Key};
use crate::places::{Change, UNPLACED};
use crate::relay::{Missing, Parked, RETRY_REFUSED_MS};
use crate::ring::NOWHERE;
use crate::topics::{TopicId, UNHEARD};
use crate::{Asker, Attach, Attached, CloseReason, Left, Moved, Msg, Now, Sink, Start, Ticket};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ErrorCode, NodeId, Position, Seq, ShardId};
use std::collections::BTreeMap;
use std::sync::Arc;

impl Broker {
    /// The table has changed these rooms of a class: requests continue, and this shard leaves their homes.
    pub fn rooms_placed(
        &mut self,
        class: ClassIndex,
        rooms: &[(Box<[u8]>, Change)],
        now: Now,
        sink: &mut impl Sink,
    ) {
        let turn = &mut Turn { now, sink };
        if self.relay.is_alone {
            return;
        }
        rooms.iter().for_each(|(_, change)| self.topics.hear(change.revision));
        let classes = Arc::clone(&self.classes);
        // A room that is of another class now gets no further requests at this class's hubs.
        let is_left = |room: &[u8], change: &Change| {
            let is_moved = change.before != change.after && change.before != UNPLACED;
            is_moved && classes.class_of_room(room) == class
        };
        let moved = rooms.iter().filter(|(room, change)| is_left(room, change));
        let mut left = self.topics.leave(moved.map(|(room, _)| room.as_ref().into()));
        for (room, change) in rooms {
            if is_left(room, change) {
                let home = self.topics.placement().shard(class, change.before);
                let room: Arc<[u8]> = room.as_ref().into();
                // After several moves of a room the shard leaves the home before the first.
                if left.remove(&room) {
                    self.notify_leaving(&room, home, turn);
                }
                self.requeue_all(&room, turn);
            }
            self.rehome(room, turn);
            if self.topics.is_unplaced(room) {
                // It was removed since.
                self.request_place_again(room, turn.sink);
            } else {
                self.resume_placed(room, turn);
            }
        }
    }

    // -- the edge --

    /// Stops requests for a room to this home; later requests wait until all earlier ones are answered.
    pub(crate) fn leave_room(&mut self, room: &Arc<[u8]>, home: ShardId, turn: &mut Turn<impl Sink>) {
        if !self.topics.leave(std::iter::once(Arc::clone(room))).is_empty() {
            self.notify_leaving(room, home, turn);
        }
    }

    fn notify_leaving(&mut self, room: &Arc<[u8]>, home: ShardId, turn: &mut Turn<impl Sink>) {
        self.relay.moves.leaving.insert(Arc::clone(room), home);
        self.pass(home, Msg::Leave(self.shard, Arc::clone(room)), turn);
    }

    /// A room is not where this shard has it: its subscribers follow it.
    pub(crate) fn moved(&mut self, moved: Moved, turn: &mut Turn<impl Sink>) {
        let is_asked_at = |shard: ShardId| shard == moved.home || shard == NOWHERE;
        let topics = self.topics.of_room(&moved.room);
        // With other classes this shard may send its requests elsewhere already.
        if topics.into_iter().all(|id| is_asked_at(self.topics.get(id).shard)) {
            self.leave_room(&moved.room, moved.home, turn);
        }
        for ((namespace, topic), left) in moved.topics {
            if let Some(id) = self.topics.find(namespace, &topic) {
                self.resubscribe(id, left, turn);
            }
        }
    }

    /// Subscribes confirmed subscribers to a topic again at its room's new place. They have all records up to
    /// `left`; a catching-up subscriber has those up to its cursor.
    pub(crate) fn resubscribe(&mut self, id: TopicId, left: Position, turn: &mut Turn<impl Sink>) {
        let (namespace, topic) = self.key_of(id);
        let class = self.topics.get(id).class;
        for conn in self.topics.get(id).subs.as_slice().to_vec() {
            if self.unconfirmed.is_attaching(conn, id) {
                // The response to its attach defines where it continues.
                continue;
            }
            let mut left = left;
            let key = Key(None, namespace, &topic);
            if let Some(next) = self.cursors.next_of(conn, key) {
                if next.epoch == left.epoch {
                    left.seq = Seq(next.seq.0.saturating_sub(1));
                } else {
                    let over = Position { epoch: next.epoch, seq: Seq(0) };
                    turn.sink.gap(conn, &topic, next, over, self.classes.get(class).on_gap);
                    left.seq = Seq(0);
                }
            }
            let key = CursorKey { pattern: None, namespace, topic: Arc::clone(&topic) };
            if !self.cursors.set(conn, key, None) {
                turn.sink.close(conn, CloseReason::TooManyCursors);
            }
            let asker = Asker::Client { conn: self.clients.key(conn), slot: u32::MAX };
            let attach = Attach {
                ticket: Ticket { shard: self.shard, asker },
                conn,
                namespace,
                topic: Arc::clone(&topic),
                start: Start::Live,
                adds: true,
                id: self.unconfirmed.next_id(),
                home: NOWHERE,
                revision: 0,
                left: Some(left),
            };
            self.unconfirmed.add_attach(id, &attach);
            self.miss_attach(id, attach, turn);
        }
    }

    /// A subscription was returned, since its room is not at the home to which it was sent.
    pub(crate) fn attach_again(&mut self, attach: Attach, turn: &mut Turn<impl Sink>) {
        let id = self.topics.intern(attach.namespace, &attach.topic);
        if (self.topics.get(id).shard, self.topics.revision(id)) == (attach.home, attach.revision) {
            let room = self.room_of(&attach.topic);
            self.leave_room(&room, attach.home, turn);
        }
        let id = self.topics.intern(attach.namespace, &attach.topic);
        self.miss_attach(id, attach, turn);
    }

    /// A subscription that follows its room was refused there: it is retried later, never given up.
    pub(crate) fn retry_attach_later(&mut self, attach: Attach, now: Now) {
        let due_ms = now.mono_ms + RETRY_REFUSED_MS;
        self.relay.moves.refused.push_back((due_ms, attach));
        self.relay.wake_by(due_ms);
    }

    /// A followed subscription is confirmed: reports to its subscriber what it missed.
    pub(crate) fn report_missed(
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

    /// Requests for a room at its previous home are answered, or returned in `back` and sent again.
    pub(crate) fn left(&mut self, Left { room, back }: Left, turn: &mut Turn<impl Sink>) {
        if self.relay.moves.leaving.remove(&room).is_none() {
            return;
        }
        self.topics.left(&room);
        let back = back.into_iter().map(|(ticket, record)| Missing::Publish(ticket, record)).collect();
        self.miss_first(&room, back, turn.now);
        self.resume_placed(&room, turn);
    }

    /// The home that counts this shard's interest in a topic, and the revision; none if no home does.
    pub(crate) fn counted_at(&self, id: TopicId) -> Option<(ShardId, u64)> {
        let topic = self.topics.get(id);
        if topic.shard != NOWHERE {
            return Some((topic.shard, self.topics.revision(id)));
        }
        let home = self.relay.moves.leaving.get(&*self.classes.room(&topic.name))?;
        Some((*home, self.topics.revision(id)))
    }

    /// Whether a record has the known revision of its room; otherwise followers by pattern get a gap.
    pub(crate) fn is_current(&mut self, id: TopicId, (revision, seq): (u64, Seq), is_matched: bool) -> bool {
        if self.topics.revision(id) == revision || seq.0 == 0 {
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
            self.relay.moves.lacks.insert(class);
            self.relay.is_held_up = true;
        }
        false
    }

    /// Whether a room was just placed, so that its home or this shard has not been notified yet, and nobody
    /// here subscribes to the topic, possibly since an earlier epoch.
    fn is_new_here(&self, id: TopicId, revision: u64) -> bool {
        let topic = self.topics.get(id);
        let room = self.classes.room(&topic.name);
        let is_table = || topic.shard == NOWHERE && revision == self.topics.placed(&room).1.revision;
        topic.subs.is_empty() && !self.topics.is_leaving(&room) && (revision == UNHEARD || is_table())
    }

    /// Refuses returned publishes that have waited too long, and retries refused subscriptions.
    pub(crate) fn moves_due(&mut self, turn: &mut Turn<impl Sink>) {
        let relay = &mut self.relay;
        let parked_ms = relay.limits.parked_ms;
        let (mut over, mut due_ms) = (Vec::new(), u64::MAX);
        for leaver in relay.moves.leavers.values_mut() {
            let is_over = |parked: &Parked| parked.since_ms + parked_ms <= turn.now.mono_ms;
            let back = std::mem::take(&mut leaver.back).into_iter();
            let (gone, back) = back.partition::<BTreeMap<_, _>, _>(|(_, parked)| is_over(parked));
            over.extend(gone.into_values());
            due_ms = back.values().map(|it| it.since_ms + parked_ms).fold(due_ms, u64::min);
            leaver.back = back;
        }
        relay.moves.leavers.retain(|_, leaver| leaver.is_asked || !leaver.back.is_empty());
        relay.uncount(&over);
        relay.wake_by(due_ms);
        for parked in over {
            self.answer_publish(parked.ticket, Err(ErrorCode::HubClosed), turn.sink);
        }
        while let Some((due_ms, _)) = self.relay.moves.refused.front() {
            let due_ms = *due_ms;
            if due_ms > turn.now.mono_ms {
                return self.relay.wake_by(due_ms);
            }
            let Some((_, attach)) = self.relay.moves.refused.pop_front() else { return };
            if !self.unconfirmed.take_cancelled(attach.id) {
                let id = self.topics.intern(attach.namespace, &attach.topic);
                self.miss_attach(id, attach, turn);
            }
        }
    }

    pub(crate) fn forget_missing(&mut self, node: NodeId, link: u16) {
        let (peers, misses) = (&self.relay.peers, &mut self.relay.misses);
        let parked = &mut misses.parked;
        for miss in misses.rooms.values_mut() {
            miss.waits.retain(|what| {
                let is_its = matches!(what, Missing::Message(from, message)
                    if *from == node && message.hub().is_some_and(|hub| peers.uses(node, hub, link)));
                if is_its {
                    parked.remove(what.weight());
                }
                !is_its
            });
        }
        misses.rooms.retain(|_, miss| !miss.waits.is_empty());
    }
}
