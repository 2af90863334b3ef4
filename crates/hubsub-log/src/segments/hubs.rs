//! Opens and closes hubs while the log runs: [`Segments::opening`] determines what is to be done,
//! [`Opening::run`] creates or reads the hub's files on any thread, [`Segments::admit`] adds the hub to the
//! manifest. Only the first and the last need the thread that writes the other hubs' segments.
//!
//! Invariants
//! - **A hub exists once the manifest lists it, not before.** An opening that was interrupted anywhere leaves no
//!   hub, or a whole one without records, whose place the next opening of the same id takes.
//! - **No record of a hub is older than its manifest entry**, since records get offsets only after `admit`. So a
//!   start gives each hub the journal's records from the hub's own `next` on, whenever it was added.
//! - **An id is one hub for ever:** one class, one index in it, and no other id has these.
//! - **Closing a hub loses nothing:** all records applied to it are synced in its segments, and the manifest has
//!   their end offset, before it is closed. Journals that still have them do not matter to a start.
//! - **Other hubs are unaffected:** nothing here writes, syncs or reads a file of another hub except the
//!   manifest, where their entries are those of the last checkpoint.

use super::Segments;
use crate::chain::{self, Appender, ChainOptions};
use crate::files::{Files, Part};
use crate::manifest::{HUB_NAME, HubEntry, HubFile, Keep};
use crate::segment::{self, HEAD_BYTES, Name};
use crate::storage::{Storage, StorageFile, join};
use crate::{HubName, LogError, Result};
use hubsub_types::HubId;
use std::sync::Arc;

pub struct Opening<S: Storage> {
    files: Arc<Files<S>>,
    options: ChainOptions,
    identity: u64,
    entry: HubEntry,
    /// The hub's own file, if the hub is new.
    made: Option<HubFile>,
}

pub struct Ready<S: Storage> {
    entry: HubEntry,
    appender: Appender<S>,
    is_made: bool,
}

impl<S: Storage> Segments<S> {
    /// Prepares to open a hub; it is created with `keep` if it never existed here. None: it is open already.
    ///
    /// # Errors
    /// [`LogError::Differs`]: another hub here has the id, or the index in the class.
    /// [`LogError::Quarantined`]: it is damaged.
    pub fn opening(&self, name: &HubName, keep: Keep) -> Result<Option<Opening<S>>> {
        let is_it = |entry: &HubEntry| entry.hub == name.hub;
        let is_in_its_place = |entry: &HubEntry| (&entry.class, entry.index) == (&name.class, name.index);
        let mut entries = self.manifest.hubs.iter();
        let Some(entry) = entries.find(|entry| is_it(entry) || is_in_its_place(entry)) else {
            let entry = HubEntry::new(name.hub, &name.class, name.index, keep);
            let made = Some(self.manifest.file_of(&entry));
            return Ok(Some(self.opening_of(entry, made)));
        };
        if !(is_it(entry) && is_in_its_place(entry)) {
            return Err(LogError::Differs { here: entry.name(), asked: name.clone() });
        }
        if let Some(why) = &entry.quarantined {
            return Err(LogError::Quarantined { hub: entry.name(), why: why.clone() });
        }
        let is_written = self.hubs.contains_key(&name.hub);
        Ok((!is_written).then(|| self.opening_of(entry.clone(), None)))
    }

    fn opening_of(&self, entry: HubEntry, made: Option<HubFile>) -> Opening<S> {
        let files = Arc::clone(&self.files);
        Opening { files, options: self.options.chain, identity: self.manifest.identity, entry, made }
    }

    /// Takes opened hubs into service: all of them or none.
    ///
    /// # Errors
    /// The manifest cannot be written. None of the new hubs exists then.
    ///
    /// # Panics
    /// One of them is already open: callers open each hub once.
    pub fn admit(&mut self, ready: Vec<Ready<S>>) -> Result<()> {
        assert!(ready.iter().all(|ready| !self.hubs.contains_key(&ready.entry.hub)), "opened twice");
        for entry in ready.iter().filter(|ready| ready.is_made).map(|ready| &ready.entry) {
            let at = self.manifest.hubs.partition_point(|other| other.hub < entry.hub);
            self.manifest.hubs.insert(at, entry.clone());
        }
        if ready.iter().any(|ready| ready.is_made)
            && let Err(e) = self.store()
        {
            for Ready { entry, .. } in ready.iter().filter(|ready| ready.is_made) {
                self.manifest.hubs.retain(|other| other.hub != entry.hub);
                clear(&*self.storage, entry.hub);
            }
            return Err(e);
        }
        self.hubs.extend(ready.into_iter().map(|ready| (ready.entry.hub, ready.appender)));
        Ok(())
    }

