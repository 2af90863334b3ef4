//! Sessions that outlive their connections: [`Session`] beside the machine of a connection, [`OfflineSession`] while
//! offline.
//!
//! Invariant: a session is in exactly one place.

use super::client::{Client, publish_will};
use super::cursors::{CountedBy, Cursors};
use super::message::{Content, Message};
use super::offline::{OfflineSession, queue_limits};
use super::persist;
use super::persistence::{Entry, Persistence};
use crate::io::context::Ctx;
use crate::io::shard_io::{Io, Timer};
use hubsub_mqtt::Grant;
use hubsub_route::claims::{Heir, Holder};
use hubsub_types::{ConnKey, Qos};
use hubsub_wire::mqtt::PacketId;
use std::collections::BTreeMap;
use std::rc::Rc;

/// A message in flight.
#[derive(Clone)]
pub struct Sent {
    pub message: Rc<Message>,
    pub grant: Grant,
    /// The cursor that counts it.
    pub counted: CountedBy,
    /// True if an entry contains it.
    pub is_recorded: bool,
}

/// The node's data of a session, in addition to its machine.
#[derive(Default)]
pub struct Session {
    /// Messages sent and not acknowledged, by the machine's keys.
    #[allow(clippy::box_collection, reason = "most have none, and pay for a pointer")]
    sent: Option<Box<BTreeMap<u64, Sent>>>,
    /// Its cursors in rooms with a log; none if it subscribes to none.
    pub(super) cursors: Option<Box<Cursors>>,
    /// The last key assigned.
    last: u64,
    /// Sequence numbers of its own QoS 2 messages whose outcome is unknown, by request number.
    #[allow(clippy::box_collection, reason = "most have none, and pay for a pointer")]
    intents: Option<Box<Vec<(u32, u64)>>>,
    /// The number of its next request, counted over all its connections.
    pub(super) requests: u32,
    /// When its timer fires, in ms; 0 if none is set.
    timer_ms: u64,
    /// The time of the next keep-alive check, in ms. Of several timers only this one counts.
    pub(super) looks_at_ms: u64,
    /// The holder that takes it over.
    pub(super) yields_to: Option<Box<Heir>>,
    /// True if it ends with its connection in spite of its expiry.
    pub(super) is_over: bool,
    /// True if its client id is released as soon as its snapshot is deleted, before its connection closes.
    pub(super) is_released: bool,
    /// Its persistence state, where sessions are persisted.
    pub(super) persistence: Option<Box<Persistence>>,
}

impl Session {
    /// Creates a session; `last` is the last key assigned.
    #[must_use]
    pub fn new(persistence: Option<Box<Persistence>>, last: u64) -> Session {
        Session { persistence, last, ..Session::default() }
    }

    /// The key for the next message.
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

    /// The last key assigned.
    #[must_use]
    pub fn last_key(&self) -> u64 {
        self.last
    }

    /// Adds a message in flight.
    pub fn send(&mut self, key: u64, sent: Sent) {
        self.sent.get_or_insert_default().insert(key, sent);
    }

    /// The lowest key in flight.
    #[must_use]
    pub fn first_sent(&self) -> Option<u64> {
        self.sent.as_ref()?.first_key_value().map(|(&key, _)| key)
    }

    /// Its connection has ended: persists the messages in flight, where sessions are persisted.
    fn record_sent(&mut self) {
        let Some(persistence) = &mut self.persistence else { return };
        persistence.disconnected();
        let sent = self.sent.iter_mut().flat_map(|sent| sent.iter_mut());
        for (&key, sent) in sent.filter(|(_, sent)| !sent.is_recorded) {
            persistence.put(false, key, sent.counted, &sent.message, &sent.grant);
            sent.is_recorded = true;
        }
    }

    /// Returns entries with all its persisted messages: in flight and queued.
    pub(super) fn take_all_entries<'a>(
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
    pub fn ended(&mut self, key: u64) -> bool {
        let sent = self.sent.as_mut().and_then(|sent| sent.remove(&key));
        let Some(Sent { message, counted, .. }) = sent else { return false };
        self.done(counted, &message.content());
        counted != CountedBy::None
    }

