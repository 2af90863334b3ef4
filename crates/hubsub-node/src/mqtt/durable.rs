//! Persistent sessions (docs/protocol/mqtt-state.md): changes that are persisted before the client gets its
//! reply. For sessions of the previous process see [`adoption`](super::adoption).
//!
//! Requests to persist are collected as changes occur ([`due`]) and executed once per turn for each session
//! ([`record`]), so all changes of a turn share one snapshot or one entry. In this module "row" is the
//! snapshot.
//!
//! Invariants: CONNACK, SUBACK and UNSUBACK of a persistent session follow the snapshot that contains their
//! effect; PUBLISH of QoS 2, PUBREL and PUBCOMP follow the entry with their event.

use super::absent::Absent;
use super::arrival::{connected, displaced, forgo_will, refused};
use super::client::{Client, end};
use super::cursors::Row;
use super::deliver::Way;
use super::endings::Ending;
use super::entries::put_event;
use super::kept::{Entry, Intended, Kept, Own, Parting, Prepared, Wait};
use super::pending::Item;
use super::sending::Under;
use super::session::{Sent, Session};
use super::work::Work;
use super::{adoption, claims, packets, reading, session, store};
use crate::io::context::Ctx;
use crate::io::shard_io::{Io, Timer};
use hubsub_route::claims::Holder;
use hubsub_route::rows::CLASS;
use hubsub_route::{Asker, Outcome, Owner, Producer, Ticket};
use hubsub_types::{ConnKey, ErrorCode, HubId, ProducerId, Qos};
use hubsub_wire::mqtt::{Event, Fault, PacketId, Reason};
use std::rc::Rc;

/// The most messages of a session that wait for one entry. Later ones stay in `pending`, within the client's
/// output limit; the next entry is written once this one is safe.
const PREPARED_MAX: usize = 256;

/// Each consecutive failed snapshot doubles the delay before the next one, up to this many times.
const FAILURES_MAX: u8 = 6;

/// The operation that a write completes.
pub enum Written {
    /// A snapshot of the connection with this visit number, and those that wait for it.
    Row(ConnKey, u32, Vec<Wait>),
    /// An entry: visit number, entry number, and those that wait for it.
    Entry(ConnKey, u32, u64, Vec<Wait>),
    /// A snapshot and entries that are written atomically.
    All(Vec<Written>),
    /// The delete of a snapshot, after which the client id is free.
    End(Holder, Ending),
    /// A repeated delete; the client id was free already.
    EndAgain(Ending),
    /// The fence of a session that is read for this slot.
    Fence(ConnKey),
    /// The delete of a snapshot by a connection that starts a new session.
    Cleared(ConnKey, Ending),
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
        None => io.states.mqtt.sessions.get_mut(key).map(|absent| &mut absent.session),
    }
}

/// Schedules a session to be persisted in this turn.
pub(super) fn call(io: &mut Io, key: ConnKey) {
    let Some(kept) = kept_of(io, key) else { return };
    if !std::mem::replace(&mut kept.is_called, true) {
        io.own.queue(Work::Record(key));
    }
}

fn kept_of(io: &mut Io, key: ConnKey) -> Option<&mut Kept> {
    session_of(io, key)?.kept.as_deref_mut()
}

/// Schedules a snapshot for the end of this turn; `wait` is completed by it. Returns whether the session is
/// persistent.
pub(super) fn due(io: &mut Io, key: ConnKey, wait: Option<Wait>) -> bool {
    let Some(kept) = kept_of(io, key) else { return false };
    if let Some(wait) = wait {
        kept.work().waits.push(wait);
    }
    kept.row_is_due = true;
    call(io, key);
    true
}

/// The cursors of a session have advanced, or a write failed: schedules a snapshot after a delay that doubles
/// per failure.
pub(super) fn moved(io: &mut Io, key: ConnKey) {
    let Some(kept) = kept_of(io, key) else { return };
    kept.has_moved = true;
    let failures = kept.failures.min(FAILURES_MAX);
    if !std::mem::replace(&mut kept.is_timed, true) {
        let delay_ms = io.limits.mqtt_session_snapshot_ms.saturating_mul(1 << failures);
        io.timers.set(io.now.mono_ms + delay_ms, Timer::Snapshot(key));
    }
}

