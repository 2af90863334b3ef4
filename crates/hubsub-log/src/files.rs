//! Open segments and indexes: the ones used last, up to a limit.

use crate::segment::{self, Name};
use crate::storage::Storage;
use hubsub_types::HubId;
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex};

/// Which file of a chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Part {
    /// Records.
    Segment,
    /// Where they are.
    Index,
    /// Likewise, while the segment is open.
    Runs,
}

type Key = (HubId, Name, Part);

/// See the module.
pub struct Files<S: Storage> {
    storage: Arc<S>,
    open_max: usize,
    open: Mutex<Open<S::File>>,
}

struct Open<F> {
    /// With the time of last use, by count.
    files: HashMap<Key, (Arc<F>, u64)>,
    uses: u64,
}

impl<S: Storage> Files<S> {
    /// None open, at most `open_max` ≥ 1 later.
    #[must_use]
    pub fn new(storage: Arc<S>, open_max: usize) -> Files<S> {
        let open = Mutex::new(Open { files: HashMap::new(), uses: 0 });
        Files { storage, open_max: open_max.max(1), open }
    }

    /// What they are files of.
    #[must_use]
    pub fn storage(&self) -> &Arc<S> {
        &self.storage
    }

    /// A file of a chain, opened now if it is not open.
    ///
    /// # Errors
    /// Those of the storage.
    pub fn get(&self, hub: HubId, name: Name, part: Part) -> io::Result<Arc<S::File>> {
        let mut open = self.open.lock().expect("nothing panics under this lock");
        open.uses += 1;
        let now = open.uses;
        if let Some((file, used)) = open.files.get_mut(&(hub, name, part)) {
            *used = now;
            return Ok(Arc::clone(file));
        }
        let path = segment::path(hub, name, part);
        let file = Arc::new(self.storage.open(&path)?);
        if open.files.len() >= self.open_max
            && let Some(&oldest) = open.files.iter().min_by_key(|(_, (_, used))| used).map(|(key, _)| key)
        {
            open.files.remove(&oldest);
        }
        open.files.insert((hub, name, part), (Arc::clone(&file), now));
        Ok(file)
    }

    /// Closes a file that was replaced or taken away; who reads it still may.
    pub fn forget(&self, hub: HubId, name: Name, part: Part) {
        self.open.lock().expect("nothing panics under this lock").files.remove(&(hub, name, part));
    }
}
