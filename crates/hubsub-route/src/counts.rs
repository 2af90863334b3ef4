//! The number of subscribers per holder of interest, for one topic or one pattern: a hub uses it to pick
//! receivers and to answer PUBLISH. Holders are the shards of this node, and after them other nodes
//! (docs/adr/0014).

use hubsub_types::ShardId;

/// A holder of interest: a shard below the number of shards, from there on a node by its place.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Holder(pub u16);

impl From<ShardId> for Holder {
    fn from(shard: ShardId) -> Holder {
        Holder(shard.0)
    }
}

/// Subscribers by holder. One holder with interest costs no allocation.
#[derive(Debug, Default)]
pub enum Counts {
    #[default]
    Zero,
    One(Holder, u32),
    Many(Box<[u32]>),
}

impl Counts {
    /// Adds a subscriber at a holder, on a node of `shards` shards.
    pub fn add(&mut self, holder: impl Into<Holder>, shards: u16) {
        let holder = holder.into();
        match self {
            Counts::Zero => *self = Counts::One(holder, 1),
            Counts::One(only, n) if *only == holder => *n += 1,
            _ => *self.place(holder, shards) += 1,
        }
    }

    pub fn set(&mut self, holder: impl Into<Holder>, count: u32, shards: u16) {
        let holder = holder.into();
        match self {
            Counts::Zero if count == 0 => {}
            Counts::Zero => *self = Counts::One(holder, count),
            Counts::One(only, _) if *only == holder && count == 0 => *self = Counts::Zero,
            Counts::One(only, n) if *only == holder => *n = count,
            Counts::One(..) if count == 0 => {}
            _ => {
                *self.place(holder, shards) = count;
                self.settle();
            }
        }
    }

    fn place(&mut self, holder: Holder, shards: u16) -> &mut u32 {
        let at = usize::from(holder.0);
        if let Counts::One(only, n) = *self {
            let mut all = vec![0; usize::from(shards).max(at + 1).max(usize::from(only.0) + 1)];
            all[usize::from(only.0)] = n;
            *self = Counts::Many(all.into_boxed_slice());
        }
        let Counts::Many(all) = self else { unreachable!("nobody asks for a place among none") };
        if all.len() <= at {
            let mut longer = std::mem::take(all).into_vec();
            longer.resize(at + 1, 0);
            *all = longer.into_boxed_slice();
        }
        &mut all[at]
    }

    fn settle(&mut self) {
        let Counts::Many(all) = self else { return };
        let mut left = (0u16..).zip(all.iter()).filter(|(_, n)| **n > 0);
        match (left.next(), left.next()) {
            (Some((only, &n)), None) => *self = Counts::One(Holder(only), n),
            (None, _) => *self = Counts::Zero,
            _ => {}
        }
    }

    pub fn remove(&mut self, holder: impl Into<Holder>) -> bool {
        let holder = holder.into();
        match self {
            Counts::One(only, n) if *only == holder => {
                *n -= 1;
                if *n == 0 {
                    *self = Counts::Zero;
                }
                true
            }
            Counts::Many(all) if all.get(usize::from(holder.0)).is_some_and(|n| *n > 0) => {
                all[usize::from(holder.0)] -= 1;
                self.settle();
                true
            }
            _ => false,
        }
    }

    pub fn memory(&self) -> usize {
        match self {
            Counts::Zero | Counts::One(..) => 0,
            Counts::Many(all) => size_of_val(&**all),
        }
    }

    pub fn is_zero(&self) -> bool {
        matches!(self, Counts::Zero)
    }

    pub fn total(&self) -> u64 {
        match self {
            Counts::Zero => 0,
            Counts::One(_, n) => u64::from(*n),
            Counts::Many(all) => all.iter().map(|&n| u64::from(n)).sum(),
        }
    }

    pub fn of(&self, holder: Holder) -> u32 {
        match self {
            Counts::One(only, n) if *only == holder => *n,
            Counts::Many(all) => all.get(usize::from(holder.0)).copied().unwrap_or(0),
            _ => 0,
        }
    }

    pub fn of_shards(&self, shards: u16) -> u32 {
        (0..shards).map(|shard| self.of(Holder(shard))).sum()
    }

    pub fn forget_nodes(&mut self, shards: u16) {
        match self {
            Counts::One(only, _) if only.0 >= shards => *self = Counts::Zero,
            Counts::Many(all) => {
                all.iter_mut().skip(usize::from(shards)).for_each(|n| *n = 0);
                self.settle();
            }
            _ => {}
        }
    }

