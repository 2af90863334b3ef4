//! Checks a data directory that no node uses: are all records there and as they were written? Changes
//! nothing.
//!
//! It is stricter than a start, which reads only the indexes of sealed segments: here every record is read.
//! [`crate::repair`] repairs what it finds.

use crate::error::Context;
use crate::files::Part;
use crate::journal::{Replayed, Tail};
use crate::manifest::{HubEntry, Keep, Manifest};
use crate::record::{self, Record};
use crate::segment;
use crate::storage::{Storage, StorageFile};
use crate::{LogError, Result};
use hubsub_types::HubId;
use std::collections::HashSet;
use std::ops::ControlFlow;

const WATCH_RECORDS: u64 = 16 * 1024;

#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// One for each hub in the manifest, in its order.
    pub hubs: Vec<VerifiedHub>,
    /// Records in journals after the checkpoint.
    pub journal_records: u64,
    /// One sentence per problem; empty if there is none.
    pub problems: Vec<String>,
}

#[derive(Clone, Debug)]
pub struct VerifiedHub {
    pub entry: HubEntry,
    /// Records in its segments, up to the checkpoint.
    pub records: u64,
    /// Bytes of its segments, up to the checkpoint.
    pub bytes: u64,
    /// Records in journals after the checkpoint.
    pub journal_records: u64,
    /// Offset after all of these records.
    pub next: u64,
    /// One sentence per problem; empty if the hub is whole.
    pub problems: Vec<String>,
    /// Whether an unknown number of records may be missing after its last one.
    pub may_lack_more: bool,
}

