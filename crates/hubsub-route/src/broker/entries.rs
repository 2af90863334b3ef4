//! Entries of retained messages ([`crate::rows`]): pages of them, their deletion, and which of them cannot be read
//! now.

use super::{Broker, Draft, Publisher, Turn};
use crate::hubs::Hub;
use crate::relay::Missing;
use crate::rooms::RoomHandle;
use crate::rows::{self, RowPage, Rows};
use crate::{Answer, Asker, Msg, Now, Outcome, Reply, RowsAsk, Sink, Ticket};
use hubsub_message::Record;
use hubsub_types::class::ClassIndex;
use hubsub_types::names::Filter;
use hubsub_types::{ErrorCode, HubId};

/// Entries that one sweep examines, in all hubs of a shard together.
const SWEEP_ROWS: usize = 4_000;

/// Entries that one sweep deletes at most.
const ENDED_MAX: usize = 200;

/// Bytes of a page of entries, at most.
const PAGE_BYTES_MAX: usize = 1 << 20;

impl Broker {
    /// The class that stores retained messages; none: this node retains nothing.
    pub fn rows_class(&self) -> Option<ClassIndex> {
        self.classes.index_of(rows::CLASS).filter(|&class| rows::is_class(self.classes.get(class)))
    }

    /// The number of hubs that store entries; a wildcard filter is sent to each.
    pub fn row_hubs(&self) -> u16 {
        self.rows_class().map_or(0, |class| self.topics.placement().hubs(class))
    }

    /// Whether there are no retained messages, so that no read is needed.
    pub fn has_no_rows(&self) -> bool {
        self.relay.is_alone && self.rooms.row_totals().is_none()
    }

    pub fn row_hub(&self, topic: &[u8]) -> u16 {
        self.topics.place(&rows::room_of(topic)).1
    }

    /// Whether entries that match a filter cannot be read now: the leader of their hub is unreachable.
    pub fn rows_are_away(&self, filter: &[u8]) -> bool {
        let totals = self.rooms.row_totals();
        let is_wild = filter.iter().any(|byte| matches!(byte, b'+' | b'#'));
        !totals.reaches_all()
            && self.rows_class().is_some()
            && (is_wild || totals.is_away(self.row_hub(filter)))
    }

    /// Whether to log that entries are unreachable: once, until all can be read again.
    pub fn tells_rows_are_away(&self) -> bool {
        self.rooms.row_totals().tells_once()
    }

    pub fn row_hub_is_away(&self, hub: u16) -> bool {
        self.rooms.row_totals().is_away(hub)
    }

    /// A page of the entries of a hub. [`Outcome::Later`] promises one [`Answer::Rows`].
    pub fn rows(&mut self, ask: RowsAsk, now: Now, sink: &mut impl Sink) -> Reply<RowPage> {
        let home = self.topics.placement().shard(ask.class, ask.hub);
        if home == self.shard {
            return self.entries_here(ask, &mut Turn { now, sink });
        }
        if usize::from(home.0) >= usize::from(self.shards) {
            return Outcome::Now(Err(ErrorCode::HubClosed));
        }
        sink.send(home, Msg::Rows(Box::new(ask)));
        Outcome::Later
    }

    pub(super) fn entries_here(&mut self, ask: RowsAsk, turn: &mut Turn<impl Sink>) -> Reply<RowPage> {
        let Some(slot) = self.rooms.hubs.find(ask.class, ask.hub) else {
            return Outcome::Now(Err(ErrorCode::HubClosed));
        };
        if self.rooms.hubs.get(slot).is_relayed {
            // It does not wait for a leader, which would delay reads of other hubs: the requester retries it.
            if self.relay.leader_of(slot).is_none() {
                return Outcome::Now(Err(ErrorCode::HubClosed));
            }
            let asked = self.request_from_leader(slot, Missing::Rows(Box::new(ask)), turn);
            return asked.map_or(Outcome::Now(Err(ErrorCode::LinkFull)), |()| Outcome::Later);
        }
        Outcome::Now(self.entries_led(slot, &ask.filter, ask.after.as_deref(), ask.bytes_max))
    }

