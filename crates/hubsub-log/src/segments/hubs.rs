//! Hubs that come to a log while it runs, and go.
//!
//! Three steps, since only the first and the last need who writes the others' segments:
//! [`Segments::opening`] says what is to be done, [`Opening::run`] makes or reads the hub's files
//! on any thread, [`Segments::admit`] lists it in the manifest. From then on it is written.
//!
//! Invariants
//! - **A hub is there once the manifest lists it, and not before.** What stands in its directory until
//!   then is nobody's: an opening that was cut short anywhere leaves no hub, or a whole one without
//!   records. The next opening of the same id takes its place.
//! - **No record of a hub is older than its entry.** Who numbers its records has them from `admit`
//!   alone, so no frame of the journal, which all hubs share, names a hub that the manifest
//!   does not, and the first one that does has offset 1. Frames before it say nothing of the hub:
//!   there is no hole to fill. A start gives each hub of the manifest what comes behind its
//!   own `next`, so it need not know when a hub came.
//! - **An id is one hub for ever:** one class, one index in it, and no other id has these. It is told by
//!   the manifest and by the hub's own file; an opening that says otherwise is refused, with both.
//! - **A hub that goes takes nothing along.** Everything that was taken for it is synced in its segments, and the
//!   manifest says up to which offset, before it is let go. Journals that have those records
//!   still tell a start nothing new, as they stand below that offset. So it may come again in this
//!   life or another, and goes on where it was.
//! - **Others are not touched:** nothing here writes, syncs or reads a file of another hub but the
//!   manifest, whose entries of others are those of the last checkpoint.
//! - A directory with records that the manifest does not list is not taken for a hub's: nobody knows
//!   whether they are all there.

use super::Segments;
use crate::chain::{self, Appender, ChainOptions};
use crate::files::{Files, Part};
use crate::manifest::{HUB_NAME, HubEntry, HubFile, Keep, SegmentEntry};
use crate::segment::{self, HEAD_BYTES, Name};
use crate::storage::{Storage, StorageFile, join};
use crate::{HubName, LogError};
use hubsub_types::HubId;
use std::sync::Arc;

/// A hub that is to be opened.
pub struct Opening<S: Storage> {
    files: Arc<Files<S>>,
    options: ChainOptions,
    identity: u64,
    entry: HubEntry,
    /// If it is new: the file that says what it is.
    made: Option<HubFile>,
}

/// One that was opened and is not written yet.
pub struct Ready<S: Storage> {
    entry: HubEntry,
    appender: Appender<S>,
    is_made: bool,
}

impl<S: Storage> Segments<S> {
    /// What there is to do for a hub to be written: it is made if it was never here. `keep` is for one
    /// that is made. None: it is written already.
    ///
    /// # Errors
    /// [`LogError::Differs`]: the id, or the class's index, is another hub's here.
    /// [`LogError::Quarantined`]: it is damaged.
    pub fn opening(&self, name: &HubName, keep: Keep) -> Result<Option<Opening<S>>, LogError> {
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
        let (files, options, identity) =
            (Arc::clone(&self.files), self.options.chain, self.manifest.identity);
        Opening { files, options, identity, entry, made }
    }

    /// Takes hubs into service that were opened: all of them or none.
    ///
    /// # Errors
    /// The manifest cannot be written. None of those that were to be made is there.
    ///
    /// # Panics
    /// One of them is written already: who opens hubs opens each once.
    pub fn admit(&mut self, ready: Vec<Ready<S>>) -> Result<(), LogError> {
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

    /// Makes a hub with the next id that is free. It is safe once this has returned.
    ///
    /// # Errors
    /// As for `opening`, `run` and `admit`; there is no such hub then.
    pub fn add_hub(&mut self, class: &str, index: u16, keep: Keep) -> Result<HubId, LogError> {
        let last = self.manifest.hubs.last().map_or(0, |entry| entry.hub.0);
        let hub = last.checked_add(1).map(HubId);
        let hub =
            hub.ok_or_else(|| LogError::Refused(format!("no number is left behind that of hub {last}")))?;
        let opening = self.opening(&HubName { hub, class: class.to_owned(), index }, keep)?;
        self.admit(vec![opening.expect("no other hub has its id").run()?])?;
        Ok(hub)
    }

    /// Offset behind the records that a hub was given; none if it is not written.
    #[must_use]
    pub fn next(&self, hub: HubId) -> Option<u64> {
        self.hubs.get(&hub).map(Appender::next)
    }

    /// Lets a hub go, which stays on the disk: all that it was given is safe in segments then, and
    /// who has its chain may read on. Whether it was written.
    ///
    /// # Errors
    /// It could not be made safe: the hub is written as before. Once a sync has failed there
    /// is no other.
    pub fn close_hub(&mut self, hub: HubId) -> Result<bool, LogError> {
        if self.is_broken {
            return Err(LogError::Broken);
        }
        let Some(appender) = self.hubs.get_mut(&hub) else { return Ok(false) };
        appender.flush()?;
        appender.sync().inspect_err(|e| self.is_broken |= !e.is_passing())?;
        let entry = self.manifest.hubs.iter_mut().find(|entry| entry.hub == hub).expect("hubs stay");
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
    /// Whether it is made, since it was never here.
    #[must_use]
    pub fn makes(&self) -> bool {
        self.made.is_some()
    }

    /// Makes or opens the hub's files, on any thread.
    ///
    /// # Errors
    /// [`LogError::Full`]: the disk is. [`LogError::Damaged`]: its records are not all there.
    /// [`LogError::Refused`]: it would be made where there are records. Others: the storage's.
    /// Nothing is left of one that was to be made.
    pub fn run(self) -> Result<Ready<S>, LogError> {
        let Opening { files, options, identity, entry, made } = self;
        let Some(file) = made else {
            for name in entry.segments.iter().map(SegmentEntry::name) {
                for part in [Part::Segment, Part::Index, Part::Runs] {
                    files.forget(entry.hub, name, part);
                }
            }
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
        // In this order: a segment without that file is damage, not an opening that was cut short.
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
    /// As the manifest will list it, or does.
    #[must_use]
    pub fn entry(&self) -> &HubEntry {
        &self.entry
    }

    /// Its chain.
    #[must_use]
    pub fn chain(&self) -> &Arc<chain::Chain<S>> {
        &self.appender.chain
    }
}

/// Whether a hub's directory has at most what an opening that was cut short leaves: a first
/// segment without records.
///
/// # Errors
/// Those of the storage.
fn is_blank(storage: &impl Storage, hub: HubId) -> Result<bool, LogError> {
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

/// Takes the files of a hub away that was not made: what they took of the disk is for others. What
/// says whose they are goes last.
fn clear(storage: &impl Storage, hub: HubId) {
    let directory = segment::directory(hub);
    for name in storage.list(&directory).unwrap_or_default().iter().filter(|name| *name != HUB_NAME) {
        let _ = storage.unlink(&join(&directory, name));
    }
    let _ = storage.sync_directory(&directory);
    let _ = storage.unlink(&join(&directory, HUB_NAME));
}
