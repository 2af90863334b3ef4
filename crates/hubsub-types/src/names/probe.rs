//! Sample topics for the check of a class: topics that a given pattern matches and a given room template
//! shortens, if there are any. A filter needs one sample for an exact check; globs get a few likely ones.

use super::{Filter, Glob, Matcher, Template};

/// A level that no reasonable pattern names: a pattern that matches it matches any level.
const LEVEL: &str = "hubsub-probe";

impl Template {
    /// Topics to try on a class with this template and that pattern. Each matches the pattern.
    pub(crate) fn probes(&self, pattern: &Matcher) -> Vec<Vec<u8>> {
        let mut topics = match pattern {
            Matcher::Filter(filter) => vec![self.filter_probe(filter)],
            Matcher::Glob(glob) => self.glob_probes(glob),
        };
        topics.retain(|topic| pattern.matches(topic));
        topics
    }

    /// The filter's levels, with the template's in place of `+`; below `#`, one level more than the template
    /// has.
    fn filter_probe(&self, filter: &Filter) -> Vec<u8> {
        let mut levels: Vec<&[u8]> = filter.levels().collect();
        if levels.last() == Some(&&b"#"[..]) {
            levels.pop();
            levels.resize(levels.len().max(self.levels().count() + 1), b"+");
        }
        let mut own = self.levels();
        for level in &mut levels {
            let wanted = own.next().filter(|own| *own != "+").unwrap_or(LEVEL);
            if *level == b"+" {
                *level = wanted.as_bytes();
            }
        }
        levels.join(&b'/')
    }

    /// The glob with its stars replaced, and topics that match the template and end with the glob's last
    /// bytes.
    fn glob_probes(&self, glob: &Glob) -> Vec<Vec<u8>> {
        let own: Vec<&str> = self.levels().map(|own| if own == "+" { LEVEL } else { own }).collect();
        let own = own.join("/");
        let prefix = glob.literal_prefix();
        let tail = glob.source().rsplit(|&b| b == b'*').next().unwrap_or_default();
        let mut topics = Vec::new();
        for below in ["", "/", "/x", "/x/y", "/x/y/z"] {
            topics.extend(glob.sample(format!("x{below}").as_bytes()));
            let inside = format!("{own}{below}").into_bytes();
            topics.push([&inside[..], tail].concat());
            topics.push([&inside[..], b"/", tail].concat());
            topics.push([prefix, &inside[..], tail].concat());
            topics.push([prefix, b"/", &inside[..], tail].concat());
        }
        topics
    }
}
