//! The names of a hub's rooms, in a file beside its segments: the room table has only hashes, and a listing
//! needs names. `docs/log-format.md` documents the layout.
//!
//! The file can always be rebuilt. It has the name of every room in the table, and may have names of removed
//! rooms and duplicates. The writer appends a name when the table gets a new room, and rewrites the file when
//! more than half of it is obsolete. After each start, the first reader checks the file against the table
//! once; if a name is missing, the file is rebuilt from the segments. So names take no memory, and damage to
//! the file loses no room: a failing disk costs only this file.
//!
//! Invariant: while `file` is set and `is_checked`, the file and `pending` have the name of every room in the
//! table, except of rooms that the writer is about to push. Lock order: `making`, the chain's state, `state`.

mod file;

use crate::chain::Chain;
use crate::error::is_full;
use crate::record;
use crate::rooms::{Last, RoomHash};
use crate::segment;
use crate::storage::{Storage, StorageFile, join};
use crate::{LogError, Result};
use file::{HEAD, READ_BYTES, decode, encode, head, is_head, walk};
use std::collections::{BTreeMap, HashSet};
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

/// Name of the file, then of its replacement.
pub(crate) const NAME: &str = "names";
const NEW_NAME: &str = "names.new";

const WRITE_BYTES: usize = 64 * 1024;

/// Limit of names that wait for disk space; above it the file is dropped.
const PENDING_BYTES_MAX: usize = 1 << 20;

/// Minimum of obsolete entries that justifies rewriting the file.
const SPARE_ENTRIES: u64 = 1024;

/// How often a reader restarts after the file was found damaged.
const TRIES_MAX: u32 = 4;

/// How often the segments are read further to find names added meanwhile.
const ROUNDS_MAX: u32 = 8;

pub(crate) struct Names<F> {
    state: Mutex<State<F>>,
    /// Held while the file is checked or rebuilt.
    making: Mutex<()>,
    is_stopping: AtomicBool,
}

struct State<F> {
    /// None: there is no usable file, and nothing is appended.
    file: Option<Arc<F>>,
    /// Bytes of whole entries in the file, including the head.
    end: u64,
    /// Entries in the file and in `pending`.
    entries: u64,
    pending: Vec<u8>,
    is_dirty: bool,
    /// Whether no name is missing.
    is_checked: bool,
}

/// A consistent view that a reader uses without a lock.
struct Snapshot<F> {
    file: Arc<F>,
    end: u64,
    pending: Vec<u8>,
}

impl<F> Default for Names<F> {
    fn default() -> Names<F> {
        let (file, pending) = (None, Vec::new());
        let state = State { file, end: HEAD, entries: 0, pending, is_dirty: false, is_checked: false };
        Names { state: Mutex::new(state), making: Mutex::default(), is_stopping: AtomicBool::new(false) }
    }
}

impl<F: StorageFile> Names<F> {
    fn state(&self) -> MutexGuard<'_, State<F>> {
        self.state.lock().expect("nothing panics under this lock")
    }

    /// Adds the name of a new room; the caller holds the chain's state.
    pub(crate) fn push(&self, name: &[u8]) {
        let mut state = self.state();
        if state.file.is_some() {
            encode(name, &mut state.pending);
            state.entries += 1;
        }
    }

    fn snapshot(&self) -> Option<Snapshot<F>> {
        self.state().snapshot()
    }

    /// A snapshot, if the file is known to have all names.
    fn checked(&self) -> Option<Snapshot<F>> {
        let state = self.state();
        if state.is_checked { state.snapshot() } else { None }
    }
}

impl<F: StorageFile> State<F> {
    fn snapshot(&self) -> Option<Snapshot<F>> {
        let file = Arc::clone(self.file.as_ref()?);
        Some(Snapshot { file, end: self.end, pending: self.pending.clone() })
    }

    fn begin(&mut self, file: F, is_checked: bool) {
        let file = Some(Arc::new(file));
        *self = State { file, end: HEAD, entries: 0, pending: Vec::new(), is_dirty: true, is_checked };
    }

