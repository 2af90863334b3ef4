//! A cache of the patterns that match recently requested topics.
//!
//! Adding or removing a pattern changes only answers for topics that begin with its literal prefix. If few of
//! these are in the cache, they are dropped at once. If there are many, as with `*x*`, the pattern's id goes
//! into a short list of changes, and each answer is updated at the next look-up of its topic, for the
//! patterns that changed after the answer was made. An answer that is older than the list is dropped then. So
//! a change costs at most [`DROPPED_MAX`] topics, and a look-up at most [`CHANGES_MAX`] patterns or a scan.

use ahash::RandomState;
use hashbrown::HashMap;
use std::collections::{BTreeSet, VecDeque};
use std::ops::Bound;
use std::rc::Rc;

/// Bytes budgeted per cached topic: a long topic takes the space of several.
const TOPIC_BYTES: usize = 1024;

/// Topics that a change drops at once, at most.
pub const DROPPED_MAX: usize = 64;

/// Changed patterns in the list, at most.
pub const CHANGES_MAX: usize = 64;

#[derive(Debug)]
struct Answer {
    ids: Rc<[u32]>,
    changed: u64,
}

#[derive(Debug, Default)]
struct Changes {
    /// Number of the change and id of the pattern, oldest first.
    recent: VecDeque<(u64, u32)>,
    last: u64,
    /// The last change that has left `recent`: an answer without it cannot be updated.
    lost: u64,
}

impl Changes {
    fn add(&mut self, id: u32) {
        self.last += 1;
        self.recent.retain(|(_, changed)| *changed != id);
        self.recent.push_back((self.last, id));
        if self.recent.len() > CHANGES_MAX
            && let Some((lost, _)) = self.recent.pop_front()
        {
            self.lost = lost;
        }
    }

    fn after(&self, number: u64) -> impl Iterator<Item = u32> {
        self.recent.iter().rev().take_while(move |(of, _)| *of > number).map(|(_, id)| *id)
    }
}

/// The cached matches. Both tables have the same topics.
#[derive(Debug, Default)]
pub struct MatchCache {
    by_topic: HashMap<Rc<[u8]>, Answer, RandomState>,
    in_order: BTreeSet<Rc<[u8]>>,
    changes: Changes,
    topics_max: usize,
    bytes: usize,
}

impl MatchCache {
    pub fn new(topics_max: usize) -> MatchCache {
        MatchCache { topics_max, ..MatchCache::default() }
    }

    /// The cached patterns of a topic. `matches`: whether the pattern with an id now matches it.
    #[inline]
    #[must_use]
    pub fn get(&mut self, topic: &[u8], matches: impl Fn(u32) -> bool) -> Option<Rc<[u32]>> {
        let answer = self.by_topic.get(topic)?;
        if answer.changed == self.changes.last {
            return Some(Rc::clone(&answer.ids));
        }
        self.update(topic, matches)
    }

    fn update(&mut self, topic: &[u8], matches: impl Fn(u32) -> bool) -> Option<Rc<[u32]>> {
        let answer = self.by_topic.get_mut(topic)?;
        let before = Rc::clone(&answer.ids);
        if answer.changed < self.changes.lost {
            self.drop_topic(topic);
            return None;
        }
        let mut ids = before.to_vec();
        for id in self.changes.after(answer.changed) {
            match (ids.binary_search(&id), matches(id)) {
                (Ok(at), false) => _ = ids.remove(at),
                (Err(at), true) => ids.insert(at, id),
                _ => {}
            }
        }
        answer.changed = self.changes.last;
        if *ids == *before {
            return Some(before);
        }
        let ids: Rc<[u32]> = ids.into();
        self.drop_topic(topic);
        self.insert(topic, Rc::clone(&ids));
        Some(ids)
    }

    pub fn insert(&mut self, topic: &[u8], ids: Rc<[u32]>) {
        let bytes = topic.len() + size_of_val(&*ids);
        if self.bytes + bytes > TOPIC_BYTES * self.topics_max || self.len() >= self.topics_max {
            self.clear();
        }
        self.bytes += bytes;
        let topic: Rc<[u8]> = topic.into();
        self.in_order.insert(Rc::clone(&topic));
        self.by_topic.insert(topic, Answer { ids, changed: self.changes.last });
    }

    /// A pattern with that literal prefix is added or removed under that id.
    pub fn change(&mut self, id: u32, prefix: &[u8]) {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let those = self.in_order.range::<[u8], _>(from).take_while(|topic| topic.starts_with(prefix));
        let those: Vec<Rc<[u8]>> = those.take(DROPPED_MAX + 1).cloned().collect();
        if those.len() > DROPPED_MAX {
            return self.changes.add(id);
        }
        for topic in those {
            self.drop_topic(&topic);
        }
    }

    pub fn set_topics_max(&mut self, topics_max: usize) {
        self.topics_max = topics_max;
        if self.len() > topics_max {
            self.clear();
        }
    }

