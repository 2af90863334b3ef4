//! Finding a room's past: which runs of a chain's index hold it.
//!
//! Runs lead from one to the one before it, so a walk is a row of reads each of which
//! waits for the last. Two things keep that short. Where in an index a room's row is
//! can be told beforehand, so a walk asks the disk for the rows of older segments
//! while it reads. And who wants the beginning of a room with much in each segment does
//! not walk there, but halves the segments in between.

use super::{Chain, Open, Sealed};
use crate::LogError;
use crate::files::Part;
use crate::index::{RoomHead, Run};
use crate::manifest::Keep;
use crate::rooms::RoomHash;
use crate::segment::Name;
use crate::storage::Storage;
use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::Arc;

/// Segments whose rows are asked for before a walk is there.
const AHEAD_MAX: u64 = 32;

/// Steps of a walk back that are kept for the way forward.
const STEPS_MAX: usize = 1024;

/// A walk back that passed so many records, and has as many before it, looks for a shorter way.
const PASSED_MAX: u64 = 1024;

/// Segments without the room that are looked at in a row for that; then walking is as good.
const PROBES: usize = 4;

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
pub(super) enum Stop {
    /// The index of this segment leads to what is not there: to this byte of it, or no place.
    Astray(Name, u64, String),
    Failed(LogError),
}

impl From<LogError> for Stop {
    fn from(e: LogError) -> Stop {
        Stop::Failed(e)
    }
}

/// A run, and what it says of the room that is read.
#[derive(Clone)]
pub(super) struct Step {
    pub segment: Name,
    /// None: it is in memory, and so are its places.
    pub run: Option<(Run, Part)>,
    pub head: RoomHead,
    in_memory: Arc<[u32]>,
}

/// How far a walk has asked ahead, in places of the list of sealed segments.
#[derive(Default)]
pub(super) struct Ahead {
    /// Behind the segment where it began.
    begun: Option<usize>,
    /// The oldest that was asked for.
    asked: Option<usize>,
}

impl<S: Storage> Chain<S> {
    /// The runs that have the wanted records, as far as they are left, oldest last; or
    /// only the oldest ones of them.
    pub(super) fn first_steps(
        &self,
        hash: RoomHash,
        (epoch, from): (u64, u64),
        last: u64,
    ) -> Result<VecDeque<Step>, Stop> {
        // What is before records that are lost does not lead to what is behind them.
        let unbroken = self.unbroken_from(last);
        let (mut steps, mut ahead) = (VecDeque::new(), Ahead::default());
        let (mut offset, mut all, mut passed) = (last, 0, 0);
        while offset >= unbroken
            && let Some(mut step) = self.step(hash, offset)?
        {
            if step.head.last.epoch != epoch || step.head.last.seq < from {
                break;
            }
            passed += u64::from(step.head.count);
            all += u64::from(step.head.count);
            let to_go = |step: &Step| first_seq(&step.head).saturating_sub(from);
            if passed >= PASSED_MAX && to_go(&step) >= PASSED_MAX {
                passed = 0;
                if let Some(older) = self.leap(hash, (epoch, from), unbroken, &step)? {
                    step = older;
                    steps.clear();
                    ahead = Ahead::default();
                }
            }
            offset = step.head.prev;
            let (segment, to_go) = (step.segment, to_go(&step));
            if steps.len() >= STEPS_MAX {
                steps.pop_front();
            }
            steps.push_back(step);
            if to_go == 0 {
                break;
            }
            self.look_ahead(hash, segment, (all, to_go.min(PASSED_MAX)), &mut ahead);
        }
        Ok(steps)
    }

    /// A run before `step` that is nearer to the first of the wanted records, or has it;
    /// none if the room is in too few segments to find one.
    fn leap(
        &self,
        hash: RoomHash,
        (epoch, from): (u64, u64),
        unbroken: u64,
        step: &Step,
    ) -> Result<Option<Step>, Stop> {
        let sealed: Vec<Sealed> = {
            let state = self.read_state();
            let of = |offset| state.sealed.partition_point(|s| s.name.first < offset);
            let to = of(step.segment.first);
            state.sealed[of(unbroken).min(to)..to].to_vec()
        };
        let (mut low, mut high, mut found) = (0, sealed.len(), None);
        while low < high {
            let middle = usize::midpoint(low, high);
            let mut older = None;
            for at in (low..=middle).rev().take(PROBES) {
                let Sealed { name, index, .. } = sealed[at];
                if let Some(step) = self.step_in(hash, name, index, Part::Index)? {
                    older = Some((at, step));
                    break;
                }
            }
            match older {
                Some((at, step)) if step.head.last.epoch == epoch && step.head.last.seq >= from => {
                    high = at;
                    found = Some(step);
                }
                // The room's life before, or records before the wanted ones.
                Some(_) => low = middle + 1,
                None if middle - low < PROBES => low = middle + 1,
                None => break,
            }
        }
        Ok(found)
    }

