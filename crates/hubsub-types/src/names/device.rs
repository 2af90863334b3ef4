//! Device templates: `devices/{device}/#` defines which part of a topic is the name of its device.

use super::NameError;
use memchr::memmem;

/// Placeholder of the device in a template.
const DEVICE: &str = "{device}";

const EXAMPLES: &str = "such as devices/{device}/# or device:{device}:*";

/// A device template. Each level is text or `+` for any level, and one contains `{device}`, once. After the
/// levels may follow `/#`, for all levels below, or at the end of the last level `*`, for any text. A device
/// has at least one character and no `/`; where `*` leaves a choice, it is the shortest that fits.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceTemplate {
    source: Box<str>,
    levels: Vec<Level>,
    rest: Rest,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Level {
    Any,
    Text(Box<[u8]>),
    /// The text before and after the device in its level.
    Device(Box<[u8]>, Box<[u8]>),
}

/// The end of the template, after the levels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rest {
    Nothing,
    /// `/#`: all levels below.
    Levels,
    /// `*`: any text in the last level.
    Text,
}

impl DeviceTemplate {
    /// Parses the `device` of a class.
    ///
    /// # Errors
    /// It does not have `{device}` once, or a wildcard in a wrong place.
    pub fn parse(text: &str) -> Result<DeviceTemplate, NameError> {
        let bad = |what| NameError::new(what, text, EXAMPLES);
        match text.matches(DEVICE).count() {
            0 => return Err(bad("device template has no {device}")),
            1 => {}
            _ => return Err(bad("device template has {device} more than once")),
        }
        let (levels, rest) = match text.strip_suffix("/#") {
            Some(levels) => (levels, Rest::Levels),
            None => text.strip_suffix('*').map_or((text, Rest::Nothing), |levels| (levels, Rest::Text)),
        };
        if rest == Rest::Text && levels.ends_with(DEVICE) {
            return Err(bad("device template has * right behind {device}, which ends nowhere then"));
        }
        let level = |level: &str| match level.split_once(DEVICE) {
            _ if level == "+" => Ok(Level::Any),
            _ if level.contains(['+', '#', '*']) => {
                Err(bad("device template has a wildcard in a wrong place"))
            }
            Some((before, behind)) => Ok(Level::Device(before.as_bytes().into(), behind.as_bytes().into())),
            None => Ok(Level::Text(level.as_bytes().into())),
        };
        let levels = levels.split('/').map(level).collect::<Result<_, _>>()?;
        Ok(DeviceTemplate { source: text.into(), levels, rest })
    }

