//! Records from the leader of a room. Subscribers here get only the successor of the last record that was
//! forwarded to them: duplicates are dropped; a hole before a record is read first if there is history, and
//! is reported as a gap otherwise.

use super::{Broker, Turn};
use crate::counts::HolderSet;
use crate::places::UNPLACED;
use crate::relay::Buffered;
use crate::rooms::{RoomHandle, TopicKey};
use crate::topics::UNHEARD;
use crate::traces::StepKind;
use crate::{Gap, Msg, Sink};
use hubsub_message::Record;
use hubsub_types::{NodeId, Position, Seq};
use std::sync::Arc;

impl Broker {
    /// A record from the leader; `previous` is the last one of its room before it that was due here.
    pub(crate) fn record_received(
        &mut self,
        from: NodeId,
        slot: u16,
        (previous, before): (Seq, u64),
        record: Arc<Record>,
        turn: &mut Turn<impl Sink>,
    ) {
        self.relay.hub_mut(slot).watched.came();
        if self.traces.is_on() {
            self.trace_record(&record, StepKind::FromLeader(from), turn.sink);
        }
        if let Some(upto) = self.relay.hub_mut(slot).watched.saw(before, record.place.offset) {
            self.lack_of_hub(slot, upto, turn.sink);
        }
        if record.position.seq == Seq(0) {
            return self.forward_record(&record, turn.sink);
        }
        let name = self.classes.room(record.topic()).into_owned();
        if self.rooms.find(&name).is_some_and(|room| self.rooms.slot_of_room(room) != Some(slot)) {
            self.rehome(&name, turn);
        }
        let found = self.rooms.find(&name);
        let of = found.map_or_else(|| self.slot_of_name(&name), |room| self.rooms.slot_of_room(room));
        if found.is_none() && self.topics.place(&name).1 == UNPLACED {
            // The leader knows that this node has not learned the new room's place; no hole is detected.
            return self.forward_record(&record, turn.sink);
        }
        if of != Some(slot) {
            // This node's table has the room elsewhere. Subscribers are notified of the move.
            let is_matched =
                self.matching(record.namespace, record.topic()).is_some_and(|ids| !ids.is_empty());
            return self.lack_if(slot, is_matched);
        }
        let room = match found {
            Some(room) => room,
            None if self.matching(record.namespace, record.topic()).is_none_or(|ids| ids.is_empty()) => {
                return;
            }
            None => match self.rooms.open_relayed(&name, turn.now) {
                Ok(room) => room,
                // The room is not followed: no hole is detected.
                Err(_) => return self.forward_record(&record, turn.sink),
            },
        };
        let offset = record.place.offset;
        match self.relay.holes.buffer(room, Buffered::Deliver(previous, record)) {
            None => self.lack_of_hub(slot, offset, turn.sink),
            Some(Buffered::Deliver(previous, record)) => self.follow(room, previous, record, turn),
            Some(Buffered::Attached(..)) => unreachable!("made above"),
        }
    }

    pub(crate) fn follow(
        &mut self,
        room: RoomHandle,
        previous: Seq,
        record: Arc<Record>,
        turn: &mut Turn<impl Sink>,
    ) {
        if self.rooms.get(room).is_none() {
            // It was closed while the record was held.
            return self.forward_record(&record, turn.sink);
        }
        let (before, there) = (self.rooms.position(room), record.position);
        if before.epoch != there.epoch {
            let own: TopicKey = (record.namespace, record.topic().into());
            if before.epoch.0 != 0 && !self.rooms.topics_of(room).contains(&own) {
                // It came here only because of patterns.
                self.report_epoch_end(&own, before, turn.sink);
            }
            // Followers of the previous epoch are due the next one from its first record.
            let seq = if self.is_followed(room) { Seq(0) } else { previous };
            self.begin_epoch(room, Position { seq, ..there }, turn);
        }
        let here = self.rooms.position(room);
        if there.seq <= here.seq {
            return;
        } else if previous > here.seq {
            let class = self.topics.place(&self.classes.room(record.topic())).0;
            if self.classes.get(class).history.is_some() {
                if let Some(slot) = self.rooms.slot_of_room(room) {
                    self.lack_of_hub(slot, record.place.offset, turn.sink);
                }
                if self.rooms.is_over(room) {
                    // The epoch continues with the next lead: it is not over.
                    self.rooms.set_over(room, false);
                }
                self.relay.holes.open(room, previous, Buffered::Deliver(previous, record));
                return self.resume_room(room, turn);
            }
            let from = Position { epoch: here.epoch, seq: here.seq.next() };
            let to = Position { epoch: here.epoch, seq: previous };
            self.report_gaps(room, (record.namespace, record.topic().into()), (from, to), turn.sink);
        }
        self.rooms.set_position(room, there, turn.now);
        self.forward_record(&record, turn.sink);
    }

