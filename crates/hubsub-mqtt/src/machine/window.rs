//! Unacknowledged QoS 1 and 2 messages to a client, in the order of first delivery. Ids are assigned
//! cyclically, so their order is the messages' as long as none is overtaken: a message that 65,534 later ones
//! have passed fills the window alone.
//!
//! The messages themselves belong to the caller, by their keys. Messages from an older connection of the
//! session are sent again first ([`Machine::send_again`](super::Machine::send_again)); no new one is sent
//! until then.
//!
//! Invariants: no id is used twice; entries are in the order of their ids; at most `size` messages that were
//! sent on this connection have not ended; less than half of the entries, or a few, have ended.

use super::seldom::Seldom;
use super::session::Damaged;
use hubsub_wire::mqtt::{PacketId, Qos};
use std::collections::VecDeque;

/// The next packet expected from the client for a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Awaits {
    Puback = 1,
    Pubrec = 2,
    Pubcomp = 3,
    /// It has ended, and keeps its entry until all before it have ended.
    Nothing,
}

impl Awaits {
    pub fn of(qos: Qos) -> Awaits {
        if qos == Qos::ExactlyOnce { Awaits::Pubrec } else { Awaits::Puback }
    }

    pub fn of_byte(byte: u8) -> Option<Awaits> {
        [Awaits::Puback, Awaits::Pubrec, Awaits::Pubcomp].into_iter().find(|awaits| *awaits as u8 == byte)
    }

