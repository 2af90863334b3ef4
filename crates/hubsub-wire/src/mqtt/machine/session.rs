//! What of a client outlives its connection, whatever version it spoke: subscriptions, messages of QoS 1 and 2 under way
//! both ways, will, expiry. A machine is suspended to it and resumed from it; between that, or over the end of a
//! process, it is kept as a snapshot ([`SessionState::encode`]) and the events since then ([`SessionState::apply`]).
//!
//! Invariant: a snapshot, and the events that followed it in their order, make the state as it was. Events have numbers, so that
//! one that a snapshot holds already changes nothing.

use super::super::field::SubscriptionId;
use super::super::packet::{PacketId, Qos};
use super::super::subscribe::Options;
use super::filters::{Filters, Grant, Match};
use super::intents::Intents;
use super::opening::LastWill;
use super::window::{Acknowledged, Window};
use std::fmt;
use std::num::NonZeroU64;

/// Which message it is, in the caller's words: a position, a place in a queue.
pub trait Key: Clone + PartialEq + fmt::Debug + 'static {
    /// Appends it.
    fn write(&self, out: &mut Vec<u8>);

    /// Takes one off the bytes; none if there is none.
    fn read(from: &mut &[u8]) -> Option<Self>;
}

/// For sessions that end with their connections.
impl Key for () {
    fn write(&self, _: &mut Vec<u8>) {}

    fn read(_: &mut &[u8]) -> Option<()> {
        Some(())
    }
}

impl Key for u64 {
    fn write(&self, out: &mut Vec<u8>) {
        super::snapshot::write_number(*self, out);
    }

    fn read(from: &mut &[u8]) -> Option<u64> {
        super::snapshot::read_number(from)
    }
}

/// A snapshot or an event that is none; what of it is wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged(pub &'static str);

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "damaged record of a session: {}", self.0)
    }
}

impl std::error::Error for Damaged {}

/// What happens to a session between two snapshots, as far as it must not be forgotten.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event<K> {
    /// A message gets this id; to be recorded before it is sent where it is of QoS 2.
    Sent {
        /// Its own from now on.
        id: PacketId,
        /// 1 or 2.
        qos: Qos,
        /// Which message.
        key: K,
    },
    /// The client's PUBREC came; to be recorded before PUBREL is sent ([`super::Step::Received`]).
    Received(PacketId),
    /// The client's last word on a message came, and may be recorded at any time.
    Ended(PacketId),
    /// The client's message of QoS 2 has this number; to be recorded before it is published.
    Intended {
        /// Of the message.
        id: PacketId,
        /// [`super::Incoming::intent`].
        number: u64,
    },
    /// The client's PUBREL came; to be recorded before PUBCOMP is sent ([`super::Step::Released`]).
    Released(PacketId),
}

/// See the module.
#[derive(Clone, Debug)]
pub struct SessionState<K> {
    pub(super) filters: Filters,
    /// Of most clients there is none that was ever numbered.
    pub(super) intents: Option<Box<Intents>>,
    pub(super) window: Window<K>,
    pub(super) will: Option<Box<LastWill>>,
    /// How long it outlives its connection, in s; the largest means for ever.
    pub(super) expiry_s: u32,
    /// When that ended, in ms of wall time; none while it stands.
    pub(super) left_at_ms: Option<NonZeroU64>,
    /// Events that it holds.
    pub(super) events: u64,
}

impl<K: Key> SessionState<K> {
    /// What it subscribes to: filters that are not shared, then those that are with `$share/` and their group in front.
    pub fn subscriptions(&self) -> impl Iterator<Item = (&str, Options, Option<SubscriptionId>)> {
        self.filters.iter()
    }

    /// How a message is sent that comes while nobody is connected: as [`super::Machine::grant`] says it.
    #[must_use]
    pub fn grant(&self, by: Match<'_>, topic: &[u8], is_own: bool) -> Option<Grant> {
        self.filters.grant(by, topic, is_own)
    }

    /// Likewise, one that comes by a shared subscription, as [`super::Machine::grant_shared`] says it.
    #[must_use]
    pub fn grant_shared(&self, filter: &[u8]) -> Option<Grant> {
        self.filters.grant_shared(filter)
    }

    /// Messages that are unacknowledged, in the order of their first delivery: id, QoS, key, whether PUBREC came.
    pub fn unacknowledged(&self) -> impl Iterator<Item = (PacketId, Qos, &K, bool)> {
        self.window.iter()
    }

    /// Messages of QoS 2 of the client that it has not released: id, number, whether they are known to be published.
    pub fn unreleased(&self) -> impl Iterator<Item = (PacketId, u64, bool)> {
        self.intents.iter().flat_map(|intents| intents.iter())
    }

    /// How long it outlives its connection, in s; the largest means for ever.
    #[must_use]
    pub fn expiry_s(&self) -> u32 {
        self.expiry_s
    }

    /// When its connection ended, in ms of wall time; none while that stands, or ended with its process.
    #[must_use]
    pub fn left_at_ms(&self) -> Option<u64> {
        self.left_at_ms.map(NonZeroU64::get)
    }

    /// Its connection has ended now, in ms of wall time: that of one whose process died.
    pub fn leave(&mut self, now_ms: u64) {
        self.left_at_ms.get_or_insert(since_1970(now_ms));
    }

    /// When it ends if nobody comes back, in ms of wall time; none if never, or while its connection stands.
    #[must_use]
    pub fn expires_at_ms(&self) -> Option<u64> {
        let left_at_ms = self.left_at_ms().filter(|_| self.expiry_s < u32::MAX)?;
        Some(left_at_ms.saturating_add(u64::from(self.expiry_s) * 1000))
    }

    /// When its will is to be published if nobody comes back, in ms of wall time: after its delay, or with the
    /// session. None if it has none, or while its connection stands.
    #[must_use]
    pub fn will_at_ms(&self) -> Option<u64> {
        let delay_s = self.will.as_ref()?.delay_s.min(self.expiry_s);
        Some(self.left_at_ms()?.saturating_add(u64::from(delay_s) * 1000))
    }

    /// Its will, which is to be published now; once.
    pub fn take_will(&mut self) -> Option<Box<LastWill>> {
        self.will.take()
    }

    /// What came of a message that was under way as the connection ended: it was published.
    pub fn published(&mut self, intent: u64) {
        self.intents.iter_mut().for_each(|intents| intents.settle(intent));
    }

    /// Something happened, the event of this number ([`super::Machine::next_event`]); whether that is news.
    pub fn apply(&mut self, number: u64, event: Event<K>) -> bool {
        if number <= self.events {
            return false;
        }
        self.events = number;
        match event {
            Event::Sent { id, qos, key } => self.window.sent(id, qos, key),
            Event::Received(id) => match self.window.pubrec(id, false) {
                // What of QoS 1 was sent need not be recorded: so there may be another message, or none.
                Acknowledged::Received(_) | Acknowledged::Unknown | Acknowledged::OtherQos => {}
                Acknowledged::Ended(..) => unreachable!("it did not fail"),
            },
            Event::Ended(id) => self.window.unsend(id),
            Event::Intended { id, number } => {
                self.intents.get_or_insert_default().restore(id, number, false);
            }
            Event::Released(id) => _ = self.intents.as_mut().map(|intents| intents.release(id)),
        }
        true
    }
}

/// A wall time in ms, at which no connection ends in the first of them.
pub(super) fn since_1970(ms: u64) -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add(ms.saturating_sub(1))
}
