//! The store as a pure state machine: commands in, answers out. It owns keys, leases and the latest changes;
//! it uses no clock, disk or network, and does not interpret its keys.
//!
//! Invariants
//! - The state is a function of the applied commands: replicas that applied the same commands have the same
//!   state.
//! - `version` increases by one with every command that changes a key. A key's revision is the version that
//!   wrote it, so it increases with each change of the key and is never reused, not even after a deletion.
//! - A key is bound to at most one lease, and that lease exists.

mod changes;
mod command;
mod image;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::ops::Bound;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use changes::Changes;
pub use command::{Answer, Command, Expect, Value, Write, check_directory, check_key};
pub use image::{Image, ImageError};

use crate::limits::{PAGE_BYTES_MAX, PAGE_ENTRIES_MAX};

/// Number of a lease, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LeaseId(pub u64);

impl fmt::Display for LeaseId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[derive(Debug, Default)]
pub struct Store {
    /// Number of the last command that changed a key.
    version: u64,
    /// By directory, then by name, so that the keys of a directory are adjacent.
    directories: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Entry>>,
    leases: BTreeMap<LeaseId, Lease>,
    lease_last: u64,
    bytes: usize,
    changes: Changes,
}

#[derive(Clone, Debug)]
struct Entry {
    revision: u64,
    value: Value,
    lease: Option<LeaseId>,
}

#[derive(Debug)]
struct Lease {
    ttl_ms: u32,
    keys: BTreeSet<Path>,
}

/// A key, divided into directory and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Path {
    directory: Arc<str>,
    name: Arc<str>,
}

/// A name in a directory, with its entry unless it was deleted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key without its directory.
    pub name: String,
    /// Value and revision; none if the key was deleted.
    pub entry: Option<(Value, u64)>,
}

/// Position of a watcher. It is valid on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor {
    /// All changes up to this version were returned, or are part of the listing in progress.
    pub version: u64,
    /// Last name of the listing returned so far; none if the listing is complete.
    pub after: Option<String>,
}

/// An answer to a watcher: a part of a listing of the directory, or changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// A listing begins here. It consists of the items until [`Batch::whole_ends`].
    pub whole_begins: bool,
    /// The listing ends here: names that were not in it do not exist.
    pub whole_ends: bool,
    /// In a listing, sorted by name; changes are in no particular order, each name once.
    pub items: Vec<Item>,
    pub cursor: Cursor,
}

