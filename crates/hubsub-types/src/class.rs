//! Room classes: named policies, and the lookup of a topic's class and room. A room has the first class that
//! matches its name, and keeps it for life.

use crate::names::{DeviceTemplate, Matcher, NameError, Template, hash_tag};
use serde::Serialize;
use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// When a publish is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Durability {
    /// At once; retained in memory only as far as `History` allows.
    #[default]
    Ephemeral,
    /// When a quorum of the hub's members has it in memory; then logged.
    Replicated,
    /// When a quorum of the hub's members has it on disk, sync included.
    Durable,
}

impl Durability {
    /// Whether records go into a log.
    #[inline]
    pub fn is_logged(self) -> bool {
        self != Durability::Ephemeral
    }
}

/// Handling of a record when a subscriber is at its output limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnSlow {
    /// Closes the connection with the reason, as Redis does.
    #[default]
    Disconnect,
    /// Turns the subscriber into a cursor that reads on from history.
    CatchUp,
    /// Drops the oldest queued record.
    DropOldest,
    /// Queues only the latest record of each topic.
    Conflate,
}

/// Strategy that selects the member of a group that gets a record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ShareStrategy {
    #[default]
    RoundRobin,
    Random,
    /// The same member as long as it is connected and takes records.
    Sticky,
    /// The same member for all records with one key, while the members stay the same.
    Hash(ShareKey),
}

/// The key by which records go to the same member of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShareKey {
    Topic,
    Publisher,
    /// The value of this header; all records without it share one key.
    Header(Box<str>),
}

impl ShareStrategy {
    /// Parses a configured strategy: `round-robin`, `random`, `sticky`, `hash:topic`, `hash:publisher` or
    /// `hash:header:NAME`.
    ///
    /// # Errors
    /// The text is none of them.
    pub fn parse(text: &str) -> Result<ShareStrategy, NameError> {
        Ok(match text {
            "round-robin" => ShareStrategy::RoundRobin,
            "random" => ShareStrategy::Random,
            "sticky" => ShareStrategy::Sticky,
            "hash:topic" => ShareStrategy::Hash(ShareKey::Topic),
            "hash:publisher" => ShareStrategy::Hash(ShareKey::Publisher),
            _ => match text.strip_prefix("hash:header:") {
                Some(name) if !name.is_empty() => ShareStrategy::Hash(ShareKey::Header(name.into())),
                _ => {
                    let hint =
                        "round-robin, random, sticky, hash:topic, hash:publisher or hash:header:NAME decides";
                    return Err(NameError::new("no such way to share", text, hint));
                }
            },
        })
    }
}

/// Reaction to a gap that the subscriber's protocol cannot report.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnGap {
    /// It continues after the gap.
    #[default]
    Continue,
    /// It is disconnected, so that it notices.
    Disconnect,
}

/// Clients that count as members of a room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Membership {
    /// Clients that ask to be.
    #[default]
    Asked,
    /// Those, and each MQTT client that subscribes to a topic of the room, under its client id.
    All,
    /// None; nobody can list members.
    Off,
}

/// How much history a room retains. `messages` and `age_ms` apply per room, `bytes` per hub, oldest record
/// first. 0 means no limit, but one of `messages` and `bytes` is always set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History {
    /// Most records per room.
    pub messages: u64,
    /// Most bytes per hub: payload, topic and headers, plus the record's own overhead.
    pub bytes: u64,
    pub age_ms: u64,
}

