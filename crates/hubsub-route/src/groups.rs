//! Groups of subscribers that share records: each record of a topic goes to one member of each group whose
//! filter matches it. All shards of all nodes know where a group has members, as with patterns; the home of a
//! room picks the shard or node for each record, and that one picks the member. See docs/protocol/groups.md.

use crate::counts::{Holder, HolderSet};
use crate::idset::IdSet;
use crate::patterns::Patterns;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::ShareStrategy;

/// After this number of tries a record waits for an offline member, if there is one: by then all shards and
/// nodes with members were tried, unless there are more of them.
pub const ABSENT_TRIES: u8 = 12;

/// After this number of tries a record is lost: members come and go as fast as it travels, or all are full.
pub const TRIES_MAX: u8 = 16;

#[derive(Debug, Default)]
struct Turn {
    holders: u64,
    members: u64,
    /// The holder that gets all records, with the strategy `sticky`.
    holder: Option<Holder>,
    member: Option<u32>,
}

/// The groups as one shard knows them, and its own members.
#[derive(Default)]
pub struct Groups {
    pub table: Patterns,
    /// Turns by group id; a previous group's entry with the same id is harmless.
    turns: Vec<Turn>,
    of_conn: HashMap<u32, IdSet, RandomState>,
    drawn: u64,
    /// Records delivered to members of this shard, since the start.
    pub given: u64,
    /// Times that a record had to be redelivered, since the start.
    pub given_again: u64,
    /// Records without an accepting member, since the start.
    pub lost: u64,
}

impl Groups {
    pub fn new(cache_topics_max: usize) -> Groups {
        Groups { table: Patterns::new(cache_topics_max), ..Groups::default() }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    pub fn of(&self, conn: u32) -> usize {
        self.of_conn.get(&conn).map_or(0, IdSet::len)
    }

    /// Adds a connection as a member; false if it was one.
    pub fn enter(&mut self, id: u32, conn: u32) -> bool {
        self.table.get_mut(id).subs.insert(conn);
        self.of_conn.entry(conn).or_default().insert(id)
    }

    /// Removes a member; false if it was none.
    pub fn leave(&mut self, id: u32, conn: u32) -> bool {
        let Some(own) = self.of_conn.get_mut(&conn) else { return false };
        let was = own.remove(id);
        if own.is_empty() {
            self.of_conn.remove(&conn);
        }
        self.table.get_mut(id).subs.remove(conn);
        was
    }

    pub fn leave_all(&mut self, conn: u32) -> Vec<u32> {
        let ids = self.of_conn.remove(&conn).map(|ids| ids.as_slice().to_vec()).unwrap_or_default();
        ids.iter().for_each(|&id| _ = self.table.get_mut(id).subs.remove(conn));
        ids
    }

    /// Picks one of the holders in `may` for a record with this key, weighted by members.
    pub fn pick(&mut self, id: u32, may: HolderSet, strategy: &ShareStrategy, key: u64) -> Option<Holder> {
        let counts = &self.table.get(id).counts;
        let of = |holder: Holder| u64::from(counts.of(holder));
        let total: u64 = may.iter().map(of).sum();
        if total == 0 {
            return None;
        }
        let turn = turn(&mut self.turns, id);
        if *strategy == ShareStrategy::Sticky {
            let stays = turn.holder.filter(|&holder| of(holder) > 0 && may.iter().any(|it| it == holder));
            turn.holder = stays.or_else(|| may.iter().find(|&holder| of(holder) > 0));
            return turn.holder;
        }
        let mut left = number(strategy, &mut turn.holders, &mut self.drawn, key) % total;
        may.iter().find(|&holder| {
            let is_it = left < of(holder);
            left = left.saturating_sub(of(holder));
            is_it
        })
    }

    /// The members of this shard, in the order in which they are tried for a record with this key.
    pub fn members(&mut self, id: u32, strategy: &ShareStrategy, key: u64) -> Vec<u32> {
        let subs = self.table.get(id).subs.as_slice();
        if subs.is_empty() {
            return Vec::new();
        }
        let turn = turn(&mut self.turns, id);
        let first = match strategy {
            ShareStrategy::Sticky => {
                let stays = turn.member.and_then(|member| subs.iter().position(|&conn| conn == member));
                stays.unwrap_or(0)
            }
            // The holder was picked by the low part of the same number.
            _ => {
                (mix(number(strategy, &mut turn.members, &mut self.drawn, key), strategy) % subs.len() as u64)
                    as usize
            }
        };
        subs[first..].iter().chain(&subs[..first]).copied().collect()
    }

    pub fn took(&mut self, id: u32, conn: u32, strategy: &ShareStrategy) {
        self.given += 1;
        // A group may have topics of several classes.
        if *strategy == ShareStrategy::Sticky {
            turn(&mut self.turns, id).member = Some(conn);
        }
    }
}

fn turn(turns: &mut Vec<Turn>, id: u32) -> &mut Turn {
    if turns.len() <= id as usize {
        turns.resize_with(id as usize + 1, Turn::default);
    }
    &mut turns[id as usize]
}

fn number(strategy: &ShareStrategy, turn: &mut u64, drawn: &mut u64, key: u64) -> u64 {
    match strategy {
        ShareStrategy::RoundRobin | ShareStrategy::Sticky => {
            *turn = turn.wrapping_add(1);
            *turn
        }
        ShareStrategy::Random => {
            *drawn = drawn.wrapping_add(1);
            spread(*drawn)
        }
        ShareStrategy::Hash(_) => key,
    }
}

fn mix(number: u64, strategy: &ShareStrategy) -> u64 {
    if matches!(strategy, ShareStrategy::Hash(_)) { spread(number) } else { number }
}

/// A hash that is the same on all nodes: FNV-1a, mixed.
pub fn hash(key: &[u8]) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    spread(key.iter().fold(0xcbf2_9ce4_8422_2325, step))
}