    pub fn len(&self) -> usize {
        self.by_topic.len()
    }

    fn drop_topic(&mut self, topic: &[u8]) {
        self.in_order.remove(topic);
        if let Some(answer) = self.by_topic.remove(topic) {
            self.bytes -= topic.len() + size_of_val(&*answer.ids);
        }
    }

    fn clear(&mut self) {
        self.by_topic.clear();
        self.in_order.clear();
        self.bytes = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(topics: &[&str]) -> MatchCache {
        let mut cache = MatchCache::new(100);
        topics.iter().for_each(|topic| cache.insert(topic.as_bytes(), Rc::from([7])));
        cache
    }

    /// A cache with one answer more than a change drops at once.
    fn full() -> MatchCache {
        let mut cache = MatchCache::new(100);
        (0..=DROPPED_MAX as u8).for_each(|topic| cache.insert(&[topic], Rc::from([7])));
        cache
    }

    /// The cached answer for topic 0, if these patterns match it.
    fn answer(cache: &mut MatchCache, matching: &[u32]) -> Option<Vec<u32>> {
        cache.get(&[0], |id| matching.contains(&id)).map(|ids| ids.to_vec())
    }

    #[test]
    fn a_prefix_takes_its_topics_away_and_no_others() {
        let mut cache = filled(&["a", "ab", "ab/c", "abc", "ac", "b"]);
        cache.change(1, b"ab");
        assert_eq!(cache.len(), 3);
        for (topic, is_there) in [("a", true), ("ab", false), ("ab/c", false), ("abc", false), ("ac", true)] {
            assert_eq!(cache.get(topic.as_bytes(), |_| unreachable!()).is_some(), is_there, "{topic}");
        }
        cache.change(1, b"z");
        assert_eq!((cache.len(), cache.bytes), (3, 3 * 4 + 4));
        cache.change(1, b"");
        assert_eq!((cache.len(), cache.in_order.len(), cache.bytes), (0, 0, 0));
    }

    #[test]
    fn a_pattern_that_many_topics_may_match_drops_none_of_them() {
        let mut cache = full();
        let bytes = cache.bytes;
        cache.change(9, b"");
        cache.change(3, b"");
        assert_eq!(answer(&mut cache, &[3, 7]), Some(vec![3, 7]));
        assert_eq!(cache.bytes, bytes + 4);
        let current = cache.get(&[0], |_| unreachable!("it includes all changes"));
        assert_eq!(current.as_deref(), Some(&[3, 7][..]));
        cache.change(7, b"");
        cache.change(3, b"");
        assert_eq!(answer(&mut cache, &[]), Some(vec![]));
        assert_eq!((cache.len(), cache.bytes), (DROPPED_MAX + 1, bytes - 4));
        cache.drop_topic(&[1]);
        cache.change(3, b"");
        assert_eq!(cache.len(), 0, "as many as are dropped at once");
    }

    #[test]
    fn one_pattern_that_comes_and_goes_for_ever_makes_no_answer_too_old() {
        let mut cache = full();
        (0..10 * CHANGES_MAX).for_each(|_| cache.change(9, b""));
        assert_eq!(cache.changes.recent.len(), 1);
        let asked = std::cell::Cell::new(0);
        assert!(cache.get(&[0], |_| asked.replace(asked.get() + 1) > 0).is_some());
        assert_eq!(asked.get(), 1);
    }

    #[test]
    fn an_answer_older_than_the_list_of_changes_is_dropped() {
        let mut cache = full();
        (0..CHANGES_MAX as u32).for_each(|id| cache.change(100 + id, b""));
        assert_eq!(answer(&mut cache, &[7]), Some(vec![7]), "the list has all changes");
        (0..CHANGES_MAX as u32).for_each(|id| cache.change(200 + id, b""));
        assert!(cache.get(&[0], |_| false).is_some());
        assert!(cache.get(&[1], |_| false).is_none(), "it was not asked for between");
        assert_eq!(cache.len(), DROPPED_MAX);
    }

    #[test]
    fn answers_that_grow_stay_within_the_bytes() {
        let mut cache = full();
        let ids_max = TOPIC_BYTES * cache.topics_max / 4;
        for id in 0..=ids_max as u32 {
            cache.change(1_000 + id, b"");
            let ids = cache.get(&[0], |_| true);
            if cache.len() <= DROPPED_MAX {
                assert_eq!(ids.map(|ids| ids.len()), Some(id as usize + 2));
                return;
            }
            assert!(cache.bytes <= TOPIC_BYTES * cache.topics_max);
        }
        panic!("more than fits");
    }

    #[test]
    fn a_new_limit_bounds_what_is_remembered_already() {
        let mut cache = filled(&["a", "b", "c"]);
        cache.set_topics_max(3);
        assert_eq!(cache.len(), 3);
        cache.set_topics_max(2);
        assert_eq!(cache.len(), 0);
    }
}
