//! Cache of open segment and index files, up to a limit. At the limit it closes the least recently used file
//! of a small sample. With the least recently used of all, a reader that scans a log end to end repeatedly
//! would never hit the cache.

use crate::error::is_unopened;
use crate::segment::{self, Name};
use crate::storage::Storage;
use hubsub_types::HubId;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    Segment,
    /// Positions of the records.
    Index,
    /// Index of the open segment, written run by run.
    Runs,
}

type Key = (HubId, Name, Part);

const SAMPLE: u64 = 2;

pub struct Files<S: Storage> {
    storage: Arc<S>,
    open_max: usize,
    open: Mutex<Open<S::File>>,
}

struct Open<F> {
    places: HashMap<Key, usize>,
    /// The last field is the value of `uses` at the last use.
    files: Vec<(Key, Arc<F>, u64)>,
    uses: u64,
    /// Number of files forgotten; shows a concurrent `forget`.
    forgotten: u64,
}

impl<F> Open<F> {
    fn get(&mut self, key: Key) -> Option<Arc<F>> {
        self.uses += 1;
        let (_, file, used) = &mut self.files[*self.places.get(&key)?];
        *used = self.uses;
        Some(Arc::clone(file))
    }

    fn insert(&mut self, key: Key, file: Arc<F>, open_max: usize) {
        if self.files.len() >= open_max {
            let of_all = |i: u64| {
                // Derived from the use count; as good as random here.
                let random = (self.uses * SAMPLE + i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                ((u128::from(random) * self.files.len() as u128) >> 64) as usize
            };
            let oldest = (0..SAMPLE).map(of_all).min_by_key(|&at| self.files[at].2);
            self.remove(oldest.expect("a sample has some"));
        }
        self.places.insert(key, self.files.len());
        self.files.push((key, file, self.uses));
    }

    fn remove(&mut self, at: usize) {
        let (key, ..) = self.files.swap_remove(at);
        self.places.remove(&key);
        if let Some((moved, ..)) = self.files.get(at) {
            self.places.insert(*moved, at);
        }
    }
}

impl<S: Storage> Files<S> {
    /// An empty cache of at most `open_max` files (at least 1).
    pub fn new(storage: Arc<S>, open_max: usize) -> Files<S> {
        let open = Open { places: HashMap::new(), files: Vec::new(), uses: 0, forgotten: 0 };
        Files { storage, open_max: open_max.max(1), open: Mutex::new(open) }
    }

    pub fn storage(&self) -> &Arc<S> {
        &self.storage
    }

    /// Returns a file of a chain; opens it if it is not open.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn get(&self, hub: HubId, name: Name, part: Part) -> io::Result<Arc<S::File>> {
        let key = (hub, name, part);
        let forgotten = {
            let mut open = self.open();
            if let Some(file) = open.get(key) {
                return Ok(file);
            }
            open.forgotten
        };
        // The lock is not held here: only callers that want this file wait for the disk.
        let path = segment::path(hub, name, part);
        let opened = self.storage.open(&path).or_else(|e| {
            // The process may be out of file descriptors, so close the cached files and retry.
            if is_unopened(&e) && self.close_all() { self.storage.open(&path) } else { Err(e) }
        });
        let file = Arc::new(opened?);
        let mut open = self.open();
        if let Some(file) = open.get(key) {
            return Ok(file);
        }
        // A file that was forgotten meanwhile may be this one.
        if open.forgotten == forgotten {
            open.insert(key, Arc::clone(&file), self.open_max);
        }
        Ok(file)
    }

    /// Drops a file that was replaced or removed; readers that have it open may go on.
    pub fn forget(&self, hub: HubId, name: Name, part: Part) {
        let mut open = self.open();
        open.forgotten += 1;
        if let Some(&at) = open.places.get(&(hub, name, part)) {
            open.remove(at);
        }
    }

    /// Closes all cached files; returns whether there were any.
    fn close_all(&self) -> bool {
        let mut open = self.open();
        open.places.clear();
        let files = std::mem::take(&mut open.files);
        !files.is_empty()
    }

    fn open(&self) -> MutexGuard<'_, Open<S::File>> {
        self.open.lock().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::SimDisk;

    #[test]
    fn who_goes_round_more_files_than_may_be_open_finds_most_of_them_open() {
        let disk = SimDisk::default();
        let name = |i: u64| Name::written(1 + i % 100);
        let hub = HubId(1);
        (0..100).for_each(|i| _ = disk.create(&segment::path(hub, name(i), Part::Segment)).unwrap());
        let files = Files::new(Arc::new(disk), 80);
        let mut opened = 0;
        for i in 0..1000 {
            opened += usize::from(!files.open().places.contains_key(&(hub, name(i), Part::Segment)));
            files.get(hub, name(i), Part::Segment).unwrap();
            let open = files.open();
            assert!(open.files.len() <= 80 && open.files.len() == open.places.len());
            assert!(open.places.iter().all(|(key, &at)| open.files[at].0 == *key));
        }
        assert!(opened < 700, "{opened} of 1000");
        (0..100).for_each(|i| files.forget(hub, name(i), Part::Segment));
        assert!(files.open().files.is_empty() && files.open().places.is_empty());
    }
}
