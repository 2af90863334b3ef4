//! The filter of a read of a whole hub.

use crate::Namespace;
use hubsub_types::names::{Matcher, pattern_prefix_min};
use std::sync::Arc;

/// Selects records of a hub whose topic matches at least one of several patterns.
#[derive(Debug)]
pub struct HubFilter {
    sources: Box<[Arc<[u8]>]>,
    matchers: Box<[Matcher]>,
}

impl HubFilter {
    /// A filter of patterns in their text form.
    pub fn new(sources: impl IntoIterator<Item = Arc<[u8]>>) -> HubFilter {
        let sources: Box<[Arc<[u8]>]> = sources.into_iter().collect();
        let matchers = sources.iter().map(|source| Matcher::of_pattern(source)).collect();
        HubFilter { sources, matchers }
    }

    pub fn sources(&self) -> &[Arc<[u8]>] {
        &self.sources
    }

    /// Whether one of the patterns matches and may do so: see [`pattern_prefix_min`].
    pub fn wants(&self, namespace: Namespace, topic: &[u8]) -> bool {
        let Some(least) = pattern_prefix_min(topic) else { return false };
        let fits = |matcher: &Matcher| matcher.literal_prefix().len() >= least && matcher.matches(topic);
        namespace == Namespace::Global && self.matchers.iter().any(fits)
    }
}

/// Filters of the same patterns are equal.
impl PartialEq for HubFilter {
    fn eq(&self, other: &HubFilter) -> bool {
        self.sources == other.sources
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_matches_as_patterns_do() {
        let filter = HubFilter::new([(*b"*").into(), (*b"$a/*").into()]);
        assert!(filter.wants(Namespace::Global, b"x") && filter.wants(Namespace::Global, b"$a/x"));
        assert!(!filter.wants(Namespace::Global, b"x{$a}") && !filter.wants(Namespace::Global, b"$a/{$a}"));
        assert!(!filter.wants(Namespace::Global, b"$b") && !filter.wants(Namespace::Shard, b"x"));
    }
}
