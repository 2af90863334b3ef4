//! The chains of all hubs of a disk: what the segment thread owns.
//!
//! It takes frames once they are safe in the journal, never before, so a segment
//! holds nothing that could be lost. It says when journals are needed no more: a
//! checkpoint has made their records safe in segments, and the manifest says so.

mod compact;
mod hubs;

pub use compact::Compaction;
pub use hubs::{Opening, Ready};

use crate::chain::{self, Appender, Chain, Pass, Retention, Verdict};
use crate::files::{Files, Part};
use crate::journal::{self, Batch, Prepared};
use crate::manifest::{HubEntry, Keep, Manifest, SegmentEntry};
use crate::reserve::Reserve;
use crate::segment::Name;
use crate::storage::Storage;
use crate::{LogError, LogOptions};
use hubsub_types::HubId;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// See the module.
pub struct Segments<S: Storage> {
    storage: Arc<S>,
    files: Arc<Files<S>>,
    options: LogOptions,
    manifest: Manifest,
    hubs: BTreeMap<HubId, Appender<S>>,
    /// Last frame that was taken.
    applied: u64,
    /// Journal files that are or were written, oldest first, with the last frame of each.
    journals: BTreeMap<u64, u64>,
    /// Journal files that nobody needs.
    spare: Vec<u64>,
    /// Segments that no chain has any more, whose files go once the manifest does not list them.
    retired: Vec<(HubId, Vec<Name>)>,
    /// What retention came to where an archive is waited for, until somebody asks.
    verdicts: Vec<(HubId, Verdict)>,
    /// Bytes taken since the last checkpoint.
    unsaved_bytes: u64,
    /// Space for what was taken, on a disk that is full.
    reserve: Reserve<S>,
    /// A sync has failed: a later one could succeed without the bytes of that one.
    is_broken: bool,
    /// Bytes that hubs which keep the latest were given since their last compaction turn.
    given_bytes: u64,
    /// The compaction that is under way, and whose.
    pass: Option<(HubId, Pass<S>)>,
    /// The hub that was compacted last.
    compacted: HubId,
    /// Hubs whose segments cannot be read, which are not compacted any more.
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

    /// What the manifest says.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The chain of a hub that is whole.
    #[must_use]
    pub fn chain(&self, hub: HubId) -> Option<Arc<Chain<S>>> {
        self.hubs.get(&hub).map(|appender| Arc::clone(&appender.chain))
    }

    /// Takes a hub that was quarantined into service as this entry says.
    ///
    /// # Errors
    /// Its records are not as the entry says, or the storage failed: it is left as it was.
    pub(crate) fn adopt(&mut self, entry: HubEntry) -> Result<(), LogError> {
        for name in entry.segments.iter().map(SegmentEntry::name) {
            for part in [Part::Segment, Part::Index, Part::Runs] {
                self.files.forget(entry.hub, name, part);
            }
        }
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

    /// Takes a frame that is safe in a journal file; `flush` writes it.
    ///
    /// # Panics
    /// A batch is of a hub that there is not.
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

    /// Writes what was taken; on a full disk, into the space that is kept for it.
    ///
    /// # Errors
    /// The first that failed; the others were written, and it may be tried again.
    pub fn flush(&mut self) -> Result<(), LogError> {
        match self.write() {
            Err(LogError::Full) if self.reserve.spend(self.pending_bytes() as u64) => self.write(),
            outcome => outcome,
        }
    }

    /// Whether the space that is kept for a full disk is all there.
    #[must_use]
    pub fn has_reserve(&self) -> bool {
        self.reserve.is_whole()
    }

    /// Bytes that the disk must have free, so that the log takes records: for the space that
    /// is kept for a full one, for what waits, and for a journal, if it `wants_journal`.
    #[must_use]
    pub fn wanted_bytes(&self, wants_journal: bool) -> u64 {
        let journal = if wants_journal { self.options.journal_bytes } else { 0 };
        self.reserve.missing().saturating_add(journal).saturating_add(self.pending_bytes() as u64)
    }

    /// Takes the space that is kept for a full disk, as far as it is missing; whether it
    /// is all there.
    ///
    /// # Errors
    /// Those of the storage, but for a full one.
    pub fn keep_reserve(&mut self) -> Result<bool, LogError> {
        self.reserve.fill().map_err(|e| LogError::io("cannot keep space for a full disk", e))
    }

    /// Takes what the next start needs on a disk that is full.
    pub(crate) fn keep_for_start(&mut self) {
        self.reserve.keep_for_start();
    }

    /// Gives the space back that is kept for a full disk.
    pub(crate) fn give_reserve_back(&mut self) {
        self.reserve.give_back();
    }

    /// Puts the manifest in place of the one before, for a moment beside it.
    fn store(&mut self) -> Result<(), LogError> {
        let (manifest, storage) = (&self.manifest, &*self.storage);
        match manifest.store(storage) {
            Err(LogError::Full) => self.reserve.lend(|| manifest.store(storage)),
            stored => stored,
        }
    }

    fn write(&mut self) -> Result<(), LogError> {
        let mut outcome = Ok(());
        for appender in self.hubs.values_mut() {
            if let Err(e) = appender.flush() {
                outcome = outcome.and(Err(e));
            }
        }
        outcome
    }

    /// Bytes that were taken and not yet written.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.hubs.values().map(Appender::pending_bytes).sum()
    }

