//! Persistent sessions (docs/protocol/mqtt-state.md): changes that are persisted before the client gets its
//! reply. For sessions of the previous process see [`takeover`](super::takeover).
//!
//! Requests to persist are collected as changes occur ([`request_snapshot`]) and executed once per turn for each session
//! ([`persist`]), so all changes of a turn share one snapshot or one entry.
//!
//! Invariants: CONNACK, SUBACK and UNSUBACK of a persistent session follow the snapshot that contains their
//! effect; PUBLISH of QoS 2, PUBREL and PUBCOMP follow the entry with their event.

use super::client::{Client, end};
use super::connect::{connected, displaced, forgo_will, refused};
use super::cursors::CountedBy;
use super::delete_retry::SessionDelete;
use super::deliver::Way;
use super::entries::put_event;
use super::offline::OfflineSession;
use super::pending::Item;
use super::persistence::{Entry, Handover, HeadState, Intended, Persistence, Prepared, Wait};
use super::sending::Under;
use super::session::{Sent, Session};
use super::work::Work;
use super::{claims, packets, session, store, takeover, takeover_read};
use crate::io::context::Ctx;
use crate::io::shard_io::{Io, Timer};
use hubsub_mqtt::{Event, Fault};
use hubsub_route::claims::Holder;
use hubsub_route::rows::CLASS;
use hubsub_route::{Asker, Outcome, Owner, Producer, Ticket};
use hubsub_types::{ConnKey, ErrorCode, HubId, ProducerId, Qos};
use hubsub_wire::mqtt::{PacketId, Reason};
use std::rc::Rc;

/// The most messages of a session that wait for one entry. Later ones stay in `pending`, within the client's
/// output limit; the next entry is written once this one is safe.
const PREPARED_MAX: usize = 256;

/// Each consecutive failed snapshot doubles the delay before the next one, up to this many times.
const FAILURES_MAX: u8 = 6;

/// The operation that a write completes.
pub enum Written {
    /// A snapshot of the connection with this visit number, and those that wait for it.
    Snapshot(ConnKey, u32, Vec<Wait>),
    /// An entry: visit number, entry number, and those that wait for it.
    Entry(ConnKey, u32, u64, Vec<Wait>),
    /// A snapshot and entries that are written atomically.
    All(Vec<Written>),
    /// The delete of a snapshot, after which the client id is free.
    Deleted(Holder, SessionDelete),
    /// A repeated delete; the client id was free already.
    DeletedAgain(SessionDelete),
    /// The fence of a session that is read for this slot.
    Fence(ConnKey),
    /// The delete of a snapshot by a connection that starts a new session.
    Cleared(ConnKey, SessionDelete),
}

impl Ctx {
    /// True if sessions are persisted here: in a log, or in the session store of a lone node.
    pub(super) fn records_sessions(&self) -> bool {
        let classes = self.broker.classes();
        let is_logged = |class| classes.get(class).durability.is_logged();
        let has_log = || classes.index_of(CLASS).is_some_and(is_logged);
        match self.io.states.mqtt.store {
            Some(_) => !self.broker.is_clustered(),
            None => self.io.info.keeps_sessions && has_log(),
        }
    }

    /// True if another node may hold or have held a session: then it is read when a client id is granted.
    pub(super) fn reads_sessions(&self) -> bool {
        self.broker.is_clustered() && self.records_sessions()
    }

    /// The writer of snapshots here, as the holder of an epoch.
    pub(super) fn owner(&self, epoch: u64, born: u64) -> Owner {
        Owner { epoch, run: self.io.states.links.run(), born, is_over: false }
    }
}

/// The session of a slot, online or offline.
fn session_of(io: &mut Io, key: ConnKey) -> Option<&mut Session> {
    let client = io.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
    match client.and_then(|client| client.session.as_deref_mut()) {
        Some(session) => Some(session),
        None => io.states.mqtt.sessions.get_mut(key).map(|offline| &mut offline.session),
    }
}

