//! History of rooms: storing, reading and removing records.

use super::{Recalled, Room, RoomHandle, Rooms, seconds};
use crate::Now;
use crate::cursors::{Range, Read};
use crate::history::{Entry, Ring};
use crate::hubs::Hub;
use crate::logread::{Found, Known, LogRead, Then, Want};
use crate::requests::{Ask, HistoryPart, HistoryQuery};
use crate::rows;
use hubsub_message::Record;
use hubsub_types::{Epoch, HubId, Position, Seq};
use std::sync::Arc;

/// A room that another node leads is followed for this time after its last record: patterns keep no room in
/// memory, and a hole after a broken link is detected by the last position.
const RELAYED_IDLE_MS: u64 = 60_000;

impl Rooms {
    /// Stores a record that has its position. For a log that keeps the latest record of each room, memory
    /// stores none: nobody catches up in such rooms, and there is one for each MQTT session.
    pub fn remember(&mut self, handle: RoomHandle, record: Arc<Record>) {
        let slot = self.at(handle.index).hub;
        let keeps_latest = self.classes.get(self.hubs.get(slot).class).keeps_latest;
        if let Some(log) = self.hubs.get_mut(slot).log.as_mut().filter(|_| keeps_latest) {
            log.forgot(record.place.offset);
            if self.has_rows(slot) {
                self.hubs.get_mut(slot).rows.set(&record, &self.retained);
            }
            return;
        }
        let room = self.get_mut(handle).expect("the caller holds a live handle");
        let entry = Entry { room: handle, seq: record.position.seq, offset: record.place.offset };
        let weight = record.weight() as u64;
        room.ring.get_or_insert_default().push(Arc::clone(&record));
        self.hubs.get_mut(slot).ledger.kept(entry, weight);
        if self.has_rows(slot) {
            self.hubs.get_mut(slot).rows.set(&record, &self.retained);
        }
        let hub = self.hubs.get(slot);
        let Some(mut history) = self.classes.get(hub.class).history else { return };
        if hub.log.is_some() {
            // Records that memory drops are in the log.
            let tail = self.all_hubs.tail_bytes_max;
            history.bytes = if history.bytes == 0 { tail } else { tail.min(history.bytes) };
        }
        if history.messages > 0 {
            while self.at(handle.index).ring.as_ref().is_some_and(|r| r.len() as u64 > history.messages) {
                self.drop_oldest(handle);
            }
        }
        if history.bytes > 0 {
            while self.hubs.get(slot).ledger.bytes > history.bytes && self.drop_oldest_of(slot) {}
        }
        loop {
            // Entries that only memory has are limited separately.
            let classes = &self.classes;
            let may = |hub: &Hub| hub.log.is_some() || !rows::is_class(classes.get(hub.class));
            let bytes = |hub: &Hub| hub.ledger.bytes;
            if self.hubs.iter().filter(|hub| may(hub)).map(bytes).sum::<u64>()
                <= self.limits.history_shard_bytes_max
            {
                break;
            }
            let largest = (0u16..).zip(self.hubs.iter()).filter(|(_, hub)| may(hub));
            let largest = largest.max_by_key(|(_, hub)| bytes(hub)).map(|(slot, _)| slot);
            if !largest.is_some_and(|slot| self.drop_oldest_of(slot)) {
                break;
            }
        }
        let slots = &self.slots;
        self.hubs.get_mut(slot).ledger.tidy(|entry| is_kept(slots, entry));
    }

    /// A cursor's next records, or the log read for them. `recall` looks up a room that is not in memory.
    pub fn range(
        &self,
        read: &Read,
        now: Now,
        recall: impl FnOnce(HubId, &[u8]) -> Option<Recalled>,
    ) -> Known<Range> {
        let name = read.room_name(&self.classes);
        let Some(room) = self.find(&name).and_then(|h| self.get(h)) else {
            return self.range_of_cold_room(read, now, recall);
        };
        if room.epoch != read.next.epoch {
            return Known::Here(Range::gone(room.epoch));
        }
        let first = room.first_seq();
        if read.next.seq < first
            && read.next.seq <= room.seq
            && let Some(ask) = self.ask_log(room, now, Then::Range(Box::new(read.clone())))
        {
            let (want, bytes_max) = (Want::On(read.next.seq), read.bytes_max);
            return Known::InLog(Box::new(LogRead { want, bytes_max, ..ask }));
        }
        let mut range = Range { next: read.next.seq.max(first), at_end: true, ..Range::default() };
        if first > read.next.seq {
            range.gap = Some((read.next.seq, Seq(first.0 - 1)));
        }
        let (start, mut bytes) = (range.next, 0);
        for record in room.ring.iter().flat_map(|ring| ring.from(start)) {
            if bytes >= read.bytes_max {
                range.at_end = false;
                break;
            }
            range.next = record.position.seq.next();
            if read.wants(record) {
                bytes += record.weight();
                range.records.push(Arc::clone(record));
            }
        }
        Known::Here(range)
    }

