//! Mending a data directory that no node uses, where [`crate::verify`] finds something
//! wrong. Something was lost: an operator accepts that, nobody else may.
//!
//! # Design
//! A record is never changed: its offset, epoch and seq are what others have seen. So
//! what is lost leaves a *hole* of offsets, and what is behind it stays where it was.
//!
//! - A hole is always between two segments: a damaged segment is written anew as the
//!   pieces of it that verify ([`crate::salvage`]), each a segment of its own. The
//!   manifest names holes (`lost`), so one that it does not name is still damage. A
//!   hole before everything else is not one: the hub begins later (`earliest`).
//! - Reads by offset go on behind a hole. A room's history goes back over it. A read on
//!   from a position does not go over it: it begins behind the last hole, as it does
//!   where retention took the beginning.
//! - No position is mapped over what was lost: every room of the hub begins a new epoch
//!   with its next record (`continuous_from`), also rooms that lost nothing, since of
//!   most records nobody can tell any more whose they were.
//! - No offset is given twice: where nobody can tell how much is missing at the end (the
//!   journal or the manifest was damaged), the hub goes on [`UNKNOWN_OFFSETS`] later.
//! - What journals have of the hub fills holes and goes on behind the segments: those in
//!   use, and those that a start has put aside for this (`quarantine/`).
//! - Nothing is deleted but indexes, which are made again: damaged files get the ending
//!   `.damaged`, and so do their indexes; journals are put aside.
//!
//! A hub that keeps the latest of each key has holes within its segments, so none of this
//! holds there: its repair is refused.
//!
//! A manifest that is lost is made again from the segments and from what each hub's own
//! file says of it (`hub.json`); without one of those it is refused. Then every hub counts
//! as damaged, since nobody can tell what else is missing.
//!
//! The order makes a crash harmless: pieces are written beside the files, synced, files
//! put aside and pieces put in their place, and only then the manifest lists them. A
//! second repair finds the same records, in the files that were put aside.

mod remake;

use crate::files::Part;
use crate::journal;
use crate::manifest::{self, HubEntry, Lost, Manifest, SegmentEntry};
use crate::open::{Opened, recover};
use crate::salvage::{Piece, Salvage, Source, read_piece, salvage};
use crate::segment::{self, Name};
use crate::segments::Segments;
use crate::storage::{Storage, StorageFile, join};
use crate::verify::{Progress, Watch, verify_as};
use crate::{LogError, LogOptions};
use hubsub_types::HubId;
use remake::remake;
use std::sync::Arc;

/// Ending of what was put aside.
pub(crate) const DAMAGED: &str = ".damaged";

/// Offsets that are left out where nobody can tell how many were given: more than the
/// records that journals hold between two checkpoints.
pub const UNKNOWN_OFFSETS: u64 = 1 << 24;

/// Records that wait for a segment.
const WRITE_BYTES: usize = 1 << 20;

/// What a repair does, or would do.
#[derive(Clone, Debug, Default)]
pub struct Repair {
    /// The hubs that are mended.
    pub hubs: Vec<HubRepair>,
    /// What is wrong, as [`crate::verify`] says it; none: there is nothing to do.
    pub problems: Vec<String>,
    /// Why the manifest is made again, if it is.
    pub manifest: Option<String>,
    /// Whether it was done; else it is only said.
    pub is_done: bool,
    /// What is still wrong, of hubs that were not to be mended.
    pub left: Vec<String>,
}

/// What is done with a hub.
#[derive(Clone, Debug)]
pub struct HubRepair {
    /// Its id.
    pub hub: HubId,
    /// Its class.
    pub class: String,
    /// What is wrong with it.
    pub problems: Vec<String>,
    /// Records that are kept, and how many of them only journals have.
    pub kept: (u64, u64),
    /// Offsets that are lost, and were not before.
    pub lost: Vec<Lost>,
    /// From this offset on there may have been more, nobody can tell how many.
    pub unknown_from: Option<u64>,
    /// Offset of the oldest record that is kept.
    pub earliest: u64,
    /// Offset of its next record, from which on its rooms have new epochs.
    pub next: u64,
    /// Files that get the ending `.damaged`.
    pub set_aside: Vec<String>,
}

