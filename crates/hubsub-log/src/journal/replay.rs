//! Reads the journal at a start.
//!
//! An unreadable frame is *torn* if no later frame's mark covers it: then it was never acknowledged, and the
//! log ends before it. It is *damage in the middle* if a later readable frame has a mark that covers it: then
//! acknowledged records are missing, and the replay reports this.

use super::{DIRECTORY, FILE_HEAD, FRAME_MAGIC, Frame, check_head, frame_at, path};
use crate::error::Context;
use crate::manifest::Manifest;
use crate::open::KEPT;
use crate::record::{self, Record};
use crate::storage::{self, Storage};
use crate::{LogError, Result};
use hubsub_types::HubId;
use std::collections::HashSet;
use std::fmt;

/// Contents of the journals after a checkpoint.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Number of the last frame that was read.
    pub last: u64,
    pub lost: Vec<LostFrames>,
    /// Hubs with contiguous records since the last lost frame.
    pub continued: HashSet<HubId>,
}

/// Missing frames in the middle: first, last, and a description of where and why.
#[derive(Debug)]
pub struct LostFrames(pub u64, pub u64, String);

impl fmt::Display for LostFrames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LostFrames(from, to, why) = self;
        write!(f, "frames {from} to {to} of the journal are missing: {why}")
    }
}

/// The journals after a checkpoint, as the manifest lists them.
#[derive(Clone, Copy)]
pub struct Tail {
    identity: u64,
    journals: (u64, u64),
    checkpoint: u64,
    clean: Option<u64>,
}

impl Tail {
    #[must_use]
    pub fn of(manifest: &Manifest) -> Tail {
        let Manifest { identity, journals, checkpoint, clean, .. } = *manifest;
        Tail { identity, journals, checkpoint, clean }
    }

    /// Reads the frames after the checkpoint in order, and passes the bytes of each one's records to `take`,
    /// with [`Replayed::continued`], to which it adds.
    ///
    /// # Errors
    /// A file cannot be read or has a newer format. A missing or damaged file is no error: it adds to
    /// `lost`.
    pub fn replay(
        self,
        storage: &impl Storage,
        mut take: impl FnMut(&[u8], &mut HashSet<HubId>),
    ) -> Result<Replayed> {
        let (mut continued, mut losses) = (HashSet::new(), 0);
        let mut found = self.read(storage, |lost, records| {
            if lost != losses {
                losses = lost;
                continued.clear();
            }
            take(records, &mut continued);
        })?;
        if let Some(clean) = self.clean.filter(|&clean| clean > found.last) {
            let why = "the log ended cleanly behind what can be read".to_owned();
            found.lost.push(LostFrames(found.last + 1, clean, why));
        }
        if found.lost.len() == losses {
            found.continued = continued;
        }
        Ok(found)
    }

    /// Passes to `take` the number of gaps so far and the bytes of the frame's records.
    fn read(self, storage: &impl Storage, mut take: impl FnMut(usize, &[u8])) -> Result<Replayed> {
        let (identity, (first, last)) = (self.identity, self.journals);
        let mut found = Replayed { last: self.checkpoint, ..Replayed::default() };
        let mut why: Option<String> = None;
        for number in first..=last {
            let bytes = match storage::read(storage, &path(number)) {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    why.get_or_insert_with(|| format!("{} is missing", path(number)));
                    continue;
                }
                Err(e) => return Err(LogError::io("cannot read a journal", e)),
            };
            match check_head(&bytes, number, identity) {
                Ok(()) => {}
                Err(e @ LogError::NewerFormat { .. }) => return Err(e),
                // Each frame has the directory's identity, so the frames may be read nevertheless.
                Err(e) => _ = why.get_or_insert_with(|| e.to_string()),
            }
            let mut at = FILE_HEAD;
            while let Some((start, frame)) = next_frame(&bytes, at, identity, found.last + 1) {
                let expected = found.last + 1;
                if frame.number > expected {
                    if frame.mark < expected {
                        return Ok(found);
                    }
                    let place = format!("{} cannot be read from byte {at} on", path(number));
                    found.lost.push(LostFrames(expected, frame.number - 1, why.take().unwrap_or(place)));
                }
                take(found.lost.len(), frame.records);
                found.last = frame.number;
                at = start + frame.len();
            }
        }
        // A file after the last frame is missing or truncated; what it contained is unknown.
        if let Some(why) = why {
            found.lost.push(LostFrames(found.last + 1, found.last + 1, why));
        }
        Ok(found)
    }
}

/// Paths of all journal files, including those put aside at a start, sorted by number.
///
/// # Errors
/// Errors of the storage.
pub(crate) fn all_files(storage: &impl Storage) -> Result<Vec<String>> {
    let mut files: Vec<(u64, String)> = Vec::new();
    for directory in [KEPT, DIRECTORY] {
        let names = storage.list(directory).io("cannot list the journals")?;
        let number = |name: &str| name.strip_suffix(".journal")?.parse().ok();
        files.extend(names.iter().filter_map(|name| Some((number(name)?, storage::join(directory, name)))));
    }
    files.sort_unstable();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// Passes every record in a whole frame of these files to `take`, with its bytes, in the order of frames.
/// Does not check for missing frames.
///
/// # Errors
/// A file cannot be read or has a newer format, or `take` failed.
pub(crate) fn records(
    storage: &impl Storage,
    identity: u64,
    files: &[String],
    mut take: impl FnMut(&Record<'_>, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut least = 1;
    for path in files {
        let bytes = storage::read(storage, path).io("cannot read a journal")?;
        if let Err(e @ LogError::NewerFormat { .. }) = check_head(&bytes, 0, identity) {
            return Err(e);
        }
        let mut at = FILE_HEAD;
        while let Some((start, frame)) = next_frame(&bytes, at, identity, least) {
            record::readable(frame.records).try_for_each(|(record, bytes)| take(&record, bytes))?;
            (least, at) = (frame.number + 1, start + frame.len());
        }
    }
    Ok(())
}

/// The next whole frame at or after a position whose number is at least `least`.
fn next_frame(bytes: &[u8], from: usize, identity: u64, least: u64) -> Option<(usize, Frame<'_>)> {
    let mut at = from;
    loop {
        let rest = bytes.get(at..)?;
        if let Some(frame) = frame_at(rest, identity, least) {
            return Some((at, frame));
        }
        at += 1 + memchr::memmem::find(rest.get(1..)?, FRAME_MAGIC)?;
    }
}
