//! Opens a chain with its manifest entry. Segments must match the checkpoint; bytes after the checkpoint are
//! cut off, since the journal has those records.

use super::append::{Appender, create, note};
use super::{Chain, ChainOptions, Open, Sealed, State};
use crate::error::Context;
use crate::files::{Files, Part};
use crate::index::{RoomHead, Run};
use crate::manifest::{HUB_NAME, HubEntry, Keep, Lost, SegmentEntry};
use crate::names::{self, Names};
use crate::record::Record;
use crate::repair::DAMAGED;
use crate::rooms::{RoomHash, RoomTable};
use crate::segment::{self, Name};
use crate::storage::{Storage, StorageFile};
use crate::{LogError, Result};
use hubsub_types::HubId;
use std::collections::HashSet;
use std::io::ErrorKind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock};

struct Learned {
    rooms: Vec<(RoomHash, RoomHead)>,
    /// Timestamp of the first record; 0 without one.
    first_us: u64,
    index: Run,
}

/// Creates the chain of a new hub.
///
/// # Errors
/// Errors of the storage.
pub fn new<S: Storage>(
    files: &Arc<Files<S>>,
    identity: u64,
    hub: HubId,
    keep: Keep,
    options: ChainOptions,
) -> Result<Appender<S>> {
    let first = Name::written(1);
    let chain = Arc::new(chain_of(files, identity, hub, keep, Vec::new(), State::at(first, 1)));
    let file = create(&chain, first)?;
    chain.new_names();
    Ok(Appender::new(chain, options, file))
}

/// # Errors
/// [`LogError::Damaged`]: records are missing. Others come from the storage.
pub fn open<S: Storage>(
    files: &Arc<Files<S>>,
    identity: u64,
    entry: &HubEntry,
    options: ChainOptions,
) -> Result<Appender<S>> {
    let Some((open, sealed)) = entry.segments.split_last() else {
        return new(files, identity, entry.hub, entry.keep, options);
    };
    let (name, end) = (open.name(), open.1);
    forget(files, entry);
    remove_strangers(files, entry);
    let state = State::at(name, entry.earliest);
    let chain = Arc::new(chain_of(files, identity, entry.hub, entry.keep, entry.lost.clone(), state));
    chain.open_names();
    for (i, segment) in sealed.iter().enumerate() {
        let (name, bytes, next) = (segment.name(), segment.1, entry.end_of(i));
        if name.generation > 0 && entry.keep == Keep::Log {
            return Err(chain.damaged(name, 0, "it was compacted, and the hub keeps all"));
        }
        let file = check_file(&chain, name, next)?;
        let len = file.len().io("cannot read a segment")?;
        if len != bytes {
            return Err(chain.damaged(name, len.min(bytes), format!("it has {len} bytes, not {bytes}")));
        }
        let (first_us, index) = chain.learn(segment, next, &chain.rooms)?;
        chain.write_state().sealed.push(Sealed { name, bytes, first_us, index });
    }
    let file = check_file(&chain, name, 0)?;
    let len = file.len().io("cannot read a segment")?;
    if len < end {
        return Err(chain.damaged(name, len, format!("it has {len} bytes, not {end}")));
    }
    file.set_len(end).storage("cannot cut a segment")?;
    chain.unlink(name, Part::Runs);
    let made = chain.files.storage().create(&segment::path(chain.hub, name, Part::Runs));
    made.storage("cannot make an index")?;
    chain.reread(&file, end, options)?;
    chain.remember_time()?;
    let next = chain.read_state().open.next;
    if next != entry.next {
        return Err(chain.damaged(name, end, format!("it ends before offset {next}, not {}", entry.next)));
    }
    Ok(Appender::new(chain, options, file))
}

fn chain_of<S: Storage>(
    files: &Arc<Files<S>>,
    identity: u64,
    hub: HubId,
    keep: Keep,
    lost: Vec<Lost>,
    state: State,
) -> Chain<S> {
    let (files, rooms, names) = (Arc::clone(files), RoomTable::default(), Names::default());
    let (next, state) = (AtomicU64::new(state.open.next), RwLock::new(state));
    Chain {
        hub,
        keep,
        identity,
        files,
        rooms,
        names,
        state,
        next,
        lost,
        mending: Mutex::default(),
        index_rebuilds: AtomicU64::default(),
    }
}

/// Opens a segment's file and checks its head.
fn check_file<S: Storage>(chain: &Chain<S>, name: Name, next: u64) -> Result<Arc<S::File>> {
    let file = match chain.files.get(chain.hub, name, Part::Segment) {
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return Err(chain.damaged(name, 0, "it is missing"));
        }
        file => file.io("cannot open a segment")?,
    };
    segment::check_head(&*file, chain.identity, chain.hub, name, next)?;
    Ok(file)
}

/// Closes the files of an earlier opening.
fn forget<S: Storage>(files: &Files<S>, entry: &HubEntry) {
    for name in entry.segments.iter().map(SegmentEntry::name) {
        for part in [Part::Segment, Part::Index, Part::Runs] {
            files.forget(entry.hub, name, part);
        }
    }
}

