//! Session stores outside the process: the node's own rooms, or a store of `hubsub-sessions`, on the thread of
//! [`store_thread`](super::state::store_thread).

use super::state::mail::Stored;
use super::state::work::Written;
use crate::context::Ctx;
use hubsub_mqtt::rooms::{entries_room, snapshot_room};
use hubsub_mqtt::{Found, adds_to, beginning_of};
use hubsub_route::Owner;
use hubsub_route::rows::CLASS;
use hubsub_sessions::{Answer, Disk, Redis, Request, SessionStore, StoreError};
use hubsub_types::{ErrorCode, Limits, ShardId};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Where sessions are persisted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreConfig {
    /// The node's own rooms, if they have a log.
    Log,
    /// Nowhere: sessions end with the process.
    Memory,
    /// A file with this path.
    Disk(PathBuf),
    /// A Redis server: its URL, and the name of the session set there.
    Redis(String, String),
}

impl StoreConfig {
    /// Opens a separate store and tests it, because serving without its sessions would lose them.
    ///
    /// # Errors
    /// A damaged file, an unreachable server, an invalid URL.
    pub fn open(&self, limits: &Limits) -> io::Result<Option<Box<dyn SessionStore>>> {
        let (session_limits, timeout) =
            (session_limits(limits), Duration::from_millis(limits.inflight_store_timeout_ms));
        let opened: Result<Box<dyn SessionStore>, StoreError> = match self {
            StoreConfig::Log | StoreConfig::Memory => return Ok(None),
            StoreConfig::Disk(path) => {
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                Disk::open(path, session_limits).map(|store| Box::new(store) as _)
            }
            StoreConfig::Redis(url, name) => {
                Redis::new(url, name, session_limits, timeout).map(|store| Box::new(store) as _)
            }
        };
        let tried = opened.and_then(|mut store| {
            store.carry_out(&[nobody()]).into_iter().collect::<Result<Vec<_>, _>>().map(|_| store)
        });
        tried.map(Some).map_err(|e| startup_error(&e))
    }
}

/// A request that changes nothing and costs little: no client has that id.
fn nobody() -> Request {
    Request::Load { id: "\0".into() }
}

fn startup_error(error: &StoreError) -> io::Error {
    let text = error.to_string();
    // The operating system's error number does not help the reader.
    let what = text.split(" (os error").next().unwrap_or_default();
    io::Error::other(format!("cannot open inflight_store: {what}; hint: {}", hint(error)))
}

fn hint(error: &StoreError) -> &'static str {
    match error {
        StoreError::Damaged { .. } => {
            "bring the file back from a copy, or move it away: the node then begins without its sessions"
        }
        StoreError::NewerFormat { .. } => "start the version of HubSub that wrote it",
        StoreError::NoUrl(_) => "redis://[USER][:PASSWORD@]HOST[:PORT][/DB], or unix:///PATH",
        StoreError::Unreachable(_) => {
            "start the server, then the node; else it would forget the sessions there"
        }
        _ => "mend the cause, then start the node again",
    }
}

/// The limits of a session: twice the queue and in-flight limits, because a snapshot replaces entries only
/// afterwards.
fn session_limits(limits: &Limits) -> hubsub_sessions::Limits {
    hubsub_sessions::Limits {
        entries_max: 2 * limits.mqtt_session_queue_messages_max + 4 * limits.mqtt_inflight_max + 1_024,
        bytes_max: 2 * limits.mqtt_session_queue_bytes_max
            + (limits.mqtt_inflight_max + 2) * limits.mqtt_packet_bytes_max,
    }
}

/// All sessions of a store, before any is in use.
///
/// # Errors
/// If the store fails.
pub fn found_in(store: &mut dyn SessionStore) -> io::Result<Vec<Found>> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.carry_out(&[Request::List { after, max: PAGE }]).pop();
        let page = match page.expect("each request has its answer") {
            Ok(Answer::Listed(page)) => page,
            Ok(_) => unreachable!("a list was asked for"),
            Err(e) => return Err(startup_error(&e)),
        };
        after = page.last().map(|(id, _)| id.clone());
        if after.is_none() {
            return Ok(found);
        }
        let loads: Vec<Request> = page.iter().map(|(id, _)| Request::Load { id: id.clone() }).collect();
        for ((id, _), loaded) in page.into_iter().zip(store.carry_out(&loads)) {
            match loaded {
                Ok(Answer::Loaded { snapshot: Some(snapshot), entries }) => {
                    let entries = entries.into_iter().map(|(_, entry)| entry);
                    let entries = entries.filter(|entry| adds_to(&snapshot, entry)).collect();
                    found.push(Found { id, snapshot, entries });
                }
                Ok(_) => {}
                Err(e) => return Err(startup_error(&e)),
            }
        }
    }
}