    fn range_of_cold_room(
        &self,
        read: &Read,
        now: Now,
        recall: impl FnOnce(HubId, &[u8]) -> Option<Recalled>,
    ) -> Known<Range> {
        let name = read.room_name(&self.classes);
        let known = self.cold_room(&name, recall);
        let epoch = known.map_or(Epoch(0), |(_, last)| last.epoch);
        let Some((slot, last)) = known.filter(|_| epoch == read.next.epoch) else {
            return Known::Here(Range::gone(epoch));
        };
        if read.next.seq > last.seq {
            return Known::Here(Range { next: read.next.seq, at_end: true, ..Range::default() });
        }
        let then = Then::Range(Box::new(read.clone()));
        let (want, bytes_max) = (Want::On(read.next.seq), read.bytes_max);
        match self.ask_log_at(slot, name.as_ref().into(), last, now, then) {
            Some(ask) => Known::InLog(Box::new(LogRead { want, bytes_max, ..ask })),
            None => Known::Here(Range::gone(Epoch(0))),
        }
    }

    /// Slot of the hub and last position of a room that is not in memory, if it exists.
    fn cold_room(
        &self,
        name: &[u8],
        recall: impl FnOnce(HubId, &[u8]) -> Option<Recalled>,
    ) -> Option<(u16, Position)> {
        let class = self.classes.class_of_room(name);
        let slot = self.hubs.find(class, self.all_hubs.placement.hub(class, name))?;
        let log = self.hubs.get(slot).log.as_ref()?;
        Some((slot, log.of_current_epoch(recall(log.id, name))?))
    }

    /// Last position of a room that is not in memory; default if it does not exist.
    pub fn last_of_cold_room(&self, name: &[u8], recall: impl FnOnce(HubId) -> Option<Recalled>) -> Position {
        self.cold_room(name, |hub, _| recall(hub)).map_or_else(Position::default, |(_, last)| last)
    }

    /// The seq before the oldest record of a room in memory.
    pub fn before_first(&self, room: RoomHandle) -> Option<Seq> {
        self.get(room).map(|room| Seq(room.first_seq().0 - 1))
    }

    pub fn range_found(
        &self,
        read: &Read,
        found: Found,
        recall: impl FnOnce(HubId, &[u8]) -> Option<Recalled>,
    ) -> Range {
        let name = read.room_name(&self.classes);
        let room = self.find(&name).and_then(|h| self.get(h));
        let in_memory = room.map(|room| (room.epoch, room.seq, room.first_seq()));
        let known = in_memory.or_else(|| {
            let (_, last) = self.cold_room(&name, recall)?;
            Some((last.epoch, last.seq, last.seq.next()))
        });
        let epoch = known.map_or(Epoch(0), |known| known.0);
        let Some((_, last, first)) = known.filter(|_| epoch == read.next.epoch) else {
            return Range::gone(epoch);
        };
        let first = found.records.first().map_or(first, |record| record.position.seq);
        let next = found.records.last().map_or(first, |record| record.position.seq.next());
        Range {
            gap: (first > read.next.seq).then(|| (read.next.seq, Seq(first.0 - 1))),
            next,
            at_end: next > last,
            records: found.records.into_iter().filter(|r| read.wants(r)).collect(),
            ..Range::default()
        }
    }

    /// The log read for all records of a room that its class still shows; none if there is no log.
    pub(super) fn ask_log(&self, room: &Room, now: Now, then: Then) -> Option<LogRead> {
        self.ask_log_at(room.hub, Arc::clone(&room.name), room.position(), now, then)
    }

    fn ask_log_at(
        &self,
        slot: u16,
        room: Arc<[u8]>,
        last: Position,
        now: Now,
        then: Then,
    ) -> Option<LogRead> {
        let hub = self.hubs.get(slot);
        let log = hub.log.as_ref()?;
        let history = self.classes.get(hub.class).history;
        let messages = history.map_or(0, |h| h.messages);
        let oldest_us = |age_ms: u64| now.wall_us.saturating_sub(age_ms * 1000);
        Some(LogRead {
            hub: log.id,
            room,
            through: log.committed(),
            epoch: last.epoch,
            seq_max: last.seq,
            seq_min: Seq(if messages == 0 { 1 } else { (last.seq.0 + 1).saturating_sub(messages).max(1) }),
            since_us: history.filter(|h| h.age_ms > 0).map_or(0, |h| oldest_us(h.age_ms)),
            topic: None,
            namespace: None,
            want: Want::Back,
            count: u64::MAX,
            bytes_max: usize::MAX,
            then,
        })
    }

