//! Rooms whose place arrives before their class takes effect. They are retained until it does, each with its
//! latest place.
//!
//! Invariant: at most `max` rooms are retained; `keep` returns the number beyond. A new place of a retained
//! room is always accepted.

use hubsub_types::HubId;
use std::collections::{BTreeMap, HashMap};

/// A room and the hub that has it. Without one, the ring decides or the place must be looked up.
pub type Placed = (Box<[u8]>, Option<HubId>);

/// Limit of retained rooms of all classes: as many as a class may have placed later (`PLACES_MAX`).
pub const EARLY_ROOMS_MAX: usize = hubsub_route::places::PLACES_MAX;

type OfClass = BTreeMap<Box<[u8]>, Option<HubId>>;

pub struct EarlyRooms {
    max: usize,
    count: usize,
    of_classes: HashMap<Box<str>, OfClass>,
}

impl Default for EarlyRooms {
    fn default() -> EarlyRooms {
        EarlyRooms::new(EARLY_ROOMS_MAX)
    }
}

impl EarlyRooms {
    pub fn new(max: usize) -> EarlyRooms {
        EarlyRooms { max, count: 0, of_classes: HashMap::new() }
    }

    /// Retains rooms of a class. Returns how many did not fit.
    pub fn keep(&mut self, class: &str, rooms: Vec<Placed>) -> usize {
        let of_class = self.of_classes.entry(class.into()).or_default();
        let mut left_out = 0;
        for (room, hub) in rooms {
            if let Some(known) = of_class.get_mut(&room) {
                *known = hub;
            } else if self.count < self.max {
                of_class.insert(room, hub);
                self.count += 1;
            } else {
                left_out += 1;
            }
        }
        left_out
    }

    /// Removes and returns the rooms of a class, in order of name.
    pub fn take(&mut self, class: &str) -> Vec<Placed> {
        let taken = self.of_classes.remove(class).unwrap_or_default();
        self.count -= taken.len();
        taken.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rooms(names: &[&str], hub: u32) -> Vec<Placed> {
        names.iter().map(|name| (name.as_bytes().into(), Some(HubId(hub)))).collect()
    }

    #[test]
    fn rooms_wait_for_their_class_and_no_more_than_there_is_room_for() {
        let mut early = EarlyRooms::new(3);
        assert_eq!((early.keep("a", rooms(&["1"], 1)), early.keep("b", rooms(&["2"], 1))), (0, 0));
        assert_eq!((early.keep("a", rooms(&["3", "4"], 1)), early.keep("a", rooms(&["5"], 1))), (1, 1));
        assert_eq!(early.take("a"), rooms(&["1", "3"], 1));
        assert_eq!(early.take("a"), []);
        assert_eq!((early.keep("c", rooms(&["7", "6"], 1)), early.keep("c", rooms(&["8"], 1))), (0, 1));
        assert_eq!((early.take("b"), early.take("c")), (rooms(&["2"], 1), rooms(&["6", "7"], 1)));
    }

    #[test]
    fn what_was_told_of_a_room_last_counts_and_takes_no_place_again() {
        let mut early = EarlyRooms::new(2);
        assert_eq!(early.keep("a", rooms(&["1", "2", "1"], 1)), 0);
        assert_eq!(early.keep("a", rooms(&["1"], 2)), 0, "it has moved");
        assert_eq!(early.keep("a", vec![((*b"2").into(), None)]), 0);
        assert_eq!(early.take("a"), [rooms(&["1"], 2), vec![((*b"2").into(), None)]].concat());
        assert_eq!(early.keep("a", rooms(&["3", "4"], 1)), 0, "all places are free again");
    }
}
