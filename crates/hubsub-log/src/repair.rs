//! Repairs a data directory that no node uses, where [`crate::verify`] finds a problem. Records were lost:
//! only an operator may accept that. `docs/log-format.md` lists the effects on a hub and its readers.
//!
//! Invariants
//! - A record is never changed, no offset is assigned twice, and only indexes are deleted.
//! - A hole is always between two segments: a damaged segment is rewritten as its pieces that verify
//!   ([`crate::salvage`]), each a segment of its own.
//! - The order makes a crash harmless: pieces are written beside the files and synced, the damaged files are
//!   put aside, the pieces renamed into place, and only then the manifest lists them. A second repair finds the
//!   same records in the files that were put aside.

mod remake;

use crate::error::Context;
use crate::files::Part;
use crate::journal;
use crate::manifest::{self, HubEntry, Lost, Manifest, SegmentEntry};
use crate::open::{Opened, recover};
use crate::salvage::{Piece, Salvage, Source, read_piece, salvage};
use crate::segment::{self, Name};
use crate::segments::Segments;
use crate::storage::{Storage, StorageFile, join};
use crate::verify::{Progress, Watch, verify_as};
use crate::{LogError, LogOptions, Result};
use hubsub_types::HubId;
use remake::remake;
use std::sync::Arc;

/// Ending of files that were put aside.
pub(crate) const DAMAGED: &str = ".damaged";

/// Offsets skipped if it is unknown how many were assigned: more than the records that journals can have
/// between two checkpoints.
pub const UNKNOWN_OFFSETS: u64 = 1 << 24;

const WRITE_BYTES: usize = 1 << 20;

