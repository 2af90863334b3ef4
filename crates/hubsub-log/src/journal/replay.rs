//! Reads the journal at a start.
//!
//! An unreadable frame is *torn* if no later frame's mark covers it: then it was never acknowledged, and the
//! log ends before it. It is *damage in the middle* if a later readable frame has a mark that covers it: then
//! acknowledged records are missing, and the replay reports this.

use super::{DIRECTORY, FILE_HEAD, FRAME_MAGIC, Frame, check_head, frame_at, path};
use crate::LogError;
use crate::open::KEPT;
use crate::record::{self, Record};
use crate::storage::{self, Storage};

#[derive(Debug, Default)]
pub struct Replayed {
    /// Number of the last frame that was read.
    pub last: u64,
    /// Missing frames in the middle: first, last, and a description of where and why.
    pub lost: Vec<(u64, u64, String)>,
}

/// Reads the frames after number `after` from the journal files `first` to `last`, in order, and passes to
/// `take` the number of gaps so far and the bytes of the frame's records.
///
/// # Errors
/// A file cannot be read or has a newer format. A missing or damaged file is no error: it adds to
/// `lost`.
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
                found.lost.push((expected, frame.number - 1, why.take().unwrap_or(place)));
            }
            take(found.lost.len(), frame.records);
            found.last = frame.number;
            at = start + frame.len();
        }
    }
    // A file after the last frame is missing or truncated; what it contained is unknown.
    if let Some(why) = why {
        found.lost.push((found.last + 1, found.last + 1, why));
    }
    Ok(found)
}

/// Paths of all journal files, including those put aside at a start, sorted by number.
///
/// # Errors
/// Errors of the storage.
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

/// Passes every record in a whole frame of these files to `take`, with its bytes, in the order of frames.
/// Does not check for missing frames.
///
/// # Errors
/// A file cannot be read or has a newer format, or `take` failed.
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
