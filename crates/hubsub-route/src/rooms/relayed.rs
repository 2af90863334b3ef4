//! Rooms of hubs that other nodes lead, or are about to lead: here they represent the leader's rooms. They
//! have the interest on this node and the position of the last forwarded record; a room of which nothing is
//! known has epoch 0.

use super::{EpochState, Interests, Key, Recalled, Room, RoomHandle, Rooms, seconds};
use crate::Now;
use crate::counts::{Counts, Holder};
use crate::places::Place;
use hubsub_message::Namespace;
use hubsub_types::{Epoch, ErrorCode, HubId, Position, Seq};
use std::sync::Arc;
use std::sync::atomic::Ordering;

pub type TopicKey = (Namespace, Arc<[u8]>);

impl Rooms {
    /// Finds or creates a room whose hub's home is here and which another node leads.
    ///
    /// # Errors
    /// There are too many rooms.
    pub fn open_relayed(&mut self, name: &[u8], now: Now) -> Result<RoomHandle, ErrorCode> {
        if let Some(handle) = self.find(name) {
            return Ok(handle);
        }
        self.has_place(name).inspect_err(|_| self.refused += 1)?;
        let class = self.classes.class_of_room(name);
        let Place { hub, revision } = self.all_hubs.placement.place(class, name);
        let slot = self.hubs.find(class, hub).ok_or(ErrorCode::HubClosed)?;
        Ok(self.insert(name, (slot, revision), Position::default(), false, now))
    }

    /// The last record of a room that was committed or forwarded; default if there is no such room.
    pub fn position(&self, handle: RoomHandle) -> Position {
        self.get(handle).map_or_else(Position::default, Room::position)
    }

    /// Sets the position after a record was forwarded, or as the leader reported it.
    pub fn set_position(&mut self, handle: RoomHandle, position: Position, now: Now) {
        if let Some(room) = self.get_mut(handle) {
            if room.epoch_state == EpochState::Over && room.position() != position {
                room.epoch_state = EpochState::One;
            }
            (room.epoch, room.seq, room.used_s) = (position.epoch, position.seq, seconds(now));
        }
    }

    /// Sets whether a room's epoch, without a log, is over with nothing missing, until its position changes.
    pub fn set_over(&mut self, handle: RoomHandle, is_over: bool) {
        if let Some(room) = self.get_mut(handle) {
            room.epoch_state = if is_over { EpochState::Over } else { EpochState::One };
        }
    }

    /// Whether the room's epoch has ended with nothing missing here, see [`Rooms::set_over`].
    pub fn is_over(&self, handle: RoomHandle) -> bool {
        self.get(handle).is_some_and(|room| room.epoch_state == EpochState::Over)
    }

    /// An epoch that no other room has or will have.
    pub fn fresh_epoch(&self) -> Epoch {
        Epoch(self.epochs.fetch_add(1, Ordering::Relaxed))
    }

    #[inline]
    pub fn slot_of_room(&self, handle: RoomHandle) -> Option<u16> {
        self.get(handle).map(|room| room.hub)
    }

    /// The revision of the table of places at which a room got its place; 0: there is none.
    #[inline]
    pub fn revision(&self, handle: RoomHandle) -> Option<u64> {
        self.get(handle)?;
        Some(if self.revisions.is_empty() {
            0
        } else {
            self.revisions.get(&handle.index).copied().unwrap_or(0)
        })
    }

    /// Changes the count of subscribers to a topic; returns their total number after that.
    pub fn count(
        &mut self,
        handle: RoomHandle,
        (namespace, topic): &TopicKey,
        change: impl FnOnce(&mut Counts),
        now: Now,
    ) -> u64 {
        let Some(room) = self.get_mut(handle) else { return 0 };
        room.used_s = seconds(now);
        let is_room = *namespace == Namespace::Global && *room.name == **topic;
        let counts = if is_room {
            &mut room.own
        } else {
            room.others.get_or_insert_default().entry((*namespace, Arc::clone(topic))).or_default()
        };
        let before = counts.is_zero();
        change(counts);
        let (after, total) = (counts.is_zero(), counts.total());
        if after && !is_room {
            forget_topic(&mut room.others, *namespace, topic);
        }
        let subscribed = &mut self.subscribed[*namespace as usize];
        *subscribed = *subscribed + u64::from(before && !after) - u64::from(!before && after);
        total
    }

    /// Removes a room of a class without history if nobody is interested in it.
    pub fn forget_unused(&mut self, handle: RoomHandle) {
        let Some(room) = self.get(handle) else { return };
        let has_history = self.classes.get(self.hubs.get(room.hub).class).history.is_some();
        if room.is_idle() && !has_history && room.is_empty() {
            self.forget(handle);
        }
    }

    pub fn counts_of(&self, handle: RoomHandle, namespace: Namespace, topic: &[u8]) -> Option<&Counts> {
        let room = self.get(handle)?;
        let is_room = namespace == Namespace::Global && *room.name == *topic;
        room.interest(is_room, namespace, topic)
    }