/// Schedules a session to be persisted in this turn.
pub(super) fn schedule(io: &mut Io, key: ConnKey) {
    let Some(persistence) = persistence_of(io, key) else { return };
    if !std::mem::replace(&mut persistence.is_scheduled, true) {
        io.own.queue(Work::Record(key));
    }
}

fn persistence_of(io: &mut Io, key: ConnKey) -> Option<&mut Persistence> {
    session_of(io, key)?.persistence.as_deref_mut()
}

/// Schedules a snapshot for the end of this turn; `wait` is completed by it. Returns whether the session is
/// persistent.
pub(super) fn request_snapshot(io: &mut Io, key: ConnKey, wait: Option<Wait>) -> bool {
    let Some(persistence) = persistence_of(io, key) else { return false };
    if let Some(wait) = wait {
        persistence.work().waits.push(wait);
    }
    persistence.snapshot_is_due = true;
    schedule(io, key);
    true
}

/// The cursors of a session have advanced, or a write failed: schedules a snapshot after a delay that doubles
/// per failure.
pub(super) fn request_snapshot_later(io: &mut Io, key: ConnKey) {
    let Some(persistence) = persistence_of(io, key) else { return };
    persistence.has_moved = true;
    let failures = persistence.failures.min(FAILURES_MAX);
    if !std::mem::replace(&mut persistence.is_timed, true) {
        let delay_ms = io.limits.mqtt_session_snapshot_ms.saturating_mul(1 << failures);
        io.timers.set(io.now.mono_ms + delay_ms, Timer::Snapshot(key));
    }
}

/// The snapshot timer of a session has fired.
pub fn snapshot_timer(ctx: &mut Ctx, key: ConnKey) {
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
    persistence.is_timed = false;
    if persistence.has_moved {
        request_snapshot(&mut ctx.io, key, None);
    }
}

/// Adds an event to the entry of this turn; `wait` is completed by it.
pub(super) fn record_event(io: &mut Io, key: ConnKey, event: &Event<u64>, wait: Wait) {
    let Some(client) = io.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) else { return };
    let number = client.machine.next_event();
    if let Some(persistence) = client.session.as_mut().and_then(|session| session.persistence.as_mut()) {
        let work = persistence.work();
        put_event(number, event, &mut work.parts);
        work.parts_wait.push(wait);
        schedule(io, key);
    }
}

/// Publishes a client's QoS 2 message after its number is persisted; the number identifies a retransmission.
pub(super) fn intend(ctx: &mut Ctx, key: ConnKey, id: PacketId, what: Intended) {
    let event = Event::Intended { id, number: what.intent };
    record_event(&mut ctx.io, key, &event, Wait::Intended(Box::new(what)));
}

/// The number was persisted, or the write failed.
fn publish(ctx: &mut Ctx, key: ConnKey, what: Intended, is_safe: bool) {
    let Intended { number, intent, record } = what;
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
    let producer = Producer { id: ProducerId(persistence.head.born), sequence: intent };
    let ticket = Ticket { shard: ctx.io.shard, asker: Asker::Client { conn: key, slot: number } };
    let outcome = if is_safe {
        let record = record.from_producer(Some(producer));
        ctx.broker.publish_record(ticket, record, ctx.io.now, &mut ctx.io)
    } else {
        Outcome::Now(Err(ErrorCode::LogFailed))
    };
    match (outcome, ctx.io.states.mqtt.sessions.get_mut(key)) {
        (Outcome::Now(outcome), Some(offline)) => offline.published(number, outcome.is_ok()),
        (Outcome::Now(outcome), None) => {
            packets::published(ctx, key, number, outcome.map(|published| published.receivers));
        }
        (Outcome::Later, _) => {
            ctx.io.expects_more = true;
            if let Some(client) = ctx.io.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) {
                client.waits_for_log = client.machine.publishes();
            }
        }
    }
}

