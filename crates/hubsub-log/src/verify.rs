//! Looking at a data directory that no node uses: is everything there, and is it
//! what was written? Nothing is changed.

use crate::LogError;
use crate::files::Part;
use crate::journal;
use crate::manifest::{HubEntry, Manifest};
use crate::record;
use crate::segment;
use crate::storage::{Storage, StorageFile};

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Verified {
    /// For each hub of the manifest, in its order.
    pub hubs: Vec<VerifiedHub>,
    /// Records in journals behind the checkpoint.
    pub journal_records: u64,
    /// What is wrong, in sentences; none: all is well.
    pub problems: Vec<String>,
}

/// What was found of one hub.
#[derive(Clone, Debug)]
pub struct VerifiedHub {
    /// As the manifest says.
    pub entry: HubEntry,
    /// Records in its segments, up to the checkpoint.
    pub records: u64,
    /// Bytes of its segments, likewise.
    pub bytes: u64,
}

/// Reads every record of a directory.
///
/// # Errors
/// The manifest is missing, damaged or of a newer format, or the storage failed.
pub fn verify(storage: &impl Storage) -> Result<Verified, LogError> {
    let Some(manifest) = Manifest::load(storage)? else {
        return Err(LogError::Refused("there is no manifest.json".to_owned()));
    };
    let mut found = Verified::default();
    for entry in &manifest.hubs {
        if let Some(why) = &entry.quarantined {
            found.problems.push(format!("hub {} is quarantined: {why}", entry.hub.0));
        }
        let hub = verify_hub(storage, &manifest, entry, &mut found.problems)?;
        found.hubs.push(hub);
    }
    let mut next: Vec<u64> = manifest.hubs.iter().map(|entry| entry.next).collect();
    let (first, last) = manifest.journals;
    let (records, problems) = (&mut found.journal_records, &mut found.problems);
    let replayed =
        journal::replay(storage, manifest.identity, first..=last, manifest.checkpoint, |_, bytes| {
            let mut at = 0;
            while let Ok((record, len)) = record::decode(&bytes[at..]) {
                at += len;
                let Some(hub) = manifest.hubs.iter().position(|entry| entry.hub == record.hub) else {
                    problems.push(format!(
                        "the journal has a record of hub {}, which there is not",
                        record.hub.0
                    ));
                    continue;
                };
                if record.offset > next[hub] {
                    let to = record.offset - 1;
                    problems
                        .push(format!("offsets {} to {to} of hub {} are missing", next[hub], record.hub.0));
                }
                if record.offset >= next[hub] {
                    next[hub] = record.offset + 1;
                    *records += 1;
                }
            }
        })?;
    for (from, to, why) in &replayed.lost {
        found.problems.push(format!("frames {from} to {to} of the journal are missing: {why}"));
    }
    if manifest.clean.is_some_and(|clean| clean > replayed.last) {
        found.problems.push("the log ended cleanly behind what can be read".to_owned());
    }
    Ok(found)
}

fn verify_hub<S: Storage>(
    storage: &S,
    manifest: &Manifest,
    entry: &HubEntry,
    problems: &mut Vec<String>,
) -> Result<VerifiedHub, LogError> {
    let mut hub = VerifiedHub { entry: entry.clone(), records: 0, bytes: 0 };
    let mut next = entry.segments.first().map_or(entry.next, |s| s.0);
    for (i, segment) in entry.segments.iter().enumerate() {
        let path = segment::path(entry.hub, segment.0, Part::Segment);
        let file = match storage.open(&path) {
            Ok(file) => file,
            Err(e) => {
                problems.push(format!("{path}: {e}"));
                continue;
            }
        };
        let is_sealed = i + 1 < entry.segments.len();
        let len = file.len().map_err(|e| LogError::io(format!("cannot read {path}"), e))?;
        if (is_sealed && len != segment.1) || len < segment.1 {
            problems.push(format!("{path} has {len} bytes, not {}", segment.1));
        }
        let mut scan = || {
            segment::check_head(&file, manifest.identity, entry.hub, segment.0)?;
            let range = segment::HEAD_BYTES..segment.1.min(len);
            segment::scan(&file, entry.hub, segment.0, range, |record, at| {
                if record.offset != next {
                    let why = format!("offset {} stands where {next} should", record.offset);
                    return Err(LogError::Damaged { path: path.clone(), at, why });
                }
                next += 1;
                hub.records += 1;
                Ok(())
            })
        };
        match scan() {
            Err(e @ LogError::Io { .. }) => return Err(e),
            Err(e) => problems.push(e.to_string()),
            Ok(()) => {}
        }
        next = entry.segments.get(i + 1).map_or(next, |s| s.0);
        hub.bytes += segment.1;
    }
    if next != entry.next && problems.is_empty() {
        problems.push(format!("hub {} ends before offset {next}, not {}", entry.hub.0, entry.next));
    }
    Ok(hub)
}