    pub fn of_hub(&self, slot: u16) -> Vec<RoomHandle> {
        self.all().filter(|(_, room)| room.hub == slot).map(|(handle, _)| handle).collect()
    }

    pub fn topics_of(&self, handle: RoomHandle) -> Vec<TopicKey> {
        let Some(room) = self.get(handle) else { return Vec::new() };
        let own = (!room.own.is_zero()).then(|| (Namespace::Global, Arc::clone(&room.name)));
        let others = room.others.iter().flat_map(|others| others.keys().cloned());
        own.into_iter().chain(others).collect()
    }

    /// Begins to lead a room: continues the epoch that the log has, or a new one. Positions before, after.
    pub fn begin_lead(
        &mut self,
        handle: RoomHandle,
        now: Now,
        recall: impl Fn(HubId, &[u8]) -> Option<Recalled>,
    ) -> (Position, Position) {
        let before = self.position(handle);
        let Some(room) = self.get(handle) else { return (before, before) };
        if self.waits_for_log(handle) || self.is_ahead(handle, &recall) {
            // This node led the room before, and continues when the log has its records.
            return (before, before);
        }
        let (known, has_past) = self.recalled(room.hub, |hub| recall(hub, &room.name));
        let position = known.unwrap_or_else(|| Position { epoch: self.fresh_epoch(), seq: Seq(0) });
        let room = self.get_mut(handle).expect("looked up above");
        room.epoch_state = if has_past { EpochState::Past } else { EpochState::One };
        self.set_position(handle, position, now);
        (before, position)
    }

    /// Begins a new epoch of a room without a log, without the previous records; returns its last position.
    pub fn begin_new_epoch(&mut self, handle: RoomHandle, now: Now) -> Position {
        self.drop_all(handle);
        self.begin_lead(handle, now, |_, _| None).0
    }

    /// Whether memory has records of a room, or an epoch, that its log does not show yet.
    pub fn is_ahead(&self, handle: RoomHandle, recall: &impl Fn(HubId, &[u8]) -> Option<Recalled>) -> bool {
        let Some((room, log)) = self.get(handle).zip(self.log_of(handle)) else { return false };
        let life = |epoch: Epoch| epoch.0 >> 32;
        let is_own = life(room.epoch) == life(Epoch(self.epochs.load(Ordering::Relaxed)));
        match log.of_current_epoch(recall(log.id, &room.name)) {
            Some(known) if known.epoch == room.epoch => room.seq > known.seq,
            Some(_) => is_own && room.seq > Seq(0),
            // It has had no record, nor has another epoch: followers continue.
            None => is_own,
        }
    }

    /// Another node leads a room now: drops its records and nodes' interest, and the room if unused.
    pub fn end_lead(&mut self, handle: RoomHandle, recall: impl Fn(HubId, &[u8]) -> Option<Recalled>) {
        let is_ahead = self.is_ahead(handle, &recall);
        self.drop_all(handle);
        let shards = self.shards;
        self.forget_holders(handle, |counts| counts.forget_nodes(shards));
        if let Some(room) = self.get_mut(handle) {
            room.was_created = false;
            if room.is_idle() && !is_ahead && !self.waits_for_log(handle) {
                self.forget(handle);
            }
        }
    }

    pub fn forget_holder(&mut self, handle: RoomHandle, holder: Holder) {
        let shards = self.shards;
        self.forget_holders(handle, |counts| counts.set(holder, 0, shards));
        self.forget_unused(handle);
    }

    fn forget_holders(&mut self, handle: RoomHandle, forget: impl Fn(&mut Counts)) {
        let Some(room) = self.get_mut(handle) else { return };
        let mut ended = [0; 2];
        if !room.own.is_zero() {
            forget(&mut room.own);
            ended[Namespace::Global as usize] += u64::from(room.own.is_zero());
        }
        if let Some(others) = &mut room.others {
            others.retain(|(namespace, _), counts| {
                forget(counts);
                ended[*namespace as usize] += u64::from(counts.is_zero());
                !counts.is_zero()
            });
            if others.is_empty() {
                room.others = None;
            }
        }
        self.subscribed.iter_mut().zip(ended).for_each(|(subscribed, ended)| *subscribed -= ended);
    }

    /// Removes a room that is elsewhere now, unless its hub's log has yet to answer requests for it.
    pub fn forget_moved(&mut self, handle: RoomHandle) {
        if self.get(handle).is_none() || self.waits_for_log(handle) {
            return;
        }
        self.drop_all(handle);
        let topics = self.topics_of(handle);
        topics.iter().for_each(|(namespace, _)| self.subscribed[*namespace as usize] -= 1);
        self.forget(handle);
    }

    /// Removes an unused room at once.
    pub fn forget_relayed(&mut self, handle: RoomHandle) {
        if self.get(handle).is_some_and(|room| room.is_idle()) && !self.waits_for_log(handle) {
            self.forget(handle);
        }
    }
}

fn forget_topic(others: &mut Option<Box<Interests>>, namespace: Namespace, topic: &[u8]) {
    if let Some(of_room) = others {
        of_room.remove(&Key(namespace, topic));
        if of_room.is_empty() {
            *others = None;
        }
    }
}