    /// Creates a hub with the next free id. It is safe once this returns.
    ///
    /// # Errors
    /// As for `opening`, `run` and `admit`; then there is no such hub.
    pub fn add_hub(&mut self, class: &str, index: u16, keep: Keep) -> Result<HubId> {
        let last = self.manifest.hubs.last().map_or(0, |entry| entry.hub.0);
        let hub = last.checked_add(1).map(HubId);
        let hub =
            hub.ok_or_else(|| LogError::Refused(format!("no number is left behind that of hub {last}")))?;
        let opening = self.opening(&HubName { hub, class: class.to_owned(), index }, keep)?;
        self.admit(vec![opening.expect("no other hub has its id").run()?])?;
        Ok(hub)
    }

    /// Offset after the records applied to a hub; none if it is not open.
    pub fn next(&self, hub: HubId) -> Option<u64> {
        self.hubs.get(&hub).map(Appender::next)
    }

    /// Closes a hub, which remains on the disk: all records applied to it are then safe in segments, and
    /// readers of its chain may continue. Returns whether it was open.
    ///
    /// # Errors
    /// It could not be made safe: the hub is still open. Once a sync has failed, no other close is possible.
    pub fn close_hub(&mut self, hub: HubId) -> Result<bool> {
        if self.is_broken {
            return Err(LogError::Broken);
        }
        let Some(appender) = self.hubs.get_mut(&hub) else { return Ok(false) };
        appender.flush()?;
        appender.sync().inspect_err(|e| self.is_broken |= !e.is_passing())?;
        let entry = self.manifest.hub_mut(hub).expect("hubs stay");
        (entry.segments, entry.next, entry.earliest) = appender.entries();
        self.store()?;
        if let Some((_, pass)) = self.pass.take_if(|(of, _)| *of == hub) {
            pass.discard();
        }
        self.unlink_retired();
        self.hubs.remove(&hub);
        Ok(true)
    }
}

impl<S: Storage> Opening<S> {
    /// Whether the hub will be created, since it never existed here.
    pub fn makes(&self) -> bool {
        self.made.is_some()
    }

    /// Creates or opens the hub's files, on any thread.
    ///
    /// # Errors
    /// [`LogError::Full`]: the disk is full. [`LogError::Damaged`]: records are missing.
    /// [`LogError::Refused`]: its new directory already has records. Others come from the storage. A hub that
    /// was to be created leaves no files.
    pub fn run(self) -> Result<Ready<S>> {
        let Opening { files, options, identity, entry, made } = self;
        let Some(file) = made else {
            let appender = chain::open(&files, identity, &entry, options)?;
            return Ok(Ready { entry, appender, is_made: false });
        };
        let storage = &**files.storage();
        if !is_blank(storage, entry.hub)? {
            return Err(LogError::Refused(format!(
                "{} has records, and the manifest does not list {}; hint: bring the manifest back that does, or \
                 move the directory away",
                segment::directory(entry.hub),
                entry.name()
            )));
        }
        // In this order: a segment without that file is damage, not an interrupted opening.
        match file.store(storage).and_then(|()| chain::new(&files, identity, entry.hub, entry.keep, options))
        {
            Ok(appender) => Ok(Ready { entry, appender, is_made: true }),
            Err(e) => {
                clear(storage, entry.hub);
                Err(e)
            }
        }
    }
}

impl<S: Storage> Ready<S> {
    pub fn entry(&self) -> &HubEntry {
        &self.entry
    }

    pub fn chain(&self) -> &Arc<chain::Chain<S>> {
        &self.appender.chain
    }
}

/// Whether a hub's directory has at most the files that an interrupted opening leaves: a first segment
/// without records.
///
/// # Errors
/// Errors of the storage.
fn is_blank(storage: &impl Storage, hub: HubId) -> Result<bool> {
    let directory = segment::directory(hub);
    let cannot = |e| LogError::io("cannot look into a directory", e);
    let first = Name::written(1).file(Part::Segment);
    for name in storage.list(&directory).map_err(cannot)?.iter().filter(|name| name.contains(".segment")) {
        let file = storage.open(&join(&directory, name)).map_err(cannot)?;
        if *name != first || file.len().map_err(cannot)? > HEAD_BYTES {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Removes the files of a hub that was not created, to release their space. The file that identifies the hub
/// is removed last.
fn clear(storage: &impl Storage, hub: HubId) {
    let directory = segment::directory(hub);
    for name in storage.list(&directory).unwrap_or_default().iter().filter(|name| *name != HUB_NAME) {
        let _ = storage.unlink(&join(&directory, name));
    }
    let _ = storage.sync_directory(&directory);
    let _ = storage.unlink(&join(&directory, HUB_NAME));
}
