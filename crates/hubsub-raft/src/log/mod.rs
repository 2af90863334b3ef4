//! Raft's log on disk: entries in segments; the vote and the start of the log in a small file beside them.
//!
//! Invariants
//! - Data is on disk once [`Log::append`], [`Log::save_vote`] and the others return.
//! - Entries are contiguous, from the one after `purged` on.
//! - A read returns the written bytes, or an error with file and position. Only the end of the last segment
//!   may be torn by a crash, and is cut off: its entries were never acknowledged.
//! - The directory is locked, so only one process uses it.

pub(crate) mod file;
mod segment;
mod snapshots;
mod storage;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fs::{self, File, TryLockError};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use file::Kind;
use segment::{Found, Place, Segment};
pub(crate) use snapshots::Snapshots;
pub(crate) use storage::LogStorage;

use crate::limits::{ENTRY_BYTES_MAX, SEGMENT_BYTES};
use crate::types::{Entry, LogId, RawLogId, Vote, decode_entry, encode_entry, log_id, put, raw_log_id};

const STATE: Kind = Kind { magic: b"HUBRAFTV", version: 1 };

#[derive(Debug, thiserror::Error)]
pub enum LogError {
    #[error("the coordinator's files are damaged: {path}, byte {offset}: {what}\nhint: let this node join anew with an empty directory; the others have its data", path = path.display())]
    Damaged { path: PathBuf, offset: u64, what: String },
    #[error("written by a newer version: {path} has format {found}, this version knows {known}", path = path.display())]
    Newer { path: PathBuf, found: u16, known: u16 },
    #[error("in use by another process: {path}", path = path.display())]
    Locked { path: PathBuf },
    #[error("{path}: {source}", path = path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error("an entry that does not follow: {found} after {last}")]
    Hole { last: u64, found: u64 },
    #[error("entry {index} too long: {bytes} bytes\nhint: at most {ENTRY_BYTES_MAX}")]
    TooLong { index: u64, bytes: usize },
}

impl LogError {
    pub(crate) fn at(path: &Path) -> impl Fn(io::Error) -> Self {
        move |source| Self::Io { path: path.into(), source }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: impl ToString) -> Self {
        Self::Damaged { path: path.into(), offset, what: what.to_string() }
    }
}

impl From<LogError> for io::Error {
    fn from(error: LogError) -> Self {
        Self::other(error)
    }
}

pub(crate) struct Log {
    directory: PathBuf,
    segments: VecDeque<Segment>,
    /// One for each entry that was not purged.
    slots: VecDeque<Slot>,
    vote: Option<Vote>,
    purged: Option<LogId>,
    _lock: File,
}

struct Slot {
    id: LogId,
    place: Place,
}

impl Log {
    /// Opens the log in a directory; creates it if necessary.
    pub fn open(directory: &Path) -> Result<Self, LogError> {
        fs::create_dir_all(directory).map_err(LogError::at(directory))?;
        let lock = lock(&directory.join("lock"))?;
        let (vote, purged) = load_state(&directory.join("state"))?;
        let mut log = Self {
            directory: directory.into(),
            segments: VecDeque::new(),
            slots: VecDeque::new(),
            vote,
            purged,
            _lock: lock,
        };
        let paths = segment_paths(directory)?;
        for (n, path) in paths.iter().enumerate() {
            let last = n + 1 == paths.len();
            match Segment::open(path, last)? {
                Some((segment, found)) => log.take(segment, found)?,
                None => fs::remove_file(path).map_err(LogError::at(path))?,
            }
        }
        log.forget_purged()?;
        Ok(log)
    }

    pub fn vote(&self) -> Option<Vote> {
        self.vote
    }

    pub fn purged(&self) -> Option<LogId> {
        self.purged
    }

