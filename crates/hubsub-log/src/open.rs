//! Opens a data directory. The state after a crash is the segments up to the last checkpoint plus the
//! journals after it.
//!
//! A hub that lacks records in the middle is quarantined: it is neither written nor read until an operator
//! decides, and its files are kept. The other hubs continue.

use crate::chain::{self, Appender};
use crate::error::Context;
use crate::files::Files;
use crate::journal::{self, Journal, Tail};
use crate::manifest::{HubFile, Manifest};
use crate::record;
use crate::reserve;
use crate::segments::Segments;
use crate::storage::{Storage, join};
use crate::{LogError, LogOptions, Result};
use hubsub_types::HubId;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// Directory for journals that are needed to determine the losses of a quarantined hub.
pub(crate) const KEPT: &str = "quarantine";

const REPLAY_BYTES: usize = 4 << 20;

pub struct Opened<S: Storage> {
    pub journal: Journal<S>,
    pub segments: Segments<S>,
    /// Whether the last shutdown was clean, so that no record acknowledged from memory alone can be missing.
    pub was_clean: bool,
    pub warnings: Vec<String>,
}

/// The authority that assigns the ids of the hubs in a directory.
#[derive(Clone, Copy, Debug, Default)]
pub enum Membership<'a> {
    /// The node itself, without a cluster.
    #[default]
    Alone,
    Of {
        cluster: &'a str,
        /// Whether the cluster takes over hubs that the node numbered itself: true on the node that founds
        /// it.
        adopts: bool,
    },
}

/// Opens the directory of a node that assigns hub ids itself. An empty directory becomes a log with this
/// identity.
///
/// # Errors
/// The storage failed, the directory has a newer format or belongs to a cluster, or its manifest is missing
/// or damaged. Other damage is no error: it quarantines hubs.
pub fn open<S: Storage>(storage: Arc<S>, identity: u64, options: LogOptions) -> Result<Opened<S>> {
    open_as(storage, identity, Membership::Alone, options)
}

/// Opens the directory of a node alone or in a cluster; from then on it belongs to that cluster.
///
/// # Errors
/// As for `open`; [`LogError::OtherCluster`]: then nothing in the directory was changed.
pub fn open_as<S: Storage>(
    storage: Arc<S>,
    identity: u64,
    membership: Membership<'_>,
    options: LogOptions,
) -> Result<Opened<S>> {
    if let Some(mut manifest) = Manifest::load(&*storage)? {
        manifest.cluster = cluster_of(&manifest, membership)?;
        return recover(storage, manifest, options, &[]);
    }
    let mut manifest = fresh(&storage, identity)?;
    manifest.cluster = cluster_of(&manifest, membership)?;
    let opened = recover(Arc::clone(&storage), manifest, options, &[]);
    if matches!(opened, Err(LogError::Full)) {
        // No manifest was stored, so release the disk space.
        clear_away(&storage);
    }
    opened
}

/// The cluster that assigns the hub ids of a directory from now on.
fn cluster_of(manifest: &Manifest, membership: Membership<'_>) -> Result<Option<String>> {
    let here = manifest.cluster.as_deref();
    let (asked, fits) = match membership {
        Membership::Alone => (None, here.is_none()),
        Membership::Of { cluster, adopts } => {
            let is_nobodys = here.is_none() && (adopts || manifest.hubs.is_empty());
            (Some(cluster), is_nobodys || here == Some(cluster))
        }
    };
    let asked = asked.map(str::to_owned);
    if fits { Ok(asked) } else { Err(LogError::OtherCluster { here: manifest.cluster.clone(), asked }) }
}

/// Opens a directory that has this manifest. The hubs in `suspects` are quarantined with the given reason,
/// unless they already are.
///
/// # Errors
/// As for [`open`].
pub(crate) fn recover<S: Storage>(
    storage: Arc<S>,
    manifest: Manifest,
    options: LogOptions,
    suspects: &[(HubId, String)],
) -> Result<Opened<S>> {
    match try_recover(Arc::clone(&storage), manifest.clone(), options, suspects, false) {
        // Acknowledged records must be readable, also after a kill on a full disk. The stored manifest is
        // unchanged, so the same recovery starts again.
        Err(LogError::Full) => {
            make_room(&storage, &manifest);
            let mut opened = try_recover(storage, manifest, options, suspects, true)?;
            opened.segments.reserve.keep_for_start();
            Ok(opened)
        }
        outcome => outcome,
    }
}

