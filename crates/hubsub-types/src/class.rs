//! Room classes: the named policies, and which class and room a topic belongs
//! to. A room has the first class that matches its name, and keeps it for life.

use crate::names::{DeviceTemplate, Matcher, NameError, Template, hash_tag};
use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

/// When a publish is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Durability {
    /// At once; kept in memory only as far as `History` says.
    #[default]
    Ephemeral,
    /// When a quorum of the hub's members holds it in memory; then logged.
    Replicated,
    /// When a quorum of the hub's members has it on disk, sync included.
    Durable,
}

impl Durability {
    /// Whether records go into a log.
    #[must_use]
    pub fn is_logged(self) -> bool {
        self != Durability::Ephemeral
    }
}

/// What happens to a record when a subscriber is at its output limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnSlow {
    /// The connection is closed with the reason, as Redis does.
    #[default]
    Disconnect,
    /// The subscriber becomes a cursor and reads on from history.
    CatchUp,
    /// The oldest waiting record gives way.
    DropOldest,
    /// Only the latest record of each topic waits.
    Conflate,
}

/// Which member of a group gets a record.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ShareStrategy {
    /// One after the other.
    #[default]
    RoundRobin,
    /// Any.
    Random,
    /// The same one for as long as it is there and takes records.
    Sticky,
    /// The same one for all records of a key, while the members stay the same.
    Hash(ShareKey),
}

/// What records have in common that go to one member of a group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ShareKey {
    /// Their topic.
    Topic,
    /// Who published them.
    Publisher,
    /// The value of this header; those without it have that in common.
    Header(Box<str>),
}

impl ShareStrategy {
    /// Reads one of the configuration: `round-robin`, `random`, `sticky`, `hash:topic`, `hash:publisher` or
    /// `hash:header:NAME`.
    ///
    /// # Errors
    /// It is none of them.
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

/// What a subscriber sees of a gap whose protocol has no words for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnGap {
    /// It goes on behind the gap.
    #[default]
    Continue,
    /// It is disconnected, so that it knows.
    Disconnect,
}

/// Who is a member of a room.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Membership {
    /// Who says so.
    #[default]
    Asked,
    /// And each MQTT client that subscribes to a topic of it, under its client id.
    All,
    /// Nobody, and nobody is told who is there.
    Off,
}

/// How much of its past a room keeps. `messages` and `age_ms` hold per room,
/// `bytes` per hub, oldest record first. 0 means no limit, but one of
/// `messages` and `bytes` is always set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct History {
    /// Records a room.
    pub messages: u64,
    /// Bytes a hub: payload, topic and headers, plus the record's own cost.
    pub bytes: u64,
    /// Age in ms.
    pub age_ms: u64,
}

/// A named policy.
#[derive(Clone, Debug)]
pub struct Class {
    /// Unique, non-empty.
    pub name: String,
    /// A room whose name matches one of these has this class. Empty matches all.
    pub matches: Vec<Matcher>,
    /// How a topic that matches yields its room; none: the topic is the room.
    pub room: Option<Template>,
    /// Which part of a record's topic is the device; none: no part. Who reads the log has it.
    pub device: Option<Arc<DeviceTemplate>>,
    /// When a publish is acknowledged.
    pub durability: Durability,
    /// None: the room remembers nothing.
    pub history: Option<History>,
    /// Whether a room is its latest record, for ever, and one without a payload ends it. For the node's own classes.
    pub keeps_latest: bool,
    /// Bytes of a hub up to which what is not archived stays, beyond what the history says; 0: it does not.
    pub archive_wait_bytes: u64,
    /// Slow subscribers.
    pub on_slow: OnSlow,
    /// Gaps nobody can be told of.
    pub on_gap: OnGap,
    /// Groups that share records.
    pub share_strategy: ShareStrategy,
    /// Largest payload, in bytes.
    pub payload_bytes_max: u64,
    /// Time without publish and subscriber after which a room with history is
    /// forgotten, in ms; 0: when its history is empty.
    pub idle_ms: u64,
    /// Whether what browsers push is said to the room; else it is refused.
    pub browser_events: bool,
    /// Who is in a room, for who asks.
    pub presence: Membership,
    /// Whether it is recorded who comes and goes, in `$stats/presence/ROOM`.
    pub presence_records: bool,
    /// Whether it is recorded how many are in a room, in `$stats/room/ROOM/occupancy`.
    pub occupancy_records: bool,
    /// Delay of each commit, in ms: a tool of the tests for what a disk will do.
    pub commit_delay_ms: u64,
    /// Whether it was removed from the cluster: its rooms go on, and it gets no new ones.
    pub is_removed: bool,
}