    /// The last entry, even if it was purged.
    pub fn last(&self) -> Option<LogId> {
        self.slots.back().map(|slot| slot.id).or(self.purged)
    }

    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.end).sum()
    }

    pub fn save_vote(&mut self, vote: Vote) -> Result<(), LogError> {
        self.save_state(Some(vote), self.purged)?;
        self.vote = Some(vote);
        Ok(())
    }

    /// Appends entries, with one sync for all that go into the same segment.
    pub fn append(&mut self, entries: impl IntoIterator<Item = Entry>) -> Result<(), LogError> {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let mut last = self.last().map(|id| id.index());
        for entry in entries {
            let index = entry.log_id.index();
            if let Some(last) = last
                && index != last + 1
            {
                return Err(LogError::Hole { last, found: index });
            }
            last = Some(index);
            let mut payload = Vec::new();
            encode_entry(&entry, &mut payload);
            if payload.len() > ENTRY_BYTES_MAX {
                return Err(LogError::TooLong { index, bytes: payload.len() });
            }
            bytes += payload.len() as u64;
            batch.push((entry.log_id, payload));
            if bytes >= SEGMENT_BYTES {
                self.write(std::mem::take(&mut batch))?;
                bytes = 0;
            }
        }
        self.write(batch)
    }

    /// Removes all entries after `last`.
    pub fn truncate_after(&mut self, last: Option<u64>) -> Result<(), LogError> {
        let Some(front) = self.slots.front().map(|slot| slot.id.index()) else { return Ok(()) };
        let keep = last.map_or(0, |last| (last + 1).saturating_sub(front)) as usize;
        let Some(cut) = self.slots.get(keep).map(|slot| (slot.id.index(), slot.place)) else { return Ok(()) };
        let after = self.segments.partition_point(|segment| segment.first <= cut.0);
        // Backwards, so that a crash leaves no gap.
        remove(&self.directory, self.segments.drain(after..).rev())?;
        self.segments.back_mut().expect("an entry lies in a segment").cut(cut.1)?;
        self.slots.truncate(keep);
        Ok(())
    }

    /// Removes entries up to and including `upto`, which may be after the last one.
    pub fn purge(&mut self, upto: LogId) -> Result<(), LogError> {
        if self.purged >= Some(upto) {
            return Ok(());
        }
        self.save_state(self.vote, Some(upto))?;
        self.purged = Some(upto);
        self.forget_purged()
    }

    /// Entries in a range of indexes, up to `bytes_max` bytes, but at least one if there is one.
    pub fn read(&self, range: Range<u64>, bytes_max: usize) -> Result<Vec<Entry>, LogError> {
        let Some(front) = self.slots.front().map(|slot| slot.id.index()) else { return Ok(Vec::new()) };
        let position = |index: u64| (index.saturating_sub(front) as usize).min(self.slots.len());
        let (from, to) = (position(range.start), position(range.end));
        let (mut entries, mut bytes) = (Vec::new(), 0);
        for slot in self.slots.range(from..to.max(from)) {
            bytes += slot.place.length as usize;
            if bytes > bytes_max && !entries.is_empty() {
                break;
            }
            let segment = self.segment(slot.id.index());
            let entry = decode_entry(&segment.read(slot.place)?)
                .map_err(|what| LogError::damaged(&segment.path, slot.place.offset, what))?;
            entries.push(entry);
        }
        Ok(entries)
    }

    fn write(&mut self, batch: Vec<(LogId, Vec<u8>)>) -> Result<(), LogError> {
        let Some(first) = batch.first().map(|(id, _)| id.index()) else { return Ok(()) };
        if self.segments.back().is_none_or(|segment| segment.end >= SEGMENT_BYTES) {
            self.segments.push_back(Segment::create(&self.directory, first)?);
        }
        let segment = self.segments.back_mut().expect("there is one now");
        let places = segment.append(batch.iter().map(|(_, payload)| payload.as_slice()))?;
        let slots = batch.iter().zip(places).map(|((id, _), place)| Slot { id: *id, place });
        self.slots.extend(slots);
        Ok(())
    }

    fn take(&mut self, segment: Segment, (places, bytes): Found) -> Result<(), LogError> {
        let first = segment.first;
        if let Some(last) = self.slots.back().map(|slot| slot.id.index())
            && last + 1 != first
        {
            let what = format!("entries {} to {} are missing", last + 1, first - 1);
            return Err(LogError::damaged(&segment.path, 0, what));
        }
        for (next, place) in (first..).zip(places) {
            let wrong = |what: String| LogError::damaged(&segment.path, place.offset, what);
            let id = decode_entry(&bytes[place.range()]).map_err(|error| wrong(error.to_string()))?.log_id;
            if id.index() != next {
                return Err(wrong(format!("entry {} where {next} should be", id.index())));
            }
            self.slots.push_back(Slot { id, place });
        }
        self.segments.push_back(segment);
        Ok(())
    }

    /// Drops purged entries: slots one by one, segments as a whole.
    fn forget_purged(&mut self) -> Result<(), LogError> {
        let Some(purged) = self.purged else { return Ok(()) };
        while self.slots.front().is_some_and(|slot| slot.id.index() <= purged.index()) {
            self.slots.pop_front();
        }
        let whole = match self.slots.front().map(|slot| slot.id.index()) {
            Some(front) if front != purged.index() + 1 => {
                let what = format!("entries from {} on are missing", purged.index() + 1);
                return Err(LogError::damaged(&self.segments[0].path, 0, what));
            }
            Some(front) => self.segments.partition_point(|segment| segment.first <= front) - 1,
            None => self.segments.len(),
        };
        remove(&self.directory, self.segments.drain(..whole))
    }

    fn segment(&self, index: u64) -> &Segment {
        let after = self.segments.partition_point(|segment| segment.first <= index);
        &self.segments[after - 1]
    }

    fn save_state(&self, vote: Option<Vote>, purged: Option<LogId>) -> Result<(), LogError> {
        let vote = vote.map(|vote| (vote.leader_id.term, vote.leader_id.node_id, vote.committed));
        let mut body = Vec::new();
        put(&(vote, purged.as_ref().map(raw_log_id)), &mut body);
        file::replace(&self.directory.join("state"), STATE, &body)
    }
}

