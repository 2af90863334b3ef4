//! What a subscription to many topics matches: a glob of Redis, or a topic filter of MQTT. Both travel
//! between shards and nodes as text; a filter has a mark in front that begins with NUL, which no filter has.

use super::{Filter, Glob, Matcher};

/// What stands before a filter where patterns are kept.
pub const FILTER_MARK: &[u8] = b"\0mqtt:";

impl Matcher {
    /// Of a pattern as it is kept. What only looks like a filter is a glob.
    #[must_use]
    pub fn of_pattern(source: &[u8]) -> Matcher {
        let filter = source.strip_prefix(FILTER_MARK).and_then(|filter| Filter::new(filter).ok());
        filter.map_or_else(|| Matcher::Glob(Glob::new(source)), Matcher::Filter)
    }

    /// What every topic that matches begins with.
    #[must_use]
    pub fn literal_prefix(&self) -> &[u8] {
        match self {
            Matcher::Glob(glob) => glob.literal_prefix(),
            Matcher::Filter(filter) => filter.literal_prefix(),
        }
    }
}

/// A filter as patterns are kept.
#[must_use]
pub fn filter_pattern(filter: &[u8]) -> Vec<u8> {
    [FILTER_MARK, filter].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_and_a_glob_of_the_same_text_match_their_own_topics() {
        let (glob, filter) = (Matcher::of_pattern(b"a/*"), Matcher::of_pattern(&filter_pattern(b"a/+")));
        assert!(glob.matches(b"a/b/c") && !filter.matches(b"a/b/c"));
        assert!(glob.matches(b"a/b") && filter.matches(b"a/b"));
        assert!(Matcher::of_pattern(&filter_pattern(b"a/*")).matches(b"a/*"));
    }

    #[test]
    fn what_only_looks_like_a_filter_is_a_glob() {
        let pattern = filter_pattern(b"a/#/b");
        let Matcher::Glob(glob) = Matcher::of_pattern(&pattern) else { panic!("no filter is like that") };
        assert!(glob.matches(&pattern));
    }

    #[test]
    fn the_prefix_is_of_every_topic_that_matches() {
        let of =
            |filter: &str| Matcher::of_pattern(&filter_pattern(filter.as_bytes())).literal_prefix().to_vec();
        assert_eq!(of("a/b/#"), b"a/b");
        assert_eq!(of("a/+/c"), b"a/");
        assert_eq!(of("a/b"), b"a/b");
        assert_eq!(of("/#"), b"");
        assert_eq!(of("#"), b"");
        assert_eq!(of("+/a"), b"");
    }
}
