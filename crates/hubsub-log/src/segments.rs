//! The chains of all hubs of a disk, owned by the segment thread.
//!
//! It takes frames only after they are safe in the journal, so a segment has no record that could be lost. It
//! also determines which journals are obsolete: a checkpoint has made their records safe in segments, and the
//! manifest lists it.

mod compact;
mod hubs;

pub use compact::Compaction;
pub use hubs::{Opening, Ready};

use crate::chain::{self, Appender, Chain, Pass, Retention, Verdict};
use crate::error::Context;
use crate::files::Files;
use crate::journal::{self, Batch, Prepared};
use crate::manifest::{HubEntry, Keep, Manifest};
use crate::reserve::Reserve;
use crate::segment::Name;
use crate::storage::Storage;
use crate::{LogError, LogOptions, Result};
use hubsub_types::HubId;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

pub struct Segments<S: Storage> {
    storage: Arc<S>,
    files: Arc<Files<S>>,
    options: LogOptions,
    manifest: Manifest,
    hubs: BTreeMap<HubId, Appender<S>>,
    applied: u64,
    /// Journal files in use, oldest first, with the last frame of each.
    journals: BTreeMap<u64, u64>,
    /// Obsolete journal files, to be reused.
    spare: Vec<u64>,
    /// Segments that no chain has any more; their files are removed once the manifest does not list them.
    retired: Vec<(HubId, Vec<Name>)>,
    /// Results of retention for hubs that wait for an archive, until `take_verdicts`.
    verdicts: Vec<(HubId, Verdict)>,
    unsaved_bytes: u64,
    pub(crate) reserve: Reserve<S>,
    /// A sync has failed: a later one could succeed without the bytes of that one.
    is_broken: bool,
    /// Bytes applied to hubs that keep the latest, since the last call of `compact`.
    given_bytes: u64,
    /// The compaction pass in progress, with its hub.
    pass: Option<(HubId, Pass<S>)>,
    compacted: HubId,
    /// Hubs with unreadable segments, which are not compacted any more.
    unreadable: HashSet<HubId>,
}

