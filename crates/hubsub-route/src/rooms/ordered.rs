//! The rooms of a shard in the order of their names, so that a page is found without examining all rooms.
//!
//! It is a tree of two levels: sorted entries in blocks of at most [`BLOCK`]. An entry is the slot of a room
//! and the four bytes of its name after the prefix that all names of the block share. These bytes distinguish
//! most names of a block, so a search reads one or two rooms instead of twenty that are spread over the
//! memory. A million rooms take 8 to 16 MiB. Adding or removing a room costs two binary searches and a move
//! of at most 4 KiB.
//!
//! Invariant: no block is empty; names ascend within a block and from block to block; all names of a block
//! are at or above its `low`, and all names of earlier blocks are below it; each room is in it once.

use std::cmp::Ordering;

/// Entries of one block, at most.
const BLOCK: usize = 512;

/// Slots in the order of their names. The caller supplies the name of a slot.
#[derive(Default)]
pub(super) struct Ordered {
    blocks: Vec<Block>,
}

struct Block {
    /// Lower bound of its names, and upper bound (exclusive) of those in earlier blocks.
    low: Box<[u8]>,
    /// Common prefix of all its names.
    prefix: Box<[u8]>,
    rows: Vec<Row>,
}

#[derive(Clone, Copy)]
struct Row {
    key: u32,
    place: u32,
}

impl Ordered {
    pub fn insert<'n>(&mut self, place: u32, name: &[u8], name_of: impl Fn(u32) -> &'n [u8]) {
        let Some(of) = self.block_of(name) else {
            let rows = vec![Row { key: 0, place }];
            return self.blocks.push(Block { low: [].into(), prefix: name.into(), rows });
        };
        let is_last = of + 1 == self.blocks.len();
        let block = &mut self.blocks[of];
        if block.rows.len() < BLOCK {
            return block.insert(place, name, name_of);
        }
        if is_last && block.at(name, false, &name_of) == BLOCK {
            // Ascending names fill their blocks completely.
            let rows = vec![Row { key: 0, place }];
            return self.blocks.push(Block { low: name.into(), prefix: name.into(), rows });
        }
        let upper = block.rows.split_off(BLOCK / 2);
        let low: Box<[u8]> = name_of(upper[0].place).into();
        let goes_up = *name >= *low;
        let mut upper = Block { low, prefix: [].into(), rows: upper };
        block.fit(&name_of);
        upper.fit(&name_of);
        (if goes_up { &mut upper } else { block }).insert(place, name, name_of);
        self.blocks.insert(of + 1, upper);
    }

    /// Removes a room that is in it, while its slot still has the name.
    pub fn remove<'n>(&mut self, name: &[u8], name_of: impl Fn(u32) -> &'n [u8]) {
        let Some(of) = self.block_of(name) else { return };
        let block = &mut self.blocks[of];
        let at = block.at(name, false, &name_of);
        if block.rows.get(at).is_none_or(|row| name_of(row.place) != name) {
            return;
        }
        block.rows.remove(at);
        let left = block.rows.len();
        if left == 0 {
            self.blocks.remove(of);
            if let Some(first) = self.blocks.first_mut() {
                first.low = [].into();
            }
        } else if self.blocks.get(of + 1).is_some_and(|next| left + next.rows.len() <= BLOCK / 2) {
            // Merges blocks with few entries, so that they take little memory.
            let next = self.blocks.remove(of + 1);
            let block = &mut self.blocks[of];
            block.rows.extend(next.rows);
            block.rows.shrink_to(BLOCK / 2);
            block.fit(&name_of);
        }
    }

    /// Slots of all names from this one on, in order; with `is_behind`, without this one.
    pub fn from<'n>(
        &self,
        name: &[u8],
        is_behind: bool,
        name_of: impl Fn(u32) -> &'n [u8],
    ) -> impl Iterator<Item = u32> {
        let of = self.block_of(name).unwrap_or(0);
        let at = self.blocks.get(of).map_or(0, |block| block.at(name, is_behind, &name_of));
        self.blocks[of..].iter().flat_map(|block| &block.rows).skip(at).map(|row| row.place)
    }

    /// The block that contains or would contain a name; none if the name is below all blocks.
    fn block_of(&self, name: &[u8]) -> Option<usize> {
        self.blocks.partition_point(|block| *block.low <= *name).checked_sub(1)
    }

    pub fn bytes(&self) -> usize {
        let of = |block: &Block| {
            size_of::<Block>()
                + size_of::<Row>() * block.rows.capacity()
                + block.low.len()
                + block.prefix.len()
        };
        self.blocks.iter().map(of).sum()
    }
}

