//! Reads a chain by offsets, in the order in which records were written.

use super::Chain;
use super::read::{MOVES_MAX, READ_BYTES, read_at};
use crate::Result;
use crate::files::Part;
use crate::index::{Run, Sample};
use crate::record::{self, NotARecord, Record};
use crate::segment::{self, Name};
use crate::storage::{Storage, StorageFile};

pub(super) const OUT_OF_ORDER: &str = "offsets do not follow each other";

impl<S: Storage> Chain<S> {
    /// Passes the records from an offset on to `take`, in order, up to the last one written. Returns the
    /// offset after them.
    ///
    /// If the hub keeps the latest of each key, the last record passed for a key is its value; after a
    /// tombstone it has none. This holds if the whole chain is read from the beginning within the time that
    /// tombstones are kept, or with a hold.
    ///
    /// # Errors
    /// Damage, or an error of the storage.
    pub fn replay(&self, from: u64, mut take: impl FnMut(&Record<'_>)) -> Result<u64> {
        let mut from = from.max(self.info().earliest);
        let mut bytes = Vec::new();
        while from < self.next() {
            bytes.clear();
            from = self.read_offsets(from, READ_BYTES as usize, &mut bytes)?;
            record::all(&bytes).for_each(|(record, _)| take(&record));
        }
        Ok(from)
    }

    /// Appends the encoded records of one segment from an offset on (or from the first one that is not lost)
    /// to `out`, until `bytes_max` is reached; the last record may exceed it. Returns the offset from which
    /// to continue; there may be no record below it.
    ///
    /// # Errors
    /// Damage, or an error of the storage.
    pub fn read_offsets(&self, from: u64, bytes_max: usize, out: &mut Vec<u8>) -> Result<u64> {
        let from = self.kept_from(from);
        let start = out.len();
        let mut moves = 0;
        loop {
            let changes = self.changes();
            match self.read_offsets_once(from, bytes_max, out) {
                // The segment was removed or replaced meanwhile.
                Err(_) if self.changes() != changes && moves < MOVES_MAX => moves += 1,
                outcome => return outcome,
            }
            out.truncate(start);
        }
    }

    fn read_offsets_once(&self, from: u64, bytes_max: usize, out: &mut Vec<u8>) -> Result<u64> {
        let Some((name, end, behind)) = self.segment_of(from) else { return Ok(self.info().next) };
        let file = self.file(name, Part::Segment)?;
        let mut at = self.position_before(name, from)?;
        if record_at(&*file, at)?.is_none_or(|offset| offset > from) {
            // The index is wrong, so the segment is read from its beginning.
            at = segment::HEAD_BYTES;
        }
        let mut next = None;
        let start = out.len();
        while at < end && out.len() - start < bytes_max {
            let wanted = (end - at).min(READ_BYTES) as usize;
            let mut bytes = read_at(&*file, at, wanted)?;
            if let Err(NotARecord::Incomplete(len)) = record::decode(&bytes) {
                bytes = read_at(&*file, at, len)?;
            }
            let mut used = 0;
            while used < bytes.len() && out.len() - start < bytes_max {
                match record::decode(&bytes[used..]) {
                    Ok((record, len)) => {
                        if next.is_some_and(|next| !name.takes(next, record.offset)) {
                            return Err(self.damaged(name, at + used as u64, OUT_OF_ORDER));
                        }
                        next = Some(record.offset + 1);
                        if record.offset >= from {
                            out.extend_from_slice(&bytes[used..used + len]);
                        }
                        used += len;
                    }
                    Err(NotARecord::Incomplete(_)) if used > 0 => break,
                    Err(e) => return Err(self.damaged(name, at + used as u64, e.to_string())),
                }
            }
            at += used as u64;
        }
        if name.generation > 0 && at >= end {
            // Compaction removed the records after the last one.
            return Ok(behind);
        }
        Ok(next.unwrap_or(from))
    }

    /// An offset from which the chain has its last `bytes` bytes, and little more.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn offset_of_last(&self, bytes: u64) -> Result<u64> {
        let earliest = self.info().earliest;
        let Some((name, mark)) = self.place_of_last(bytes) else { return Ok(earliest) };
        let samples = self.samples(name);
        let before = samples.partition_point(|s| u64::from(s.position) <= mark).checked_sub(1);
        if let Some(Sample { offset, position, .. }) = before.map(|at| samples[at])
            && record_at(&*self.file(name, Part::Segment)?, u64::from(position))? == Some(offset)
        {
            return Ok(offset);
        }
        Ok(name.first.max(earliest))
    }

