//! Records from the leader of a room. Subscribers here get only the successor of the last record that was
//! forwarded to them: duplicates are dropped; a hole before a record is read first if there is history, and
//! is reported as a gap otherwise.

use super::Broker;
use crate::Names;
use crate::counts::HolderSet;
use crate::cursors::{Range, Read};
use crate::places::UNPLACED;
use crate::record::Record;
use crate::relay::limits::{HOLE_BYTES, READ_BYTES_MAX, READ_RECORDS_MAX};
use crate::relay::misses::Missing;
use crate::relay::state::{Asked, Held, Question, UnderWay};
use crate::relay::{AskId, Leader, NodeMessage};
use crate::rooms::{HistoryPart, RoomHandle, TopicKey};
use crate::rows::RowPage;
use crate::topics::UNHEARD;
use crate::{Gap, Msg, Namespace, Now, Sink, Start};
use hubsub_types::{Epoch, ErrorCode, HubId, NodeId, Position, Seq, Term};
use std::collections::VecDeque;
use std::sync::Arc;

impl Broker {
    /// A record that a node has committed; `previous` is the record of its room before it that was due to
    /// this node.
    pub(super) fn delivered(
        &mut self,
        from: NodeId,
        (hub, term): (HubId, Term),
        (previous, before): (Seq, u64),
        record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let relay = self.relay();
        let Some(slot) = relay.slot_of(hub) else { return };
        let state = relay.hub(slot);
        if term > state.term || (term == state.term && state.leader == Leader::None) {
            let message = NodeMessage::Deliver { hub, term, previous, before, record };
            // If it cannot be buffered, the next record shows the hole.
            let refused = self.keep_early(slot, from, message, now);
            return self.lack_if(slot, refused.is_some());
        }
        if term != state.term || state.leader != Leader::Node(from) {
            return;
        }
        relay.hub_mut(slot).watched.came();
        if let Some(upto) = relay.hub_mut(slot).watched.saw(before, record.place.offset) {
            self.lack_of_hub(slot, upto, sink);
        }
        if record.position.seq == Seq(0) {
            return self.hand_on(&record, sink);
        }
        let name = self.classes.room(record.topic()).into_owned();
        if self.rooms.find(&name).is_some_and(|room| self.rooms.slot_of_room(room) != Some(slot)) {
            self.rehome(&name, now, sink);
        }
        let found = self.rooms.find(&name);
        let of = found.map_or_else(|| self.slot_of_name(&name), |room| self.rooms.slot_of_room(room));
        if found.is_none() && self.topics.place(&name).1 == UNPLACED {
            // The room was just created, and this node has not learned its place. The leader knows that; no
            // hole is detected.
            return self.hand_on(&record, sink);
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
            None => match self.rooms.open_relayed(&name, now) {
                Ok(room) => room,
                // The room is not followed: no hole is detected.
                Err(_) => return self.hand_on(&record, sink),
            },
        };
        let (relay, offset) = (self.relay(), record.place.offset);
        if let Some(resume) = relay.resuming.get_mut(&room) {
            let held = Held::Deliver(previous, record);
            relay.held_bytes += held.weight();
            resume.held.push_back(held);
            return self.lack_of_hub(slot, offset, sink);
        }
        self.follow(room, previous, record, now, sink);
    }

