//! A trie of MQTT filters by their levels: a topic is compared only with filters that may match it. It has a
//! node for each prefix of a filter, with `+` as a separate child; each node has the filters that end there
//! and those that continue with `#`.
//!
//! A look-up visits each node at most once, and at most one node for each way to read the topic's levels as
//! text or `+`; it reads each level of the topic once, for all nodes. So its steps are limited by the number
//! of nodes, which `patterns_bytes_max` limits, and by the bytes of the topic.

use super::free::FreeIds;
use crate::idset::IdSet;
use crate::sparse::is_sparse;
use ahash::RandomState;
use hashbrown::HashTable;
use hubsub_types::names::Filter;

/// Marks the absence of a node.
const NONE: u32 = u32::MAX;

const ROOT: u32 = 0;

/// Memory of a node without its text: itself, its entry at its parent, and a list.
const NODE_BYTES: usize = size_of::<Node>() + 48;

#[derive(Debug)]
struct Node {
    parent: u32,
    /// The text of its last level; empty for `+` and the root.
    level: Box<[u8]>,
    plus: u32,
    children: u32,
    ends: IdSet,
    /// Filters that continue with `#` here.
    below: IdSet,
}

#[derive(Debug)]
pub struct FilterTrie {
    /// The root is always present.
    nodes: Vec<Node>,
    free: FreeIds,
    /// Children of all nodes by parent and text.
    by_level: HashTable<u32>,
    hasher: RandomState,
    bytes: usize,
}

impl Default for FilterTrie {
    fn default() -> FilterTrie {
        FilterTrie {
            nodes: vec![Node::new(NONE, b"")],
            free: FreeIds::default(),
            by_level: HashTable::new(),
            hasher: RandomState::new(),
            bytes: 0,
        }
    }
}

impl FilterTrie {
    pub fn insert(&mut self, filter: &Filter, id: u32) {
        let mut at = ROOT;
        for level in filter.levels() {
            at = match level {
                b"#" => {
                    self.nodes[at as usize].below.insert(id);
                    return;
                }
                b"+" if self.nodes[at as usize].plus != NONE => self.nodes[at as usize].plus,
                b"+" => {
                    let child = self.add(at, b"");
                    self.nodes[at as usize].plus = child;
                    child
                }
                level => self.child(at, level, self.hasher.hash_one(level)).unwrap_or_else(|| {
                    let child = self.add(at, level);
                    let hash = self.hash_of(at, level);
                    let (hasher, nodes) = (&self.hasher, &self.nodes);
                    self.by_level.insert_unique(hash, child, |&id| rehash(hasher, nodes, id));
                    child
                }),
            };
        }
        self.nodes[at as usize].ends.insert(id);
    }

    pub fn remove(&mut self, filter: &Filter, id: u32) {
        let mut at = ROOT;
        let mut levels = filter.levels().peekable();
        while let Some(level) = levels.next_if(|level| *level != b"#") {
            let child = match level {
                b"+" => Some(self.nodes[at as usize].plus),
                level => self.child(at, level, self.hasher.hash_one(level)),
            };
            at = child.filter(|&child| child != NONE).expect("each level of an added filter has its node");
        }
        let node = &mut self.nodes[at as usize];
        let held = if levels.next().is_some() { &mut node.below } else { &mut node.ends };
        held.remove(id);
        self.forget_empty(at);
        if is_sparse(self.by_level.len(), self.by_level.capacity()) {
            let (hasher, nodes) = (&self.hasher, &self.nodes);
            self.by_level.shrink_to(self.by_level.len() * 2, |&id| rehash(hasher, nodes, id));
        }
    }

