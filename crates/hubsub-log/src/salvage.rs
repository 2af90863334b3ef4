//! Finds the readable records of a damaged hub: pieces of its log, each a contiguous range of records that
//! verify.
//!
//! The start of a record is known from the record before it or from the index, and never guessed: bytes
//! within a payload could look like a record. So after a damaged record, the next one is where its length
//! field points, if a record with the right offset is there, else at the next position in the index. Without
//! an index (a start deletes that of the open segment), the rest is given up where a length is damaged. A
//! file whose head belongs to another file is skipped.

use crate::error::Context;
use crate::files::Part;
use crate::index::Run;
use crate::journal;
use crate::manifest::{HubEntry, SegmentEntry};
use crate::record::{self, NotARecord, Record};
use crate::repair::DAMAGED;
use crate::segment::{self, Name};
use crate::storage::{Storage, StorageFile, join};
use crate::verify::check_segment;
use crate::{LogError, Result};
use hubsub_types::HubId;
use std::io::ErrorKind;
use std::ops::Range;

const WINDOW_BYTES: usize = 256 * 1024;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Piece {
    pub first: u64,
    pub next: u64,
    pub source: Source,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Source {
    Segment(SegmentEntry),
    /// In these bytes of a damaged file.
    Part(String, Range<u64>),
    Journals,
}

#[derive(Debug, Default)]
pub struct Salvage {
    /// In order of offset.
    pub pieces: Vec<Piece>,
    pub damaged: Vec<String>,
    /// Pieces of the source that is being read.
    fresh: Vec<Piece>,
}

/// Searches for the records of a hub in its segments, in segments that an earlier repair put aside, and in
/// all journals.
///
/// # Errors
/// The storage failed, or a file has a newer format.
pub fn salvage(
    storage: &impl Storage,
    identity: u64,
    entry: &HubEntry,
    journals: &[String],
    take: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<Salvage> {
    let mut found = Salvage::default();
    let directory = segment::directory(entry.hub);
    let names = storage.list(&directory).io("cannot list segments")?;
    for (i, &listed) in entry.segments.iter().enumerate() {
        let offsets = listed.0..entry.end_of(i);
        match check_segment(storage, identity, entry, i, take) {
            Ok(()) => {
                // A segment without records is recreated where needed.
                if !offsets.is_empty() {
                    found.fresh.push(Piece {
                        first: offsets.start,
                        next: offsets.end,
                        source: Source::Segment(listed),
                    });
                }
            }
            Err(LogError::Damaged { .. }) => {
                let name = listed.name().file(Part::Segment);
                let path = join(&directory, &name);
                if names.contains(&name) {
                    found.damaged.push(path.clone());
                    found.walk(storage, identity, entry.hub, path, listed, &offsets)?;
                    found.settle();
                }
                // An interrupted repair may have put the segment aside already.
                let aside = names.iter().filter(|n| n.starts_with(&name) && n.ends_with(DAMAGED));
                for name in aside {
                    let path = join(&directory, name);
                    found.walk(storage, identity, entry.hub, path, listed, &offsets)?;
                    found.settle();
                }
            }
            Err(e) => return Err(e),
        }
        found.settle();
    }
    journal::records(storage, identity, journals, |record, _| {
        if record.hub == entry.hub && record.offset >= entry.earliest && !found.has(record.offset) {
            found.add_of_journal(record.offset);
        }
        Ok(())
    })?;
    found.settle();
    Ok(found)
}

/// Passes the records of a piece to `take`, with their bytes, in order.
///
/// # Errors
/// The storage failed, the file has changed, or `take` failed.
pub fn read_piece(
    storage: &impl Storage,
    identity: u64,
    hub: HubId,
    piece: &Piece,
    journals: &[String],
    mut take: impl FnMut(u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut next = piece.first;
    match &piece.source {
        Source::Journals => journal::records(storage, identity, journals, |record, bytes| {
            if record.hub == hub && record.offset == next && next < piece.next {
                next += 1;
                take(record.offset, bytes)?;
            }
            Ok(())
        })?,
        Source::Part(path, range) => {
            let file = storage.open(path).io("cannot open a segment")?;
            let (mut window, mut at) = (Window::default(), range.start);
            while at < range.end {
                let Ok((record, len)) = window.record(&file, at, range.end)? else { break };
                take(record.offset, &window.bytes[window.skip(at)..][..len])?;
                (next, at) = (next + 1, at + len as u64);
            }
        }
        Source::Segment(_) => next = piece.next,
    }
    if next != piece.next {
        let why = format!("offset {next} was there a moment ago");
        return Err(LogError::Damaged { path: segment::directory(hub), at: 0, why });
    }
    Ok(())
}

impl Salvage {
    /// Reads the readable records of a damaged segment between two offsets, up to its listed end.
    fn walk<S: Storage>(
        &mut self,
        storage: &S,
        identity: u64,
        hub: HubId,
        path: String,
        listed: SegmentEntry,
        offsets: &Range<u64>,
    ) -> Result<()> {
        let cannot = |e| LogError::io("cannot read a segment", e);
        let file = storage.open(&path).map_err(cannot)?;
        match segment::check_head(&file, identity, hub, listed.name(), offsets.end) {
            Err(e @ (LogError::NewerFormat { .. } | LogError::Io { .. })) => return Err(e),
            Err(e) if segment::is_foreign(&e) => return Ok(()),
            // With an unreadable head, the records may still be intact.
            Ok(()) | Err(_) => {}
        }
        let end = file.len().map_err(cannot)?.min(listed.1);
        let places = places(storage, hub, listed.name());
        let is_ours = |record: &Record<'_>, next: u64| {
            record.hub == hub && (next..offsets.end).contains(&record.offset)
        };
        let (mut window, mut at, mut next) = (Window::default(), segment::HEAD_BYTES, offsets.start);
        // Offset that the record at `at` must have.
        let mut only = Some(next);
        let mut came_by_length = false;
        while at < end && next < offsets.end {
            let read = window.record(&file, at, end)?;
            if let Ok((record, len)) = read
                && is_ours(&record, next)
                && only.is_none_or(|only| only == record.offset)
            {
                let offset = record.offset;
                if !self.has(offset) {
                    self.add(offset, &path, at..at + len as u64);
                }
                (at, next, only) = (at + len as u64, offset + 1, Some(offset + 1));
                continue;
            }
            if came_by_length
                && let Ok((record, _)) = read
                && record.offset < next
            {
                // The offset was seen before: the record before this one was inside another record.
                self.fresh.pop();
                break;
            }
            came_by_length = false;
            // The record is damaged. Find the next one.
            let by_length = only.and_then(|only| {
                let behind = at + window.len(at)? as u64;
                let read = window.record(&file, behind, end).ok()?.ok()?;
                (is_ours(&read.0, next) && read.0.offset == only + 1).then_some((behind, only + 1))
            });
            match by_length {
                Some((behind, offset)) => {
                    (at, only, came_by_length) = (behind, Some(offset), true);
                }
                None => {
                    let known = places.partition_point(|&place| place <= at);
                    let Some(&place) = places.get(known) else { break };
                    (at, only) = (place, None);
                }
            }
        }
        if came_by_length && next == offsets.end && at < end {
            // As above: the last record of a segment must end where the segment does.
            self.fresh.pop();
        }
        Ok(())
    }

    /// Whether an offset is in a settled piece.
    fn has(&self, offset: u64) -> bool {
        let at = self.pieces.partition_point(|piece| piece.first <= offset);
        at.checked_sub(1).is_some_and(|at| offset < self.pieces[at].next)
    }

    fn add(&mut self, offset: u64, path: &str, range: Range<u64>) {
        if let Some(last) = self.fresh.last_mut()
            && last.next == offset
            && let Source::Part(of, bytes) = &mut last.source
            && of == path
            && bytes.end == range.start
        {
            (last.next, bytes.end) = (offset + 1, range.end);
            return;
        }
        let source = Source::Part(path.to_owned(), range);
        self.fresh.push(Piece { first: offset, next: offset + 1, source });
    }

    /// Adds a record of a journal, unless it is a duplicate.
    fn add_of_journal(&mut self, offset: u64) {
        match self.fresh.last_mut() {
            Some(last) if offset == last.next => last.next += 1,
            Some(last) if offset < last.next => {}
            _ => self.fresh.push(Piece { first: offset, next: offset + 1, source: Source::Journals }),
        }
    }

    fn settle(&mut self) {
        self.pieces.append(&mut self.fresh);
        self.pieces.sort_unstable_by_key(|piece| piece.first);
    }
}

/// Sorted positions of records in the indexes of a segment, including those that a repair put aside.
fn places<S: Storage>(storage: &S, hub: HubId, name: Name) -> Vec<u64> {
    let directory = segment::directory(hub);
    let [index, runs] = [Part::Index, Part::Runs].map(|part| name.file(part));
    let is_one = |n: &String| *n == index || *n == runs || (n.starts_with(&index) && n.ends_with(DAMAGED));
    let mut places: Vec<u64> = Vec::new();
    for name in storage.list(&directory).unwrap_or_default().iter().filter(|n| is_one(n)) {
        let Ok(file) = storage.open(&join(&directory, name)) else { continue };
        let mut at = 0;
        while let Ok(run) = Run::open(&file, at) {
            places.extend(run.all_places(&file).unwrap_or_default().into_iter().map(u64::from));
            at += run.bytes();
        }
    }
    places.sort_unstable();
    places.dedup();
    places
}

#[derive(Default)]
struct Window {
    start: u64,
    bytes: Vec<u8>,
}

impl Window {
    /// Decodes the record at a position of a file whose records end before `end`.
    fn record(
        &mut self,
        file: &impl StorageFile,
        at: u64,
        end: u64,
    ) -> Result<Result<(Record<'_>, usize), NotARecord>> {
        let is_here = self.rest(at).is_some_and(|rest| {
            record::len(rest)
                .map_or_else(|e| !matches!(e, NotARecord::Incomplete(_)), |len| len <= rest.len())
        });
        if !is_here {
            self.fill(file, at, end, WINDOW_BYTES)?;
            if let Ok(len) = record::len(&self.bytes)
                && len > self.bytes.len()
                && at + len as u64 <= end
            {
                self.fill(file, at, end, len)?;
            }
        }
        Ok(record::decode(self.rest(at).unwrap_or_default()))
    }

    /// Length field of the record at a position in the window.
    fn len(&self, at: u64) -> Option<usize> {
        record::len(self.rest(at)?).ok()
    }

    fn fill(&mut self, file: &impl StorageFile, at: u64, end: u64, len: usize) -> Result<()> {
        let len = usize::try_from(end.saturating_sub(at)).unwrap_or(usize::MAX).min(len);
        self.start = at;
        self.bytes.resize(len, 0);
        let n = file.read_full_at(&mut self.bytes, at).io("cannot read a segment")?;
        self.bytes.truncate(n);
        Ok(())
    }

    fn skip(&self, at: u64) -> usize {
        (at - self.start) as usize
    }

    fn rest(&self, at: u64) -> Option<&[u8]> {
        self.bytes.get(usize::try_from(at.checked_sub(self.start)?).ok()?..)
    }
}

/// Ids of the hubs that have a directory, sorted.
///
/// # Errors
/// Errors of the storage.
pub fn hub_directories(storage: &impl Storage) -> Result<Vec<HubId>> {
    let names = storage.list_directories("hubs").map_err(|e| match e.kind() {
        ErrorKind::NotFound => LogError::Refused("there is no directory hubs".to_owned()),
        _ => LogError::io("cannot list the hubs", e),
    })?;
    let mut hubs: Vec<HubId> = names.iter().filter_map(|name| name.parse().ok().map(HubId)).collect();
    hubs.sort_unstable_by_key(|hub| hub.0);
    Ok(hubs)
}