    /// The device of a topic; `None` if the topic does not match. As in MQTT, a topic that begins with `$`
    /// matches no template that does not.
    pub fn device<'t>(&self, topic: &'t [u8]) -> Option<&'t [u8]> {
        if topic.first() == Some(&b'$') && !self.source.starts_with('$') {
            return None;
        }
        let (mut device, mut rest) = (None, Some(topic));
        for (i, wanted) in self.levels.iter().enumerate() {
            let text = rest?;
            let is_open = self.rest == Rest::Text && i + 1 == self.levels.len();
            let end = memchr::memchr(b'/', text).unwrap_or(text.len());
            let level = if is_open { text } else { &text[..end] };
            rest = if is_open { None } else { text.get(end + 1..) };
            match wanted {
                Level::Any => {}
                Level::Text(wanted) if is_open => level.strip_prefix(&wanted[..]).map(drop)?,
                Level::Text(wanted) => (level == &wanted[..]).then_some(())?,
                Level::Device(before, behind) => {
                    let inner = level.strip_prefix(&before[..])?;
                    let found = match is_open {
                        true => &inner[..=memmem::find(inner.get(1..)?, behind)?],
                        false => inner.strip_suffix(&behind[..])?,
                    };
                    let is_name = !found.is_empty() && (!is_open || memchr::memchr(b'/', found).is_none());
                    device = Some(is_name.then_some(found)?);
                }
            }
        }
        if rest.is_none() || self.rest == Rest::Levels { device } else { None }
    }

    pub fn source(&self) -> &str {
        &self.source
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn device(template: &str, topic: &str) -> Option<String> {
        let template = DeviceTemplate::parse(template).unwrap();
        template.device(topic.as_bytes()).map(|name| String::from_utf8(name.to_vec()).unwrap())
    }

    #[test]
    fn the_level_of_the_device_names_it() {
        for (template, topic, name) in [
            ("devices/{device}/#", "devices/a/state/x", "a"),
            ("devices/{device}/#", "devices/a", "a"),
            ("devices/{device}/#", "devices/a/", "a"),
            ("devices/{device}/state", "devices/a/state", "a"),
            ("+/{device}", "x/a", "a"),
            ("{device}", "a", "a"),
            ("devices/dev-{device}.v1/+", "devices/dev-a.v1/x", "a"),
            ("device:{device}", "device:a:b", "a:b"),
            ("device:{device}:state", "device:a:b:state", "a:b"),
            ("device:{device}:*", "device:a:b:state/x", "a"),
            ("device:{device}:*", "device:::x", ":"),
            ("devices/{device}/st*", "devices/a/state/x", "a"),
            ("devices/{device}/*", "devices/a/", "a"),
            ("$SYS/{device}", "$SYS/a", "a"),
        ] {
            assert_eq!(device(template, topic).as_deref(), Some(name), "{template} {topic}");
        }
    }

    #[test]
    fn a_topic_that_does_not_fit_names_none() {
        for (template, topic) in [
            ("devices/{device}/#", "devices"),
            ("devices/{device}/#", "devices/"),
            ("devices/{device}/#", "devices//state"),
            ("devices/{device}/#", "sensors/a"),
            ("devices/{device}/#", ""),
            ("devices/{device}", "devices/a/b"),
            ("devices/{device}/state", "devices/a"),
            ("devices/{device}/*", "devices/a"),
            ("device:{device}:*", "device:a"),
            ("device:{device}:*", "device:a/b:c"),
            ("device:{device}:*", "device::"),
            ("dev-{device}-x", "dev-x"),
            ("{device}/#", "$SYS/a"),
            ("+/{device}", "$SYS/a"),
        ] {
            assert_eq!(device(template, topic), None, "{template} {topic}");
        }
    }

    #[test]
    fn a_template_that_does_not_say_which_part_it_is_is_refused_with_a_hint() {
        for text in [
            "",
            "devices/+/#",
            "devices/{room}/#",
            "{device}/{device}",
            "devices/{device}*",
            "devices/{device}/#/x",
            "devices/{device}#",
            "a*/{device}",
            "a+/{device}",
            "+{device}",
            "*{device}",
            "{device}/**",
        ] {
            let error = DeviceTemplate::parse(text).unwrap_err();
            assert!(error.value == text && error.hint.contains("devices/{device}/#"), "{error}");
        }
    }

    /// Reference implementation: tries all ways to divide a topic, the shortest device first.
    fn naive(template: &str, topic: &str) -> Option<String> {
        fn fits(template: &[char], topic: &[char], is_below: bool) -> bool {
            match template {
                [] => topic.is_empty() || (is_below && topic[0] == '/'),
                ['*'] => true,
                ['+', rest @ ..] => {
                    let end = topic.iter().position(|&c| c == '/').unwrap_or(topic.len());
                    fits(rest, &topic[end..], is_below)
                }
                [c, rest @ ..] => topic.first() == Some(c) && fits(rest, &topic[1..], is_below),
            }
        }
        if topic.starts_with('$') && !template.starts_with('$') {
            return None;
        }
        let (template, is_below) =
            template.strip_suffix("/#").map_or((template, false), |template| (template, true));
        let topic: Vec<char> = topic.chars().collect();
        let mut found: Vec<&[char]> = Vec::new();
        for start in 0..topic.len() {
            for end in start + 1..=topic.len() {
                let name: String = topic[start..end].iter().collect();
                // A character that occurs nowhere else, so that the device matches only itself.
                let (marked, mut with) = (template.replace(DEVICE, "\0"), topic[..start].to_vec());
                with.push('\0');
                with.extend(&topic[end..]);
                let marked: Vec<char> = marked.chars().collect();
                if !name.contains('/') && fits(&marked, &with, is_below) {
                    found.push(&topic[start..end]);
                }
            }
        }
        found.into_iter().min_by_key(|name| name.len()).map(|name| name.iter().collect())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

        #[test]
        fn a_device_is_what_all_ways_to_divide_the_topic_give(
            before in "((a|b|\\+|\\$)/){0,2}",
            level in "[ab:]{0,2}\\{device\\}[ab:]{0,2}",
            behind in "(/(a|b|\\+)){0,2}(/#|\\*|/\\*)?",
            topic in "\\$?[ab:/]{0,9}",
        ) {
            let template = format!("{before}{level}{behind}");
            if let Ok(parsed) = DeviceTemplate::parse(&template) {
                let found = parsed.device(topic.as_bytes()).map(|d| String::from_utf8(d.to_vec()).unwrap());
                prop_assert_eq!(found, naive(&template, &topic), "{} {}", template, topic);
            }
        }
    }
}