    /// The segment in which the chain's last `bytes` bytes begin, and their position in it.
    fn place_of_last(&self, bytes: u64) -> Option<(Name, u64)> {
        let state = self.read_state();
        let sealed = state.sealed.iter().rev().map(|s| (s.name, s.bytes));
        let mut left = bytes;
        std::iter::once((state.open.name, state.open.end)).chain(sealed).find_map(|(name, end)| {
            let of_records = end.saturating_sub(segment::HEAD_BYTES);
            let is_here = left <= of_records;
            let place = is_here.then(|| (name, end - left));
            left = left.saturating_sub(of_records);
            place
        })
    }

    pub(super) fn samples(&self, name: Name) -> Vec<Sample> {
        let of_run = |part: Part, run: Option<Run>| {
            let file = self.files.get(self.hub, name, part).ok()?;
            run.or_else(|| Run::open(&*file, 0).ok())?.samples(&*file).ok()
        };
        let (runs, in_memory) = {
            let state = self.read_state();
            if name != state.open.name {
                drop(state);
                return of_run(Part::Index, None).unwrap_or_default();
            }
            (state.open.runs.clone(), state.open.run.samples().to_vec())
        };
        let of_runs = runs.into_iter().filter_map(|run| of_run(Part::Runs, Some(run))).flatten();
        of_runs.chain(in_memory).collect()
    }

    /// The segment that has an offset, its end, and the offset after those it covers.
    pub(super) fn segment_of(&self, offset: u64) -> Option<(Name, u64, u64)> {
        let state = self.read_state();
        let open = &state.open;
        if offset >= open.next {
            return None;
        }
        if offset >= open.name.first {
            return Some((open.name, open.end, open.next));
        }
        let at = state.sealed.partition_point(|s| s.name.first <= offset).saturating_sub(1);
        state.sealed.get(at).map(|s| (s.name, s.bytes, state.behind(at)))
    }

    /// Position of a record in a segment at or before an offset.
    pub(super) fn position_before(&self, name: Name, offset: u64) -> Result<u64> {
        let of = |samples: &[Sample]| {
            let at = samples.partition_point(|s| s.offset <= offset);
            at.checked_sub(1).map_or(segment::HEAD_BYTES, |at| u64::from(samples[at].position))
        };
        let state = self.read_state();
        let (run, file) = if name == state.open.name {
            let Some(&run) = state.open.runs.iter().find(|run| offset <= run.last) else {
                return Ok(of(state.open.run.samples()));
            };
            drop(state);
            (Ok(run), self.file(name, Part::Runs)?)
        } else {
            drop(state);
            // Without an index, the segment is read from its beginning.
            let Ok(file) = self.files.get(self.hub, name, Part::Index) else {
                return Ok(segment::HEAD_BYTES);
            };
            (Run::open(&*file, 0), file)
        };
        let samples = run.and_then(|run| run.samples(&*file));
        Ok(samples.map_or(segment::HEAD_BYTES, |samples| of(&samples)))
    }
}

/// Offset of the record at a position, if there is one.
pub(super) fn record_at(file: &impl StorageFile, at: u64) -> Result<Option<u64>> {
    let bytes = read_at(file, at, record::HEAD_BYTES)?;
    let is_head = bytes.len() == record::HEAD_BYTES && record::len(&bytes).is_ok();
    Ok(is_head.then(|| record::u64_at(&bytes, 32)))
}
