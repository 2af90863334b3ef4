//! A set of integer handles that costs 16 bytes while it holds none or one.
//!
//! Most topics of a big chat have one subscriber per shard, most connections a few subscriptions; a few
//! topics have a hundred thousand. Iteration is over a plain slice; above `SMALL` an index makes look-ups
//! constant.

use ahash::RandomState;
use hashbrown::HashMap;

/// Up to this length a look-up scans the slice.
const SMALL: usize = 16;

#[derive(Debug, Default)]
pub enum IdSet {
    #[default]
    Empty,
    One(u32),
    Many(Box<Many>),
}

#[derive(Debug, Default)]
pub struct Many {
    list: Vec<u32>,
    /// Index of each handle in `list`; kept once the list passed `SMALL`.
    index: Option<HashMap<u32, u32, RandomState>>,
}

impl IdSet {
    /// The handles, in arbitrary order.
    pub fn as_slice(&self) -> &[u32] {
        match self {
            IdSet::Empty => &[],
            IdSet::One(id) => std::slice::from_ref(id),
            IdSet::Many(many) => &many.list,
        }
    }

    pub fn len(&self) -> usize {
        self.as_slice().len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn contains(&self, id: u32) -> bool {
        match self {
            IdSet::Many(many) => many.place(id).is_some(),
            other => other.as_slice().contains(&id),
        }
    }

    /// Adds a handle; false if it was there.
    pub fn insert(&mut self, id: u32) -> bool {
        if self.contains(id) {
            return false;
        }
        match self {
            IdSet::Empty => *self = IdSet::One(id),
            IdSet::One(first) => {
                *self = IdSet::Many(Box::new(Many { list: vec![*first, id], index: None }));
            }
            IdSet::Many(many) => {
                many.list.push(id);
                let place = many.list.len() as u32 - 1;
                if let Some(index) = &mut many.index {
                    index.insert(id, place);
                } else if many.list.len() > SMALL {
                    let places = many.list.iter().zip(0u32..);
                    many.index = Some(places.map(|(&id, place)| (id, place)).collect());
                }
            }
        }
        true
    }

    /// Removes a handle; false if it was not there.
    pub fn remove(&mut self, id: u32) -> bool {
        match self {
            IdSet::Empty => false,
            IdSet::One(only) if *only == id => {
                *self = IdSet::Empty;
                true
            }
            IdSet::One(_) => false,
            IdSet::Many(many) => {
                let Some(place) = many.place(id) else { return false };
                many.list.swap_remove(place);
                if let Some(index) = &mut many.index {
                    index.remove(&id);
                    if let Some(&moved) = many.list.get(place) {
                        index.insert(moved, place as u32);
                    }
                }
                match many.list[..] {
                    [] => *self = IdSet::Empty,
                    [only] => *self = IdSet::One(only),
                    _ => many.shrink(),
                }
                true
            }
        }
    }
}

impl Many {
    fn place(&self, id: u32) -> Option<usize> {
        match &self.index {
            Some(index) => index.get(&id).map(|&place| place as usize),
            None => self.list.iter().position(|&other| other == id),
        }
    }

    /// Releases memory when three quarters of it are unused.
    fn shrink(&mut self) {
        if self.list.len() <= SMALL / 2 {
            self.index = None;
        }
        if self.list.capacity() > 4 * SMALL && self.list.len() < self.list.capacity() / 4 {
            self.list.shrink_to(self.list.len() * 2);
            if let Some(index) = &mut self.index {
                index.shrink_to(self.list.len() * 2);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    #[test]
    fn one_handle_takes_sixteen_bytes() {
        assert_eq!(std::mem::size_of::<IdSet>(), 16);
    }

    proptest! {
        #[test]
        fn behaves_as_a_set(ops in proptest::collection::vec((any::<bool>(), 0u32..64), 0..400)) {
            let (mut set, mut model) = (IdSet::default(), BTreeSet::new());
            for (add, id) in ops {
                if add {
                    prop_assert_eq!(set.insert(id), model.insert(id));
                } else {
                    prop_assert_eq!(set.remove(id), model.remove(&id));
                }
                let mut held = set.as_slice().to_vec();
                held.sort_unstable();
                prop_assert_eq!(held, model.iter().copied().collect::<Vec<_>>());
                prop_assert!((0..64).all(|id| set.contains(id) == model.contains(&id)));
            }
        }
    }
}