/// Writes the entry of a session's changes in this turn, and its snapshot if one is due.
pub fn persist(ctx: &mut Ctx, key: ConnKey) {
    ctx.io.pump_mqtt(key);
    ctx.io.prepare(key);
    let io = &mut ctx.io;
    let has_store = io.states.mqtt.store.is_some();
    let id: Box<str> = match io.conns.get(key).and_then(|conn| conn.mqtt.as_ref()) {
        Some(client) => client.machine.client_id().into(),
        None => match io.states.mqtt.sessions.get_mut(key) {
            Some(offline) => offline.id.clone(),
            None => return,
        },
    };
    let Some(persistence) = persistence_of(io, key) else { return };
    persistence.is_scheduled = false;
    let visit = persistence.visit;
    if persistence.snapshot_is_due && persistence.needs_all(has_store) {
        write_all(ctx, key, id, visit);
    } else {
        let entry = persistence.take_entry();
        write_entry(ctx, key, &id, entry, visit);
        write_snapshot(ctx, key, id, visit);
    }
    if let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) {
        offline.session.persistence.iter_mut().for_each(|persistence| persistence.shrink());
    }
}

fn write_entry(ctx: &mut Ctx, key: ConnKey, id: &str, entry: Option<Entry>, visit: u32) {
    let Some((number, entry, waits)) = entry else { return };
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
    persistence.work().in_flight += 1;
    ctx.io.metrics.mqtt_session_entries_total.add(1);
    store::append(ctx, id.into(), entry, Written::Entry(key, visit, number, waits));
}

/// Writes a snapshot of a session if one is due.
fn write_snapshot(ctx: &mut Ctx, key: ConnKey, id: Box<str>, visit: u32) {
    let Some((snapshot, then)) = take_snapshot(ctx, key, visit) else { return };
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
    let (is_over, HeadState { epoch, born, last_entry, through, .. }) =
        (persistence.is_moving(), persistence.head);
    let owner = Owner { is_over, ..ctx.owner(epoch, born) };
    store::save(ctx, id, snapshot, (owner, last_entry, through), then);
}

/// The snapshot of a session and those that wait for it, if one is due.
fn take_snapshot(ctx: &mut Ctx, key: ConnKey, visit: u32) -> Option<(Vec<u8>, Written)> {
    let persistence = persistence_of(&mut ctx.io, key)?;
    if !std::mem::take(&mut persistence.snapshot_is_due) {
        return None;
    }
    let places = ctx.broker.cursors.hubs.places(key.index);
    let places: Vec<(HubId, u64)> = places.map(|(hub, next, _)| (hub, next - 1)).collect();
    let snapshot = ctx.io.snapshot_of(key, &places)?;
    let persistence = persistence_of(&mut ctx.io, key)?;
    let waits = persistence.work.as_mut().map_or_else(Vec::new, |work| std::mem::take(&mut work.waits));
    persistence.work().in_flight += 1;
    ctx.io.metrics.mqtt_session_snapshots_total.add(1);
    Some((snapshot, Written::Snapshot(key, visit, waits)))
}

/// Writes a snapshot with all live messages, which makes all earlier entries obsolete. In a store that is one
/// request, so no snapshot refers to messages without an entry.
fn write_all(ctx: &mut Ctx, key: ConnKey, id: Box<str>, visit: u32) {
    let entries = ctx.io.all_entries(key);
    if ctx.io.states.mqtt.store.is_none() {
        for entry in entries {
            write_entry(ctx, key, &id, Some(entry), visit);
        }
        return write_snapshot(ctx, key, id, visit);
    }
    let Some((snapshot, then)) = take_snapshot(ctx, key, visit) else { return };
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
    let through = persistence.head.last_entry - entries.len() as u64;
    persistence.work().in_flight += entries.len() as u32;
    ctx.io.metrics.mqtt_session_entries_total.add(entries.len() as u64);
    // The reply to CONNECT, which waits for the snapshot, precedes those that wait for the entries.
    let (mut all, mut bytes) = (vec![then], Vec::new());
    for (number, entry, waits) in entries {
        bytes.push(entry);
        all.push(Written::Entry(key, visit, number, waits));
    }
    store::save_all(ctx, id, snapshot, (through, bytes), Written::All(all));
}

