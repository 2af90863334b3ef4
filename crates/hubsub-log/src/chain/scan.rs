//! Sequential reads of large parts of a chain: each piece is read once, with one piece read ahead, from a
//! file handle of its own, so that the page cache drops what no other reader uses.
//!
//! Invariant: records are passed on in order of offset, each once, and only compacted records are skipped.
//! Records that retention removed or that are lost cause an error with their range.

use super::Chain;
use super::range::{OUT_OF_ORDER, record_at};
use super::read::MOVES_MAX;
use crate::error::Context;
use crate::files::Part;
use crate::record::{self, NotARecord, Record};
use crate::segment::{self, Name};
use crate::storage::{Storage, StorageFile};
use crate::{LogError, Result};
use std::io::{self, ErrorKind};
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

/// Bytes per read, and per read ahead. A sync waits for all outstanding reads of the disk: with the system's
/// default read-ahead (16 MiB and more per reader), publishes took 30 ms beside two readers, and 0.3 ms
/// without.
const PIECE_BYTES: usize = 256 * 1024;

/// Bytes per read while other work waits for the disk: the most that a sync waits for.
const CROWDED_BYTES: usize = 64 * 1024;

/// After this many bytes of a sealed segment, the page cache may drop them.
const FORGET_BYTES: u64 = 8 << 20;

/// Lets a bulk reader yield the disk to urgent work.
pub trait Pace: Send + Sync {
    /// Whether urgent work waits for the disk: then reads are small, without read-ahead.
    fn is_crowded(&self) -> bool;

    /// Runs a read of the disk when it is its turn.
    fn in_turn(&self, read: &mut dyn FnMut());
}

pub struct Cursor<S: Storage> {
    next: u64,
    segment: Option<Place<S::File>>,
    /// Bytes that were read; `unread` is the range not passed on yet.
    buffer: Vec<u8>,
    unread: Range<usize>,
    pace: Option<Arc<dyn Pace>>,
}

struct Place<F> {
    name: Name,
    file: F,
    /// Position of the next read: after the bytes in the buffer.
    at: u64,
    advised: u64,
    /// Offset of its next record unless that was compacted away; none until a record was seen.
    follows: Option<u64>,
    /// Position from which the page cache may have the segment.
    kept_from: u64,
}

struct End {
    at: u64,
    /// The offset after those it covers.
    behind: u64,
    is_sealed: bool,
}

impl<S: Storage> Cursor<S> {
    /// A cursor before the record at `offset`.
    #[must_use]
    pub fn at(offset: u64) -> Cursor<S> {
        Cursor { next: offset, segment: None, buffer: Vec::new(), unread: 0..0, pace: None }
    }

    /// A cursor that yields the disk to urgent work.
    #[must_use]
    pub fn paced(offset: u64, pace: Arc<dyn Pace>) -> Cursor<S> {
        Cursor { pace: Some(pace), ..Cursor::at(offset) }
    }

    pub fn next(&self) -> u64 {
        self.next
    }

    pub fn bytes(&self) -> usize {
        self.buffer.capacity()
    }

    /// Frees the memory of a long record once the whole buffer was passed on.
    pub fn release(&mut self) {
        if self.buffer.len() > PIECE_BYTES && self.unread.is_empty() {
            (self.buffer, self.unread) = (Vec::new(), 0..0);
        }
    }

    fn begin_segment(&mut self, segment: Option<Place<S::File>>) {
        self.segment = segment;
        self.unread = 0..0;
    }
}

