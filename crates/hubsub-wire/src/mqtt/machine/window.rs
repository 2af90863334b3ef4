//! What was sent to a client with QoS 1 and 2 and is not acknowledged. A connection's messages are not kept
//! here: they are sent again only by a session that outlives it.

use super::super::packet::{PacketId, Qos};
use std::collections::BTreeMap;

/// What the client is to say next of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Awaits {
    Puback,
    Pubrec,
    Pubcomp,
}

/// What an acknowledgement is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Acknowledged {
    /// A message that waits for it.
    Known,
    /// None.
    Unknown,
    /// A message of another QoS.
    OtherQos,
}

/// See the module.
#[derive(Debug)]
pub struct Window {
    /// Messages that may be unacknowledged.
    size: usize,
    /// The id given last.
    last: u16,
    awaited: BTreeMap<PacketId, Awaits>,
}

impl Window {
    /// For so many messages, at least one.
    #[must_use]
    pub fn new(size: u16) -> Window {
        Window { size: usize::from(size.max(1)), last: 0, awaited: BTreeMap::new() }
    }

    /// How many may be unacknowledged.
    #[must_use]
    pub fn size(&self) -> usize {
        self.size
    }

    /// Messages that are unacknowledged.
    #[must_use]
    pub fn len(&self) -> usize {
        self.awaited.len()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.awaited.is_empty()
    }

    /// Whether no more may be sent.
    #[must_use]
    #[inline]
    pub fn is_full(&self) -> bool {
        self.awaited.len() >= self.size
    }

    /// The id for a message of QoS 1 or 2 that is sent now; none when the window is full.
    pub fn send(&mut self, qos: Qos) -> Option<PacketId> {
        if self.is_full() {
            return None;
        }
        // The window is smaller than the number of ids, so one is free.
        let id = loop {
            self.last = self.last.wrapping_add(1);
            if let Some(id) = PacketId::new(self.last).filter(|id| !self.awaited.contains_key(id)) {
                break id;
            }
        };
        let awaits = if qos == Qos::ExactlyOnce { Awaits::Pubrec } else { Awaits::Puback };
        self.awaited.insert(id, awaits);
        Some(id)
    }

    /// That message was not sent after all.
    pub fn unsend(&mut self, id: PacketId) {
        self.awaited.remove(&id);
    }

    pub(super) fn puback(&mut self, id: PacketId) -> Acknowledged {
        self.end(id, Awaits::Puback)
    }

    /// `fails`: the client refuses the message.
    pub(super) fn pubrec(&mut self, id: PacketId, fails: bool) -> Acknowledged {
        match self.awaited.get_mut(&id) {
            None => Acknowledged::Unknown,
            Some(Awaits::Puback) => Acknowledged::OtherQos,
            Some(_) if fails => {
                self.awaited.remove(&id);
                Acknowledged::Known
            }
            Some(awaits) => {
                *awaits = Awaits::Pubcomp;
                Acknowledged::Known
            }
        }
    }

    pub(super) fn pubcomp(&mut self, id: PacketId) -> Acknowledged {
        self.end(id, Awaits::Pubcomp)
    }

    fn end(&mut self, id: PacketId, wanted: Awaits) -> Acknowledged {
        match self.awaited.get(&id) {
            None => Acknowledged::Unknown,
            Some(&awaits) if awaits == wanted => {
                self.awaited.remove(&id);
                Acknowledged::Known
            }
            Some(_) => Acknowledged::OtherQos,
        }
    }
}
