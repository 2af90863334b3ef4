//! The rooms of a shard in the order of their names, so that a page of them is found without looking at the others.
//!
//! Blocks of places, sorted, each at most [`BLOCK`] long: a tree of two levels. A place is four bytes and the name is
//! that of its room, so a million rooms take five to eight MiB. A room that is made costs a binary search (twenty
//! comparisons among a million) and a move of at most 2 KiB within its block.
//!
//! Invariant: no block is empty; names ascend within a block and from block to block; each room is in it once.

/// Places of one block, at most.
const BLOCK: usize = 512;

/// See the module. Whoever calls says which name a place has.
#[derive(Default)]
pub(super) struct Ordered {
    blocks: Vec<Vec<u32>>,
}

impl Ordered {
    /// A room that was not in it.
    pub fn insert<'n>(&mut self, place: u32, name: &[u8], name_of: impl Fn(u32) -> &'n [u8]) {
        // Behind all others it goes to the last block.
        let of = self.block_of(name, &name_of).min(self.blocks.len().saturating_sub(1));
        let Some(block) = self.blocks.get_mut(of) else {
            return self.blocks.push(vec![place]);
        };
        let at = block.partition_point(|&other| name_of(other) < name);
        if block.len() < BLOCK {
            return block.insert(at, place);
        }
        if at == BLOCK {
            // Names that ascend fill their blocks.
            return self.blocks.insert(of + 1, vec![place]);
        }
        let mut upper = block.split_off(BLOCK / 2);
        match at.checked_sub(BLOCK / 2) {
            Some(at) => upper.insert(at, place),
            None => block.insert(at, place),
        }
        self.blocks.insert(of + 1, upper);
    }

    /// A room that is in it, whose place still has its name.
    pub fn remove<'n>(&mut self, name: &[u8], name_of: impl Fn(u32) -> &'n [u8]) {
        let of = self.block_of(name, &name_of);
        let Some(block) = self.blocks.get_mut(of) else { return };
        let Ok(at) = block.binary_search_by(|&other| name_of(other).cmp(name)) else { return };
        block.remove(at);
        let left = block.len();
        if left == 0 {
            self.blocks.remove(of);
        } else if self.blocks.get(of + 1).is_some_and(|next| left + next.len() <= BLOCK / 2) {
            // Few that are left of many take the memory of few.
            let next = self.blocks.remove(of + 1);
            self.blocks[of].extend(next);
            self.blocks[of].shrink_to(BLOCK / 2);
        }
    }

    /// Places of all names from this one on, in order; behind it, if it is not wanted itself.
    pub fn from<'n>(
        &self,
        name: &[u8],
        is_behind: bool,
        name_of: impl Fn(u32) -> &'n [u8],
    ) -> impl Iterator<Item = u32> {
        let is_before = |other: &[u8]| if is_behind { other <= name } else { other < name };
        let of =
            self.blocks.partition_point(|block| block.last().is_some_and(|&last| is_before(name_of(last))));
        let (first, rest) = match self.blocks.get(of..) {
            Some([first, rest @ ..]) => (first.as_slice(), rest),
            _ => (&[][..], &[][..]),
        };
        let at = first.partition_point(|&other| is_before(name_of(other)));
        first[at..].iter().chain(rest.iter().flatten()).copied()
    }

    /// The block that has a name, or would have it; behind all where it is behind all names.
    fn block_of<'n>(&self, name: &[u8], name_of: impl Fn(u32) -> &'n [u8]) -> usize {
        self.blocks.partition_point(|block| block.last().is_some_and(|&last| name_of(last) < name))
    }

    #[cfg(test)]
    fn bytes(&self) -> usize {
        self.blocks.iter().map(|block| size_of::<Vec<u32>>() + size_of_val(block.as_slice())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Names by place.
    fn names(count: u32) -> Vec<Vec<u8>> {
        (0..count)
            .map(|n| format!("room:{:08}", n.wrapping_mul(2_654_435_761) % 100_000_007).into_bytes())
            .collect()
    }

    fn all(ordered: &Ordered, names: &[Vec<u8>]) -> Vec<u32> {
        ordered.from(b"", false, |place| &names[place as usize]).collect()
    }

    proptest! {
        #[test]
        fn it_has_what_a_sorted_set_has(
            steps in prop::collection::vec((0u32..3_000, any::<bool>()), 0..6_000),
            from in 0usize..3_000,
            is_behind: bool,
        ) {
            let names = names(3_000);
            let (mut ordered, mut model) = (Ordered::default(), BTreeSet::new());
            for (place, comes) in steps {
                let name = &names[place as usize];
                if comes && model.insert((name.clone(), place)) {
                    ordered.insert(place, name, |place| &names[place as usize]);
                } else if !comes && model.remove(&(name.clone(), place)) {
                    ordered.remove(name, |place| &names[place as usize]);
                }
            }
            let from = &names[from];
            let wanted = model.iter().filter(|(name, _)| if is_behind { name > from } else { name >= from });
            let wanted: Vec<u32> = wanted.map(|(_, place)| *place).collect();
            let found: Vec<u32> = ordered.from(from, is_behind, |place| &names[place as usize]).collect();
            prop_assert_eq!(found, wanted);
            prop_assert!(ordered.blocks.iter().all(|block| (1..=BLOCK).contains(&block.len())));
        }
    }

    #[test]
    fn names_that_ascend_fill_their_blocks_and_others_half_of_them() {
        let mut names = names(100_000);
        let mut ordered = Ordered::default();
        (0..100_000).for_each(|place| ordered.insert(place, &names[place as usize], |p| &names[p as usize]));
        assert!(ordered.blocks.iter().all(|block| block.len() >= BLOCK / 2));
        names.sort_unstable();
        let mut ordered = Ordered::default();
        (0..100_000).for_each(|place| ordered.insert(place, &names[place as usize], |p| &names[p as usize]));
        assert_eq!(ordered.blocks.len(), 100_000_usize.div_ceil(BLOCK));
        assert_eq!(all(&ordered, &names), (0..100_000).collect::<Vec<_>>());
    }

    #[test]
    fn few_that_are_left_of_many_take_the_memory_of_few() {
        let names = names(100_000);
        let mut ordered = Ordered::default();
        (0..100_000).for_each(|place| ordered.insert(place, &names[place as usize], |p| &names[p as usize]));
        (0..100_000).filter(|place| place % 1_000 > 0).for_each(|place| {
            ordered.remove(&names[place as usize], |p| &names[p as usize]);
        });
        assert_eq!(all(&ordered, &names).len(), 100);
        assert!(ordered.blocks.len() <= 2 && ordered.bytes() <= 1_024, "{}", ordered.blocks.len());
        (0..100_000).filter(|place| place % 1_000 == 0).for_each(|place| {
            ordered.remove(&names[place as usize], |p| &names[p as usize]);
        });
        assert!(ordered.blocks.is_empty());
    }
}
