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
    pub subs: IdSet,
}

#[derive(Debug, Default)]
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
    here: usize,
    /// Memory of `slots` and of their entries in the tables, without the nodes of the trie.
    bytes: usize,
}

/// Memory of a pattern without its text, matcher and nodes: itself, and its entries in the tables.
const PATTERN_BYTES: usize = size_of::<Pattern>() + 96;

impl Patterns {
    pub fn new(cache_topics_max: usize) -> Patterns {
        Patterns { cache: MatchCache::new(cache_topics_max), ..Patterns::default() }
    }

    pub fn set_cache_topics_max(&mut self, cache_topics_max: usize) {
        self.cache.set_topics_max(cache_topics_max);
    }

    pub fn is_empty(&self) -> bool {
        self.by_source.is_empty()
    }

    /// The number of distinct patterns with subscribers, in the whole cluster.
    pub fn len(&self) -> usize {
        self.by_source.len()
    }

    /// The number of patterns with subscribers on this node.
    pub fn here(&self) -> usize {
        self.here
    }

    pub fn bytes(&self) -> usize {
        self.bytes + self.filters.bytes()
    }

    /// Steps of all globs together to search a byte of a topic ([`hubsub_types::names::Glob::search`]).
    pub fn search(&self) -> usize {
        self.search
    }

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

    pub fn find(&self, source: &[u8]) -> Option<u32> {
        self.by_source.get(source).copied()
    }

    /// All patterns, in arbitrary order.
    pub fn iter(&self) -> impl Iterator<Item = &Pattern> {
        self.slots.iter().flatten()
    }

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
mod tests;