#[derive(Clone, Debug)]
pub struct Class {
    pub name: String,
    /// Patterns for room names; a room that matches one has this class. Empty matches all.
    pub matches: Vec<Matcher>,
    /// How a matching topic yields its room; `None`: the topic is the room.
    pub room: Option<Template>,
    /// Template for the device in a record's topic, for readers of the log; `None`: no device.
    pub device: Option<Arc<DeviceTemplate>>,
    pub durability: Durability,
    /// `None`: the room retains nothing.
    pub history: Option<History>,
    /// Whether a room retains only its latest record, forever, and a record without payload ends the room.
    /// For the node's internal classes.
    pub keeps_latest: bool,
    /// Bytes per hub up to which unarchived records are retained beyond the history limits; 0: none.
    pub archive_wait_bytes: u64,
    pub on_slow: OnSlow,
    pub on_gap: OnGap,
    pub share_strategy: ShareStrategy,
    pub payload_bytes_max: u64,
    /// Time without publishes and subscribers after which a room with history is forgotten, in ms; 0: when
    /// its history is empty.
    pub idle_ms: u64,
    /// Whether browsers may push events to the room; else pushes are refused.
    pub browser_events: bool,
    pub presence: Membership,
    /// Whether joins and leaves are recorded, in `$stats/presence/ROOM`.
    pub presence_records: bool,
    /// Whether the number of members is recorded, in `$stats/room/ROOM/occupancy`.
    pub occupancy_records: bool,
    /// Delay of each commit, in ms: lets tests emulate a disk.
    pub commit_delay_ms: u64,
    /// Whether it was removed from the cluster: its rooms stay, and it gets no new ones.
    pub is_removed: bool,
}

impl Class {
    /// A class with that name that matches everything and retains nothing.
    pub fn named(name: &str) -> Class {
        Class {
            name: name.to_owned(),
            matches: Vec::new(),
            room: None,
            device: None,
            durability: Durability::Ephemeral,
            history: None,
            keeps_latest: false,
            archive_wait_bytes: 0,
            on_slow: OnSlow::Disconnect,
            on_gap: OnGap::Continue,
            share_strategy: ShareStrategy::RoundRobin,
            payload_bytes_max: u64::MAX,
            idle_ms: 0,
            browser_events: true,
            presence: Membership::Asked,
            presence_records: false,
            occupancy_records: false,
            commit_delay_ms: 0,
            is_removed: false,
        }
    }

    /// Whether records of this class need their publisher: for history, or to share by publisher.
    #[inline]
    pub fn names_publishers(&self) -> bool {
        self.history.is_some() || self.share_strategy == ShareStrategy::Hash(ShareKey::Publisher)
    }

    pub fn matches(&self, name: &[u8]) -> bool {
        self.matches.is_empty() || self.matches.iter().any(|m| m.matches(name))
    }

    /// Checks that the rooms that the template yields are rooms of this class, too. For MQTT filters the
    /// check is exact. A glob is tried on a few topics, so a wrong one may pass, but none is refused without
    /// a topic that shows why.
    ///
    /// # Errors
    /// Names such a room, and the topic that yields it.
    pub fn check(&self) -> Result<(), NameError> {
        let Some(template) = &self.room else { return Ok(()) };
        for topic in self.matches.iter().flat_map(|pattern| template.probes(pattern)) {
            let room = template.apply(&topic);
            if !self.matches(&room) {
                let [topic, room] = [&topic, &*room].map(String::from_utf8_lossy);
                let hint = format!(
                    "topic {topic} of class {} would have the room {room}, which no pattern of the class \
                     matches; add one that does to `match`",
                    self.name
                );
                return Err(NameError {
                    what: "room template yields rooms that its class does not match",
                    value: template.source().to_owned(),
                    hint: hint.into(),
                });
            }
        }
        Ok(())
    }
}

/// All classes. The last one in order of precedence is the default class and matches all.
///
/// Invariant: a class keeps its index in all tables derived from one another ([`ClassTable::changed`]).
#[derive(Clone, Debug)]
pub struct ClassTable {
    classes: Vec<Class>,
    order: Vec<ClassIndex>,
    /// Whether `{tag}` in a topic names its room.
    hash_tags: bool,
    /// Rooms that were created under other rules and keep their class.
    kept: HashMap<Box<[u8]>, ClassIndex>,
}

pub type ClassIndex = u16;

impl ClassTable {
    /// `classes` in order of precedence; a default class that matches all is appended unless the last one is
    /// such a class.
    pub fn new(mut classes: Vec<Class>, hash_tags: bool) -> ClassTable {
        if classes.last().is_none_or(|c| !c.matches.is_empty() || c.room.is_some()) {
            classes.push(Class::named("default"));
        }
        assert!(classes.len() < usize::from(ClassIndex::MAX), "config bounds the number of classes");
        let order = (0..classes.len() as ClassIndex).collect();
        ClassTable { classes, order, hash_tags, kept: HashMap::new() }
    }