    /// Adds the numbers of all filters that match a topic, in arbitrary order; without `wild_first` none that
    /// begins with a wildcard. Returns the number of visited nodes, and of read bytes of the topic.
    pub fn matching(&self, topic: &[u8], wild_first: bool, found: &mut Vec<u32>) -> (usize, usize) {
        // Levels read so far: start, end and hash of each.
        let mut levels: Vec<(usize, usize, u64)> = Vec::new();
        // Nodes to visit, with the number of levels that lead to each.
        let mut open: Vec<(u32, usize)> = vec![(ROOT, 0)];
        let (mut visited, mut read) = (0, 0);
        while let Some((at, depth)) = open.pop() {
            visited += 1;
            let node = &self.nodes[at as usize];
            let takes_wild = wild_first || at != ROOT;
            if takes_wild {
                found.extend_from_slice(node.below.as_slice());
            }
            // Beyond the topic's end there is no level.
            let from = depth.checked_sub(1).map_or(0, |above| levels[above].1 + 1);
            let Some(rest) = topic.get(from..) else {
                found.extend_from_slice(node.ends.as_slice());
                continue;
            };
            if node.children == 0 {
                continue;
            }
            if levels.len() == depth {
                let len = rest.iter().position(|&byte| byte == b'/').unwrap_or(rest.len());
                read += len;
                levels.push((from, from + len, self.hasher.hash_one(&rest[..len])));
            }
            let (from, end, hash) = levels[depth];
            if node.plus != NONE && takes_wild {
                open.push((node.plus, depth + 1));
            }
            if let Some(child) = self.child(at, &topic[from..end], hash) {
                open.push((child, depth + 1));
            }
        }
        (visited, read)
    }

    pub fn is_empty(&self) -> bool {
        let root = &self.nodes[ROOT as usize];
        root.children == 0 && root.ends.is_empty() && root.below.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Slots for nodes, used or not.
    #[cfg(test)]
    pub fn capacity(&self) -> usize {
        self.nodes.capacity() + self.by_level.capacity()
    }

    fn child(&self, parent: u32, level: &[u8], hash: u64) -> Option<u32> {
        let is_it = |&id: &u32| {
            let node = &self.nodes[id as usize];
            node.parent == parent && *node.level == *level
        };
        self.by_level.find(self.hasher.hash_one((parent, hash)), is_it).copied()
    }

    fn hash_of(&self, parent: u32, level: &[u8]) -> u64 {
        self.hasher.hash_one((parent, self.hasher.hash_one(level)))
    }

    fn add(&mut self, parent: u32, level: &[u8]) -> u32 {
        self.bytes += NODE_BYTES + level.len();
        self.nodes[parent as usize].children += 1;
        let node = Node::new(parent, level);
        let id = self.free.take(self.nodes.len());
        match self.nodes.get_mut(id as usize) {
            Some(free) => *free = node,
            None => self.nodes.push(node),
        }
        id
    }

    /// Removes a node without filters and children, and those of its ancestors that become so.
    fn forget_empty(&mut self, mut at: u32) {
        while at != ROOT {
            let node = &mut self.nodes[at as usize];
            if node.children > 0 || !node.ends.is_empty() || !node.below.is_empty() {
                return;
            }
            let (parent, level) = (node.parent, std::mem::take(&mut node.level));
            if self.nodes[parent as usize].plus == at {
                self.nodes[parent as usize].plus = NONE;
            } else {
                let found = self.by_level.find_entry(self.hash_of(parent, &level), |&id| id == at);
                found.expect("a node that is not `+` is found by its text").remove();
            }
            self.nodes[parent as usize].children -= 1;
            self.bytes -= NODE_BYTES + level.len();
            self.free.give(at, &mut self.nodes);
            at = parent;
        }
    }
}

/// The hash by which a node other than `+` is found.
fn rehash(hasher: &RandomState, nodes: &[Node], id: u32) -> u64 {
    let node = &nodes[id as usize];
    hasher.hash_one((node.parent, hasher.hash_one(&*node.level)))
}

impl Node {
    fn new(parent: u32, level: &[u8]) -> Node {
        Node { parent, level: level.into(), plus: NONE, children: 0, ends: IdSet::Empty, below: IdSet::Empty }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_was_taken_out_leaves_nothing() {
        let mut trie = FilterTrie::default();
        let filters = ["a/b/c", "a/+/c", "a/#", "#", "+", "a", "/", "+/+/#"]
            .map(|f| Filter::new(f.as_bytes()).unwrap());
        for (filter, id) in filters.iter().zip(0..) {
            trie.insert(filter, id);
        }
        let bytes = trie.bytes();
        trie.insert(&filters[0], 99);
        assert_eq!(trie.bytes(), bytes, "of its nodes there are all");
        trie.remove(&filters[0], 99);
        for (filter, id) in filters.iter().zip(0..) {
            assert!(!trie.is_empty());
            trie.remove(filter, id);
        }
        assert!(trie.is_empty() && trie.by_level.is_empty());
        assert_eq!((trie.bytes(), trie.nodes.len() - trie.free.len()), (0, 1));
    }

    #[test]
    fn a_topic_meets_only_the_filters_on_its_way() {
        let mut trie = FilterTrie::default();
        for id in 0..10_000 {
            trie.insert(&Filter::new(format!("devices/{id}/+/state").as_bytes()).unwrap(), id);
        }
        let mut found = Vec::new();
        assert_eq!(trie.matching(b"devices/7/x/state", true, &mut found).0, 5);
        assert_eq!(found, [7]);
        let long = [b"devices/".as_slice(), &b"/x".repeat(30_000)].concat();
        assert!(trie.matching(&long, true, &mut found).0 < 5);
    }

    #[test]
    fn a_long_level_is_read_once_however_many_ways_lead_to_it() {
        const DEPTH: u32 = 8;
        let mut trie = FilterTrie::default();
        for id in 0..1 << DEPTH {
            let level = |bit| if id >> bit & 1 == 1 { "+/" } else { "a/" };
            let filter: String = (0..DEPTH).map(level).chain(["x/y"]).collect();
            trie.insert(&Filter::new(filter.as_bytes()).unwrap(), id);
        }
        let ways = (1 << (DEPTH + 1)) - 1;
        let mut found = Vec::new();
        let long = ["a/".repeat(DEPTH as usize), "b".repeat(60_000)].concat();
        let read = long.len() - DEPTH as usize;
        assert_eq!(trie.matching(long.as_bytes(), true, &mut found), (ways, read));
        assert!(found.is_empty());
        let short = "a/".repeat(DEPTH as usize) + "x/y";
        trie.matching(short.as_bytes(), true, &mut found);
        assert_eq!(found.len(), 1 << DEPTH);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 1000, ..ProptestConfig::default() })]