    pub fn qos(self) -> Qos {
        if self == Awaits::Puback { Qos::AtLeastOnce } else { Qos::ExactlyOnce }
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Acknowledged {
    Ended(Qos, u64),
    /// A QoS 2 message must be released; the flag: whether this PUBREC is the first.
    Received(bool),
    /// The id is unused: the message may have been given up.
    Unknown,
    OtherQos,
}

#[derive(Clone, Debug)]
struct Entry {
    id: PacketId,
    awaits: Awaits,
    /// Whether it must be sent again on this connection.
    again: bool,
    /// Whether its message was sent on this connection.
    counts: bool,
    /// `None` once it has ended.
    key: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Again {
    Message(PacketId, Qos, u64),
    Release(PacketId),
}

#[derive(Clone, Debug)]
pub struct Window {
    /// Limit of unacknowledged messages, at least 1.
    size: u16,
    last: u16,
    /// Messages that were sent on this connection and have not ended.
    used: u16,
    ended: u16,
    /// Entries that must be sent again; none of them is before `again_from`.
    again: u16,
    again_from: u16,
    entries: Seldom<VecDeque<Entry>>,
}

/// Ended entries that may stay, however few others there are.
const ENDED_FEW: u16 = 16;

/// Capacity in entries that an empty window keeps.
const ROOM_KEPT: usize = 64;

impl Window {
    pub fn new(size: u16) -> Window {
        let entries = Seldom::default();
        Window { size: size.max(1), last: 0, used: 0, ended: 0, again: 0, again_from: 0, entries }
    }

    /// Limit of unacknowledged messages, at least 1.
    pub fn size(&self) -> usize {
        self.size.into()
    }

    pub fn len(&self) -> usize {
        self.entries.len() - usize::from(self.ended)
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    #[inline]
    pub fn is_full(&self) -> bool {
        self.used >= self.size
            || self.again > 0
            || self.entries.front().is_some_and(|oldest| oldest.id == next_id(self.last))
    }

    /// Assigns the id of a QoS 1 or 2 message that is sent now; `None` if the window is full.
    #[inline]
    pub fn send(&mut self, qos: Qos, key: u64) -> Option<PacketId> {
        if self.is_full() {
            return None;
        }
        let id = next_id(self.last);
        self.last = id.get();
        self.used += 1;
        self.entries.push_back(Entry {
            id,
            awaits: Awaits::of(qos),
            again: false,
            counts: true,
            key: Some(key),
        });
        Some(id)
    }

    /// Ends a message that is not sent after all, or that its client will no longer get.
    pub fn unsend(&mut self, id: PacketId) {
        if let Some(place) = self.find(id) {
            self.end(place);
        }
    }

    /// Unacknowledged messages in the order of first delivery: id, QoS, key, whether PUBREC arrived.
    pub fn iter(&self) -> impl Iterator<Item = (PacketId, Qos, u64, bool)> {
        self.entries.iter().filter_map(|entry| {
            let key = entry.key?;
            Some((entry.id, entry.awaits.qos(), key, entry.awaits == Awaits::Pubcomp))
        })
    }

    /// Index of the message with an id, if it has not ended.
    #[inline]
    fn find(&self, id: PacketId) -> Option<usize> {
        let front = self.entries.front()?.id;
        let wanted = ahead(front, id);
        // Usually no id is missing.
        let place = match self.entries.get(usize::from(wanted)) {
            Some(entry) if entry.id == id => usize::from(wanted),
            _ => self.entries.binary_search_by_key(&wanted, |entry| ahead(front, entry.id)).ok()?,
        };
        (self.entries[place].awaits != Awaits::Nothing).then_some(place)
    }

    #[inline]
    pub(super) fn last_word(&mut self, id: PacketId, wanted: Awaits) -> Acknowledged {
        match self.find(id) {
            None => Acknowledged::Unknown,
            Some(place) if self.entries[place].awaits == wanted => self.end(place),
            Some(_) => Acknowledged::OtherQos,
        }
    }

    /// `fails`: the client refuses the message.
    pub(super) fn pubrec(&mut self, id: PacketId, fails: bool) -> Acknowledged {
        let Some(place) = self.find(id) else { return Acknowledged::Unknown };
        let entry = &mut self.entries[place];
        match entry.awaits {
            Awaits::Puback => Acknowledged::OtherQos,
            _ if fails => self.end(place),
            before => {
                entry.awaits = Awaits::Pubcomp;
                // PUBREL follows now.
                self.again -= u16::from(std::mem::take(&mut entry.again));
                Acknowledged::Received(before == Awaits::Pubrec)
            }
        }
    }

    #[inline]
    fn end(&mut self, place: usize) -> Acknowledged {
        let entry = &mut self.entries[place];
        let qos = entry.awaits.qos();
        let key = entry.key.take().expect("only what has ended has none");
        self.used -= u16::from(std::mem::take(&mut entry.counts));
        self.again -= u16::from(std::mem::take(&mut entry.again));
        entry.awaits = Awaits::Nothing;
        self.ended += 1;
        self.trim();
        Acknowledged::Ended(qos, key)
    }

    #[inline]
    fn trim(&mut self) {
        while self.entries.front().is_some_and(|entry| entry.awaits == Awaits::Nothing) {
            self.entries.pop_front();
            self.ended -= 1;
            self.again_from = self.again_from.saturating_sub(1);
        }
        if self.ended > ENDED_FEW && usize::from(self.ended) * 2 > self.entries.len() {
            self.entries.retain(|entry| entry.awaits != Awaits::Nothing);
            (self.ended, self.again_from) = (0, 0);
        }
        if self.entries.is_empty() && self.entries.capacity() > ROOM_KEPT {
            self.entries = Seldom::default();
        }
    }

    /// The next packet to send again; `None` if there is none, or the window has no space for it.
    pub(super) fn next_again(&mut self) -> Option<Again> {
        if self.again == 0 {
            return None;
        }
        let from = usize::from(self.again_from);
        let place = from + self.entries.range(from..).position(|entry| entry.again)?;
        self.again_from = place as u16;
        let entry = &mut self.entries[place];
        let is_release = entry.awaits == Awaits::Pubcomp;
        if !is_release && self.used >= self.size {
            return None;
        }
        self.again -= 1;
        entry.again = false;
        if is_release {
            return Some(Again::Release(entry.id));
        }
        // Messages sent on this connection count (section 4.9 of 5.0); a PUBREL does not.
        entry.counts = true;
        self.used += 1;
        let key = entry.key.expect("only what has ended has none");
        Some(Again::Message(entry.id, entry.awaits.qos(), key))
    }

    /// Continues with the unacknowledged messages of an older connection, before any is sent on this one.
    pub(super) fn go_on(&mut self, before: Window) {
        let size = self.size;
        *self = Window { size, used: 0, again_from: 0, ..before };
        self.entries.retain(|entry| entry.awaits != Awaits::Nothing);
        self.ended = 0;
        self.again = self.entries.len() as u16;
        for entry in self.entries.iter_mut() {
            (entry.again, entry.counts) = (true, false);
        }
    }

    pub(super) fn last(&self) -> u16 {
        self.last
    }

    /// Sets the last id assigned, which must not precede any id in the window.
    ///
    /// # Errors
    /// An id in the window is after it.
    pub(super) fn set_last(&mut self, last: u16) -> Result<(), Damaged> {
        let is_behind = match (self.entries.front(), self.entries.back(), PacketId::new(last)) {
            (Some(front), Some(back), Some(last)) => ahead(front.id, last) >= ahead(front.id, back.id),
            (Some(_), _, None) => false,
            _ => true,
        };
        self.last = last;
        if is_behind { Ok(()) } else { Err(Damaged("an identifier that was not given yet")) }
    }

    /// Adds a message that was sent before.
    ///
    /// # Errors
    /// Its id does not follow those in the window.
    pub(super) fn restore(&mut self, id: PacketId, awaits: Awaits, key: u64) -> Result<(), Damaged> {
        let follows = match (self.entries.front(), self.entries.back()) {
            (Some(front), Some(back)) => ahead(front.id, id) > ahead(front.id, back.id),
            _ => true,
        };
        if !follows {
            return Err(Damaged("an identifier out of order"));
        }
        self.entries.push_back(Entry { id, awaits, again: false, counts: false, key: Some(key) });
        Ok(())
    }

    /// A message was sent with this id, so messages whose ids were reused or skipped before it have ended.
    pub(super) fn sent(&mut self, id: PacketId, qos: Qos, key: u64) {
        if let Some(last) = PacketId::new(self.last) {
            // The last assigned id is the farthest: all others are assigned before it is reused.
            let ahead = |id| if id == last { u16::MAX } else { ahead(last, id) };
            while self.entries.front().is_some_and(|oldest| ahead(oldest.id) <= ahead(id)) {
                self.end(0);
            }
        }
        self.last = id.get();
        let awaits = Awaits::of(qos);
        self.entries.push_back(Entry { id, awaits, again: false, counts: false, key: Some(key) });
    }
}

#[inline]
fn next_id(last: u16) -> PacketId {
    PacketId::new(last.wrapping_add(1)).unwrap_or(PacketId::MIN)
}

/// Cyclic distance from `from` to `id`, from 0 to 65,534.
#[inline]
fn ahead(from: PacketId, id: PacketId) -> u16 {
    let (from, id) = (from.get(), id.get());
    if id >= from { id - from } else { u16::MAX - (from - id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(number: u16) -> PacketId {
        PacketId::new(number).unwrap()
    }

    #[test]
    fn ids_go_in_a_circle_and_what_is_overtaken_by_all_fills_the_window() {
        let mut window = Window::new(9);
        assert_eq!(window.send(Qos::AtLeastOnce, 0_u64), Some(id(1)));
        for key in 1..65_535 {
            let given = window.send(Qos::AtLeastOnce, key).expect("there is room");
            assert_eq!(u64::from(given.get()), key + 1);
            assert_eq!(window.last_word(given, Awaits::Puback), Acknowledged::Ended(Qos::AtLeastOnce, key));
            assert!(window.entries.len() <= usize::from(ENDED_FEW) + 2);
        }
        assert!(window.is_full(), "the next id is the oldest message's");
        assert_eq!(window.send(Qos::AtLeastOnce, 9), None);
        assert_eq!(window.last_word(id(1), Awaits::Puback), Acknowledged::Ended(Qos::AtLeastOnce, 0));
        assert_eq!((window.send(Qos::AtLeastOnce, 9), window.len()), (Some(id(1)), 1));
    }

    #[test]
    fn acknowledgements_come_in_any_order_and_the_order_stays() {
        let mut window = Window::new(u16::MAX);
        let ids: Vec<PacketId> = (0..100).map(|key| window.send(Qos::AtLeastOnce, key).unwrap()).collect();
        for key in (0..100).filter(|key| key % 3 > 0).rev() {
            assert_eq!(
                window.last_word(ids[key as usize], Awaits::Puback),
                Acknowledged::Ended(Qos::AtLeastOnce, key)
            );
            assert_eq!(window.last_word(ids[key as usize], Awaits::Puback), Acknowledged::Unknown);
        }
        let left: Vec<u64> = window.iter().map(|(_, _, key, _)| key).collect();
        assert_eq!(left, (0..100).filter(|key| key % 3 == 0).collect::<Vec<u64>>());
        assert!(window.entries.len() <= 2 * window.len() + usize::from(ENDED_FEW));
    }

    #[test]
    fn an_id_that_was_given_says_that_those_on_the_way_had_ended() {
        let mut window = Window::new(9);
        for (number, key) in [(65_530, 1), (65_533, 2)] {
            window.restore(id(number), Awaits::Puback, key).unwrap();
        }
        window.set_last(65_534).unwrap();
        assert!(window.restore(id(65_532), Awaits::Puback, 3_u64).is_err());
        window.sent(id(2), Qos::ExactlyOnce, 4);
        assert_eq!(window.iter().map(|(id, ..)| id.get()).collect::<Vec<_>>(), [65_530, 65_533, 2]);
        window.sent(id(65_531), Qos::ExactlyOnce, 5);
        assert_eq!(window.iter().map(|(id, ..)| id.get()).collect::<Vec<_>>(), [65_533, 2, 65_531]);
        window.sent(id(65_531), Qos::ExactlyOnce, 6);
        assert_eq!(window.iter().map(|(_, _, key, _)| key).collect::<Vec<_>>(), [6], "once around");
    }
}