impl Block {
    /// The number of names before this one; with `is_behind`, up to and including it.
    fn at<'n>(&self, name: &[u8], is_behind: bool, name_of: impl Fn(u32) -> &'n [u8]) -> usize {
        let Some(rest) = name.strip_prefix(&*self.prefix) else {
            return if *name < *self.prefix { 0 } else { self.rows.len() };
        };
        let key = key_of(rest);
        self.rows.partition_point(|row| match row.key.cmp(&key).then_with(|| name_of(row.place).cmp(name)) {
            Ordering::Less => true,
            Ordering::Equal => is_behind,
            Ordering::Greater => false,
        })
    }

    fn insert<'n>(&mut self, place: u32, name: &[u8], name_of: impl Fn(u32) -> &'n [u8]) {
        let at = self.at(name, false, &name_of);
        if !name.starts_with(&self.prefix) {
            let shared = shared(&self.prefix, name);
            self.prefix = self.prefix[..shared].into();
            self.set_keys(name_of);
        }
        let key = key_of(&name[self.prefix.len()..]);
        self.rows.insert(at, Row { key, place });
    }

    /// Sets the longest possible prefix.
    fn fit<'n>(&mut self, name_of: impl Fn(u32) -> &'n [u8]) {
        let [first, .., last] = &self.rows[..] else { return };
        let (first, last) = (name_of(first.place), name_of(last.place));
        self.prefix = first[..shared(first, last)].into();
        self.set_keys(name_of);
    }

    fn set_keys<'n>(&mut self, name_of: impl Fn(u32) -> &'n [u8]) {
        for row in &mut self.rows {
            row.key = key_of(&name_of(row.place)[self.prefix.len()..]);
        }
    }
}

/// The first four bytes as a number; where the numbers of two names differ, their order is that of the names.
fn key_of(rest: &[u8]) -> u32 {
    let mut key = [0; 4];
    let count = rest.len().min(4);
    key[..count].copy_from_slice(&rest[..count]);
    u32::from_be_bytes(key)
}

fn shared(one: &[u8], other: &[u8]) -> usize {
    one.iter().zip(other).take_while(|(one, other)| one == other).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Names of rooms by their slot.
    fn names(count: u32) -> Vec<Vec<u8>> {
        (0..count)
            .map(|n| format!("room:{:08}", n.wrapping_mul(2_654_435_761) % 100_000_007).into_bytes())
            .collect()
    }

    /// As `names`, of many kinds: with long common prefixes, prefixes of each other, or with trailing zeros.
    fn alike(count: u32) -> Vec<Vec<u8>> {
        let of = |n: u32| match n % 4 {
            0 => format!("room:{n:08}").into_bytes(),
            1 => b"x".repeat(n as usize),
            2 => n.to_be_bytes().to_vec(),
            _ => [b"room:00", &n.to_le_bytes()[..], &[0; 3][..n as usize % 3]].concat(),
        };
        (0..count).map(of).collect()
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
            let names = alike(3_000);
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
            prop_assert!(ordered.blocks.iter().all(|block| (1..=BLOCK).contains(&block.rows.len())));
        }
    }

    #[test]
    fn names_that_ascend_fill_their_blocks_and_others_half_of_them() {
        let mut names = names(100_000);
        let mut ordered = Ordered::default();
        (0..100_000).for_each(|place| ordered.insert(place, &names[place as usize], |p| &names[p as usize]));
        assert!(ordered.blocks.iter().all(|block| block.rows.len() >= BLOCK / 2));
        names.sort_unstable();
        let mut ordered = Ordered::default();
        (0..100_000).for_each(|place| ordered.insert(place, &names[place as usize], |p| &names[p as usize]));
        assert_eq!(ordered.blocks.len(), 100_000_usize.div_ceil(BLOCK));
        assert_eq!(all(&ordered, &names), (0..100_000).collect::<Vec<_>>());
        assert!(ordered.bytes() < 1_000_000, "{} bytes", ordered.bytes());
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
        assert!(ordered.blocks.len() <= 2 && ordered.bytes() <= 8_192, "{}", ordered.blocks.len());
        (0..100_000).filter(|place| place % 1_000 == 0).for_each(|place| {
            ordered.remove(&names[place as usize], |p| &names[p as usize]);
        });
        assert!(ordered.blocks.is_empty());
    }
}
