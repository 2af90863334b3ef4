//! The node's current room classes, shared by all its threads, and how shards pick them up.
//!
//! The control plane's thread sets them ([`crate::control::routes`]) together with their hubs. A shard works with its
//! broker's copy and checks for a newer one each time that it has taken mail: so the receiver of a letter has
//! classes at least as new as its sender had.

use hubsub_route::Hubs;
use hubsub_types::ClassTable;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

pub struct ClassesNow {
    now: RwLock<(Arc<ClassTable>, Arc<Hubs>)>,
    /// Number of changes so far, so that shards detect one.
    changes: AtomicU64,
}

impl ClassesNow {
    pub fn new(classes: Arc<ClassTable>, hubs: Arc<Hubs>) -> ClassesNow {
        ClassesNow { now: RwLock::new((classes, hubs)), changes: AtomicU64::new(0) }
    }

    pub fn get(&self) -> Arc<ClassTable> {
        Arc::clone(&self.now.read().expect("nothing panics under this lock").0)
    }

    /// A consistent pair of classes and hubs.
    pub fn both(&self) -> (Arc<ClassTable>, Arc<Hubs>) {
        self.now.read().expect("nothing panics under this lock").clone()
    }

    pub fn hubs(&self) -> Arc<Hubs> {
        Arc::clone(&self.now.read().expect("nothing panics under this lock").1)
    }

    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// Sets the hubs when the node joins a cluster. It does not count as a change: shards are notified
    /// separately.
    pub(crate) fn set_hubs(&self, hubs: Arc<Hubs>) {
        self.now.write().expect("nothing panics under this lock").1 = hubs;
    }

    /// Sets both. A shard that is woken after this call sees them.
    pub(crate) fn set(&self, classes: Arc<ClassTable>, hubs: Arc<Hubs>) {
        *self.now.write().expect("nothing panics under this lock") = (classes, hubs);
        self.changes.fetch_add(1, Ordering::Release);
    }
}