impl Store {
    /// Number of the last command that changed a key.
    pub fn version(&self) -> u64 {
        self.version
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Leases with their time to live in milliseconds.
    pub fn leases(&self) -> impl ExactSizeIterator<Item = (LeaseId, u32)> {
        self.leases.iter().map(|(id, lease)| (*id, lease.ttl_ms))
    }

    pub fn lease(&self, lease: LeaseId) -> Option<u32> {
        self.leases.get(&lease).map(|lease| lease.ttl_ms)
    }

    pub fn get(&self, key: &str) -> Option<(Value, u64)> {
        self.entry(&Path::new(key)).map(|entry| (entry.value.clone(), entry.revision))
    }

    /// Entries of a directory after `after`, sorted by name, and whether there are more. At most `limit`, and
    /// at most a page.
    pub fn page(&self, directory: &str, after: Option<&str>, limit: usize) -> (Vec<Item>, bool) {
        let Some(names) = self.directories.get(directory) else { return (Vec::new(), false) };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut rest = names.range::<str, _>((from, Bound::Unbounded)).peekable();
        let (mut items, mut bytes) = (Vec::new(), 0);
        while items.len() < limit.min(PAGE_ENTRIES_MAX)
            && bytes < PAGE_BYTES_MAX
            && let Some((name, entry)) = rest.next()
        {
            bytes += name.len() + entry.value.0.len();
            items.push(Item { name: name.to_string(), entry: Some((entry.value.clone(), entry.revision)) });
        }
        (items, rest.peek().is_some())
    }

    /// The next batch for a watcher of `directory` at `cursor`; none if there is nothing new. Without a
    /// cursor, or if changes since it are no longer retained, a listing begins.
    pub fn watch(&self, directory: &str, cursor: Option<&Cursor>) -> Option<Batch> {
        match cursor {
            Some(Cursor { version, after: Some(name) }) => Some(self.whole(directory, *version, Some(name))),
            Some(cursor) if cursor.version >= self.version => None,
            Some(cursor) if self.changes.reaches(cursor.version) => {
                Some(self.changed(directory, cursor.version))
            }
            _ => Some(self.whole(directory, self.version, None)),
        }
    }

    pub fn apply(&mut self, command: &Command) -> Answer {
        match command {
            Command::Commit { expect, writes } => self.commit(expect, writes),
            Command::Grant { ttl_ms } => {
                self.lease_last += 1;
                let id = LeaseId(self.lease_last);
                self.leases.insert(id, Lease { ttl_ms: *ttl_ms, keys: BTreeSet::new() });
                Answer::Granted(id)
            }
            Command::Release(lease) => self.end(&[*lease]),
            Command::Expire(leases) => self.end(leases),
        }
    }

    fn commit(&mut self, expect: &[Expect], writes: &[Write]) -> Answer {
        for (index, Expect { key, revision: expected }) in expect.iter().enumerate() {
            let revision = self.entry(&Path::new(key)).map_or(0, |entry| entry.revision);
            if revision != *expected {
                return Answer::Mismatch { index: index as u32, revision };
            }
        }
        for write in writes {
            if let Write::Put { lease: Some(lease), .. } = write
                && !self.leases.contains_key(lease)
            {
                return Answer::NoLease(*lease);
            }
        }
        let version = self.version + 1;
        let mut revisions = Vec::with_capacity(writes.len());
        for write in writes {
            let path = Path::new(write.key());
            match write {
                Write::Put { value, lease, .. } => {
                    self.put(path, Entry { revision: version, value: value.clone(), lease: *lease });
                    revisions.push(version);
                }
                Write::Delete { .. } => {
                    self.delete(&path, version);
                    revisions.push(0);
                }
            }
        }
        Answer::Committed(revisions)
    }

    /// Ends leases and deletes their keys; skips leases that do not exist.
    fn end(&mut self, leases: &[LeaseId]) -> Answer {
        let (version, mut ended) = (self.version + 1, 0);
        for lease in leases {
            let Some(lease) = self.leases.remove(lease) else { continue };
            ended += 1;
            for path in lease.keys {
                self.delete(&path, version);
            }
        }
        Answer::Ended(ended)
    }

    fn put(&mut self, path: Path, entry: Entry) {
        self.take(&path);
        self.note(entry.revision, &path);
        self.place(path, entry);
    }

    /// Inserts an entry for a key that does not exist, without recording a change for watchers.
    fn place(&mut self, path: Path, entry: Entry) {
        self.bytes += path.bytes() + entry.value.0.len();
        if let Some(lease) = entry.lease.and_then(|lease| self.leases.get_mut(&lease)) {
            lease.keys.insert(path.clone());
        }
        self.directories.entry(path.directory).or_default().insert(path.name, entry);
    }

    fn delete(&mut self, path: &Path, version: u64) {
        if self.take(path) {
            self.note(version, path);
        }
    }

    /// Removes an entry; returns whether there was one.
    fn take(&mut self, path: &Path) -> bool {
        let Some(names) = self.directories.get_mut(&path.directory) else { return false };
        let Some(entry) = names.remove(&path.name) else { return false };
        if names.is_empty() {
            self.directories.remove(&path.directory);
        }
        self.bytes -= path.bytes() + entry.value.0.len();
        if let Some(lease) = entry.lease.and_then(|lease| self.leases.get_mut(&lease)) {
            lease.keys.remove(path);
        }
        true
    }

    fn note(&mut self, version: u64, path: &Path) {
        self.version = version;
        self.changes.push(version, path.clone());
    }

    fn entry(&self, path: &Path) -> Option<&Entry> {
        self.directories.get(&path.directory)?.get(&path.name)
    }

    fn whole(&self, directory: &str, version: u64, after: Option<&str>) -> Batch {
        let (items, more) = self.page(directory, after, PAGE_ENTRIES_MAX);
        let last = if more { items.last().map(|item| item.name.clone()) } else { None };
        Batch {
            whole_begins: after.is_none(),
            whole_ends: !more,
            items,
            cursor: Cursor { version, after: last },
        }
    }

    fn changed(&self, directory: &str, since: u64) -> Batch {
        let (names, version) = self.changes.since(directory, since, PAGE_ENTRIES_MAX);
        let here = self.directories.get(directory);
        let items = names
            .into_iter()
            .map(|name| {
                let entry = here.and_then(|names| names.get(&name));
                Item {
                    name: name.to_string(),
                    entry: entry.map(|entry| (entry.value.clone(), entry.revision)),
                }
            })
            .collect();
        let cursor = Cursor { version: version.unwrap_or(self.version), after: None };
        Batch { whole_begins: false, whole_ends: false, items, cursor }
    }
}

impl Path {
    fn new(key: &str) -> Self {
        let (directory, name) = key.rsplit_once('/').unwrap_or(("", key));
        Self { directory: directory.into(), name: name.into() }
    }

    fn bytes(&self) -> usize {
        self.directory.len() + self.name.len()
    }
}