impl Io {
    /// Entries with all persisted messages of a session and the changes of this turn.
    fn all_entries(&mut self, key: ConnKey) -> Vec<Entry> {
        let client = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_deref_mut());
        match client {
            Some(Client { session, pending, .. }) => {
                let Some(session) = session.as_deref_mut() else { return Vec::new() };
                let waiting = pending.iter().filter(|item| item.key > 0);
                session.take_all_entries(waiting.map(|item| (item.key, &*item.message, &item.grant)))
            }
            None => {
                self.states.mqtt.sessions.get_mut(key).map_or_else(Vec::new, OfflineSession::take_all_entries)
            }
        }
    }

    /// The snapshot of a session; `places`: the offset per hub up to which its connection has received all
    /// matching records.
    fn snapshot_of(&mut self, key: ConnKey, places: &[(HubId, u64)]) -> Option<Vec<u8>> {
        let mut snapshot = Vec::with_capacity(128);
        let client = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_deref_mut());
        let (session, queued_from, cursors) = match client {
            Some(Client { session, pending, .. }) => {
                let queued_from = pending.front().map(|item| item.key).filter(|&key| key > 0);
                let session = session.as_deref_mut()?;
                let cursors = session.cursors.as_deref().map(|cursors| cursors.as_sent(pending, places));
                (session, queued_from, cursors)
            }
            None => {
                let offline = self.states.mqtt.sessions.get_mut(key)?;
                let (queued_from, cursors) =
                    (offline.first_key(), offline.session.cursors.as_deref().cloned());
                (&mut offline.session, queued_from, cursors)
            }
        };
        let (last, in_flight_from) = (session.last_key(), session.first_sent().unwrap_or(u64::MAX));
        let persistence = session.persistence.as_mut()?;
        (persistence.has_snapshot, persistence.has_moved) = (true, false);
        let head = persistence.head(last, in_flight_from, queued_from.unwrap_or(last + 1));
        head.write(cursors.as_ref(), &mut snapshot);
        match self.conns.get(key).and_then(|conn| conn.mqtt.as_ref()) {
            Some(client) => client.machine.state().encode(&mut snapshot),
            None => self.states.mqtt.sessions.get_mut(key)?.state.encode(&mut snapshot),
        }
        Some(snapshot)
    }

    /// Assigns packet ids to waiting QoS 2 messages and those after them; they are sent once that is
    /// persisted.
    fn prepare(&mut self, key: ConnKey) {
        let now_us = self.now.wall_us;
        let Some(conn) = self.conns.get_mut(key).filter(|conn| !conn.is_closing()) else { return };
        let Some(client) = conn.mqtt.as_deref_mut().filter(|client| client.connecting.is_none()) else {
            return;
        };
        let Some(session) = client.session.as_deref_mut() else { return };
        let Some(mut persistence) = session.persistence.take() else { return };
        while persistence.work().prepared.len() < PREPARED_MAX
            && let Some(next) = client.pending.front()
        {
            let (qos, is_recorded) = (next.grant.qos, next.is_recorded());
            let is_held_up = qos > Qos::AtMostOnce && client.machine.window.is_full();
            if is_held_up || (!persistence.has_prepared() && !is_recorded) {
                break;
            }
            let Some(Item { message, grant, group, key: queued, counted, .. }) = client.pending.pop() else {
                break;
            };
            self.output_bytes -= message.weight();
            if message.content().is_expired(now_us) {
                session.done(counted, &message.content());
                self.metrics.mqtt_unsent_total.add(1);
                continue;
            }
            let mut under = None;
            if qos > Qos::AtMostOnce {
                let number = if queued > 0 { queued } else { session.next_key() };
                let id = client.machine.window.send(qos, number).expect("the window was looked at");
                if is_recorded {
                    if queued == 0 {
                        persistence.put(false, number, counted, &message, &grant);
                    }
                    let sent = Event::Sent { id, qos, key: number };
                    put_event(client.machine.next_event(), &sent, &mut persistence.work().parts);
                }
                let is_recorded = queued > 0 || is_recorded;
                let (message, grant) = (Rc::clone(&message), grant.clone());
                session.send(number, Sent { message, grant, counted, is_recorded });
                under = Some((id, number));
            }
            let after = persistence.last_entry();
            persistence.work().prepared.push_back(Prepared { message, grant, group, under, after });
        }
        session.persistence = Some(persistence);
    }

    /// Sends messages whose entry is safe, as far as there is room; returns whether none is left.
    pub(super) fn send_prepared(&mut self, key: ConnKey) -> bool {
        loop {
            let Some(conn) = self.conns.get_mut(key).filter(|conn| !conn.is_closing()) else { return false };
            let has_room = super::sending::has_room(conn);
            let session = conn.mqtt.as_mut().and_then(|client| client.session.as_mut());
            let Some(persistence) = session.and_then(|session| session.persistence.as_mut()) else {
                return true;
            };
            let Some(work) = &mut persistence.work else { return true };
            match work.prepared.front() {
                None => return true,
                Some(next) if has_room && next.after <= persistence.safe => {}
                Some(_) => return false,
            }
            let next = work.prepared.pop_front();
            let Some(Prepared { message, grant, group, under, .. }) = next else { return true };
            let under = under.map(|(id, key)| Under { id, key, dup: false });
            let way = Way { group: group.as_deref(), counted: CountedBy::None };
            self.send_mqtt(key.index, &message.content(), &grant, Some(&message), way, under);
        }
    }
}

