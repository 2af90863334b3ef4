//! A segment file: a head, then records, offset by offset.

use crate::files::Part;
use crate::record::{self, NotARecord, Record, u32_at, u64_at};
use crate::storage::{StorageFile, join};
use crate::{FORMAT, LogError};
use hubsub_types::HubId;

const MAGIC: &[u8; 8] = b"HSSEGMT1";

/// Bytes before the first record.
pub const HEAD_BYTES: u64 = 64;

const FOREIGN: &str = "it is of another hub, place or directory";

/// Read at once when a segment is read from end to end.
const SCAN_BYTES: usize = 1024 * 1024;

/// Directory of a hub's chain.
#[must_use]
pub fn directory(hub: HubId) -> String {
    format!("hubs/{}", hub.0)
}

/// A file of a segment, by its first offset.
#[must_use]
pub fn path(hub: HubId, first: u64, part: Part) -> String {
    join(&directory(hub), &name(first, part))
}

pub(crate) fn name(first: u64, part: Part) -> String {
    let ending = match part {
        Part::Segment => "segment",
        Part::Index => "index",
        Part::Runs => "runs",
    };
    format!("{first:020}.{ending}")
}

/// What a segment opens with.
#[must_use]
pub fn head(identity: u64, hub: HubId, first: u64) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES as usize);
    head.extend_from_slice(MAGIC);
    // Format, features (none yet), hub, nothing.
    for field in [FORMAT, 0, hub.0, 0] {
        head.extend_from_slice(&field.to_le_bytes());
    }
    for field in [first, identity] {
        head.extend_from_slice(&field.to_le_bytes());
    }
    head.resize(HEAD_BYTES as usize - 4, 0);
    head.extend_from_slice(&crc32c::crc32c(&head).to_le_bytes());
    head
}

/// Whether a file opens as this segment.
///
/// # Errors
/// It does not, or it is of a newer format, or it cannot be read.
pub fn check_head(file: &impl StorageFile, identity: u64, hub: HubId, first: u64) -> Result<(), LogError> {
    let path = path(hub, first, Part::Segment);
    let damaged = |why: &str| LogError::Damaged { path: path.clone(), at: 0, why: why.to_owned() };
    let mut head = [0; HEAD_BYTES as usize];
    let n = file.read_full_at(&mut head, 0).map_err(|e| LogError::io(format!("cannot read {path}"), e))?;
    let crc_at = head.len() - 4;
    if n < head.len() || head[..8] != *MAGIC || u32_at(&head, crc_at) != crc32c::crc32c(&head[..crc_at]) {
        return Err(damaged("its head cannot be read"));
    }
    let (format, features) = (u32_at(&head, 8), u32_at(&head, 12));
    if format > FORMAT || features != 0 {
        return Err(LogError::NewerFormat { path, found: format.max(FORMAT + 1), known: FORMAT });
    }
    if (u32_at(&head, 16), u64_at(&head, 24), u64_at(&head, 32)) != (hub.0, first, identity) {
        return Err(damaged(FOREIGN));
    }
    Ok(())
}

/// Whether a head's fault is that it is another file's.
#[must_use]
pub fn is_foreign(e: &LogError) -> bool {
    matches!(e, LogError::Damaged { why, .. } if why == FOREIGN)
}

/// Reads the records between two places of a file in order, and gives each with
/// its place to `take`, which says what is wrong with it, if anything.
///
/// # Errors
/// The first place where no whole record of that hub stands, with why.
pub fn scan(
    file: &impl StorageFile,
    hub: HubId,
    first: u64,
    range: std::ops::Range<u64>,
    mut take: impl FnMut(&Record<'_>, u64) -> Result<(), LogError>,
) -> Result<(), LogError> {
    let path = || path(hub, first, Part::Segment);
    let damaged = |at, why: &str| LogError::Damaged { path: path(), at, why: why.to_owned() };
    let mut buffer = Vec::new();
    let mut at = range.start;
    let mut wanted = SCAN_BYTES;
    while at < range.end {
        let n = wanted.min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
        buffer.resize(n, 0);
        let n = file
            .read_full_at(&mut buffer, at)
            .map_err(|e| LogError::io(format!("cannot read {}", path()), e))?;
        let mut used = 0;
        wanted = SCAN_BYTES;
        while used < n {
            match record::decode(&buffer[used..n]) {
                Ok((record, len)) if record.hub == hub => {
                    take(&record, at + used as u64)?;
                    used += len;
                }
                Err(NotARecord::Incomplete(len))
                    if at + (used + len) as u64 <= range.end && n == buffer.len() =>
                {
                    wanted = len.max(SCAN_BYTES);
                    break;
                }
                Ok(_) => return Err(damaged(at + used as u64, "a record of another hub")),
                Err(e) => return Err(damaged(at + used as u64, &e.to_string())),
            }
        }
        if n == 0 {
            return Err(damaged(at, "it was cut"));
        }
        at += used as u64;
    }
    Ok(())
}
