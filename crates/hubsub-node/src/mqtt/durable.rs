//! Sessions beyond their process (docs/protocol/mqtt-state.md): what is recorded of one before its client is answered.
//! How a node takes in what the process before it left is in [`adoption`](super::adoption).
//!
//! What is recorded is asked for as things happen ([`due`]) and carried out once a turn for each session ([`record`]), so
//! that all that waits shares one row, or one entry.
//!
//! Invariants: CONNACK, SUBACK and UNSUBACK of a session that is kept follow the row that they are true of; PUBLISH of QoS 2,
//! PUBREL and PUBCOMP the entry with their event.

use super::cursors::Row;
use super::deliver::{Under, Way};
use super::entries::{EntryHead, Head, begin, put_event, put_message};
use super::message::Message;
use super::pending::Item;
use super::recalled::Recalled;
use super::session::{Sent, Session};
use super::shares::Group;
use super::{Client, adoption, claims, connected, end, reading, refused, session, store};
use crate::core::Core;
use crate::rim::{Rim, Timer};
use hubsub_route::claims::{Holder, Token};
use hubsub_route::rows::CLASS;
use hubsub_route::{Asker, Outcome, Owner, Producer, Record, Ticket};
use hubsub_types::{ConnKey, ErrorCode, HubId, ProducerId, Qos};
use hubsub_wire::mqtt::{Event, Fault, Grant, PacketId, Reason};
use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::rc::Rc;

/// What a session has that is recorded.
#[derive(Default)]
pub struct Kept {
    /// Which session of its client id it is, and its entries.
    head: Head,
    /// What is going on; mostly nothing is.
    work: Option<Box<Work>>,
    /// Whether the session is to be recorded as it is now.
    row_is_due: bool,
    /// Whether something is to be recorded in this turn.
    is_called: bool,
    /// Entries with messages that may be of use, and the highest key in each.
    #[allow(clippy::box_collection, reason = "most have none, and pay for a pointer")]
    entries: Option<Box<VecDeque<(u64, u64)>>>,
    /// Entries up to this number are safe.
    safe: u64,
    /// Entries since the row, and their bytes.
    since_row: (u32, u32),
    /// Whether entries of the store may have other numbers than here, since one could not be recorded.
    has_gap: bool,
    /// Whether there is a row of it, or one is under way.
    has_row: bool,
    /// Whether where it stands in logs has changed since the row.
    has_moved: bool,
    /// Whether it will be looked whether it has.
    is_timed: bool,
    /// The number of its connection: machines of two number PUBREL and PUBCOMP alike.
    visit: u32,
}

/// How far a session is that goes to another node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Parting {
    /// It stays.
    #[default]
    Stays,
    /// It is recorded as it is, and what comes meanwhile.
    Recorded,
    /// It is, nothing comes any more, and what came is being written.
    Left,
}

/// What is going on of what is recorded.
#[derive(Default)]
struct Work {
    /// What waits until the session is recorded as it is now.
    waits: Vec<Wait>,
    /// What happened in this turn: parts of an entry.
    parts: Vec<u8>,
    /// The highest key of messages among them; 0 if there is none.
    parts_key: u64,
    /// What waits for these.
    parts_wait: Vec<Wait>,
    /// Messages that go out when what is recorded of them is safe, in their order.
    prepared: VecDeque<Prepared>,
    /// Rows and entries that are being written.
    under_way: u32,
    /// How far it is on its way to another node.
    parting: Parting,
}

/// A message on its way to the client.
struct Prepared {
    message: Rc<Message>,
    grant: Grant,
    group: Option<Group>,
    /// Its id and key; none of QoS 0.
    under: Option<(PacketId, u64)>,
    /// It waits for this entry.
    after: u64,
}

/// Entries behind a row, after which there is another one: who comes back reads no more. It bounds no queue, and
/// `mqtt_session_rows_total` counts the rows.
const ENTRIES_MAX: u32 = 512;

/// Their bytes.
const ENTRIES_BYTES_MAX: u32 = 1 << 20;

/// Messages of a session that wait for the same entry, at most: what is behind them waits in `pending`, within the client's
/// output limit, and the next entry is as soon as this one is safe.
const PREPARED_MAX: usize = 256;

/// What waits for a session's row.
#[derive(Debug)]
pub enum Wait {
    /// CONNACK, and whether it says that the session was there.
    Connected(bool),
    /// What the machine calls the answer to a filter.
    Granted(u32),
    /// Likewise, to UNSUBSCRIBE.
    Unsubscribed(u32),
    /// PUBREL or PUBCOMP, by what the machine of this connection calls it.
    Recorded(u32),
    /// A message of QoS 2 of the client, which is published then, whoever is connected.
    Intended(Box<Intended>),
}

/// A message of QoS 2 of a client for a log, which has a number of its session before it is published.
#[derive(Debug)]
pub struct Intended {
    /// What its answer is called.
    pub number: u32,
    /// Its number in the session.
    pub intent: u64,
    /// What.
    pub record: Record,
}

