//! A disk that can be crashed, filled and broken, for tests of whoever stores on
//! it. What was not synced is kept or lost at a crash sector by sector and name by
//! name, as the given randomness says: an operating system promises no more.

use crate::error::unopened;
use crate::storage::{Storage, StorageFile};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// What a disk writes at once or not at all.
const SECTOR: usize = 512;

/// What a test wants to go wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Bytes that may still be stored before the disk is full.
    pub free_bytes: Option<u64>,
    /// Calls that still succeed before every write and sync fails with EIO.
    pub fails_after: Option<u64>,
    /// Whether no file can be opened: too many are.
    pub opens_fail: bool,
    /// Bytes that one `write_at` takes at most.
    pub write_bytes_max: Option<usize>,
    /// Bytes that one `read_at` gives at most.
    pub read_bytes_max: Option<usize>,
}

/// See the module. Clones are the same disk.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Names as a running process sees them.
    names: BTreeMap<String, Arc<Mutex<Content>>>,
    /// Names as they were at the last `sync_directory`, by directory.
    synced: BTreeMap<String, Arc<Mutex<Content>>>,
    faults: Faults,
    /// Raised by a crash: files opened before it are dead.
    life: u64,
    syncs: u64,
}

#[derive(Clone, Default)]
struct Content {
    /// As a running process sees it.
    bytes: Vec<u8>,
    /// As of the last sync.
    synced: Vec<u8>,
}

/// An open file of a [`SimDisk`].
pub struct SimFile {
    content: Arc<Mutex<Content>>,
    disk: Weak<Mutex<State>>,
    life: u64,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nothing panics under this lock")
}

fn directory_of(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(directory, _)| directory)
}

impl SimDisk {
    /// Sets what goes wrong from now on.
    pub fn set_faults(&self, faults: Faults) {
        locked(&self.state).faults = faults;
    }

    /// Syncs of files since the start.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        locked(&self.state).syncs
    }

    /// The machine loses power. `keeps` is asked for each sector, length and name
    /// that was not synced whether it reached the disk all the same.
    pub fn crash(&self, keeps: impl FnMut() -> bool) {
        let mut state = locked(&self.state);
        state.life += 1;
        let after = state.after_crash(keeps);
        state.names.clone_from(&after);
        state.synced = after;
        state.faults = Faults::default();
    }

    /// What `crash` would leave, as a disk of its own: threads that go on with this one
    /// write nothing to it.
    #[must_use]
    pub fn crashed(&self, keeps: impl FnMut() -> bool) -> SimDisk {
        let after = locked(&self.state).after_crash(keeps);
        let state = State { names: after.clone(), synced: after, ..State::default() };
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Bytes of a file, if it is there.
    #[must_use]
    pub fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        locked(&self.state).names.get(path).map(|content| locked(content).bytes.clone())
    }

    /// All paths.
    #[must_use]
    pub fn paths(&self) -> Vec<String> {
        locked(&self.state).names.keys().cloned().collect()
    }

    /// Damages a file, as if by a fault of the disk: safe at once.
    pub fn damage(&self, path: &str, damage: impl FnOnce(&mut Vec<u8>)) {
        let state = locked(&self.state);
        let mut content = locked(&state.names[path]);
        damage(&mut content.bytes);
        content.synced = content.bytes.clone();
    }

    /// Removes a file, as if by hand: safe at once.
    pub fn lose(&self, path: &str) {
        let mut state = locked(&self.state);
        state.names.remove(path);
        state.synced.remove(path);
    }

    /// A disk of its own with the same files.
    #[must_use]
    pub fn copy(&self) -> SimDisk {
        let state = locked(&self.state);
        let names: BTreeMap<_, _> = state
            .names
            .iter()
            .map(|(name, content)| (name.clone(), Arc::new(Mutex::new(locked(content).clone()))))
            .collect();
        let copy = State { synced: names.clone(), names, ..State::default() };
        SimDisk { state: Arc::new(Mutex::new(copy)) }
    }
}