    /// Handles the next record of a room, or one after a hole.
    fn follow(
        &mut self,
        room: RoomHandle,
        previous: Seq,
        record: Arc<Record>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if self.rooms.get(room).is_none() {
            // It was closed while the record was held.
            return self.hand_on(&record, sink);
        }
        let (before, there) = (self.rooms.position(room), record.position);
        if before.epoch != there.epoch {
            let own: TopicKey = (record.namespace, record.topic().into());
            if before.epoch.0 != 0 && !self.rooms.topics_of(room).contains(&own) {
                // It came here only because of patterns.
                self.tell_over(&own, before, sink);
            }
            // Followers of the previous epoch are due the next one from its first record.
            let seq = if self.is_followed(room) { Seq(0) } else { previous };
            self.begin_epoch(room, Position { seq, ..there }, now, sink);
        }
        let here = self.rooms.position(room);
        if there.seq <= here.seq {
            return;
        } else if previous > here.seq {
            let class = self.topics.place(&self.classes.room(record.topic())).0;
            if self.classes.get(class).history.is_some() {
                if let Some(slot) = self.rooms.slot_of_room(room) {
                    self.lack_of_hub(slot, record.place.offset, sink);
                }
                if self.rooms.is_over(room) {
                    // The epoch continues with the next lead: it is not over.
                    self.rooms.set_over(room, false);
                }
                return self.hold_behind(room, previous, Held::Deliver(previous, record), now, sink);
            }
            let from = Position { epoch: here.epoch, seq: here.seq.next() };
            let to = Position { epoch: here.epoch, seq: previous };
            let mut topics = self.rooms.topics_of(room);
            let own: TopicKey = (record.namespace, record.topic().into());
            if !topics.contains(&own) {
                topics.push(own);
            }
            topics.iter().for_each(|key| self.tell_gap(key, from, to, sink));
        }
        self.rooms.set_position(room, there, now);
        self.hand_on(&record, sink);
    }

