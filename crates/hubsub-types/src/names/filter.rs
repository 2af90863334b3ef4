//! MQTT topic filters (MQTT 5.0 section 4.7): `+` matches one level, a final `#` matches the level before it
//! and everything below. A filter that begins with a wildcard matches no topic that begins with `$`.

use super::NameError;

/// A valid topic filter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Filter {
    source: Box<[u8]>,
}

impl Filter {
    pub const BYTES_MAX: usize = 65_535;

    /// Parses a topic filter.
    ///
    /// # Errors
    /// It is empty, too long, has a NUL byte or a misplaced wildcard.
    pub fn new(source: &[u8]) -> Result<Filter, NameError> {
        let refuse = |what, hint: &'static str| {
            let shown = &source[..source.len().min(256)];
            Err(NameError::new(what, &String::from_utf8_lossy(shown), hint))
        };
        if source.is_empty() {
            return refuse("topic filter is empty", "# matches every topic");
        }
        if source.len() > Self::BYTES_MAX {
            return refuse("topic filter is too long", "at most 65535 bytes");
        }
        if source.contains(&0) {
            return refuse("topic filter has a NUL byte", "leave it out");
        }
        let mut levels = source.split(|&b| b == b'/').peekable();
        while let Some(level) = levels.next() {
            match level {
                b"+" => {}
                b"#" if levels.peek().is_none() => {}
                b"#" => return refuse("# is not the last level", "# matches everything below, end there"),
                _ if level.iter().any(|b| matches!(b, b'+' | b'#')) => {
                    return refuse("wildcard is not a whole level", "put / around + and before #");
                }
                _ => {}
            }
        }
        Ok(Filter { source: source.into() })
    }

    pub fn matches(&self, topic: &[u8]) -> bool {
        if topic.first() == Some(&b'$') && matches!(self.source[0], b'+' | b'#') {
            return false;
        }
        let mut levels = topic.split(|&b| b == b'/');
        for wanted in self.levels() {
            if wanted == b"#" {
                return true;
            }
            match levels.next() {
                Some(level) if wanted == b"+" || wanted == level => {}
                _ => return false,
            }
        }
        levels.next().is_none()
    }

    /// The bytes of a filter before its first wildcard, and whether it has none. A matching topic begins with
    /// them, or is the level above a `#` that follows them.
    pub fn prefix_of(source: &[u8]) -> (&[u8], bool) {
        let wildcard = memchr::memchr2(b'+', b'#', source);
        (&source[..wildcard.unwrap_or(source.len())], wildcard.is_none())
    }

    /// The common prefix of all matching topics.
    pub fn literal_prefix(&self) -> &[u8] {
        let wildcard = memchr::memchr2(b'+', b'#', &self.source).unwrap_or(self.source.len());
        let prefix = &self.source[..wildcard];
        // `a/#` matches `a`, too.
        match self.source.get(wildcard) {
            Some(b'#') => prefix.strip_suffix(b"/").unwrap_or(prefix),
            _ => prefix,
        }
    }

    /// The levels, including wildcards.
    pub fn levels(&self) -> impl Iterator<Item = &[u8]> {
        self.source.split(|&b| b == b'/')
    }

    pub fn source(&self) -> &[u8] {
        &self.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(filter: &str, topic: &str) -> bool {
        Filter::new(filter.as_bytes()).unwrap().matches(topic.as_bytes())
    }

    #[test]
    fn plus_stands_for_exactly_one_level() {
        assert!(matches("a/+/c", "a/b/c"));
        assert!(matches("a/+", "a/"));
        assert!(matches("+/+", "/finance"));
        assert!(matches("/+", "/finance"));
        assert!(!matches("+", "/finance"));
        assert!(!matches("a/+", "a"));
        assert!(!matches("a/+", "a/b/c"));
    }

    #[test]
    fn hash_matches_its_parent_and_everything_below() {
        for topic in ["a", "a/", "a/b", "a/b/c"] {
            assert!(matches("a/#", topic), "{topic}");
        }
        assert!(!matches("a/#", "ab"));
        assert!(!matches("a/#", "b/a"));
        assert!(matches("#", "a/b"));
        assert!(matches("+/b/#", "a/b"));
    }

    #[test]
    fn a_leading_wildcard_never_matches_a_dollar_topic() {
        assert!(!matches("#", "$SYS/x"));
        assert!(!matches("+/x", "$SYS/x"));
        assert!(matches("$SYS/#", "$SYS/x"));
        assert!(matches("a/+", "a/$x"));
    }

    #[test]
    fn a_filter_without_wildcards_matches_itself_only() {
        assert!(matches("a/b", "a/b"));
        assert!(!matches("a/b", "a/b/"));
        assert!(!matches("a/b", "A/b"));
    }

    #[test]
    fn misplaced_wildcards_are_refused() {
        for filter in ["", "a+", "a/b+/c", "a#", "a/#/b", "#/", "##", "++", "+#", "a\0"] {
            assert!(Filter::new(filter.as_bytes()).is_err(), "{filter:?}");
        }
        assert!(Filter::new(&[b'a'; 65_535]).is_ok());
        assert!(Filter::new(&[b'a'; 65_536]).is_err());
    }
}