    /// Asks the disk for what a walk will look up in segments older than this one. `got`
    /// records were found so far, and `wanted` are to be found yet: as many of them may be
    /// in each segment as were.
    pub(super) fn look_ahead(
        &self,
        hash: RoomHash,
        segment: Name,
        (got, wanted): (u64, u64),
        ahead: &mut Ahead,
    ) {
        let older: Vec<Sealed> = {
            let state = self.read_state();
            let here = state.sealed.partition_point(|s| s.name.first < segment.first);
            let spanned = ahead.begun.get_or_insert(here + 1).saturating_sub(here).max(1);
            let n = wanted.saturating_mul(spanned as u64).div_ceil(got.max(1)).min(AHEAD_MAX);
            let from = here.saturating_sub(n as usize);
            let to = ahead.asked.map_or(here, |asked| asked.min(here));
            if from >= to {
                return;
            }
            ahead.asked = Some(from);
            state.sealed[from..to].to_vec()
        };
        for Sealed { name, index, .. } in older.into_iter().rev() {
            if let Ok(file) = self.index_file(name, Part::Index) {
                index.advise_room(&*file, hash);
            }
        }
    }

    /// What the run that has an offset says of the room whose record it is. None: the
    /// offset is of nobody, or was removed. What was compacted away is looked for in
    /// older runs.
    pub(super) fn step(&self, hash: RoomHash, mut offset: u64) -> Result<Option<Step>, Stop> {
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
                None => return Err(Stop::Astray(segment, 0, format!("no room of offset {offset}"))),
            }
        }
        Ok(None)
    }

    /// The next run behind one that has something of the room.
    pub(super) fn step_behind(&self, hash: RoomHash, step: &Step) -> Result<Option<Step>, Stop> {
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
        let (segment, index) = {
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
                Some(at) => (state.sealed[at].name, state.sealed[at].index),
                None => return Ok(Place::Memory(None)),
            }
        };
        Ok(Place::Run(segment, index, Part::Index))
    }

    fn step_in(&self, hash: RoomHash, segment: Name, run: Run, part: Part) -> Result<Option<Step>, Stop> {
        let file = self.index_file(segment, part)?;
        let head = run.room(&*file, hash).map_err(|e| index_failed(segment, e))?;
        Ok(head.map(|head| Step { segment, run: Some((run, part)), head, in_memory: Arc::default() }))
    }

    pub(super) fn index_file(&self, segment: Name, part: Part) -> Result<Arc<S::File>, Stop> {
        self.files.get(self.hub, segment, part).map_err(|e| index_failed(segment, e))
    }

    pub(super) fn places(&self, step: &Step, skip: u32, count: u32) -> Result<Vec<u32>, Stop> {
        let Some((run, part)) = step.run else {
            let from = step.in_memory.get(skip as usize..).unwrap_or_default();
            return Ok(from[..from.len().min(count as usize)].to_vec());
        };
        let file = self.index_file(step.segment, part)?;
        run.places(&*file, &step.head, skip, count).map_err(|e| index_failed(step.segment, e))
    }
}

/// Seq of the first of a room's records in a run, if its seqs have no gaps.
fn first_seq(head: &RoomHead) -> u64 {
    (head.last.seq + 1).saturating_sub(u64::from(head.count))
}

/// What the run in memory says of a room.
fn in_memory(open: &Open, hash: RoomHash) -> Option<Step> {
    let of_room = open.run.room(hash);
    of_room.map(|(head, in_memory)| Step { segment: open.name, run: None, head, in_memory: in_memory.into() })
}

/// An index that cannot be read can be made again; a storage that fails cannot.
fn index_failed(segment: Name, e: std::io::Error) -> Stop {
    match e.kind() {
        ErrorKind::InvalidData | ErrorKind::NotFound => Stop::Astray(segment, 0, e.to_string()),
        _ => Stop::Failed(LogError::io("cannot read an index", e)),
    }
}