const PAGE: usize = 1_000;

/// True if sessions are persisted here: in a log, or in the session store of a lone node.
pub(super) fn records_sessions(ctx: &Ctx) -> bool {
    let classes = ctx.broker.classes();
    let is_logged = |class| classes.get(class).durability.is_logged();
    let has_log = || classes.index_of(CLASS).is_some_and(is_logged);
    match ctx.io.states.mqtt.store {
        Some(_) => !ctx.broker.is_clustered(),
        None => ctx.io.info.keeps_sessions && has_log(),
    }
}

/// True if another node may hold or have held a session: then it is read when a client id is granted.
pub(super) fn reads_sessions(ctx: &Ctx) -> bool {
    ctx.broker.is_clustered() && records_sessions(ctx)
}

/// The writer of snapshots here, as the holder of an epoch.
pub(super) fn owner(ctx: &Ctx, epoch: u64, born: u64) -> Owner {
    Owner { epoch, run: ctx.io.states.links.run(), born, is_over: false }
}

/// Saves a snapshot with all its entries in a store, atomically.
pub(super) fn save_all(
    ctx: &mut Ctx,
    id: Box<str>,
    snapshot: Vec<u8>,
    entries: (u64, Vec<Vec<u8>>),
    then: Written,
) {
    let (through, entries) = entries;
    ask_store(ctx, Request::Save { id, snapshot, through, entries }, Some(then));
}

/// Saves a snapshot as the session's holder. `last` is its last entry; entries up to `through` are obsolete.
pub(super) fn save(
    ctx: &mut Ctx,
    id: Box<str>,
    snapshot: Vec<u8>,
    (owner, last, through): (Owner, u64, u64),
    then: Written,
) {
    match ctx.io.states.mqtt.store {
        Some(_) => {
            let request = Request::Update { id, snapshot, last, through };
            ask_store(ctx, request, Some(then));
        }
        None => {
            let headers = Some(owner.headers());
            ctx.say_with(&snapshot_room(&id), &snapshot, headers, Some(then));
        }
    }
}

pub(super) fn append(ctx: &mut Ctx, id: Box<str>, entry: Vec<u8>, then: Written) {
    match ctx.io.states.mqtt.store {
        Some(_) => _ = ask_store(ctx, Request::Append { id, entry }, Some(then)),
        None => ctx.say_in(&entries_room(&id), &entry, Some(then)),
    }
}

/// Deletes a session's snapshot and entries, as the holder of that epoch of session `born`; a newer session
/// under the id stays.
pub(super) fn end(ctx: &mut Ctx, id: Box<str>, (epoch, born): (u64, u64), then: Written) {
    match ctx.io.states.mqtt.store {
        Some(_) => {
            let request = Request::End { id, begins_with: beginning_of(born) };
            ask_store(ctx, request, Some(then));
        }
        None => {
            let headers = Some(owner(ctx, epoch, born).headers());
            ctx.say_with(&snapshot_room(&id), b"", headers, Some(then));
        }
    }
}

/// Sends a request to the store, which must exist; a full queue is reported as the reply.
fn ask_store(ctx: &mut Ctx, request: Request, asked: Option<Written>) -> u32 {
    let number = ctx.io.own.number(asked);
    let end = ctx.io.states.mqtt.store.as_ref().expect("who asks has looked");
    end.ask(number, request);
    number
}

/// A reply of the store: the write that it completes, and its outcome.
pub(super) fn answered(ctx: &mut Ctx, stored: Stored) -> Option<(Written, Result<u64, ErrorCode>)> {
    let Stored { number, answer } = stored;
    let asked = ctx.io.own.answered(number).and_then(|asked| Written::try_from(asked).ok());
    if let Some(end) = ctx.io.states.mqtt.store.as_mut().filter(|end| end.looks == Some(number)) {
        // The thread logged its result.
        end.looks = None;
    }
    let written = asked?;
    // The thread logged the error.
    let outcome = match (answer, &written) {
        // The store lacks an earlier entry: this one is useless, and its waits must fail.
        (Ok(Answer::Appended(number)), Written::Entry(_, _, wanted, _)) if number != *wanted => {
            Err(ErrorCode::TimedOut)
        }
        (answer, _) => answer.map(|_| 0).map_err(|_| ErrorCode::TimedOut),
    };
    Some((written, outcome))
}

/// Checks periodically that an idle store is reachable.
pub fn look(ctx: &mut Ctx) {
    let is_due =
        ctx.io.states.mqtt.store.as_ref().is_some_and(|end| end.shard == ShardId(0) && end.looks.is_none());
    if is_due {
        let number = ask_store(ctx, nobody(), None);
        ctx.io.states.mqtt.store.as_mut().expect("it was asked").looks = Some(number);
    }
}