/// Who waits for what was written.
pub enum Written {
    /// A session's row, for those of the connection of that number.
    Row(ConnKey, u32, Vec<Wait>),
    /// An entry of that number, likewise.
    Entry(ConnKey, u32, u64, Vec<Wait>),
    /// The end of a row: the client id is free then.
    End(Box<str>, Holder),
    /// The fence of a session that is read for this place.
    Fence(ConnKey),
    /// The end of a row that a connection found, which goes on without.
    Cleared(ConnKey),
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
    pub(super) fn owner(&self, epoch: u64) -> Owner {
        Owner { epoch, run: self.rim.links.run(), is_over: false }
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

/// A session has gone on in a log: that is recorded before long.
pub(super) fn moved(rim: &mut Rim, key: ConnKey) {
    let Some(kept) = kept_of(rim, key) else { return };
    kept.has_moved = true;
    if !std::mem::replace(&mut kept.is_timed, true) {
        rim.timers.set(rim.now.mono_ms + rim.limits.mqtt_session_snapshot_ms, Timer::Snapshot(key));
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
            super::published(core, key, number, outcome.map(|published| published.receivers));
        }
        (Outcome::Later, _) => {
            core.rim.expects_more = true;
            if let Some(client) = core.rim.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut()) {
                client.waits_for_log = client.machine.publishes();
            }
        }
    }
}

impl Work {
    /// Whether there is nothing.
    fn is_done(&self) -> bool {
        let Work { waits, parts, parts_key: _, parts_wait, prepared, under_way, parting } = self;
        let is_empty = waits.is_empty() && parts.is_empty() && parts_wait.is_empty() && prepared.is_empty();
        is_empty && *under_way == 0 && *parting == Parting::Stays
    }
}

impl Kept {
    /// Of a session that begins: never the number of another one.
    pub fn new(token: Token) -> Kept {
        let Token { at_us, run, number } = token;
        // Producers without a name are below 2^63, and not 0.
        let born = std::hash::RandomState::new().hash_one((at_us, run, number)) >> 1 | 1;
        Kept { head: Head { born, epoch: 1, ..Head::default() }, ..Kept::default() }
    }

    /// It begins behind a session of the client id that had this epoch.
    pub fn follows(&mut self, epoch: u64) {
        self.head.epoch = epoch + 1;
    }

    /// Of one that was found, for its next holder.
    pub fn found(recalled: &mut Recalled) -> Kept {
        let (mut head, entries) = (recalled.head, std::mem::take(&mut recalled.entries));
        let entries = (!entries.is_empty()).then(|| Box::new(entries));
        head.epoch += 1;
        Kept { head, entries, safe: head.last_entry, has_row: true, has_gap: true, ..Kept::default() }
    }

    /// Another connection has the session: what waits for the one before is nobody's.
    pub fn comes(&mut self) {
        self.visit = self.visit.wrapping_add(1);
        self.work.iter_mut().for_each(|work| work.waits.clear());
    }

    /// Its connection has ended: what was not sent goes again with the next one.
    pub fn leaves(&mut self) {
        self.work.iter_mut().for_each(|work| work.prepared.clear());
    }

    /// Whether messages wait until they are recorded: then all do.
    #[must_use]
    pub fn has_prepared(&self) -> bool {
        self.work.as_ref().is_some_and(|work| !work.prepared.is_empty())
    }

    /// Whether it goes to another node.
    fn parts(&self) -> bool {
        self.work.as_ref().is_some_and(|work| work.parting != Parting::Stays)
    }

    fn work(&mut self) -> &mut Work {
        self.work.get_or_insert_default()
    }

    /// Nobody is connected: what is empty takes no memory.
    fn rest(&mut self) {
        self.work.take_if(|work| work.is_done());
        self.entries.take_if(|entries| entries.is_empty());
    }

    /// Adds a message that waits, or is under way.
    pub fn put(&mut self, is_queued: bool, key: u64, row: Row, message: &Message, grant: &Grant) {
        let work = self.work();
        put_message(is_queued, key, row, &message.said(), grant, &mut work.parts);
        work.parts_key = work.parts_key.max(key);
    }

    /// The number of the entry that what happened is in.
    fn last_entry(&self) -> u64 {
        let has_parts = self.work.as_ref().is_some_and(|work| !work.parts.is_empty());
        self.head.last_entry + u64::from(has_parts)
    }

    /// Takes what happened in this turn, as an entry, and who waits for it.
    fn take_entry(&mut self) -> Option<(u64, Vec<u8>, Vec<Wait>)> {
        let number = self.last_entry();
        let work = self.work.as_mut().filter(|work| !work.parts.is_empty())?;
        self.head.last_entry = number;
        let Head { born, epoch, .. } = self.head;
        let mut entry = begin(EntryHead { born, epoch, number });
        entry.append(&mut work.parts);
        let (key, waits) = (std::mem::take(&mut work.parts_key), std::mem::take(&mut work.parts_wait));
        if key > 0 {
            self.entries.get_or_insert_default().push_back((number, key));
        }
        let (entries, bytes) = self.since_row;
        self.since_row = (entries + 1, bytes.saturating_add(u32::try_from(entry.len()).unwrap_or(u32::MAX)));
        self.row_is_due |= self.since_row.0 >= ENTRIES_MAX || self.since_row.1 >= ENTRIES_BYTES_MAX;
        Some((number, entry, waits))
    }

