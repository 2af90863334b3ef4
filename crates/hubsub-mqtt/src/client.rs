//! One connected client: the machine of its connection, its session, and what is on its way to it. It decides
//! what becomes of packets and records; the node executes that.

use super::actions::Action;
use super::cursors::Cursors;
use super::gaps::Gaps;
use super::message::{Content, CountedBy};
use super::pending::{Item, Pending};
use super::persistence::Persistence;
use super::retained::Reads;
use super::session::Session;
use super::shares::{Group, Left, Shares};
use crate::machine::{Accepted, Fault, Machine};
use hubsub_types::{ErrorCode, Position};
use hubsub_wire::mqtt::{Decoder, Packet, PacketId, Reason};

pub struct Client {
    /// Protocol state: outstanding requests and unacknowledged messages.
    pub machine: Machine,
    pub decoder: Decoder,
    /// The connect in progress; until it completes the client's input is not read.
    pub connecting: Option<Box<Connecting>>,
    /// Message bookkeeping, if the session outlives connections.
    pub session: Option<Box<Session>>,
    pub unconfirmed: u32,
    /// True while a message of its own waits for them, because it should receive that message itself.
    pub is_blocked: bool,
    /// True if one of the publishes that it waits for goes to a log.
    pub waits_for_log: bool,
    pub pending: Pending,
    /// Dropped records that are still to be reported to it.
    pub gaps: Gaps,
    pub reports_positions: bool,
    /// Unacknowledged messages of shared subscriptions and device actions; few clients have any.
    pub shares: Option<Box<Shares>>,
    pub was_notified: bool,
    pub reads: Option<Box<Reads>>,
}

impl Client {
    /// A client that sent CONNECT; `session` if it asked for one that outlives the connection.
    pub fn new(
        machine: Machine,
        decoder: Decoder,
        connecting: Connecting,
        session: Option<Box<Session>>,
    ) -> Client {
        Client {
            machine,
            decoder,
            connecting: Some(Box::new(connecting)),
            session,
            unconfirmed: 0,
            is_blocked: false,
            waits_for_log: false,
            pending: Pending::default(),
            gaps: Gaps::default(),
            reports_positions: false,
            shares: None,
            was_notified: false,
            reads: None,
        }
    }

    /// True if its input must not be read: it is not connected, or has too many outstanding requests.
    #[inline]
    pub fn must_pause(
        &self,
        requests_max: u64,
        is_congested: impl Fn() -> bool,
        log_is_congested: impl Fn() -> bool,
    ) -> bool {
        let pending = self.machine.pending() as u64;
        self.connecting.is_some()
            || (self.is_blocked && self.unconfirmed > 0)
            || (pending > 0 && (pending >= requests_max || is_congested()))
            || self.reads.as_ref().is_some_and(|reads| reads.len() as u64 >= requests_max)
            || (self.waits_for_log && log_is_congested())
    }

    /// True if it is connected under one of these ids, which are sorted.
    pub fn is_any_of(&self, ids: &[String]) -> bool {
        let own = self.machine.client_id();
        self.connecting.is_none() && ids.binary_search_by(|id| id.as_str().cmp(own)).is_ok()
    }

    /// True if there is more to send once its output drains.
    #[inline]
    pub fn wants_more(&self) -> bool {
        let reads = self.reads.as_ref().is_some_and(|reads| reads.has_work());
        !self.pending.is_empty() || reads || self.persistence().is_some_and(Persistence::has_prepared)
    }

    #[inline]
    pub(crate) fn persistence(&self) -> Option<&Persistence> {
        self.session.as_ref()?.persistence.as_deref()
    }

    #[inline]
    pub(crate) fn cursors(&self) -> Option<&Cursors> {
        self.session.as_ref()?.cursors.as_deref()
    }

    pub(crate) fn cursors_mut(&mut self, counted: CountedBy) -> Option<&mut Cursors> {
        self.session.as_mut()?.cursors.as_deref_mut().filter(|_| counted != CountedBy::None)
    }

    #[inline]
    pub fn is_recorded(&self) -> bool {
        self.persistence().is_some()
    }

    pub fn waits(&self) -> bool {
        self.connecting.is_some() || self.machine.pending() > 0
    }

