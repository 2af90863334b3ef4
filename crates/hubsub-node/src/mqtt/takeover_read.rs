//! Reads sessions of other processes from their rooms (docs/protocol/mqtt-state.md): for a connection that
//! was granted the client id, or to take over a session whose holder's process is gone.
//!
//! ```text
//!  granted ──► snapshot? ──► none, or Clean Start: a new session
//!                 └────────► fence ──► entries, page by page ──► the session
//! ```
//!
//! Invariant: entries are read after the reader's own fence, so later writes of an older holder are never
//! included.

use super::claims;
use super::connect::{forgo_will, refused};
use super::entries::{EntryHead, Head, begin as begin_entry};
use super::persist::Written;
use super::takeover::{self, Found, is_of_use, queue_of, room_of};
use super::work::Work;
use super::{MqttMail, handover, store};
use crate::io::context::Ctx;
use crate::io::log_lines::Level;
use crate::io::questions::{Part, Question};
use crate::io::scatter_gather::Then;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::claims::{Aim, Claimant, Holder};
use hubsub_route::rooms::{HistoryPart, HistoryQuery};
use hubsub_route::{Owner, Pages};
use hubsub_types::{ConnKey, ErrorCode};
use hubsub_wire::mqtt::Reason;
use std::collections::HashSet;

/// The number of entries per page.
const PAGE: u64 = 256;

/// Concurrent takeovers of a shard.
const TAKEOVERS_MAX: usize = 256;

/// Bytes of entries of all takeovers together. Above it only the largest one continues.
const TAKEOVER_BYTES_MAX: usize = 16 << 20;

/// The delay before a damaged session is tried again, in ms: only its client repairs it, with a new session.
const DAMAGED_MS: u64 = 3_600_000;

/// The most damaged sessions that a shard remembers; beyond that the first one due is forgotten.
const DAMAGED_MAX: usize = 1_000;

/// The reads in progress of a shard.
#[derive(Default)]
pub struct Readings {
    by_place: HashMap<ConnKey, Reading, RandomState>,
    /// The gone processes among those that held sessions.
    gone: Gone,
    /// Damaged sessions and the time of their next try.
    damaged: HashMap<Box<str>, u64, RandomState>,
    /// True if the last takeover was skipped because of `mqtt_sessions_max`.
    is_full: bool,
}

/// A read in progress.
struct Reading {
    id: Box<str>,
    why: Why,
    /// The epoch of the holder that wrote the snapshot.
    epoch: u64,
    /// Memory of the entries so far, approximately.
    bytes: usize,
    step: Step,
}

/// The purpose of a read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    /// A connection in this slot; `is_clean` if it wants a new session.
    Client { is_clean: bool },
    /// A takeover without a connection.
    Takeover,
}

enum Step {
    /// Waiting for the client id.
    Claim,
    /// Waiting for the snapshot.
    Snapshot,
    /// Writing the fence; holds the snapshot.
    Fence(Vec<u8>),
    /// Reading entries; holds the snapshot, the page state and the entries so far.
    Entries(Vec<u8>, Pages, Vec<Vec<u8>>),
}

impl Readings {
    /// Its connection has ended.
    pub fn remove(&mut self, key: ConnKey) {
        self.by_place.remove(&key);
    }

    /// True if takeovers exceed their memory limit and this one is not the largest.
    fn gives_way(&self, key: ConnKey) -> bool {
        let bytes = |reading: &Reading| reading.bytes;
        let Some(own) = self.by_place.get(&key).filter(|reading| reading.why == Why::Takeover) else {
            return false;
        };
        self.takeovers().map(bytes).sum::<usize>() > TAKEOVER_BYTES_MAX
            && self.takeovers().map(bytes).max() > Some(own.bytes)
    }

    /// Postpones a damaged session.
    pub(super) fn damaged(&mut self, id: Box<str>, now_ms: u64) {
        if self.damaged.len() >= DAMAGED_MAX
            && let Some(first) = self.damaged.iter().min_by_key(|(_, due_ms)| **due_ms)
        {
            let first = first.0.clone();
            self.damaged.remove(&first);
        }
        self.damaged.insert(id, now_ms + DAMAGED_MS);
    }

    fn is_damaged(&mut self, id: &str, now_ms: u64) -> bool {
        match self.damaged.get(id) {
            Some(&due_ms) if due_ms > now_ms => true,
            Some(_) => self.damaged.remove(id).is_none(),
            None => false,
        }
    }

    fn takeovers(&self) -> impl Iterator<Item = &Reading> {
        self.by_place.values().filter(|reading| reading.why == Why::Takeover)
    }
}

