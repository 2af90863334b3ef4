//! Topics in two bytes (section 3.3.2.3.4 of 5.0): those that the client chose, and those that the server did.

use super::super::property::Property;
use super::super::publish::Publish;
use super::super::reason::Reason;
use super::seldom::Seldom;
use super::{Fault, Topic};
use std::collections::HashMap;
use std::rc::Rc;

/// What the client lets stand for topics.
#[derive(Debug, Default)]
pub(super) struct Aliases {
    /// The highest that it may use.
    max: u16,
    /// From 1 on.
    topics: Seldom<Vec<Option<Rc<str>>>>,
}

impl Aliases {
    pub fn new(max: u16) -> Aliases {
        Aliases { max, topics: Seldom::default() }
    }

    /// The topic of a message; one that it names with an alias is remembered.
    pub fn topic<'a>(&mut self, publish: &Publish<'a>) -> Result<Topic<'a>, Fault> {
        let alias = publish.properties.iter().find_map(|property| match property {
            Property::TopicAlias(alias) => Some(alias),
            _ => None,
        });
        let Some(alias) = alias else { return Ok(Topic::Said(publish.topic)) };
        if alias > self.max {
            return Err(Fault { reason: Reason::TopicAliasInvalid, what: "a topic alias above the maximum" });
        }
        let place = usize::from(alias) - 1;
        if !publish.topic.is_empty() {
            if self.topics.len() <= place {
                self.topics.resize(place + 1, None);
            }
            self.topics[place] = Some(publish.topic.into());
            return Ok(Topic::Said(publish.topic));
        }
        let topic = self.topics.get(place).cloned().flatten().map(Topic::Known);
        topic.ok_or(Fault { reason: Reason::ProtocolError, what: "a topic alias that stands for nothing" })
    }
}

/// What the server lets stand for topics: the first that it sends, as many as the client takes.
#[derive(Debug, Default)]
pub struct OwnAliases {
    /// The highest that the client takes.
    max: u16,
    /// Few clients take any.
    #[allow(clippy::box_collection, reason = "most clients have none, and pay for a pointer")]
    topics: Option<Box<HashMap<Box<str>, u16>>>,
}

impl OwnAliases {
    pub(super) fn new(max: u16) -> OwnAliases {
        OwnAliases { max, topics: None }
    }

    fn len(&self) -> u16 {
        self.topics.as_ref().map_or(0, |topics| topics.len() as u16)
    }

    /// Whether the client takes any.
    #[must_use]
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.max == 0
    }

    /// The alias of a topic that the client was told.
    #[must_use]
    pub fn find(&self, topic: &str) -> Option<u16> {
        self.topics.as_ref()?.get(topic).copied()
    }

    /// The alias that a topic may get by the next message, if one is left. It holds once [`OwnAliases::told`].
    #[must_use]
    pub fn free(&self) -> Option<u16> {
        (self.len() < self.max).then(|| self.len() + 1)
    }

    /// The client was sent a topic with the alias that [`OwnAliases::free`] gave.
    pub fn told(&mut self, topic: &str) {
        let alias = self.len() + 1;
        self.topics.get_or_insert_default().insert(topic.into(), alias);
    }
}