    /// Forwards a record to shards with interest, and to those with matching patterns.
    fn hand_on(&mut self, record: &Arc<Record>, sink: &mut impl Sink) {
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

    /// A room is in another epoch than the followed one: reports the end of that epoch, and continues from
    /// `there`.
    pub(super) fn begin_epoch(&mut self, room: RoomHandle, there: Position, now: Now, sink: &mut impl Sink) {
        let here = self.rooms.position(room);
        if here.epoch.0 != 0 {
            for key in self.rooms.topics_of(room) {
                self.tell_over(&key, here, sink);
            }
        }
        self.rooms.set_position(room, there, now);
    }

    /// Reports that the epoch of a topic's room ended after the record `last`. Reports nothing if it is known
    /// that no record followed.
    pub(super) fn tell_over(&mut self, key: &TopicKey, last: Position, sink: &mut impl Sink) {
        let room = self.rooms.find_of_topic(&key.1);
        if room.is_some_and(|room| self.rooms.is_over(room) && self.rooms.position(room) == last) {
            return;
        }
        // Forwarded records of an epoch in which the topic was never confirmed may be incomplete.
        let up = self.relay().upstreams.get(key);
        let is_followed = up.is_none_or(|up| !up.was_confirmed || up.life == last.epoch);
        let seq = if is_followed { last.seq.next() } else { Seq(1) };
        let from = Position { epoch: last.epoch, seq };
        self.tell_gap(key, from, Position { epoch: last.epoch, seq: Seq(0) }, sink);
    }

    /// Subscribers of a topic, and of matching patterns, will not get these records.
    pub(super) fn tell_gap(&mut self, key: &TopicKey, from: Position, to: Position, sink: &mut impl Sink) {
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

    // -- holes --

    /// Whether any topic of a room was ever confirmed here.
    fn is_followed(&mut self, room: RoomHandle) -> bool {
        let topics = self.rooms.topics_of(room);
        let relay = self.relay();
        topics.iter().any(|key| relay.upstreams.get(key).is_some_and(|up| up.was_confirmed))
    }

    /// A room first reads up to a seq, or reports the gap; `held` follows.
    pub(super) fn hold_behind(
        &mut self,
        room: RoomHandle,
        upto: Seq,
        held: Held,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let relay = self.relay();
        relay.held_bytes += held.weight();
        let resume = relay.resuming.entry(room).or_default();
        resume.upto = upto;
        resume.held.push_back(held);
        self.go_on(room, now, sink);
    }

    /// A room with confirmed topics reads missing records, or continues.
    pub(super) fn go_on(&mut self, room: RoomHandle, now: Now, sink: &mut impl Sink) {
        let here = self.rooms.position(room);
        let may_lack = self.rooms.get(room).is_some() && !self.lacks_nothing(room);
        let relay = self.relay();
        let Some(resume) = relay.resuming.get(&room).filter(|it| it.pending == 0 && it.read.is_none()) else {
            return;
        };
        if may_lack && resume.upto > here.seq {
            let upto = resume.upto;
            let slot = self.rooms.slot_of_room(room);
            let class = slot.map(|slot| self.relay().hub(slot).class);
            if class.is_some_and(|class| self.classes.get(class).history.is_some()) {
                return self.read_hole(room, here, sink);
            }
            self.tell_room_gap(room, here, upto, sink);
            self.rooms.set_position(room, Position { seq: upto, ..here }, now);
        }
        let relay = self.relay();
        let held = relay.resuming.remove(&room).map(|resume| resume.held).unwrap_or_default();
        self.take_held(room, held, now, sink);
    }

    /// Reports that records of a room up to a seq will not arrive.
    fn tell_room_gap(&mut self, room: RoomHandle, here: Position, upto: Seq, sink: &mut impl Sink) {
        let Some(name) = self.rooms.get(room).map(|it| Arc::clone(&it.name)) else { return };
        let (from, to) = (Position { seq: here.seq.next(), ..here }, Position { seq: upto, ..here });
        let mut topics = self.rooms.topics_of(room);
        // Patterns that match the room may follow it.
        let own = (Namespace::Global, name);
        if !topics.contains(&own) {
            topics.push(own);
        }
        topics.iter().for_each(|key| self.tell_gap(key, from, to, sink));
    }

    fn read_hole(&mut self, room: RoomHandle, here: Position, sink: &mut impl Sink) {
        let (Some(slot), Some(it)) = (self.rooms.slot_of_room(room), self.rooms.get(room)) else { return };
        let names = Names { namespace: Namespace::Global, room: Arc::clone(&it.name), topic: Arc::default() };
        let (start, bytes_max) = (Start::After(here), HOLE_BYTES as u32);
        let records_max = READ_RECORDS_MAX as u32;
        let ask = self.ask_read(slot, Asked::Hole(room), names, start, (records_max, bytes_max), sink);
        if let Some(resume) = self.relay().resuming.get_mut(&room) {
            resume.read = ask.ok();
        }
    }

    /// Handles the records and confirmations that were buffered while a hole was read, in order.
    pub(super) fn take_held(
        &mut self,
        room: RoomHandle,
        mut held: VecDeque<Held>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        while let Some(first) = held.pop_front() {
            self.relay().held_bytes -= first.weight();
            match first {
                Held::Deliver(previous, record) => self.follow(room, previous, record, now, sink),
                Held::Attached(ask, asked, attached) => self.apply_confirmed(ask, asked, attached, now, sink),
            }
            if let Some(resume) = self.relay().resuming.get_mut(&room) {
                // Another hole was found.
                resume.held.append(&mut held);
                return;
            }
        }
    }

    fn hole_read(&mut self, ask: AskId, room: RoomHandle, range: Range, now: Now, sink: &mut impl Sink) {
        let Some(resume) = self.relay().resuming.get_mut(&room).filter(|it| it.read == Some(ask)) else {
            return;
        };
        resume.read = None;
        let upto = resume.upto;
        let here = self.rooms.position(room);
        if range.is_gone {
            // The buffered records may belong to this epoch: it continues after the hole, until a record of
            // the next epoch.
            if upto > here.seq {
                self.tell_room_gap(room, here, upto, sink);
                self.rooms.set_position(room, Position { seq: upto, ..here }, now);
            }
            let held = self.relay().resuming.remove(&room).map(|resume| resume.held).unwrap_or_default();
            return self.take_held(room, held, now, sink);
        }
        if let Some((first, last)) = range.gap {
            let at = |seq| Position { epoch: here.epoch, seq };
            for key in self.rooms.topics_of(room) {
                self.tell_gap(&key, at(first), at(last.min(upto)), sink);
            }
        }
        // These records are late: others may have arrived before them.
        let last = range.records.last().map_or(0, |record| record.place.offset);
        if let Some(slot) = self.rooms.slot_of_room(room) {
            self.lack_of_hub(slot, last, sink);
        }
        for record in &range.records {
            let at = record.position;
            if at.epoch == here.epoch && at.seq > self.rooms.position(room).seq && at.seq <= upto {
                self.rooms.set_position(room, at, now);
                self.hand_on(record, sink);
            }
        }
        let read_to = if range.at_end { upto } else { Seq(range.next.0.saturating_sub(1)).min(upto) };
        if read_to > self.rooms.position(room).seq {
            self.rooms.set_position(room, Position { epoch: here.epoch, seq: read_to }, now);
        }
        self.go_on(room, now, sink);
    }

    // -- reads --

    pub(super) fn ask_read(
        &mut self,
        slot: u16,
        what: Asked,
        names: Names,
        start: Start,
        (records_max, bytes_max): (u32, u32),
        sink: &mut impl Sink,
    ) -> Result<AskId, Asked> {
        let shard = self.shard;
        let relay = self.relay();
        let Some(to) = relay.leader_of(slot).filter(|_| relay.hub(slot).retry_ms == u64::MAX) else {
            return Err(what);
        };
        let ask = relay.next_ask(shard);
        let (hub, term) = (relay.hub(slot).id, relay.hub(slot).term);
        relay.asks.insert(ask, UnderWay { to, slot, term, what, records: Vec::new(), bytes: 0 });
        let message = NodeMessage::Read { ask, hub, names, start, records_max, bytes_max };
        relay.peers.send(to, hub, message, sink);
        Ok(ask)
    }

    /// Sends a cursor's read of a room to the node that leads it. The read waits while there is no leader.
    pub(in crate::broker) fn read_relayed(&mut self, slot: u16, read: Read, sink: &mut impl Sink) {
        let names = self.names_of(&(read.namespace, Arc::clone(&read.topic)));
        let behind = Position { epoch: read.next.epoch, seq: Seq(read.next.seq.0.saturating_sub(1)) };
        let bytes_max = read.bytes_max as u32;
        let max = (READ_RECORDS_MAX as u32, bytes_max);
        let what = Asked::Read(Box::new(read));
        if let Err(Asked::Read(read)) = self.ask_read(slot, what, names, Start::After(behind), max, sink) {
            self.relay().keep_read(slot, *read);
        }
    }

    /// Resumes reads and requests that waited for a leader.
    pub(super) fn read_waiting(&mut self, slot: u16, now: Now, sink: &mut impl Sink) {
        for read in std::mem::take(&mut self.relay().hub_mut(slot).reads) {
            self.read_here(read, now, sink);
        }
        self.read_waiting_hubs(slot, now, sink);
        self.ask_waiting(slot, now, sink);
        let relay = self.relay();
        let stuck = relay.resuming.iter().filter(|(_, resume)| resume.pending == 0 && resume.read.is_none());
        let mut stuck: Vec<RoomHandle> = stuck.map(|(&room, _)| room).collect();
        stuck.sort_unstable_by_key(|room| room.index());
        for room in stuck {
            if self.rooms.slot_of_room(room) == Some(slot) {
                self.go_on(room, now, sink);
            }
        }
    }

    /// A part of the response to a read.
    pub(super) fn take_record(&mut self, ask: AskId, record: Arc<Record>) {
        let Some(under_way) = self.relay().asks.get_mut(&ask) else { return };
        under_way.bytes += record.weight();
        let fits = under_way.bytes <= 2 * READ_BYTES_MAX || under_way.records.is_empty();
        if fits && under_way.records.len() as u64 <= READ_RECORDS_MAX {
            under_way.records.push(record);
        }
    }

    /// The response to a read is complete.
    pub(super) fn range_came(
        &mut self,
        (ask, slot): (AskId, u16),
        what: Asked,
        oldest: Position,
        range: Range,
        now: Now,
        sink: &mut impl Sink,
    ) {
        match what {
            Asked::Read(read) => {
                let range = self.as_followed(&read, range, now);
                self.tell_range(*read, range, now, sink);
            }
            Asked::Hole(room) => self.hole_read(ask, room, range, now, sink),
            Asked::Question(Question { what: Missing::History(query, ask), .. }) => {
                let recovered = query.after.is_none() || (!range.is_gone && range.gap.is_none());
                let mut records = if recovered { range.records } else { Vec::new() };
                records.truncate(usize::try_from(query.count).unwrap_or(usize::MAX));
                sink.history(ask, Ok(HistoryPart { recovered, start: oldest, records }));
            }
            Asked::Question(Question { what: Missing::Rows(ask), .. }) => {
                let page = RowPage { rows: range.records, is_last: range.at_end };
                self.tell_rows(ask.ticket, Ok(page), sink);
            }
            what => self.lost(ask, slot, what, sink),
        }
    }

    /// Limits a cursor's records to those that were forwarded, since later ones arrive live.
    fn as_followed(&mut self, read: &Read, mut range: Range, now: Now) -> Range {
        let name = self.classes.room(&read.topic);
        let Ok(room) = self.rooms.open_relayed(&name, now) else { return range };
        let here = self.rooms.position(room);
        if range.is_gone {
            // In another epoch that is not followed yet, records are forwarded from the first one.
            let is_followed = here.epoch != read.next.epoch;
            return Range::gone(if is_followed { here.epoch } else { Epoch(0) });
        }
        if here.epoch.0 == 0 {
            // Nothing has been forwarded here for long: the room is followed from this point.
            let seq = Seq(range.next.0.saturating_sub(1));
            self.rooms.set_position(room, Position { epoch: read.next.epoch, seq }, now);
            return range;
        }
        if here.epoch != read.next.epoch {
            return Range::gone(here.epoch);
        }
        range.records.retain(|record| record.position.seq <= here.seq);
        range.gap =
            range.gap.filter(|gap| gap.0 <= here.seq).map(|(first, last)| (first, last.min(here.seq)));
        range.next = range.next.min(here.seq.next()).max(read.next.seq);
        range.at_end = range.next > here.seq;
        range
    }

    /// A leader refuses a read.
    pub(super) fn read_denied(
        &mut self,
        ask: AskId,
        slot: u16,
        what: Asked,
        code: ErrorCode,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let waits = matches!(code, ErrorCode::HubClosed | ErrorCode::TimedOut);
        if waits {
            self.lost(ask, slot, what, sink);
            return self.retry_later(slot, now.mono_ms + crate::relay::limits::RETRY_REFUSED_MS);
        }
        match what {
            // Unreadable records are reported as a gap, and later ones are read on.
            Asked::Read(read) => {
                let name = self.classes.room(&read.topic);
                let last = self.rooms.find(&name).map_or(read.next, |room| self.rooms.position(room)).seq;
                let range = Range::lost(read.next.seq, last.max(read.next.seq));
                let range = self.as_followed(&read, range, now);
                self.tell_range(*read, range, now, sink);
            }
            Asked::Hole(room) => {
                let relay = self.relay();
                let Some(resume) = relay.resuming.get_mut(&room) else { return };
                let upto = resume.upto;
                resume.read = None;
                let here = self.rooms.position(room);
                let range = Range { at_end: true, ..Range::lost(here.seq.next(), upto) };
                if let Some(resume) = self.relay().resuming.get_mut(&room) {
                    resume.read = Some(AskId::NONE);
                }
                self.hole_read(AskId::NONE, room, range, now, sink);
            }
            what => self.lost(ask, slot, what, sink),
        }
    }
}
