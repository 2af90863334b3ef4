//! Sessions beyond their process (docs/protocol/mqtt-state.md): what is recorded of one before its client is answered.
//! How a node takes in what the process before it left is in [`adoption`](super::adoption).
//!
//! What is recorded is asked for as things happen ([`due`]) and carried out once a turn for each session ([`record`]), so
//! that all that waits shares one row, or one entry.
//!
//! Invariants: CONNACK, SUBACK and UNSUBACK of a session that is kept follow the row that they are true of; PUBLISH of QoS 2,
//! PUBREL and PUBCOMP the entry with their event.

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
use super::{adoption, claims, packets, reading, session, store};
use crate::core::Core;
use crate::rim::{Rim, Timer};
use hubsub_route::claims::Holder;
use hubsub_route::rows::CLASS;
use hubsub_route::{Asker, Outcome, Owner, Producer, Ticket};
use hubsub_types::{ConnKey, ErrorCode, HubId, ProducerId, Qos};
use hubsub_wire::mqtt::{Event, Fault, PacketId, Reason};
use std::rc::Rc;

/// Messages of a session that wait for the same entry, at most: what is behind them waits in `pending`, within the client's
/// output limit, and the next entry is as soon as this one is safe.
const PREPARED_MAX: usize = 256;

/// Rows of a session that fail one after another: each doubles the time to the next one, so many times at most.
const FAILURES_MAX: u8 = 6;

/// Who waits for what was written.
pub enum Written {
    /// A session's row, for those of the connection of that number.
    Row(ConnKey, u32, Vec<Wait>),
    /// An entry of that number, likewise.
    Entry(ConnKey, u32, u64, Vec<Wait>),
    /// A row and entries, of which there is all or nothing.
    All(Vec<Written>),
    /// The end of a row: the client id is free then.
    End(Holder, Ending),
    /// Likewise, of one that was free already.
    EndAgain(Ending),
    /// The fence of a session that is read for this place.
    Fence(ConnKey),
    /// The end of a row that a connection found, which goes on without.
    Cleared(ConnKey, Ending),
}

impl Core {
    /// Whether sessions are recorded here: with a log, or by a lone node with a store of its own.
    pub(super) fn records_sessions(&self) -> bool {
        let classes = self.broker.classes();
        let is_logged = |class| classes.get(class).durability.is_logged();
        let has_log = || classes.index_of(CLASS).is_some_and(is_logged);
        match self.rim.store {
            Some(_) => !self.broker.is_clustered(),
            None => self.rim.info.keeps_sessions && has_log(),
        }
    }

    /// Whether a session may be another node's, or have been: then it is read where a client id is granted.
    pub(super) fn reads_sessions(&self) -> bool {
        self.broker.is_clustered() && self.records_sessions()
    }

    /// Who writes rows here, as the holder of an epoch.
    pub(super) fn owner(&self, epoch: u64, born: u64) -> Owner {
        Owner { epoch, run: self.rim.links.run(), born, is_over: false }
    }
}

/// A session of a place, with its connection or without.
fn session_of(rim: &mut Rim, key: ConnKey) -> Option<&mut Session> {
    let client = rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
    match client.and_then(|client| client.session.as_deref_mut()) {
        Some(session) => Some(session),
        None => rim.sessions.get_mut(key).map(|absent| &mut absent.session),
    }
}

/// Something of a session is to be recorded in this turn.
pub(super) fn call(rim: &mut Rim, key: ConnKey) {
    let Some(kept) = kept_of(rim, key) else { return };
    if !std::mem::replace(&mut kept.is_called, true) {
        rim.own.record(key);
    }
}

fn kept_of(rim: &mut Rim, key: ConnKey) -> Option<&mut Kept> {
    session_of(rim, key)?.kept.as_deref_mut()
}

/// A session is to be recorded as it is at the end of this turn, for who waits; whether it is one that is kept.
pub(super) fn due(rim: &mut Rim, key: ConnKey, wait: Option<Wait>) -> bool {
    let Some(kept) = kept_of(rim, key) else { return false };
    if let Some(wait) = wait {
        kept.work().waits.push(wait);
    }
    kept.row_is_due = true;
    call(rim, key);
    true
}

/// A session has gone on in a log, or could not be recorded: its row is written before long, later each time that fails.
pub(super) fn moved(rim: &mut Rim, key: ConnKey) {
    let Some(kept) = kept_of(rim, key) else { return };
    kept.has_moved = true;
    let failures = kept.failures.min(FAILURES_MAX);
    if !std::mem::replace(&mut kept.is_timed, true) {
        let delay_ms = rim.limits.mqtt_session_snapshot_ms.saturating_mul(1 << failures);
        rim.timers.set(rim.now.mono_ms + delay_ms, Timer::Snapshot(key));
    }
}

