//! Finds the runs of a chain's index that have a room's history.
//!
//! Each run links to the one before it, so a walk is a sequence of dependent reads. Two measures keep it
//! short. The position of a room's row in an index is known in advance, so a walk requests the rows of older
//! segments from the disk while it reads. And to find the beginning of a room with many records per segment,
//! it does a binary search over the segments in between.

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

/// Maximum of segments whose rows are requested ahead of a walk.
const AHEAD_MAX: u64 = 32;

/// Steps of a backward walk that are retained for the way forward.
const STEPS_MAX: usize = 1024;

/// After this many records, and with at least as many to go, a backward walk tries a binary search.
const PASSED_MAX: u64 = 1024;

/// Consecutive segments without the room that a binary search probes before it gives up.
const PROBES: usize = 4;

enum Place {
    /// No record has this offset yet.
    Behind,
    /// In the run in memory, with the room's entry there.
    Memory(Option<Step>),
    Run(Name, Run, Part),
}

pub(super) enum Stop {
    /// The index of this segment is wrong, with the byte position of the wrong record, or 0.
    Astray(Name, u64, String),
    Failed(LogError),
}

impl From<LogError> for Stop {
    fn from(e: LogError) -> Stop {
        Stop::Failed(e)
    }
}

/// A run with its entry of the room that is read.
#[derive(Clone)]
pub(super) struct Step {
    pub segment: Name,
    /// None: the run is in memory, and so are its positions.
    pub run: Option<(Run, Part)>,
    pub head: RoomHead,
    in_memory: Arc<[u32]>,
}

/// How far a walk has requested rows ahead, as indexes into the list of sealed segments.
#[derive(Default)]
pub(super) struct Ahead {
    /// One after the segment where the walk began.
    begun: Option<usize>,
    /// The oldest segment requested so far.
    asked: Option<usize>,
}

impl<S: Storage> Chain<S> {
    /// The runs with the wanted records, as far as they remain, oldest last; or only the oldest of them.
    pub(super) fn first_steps(
        &self,
        hash: RoomHash,
        (epoch, from): (u64, u64),
        last: u64,
    ) -> Result<VecDeque<Step>, Stop> {
        // Records before a lost range are not linked to those after it.
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

    /// A run before `step` that is closer to the first wanted record, or has it; none if the room is in too
    /// few segments to find one.
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
                // It has the room's previous epoch, or records before the wanted ones.
                Some(_) => low = middle + 1,
                None if middle - low < PROBES => low = middle + 1,
                None => break,
            }
        }
        Ok(found)
    }

    /// Requests from the disk the index rows that a walk will need in older segments. `got` records were
    /// found so far, and `wanted` are still to be found; assumes the same density in older segments.
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

    /// The room's entry in the run that has one of its records at `offset`. None: no record has this offset,
    /// or it was removed. If the record was compacted away, searches older runs.
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

    /// The next run after `step` with records of the room.
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

    /// The run that covers an offset.
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
            // An offset below the oldest segment was removed meanwhile.
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

/// Seq of a room's first record in a run, if its seqs have no gaps.
fn first_seq(head: &RoomHead) -> u64 {
    (head.last.seq + 1).saturating_sub(u64::from(head.count))
}

fn in_memory(open: &Open, hash: RoomHash) -> Option<Step> {
    let of_room = open.run.room(hash);
    of_room.map(|(head, in_memory)| Step { segment: open.name, run: None, head, in_memory: in_memory.into() })
}

/// An unreadable index can be rebuilt; a failing storage is an error.
fn index_failed(segment: Name, e: std::io::Error) -> Stop {
    match e.kind() {
        ErrorKind::InvalidData | ErrorKind::NotFound => Stop::Astray(segment, 0, e.to_string()),
        _ => Stop::Failed(LogError::io("cannot read an index", e)),
    }
}