/// A session of this client id has no holder: takes it over unless another node has or wants the id.
pub(super) fn claim(ctx: &mut Ctx, id: Box<str>) {
    let now_ms = ctx.io.now.mono_ms;
    let readings = &mut ctx.io.states.mqtt.readings;
    let in_flight = readings.takeovers().count();
    let is_known = readings.is_damaged(&id, now_ms) || readings.takeovers().any(|reading| reading.id == id);
    if is_known || in_flight >= TAKEOVERS_MAX || ctx.io.states.mqtt.is_leaving {
        return;
    }
    let is_full = ctx.io.has_sessions(in_flight + 1);
    let was_full = std::mem::replace(&mut ctx.io.states.mqtt.readings.is_full, is_full);
    if is_full {
        // It stays persisted: its client may resume it, and the takeover is tried again.
        ctx.io.metrics.mqtt_session_takeovers_failed_total.add(1);
        if !was_full {
            let fields = vec![("limit", "mqtt_sessions_max".to_owned())];
            ctx.io.lines.log(Level::Warning, "sessions without an owner wait for room", fields);
        }
        return;
    }
    let key = ctx.io.conns.reserve();
    let reading = Reading { id: id.clone(), why: Why::Takeover, epoch: 0, bytes: 0, step: Step::Claim };
    ctx.io.states.mqtt.readings.by_place.insert(key, reading);
    let who = Holder { shard: ctx.io.shard, conn: key };
    claims::claim(ctx, id, Claimant { who, aim: Aim::Adopt });
}

/// A claim was refused; returns whether it was for a takeover.
pub(super) fn is_refused(ctx: &mut Ctx, key: ConnKey) -> bool {
    let Some(reading) = ctx.io.states.mqtt.readings.by_place.get(&key) else { return false };
    let is_it = reading.why == Why::Takeover;
    if is_it {
        ctx.io.states.mqtt.readings.remove(key);
        ctx.io.conns.give_back(key);
    }
    is_it
}

/// The holder must release an id; returns whether that was a takeover in progress, which ends.
pub(super) fn ends(ctx: &mut Ctx, key: ConnKey) -> bool {
    let id = ctx.io.states.mqtt.readings.by_place.get(&key).map(|reading| reading.id.clone());
    let is_it = is_refused(ctx, key);
    if let Some(id) = id.filter(|_| is_it) {
        claims::release(ctx, id, Holder { shard: ctx.io.shard, conn: key });
    }
    is_it
}

/// A claim was granted; returns whether it was for a takeover, which continues.
pub(super) fn begin_takeover(ctx: &mut Ctx, key: ConnKey) -> bool {
    let Some(reading) = ctx.io.states.mqtt.readings.by_place.get_mut(&key) else { return false };
    reading.step = Step::Snapshot;
    let id = reading.id.clone();
    request_snapshot(ctx, key, &id);
    true
}

/// Reads the session of a connection's client id.
pub(super) fn begin(ctx: &mut Ctx, key: ConnKey, id: Box<str>, is_clean: bool) {
    match is_clean && !is_recorded(ctx, key) {
        // Clean Start does not wait for the hub: it continues while that is unavailable.
        true => ctx.ask_home(&room_of(&id), Question::Row(snapshot_of(&id)), then(key)),
        false => request_snapshot(ctx, key, &id),
    }
    let reading = Reading { id, why: Why::Client { is_clean }, epoch: 0, bytes: 0, step: Step::Snapshot };
    ctx.io.states.mqtt.readings.by_place.insert(key, reading);
}

/// Continues the reading at this connection slot with the response.
fn then(key: ConnKey) -> Then {
    Then::work(move |part| Work::Past(key, Part::history(part)))
}

fn request_snapshot(ctx: &mut Ctx, key: ConnKey, id: &str) {
    ctx.ask_home(&room_of(id), Question::History(snapshot_of(id)), then(key));
}

/// The query for a client id's snapshot.
pub(super) fn snapshot_of(id: &str) -> HistoryQuery {
    HistoryQuery { room: room_of(id), count: 1, after: None, topic: None }
}

/// True if a connection wants a persistent session that outlives it.
fn is_recorded(ctx: &Ctx, key: ConnKey) -> bool {
    let client = ctx.io.conns.get(key).and_then(|conn| conn.mqtt.as_ref());
    client.is_some_and(|client| client.is_recorded() && client.machine.session_expiry_s() > 0)
}