/// Separates neighbouring numbers (the last steps of splitmix64).
fn spread(number: u64) -> u64 {
    let number = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_types::names::group_pattern;
    use hubsub_types::{ShardId, ShareKey};
    use std::collections::{BTreeMap, BTreeSet};

    /// Two members on shard 0, which is this one, and one on each of two other shards.
    fn groups() -> (Groups, u32) {
        let mut groups = Groups::new(10);
        let id = groups.table.intern(&group_pattern(b"g", b"a/+"));
        for (shard, conn) in [(0, 1), (0, 2), (1, 3), (2, 4)] {
            groups.table.hold(id, ShardId(shard), 3);
            if shard == 0 {
                assert!(groups.enter(id, conn));
            }
        }
        (groups, id)
    }

    fn all() -> HolderSet {
        let mut set = HolderSet::default();
        (0..3).for_each(|shard| set.insert(Holder(shard)));
        set
    }

    /// How often each holder, or member of shard 0, is picked.
    fn picked(strategy: &ShareStrategy, keys: impl Iterator<Item = u64>) -> BTreeMap<(u16, u32), u32> {
        let (mut groups, id) = groups();
        let mut counts = BTreeMap::new();
        for key in keys {
            let Holder(holder) = groups.pick(id, all(), strategy, key).expect("there are members");
            let member = if holder == 0 { groups.members(id, strategy, key)[0] } else { 0 };
            if member > 0 {
                groups.took(id, member, strategy);
            }
            *counts.entry((holder, member)).or_default() += 1;
        }
        counts
    }

    #[test]
    fn members_take_turns_also_where_one_shard_has_more_of_them() {
        let counts = picked(&ShareStrategy::RoundRobin, 0..400);
        assert_eq!(counts.into_values().collect::<Vec<_>>(), [100, 100, 100, 100]);
    }

    #[test]
    fn by_chance_and_by_key_all_members_get_about_as_much() {
        let by_topic = ShareStrategy::Hash(ShareKey::Topic);
        let keys: Vec<u64> = (0..4000_u32).map(|i| hash(&i.to_le_bytes())).collect();
        for (strategy, keys) in [(ShareStrategy::Random, vec![0; 4000]), (by_topic, keys)] {
            let counts = picked(&strategy, keys.into_iter());
            assert_eq!(counts.len(), 4, "{counts:?}");
            assert!(counts.values().all(|count| (800..1200).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn one_key_goes_to_one_member() {
        let strategy = ShareStrategy::Hash(ShareKey::Topic);
        for key in 0..20_u8 {
            assert_eq!(picked(&strategy, [hash(&[key]); 9].into_iter()).len(), 1);
        }
    }

    #[test]
    fn who_has_all_keeps_all_until_it_leaves() {
        let (mut groups, id) = groups();
        let strategy = ShareStrategy::Sticky;
        let mut got = BTreeSet::new();
        for _ in 0..9 {
            assert_eq!(groups.pick(id, all(), &strategy, 0), Some(Holder(0)));
            let member = groups.members(id, &strategy, 0)[0];
            groups.took(id, member, &strategy);
            // Topics of other classes have their own selection.
            groups.took(id, 3 - member, &ShareStrategy::RoundRobin);
            got.insert(member);
        }
        assert_eq!(got.len(), 1, "{got:?}");
        let first = got.pop_first().unwrap();
        assert!(groups.leave(id, first) && !groups.leave(id, first));
        assert_ne!(groups.members(id, &strategy, 0)[0], first);
        let mut others = all();
        others.remove(Holder(0));
        assert_eq!(groups.pick(id, others, &strategy, 0), Some(Holder(1)), "shard 0 takes nothing now");
        assert_eq!(groups.pick(id, all(), &strategy, 0), Some(Holder(1)));
    }

    #[test]
    fn nobody_is_picked_where_nobody_is() {
        let (mut groups, id) = groups();
        let mut none = HolderSet::default();
        none.insert(Holder(7));
        assert_eq!(groups.pick(id, none, &ShareStrategy::RoundRobin, 0), None);
        assert_eq!((groups.of(1), groups.of(9)), (1, 0));
        assert_eq!(groups.leave_all(1), [id]);
        assert_eq!(groups.members(id, &ShareStrategy::RoundRobin, 0), [2]);
    }
}
