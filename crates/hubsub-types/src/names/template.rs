//! Room templates: `devices/+` puts all topics of one device into one room, because a room has as
//! many leading levels of the topic as the template has.

use super::NameError;
use std::borrow::Cow;

/// A template with at least one level.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Template {
    source: Box<str>,
}

impl Template {
    /// Parses the `room` of a class; `None` for `topic`, where the whole topic is the room.
    ///
    /// # Errors
    /// The template is empty, or a wildcard in it is not `+` as a whole level.
    pub fn parse(text: &str) -> Result<Option<Template>, NameError> {
        if text.is_empty() {
            return Err(NameError::new("room template is empty", text, "\"topic\" makes every topic a room"));
        }
        let bad = |level: &str| level != "+" && level.contains(['+', '#', '*']);
        if text.split('/').any(bad) {
            let hint = "a level is + or literal text; deeper levels are dropped, so no # is needed";
            return Err(NameError::new("room template has a wildcard inside a level", text, hint));
        }
        Ok((text != "topic").then(|| Template { source: text.into() }))
    }

    /// The room of a topic: its leading levels, as many as the template has. A topic with fewer levels, or
    /// with another level where the template has literal text, is its own room.
    pub fn apply<'t>(&self, topic: &'t [u8]) -> Cow<'t, [u8]> {
        let mut end = 0;
        for (i, wanted) in self.levels().enumerate() {
            if i > 0 {
                if end == topic.len() {
                    return Cow::Borrowed(topic);
                }
                end += 1;
            }
            let rest = &topic[end..];
            let level = &rest[..memchr::memchr(b'/', rest).unwrap_or(rest.len())];
            if wanted != "+" && wanted.as_bytes() != level {
                return Cow::Borrowed(topic);
            }
            end += level.len();
        }
        Cow::Borrowed(&topic[..end])
    }

    /// The levels, including `+`.
    pub fn levels(&self) -> impl Iterator<Item = &str> {
        self.source.split('/')
    }

    pub fn source(&self) -> &str {
        &self.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(template: &str, topic: &str) -> String {
        let template = Template::parse(template).unwrap().unwrap();
        String::from_utf8(template.apply(topic.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn as_many_leading_levels_are_kept_as_the_template_has() {
        assert_eq!(room("devices/+", "devices/a/b/c"), "devices/a");
        assert_eq!(room("devices/+", "devices/a"), "devices/a");
        assert_eq!(room("+", "a/b"), "a");
        assert_eq!(room("+/+", "a//b"), "a/");
        assert_eq!(room("+/x/+", "a/x/b/c"), "a/x/b");
        assert_eq!(room("devices", "devices/a"), "devices");
    }

    #[test]
    fn a_topic_that_the_template_does_not_fit_is_its_own_room() {
        for topic in ["devices", "sensors/a/b", "devicesx/a/b", "", "/devices/a"] {
            assert_eq!(room("devices/+", topic), topic);
        }
        assert_eq!(room("+/x", "a/y/z"), "a/y/z");
    }

    #[test]
    fn topic_means_that_there_is_no_template() {
        assert_eq!(Template::parse("topic"), Ok(None));
    }

    #[test]
    fn a_template_with_other_wildcards_is_refused() {
        for text in ["", "a/#", "a+/b", "dev*", "a/++"] {
            assert!(Template::parse(text).is_err(), "{text:?}");
        }
    }
}