/// The snapshot timer of a session has fired.
pub fn look(ctx: &mut Ctx, key: ConnKey) {
    let Some(kept) = kept_of(&mut ctx.io, key) else { return };
    kept.is_timed = false;
    if kept.has_moved {
        due(&mut ctx.io, key, None);
    }
}

/// Adds an event to the entry of this turn; `wait` is completed by it.
pub(super) fn happened(io: &mut Io, key: ConnKey, event: &Event<u64>, wait: Wait) {
    let Some(client) = io.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) else { return };
    let number = client.machine.next_event();
    if let Some(kept) = client.session.as_mut().and_then(|session| session.kept.as_mut()) {
        let work = kept.work();
        put_event(number, event, &mut work.parts);
        work.parts_wait.push(wait);
        call(io, key);
    }
}

/// Publishes a client's QoS 2 message after its number is persisted; the number identifies a retransmission.
pub(super) fn intend(ctx: &mut Ctx, key: ConnKey, id: PacketId, what: Intended) {
    let event = Event::Intended { id, number: what.intent };
    happened(&mut ctx.io, key, &event, Wait::Intended(Box::new(what)));
}

/// The number was persisted, or the write failed.
fn publish(ctx: &mut Ctx, key: ConnKey, what: Intended, is_safe: bool) {
    let Intended { number, intent, record } = what;
    let Some(kept) = kept_of(&mut ctx.io, key) else { return };
    let producer = Producer { id: ProducerId(kept.head.born), sequence: intent };
    let ticket = Ticket { shard: ctx.io.shard, asker: Asker::Client { conn: key, slot: number } };
    let outcome = if is_safe {
        let record = record.from_producer(Some(producer));
        ctx.broker.publish_record(ticket, record, ctx.io.now, &mut ctx.io)
    } else {
        Outcome::Now(Err(ErrorCode::LogFailed))
    };
    match (outcome, ctx.io.states.mqtt.sessions.get_mut(key)) {
        (Outcome::Now(outcome), Some(absent)) => absent.published(number, outcome.is_ok()),
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
pub fn record(ctx: &mut Ctx, key: ConnKey) {
    ctx.io.pump_mqtt(key);
    ctx.io.prepare(key);
    let io = &mut ctx.io;
    let has_store = io.states.mqtt.store.is_some();
    let id: Box<str> = match io.conns.get(key).and_then(|conn| conn.mqtt.as_ref()) {
        Some(client) => client.machine.client_id().into(),
        None => match io.states.mqtt.sessions.get_mut(key) {
            Some(absent) => absent.id.clone(),
            None => return,
        },
    };
    let Some(kept) = kept_of(io, key) else { return };
    kept.is_called = false;
    let visit = kept.visit;
    if kept.row_is_due && kept.needs_all(has_store) {
        record_all(ctx, key, id, visit);
    } else {
        let entry = kept.take_entry();
        record_entry(ctx, key, &id, entry, visit);
        record_row(ctx, key, id, visit);
    }
    if let Some(absent) = ctx.io.states.mqtt.sessions.get_mut(key) {
        absent.session.kept.iter_mut().for_each(|kept| kept.rest());
    }
}

fn record_entry(ctx: &mut Ctx, key: ConnKey, id: &str, entry: Option<Entry>, visit: u32) {
    let Some((number, entry, waits)) = entry else { return };
    let Some(kept) = kept_of(&mut ctx.io, key) else { return };
    kept.work().under_way += 1;
    ctx.io.metrics.mqtt_session_entries_total.add(1);
    store::append(ctx, id.into(), entry, Written::Entry(key, visit, number, waits));
}

/// Writes a snapshot of a session if one is due.
fn record_row(ctx: &mut Ctx, key: ConnKey, id: Box<str>, visit: u32) {
    let Some((row, then)) = take_row(ctx, key, visit) else { return };
    let Some(kept) = kept_of(&mut ctx.io, key) else { return };
    let (is_over, Own { epoch, born, last_entry, through, .. }) = (kept.parts(), kept.head);
    let owner = Owner { is_over, ..ctx.owner(epoch, born) };
    store::save(ctx, id, row, (owner, last_entry, through), then);
}

/// The snapshot of a session and those that wait for it, if one is due.
fn take_row(ctx: &mut Ctx, key: ConnKey, visit: u32) -> Option<(Vec<u8>, Written)> {
    let kept = kept_of(&mut ctx.io, key)?;
    if !std::mem::take(&mut kept.row_is_due) {
        return None;
    }
    let places = ctx.broker.cursors.hubs.places(key.index);
    let places: Vec<(HubId, u64)> = places.map(|(hub, next, _)| (hub, next - 1)).collect();
    let row = ctx.io.row_of(key, &places)?;
    let kept = kept_of(&mut ctx.io, key)?;
    let waits = kept.work.as_mut().map_or_else(Vec::new, |work| std::mem::take(&mut work.waits));
    kept.work().under_way += 1;
    ctx.io.metrics.mqtt_session_rows_total.add(1);
    Some((row, Written::Row(key, visit, waits)))
}

/// Writes a snapshot with all live messages, which makes all earlier entries obsolete. In a store that is one
/// request, so no snapshot refers to messages without an entry.
fn record_all(ctx: &mut Ctx, key: ConnKey, id: Box<str>, visit: u32) {
    let entries = ctx.io.all_entries(key);
    if ctx.io.states.mqtt.store.is_none() {
        for entry in entries {
            record_entry(ctx, key, &id, Some(entry), visit);
        }
        return record_row(ctx, key, id, visit);
    }
    let Some((row, then)) = take_row(ctx, key, visit) else { return };
    let Some(kept) = kept_of(&mut ctx.io, key) else { return };
    let through = kept.head.last_entry - entries.len() as u64;
    kept.work().under_way += entries.len() as u32;
    ctx.io.metrics.mqtt_session_entries_total.add(entries.len() as u64);
    // The reply to CONNECT, which waits for the snapshot, precedes those that wait for the entries.
    let (mut all, mut kept) = (vec![then], Vec::new());
    for (number, entry, waits) in entries {
        kept.push(entry);
        all.push(Written::Entry(key, visit, number, waits));
    }
    store::save_all(ctx, id, row, (through, kept), Written::All(all));
}

impl Io {
    /// Entries with all persisted messages of a session and the changes of this turn.
    fn all_entries(&mut self, key: ConnKey) -> Vec<Entry> {
        let client = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_deref_mut());
        match client {
            Some(Client { session, pending, .. }) => {
                let Some(session) = session.as_deref_mut() else { return Vec::new() };
                let waiting = pending.iter().filter(|item| item.key > 0);
                session.take_all(waiting.map(|item| (item.key, &*item.message, &item.grant)))
            }
            None => self.states.mqtt.sessions.get_mut(key).map_or_else(Vec::new, Absent::take_all),
        }
    }

    /// The snapshot of a session; `places`: the offset per hub up to which its connection has received all
    /// matching records.
    fn row_of(&mut self, key: ConnKey, places: &[(HubId, u64)]) -> Option<Vec<u8>> {
        let mut row = Vec::with_capacity(128);
        let client = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_deref_mut());
        let (session, queued_from, cursors) = match client {
            Some(Client { session, pending, .. }) => {
                let queued_from = pending.front().map(|item| item.key).filter(|&key| key > 0);
                let session = session.as_deref_mut()?;
                let cursors = session.cursors.as_deref().map(|cursors| cursors.as_sent(pending, places));
                (session, queued_from, cursors)
            }
            None => {
                let absent = self.states.mqtt.sessions.get_mut(key)?;
                let (queued_from, cursors) = (absent.first_key(), absent.session.cursors.as_deref().cloned());
                (&mut absent.session, queued_from, cursors)
            }
        };
        let (last, under_way_from) = (session.last_key(), session.first_sent().unwrap_or(u64::MAX));
        let kept = session.kept.as_mut()?;
        (kept.has_row, kept.has_moved) = (true, false);
        let head = kept.head(last, under_way_from, queued_from.unwrap_or(last + 1));
        head.write(cursors.as_ref(), &mut row);
        match self.conns.get(key).and_then(|conn| conn.mqtt.as_ref()) {
            Some(client) => client.machine.state().encode(&mut row),
            None => self.states.mqtt.sessions.get_mut(key)?.state.encode(&mut row),
        }
        Some(row)
    }

    /// Assigns packet ids to waiting QoS 2 messages and those after them; they are sent once that is
    /// persisted.
    fn prepare(&mut self, key: ConnKey) {
        let now_us = self.now.wall_us;
        let Some(conn) = self.conns.get_mut(key).filter(|conn| !conn.is_closing()) else { return };
        let Some(client) = conn.mqtt.as_deref_mut().filter(|client| client.arrival.is_none()) else { return };
        let Some(session) = client.session.as_deref_mut() else { return };
        let Some(mut kept) = session.kept.take() else { return };
        while kept.work().prepared.len() < PREPARED_MAX
            && let Some(next) = client.pending.front()
        {
            let (qos, is_recorded) = (next.grant.qos, next.is_recorded());
            let is_held_up = qos > Qos::AtMostOnce && client.machine.window.is_full();
            if is_held_up || (!kept.has_prepared() && !is_recorded) {
                break;
            }
            let Some(Item { message, grant, group, key: queued, row, .. }) = client.pending.pop() else {
                break;
            };
            self.output_bytes -= message.weight();
            if message.said().is_expired(now_us) {
                session.done(row, &message.said());
                self.metrics.mqtt_unsent_total.add(1);
                continue;
            }
            let mut under = None;
            if qos > Qos::AtMostOnce {
                let number = if queued > 0 { queued } else { session.next_key() };
                let id = client.machine.window.send(qos, number).expect("the window was looked at");
                if is_recorded {
                    if queued == 0 {
                        kept.put(false, number, row, &message, &grant);
                    }
                    let sent = Event::Sent { id, qos, key: number };
                    put_event(client.machine.next_event(), &sent, &mut kept.work().parts);
                }
                let is_recorded = queued > 0 || is_recorded;
                let (message, grant) = (Rc::clone(&message), grant.clone());
                session.send(number, Sent { message, grant, row, is_recorded });
                under = Some((id, number));
            }
            let after = kept.last_entry();
            kept.work().prepared.push_back(Prepared { message, grant, group, under, after });
        }
        session.kept = Some(kept);
    }

    /// Sends messages whose entry is safe, as far as there is room; returns whether none is left.
    pub(super) fn send_prepared(&mut self, key: ConnKey) -> bool {
        loop {
            let Some(conn) = self.conns.get_mut(key).filter(|conn| !conn.is_closing()) else { return false };
            let has_room = super::sending::has_room(conn);
            let session = conn.mqtt.as_mut().and_then(|client| client.session.as_mut());
            let Some(kept) = session.and_then(|session| session.kept.as_mut()) else { return true };
            let Some(work) = &mut kept.work else { return true };
            match work.prepared.front() {
                None => return true,
                Some(next) if has_room && next.after <= kept.safe => {}
                Some(_) => return false,
            }
            let next = work.prepared.pop_front();
            let Some(Prepared { message, grant, group, under, .. }) = next else { return true };
            let under = under.map(|(id, key)| Under { id, key, dup: false });
            let way = Way { group: group.as_deref(), row: Row::None };
            self.send_mqtt(key.index, &message.said(), &grant, Some(&message), way, under);
        }
    }
}