impl VerifiedHub {
    pub fn is_whole(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Bytes of segments read so far, and in total.
#[derive(Clone, Copy, Debug)]
pub struct Progress(pub u64, pub u64);

/// Called with the progress; may stop the operation.
pub type Watch<'a> = &'a mut dyn FnMut(Progress) -> ControlFlow<()>;

/// Reads every record of a directory.
///
/// # Errors
/// The manifest is missing, damaged or has a newer format, the storage failed, or [`LogError::Stopped`].
pub fn verify_watched(storage: &impl Storage, watch: Watch<'_>) -> Result<Verified> {
    let Some(manifest) = Manifest::load(storage)? else {
        return Err(LogError::Refused("there is no manifest.json".to_owned()));
    };
    verify_as(storage, &manifest, watch)
}

/// As [`verify_watched`], with a manifest that may differ from the one on disk.
pub(crate) fn verify_as(storage: &impl Storage, manifest: &Manifest, watch: Watch<'_>) -> Result<Verified> {
    let mut found = Verified::default();
    let all = manifest.hubs.iter().flat_map(|entry| &entry.segments).map(|s| s.1).sum();
    let mut read = 0;
    for entry in &manifest.hubs {
        let mut hub = VerifiedHub {
            entry: entry.clone(),
            records: 0,
            bytes: 0,
            journal_records: 0,
            next: entry.next,
            problems: entry.quarantined.iter().map(|why| format!("it is quarantined: {why}")).collect(),
            may_lack_more: entry.quarantined.is_some(),
        };
        hub.read_segments(storage, manifest.identity, &mut |bytes| watch(Progress(read + bytes, all)))?;
        read += hub.bytes;
        // The check above found the cause of the quarantine again.
        hub.problems.retain(|problem| entry.quarantined.as_ref() != Some(problem));
        found.hubs.push(hub);
    }
    found.read_journals(storage, manifest)?;
    for hub in &found.hubs {
        let of_hub = |problem| format!("hub {} ({}): {problem}", hub.entry.hub.0, hub.entry.class);
        found.problems.extend(hub.problems.iter().map(of_hub));
    }
    Ok(found)
}

impl Verified {
    /// Reads the journals after the checkpoint; determines which hubs lack records as a start does.
    fn read_journals(&mut self, storage: &impl Storage, manifest: &Manifest) -> Result<()> {
        let Replayed { lost, continued, .. } = Tail::of(manifest).replay(storage, |records, continued| {
            record::readable(records).for_each(|(record, _)| self.take(&record, continued));
        })?;
        let lost: Vec<String> = lost.iter().map(ToString::to_string).collect();
        if let Some(why) = lost.last() {
            let is_hit = |hub: &&mut VerifiedHub| {
                hub.entry.quarantined.is_none() && !continued.contains(&hub.entry.hub)
            };
            for hub in self.hubs.iter_mut().filter(is_hit) {
                hub.may_lack_more = true;
                hub.problems.push(why.clone());
            }
        }
        self.problems.extend(lost);
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>, continued: &mut HashSet<HubId>) {
        let Some(hub) = self.hubs.iter_mut().find(|hub| hub.entry.hub == record.hub) else {
            let why = format!("the journal has a record of hub {}, which there is not", record.hub.0);
            if !self.problems.contains(&why) {
                self.problems.push(why);
            }
            return;
        };
        if record.offset < hub.next || hub.entry.quarantined.is_some() {
            return;
        }
        if record.offset > hub.next {
            let to = record.offset - 1;
            hub.problems.push(format!("offsets {} to {to} are missing in the journal", hub.next));
        } else {
            continued.insert(record.hub);
        }
        hub.next = record.offset + 1;
        hub.journal_records += 1;
        self.journal_records += 1;
    }
}

impl VerifiedHub {
    fn read_segments(
        &mut self,
        storage: &impl Storage,
        identity: u64,
        watch: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<()> {
        for i in 0..self.entry.segments.len() {
            let read = self.bytes;
            let outcome = check_segment(storage, identity, &self.entry, i, &mut |records, at| {
                self.records += 1;
                if records % WATCH_RECORDS == 0 && watch(read + at).is_break() {
                    return Err(LogError::Stopped);
                }
                Ok(())
            });
            match outcome {
                Ok(()) => {}
                Err(e @ LogError::Damaged { .. }) => self.problems.push(e.to_string()),
                Err(e) => return Err(e),
            }
            self.bytes += self.entry.segments[i].1;
            if watch(self.bytes).is_break() {
                return Err(LogError::Stopped);
            }
        }
        Ok(())
    }
}

/// Reads a segment of the manifest up to the checkpoint. Passes to `take` the number of records so far and
/// the position of each.
///
/// # Errors
/// [`LogError::Damaged`]: it does not match the manifest. Others come from the storage or `take`.
pub(crate) fn check_segment(
    storage: &impl Storage,
    identity: u64,
    entry: &HubEntry,
    segment: usize,
    take: &mut dyn FnMut(u64, u64) -> Result<()>,
) -> Result<()> {
    let (name, bytes) = (entry.segments[segment].name(), entry.segments[segment].1);
    let path = segment::path(entry.hub, name, Part::Segment);
    let damaged = |at, why: String| LogError::damaged(&path, at, why);
    let file = match storage.open(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(damaged(0, "it is missing".to_owned()));
        }
        file => file.io("cannot open a file")?,
    };
    let len = file.len().io("cannot read a file")?;
    if name.generation > 0 && entry.keep == Keep::Log {
        return Err(damaged(0, "it was compacted, and the hub keeps all".to_owned()));
    }
    let end = entry.end_of(segment);
    segment::check_head(&file, identity, entry.hub, name, end)?;
    let (mut next, mut records) = (name.first, 0);
    let range = segment::HEAD_BYTES..bytes.min(len);
    segment::scan(&file, entry.hub, name, range, |record, at| {
        if !name.takes(next, record.offset) {
            return Err(damaged(at, format!("offset {} stands where {next} should", record.offset)));
        }
        (next, records) = (record.offset + 1, records + 1);
        take(records, at)
    })?;
    let is_sealed = segment + 1 < entry.segments.len();
    if (is_sealed && len != bytes) || len < bytes {
        return Err(damaged(len.min(bytes), format!("it has {len} bytes, not {bytes}")));
    }
    if !name.takes(next, end) {
        return Err(damaged(bytes, format!("it ends before offset {next}, not {end}")));
    }
    Ok(())
}