/// Releases the reserve for a full disk, and removes prepared journals without frames.
fn make_room<S: Storage>(storage: &Arc<S>, manifest: &Manifest) {
    reserve::give_back(&**storage);
    let (first, last) = manifest.journals;
    let is_free = |number: &u64| !(first..=last).contains(number) && !manifest.aside.contains(number);
    let journals = journal::files(&**storage).unwrap_or_default();
    journal::unlink(storage, journals.into_iter().filter(is_free));
}

/// `recycles`: an old journal may become the new one if there is no space for another.
fn try_recover<S: Storage>(
    storage: Arc<S>,
    mut manifest: Manifest,
    options: LogOptions,
    suspects: &[(HubId, String)],
    recycles: bool,
) -> Result<Opened<S>> {
    keep(&*storage, &manifest.aside)?;
    let files = Arc::new(Files::new(Arc::clone(&storage), options.open_files_max));
    let was_clean = manifest.clean.is_some() || manifest.journals.1 == 0;
    let quarantined =
        |manifest: &Manifest| manifest.hubs.iter().filter(|hub| hub.quarantined.is_some()).count();
    let known = quarantined(&manifest);
    for entry in manifest.hubs.iter_mut().filter(|entry| entry.quarantined.is_none()) {
        let suspect = suspects.iter().find(|(hub, _)| *hub == entry.hub);
        entry.quarantined = suspect.map(|(_, why)| why.clone());
    }
    let mut recovery = Recovery { manifest: &mut manifest, hubs: BTreeMap::new() };
    recovery.open_chains(&files, options)?;
    let mut warnings = recovery.replay(&*storage)?;
    let mut hubs = std::mem::take(&mut recovery.hubs);
    let is_news = quarantined(&manifest) > known;
    for entry in &manifest.hubs {
        if let Some(why) = &entry.quarantined {
            warnings.push(format!("hub {} ({}) is quarantined: {why}", entry.hub.0, entry.class));
        }
    }

    // Now everything is in segments, and a new journal begins.
    for appender in hubs.values_mut() {
        appender.flush()?;
        appender.sync()?;
    }
    for entry in &mut manifest.hubs {
        if let Some(appender) = hubs.get(&entry.hub) {
            (entry.segments, entry.next, entry.earliest) = appender.entries();
        }
    }
    for entry in &manifest.hubs {
        // Also writes the file for hubs that were created before this file existed.
        let file = manifest.file_of(entry);
        match HubFile::load(&*storage, entry.hub) {
            Ok(Some(found)) if found == file => {}
            Ok(_) | Err(LogError::Damaged { .. }) => file.store(&*storage)?,
            Err(e) => return Err(e),
        }
    }
    let old = journal::files(&*storage).io("cannot list the journals")?;
    let number = old.iter().copied().chain([manifest.journals.1]).max().unwrap_or(0) + 1;
    let prepare = |recycled| {
        journal::prepare(&*storage, manifest.identity, number, options.journal_bytes, recycled)
            .storage("cannot make a journal")
    };
    let file = match prepare(None) {
        // Only after the manifest lists no old journal as needed.
        Err(LogError::Full) if recycles && !is_news && !old.is_empty() => {
            let journals = (number, number - 1);
            Manifest { journals, aside: Vec::new(), ..manifest.clone() }.store(&*storage)?;
            journal::clear(&*storage, old[0]).storage("cannot clear a journal")?;
            prepare(Some(old[0]))?
        }
        file => file?,
    };
    manifest.journals = (number, number);
    manifest.clean = None;
    manifest.aside = if is_news { old.clone() } else { Vec::new() };
    manifest.store(&*storage)?;
    keep(&*storage, &manifest.aside)?;
    if !is_news {
        journal::unlink(&storage, old.into_iter());
    }
    let journal = Journal::new(manifest.identity, manifest.checkpoint, file);
    Ok(Opened { journal, segments: Segments::new(files, options, manifest, hubs), was_clean, warnings })
}

/// The manifest of a directory to which no record was ever written.
fn fresh<S: Storage>(storage: &Arc<S>, identity: u64) -> Result<Manifest> {
    if !is_unwritten(&**storage)? {
        let text = "the data directory has journals or segments, but no manifest.json: nobody can tell whether \
                    they are all there; hint: bring it back, or accept what is left with `hubsub log repair`";
        return Err(LogError::Refused(text.to_owned()));
    }
    clear_away(storage);
    Ok(Manifest::new(identity))
}

