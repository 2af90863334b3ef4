//! The past of rooms: history requests, deletion of a room, and results of log reads.

use super::{Broker, Turn};
use crate::cursors::Range;
use crate::hubs::{HubLog, Pending, Waits};
use crate::logread::{Found, Known, LogRead, Then};
use crate::producers::Producers;
use crate::relay::Missing;
use crate::requests::{Ask, HistoryPart, HistoryQuery};
use crate::{Asker, Attach, HubSeed, Now, Sink, Start};
use hubsub_types::ErrorCode;

impl Broker {
    /// Whether a room's past can be read here.
    ///
    /// # Errors
    /// The log of its hub is damaged or not open here, or another node leads the hub.
    pub fn check_past(&self, room: &[u8], sink: &impl Sink) -> Result<(), ErrorCode> {
        if self.relayed_slot(room).is_some() {
            return Err(ErrorCode::HubClosed);
        }
        let Some(log) = self.rooms.log_of_name(room) else { return self.check_log(room) };
        let refuses = |code: &ErrorCode| matches!(code, ErrorCode::Quarantined | ErrorCode::HubClosed);
        sink.log_refuses(log.id).filter(refuses).map_or(Ok(()), Err)
    }

    /// Whether a room of this name can exist.
    ///
    /// # Errors
    /// Its hub needs a log and has none yet. Creating the room now would begin another epoch than the one that
    /// the log may contain.
    pub(super) fn check_log(&self, room: &[u8]) -> Result<(), ErrorCode> {
        let is_logged = self.classes.get(self.classes.class_of_room(room)).durability.is_logged();
        if is_logged && self.rooms.log_of_name(room).is_none() { Err(ErrorCode::HubClosed) } else { Ok(()) }
    }

    /// A hub of a class with a log is added, or returns; called before the hub is led here.
    pub fn open_log(&mut self, seed: &HubSeed, producers: Producers) {
        self.rooms.add_hub(seed, producers);
    }

    /// As `check_past`, for the start of a subscription.
    pub(super) fn check_start(&self, attach: &Attach, sink: &impl Sink) -> Result<(), ErrorCode> {
        let room = self.classes.room(&attach.topic);
        if attach.start != Start::Live {
            return self.check_past(&room, sink);
        }
        let log = self.rooms.log_of_name(&room);
        let is_closed = log.is_some_and(|log| sink.log_refuses(log.id) == Some(ErrorCode::HubClosed));
        if is_closed { Err(ErrorCode::HubClosed) } else { self.check_log(&room) }
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
        let turn = &mut Turn { now, sink };
        if let Some(passed) = self.pass_history(query, ask, turn) {
            return passed.map(|()| None);
        }
        if let Some(slot) = self.relayed_slot(&query.room) {
            let question = Missing::History(Box::new(query.clone()), ask);
            let asked = self.request_from_leader(slot, question, turn);
            return asked.map(|()| None).map_err(|_| ErrorCode::LinkFull);
        }
        self.check_past(&query.room, turn.sink)?;
        Ok(self.history_led(query, ask, turn))
    }

    pub(super) fn history_led(
        &mut self,
        query: &HistoryQuery,
        ask: Ask,
        turn: &mut Turn<impl Sink>,
    ) -> Option<HistoryPart> {
        if let Some(room) = self.rooms.find(&query.room).filter(|&room| self.rooms.waits_for_log(room)) {
            let offset = self.rooms.log_of(room).map_or(0, HubLog::last);
            let waits = Waits::History(Box::new(query.clone()), ask);
            self.rooms.wait_for_log(Pending { offset, room, waits });
            return None;
        }
        self.history_now(query, ask, turn.now, turn.sink)
    }

    pub(super) fn answer_waiting_history(
        &mut self,
        query: &HistoryQuery,
        ask: Ask,
        turn: &mut Turn<impl Sink>,
    ) {
        if let Some(part) = self.history_now(query, ask, turn.now, turn.sink) {
            self.answer_history(&query.room, ask, Ok(part), turn.sink);
        }
    }

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
        self.check_past(name, sink)?;
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

    pub fn log_read(
        &mut self,
        read: LogRead,
        found: Result<Found, ErrorCode>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let turn = &mut Turn { now, sink };
        match read.then.clone() {
            Then::Range(cursor) if matches!(found, Err(ErrorCode::HubClosed)) => {
                // The hub may open again here, or elsewhere.
                self.block_read(*cursor, read.hub, turn.sink);
            }
            Then::Range(cursor) => {
                let recall = |hub, room: &[u8]| turn.sink.recall(hub, room);
                let range = match found {
                    Ok(found) => self.rooms.range_found(&cursor, found, recall),
                    // Nothing is lost: the disk is slow.
                    Err(ErrorCode::TimedOut) => Range::again(cursor.next.seq),
                    // Unreadable records are reported as a gap, and later ones are read on.
                    Err(_) => Range::lost(cursor.next.seq, read.seq_max),
                };
                self.answer_read(*cursor, range, turn);
            }
            Then::Attach(attach, from) => {
                let attached = found.map(|found| self.rooms.attach_found(&attach, read.seq_max, &found));
                if attached.is_err() && attach.adds {
                    self.detach_here(attach.namespace, &attach.topic, (from, attach.revision), turn);
                }
                if let Asker::Node { node, ask, hub } = attach.ticket.asker {
                    self.answer_node_attach(&attach, (node, ask, hub), attached, turn.sink);
                } else {
                    self.answer_attach(*attach, from, attached, turn);
                }
            }
            Then::History(query, ask) => {
                let part = found.map(|found| self.rooms.history_found(&read, &query, found));
                self.answer_history(&query.room, ask, part, turn.sink);
            }
        }
    }
}
