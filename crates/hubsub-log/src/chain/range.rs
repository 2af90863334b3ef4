//! Reading a chain by offsets: what was written, in the order in which it was.

use super::Chain;
use super::read::{READ_BYTES, read_at};
use crate::LogError;
use crate::files::Part;
use crate::index::{Run, Sample};
use crate::record::{self, NotARecord};
use crate::segment;
use crate::storage::{Storage, StorageFile};

impl<S: Storage> Chain<S> {
    /// Appends the records from an offset on, or from the first one that is not lost, to `out`, as bytes of whole records of one
    /// segment, until it has `bytes_max` of them or a record more. The offset behind them.
    ///
    /// # Errors
    /// Damage, or the storage's.
    pub fn read_offsets(&self, from: u64, bytes_max: usize, out: &mut Vec<u8>) -> Result<u64, LogError> {
        let from = self.kept_from(from);
        let Some((first, end)) = self.segment_of(from) else { return Ok(self.info().next) };
        let file = self.file(first, Part::Segment)?;
        let mut at = self.position_before(first, from)?;
        if record_at(&*file, at)?.is_none_or(|offset| offset > from) {
            // The index leads astray; without it the segment is read from its beginning.
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
                        if next.is_some_and(|next| next != record.offset) {
                            return Err(self.damaged(
                                first,
                                at + used as u64,
                                "offsets do not follow each other",
                            ));
                        }
                        next = Some(record.offset + 1);
                        if record.offset >= from {
                            out.extend_from_slice(&bytes[used..used + len]);
                        }
                        used += len;
                    }
                    Err(NotARecord::Incomplete(_)) if used > 0 => break,
                    Err(e) => return Err(self.damaged(first, at + used as u64, &e.to_string())),
                }
            }
            at += used as u64;
        }
        Ok(next.unwrap_or(from))
    }

    /// An offset from which on there are the chain's last `bytes` bytes, and little more.
    ///
    /// # Errors
    /// The storage's.
    pub fn offset_of_last(&self, bytes: u64) -> Result<u64, LogError> {
        let earliest = self.info().earliest;
        let Some((first, mark)) = self.place_of_last(bytes) else { return Ok(earliest) };
        let samples = self.samples(first);
        let before = samples.partition_point(|s| u64::from(s.position) <= mark).checked_sub(1);
        if let Some(Sample { offset, position, .. }) = before.map(|at| samples[at])
            && record_at(&*self.file(first, Part::Segment)?, u64::from(position))? == Some(offset)
        {
            return Ok(offset);
        }
        Ok(first.max(earliest))
    }

    /// First offset of the segment in which the chain's last `bytes` bytes begin, and where
    /// in it they do.
    fn place_of_last(&self, bytes: u64) -> Option<(u64, u64)> {
        let state = self.read_state();
        let sealed = state.sealed.iter().rev().map(|s| (s.first, s.bytes));
        let mut left = bytes;
        std::iter::once((state.open.first, state.open.end)).chain(sealed).find_map(|(first, end)| {
            let of_records = end.saturating_sub(segment::HEAD_BYTES);
            let is_here = left <= of_records;
            let place = is_here.then(|| (first, end - left));
            left = left.saturating_sub(of_records);
            place
        })
    }

    /// Places in a segment, as far as its index can be read.
    fn samples(&self, first: u64) -> Vec<Sample> {
        let of_run = |part: Part, run: Option<Run>| {
            let file = self.files.get(self.hub, first, part).ok()?;
            run.or_else(|| Run::open(&*file, 0).ok())?.samples(&*file).ok()
        };
        let (runs, in_memory) = {
            let state = self.read_state();
            if first != state.open.first {
                drop(state);
                return of_run(Part::Index, None).unwrap_or_default();
            }
            (state.open.runs.clone(), state.open.run.samples().to_vec())
        };
        let of_runs = runs.into_iter().filter_map(|run| of_run(Part::Runs, Some(run))).flatten();
        of_runs.chain(in_memory).collect()
    }

    /// First offset and end of the segment that has an offset.
    fn segment_of(&self, offset: u64) -> Option<(u64, u64)> {
        let state = self.read_state();
        if offset >= state.open.next {
            return None;
        }
        if offset >= state.open.first {
            return Some((state.open.first, state.open.end));
        }
        let at = state.sealed.partition_point(|s| s.first <= offset).saturating_sub(1);
        state.sealed.get(at).map(|s| (s.first, s.bytes))
    }

    /// A place in a segment at or before an offset, where a record begins.
    pub(super) fn position_before(&self, first: u64, offset: u64) -> Result<u64, LogError> {
        let of = |samples: &[Sample]| {
            let at = samples.partition_point(|s| s.offset <= offset);
            at.checked_sub(1).map_or(segment::HEAD_BYTES, |at| u64::from(samples[at].position))
        };
        let run = {
            let state = self.read_state();
            if first == state.open.first {
                match state.open.runs.iter().find(|run| offset <= run.last) {
                    Some(&run) => Some((run, Part::Runs)),
                    None => return Ok(of(state.open.run.samples())),
                }
            } else {
                None
            }
        };
        let (run, part) = match run {
            Some(run) => run,
            None => match self.files.get(self.hub, first, Part::Index).and_then(|f| Run::open(&*f, 0)) {
                Ok(run) => (run, Part::Index),
                // Without an index it is read from its beginning.
                Err(_) => return Ok(segment::HEAD_BYTES),
            },
        };
        let file = self.file(first, part)?;
        Ok(run.samples(&*file).map_or(segment::HEAD_BYTES, |samples| of(&samples)))
    }
}

/// Offset of the record at a place, if one is there.
fn record_at(file: &impl StorageFile, at: u64) -> Result<Option<u64>, LogError> {
    let bytes = read_at(file, at, record::HEAD_BYTES)?;
    let is_head = bytes.len() == record::HEAD_BYTES && record::len(&bytes).is_ok();
    Ok(is_head.then(|| record::u64_at(&bytes, 32)))
}
