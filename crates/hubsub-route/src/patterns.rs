//! Pattern subscriptions. Every shard holds every pattern with its number of subscribers on each shard; a
//! shard's own subscribers are stored with it. A publish looks up the matching patterns once per topic.
//!
//! Three independent parts find the patterns that match a topic:
//!
//! | part | holds | a topic costs |
//! |---|---|---|
//! | [`MatchCache`] | the answers for the latest topics | one look-up by hash |
//! | [`FilterTrie`] | MQTT filters, by level | the nodes on its way, and its own bytes |
//! | globs by literal prefix | Redis patterns | a look-up per prefix length, and a match per glob found |
//!
//! Invariants, compared with a scan of all patterns by `the_index_finds_what_a_scan_finds`:
//!
//! - a pattern is in the trie or among the globs, depending on its form, under one id, while it has
//!   subscribers;
//! - a cached answer equals the result of a scan now: a pattern that is added or removed can match only
//!   topics that begin with its literal prefix, and their answers are dropped, or updated at their next
//!   look-up ([`MatchCache`]);
//! - a topic of the node itself is matched only by patterns with a literal prefix that also belongs to the
//!   node (`pattern_prefix_min`);
//! - `search` is the sum of the maximum search steps per byte of a topic, over globs that have text between
//!   two stars. One look-up takes at most `patterns_search_max` × (`topic_bytes_max` + 16 ×
//!   `pattern_bytes_max`) steps among globs, and one step for each of the bytes that `patterns_bytes_max`
//!   limits: only a glob that searches more than 16 makes tables, at 272 steps for each of its bytes
//!   ([`Glob::search`](hubsub_types::names::Glob::search));
//! - `here` is the number of patterns with subscribers on shards of this node; the others have subscribers
//!   only on other nodes;
//! - `bytes` is the total memory of the patterns, of their counts by shard and node, and of the nodes of the
//!   trie; clients can add patterns up to `patterns_bytes_max`. Subscribers of this shard are not included:
//!   they are limited as subscriptions.

mod cache;
mod free;
mod trie;

use crate::counts::{Counts, Holder};
use crate::idset::IdSet;
use ahash::RandomState;
use cache::MatchCache;
use free::{FreeIds, shrink};
use hashbrown::HashMap;
use hubsub_types::ShardId;
use hubsub_types::names::{Matcher, pattern_prefix_min};
use std::cell::LazyCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use trie::FilterTrie;

#[derive(Debug)]
pub struct Pattern {
    matcher: Matcher,
    /// Its text; an MQTT filter has a mark in front.
    pub source: Arc<[u8]>,
    /// Subscribers by shard and node; changed by [`Patterns`] only, which counts their memory.
    pub counts: Counts,
    /// Connections of this shard that subscribe to it.
    pub subs: IdSet,
}

#[derive(Debug)]
pub struct Patterns {
    slots: Vec<Option<Pattern>>,
    free: FreeIds,
    by_source: HashMap<Arc<[u8]>, u32, RandomState>,
    filters: FilterTrie,
    globs: HashMap<Vec<u8>, IdSet, RandomState>,
    /// Length of literal prefixes of globs to number of prefixes that long.
    lengths: BTreeMap<usize, usize>,
    cache: MatchCache,
    /// Maximum steps of all globs together to search a byte of a topic.
    search: usize,
    /// The number of patterns with subscribers on shards of this node.
    here: usize,
    /// Memory of `slots` and of their entries in the tables, without the nodes of the trie.
    bytes: usize,
}

/// Memory of a pattern without its text, matcher and nodes: itself, and its entries in the tables.
const PATTERN_BYTES: usize = size_of::<Pattern>() + 96;

impl Patterns {
    /// An empty table that caches the matches of `cache_topics_max` topics.
    #[must_use]
    pub fn new(cache_topics_max: usize) -> Patterns {
        Patterns {
            slots: Vec::new(),
            free: FreeIds::default(),
            by_source: HashMap::default(),
            filters: FilterTrie::default(),
            globs: HashMap::default(),
            lengths: BTreeMap::new(),
            cache: MatchCache::new(cache_topics_max),
            search: 0,
            here: 0,
            bytes: 0,
        }
    }