/// Mends what is wrong with the hubs of a directory, or with one of them. Without
/// `accepts_loss` it changes nothing and says what it would do.
///
/// # Errors
/// The storage failed, a file is of a newer format, there is no such hub or no log, or the
/// manifest cannot be made again.
pub fn repair<S: Storage>(
    storage: &Arc<S>,
    options: LogOptions,
    only: Option<HubId>,
    accepts_loss: bool,
    watch: Watch<'_>,
) -> Result<Repair, LogError> {
    let (manifest, remade) = match Manifest::load(&**storage) {
        Ok(Some(manifest)) => (manifest, None),
        Ok(None) => (remake(&**storage)?, Some("it is missing".to_owned())),
        Err(LogError::Damaged { why, .. }) => (remake(&**storage)?, Some(why)),
        Err(e) => return Err(e),
    };
    if let Some(hub) = only.filter(|&hub| manifest.hub(hub).is_none()) {
        return Err(LogError::Refused(format!("there is no hub {}", hub.0)));
    }
    let mut found = verify_as(&**storage, &manifest, watch)?;
    if let Some(why) = &remade {
        let why = format!("the manifest had to be made again: {why}");
        found.hubs.iter_mut().for_each(|hub| {
            hub.problems.push(why.clone());
            hub.may_lack_more = true;
        });
        found.problems.push(why);
    }
    let mut done = Repair { problems: found.problems.clone(), manifest: remade, ..Repair::default() };
    if found.problems.is_empty() {
        return Ok(done);
    }
    let is_wanted = |hub: HubId| only.is_none_or(|only| hub == only);
    if let Some(hub) =
        found.hubs.iter().find(|hub| hub.entry.was_compacted() && !hub.is_whole() && is_wanted(hub.entry.hub))
    {
        return Err(LogError::Refused(format!(
            "hub {} keeps the latest of each key, and what is lost of it cannot be told from what was \
             compacted; hint: bring its directory back from a copy, or name another hub",
            hub.entry.hub.0
        )));
    }
    let mut plans = Vec::new();
    for hub in
        found.hubs.iter().filter(|hub| !hub.is_whole() && only.is_none_or(|only| hub.entry.hub == only))
    {
        let plan = Plan::new(&**storage, manifest.identity, &hub.entry, hub.may_lack_more, watch)?;
        done.hubs.push(plan.told(&hub.problems, done.manifest.is_some()));
        plans.push(plan);
    }
    // Who names a hub wants nothing done to others.
    if !accepts_loss || (only.is_some() && plans.is_empty()) {
        return Ok(done);
    }
    if done.manifest.is_some() {
        set_aside(&**storage, manifest::NAME)?;
    }
    // The others come to a checkpoint; with these, journals that have their records are put aside.
    let is_planned = |hub: HubId| done.manifest.is_some() || done.hubs.iter().any(|h| h.hub == hub);
    let suspects: Vec<(HubId, String)> = found
        .hubs
        .iter()
        .filter(|hub| is_planned(hub.entry.hub))
        .map(|hub| (hub.entry.hub, hub.problems.join("; ")))
        .collect();
    let identity = manifest.identity;
    // Whoever calls may know of no reserve; the node's next start needs its part.
    let options = LogOptions { reserve_bytes: options.reserve_bytes.max(1), ..options };
    let Opened { mut segments, was_clean, .. } = recover(Arc::clone(storage), manifest, options, &suspects)?;
    for plan in &mut plans {
        // The journals are elsewhere now.
        plan.journals = journal::all_files(&**storage)?;
        let carry_out = |segments: &mut Segments<S>| {
            segments.adopt(plan.carry_out(&**storage, identity, options.chain.segment_bytes)?)
        };
        match carry_out(&mut segments) {
            Err(LogError::Full) => {
                segments.give_reserve_back();
                carry_out(&mut segments)?;
            }
            outcome => outcome?,
        }
    }
    segments.keep_for_start();
    // What other hubs acknowledged from memory alone may be missing still: the next start must know.
    if was_clean { segments.close() } else { segments.checkpoint() }?;
    done.is_done = true;
    let manifest = Manifest::load(&**storage)?.expect("it was stored just now");
    done.left = verify_as(&**storage, &manifest, watch)?.problems;
    Ok(done)
}

/// What is to be done with a hub.
struct Plan {
    entry: HubEntry,
    found: Salvage,
    journals: Vec<String>,
    /// Its entry afterwards; the segments are those that are kept as they are.
    earliest: u64,
    next: u64,
    lost: Vec<Lost>,
    unknown_from: Option<u64>,
}

