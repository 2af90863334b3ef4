//! A home closes a room that the table has elsewhere (docs/protocol/moves.md): the room's epoch ends, and all
//! holders with interest are notified.
//!
//! Invariant: each count of a room came with the revision by which the room is open.

use super::{Broker, Turn};
use crate::counts::{Holder, HolderSet};
use crate::cursors::{Range, Read};
use crate::relay::{Buffered, InFlight, Leader, RETRY_MS, Request, WaitingAttach};
use crate::rooms::{RoomHandle, TopicKey};
use crate::topics::TopicId;
use crate::{Moved, Msg, Now, Sink};
use hubsub_message::{AskId, Names, NodeMessage};
use hubsub_types::{Epoch, ErrorCode, Position, Seq, ShardId};
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gone {
    Moved,
    Elsewhere,
}

impl Broker {
    /// The slot of a topic's hub, if its room is at this home by that revision. The topic may get another
    /// handle, since closing a room looks up other topics.
    #[inline]
    pub(crate) fn at_home(
        &mut self,
        id: TopicId,
        revision: u64,
        turn: &mut Turn<impl Sink>,
    ) -> Result<(TopicId, u16), (TopicId, Gone)> {
        let topic = self.topics.get(id);
        if self.rooms.revision(topic.room) == Some(revision)
            && let Some(slot) = self.rooms.slot_of_room(topic.room)
        {
            return Ok((id, slot));
        }
        if !self.topics.moves(topic.class) {
            let slot = self.rooms.hubs.find(topic.class, topic.hub);
            return slot.map(|slot| (id, slot)).ok_or((id, Gone::Elsewhere));
        }
        self.at_home_by_table(id, revision, turn)
    }

    #[cold]
    fn at_home_by_table(
        &mut self,
        id: TopicId,
        revision: u64,
        turn: &mut Turn<impl Sink>,
    ) -> Result<(TopicId, u16), (TopicId, Gone)> {
        let (namespace, name) = self.key_of(id);
        let room = self.room_of(&name);
        self.rehome(&room, turn);
        let id = self.topics.intern(namespace, &name);
        let (class, place) = self.topics.placed(&room);
        if place.revision != revision {
            return Err((id, Gone::Moved));
        }
        let slot = self.rooms.hubs.find(class, place.hub);
        slot.map(|slot| (id, slot)).ok_or((id, Gone::Elsewhere))
    }

    /// As `rehome`, for the room of a topic, if rooms of its class can move.
    pub(crate) fn rehome_of(&mut self, topic: &[u8], turn: &mut Turn<impl Sink>) {
        let room = self.classes.room(topic);
        if self.topics.moves(self.classes.class_of_room(&room)) {
            let room = room.into_owned();
            self.rehome(&room, turn);
        }
    }

    /// Closes a room that is open here if the table has it elsewhere, or has it here by a later revision.
    pub(crate) fn rehome(&mut self, name: &[u8], turn: &mut Turn<impl Sink>) {
        let Some(room) = self.rooms.find(name) else { return };
        let (class, place) = self.topics.placed(name);
        let is_its = self.rooms.slot_of_room(room) == self.rooms.hubs.find(class, place.hub);
        if !is_its || self.rooms.revision(room) != Some(place.revision) {
            let waiting = self.close_room(room, true, turn);
            self.return_attaches(waiting, turn);
        }
    }

    /// Returns subscriptions that waited here for a room that is elsewhere to their shards.
    pub(crate) fn return_attaches(&mut self, waiting: Vec<WaitingAttach>, turn: &mut Turn<impl Sink>) {
        for WaitingAttach { attach, from, .. } in waiting {
            self.answer_attach(attach, from, Err(ErrorCode::HubDiffers), turn);
        }
    }

    /// Ends the epoch of a room here: notifies holders with interest, here and on other nodes, and returns
    /// waiting publishes to their shards. The caller must do the same with the subscriptions that this
    /// returns. If the room's class has changed, shards move their subscriptions themselves, and publishes
    /// are forwarded from here.
    pub(crate) fn close_room(
        &mut self,
        room: RoomHandle,
        is_moved: bool,
        turn: &mut Turn<impl Sink>,
    ) -> Vec<WaitingAttach> {
        let (Some(it), Some(slot)) = (self.rooms.get(room), self.rooms.slot_of_room(room)) else {
            return Vec::new();
        };
        let name = Arc::clone(&it.name);
        let last = self.rooms.position(room);
        let mut topics: BTreeMap<ShardId, Vec<(TopicKey, Position)>> = BTreeMap::new();
        let mut waiting = Vec::new();
        for key in self.rooms.topics_of(room) {
            let left = self.left_of(&key, last);
            let Some(counts) = self.rooms.counts_of(room, key.0, &key.1) else { continue };
            for shard in (0..self.shards).filter(|&shard| counts.of(Holder(shard)) > 0) {
                topics.entry(ShardId(shard)).or_default().push((key.clone(), left));
            }
            self.end_interest(slot, room, &key, turn.sink);
            waiting.extend(self.relay.upstreams.remove(&key).into_iter().flat_map(|up| up.waiting));
        }
        self.drop_reads(slot, &name, turn);
        self.drop_resume(room);
        self.relay.requests.retain(|_, in_flight| match &in_flight.what {
            Request::Interest(asked) => asked.room != room,
            Request::Hole(of) => *of != room,
            _ => true,
        });
        self.relay.due.remove(&room);
        self.relay.holes.suspects.remove(&room);
        self.rooms.forget_moved(room);
        if is_moved {
            for shard in self.requeue(&name, None, turn) {
                topics.entry(shard).or_default();
            }
            for (shard, topics) in topics {
                self.notify_moved(shard, &name, topics, turn);
            }
        }
        waiting
    }