    /// Records for HISTORY, limited by number and bytes, or the log read for them.
    pub fn history(
        &self,
        query: &HistoryQuery,
        now: Now,
        ask: Ask,
        recall: impl FnOnce(HubId) -> Option<Recalled>,
    ) -> Known<HistoryPart> {
        let Some(room) = self.find(&query.room).and_then(|h| self.get(h)) else {
            return self.history_of_cold_room(query, now, ask, recall);
        };
        let first = room.first_seq();
        let start = Position { epoch: room.epoch, seq: Seq(first.0 - 1) };
        let known = |p: Position| p.epoch == room.epoch && p.seq >= start.seq && p.seq <= room.seq;
        let mut part = HistoryPart { recovered: query.after.is_none_or(known), start, records: Vec::new() };
        let then = Then::History(Box::new(query.clone()), ask);
        let log = if first > Seq(1) || room.has_past() { self.ask_log(room, now, then) } else { None };
        let wanted = |r: &&Arc<Record>| query.topic.as_ref().is_none_or(|t| *t == r.topic());
        let count = query.count.min(self.limits.history_reply_records_max);
        let mut bytes = 0;
        let mut fits = |r: &&Arc<Record>| {
            bytes += r.payload().len() as u64;
            bytes <= self.limits.history_reply_bytes_max || bytes == r.payload().len() as u64
        };
        let none = Ring::default();
        let ring = room.ring.as_deref().unwrap_or(&none);
        match query.after {
            Some(after) if part.recovered => {
                let records = ring.from(after.seq.next()).filter(wanted).take(count as usize);
                part.records = records.take_while(&mut fits).cloned().collect();
            }
            Some(_) => {
                if let Some(log) = log {
                    return Known::InLog(Box::new(self.bounded(log, query)));
                }
            }
            None => {
                let records = ring.from(first).rev().filter(wanted).take(count as usize);
                part.records = records.take_while(&mut fits).cloned().collect();
                let is_all =
                    part.records.len() as u64 == count || bytes > self.limits.history_reply_bytes_max;
                if let Some(log) = log.filter(|log| !is_all && (log.seq_min < first || room.has_past())) {
                    return Known::InLog(Box::new(self.bounded(log, query)));
                }
                part.records.reverse();
            }
        }
        Known::Here(part)
    }

    fn history_of_cold_room(
        &self,
        query: &HistoryQuery,
        now: Now,
        ask: Ask,
        recall: impl FnOnce(HubId) -> Option<Recalled>,
    ) -> Known<HistoryPart> {
        let class = self.classes.class_of_room(&query.room);
        let slot = self.hubs.slot(class, self.all_hubs.placement.hub(class, &query.room));
        let recalled = self.hubs.get(slot).log.as_ref().and_then(|log| {
            // Records of an earlier epoch are visible, but a reader cannot continue from a position in it.
            recall(log.id).filter(|&it| query.after.is_none() || log.of_current_epoch(Some(it)).is_some())
        });
        let then = Then::History(Box::new(query.clone()), ask);
        let log = recalled.and_then(|recalled| {
            self.ask_log_at(slot, query.room.as_slice().into(), recalled.position, now, then)
        });
        match log {
            Some(log) => Known::InLog(Box::new(self.bounded(log, query))),
            None => Known::Here(HistoryPart { recovered: query.after.is_none(), ..HistoryPart::default() }),
        }
    }

    /// The log read for a query, within the limits of a reply.
    fn bounded(&self, log: LogRead, query: &HistoryQuery) -> LogRead {
        let is_known = |after: Position| after.epoch == log.epoch && after.seq <= log.seq_max;
        let count = query.count.min(self.limits.history_reply_records_max);
        let topic = query.topic.clone();
        let (want, count, topic) = match query.after {
            None => (Want::Back, count, topic),
            Some(after) if is_known(after) => (Want::On(after.seq.next()), count, topic),
            // Only to find where history starts.
            Some(_) => (Want::On(Seq(1)), 1, None),
        };
        LogRead { want, count, bytes_max: self.limits.history_reply_bytes_max as usize, topic, ..log }
    }

    pub fn history_found(&self, log: &LogRead, query: &HistoryQuery, found: Found) -> HistoryPart {
        let epoch = log.epoch;
        let of_epoch = found.records.first().filter(|r| r.position.epoch == epoch).map(|r| r.position.seq);
        let first = found.first.or(of_epoch);
        let start = Position { epoch, seq: Seq(first.map_or(log.seq_max.0, |first| first.0 - 1)) };
        let recovered = match query.after {
            None => true,
            Some(after) if after.epoch != epoch || after.seq > log.seq_max => false,
            Some(after) => after.seq >= start.seq,
        };
        HistoryPart { recovered, start, records: if recovered { found.records } else { Vec::new() } }
    }