/// Whether a directory without a manifest has no hubs and no journal with a byte of a record: it is empty, or
/// its first start was interrupted before the manifest.
pub(crate) fn is_unwritten(storage: &impl Storage) -> Result<bool> {
    let cannot = |e| LogError::io("cannot list the data directory", e);
    for directory in ["hubs", KEPT] {
        let files = storage.list(directory).map_err(cannot)?;
        if !files.is_empty() || !storage.list_directories(directory).map_err(cannot)?.is_empty() {
            return Ok(false);
        }
    }
    let numbers = journal::files(storage).map_err(cannot)?;
    if numbers.len() < storage.list(journal::DIRECTORY).map_err(cannot)?.len()
        || !storage.list_directories(journal::DIRECTORY).map_err(cannot)?.is_empty()
    {
        return Ok(false);
    }
    for number in numbers {
        if !journal::is_unwritten(storage, number).io("cannot read a journal")? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn clear_away<S: Storage>(storage: &Arc<S>) {
    journal::unlink(storage, journal::files(&**storage).unwrap_or_default().into_iter());
}

struct Recovery<'a, S: Storage> {
    manifest: &'a mut Manifest,
    hubs: BTreeMap<HubId, Appender<S>>,
}

impl<S: Storage> Recovery<'_, S> {
    fn open_chains(&mut self, files: &Arc<Files<S>>, options: LogOptions) -> Result<()> {
        for entry in self.manifest.hubs.iter_mut().filter(|entry| entry.quarantined.is_none()) {
            match chain::open(files, self.manifest.identity, entry, options.chain) {
                Ok(appender) => _ = self.hubs.insert(entry.hub, appender),
                Err(e @ LogError::Damaged { .. }) => entry.quarantined = Some(e.to_string()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Passes the journal records after the checkpoint to the chains.
    fn replay(&mut self, storage: &S) -> Result<Vec<String>> {
        let mut failed = Ok(());
        let found = Tail::of(self.manifest).replay(storage, |records, continued| {
            if failed.is_ok() {
                failed = self.take(records, continued);
            }
        })?;
        failed?;
        if let Some(lost) = found.lost.last() {
            for entry in self.manifest.hubs.iter_mut().filter(|entry| entry.quarantined.is_none()) {
                if !found.continued.contains(&entry.hub) {
                    entry.quarantined = Some(lost.to_string());
                    self.hubs.remove(&entry.hub);
                }
            }
        }
        self.manifest.checkpoint = found.lost.iter().map(|lost| lost.1).fold(found.last, u64::max);
        Ok(found.lost.iter().map(ToString::to_string).collect())
    }

    fn take(&mut self, records: &[u8], continued: &mut HashSet<HubId>) -> Result<()> {
        let mut at = 0;
        while at < records.len() {
            let start = at as u64;
            let damaged = |why: String| LogError::damaged("a journal frame", start, why);
            let (record, len) = record::decode(&records[at..]).map_err(|e| damaged(e.to_string()))?;
            let bytes = &records[at..at + len];
            at += len;
            let Some(appender) = self.hubs.get_mut(&record.hub) else {
                if self.manifest.hub(record.hub).is_none() {
                    return Err(damaged(format!("hub {} is not in the manifest", record.hub.0)));
                }
                continue;
            };
            let next = appender.next();
            if record.offset < next {
                continue;
            }
            if record.offset > next {
                let why = format!("offsets {next} to {} are missing in the journal", record.offset - 1);
                self.hubs.remove(&record.hub);
                self.manifest.hub_mut(record.hub).expect("it has a chain").quarantined = Some(why);
                continue;
            }
            continued.insert(record.hub);
            appender.push(bytes, next + 1);
            if appender.pending_bytes() > REPLAY_BYTES {
                appender.flush()?;
            }
        }
        Ok(())
    }
}

/// Moves journals to [`KEPT`], unless they are already there.
fn keep(storage: &impl Storage, numbers: &[u64]) -> Result<()> {
    let cannot = |e| LogError::io("cannot keep a journal", e);
    let mut here = journal::files(storage).map_err(cannot)?;
    here.retain(|number| numbers.contains(number));
    if here.is_empty() {
        return Ok(());
    }
    let marker = join(KEPT, "README");
    if storage.open(&marker).is_err() {
        // The directory is created with its first file.
        let file = storage.create(&marker).map_err(cannot)?;
        let text = b"Journals that a start found damaged, or that a quarantined hub needs.\n";
        crate::storage::StorageFile::write_all_at(&file, text, 0).map_err(cannot)?;
    }
    for number in here {
        let from = journal::path(number);
        storage.rename(&from, &join(KEPT, &format!("{number:08}.journal"))).map_err(cannot)?;
    }
    storage.sync_directory(KEPT).map_err(cannot)
}
