//! A segment file: a head, then records in order of offset. Only a compacted segment may lack offsets.

use crate::error::Context;
use crate::files::Part;
use crate::record::{self, NotARecord, Record, end_head, is_head, put_u32, put_u64, u32_at};
use crate::storage::{StorageFile, join};
use crate::{FORMAT, LogError, Result};
use hubsub_types::HubId;
use std::ops::Range;

const MAGIC: &[u8; 8] = b"HSSEGMT1";

pub const HEAD_BYTES: u64 = 64;

const FOREIGN: &str = "it is of another hub, place or directory";

/// Bytes per read in a full scan of a segment.
const SCAN_BYTES: usize = 1024 * 1024;

#[must_use]
pub fn directory(hub: HubId) -> String {
    format!("hubs/{}", hub.0)
}

/// Identifies a segment of a hub; part of its file names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Name {
    pub first: u64,
    /// Number of compactions. A segment's bytes never change: compaction writes a segment of the next
    /// generation that replaces it.
    pub generation: u32,
}

impl Name {
    #[must_use]
    pub fn written(first: u64) -> Name {
        Name { first, generation: 0 }
    }

    /// Whether a record of this offset may follow those below `next`. Only compacted segments have gaps.
    #[must_use]
    pub fn takes(self, next: u64, offset: u64) -> bool {
        if self.generation == 0 { offset == next } else { offset >= next }
    }

    pub(crate) fn file(self, part: Part) -> String {
        let Name { first, generation } = self;
        let ending = match part {
            Part::Segment => "segment",
            Part::Index => "index",
            Part::Runs => "runs",
        };
        match generation {
            0 => format!("{first:020}.{ending}"),
            _ => format!("{first:020}-{generation}.{ending}"),
        }
    }
}

#[must_use]
pub fn path(hub: HubId, name: Name, part: Part) -> String {
    join(&directory(hub), &name.file(part))
}

/// Encodes the head of a segment. `next` is the offset after those that it covers; a segment of generation 0
/// stores 0, since that offset is unknown before it is written.
#[must_use]
pub fn head(identity: u64, hub: HubId, name: Name, next: u64) -> Vec<u8> {
    let mut head = Vec::with_capacity(HEAD_BYTES as usize);
    head.extend_from_slice(MAGIC);
    // Format, features (none yet), hub, generation.
    put_u32(&mut head, &[FORMAT, 0, hub.0, name.generation]);
    put_u64(&mut head, &[name.first, identity, if name.generation == 0 { 0 } else { next }]);
    end_head(&mut head, HEAD_BYTES as usize);
    head
}

/// Checks that a file has the head of this segment, which covers the offsets below `next`.
///
/// # Errors
/// It does not, it has a newer format, or it cannot be read.
pub fn check_head(file: &impl StorageFile, identity: u64, hub: HubId, name: Name, next: u64) -> Result<()> {
    let path = path(hub, name, Part::Segment);
    let damaged = |why: &str| LogError::damaged(&path, 0, why);
    let mut head = [0; HEAD_BYTES as usize];
    let n = file.read_full_at(&mut head, 0).io("cannot read a segment")?;
    if n < head.len() || !is_head(&head, MAGIC) {
        return Err(damaged("its head cannot be read"));
    }
    let (format, features) = (u32_at(&head, 8), u32_at(&head, 12));
    if format > FORMAT || features != 0 {
        return Err(LogError::NewerFormat { path, found: format.max(FORMAT + 1), known: FORMAT });
    }
    if head != *self::head(identity, hub, name, next) {
        return Err(damaged(FOREIGN));
    }
    Ok(())
}

#[must_use]
pub fn is_foreign(e: &LogError) -> bool {
    matches!(e, LogError::Damaged { why, .. } if why == FOREIGN)
}

/// Reads the records between two positions of a file in order, and passes each with its position to `take`,
/// which may reject it.
///
/// # Errors
/// The first position without a whole record of that hub, with the reason.
pub fn scan(
    file: &impl StorageFile,
    hub: HubId,
    name: Name,
    range: Range<u64>,
    mut take: impl FnMut(&Record<'_>, u64) -> Result<()>,
) -> Result<()> {
    let mut buffer = Vec::new();
    let mut at = range.start;
    while at < range.end {
        at = scan_some(file, hub, name, at..range.end, SCAN_BYTES, &mut buffer, |record, _, at| {
            take(record, at)
        })?;
    }
    Ok(())
}

/// As [`scan`], but only about the first `bytes`, and at least one record; also passes the bytes of each
/// record. Returns the position after the last record.
///
/// # Errors
/// As [`scan`].
pub fn scan_some(
    file: &impl StorageFile,
    hub: HubId,
    name: Name,
    range: Range<u64>,
    bytes: usize,
    buffer: &mut Vec<u8>,
    mut take: impl FnMut(&Record<'_>, &[u8], u64) -> Result<()>,
) -> Result<u64> {
    let damaged = |at, why: &str| Err(LogError::damaged(path(hub, name, Part::Segment), at, why));
    let mut wanted = bytes;
    while !range.is_empty() {
        let n = wanted.min(usize::try_from(range.end - range.start).unwrap_or(usize::MAX));
        buffer.resize(n, 0);
        let n = file.read_full_at(buffer, range.start).io("cannot read a segment")?;
        if n < buffer.len() {
            return damaged(range.start + n as u64, "it was cut");
        }
        let mut used = 0;
        while used < n {
            let at = range.start + used as u64;
            match record::decode(&buffer[used..n]) {
                Ok((record, len)) if record.hub == hub => {
                    take(&record, &buffer[used..used + len], at)?;
                    used += len;
                }
                Err(NotARecord::Incomplete(len)) if at + len as u64 <= range.end => {
                    wanted = len;
                    break;
                }
                Ok(_) => return damaged(at, "a record of another hub"),
                Err(e) => return damaged(at, &e.to_string()),
            }
        }
        if used > 0 {
            return Ok(range.start + used as u64);
        }
    }
    Ok(range.end)
}
