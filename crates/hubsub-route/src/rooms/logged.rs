//! A room and its hub's log: records are appended and wait, and are committed; epochs end; state of a room
//! that only memory has.

use super::{EpochState, Recalled, RoomHandle, Rooms, seconds};
use crate::Now;
use crate::hubs::{HubLog, HubSeed, Pending, Waits};
use crate::producers::Producers;
use crate::rows::{RowTotals, Rows};
use hubsub_message::{LogPlace, Record};
use hubsub_types::{HubId, Position, Seq};
use std::sync::atomic::Ordering;

impl Rooms {
    pub fn add_hub(&mut self, seed: &HubSeed, producers: Producers) {
        // Timestamps never decrease within a hub.
        self.last_us = self.last_us.max(seed.last_us);
        let durability = self.classes.get(seed.class).durability;
        self.hubs.add(seed, durability, producers);
    }

    pub fn set_rows(&mut self, hub: HubId, rows: Rows) {
        if let Some(slot) = self.hubs.slot_of(hub) {
            self.hubs.get_mut(slot).rows.replace(rows, &self.retained);
        }
    }

    /// Another node leads a hub without a log: removes its entries here.
    pub fn forget_rows(&mut self, slot: u16) {
        if self.hubs.get(slot).log.is_none() {
            self.hubs.get_mut(slot).rows.replace(Rows::default(), &self.retained);
        }
    }

    pub fn row_totals(&self) -> &RowTotals {
        &self.retained
    }

    /// Number of the node's retained messages, and their memory in bytes.
    pub fn rows_of_node(&self) -> (u64, u64) {
        let RowTotals { messages, bytes, .. } = &*self.retained;
        (messages.load(Ordering::Relaxed), bytes.load(Ordering::Relaxed))
    }

    pub fn append(&mut self, handle: RoomHandle, record: &mut Record, now: Now) -> u64 {
        self.last_us = self.last_us.max(now.wall_us);
        record.timestamp_us = self.last_us;
        let room = self.get_mut(handle).expect("the caller holds a live handle");
        room.used_s = seconds(now);
        let (slot, epoch, seq, name_len) = (room.hub, room.epoch, room.seq, room.name.len());
        let log = self.hubs.get_mut(slot).log.as_mut().expect("its class is logged");
        record.position = Position { epoch, seq: Seq(seq.0 + log.pending_of(handle.index) + 1) };
        let offset = log.take_offset();
        record.place = LogPlace { hub: log.id, offset };
        log.took_record(offset, name_len, record);
        offset
    }

    pub fn wait_for_log(&mut self, pending: Pending) {
        let slot = self.at(pending.room.index).hub;
        self.hubs.get_mut(slot).log.as_mut().expect("its class is logged").push(pending);
    }

    /// Removes a hub's first waiting request. That commits a record; `receivers` are its subscribers.
    pub fn release(&mut self, slot: u16, receivers: u64) -> Option<Waits> {
        let log = self.hubs.get_mut(slot).log.as_mut()?;
        let Pending { room, waits, .. } = log.pop()?;
        if let Waits::Record(_, record) = &waits {
            log.traffic.count(record.said_bytes(), receivers);
            let room = self.get_mut(room).expect("a room stays while it has records that wait");
            room.seq = record.position.seq;
        }
        Some(waits)
    }

    /// Ends a room's epoch, which the log must record: its offset, the room's last position, the time.
    pub fn end_epoch(&mut self, handle: RoomHandle, now: Now) -> (u64, Position, u64) {
        self.drop_all(handle);
        self.last_us = self.last_us.max(now.wall_us);
        let (last_us, epoch) = (self.last_us, self.fresh_epoch());
        let room = self.get_mut(handle).expect("the caller holds a live handle");
        let last = room.position();
        (room.epoch, room.seq, room.epoch_state, room.was_created) = (epoch, Seq(0), EpochState::One, false);
        let (slot, name_len) = (room.hub, room.name.len());
        let log = self.hubs.get_mut(slot).log.as_mut().expect("its class is logged");
        let offset = log.take_offset();
        log.took_deletion(offset, name_len);
        (offset, last, last_us)
    }

    /// The last offset that a hub has committed to its log; 0 if it has none.
    pub fn committed_of(&self, slot: u16) -> u64 {
        self.hubs.get(slot).log.as_ref().map_or(0, HubLog::committed)
    }

    pub fn log_of(&self, handle: RoomHandle) -> Option<&HubLog> {
        self.hubs.get(self.get(handle)?.hub).log.as_ref()
    }

    /// Whether a room has no visible state: it was deleted, or left before a first record.
    pub fn is_gone(&self, handle: RoomHandle) -> bool {
        let room = self.at(handle.index);
        let is_logged = self.hubs.get(room.hub).log.is_some();
        let is_blank = room.seq == Seq(0) && room.is_idle() && room.is_forgettable() && !room.has_past();
        is_logged && is_blank && !self.waits_for_log(handle)
    }

    pub fn waits_for_log(&self, handle: RoomHandle) -> bool {
        self.log_of(handle).is_some_and(|log| log.pending_of(handle.index) > 0)
    }

    pub fn log_of_name(&self, name: &[u8]) -> Option<&HubLog> {
        let class = self.classes.class_of_room(name);
        let slot = self.hubs.find(class, self.all_hubs.placement.hub(class, name))?;
        self.hubs.get(slot).log.as_ref()
    }

    /// Whether a room may leave memory: its log, if any, must give the same answers later.
    pub(super) fn may_leave(
        &self,
        handle: RoomHandle,
        log_knows: impl Fn(HubId, &[u8]) -> (u64, Option<Recalled>),
    ) -> bool {
        let (Some(log), room) = (self.log_of(handle), self.at(handle.index)) else { return true };
        if log.pending_of(handle.index) > 0 {
            return false;
        }
        let (through, recalled) = log_knows(log.id, &room.name);
        match log.of_current_epoch(recalled) {
            Some(known) => known == room.position(),
            None => through >= if room.seq == Seq(0) { log.deleted() } else { log.committed() },
        }
    }
}