    /// Entries up to this number are of no use to the store, behind a row that is written now.
    fn through(&mut self) -> u64 {
        let Head { last_entry, through, .. } = self.head;
        self.since_row = (0, 0);
        // All of them, whatever their numbers: from here on they are the same again.
        self.has_gap &= through != last_entry;
        match through == last_entry {
            true => through,
            false if self.has_gap => 0,
            false => through.min(self.safe),
        }
    }

    /// The head of a row, where messages with these keys and later ones are of use: those that are under way, those that
    /// wait.
    fn head(&mut self, last_key: u64, under_way_from: u64, queued_from: u64) -> Head {
        let lowest = under_way_from.min(queued_from);
        let entries = self.entries.as_deref_mut();
        let first = entries.and_then(|entries| {
            while entries.front().is_some_and(|&(_, key)| key < lowest) {
                entries.pop_front();
            }
            entries.front()
        });
        self.head.through = first.map_or(self.head.last_entry, |&(number, _)| number - 1);
        Head { last_key, queued_from, ..self.head }
    }
}

/// Records what happened to a session in this turn, and how it is now, if that is due.
pub fn record(core: &mut Core, key: ConnKey) {
    core.rim.pump_mqtt(key);
    core.rim.prepare(key);
    let rim = &mut core.rim;
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
    if let Some((number, entry, waits)) = kept.take_entry() {
        kept.work().under_way += 1;
        rim.metrics.mqtt_session_entries_total.add(1);
        store::append(core, id.clone(), entry, Written::Entry(key, visit, number, waits));
    }
    record_row(core, key, id, visit);
    if let Some(absent) = core.rim.sessions.get_mut(key) {
        absent.session.kept.iter_mut().for_each(|kept| kept.rest());
    }
}

/// Records how a session is now, if that is due.
fn record_row(core: &mut Core, key: ConnKey, id: Box<str>, visit: u32) {
    let Some(kept) = kept_of(&mut core.rim, key) else { return };
    if !std::mem::take(&mut kept.row_is_due) {
        return;
    }
    let places = core.broker.cursors.hubs.places(key.index);
    let places: Vec<(HubId, u64)> = places.map(|(hub, next, _)| (hub, next - 1)).collect();
    let Some(row) = core.rim.row_of(key, &places) else { return };
    let Some(kept) = kept_of(&mut core.rim, key) else { return };
    let waits = kept.work.as_mut().map_or_else(Vec::new, |work| std::mem::take(&mut work.waits));
    let (through, epoch, is_over) = (kept.through(), kept.head.epoch, kept.parts());
    kept.work().under_way += 1;
    core.rim.metrics.mqtt_session_rows_total.add(1);
    let owner = Owner { is_over, ..core.owner(epoch) };
    store::save(core, id, row, (owner, through), Written::Row(key, visit, waits));
}

impl Rim {
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
            let has_room = super::deliver::has_room(conn);
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
        Some(kept) => store::end(core, id.clone(), kept.head.epoch, Written::End(id, holder)),
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
    match what {
        Written::Row(key, visit, waits) => {
            let Some(kept) = kept_of(&mut core.rim, key) else { return };
            kept.work().under_way -= 1;
            kept.has_gap |= outcome.is_err();
            if kept.visit == visit {
                for wait in waits {
                    go_on(core, key, wait, outcome.is_ok());
                }
            }
            wrote(core, key, true);
        }
        Written::Entry(key, visit, number, waits) => {
            let Some(kept) = kept_of(&mut core.rim, key) else { return };
            kept.work().under_way -= 1;
            match outcome {
                Ok(_) => kept.safe = number,
                Err(_) => kept.has_gap = true,
            }
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
                Err(_) if core.rim.conns.get(key).is_some_and(|conn| !conn.is_closing()) => {
                    end(core, key, Fault::of(Reason::ImplementationSpecific));
                }
                Err(_) => {}
            }
            wrote(core, key, false);
        }
        Written::End(id, holder) => claims::release(core, id, holder),
        Written::Fence(key) => reading::fenced(core, key, outcome.is_ok()),
        Written::Cleared(key) => adoption::cleared(core, key, outcome.is_ok()),
    }
}

/// A session is recorded, or could not be.
fn go_on(core: &mut Core, key: ConnKey, wait: Wait, is_safe: bool) {
    if core.rim.conns.get(key).is_none_or(|conn| conn.is_closing()) {
        return;
    }
    match wait {
        Wait::Connected(present) if is_safe => connected(core, key, present),
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