impl Plan {
    fn new(
        storage: &impl Storage,
        identity: u64,
        entry: &HubEntry,
        may_lack_more: bool,
        watch: Watch<'_>,
    ) -> Result<Plan, LogError> {
        let journals = journal::all_files(storage)?;
        let bytes: u64 = entry.segments.iter().map(|s| s.1).sum();
        let mut take = |records: u64, at: u64| {
            let is_stopped = records.is_multiple_of(16_384) && watch(Progress(at, bytes)).is_break();
            if is_stopped { Err(LogError::Stopped) } else { Ok(()) }
        };
        let found = salvage(storage, identity, entry, &journals, &mut take)?;
        let end = found.pieces.last().map_or(0, |last| last.next).max(entry.next);
        let next = if may_lack_more { end + UNKNOWN_OFFSETS } else { end };
        let earliest = found.pieces.first().map_or(next, |first| first.first);
        let mut lost = Vec::new();
        let mut at = earliest;
        for piece in &found.pieces {
            if piece.first > at {
                lost.push(Lost(at, piece.first - 1));
            }
            at = piece.next;
        }
        if at < next {
            lost.push(Lost(at, next - 1));
        }
        let unknown_from = may_lack_more.then_some(end);
        Ok(Plan { entry: entry.clone(), found, journals, earliest, next, lost, unknown_from })
    }

    /// For whoever is to accept it. Holes that the manifest named are accepted already.
    fn told(&self, problems: &[String], is_remade: bool) -> HubRepair {
        let count = |of: fn(&Piece) -> bool| -> u64 {
            self.found.pieces.iter().filter(|piece| of(piece)).map(|piece| piece.next - piece.first).sum()
        };
        let kept_first = self.found.pieces.first().map_or(self.entry.next, |first| first.first);
        let before = (self.entry.earliest < kept_first).then(|| Lost(self.entry.earliest, kept_first - 1));
        // What may be missing at the end is told by where that begins.
        let end = self.unknown_from.unwrap_or(self.next);
        let is_news = |lost: &&Lost| is_remade || !self.entry.lost.contains(lost);
        let known = self.lost.iter().filter(|lost| lost.0 < end).filter(is_news);
        HubRepair {
            hub: self.entry.hub,
            class: self.entry.class.clone(),
            problems: problems.to_vec(),
            kept: (count(|_| true), count(|piece| piece.source == Source::Journals)),
            lost: before.into_iter().chain(known.map(|lost| Lost(lost.0, lost.1.min(end - 1)))).collect(),
            unknown_from: self.unknown_from,
            earliest: self.earliest,
            next: self.next,
            set_aside: self.found.damaged.clone(),
        }
    }

    /// Writes what is not in a segment that stays, and puts the damaged files aside. The hub's
    /// new entry.
    fn carry_out<S: Storage>(
        &self,
        storage: &S,
        identity: u64,
        segment_bytes: u64,
    ) -> Result<HubEntry, LogError> {
        let hub = self.entry.hub;
        let cannot = |e| LogError::storage("cannot put a segment in place", e);
        let mut segments = Vec::new();
        let mut writer = Writer { storage, identity, hub, segment_bytes, open: None, done: Vec::new() };
        for piece in &self.found.pieces {
            match &piece.source {
                Source::Segment(entry) => {
                    writer.finish()?;
                    let path = segment::path(hub, entry.name(), Part::Segment);
                    let file = storage.open(&path).map_err(cannot)?;
                    // Of the open one, what is behind the checkpoint.
                    file.set_len(entry.1).and_then(|()| file.sync()).map_err(cannot)?;
                    segments.push(*entry);
                }
                _ => read_piece(storage, identity, hub, piece, &self.journals, |offset, bytes| {
                    writer.push(offset, bytes)
                })?,
            }
        }
        if self.found.pieces.last().is_none_or(|last| last.next < self.next) {
            writer.begin(self.next)?;
        }
        writer.finish()?;
        let written = writer.done;
        let directory = segment::directory(hub);
        storage.sync_directory(&directory).map_err(cannot)?;

        for path in &self.found.damaged {
            set_aside(storage, path)?;
            // A repair that is cut short here needs it: it tells where records begin.
            let stem = path.strip_suffix("segment").expect("they are segments");
            set_aside(storage, &format!("{stem}index"))?;
        }
        for entry in &written {
            let path = segment::path(hub, entry.name(), Part::Segment);
            storage.rename(&new_path(hub, entry.0), &path).map_err(cannot)?;
        }
        let mut entry = HubEntry { quarantined: None, ..self.entry.clone() };
        segments.extend(&written);
        segments.sort_unstable_by_key(|segment| segment.0);
        // An index leads from record to record, so those behind a change are made again.
        let changed = self.lost.iter().map(|lost| lost.0).chain(written.iter().map(|s| s.0)).min();
        for name in storage.list(&directory).map_err(cannot)? {
            let Some((first, ending)) = name.split_once('.') else { continue };
            let is_behind = first.parse().is_ok_and(|first: u64| changed.is_some_and(|from| first >= from));
            if is_behind && matches!(ending, "index" | "runs") {
                storage.unlink(&join(&directory, &name)).map_err(cannot)?;
            }
        }
        storage.sync_directory(&directory).map_err(cannot)?;
        entry.segments = segments;
        (entry.earliest, entry.next, entry.lost) = (self.earliest, self.next, self.lost.clone());
        if entry.segments.first().is_some_and(|first| first.0 == self.next) {
            entry.lost.clear();
        }
        entry.continuous_from = self.next;
        Ok(entry)
    }
}

