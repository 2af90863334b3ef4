//! Sessions that outlive their connections, as their node keeps them: [`Session`] beside the machine of a connection,
//! [`Absent`] while there is none.
//!
//! Invariant: a session is in one place.

use super::absent::{Absent, queue_limits};
use super::client::{Client, publish_will};
use super::cursors::{Cursors, Row};
use super::durable;
use super::kept::{Entry, Kept};
use super::message::{Message, Said};
use crate::core::Core;
use crate::rim::{Rim, Timer};
use hubsub_route::claims::{Heir, Holder};
use hubsub_types::{ConnKey, Qos};
use hubsub_wire::mqtt::{Grant, PacketId};
use std::collections::BTreeMap;
use std::rc::Rc;

/// A message under way.
#[derive(Clone)]
pub struct Sent {
    /// What.
    pub message: Rc<Message>,
    /// How.
    pub grant: Grant,
    /// Which cursor counts it.
    pub row: Row,
    /// Whether an entry has it.
    pub is_recorded: bool,
}

/// What a session keeps of messages beside what its machine knows of them.
#[derive(Default)]
pub struct Session {
    /// Those that the client was sent and has not acknowledged, by the machine's keys.
    #[allow(clippy::box_collection, reason = "most have none, and pay for a pointer")]
    sent: Option<Box<BTreeMap<u64, Sent>>>,
    /// Where it stands in rooms with a log; none where it subscribes to none.
    pub(super) cursors: Option<Box<Cursors>>,
    /// The key given last.
    last: u64,
    /// Numbers of its own messages of QoS 2 whose outcome is not known, by the requests that they are.
    #[allow(clippy::box_collection, reason = "most have none, and pay for a pointer")]
    intents: Option<Box<Vec<(u32, u64)>>>,
    /// The number of its next request, over all its connections.
    pub(super) requests: u32,
    /// When its timer is due, in ms; 0: none is set.
    timer_ms: u64,
    /// When it is looked whether its client has been silent for too long, in ms: of several timers that one counts.
    pub(super) looks_at_ms: u64,
    /// Who takes it over.
    pub(super) yields_to: Option<Box<Heir>>,
    /// It ends with its connection all the same.
    pub(super) is_over: bool,
    /// Its client id is free as soon as its row is ended, before its connection is.
    pub(super) is_released: bool,
    /// What of it is recorded, where sessions outlive their process.
    pub(super) kept: Option<Box<Kept>>,
}

impl Session {
    /// One of which that is recorded, if anything is, and the key given last.
    #[must_use]
    pub fn new(kept: Option<Box<Kept>>, last: u64) -> Session {
        Session { kept, last, ..Session::default() }
    }

    /// The key for a message that is sent now.
    pub fn next_key(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// A message of QoS 2 of its client is a request now.
    pub fn intend(&mut self, request: u32, intent: u64) {
        self.intents.get_or_insert_default().push((request, intent));
    }

    /// The number of a message of QoS 2, of which the outcome is known now.
    pub fn take_intent(&mut self, request: u32) -> Option<u64> {
        let intents = self.intents.as_mut()?;
        let place = intents.iter().position(|(asked, _)| *asked == request)?;
        Some(intents.swap_remove(place).1)
    }

    /// The key given last.
    #[must_use]
    pub fn last_key(&self) -> u64 {
        self.last
    }

    /// The message of a key is under way to the client.
    pub fn send(&mut self, key: u64, sent: Sent) {
        self.sent.get_or_insert_default().insert(key, sent);
    }

    /// The lowest key of those under way.
    #[must_use]
    pub fn first_sent(&self) -> Option<u64> {
        self.sent.as_ref()?.first_key_value().map(|(&key, _)| key)
    }

    /// Its connection has ended: what is under way is to be recorded, where sessions are.
    fn record_sent(&mut self) {
        let Some(kept) = &mut self.kept else { return };
        kept.leaves();
        let sent = self.sent.iter_mut().flat_map(|sent| sent.iter_mut());
        for (&key, sent) in sent.filter(|(_, sent)| !sent.is_recorded) {
            kept.put(false, key, sent.row, &sent.message, &sent.grant);
            sent.is_recorded = true;
        }
    }

    /// Entries with all messages of it that are recorded: those under way, and those that wait.
    pub(super) fn take_all<'a>(
        &mut self,
        waiting: impl Iterator<Item = (u64, &'a Message, &'a Grant)>,
    ) -> Vec<Entry> {
        let Some(mut kept) = self.kept.take() else { return Vec::new() };
        let sent = self.sent.iter().flat_map(|sent| sent.iter()).filter(|(_, sent)| sent.is_recorded);
        let sent = sent.map(|(&key, sent)| (false, key, sent.row, &*sent.message, &sent.grant));
        let waiting = waiting.map(|(key, message, grant)| (true, key, Row::None, message, grant));
        let entries = kept.take_all(sent.chain(waiting));
        self.kept = Some(kept);
        entries
    }

