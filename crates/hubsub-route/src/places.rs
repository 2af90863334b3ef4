//! Rooms that are not in the hub that the ring assigns: rooms of classes that place them one by one, and
//! pinned rooms. It is one table for all shards of a node; the control plane writes it, edges and homes read
//! it. For a class without such rooms a look-up costs a read of a flag.
//!
//! Each change has a revision, greater than all earlier ones: so a request with an outdated revision is
//! recognized (docs/protocol/moves.md). A room that is moved back to its ring's hub keeps an entry, and with
//! it the revision. A writer notifies all shards of a change before the next change (`hubsub-node`'s
//! `room_changes.rs`): so a shard that was notified of a revision was notified of all earlier ones.
//!
//! Invariant: an entry contains a hub of the class. Each class has at most `PLACES_MAX` entries, including
//! pins of classes with a ring.

use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::class::ClassIndex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

/// Limit of entries per class. A room takes about 100 bytes in addition to its name.
pub const PLACES_MAX: usize = 4_000_000;

/// The hub of a room whose place has to be requested.
pub const UNPLACED: u16 = u16::MAX;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Index of the hub in its class; [`UNPLACED`]: the place has to be requested.
    pub hub: u16,
    /// The revision at which the table put it there; 0: there is no entry.
    pub revision: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The previous hub, or [`UNPLACED`].
    pub before: u16,
    /// The current hub; equal to `before` if nothing has changed.
    pub after: u16,
    /// The revision of the change, greater than all before.
    pub revision: u64,
}

pub type Changed = (ClassIndex, Vec<(Box<[u8]>, Change)>);

#[derive(Debug)]
pub struct Places {
    classes: Vec<Arc<OfClass>>,
    revision: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct OfClass {
    is_asked: bool,
    has_any: AtomicBool,
    forgotten: AtomicU64,
    rooms: RwLock<Rooms>,
}

type Rooms = HashMap<Box<[u8]>, Place, RandomState>;

impl Places {
    pub fn new(is_asked: impl Iterator<Item = bool>) -> Places {
        Places { classes: Vec::new(), revision: Arc::default() }.with(is_asked)
    }

    /// A table for the classes of this one, whose entries are shared, and for additional classes.
    pub fn with(&self, is_asked: impl Iterator<Item = bool>) -> Places {
        let of_class = |is_asked| Arc::new(OfClass { is_asked, ..OfClass::default() });
        let classes = self.classes.iter().cloned().chain(is_asked.map(of_class)).collect();
        Places { classes, revision: Arc::clone(&self.revision) }
    }

    /// Whether rooms of a class may be in other hubs than its ring assigns.
    #[inline]
    pub fn moves(&self, class: ClassIndex) -> bool {
        let of_class = &self.classes[usize::from(class)];
        of_class.is_asked || of_class.has_any.load(Ordering::Acquire)
    }

    /// Whether the place of a room of this class without an entry has to be requested.
    pub fn is_asked(&self, class: ClassIndex) -> bool {
        self.classes[usize::from(class)].is_asked
    }

    /// The revision of the last change in any class.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// The last revision at which a room of a class lost its place.
    pub fn forgotten(&self, class: ClassIndex) -> u64 {
        self.classes[usize::from(class)].forgotten.load(Ordering::Acquire)
    }

    /// The place of a room. None: the ring assigns it.
    pub fn find(&self, class: ClassIndex, room: &[u8]) -> Option<Place> {
        let of_class = &self.classes[usize::from(class)];
        let known = || of_class.read().get(room).copied();
        let known = if of_class.has_any.load(Ordering::Acquire) { known() } else { None };
        known.or(of_class.is_asked.then_some(Place { hub: UNPLACED, revision: 0 }))
    }

    /// Puts a room into a hub, or none: into `ring`, or nowhere. None if there are too many entries.
    pub fn set(&self, class: ClassIndex, room: &[u8], hub: Option<u16>, ring: u16) -> Option<Change> {
        let of_class = &self.classes[usize::from(class)];
        let mut rooms = of_class.rooms.write().expect("nothing panics under this lock");
        let without = if of_class.is_asked { UNPLACED } else { ring };
        let known = rooms.get(room).map(|place| place.hub);
        let (before, after) = (known.unwrap_or(without), hub.unwrap_or(without));
        if before == after {
            return Some(Change { before, after, revision: self.revision() });
        }
        if known.is_none() && rooms.len() >= PLACES_MAX {
            return None;
        }
        let revision = self.revision.fetch_add(1, Ordering::AcqRel) + 1;
        if after == UNPLACED {
            rooms.remove(room);
            of_class.forgotten.store(revision, Ordering::Release);
        } else {
            rooms.insert(room.into(), Place { hub: after, revision });
            of_class.has_any.store(true, Ordering::Release);
        }
        Some(Change { before, after, revision })
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
        assert_eq!(places.find(0, b"a"), None);
        let hub = |class| places.find(class, b"a").map(|place| place.hub);
        assert_eq!((hub(1), places.moves(0), places.moves(1)), (Some(UNPLACED), false, true));
        for (class, without) in [(0, 9), (1, UNPLACED)] {
            let set = |hub| places.set(class, b"a", hub, 9).map(|change| (change.before, change.after));
            assert_eq!((set(Some(3)), hub(class)), (Some((without, 3)), Some(3)));
            assert_eq!((set(Some(4)), hub(class)), (Some((3, 4)), Some(4)));
            assert_eq!((set(None), hub(class)), (Some((4, without)), Some(without)));
        }
        assert!(places.moves(0));
    }

    #[test]
    fn each_move_has_a_greater_revision_and_what_moves_nothing_has_none() {
        let places = Places::new([false].into_iter());
        let set = |hub| places.set(0, b"a", hub, 9).unwrap();
        assert_eq!(set(Some(9)), Change { before: 9, after: 9, revision: 0 }, "the ring has it there");
        for (revision, hub) in [(1, Some(3)), (2, None), (3, Some(3))] {
            assert_eq!((set(hub).revision, set(hub).revision), (revision, revision));
            assert_eq!(places.find(0, b"a").unwrap().revision, revision);
        }
        assert_eq!(places.set(0, b"b", Some(1), 9).unwrap().revision, 4, "all rooms share them");
    }
}
