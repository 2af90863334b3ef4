//! Where sessions are kept beyond this process: in the node's own rooms, or in a store of `hubsub-sessions`. That is on a
//! thread of its own ([`thread`]), of which each shard has an end.
//!
//! Invariant: each request has one answer, which comes as mail to the shard that asked; those of requests that were taken
//! in their order.

#[cfg(test)]
mod seeds;
mod thread;

pub use thread::{StoreState, StoreStatus, StoreThread};

use super::MqttMail;
use super::adoption::{Found, is_of_use, queue_of, room_of};
use super::durable::{self, Written};
use super::entries::beginning_of;
use crate::core::Core;
use crate::mail::Mail;
use crate::own::Asked;
use hubsub_route::Owner;
use hubsub_sessions::{Answer, Disk, Redis, Request, SessionStore, StoreError};
use hubsub_types::{ErrorCode, Limits, ShardId};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thread::{Asks, Work};

/// What keeps sessions beyond their process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StoreConfig {
    /// The node's own rooms, if they are in a log.
    Log,
    /// Nothing: they end with it.
    Memory,
    /// A file.
    Disk(PathBuf),
    /// A Redis server: its URL, and the name under which it has the sessions.
    Redis(String, String),
}

impl StoreConfig {
    /// Opens a store of its own, and tries it: whoever served without what it keeps would lose that.
    ///
    /// # Errors
    /// A damaged file, a server that is away, a URL of none.
    pub fn open(&self, limits: &Limits) -> io::Result<Option<Box<dyn SessionStore>>> {
        let (kept, patience) = (kept(limits), Duration::from_millis(limits.inflight_store_timeout_ms));
        let opened: Result<Box<dyn SessionStore>, StoreError> = match self {
            StoreConfig::Log | StoreConfig::Memory => return Ok(None),
            StoreConfig::Disk(path) => {
                path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
                Disk::open(path, kept).map(|store| Box::new(store) as _)
            }
            StoreConfig::Redis(url, name) => {
                Redis::new(url, name, kept, patience).map(|store| Box::new(store) as _)
            }
        };
        let tried = opened.and_then(|mut store| {
            store.carry_out(&[nobody()]).into_iter().collect::<Result<Vec<_>, _>>().map(|_| store)
        });
        tried.map(Some).map_err(|e| told(&e))
    }
}

/// A request that changes nothing, and asks for little: no client has that id.
fn nobody() -> Request {
    Request::Load { id: "\0".into() }
}

fn told(error: &StoreError) -> io::Error {
    let text = error.to_string();
    // The system's number of it is of no use to whoever reads.
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

/// What a session may keep: twice what may be queued for it and what may be under way, since a snapshot follows what it
/// holds.
fn kept(limits: &Limits) -> hubsub_sessions::Limits {
    hubsub_sessions::Limits {
        entries_max: 2 * limits.mqtt_session_queue_messages_max + 4 * limits.mqtt_inflight_max + 1_024,
        bytes_max: 2 * limits.mqtt_session_queue_bytes_max
            + (limits.mqtt_inflight_max + 2) * limits.mqtt_packet_bytes_max,
    }
}

/// A shard's end of the store. Who waits for an answer stands with the node's own client ([`crate::own`]), which numbers
/// what it asks for.
pub struct StoreEnd {
    work: Arc<Work>,
    shard: ShardId,
    /// The number of a look that is not answered.
    looks: Option<u32>,
}

impl StoreEnd {
    /// Of a shard.
    #[must_use]
    pub fn new(thread: &StoreThread, shard: ShardId) -> StoreEnd {
        StoreEnd { work: thread.work(), shard, looks: None }
    }
}

/// An answer.
#[derive(Debug)]
pub struct Stored {
    /// To which request of the shard.
    number: u32,
    /// What.
    answer: Result<Answer, StoreError>,
}

impl Stored {
    /// As mail.
    fn mail(number: u32, answer: Result<Answer, StoreError>) -> Mail {
        Mail::Mqtt(MqttMail::Stored(Box::new(Stored { number, answer })))
    }

    /// Its memory, for mailbox limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        let bytes = match &self.answer {
            Ok(Answer::Loaded { snapshot, entries }) => {
                let entries: usize =
                    entries.iter().map(|(_, entry)| entry.len() + size_of::<Vec<u8>>()).sum();
                snapshot.as_ref().map_or(0, Vec::len) + entries
            }
            Ok(Answer::Listed(page)) => page.iter().map(|(id, snapshot)| id.len() + snapshot.len()).sum(),
            _ => 0,
        };
        size_of::<Stored>() + bytes
    }
}