    pub fn holders(&self, set: &mut HolderSet) {
        match self {
            Counts::Zero => {}
            Counts::One(only, _) => set.insert(*only),
            Counts::Many(all) => {
                for (holder, _) in (0u16..).zip(all.iter()).filter(|(_, n)| **n > 0) {
                    set.insert(Holder(holder));
                }
            }
        }
    }
}

pub const SHARDS_MAX: u16 = 64;

/// Limit of other nodes that a node knows at the same time.
pub const NODES_MAX: u16 = 128;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HolderSet {
    low: u64,
    /// Holders from 64 on: these are nodes.
    high: u128,
}

impl HolderSet {
    #[inline]
    pub fn insert(&mut self, holder: impl Into<Holder>) {
        let holder = holder.into();
        if holder.0 < 64 {
            self.low |= 1 << holder.0;
        } else {
            self.high |= 1 << (holder.0 - 64);
        }
    }

    #[inline]
    pub fn remove(&mut self, holder: impl Into<Holder>) -> bool {
        let holder = holder.into();
        let was = *self;
        if holder.0 < 64 {
            self.low &= !(1 << holder.0);
        } else {
            self.high &= !(1 << (holder.0 - 64));
        }
        was != *self
    }

    #[inline]
    pub fn is_empty(self) -> bool {
        self.low == 0 && self.high == 0
    }

    /// Whether any holder is a node, which have numbers from `shards` on.
    #[inline]
    #[must_use]
    pub fn has_nodes(self, shards: u16) -> bool {
        self.high != 0 || (shards < 64 && self.low >> shards != 0)
    }

    #[must_use]
    pub fn shards(self, shards: u16) -> HolderSet {
        let low = if shards < 64 { self.low & ((1 << shards) - 1) } else { self.low };
        HolderSet { low, high: 0 }
    }

    pub fn iter(self) -> impl Iterator<Item = Holder> {
        let HolderSet { mut low, mut high } = self;
        std::iter::from_fn(move || {
            if low != 0 {
                let holder = low.trailing_zeros() as u16;
                low &= low - 1;
                return Some(Holder(holder));
            }
            let holder = (high != 0).then(|| high.trailing_zeros() as u16 + 64)?;
            high &= high - 1;
            Some(Holder(holder))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counts_what_was_added_and_removed(ops in proptest::collection::vec((0u8..3, 0u16..9, 0u32..3), 0..200)) {
            // Five shards, followed by nodes.
            let (mut counts, mut model) = (Counts::default(), [0u32; 9]);
            for (op, holder, count) in ops {
                let n = &mut model[usize::from(holder)];
                match op {
                    0 => {
                        counts.add(Holder(holder), 5);
                        *n += 1;
                    }
                    1 => {
                        prop_assert_eq!(counts.remove(Holder(holder)), *n > 0);
                        *n = n.saturating_sub(1);
                    }
                    _ => {
                        counts.set(Holder(holder), count, 5);
                        *n = count;
                    }
                }
                prop_assert_eq!(counts.total(), model.iter().map(|&n| u64::from(n)).sum::<u64>());
                prop_assert_eq!(counts.is_zero(), model.iter().all(|&n| n == 0));
                prop_assert_eq!(counts.of_shards(5), model[..5].iter().sum::<u32>());
                prop_assert_eq!(counts.of(Holder(holder)), model[usize::from(holder)]);
                let mut set = HolderSet::default();
                counts.holders(&mut set);
                let with: Vec<_> = (0..9).filter(|&s| model[usize::from(s)] > 0).map(Holder).collect();
                prop_assert_eq!(set.has_nodes(5), with.iter().any(|holder| holder.0 >= 5));
                prop_assert_eq!(set.shards(5).iter().count(), with.iter().filter(|holder| holder.0 < 5).count());
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), with);
            }
            counts.forget_nodes(5);
            prop_assert_eq!(counts.total(), model[..5].iter().map(|&n| u64::from(n)).sum::<u64>());
        }
    }

    #[test]
    fn a_set_holds_all_shards_and_nodes() {
        let mut set = HolderSet::default();
        let all = SHARDS_MAX + NODES_MAX;
        (0..all).for_each(|holder| set.insert(Holder(holder)));
        assert_eq!(set.iter().count(), usize::from(all));
        assert_eq!(set.shards(SHARDS_MAX).iter().count(), usize::from(SHARDS_MAX));
        assert!(set.remove(Holder(all - 1)) && !set.remove(Holder(all - 1)));
        assert!(set.remove(ShardId(63)) && !set.remove(ShardId(63)));
    }
}
