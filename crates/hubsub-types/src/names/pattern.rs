//! Patterns of subscriptions: Redis globs and MQTT topic filters. Both are passed between shards and nodes as
//! text. A filter has a mark in front that begins with NUL, which no filter contains; a group's filter has a
//! mark and the group's name in front.

use super::{Filter, Glob, Matcher};

/// Prefix of an encoded filter.
pub const FILTER_MARK: &[u8] = b"\0mqtt:";

/// Prefix of an encoded group name and filter.
const GROUP_MARK: &[u8] = b"\0share:";

impl Matcher {
    /// Decodes a pattern. Text that only resembles a filter is a glob.
    pub fn of_pattern(source: &[u8]) -> Matcher {
        let filter = source.strip_prefix(FILTER_MARK).or_else(|| group_of(source).map(|(_, filter)| filter));
        let filter = filter.and_then(|filter| Filter::new(filter).ok());
        filter.map_or_else(|| Matcher::Glob(Glob::new(source)), Matcher::Filter)
    }

    pub fn memory(&self) -> usize {
        match self {
            Matcher::Glob(glob) => glob.memory(),
            Matcher::Filter(filter) => filter.source().len(),
        }
    }

    /// The common prefix of all matching topics.
    pub fn literal_prefix(&self) -> &[u8] {
        match self {
            Matcher::Glob(glob) => glob.literal_prefix(),
            Matcher::Filter(filter) => filter.literal_prefix(),
        }
    }
}

/// Bytes of an encoded pattern without its marks; for a group's, of its name and filter.
pub fn pattern_len(source: &[u8]) -> usize {
    match (group_of(source), source.strip_prefix(FILTER_MARK)) {
        (Some((group, filter)), _) => group.len() + filter.len(),
        (None, Some(filter)) => filter.len(),
        (None, None) => source.len(),
    }
}

pub fn filter_pattern(filter: &[u8]) -> Vec<u8> {
    [FILTER_MARK, filter].concat()
}

/// Encodes a group's filter. The name has no slash.
pub fn group_pattern(group: &[u8], filter: &[u8]) -> Vec<u8> {
    [GROUP_MARK, group, b"/", filter].concat()
}

/// The group and its filter, if the encoded pattern is a group's.
pub fn group_of(source: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = source.strip_prefix(GROUP_MARK)?;
    let slash = rest.iter().position(|&byte| byte == b'/')?;
    Some((&rest[..slash], &rest[slash + 1..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_groups_pattern_says_the_group_and_matches_what_its_filter_does() {
        let source = group_pattern(b"g", b"a/+");
        assert_eq!(group_of(&source), Some((&b"g"[..], &b"a/+"[..])));
        let matcher = Matcher::of_pattern(&source);
        assert!(matcher.matches(b"a/b") && !matcher.matches(b"a/b/c") && !matcher.matches(&source));
        assert_eq!(matcher.literal_prefix(), b"a/");
        assert_eq!(group_of(&group_pattern(b"g", b"/a")), Some((&b"g"[..], &b"/a"[..])));
        assert_eq!(group_of(&filter_pattern(b"a/+")), None);
        assert_eq!([&source[..], &filter_pattern(b"a/+"), b"a/+"].map(pattern_len), [4, 3, 3]);
    }

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