/// A page of a session's room has arrived.
pub fn came(ctx: &mut Ctx, key: ConnKey, part: Result<HistoryPart, ErrorCode>) {
    let is_closing = ctx.io.conns.get(key).is_some_and(|conn| conn.is_closing());
    if ctx.io.states.mqtt.is_leaving && ends(ctx, key) {
        // The persisted session stays for the remaining nodes.
        return;
    }
    let Some(reading) = ctx.io.states.mqtt.readings.by_place.get_mut(&key).filter(|_| !is_closing) else {
        return;
    };
    let (part, why, id) = match part {
        Ok(part) => (part, reading.why, reading.id.clone()),
        Err(_) => return fails(ctx, key),
    };
    match &mut reading.step {
        Step::Claim | Step::Fence(_) => {}
        Step::Snapshot => {
            let snapshot = part.records.last();
            let epoch = snapshot.and_then(|snapshot| Owner::of(snapshot)).unwrap_or_default().epoch;
            let snapshot =
                snapshot.map(|snapshot| snapshot.payload()).filter(|snapshot| !snapshot.is_empty());
            reading.epoch = epoch;
            match (snapshot, why) {
                (Some(snapshot), Why::Takeover | Why::Client { is_clean: false }) => {
                    let snapshot = snapshot.to_vec();
                    let head = Head::read(&snapshot).map(|(head, ..)| EntryHead {
                        born: head.born,
                        epoch: epoch + 1,
                        number: 0,
                    });
                    reading.step = Step::Fence(snapshot);
                    match head {
                        Ok(head) => store::append(ctx, id, begin_entry(head), Written::Fence(key)),
                        // `restore` below reports the damage.
                        Err(_) => fenced(ctx, key, true),
                    }
                }
                (Some(snapshot), Why::Client { is_clean: true }) => {
                    let snapshot = snapshot.to_vec();
                    ctx.io.states.mqtt.readings.remove(key);
                    takeover::clear(ctx, key, id, &snapshot, epoch);
                }
                (None, Why::Client { .. }) => {
                    ctx.io.states.mqtt.readings.remove(key);
                    takeover::begin_new(ctx, key, epoch);
                }
                (None, Why::Takeover) => _ = ends(ctx, key),
            }
        }
        Step::Entries(snapshot, pages, entries) => {
            let records = pages.take(part);
            let payloads = records.iter().map(|record| record.payload());
            for entry in payloads.filter(|entry| is_of_use(snapshot, entry)) {
                reading.bytes += entry.len() + size_of::<Vec<u8>>();
                entries.push(entry.to_vec());
            }
            if ctx.io.states.mqtt.readings.gives_way(key) {
                // A later search finds it again.
                ends(ctx, key);
                return;
            }
            read_on(ctx, key);
        }
    }
}

/// The fence of a session is written, or the write failed.
pub(super) fn fenced(ctx: &mut Ctx, key: ConnKey, is_safe: bool) {
    let Some(reading) = ctx.io.states.mqtt.readings.by_place.get_mut(&key) else { return };
    let Step::Fence(snapshot) = &mut reading.step else { return };
    if !is_safe {
        return fails(ctx, key);
    }
    let pages = Pages::new(&queue_of(&reading.id), None, PAGE);
    reading.step = Step::Entries(std::mem::take(snapshot), pages, Vec::new());
    read_on(ctx, key);
}

fn read_on(ctx: &mut Ctx, key: ConnKey) {
    let Some(reading) = ctx.io.states.mqtt.readings.by_place.get_mut(&key) else { return };
    let Step::Entries(_, pages, _) = &reading.step else { return };
    if let Some(query) = pages.next() {
        return ctx.ask_home(&query.room.clone(), Question::History(query), then(key));
    }
    let Some(Reading { id, why, epoch, step: Step::Entries(snapshot, _, entries), .. }) =
        ctx.io.states.mqtt.readings.by_place.remove(&key)
    else {
        unreachable!("it is one that was read")
    };
    let found = Found { id, snapshot, entries };
    match why {
        Why::Takeover => takeover::take_over_offline(ctx, key, found),
        Why::Client { .. } => takeover::take_over(ctx, key, found, epoch),
    }
}

/// A session cannot be read now. A client with Clean Start continues; the old session is deleted once it can
/// be read.
fn fails(ctx: &mut Ctx, key: ConnKey) {
    if ends(ctx, key) {
        return;
    }
    let reading = ctx.io.states.mqtt.readings.by_place.remove(&key);
    let is_clean = |reading: &Reading| reading.why == Why::Client { is_clean: true };
    match reading.filter(is_clean).filter(|_| !is_recorded(ctx, key)) {
        Some(Reading { id, .. }) => {
            forgo_will(&mut ctx.io, key);
            ctx.io.delete_later(id);
            takeover::begin_new(ctx, key, 0);
        }
        None => refused(ctx, key, Reason::ServerUnavailable),
    }
}

