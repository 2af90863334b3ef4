//! Persists sessions (docs/protocol/mqtt-state.md): writes what [`SessionPlace::record`] returns for each
//! session that changed in a turn, and executes what waited for a write. For sessions of the previous process
//! see [`takeover`](super::takeover).

use super::client::{client_mut, end};
use super::connect::{connected, displaced, forgo_will, refused};
use super::work::Work;
use super::{claims, packets, session, store, takeover, takeover_read};
use crate::io::context::Ctx;
use crate::io::shard_io::{Io, Timer};
use hubsub_mqtt::{
    AfterWrite, Event, Fault, Intended, Persistence, Session, SessionDelete, SessionPlace, Snapshot, Wait,
    Write, put_event,
};
use hubsub_route::claims::Holder;
use hubsub_route::rows::CLASS;
use hubsub_route::{Asker, Outcome, Owner, Producer, Ticket};
use hubsub_types::{ConnKey, ErrorCode, ProducerId};
use hubsub_wire::mqtt::{PacketId, Reason};

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

/// The session of a slot, beside its connection or offline.
fn place_of(io: &mut Io, key: ConnKey) -> Option<SessionPlace<'_>> {
    match io.conns.get_mut(key).and_then(|conn| conn.mqtt.as_deref_mut()) {
        Some(client) => Some(SessionPlace::Connected(client)),
        None => io.states.mqtt.sessions.get_mut(key).map(SessionPlace::Offline),
    }
}

/// The session data of a slot.
pub(super) fn session_of(io: &mut Io, key: ConnKey) -> Option<&mut Session> {
    match io.conns.get_mut(key).and_then(|conn| conn.mqtt.as_deref_mut()) {
        Some(client) => client.session.as_deref_mut(),
        None => io.states.mqtt.sessions.session_mut(key),
    }
}

fn persistence_of(io: &mut Io, key: ConnKey) -> Option<&mut Persistence> {
    session_of(io, key)?.persistence.as_deref_mut()
}

/// Schedules a session to be persisted in this turn.
pub(super) fn schedule(io: &mut Io, key: ConnKey) {
    if persistence_of(io, key).is_some_and(|persistence| persistence.schedule()) {
        io.own.queue(Work::Record(key));
    }
}

/// Schedules a snapshot for the end of this turn; `wait` is completed by it. Returns whether the session is
/// persistent.
pub(super) fn request_snapshot(io: &mut Io, key: ConnKey, wait: Option<Wait>) -> bool {
    let Some(persistence) = persistence_of(io, key) else { return false };
    persistence.request_snapshot(wait);
    schedule(io, key);
    true
}

/// The cursors of a session have advanced, or a write failed: schedules a snapshot after a delay.
pub(super) fn request_snapshot_later(io: &mut Io, key: ConnKey) {
    let delay_ms = io.limits.mqtt_session_snapshot_ms;
    let persistence = persistence_of(io, key);
    if let Some(delay_ms) = persistence.and_then(|it| it.request_snapshot_later(delay_ms)) {
        io.timers.set(io.now.mono_ms + delay_ms, Timer::Snapshot(key));
    }
}

/// The snapshot timer of a session has fired.
pub fn snapshot_timer(ctx: &mut Ctx, key: ConnKey) {
    if persistence_of(&mut ctx.io, key).is_some_and(|persistence| persistence.snapshot_timer()) {
        request_snapshot(&mut ctx.io, key, None);
    }
}

/// Adds an event to the entry of this turn; `wait` is completed by it.
pub(super) fn record_event(io: &mut Io, key: ConnKey, event: &Event, wait: Wait) {
    let Some(client) = client_mut(io, key) else { return };
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
            if let Some(client) = client_mut(&mut ctx.io, key) {
                client.waits_for_log = client.machine.publishes();
            }
        }
    }
}

/// Writes the entry of a session's changes in this turn, and its snapshot if one is due.
pub fn persist(ctx: &mut Ctx, key: ConnKey) {
    ctx.io.pump_mqtt(key);
    ctx.io.prepare(key);
    let has_store = ctx.io.states.mqtt.store.is_some();
    let hubs = &ctx.broker.cursors.hubs;
    let places = || hubs.places(key.index).map(|(hub, next, _)| (hub, next - 1)).collect();
    let Some(mut place) = place_of(&mut ctx.io, key) else { return };
    let writes = place.record(has_store, places);
    let id: Box<str> = if writes.is_empty() { Box::default() } else { place.client_id().into() };
    let visit = persistence_of(&mut ctx.io, key).map_or(0, |persistence| persistence.visit);
    for write in writes {
        execute(ctx, (key, visit), &id, write);
    }
}