/// Ends a session: deletes its snapshot, then releases its client id.
pub(super) fn release(ctx: &mut Ctx, id: Box<str>, holder: Holder, persistence: Option<Box<Persistence>>) {
    match persistence.filter(|persistence| persistence.has_snapshot) {
        Some(persistence) => {
            let HeadState { epoch, born, .. } = persistence.head;
            let delete = SessionDelete::new(id.clone(), epoch, born);
            store::end(ctx, id, (epoch, born), Written::Deleted(holder, delete));
        }
        None => claims::release(ctx, id, holder),
    }
}

/// Hands an offline session over to another node, if it is persistent: after a last snapshot its slot here
/// ends and its client id is released.
pub(super) fn hand_over(ctx: &mut Ctx, key: ConnKey) -> bool {
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return false };
    if !persistence.is_moving() {
        persistence.work().handover = Handover::Recorded;
        request_snapshot(&mut ctx.io, key, None);
    }
    true
}

/// True if a session moves to another node, which then executes its timers.
pub(super) fn is_moving(io: &mut Io, key: ConnKey) -> bool {
    persistence_of(io, key).is_some_and(|persistence| persistence.is_moving())
}

/// A write has completed; `is_snapshot`: the snapshot. A session that moves to another node proceeds to its next
/// step.
fn write_done(ctx: &mut Ctx, key: ConnKey, is_snapshot: bool) {
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
    if is_snapshot && persistence.work().handover == Handover::Recorded {
        persistence.work().handover = Handover::Left;
        session::comes_to_rest(ctx, key);
    }
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
    if persistence.work().handover == Handover::Left
        && persistence.work().in_flight == 0
        && !persistence.is_scheduled
    {
        session::part(ctx, key);
    } else if let Some(offline) = ctx.io.states.mqtt.sessions.get_mut(key) {
        offline.session.persistence.iter_mut().for_each(|persistence| persistence.shrink());
    }
}