impl<S: Storage> Chain<S> {
    /// Passes the written records from a cursor on and below `until` to `take`, until it breaks off. Moves
    /// the cursor after the last record passed on.
    ///
    /// # Errors
    /// [`LogError::Gone`], damage, or an error of the storage. The cursor is at the failing record.
    pub fn read_through(
        &self,
        cursor: &mut Cursor<S>,
        until: u64,
        mut take: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        while cursor.next < until.min(self.next()) {
            if cursor.segment.is_none() {
                let place = self.place_of(cursor.next)?;
                cursor.begin_segment(Some(place));
            }
            if cursor.unread.is_empty() && !self.read_piece(cursor, 0)? {
                continue;
            }
            if self.give(cursor, until, &mut take)?.is_break() {
                break;
            }
        }
        Ok(())
    }

    /// An offset such that all records since a time, and few earlier ones, are at or after it.
    pub fn offset_before_time(&self, us: u64) -> u64 {
        let (name, earliest) = {
            let state = self.read_state();
            let open = (state.open.name, state.open.first_us);
            let mut all = state.sealed.iter().map(|s| (s.name, s.first_us)).chain([open]);
            // A compacted segment may have no records.
            let before = all.rfind(|&(_, first_us)| first_us > 0 && first_us < us);
            (before.map(|(name, _)| name), state.earliest)
        };
        let Some(name) = name else { return earliest };
        let samples = self.samples(name);
        let before = samples.partition_point(|sample| sample.timestamp_us < us).checked_sub(1);
        before.map_or(name.first, |at| samples[at].offset).max(earliest)
    }