/// The sessions that a store has, of which none is in use yet.
///
/// # Errors
/// The store's.
pub fn found_in(store: &mut dyn SessionStore) -> io::Result<Vec<Found>> {
    let (mut found, mut after) = (Vec::new(), None);
    loop {
        let page = store.carry_out(&[Request::List { after, max: PAGE }]).pop();
        let page = match page.expect("each request has its answer") {
            Ok(Answer::Listed(page)) => page,
            Ok(_) => unreachable!("a list was asked for"),
            Err(e) => return Err(told(&e)),
        };
        after = page.last().map(|(id, _)| id.clone());
        if after.is_none() {
            return Ok(found);
        }
        let loads: Vec<Request> = page.iter().map(|(id, _)| Request::Load { id: id.clone() }).collect();
        for ((id, _), loaded) in page.into_iter().zip(store.carry_out(&loads)) {
            match loaded {
                Ok(Answer::Loaded { snapshot: Some(row), entries }) => {
                    let entries = entries.into_iter().map(|(_, entry)| entry);
                    let entries = entries.filter(|entry| is_of_use(&row, entry)).collect();
                    found.push(Found { id, row, entries });
                }
                Ok(_) => {}
                Err(e) => return Err(told(&e)),
            }
        }
    }
}

/// Snapshots that are read at once.
const PAGE: usize = 1_000;

/// Keeps a session as it is now with all its entries, in a store: all of it, or nothing.
pub(super) fn save_all(
    core: &mut Core,
    id: Box<str>,
    row: Vec<u8>,
    entries: (u64, Vec<Vec<u8>>),
    then: Written,
) {
    let (through, entries) = entries;
    core.ask_store(Request::Save { id, snapshot: row, through, entries }, Asked::Session(then));
}

/// Keeps a session as it is now, as its holder, after all its entries: the number of the last, and up to which they are of no
/// use.
pub(super) fn save(
    core: &mut Core,
    id: Box<str>,
    row: Vec<u8>,
    (owner, last, through): (Owner, u64, u64),
    then: Written,
) {
    match core.rim.store {
        Some(_) => {
            let request = Request::Update { id, snapshot: row, last, through };
            core.ask_store(request, Asked::Session(then));
        }
        None => {
            let headers = Some(owner.headers());
            core.say_with(&room_of(&id), &row, headers, Asked::Session(then));
        }
    }
}

/// Keeps what happened to it since.
pub(super) fn append(core: &mut Core, id: Box<str>, entry: Vec<u8>, then: Written) {
    match core.rim.store {
        Some(_) => _ = core.ask_store(Request::Append { id, entry }, Asked::Session(then)),
        None => core.say_in(&queue_of(&id), &entry, Asked::Session(then)),
    }
}

/// Keeps nothing of it any more, as the holder of that epoch of the session that is so born; one that has taken its place
/// stays.
pub(super) fn end(core: &mut Core, id: Box<str>, (epoch, born): (u64, u64), then: Written) {
    match core.rim.store {
        Some(_) => {
            let request = Request::End { id, begins_with: beginning_of(born) };
            core.ask_store(request, Asked::Session(then));
        }
        None => {
            let headers = Some(core.owner(epoch, born).headers());
            core.say_with(&room_of(&id), b"", headers, Asked::Session(then));
        }
    }
}

impl Core {
    /// Asks the store for something, which there is; where it has no room, that is the answer.
    fn ask_store(&mut self, request: Request, asked: Asked) -> u32 {
        let number = self.rim.own.number(asked);
        let end = self.rim.store.as_ref().expect("who asks has looked");
        end.work.ask(Asks { shard: end.shard, number, request });
        number
    }
}

/// Acts on an answer.
pub fn stored(core: &mut Core, stored: Stored) {
    let Stored { number, answer } = stored;
    let asked = core.rim.own.answered(number);
    if let Some(end) = core.rim.store.as_mut().filter(|end| end.looks == Some(number)) {
        // What it says, the thread has told.
        end.looks = None;
    }
    if let Some(Asked::Session(what)) = asked {
        // Which error it was, the thread has told.
        let outcome = match (answer, &what) {
            // The store lacks one before it: this one is of no use, and what waits for it must not go on.
            (Ok(Answer::Appended(number)), Written::Entry(_, _, wanted, _)) if number != *wanted => {
                Err(ErrorCode::TimedOut)
            }
            (answer, _) => answer.map(|_| 0).map_err(|_| ErrorCode::TimedOut),
        };
        durable::written(core, what, outcome);
    }
}

/// Looks, once in a while, whether a store is there that nobody has asked for anything.
pub fn look(core: &mut Core) {
    let is_due = core.rim.store.as_ref().is_some_and(|end| end.shard == ShardId(0) && end.looks.is_none());
    if is_due {
        let number = core.ask_store(nobody(), Asked::Nobody);
        core.rim.store.as_mut().expect("it was asked").looks = Some(number);
    }
}
