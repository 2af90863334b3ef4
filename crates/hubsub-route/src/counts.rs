//! How many subscribers each shard has, of one topic or one pattern: what a
//! hub needs to know whom to send to and what PUBLISH answers.

use hubsub_types::ShardId;

/// Subscribers by shard. One shard with interest costs no allocation.
#[derive(Debug, Default)]
pub enum Counts {
    /// None anywhere.
    #[default]
    Zero,
    /// All on one shard.
    One(ShardId, u32),
    /// By shard id.
    Many(Box<[u32]>),
}

impl Counts {
    /// A subscriber more on a shard of `shards`.
    pub fn add(&mut self, shard: ShardId, shards: u16) {
        match self {
            Counts::Zero => *self = Counts::One(shard, 1),
            Counts::One(only, n) if *only == shard => *n += 1,
            Counts::One(only, n) => {
                let mut all = vec![0; usize::from(shards)].into_boxed_slice();
                all[usize::from(only.0)] = *n;
                all[usize::from(shard.0)] = 1;
                *self = Counts::Many(all);
            }
            Counts::Many(all) => all[usize::from(shard.0)] += 1,
        }
    }

    /// A subscriber less; false if there was none, which a caller reports.
    pub fn remove(&mut self, shard: ShardId) -> bool {
        match self {
            Counts::One(only, n) if *only == shard => {
                *n -= 1;
                if *n == 0 {
                    *self = Counts::Zero;
                }
                true
            }
            Counts::Many(all) if all[usize::from(shard.0)] > 0 => {
                all[usize::from(shard.0)] -= 1;
                let mut left = (0u16..).zip(all.iter()).filter(|(_, n)| **n > 0);
                if let (Some((only, &n)), None) = (left.next(), left.next()) {
                    *self = Counts::One(ShardId(only), n);
                }
                true
            }
            _ => false,
        }
    }

    /// Whether nobody is interested.
    #[must_use]
    pub fn is_zero(&self) -> bool {
        matches!(self, Counts::Zero)
    }

    /// Subscribers on all shards.
    #[must_use]
    pub fn total(&self) -> u64 {
        match self {
            Counts::Zero => 0,
            Counts::One(_, n) => u64::from(*n),
            Counts::Many(all) => all.iter().map(|&n| u64::from(n)).sum(),
        }
    }

    /// Adds the shards with interest to a set.
    pub fn shards(&self, set: &mut ShardSet) {
        match self {
            Counts::Zero => {}
            Counts::One(only, _) => set.insert(*only),
            Counts::Many(all) => {
                for (shard, _) in (0u16..).zip(all.iter()).filter(|(_, n)| **n > 0) {
                    set.insert(ShardId(shard));
                }
            }
        }
    }
}

/// The most shards that a node may have.
pub const SHARDS_MAX: u16 = 64;

/// A set of shards.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ShardSet(u64);

impl ShardSet {
    /// Adds a shard.
    #[inline]
    pub fn insert(&mut self, shard: ShardId) {
        self.0 |= 1 << shard.0;
    }

    /// Takes a shard away; whether it was there.
    #[inline]
    pub fn remove(&mut self, shard: ShardId) -> bool {
        let bit = 1 << shard.0;
        let was = self.0 & bit != 0;
        self.0 &= !bit;
        was
    }

    /// Whether there is none.
    #[inline]
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The shards, lowest first.
    pub fn iter(self) -> impl Iterator<Item = ShardId> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let shard = (left != 0).then(|| ShardId(left.trailing_zeros() as u16))?;
            left &= left - 1;
            Some(shard)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn counts_what_was_added_and_removed(ops in proptest::collection::vec((any::<bool>(), 0u16..5), 0..200)) {
            let (mut counts, mut model) = (Counts::default(), [0u32; 5]);
            for (add, shard) in ops {
                let n = &mut model[usize::from(shard)];
                if add {
                    counts.add(ShardId(shard), 5);
                    *n += 1;
                } else {
                    prop_assert_eq!(counts.remove(ShardId(shard)), *n > 0);
                    *n = n.saturating_sub(1);
                }
                prop_assert_eq!(counts.total(), model.iter().map(|&n| u64::from(n)).sum::<u64>());
                prop_assert_eq!(counts.is_zero(), model.iter().all(|&n| n == 0));
                let mut set = ShardSet::default();
                counts.shards(&mut set);
                let with: Vec<_> = (0..5).filter(|&s| model[usize::from(s)] > 0).map(ShardId).collect();
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), with);
            }
        }
    }

    #[test]
    fn a_set_holds_all_shards() {
        let mut set = ShardSet::default();
        (0..SHARDS_MAX).for_each(|s| set.insert(ShardId(s)));
        assert_eq!(set.iter().count(), usize::from(SHARDS_MAX));
        assert!(set.remove(ShardId(63)) && !set.remove(ShardId(63)));
    }
}