/// Removes files that the manifest does not list: written after the checkpoint, or retired or replaced before
/// it. Files that a repair put aside stay until an operator removes them.
fn remove_strangers<S: Storage>(files: &Files<S>, entry: &HubEntry) {
    let storage = files.storage();
    let of_segment = |s: &SegmentEntry| [Part::Segment, Part::Index].map(|part| s.name().file(part));
    let listed = entry.segments.iter().flat_map(of_segment);
    let listed: HashSet<String> = listed.chain([names::NAME.to_owned(), HUB_NAME.to_owned()]).collect();
    let directory = segment::directory(entry.hub);
    for name in storage.list(&directory).unwrap_or_default() {
        if !listed.contains(&name) && !name.ends_with(DAMAGED) {
            let _ = storage.unlink(&crate::storage::join(&directory, &name));
        }
    }
}

impl<S: Storage> Chain<S> {
    /// Updates a room table with the records of a sealed segment from its index, which is rebuilt if
    /// unusable. Returns the timestamp of the first record, and the index.
    pub(super) fn learn(&self, segment: &SegmentEntry, next: u64, rooms: &RoomTable) -> Result<(u64, Run)> {
        let name = segment.name();
        let Learned { rooms: of_segment, first_us, index } = match self.read_index(name, next) {
            Some(index) => index,
            None => {
                self.rebuild_index(segment, next, rooms)?;
                let why = || self.damaged(name, segment.1, "its index cannot be made");
                self.read_index(name, next).ok_or_else(why)?
            }
        };
        for (room, head) in of_segment {
            match head.count {
                0 => rooms.remove(room),
                _ => _ = rooms.set(room, head.last),
            }
        }
        Ok((first_us, index))
    }

    /// Reads the index of a sealed segment; none if it is missing, damaged or does not cover the whole
    /// segment.
    fn read_index(&self, name: Name, next: u64) -> Option<Learned> {
        let file = self.files.get(self.hub, name, Part::Index).ok()?;
        let run = Run::open(&*file, 0).ok().filter(|run| run.first == name.first && run.last + 1 == next)?;
        let samples = run.samples(&*file).ok()?;
        // A compacted segment may have no records.
        let first_us = samples.first().map_or(0, |sample| sample.timestamp_us);
        Some(Learned { rooms: run.rooms(&*file).ok()?, first_us, index: run })
    }

    /// Rebuilds the index of a sealed segment. `before` is the room table before the segment.
    pub(super) fn rebuild_index(&self, segment: &SegmentEntry, next: u64, before: &RoomTable) -> Result<Run> {
        self.index_rebuilds.fetch_add(1, Ordering::Relaxed);
        let (name, bytes) = (segment.name(), segment.1);
        let file = self.file(name, Part::Segment)?;
        let mut open = Open::at(name);
        segment::scan(&*file, self.hub, name, segment::HEAD_BYTES..bytes, |record, position| {
            self.note_in_order(before, &mut open, record, position)
        })?;
        if !name.takes(open.next, next) {
            let why = format!("it ends before offset {}, not {next}", open.next);
            return Err(self.damaged(name, bytes, why));
        }
        open.run.cover(name.first, next - 1);
        self.store_index(name, &open.run.encode())
    }

    /// Indexes a record that was read back; checks its offset.
    pub(super) fn note_in_order(
        &self,
        rooms: &RoomTable,
        open: &mut Open,
        record: &Record<'_>,
        position: u64,
    ) -> Result<()> {
        if !open.name.takes(open.next, record.offset) {
            let why = format!("offset {} stands where {} should", record.offset, open.next);
            return Err(self.damaged(open.name, position, why));
        }
        let _ = note(self.identity, rooms, open, record, position);
        Ok(())
    }

    /// Determines the time of the last record if the open segment is empty.
    fn remember_time(&self) -> Result<()> {
        let sealed = self.read_state().sealed.clone();
        // A compacted segment may have no records.
        for Sealed { name, bytes, .. } in sealed.into_iter().rev() {
            if self.read_state().open.last_us > 0 {
                break;
            }
            let file = self.file(name, Part::Segment)?;
            let mut last_us = 0;
            let mut read = |from| {
                segment::scan(&*file, self.hub, name, from..bytes, |record, _| {
                    last_us = record.timestamp_us;
                    Ok(())
                })
            };
            // If the position from the index is wrong, read from the beginning.
            match read(self.position_before(name, u64::MAX)?) {
                Err(LogError::Damaged { .. }) => read(segment::HEAD_BYTES)?,
                outcome => outcome?,
            }
            self.write_state().open.last_us = last_us;
        }
        Ok(())
    }

    /// Indexes the records of the open segment, up to `end`.
    fn reread(&self, file: &S::File, end: u64, options: ChainOptions) -> Result<()> {
        let mut open = std::mem::take(&mut self.write_state().open);
        let name = open.name;
        segment::scan(file, self.hub, name, segment::HEAD_BYTES..end, |record, position| {
            open.end = position;
            if open.end - open.run_start >= options.run_bytes {
                self.write_run(&mut open)?;
            }
            self.note_in_order(&self.rooms, &mut open, record, position)
        })?;
        open.end = end;
        self.next.store(open.next, Ordering::Release);
        self.write_state().open = open;
        Ok(())
    }
}
