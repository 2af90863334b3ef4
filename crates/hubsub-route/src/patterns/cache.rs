//! Which patterns match a topic, of the topics that were asked for last. A pattern that comes or goes takes the answers
//! away of those topics alone that begin with its literal prefix.

use ahash::RandomState;
use hashbrown::HashMap;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::rc::Rc;

/// Bytes for each topic that may be remembered: long ones take the place of several.
const TOPIC_BYTES: usize = 1024;

/// Which patterns match the latest topics. The two tables have the same topics.
#[derive(Debug)]
pub struct MatchCache {
    by_topic: HashMap<Rc<[u8]>, Rc<[u32]>, RandomState>,
    in_order: BTreeSet<Rc<[u8]>>,
    topics_max: usize,
    /// Bytes of topics and ids.
    bytes: usize,
}

impl MatchCache {
    /// Of so many topics at most.
    #[must_use]
    pub fn new(topics_max: usize) -> MatchCache {
        MatchCache { by_topic: HashMap::default(), in_order: BTreeSet::new(), topics_max, bytes: 0 }
    }

    /// The ids of the patterns that match a topic, if that is remembered.
    #[inline]
    #[must_use]
    pub fn get(&self, topic: &[u8]) -> Option<&Rc<[u32]>> {
        self.by_topic.get(topic)
    }

    /// Remembers what was not.
    pub fn insert(&mut self, topic: &[u8], ids: Rc<[u32]>) {
        let bytes = topic.len() + size_of_val(&*ids);
        if self.bytes + bytes > TOPIC_BYTES * self.topics_max || self.len() >= self.topics_max {
            self.clear();
        }
        self.bytes += bytes;
        let topic: Rc<[u8]> = topic.into();
        self.in_order.insert(Rc::clone(&topic));
        self.by_topic.insert(topic, ids);
    }

    /// Forgets the topics that begin so.
    pub fn forget(&mut self, prefix: &[u8]) {
        if prefix.is_empty() {
            return self.clear();
        }
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let those = self.in_order.range::<[u8], _>(from).take_while(|topic| topic.starts_with(prefix));
        let those: Vec<Rc<[u8]>> = those.cloned().collect();
        for topic in those {
            self.in_order.remove(&topic);
            if let Some(ids) = self.by_topic.remove(&topic) {
                self.bytes -= topic.len() + size_of_val(&*ids);
            }
        }
    }

    /// Sets of how many topics it is remembered.
    pub fn set_topics_max(&mut self, topics_max: usize) {
        self.topics_max = topics_max;
        if self.len() > topics_max {
            self.clear();
        }
    }

    /// Topics that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_topic.len()
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

    #[test]
    fn a_prefix_takes_its_topics_away_and_no_others() {
        let mut cache = filled(&["a", "ab", "ab/c", "abc", "ac", "b"]);
        cache.forget(b"ab");
        assert_eq!(cache.len(), 3);
        for (topic, is_there) in [("a", true), ("ab", false), ("ab/c", false), ("abc", false), ("ac", true)] {
            assert_eq!(cache.get(topic.as_bytes()).is_some(), is_there, "{topic}");
        }
        cache.forget(b"z");
        assert_eq!((cache.len(), cache.bytes), (3, 3 * 4 + 4));
        cache.forget(b"");
        assert_eq!((cache.len(), cache.in_order.len(), cache.bytes), (0, 0, 0));
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