    /// Examines up to `budget` rooms: drops records that are too old, and removes idle rooms. To be called at
    /// a steady interval; continues where it stopped. A room in its hub's log only leaves memory, and earlier
    /// if memory has little space for other rooms. `log_knows` returns the offset up to which the log's index
    /// of a hub's rooms is current, and the entry of a room.
    pub fn sweep(
        &mut self,
        now: Now,
        budget: usize,
        log_knows: impl Fn(HubId, &[u8]) -> (u64, Option<Recalled>),
    ) {
        for _ in 0..budget.min(self.slots.len()) {
            self.swept = (self.swept + 1) % self.slots.len();
            let (generation, Some(room)) = &self.slots[self.swept] else { continue };
            let handle = RoomHandle { index: self.swept as u32, generation: *generation };
            let class = self.classes.get(self.hubs.get(room.hub).class);
            let (idle_ms, age_ms) = (class.idle_ms, class.history.map_or(0, |h| h.age_ms));
            if age_ms > 0 {
                let oldest_us = now.wall_us.saturating_sub(age_ms * 1000);
                let is_old = |room: &Room| {
                    room.ring.as_ref().and_then(|r| r.first()).is_some_and(|r| r.timestamp_us < oldest_us)
                };
                while is_old(self.at(handle.index)) {
                    self.drop_oldest(handle);
                }
            }
            let room = self.at(handle.index);
            let unused_ms = u64::from(seconds(now).saturating_sub(room.used_s)) * 1000;
            let is_due = if idle_ms > 0 { unused_ms >= idle_ms } else { room.is_forgettable() };
            let is_due = is_due && (!self.hubs.get(room.hub).is_relayed || unused_ms >= RELAYED_IDLE_MS);
            let gives_way = self.is_crowded() && room.seq > Seq(0) && self.hubs.get(room.hub).log.is_some();
            if room.is_idle() && (is_due || gives_way) && self.may_leave(handle, &log_knows) {
                self.drop_all(handle);
                self.forget(handle);
            }
        }
    }

    /// In hubs with a log, drops at most `budget` records from memory that the log has and that were
    /// committed at least `idle_us` ago: nobody has read them for long, and readers get them from the log.
    pub fn drop_idle_tails(&mut self, now: Now, idle_us: u64, mut budget: usize) {
        let oldest_us = now.wall_us.saturating_sub(idle_us);
        for slot in 0..self.hubs.iter().count() as u16 {
            while budget > 0 && self.oldest_of(slot).is_some_and(|record| record.timestamp_us < oldest_us) {
                self.drop_oldest_of(slot);
                budget -= 1;
            }
        }
    }

    /// The oldest record in memory of a hub with a log, if the log has persisted it.
    fn oldest_of(&mut self, slot: u16) -> Option<&Arc<Record>> {
        let hub = self.hubs.get_mut(slot);
        let log = hub.log.as_ref()?;
        while hub.ledger.first().is_some_and(|entry| !is_kept(&self.slots, entry)) {
            hub.ledger.oldest();
        }
        let entry = hub.ledger.first().filter(|entry| log.has(entry.offset))?;
        self.slots[entry.room.index as usize].1.as_ref()?.ring.as_ref()?.first()
    }

    pub(super) fn drop_all(&mut self, handle: RoomHandle) {
        while !self.at(handle.index).is_empty() {
            self.drop_oldest(handle);
        }
    }

    pub(super) fn drop_oldest(&mut self, handle: RoomHandle) {
        let room = self.get_mut(handle).expect("the caller holds a live handle");
        let slot = room.hub;
        if let Some(ring) = room.ring.as_mut().filter(|r| !r.is_empty()) {
            let offset = ring.first().map_or(0, |record| record.place.offset);
            let bytes = ring.pop();
            if ring.is_empty() {
                room.ring = None;
            }
            let hub = self.hubs.get_mut(slot);
            hub.ledger.dropped(bytes);
            hub.log.iter_mut().for_each(|log| log.forgot(offset));
            self.expired += 1;
        }
    }

    /// Drops the oldest record of a hub; false if there is none.
    fn drop_oldest_of(&mut self, slot: u16) -> bool {
        while let Some(entry) = self.hubs.get_mut(slot).ledger.oldest() {
            if is_kept(&self.slots, &entry) {
                self.drop_oldest(entry.room);
                return true;
            }
        }
        false
    }
}

fn is_kept(slots: &[(u32, Option<Room>)], entry: &Entry) -> bool {
    // The ledger may have rooms that the table no longer has.
    let Some((generation, room)) = slots.get(entry.room.index as usize) else { return false };
    let ring = room.as_ref().filter(|_| *generation == entry.room.generation).and_then(|r| r.ring.as_ref());
    ring.and_then(|r| r.first()).is_some_and(|first| first.position.seq <= entry.seq)
}