    /// Bytes taken since the last checkpoint.
    #[must_use]
    pub fn unsaved_bytes(&self) -> u64 {
        self.unsaved_bytes
    }

    /// Makes everything that was taken safe in segments, and gives back the journals below it.
    ///
    /// # Errors
    /// The checkpoint before stands. Once a sync has failed, there is no other.
    pub fn checkpoint(&mut self) -> Result<(), LogError> {
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

    /// Makes the journal file that is written when the present one is full.
    ///
    /// # Errors
    /// Those of the storage; it may be tried again.
    pub fn prepare_next(&mut self) -> Result<Prepared<S::File>, LogError> {
        let number = self.manifest.journals.1 + 1;
        let (identity, bytes) = (self.manifest.identity, self.options.journal_bytes);
        let prepared = journal::prepare(&*self.storage, identity, number, bytes, self.spare.pop())
            .map_err(|e| LogError::storage("cannot make a journal", e))?;
        self.manifest.journals.1 = number;
        if let Err(e) = self.store() {
            self.manifest.journals.1 = number - 1;
            return Err(e);
        }
        Ok(prepared)
    }

    /// Removes what hubs need not keep. `retention` is asked for each hub: its
    /// limits, and the offset from which somebody still needs its records.
    /// How many segments went. Hubs that keep the latest keep it for ever.
    ///
    /// # Errors
    /// The manifest cannot be written; nothing was removed from the disk, the next call does.
    pub fn retire(
        &mut self,
        now_us: u64,
        retention: impl Fn(HubId) -> (Retention, Option<u64>),
    ) -> Result<usize, LogError> {
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

    /// Takes files away that the manifest does not list any more; of how many segments.
    fn unlink_retired(&mut self) -> usize {
        let retired = std::mem::take(&mut self.retired);
        for (hub, segments) in &retired {
            self.hubs[hub].unlink(segments);
        }
        retired.iter().map(|(_, segments)| segments.len()).sum()
    }

    /// What `retire` came to, since it was asked for last, at the hubs that wait for an archive.
    pub fn take_verdicts(&mut self) -> Vec<(HubId, Verdict)> {
        std::mem::take(&mut self.verdicts)
    }

    /// The rooms of a hub begin new epochs: what was acknowledged may be missing.
    ///
    /// # Errors
    /// The manifest cannot be written; the epochs go on.
    pub fn end_epochs(&mut self, hub: HubId) -> Result<(), LogError> {
        let next = self.hubs.get(&hub).map(Appender::next);
        let entry = self.manifest.hubs.iter_mut().find(|entry| entry.hub == hub);
        let (Some(next), Some(entry)) = (next, entry) else { return Ok(()) };
        entry.continuous_from = next;
        self.store()
    }

    /// Every room is in the hub that these rules say; 0: perhaps not.
    ///
    /// # Errors
    /// The manifest cannot be written; it says what it said.
    pub fn set_rules(&mut self, rules: u64) -> Result<(), LogError> {
        let before = std::mem::replace(&mut self.manifest.rules, rules);
        if before == rules {
            return Ok(());
        }
        self.store().inspect_err(|_| self.manifest.rules = before)
    }

    /// Offset below which a hub's rooms have lost their epochs.
    #[must_use]
    pub fn continuous_from(&self, hub: HubId) -> u64 {
        self.manifest.hub(hub).map_or(1, |entry| entry.continuous_from)
    }

    /// Ends cleanly behind the last frame, which was synced: the next start knows
    /// that nothing may be missing.
    ///
    /// # Errors
    /// The next start takes this for an unclean end.
    pub fn close(mut self) -> Result<(), LogError> {
        if let Some((_, pass)) = self.pass.take() {
            pass.discard();
        }
        self.checkpoint()?;
        self.manifest.clean = Some(self.applied);
        self.store()
    }
}
