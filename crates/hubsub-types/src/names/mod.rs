//! Topic and room names: hash tags, patterns, room and device templates. All work on bytes, compile once and
//! match without allocating. No pattern, however hostile, costs more than its length times the topic's.

mod device;
mod filter;
mod glob;
mod hash;
mod pattern;
mod probe;
mod tag;
mod template;

pub use device::DeviceTemplate;
pub use filter::Filter;
pub use glob::{Glob, PLAIN_MAX, TABLE_STEPS};
pub use hash::{hash, mix};
pub use pattern::{FILTER_MARK, filter_pattern, group_of, group_pattern, pattern_len};
pub use tag::{OWN_BYTES_MAX, has_reserved_tag, hash_tag, is_reserved, pattern_prefix_min, topic_fits};
pub use template::Template;

use std::borrow::Cow;
use std::fmt;

/// A pattern of a class, which matches names.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Matcher {
    Glob(Glob),
    Filter(Filter),
}

impl Matcher {
    /// Whether it matches all topics of clients.
    pub fn is_all(&self) -> bool {
        matches!(self, Matcher::Filter(filter) if filter.source() == b"#")
    }

    /// Parses a configured pattern: one with a `+` level or ending in `#` is an MQTT filter, any other a
    /// glob; the prefix `mqtt:` or `glob:` overrides this.
    ///
    /// # Errors
    /// The pattern is empty, or is a filter with a misplaced wildcard.
    pub fn parse(text: &str) -> Result<Matcher, NameError> {
        if let Some(rest) = text.strip_prefix("mqtt:") {
            return Ok(Matcher::Filter(Filter::new(rest.as_bytes())?));
        }
        let pattern = text.strip_prefix("glob:");
        if pattern.is_none() && (text.ends_with('#') || text.split('/').any(|level| level == "+")) {
            let filter = Filter::new(text.as_bytes()).map_err(|e| NameError {
                hint: format!("{}; a glob that looks like a filter is written glob:{text}", e.hint).into(),
                ..e
            })?;
            return Ok(Matcher::Filter(filter));
        }
        match pattern.unwrap_or(text) {
            "" => Err(NameError::new("pattern is empty", text, "leave `match` out to match every name")),
            glob => Ok(Matcher::Glob(Glob::new(glob.as_bytes()))),
        }
    }

    pub fn matches(&self, name: &[u8]) -> bool {
        match self {
            Matcher::Glob(glob) => glob.matches(name),
            Matcher::Filter(filter) => filter.matches(name),
        }
    }
}

/// Parse error of a pattern or template.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameError {
    pub what: &'static str,
    pub value: String,
    /// How to correct it.
    pub hint: Cow<'static, str>,
}

impl NameError {
    pub(crate) fn new(what: &'static str, value: &str, hint: impl Into<Cow<'static, str>>) -> NameError {
        NameError { what, value: value.to_owned(), hint: hint.into() }
    }
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {:?}, hint: {}", self.what, self.value, self.hint)
    }
}

impl std::error::Error for NameError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_form_of_a_pattern_tells_its_kind_unless_a_prefix_decides() {
        let filter = |text| matches!(Matcher::parse(text), Ok(Matcher::Filter(_)));
        for text in ["#", "+", "chat/#", "+/state", "a/+/b", "mqtt:chat", "mqtt:a/+"] {
            assert!(filter(text), "{text}");
        }
        for text in ["irc:*", "chat", "a+b/c", "c#/d", "glob:chat/#", "glob:+", "a/++"] {
            assert!(!filter(text), "{text}");
        }
        assert!(Matcher::parse("glob:chat/#").unwrap().matches(b"chat/#"));
        assert!(!Matcher::parse("mqtt:chat*").unwrap().matches(b"chat1"));
    }

    #[test]
    fn a_refused_pattern_is_named_with_a_hint() {
        let error = Matcher::parse("chat#").unwrap_err();
        assert_eq!(error.value, "chat#");
        assert!(error.to_string().contains("glob:chat#"), "{error}");
        for text in ["", "glob:", "mqtt:", "a/#/b#", "mqtt:a+"] {
            assert!(Matcher::parse(text).is_err(), "{text:?}");
        }
    }
}