    /// The table with these classes in this order of precedence: known names get the given settings, others
    /// are added. A class that is missing loses its place in the order, so no room looked up from now on has
    /// it.
    ///
    /// # Panics
    /// The last class does not match all.
    pub fn changed(&self, given: Vec<Class>) -> ClassTable {
        assert!(given.last().is_some_and(|class| class.matches.is_empty()), "the last is the default class");
        let mut table = ClassTable { order: Vec::with_capacity(given.len()), ..self.clone() };
        for class in given {
            let index = table.index_of(&class.name).unwrap_or(table.classes.len() as ClassIndex);
            match table.classes.get_mut(usize::from(index)) {
                Some(known) => *known = class,
                None => table.classes.push(class),
            }
            table.order.push(index);
        }
        table
    }

    /// Whether the predicate is true for all client classes that a room can have; classes after one that
    /// matches all are unreachable.
    pub fn all_clients(&self, is_true: impl Fn(&Class) -> bool) -> bool {
        for (_, class) in self.in_order().filter(|(_, class)| !class.name.starts_with('$')) {
            if !is_true(class) {
                return false;
            }
            if class.matches.is_empty() || class.matches.iter().any(Matcher::is_all) {
                break;
            }
        }
        true
    }

    /// Whether any class records the number of members in its rooms.
    pub fn tells_occupancy(&self) -> bool {
        self.classes.iter().any(|class| class.occupancy_records)
    }

    pub fn index_of(&self, name: &str) -> Option<ClassIndex> {
        self.classes.iter().position(|class| class.name == name).map(|index| index as ClassIndex)
    }

    fn in_order(&self) -> impl Iterator<Item = (ClassIndex, &Class)> {
        self.order.iter().map(|&index| (index, self.get(index)))
    }

    /// Pins a room to a class, whatever the rules yield.
    pub fn keep(&mut self, room: &[u8], class: ClassIndex) {
        self.kept.insert(room.into(), class);
    }

    /// Hash of the rules that decide a room's class; it differs after a change of them.
    pub fn rules(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let rules = self.in_order().map(|(_, class)| (&class.name, format!("{:?}", class.matches)));
        rules.for_each(|rule| rule.hash(&mut hasher));
        hasher.finish()
    }

    /// The errors of the classes, at most one per class.
    pub fn check(&self) -> Vec<NameError> {
        self.classes.iter().filter_map(|class| class.check().err()).collect()
    }

    #[inline]
    pub fn get(&self, index: ClassIndex) -> &Class {
        &self.classes[usize::from(index)]
    }

    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The room of a topic: its hash tag if it has one and tags are on; else what the template of the first
    /// class that has one and matches the topic yields; else the whole topic. For topics that begin with `$`,
    /// tags and users' templates are ignored: the node's internal rooms have fixed names.
    pub fn room<'t>(&self, topic: &'t [u8]) -> Cow<'t, [u8]> {
        if let Some(tag) = self.tag(topic) {
            return Cow::Borrowed(tag);
        }
        let is_own = topic.first() == Some(&b'$');
        for (_, class) in self.in_order() {
            if let Some(template) = &class.room
                && is_own == class.name.starts_with('$')
                && class.matches(topic)
            {
                return template.apply(topic);
            }
        }
        Cow::Borrowed(topic)
    }

    /// The hash tag by which a topic names its room, if it has one and tags are on.
    pub fn tag<'t>(&self, topic: &'t [u8]) -> Option<&'t [u8]> {
        let may_say = self.hash_tags && topic.first() != Some(&b'$');
        may_say.then(|| hash_tag(topic)).flatten()
    }

    /// The class of a room: its pinned class, or the first that matches its name.
    pub fn class_of_room(&self, room: &[u8]) -> ClassIndex {
        if !self.kept.is_empty()
            && let Some(&class) = self.kept.get(room)
        {
            return class;
        }
        let first = self.in_order().find(|(_, class)| class.matches(room));
        first.map_or(self.order[self.order.len() - 1], |(index, _)| index)
    }
}

#[cfg(test)]
mod tests;