fn load_state(path: &Path) -> Result<(Option<Vote>, Option<LogId>), LogError> {
    type RawState = (Option<(u64, u64, bool)>, Option<RawLogId>);
    let Some(body) = file::load(path, STATE)? else { return Ok((None, None)) };
    let (vote, purged): RawState =
        postcard::from_bytes(&body).map_err(|error| LogError::damaged(path, 0, error))?;
    let vote = vote.map(|(term, node, committed)| match committed {
        true => Vote::new_committed(term, node),
        false => Vote::new(term, node),
    });
    Ok((vote, purged.map(log_id)))
}

fn lock(path: &Path) -> Result<File, LogError> {
    let file =
        File::options().create(true).truncate(false).write(true).open(path).map_err(LogError::at(path))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(LogError::Locked { path: path.into() }),
        Err(TryLockError::Error(source)) => Err(LogError::Io { path: path.into(), source }),
    }
}

/// Removes files one by one, each for good before the next.
fn remove(directory: &Path, segments: impl Iterator<Item = Segment>) -> Result<(), LogError> {
    for segment in segments {
        fs::remove_file(&segment.path).map_err(LogError::at(&segment.path))?;
        file::sync_directory(directory)?;
    }
    Ok(())
}

/// Segments in order of their first index, which is their name.
fn segment_paths(directory: &Path) -> Result<Vec<PathBuf>, LogError> {
    let list = || fs::read_dir(directory)?.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>();
    let mut paths = list().map_err(LogError::at(directory))?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "log"));
    paths.sort_unstable();
    Ok(paths)
}