/// Ends a session: deletes its snapshot, then releases its client id.
pub(super) fn release(ctx: &mut Ctx, id: Box<str>, holder: Holder, kept: Option<Box<Kept>>) {
    match kept.filter(|kept| kept.has_row) {
        Some(kept) => {
            let Own { epoch, born, .. } = kept.head;
            let ending = Ending::new(id.clone(), epoch, born);
            store::end(ctx, id, (epoch, born), Written::End(holder, ending));
        }
        None => claims::release(ctx, id, holder),
    }
}

/// Hands an offline session over to another node, if it is persistent: after a last snapshot its slot here
/// ends and its client id is released.
pub(super) fn hand_over(ctx: &mut Ctx, key: ConnKey) -> bool {
    let Some(kept) = kept_of(&mut ctx.io, key) else { return false };
    if !kept.parts() {
        kept.work().parting = Parting::Recorded;
        due(&mut ctx.io, key, None);
    }
    true
}

/// True if a session moves to another node, which then executes its timers.
pub(super) fn parts(io: &mut Io, key: ConnKey) -> bool {
    kept_of(io, key).is_some_and(|kept| kept.parts())
}

/// A write has completed; `is_row`: the snapshot. A session that moves to another node proceeds to its next
/// step.
fn wrote(ctx: &mut Ctx, key: ConnKey, is_row: bool) {
    let Some(kept) = kept_of(&mut ctx.io, key) else { return };
    if is_row && kept.work().parting == Parting::Recorded {
        kept.work().parting = Parting::Left;
        session::comes_to_rest(ctx, key);
    }
    let Some(kept) = kept_of(&mut ctx.io, key) else { return };
    if kept.work().parting == Parting::Left && kept.work().under_way == 0 && !kept.is_called {
        session::part(ctx, key);
    } else if let Some(absent) = ctx.io.states.mqtt.sessions.get_mut(key) {
        absent.session.kept.iter_mut().for_each(|kept| kept.rest());
    }
}