/// Handles the outcome of a write.
pub fn written(ctx: &mut Ctx, what: Written, outcome: Result<u64, ErrorCode>) {
    if outcome.is_err() {
        ctx.io.metrics.mqtt_session_unwritten_total.add(1);
    }
    let has_store = ctx.io.states.mqtt.store.is_some();
    match what {
        Written::Snapshot(key, visit, waits) => {
            let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
            persistence.work().in_flight -= 1;
            persistence.failures = if outcome.is_err() { persistence.failures.saturating_add(1) } else { 0 };
            let is_there = persistence.visit == visit;
            if !matches!(outcome, Ok(_) | Err(ErrorCode::NotAllowed)) {
                // A store refuses a snapshot that refers to a missing entry. In a log the previous snapshot
                // and all entries remain.
                persistence.has_gap |= has_store;
                request_snapshot_later(&mut ctx.io, key);
            }
            if is_there {
                for wait in waits {
                    match wait {
                        // A later holder has written the snapshot.
                        Wait::Connected(_) if outcome == Err(ErrorCode::NotAllowed) => displaced(ctx, key),
                        wait => resume_wait(ctx, key, wait, outcome.is_ok()),
                    }
                }
            }
            write_done(ctx, key, true);
        }
        Written::Entry(key, visit, number, waits) => {
            let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
            persistence.work().in_flight -= 1;
            match outcome {
                // Earlier entries are safe too: where one was refused, the connection ended.
                Ok(_) => persistence.safe = number,
                Err(_) => {
                    persistence.has_gap = true;
                    // An offline session has no connection to end: a snapshot compensates.
                    request_snapshot_later(&mut ctx.io, key);
                }
            }
            let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
            let is_there = persistence.visit == visit;
            for wait in waits {
                match wait {
                    Wait::Intended(what) => publish(ctx, key, *what, outcome.is_ok()),
                    wait if is_there => resume_wait(ctx, key, wait, outcome.is_ok()),
                    _ => {}
                }
            }
            match outcome {
                Ok(_) => ctx.io.pump_mqtt(key),
                // The session's snapshot contains what waits, once its connection has ended.
                Err(_) if is_there && ctx.io.conns.get(key).is_some_and(|conn| !conn.is_closing()) => {
                    end(ctx, key, Fault::of(Reason::ImplementationSpecific));
                }
                Err(_) => {}
            }
            write_done(ctx, key, false);
        }
        Written::All(all) => {
            for what in all {
                written(ctx, what, outcome);
            }
        }
        Written::Deleted(holder, delete) => {
            let id = delete.id.clone();
            ctx.io.delete_done(delete, outcome);
            claims::release(ctx, id, holder);
        }
        Written::DeletedAgain(delete) => ctx.io.delete_retried(delete, outcome),
        Written::Fence(key) => takeover_read::fenced(ctx, key, outcome.is_ok()),
        Written::Cleared(key, delete) => takeover::cleared(ctx, key, delete, outcome),
    }
}

/// Resumes an operation after its write succeeded or failed.
fn resume_wait(ctx: &mut Ctx, key: ConnKey, wait: Wait, is_safe: bool) {
    if ctx.io.conns.get(key).is_none_or(|conn| conn.is_closing()) {
        return;
    }
    match wait {
        Wait::Connected(present) if is_safe => connected(ctx, key, present),
        Wait::Connected(_) if forgo_will(&mut ctx.io, key) => connected(ctx, key, false),
        Wait::Connected(_) => refused(ctx, key, Reason::ServerUnavailable),
        Wait::Granted(number) if is_safe => ctx.io.mqtt_granted_now(key, number, Ok(())),
        Wait::Unsubscribed(number) if is_safe => {
            ctx.io.with_mqtt(key, |client, out| client.machine.unsubscribed(number, out));
        }
        Wait::Recorded(number) if is_safe => {
            ctx.io.with_mqtt(key, |client, out| client.machine.recorded(number, out));
        }
        Wait::Intended(_) => unreachable!("it waits for an entry"),
        // The client must not get a success for a session that may be lost.
        Wait::Granted(_) | Wait::Unsubscribed(_) | Wait::Recorded(_) => {
            end(ctx, key, Fault::of(Reason::ImplementationSpecific))
        }
    }
}