    fn give(
        &self,
        cursor: &mut Cursor<S>,
        until: u64,
        take: &mut impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>> {
        while !cursor.unread.is_empty() {
            let place = cursor.segment.as_mut().expect("what was read is of one");
            let at = place.at - cursor.unread.len() as u64;
            match record::decode(&cursor.buffer[cursor.unread.clone()]) {
                Ok((record, len)) => {
                    if record.hub != self.hub {
                        return Err(self.damaged(place.name, at, "a record of another hub"));
                    }
                    if place.follows.is_some_and(|next| !place.name.takes(next, record.offset)) {
                        return Err(self.damaged(place.name, at, OUT_OF_ORDER));
                    }
                    if record.offset >= until {
                        // Compaction removed the records in between.
                        cursor.next = until;
                        return Ok(ControlFlow::Break(()));
                    }
                    place.follows = Some(record.offset + 1);
                    cursor.unread.start += len;
                    if record.offset < cursor.next {
                        continue;
                    }
                    if place.name.generation == 0 && record.offset != cursor.next {
                        return Err(self.damaged(place.name, at, OUT_OF_ORDER));
                    }
                    cursor.next = record.offset + 1;
                    if take(&record).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Err(NotARecord::Incomplete(len)) => {
                    let name = place.name;
                    if !self.read_piece(cursor, len)? {
                        return Err(self.damaged(name, at, "a record that goes on behind the end"));
                    }
                }
                Err(e) => {
                    return Err(self.damaged(place.name, at, e.to_string()));
                }
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Reads more bytes into the buffer, for a record of at least `wanted` bytes. Returns whether there were
    /// any; otherwise the segment ends here, and the cursor moves to the next one.
    fn read_piece(&self, cursor: &mut Cursor<S>, wanted: usize) -> Result<bool> {
        let place = cursor.segment.as_mut().expect("the caller has placed it");
        let Some(End { at: end, behind, is_sealed }) = self.end_of(place.name) else {
            // The segment was removed or replaced, so look up the next record again.
            cursor.begin_segment(None);
            return Ok(true);
        };
        if is_sealed && (place.at - place.kept_from >= FORGET_BYTES || place.at >= end) {
            place.file.forget(place.kept_from, place.at - place.kept_from);
            place.kept_from = place.at;
        }
        let left = cursor.unread.len();
        if place.at >= end && left == 0 {
            if place.name.generation > 0 {
                // Compaction removed the records after its last one.
                cursor.next = cursor.next.max(behind);
            } else if cursor.next < behind {
                let why = format!("it ends before offset {}, not {behind}", cursor.next);
                return Err(self.damaged(place.name, place.at, why));
            }
            if is_sealed {
                cursor.begin_segment(None);
            }
            return Ok(false);
        }
        if place.at >= end || wanted as u64 > left as u64 + (end - place.at) {
            return Ok(false);
        }
        cursor.buffer.copy_within(cursor.unread.clone(), 0);
        let size = wanted.max(PIECE_BYTES);
        if cursor.buffer.len() > size && left <= size {
            cursor.buffer.truncate(size);
            cursor.buffer.shrink_to_fit();
        }
        cursor.buffer.resize(size.max(left), 0);
        let n = (end - place.at).min((cursor.buffer.len() - left) as u64) as usize;
        let pace = cursor.pace.as_deref();
        let read = read_paced(&place.file, &mut cursor.buffer[left..left + n], place.at, pace);
        let (asked, read) = read.io("cannot read a segment")?;
        cursor.unread = 0..left + read;
        place.at += read as u64;
        if read < asked {
            return Err(self.damaged(place.name, place.at, "it was cut"));
        }
        let (from, to) = (place.advised.max(place.at), end.min(place.at + PIECE_BYTES as u64));
        if from < to && !pace.is_some_and(Pace::is_crowded) {
            place.file.advise(from, to - from);
            place.advised = to;
        }
        Ok(true)
    }

    /// The end of a segment; none if the chain no longer has it.
    fn end_of(&self, name: Name) -> Option<End> {
        let state = self.read_state();
        if name == state.open.name {
            return Some(End { at: state.open.end, behind: state.open.next, is_sealed: false });
        }
        let at = state.sealed.partition_point(|s| s.name.first < name.first);
        let sealed = state.sealed.get(at).filter(|s| s.name == name)?;
        Some(End { at: sealed.bytes, behind: self.end_before(state.behind(at)), is_sealed: true })
    }

    /// A position at or shortly before an offset.
    fn place_of(&self, offset: u64) -> Result<Place<S::File>> {
        let mut moves = 0;
        loop {
            let (changes, earliest) = (self.changes(), self.info().earliest);
            let behind = if offset < earliest { earliest } else { self.kept_from(offset) };
            if behind > offset {
                return Err(LogError::Gone { first: offset, end: behind });
            }
            match self.place_once(offset) {
                // The segment was removed or replaced meanwhile.
                Err(_) if self.changes() != changes && moves < MOVES_MAX => moves += 1,
                outcome => return outcome,
            }
        }
    }

    fn place_once(&self, offset: u64) -> Result<Place<S::File>> {
        let (name, ..) = self.segment_of(offset).expect("the caller knows that it is written");
        let path = segment::path(self.hub, name, Part::Segment);
        let file = self.files.storage().open(&path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => self.damaged(name, 0, "it is missing"),
            _ => LogError::io("cannot open a segment", e),
        })?;
        file.expect_pieces();
        let mut at = self.position_before(name, offset)?;
        if record_at(&file, at)?.is_none_or(|found| found > offset) {
            // The index is wrong, so the segment is read from its beginning.
            at = segment::HEAD_BYTES;
        }
        Ok(Place { name, file, at, advised: at, follows: None, kept_from: at })
    }
}

/// If the disk is busy, reads bytes in memory or a small piece; returns how many bytes were requested and
/// read.
fn read_paced<F: StorageFile>(
    file: &F,
    into: &mut [u8],
    at: u64,
    pace: Option<&dyn Pace>,
) -> io::Result<(usize, usize)> {
    let Some(pace) = pace.filter(|pace| pace.is_crowded()) else {
        return Ok((into.len(), file.read_full_at(into, at)?));
    };
    let cached = file.read_cached_at(into, at)?;
    if cached > 0 {
        return Ok((cached, cached));
    }
    let few = into.len().min(CROWDED_BYTES);
    let mut read = Ok(0);
    pace.in_turn(&mut || read = file.read_full_at(&mut into[..few], at));
    Ok((few, read?))
}