/// Gives a file the ending that says what it is, beside others of that name.
fn set_aside(storage: &impl Storage, path: &str) -> Result<(), LogError> {
    let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
    let cannot = |e| LogError::io("cannot put a file aside", e);
    let names = storage.list(directory).map_err(cannot)?;
    if !names.iter().any(|n| n == name) {
        return Ok(());
    }
    let mut aside = format!("{name}{DAMAGED}");
    for n in 2.. {
        if !names.contains(&aside) {
            break;
        }
        aside = format!("{name}.{n}{DAMAGED}");
    }
    storage.rename(path, &join(directory, &aside)).map_err(cannot)?;
    storage.sync_directory(directory).map_err(cannot)
}

fn new_path(hub: HubId, first: u64) -> String {
    format!("{}.new", segment::path(hub, Name::written(first), Part::Segment))
}

/// Writes segments beside those that are there.
struct Writer<'a, S: Storage> {
    storage: &'a S,
    identity: u64,
    hub: HubId,
    segment_bytes: u64,
    open: Option<Written<S::File>>,
    done: Vec<SegmentEntry>,
}

/// The segment that is written.
struct Written<F> {
    file: F,
    first: u64,
    next: u64,
    /// Bytes in the file, and those that wait.
    end: u64,
    bytes: Vec<u8>,
}

impl<S: Storage> Writer<'_, S> {
    /// Adds a record; behind a hole, or when one is full, in a segment of its own.
    fn push(&mut self, offset: u64, bytes: &[u8]) -> Result<(), LogError> {
        let fits = |open: &Written<S::File>| {
            open.next == offset && open.end + (open.bytes.len() as u64) < self.segment_bytes
        };
        if !self.open.as_ref().is_some_and(fits) {
            self.begin(offset)?;
        }
        let open = self.open.as_mut().expect("begun above");
        open.bytes.extend_from_slice(bytes);
        open.next = offset + 1;
        if open.bytes.len() >= WRITE_BYTES { open.write() } else { Ok(()) }
    }

    fn begin(&mut self, first: u64) -> Result<(), LogError> {
        self.finish()?;
        let path = new_path(self.hub, first);
        // Of a repair that was cut short.
        let _ = self.storage.unlink(&path);
        let file = self.storage.create(&path).map_err(|e| LogError::storage("cannot make a segment", e))?;
        let bytes = segment::head(self.identity, self.hub, Name::written(first), 0);
        self.open = Some(Written { file, first, next: first, end: 0, bytes });
        Ok(())
    }

    fn finish(&mut self) -> Result<(), LogError> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        open.write()?;
        open.file.sync().map_err(|e| LogError::io("cannot sync a segment", e))?;
        self.done.push(SegmentEntry(open.first, open.end, 0));
        Ok(())
    }
}

impl<F: StorageFile> Written<F> {
    fn write(&mut self) -> Result<(), LogError> {
        let cannot = |e| LogError::storage("cannot write a segment", e);
        self.file.write_all_at(&self.bytes, self.end).map_err(cannot)?;
        self.end += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }
}
