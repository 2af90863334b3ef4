//! Holes before a record from the leader: they are read first if the class has history, and reported as a gap
//! otherwise. Later records and confirmations of the room are buffered meanwhile.

use super::Broker;
use crate::Names;
use crate::cursors::Range;
use crate::relay::holes::Buffered;
use crate::relay::limits::{HOLE_BYTES, READ_RECORDS_MAX};
use crate::relay::state::Request;
use crate::rooms::RoomHandle;
use crate::{Namespace, Now, Sink, Start};
use hubsub_message::AskId;
use hubsub_types::{Position, Seq};
use std::collections::VecDeque;
use std::sync::Arc;

impl Broker {
    /// Whether any topic of a room was ever confirmed here.
    pub(super) fn is_followed(&mut self, room: RoomHandle) -> bool {
        let topics = self.rooms.topics_of(room);
        let relay = &mut self.relay;
        topics.iter().any(|key| relay.upstreams.by_topic.get(key).is_some_and(|up| up.was_confirmed))
    }

    /// A room first reads up to a seq, or reports the gap; `held` follows.
    pub(super) fn open_hole(
        &mut self,
        room: RoomHandle,
        upto: Seq,
        held: Buffered,
        now: Now,
        sink: &mut impl Sink,
    ) {
        self.relay.holes.open(room, upto, held);
        self.resume_room(room, now, sink);
    }

    /// A room with confirmed topics reads missing records, or continues.
    pub(super) fn resume_room(&mut self, room: RoomHandle, now: Now, sink: &mut impl Sink) {
        let here = self.rooms.position(room);
        let may_lack = self.rooms.get(room).is_some() && !self.lacks_nothing(room);
        let relay = &mut self.relay;
        let Some(resume) = relay.holes.rooms.get(&room).filter(|it| it.pending == 0 && it.read.is_none())
        else {
            return;
        };
        if may_lack && resume.upto > here.seq {
            let upto = resume.upto;
            let slot = self.rooms.slot_of_room(room);
            let class = slot.map(|slot| self.relay.hub(slot).class);
            if class.is_some_and(|class| self.classes.get(class).history.is_some()) {
                return self.read_hole(room, here, sink);
            }
            self.report_room_gap(room, here, upto, sink);
            self.rooms.set_position(room, Position { seq: upto, ..here }, now);
        }
        let held = self.relay.holes.close(room);
        self.handle_buffered(room, held, now, sink);
    }

    /// Reports that records of a room up to a seq will not arrive.
    pub(super) fn report_room_gap(
        &mut self,
        room: RoomHandle,
        here: Position,
        upto: Seq,
        sink: &mut impl Sink,
    ) {
        let Some(name) = self.rooms.get(room).map(|it| Arc::clone(&it.name)) else { return };
        let (from, to) = (Position { seq: here.seq.next(), ..here }, Position { seq: upto, ..here });
        let mut topics = self.rooms.topics_of(room);
        // Patterns that match the room may follow it.
        let own = (Namespace::Global, name);
        if !topics.contains(&own) {
            topics.push(own);
        }
        topics.iter().for_each(|key| self.report_gap(key, from, to, sink));
    }

    pub(super) fn read_hole(&mut self, room: RoomHandle, here: Position, sink: &mut impl Sink) {
        let (Some(slot), Some(it)) = (self.rooms.slot_of_room(room), self.rooms.get(room)) else { return };
        let names = Names { namespace: Namespace::Global, room: Arc::clone(&it.name), topic: Arc::default() };
        let (start, bytes_max) = (Start::After(here), HOLE_BYTES as u32);
        let records_max = READ_RECORDS_MAX as u32;
        let ask = self.request_read(slot, Request::Hole(room), names, start, (records_max, bytes_max), sink);
        if let Some(resume) = self.relay.holes.rooms.get_mut(&room) {
            resume.read = ask.ok();
        }
    }

    /// Handles the records and confirmations that were buffered while a hole was read, in order.
    pub(super) fn handle_buffered(
        &mut self,
        room: RoomHandle,
        mut held: VecDeque<Buffered>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        while let Some(first) = held.pop_front() {
            self.relay.holes.handled(&first);
            match first {
                Buffered::Deliver(previous, record) => self.follow(room, previous, record, now, sink),
                Buffered::Attached(ask, asked, attached) => {
                    self.apply_confirmed(ask, asked, attached, now, sink)
                }
            }
            if let Some(resume) = self.relay.holes.rooms.get_mut(&room) {
                // Another hole was found.
                resume.held.append(&mut held);
                return;
            }
        }
    }

    pub(super) fn hole_read(
        &mut self,
        ask: AskId,
        room: RoomHandle,
        range: Range,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let Some(resume) = self.relay.holes.rooms.get_mut(&room).filter(|it| it.read == Some(ask)) else {
            return;
        };
        resume.read = None;
        let upto = resume.upto;
        let here = self.rooms.position(room);
        if range.is_gone {
            // The buffered records may belong to this epoch: it continues after the hole, until a record of
            // the next epoch.
            if upto > here.seq {
                self.report_room_gap(room, here, upto, sink);
                self.rooms.set_position(room, Position { seq: upto, ..here }, now);
            }
            let held = self.relay.holes.close(room);
            return self.handle_buffered(room, held, now, sink);
        }
        if let Some((first, last)) = range.gap {
            let at = |seq| Position { epoch: here.epoch, seq };
            for key in self.rooms.topics_of(room) {
                self.report_gap(&key, at(first), at(last.min(upto)), sink);
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
                self.forward_record(record, sink);
            }
        }
        let read_to = if range.at_end { upto } else { Seq(range.next.0.saturating_sub(1)).min(upto) };
        if read_to > self.rooms.position(room).seq {
            self.rooms.set_position(room, Position { epoch: here.epoch, seq: read_to }, now);
        }
        self.resume_room(room, now, sink);
    }
}
