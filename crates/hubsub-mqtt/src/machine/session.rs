//! State of a client that outlives its connection, in every MQTT version: subscriptions, QoS 1 and 2 messages
//! in flight in both directions, will, expiry. A machine is suspended to it and resumed from it. Meanwhile,
//! and across restarts of the process, it is stored as a snapshot ([`SessionState::encode`]) and the events
//! since then ([`SessionState::apply`]).
//!
//! Invariant: a snapshot and the events after it, in order, restore the state. Events are numbered, so one
//! that the snapshot already covers has no effect.

use super::filters::Filters;
use super::intents::Intents;
use super::opening::LastWill;
use super::window::{Acknowledged, Window};
use hubsub_wire::mqtt::{PacketId, Qos};
use std::fmt;
use std::num::NonZeroU64;

/// Decoding error of a snapshot or an event, with the reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged(pub &'static str);

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "damaged record of a session: {}", self.0)
    }
}

impl std::error::Error for Damaged {}

/// A change of a session between two snapshots that must be persisted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// A message gets this id. Recorded before the message is sent if it has QoS 2.
    Sent { id: PacketId, qos: Qos, key: u64 },
    /// The client sent PUBREC. Recorded before PUBREL is sent ([`super::Step::Received`]).
    Received(PacketId),
    /// The client's last acknowledgement of a message arrived. May be recorded at any time.
    Ended(PacketId),
    /// The client's QoS 2 message gets this number. Recorded before it is published.
    Intended { id: PacketId, number: u64 },
    /// The client sent PUBREL. Recorded before PUBCOMP is sent ([`super::Step::Released`]).
    Released(PacketId),
}

#[derive(Clone, Debug)]
pub struct SessionState {
    pub filters: Filters,
    /// `None` as long as no message was numbered, as for most clients.
    pub(super) intents: Option<Box<Intents>>,
    pub(super) window: Window,
    pub(super) will: Option<Box<LastWill>>,
    /// Session Expiry Interval in s; `u32::MAX` means no expiry.
    pub expiry_s: u32,
    /// When its connection ended, in ms of wall time; `None` while connected.
    pub(super) left_at_ms: Option<NonZeroU64>,
    /// Number of the last event that it covers.
    pub(super) events: u64,
}

impl SessionState {
    /// Unacknowledged messages, in the order of first delivery: id, QoS, key, whether PUBREC arrived.
    pub fn unacknowledged(&self) -> impl Iterator<Item = (PacketId, Qos, u64, bool)> {
        self.window.iter()
    }

    /// Its QoS 2 messages that are not released: id, number, whether they are known to be published.
    pub fn unreleased(&self) -> impl Iterator<Item = (PacketId, u64, bool)> {
        self.intents.iter().flat_map(|intents| intents.iter())
    }

    /// When its connection ended, in ms of wall time; `None` while connected, or if its process died.
    pub fn left_at_ms(&self) -> Option<u64> {
        self.left_at_ms.map(NonZeroU64::get)
    }

    /// Sets the end of its connection to now, in ms of wall time, if its process died.
    pub fn leave(&mut self, now_ms: u64) {
        self.left_at_ms.get_or_insert(since_1970(now_ms));
    }

    /// When it expires if the client stays away, in ms of wall time; `None` if never, or while connected.
    pub fn expires_at_ms(&self) -> Option<u64> {
        let left_at_ms = self.left_at_ms().filter(|_| self.expiry_s < u32::MAX)?;
        Some(left_at_ms.saturating_add(u64::from(self.expiry_s) * 1000))
    }

    /// When its will is published if the client does not return, in ms of wall time: after its delay, or when
    /// the session ends. `None` without a will, or while connected.
    pub fn will_at_ms(&self) -> Option<u64> {
        let delay_s = self.will.as_ref()?.delay_s.min(self.expiry_s);
        Some(self.left_at_ms()?.saturating_add(u64::from(delay_s) * 1000))
    }

    pub fn take_will(&mut self) -> Option<Box<LastWill>> {
        self.will.take()
    }

    /// A message that was in flight when the connection ended was published.
    pub fn published(&mut self, intent: u64) {
        self.intents.iter_mut().for_each(|intents| intents.settle_carried(intent));
    }

    /// Applies the event with this number ([`super::Machine::next_event`]); returns whether it is new.
    pub fn apply(&mut self, number: u64, event: Event) -> bool {
        if number <= self.events {
            return false;
        }
        self.events = number;
        match event {
            Event::Sent { id, qos, key } => self.window.sent(id, qos, key),
            Event::Received(id) => match self.window.pubrec(id, false) {
                // A sent QoS 1 message need not be recorded: the id may be unused or another message's.
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

/// A wall time in ms that is not zero.
pub(super) fn since_1970(ms: u64) -> NonZeroU64 {
    NonZeroU64::MIN.saturating_add(ms.saturating_sub(1))
}
