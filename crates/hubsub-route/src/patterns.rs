//! Pattern subscriptions. Every shard holds every pattern, with the number of
//! subscribers each shard has; a shard's own subscribers stand beside it. A
//! publish asks once per topic which patterns match, and the answer is cached
//! until a pattern comes or goes.
//!
//! Patterns stand by their literal prefix, so that a topic meets only those
//! whose prefix it has.

use crate::counts::{Counts, Holder};
use crate::idset::IdSet;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::ShardId;
use hubsub_types::names::{Matcher, pattern_prefix_min};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// One pattern.
#[derive(Debug)]
pub struct Pattern {
    matcher: Matcher,
    /// Its text; of an MQTT filter with a mark in front.
    pub source: Arc<[u8]>,
    /// Subscribers by shard.
    pub counts: Counts,
    /// Subscribers of this shard.
    pub subs: IdSet,
}

/// All patterns, as one shard holds them.
#[derive(Debug)]
pub struct Patterns {
    slots: Vec<Option<Pattern>>,
    free: Vec<u32>,
    by_source: HashMap<Arc<[u8]>, u32, RandomState>,
    by_prefix: HashMap<Vec<u8>, IdSet, RandomState>,
    /// Prefix length to number of prefixes that long.
    lengths: BTreeMap<usize, usize>,
    cache: HashMap<Box<[u8]>, Rc<[u32]>, RandomState>,
    cache_topics_max: usize,
    /// Bytes of topics and ids in `cache`.
    cache_bytes: usize,
}

/// Bytes for each topic whose patterns may be remembered: long ones take the place of several.
const CACHE_BYTES: usize = 1024;

impl Patterns {
    /// No pattern; remembers the matches of `cache_topics_max` topics.
    #[must_use]
    pub fn new(cache_topics_max: usize) -> Patterns {
        Patterns {
            slots: Vec::new(),
            free: Vec::new(),
            by_source: HashMap::default(),
            by_prefix: HashMap::default(),
            lengths: BTreeMap::new(),
            cache: HashMap::default(),
            cache_topics_max,
            cache_bytes: 0,
        }
    }

    /// Sets of how many topics the matches are remembered.
    pub fn set_cache_topics_max(&mut self, cache_topics_max: usize) {
        self.cache_topics_max = cache_topics_max;
        if self.cache.len() > cache_topics_max {
            self.cache = HashMap::default();
        }
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_source.is_empty()
    }

