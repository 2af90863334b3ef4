//! Reads a room's history.
//!
//! Records are found through the index, from the last one backwards, and checked as they are read: the
//! record's own checksum, its room, and contiguous seqs. If the index points to a wrong record, it is rebuilt
//! from its segment and the read starts again; if that fails, the segment is damaged.
//!
//! If only the latest of each key is kept, seqs have gaps, and `prev` may point to a removed record: then the
//! room's previous record is in an older run. The checksum of each index row ensures that no record is
//! hidden.

use super::Chain;
use super::walk::{Ahead, Step, Stop};
use crate::Result;
use crate::error::Context;
use crate::files::Part;
use crate::manifest::Keep;
use crate::record::{self, Record};
use crate::rooms::{Last, RoomHash, RoomTable};
use crate::segment::Name;
use crate::storage::{Storage, StorageFile};
use std::io::ErrorKind;
use std::ops::ControlFlow;

pub(super) const READ_BYTES: u64 = 64 * 1024;

/// Bytes read from the start of a record, which suffice for most records.
const RECORD_GUESS: u64 = 2 * 1024;

/// Records that are closer than this are read together.
const NEAR_BYTES: u32 = 8 * 1024;

/// Records located per batch before they are read.
const BATCH: u32 = 64;

/// Limit of retries because segments were sealed, removed or replaced during a read.
pub(super) const MOVES_MAX: u32 = 100;

/// Position at which a backward read stopped, so that another can continue.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    /// The last record that was passed on.
    last: Last,
    segment: Name,
    place: u32,
}

struct Piece {
    step: Step,
    skip: u32,
    count: u32,
}

