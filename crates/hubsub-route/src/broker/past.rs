//! The past of rooms: history requests, deletion of a room, and results of log reads.

use super::Broker;
use crate::cursors::Range;
use crate::hubs::{HubLog, Pending, Waits};
use crate::logread::{Ask, Found, Known, LogRead, Then};
use crate::producers::Producers;
use crate::rooms::{HistoryPart, HistoryQuery};
use crate::{Asker, Attach, HubSeed, Msg, Now, Sink, Start};
use hubsub_types::ErrorCode;

impl Broker {
    /// The error with which requests for a room's past are refused: its hub's log is damaged or not open
    /// here, or another node leads the hub.
    pub fn refuses_past(&self, room: &[u8], sink: &impl Sink) -> Option<ErrorCode> {
        if self.relayed_slot(room).is_some() {
            return Some(ErrorCode::HubClosed);
        }
        let Some(log) = self.rooms.log_of_name(room) else { return self.lacks_log(room) };
        let refuses = |code: &ErrorCode| matches!(code, ErrorCode::Quarantined | ErrorCode::HubClosed);
        sink.log_refuses(log.id).filter(refuses)
    }

    /// The error if a room of this name cannot exist: its hub needs a log and has none yet. Creating the room
    /// now would begin another epoch than the one that the log may contain.
    pub(super) fn lacks_log(&self, room: &[u8]) -> Option<ErrorCode> {
        let is_logged = self.classes.get(self.classes.class_of_room(room)).durability.is_logged();
        (is_logged && self.rooms.log_of_name(room).is_none()).then_some(ErrorCode::HubClosed)
    }

    /// A hub of a class with a log is added, or returns; called before the hub is led here.
    pub fn open_log(&mut self, seed: &HubSeed, producers: Producers) {
        self.rooms.add_hub(seed, producers);
    }

    /// As `refuses_past`, for the start of a subscription.
    pub(super) fn refuses_start(&self, attach: &Attach, sink: &impl Sink) -> Option<ErrorCode> {
        let room = self.classes.room(&attach.topic);
        if attach.start != Start::Live {
            return self.refuses_past(&room, sink);
        }
        let log = self.rooms.log_of_name(&room);
        let is_closed = log.is_some_and(|log| sink.log_refuses(log.id) == Some(ErrorCode::HubClosed));
        if is_closed { Some(ErrorCode::HubClosed) } else { self.lacks_log(&room) }
    }

    /// Records of a room; none: [`Sink::history`] delivers them later, because the log, the room's leader or
    /// another shard is asked, or because earlier records are not committed yet.
    ///
    /// # Errors
    /// The log of its hub is damaged.
    pub fn history(
        &mut self,
        query: &HistoryQuery,
        ask: Ask,
        now: Now,
        sink: &mut impl Sink,
    ) -> Result<Option<HistoryPart>, ErrorCode> {
        if let Some(passed) = self.pass_history(query, ask, now, sink) {
            return passed.map(|()| None);
        }
        if let Some(slot) = self.relayed_slot(&query.room) {
            return self.history_relayed(slot, query, ask, now, sink).map(|()| None);
        }
        self.refuses_past(&query.room, sink).map_or(Ok(()), Err)?;
        Ok(self.history_led(query, ask, now, sink))
    }

    /// As `history`, where the room's hub is led here.
    pub(super) fn history_led(
        &mut self,
        query: &HistoryQuery,
        ask: Ask,
        now: Now,
        sink: &mut impl Sink,
    ) -> Option<HistoryPart> {
        if let Some(room) = self.rooms.find(&query.room).filter(|&room| self.rooms.waits_for_log(room)) {
            let offset = self.rooms.log_of(room).map_or(0, HubLog::last);
            let waits = Waits::History(Box::new(query.clone()), ask);
            self.rooms.wait_for_log(Pending { offset, room, waits });
            return None;
        }
        self.history_now(query, ask, now, sink)
    }