    /// True if its session continues after the connection ends.
    pub fn outlives(&self) -> bool {
        let Some(session) = &self.session else { return false };
        self.connecting.as_ref().is_none_or(|connecting| connecting.is_resumed)
            && !session.is_over
            && self.machine.session_expiry_s() > 0
    }

    /// Appends the reason for the close: a refusal if the client is not connected yet.
    pub fn write_end(&self, fault: Fault, out: &mut Vec<u8>) {
        match &self.connecting {
            Some(_) => self.machine.refuse(Fault::of(Reason::ServerUnavailable)).write(out),
            None => self.machine.write_fault(fault, out),
        }
    }

    /// Connects it without a session although its will cannot be persisted: the will is lost if this node
    /// fails. Returns false for any other client.
    pub fn forgo_will(&mut self) -> bool {
        let is_meant =
            self.connecting.is_some() && self.machine.session_expiry_s() == 0 && self.session.is_some();
        if is_meant {
            self.session = None;
            self.machine.forgo_record();
        }
        is_meant
    }

    /// Sends CONNACK; returns when it will have been silent for too long, if ever, or none if it was
    /// connected.
    pub fn connected(
        &mut self,
        session_present: bool,
        now_ms: u64,
        out: &mut Vec<u8>,
    ) -> Option<Option<u64>> {
        self.connecting.take()?.accepted.write(session_present, out);
        self.machine.excuse(now_ms);
        let silent_at_ms = self.machine.silent_at_ms();
        let looks_at_ms = silent_at_ms.unwrap_or(u64::MAX);
        self.session.iter_mut().for_each(|session| session.looks_at_ms = looks_at_ms);
        Some(silent_at_ms)
    }

    /// A later connect has superseded this one. No request of the client was refused, so it gets CONNACK, as
    /// a client that is then taken over. Returns false if it was connected before.
    pub fn displaced(&mut self, out: &mut Vec<u8>) -> bool {
        let Some(connecting) = self.connecting.take() else { return false };
        let Connecting { accepted, is_resumed, connect, .. } = *connecting;
        if let Some(session) = self.session.as_mut().filter(|_| !is_resumed) {
            // The session that it would have started does not exist.
            session.is_over = true;
        }
        // With Clean Start 0 CONNACK reports a session, which the later client has; else this one would
        // discard it.
        accepted.write(is_resumed || !connect.is_empty(), out);
        true
    }

    /// A subscription that CONNACK waits for is confirmed; returns whether it was the last one, if any was
    /// due.
    pub fn confirmed(&mut self) -> Option<bool> {
        let left = self.connecting.as_mut()?.follows.as_mut()?;
        *left -= 1;
        Some(*left == 0)
    }

    /// This many confirmations precede CONNACK; returns whether all have come, or none for any other client.
    pub fn awaits_confirmations(&mut self, count: i64) -> Option<bool> {
        let left = self.connecting.as_mut()?.follows.as_mut()?;
        *left += count;
        Some(*left == 0)
    }

    /// Checks whether it has been silent for too long; `is_paused` if its input is not read.
    pub fn look_for_silence(&mut self, now_ms: u64, is_paused: bool) -> Silence {
        // The timer may belong to a previous connection in this slot.
        if self.session.as_ref().is_some_and(|session| session.looks_at_ms > now_ms) {
            return Silence::None;
        }
        if is_paused {
            self.machine.excuse(now_ms);
        }
        match self.machine.silent_at_ms() {
            Some(at_ms) if at_ms <= now_ms => Silence::TooLong,
            Some(at_ms) => {
                self.session.iter_mut().for_each(|session| session.looks_at_ms = at_ms);
                Silence::LookAt(at_ms)
            }
            None => Silence::None,
        }
    }

    /// A packet may also acknowledge a message of a group, and an action that the client accepts.
    #[inline]
    pub fn acknowledges(&mut self, packet: &Packet<'_>) -> (Option<(Group, Position)>, Option<Action>) {
        let (Packet::Puback(ack) | Packet::Pubrec(ack)) = packet else { return (None, None) };
        let done = self.shares.as_mut().and_then(|shares| shares.ended(ack.id));
        (done, self.ends_action(ack.id).filter(|_| !ack.reason.is_failure()))
    }

