//! Rebuilds a lost manifest from the other files of its directory.

use crate::error::Context;
use crate::files::Part;
use crate::journal;
use crate::manifest::{HubEntry, HubFile, Keep, Lost, Manifest, SegmentEntry};
use crate::open::is_unwritten;
use crate::record;
use crate::salvage::hub_directories;
use crate::segment::{self, Name};
use crate::storage::{Storage, StorageFile};
use crate::{LogError, Result};

pub(super) fn remake(storage: &impl Storage) -> Result<Manifest> {
    if is_unwritten(storage)? {
        let text =
            "there is no log to mend, no record was ever written here; hint: start the node, it makes one";
        return Err(LogError::Refused(text.to_owned()));
    }
    let refused = |why: String| {
        Err(LogError::Refused(format!(
            "the manifest cannot be made again, {why}; hint: bring manifest.json back from a copy of the \
             directory"
        )))
    };
    let hubs = hub_directories(storage)?;
    let mut made: Option<Manifest> = None;
    for hub in hubs {
        let names = storage.list(&segment::directory(hub)).io("cannot list segments")?;
        let file = match HubFile::load(storage, hub) {
            Ok(Some(file)) => file,
            // An opening was interrupted before its first segment.
            Ok(None) if !names.iter().any(|name| name.contains(".segment")) => continue,
            Ok(None) => return refused(format!("hub {} has no hub.json", hub.0)),
            Err(e @ LogError::Damaged { .. }) => return refused(e.to_string()),
            Err(e) => return Err(e),
        };
        let manifest = made.get_or_insert_with(|| Manifest::new(file.identity));
        manifest.cluster.clone_from(&file.cluster);
        if file.identity != manifest.identity || file.hub != hub {
            return refused(format!("the hub.json of hub {} is of another hub or directory", hub.0));
        }
        if file.keep == Keep::Latest && was_compacted(&names) {
            return refused(format!("hub {} keeps the latest of each key", hub.0));
        }
        let mut entry = HubEntry::new(hub, &file.class, file.index, file.keep);
        list_segments(storage, manifest.identity, &mut entry, &names)?;
        manifest.hubs.push(entry);
    }
    let Some(mut manifest) = made else {
        return refused("there are no hubs".to_owned());
    };
    let journals = journal::files(storage).io("cannot list the journals")?;
    if let (Some(&first), Some(&last)) = (journals.iter().min(), journals.iter().max()) {
        manifest.journals = (first, last);
    }
    Ok(manifest)
}

/// Whether the hub has compacted segments: then it is unknown which of its segments are current.
fn was_compacted(names: &[String]) -> bool {
    let stands_for_others = |name: &str| name.parse::<u64>().is_err();
    names.iter().filter_map(|name| name.strip_suffix(".segment")).any(stands_for_others)
}

/// Lists the segments of a hub, up to the last readable record.
fn list_segments(
    storage: &impl Storage,
    identity: u64,
    entry: &mut HubEntry,
    names: &[String],
) -> Result<()> {
    let mut firsts: Vec<u64> =
        names.iter().filter_map(|name| name.strip_suffix(".segment")?.parse().ok()).collect();
    firsts.sort_unstable();
    for (i, &first) in firsts.iter().enumerate() {
        let path = segment::path(entry.hub, Name::written(first), Part::Segment);
        let cannot = |e| LogError::io("cannot read a file", e);
        let file = storage.open(&path).map_err(cannot)?;
        let len = file.len().map_err(cannot)?;
        let (mut next, mut end) = (first, segment::HEAD_BYTES);
        if let Err(e @ (LogError::NewerFormat { .. } | LogError::Io { .. })) =
            segment::check_head(&file, identity, entry.hub, Name::written(first), 0)
        {
            return Err(e);
        }
        let read =
            segment::scan(&file, entry.hub, Name::written(first), segment::HEAD_BYTES..len, |record, at| {
                if record.offset != next {
                    return Err(LogError::Damaged { path: path.clone(), at, why: String::new() });
                }
                end = at + record::len_of(record) as u64;
                next += 1;
                Ok(())
            });
        match read {
            Ok(()) | Err(LogError::Damaged { .. }) => {}
            Err(e) => return Err(e),
        }
        // The unreadable end of the last segment may never have been written.
        let is_last = i + 1 == firsts.len();
        entry.segments.push(SegmentEntry(first, if is_last { end } else { len }, 0));
        entry.next = next;
        let behind = firsts.get(i + 1).copied().filter(|&behind| behind > next && end == len);
        entry.lost.extend(behind.map(|behind| Lost(next, behind - 1)));
    }
    entry.earliest = firsts.first().copied().unwrap_or(1);
    entry.next = entry.next.max(entry.earliest);
    Ok(())
}
