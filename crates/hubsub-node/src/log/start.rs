//! Starts a node's log: opens the directory, finds or creates the hubs of each class with a log, and starts
//! the threads. Each of the node's internal classes, which hold little data, has one hub; others have one per
//! shard. In a cluster the controller assigns hubs, and a start opens those assigned before.

use super::events::Event;
use super::hub::{Described, describe, keep_of, shard_of};
use super::hubs::LoggedHubs;
use super::mail::LogMail;
use super::readers::Readers;
use super::segments::Handover;
use super::shared::{Listener, LogSettings};
use super::streams::Streams;
use super::threads::Log;
use crate::io::inbox::Post;
use crate::io::log_lines::Level;
use crate::io::report::Report;
use hubsub_log::manifest::HubEntry;
use hubsub_log::{Chain, ChainOptions, Disk, LogError, LogOptions, Membership, Opened, Segments, open_as};
use hubsub_route::rows::CLASS;
use hubsub_route::{HubSeed, Producers, Rows, Window};
use hubsub_types::class::ClassIndex;
use hubsub_types::names::is_reserved;
use hubsub_types::{ClassTable, Durability, HubId, Limits, ShardId};
use std::collections::HashMap;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;

const READERS: usize = 2;

const QUEUES: &str = "$queue";

const JOBS_MAX: usize = 1024;

/// The place of a node's log. Its settings are in the limits.
#[derive(Clone, Debug)]
pub struct LogConfig {
    pub directory: PathBuf,
    pub identity: u64,
    /// The numbering of its hubs.
    pub hubs: Numbering,
}

/// The authority that assigns hubs to a node and numbers them.
#[derive(Clone, Debug, Default)]
pub enum Numbering {
    /// The node, at its start: a fixed number for each class with a log.
    #[default]
    Own,
    /// The controller of its cluster, at any time: a start opens existing hubs and creates none.
    Given {
        cluster: String,
        /// True if the cluster takes over hubs that the node numbered itself when it was alone.
        adopts: bool,
    },
}

impl Numbering {
    fn membership(&self) -> Membership<'_> {
        match *self {
            Numbering::Own => Membership::Alone,
            Numbering::Given { ref cluster, adopts } => Membership::Of { cluster, adopts },
        }
    }
}

pub struct Started {
    pub log: Arc<Log>,
    pub(crate) handover: Arc<Handover<Disk>>,
    pub readers: Arc<Readers>,
    /// Scans as Arrow streams.
    pub streams: Arc<Streams>,
    pub identity: u64,
    pub hubs: Arc<LoggedHubs>,
    /// True if a cluster's controller numbers them.
    pub is_given: bool,
    /// The hubs open at the start.
    pub seeds: Vec<HubSeed>,
    /// The duplicate windows of undamaged hubs.
    pub producers: Vec<(HubId, Producers)>,
    pub rows: Vec<(HubId, Rows)>,
}

/// Notifies the shards of the hubs.
struct Tells {
    inboxes: Arc<dyn Post<LogMail>>,
    hubs: Arc<LoggedHubs>,
}

impl Listener for Tells {
    fn safe(&self, hubs: &[(HubId, u64)]) {
        let mut by_shard: Vec<Vec<(HubId, u64)>> = vec![Vec::new(); usize::from(self.inboxes.shards())];
        for (&synced, shard) in hubs.iter().zip(self.hubs.synced(hubs)) {
            by_shard[usize::from(shard)].push(synced);
        }
        for (hubs, shard) in by_shard.into_iter().zip(0..) {
            if !hubs.is_empty() {
                self.inboxes.post(ShardId(shard), LogMail::Safe(hubs));
            }
        }
    }

    fn failed(&self) {
        (0..self.inboxes.shards()).for_each(|shard| self.inboxes.post(ShardId(shard), LogMail::Failed));
    }
}

