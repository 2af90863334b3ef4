//! Topic aliases (section 3.3.2.3.4 of 5.0): those of the client and those of the server.

use super::seldom::Seldom;
use super::{Fault, Topic};
use hubsub_wire::mqtt::{Property, Publish, Reason};
use std::collections::HashMap;
use std::rc::Rc;

#[derive(Debug, Default)]
pub(super) struct Aliases {
    max: u16,
    /// Topics by alias, from alias 1.
    topics: Seldom<Vec<Option<Rc<str>>>>,
}

impl Aliases {
    pub fn new(max: u16) -> Aliases {
        Aliases { max, topics: Seldom::default() }
    }

    /// The topic of a message; a topic with an alias is remembered.
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

/// Topic aliases of the server, for the first topics sent. Most clients accept none and cost one pointer.
#[derive(Debug, Default)]
pub struct OwnAliases(Option<Box<Assigned>>);

#[derive(Debug)]
struct Assigned {
    max: u16,
    topics: HashMap<Box<str>, u16>,
}

impl OwnAliases {
    pub(super) fn new(max: u16) -> OwnAliases {
        OwnAliases((max > 0).then(|| Box::new(Assigned { max, topics: HashMap::new() })))
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The alias of a topic, if the client has received it.
    pub fn find(&self, topic: &str) -> Option<u16> {
        self.0.as_ref()?.topics.get(topic).copied()
    }

    /// An alias for the topic of the next message, if one is free. It is in use after [`OwnAliases::sent`].
    pub fn free(&self) -> Option<u16> {
        let Assigned { max, topics } = &**self.0.as_ref()?;
        (topics.len() < usize::from(*max)).then(|| topics.len() as u16 + 1)
    }

    /// The client was sent a topic with the alias from [`OwnAliases::free`].
    pub fn sent(&mut self, topic: &str) {
        if let (Some(alias), Some(assigned)) = (self.free(), &mut self.0) {
            assigned.topics.insert(topic.into(), alias);
        }
    }
}
