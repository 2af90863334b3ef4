//! Bringing a node's log up: opens the directory, finds or makes the hubs of each
//! logged class, starts the threads. The node's own classes, which hold little, have one
//! hub each; others one for each shard.

use super::archive::{Archive, Keeping};
use super::status::LoggedHub;
use super::{Chains, Listener, Log, LogSettings, LoggedHubs, Readers, Streams, producers};
use crate::control::{Control, Level};
use crate::inbox::Inbox;
use crate::mail::Mail;
use hubsub_log::{ChainOptions, Disk, Keep, LogError, LogOptions, Opened, Retention, Segments, open};
use hubsub_route::{HubSeed, Producers, Window};
use hubsub_types::class::ClassIndex;
use hubsub_types::names::is_reserved;
use hubsub_types::{ClassTable, Durability, HubId, Limits};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

/// Threads that read the log.
const READERS: usize = 2;

/// Questions that wait for them.
const JOBS_MAX: usize = 1024;

/// Where a node's log is; how it is kept stand in the limits.
#[derive(Clone, Debug)]
pub struct LogConfig {
    /// The data directory.
    pub directory: PathBuf,
    /// Identity of a directory that is made now.
    pub identity: u64,
}

/// A log that runs.
pub struct Started {
    /// Its threads.
    pub log: Arc<Log>,
    /// Who reads it.
    pub readers: Arc<Readers>,
    /// Who reads much of it.
    pub streams: Arc<Streams>,
    /// Identity of its directory.
    pub identity: u64,
    /// The chains of the hubs that are whole.
    pub chains: Arc<Chains>,
    /// All hubs, as an operator sees them.
    pub hubs: Arc<LoggedHubs>,
    /// All hubs.
    pub seeds: Vec<HubSeed>,
    /// The duplicate windows of those that are whole.
    pub producers: Vec<(HubId, Producers)>,
}

/// Tells the shards of the hubs.
struct Tells {
    inboxes: Arc<[Inbox]>,
    /// By hub, its shard.
    shards: HashMap<HubId, usize>,
    hubs: Arc<LoggedHubs>,
}

impl Listener for Tells {
    fn safe(&self, hubs: &[(HubId, u64)]) {
        let mut by_shard: Vec<Vec<(HubId, u64)>> = vec![Vec::new(); self.inboxes.len()];
        for &(hub, offset) in hubs {
            self.hubs.synced(hub, offset);
            by_shard[self.shards[&hub]].push((hub, offset));
        }
        for (hubs, inbox) in by_shard.into_iter().zip(self.inboxes.iter()) {
            if !hubs.is_empty() {
                inbox.send(&mut vec![Mail::Safe(hubs)]);
            }
        }
    }

    fn failed(&self) {
        self.inboxes.iter().for_each(|inbox| inbox.send(&mut vec![Mail::LogFailed]));
    }
}

/// Rooms that other rules put into another class keep the one that they were made with.
fn keep_classes(
    segments: &mut Segments<Disk>,
    classes: &mut ClassTable,
    control: &Control,
) -> Result<(), LogError> {
    let rules = classes.rules();
    if segments.manifest().rules == rules {
        return Ok(());
    }
    let mut is_settled = true;
    for entry in segments.manifest().hubs.clone() {
        let Some(chain) = segments.chain(entry.hub) else {
            is_settled = false;
            continue;
        };
        let index = classes.classes().iter().position(|class| class.name == entry.class);
        let index = index.expect("the caller has looked") as ClassIndex;
        let strays = chain.rooms_page(None, usize::MAX, |room| classes.class_of_room(room) != index)?;
        if strays.is_empty() {
            continue;
        }
        is_settled = false;
        let fields = vec![("class", entry.class), ("rooms", strays.len().to_string())];
        control.log(Level::Warning, "rooms keep the class that they were made with", fields);
        strays.iter().for_each(|(room, _)| classes.keep(room, index));
    }
    segments.set_rules(if is_settled { rules } else { 0 })
}