/// A session that has gone on in a log has had its time.
pub fn look(core: &mut Core, key: ConnKey) {
    let Some(kept) = kept_of(&mut core.rim, key) else { return };
    kept.is_timed = false;
    if kept.has_moved {
        due(&mut core.rim, key, None);
    }
}

/// Something happened to a session that is kept, which is recorded for who waits.
pub(super) fn happened(rim: &mut Rim, key: ConnKey, event: &Event<u64>, wait: Wait) {
    let Some(client) = rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) else { return };
    let number = client.machine.next_event();
    if let Some(kept) = client.session.as_mut().and_then(|session| session.kept.as_mut()) {
        let work = kept.work();
        put_event(number, event, &mut work.parts);
        work.parts_wait.push(wait);
        call(rim, key);
    }
}

/// A client's message of QoS 2 is published once it is recorded under which number: by that it is known if it comes again.
pub(super) fn intend(core: &mut Core, key: ConnKey, id: PacketId, what: Intended) {
    let event = Event::Intended { id, number: what.intent };
    happened(&mut core.rim, key, &event, Wait::Intended(Box::new(what)));
}

/// That is recorded, or could not be.
fn publish(core: &mut Core, key: ConnKey, what: Intended, is_safe: bool) {
    let Intended { number, intent, record } = what;
    let Some(kept) = kept_of(&mut core.rim, key) else { return };
    let producer = Producer { id: ProducerId(kept.head.born), sequence: intent };
    let ticket = Ticket { shard: core.rim.shard, asker: Asker::Client { conn: key, slot: number } };
    let outcome = if is_safe {
        let record = record.from_producer(Some(producer));
        core.broker.publish_record(ticket, record, core.rim.now, &mut core.rim)
    } else {
        Outcome::Now(Err(ErrorCode::LogFailed))
    };
    match (outcome, core.rim.sessions.get_mut(key)) {
        (Outcome::Now(outcome), Some(absent)) => absent.published(number, outcome.is_ok()),
        (Outcome::Now(outcome), None) => {
            packets::published(core, key, number, outcome.map(|published| published.receivers));
        }
        (Outcome::Later, _) => {
            core.rim.expects_more = true;
            if let Some(client) = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) {
                client.waits_for_log = client.machine.publishes();
            }
        }
    }
}

/// Records what happened to a session in this turn, and how it is now, if that is due.
pub fn record(core: &mut Core, key: ConnKey) {
    core.rim.pump_mqtt(key);
    core.rim.prepare(key);
    let rim = &mut core.rim;
    let has_store = rim.store.is_some();
    let id: Box<str> = match rim.conns.get(key).and_then(|conn| conn.mqtt.as_ref()) {
        Some(client) => client.machine.client_id().into(),
        None => match rim.sessions.get_mut(key) {
            Some(absent) => absent.id.clone(),
            None => return,
        },
    };
    let Some(kept) = kept_of(rim, key) else { return };
    kept.is_called = false;
    let visit = kept.visit;
    if kept.row_is_due && kept.needs_all(has_store) {
        record_all(core, key, id, visit);
    } else {
        let entry = kept.take_entry();
        record_entry(core, key, &id, entry, visit);
        record_row(core, key, id, visit);
    }
    if let Some(absent) = core.rim.sessions.get_mut(key) {
        absent.session.kept.iter_mut().for_each(|kept| kept.rest());
    }
}

fn record_entry(core: &mut Core, key: ConnKey, id: &str, entry: Option<Entry>, visit: u32) {
    let Some((number, entry, waits)) = entry else { return };
    let Some(kept) = kept_of(&mut core.rim, key) else { return };
    kept.work().under_way += 1;
    core.rim.metrics.mqtt_session_entries_total.add(1);
    store::append(core, id.into(), entry, Written::Entry(key, visit, number, waits));
}

/// Records how a session is now, if that is due.
fn record_row(core: &mut Core, key: ConnKey, id: Box<str>, visit: u32) {
    let Some((row, then)) = take_row(core, key, visit) else { return };
    let Some(kept) = kept_of(&mut core.rim, key) else { return };
    let (is_over, Own { epoch, born, last_entry, through, .. }) = (kept.parts(), kept.head);
    let owner = Owner { is_over, ..core.owner(epoch, born) };
    store::save(core, id, row, (owner, last_entry, through), then);
}

