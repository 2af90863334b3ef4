//! Rooms that are not where the ring has them: those of classes whose rooms are placed one by one, and
//! pinned ones. One table for all shards of a node, beside the ring; the control plane writes it, edges
//! and homes look up. A class that has none costs a look at a flag.
//!
//! Invariant: an entry names a hub of the class. Entries are bounded by `PLACES_MAX` a class; pins of
//! classes on a ring too.

use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::class::ClassIndex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

/// Entries of one class. A room takes some 100 bytes beside its name.
pub const PLACES_MAX: usize = 4_000_000;

/// Stands for the hub of a room that is to be asked for.
pub const UNPLACED: u16 = u16::MAX;

/// See the module.
#[derive(Debug)]
pub struct Places {
    classes: Vec<Arc<OfClass>>,
}

#[derive(Debug, Default)]
struct OfClass {
    /// Whether a room without an entry is to be asked for.
    is_asked: bool,
    has_any: AtomicBool,
    rooms: RwLock<Rooms>,
}

type Rooms = HashMap<Box<[u8]>, u16, RandomState>;

impl Places {
    /// Of classes, each of which places its rooms one by one, or on its ring.
    #[must_use]
    pub fn new(is_asked: impl Iterator<Item = bool>) -> Places {
        Places { classes: Vec::new() }.with(is_asked)
    }

    /// Of these classes, whose entries it shares with what it was made from, and of more.
    #[must_use]
    pub fn with(&self, is_asked: impl Iterator<Item = bool>) -> Places {
        let of_class = |is_asked| Arc::new(OfClass { is_asked, ..OfClass::default() });
        Places { classes: self.classes.iter().cloned().chain(is_asked.map(of_class)).collect() }
    }

    /// The hub of a room; `UNPLACED`: it is to be asked for. None: the ring says.
    #[must_use]
    pub fn find(&self, class: ClassIndex, room: &[u8]) -> Option<u16> {
        let of_class = &self.classes[usize::from(class)];
        let known = || of_class.read().get(room).copied();
        let known = if of_class.has_any.load(Ordering::Acquire) { known() } else { None };
        known.or(of_class.is_asked.then_some(UNPLACED))
    }

    /// A room is in this hub; none: the ring says, or it is to be asked for again. Gives where it was
    /// before; none if there are too many.
    pub fn set(&self, class: ClassIndex, room: &[u8], hub: Option<u16>) -> Option<Option<u16>> {
        let of_class = &self.classes[usize::from(class)];
        let mut rooms = of_class.rooms.write().expect("nothing panics under this lock");
        let Some(hub) = hub else { return Some(rooms.remove(room)) };
        if rooms.len() >= PLACES_MAX && !rooms.contains_key(room) {
            return None;
        }
        let before = rooms.insert(room.into(), hub);
        of_class.has_any.store(true, Ordering::Release);
        Some(before)
    }
}

impl OfClass {
    fn read(&self) -> RwLockReadGuard<'_, Rooms> {
        self.rooms.read().expect("nothing panics under this lock")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_of_a_ring_are_there_but_for_pins_and_others_are_asked_for() {
        let places = Places::new([false, true].into_iter());
        assert_eq!((places.find(0, b"a"), places.find(1, b"a")), (None, Some(UNPLACED)));
        for class in [0, 1] {
            assert_eq!(places.set(class, b"a", Some(3)), Some(None));
            assert_eq!(places.set(class, b"a", Some(4)), Some(Some(3)));
            assert_eq!(places.find(class, b"a"), Some(4));
            assert_eq!(places.set(class, b"a", None), Some(Some(4)));
        }
        assert_eq!((places.find(0, b"a"), places.find(1, b"a")), (None, Some(UNPLACED)));
    }
}