/// The most sessions without a holder per search.
const SEARCHED_MAX: usize = 256;

/// Starts takeovers of sessions in hubs that this shard leads, whose holder has released them or whose
/// process is gone; the shards of their client ids execute them. Runs periodically.
pub fn start_takeovers(ctx: &mut Ctx) {
    if !ctx.reads_sessions() || ctx.io.states.mqtt.is_leaving {
        return;
    }
    let mut gone = std::mem::take(&mut ctx.io.states.mqtt.readings.gone);
    gone.look(ctx.io.states.links.runs());
    for room in ctx.broker.orphans(|run| gone.is(run), SEARCHED_MAX) {
        let Some(id) = takeover::id_of_snapshot(&room) else { continue };
        let home = claims::home_of(&id, ctx.io.mailer.shards());
        handover::post(ctx, home, MqttMail::TakeOver(id.into()));
    }
    ctx.io.states.mqtt.readings.gone = gone;
}

/// Processes that are gone. A process counts as gone only if an earlier search missed it too, because it may
/// not be known yet. A search covers only some sessions, so missed processes are remembered over several
/// searches.
#[derive(Default)]
struct Gone {
    runs: HashSet<u64>,
    /// Processes missed in earlier searches and since.
    before: HashSet<u64>,
    /// Processes missed in this search.
    now: HashSet<u64>,
}

impl Gone {
    /// Starts a search with the running processes.
    fn look(&mut self, runs: HashSet<u64>) {
        self.before.extend(self.now.drain());
        self.before.retain(|run| !runs.contains(run));
        self.runs = runs;
    }

    /// True if a process is gone.
    fn is(&mut self, run: u64) -> bool {
        if self.runs.contains(&run) {
            return false;
        }
        self.now.insert(run);
        self.before.contains(&run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_session_is_left_alone_for_a_while() {
        let mut readings = Readings::default();
        assert!(!readings.is_damaged("a", 0));
        readings.damaged("a".into(), 5);
        assert!(readings.is_damaged("a", 5) && readings.is_damaged("a", DAMAGED_MS + 4));
        assert!(!readings.is_damaged("a", DAMAGED_MS + 5), "it is tried again");
        (0..=DAMAGED_MAX as u64).for_each(|n| readings.damaged(n.to_string().into(), n));
        assert_eq!(readings.damaged.len(), DAMAGED_MAX);
        assert!(!readings.is_damaged("0", 0) && readings.is_damaged("1", 0), "the first gives way");
    }

    #[test]
    fn of_sessions_that_have_read_more_than_there_is_room_for_the_one_with_most_goes_on() {
        let mut readings = Readings::default();
        let key = |index| ConnKey { index, generation: 0 };
        let mut read = |index, why, bytes| {
            let reading = Reading { id: "a".into(), why, epoch: 1, bytes, step: Step::Snapshot };
            readings.by_place.insert(key(index), reading);
        };
        read(1, Why::Takeover, TAKEOVER_BYTES_MAX / 2);
        read(2, Why::Takeover, TAKEOVER_BYTES_MAX / 2);
        read(3, Why::Client { is_clean: false }, 1);
        assert!((1..=3).all(|index| !readings.gives_way(key(index))), "there is room");
        readings.by_place.get_mut(&key(2)).unwrap().bytes += 1;
        let gives_way: Vec<bool> = (1..=3).map(|index| readings.gives_way(key(index))).collect();
        assert_eq!(gives_way, [true, false, false], "a client waits for nobody");
    }

    #[test]
    fn a_process_is_gone_that_was_missed_before_also_where_others_were_looked_at_since() {
        let mut gone = Gone::default();
        let runs = |runs: &[u64]| runs.iter().copied().collect::<HashSet<u64>>();
        gone.look(runs(&[1]));
        assert!(!gone.is(1) && !gone.is(7) && !gone.is(7), "it may not be known yet");
        gone.look(runs(&[1]));
        assert!(!gone.is(8));
        gone.look(runs(&[1]));
        assert!(gone.is(7) && gone.is(8) && !gone.is(9) && !gone.is(1));
        gone.look(runs(&[1, 7]));
        assert!(!gone.is(7), "it is there");
        gone.look(runs(&[1]));
        assert!(!gone.is(7), "it may be back in a moment");
    }
}