/// The row of a session, and who waits for it, if that is due.
fn take_row(core: &mut Core, key: ConnKey, visit: u32) -> Option<(Vec<u8>, Written)> {
    let kept = kept_of(&mut core.rim, key)?;
    if !std::mem::take(&mut kept.row_is_due) {
        return None;
    }
    let places = core.broker.cursors.hubs.places(key.index);
    let places: Vec<(HubId, u64)> = places.map(|(hub, next, _)| (hub, next - 1)).collect();
    let row = core.rim.row_of(key, &places)?;
    let kept = kept_of(&mut core.rim, key)?;
    let waits = kept.work.as_mut().map_or_else(Vec::new, |work| std::mem::take(&mut work.waits));
    kept.work().under_way += 1;
    core.rim.metrics.mqtt_session_rows_total.add(1);
    Some((row, Written::Row(key, visit, waits)))
}

/// Records how a session is now, with all messages that are of use: whatever was recorded of them before is of none then. In a
/// store that is one request, so that no row names messages that no entry has.
fn record_all(core: &mut Core, key: ConnKey, id: Box<str>, visit: u32) {
    let entries = core.rim.all_entries(key);
    if core.rim.store.is_none() {
        for entry in entries {
            record_entry(core, key, &id, Some(entry), visit);
        }
        return record_row(core, key, id, visit);
    }
    let Some((row, then)) = take_row(core, key, visit) else { return };
    let Some(kept) = kept_of(&mut core.rim, key) else { return };
    let through = kept.head.last_entry - entries.len() as u64;
    kept.work().under_way += entries.len() as u32;
    core.rim.metrics.mqtt_session_entries_total.add(entries.len() as u64);
    // The answer to CONNECT, which waits for the row, comes before what goes on with the entries.
    let (mut all, mut kept) = (vec![then], Vec::new());
    for (number, entry, waits) in entries {
        kept.push(entry);
        all.push(Written::Entry(key, visit, number, waits));
    }
    store::save_all(core, id, row, (through, kept), Written::All(all));
}

impl Rim {
    /// Entries with all messages of a session that are recorded, and with what happened in this turn.
    fn all_entries(&mut self, key: ConnKey) -> Vec<Entry> {
        let client = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_deref_mut());
        match client {
            Some(Client { session, pending, .. }) => {
                let Some(session) = session.as_deref_mut() else { return Vec::new() };
                let waiting = pending.iter().filter(|item| item.key > 0);
                session.take_all(waiting.map(|item| (item.key, &*item.message, &item.grant)))
            }
            None => self.sessions.get_mut(key).map_or_else(Vec::new, Absent::take_all),
        }
    }

    /// The row of a session, to whose connection whatever matches up to these offsets has come.
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
                let absent = self.sessions.get_mut(key)?;
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
            None => self.sessions.get_mut(key)?.state.encode(&mut row),
        }
        Some(row)
    }

    /// Gives ids to messages of QoS 2 that wait for a client, and to those behind them: they go out once that is recorded.
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

    /// Sends messages of which that is recorded, as far as there is room; whether none is left.
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

/// A session ends, and with it what is recorded of it; then its client id is free.
pub(super) fn release(core: &mut Core, id: Box<str>, holder: Holder, kept: Option<Box<Kept>>) {
    match kept.filter(|kept| kept.has_row) {
        Some(kept) => {
            let Own { epoch, born, .. } = kept.head;
            let ending = Ending::new(id.clone(), epoch, born);
            store::end(core, id, (epoch, born), Written::End(holder, ending));
        }
        None => claims::release(core, id, holder),
    }
}

/// An absent session goes to another node, if it is one that is recorded: once it is as it is now, its place here ends and
/// its client id is free.
pub(super) fn hand_over(core: &mut Core, key: ConnKey) -> bool {
    let Some(kept) = kept_of(&mut core.rim, key) else { return false };
    if !kept.parts() {
        kept.work().parting = Parting::Recorded;
        due(&mut core.rim, key, None);
    }
    true
}

/// Whether a session goes to another node: what is due of it is that one's to do.
pub(super) fn parts(rim: &mut Rim, key: ConnKey) -> bool {
    kept_of(rim, key).is_some_and(|kept| kept.parts())
}