    pub(super) fn entries_led(
        &self,
        slot: u16,
        filter: &[u8],
        after: Option<&[u8]>,
        bytes_max: u32,
    ) -> Result<RowPage, ErrorCode> {
        let hub = self.rooms.hubs.get(slot);
        let class = self.classes.get(hub.class);
        if !rows::is_class(class) || (class.durability.is_logged() && hub.log.is_none()) {
            return Err(ErrorCode::HubClosed);
        }
        let filter = Filter::new(filter).map_err(|_| ErrorCode::TopicLength)?;
        Ok(hub.rows.page(&filter, after, (bytes_max as usize).clamp(1, PAGE_BYTES_MAX)))
    }

    pub(super) fn entries_for_shard(&mut self, ask: RowsAsk, turn: &mut Turn<impl Sink>) {
        let ticket = ask.ticket;
        if let Outcome::Now(page) = self.entries_here(ask, turn) {
            self.answer_entries(ticket, page, turn.sink);
        }
    }

    pub(super) fn answer_entries(&self, to: Ticket, page: Result<RowPage, ErrorCode>, sink: &mut impl Sink) {
        if to.shard == self.shard {
            sink.answer(to.asker, Answer::Rows(page));
        } else {
            sink.send(to.shard, Msg::RowsCame(Box::new((to, page))));
        }
    }

    /// A record without a payload ends a room that keeps the latest record. A log does that itself.
    pub(super) fn end_row(&mut self, room: RoomHandle, record: &Record) {
        let Some(slot) = self.rooms.slot_of_room(room).filter(|_| record.payload().is_empty()) else {
            return;
        };
        let hub = self.rooms.hubs.get(slot);
        if self.classes.get(hub.class).keeps_latest && hub.log.is_none() {
            // A room in use is not deleted yet.
            let _ = self.rooms.delete(record.topic());
        }
    }

    /// Deletes expired entries, as `is_over` decides. Skips hubs with uncommitted records.
    pub fn sweep_rows(&mut self, now: Now, is_over: impl Fn(&Record) -> bool, sink: &mut impl Sink) {
        let Some(class) = self.rows_class() else { return };
        let has_rows = |hub: &Hub| hub.class == class && !hub.is_relayed && !hub.rows.is_empty();
        let slots = (0u16..).zip(self.rooms.hubs.iter());
        let slots: Vec<u16> = slots.filter(|(_, hub)| has_rows(hub)).map(|(slot, _)| slot).collect();
        let share = SWEEP_ROWS.div_ceil(slots.len().max(1));
        let mut over = Vec::new();
        for slot in slots {
            let hub = self.rooms.hubs.get_mut(slot);
            let waits = hub.log.as_ref().is_some_and(|log| log.pending() > 0);
            if !waits {
                over.extend(hub.rows.sweep(share, &is_over));
            }
        }
        for topic in over.into_iter().take(ENDED_MAX) {
            let draft = Draft {
                namespace: crate::Namespace::Global,
                topic: &rows::room_of(&topic),
                payload: b"",
                headers: None,
                publisher: Publisher::Told(""),
                producer: None,
                qos: hubsub_types::Qos::ExactlyOnce,
                retain: false,
            };
            // The outcome is ignored: the next sweep examines the entry again.
            let ticket = Ticket { shard: self.shard, asker: Asker::Row(0) };
            let _ = self.publish(ticket, draft, now, sink);
        }
    }

    /// Rooms of sessions here whose owner process is gone: about `max`, others in each call.
    pub fn orphans(&mut self, mut is_gone: impl FnMut(u64) -> bool, max: usize) -> Vec<Box<[u8]>> {
        let Some(class) = self.rows_class() else { return Vec::new() };
        let is_led = |hub: &Hub| hub.class == class && !hub.is_relayed && hub.log.is_some();
        let slots = (0u16..).zip(self.rooms.hubs.iter());
        let led: Vec<u16> = slots.filter(|(_, hub)| is_led(hub)).map(|(slot, _)| slot).collect();
        let mut found = Vec::new();
        for &slot in &led {
            found.extend(self.rooms.hubs.get_mut(slot).rows.owners.orphans(&mut is_gone, max, led.len()));
        }
        found
    }

    pub fn rows_size(&self) -> (u64, u64) {
        self.rooms
            .hubs
            .iter()
            .fold((0, 0), |sum, hub| (sum.0 + hub.rows.len() as u64, sum.1 + hub.rows.bytes()))
    }

    pub fn set_rows(&mut self, hub: HubId, rows: Rows) {
        self.rooms.set_rows(hub, rows);
    }
}