fn execute(ctx: &mut Ctx, (key, visit): (ConnKey, u32), id: &str, write: Write) {
    let entry_metric = &ctx.io.metrics.mqtt_session_entries_total;
    let snapshot_metric = &ctx.io.metrics.mqtt_session_snapshots_total;
    match write {
        Write::Entry((number, entry, waits)) => {
            entry_metric.add(1);
            store::append(ctx, id.into(), entry, Written::Entry(key, visit, number, waits));
        }
        Write::Snapshot(Snapshot { bytes, waits, head, is_over }) => {
            snapshot_metric.add(1);
            let owner = Owner { is_over, ..ctx.owner(head.epoch, head.born) };
            let then = Written::Snapshot(key, visit, waits);
            store::save(ctx, id.into(), bytes, (owner, head.last_entry, head.through), then);
        }
        Write::All { snapshot, through, entries } => {
            snapshot_metric.add(1);
            entry_metric.add(entries.len() as u64);
            // The reply to CONNECT, which waits for the snapshot, precedes those that wait for the entries.
            let (mut all, mut bytes) = (vec![Written::Snapshot(key, visit, snapshot.waits)], Vec::new());
            for (number, entry, waits) in entries {
                bytes.push(entry);
                all.push(Written::Entry(key, visit, number, waits));
            }
            store::save_all(ctx, id.into(), snapshot.bytes, (through, bytes), Written::All(all));
        }
    }
}

/// Ends a session: deletes its snapshot, then releases its client id.
pub(super) fn release(ctx: &mut Ctx, id: Box<str>, holder: Holder, persistence: Option<Box<Persistence>>) {
    match persistence.filter(|persistence| persistence.has_snapshot) {
        Some(persistence) => {
            let (epoch, born) = (persistence.head.epoch, persistence.head.born);
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
    if persistence.begin_handover() {
        request_snapshot(&mut ctx.io, key, None);
    }
    true
}

/// True if a session moves to another node, which then executes its timers.
pub(super) fn is_moving(io: &mut Io, key: ConnKey) -> bool {
    persistence_of(io, key).is_some_and(|persistence| persistence.is_moving())
}

/// A write has completed. A session that moves to another node proceeds to its next step.
fn write_done(ctx: &mut Ctx, key: ConnKey, is_snapshot: bool) {
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
    if is_snapshot && persistence.handover_written() {
        session::comes_to_rest(ctx, key);
    }
    let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
    if persistence.is_handed_over() {
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
    let (is_safe, has_store) = (outcome.is_ok(), ctx.io.states.mqtt.store.is_some());
    match what {
        Written::Snapshot(key, visit, waits) => {
            let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
            let AfterWrite { is_current, must_retry } =
                persistence.snapshot_written(visit, outcome, has_store);
            if must_retry {
                request_snapshot_later(&mut ctx.io, key);
            }
            for wait in waits.into_iter().filter(|_| is_current) {
                match wait {
                    // A later holder has written the snapshot.
                    Wait::Connected(_) if outcome == Err(ErrorCode::NotAllowed) => displaced(ctx, key),
                    wait => resume_wait(ctx, key, wait, is_safe),
                }
            }
            write_done(ctx, key, true);
        }
        Written::Entry(key, visit, number, waits) => {
            let Some(persistence) = persistence_of(&mut ctx.io, key) else { return };
            let AfterWrite { is_current, must_retry } = persistence.entry_written(visit, number, is_safe);
            if must_retry {
                request_snapshot_later(&mut ctx.io, key);
            }
            for wait in waits {
                match wait {
                    Wait::Intended(what) => publish(ctx, key, *what, is_safe),
                    wait if is_current => resume_wait(ctx, key, wait, is_safe),
                    _ => {}
                }
            }
            if is_safe {
                ctx.io.pump_mqtt(key);
            } else if is_current && ctx.io.conns.get(key).is_some_and(|conn| !conn.is_closing()) {
                // The session's snapshot contains what waits, once its connection has ended.
                end(ctx, key, Fault::of(Reason::ImplementationSpecific));
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
        Written::Fence(key) => takeover_read::fenced(ctx, key, is_safe),
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
