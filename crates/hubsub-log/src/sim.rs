//! A simulated disk that tests can crash, fill and break. At a crash, each unsynced sector and name is kept
//! or lost at random (by a callback), as operating systems guarantee no more.

use crate::storage::{Storage, StorageFile, unopened};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

/// Bytes that a disk writes atomically.
const SECTOR: usize = 512;

/// The system's numbers of these errors, the same on all of them.
const EIO: i32 = 5;
const EMFILE: i32 = 24;

/// Faults that a test injects.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// Bytes that may still be stored before the disk is full.
    pub free_bytes: Option<u64>,
    /// Calls that still succeed before every write and sync fails with EIO.
    pub fails_after: Option<u64>,
    /// Whether opening a file fails with EMFILE.
    pub opens_fail: bool,
    /// Maximum bytes per `write_at`.
    pub write_bytes_max: Option<usize>,
    /// Maximum bytes per `read_at`.
    pub read_bytes_max: Option<usize>,
}

/// Clones share the same disk.
#[derive(Clone, Default)]
pub struct SimDisk {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    /// Names as a running process sees them.
    names: BTreeMap<String, Arc<Mutex<Content>>>,
    /// Names at the last `sync_directory` of their directory.
    synced: BTreeMap<String, Arc<Mutex<Content>>>,
    faults: Faults,
    /// Increased by a crash, which invalidates files opened before it.
    life: u64,
    syncs: u64,
}

#[derive(Clone, Default)]
struct Content {
    /// Bytes as a running process sees them.
    bytes: Vec<u8>,
    /// Bytes at the last sync.
    synced: Vec<u8>,
}

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
    /// Sets the faults from now on.
    pub fn set_faults(&self, faults: Faults) {
        locked(&self.state).faults = faults;
    }

    /// Number of file syncs.
    pub fn syncs(&self) -> u64 {
        locked(&self.state).syncs
    }

    /// Simulates a power loss. `keeps` decides for each unsynced sector, length and name whether it reached
    /// the disk.
    pub fn crash(&self, keeps: impl FnMut() -> bool) {
        let mut state = locked(&self.state);
        state.life += 1;
        let after = state.after_crash(keeps);
        state.names.clone_from(&after);
        state.synced = after;
        state.faults = Faults::default();
    }

    /// A separate disk with the state after a crash; threads that continue on this one do not write to it.
    pub fn crashed(&self, keeps: impl FnMut() -> bool) -> SimDisk {
        let after = locked(&self.state).after_crash(keeps);
        let state = State { names: after.clone(), synced: after, ..State::default() };
        SimDisk { state: Arc::new(Mutex::new(state)) }
    }

    /// Bytes of a file, if it exists.
    pub fn bytes(&self, path: &str) -> Option<Vec<u8>> {
        locked(&self.state).names.get(path).map(|content| locked(content).bytes.clone())
    }

    pub fn paths(&self) -> Vec<String> {
        locked(&self.state).names.keys().cloned().collect()
    }

    /// Damages a file as a disk fault does; takes effect as if synced.
    pub fn damage(&self, path: &str, damage: impl FnOnce(&mut Vec<u8>)) {
        let state = locked(&self.state);
        let mut content = locked(&state.names[path]);
        damage(&mut content.bytes);
        content.synced = content.bytes.clone();
    }

    /// Removes a file as an operator does; takes effect as if synced.
    pub fn lose(&self, path: &str) {
        let mut state = locked(&self.state);
        state.names.remove(path);
        state.synced.remove(path);
    }

    /// A separate disk with the same files.
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

/// The content of a file after a power loss.
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
    /// The names and files after a power loss.
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
        // An unsynced rename leaves the old name, the new one, or both, but never neither.
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
        // Two names may refer to one file here, as after a half-lost rename; each gets its own copy.
        after
            .into_iter()
            .map(|(name, content)| (name, Arc::new(Mutex::new(crashed(&locked(&content), &mut keeps)))))
            .collect()
    }

    /// Accounts for a call that opens a file.
    fn open(&self) -> io::Result<()> {
        let too_many = || io::Error::from_raw_os_error(EMFILE);
        if self.faults.opens_fail { Err(unopened(too_many())) } else { Ok(()) }
    }

    /// Accounts for a call that writes or syncs.
    fn spend(&mut self) -> io::Result<()> {
        match &mut self.faults.fails_after {
            Some(0) => Err(io::Error::from_raw_os_error(EIO)),
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
        // The root is always open, as in `Disk`.
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
    /// The disk, if it has not crashed since this file was opened.
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
