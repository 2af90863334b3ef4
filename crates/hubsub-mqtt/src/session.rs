//! A session apart from its machine: messages in flight, cursors, persistence, timers. It is beside the
//! machine of its connection ([`Client`](super::client::Client)) or offline
//! ([`OfflineSession`](super::offline::OfflineSession)).
//!
//! Invariant: a session is in exactly one place.

use super::cursors::Cursors;
use super::message::{Content, CountedBy, Message};
use super::persistence::{Entry, Persistence};
use crate::machine::Grant;
use hubsub_route::claims::Heir;
use std::collections::BTreeMap;
use std::rc::Rc;

#[derive(Clone)]
pub struct Sent {
    pub message: Rc<Message>,
    pub grant: Grant,
    pub counted: CountedBy,
    pub is_recorded: bool,
}

/// The node's data of a session, in addition to its machine.
#[derive(Default)]
pub struct Session {
    /// Messages sent and not acknowledged, by the machine's keys.
    #[allow(clippy::box_collection, reason = "most have none, and pay for a pointer")]
    sent: Option<Box<BTreeMap<u64, Sent>>>,
    /// Its cursors in rooms with a log; none if it subscribes to none.
    pub cursors: Option<Box<Cursors>>,
    last: u64,
    /// Sequence numbers of its own QoS 2 messages whose outcome is unknown, by request number.
    #[allow(clippy::box_collection, reason = "most have none, and pay for a pointer")]
    intents: Option<Box<Vec<(u32, u64)>>>,
    /// The number of its next request, counted over all its connections.
    pub requests: u32,
    /// When its timer fires, in ms; 0 if none is set.
    pub timer_ms: u64,
    /// The time of the next keep-alive check, in ms. Of several timers only this one counts.
    pub looks_at_ms: u64,
    pub yields_to: Option<Box<Heir>>,
    /// True if it ends with its connection in spite of its expiry.
    pub is_over: bool,
    /// True if its client id is released as soon as its snapshot is deleted, before its connection closes.
    pub is_released: bool,
    pub persistence: Option<Box<Persistence>>,
}

impl Session {
    /// Creates a session; `last` is the last key assigned.
    pub fn new(persistence: Option<Box<Persistence>>, last: u64) -> Session {
        Session { persistence, last, ..Session::default() }
    }

    #[inline]
    pub fn next_key(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Links a QoS 2 message of its client to the request that publishes it.
    pub fn intend(&mut self, request: u32, intent: u64) {
        self.intents.get_or_insert_default().push((request, intent));
    }

    /// Takes the number of a QoS 2 message whose outcome is now known.
    pub fn take_intent(&mut self, request: u32) -> Option<u64> {
        let intents = self.intents.as_mut()?;
        let place = intents.iter().position(|(asked, _)| *asked == request)?;
        Some(intents.swap_remove(place).1)
    }

    pub fn last_key(&self) -> u64 {
        self.last
    }

    #[inline]
    pub fn send(&mut self, key: u64, sent: Sent) {
        self.sent.get_or_insert_default().insert(key, sent);
    }

    pub fn first_sent(&self) -> Option<u64> {
        self.sent.as_ref()?.first_key_value().map(|(&key, _)| key)
    }

    /// Its connection has ended: persists the messages in flight, where sessions are persisted.
    pub fn record_sent(&mut self) {
        let Some(persistence) = &mut self.persistence else { return };
        persistence.disconnected();
        let sent = self.sent.iter_mut().flat_map(|sent| sent.iter_mut());
        for (&key, sent) in sent.filter(|(_, sent)| !sent.is_recorded) {
            persistence.put(false, key, sent.counted, &sent.message, &sent.grant);
            sent.is_recorded = true;
        }
    }

    /// Returns entries with all its persisted messages: in flight and queued.
    pub fn take_all_entries<'a>(
        &mut self,
        waiting: impl Iterator<Item = (u64, &'a Message, &'a Grant)>,
    ) -> Vec<Entry> {
        let Some(mut persistence) = self.persistence.take() else { return Vec::new() };
        let sent = self.sent.iter().flat_map(|sent| sent.iter()).filter(|(_, sent)| sent.is_recorded);
        let sent = sent.map(|(&key, sent)| (false, key, sent.counted, &*sent.message, &sent.grant));
        let waiting = waiting.map(|(key, message, grant)| (true, key, CountedBy::None, message, grant));
        let entries = persistence.take_all_entries(sent.chain(waiting));
        self.persistence = Some(persistence);
        entries
    }

    /// Removes a message from those in flight; returns whether a cursor counts it.
    #[inline]
    pub fn ended(&mut self, key: u64) -> bool {
        let sent = self.sent.as_mut().and_then(|sent| sent.remove(&key));
        let Some(Sent { message, counted, .. }) = sent else { return false };
        self.done(counted, &message.content());
        counted != CountedBy::None
    }

    #[inline]
    pub fn done(&mut self, counted: CountedBy, content: &Content<'_>) {
        if let Some(cursors) = self.cursors.as_mut().filter(|_| counted != CountedBy::None) {
            cursors.done(counted, content);
        }
    }

    pub fn sent(&self, key: u64) -> Option<&Sent> {
        self.sent.as_ref()?.get(&key)
    }

    pub fn shrink(&mut self) {
        self.sent.take_if(|sent| sent.is_empty());
        self.intents.take_if(|intents| intents.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::super::offline::OfflineSession;
    use super::*;

    #[test]
    fn an_absent_session_is_small() {
        assert!(size_of::<OfflineSession>() <= 224, "{}", size_of::<OfflineSession>());
        assert!(size_of::<Persistence>() <= 96, "{}", size_of::<Persistence>());
        assert!(size_of::<Cursors>() <= 128, "{}", size_of::<Cursors>());
    }
}