    /// Answers a history request that has waited for the log.
    pub(super) fn answer_waiting_history(
        &mut self,
        query: &HistoryQuery,
        ask: Ask,
        now: Now,
        sink: &mut impl Sink,
    ) {
        if let Some(part) = self.history_now(query, ask, now, sink) {
            self.answer_history(&query.room, ask, Ok(part), sink);
        }
    }

    /// As `history`, for committed records.
    fn history_now(
        &self,
        query: &HistoryQuery,
        ask: Ask,
        now: Now,
        sink: &mut impl Sink,
    ) -> Option<HistoryPart> {
        match self.rooms.history(query, now, ask, |hub| sink.recall(hub, &query.room)) {
            Known::Here(part) => Some(part),
            Known::InLog(read) => {
                sink.read_log(read);
                None
            }
        }
    }

    /// Deletes a room and its history; returns whether it existed. None: [`Sink::deleted`] reports it when
    /// the deletion is committed to the log.
    ///
    /// # Errors
    /// The room is in use, or its log accepts nothing at present.
    pub fn delete_room(
        &mut self,
        name: &[u8],
        ask: Ask,
        now: Now,
        sink: &mut impl Sink,
    ) -> Result<Option<bool>, ErrorCode> {
        self.refuses_past(name, sink).map_or(Ok(()), Err)?;
        let Some(hub) = self.rooms.log_of_name(name).map(|log| log.id) else {
            return self.rooms.delete(name).map(Some);
        };
        let room = match self.rooms.find(name) {
            Some(room) if self.rooms.is_gone(room) => return Ok(Some(false)),
            Some(room) => room,
            None if sink.recall(hub, name).is_none() => return Ok(Some(false)),
            None => self.rooms.open(name, now, |hub| sink.recall(hub, name))?,
        };
        self.rooms.may_delete(room)?;
        sink.log_refuses(hub).map_or(Ok(()), Err)?;
        let (offset, last, timestamp_us) = self.rooms.end_epoch(room, now);
        sink.append_deletion(hub, offset, name, last, timestamp_us);
        self.rooms.wait_for_log(Pending { offset, room, waits: Waits::Deletion(ask) });
        Ok(None)
    }

    /// The result of a read of a log, or its error.
    pub fn log_read(
        &mut self,
        read: LogRead,
        found: Result<Found, ErrorCode>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        match read.then.clone() {
            Then::Range(cursor) if matches!(found, Err(ErrorCode::HubClosed)) => {
                // The hub may open again here, or elsewhere.
                self.block_read(*cursor, read.hub, sink);
            }
            Then::Range(cursor) => {
                let recall = |hub, room: &[u8]| sink.recall(hub, room);
                let range = match found {
                    Ok(found) => self.rooms.range_found(&cursor, found, recall),
                    // Nothing is lost: the disk is slow.
                    Err(ErrorCode::TimedOut) => Range::again(cursor.next.seq),
                    // Unreadable records are reported as a gap, and later ones are read on.
                    Err(_) => Range::lost(cursor.next.seq, read.seq_max),
                };
                self.answer_read(*cursor, range, now, sink);
            }
            Then::Attach(attach, from) => {
                let attached = found.map(|found| self.rooms.attach_found(&attach, read.seq_max, &found));
                if attached.is_err() && attach.adds {
                    self.detach_here(attach.namespace, &attach.topic, (from, attach.revision), now, sink);
                }
                if let Asker::Node { node, ask, hub } = attach.ticket.asker {
                    self.answer_node_attach(&attach, (node, ask, hub), attached, sink);
                } else if from == self.shard {
                    self.attached(*attach, attached, now, sink);
                } else {
                    sink.send(from, Msg::Attached(Box::new((*attach, attached))));
                }
            }
            Then::History(query, ask) => {
                let part = found.map(|found| self.rooms.history_found(&read, &query, found));
                self.answer_history(&query.room, ask, part, sink);
            }
        }
    }
}