impl<S: Storage> Chain<S> {
    /// Passes a room's records to `take`, newest first, until it breaks off or none is left: all of them, or
    /// those before a mark; updates the mark. `wanted` is the number of records that the caller will take, so
    /// that not many more are located.
    ///
    /// # Errors
    /// Damage, or an error of the storage.
    pub fn read_back_from(
        &self,
        room: &[u8],
        mark: &mut Option<Mark>,
        wanted: u64,
        mut take: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<()> {
        self.mending(|| self.read_back_once(room, mark, wanted, &mut take))
    }

    /// Passes a room's records of one epoch to `take`, from a seq on, until it breaks off or none is left.
    /// `wanted`: as for `read_back_from`. Returns the seq of the first: the requested one, or the oldest that
    /// remains; none if the room has no record from there on in that epoch.
    ///
    /// # Errors
    /// Damage, or an error of the storage.
    pub fn read_on(
        &self,
        room: &[u8],
        epoch: u64,
        from: u64,
        wanted: u64,
        mut take: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<Option<u64>> {
        let (mut next, mut first) = (from, None);
        self.mending(|| {
            let mut begun = false;
            self.read_on_once(room, (epoch, next), wanted, |record| {
                if !std::mem::replace(&mut begun, true) {
                    if first.is_some() && self.keep == Keep::Log && record.seq != next {
                        // Retention removed the records in between since; another read will report it.
                        return ControlFlow::Break(());
                    }
                    first.get_or_insert(record.seq);
                }
                next = record.seq + 1;
                take(record)
            })
        })?;
        Ok(first)
    }

    /// Repeats a read after its index was rebuilt, at most once per segment, or after segments were sealed,
    /// removed or replaced meanwhile.
    fn mending(&self, mut read: impl FnMut() -> Result<(), Stop>) -> Result<()> {
        let mut mended = Vec::new();
        let mut moves = 0;
        loop {
            let changes = self.changes();
            let Err(stop) = read() else { return Ok(()) };
            let has_changed = || self.changes() != changes;
            if has_changed() && moves < MOVES_MAX {
                moves += 1;
                continue;
            }
            let (segment, at, why) = match stop {
                Stop::Astray(segment, at, why) => (segment, at, why),
                Stop::Failed(e) => return Err(e),
            };
            if mended.contains(&segment) {
                return Err(self.damaged(segment, at, why));
            }
            mended.push(segment);
            self.mend(segment).or_else(|e| if has_changed() { Ok(()) } else { Err(e) })?;
        }
    }

    fn read_back_once(
        &self,
        room: &[u8],
        mark: &mut Option<Mark>,
        wanted: u64,
        mut take: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), Stop> {
        let hash = self.hash(room);
        let Some(last) = self.rooms.get(hash) else { return Ok(()) };
        let Some(mut step) = self.step(hash, mark.map_or(last.offset, |mark| mark.last.offset))? else {
            return Ok(());
        };
        let mut left = self.count_before(&step, mark.as_ref())?;
        let mut ahead = Ahead::default();
        let mut at_once = batch(wanted);
        loop {
            let (mut pieces, mut got, mut walked) = (Vec::new(), 0, Ok(true));
            while got < at_once && matches!(walked, Ok(true)) {
                if left == 0 {
                    walked = self.step(hash, step.head.prev).map(|older| match older {
                        Some(older) if older.head.count > 0 => {
                            left = older.head.count;
                            step = older;
                            true
                        }
                        _ => false,
                    });
                    continue;
                }
                let count = left.min(at_once - got);
                left -= count;
                got += count;
                pieces.push(Piece { step: step.clone(), skip: left, count });
                if got < at_once {
                    let (got, wanted) = (u64::from(got), u64::from(at_once - got));
                    self.look_ahead(hash, step.segment, (got, wanted), &mut ahead);
                }
            }
            for (step, places) in self.located(pieces)? {
                let mut records = Vec::new();
                let flow = self.read_places(step.segment, &places, |_, bytes, place| {
                    records.push((bytes.to_vec(), place));
                    ControlFlow::Continue(())
                })?;
                if flow.is_break() {
                    return Ok(());
                }
                for (bytes, place) in records.iter().rev() {
                    let (record, _) = record::parse(bytes).expect("it was decoded before");
                    if mark.is_some_and(|mark| record.room == room && record.offset >= mark.last.offset) {
                        continue;
                    }
                    if record.room != room || !mark.is_none_or(|mark| self.follows_back(&mark.last, &record))
                    {
                        return Err(astray(&step, &record, *place));
                    }
                    let Record { epoch, seq, offset, .. } = record;
                    let last = Last { epoch, seq, offset };
                    *mark = Some(Mark { last, segment: step.segment, place: *place });
                    if take(&record).is_break() {
                        return Ok(());
                    }
                }
            }
            if walked? {
                at_once = BATCH;
                continue;
            }
            // If records were retired or lost, the earlier ones may be gone, and the room table does not know
            // of them.
            let may_begin_here = |mark: Mark| {
                mark.last.seq == 1 || self.unbroken_from(mark.last.offset).max(self.info().earliest) > 1
            };
            if self.keep == Keep::Log && step.head.prev == 0 && !mark.is_none_or(may_begin_here) {
                return Err(Stop::Astray(step.segment, 0, "a room that begins in its middle".to_owned()));
            }
            return Ok(());
        }
    }

    /// Number of a run's records before a mark; may be too high.
    fn count_before(&self, step: &Step, mark: Option<&Mark>) -> Result<u32, Stop> {
        match mark {
            Some(mark) if mark.segment == step.segment => {
                let places = self.places(step, 0, step.head.count)?;
                Ok(places.partition_point(|&place| place < mark.place) as u32)
            }
            _ => Ok(step.head.count),
        }
    }

    /// Whether a record can be the predecessor of `newer`.
    fn follows_back(&self, newer: &Last, record: &Record<'_>) -> bool {
        let is_same = newer.epoch == record.epoch;
        let is_next = match self.keep {
            Keep::Log if is_same => record.seq + 1 == newer.seq,
            Keep::Log => newer.seq == 1,
            Keep::Latest => !is_same || record.seq < newer.seq,
        };
        is_next || self.unbroken_from(newer.offset) > record.offset
    }

    fn read_on_once(
        &self,
        room: &[u8],
        (epoch, from): (u64, u64),
        wanted: u64,
        mut take: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), Stop> {
        let hash = self.hash(room);
        let Some(last) = self.rooms.get(hash).filter(|last| last.epoch == epoch && from <= last.seq) else {
            return Ok(());
        };
        let mut steps = self.first_steps(hash, (epoch, from), last.offset)?;
        let Some(mut step) = steps.pop_back() else { return Ok(()) };
        // Number of the run's records from `from` on, if all are of this epoch.
        let of_run = (step.head.last.seq + 1).saturating_sub(from);
        let mut skip = step.head.count.saturating_sub(u32::try_from(of_run).unwrap_or(u32::MAX));
        let mut newest: Option<u64> = None;
        let mut at_once = batch(wanted);
        loop {
            let (mut pieces, mut got, mut walked) = (Vec::new(), 0, Ok(true));
            while got < at_once && matches!(walked, Ok(true)) {
                if skip >= step.head.count {
                    let next = steps.pop_back().map_or_else(
                        || self.next_step(hash, (epoch, last.offset), &step),
                        |step| Ok(Some(step)),
                    );
                    walked = next.map(|next| {
                        let is_there = next.is_some();
                        if let Some(next) = next {
                            (step, skip) = (next, 0);
                        }
                        is_there
                    });
                    continue;
                }
                let count = (step.head.count - skip).min(at_once - got);
                pieces.push(Piece { step: step.clone(), skip, count });
                skip += count;
                got += count;
            }
            for (step, places) in self.located(pieces)? {
                let mut wrong = None;
                let flow = self.read_places(step.segment, &places, |record, _, place| {
                    if record.room == room
                        && newest.is_none()
                        && (record.epoch != epoch || (self.keep == Keep::Latest && record.seq < from))
                    {
                        // A record of the previous epoch in the same run, or one before `from` where seqs
                        // have gaps.
                        return ControlFlow::Continue(());
                    }
                    let follows = |seq| match self.keep {
                        Keep::Log => seq + 1 == record.seq,
                        Keep::Latest => seq < record.seq,
                    };
                    if record.room != room || record.epoch != epoch || !newest.is_none_or(follows) {
                        wrong = Some(astray(&step, record, place));
                        return ControlFlow::Break(());
                    }
                    newest = Some(record.seq);
                    take(record)
                })?;
                if let Some(wrong) = wrong {
                    return Err(wrong);
                }
                if flow.is_break() {
                    return Ok(());
                }
            }
            if !walked? {
                return Ok(());
            }
            at_once = BATCH;
        }
    }

    /// The run after the current one; none after the one with the last record.
    fn next_step(
        &self,
        hash: RoomHash,
        (epoch, last): (u64, u64),
        step: &Step,
    ) -> Result<Option<Step>, Stop> {
        if step.head.last.offset >= last {
            return Ok(None);
        }
        match self.step_behind(hash, step)? {
            Some(next) if next.head.prev == step.head.last.offset => Ok(Some(next)),
            // Compaction removed the records between them.
            Some(next) if self.keep == Keep::Latest && next.head.last.epoch == epoch => Ok(Some(next)),
            None if self.keep == Keep::Latest => Ok(None),
            // The room was deleted meanwhile, or an index hides a run.
            _ if self.rooms.get(hash).is_none_or(|now| now.epoch != epoch) => Ok(None),
            _ => Err(Stop::Astray(step.segment, 0, "a run is missing".to_owned())),
        }
    }

    /// Positions of some records. Requests all of them from the disk at once.
    fn located(&self, pieces: Vec<Piece>) -> Result<Vec<(Step, Vec<u32>)>, Stop> {
        let is_alone = pieces.len() < 2;
        for Piece { step, skip, count } in pieces.iter().filter(|_| !is_alone) {
            if let Some((run, part)) = step.run {
                run.advise_places(&*self.index_file(step.segment, part)?, &step.head, *skip, *count);
            }
        }
        let mut located = Vec::with_capacity(pieces.len());
        for Piece { step, skip, count } in pieces {
            let places = self.places(&step, skip, count)?;
            let groups = groups(&places);
            if let Ok(file) = self.files.get(self.hub, step.segment, Part::Segment)
                && (!is_alone || groups.len() > 1)
            {
                groups.iter().for_each(|&(at, len)| file.advise(at, len));
            }
            located.push((step, places));
        }
        Ok(located)
    }

    /// Reads records of one segment, in order of position, and passes each with its bytes and position to
    /// `take`. Breaks off as `take` does.
    fn read_places(
        &self,
        segment: Name,
        places: &[u32],
        mut take: impl FnMut(&Record<'_>, &[u8], u32) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Stop> {
        let file = match self.files.get(self.hub, segment, Part::Segment) {
            Err(e) if e.kind() == ErrorKind::NotFound && segment.first < self.info().earliest => {
                return Err(Stop::Astray(segment, 0, "it was retired".to_owned()));
            }
            file => file.io("cannot open a segment")?,
        };
        let (mut bytes, mut start) = (Vec::new(), 0u64);
        for (i, &place) in places.iter().enumerate() {
            let place = u64::from(place);
            let mut found = place.checked_sub(start).and_then(|skip| bytes.get(skip as usize..));
            if found
                .is_none_or(|found| record::len(found).is_ok_and(|len| len > found.len()) || found.len() < 4)
            {
                bytes = read_at(&*file, place, span(&places[i..]))?;
                if let Ok(len) = record::len(&bytes)
                    && len > bytes.len()
                {
                    bytes = read_at(&*file, place, len)?;
                }
                start = place;
                found = Some(&bytes);
            }
            let found = found.unwrap_or_default();
            match record::decode(found) {
                Ok((record, len)) => {
                    if take(&record, &found[..len], places[i]).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Err(e) => return Err(Stop::Astray(segment, place, e.to_string())),
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Rebuilds the index of a segment. The index of an open segment is in memory and in a file that only
    /// this process wrote, so an error there is damage.
    fn mend(&self, segment: Name) -> Result<()> {
        let _alone = self.mending.lock().expect("nothing panics under this lock");
        let (at, sealed, open) = {
            let state = self.read_state();
            let at = state.sealed.partition_point(|s| s.name.first < segment.first);
            (at, state.sealed.clone(), state.open.name.first)
        };
        let Some(entry) = sealed.get(at).filter(|s| s.name == segment) else { return Ok(()) };
        let before = RoomTable::default();
        for (i, older) in sealed[..at].iter().enumerate() {
            self.learn(&older.entry(), self.end_before(sealed[i + 1].name.first), &before)?;
        }
        let next = self.end_before(sealed.get(at + 1).map_or(open, |s| s.name.first));
        let index = self.rebuild_index(&entry.entry(), next, &before)?;
        let mut state = self.write_state();
        // Readers that used the previous index retry.
        state.changes += 1;
        state.sealed.iter_mut().filter(|s| s.name == segment).for_each(|s| s.index = index);
        Ok(())
    }
}

fn astray(step: &Step, record: &Record<'_>, place: u32) -> Stop {
    Stop::Astray(
        step.segment,
        u64::from(place),
        format!("offset {} is of another room or seq", record.offset),
    )
}

fn batch(wanted: u64) -> u32 {
    wanted.clamp(1, u64::from(BATCH)) as u32
}

/// Bytes to read for the first of some positions and those near it.
fn span(places: &[u32]) -> usize {
    let mut end = places[0];
    for &place in &places[1..] {
        if place - end > NEAR_BYTES || u64::from(place - places[0]) > READ_BYTES {
            break;
        }
        end = place;
    }
    (u64::from(end - places[0]) + RECORD_GUESS) as usize
}

/// Start and length of the reads for some positions.
fn groups(places: &[u32]) -> Vec<(u64, u64)> {
    let (mut groups, mut left) = (Vec::new(), places);
    while let Some(&first) = left.first() {
        let len = span(left) as u64;
        groups.push((u64::from(first), len));
        let behind = u64::from(first) + len - RECORD_GUESS;
        left = &left[left.partition_point(|&place| u64::from(place) <= behind)..];
    }
    groups
}

pub(super) fn read_at(file: &impl StorageFile, at: u64, len: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let n = file.read_full_at(&mut bytes, at).io("cannot read a segment")?;
    bytes.truncate(n);
    Ok(bytes)
}