    /// The outcome of its publish; true if the connection must close, because its version has no other
    /// answer.
    #[inline]
    pub fn published(&mut self, number: u32, outcome: Result<u64, ErrorCode>, out: &mut Vec<u8>) -> bool {
        let reason = match outcome {
            Ok(0) => Reason::NoMatchingSubscribers,
            Ok(_) => Reason::Success,
            Err(refused) => reason_of(refused),
        };
        let intent = self.session.as_mut().and_then(|session| session.take_intent(number));
        if let Some(intent) = intent.filter(|_| outcome.is_ok()) {
            self.machine.published_before(intent);
        }
        let is_closed = self.machine.published(number, reason, out).is_err();
        self.waits_for_log &= self.machine.publishes();
        is_closed
    }

    #[inline]
    pub fn sends_action(&mut self, id: PacketId, content: &Content<'_>) {
        if content.headers.is_empty() && self.shares.is_none() {
            return;
        }
        match Action::of(content) {
            Some(action) => _ = self.shares.get_or_insert_default().actions.insert(id, action),
            // The id may have been an action's before.
            None => _ = self.ends_action(id),
        }
    }

    #[inline]
    pub fn ends_action(&mut self, id: PacketId) -> Option<Action> {
        self.shares.as_mut()?.actions.remove(&id)
    }

    /// The client is gone: takes its unacknowledged and unsent group messages.
    #[must_use]
    pub fn take_shared(&mut self) -> Left {
        let mut left = Left::default();
        if let Some(shares) = &mut self.shares {
            let sent: Vec<(PacketId, u64)> =
                self.machine.window.iter().map(|(id, _, key, _)| (id, key)).collect();
            for (id, key) in sent {
                match shares.of_groups.remove(&id) {
                    Some((group, message, true)) => {
                        left.messages.push((group, message));
                        // Its session does not send it again.
                        self.machine.window.unsend(id);
                        self.session.iter_mut().for_each(|session| _ = session.ended(key));
                    }
                    Some((group, message, false)) => left.done.push((group, message.content().position)),
                    None => {}
                }
            }
        }
        for item in std::mem::take(&mut self.pending).into_items() {
            match item {
                Item { message, group: Some(group), .. } => left.messages.push((group, message)),
                item => self.pending.push(item),
            }
        }
        left
    }
}

#[must_use]
pub fn reason_of(refused: ErrorCode) -> Reason {
    Reason::from_number(refused.mqtt_reason()).unwrap_or(Reason::Unspecified)
}

pub enum Silence {
    /// There is no limit, or another timer checks it.
    None,
    /// Not too long; look again at this time, in ms.
    LookAt(u64),
    TooLong,
}

pub struct Connecting {
    /// Its CONNACK, sent when the connect completes.
    pub accepted: Accepted,
    /// True if it has resumed its session and waits for the snapshot.
    pub is_resumed: bool,
    /// The number of unconfirmed subscriptions of a session that is restored or had missing ones.
    /// Confirmations that arrive before the total is known make it negative. None for other connects.
    pub follows: Option<i64>,
    /// Its CONNECT packet, if it wants to resume a session.
    pub connect: Box<[u8]>,
}

#[cfg(test)]
mod tests {
    use super::super::restored::tests::opened;
    use super::*;
    use crate::machine::Opened;
    use hubsub_wire::mqtt::Version;

    #[test]
    fn one_that_is_not_connected_is_told_so_whatever_ends_it() {
        for (version, refused) in [(Version::V311, 3), (Version::V5, 0x88)] {
            let Opened { machine, accepted, .. } = opened(version);
            let connect = Box::default();
            let connecting = Connecting { accepted, is_resumed: false, follows: None, connect };
            let mut client = Client::new(machine, Decoder::of_client(), connecting, None);
            let written = |client: &Client| {
                let mut out = Vec::new();
                client.write_end(Fault::of(Reason::ServerShuttingDown), &mut out);
                out
            };
            let connack = written(&client);
            assert_eq!((connack[0], connack[3]), (0x20, refused));
            client.connecting = None;
            assert_eq!(written(&client).first(), (version == Version::V5).then_some(&0xE0));
        }
    }

    #[test]
    fn an_idle_client_is_small() {
        // Above 256 the allocator takes 320.
        assert!(std::mem::size_of::<Client>() <= 256, "{}", std::mem::size_of::<Client>());
    }
}
