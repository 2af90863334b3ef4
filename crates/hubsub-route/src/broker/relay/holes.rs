//! Holes before a record from the leader: they are read first if the class has history, and reported as a gap
//! otherwise. Later records and confirmations of the room are buffered meanwhile.

use super::{Broker, Turn};
use crate::Names;
use crate::cursors::Range;
use crate::relay::{Buffered, HOLE_BYTES, READ_RECORDS_MAX, Request};
use crate::rooms::{RoomHandle, TopicKey};
use crate::{Namespace, Sink, Start};
use hubsub_message::AskId;
use hubsub_types::{Position, Seq};
use std::collections::VecDeque;
use std::sync::Arc;

impl Broker {
    /// Whether any topic of a room was ever confirmed here.
    pub(crate) fn is_followed(&mut self, room: RoomHandle) -> bool {
        let topics = self.rooms.topics_of(room);
        topics.iter().any(|key| self.relay.upstreams.by_topic.get(key).is_some_and(|up| up.was_confirmed))
    }

    /// A room with confirmed topics reads missing records, or continues.
    pub(crate) fn resume_room(&mut self, room: RoomHandle, turn: &mut Turn<impl Sink>) {
        let here = self.rooms.position(room);
        let may_lack = self.rooms.get(room).is_some() && !self.lacks_nothing(room);
        let Some(resume) =
            self.relay.holes.rooms.get(&room).filter(|it| it.pending == 0 && it.read.is_none())
        else {
            return;
        };
        if may_lack && resume.upto > here.seq {
            let upto = resume.upto;
            let slot = self.rooms.slot_of_room(room);
            let class = slot.map(|slot| self.relay.hub(slot).class);
            if class.is_some_and(|class| self.classes.get(class).history.is_some()) {
                return self.read_hole(room, here, turn.sink);
            }
            self.report_room_gap(room, here, upto, turn.sink);
            self.rooms.set_position(room, Position { seq: upto, ..here }, turn.now);
        }
        let held = self.relay.holes.close(room);
        self.handle_buffered(room, held, turn);
    }

    pub(crate) fn report_room_gap(
        &mut self,
        room: RoomHandle,
        here: Position,
        upto: Seq,
        sink: &mut impl Sink,
    ) {
        let Some(name) = self.rooms.get(room).map(|it| Arc::clone(&it.name)) else { return };
        let (from, to) = (Position { seq: here.seq.next(), ..here }, Position { seq: upto, ..here });
        // Patterns that match the room may follow it.
        self.report_gaps(room, (Namespace::Global, name), (from, to), sink);
    }

    /// Reports a gap of a room to subscribers of its topics, and of this one.
    pub(crate) fn report_gaps(
        &mut self,
        room: RoomHandle,
        own: TopicKey,
        (from, to): (Position, Position),
        sink: &mut impl Sink,
    ) {
        let mut topics = self.rooms.topics_of(room);
        if !topics.contains(&own) {
            topics.push(own);
        }
        topics.iter().for_each(|key| self.report_gap(key, from, to, sink));
    }

    pub(crate) fn read_hole(&mut self, room: RoomHandle, here: Position, sink: &mut impl Sink) {
        let (Some(slot), Some(it)) = (self.rooms.slot_of_room(room), self.rooms.get(room)) else { return };
        let names = Names { namespace: Namespace::Global, room: Arc::clone(&it.name), topic: Arc::default() };
        let (start, bytes_max) = (Start::After(here), HOLE_BYTES as u32);
        let records_max = READ_RECORDS_MAX as u32;
        let ask = self.request_read(slot, Request::Hole(room), names, start, (records_max, bytes_max), sink);
        if let Some(resume) = self.relay.holes.rooms.get_mut(&room) {
            resume.read = ask.ok();
        }
    }

    pub(crate) fn handle_buffered(
        &mut self,
        room: RoomHandle,
        mut held: VecDeque<Buffered>,
        turn: &mut Turn<impl Sink>,
    ) {
        while let Some(first) = held.pop_front() {
            self.relay.holes.handled(&first);
            match first {
                Buffered::Deliver(previous, record) => self.follow(room, previous, record, turn),
                Buffered::Attached(ask, asked, attached) => self.apply_confirmed(ask, asked, attached, turn),
            }
            if let Some(resume) = self.relay.holes.rooms.get_mut(&room) {
                // Another hole was found.
                resume.held.append(&mut held);
                return;
            }
        }
    }

    pub(crate) fn hole_read(
        &mut self,
        ask: AskId,
        room: RoomHandle,
        range: Range,
        turn: &mut Turn<impl Sink>,
    ) {
        let Some(resume) = self.relay.holes.rooms.get_mut(&room).filter(|it| it.read == Some(ask)) else {
            return;
        };
        resume.read = None;
        let upto = resume.upto;
        let here = self.rooms.position(room);
        if range.is_gone {
            // The buffered records may belong to this epoch, which continues after the hole.
            if upto > here.seq {
                self.report_room_gap(room, here, upto, turn.sink);
                self.rooms.set_position(room, Position { seq: upto, ..here }, turn.now);
            }
            let held = self.relay.holes.close(room);
            return self.handle_buffered(room, held, turn);
        }
        if let Some((first, last)) = range.gap {
            let at = |seq| Position { epoch: here.epoch, seq };
            for key in self.rooms.topics_of(room) {
                self.report_gap(&key, at(first), at(last.min(upto)), turn.sink);
            }
        }
        // These records are late: others may have arrived before them.
        let last = range.records.last().map_or(0, |record| record.place.offset);
        if let Some(slot) = self.rooms.slot_of_room(room) {
            self.lack_of_hub(slot, last, turn.sink);
        }
        for record in &range.records {
            let at = record.position;
            if at.epoch == here.epoch && at.seq > self.rooms.position(room).seq && at.seq <= upto {
                self.rooms.set_position(room, at, turn.now);
                self.forward_record(record, turn.sink);
            }
        }
        let read_to = if range.at_end { upto } else { Seq(range.next.0.saturating_sub(1)).min(upto) };
        if read_to > self.rooms.position(room).seq {
            self.rooms.set_position(room, Position { epoch: here.epoch, seq: read_to }, turn.now);
        }
        self.resume_room(room, turn);
    }
}