    fn flush(&mut self) -> io::Result<()> {
        let Some(file) = self.file.as_ref().filter(|_| !self.pending.is_empty()) else { return Ok(()) };
        self.is_dirty = true;
        file.write_all_at(&self.pending, self.end)?;
        self.end += self.pending.len() as u64;
        self.pending.clear();
        self.pending.shrink_to(WRITE_BYTES);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.flush()?;
        if let Some(file) = self.file.as_ref().filter(|_| self.is_dirty) {
            file.sync()?;
            self.is_dirty = false;
        }
        Ok(())
    }
}

impl<S: Storage> Chain<S> {
    /// Creates the file of a hub without rooms.
    pub(crate) fn new_names(&self) {
        if let Ok(file) = self.create_names(NAME) {
            self.names.state().begin(file, true);
        }
    }

    /// Opens the existing file, as far as it can be read.
    pub(crate) fn open_names(&self) {
        let path = self.names_path(NAME);
        let found = self.storage().open(&path).and_then(|file| {
            let len = file.len()?;
            if !is_head(&file, self.hub, self.identity)? {
                return Err(ErrorKind::InvalidData.into());
            }
            // Bytes after the readable entries are overwritten; if they become readable later, they are names
            // nevertheless.
            let (end, entries) = walk(&file, HEAD, len, |_| {})?;
            Ok((file, end, entries))
        });
        if let Ok((file, end, entries)) = found {
            let mut state = self.names.state();
            state.begin(file, false);
            (state.end, state.entries) = (end, entries);
        }
    }

    pub(crate) fn flush_names(&self) {
        let mut state = self.names.state();
        if let Err(e) = state.flush()
            && (!is_full(&e) || state.pending.len() > PENDING_BYTES_MAX)
        {
            self.drop_names(&mut state);
        }
    }

    /// Syncs the written names as a part of a checkpoint. If this fails, there is no file until a reader
    /// needs it.
    pub(crate) fn sync_names(&self) {
        self.rewrite_names();
        let mut state = self.names.state();
        if state.sync().is_err() {
            self.drop_names(&mut state);
        }
    }

    /// Rewrites the file if more than half of it is obsolete.
    fn rewrite_names(&self) {
        let is_bloated = |state: &State<S::File>| {
            state.file.is_some() && state.entries > 2 * self.rooms.len() as u64 + SPARE_ENTRIES
        };
        if !is_bloated(&self.names.state()) {
            return;
        }
        // The segment thread does not wait for readers; a later checkpoint tries again.
        let _alone = match self.names.making.try_lock() {
            Ok(alone) => alone,
            Err(TryLockError::WouldBlock) => return,
            Err(TryLockError::Poisoned(_)) => unreachable!("nothing panics under this lock"),
        };
        let Some(old) = self.names.snapshot() else { return };
        match self.copy_names(&old) {
            Ok((file, end, entries)) => {
                let mut state = self.names.state();
                let is_checked = state.is_checked;
                state.begin(file, is_checked);
                (state.end, state.entries, state.is_dirty) = (end, entries, false);
            }
            Err(e) => {
                let _ = self.storage().unlink(&self.names_path(NEW_NAME));
                if !is_full(&e) {
                    self.drop_names(&mut self.names.state());
                }
            }
        }
    }

    /// Replaces the old file with one that has each present room once.
    fn copy_names(&self, old: &Snapshot<S::File>) -> io::Result<(S::File, u64, u64)> {
        let file = self.create_names(NEW_NAME)?;
        let (mut end, mut bytes, mut seen) = (HEAD, Vec::new(), HashSet::new());
        let mut failed = Ok(());
        let read = old.read(HEAD, |name| {
            let hash = self.hash(name);
            if failed.is_ok() && self.rooms.get(hash).is_some() && seen.insert(hash) {
                encode(name, &mut bytes);
                if bytes.len() >= WRITE_BYTES {
                    failed = file.write_all_at(&bytes, end);
                    end += bytes.len() as u64;
                    bytes.clear();
                }
            }
        });
        failed.and(read)?;
        file.write_all_at(&bytes, end)?;
        end += bytes.len() as u64;
        file.sync()?;
        self.storage().rename(&self.names_path(NEW_NAME), &self.names_path(NAME))?;
        self.storage().sync_directory(&segment::directory(self.hub))?;
        Ok((file, end, seen.len() as u64))
    }