#[derive(Clone, Debug, Default)]
pub struct Repair {
    pub hubs: Vec<HubRepair>,
    /// Problems that [`crate::verify`] found; empty if nothing is to be done.
    pub problems: Vec<String>,
    pub manifest: Option<String>,
    /// Whether the repair was done; else this is a dry run.
    pub is_done: bool,
    /// Remaining problems of hubs that were not to be repaired.
    pub left: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct HubRepair {
    pub hub: HubId,
    pub class: String,
    pub problems: Vec<String>,
    /// Records that are kept, and how many of them come from journals.
    pub kept: (u64, u64),
    /// Lost offsets that the manifest did not list before.
    pub lost: Vec<Lost>,
    /// From this offset on, an unknown number of records may be lost.
    pub unknown_from: Option<u64>,
    pub earliest: u64,
    /// Offset of its next record, from which its rooms have new epochs.
    pub next: u64,
    /// Files that get the ending `.damaged`.
    pub set_aside: Vec<String>,
}

/// Repairs all damaged hubs of a directory, or one of them. Without `accepts_loss`, changes nothing and
/// returns what it would do.
///
/// # Errors
/// The storage failed, a file has a newer format, there is no such hub or no log, or the manifest cannot be
/// rebuilt.
pub fn repair<S: Storage>(
    storage: &Arc<S>,
    options: LogOptions,
    only: Option<HubId>,
    accepts_loss: bool,
    watch: Watch<'_>,
) -> Result<Repair> {
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
    // If the caller named a hub, leave other hubs alone.
    if !accepts_loss || (only.is_some() && plans.is_empty()) {
        return Ok(done);
    }
    if done.manifest.is_some() {
        set_aside(&**storage, manifest::NAME)?;
    }
    // The other hubs reach a checkpoint; for these hubs, the journals with their records are put aside.
    let is_planned = |hub: HubId| done.manifest.is_some() || done.hubs.iter().any(|h| h.hub == hub);
    let suspects: Vec<(HubId, String)> = found
        .hubs
        .iter()
        .filter(|hub| is_planned(hub.entry.hub))
        .map(|hub| (hub.entry.hub, hub.problems.join("; ")))
        .collect();
    let identity = manifest.identity;
    // The caller may not know the configured reserve; the node's next start needs its part of it.
    let options = LogOptions { reserve_bytes: options.reserve_bytes.max(1), ..options };
    let Opened { mut segments, was_clean, .. } = recover(Arc::clone(storage), manifest, options, &suspects)?;
    for plan in &mut plans {
        // The recovery has moved the journals.
        plan.journals = journal::all_files(&**storage)?;
        let carry_out = |segments: &mut Segments<S>| {
            segments.adopt(plan.carry_out(&**storage, identity, options.chain.segment_bytes)?)
        };
        match carry_out(&mut segments) {
            Err(LogError::Full) => {
                segments.reserve.give_back();
                carry_out(&mut segments)?;
            }
            outcome => outcome?,
        }
    }
    segments.reserve.keep_for_start();
    // Other hubs may still lack records acknowledged from memory alone: the next start must know.
    if was_clean { segments.close() } else { segments.checkpoint() }?;
    done.is_done = true;
    let manifest = Manifest::load(&**storage)?.expect("it was stored just now");
    done.left = verify_as(&**storage, &manifest, watch)?.problems;
    Ok(done)
}

struct Plan {
    entry: HubEntry,
    found: Salvage,
    journals: Vec<String>,
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
    ) -> Result<Plan> {
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

    /// Report for the operator who is to accept the loss. Holes that the manifest listed are accepted
    /// already.
    fn told(&self, problems: &[String], is_remade: bool) -> HubRepair {
        let count = |of: fn(&Piece) -> bool| -> u64 {
            self.found.pieces.iter().filter(|piece| of(piece)).map(|piece| piece.next - piece.first).sum()
        };
        let kept_first = self.found.pieces.first().map_or(self.entry.next, |first| first.first);
        let before = (self.entry.earliest < kept_first).then(|| Lost(self.entry.earliest, kept_first - 1));
        // `unknown_from` reports the loss at the end.
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

    /// Writes the records that are not in an intact segment, and puts the damaged files aside. Returns the
    /// hub's new entry.
    fn carry_out<S: Storage>(&self, storage: &S, identity: u64, segment_bytes: u64) -> Result<HubEntry> {
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
                    // Truncates the open segment at the checkpoint.
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
            // If the repair is interrupted here, the next one needs the index to find where records begin.
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
        // An index links records across segments, so indexes from the first change on are rebuilt.
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

/// Adds the ending [`DAMAGED`] to a file's name, with a number if that name exists.
fn set_aside(storage: &impl Storage, path: &str) -> Result<()> {
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

struct Writer<'a, S: Storage> {
    storage: &'a S,
    identity: u64,
    hub: HubId,
    segment_bytes: u64,
    open: Option<Written<S::File>>,
    done: Vec<SegmentEntry>,
}

struct Written<F> {
    file: F,
    first: u64,
    next: u64,
    /// Size of the file, and bytes that are not written yet.
    end: u64,
    bytes: Vec<u8>,
}

impl<S: Storage> Writer<'_, S> {
    /// Adds a record; begins a new segment after a hole, or if the current one is full.
    fn push(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
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

    fn begin(&mut self, first: u64) -> Result<()> {
        self.finish()?;
        let path = new_path(self.hub, first);
        // Left by an interrupted repair.
        let _ = self.storage.unlink(&path);
        let file = self.storage.create(&path).storage("cannot make a segment")?;
        let bytes = segment::head(self.identity, self.hub, Name::written(first), 0);
        self.open = Some(Written { file, first, next: first, end: 0, bytes });
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let Some(mut open) = self.open.take() else { return Ok(()) };
        open.write()?;
        open.file.sync().io("cannot sync a segment")?;
        self.done.push(SegmentEntry(open.first, open.end, 0));
        Ok(())
    }
}

impl<F: StorageFile> Written<F> {
    fn write(&mut self) -> Result<()> {
        let cannot = |e| LogError::storage("cannot write a segment", e);
        self.file.write_all_at(&self.bytes, self.end).map_err(cannot)?;
        self.end += self.bytes.len() as u64;
        self.bytes.clear();
        Ok(())
    }
}
