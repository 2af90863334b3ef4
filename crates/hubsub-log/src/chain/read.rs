//! Reading a room's past.
//!
//! It is found through the index, from its last record backwards, and
//! checked as it is read: each record's own checksum, its room, and that seqs
//! follow each other. An index that leads astray is made again from its segment
//! and the read begins anew; a segment that does is damaged.
//!
//! Where the latest of each key is kept, seqs have gaps, and `prev` may lead to a
//! record that is gone: then the room's record before it is in an older run. That
//! nothing is hidden there is what the checksum of each row of an index is for.

use super::{Chain, Open};
use crate::LogError;
use crate::files::Part;
use crate::index::{RoomHead, Run};
use crate::manifest::Keep;
use crate::record::{self, Record};
use crate::rooms::{RoomHash, RoomTable};
use crate::segment::{self, Name};
use crate::storage::{Storage, StorageFile};
use std::io::ErrorKind;
use std::ops::ControlFlow;

/// Read at once from a segment.
pub(super) const READ_BYTES: u64 = 64 * 1024;

/// A record is read with so much behind it, which it may need.
const RECORD_GUESS: u64 = 2 * 1024;

/// Places of records that are nearer than this are read together.
const NEAR_BYTES: u32 = 8 * 1024;

/// Records whose places are looked up at once when reading backwards.
const BACKWARDS: u32 = 64;

/// Segments that may be sealed, removed or replaced under one read.
pub(super) const MOVES_MAX: u32 = 100;

/// What came of reading on from a seq.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// The records from `first` on were given, as far as they were taken.
    From {
        /// The seq asked for, or the oldest that is left.
        first: u64,
    },
    /// The room has no record in that epoch from there on.
    Nothing,
}

/// Where an offset is.
enum Place {
    /// Nothing was written there yet.
    Behind,
    /// In the run in memory, with what that says of the room.
    Memory(Option<Step>),
    /// In a run of a segment.
    Run(Name, Run, Part),
}

/// Why a read stopped.
enum Stop {
    /// The index of this segment leads to what is not there.
    Astray(Name, String),
    Failed(LogError),
}

impl From<LogError> for Stop {
    fn from(e: LogError) -> Stop {
        Stop::Failed(e)
    }
}

/// A run, and what it says of the room that is read.
struct Step {
    segment: Name,
    /// None: it is in memory, and so are its places.
    run: Option<(Run, Part)>,
    head: RoomHead,
    in_memory: Vec<u32>,
}

impl<S: Storage> Chain<S> {
    /// Gives a room's records to `take`, newest first, until it breaks off or there
    /// are no more.
    ///
    /// # Errors
    /// Damage, or the storage's.
    pub fn read_back(
        &self,
        room: &[u8],
        mut take: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), LogError> {
        // Those that were given before the index was mended are not given again.
        let mut given: Option<u64> = None;
        self.mending(|| {
            self.read_back_once(room, |record| {
                if given.is_some_and(|offset| record.offset >= offset) {
                    return ControlFlow::Continue(());
                }
                given = Some(record.offset);
                take(record)
            })
        })
    }

    /// Gives a room's records of one epoch to `take`, from a seq on, until it breaks
    /// off or there are no more. `near`: an offset shortly before them, if one is
    /// known, from which they are found at once.
    ///
    /// # Errors
    /// Damage, or the storage's.
    pub fn read_on(
        &self,
        room: &[u8],
        epoch: u64,
        from: u64,
        near: Option<u64>,
        mut take: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<Reach, LogError> {
        let (mut next, mut reach) = (from, Reach::Nothing);
        self.mending(|| {
            let mut begun = false;
            self.read_on_once(room, (epoch, next), near, |record| {
                if !std::mem::replace(&mut begun, true) {
                    match reach {
                        Reach::Nothing => reach = Reach::From { first: record.seq },
                        // What is between was retired since: that is for another read to tell.
                        Reach::From { .. } if self.keep == Keep::Log && record.seq != next => {
                            return ControlFlow::Break(());
                        }
                        Reach::From { .. } => {}
                    }
                }
                next = record.seq + 1;
                take(record)
            })
        })?;
        Ok(reach)
    }

    /// Runs a read again after its index was mended, once for each segment at most, or
    /// after segments were sealed, removed or replaced under it.
    fn mending(&self, mut read: impl FnMut() -> Result<(), Stop>) -> Result<(), LogError> {
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
            let (segment, why) = match stop {
                Stop::Astray(segment, why) => (segment, why),
                Stop::Failed(e) => return Err(e),
            };
            if mended.contains(&segment) {
                return Err(self.damaged(segment, 0, &why));
            }
            mended.push(segment);
            self.mend(segment).or_else(|e| if has_changed() { Ok(()) } else { Err(e) })?;
        }
    }