    pub(crate) fn notify_moved(
        &mut self,
        shard: ShardId,
        room: &Arc<[u8]>,
        topics: Vec<(TopicKey, Position)>,
        turn: &mut Turn<impl Sink>,
    ) {
        let moved = Moved { room: Arc::clone(room), home: self.shard, topics };
        self.pass(shard, Msg::Moved(Box::new(moved)), turn);
    }

    /// Notifies a room's leader that nobody here is interested; or nodes that they are no longer counted.
    fn end_interest(&mut self, slot: u16, room: RoomHandle, key: &TopicKey, sink: &mut impl Sink) {
        let (names, known, shards) = (self.names_of(key), self.rooms.position(room), self.shards);
        let Broker { relay, rooms, .. } = self;
        let (hub, term) = (relay.hub(slot).id, relay.hub(slot).term);
        if relay.hub(slot).leader != Leader::Me {
            if relay.upstreams.by_topic.contains_key(key) {
                relay.send_no_interest(slot, names, known, sink);
            }
            return;
        }
        let mut holders = HolderSet::default();
        if let Some(counts) = rooms.counts_of(room, key.0, &key.1) {
            counts.holders(&mut holders);
        }
        for holder in holders.iter().filter(|holder| holder.0 >= shards) {
            if let Some(to) = relay.peers.node_of(holder, shards) {
                let message = NodeMessage::Counts { hub, term, names: names.clone(), count: 0 };
                relay.peers.send(to, hub, message, sink);
            }
        }
    }

    /// A leader no longer counts this node, which registers its interest again or learns of a move.
    pub(crate) fn interest_ended(&mut self, slot: u16, names: &Names, now: Now) {
        let key = (names.namespace, Arc::clone(&names.topic));
        let relay = &mut self.relay;
        let Some(up) = relay.upstreams.by_topic.get_mut(&key).filter(|up| up.slot == slot) else { return };
        (up.is_confirmed, up.asked) = (false, AskId::NONE);
        let (room, was_confirmed) = (up.room, up.was_confirmed);
        // Unconfirmed interest is requested again, too. A confirmation that is blocked by a hole belonged to
        // the epoch that has ended: with it the leader would not send the beginning of the next epoch.
        relay.requests.retain(|_, it| !matches!(&it.what, Request::Interest(asked) if asked.key == key));
        relay
            .holes
            .drop_messages(room, |held| matches!(held, Buffered::Attached(_, asked, _) if asked.key == key));
        if was_confirmed {
            // Until interest is confirmed again, the leader does not send everything of the next epoch.
            relay.holes.rooms.entry(room).or_default().pending += 1;
        }
        self.retry_later(slot, now.mono_ms + RETRY_MS);
    }

    /// The last record of a room that all subscribers of a topic have. Seq 0: none of that epoch.
    fn left_of(&mut self, key: &TopicKey, last: Position) -> Position {
        // Forwarded records of an epoch in which the topic was never confirmed may be incomplete.
        let up = self.relay.upstreams.by_topic.get(key);
        let is_followed = up.is_none_or(|up| !up.was_confirmed || up.epoch == last.epoch);
        if is_followed { last } else { Position { seq: Seq(0), ..last } }
    }

    /// Ends reads of pattern cursors in a closed room: nothing more of that epoch can be read.
    fn drop_reads(&mut self, slot: u16, name: &[u8], turn: &mut Turn<impl Sink>) {
        let classes = Arc::clone(&self.classes);
        let is_of = |read: &Read| *read.room_name(&classes) == *name;
        let mut reads = Vec::new();
        let waiting = std::mem::take(&mut self.relay.hub_mut(slot).reads);
        let (gone, stay): (Vec<Read>, Vec<Read>) = waiting.into_iter().partition(is_of);
        self.relay.hub_mut(slot).reads = stay;
        reads.extend(gone);
        let is_meant = |in_flight: &InFlight| matches!(&in_flight.what, Request::Read(read) if is_of(read));
        for ask in self.relay.requests_where(is_meant) {
            if let Some(InFlight { what: Request::Read(read), .. }) = self.relay.take(ask) {
                reads.push(*read);
            }
        }
        reads.into_iter().for_each(|read| self.answer_read(read, Range::gone(Epoch(0)), turn));
    }

    /// Whether a room that is read here has another home, or no known home.
    pub(crate) fn is_read_elsewhere(&self, name: &[u8]) -> bool {
        self.topics.moves(self.classes.class_of_room(name)) && self.slot_of_name(name).is_none()
    }
}