/// What of a file's unsynced sectors and length reached the disk.
fn crashed(content: &Content, keeps: &mut impl FnMut() -> bool) -> Content {
    let Content { bytes: now, synced: before } = content;
    let len = if now.len() == before.len() || keeps() { now.len() } else { before.len() };
    let mut bytes = before.clone();
    bytes.resize(len, 0);
    for (at, sector) in bytes.chunks_mut(SECTOR).enumerate() {
        let at = at * SECTOR;
        let written = &now[at.min(now.len())..(at + sector.len()).min(now.len())];
        if sector[..written.len()] != *written && keeps() {
            sector[..written.len()].copy_from_slice(written);
        }
    }
    Content { synced: bytes.clone(), bytes }
}

impl State {
    /// The names and files that a loss of power leaves.
    fn after_crash(&self, mut keeps: impl FnMut() -> bool) -> BTreeMap<String, Arc<Mutex<Content>>> {
        let mut names: Vec<String> = self.names.keys().chain(self.synced.keys()).cloned().collect();
        names.sort_unstable();
        names.dedup();
        let mut after = BTreeMap::new();
        for name in names {
            let (now, before) = (self.names.get(&name), self.synced.get(&name));
            let is_same = match (now, before) {
                (Some(now), Some(before)) => Arc::ptr_eq(now, before),
                _ => false,
            };
            if let Some(content) = if is_same || keeps() { now } else { before } {
                after.insert(name, Arc::clone(content));
            }
        }
        // A rename that was not synced leaves the old name, the new one, or both, never neither.
        for (old, content) in &self.synced {
            let is_it = |other: &Arc<Mutex<Content>>| Arc::ptr_eq(other, content);
            let new = self.names.iter().find(|(_, now)| is_it(now)).map(|(name, _)| name);
            if let Some(new) = new
                && !after.values().any(is_it)
            {
                let name = if after.contains_key(old) { new } else { old };
                after.insert(name.clone(), Arc::clone(content));
            }
        }
        // Two names may stand for one file now, as after a rename that was half lost.
        after
            .into_iter()
            .map(|(name, content)| (name, Arc::new(Mutex::new(crashed(&locked(&content), &mut keeps)))))
            .collect()
    }

    /// A call that opens a file.
    fn open(&self) -> io::Result<()> {
        let too_many = || io::Error::from_raw_os_error(rustix::io::Errno::MFILE.raw_os_error());
        if self.faults.opens_fail { Err(unopened(too_many())) } else { Ok(()) }
    }

    /// A call that writes or syncs.
    fn spend(&mut self) -> io::Result<()> {
        match &mut self.faults.fails_after {
            Some(0) => Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }
}

impl Storage for SimDisk {
    type File = SimFile;

    fn create(&self, path: &str) -> io::Result<SimFile> {
        let mut state = locked(&self.state);
        state.spend()?;
        state.open()?;
        if state.names.contains_key(path) {
            return Err(ErrorKind::AlreadyExists.into());
        }
        let content = Arc::new(Mutex::new(Content::default()));
        state.names.insert(path.to_owned(), Arc::clone(&content));
        Ok(SimFile { content, disk: Arc::downgrade(&self.state), life: state.life })
    }

    fn open(&self, path: &str) -> io::Result<SimFile> {
        let state = locked(&self.state);
        state.open()?;
        let content = Arc::clone(state.names.get(path).ok_or(ErrorKind::NotFound)?);
        Ok(SimFile { content, disk: Arc::downgrade(&self.state), life: state.life })
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut state = locked(&self.state);
        state.spend()?;
        let content = state.names.remove(from).ok_or(ErrorKind::NotFound)?;
        let replaced = state.names.insert(to.to_owned(), content);
        if let (Some(free), Some(replaced)) = (&mut state.faults.free_bytes, replaced) {
            *free += locked(&replaced).bytes.len() as u64;
        }
        Ok(())
    }