impl Class {
    /// A class of that name that matches everything and remembers nothing.
    #[must_use]
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

    /// Whether somebody asks who published a record of it.
    #[must_use]
    pub fn names_publishers(&self) -> bool {
        self.history.is_some() || self.share_strategy == ShareStrategy::Hash(ShareKey::Publisher)
    }

    /// Whether a name belongs to this class.
    #[must_use]
    pub fn matches(&self, name: &[u8]) -> bool {
        self.matches.is_empty() || self.matches.iter().any(|m| m.matches(name))
    }

    /// Whether the rooms that the template yields are rooms of this class, too,
    /// as they must be. Patterns that are MQTT filters are decided; a glob is
    /// tried on a few topics, so an odd one may pass that should not, but none
    /// is refused without a topic that shows why.
    ///
    /// # Errors
    /// Names such a room, and the topic that it is the room of.
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

/// All classes. The last one in their order is the default class and matches all.
///
/// Invariant: a class keeps its index in all tables that were made from one another ([`ClassTable::changed`]).
#[derive(Clone, Debug)]
pub struct ClassTable {
    classes: Vec<Class>,
    /// Their indexes in order of precedence.
    order: Vec<ClassIndex>,
    /// Whether `{tag}` in a topic names its room.
    hash_tags: bool,
    /// Rooms that were made under other rules, and keep their class.
    kept: HashMap<Box<[u8]>, ClassIndex>,
}

/// Index of a class in its table.
pub type ClassIndex = u16;

impl ClassTable {
    /// `classes` in order of precedence; a default class that matches all is
    /// put behind them unless the last one does already.
    #[must_use]
    pub fn new(mut classes: Vec<Class>, hash_tags: bool) -> ClassTable {
        if classes.last().is_none_or(|c| !c.matches.is_empty() || c.room.is_some()) {
            classes.push(Class::named("default"));
        }
        assert!(classes.len() < usize::from(ClassIndex::MAX), "config bounds the number of classes");
        let order = (0..classes.len() as ClassIndex).collect();
        ClassTable { classes, order, hash_tags, kept: HashMap::new() }
    }

    /// The table with these classes in this order of precedence: those that it has, by name, are as given now, others
    /// are new. One that is not among them is in no order, and no room's that is found from now on.
    ///
    /// # Panics
    /// The last one does not match all.
    #[must_use]
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

    /// Whether that is true of all classes of clients that a room can have; those behind one that matches all are no room's.
    #[must_use]
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

    /// Whether any class has it recorded how many are in its rooms.
    #[must_use]
    pub fn tells_occupancy(&self) -> bool {
        self.classes.iter().any(|class| class.occupancy_records)
    }

    /// The index of a class.
    #[must_use]
    pub fn index_of(&self, name: &str) -> Option<ClassIndex> {
        self.classes.iter().position(|class| class.name == name).map(|index| index as ClassIndex)
    }

    fn in_order(&self) -> impl Iterator<Item = (ClassIndex, &Class)> {
        self.order.iter().map(|&index| (index, self.get(index)))
    }

    /// A room keeps a class, whatever the rules say.
    pub fn keep(&mut self, room: &[u8], class: ClassIndex) {
        self.kept.insert(room.into(), class);
    }

    /// Which rules decide a room's class, as a number: another one where they changed.
    #[must_use]
    pub fn rules(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let rules = self.in_order().map(|(_, class)| (&class.name, format!("{:?}", class.matches)));
        rules.for_each(|rule| rule.hash(&mut hasher));
        hasher.finish()
    }

    /// What is wrong with the classes, one error a class at most.
    #[must_use]
    pub fn check(&self) -> Vec<NameError> {
        self.classes.iter().filter_map(|class| class.check().err()).collect()
    }

    /// The class at an index that this table gave out.
    #[must_use]
    pub fn get(&self, index: ClassIndex) -> &Class {
        &self.classes[usize::from(index)]
    }

    /// All classes, by index.
    #[must_use]
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }

    /// The room of a topic: its hash tag if it has one and tags are on; else
    /// what the template of the first class that has one and matches the topic
    /// yields; else the whole topic. In topics that begin with `$` neither tags nor
    /// users' templates have a say: the node's own rooms are where it puts them.
    #[must_use]
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

    /// The hash tag by which a topic says its room itself, if it does.
    #[must_use]
    pub fn tag<'t>(&self, topic: &'t [u8]) -> Option<&'t [u8]> {
        let may_say = self.hash_tags && topic.first() != Some(&b'$');
        may_say.then(|| hash_tag(topic)).flatten()
    }

    /// The class of a room: the one that it keeps, or the first that matches its name.
    #[must_use]
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
