//! Rooms that are not where the ring has them: those of classes whose rooms are placed one by one, and
//! pinned ones. One table for all shards of a node, beside the ring; the control plane writes it, edges
//! and homes look up. A class that has none costs a look at a flag.
//!
//! Each change has a revision, greater than those before: who acts by an earlier one can be told from who
//! acts by this one (docs/protocol/moves.md). A room that is moved back to its ring keeps an entry, and with
//! it the revision. Who changes it tells all shards before it is changed again (`hubsub-node`'s `room_changes.rs`): so who
//! was told of a revision was told of all before it.
//!
//! Invariant: an entry names a hub of the class. Entries are bounded by `PLACES_MAX` a class; pins of
//! classes on a ring too.

use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::class::ClassIndex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard};

/// Entries of one class. A room takes some 100 bytes beside its name.
pub const PLACES_MAX: usize = 4_000_000;

/// Stands for the hub of a room that is to be asked for.
pub const UNPLACED: u16 = u16::MAX;

/// Where a room is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Which hub of its class; [`UNPLACED`]: it is to be asked for.
    pub hub: u16,
    /// The change of the table that put it there; 0: none did.
    pub revision: u64,
}

/// What a change of the table did to a room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// The hub that it was in, or [`UNPLACED`].
    pub before: u16,
    /// The hub that it is in; the same as before: nothing has changed.
    pub after: u16,
    /// Of the change. The table had none as great before.
    pub revision: u64,
}

/// What changed of rooms of a class.
pub type Changed = (ClassIndex, Vec<(Box<[u8]>, Change)>);

/// See the module.
#[derive(Debug)]
pub struct Places {
    classes: Vec<Arc<OfClass>>,
    /// Of the last change, of whatever class.
    revision: Arc<AtomicU64>,
}

#[derive(Debug, Default)]
struct OfClass {
    /// Whether a room without an entry is to be asked for.
    is_asked: bool,
    has_any: AtomicBool,
    /// The last change by which a room is to be asked for again.
    forgotten: AtomicU64,
    rooms: RwLock<Rooms>,
}

type Rooms = HashMap<Box<[u8]>, Place, RandomState>;

impl Places {
    /// Of classes, each of which places its rooms one by one, or on its ring.
    #[must_use]
    pub fn new(is_asked: impl Iterator<Item = bool>) -> Places {
        Places { classes: Vec::new(), revision: Arc::default() }.with(is_asked)
    }

    /// Of these classes, whose entries it shares with what it was made from, and of more.
    #[must_use]
    pub fn with(&self, is_asked: impl Iterator<Item = bool>) -> Places {
        let of_class = |is_asked| Arc::new(OfClass { is_asked, ..OfClass::default() });
        let classes = self.classes.iter().cloned().chain(is_asked.map(of_class)).collect();
        Places { classes, revision: Arc::clone(&self.revision) }
    }

    /// Whether rooms of a class may be elsewhere than its ring has them.
    #[inline]
    #[must_use]
    pub fn moves(&self, class: ClassIndex) -> bool {
        let of_class = &self.classes[usize::from(class)];
        of_class.is_asked || of_class.has_any.load(Ordering::Acquire)
    }

    /// Whether a room of a class without an entry is to be asked for.
    #[must_use]
    pub fn is_asked(&self, class: ClassIndex) -> bool {
        self.classes[usize::from(class)].is_asked
    }

    /// The last change, of whatever class.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Acquire)
    }

    /// The last change by which a room of a class is to be asked for again.
    #[must_use]
    pub fn forgotten(&self, class: ClassIndex) -> u64 {
        self.classes[usize::from(class)].forgotten.load(Ordering::Acquire)
    }

    /// Where a room is. None: the ring says.
    #[must_use]
    pub fn find(&self, class: ClassIndex, room: &[u8]) -> Option<Place> {
        let of_class = &self.classes[usize::from(class)];
        let known = || of_class.read().get(room).copied();
        let known = if of_class.has_any.load(Ordering::Acquire) { known() } else { None };
        known.or(of_class.is_asked.then_some(Place { hub: UNPLACED, revision: 0 }))
    }

    /// A room is in this hub; none: in the one that its ring has, which is `ring`, or it is to be asked for again.
    /// Gives what that changed; none if there are too many entries.
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