    /// A record that was taken is finished.
    pub fn done(&mut self, counted: CountedBy, content: &Content<'_>) {
        if let Some(cursors) = self.cursors.as_mut().filter(|_| counted != CountedBy::None) {
            cursors.done(counted, content);
        }
    }

    /// The message in flight under a key.
    #[must_use]
    pub fn sent(&self, key: u64) -> Option<&Sent> {
        self.sent.as_ref()?.get(&key)
    }

    /// The session is offline: frees empty collections.
    fn shrink(&mut self) {
        self.sent.take_if(|sent| sent.is_empty());
        self.intents.take_if(|intents| intents.is_empty());
    }
}

impl Client {
    /// True if its session continues after the connection ends.
    #[must_use]
    pub fn outlives(&self) -> bool {
        let Some(session) = &self.session else { return false };
        self.connecting.as_ref().is_none_or(|connecting| connecting.is_resumed)
            && !session.is_over
            && self.machine.session_expiry_s() > 0
    }
}

/// A connection has ended and its session continues: puts the session into the connection's slot.
pub(super) fn leave(ctx: &mut Ctx, key: ConnKey, mut client: Client) {
    let io = &mut ctx.io;
    let limits = queue_limits(io);
    let mut session = client.session.take().map_or_else(Session::default, |session| *session);
    let yields_to = session.yields_to.take();
    session.requests = client.machine.next_request();
    session.record_sent();
    let id: Box<str> = client.machine.client_id().into();
    let state = client.machine.suspend(io.now.wall_us / 1000);
    let mut offline = OfflineSession::new(id, state, session);
    if let Some(cursors) = &mut offline.session.cursors {
        cursors.take_back_all(&client.pending);
    }
    let mut dropped = 0;
    for item in client
        .pending
        .into_items()
        .filter(|item| item.grant.qos > Qos::AtMostOnce && item.counted == CountedBy::None)
    {
        dropped += offline.push(item.message, item.grant, item.key, None, limits);
    }
    io.metrics.mqtt_session_dropped_total.add(dropped);
    io.states.mqtt.sessions.insert(key, offline);
    io.show_sessions();
    super::session_cursors::detach(ctx, key);
    ctx.io.states.mqtt.sessions.session_mut(key).into_iter().for_each(Session::shrink);
    persist::request_snapshot(&mut ctx.io, key, None);
    look_at(ctx, key);
    match yields_to.as_deref() {
        Some(Heir::Here(to)) => super::handover::call(ctx, key, to.who),
        Some(Heir::Away { .. }) => _ = persist::hand_over(ctx, key),
        None => {}
    }
    // It continues to read, as far as there is room.
    ctx.broker.drained(key, ctx.io.now, &mut ctx.io);
}

/// Publishes the will of an offline session and ends the session when each is due.
pub fn look_at(ctx: &mut Ctx, key: ConnKey) {
    let now_ms = ctx.io.now.wall_us / 1000;
    if persist::is_moving(&mut ctx.io, key) {
        return;
    }
    let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) else { return };
    if offline.state.will_at_ms().is_some_and(|at_ms| at_ms <= now_ms)
        && let Some(will) = offline.state.take_will()
    {
        let id = offline.id.clone();
        publish_will(ctx, key, *will, &id);
        persist::request_snapshot(&mut ctx.io, key, None);
    }
    let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) else { return };
    if offline.awaits.is_none() && offline.state.expires_at_ms().is_some_and(|at_ms| at_ms <= now_ms) {
        ctx.io.metrics.mqtt_sessions_expired_total.add(1);
        return end(ctx, key);
    }
    if let Some(at_ms) = offline.next_due_ms() {
        // A session that is being taken over is checked again soon.
        let wait_ms = at_ms.saturating_sub(now_ms).max(TIMER_MS_MIN);
        let at_ms = ctx.io.now.mono_ms + wait_ms;
        // Timers are never cancelled, so a pending one is reused, however often the client comes and goes.
        let timer_ms = &mut offline.session.timer_ms;
        if *timer_ms == 0 || at_ms < *timer_ms {
            *timer_ms = at_ms;
            ctx.io.timers.set(at_ms, Timer::Session(key));
        }
    }
}