    fn read_back_once(
        &self,
        room: &[u8],
        mut take: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), Stop> {
        let hash = self.hash(room);
        let Some(last) = self.rooms.get(hash) else { return Ok(()) };
        let mut offset = last.offset;
        // Epoch, seq and offset.
        let mut newer: Option<(u64, u64, u64)> = None;
        while let Some(step) = self.step(hash, offset)? {
            let mut left = step.head.count;
            while left > 0 {
                let n = left.min(BACKWARDS);
                let places = self.places(&step, left - n, n)?;
                let mut records = Vec::new();
                let flow = self.read_places(step.segment, &places, |_, bytes| {
                    records.push(bytes.to_vec());
                    ControlFlow::Continue(())
                })?;
                if flow.is_break() {
                    return Ok(());
                }
                for bytes in records.iter().rev() {
                    let (record, _) = record::parse(bytes).expect("it was decoded before");
                    let follows = newer.is_none_or(|(epoch, seq, offset)| {
                        let is_same = epoch == record.epoch;
                        let is_next = match self.keep {
                            Keep::Log if is_same => record.seq + 1 == seq,
                            Keep::Log => seq == 1,
                            Keep::Latest => !is_same || record.seq < seq,
                        };
                        is_next || self.unbroken_from(offset) > record.offset
                    });
                    if record.room != room || !follows {
                        return Err(astray(&step, &record));
                    }
                    newer = Some((record.epoch, record.seq, record.offset));
                    if take(&record).is_break() {
                        return Ok(());
                    }
                }
                left -= n;
            }
            offset = step.head.prev;
            // Once anything was retired or lost, what came before may be: the room table knows no more of it.
            let may_begin_here =
                |(_, seq, offset)| seq == 1 || self.unbroken_from(offset).max(self.info().earliest) > 1;
            if self.keep == Keep::Log && offset == 0 && !newer.is_none_or(may_begin_here) {
                return Err(Stop::Astray(step.segment, "a room that begins in its middle".to_owned()));
            }
        }
        Ok(())
    }