    fn drop_names(&self, state: &mut State<S::File>) {
        (state.file, state.pending, state.is_checked) = (None, Vec::new(), false);
        let _ = self.storage().unlink(&self.names_path(NAME));
    }

    fn create_names(&self, name: &str) -> io::Result<S::File> {
        let path = self.names_path(name);
        match self.storage().unlink(&path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let file = self.storage().create(&path)?;
        file.write_all_at(&head(self.hub, self.identity), 0)?;
        Ok(file)
    }

    fn names_path(&self, name: &str) -> String {
        join(&segment::directory(self.hub), name)
    }
}

impl<S: Storage> Chain<S> {
    /// Returns up to `limit` rooms after the name `after` that `matches` accepts, sorted by name, each with
    /// its last record. Reads the whole file of names, and the first time checks that it is complete: do not
    /// call it on a latency-critical thread.
    ///
    /// # Errors
    /// The file had to be rebuilt and could not: segments are damaged, or the storage failed or is full.
    pub fn rooms_page(
        &self,
        after: Option<&[u8]>,
        limit: usize,
        mut matches: impl FnMut(&[u8]) -> bool,
    ) -> Result<Vec<(Vec<u8>, Last)>> {
        let mut failed = given_up();
        for _ in 0..TRIES_MAX {
            self.check_names()?;
            // Another reader may have found it damaged since, and rebuilds it.
            let Some(names) = self.names.checked() else { continue };
            let mut page: BTreeMap<Vec<u8>, Last> = BTreeMap::new();
            let read = names.read(HEAD, |name| {
                let is_behind = after.is_none_or(|after| name > after);
                let is_full = page.len() >= limit;
                let is_near = !is_full || page.last_key_value().is_some_and(|(last, _)| name < &last[..]);
                if !is_behind || !is_near || page.contains_key(name) || !matches(name) {
                    return;
                }
                if let Some(last) = self.rooms.get(self.hash(name)) {
                    page.insert(name.to_vec(), last);
                    if is_full {
                        page.pop_last();
                    }
                }
            });
            match read {
                Ok(()) => return Ok(page.into_iter().collect()),
                Err(e) => {
                    self.forget_names(&names.file);
                    failed = LogError::io("cannot read the names of rooms", e);
                }
            }
        }
        Err(failed)
    }

    pub fn stop_names(&self) {
        self.names.is_stopping.store(true, Ordering::Relaxed);
    }

    /// Ensures that no name is missing, once after each start.
    fn check_names(&self) -> Result<()> {
        let _alone = self.names.making.lock().expect("nothing panics under this lock");
        if self.names.state().is_checked || self.is_all_named() {
            return Ok(());
        }
        let file = self.create_names(NAME).map_err(cannot_make)?;
        self.names.state().begin(file, false);
        let mut from = 0;
        for _ in 0..ROUNDS_MAX {
            match self.name_all(from) {
                Ok(next) => from = next,
                Err(e) => {
                    self.drop_names(&mut self.names.state());
                    return Err(e);
                }
            }
            if self.is_all_named() {
                let synced = self.names.state().sync();
                let directory = segment::directory(self.hub);
                return synced.and_then(|()| self.storage().sync_directory(&directory)).map_err(|e| {
                    self.drop_names(&mut self.names.state());
                    cannot_make(e)
                });
            }
        }
        self.drop_names(&mut self.names.state());
        Err(given_up())
    }