    fn unlink(&self, path: &str) -> io::Result<()> {
        let mut state = locked(&self.state);
        let content = state.names.remove(path).ok_or(ErrorKind::NotFound)?;
        if let Some(free) = &mut state.faults.free_bytes {
            *free += locked(&content).bytes.len() as u64;
        }
        Ok(())
    }

    fn list(&self, directory: &str) -> io::Result<Vec<String>> {
        let state = locked(&self.state);
        let names = state.names.keys().filter(|name| directory_of(name) == directory);
        Ok(names.map(|name| name.rsplit('/').next().unwrap_or(name).to_owned()).collect())
    }

    fn list_directories(&self, directory: &str) -> io::Result<Vec<String>> {
        let state = locked(&self.state);
        let prefix = if directory.is_empty() { String::new() } else { format!("{directory}/") };
        let below = state.names.keys().filter_map(|name| name.strip_prefix(&prefix));
        let mut names: Vec<String> =
            below.filter_map(|rest| rest.split_once('/')).map(|(first, _)| first.to_owned()).collect();
        names.dedup();
        Ok(names)
    }

    fn sync_directory(&self, directory: &str) -> io::Result<()> {
        let mut state = locked(&self.state);
        state.spend()?;
        // The root is open, as that of a disk.
        if !directory.is_empty() {
            state.open()?;
        }
        state.synced.retain(|name, _| directory_of(name) != directory);
        let State { names, synced, .. } = &mut *state;
        let here = names.iter().filter(|(name, _)| directory_of(name) == directory);
        synced.extend(here.map(|(name, content)| (name.clone(), Arc::clone(content))));
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<u64> {
        Ok(locked(&self.state).faults.free_bytes.unwrap_or(u64::MAX))
    }
}

impl SimFile {
    /// The disk, if it has not crashed since this was opened.
    fn disk(&self) -> io::Result<Arc<Mutex<State>>> {
        let disk = self.disk.upgrade().ok_or(ErrorKind::NotConnected)?;
        let is_alive = locked(&disk).life == self.life;
        if is_alive { Ok(disk) } else { Err(ErrorKind::NotConnected.into()) }
    }
}

impl StorageFile for SimFile {
    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let disk = self.disk()?;
        let mut state = locked(&disk);
        state.spend()?;
        let mut content = locked(&self.content);
        let at = at as usize;
        let mut n = bytes.len().min(state.faults.write_bytes_max.unwrap_or(usize::MAX));
        if let Some(free) = &mut state.faults.free_bytes {
            let room = content.bytes.len().saturating_sub(at) + *free as usize;
            n = n.min(room);
            if n == 0 {
                return Err(ErrorKind::StorageFull.into());
            }
            *free -= (at + n).saturating_sub(content.bytes.len()) as u64;
        }
        if content.bytes.len() < at + n {
            content.bytes.resize(at + n, 0);
        }
        content.bytes[at..at + n].copy_from_slice(&bytes[..n]);
        Ok(n)
    }

    fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        let disk = self.disk()?;
        let limit = locked(&disk).faults.read_bytes_max.unwrap_or(usize::MAX);
        let content = locked(&self.content);
        let from = content.bytes.get(at as usize..).unwrap_or_default();
        let n = bytes.len().min(from.len()).min(limit);
        bytes[..n].copy_from_slice(&from[..n]);
        Ok(n)
    }

    fn sync(&self) -> io::Result<()> {
        let disk = self.disk()?;
        let mut state = locked(&disk);
        state.spend()?;
        state.syncs += 1;
        let mut content = locked(&self.content);
        content.synced = content.bytes.clone();
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let disk = self.disk()?;
        let mut state = locked(&disk);
        state.spend()?;
        let mut content = locked(&self.content);
        let (old, new) = (content.bytes.len() as u64, len);
        if let Some(free) = &mut state.faults.free_bytes {
            *free = (*free + old).checked_sub(new).ok_or(ErrorKind::StorageFull)?;
        }
        content.bytes.resize(len as usize, 0);
        Ok(())
    }

    fn len(&self) -> io::Result<u64> {
        self.disk()?;
        Ok(locked(&self.content).bytes.len() as u64)
    }
}
