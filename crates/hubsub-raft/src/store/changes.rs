//! The latest changes, for watchers: which keys changed in which version, in a ring of bounded length. Values
//! are not stored here; a watcher gets the current one.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use super::Path;
use crate::limits::CHANGES_MAX;

#[derive(Debug, Default)]
pub(super) struct Changes {
    /// Versions never decrease from front to back.
    ring: VecDeque<(u64, Path)>,
    /// All changes of later versions are in the ring.
    floor: u64,
}

impl Changes {
    /// An empty ring for a state that was loaded: changes up to `version` are unknown.
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

    /// Whether all changes after `version` are in the ring.
    pub fn reaches(&self, version: u64) -> bool {
        version >= self.floor
    }

    /// Names of `directory` that changed after `since`, each once, and the version up to which they are
    /// complete; none: all. Stops after the version with which there are `limit` names.
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
