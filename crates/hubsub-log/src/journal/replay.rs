//! Reading the journal back at a start.
//!
//! A frame that cannot be read is *torn* when nothing behind it was ever written
//! in the knowledge that it was safe: then it was never acknowledged, and it ends
//! the log. It is *damage in the middle* when a later frame can be read whose mark
//! covers it: then acknowledged records are missing, and that is said.

use super::{DIRECTORY, FILE_HEAD, FRAME_MAGIC, Frame, check_head, frame_at, path};
use crate::LogError;
use crate::open::KEPT;
use crate::record::{self, Record};
use crate::storage::{self, Storage};

/// What was found.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Last frame that was read.
    pub last: u64,
    /// Frames that are missing in the middle, first to last, with where and why.
    pub lost: Vec<(u64, u64, String)>,
}

/// Reads frames behind number `after` from journal files `first` to `last`, in
/// order, and gives their records to `take`: how often frames were missing before,
/// and the records' bytes.
///
/// # Errors
/// A file cannot be read, or is of a newer format. A file that is missing or
/// damaged is no error: it is among what was lost.
pub fn replay(
    storage: &impl Storage,
    identity: u64,
    files: std::ops::RangeInclusive<u64>,
    after: u64,
    mut take: impl FnMut(usize, &[u8]),
) -> Result<Replayed, LogError> {
    let mut found = Replayed { last: after, lost: Vec::new() };
    let mut why: Option<String> = None;
    for number in files {
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
            // Its frames have the directory's identity each, so they may be read all the same.
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
                found.lost.push((expected, frame.number - 1, why.take().unwrap_or(place)));
            }
            take(found.lost.len(), frame.records);
            found.last = frame.number;
            at = start + frame.len();
        }
    }
    // Files that are missing or cut behind the last frame held what nobody can tell.
    if let Some(why) = why {
        found.lost.push((found.last + 1, found.last + 1, why));
    }
    Ok(found)
}

/// Paths of all journal files, those that a start has put aside among them, in
/// the order of their numbers.
///
/// # Errors
/// Those of the storage.
pub(crate) fn all_files(storage: &impl Storage) -> Result<Vec<String>, LogError> {
    let mut files: Vec<(u64, String)> = Vec::new();
    for directory in [KEPT, DIRECTORY] {
        let names = storage.list(directory).map_err(|e| LogError::io("cannot list the journals", e))?;
        let number = |name: &str| name.strip_suffix(".journal")?.parse().ok();
        files.extend(names.iter().filter_map(|name| Some((number(name)?, storage::join(directory, name)))));
    }
    files.sort_unstable();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// Gives every record to `take` that stands in a whole frame of these files, with
/// its bytes, in the order of frames. Whether frames are missing is not asked.
///
/// # Errors
/// A file cannot be read or is of a newer format, or what `take` says.
pub(crate) fn records(
    storage: &impl Storage,
    identity: u64,
    files: &[String],
    mut take: impl FnMut(&Record<'_>, &[u8]) -> Result<(), LogError>,
) -> Result<(), LogError> {
    let mut least = 1;
    for path in files {
        let bytes = storage::read(storage, path).map_err(|e| LogError::io("cannot read a journal", e))?;
        if let Err(e @ LogError::NewerFormat { .. }) = check_head(&bytes, 0, identity) {
            return Err(e);
        }
        let mut at = FILE_HEAD;
        while let Some((start, frame)) = next_frame(&bytes, at, identity, least) {
            let mut from = 0;
            while let Ok((record, len)) = record::decode(&frame.records[from..]) {
                take(&record, &frame.records[from..from + len])?;
                from += len;
            }
            (least, at) = (frame.number + 1, start + frame.len());
        }
    }
    Ok(())
}

/// The next whole frame from a place on whose number is not below `least`.
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
