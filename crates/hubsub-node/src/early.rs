//! Rooms whose place was told before their class counts: kept until it does, in the order in which they came.
//!
//! Invariant: there are never more than it was made for; what is beyond that is given back.

use hubsub_types::HubId;

/// A room, and the hub that has it; none: the ring says, or it is to be asked for.
pub type Placed = (Box<[u8]>, Option<HubId>);

/// Rooms of all classes that wait: as many as a class may have placed later (`PLACES_MAX`).
pub const EARLY_ROOMS_MAX: usize = hubsub_route::places::PLACES_MAX;

/// See the module.
pub struct EarlyRooms {
    max: usize,
    count: usize,
    of_classes: Vec<(Box<str>, Vec<Placed>)>,
}

impl Default for EarlyRooms {
    fn default() -> EarlyRooms {
        EarlyRooms::new(EARLY_ROOMS_MAX)
    }
}

impl EarlyRooms {
    /// For so many.
    #[must_use]
    pub fn new(max: usize) -> EarlyRooms {
        EarlyRooms { max, count: 0, of_classes: Vec::new() }
    }

    /// Keeps rooms of a class; how many of them it has no room for, the last ones.
    pub fn keep(&mut self, class: &str, mut rooms: Vec<Placed>) -> usize {
        let left_out = rooms.len().saturating_sub(self.max - self.count);
        rooms.truncate(rooms.len() - left_out);
        self.count += rooms.len();
        self.of_classes.push((class.into(), rooms));
        left_out
    }

    /// Takes out the rooms of a class, in order.
    pub fn take(&mut self, class: &str) -> Vec<Placed> {
        let mut taken = Vec::new();
        self.of_classes.retain_mut(|(of, rooms)| {
            let stays = **of != *class;
            if !stays {
                taken.append(rooms);
            }
            stays
        });
        self.count -= taken.len();
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rooms_wait_for_their_class_in_order_and_no_more_than_there_is_room_for() {
        let rooms = |names: &[&str]| -> Vec<Placed> {
            names.iter().map(|name| (name.as_bytes().into(), Some(HubId(1)))).collect()
        };
        let mut early = EarlyRooms::new(3);
        assert_eq!((early.keep("a", rooms(&["1"])), early.keep("b", rooms(&["2"]))), (0, 0));
        assert_eq!((early.keep("a", rooms(&["3", "4"])), early.keep("a", rooms(&["5"]))), (1, 1));
        assert_eq!(early.take("a"), rooms(&["1", "3"]));
        assert_eq!(early.take("a"), []);
        assert_eq!((early.keep("c", rooms(&["6", "7"])), early.keep("c", rooms(&["8"]))), (0, 1));
        assert_eq!((early.take("b"), early.take("c")), (rooms(&["2"]), rooms(&["6", "7"])));
    }
}