/// Something of a session was written; `is_row`: it, as it was. One that goes to another node goes on.
fn wrote(core: &mut Core, key: ConnKey, is_row: bool) {
    let Some(kept) = kept_of(&mut core.rim, key) else { return };
    if is_row && kept.work().parting == Parting::Recorded {
        kept.work().parting = Parting::Left;
        session::comes_to_rest(core, key);
    }
    let Some(kept) = kept_of(&mut core.rim, key) else { return };
    if kept.work().parting == Parting::Left && kept.work().under_way == 0 && !kept.is_called {
        session::part(core, key);
    } else if let Some(absent) = core.rim.sessions.get_mut(key) {
        absent.session.kept.iter_mut().for_each(|kept| kept.rest());
    }
}

/// What came of something that was to be written.
pub fn written(core: &mut Core, what: Written, outcome: Result<u64, ErrorCode>) {
    if outcome.is_err() {
        core.rim.metrics.mqtt_session_unwritten_total.add(1);
    }
    let has_store = core.rim.store.is_some();
    match what {
        Written::Row(key, visit, waits) => {
            let Some(kept) = kept_of(&mut core.rim, key) else { return };
            kept.work().under_way -= 1;
            kept.failures = if outcome.is_err() { kept.failures.saturating_add(1) } else { 0 };
            let is_there = kept.visit == visit;
            if !matches!(outcome, Ok(_) | Err(ErrorCode::NotAllowed)) {
                // A store refuses a row where it lacks an entry. In a log the row before and all entries stay.
                kept.has_gap |= has_store;
                moved(&mut core.rim, key);
            }
            if is_there {
                for wait in waits {
                    match wait {
                        // The row is a later holder's by now.
                        Wait::Connected(_) if outcome == Err(ErrorCode::NotAllowed) => displaced(core, key),
                        wait => go_on(core, key, wait, outcome.is_ok()),
                    }
                }
            }
            wrote(core, key, true);
        }
        Written::Entry(key, visit, number, waits) => {
            let Some(kept) = kept_of(&mut core.rim, key) else { return };
            kept.work().under_way -= 1;
            match outcome {
                // So are those before it: where one was refused, the connection ends that it was of.
                Ok(_) => kept.safe = number,
                Err(_) => {
                    kept.has_gap = true;
                    // Of an absent session nobody ends a connection: a row makes up for it.
                    moved(&mut core.rim, key);
                }
            }
            let Some(kept) = kept_of(&mut core.rim, key) else { return };
            let is_there = kept.visit == visit;
            for wait in waits {
                match wait {
                    Wait::Intended(what) => publish(core, key, *what, outcome.is_ok()),
                    wait if is_there => go_on(core, key, wait, outcome.is_ok()),
                    _ => {}
                }
            }
            match outcome {
                Ok(_) => core.rim.pump_mqtt(key),
                // What waits for it is in the session's row when its connection has ended.
                Err(_) if is_there && core.rim.conns.get(key).is_some_and(|conn| !conn.is_closing()) => {
                    end(core, key, Fault::of(Reason::ImplementationSpecific));
                }
                Err(_) => {}
            }
            wrote(core, key, false);
        }
        Written::All(all) => {
            for what in all {
                written(core, what, outcome);
            }
        }
        Written::End(holder, ending) => {
            let id = ending.id.clone();
            core.rim.ended(ending, outcome);
            claims::release(core, id, holder);
        }
        Written::EndAgain(ending) => core.rim.ended_again(ending, outcome),
        Written::Fence(key) => reading::fenced(core, key, outcome.is_ok()),
        Written::Cleared(key, ending) => adoption::cleared(core, key, ending, outcome),
    }
}

/// A session is recorded, or could not be.
fn go_on(core: &mut Core, key: ConnKey, wait: Wait, is_safe: bool) {
    if core.rim.conns.get(key).is_none_or(|conn| conn.is_closing()) {
        return;
    }
    match wait {
        Wait::Connected(present) if is_safe => connected(core, key, present),
        Wait::Connected(_) if forgo_will(&mut core.rim, key) => connected(core, key, false),
        Wait::Connected(_) => refused(core, key, Reason::ServerUnavailable),
        Wait::Granted(number) if is_safe => core.rim.mqtt_granted_now(key, number, Ok(())),
        Wait::Unsubscribed(number) if is_safe => {
            core.rim.with_mqtt(key, |client, out| client.machine.unsubscribed(number, out));
        }
        Wait::Recorded(number) if is_safe => {
            core.rim.with_mqtt(key, |client, out| client.machine.recorded(number, out));
        }
        Wait::Intended(_) => unreachable!("it waits for an entry"),
        // It would be told of a session that may be forgotten.
        Wait::Granted(_) | Wait::Unsubscribed(_) | Wait::Recorded(_) => {
            end(core, key, Fault::of(Reason::ImplementationSpecific))
        }
    }
}