    pub(crate) fn forward_record(&mut self, record: &Arc<Record>, sink: &mut impl Sink) {
        let id = self.topics.intern(record.namespace, record.topic());
        let name = record.topic();
        let matched = self.matching(record.namespace, name);
        let mut holders = HolderSet::default();
        if let Some(room) = self.rooms.find_of_topic(name) {
            self.rooms.interest(room, self.topics.get(id).is_room(), record.namespace, name, &mut holders);
        }
        for &pattern in matched.iter().flat_map(|m| m.iter()) {
            self.patterns.get(pattern).counts.holders(&mut holders);
        }
        let mut shards = holders.shards(self.shards);
        let is_local = shards.remove(self.shard);
        let room = self.rooms.find_of_topic(name);
        let revision = match room {
            Some(room) => self.rooms.revision(room).unwrap_or(0),
            None if self.topics.place(&self.classes.room(name)).1 == UNPLACED => UNHEARD,
            None => 0,
        };
        for shard in shards.iter() {
            sink.send(hubsub_types::ShardId(shard.0), Msg::Deliver(Arc::clone(record), revision));
        }
        if is_local {
            self.fan_out_current(id, record, revision, matched.as_deref(), sink);
        }
    }

    /// A room begins another epoch: reports the end of the followed one, and continues from `there`.
    pub(crate) fn begin_epoch(&mut self, room: RoomHandle, there: Position, turn: &mut Turn<impl Sink>) {
        let here = self.rooms.position(room);
        if here.epoch.0 != 0 {
            for key in self.rooms.topics_of(room) {
                self.report_epoch_end(&key, here, turn.sink);
            }
        }
        self.rooms.set_position(room, there, turn.now);
    }

    /// Reports that a topic's epoch ended after the record `last`, unless it is known that none followed.
    pub(crate) fn report_epoch_end(&mut self, key: &TopicKey, last: Position, sink: &mut impl Sink) {
        let room = self.rooms.find_of_topic(&key.1);
        if room.is_some_and(|room| self.rooms.is_over(room) && self.rooms.position(room) == last) {
            return;
        }
        // Forwarded records of an epoch in which the topic was never confirmed may be incomplete.
        let up = self.relay.upstreams.by_topic.get(key);
        let is_followed = up.is_none_or(|up| !up.was_confirmed || up.epoch == last.epoch);
        let seq = if is_followed { last.seq.next() } else { Seq(1) };
        let from = Position { epoch: last.epoch, seq };
        self.report_gap(key, from, Position { epoch: last.epoch, seq: Seq(0) }, sink);
    }

    /// Subscribers of a topic, and of matching patterns, will not get these records.
    pub(crate) fn report_gap(&mut self, key: &TopicKey, from: Position, to: Position, sink: &mut impl Sink) {
        let (namespace, topic) = key;
        let mut holders = HolderSet::default();
        if let Some(room) = self.rooms.find_of_topic(topic)
            && let Some(counts) = self.rooms.counts_of(room, *namespace, topic)
        {
            counts.holders(&mut holders);
        }
        for &pattern in self.matching(*namespace, topic).iter().flat_map(|m| m.iter()) {
            self.patterns.get(pattern).counts.holders(&mut holders);
        }
        let mut shards = holders.shards(self.shards);
        let is_local = shards.remove(self.shard);
        let gap = Gap { namespace: *namespace, topic: Arc::clone(topic), from, to };
        for shard in shards.iter() {
            sink.send(hubsub_types::ShardId(shard.0), Msg::Gap(Box::new(gap.clone())));
        }
        if is_local {
            self.gap_here(&gap, sink);
        }
    }
}