        #[test]
        fn it_finds_what_a_scan_of_all_filters_finds(
            ops in proptest::collection::vec((any::<bool>(), "\\$?((a|b|\\+|)/){0,4}(a|b|\\+|#|)"), 1..60),
            topics in proptest::collection::vec("\\$?(a|b|/){0,8}", 1..10),
        ) {
            let mut trie = FilterTrie::default();
            let mut model: Vec<(u32, Filter)> = Vec::new();
            for ((adds, text), id) in ops.into_iter().zip(0..) {
                let Ok(filter) = Filter::new(text.as_bytes()) else { continue };
                match model.iter().position(|(_, held)| *held == filter) {
                    Some(at) if !adds => {
                        let (id, filter) = model.remove(at);
                        trie.remove(&filter, id);
                    }
                    // Filters of several groups may be equal.
                    _ => {
                        trie.insert(&filter, id);
                        model.push((id, filter));
                    }
                }
                for topic in &topics {
                    let topic = topic.as_bytes();
                    let mut found = Vec::new();
                    trie.matching(topic, !topic.starts_with(b"$"), &mut found);
                    found.sort_unstable();
                    let scan: Vec<u32> =
                        model.iter().filter(|(_, held)| held.matches(topic)).map(|(id, _)| *id).collect();
                    prop_assert_eq!(found, scan, "{:?}", topic);
                }
            }
            for (id, filter) in model {
                trie.remove(&filter, id);
            }
            prop_assert!(trie.is_empty() && trie.bytes() == 0);
        }
    }
}