    /// How many distinct patterns have subscribers, on all shards.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_source.len()
    }

    /// The id of a pattern, made if it is new.
    pub fn intern(&mut self, source: &[u8]) -> u32 {
        if let Some(&id) = self.by_source.get(source) {
            return id;
        }
        let matcher = Matcher::of_pattern(source);
        let source: Arc<[u8]> = source.into();
        let id = self.free.pop().unwrap_or(self.slots.len() as u32);
        let ids = self.by_prefix.entry_ref(matcher.literal_prefix()).or_default();
        if ids.is_empty() {
            *self.lengths.entry(matcher.literal_prefix().len()).or_default() += 1;
        }
        ids.insert(id);
        self.by_source.insert(Arc::clone(&source), id);
        let pattern = Pattern { matcher, source, counts: Counts::Zero, subs: IdSet::Empty };
        match self.slots.get_mut(id as usize) {
            Some(slot) => *slot = Some(pattern),
            None => self.slots.push(Some(pattern)),
        }
        self.forget_matches();
        id
    }

    /// The id of a pattern, if it is held.
    #[must_use]
    pub fn find(&self, source: &[u8]) -> Option<u32> {
        self.by_source.get(source).copied()
    }

    /// All of them, in no order that means anything.
    pub fn iter(&self) -> impl Iterator<Item = &Pattern> {
        self.slots.iter().flatten()
    }

    /// A pattern by an id that is in use.
    #[must_use]
    pub fn get(&self, id: u32) -> &Pattern {
        self.slots[id as usize].as_ref().expect("ids are handed out for held patterns only")
    }

    /// As `get`.
    pub fn get_mut(&mut self, id: u32) -> &mut Pattern {
        self.slots[id as usize].as_mut().expect("ids are handed out for held patterns only")
    }

    /// Counts a subscriber of a shard less, and forgets a pattern that has none left.
    pub fn release(&mut self, id: u32, shard: ShardId) {
        self.get_mut(id).counts.remove(shard);
        self.forget_unheld(id);
    }

    /// So many subscribers of a pattern are on another node, which is that holder, from now on.
    pub fn set_holder(&mut self, source: &[u8], holder: Holder, count: u32, shards: u16) {
        if count == 0 && self.find(source).is_none() {
            return;
        }
        let id = self.intern(source);
        self.get_mut(id).counts.set(holder, count, shards);
        self.forget_unheld(id);
    }

    fn forget_unheld(&mut self, id: u32) {
        if !self.get(id).counts.is_zero() {
            return;
        }
        let pattern = self.slots[id as usize].take().expect("held until now");
        self.free.push(id);
        self.by_source.remove(&pattern.source);
        let prefix = pattern.matcher.literal_prefix();
        let ids = self.by_prefix.get_mut(prefix).expect("every pattern stands by its prefix");
        ids.remove(id);
        if ids.is_empty() {
            self.by_prefix.remove(prefix);
            let number = self.lengths.get_mut(&prefix.len()).expect("every prefix is counted");
            *number -= 1;
            if *number == 0 {
                self.lengths.remove(&prefix.len());
            }
        }
        self.forget_matches();
    }

    fn forget_matches(&mut self) {
        self.cache.clear();
        self.cache_bytes = 0;
    }

    /// Ids of the patterns that match a topic, lowest first, of those that may: see [`pattern_prefix_min`].
    pub fn matching(&mut self, topic: &[u8]) -> Rc<[u32]> {
        if let Some(ids) = self.cache.get(topic) {
            return Rc::clone(ids);
        }
        let mut ids = Vec::new();
        // As long as the topic is, no prefix is longer.
        let least = pattern_prefix_min(topic).unwrap_or(topic.len() + 1);
        for (&length, _) in self.lengths.range(least..).take_while(|(length, _)| **length <= topic.len()) {
            let held = self.by_prefix.get(&topic[..length]).map_or(&[][..], IdSet::as_slice);
            ids.extend(held.iter().filter(|&&id| self.get(id).matcher.matches(topic)));
        }
        ids.sort_unstable();
        let ids: Rc<[u32]> = ids.into();
        let bytes = topic.len() + size_of_val(&*ids);
        let is_full = self.cache_bytes + bytes > CACHE_BYTES * self.cache_topics_max;
        if is_full || self.cache.len() >= self.cache_topics_max {
            self.forget_matches();
        }
        self.cache_bytes += bytes;
        self.cache.insert(topic.into(), Rc::clone(&ids));
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_types::names::{Glob, filter_pattern};
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
        ids.into_iter().rev().for_each(|id| patterns.release(id, ShardId(0)));
        assert!(patterns.is_empty());
        // A search for each among all of them takes minutes.
        assert!(begin.elapsed() < std::time::Duration::from_secs(15), "{:?}", begin.elapsed());
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
        assert!(patterns.cache.is_empty());
        ask(&mut patterns);
        assert_eq!(patterns.cache.len(), 10);
        assert_eq!(matched(&mut patterns, b"tx"), [b"t*"]);
    }

    proptest! {
        #[test]
        fn the_index_finds_what_a_scan_finds(
            ops in proptest::collection::vec((any::<bool>(), "[ab*?]{0,4}"), 1..60),
            topics in proptest::collection::vec("[ab]{0,5}", 1..10),
        ) {
            let mut patterns = Patterns::new(4);
            let mut model: BTreeMap<String, usize> = BTreeMap::new();
            for (add, source) in ops {
                if add {
                    let id = patterns.intern(source.as_bytes());
                    patterns.get_mut(id).counts.add(ShardId(0), 1);
                    *model.entry(source).or_default() += 1;
                } else if let Some(n) = model.get_mut(&source) {
                    patterns.release(patterns.find(source.as_bytes()).unwrap(), ShardId(0));
                    *n -= 1;
                    if *n == 0 {
                        model.remove(&source);
                    }
                }
                prop_assert_eq!(patterns.len(), model.len());
                for topic in &topics {
                    let scan: Vec<Vec<u8>> = model
                        .keys()
                        .filter(|s| Glob::new(s.as_bytes()).matches(topic.as_bytes()))
                        .map(|s| s.clone().into_bytes())
                        .collect();
                    prop_assert_eq!(matched(&mut patterns, topic.as_bytes()), scan);
                }
            }
        }
    }
}