/// Handles the outcome of a write.
pub fn written(ctx: &mut Ctx, what: Written, outcome: Result<u64, ErrorCode>) {
    if outcome.is_err() {
        ctx.io.metrics.mqtt_session_unwritten_total.add(1);
    }
    let has_store = ctx.io.states.mqtt.store.is_some();
    match what {
        Written::Row(key, visit, waits) => {
            let Some(kept) = kept_of(&mut ctx.io, key) else { return };
            kept.work().under_way -= 1;
            kept.failures = if outcome.is_err() { kept.failures.saturating_add(1) } else { 0 };
            let is_there = kept.visit == visit;
            if !matches!(outcome, Ok(_) | Err(ErrorCode::NotAllowed)) {
                // A store refuses a snapshot that refers to a missing entry. In a log the previous snapshot
                // and all entries remain.
                kept.has_gap |= has_store;
                moved(&mut ctx.io, key);
            }
            if is_there {
                for wait in waits {
                    match wait {
                        // A later holder has written the snapshot.
                        Wait::Connected(_) if outcome == Err(ErrorCode::NotAllowed) => displaced(ctx, key),
                        wait => go_on(ctx, key, wait, outcome.is_ok()),
                    }
                }
            }
            wrote(ctx, key, true);
        }
        Written::Entry(key, visit, number, waits) => {
            let Some(kept) = kept_of(&mut ctx.io, key) else { return };
            kept.work().under_way -= 1;
            match outcome {
                // Earlier entries are safe too: where one was refused, the connection ended.
                Ok(_) => kept.safe = number,
                Err(_) => {
                    kept.has_gap = true;
                    // An offline session has no connection to end: a snapshot compensates.
                    moved(&mut ctx.io, key);
                }
            }
            let Some(kept) = kept_of(&mut ctx.io, key) else { return };
            let is_there = kept.visit == visit;
            for wait in waits {
                match wait {
                    Wait::Intended(what) => publish(ctx, key, *what, outcome.is_ok()),
                    wait if is_there => go_on(ctx, key, wait, outcome.is_ok()),
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
            wrote(ctx, key, false);
        }
        Written::All(all) => {
            for what in all {
                written(ctx, what, outcome);
            }
        }
        Written::End(holder, ending) => {
            let id = ending.id.clone();
            ctx.io.ended(ending, outcome);
            claims::release(ctx, id, holder);
        }
        Written::EndAgain(ending) => ctx.io.ended_again(ending, outcome),
        Written::Fence(key) => reading::fenced(ctx, key, outcome.is_ok()),
        Written::Cleared(key, ending) => adoption::cleared(ctx, key, ending, outcome),
    }
}

/// Resumes an operation after its write succeeded or failed.
fn go_on(ctx: &mut Ctx, key: ConnKey, wait: Wait, is_safe: bool) {
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