    /// Checks whether the file and `pending` have the name of every room in the table, and sets `is_checked`
    /// accordingly.
    fn is_all_named(&self) -> bool {
        let Some(first) = self.names.snapshot() else { return false };
        let mut seen = HashSet::new();
        match walk(&*first.file, HEAD, first.end, |name| _ = seen.insert(self.hash(name))) {
            Ok((end, _)) if end == first.end => {}
            _ => return false,
        }
        let mut missing: HashSet<RoomHash> = HashSet::new();
        self.rooms.for_each(|hash, _| _ = !seen.contains(&hash) && missing.insert(hash));
        drop(seen);
        // Rooms added meanwhile have their names now: the writer adds both under the chain's state.
        let held = self.hold();
        let Some(now) = self.names.snapshot().filter(|now| Arc::ptr_eq(&now.file, &first.file)) else {
            return false;
        };
        drop(held);
        let is_read = now.read(first.end, |name| _ = missing.remove(&self.hash(name))).is_ok();
        missing.retain(|&hash| self.rooms.get(hash).is_some());
        let mut state = self.names.state();
        let is_same = state.file.as_ref().is_some_and(|file| Arc::ptr_eq(file, &first.file));
        state.is_checked = is_same && is_read && missing.is_empty();
        state.is_checked
    }

    /// Adds the names of rooms that have records from an offset on. Returns the offset after the last record
    /// read.
    fn name_all(&self, from: u64) -> Result<u64> {
        let (mut seen, mut names, mut bytes) = (HashSet::new(), Vec::new(), Vec::new());
        let through = self.next();
        let mut next = from.max(self.info().earliest);
        while next < through {
            if self.names.is_stopping.load(Ordering::Relaxed) {
                return Err(LogError::Refused("the log is being closed".to_owned()));
            }
            bytes.clear();
            next = match self.read_offsets(next, READ_BYTES, &mut bytes) {
                Ok(behind) => behind,
                // Retention removed the segment meanwhile.
                Err(_) if self.info().earliest > next => self.info().earliest,
                Err(e) => return Err(e),
            };
            for (record, _) in record::all(&bytes) {
                let hash = self.hash(record.room);
                if self.rooms.get(hash).is_some() && seen.insert(hash) {
                    names.push(record.room.to_vec());
                }
            }
            let mut state = self.names.state();
            if state.file.is_none() {
                return Err(given_up());
            }
            for name in names.drain(..) {
                encode(&name, &mut state.pending);
                state.entries += 1;
            }
            if state.pending.len() >= WRITE_BYTES {
                state.flush().map_err(cannot_make)?;
            }
        }
        Ok(through)
    }

    fn forget_names(&self, file: &Arc<S::File>) {
        let mut state = self.names.state();
        if state.file.as_ref().is_some_and(|now| Arc::ptr_eq(now, file)) {
            self.drop_names(&mut state);
        }
    }
}

impl<F: StorageFile> Snapshot<F> {
    /// Passes every name from a position of the file on to `take`, then those in `pending`.
    fn read(&self, from: u64, mut take: impl FnMut(&[u8])) -> io::Result<()> {
        let (end, _) = walk(&*self.file, from, self.end, &mut take)?;
        if end < self.end {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut at = 0;
        while let Some((name, len)) = decode(&self.pending[at..]) {
            take(name);
            at += len;
        }
        Ok(())
    }
}

fn cannot_make(e: io::Error) -> LogError {
    LogError::storage("cannot write the names of rooms", e)
}

/// The writer dropped the file during the rebuild, since the storage failed.
fn given_up() -> LogError {
    LogError::Refused("the names of the rooms cannot be written; hint: ask again".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDisk;

    #[test]
    fn a_file_that_is_being_made_is_not_read() {
        let disk = SimDisk::default();
        disk.create("f").unwrap();
        let names = Names::default();
        for is_whole in [false, true] {
            names.state().begin(disk.open("f").unwrap(), is_whole);
            assert!(names.snapshot().is_some());
            assert_eq!(names.checked().is_some(), is_whole);
        }
    }
}