    /// It is not any more; whether a cursor counts it.
    pub fn ended(&mut self, key: u64) -> bool {
        let sent = self.sent.as_mut().and_then(|sent| sent.remove(&key));
        let Some(Sent { message, row, .. }) = sent else { return false };
        self.done(row, &message.said());
        row != Row::None
    }

    /// Nothing more will come of a record that was taken.
    pub fn done(&mut self, row: Row, said: &Said<'_>) {
        if let Some(cursors) = self.cursors.as_mut().filter(|_| row != Row::None) {
            cursors.done(row, said);
        }
    }

    /// A message that is under way.
    #[must_use]
    pub fn sent(&self, key: u64) -> Option<&Sent> {
        self.sent.as_ref()?.get(&key)
    }

    /// Nobody is connected: what is empty takes no memory.
    fn rest(&mut self) {
        self.sent.take_if(|sent| sent.is_empty());
        self.intents.take_if(|intents| intents.is_empty());
    }
}

impl Client {
    /// Whether its session goes on when the connection ends.
    #[must_use]
    pub fn outlives(&self) -> bool {
        let Some(session) = &self.session else { return false };
        self.arrival.as_ref().is_none_or(|arrival| arrival.is_resumed)
            && !session.is_over
            && self.machine.session_expiry_s() > 0
    }
}

/// A connection has ended whose session goes on, in its place.
pub(super) fn leave(core: &mut Core, key: ConnKey, mut client: Client) {
    let rim = &mut core.rim;
    let limits = queue_limits(rim);
    let mut session = client.session.take().map_or_else(Session::default, |session| *session);
    let yields_to = session.yields_to.take();
    session.requests = client.machine.next_request();
    session.record_sent();
    let id: Box<str> = client.machine.client_id().into();
    let state = client.machine.suspend(rim.now.wall_us / 1000);
    let mut absent = Absent::new(id, state, session);
    if let Some(cursors) = &mut absent.session.cursors {
        cursors.take_back_all(&client.pending);
    }
    let mut dropped = 0;
    for item in
        client.pending.into_items().filter(|item| item.grant.qos > Qos::AtMostOnce && item.row == Row::None)
    {
        dropped += absent.push(item.message, item.grant, item.key, None, limits);
    }
    rim.metrics.mqtt_session_dropped_total.add(dropped);
    rim.sessions.insert(key, absent);
    rim.show_sessions();
    super::standing::leave(core, key);
    core.rim.sessions.session_mut(key).into_iter().for_each(Session::rest);
    durable::due(&mut core.rim, key, None);
    look_at(core, key);
    match yields_to.as_deref() {
        Some(Heir::Here(to)) => super::handover::call(core, key, to.who),
        Some(Heir::Away { .. }) => _ = durable::hand_over(core, key),
        None => {}
    }
    // It reads on for itself, as far as there is room.
    core.broker.drained(key, core.rim.now, &mut core.rim);
}

/// Publishes the will of an absent session, and ends the session, when their times have come.
pub fn look_at(core: &mut Core, key: ConnKey) {
    let now_ms = core.rim.now.wall_us / 1000;
    if durable::parts(&mut core.rim, key) {
        return;
    }
    let Some(absent) = core.rim.sessions.get_mut(key) else { return };
    if absent.state.will_at_ms().is_some_and(|at_ms| at_ms <= now_ms)
        && let Some(will) = absent.state.take_will()
    {
        let id = absent.id.clone();
        publish_will(core, key, *will, &id);
        durable::due(&mut core.rim, key, None);
    }
    let Some(absent) = core.rim.sessions.get_mut(key) else { return };
    if absent.awaits.is_none() && absent.state.expires_at_ms().is_some_and(|at_ms| at_ms <= now_ms) {
        core.rim.metrics.mqtt_sessions_expired_total.add(1);
        return end(core, key);
    }
    if let Some(at_ms) = absent.next_due_ms() {
        // One that is being taken over is looked at again soon.
        let wait_ms = at_ms.saturating_sub(now_ms).max(TIMER_MS_MIN);
        let at_ms = core.rim.now.mono_ms + wait_ms;
        // A timer is never cancelled, so one that is set is used, however often the client comes and goes.
        let timer_ms = &mut absent.session.timer_ms;
        if *timer_ms == 0 || at_ms < *timer_ms {
            *timer_ms = at_ms;
            core.rim.timers.set(at_ms, Timer::Session(key));
        }
    }
}