    /// Sets the number of topics whose matches are cached.
    pub fn set_cache_topics_max(&mut self, cache_topics_max: usize) {
        self.cache.set_topics_max(cache_topics_max);
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_source.is_empty()
    }

    /// The number of distinct patterns with subscribers, in the whole cluster.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_source.len()
    }

    /// The number of patterns with subscribers on this node.
    #[must_use]
    pub fn here(&self) -> usize {
        self.here
    }

    /// Memory of all patterns, in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes + self.filters.bytes()
    }

    /// Maximum steps of all globs together to search a byte of a topic
    /// ([`hubsub_types::names::Glob::search`]).
    #[must_use]
    pub fn search(&self) -> usize {
        self.search
    }

    /// The id of a pattern, which is added if it is new.
    pub fn intern(&mut self, source: &[u8]) -> u32 {
        if let Some(&id) = self.by_source.get(source) {
            return id;
        }
        let matcher = Matcher::of_pattern(source);
        let source: Arc<[u8]> = source.into();
        let id = self.free.take(self.slots.len());
        self.cache.change(id, matcher.literal_prefix());
        match &matcher {
            Matcher::Filter(filter) => self.filters.insert(filter, id),
            Matcher::Glob(glob) => {
                let ids = self.globs.entry_ref(glob.literal_prefix()).or_default();
                if ids.is_empty() {
                    *self.lengths.entry(glob.literal_prefix().len()).or_default() += 1;
                }
                ids.insert(id);
                self.search += glob.search();
            }
        }
        self.bytes += memory(&source, &matcher);
        self.by_source.insert(Arc::clone(&source), id);
        let pattern = Pattern { matcher, source, counts: Counts::Zero, subs: IdSet::Empty };
        match self.slots.get_mut(id as usize) {
            Some(slot) => *slot = Some(pattern),
            None => self.slots.push(Some(pattern)),
        }
        id
    }

    #[must_use]
    pub fn find(&self, source: &[u8]) -> Option<u32> {
        self.by_source.get(source).copied()
    }

    /// All patterns, in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = &Pattern> {
        self.slots.iter().flatten()
    }

    /// A pattern by an id that is in use.
    #[must_use]
    pub fn get(&self, id: u32) -> &Pattern {
        self.slots[id as usize].as_ref().expect("ids are handed out for held patterns only")
    }

    pub fn get_mut(&mut self, id: u32) -> &mut Pattern {
        self.slots[id as usize].as_mut().expect("ids are handed out for held patterns only")
    }

    /// Adds a subscriber of a shard, on a node of `shards` shards.
    pub fn hold(&mut self, id: u32, shard: ShardId, shards: u16) {
        let is_first = self.get(id).counts.of_shards(shards) == 0;
        self.count(id, |counts| counts.add(shard, shards));
        self.here += usize::from(is_first);
    }

    /// Removes a subscriber of a shard, and the pattern if it was the last.
    pub fn release(&mut self, id: u32, shard: ShardId, shards: u16) {
        let was_there = self.count(id, |counts| counts.remove(shard));
        let is_last = was_there && self.get(id).counts.of_shards(shards) == 0;
        self.here -= usize::from(is_last);
        self.forget_unheld(id);
    }

    /// Sets the number of a pattern's subscribers on another node, which is `holder`.
    pub fn set_holder(&mut self, source: &[u8], holder: Holder, count: u32, shards: u16) {
        if count == 0 && self.find(source).is_none() {
            return;
        }
        let id = self.intern(source);
        self.count(id, |counts| counts.set(holder, count, shards));
        self.forget_unheld(id);
    }

    /// Changes the counts of a pattern, and updates `bytes`.
    fn count<T>(&mut self, id: u32, change: impl FnOnce(&mut Counts) -> T) -> T {
        let counts = &mut self.get_mut(id).counts;
        let before = counts.memory();
        let changed = change(counts);
        let after = counts.memory();
        self.bytes = self.bytes - before + after;
        changed
    }

    fn forget_unheld(&mut self, id: u32) {
        if !self.get(id).counts.is_zero() {
            return;
        }
        let pattern = self.slots[id as usize].take().expect("held until now");
        self.free.give(id, &mut self.slots);
        self.by_source.remove(&pattern.source);
        shrink(&mut self.by_source);
        self.bytes -= memory(&pattern.source, &pattern.matcher);
        self.cache.change(id, pattern.matcher.literal_prefix());
        match &pattern.matcher {
            Matcher::Filter(filter) => self.filters.remove(filter, id),
            Matcher::Glob(glob) => {
                self.search -= glob.search();
                self.forget_glob(glob.literal_prefix(), id);
            }
        }
    }

    fn forget_glob(&mut self, prefix: &[u8], id: u32) {
        let ids = self.globs.get_mut(prefix).expect("every glob has a place by its prefix");
        ids.remove(id);
        if ids.is_empty() {
            self.globs.remove(prefix);
            shrink(&mut self.globs);
            let number = self.lengths.get_mut(&prefix.len()).expect("every prefix is counted");
            *number -= 1;
            if *number == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
    }

    /// Ids of the patterns that match a topic and may do so, lowest first: see [`pattern_prefix_min`].
    pub fn matching(&mut self, topic: &[u8]) -> Rc<[u32]> {
        let slots = &self.slots;
        let least = LazyCell::new(|| pattern_prefix_min(topic));
        let matches = |id: u32| {
            let matcher = slots.get(id as usize).and_then(Option::as_ref).map(|pattern| &pattern.matcher);
            let may = |matcher: &&Matcher| least.is_some_and(|least| matcher.literal_prefix().len() >= least);
            matcher.filter(may).is_some_and(|matcher| matcher.matches(topic))
        };
        if let Some(ids) = self.cache.get(topic, matches) {
            return ids;
        }
        let ids: Rc<[u32]> = self.scan(topic).into();
        self.cache.insert(topic, Rc::clone(&ids));
        ids
    }

    fn scan(&self, topic: &[u8]) -> Vec<u32> {
        let mut ids = Vec::new();
        let Some(least) = pattern_prefix_min(topic) else { return ids };
        if !self.filters.is_empty() {
            self.filters.matching(topic, least == 0, &mut ids);
        }
        for (&length, _) in self.lengths.range(least..).take_while(|(length, _)| **length <= topic.len()) {
            let globs = self.globs.get(&topic[..length]).map_or(&[][..], IdSet::as_slice);
            ids.extend(globs.iter().filter(|&&id| self.get(id).matcher.matches(topic)));
        }
        ids.sort_unstable();
        ids
    }
}

