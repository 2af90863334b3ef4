//! Reads the records of a data directory that no node uses, in order, without changing anything.

use crate::error::Context;
use crate::files::Part;
use crate::journal;
use crate::manifest::{HubEntry, Manifest};
use crate::record::Record;
use crate::segment;
use crate::storage::{Storage, StorageFile};
use crate::{LogError, Result};
use hubsub_types::HubId;
use std::ops::ControlFlow;

#[derive(Clone, Debug)]
pub struct Selection {
    /// Only this hub; all hubs in turn if none.
    pub hub: Option<HubId>,
    pub room: Option<Vec<u8>>,
    pub from: u64,
    pub count: u64,
}

/// Passes records to `take` in order of offset, until it breaks: those in segments up to the checkpoint, then
/// those in journals. Returns one sentence for each part that cannot be read.
///
/// # Errors
/// The hub does not exist, the manifest cannot be read, a file has a newer format, or the storage failed.
pub fn show(
    storage: &impl Storage,
    wanted: &Selection,
    take: &mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
) -> Result<Vec<String>> {
    let Some(manifest) = Manifest::load(storage)? else {
        return Err(LogError::Refused("there is no manifest.json".to_owned()));
    };
    if let Some(hub) = wanted.hub.filter(|&hub| manifest.hub(hub).is_none()) {
        return Err(LogError::Refused(format!("there is no hub {}", hub.0)));
    }
    let journals = journal::all_files(storage)?;
    let mut shown = Shown { wanted, left: wanted.count, unread: Vec::new(), take };
    for entry in manifest.hubs.iter().filter(|entry| wanted.hub.is_none_or(|hub| entry.hub == hub)) {
        match shown.hub(storage, manifest.identity, entry, &journals) {
            Ok(()) => {}
            Err(LogError::Stopped) => break,
            Err(e) => return Err(e),
        }
    }
    Ok(shown.unread)
}

struct Shown<'a> {
    wanted: &'a Selection,
    left: u64,
    unread: Vec<String>,
    take: &'a mut dyn FnMut(&Record<'_>) -> ControlFlow<()>,
}

impl Shown<'_> {
    fn hub(
        &mut self,
        storage: &impl Storage,
        identity: u64,
        entry: &HubEntry,
        journals: &[String],
    ) -> Result<()> {
        for (i, &listed) in entry.segments.iter().enumerate() {
            if entry.end_of(i) <= self.wanted.from {
                continue;
            }
            let path = segment::path(entry.hub, listed.name(), Part::Segment);
            let file = match storage.open(&path) {
                Ok(file) => file,
                Err(e) => {
                    self.unread.push(format!("{path}: {e}"));
                    continue;
                }
            };
            let len = file.len().io("cannot read a file")?;
            let range = segment::HEAD_BYTES..listed.1.min(len);
            let (name, end) = (listed.name(), entry.end_of(i));
            let read = segment::check_head(&file, identity, entry.hub, name, end)
                .and_then(|()| segment::scan(&file, entry.hub, name, range, |record, _| self.record(record)));
            match read {
                Ok(()) => {}
                Err(e @ LogError::Damaged { .. }) => self.unread.push(e.to_string()),
                Err(e) => return Err(e),
            }
        }
        journal::records(storage, identity, journals, |record, _| {
            if record.hub == entry.hub && record.offset >= entry.next { self.record(record) } else { Ok(()) }
        })
    }

    fn record(&mut self, record: &Record<'_>) -> Result<()> {
        let is_wanted = record.offset >= self.wanted.from
            && self.wanted.room.as_ref().is_none_or(|room| room == record.room);
        if !is_wanted {
            return Ok(());
        }
        if self.left == 0 || (self.take)(record).is_break() {
            return Err(LogError::Stopped);
        }
        self.left -= 1;
        if self.left == 0 { Err(LogError::Stopped) } else { Ok(()) }
    }
}
