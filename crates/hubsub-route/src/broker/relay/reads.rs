//! Reads of records that another node leads, for cursors, holes and history requests.

use super::{Broker, Turn};
use crate::Names;
use crate::cursors::{Range, Read};
use crate::relay::{Missing, Question, READ_BYTES_MAX, READ_RECORDS_MAX, Request};
use crate::requests::HistoryPart;
use crate::rooms::RoomHandle;
use crate::rows::RowPage;
use crate::{Now, Sink, Start};
use hubsub_message::{AskId, NodeMessage, Record};
use hubsub_types::{Epoch, ErrorCode, Position, Seq};
use std::sync::Arc;

impl Broker {
    pub(crate) fn request_read(
        &mut self,
        slot: u16,
        what: Request,
        names: Names,
        start: Start,
        (records_max, bytes_max): (u32, u32),
        sink: &mut impl Sink,
    ) -> Result<AskId, Request> {
        let Some(to) = self.relay.ready_leader_of(slot) else { return Err(what) };
        let message = |ask, hub, _| NodeMessage::Read { ask, hub, names, start, records_max, bytes_max };
        Ok(self.relay.request((to, slot), what, message, sink))
    }

    /// Sends a cursor's read of a room to the node that leads it. The read waits while there is no leader.
    pub(crate) fn read_relayed(&mut self, slot: u16, read: Read, sink: &mut impl Sink) {
        let names = self.names_of(&(read.namespace, Arc::clone(&read.topic)));
        let behind = Position { epoch: read.next.epoch, seq: Seq(read.next.seq.0.saturating_sub(1)) };
        let bytes_max = read.bytes_max as u32;
        let max = (READ_RECORDS_MAX as u32, bytes_max);
        let what = Request::Read(Box::new(read));
        if let Err(Request::Read(read)) =
            self.request_read(slot, what, names, Start::After(behind), max, sink)
        {
            self.relay.keep_read(slot, *read);
        }
    }

    /// Resumes reads and requests that waited for a leader.
    pub(crate) fn read_waiting(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        for read in std::mem::take(&mut self.relay.hub_mut(slot).reads) {
            self.read_here(read, turn);
        }
        self.read_waiting_hubs(slot, turn);
        self.resend_waiting(slot, turn);
        let stuck =
            self.relay.holes.rooms.iter().filter(|(_, resume)| resume.pending == 0 && resume.read.is_none());
        let mut stuck: Vec<RoomHandle> = stuck.map(|(&room, _)| room).collect();
        stuck.sort_unstable_by_key(|room| room.index());
        for room in stuck {
            if self.rooms.slot_of_room(room) == Some(slot) {
                self.resume_room(room, turn);
            }
        }
    }

    pub(crate) fn take_record(&mut self, ask: AskId, record: Arc<Record>) {
        let Some(in_flight) = self.relay.requests.get_mut(&ask) else { return };
        in_flight.bytes += record.weight();
        let fits = in_flight.bytes <= 2 * READ_BYTES_MAX || in_flight.records.is_empty();
        if fits && in_flight.records.len() as u64 <= READ_RECORDS_MAX {
            in_flight.records.push(record);
        }
    }

    pub(crate) fn range_came(
        &mut self,
        (ask, slot): (AskId, u16),
        what: Request,
        oldest: Position,
        range: Range,
        turn: &mut Turn<impl Sink>,
    ) {
        match what {
            Request::Read(read) => {
                let range = self.as_followed(&read, range, turn.now);
                self.answer_read(*read, range, turn);
            }
            Request::Hole(room) => self.hole_read(ask, room, range, turn),
            Request::Question(Question { what: Missing::History(query, ask), .. }) => {
                let recovered = query.after.is_none() || (!range.is_gone && range.gap.is_none());
                let mut records = if recovered { range.records } else { Vec::new() };
                records.truncate(usize::try_from(query.count).unwrap_or(usize::MAX));
                turn.sink.history(ask, Ok(HistoryPart { recovered, start: oldest, records }));
            }
            Request::Question(Question { what: Missing::Rows(ask), .. }) => {
                let page = RowPage { rows: range.records, is_last: range.at_end };
                self.answer_entries(ask.ticket, Ok(page), turn.sink);
            }
            what => self.lost(ask, slot, what, turn.sink),
        }
    }

    /// Limits a cursor's records to those that were forwarded, since later ones arrive live.
    pub(crate) fn as_followed(&mut self, read: &Read, mut range: Range, now: Now) -> Range {
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

    pub(crate) fn read_denied(
        &mut self,
        ask: AskId,
        slot: u16,
        what: Request,
        code: ErrorCode,
        turn: &mut Turn<impl Sink>,
    ) {
        let waits = matches!(code, ErrorCode::HubClosed | ErrorCode::TimedOut);
        if waits {
            self.lost(ask, slot, what, turn.sink);
            return self.retry_later(slot, turn.now.mono_ms + crate::relay::RETRY_REFUSED_MS);
        }
        match what {
            // Unreadable records are reported as a gap, and later ones are read on.
            Request::Read(read) => {
                let name = self.classes.room(&read.topic);
                let last = self.rooms.find(&name).map_or(read.next, |room| self.rooms.position(room)).seq;
                let range = Range::lost(read.next.seq, last.max(read.next.seq));
                let range = self.as_followed(&read, range, turn.now);
                self.answer_read(*read, range, turn);
            }
            Request::Hole(room) => {
                let Some(resume) = self.relay.holes.rooms.get_mut(&room) else { return };
                let upto = resume.upto;
                resume.read = None;
                let here = self.rooms.position(room);
                let range = Range { at_end: true, ..Range::lost(here.seq.next(), upto) };
                if let Some(resume) = self.relay.holes.rooms.get_mut(&room) {
                    resume.read = Some(AskId::NONE);
                }
                self.hole_read(AskId::NONE, room, range, turn);
            }
            what => self.lost(ask, slot, what, turn.sink),
        }
    }
}