/// Memory of a pattern without nodes of the trie; its text and prefix are also in a table.
fn memory(source: &[u8], matcher: &Matcher) -> usize {
    let prefix = if let Matcher::Glob(glob) = matcher { glob.literal_prefix().len() } else { 0 };
    PATTERN_BYTES + source.len() + prefix + matcher.memory()
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_types::names::{Filter, filter_pattern};
    use proptest::prelude::*;

    #[test]
    fn long_topics_take_the_place_of_several_in_the_cache() {
        let mut patterns = Patterns::new(10);
        patterns.intern(b"*");
        for i in 0..100 {
            matched(&mut patterns, format!("{i}{}", "x".repeat(10_000)).as_bytes());
        }
        assert!(patterns.cache.len() <= 2, "{}", patterns.cache.len());
    }

    #[test]
    fn many_patterns_of_one_prefix_go_as_fast_as_they_came() {
        let mut patterns = Patterns::new(4);
        let begin = std::time::Instant::now();
        let sources: Vec<String> = (0..100_000).map(|i| format!("*{i}")).collect();
        let ids: Vec<u32> = sources.iter().map(|source| patterns.intern(source.as_bytes())).collect();
        ids.into_iter().rev().for_each(|id| patterns.release(id, ShardId(0), 1));
        assert!(patterns.is_empty());
        // Examining all patterns for each of them takes minutes.
        assert!(begin.elapsed() < std::time::Duration::from_secs(15), "{:?}", begin.elapsed());
    }

    #[test]
    fn patterns_of_other_nodes_alone_are_not_counted_as_here() {
        let (mut patterns, shards) = (Patterns::new(4), 2);
        let (node, counts) = (Holder(shards), |patterns: &Patterns| (patterns.len(), patterns.here()));
        patterns.set_holder(b"a*", node, 3, shards);
        assert_eq!(counts(&patterns), (1, 0));
        let id = patterns.intern(b"a*");
        for shard in [ShardId(0), ShardId(1), ShardId(1)] {
            patterns.hold(id, shard, shards);
            assert_eq!(counts(&patterns), (1, 1));
        }
        patterns.set_holder(b"a*", node, 0, shards);
        patterns.release(id, ShardId(1), shards);
        patterns.release(id, ShardId(0), shards);
        assert_eq!(counts(&patterns), (1, 1));
        patterns.set_holder(b"a*", node, 1, shards);
        patterns.release(id, ShardId(1), shards);
        assert_eq!(counts(&patterns), (1, 0));
        patterns.release(id, ShardId(1), shards);
        assert_eq!(counts(&patterns), (1, 0), "there was none left to take away");
        patterns.set_holder(b"a*", node, 0, shards);
        assert_eq!(counts(&patterns), (0, 0));
    }

    fn matched(patterns: &mut Patterns, topic: &[u8]) -> Vec<Vec<u8>> {
        let ids = patterns.matching(topic);
        let mut sources: Vec<Vec<u8>> = ids.iter().map(|&id| patterns.get(id).source.to_vec()).collect();
        sources.sort();
        sources
    }

    #[test]
    fn a_name_that_begins_with_a_dollar_is_matched_by_patterns_that_do() {
        let mut patterns = Patterns::new(100);
        for source in ["*", "?stats/a", "[$]stats/a", "$stats/*", "$*"] {
            patterns.intern(source.as_bytes());
        }
        assert_eq!(matched(&mut patterns, b"$stats/a"), [b"$*".to_vec(), b"$stats/*".to_vec()]);
        assert_eq!(matched(&mut patterns, b"a$"), [b"*"]);
        patterns.intern(b"a{*");
        assert_eq!(matched(&mut patterns, b"a{$stats}"), [b""; 0], "its tag reserves it");
        assert_eq!(matched(&mut patterns, b"a{stats}").len(), 2);
    }

    #[test]
    fn filters_stand_beside_globs() {
        let mut patterns = Patterns::new(100);
        for filter in ["a/#", "a/+", "#", "+/b", "$stats/#"] {
            patterns.intern(&filter_pattern(filter.as_bytes()));
        }
        patterns.intern(b"a/*");
        let found = |patterns: &mut Patterns, topic: &[u8]| {
            let sources = matched(patterns, topic);
            let text =
                |s: &Vec<u8>| String::from_utf8(s.strip_prefix(b"\0mqtt:").unwrap_or(s).to_vec()).unwrap();
            sources.iter().map(text).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(found(&mut patterns, b"a"), "# a/#");
        assert_eq!(found(&mut patterns, b"a/b"), "# +/b a/# a/+ a/*");
        assert_eq!(found(&mut patterns, b"a/b/c"), "# a/# a/*");
        assert_eq!(found(&mut patterns, b"$stats/b"), "$stats/#");
    }

    #[test]
    fn a_new_limit_bounds_the_matches_that_are_remembered_already() {
        let mut patterns = Patterns::new(100);
        patterns.intern(b"t*");
        let ask = |patterns: &mut Patterns| (0..100).for_each(|i| _ = patterns.matching(&[b't', i]));
        ask(&mut patterns);
        assert_eq!(patterns.cache.len(), 100);
        patterns.set_cache_topics_max(10);
        assert_eq!(patterns.cache.len(), 0);
        ask(&mut patterns);
        assert_eq!(patterns.cache.len(), 10);
        assert_eq!(matched(&mut patterns, b"tx"), [b"t*"]);
    }

    #[test]
    fn a_pattern_that_comes_or_goes_leaves_the_answers_for_other_topics() {
        let mut patterns = Patterns::new(100);
        for source in [&b"a*"[..], b"b*", &filter_pattern(b"c/#")] {
            patterns.intern(source);
        }
        for topic in [&b"ax"[..], b"bx", b"c", b"c/x"] {
            matched(&mut patterns, topic);
        }
        let id = patterns.intern(b"a?");
        assert_eq!(patterns.cache.len(), 3);
        assert_eq!(matched(&mut patterns, b"ax").len(), 2);
        patterns.release(id, ShardId(0), 1);
        assert_eq!(patterns.cache.len(), 3);
        patterns.intern(&filter_pattern(b"c/x/#"));
        assert_eq!(patterns.cache.len(), 2);
        assert_eq!(matched(&mut patterns, b"c/x").len(), 2);
        patterns.intern(b"*");
        assert_eq!(patterns.cache.len(), 0, "it matches all");
    }

    #[test]
    fn a_pattern_that_begins_with_a_wildcard_leaves_all_answers() {
        let mut patterns = Patterns::new(1_000);
        let ab = patterns.intern(b"*ab*");
        let topics: Vec<String> = (0..1_000).map(|i| format!("{i}ab")).collect();
        let ask = |patterns: &mut Patterns| {
            topics.iter().map(|topic| patterns.matching(topic.as_bytes()).len()).sum::<usize>()
        };
        assert_eq!(ask(&mut patterns), 1_000);
        for source in [&b"*b*"[..], &filter_pattern(b"#"), b"*x*"] {
            for _ in 0..100 {
                let id = patterns.intern(source);
                patterns.release(id, ShardId(0), 1);
            }
            assert_eq!(patterns.cache.len(), 1_000);
        }
        let nines = patterns.intern(b"*9*b");
        assert_eq!(ask(&mut patterns), 1_000 + 271);
        patterns.release(ab, ShardId(0), 1);
        assert_eq!((ask(&mut patterns), patterns.cache.len()), (271, 1_000));
        patterns.release(nines, ShardId(0), 1);
        assert_eq!((ask(&mut patterns), patterns.cache.len()), (0, 1_000));
    }

    #[test]
    fn the_memory_of_patterns_is_counted_and_given_back() {
        let mut patterns = Patterns::new(4);
        let text = "?*".repeat(512);
        let glob = patterns.intern(text.as_bytes());
        assert!((6_000..12_000).contains(&patterns.bytes()), "{}", patterns.bytes());
        let filter = patterns.intern(&filter_pattern("+/".repeat(512).as_bytes()));
        assert!(patterns.bytes() > 50_000, "{}", patterns.bytes());
        patterns.release(filter, ShardId(0), 1);
        patterns.release(glob, ShardId(0), 1);
        assert_eq!(patterns.bytes(), 0);
    }

    #[test]
    fn counts_by_shard_and_node_are_in_the_memory_of_patterns() {
        let (mut patterns, shards) = (Patterns::new(4), 64);
        let id = patterns.intern(b"a*");
        patterns.hold(id, ShardId(3), shards);
        let one = patterns.bytes();
        patterns.hold(id, ShardId(63), shards);
        assert_eq!(patterns.bytes(), one + 64 * 4);
        patterns.set_holder(b"a*", Holder(64 + 127), 5, shards);
        assert_eq!(patterns.bytes(), one + 192 * 4);
        patterns.set_holder(b"a*", Holder(64 + 127), 0, shards);
        patterns.release(id, ShardId(63), shards);
        assert_eq!(patterns.bytes(), one, "one holder is left");
        patterns.release(id, ShardId(3), shards);
        assert_eq!(patterns.bytes(), 0);
    }

    #[test]
    fn tables_give_back_the_memory_of_patterns_that_are_gone() {
        let mut patterns = Patterns::new(4);
        let first = patterns.intern(b"first*");
        patterns.hold(first, ShardId(0), 1);
        let sources = (0..40_000).map(|i| match i % 2 {
            0 => filter_pattern(format!("a/{i}/+").as_bytes()),
            _ => format!("{i}*").into_bytes(),
        });
        let ids: Vec<u32> = sources.map(|source| patterns.intern(&source)).collect();
        ids.into_iter().for_each(|id| patterns.release(id, ShardId(0), 1));
        assert_eq!((patterns.len(), patterns.slots.len(), patterns.free.len()), (1, 1, 0));
        let capacities =
            [patterns.slots.capacity(), patterns.by_source.capacity(), patterns.globs.capacity()];
        assert!(capacities.iter().all(|&capacity| capacity <= 4_096), "{capacities:?}");
        assert!(patterns.filters.capacity() <= 2 * 4_096, "{}", patterns.filters.capacity());
        assert_eq!(matched(&mut patterns, b"first1"), [b"first*"]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

        #[test]
        fn the_index_finds_what_a_scan_finds(
            ops in proptest::collection::vec(
                (any::<bool>(), any::<bool>(), "[$]?[ab*?/+#]{0,5}"), 1..60
            ),
            topics in proptest::collection::vec("[$]?[ab/]{0,5}(\\{\\$a\\})?", 1..10),
        ) {
            let mut patterns = Patterns::new(4);
            let mut model: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
            for (adds, is_filter, text) in ops {
                let source = match Filter::new(text.as_bytes()) {
                    Ok(_) if is_filter => filter_pattern(text.as_bytes()),
                    _ => text.into_bytes(),
                };
                if adds {
                    let id = patterns.intern(&source);
                    patterns.hold(id, ShardId(0), 1);
                    *model.entry(source).or_default() += 1;
                } else if let Some(n) = model.get_mut(&source) {
                    patterns.release(patterns.find(&source).unwrap(), ShardId(0), 1);
                    *n -= 1;
                    if *n == 0 {
                        model.remove(&source);
                    }
                }
                prop_assert_eq!((patterns.len(), patterns.here()), (model.len(), model.len()));
                prop_assert_eq!(patterns.bytes() == 0, model.is_empty());
                let search = model.keys().map(|source| match Matcher::of_pattern(source) {
                    Matcher::Glob(glob) => glob.search(),
                    Matcher::Filter(_) => 0,
                });
                prop_assert_eq!(patterns.search(), search.sum::<usize>());
                for topic in &topics {
                    let topic = topic.as_bytes();
                    let matches = |source: &&Vec<u8>| {
                        let matcher = Matcher::of_pattern(source);
                        let is_own = topic.starts_with(b"$");
                        let may = !is_own || matcher.literal_prefix().starts_with(b"$");
                        may && !topic.ends_with(b"{$a}") && matcher.matches(topic)
                    };
                    let scan: Vec<Vec<u8>> = model.keys().filter(matches).cloned().collect();
                    prop_assert_eq!(matched(&mut patterns, topic), scan);
                }
            }
        }

        #[test]
        fn answers_of_any_age_are_what_a_scan_finds(
            ops in proptest::collection::vec(
                (0..4_u8, any::<bool>(), "[$]?[ab*?/+#]{0,4}", 0..200_usize), 1..400
            ),
        ) {
            // Enough topics that a change is listed, and enough patterns that some answers are older than the
            // list.
            let letters = [b'$', b'a', b'b', b'/'];
            let mut topics: Vec<Vec<u8>> = vec![Vec::new()];
            for at in 0..85 {
                topics.extend(letters.map(|letter| [&topics[at][..], &[letter]].concat()));
            }
            let mut patterns = Patterns::new(1_000);
            let mut model: BTreeMap<Vec<u8>, Matcher> = BTreeMap::new();
            topics.iter().for_each(|topic| _ = patterns.matching(topic));
            for (kind, is_filter, text, topic) in ops {
                let source = match Filter::new(text.as_bytes()) {
                    Ok(_) if is_filter => filter_pattern(text.as_bytes()),
                    _ => text.into_bytes(),
                };
                if kind > 0 && !model.contains_key(&source) {
                    let id = patterns.intern(&source);
                    patterns.hold(id, ShardId(0), 1);
                    model.insert(source.clone(), Matcher::of_pattern(&source));
                } else if let Some((source, _)) = model.range(source..).next() {
                    let source = source.clone();
                    patterns.release(patterns.find(&source).unwrap(), ShardId(0), 1);
                    model.remove(&source);
                }
                let topic = &topics[topic];
                let may = |matcher: &Matcher| {
                    topic.first() != Some(&b'$') || matcher.literal_prefix().starts_with(b"$")
                };
                let matching = model.iter().filter(|(_, matcher)| may(matcher) && matcher.matches(topic));
                let scan: Vec<Vec<u8>> = matching.map(|(source, _)| source.clone()).collect();
                prop_assert_eq!(matched(&mut patterns, topic), scan, "{:?}", topic);
            }
        }
    }
}