/// Existing rooms keep their class when changed rules would put them into another one.
fn keep_classes(
    segments: &mut Segments<Disk>,
    classes: &mut ClassTable,
    control: &dyn Report<Event>,
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

/// Opens a node's log and starts its threads. If the node numbers its hubs itself, a class without hubs gets
/// one per shard. A hub belongs to the shard of its index modulo the shard count.
///
/// # Errors
/// If another process uses the directory, it cannot be opened, it belongs to another cluster, or it has hubs
/// of a class that is unknown or no longer has a log.
pub fn start<F>(
    config: &LogConfig,
    limits: &Limits,
    classes: &mut ClassTable,
    inboxes: Arc<dyn Post<LogMail>>,
    control: Arc<dyn Report<Event>>,
    read_sessions: impl FnOnce(&Chain<Disk>, Option<&Chain<Disk>>) -> Result<Vec<F>, LogError>,
) -> io::Result<(Started, Vec<F>)> {
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
    let failed = |what: &str, error: LogError| match error {
        LogError::Full => full(),
        e => refused(format!("{what}{e}")),
    };
    let disk = Disk::lock(&config.directory).map_err(|e| match e.kind() {
        ErrorKind::WouldBlock => refused(format!("another node uses the data directory: {directory}")),
        _ => refused(format!("cannot open the data directory {directory}: {e}")),
    })?;
    let Opened { journal, mut segments, was_clean, mut warnings } =
        open_as(Arc::new(disk), config.identity, config.hubs.membership(), options).map_err(|e| match e {
            LogError::OtherCluster { .. } => refused(format!(
                "the data directory {directory} is not this node's, {e}; hint: start with another data \
                 directory, or in the cluster that this one is of"
            )),
            e => failed("", e),
        })?;

    let logged = of_logged(classes);
    let known: Vec<String> = segments.manifest().hubs.iter().map(|entry| entry.class.clone()).collect();
    if let Some(class) = known.iter().find(|class| !logged.contains_key(class.as_str())) {
        if was_clean {
            // Keeps the clean state for the next start; if that fails, the next start recovers.
            let _ = segments.close();
        }
        return Err(refused(format!(
            "the data directory {directory} has a log of class {class}, which is not configured as replicated \
             or durable; hint: bring the class back, or start with another data directory"
        )));
    }
    let makes = matches!(config.hubs, Numbering::Own);
    let is_missing = |name: &&str| makes && !known.iter().any(|known| known == name);
    let mut missing: Vec<&str> = logged.keys().copied().filter(is_missing).collect();
    // Internal classes come last, so that a user's hubs have the same ids with and without them.
    missing.sort_unstable_by_key(|name| (is_reserved(name.as_bytes()), *name));
    for class in missing {
        let shards = if is_reserved(class.as_bytes()) { 1 } else { inboxes.shards() };
        for index in 0..shards {
            let added = segments.add_hub(class, index, keep_of(classes.get(logged[class])));
            added.map_err(|e| failed(&format!("cannot make a hub of class {class}: "), e))?;
        }
    }

    drop(logged);
    keep_classes(&mut segments, classes, &*control).map_err(|e| match e {
        LogError::Full => full(),
        e => refused(format!(
            "the classes' rules have changed, and the log cannot tell which rooms keep their class: {e}; hint: \
             start with the rules of before, or mend it with `hubsub log repair`"
        )),
    })?;
    let logged: HashMap<&str, ClassIndex> = of_logged(classes);
    let (mut seeds, mut producers, mut rows, mut keeping) =
        (Vec::new(), Vec::new(), Vec::new(), HashMap::new());
    let (hubs, shards) = (Arc::new(LoggedHubs::default()), inboxes.shards());
    for HubEntry { hub, class, .. } in segments.manifest().hubs.clone() {
        let index = logged[class.as_str()];
        let class = classes.get(index);
        if class.durability == Durability::Replicated && !was_clean {
            // Records acknowledged only from memory may be missing.
            segments.end_epochs(hub).map_err(|e| failed("", e))?;
        }
        let entry = segments.manifest().hub(hub).expect("it is one of them");
        let shard = shard_of(entry, !makes, shards);
        let described = describe(entry, segments.chain(hub), (index, class), shard, Window::from(limits));
        let Described { opened, keeping: keeps, warning } = described.map_err(|e| refused(e.to_string()))?;
        warnings.extend(warning);
        keeping.insert(hub, keeps);
        hubs.insert(hub, opened.hub);
        seeds.push(opened.seed);
        rows.push((hub, opened.rows));
        producers.extend(opened.producers.map(|producers| (hub, producers)));
    }
    let mut found = Vec::new();
    if makes && let Some(rows) = only_chain(&segments, CLASS) {
        let entries = only_chain(&segments, QUEUES);
        found = read_sessions(&rows, entries.as_deref()).map_err(|e| refused(e.to_string()))?;
    }
    let listener = Arc::new(Tells { inboxes, hubs: Arc::clone(&hubs) });
    let settings = LogSettings {
        pending_bytes_max: limits.log_pending_bytes_max as usize,
        unwritten_bytes_max: limits.log_unwritten_bytes_max as usize,
        checkpoint_bytes: limits.log_checkpoint_bytes,
        checkpoint_ms: limits.log_checkpoint_ms,
        keeping,
    };
    let identity = segments.manifest().identity;
    let opened = Opened { journal, segments, was_clean, warnings };
    let (log, handover) = Log::start(opened, settings, listener, Arc::clone(&control))?;
    let log = Arc::new(log);
    let readers = match Readers::start("hubsub-log-reader", READERS, JOBS_MAX) {
        Ok(readers) => Arc::new(readers),
        Err(e) => {
            log.stop();
            return Err(e);
        }
    };
    match Streams::start(Arc::clone(&log), Arc::clone(&hubs), Arc::clone(&control), limits) {
        Ok(streams) => {
            let streams = Arc::new(streams);
            let is_given = !makes;
            let started =
                Started { log, handover, readers, streams, identity, hubs, is_given, seeds, producers, rows };
            Ok((started, found))
        }
        Err(e) => {
            readers.stop();
            log.stop();
            Err(e)
        }
    }
}

/// The chain of an internal class, which has one hub if the node numbers its hubs itself.
fn only_chain(segments: &Segments<Disk>, class: &str) -> Option<Arc<Chain<Disk>>> {
    let entry = segments.manifest().hubs.iter().find(|entry| entry.class == class)?;
    segments.chain(entry.hub)
}

fn of_logged(classes: &ClassTable) -> HashMap<&str, ClassIndex> {
    let logged = (0u16..).zip(classes.classes()).filter(|(_, class)| class.durability.is_logged());
    logged.map(|(index, class)| (class.name.as_str(), index)).collect()
}