/// The minimum interval between two checks of a session that cannot end just now, in ms.
const TIMER_MS_MIN: u64 = 100;

/// The timer of a session; its client may have reconnected.
pub fn timer(ctx: &mut Ctx, key: ConnKey) {
    let io = &mut ctx.io;
    let now_ms = io.now.mono_ms;
    let client = io.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
    let session = match client.and_then(|client| client.session.as_deref_mut()) {
        Some(session) => Some(session),
        None => io.states.mqtt.sessions.get_mut(key).map(|offline| &mut offline.session),
    };
    // A timer that fires after an earlier one was set instead finds that one handled.
    if let Some(session) = session.filter(|session| session.timer_ms > 0 && session.timer_ms <= now_ms) {
        session.timer_ms = 0;
        look_at(ctx, key);
    }
}

/// Ends an offline session and publishes its will if that is still to be done.
pub(super) fn end(ctx: &mut Ctx, key: ConnKey) {
    let left = ctx.io.take_shared(key, None);
    let Some(mut offline) = ctx.io.states.mqtt.sessions.remove(key) else { return };
    if let Some(will) = offline.state.take_will() {
        publish_will(ctx, key, *will, &offline.id);
    }
    ctx.io.show_sessions();
    ctx.broker.disconnected(key, ctx.io.now, &mut ctx.io);
    ctx.io.conns.give_back(key);
    let holder = Holder { shard: ctx.io.shard, conn: key };
    persist::release(ctx, offline.id, holder, offline.session.persistence);
    super::shares::redeliver(ctx, left);
}

/// Stops deliveries to an offline session that moves to another node.
pub(super) fn comes_to_rest(ctx: &mut Ctx, key: ConnKey) {
    let Some(session) = ctx.io.states.mqtt.sessions.session_mut(key) else { return };
    session.cursors.iter_mut().for_each(|cursors| cursors.awaits_ends = false);
    ctx.broker.disconnected(key, ctx.io.now, &mut ctx.io);
}

/// The other node has all of the session: frees its slot here.
pub(super) fn part(ctx: &mut Ctx, key: ConnKey) {
    let Some(offline) = ctx.io.states.mqtt.sessions.remove(key) else { return };
    ctx.io.show_sessions();
    ctx.io.conns.give_back(key);
    let holder = Holder { shard: ctx.io.shard, conn: key };
    super::claims::release(ctx, offline.id, holder);
}

/// Drops the session in a slot that now holds a connection and cannot continue it.
pub(super) fn forget(ctx: &mut Ctx, key: ConnKey) {
    if let Some(offline) = ctx.io.states.mqtt.sessions.remove(key) {
        ctx.io.show_sessions();
        let holder = Holder { shard: ctx.io.shard, conn: key };
        persist::release(ctx, offline.id, holder, offline.session.persistence);
    }
}

impl Io {
    /// An acknowledgement has completed a message to a client.
    pub(super) fn ended_mqtt(&mut self, key: ConnKey, message: u64) {
        let client = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
        let session = client.and_then(|client| client.session.as_mut());
        if session.is_some_and(|session| session.ended(message)) {
            persist::request_snapshot_later(self, key);
        }
    }

    /// Resends what a client has not acknowledged on an older connection, as far as there is room; returns
    /// whether all of it was sent.
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
        assert!(size_of::<OfflineSession>() <= 224, "{}", size_of::<OfflineSession>());
        assert!(size_of::<Persistence>() <= 96, "{}", size_of::<Persistence>());
        assert!(size_of::<Cursors>() <= 128, "{}", size_of::<Cursors>());
    }
}
