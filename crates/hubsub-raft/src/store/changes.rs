//! The last changes, for watchers: which keys changed in which version, in a ring of bounded length. Values are not
//! kept here; a watcher gets the one that is there when it asks.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::Path;
use crate::limits::CHANGES_MAX;

#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Versions never fall from front to back.
    ring: VecDeque<(u64, Path)>,
    /// All changes of later versions are in the ring.
    floor: u64,
}

impl Changes {
    /// An empty ring behind a state that was not made here: nothing up to `version` is known.
    pub fn after(version: u64) -> Self {
        Self { ring: VecDeque::new(), floor: version }
    }

    pub fn push(&mut self, version: u64, path: Path) {
        if self.ring.len() == CHANGES_MAX
            && let Some((lost, _)) = self.ring.pop_front()
        {
            self.floor = lost;
        }
        self.ring.push_back((version, path));
    }

    /// Whether all changes after `version` are here.
    pub fn reaches(&self, version: u64) -> bool {
        version >= self.floor
    }

    /// Names of `directory` that changed after `since`, each once, and the version up to which they are complete; none:
    /// up to now. Stops after the version with which there are `limit`.
    pub fn since(&self, directory: &str, since: u64, limit: usize) -> (BTreeSet<Arc<str>>, Option<u64>) {
        let from = self.ring.partition_point(|(version, _)| *version <= since);
        let (mut names, mut last) = (BTreeSet::new(), since);
        for (version, path) in self.ring.range(from..) {
            if names.len() >= limit && *version != last {
                return (names, Some(last));
            }
            last = *version;
            if *path.directory == *directory {
                names.insert(path.name.clone());
            }
        }
        (names, None)
    }
}