/// Between two looks at a session that cannot end just now, in ms.
const TIMER_MS_MIN: u64 = 100;

/// The timer of a session, whose client may be back.
pub fn timer(core: &mut Core, key: ConnKey) {
    let rim = &mut core.rim;
    let now_ms = rim.now.mono_ms;
    let client = rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
    let session = match client.and_then(|client| client.session.as_deref_mut()) {
        Some(session) => Some(session),
        None => rim.sessions.get_mut(key).map(|absent| &mut absent.session),
    };
    // One that was set before another one that is due earlier finds that this has been.
    if let Some(session) = session.filter(|session| session.timer_ms > 0 && session.timer_ms <= now_ms) {
        session.timer_ms = 0;
        look_at(core, key);
    }
}

/// Ends an absent session; its will is published if it has not been.
pub(super) fn end(core: &mut Core, key: ConnKey) {
    let left = core.rim.take_shared(key, None);
    let Some(mut absent) = core.rim.sessions.remove(key) else { return };
    if let Some(will) = absent.state.take_will() {
        publish_will(core, key, *will, &absent.id);
    }
    core.rim.show_sessions();
    core.broker.disconnected(key, core.rim.now, &mut core.rim);
    core.rim.conns.give_back(key);
    let holder = Holder { shard: core.rim.shard, conn: key };
    durable::release(core, absent.id, holder, absent.session.kept);
    super::shares::give(core, left);
}

/// Nothing more comes for an absent session, which goes to another node.
pub(super) fn comes_to_rest(core: &mut Core, key: ConnKey) {
    let Some(session) = core.rim.sessions.session_mut(key) else { return };
    session.cursors.iter_mut().for_each(|cursors| cursors.awaits_ends = false);
    core.broker.disconnected(key, core.rim.now, &mut core.rim);
}

/// That one has what there is of it: its place here ends.
pub(super) fn part(core: &mut Core, key: ConnKey) {
    let Some(absent) = core.rim.sessions.remove(key) else { return };
    core.rim.show_sessions();
    core.rim.conns.give_back(key);
    let holder = Holder { shard: core.rim.shard, conn: key };
    super::claims::release(core, absent.id, holder);
}

/// The session of a place cannot go on, where a connection is now.
pub(super) fn forget(core: &mut Core, key: ConnKey) {
    if let Some(absent) = core.rim.sessions.remove(key) {
        core.rim.show_sessions();
        let holder = Holder { shard: core.rim.shard, conn: key };
        durable::release(core, absent.id, holder, absent.session.kept);
    }
}

impl Rim {
    /// An acknowledgement has ended a message to a client.
    pub(super) fn ended_mqtt(&mut self, key: ConnKey, message: u64) {
        let client = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
        let session = client.and_then(|client| client.session.as_mut());
        if session.is_some_and(|session| session.ended(message)) {
            durable::moved(self, key);
        }
    }

    /// Sends a client again what it has not acknowledged on an older connection, as far as there is room; whether all of
    /// it is sent.
    pub(super) fn send_again_mqtt(&mut self, key: ConnKey) -> bool {
        loop {
            let Some(conn) = self.conns.get(key).filter(|conn| !conn.is_closing()) else { return true };
            if !super::sending::has_room(conn) {
                return false;
            }
            let next = self.with_mqtt(key, |client, out| client.machine.send_again(out));
            let Some(Some((id, _, number))) = next else { return true };
            let client = self.conns.get(key).and_then(|conn| conn.mqtt.as_ref());
            let sent = client.and_then(|client| client.session.as_ref()?.sent(number).cloned());
            match sent {
                Some(Sent { message, grant, .. }) => {
                    self.send_mqtt_again(key.index, &message, &grant, id, number);
                }
                None => self.give_up_mqtt(key, id),
            }
        }
    }

    fn give_up_mqtt(&mut self, key: ConnKey, id: PacketId) {
        if let Some(client) = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) {
            client.machine.window.unsend(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_session_is_small() {
        assert!(size_of::<Absent>() <= 224, "{}", size_of::<Absent>());
        assert!(size_of::<Kept>() <= 96, "{}", size_of::<Kept>());
        assert!(size_of::<Cursors>() <= 128, "{}", size_of::<Cursors>());
    }
}
