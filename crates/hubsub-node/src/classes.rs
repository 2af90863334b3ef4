//! The room classes of the node as they are now, for all its threads, and how shards come to them.
//!
//! The control plane's thread sets them ([`crate::routes`]), with the hubs that belong to them. Shards hold what their
//! brokers have, and look whether it is still the latest each time that they have taken mail: who sent a letter had
//! new classes no later than who reads it.

use crate::core::Core;
use hubsub_route::Hubs;
use hubsub_types::ClassTable;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

/// See the module.
pub struct ClassesNow {
    now: RwLock<(Arc<ClassTable>, Arc<Hubs>)>,
    /// How often they were set.
    changes: AtomicU64,
}

impl ClassesNow {
    /// These, with the hubs of the node.
    #[must_use]
    pub fn new(classes: Arc<ClassTable>, hubs: Arc<Hubs>) -> ClassesNow {
        ClassesNow { now: RwLock::new((classes, hubs)), changes: AtomicU64::new(0) }
    }

    /// As they are now.
    #[must_use]
    pub fn get(&self) -> Arc<ClassTable> {
        Arc::clone(&self.now.read().expect("nothing panics under this lock").0)
    }

    /// Both, as they belong together.
    #[must_use]
    pub fn both(&self) -> (Arc<ClassTable>, Arc<Hubs>) {
        self.now.read().expect("nothing panics under this lock").clone()
    }

    /// The hubs as they are known now.
    #[must_use]
    pub fn hubs(&self) -> Arc<Hubs> {
        Arc::clone(&self.now.read().expect("nothing panics under this lock").1)
    }

    /// How often they were set.
    pub(crate) fn changes(&self) -> u64 {
        self.changes.load(Ordering::Acquire)
    }

    /// The node has joined a cluster with these hubs of its classes: shards are told otherwise.
    pub(crate) fn set_hubs(&self, hubs: Arc<Hubs>) {
        self.now.write().expect("nothing panics under this lock").1 = hubs;
    }

    /// Sets both; whoever wakes a shard after it finds them there.
    pub(crate) fn set(&self, classes: Arc<ClassTable>, hubs: Arc<Hubs>) {
        *self.now.write().expect("nothing panics under this lock") = (classes, hubs);
        self.changes.fetch_add(1, Ordering::Release);
    }
}

impl Core {
    /// Takes over classes that were set since the last time.
    pub(crate) fn see_classes(&mut self) {
        let changes = self.rim.classes.changes();
        if changes == self.rim.classes_seen {
            return;
        }
        self.rim.classes_seen = changes;
        let (classes, hubs) = self.rim.classes.both();
        self.broker.set_classes(classes, hubs, self.rim.now, &mut self.rim);
    }
}