impl<S: Storage> Segments<S> {
    pub(crate) fn new(
        files: Arc<Files<S>>,
        options: LogOptions,
        manifest: Manifest,
        hubs: BTreeMap<HubId, Appender<S>>,
    ) -> Segments<S> {
        let storage = Arc::clone(files.storage());
        let applied = manifest.checkpoint;
        let reserve = Reserve::new(Arc::clone(&storage), options.reserve_bytes);
        let journals = [(manifest.journals.1, applied)].into();
        Segments {
            storage,
            files,
            options,
            manifest,
            hubs,
            applied,
            journals,
            spare: Vec::new(),
            retired: Vec::new(),
            verdicts: Vec::new(),
            unsaved_bytes: 0,
            reserve,
            is_broken: false,
            given_bytes: 0,
            pass: None,
            compacted: HubId(0),
            unreadable: HashSet::new(),
        }
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The chain of a hub, unless the hub is quarantined or closed.
    pub fn chain(&self, hub: HubId) -> Option<Arc<Chain<S>>> {
        self.hubs.get(&hub).map(|appender| Arc::clone(&appender.chain))
    }

    /// Takes a quarantined hub into service with this entry.
    ///
    /// # Errors
    /// Its records do not match the entry, or the storage failed: the hub is unchanged.
    pub(crate) fn adopt(&mut self, entry: HubEntry) -> Result<()> {
        let mut appender = chain::open(&self.files, self.manifest.identity, &entry, self.options.chain)?;
        appender.sync()?;
        let at = self.manifest.hubs.iter().position(|old| old.hub == entry.hub);
        let at = at.expect("who calls has it from the manifest");
        let (hub, old) = (entry.hub, std::mem::replace(&mut self.manifest.hubs[at], entry));
        if let Err(e) = self.store() {
            self.manifest.hubs[at] = old;
            return Err(e);
        }
        self.hubs.insert(hub, appender);
        Ok(())
    }

    /// Takes a frame that is safe in a journal file; `flush` writes it to segments.
    ///
    /// # Panics
    /// A batch belongs to an unknown hub.
    pub fn apply(&mut self, file: u64, frame: u64, batches: Vec<Batch>) {
        for Batch { hub, first, count, bytes } in batches {
            let hub = self.hubs.get_mut(&hub).expect("only whole hubs are written");
            self.unsaved_bytes += bytes.len() as u64;
            if hub.chain.keep == Keep::Latest {
                self.given_bytes += bytes.len() as u64;
            }
            hub.push_owned(bytes, first + u64::from(count));
        }
        self.applied = frame;
        self.journals.insert(file, frame);
    }

    /// Writes the applied records to segments; on a full disk, uses the reserve.
    ///
    /// # Errors
    /// The first error; the other hubs were written, and a retry is possible.
    pub fn flush(&mut self) -> Result<()> {
        match self.write() {
            Err(LogError::Full) if self.reserve.spend(self.pending_bytes() as u64) => self.write(),
            outcome => outcome,
        }
    }

    pub fn has_reserve(&self) -> bool {
        self.reserve.is_whole()
    }

    /// Free bytes that the disk must have so that the log takes records: for the missing part of the reserve,
    /// for pending records, and for a journal if `wants_journal`.
    pub fn wanted_bytes(&self, wants_journal: bool) -> u64 {
        let journal = if wants_journal { self.options.journal_bytes } else { 0 };
        self.reserve.missing().saturating_add(journal).saturating_add(self.pending_bytes() as u64)
    }

    /// Allocates the missing part of the reserve; returns whether it is complete.
    ///
    /// # Errors
    /// Errors of the storage, except a full disk.
    pub fn keep_reserve(&mut self) -> Result<bool> {
        self.reserve.fill().io("cannot keep space for a full disk")
    }

    /// Stores the manifest; for a moment the old and the new one are on the disk.
    fn store(&mut self) -> Result<()> {
        let (manifest, storage) = (&self.manifest, &*self.storage);
        match manifest.store(storage) {
            Err(LogError::Full) => self.reserve.lend(|| manifest.store(storage)),
            stored => stored,
        }
    }

    fn write(&mut self) -> Result<()> {
        let mut outcome = Ok(());
        for appender in self.hubs.values_mut() {
            if let Err(e) = appender.flush() {
                outcome = outcome.and(Err(e));
            }
        }
        outcome
    }

    pub fn pending_bytes(&self) -> usize {
        self.hubs.values().map(Appender::pending_bytes).sum()
    }

    pub fn unsaved_bytes(&self) -> u64 {
        self.unsaved_bytes
    }

    /// Makes all applied records safe in segments, and frees the journals below them.
    ///
    /// # Errors
    /// The previous checkpoint is still in place. Once a sync has failed, no other checkpoint is possible.
    pub fn checkpoint(&mut self) -> Result<()> {
        if self.is_broken {
            return Err(LogError::Broken);
        }
        self.flush()?;
        let synced = self.hubs.values_mut().try_for_each(Appender::sync);
        synced.inspect_err(|e| self.is_broken |= !e.is_passing())?;
        let last = *self.journals.last_key_value().expect("one journal is written").0;
        let applied = self.applied;
        let is_needed = |(&file, &frame): (&u64, &u64)| file == last || frame > applied;
        self.manifest.checkpoint = applied;
        self.manifest.journals.0 =
            self.journals.iter().find(|&entry| is_needed(entry)).map_or(last, |(&file, _)| file);
        for entry in &mut self.manifest.hubs {
            if let Some(appender) = self.hubs.get(&entry.hub) {
                (entry.segments, entry.next, entry.earliest) = appender.entries();
            }
        }
        self.store()?;
        self.unsaved_bytes = 0;
        let (needed, free): (BTreeMap<u64, u64>, BTreeMap<u64, u64>) = std::mem::take(&mut self.journals)
            .into_iter()
            .partition(|(file, frame)| is_needed((file, frame)));
        self.journals = needed;
        self.spare.extend(free.into_keys());
        let too_many = self.spare.split_off(self.spare.len().min(1));
        journal::unlink(&self.storage, too_many.into_iter());
        Ok(())
    }

    /// Prepares the journal file that follows the current one.
    ///
    /// # Errors
    /// Errors of the storage; a retry is possible.
    pub fn prepare_next(&mut self) -> Result<Prepared<S::File>> {
        let number = self.manifest.journals.1 + 1;
        let (identity, bytes) = (self.manifest.identity, self.options.journal_bytes);
        let prepared = journal::prepare(&*self.storage, identity, number, bytes, self.spare.pop())
            .storage("cannot make a journal")?;
        self.manifest.journals.1 = number;
        if let Err(e) = self.store() {
            self.manifest.journals.1 = number - 1;
            return Err(e);
        }
        Ok(prepared)
    }

    /// Applies retention; returns the number of removed segments. `retention` returns the limits of a hub and
    /// the offset from which records are still needed. Hubs that keep the latest are skipped.
    ///
    /// # Errors
    /// The manifest cannot be written; nothing was removed from the disk, and the next call does it.
    pub fn retire(
        &mut self,
        now_us: u64,
        retention: impl Fn(HubId) -> (Retention, Option<u64>),
    ) -> Result<usize> {
        for entry in self.manifest.hubs.iter_mut().filter(|entry| entry.keep == Keep::Log) {
            let Some(appender) = self.hubs.get_mut(&entry.hub) else { continue };
            let (limits, hold) = retention(entry.hub);
            // The next start needs the segment that was open at the last checkpoint.
            let listed = entry.segments.last().map_or(0, |s| s.0);
            let hold = hold.map_or(listed, |hold| hold.min(listed));
            let (segments, verdict) = appender.retire(limits, now_us, hold);
            if limits.archive.is_some() {
                self.verdicts.push((entry.hub, verdict));
            }
            if !segments.is_empty() {
                entry.earliest = appender.chain.info().earliest;
                entry.segments.retain(|s| s.0 >= entry.earliest);
                entry.lost.retain(|lost| lost.0 > entry.earliest);
                self.retired.push((entry.hub, segments));
            }
        }
        if self.retired.is_empty() {
            return Ok(0);
        }
        self.store()?;
        Ok(self.unlink_retired())
    }

    /// Removes files that the manifest no longer lists; returns the number of segments.
    fn unlink_retired(&mut self) -> usize {
        let retired = std::mem::take(&mut self.retired);
        for (hub, segments) in &retired {
            self.hubs[hub].unlink(segments);
        }
        retired.iter().map(|(_, segments)| segments.len()).sum()
    }

    /// Results of `retire` since the last call, for hubs that wait for an archive.
    pub fn take_verdicts(&mut self) -> Vec<(HubId, Verdict)> {
        std::mem::take(&mut self.verdicts)
    }

    /// Makes the rooms of a hub begin new epochs, since acknowledged records may be missing.
    ///
    /// # Errors
    /// The manifest cannot be written; the epochs continue.
    pub fn end_epochs(&mut self, hub: HubId) -> Result<()> {
        let (Some(next), Some(entry)) = (self.next(hub), self.manifest.hub_mut(hub)) else { return Ok(()) };
        entry.continuous_from = next;
        self.store()
    }

    /// Stores the class rules for which every room has the class of its hub; 0 if some may not.
    ///
    /// # Errors
    /// The manifest cannot be written and is unchanged.
    pub fn set_rules(&mut self, rules: u64) -> Result<()> {
        let before = std::mem::replace(&mut self.manifest.rules, rules);
        if before == rules {
            return Ok(());
        }
        self.store().inspect_err(|_| self.manifest.rules = before)
    }

    /// Offset below which a hub's rooms have lost their epochs.
    pub fn continuous_from(&self, hub: HubId) -> u64 {
        self.manifest.hub(hub).map_or(1, |entry| entry.continuous_from)
    }

    /// Ends cleanly after the last synced frame, so the next start knows that nothing is missing.
    ///
    /// # Errors
    /// The next start treats it as an unclean end.
    pub fn close(mut self) -> Result<()> {
        if let Some((_, pass)) = self.pass.take() {
            pass.discard();
        }
        self.checkpoint()?;
        self.manifest.clean = Some(self.applied);
        self.store()
    }
}