/// Opens a node's log and starts its threads. A class that has no hubs yet gets one
/// for each shard; a hub lives on the shard of its index modulo the shards.
///
/// # Errors
/// Another process uses the directory, it cannot be opened, or it has hubs of a
/// class that the node does not know or no longer logs.
pub fn start(
    config: &LogConfig,
    limits: &Limits,
    classes: &mut ClassTable,
    inboxes: &Arc<[Inbox]>,
    control: &Arc<Control>,
) -> io::Result<Started> {
    let refused = |text: String| io::Error::other(text);
    let directory = config.directory.display();
    let options = LogOptions {
        chain: ChainOptions { segment_bytes: limits.log_segment_bytes, ..ChainOptions::default() },
        journal_bytes: limits.log_journal_bytes,
        open_files_max: limits.log_open_files_max as usize,
        reserve_bytes: limits.log_reserve_bytes,
    };
    let full = || {
        refused(format!(
            "the disk of {directory} is full; hint: the log needs {} MiB there beside its records \
             (log_reserve_bytes and 1 MiB, 3 × log_journal_bytes)",
            options.room_bytes().div_ceil(1 << 20),
        ))
    };
    let disk = Disk::lock(&config.directory).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock => refused(format!("another node uses the data directory: {directory}")),
        _ => refused(format!("cannot open the data directory {directory}: {e}")),
    })?;
    let Opened { journal, mut segments, was_clean, mut warnings } =
        open(Arc::new(disk), config.identity, options).map_err(|e| match e {
            LogError::Full => full(),
            e => refused(e.to_string()),
        })?;

    let logged = of_logged(classes);
    let known: Vec<String> = segments.manifest().hubs.iter().map(|entry| entry.class.clone()).collect();
    if let Some(class) = known.iter().find(|class| !logged.contains_key(class.as_str())) {
        if was_clean {
            // It stays so for the start that is not refused; if it cannot, that one takes care.
            let _ = segments.close();
        }
        return Err(refused(format!(
            "the data directory {directory} has a log of class {class}, which is not configured as replicated \
             or durable; hint: bring the class back, or start with another data directory"
        )));
    }
    let mut missing: Vec<&str> =
        logged.keys().copied().filter(|&name| !known.iter().any(|k| k == name)).collect();
    // The node's own come last, so that a user's hubs have the same ids with and without them.
    missing.sort_unstable_by_key(|name| (is_reserved(name.as_bytes()), *name));
    for class in missing {
        let shards = if is_reserved(class.as_bytes()) { 1 } else { inboxes.len() as u16 };
        for index in 0..shards {
            segments.add_hub(class, index, Keep::Log).map_err(|e| match e {
                LogError::Full => full(),
                e => refused(format!("cannot make a hub of class {class}: {e}")),
            })?;
        }
    }

    drop(logged);
    keep_classes(&mut segments, classes, control).map_err(|e| match e {
        LogError::Full => full(),
        e => refused(format!(
            "the classes' rules have changed, and the log cannot tell which rooms keep their class: {e}; hint: \
             start with the rules of before, or mend it with `hubsub log repair`"
        )),
    })?;
    let logged: HashMap<&str, ClassIndex> = of_logged(classes);
    let (mut seeds, mut chains, mut keeping) = (Vec::new(), Chains::default(), HashMap::new());
    let mut windows = Vec::new();
    let mut hubs = LoggedHubs::default();
    for entry in segments.manifest().hubs.clone() {
        let index = logged[entry.class.as_str()];
        let class = classes.get(index);
        if class.durability == Durability::Replicated && !was_clean {
            // What was acknowledged from memory alone may be missing.
            segments.end_epochs(entry.hub).map_err(|e| match e {
                LogError::Full => full(),
                e => refused(e.to_string()),
            })?;
        }
        let history = class.history.map_or_else(Retention::default, |history| Retention {
            bytes: history.bytes,
            age_us: history.age_ms * 1000,
            archive: None,
        });
        let archive = Arc::new(Archive::default());
        let keeps = Keeping {
            limits: history,
            archive_wait_bytes: class.archive_wait_bytes,
            archive: Arc::clone(&archive),
        };
        keeping.insert(entry.hub, keeps);
        let chain = segments.chain(entry.hub);
        seeds.push(HubSeed {
            id: entry.hub,
            class: index,
            index: entry.index,
            next: chain.as_ref().map_or(entry.next, |chain| chain.next()),
            last_us: chain.as_ref().map_or(0, |chain| chain.info().last_us),
            continuous_from: segments.continuous_from(entry.hub),
        });
        let shard = entry.index % inboxes.len() as u16;
        hubs.0.insert(entry.hub, LoggedHub::new(&entry, chain.clone(), class, shard, archive));
        let Some(chain) = chain else { continue };
        let window = producers::rebuild(&chain, Window::from(limits)).or_else(|e| {
            let LogError::Damaged { .. } = e else { return Err(refused(e.to_string())) };
            let (hub, class) = (entry.hub.0, &entry.class);
            warnings
                .push(format!("hub {hub} ({class}) refuses numbered records, it cannot tell repeats: {e}"));
            let until = "numbered records are refused until the duplicate window is behind it";
            hubs.damaged(entry.hub, format!("{e}; {until}"));
            Ok(Producers::damaged(Window::from(limits), chain.next() - 1))
        });
        windows.push((entry.hub, window?));
        chains.0.insert(entry.hub, chain);
    }
    let shards = seeds.iter().map(|seed| (seed.id, usize::from(seed.index) % inboxes.len())).collect();
    let hubs = Arc::new(hubs);
    let listener = Arc::new(Tells { inboxes: Arc::clone(inboxes), shards, hubs: Arc::clone(&hubs) });
    let settings = LogSettings {
        pending_bytes_max: limits.log_pending_bytes_max as usize,
        unwritten_bytes_max: limits.log_unwritten_bytes_max as usize,
        checkpoint_bytes: limits.log_checkpoint_bytes,
        checkpoint_ms: limits.log_checkpoint_ms,
        keeping,
    };
    let identity = segments.manifest().identity;
    let opened = Opened { journal, segments, was_clean, warnings };
    let log = Arc::new(Log::start(opened, settings, listener, Arc::clone(control))?);
    let readers = match Readers::start("hubsub-log-reader", READERS, JOBS_MAX) {
        Ok(readers) => Arc::new(readers),
        Err(e) => {
            log.stop();
            return Err(e);
        }
    };
    let chains = Arc::new(chains);
    let (of_streams, known) = (Arc::clone(&chains), Arc::clone(&hubs));
    match Streams::start(Arc::clone(&log), of_streams, known, Arc::clone(control), limits) {
        Ok(streams) => {
            let streams = Arc::new(streams);
            Ok(Started { log, readers, streams, identity, chains, hubs, seeds, producers: windows })
        }
        Err(e) => {
            readers.stop();
            log.stop();
            Err(e)
        }
    }
}

/// The classes with a log, by name.
fn of_logged(classes: &ClassTable) -> HashMap<&str, ClassIndex> {
    let logged = (0u16..).zip(classes.classes()).filter(|(_, class)| class.durability.is_logged());
    logged.map(|(index, class)| (class.name.as_str(), index)).collect()
}
