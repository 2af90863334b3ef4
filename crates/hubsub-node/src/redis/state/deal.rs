//! Assigns slots to nodes: a function of the nodes' names alone, so all nodes compute the same result without
//! communication.
//!
//! Rendezvous hashing of blocks of slots, with bounded shares: pairs of a block and a node are processed in
//! order of their hash, and the node takes what is left of the block and of its share. Shares differ by at
//! most one slot. The part of a block that exceeds its first node's share goes to the next one, so a node
//! that joins or leaves moves little more than its share: 27 % of the slots instead of 25 % when a fourth one
//! joins, 12 % instead of 9 % at the eleventh.
//!
//! Blocks, because clients request the ranges every few seconds: three nodes have some 180 of them; single
//! slots would make 11,000.

use super::slot::SLOTS;
use hubsub_types::names::{hash, mix};

const BLOCK: u16 = 64;

/// Consecutive slots of one node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Range {
    pub first: u16,
    /// The last slot, inclusive.
    pub last: u16,
    /// Index of the node among the names.
    pub owner: u16,
}

/// Assigns all slots to the nodes of these names, which are distinct, sorted, and at most as many as slots.
/// Returns the ranges, sorted.
pub fn deal(names: &[&str]) -> Vec<Range> {
    let Ok(count @ 1..) = u16::try_from(names.len()) else { return Vec::new() };
    let mut shares: Vec<u16> = (0..count).map(|i| SLOTS / count + u16::from(i < SLOTS % count)).collect();
    // The first slot of each block without an owner.
    let mut nexts: Vec<u16> = (0..SLOTS).step_by(usize::from(BLOCK)).collect();
    let mut ranges = Vec::with_capacity(nexts.len() + names.len());
    for (_, block, node) in pairs(names, nexts.len() as u16) {
        let (next, share) = (&mut nexts[usize::from(block)], &mut shares[usize::from(node)]);
        let taken = (*share).min((block + 1) * BLOCK - *next);
        if taken > 0 {
            ranges.push(Range { first: *next, last: *next + taken - 1, owner: node });
            *next += taken;
            *share -= taken;
        }
    }
    ranges.sort_unstable_by_key(|range| range.first);
    ranges.dedup_by(|range, before| {
        let goes_on = range.owner == before.owner;
        if goes_on {
            before.last = range.last;
        }
        goes_on
    });
    ranges
}

/// Hash, block and node, sorted by descending hash.
fn pairs(names: &[&str], blocks: u16) -> Vec<(u64, u16, u16)> {
    let nodes = names.iter().zip(0u16..).map(|(name, node)| (hash(name.as_bytes()), node));
    let with_blocks =
        |(seed, node)| (0..blocks).map(move |block| (mix(seed ^ u64::from(block)), block, node));
    let mut pairs: Vec<(u64, u16, u16)> = nodes.flat_map(with_blocks).collect();
    pairs.sort_unstable_by(|a, b| b.cmp(a));
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(count: usize) -> Vec<String> {
        (0..count).map(|i| format!("node-{i:05}")).collect()
    }

    /// The owner's name of each slot.
    fn owners(names: &[String]) -> Vec<&str> {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let mut owners = Vec::new();
        for Range { first, last, owner } in deal(&names) {
            assert_eq!(usize::from(first), owners.len(), "no slot is left out or dealt twice");
            owners.resize(usize::from(last) + 1, names[usize::from(owner)]);
        }
        assert!(names.is_empty() || owners.len() == usize::from(SLOTS));
        owners
    }

    #[test]
    fn shares_differ_by_one_slot_at_most() {
        for count in [1, 2, 3, 7, 100, 1_000, usize::from(SLOTS)] {
            let names = names(count);
            let owners = owners(&names);
            let mut counts = std::collections::HashMap::new();
            owners.iter().for_each(|name| *counts.entry(*name).or_insert(0) += 1);
            let (least, most) = (counts.values().min().unwrap(), counts.values().max().unwrap());
            assert!(counts.len() == count && most - least <= 1, "{count}: {least} to {most}");
        }
        assert!(deal(&[]).is_empty());
    }

    #[test]
    fn a_node_that_comes_or_goes_moves_little_more_than_its_share() {
        for (count, of_share) in [(1, 1.0), (2, 1.1), (3, 1.15), (5, 1.3), (10, 1.5)] {
            let names = names(count + 1);
            for gone in 0..=count {
                let mut fewer = names.clone();
                fewer.remove(gone);
                let (with, without) = (owners(&names), owners(&fewer));
                let moved = with.iter().zip(&without).filter(|(a, b)| a != b).count() as f64;
                let share = f64::from(SLOTS) / (count + 1) as f64;
                assert!(moved <= share * of_share + 1.0, "{count} and one: {moved} of {share}");
            }
        }
    }

    #[test]
    fn the_deal_is_the_same_in_every_version() {
        let ranges = deal(&["a", "b", "c"]);
        let first: Vec<_> = ranges.iter().take(4).map(|r| (r.first, r.last, r.owner)).collect();
        assert_eq!(first, [(0, 63, 0), (64, 127, 1), (128, 191, 0), (192, 255, 1)]);
        let whole = ranges.iter().fold(0, |sum, r| mix(sum ^ u64::from(r.first) << 16 ^ u64::from(r.owner)));
        assert_eq!((ranges.len(), whole), (175, 5_516_129_866_025_215_852));
    }
}