    fn read_on_once(
        &self,
        room: &[u8],
        (epoch, from): (u64, u64),
        near: Option<u64>,
        mut take: impl FnMut(&Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), Stop> {
        let hash = self.hash(room);
        let Some(last) = self.rooms.get(hash).filter(|last| last.epoch == epoch && from <= last.seq) else {
            return Ok(());
        };
        let Some(mut step) = self.first_step(hash, (epoch, from), near, last.offset)? else { return Ok(()) };
        let mut newest: Option<u64> = None;
        loop {
            // How many of the run's records are from `from` on, were they all of this epoch.
            let wanted = (step.head.last.seq + 1).saturating_sub(newest.map_or(from, |seq| seq + 1));
            let mut skip = step.head.count.saturating_sub(u32::try_from(wanted).unwrap_or(u32::MAX));
            while skip < step.head.count {
                let places = self.places(&step, skip, BACKWARDS * 8)?;
                skip += places.len() as u32;
                let mut wrong = None;
                let flow = self.read_places(step.segment, &places, |record, _| {
                    if record.room == room
                        && newest.is_none()
                        && (record.epoch != epoch || (self.keep == Keep::Latest && record.seq < from))
                    {
                        // Of the life before, in the same run, or where seqs have gaps of what was skipped.
                        return ControlFlow::Continue(());
                    }
                    let follows = |seq| match self.keep {
                        Keep::Log => seq + 1 == record.seq,
                        Keep::Latest => seq < record.seq,
                    };
                    if record.room != room || record.epoch != epoch || !newest.is_none_or(follows) {
                        wrong = Some(astray(&step, record));
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
            if step.head.last.offset >= last.offset {
                return Ok(());
            }
            match self.step_behind(hash, &step)? {
                Some(next) if next.head.prev == step.head.last.offset => step = next,
                // What was between them was compacted away.
                Some(next) if self.keep == Keep::Latest && next.head.last.epoch == epoch => step = next,
                None if self.keep == Keep::Latest => return Ok(()),
                // A room that was deleted meanwhile, or an index that hides a run.
                _ if self.rooms.get(hash).is_none_or(|now| now.epoch != epoch) => return Ok(()),
                _ => return Err(Stop::Astray(step.segment, "a run is missing".to_owned())),
            }
        }
    }

    /// The run that has the first of the wanted records that is left.
    fn first_step(
        &self,
        hash: RoomHash,
        (epoch, from): (u64, u64),
        near: Option<u64>,
        last: u64,
    ) -> Result<Option<Step>, Stop> {
        let holds = |head: &RoomHead| {
            head.last.epoch == epoch && (head.last.seq + 1).saturating_sub(u64::from(head.count)) <= from
        };
        // What is before records that are lost does not lead to what is behind them.
        let unbroken = self.unbroken_from(last);
        let at_hint =
            match near.filter(|&near| near >= unbroken).map(|near| self.run_of(hash, near)).transpose()? {
                Some(Place::Run(segment, run, part)) => self.step_in(hash, segment, run, part)?,
                Some(Place::Memory(step)) => step,
                Some(Place::Behind) | None => None,
            };
        if let Some(step) = at_hint
            && holds(&step.head)
        {
            if step.head.last.seq >= from {
                return Ok(Some(step));
            }
            if let Some(next) = self.step_behind(hash, &step)?
                && next.head.last.epoch == epoch
                && next.head.last.seq >= from
            {
                return Ok(Some(next));
            }
        }
        let mut found: Option<Step> = None;
        let mut offset = last;
        while offset >= unbroken
            && let Some(step) = self.step(hash, offset)?
        {
            if step.head.last.epoch != epoch || step.head.last.seq < from {
                break;
            }
            offset = step.head.prev;
            let is_first = holds(&step.head);
            found = Some(step);
            if is_first {
                break;
            }
        }
        Ok(found)
    }

    /// What the run that has an offset says of the room whose record it is. None: the
    /// offset is of nobody, or was removed. What was compacted away is looked for in
    /// older runs.
    fn step(&self, hash: RoomHash, mut offset: u64) -> Result<Option<Step>, Stop> {
        let earliest = self.read_state().earliest;
        while offset >= earliest {
            let (segment, run, part) = match self.run_of(hash, offset)? {
                Place::Behind => return Ok(None),
                Place::Memory(step) => return Ok(step),
                Place::Run(segment, run, part) => (segment, run, part),
            };
            match self.step_in(hash, segment, run, part)? {
                Some(step) => return Ok(Some(step)),
                None if self.keep == Keep::Latest => offset = run.first - 1,
                None => return Err(Stop::Astray(segment, format!("no room of offset {offset}"))),
            }
        }
        Ok(None)
    }

    /// The next run behind one that has something of the room.
    fn step_behind(&self, hash: RoomHash, step: &Step) -> Result<Option<Step>, Stop> {
        let Some((mut run, _)) = step.run else { return Ok(None) };
        loop {
            let (segment, part);
            (segment, run, part) = match self.run_of(hash, run.last + 1)? {
                Place::Behind => return Ok(None),
                Place::Memory(step) => return Ok(step),
                Place::Run(segment, run, part) => (segment, run, part),
            };
            if let Some(step) = self.step_in(hash, segment, run, part)?
                && step.head.count > 0
            {
                return Ok(Some(step));
            }
        }
    }

    /// The run that has an offset.
    fn run_of(&self, hash: RoomHash, offset: u64) -> Result<Place, Stop> {
        let offset = self.kept_from(offset);
        let segment = {
            let state = self.read_state();
            let open = &state.open;
            if offset >= open.next {
                return Ok(Place::Behind);
            }
            if offset >= open.name.first {
                return Ok(match open.runs.iter().find(|run| offset <= run.last) {
                    Some(&run) => Place::Run(open.name, run, Part::Runs),
                    None => Place::Memory(in_memory(open, hash)),
                });
            }
            // Below the oldest, it is in what was removed meanwhile.
            match state.sealed.partition_point(|s| s.name.first <= offset).checked_sub(1) {
                Some(at) => state.sealed[at].name,
                None => return Ok(Place::Memory(None)),
            }
        };
        Ok(Place::Run(segment, self.sealed_run(segment)?, Part::Index))
    }

    fn step_in(&self, hash: RoomHash, segment: Name, run: Run, part: Part) -> Result<Option<Step>, Stop> {
        let file = self.index_file(segment, part)?;
        let head = run.room(&*file, hash).map_err(|e| index_failed(segment, e))?;
        Ok(head.map(|head| Step { segment, run: Some((run, part)), head, in_memory: Vec::new() }))
    }

    fn sealed_run(&self, segment: Name) -> Result<Run, Stop> {
        let file = self.index_file(segment, Part::Index)?;
        Run::open(&*file, 0).map_err(|e| index_failed(segment, e))
    }

    fn index_file(&self, segment: Name, part: Part) -> Result<std::sync::Arc<S::File>, Stop> {
        self.files.get(self.hub, segment, part).map_err(|e| index_failed(segment, e))
    }

    fn places(&self, step: &Step, skip: u32, count: u32) -> Result<Vec<u32>, Stop> {
        let Some((run, part)) = step.run else {
            let from = step.in_memory.get(skip as usize..).unwrap_or_default();
            return Ok(from[..from.len().min(count as usize)].to_vec());
        };
        let file = self.index_file(step.segment, part)?;
        run.places(&*file, &step.head, skip, count).map_err(|e| index_failed(step.segment, e))
    }

    /// Reads records of one segment, in the order of their places, and gives each with
    /// its bytes to `take`. Breaks off as `take` does.
    fn read_places(
        &self,
        segment: Name,
        places: &[u32],
        mut take: impl FnMut(&Record<'_>, &[u8]) -> ControlFlow<()>,
    ) -> Result<ControlFlow<()>, Stop> {
        let file = match self.files.get(self.hub, segment, Part::Segment) {
            Err(e) if e.kind() == ErrorKind::NotFound && segment.first < self.info().earliest => {
                return Err(Stop::Astray(segment, "it was retired".to_owned()));
            }
            file => file.map_err(|e| LogError::io("cannot open a segment", e))?,
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
                    if take(&record, &found[..len]).is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                Err(e) => return Err(Stop::Astray(segment, format!("byte {place}: {e}"))),
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// Makes the index of a segment again. What is wrong with an open one is only in memory
    /// and in a file that nobody else wrote, so that is damage.
    fn mend(&self, segment: Name) -> Result<(), LogError> {
        let _alone = self.mending.lock().expect("nothing panics under this lock");
        let (at, sealed, open) = {
            let state = self.read_state();
            let at = state.sealed.partition_point(|s| s.name.first < segment.first);
            (at, state.sealed.clone(), state.open.name.first)
        };
        let Some(entry) = sealed.get(at).filter(|s| s.name == segment) else { return Ok(()) };
        let before = RoomTable::default();
        for (i, &older) in sealed[..at].iter().enumerate() {
            self.learn(older, self.end_before(sealed[i + 1].name.first), &before)?;
        }
        let next = self.end_before(sealed.get(at + 1).map_or(open, |s| s.name.first));
        self.rebuild_index(*entry, next, &before)
    }

    pub(super) fn damaged(&self, name: Name, at: u64, why: &str) -> LogError {
        LogError::Damaged { path: segment::path(self.hub, name, Part::Segment), at, why: why.to_owned() }
    }
}

/// What the run in memory says of a room.
fn in_memory(open: &Open, hash: RoomHash) -> Option<Step> {
    let of_room = open.run.room(hash);
    of_room.map(|(head, in_memory)| Step { segment: open.name, run: None, head, in_memory })
}

fn astray(step: &Step, record: &Record<'_>) -> Stop {
    Stop::Astray(step.segment, format!("offset {} is of another room or seq", record.offset))
}

/// An index that cannot be read can be made again; a storage that fails cannot.
fn index_failed(segment: Name, e: std::io::Error) -> Stop {
    match e.kind() {
        ErrorKind::InvalidData | ErrorKind::NotFound => Stop::Astray(segment, e.to_string()),
        _ => Stop::Failed(LogError::io("cannot read an index", e)),
    }
}

/// Bytes to read for the first of some places and those near it.
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

pub(super) fn read_at(file: &impl StorageFile, at: u64, len: usize) -> Result<Vec<u8>, LogError> {
    let mut bytes = vec![0; len];
    let n = file.read_full_at(&mut bytes, at).map_err(|e| LogError::io("cannot read a segment", e))?;
    bytes.truncate(n);
    Ok(bytes)
}
