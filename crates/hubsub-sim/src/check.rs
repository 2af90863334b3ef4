//! The model against which a run is checked: who published what, who subscribes from where on, and what each
//! connection received. It reports an error at the step at which it occurs.

use crate::groups::Shares;
use crate::world::Saw;
use hubsub_route::rooms::HistoryPart;
use hubsub_route::{Answer, Asker, Attached, NodeMessage, Published};
use hubsub_types::{ErrorCode, HubId, Position, Seq};
use std::collections::{BTreeMap, BTreeSet};

/// A connection: node, shard, index in the shard.
pub type Conn = (u16, u16, u32);

/// A connection's subscription: to a topic, or a pattern (true).
pub type SubKey = (Conn, bool, String);

#[derive(Clone, Debug)]
pub enum Waits {
    Publish(u32),
    Subscribe(SubKey),
    Count,
    Join,
    Ends,
}

#[derive(Clone, Debug, Default)]
pub struct Sub {
    pub is_live: bool,
    /// Of a topic subscription: its start position, and the first seq that it must receive.
    begins: Option<(Position, Seq)>,
    seen: BTreeMap<String, Vec<Position>>,
    /// Gaps reported to it, by topic.
    gaps: BTreeMap<String, Vec<(Position, Position)>>,
    /// Its class dropped records for it.
    is_lossy: bool,
    /// Of a pattern subscription: the last publish before it was confirmed, or before a notice that records
    /// may be missing.
    since: u32,
    /// By topic, the last publish before a notice that the room's epoch has ended.
    over: BTreeMap<String, u32>,
    /// Numbers of the publishes that it received.
    ids: BTreeSet<u32>,
    /// Whether it follows hubs with a log: then it must receive all records, and gets no gap notices.
    follows: bool,
}

#[derive(Clone, Debug)]
pub struct Publish {
    pub topic: String,
    pub by: Conn,
    /// None while it is pending.
    pub outcome: Option<Result<Published, ErrorCode>>,
}

#[derive(Debug, Default)]
pub struct Model {
    pub seed: u64,
    pub failure: Option<String>,
    pub publishes: BTreeMap<u32, Publish>,
    pub waiting: BTreeMap<u32, Waits>,
    pub subs: BTreeMap<SubKey, Sub>,
    pub shares: Shares,
    /// Records known to be committed: from room and position to the publish.
    committed: BTreeMap<(String, u64, u64), u32>,
    places: BTreeMap<u32, Position>,
    /// Positions of committed records, by topic.
    of_topic: BTreeMap<String, BTreeSet<(u64, u64)>>,
    /// By publisher, room and epoch: from publish to seq.
    order: BTreeMap<(Conn, String, u64), BTreeMap<u32, u64>>,
    /// By record, the nodes to which a frame with it was sent.
    pub frames: BTreeMap<u32, Vec<u16>>,
    pub seen: u64,
    pub gaps: u64,
    pub lacks: u64,
    /// Number of publishes that were committed, and that were not.
    pub outcomes: (u64, u64),
    pub histories: u64,
}

/// The room of a topic: its hash tag, or itself.
#[must_use]
pub fn room_of(topic: &str) -> String {
    let tag = topic.strip_prefix('{').and_then(|rest| rest.split_once('}'));
    tag.map_or(topic, |(tag, _)| tag).to_owned()
}

/// Whether the room of a topic has a log.
fn is_logged(topic: &str) -> bool {
    room_of(topic).starts_with("l:")
}

/// Whether a pattern, which ends in a star, matches.
#[must_use]
pub fn matches(pattern: &str, topic: &str) -> bool {
    pattern.strip_suffix('*').is_some_and(|prefix| topic.starts_with(prefix))
}

impl Model {
    pub fn new(seed: u64) -> Model {
        Model { seed, ..Model::default() }
    }

    pub(crate) fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    /// Records that a node sends a frame to another.
    pub fn frame(&mut self, _from: u16, to: u16, message: &NodeMessage) {
        let NodeMessage::Deliver { record, .. } = message else { return };
        let id = u32::from_le_bytes(record.payload().try_into().expect("each payload is a number"));
        let nodes = self.frames.entry(id).or_default();
        if nodes.contains(&to) {
            self.fail(format!("record {id} goes to node {to} twice"));
        } else {
            nodes.push(to);
        }
    }

    /// Checks that a position always has the same record.
    fn stands(&mut self, topic: &str, position: Position, id: u32) {
        if position.seq == Seq(0) {
            return;
        }
        let (room, at) = (room_of(topic), (position.epoch.0, position.seq.0));
        let first = *self.committed.entry((room.clone(), at.0, at.1)).or_insert(id);
        if first != id {
            self.fail(format!("{room} {position} is record {first}, and record {id}"));
        }
        let place = *self.places.entry(id).or_insert(position);
        if place != position {
            self.fail(format!("record {id} of {topic} stands at {place} and at {position}"));
        }
        self.of_topic.entry(topic.to_owned()).or_default().insert(at);
        let Some(publish) = self.publishes.get(&id) else {
            return self.fail(format!("nobody published {id}"));
        };
        if publish.topic != topic {
            let text = format!("record {id} was published to {}, not to {topic}", publish.topic);
            return self.fail(text);
        }
        let order = self.order.entry((publish.by, room.clone(), at.0)).or_default();
        order.insert(id, at.1);
        let before = order.range(..id).next_back().map(|(_, seq)| *seq);
        let after = order.range(id + 1..).next().map(|(_, seq)| *seq);
        if before.is_some_and(|seq| seq > at.1) || after.is_some_and(|seq| seq < at.1) {
            let text =
                format!("{room} {position}: record {id} of {:?} is out of its order: {order:?}", publish.by);
            self.fail(text);
        }
    }

    pub fn saw(&mut self, conn: Conn, saw: Saw) {
        match saw {
            Saw::Record { pattern, topic, position, id } => {
                self.seen += 1;
                self.stands(&topic, position, id);
                let key = (conn, pattern.is_some(), pattern.unwrap_or_else(|| topic.clone()));
                if key.1 && !matches(&key.2, &topic) {
                    self.fail(format!("{key:?} got a record of {topic}"));
                }
                let known = self.of_topic.get(&topic).cloned().unwrap_or_default();
                let follows = self.subs.get(&key).is_some_and(|sub| sub.follows);
                let followers = self.subs.iter().filter(|(key, sub)| key.0 == conn && sub.follows);
                let mut last = followers.filter_map(|(_, sub)| sub.last_of_room(&topic));
                if follows && last.any(|last| last > (position.epoch.0, position.seq.0)) {
                    return self.fail(format!("{key:?}: {position} of {topic} comes behind its room's next"));
                }
                let Some(sub) = self.subs.get_mut(&key).filter(|sub| sub.is_live) else {
                    return self.fail(format!("{key:?} got {topic} {position} and is not confirmed"));
                };
                if !sub.ids.insert(id) {
                    return self.fail(format!("{key:?} got record {id} of {topic} twice"));
                }
                if position.seq == Seq(0) {
                    return;
                }
                if let Some(text) = sub.takes(key.1, &topic, position, &known) {
                    self.fail(format!("{key:?}: {text}"));
                }
            }
            Saw::Given { group, topic, position, id } => {
                self.seen += 1;
                self.stands(&topic, position, id);
                self.given(conn, &group, &topic, id);
            }
            Saw::Gap { topic, from, to } => {
                self.gaps += 1;
                let last = self.publishes.keys().next_back().copied().unwrap_or(0);
                if to == Position::default() {
                    // A notice for a pattern: it does not name records or topics.
                    if let Some(sub) = self.subs.get_mut(&(conn, true, topic)).filter(|sub| !sub.follows) {
                        (sub.since, self.lacks) = (last, self.lacks + 1);
                    }
                    return;
                }
                if is_logged(&topic) && self.subs.contains_key(&(conn, false, topic.clone())) {
                    self.fail(format!(
                        "{conn:?} is notified that records of {topic} are missing, {from} to {to}"
                    ));
                }
                for (key, sub) in self.subs.range_mut((conn, false, String::new())..) {
                    if key.0 == conn && (key.2 == topic || (key.1 && matches(&key.2, &topic))) {
                        sub.gaps.entry(topic.clone()).or_default().push((from, to));
                        if to.seq == Seq(0) {
                            sub.over.insert(topic.clone(), last);
                        }
                    }
                }
            }
            Saw::Squeezed { topic } => {
                for (key, sub) in &mut self.subs {
                    sub.is_lossy |= key.0 == conn && (key.2 == topic || (key.1 && matches(&key.2, &topic)));
                }
            }
        }
    }

    pub fn answered(&mut self, (node, shard): (u16, u16), asker: Asker, answer: Answer) {
        let Asker::Client { conn, slot } = asker else { return self.fail(format!("{asker:?} was answered")) };
        let Some(waits) = self.waiting.remove(&slot) else {
            return self.fail(format!("{:?} was answered twice", (node, shard, conn.index)));
        };
        match (waits, answer) {
            (Waits::Publish(id), Answer::Published(outcome)) => self.published(id, outcome),
            (Waits::Subscribe(key), Answer::Attached(outcome)) => self.attached(&key, outcome),
            (Waits::Subscribe(key), Answer::PatternHeld) => self.held(&key),
            (Waits::Count, Answer::Counted(_)) | (Waits::Join, Answer::PatternHeld) => {}
            (Waits::Ends, Answer::HubEnds(ends)) => self.ended(ends),
            (waits, answer) => self.fail(format!("{waits:?} was answered by {answer:?}")),
        }
    }

    pub fn published(&mut self, id: u32, outcome: Result<Published, ErrorCode>) {
        let publish = self.publishes.get_mut(&id).expect("it was published");
        publish.outcome = Some(outcome);
        let topic = publish.topic.clone();
        match outcome {
            Ok(published) => {
                self.outcomes.0 += 1;
                self.stands(&topic, published.position, id);
            }
            Err(_) => self.outcomes.1 += 1,
        }
    }

    pub fn attached(&mut self, key: &SubKey, outcome: Result<Attached, ErrorCode>) {
        match outcome {
            Ok(attached) => {
                if let Some(sub) = self.subs.get_mut(key) {
                    let first = attached.replay_from.unwrap_or(attached.position.seq.next());
                    sub.begins = Some((attached.position, first));
                    sub.is_live = true;
                }
            }
            Err(_) => _ = self.subs.remove(key),
        }
    }

    /// Processes the end offsets of logs; an error means that they are unknown.
    pub fn ended(&mut self, ends: Result<Vec<(HubId, u64)>, ErrorCode>) {
        let ends = ends.unwrap_or_default();
        let (sum, last) = (ends.iter().map(|(_, offset)| offset).sum::<u64>(), self.publishes.len() as u64);
        if sum > last {
            self.fail(format!("logs end at {ends:?}, {last} were published"));
        }
    }

    /// Number of records that followers of hubs received.
    pub fn followed(&self) -> u64 {
        self.subs.values().filter(|sub| sub.follows).map(|sub| sub.ids.len() as u64).sum()
    }

    /// A pattern is active at a leader.
    pub fn held(&mut self, key: &SubKey) {
        let since = self.publishes.keys().next_back().copied().unwrap_or(0);
        if let Some(sub) = self.subs.get_mut(key) {
            (sub.is_live, sub.since) = (true, since);
        }
    }

    /// Checks the answer to a history request: its records are in order and known.
    pub fn history(&mut self, _number: u32, part: Result<HistoryPart, ErrorCode>) {
        let Ok(part) = part else { return };
        self.histories += 1;
        for two in part.records.windows(2) {
            let (a, b) = (two[0].position, two[1].position);
            if a.epoch == b.epoch && a.seq >= b.seq {
                self.fail(format!("history has {a} before {b}"));
            }
        }
        for record in part.records {
            let id = u32::from_le_bytes(record.payload().try_into().expect("each payload is a number"));
            let topic = String::from_utf8_lossy(record.topic()).into_owned();
            self.stands(&topic, record.position, id);
        }
    }

    /// Called after the request timeout: no publish may be pending.
    pub fn check_answered(&mut self) {
        let waits = self.waiting.values().find(|waits| matches!(waits, Waits::Publish(_)));
        if let Some(text) = waits.map(|waits| format!("{waits:?} was not answered in its time")) {
            self.fail(text);
        }
    }

    /// Called when nothing is in flight: each subscriber must have received every record it should, or a gap
    /// notice.
    pub fn check_whole(&mut self) {
        let mut wrong = Vec::new();
        for (key, sub) in self.subs.iter().filter(|(key, sub)| !key.1 && sub.is_live && !sub.is_lossy) {
            let Some((begins, first)) = sub.begins else { continue };
            let none = Vec::new();
            let seen = sub.seen.get(&key.2).unwrap_or(&none);
            for &(epoch, seq) in self.of_topic.get(&key.2).into_iter().flatten() {
                let due = match epoch == begins.epoch.0 {
                    true => seq >= first.0,
                    // One node has the log, and assigns increasing epochs.
                    false if is_logged(&key.2) => epoch > begins.epoch.0,
                    false => seen.iter().any(|at| at.epoch.0 == epoch),
                };
                let has = seen.iter().any(|at| (at.epoch.0, at.seq.0) == (epoch, seq));
                // Records in a log must be read, even if a gap was reported.
                let is_told = !is_logged(&key.2) && sub.is_told(&key.2, epoch, seq);
                if due && !has && !is_told {
                    wrong.push(format!("{key:?}, from {begins} ({}) on, lacks {epoch}-{seq}", first.0));
                }
            }
        }
        for (key, sub) in self.subs.iter().filter(|(_, sub)| sub.follows) {
            for (id, at) in &self.places {
                let topic = &self.publishes[id].topic;
                if matches(&key.2, topic) && at.seq.0 > 0 && !sub.ids.contains(id) {
                    wrong.push(format!("{key:?} follows, and lacks record {id} of {topic}, {at}"));
                }
            }
        }
        let patterns = self.subs.iter().filter(|(key, sub)| key.1 && !sub.follows);
        for (key, sub) in patterns.filter(|(_, sub)| sub.is_live && !sub.is_lossy) {
            for (&id, publish) in self.publishes.range(sub.since + 1..) {
                let position = match publish.outcome {
                    Some(Ok(published)) => Some(published.position),
                    _ => self.places.get(&id).copied(),
                };
                let Some(at) = position.filter(|_| matches(&key.2, &publish.topic)) else { continue };
                let has = sub.ids.contains(&id) || !sub.is_due(&publish.topic, id);
                if !has && !sub.is_told(&publish.topic, at.epoch.0, at.seq.0) {
                    wrong.push(format!("{key:?} lacks record {id} of {}, {at}", publish.topic));
                }
            }
        }
        wrong.into_iter().for_each(|text| self.fail(text));
        if let Some((slot, waits)) = self.waiting.iter().next() {
            let text = format!("{slot}: {waits:?} was never answered");
            self.fail(text);
        }
    }
}

impl Sub {
    /// A follower of hubs from their first record.
    #[must_use]
    pub fn of_follower() -> Sub {
        Sub { follows: true, ..Sub::default() }
    }

    /// The same state on another connection, where it is not confirmed yet.
    #[must_use]
    pub fn returned(self) -> Sub {
        Sub { is_live: false, ..self }
    }

    fn is_told(&self, topic: &str, epoch: u64, seq: u64) -> bool {
        self.gaps.get(topic).into_iter().flatten().any(|(from, to)| {
            from.epoch.0 == epoch && seq >= from.seq.0 && (to.seq.0 == 0 || seq <= to.seq.0)
        })
    }

    /// The same for any topic of the room: the notice for this topic may arrive in the same turn, after a
    /// record.
    fn is_told_of_room(&self, topic: &str, epoch: u64, seq: u64) -> bool {
        let room = room_of(topic);
        self.gaps.keys().any(|other| room_of(other) == room && self.is_told(other, epoch, seq))
    }

    /// Whether a pattern must receive a publish: it came after the pattern became active, and after the last
    /// notice that records may be missing.
    fn is_due(&self, topic: &str, id: u32) -> bool {
        id > self.since && self.over.get(topic).is_none_or(|&over| id > over)
    }

    /// Whether it received the record at a position.
    pub fn has(&self, topic: &str, position: Position) -> bool {
        self.seen.get(topic).is_some_and(|seen| seen.contains(&position))
    }

    pub fn saw(&self, id: u32) -> bool {
        self.ids.contains(&id)
    }

    /// The last record that it received of a topic's room.
    fn last_of_room(&self, topic: &str) -> Option<(u64, u64)> {
        let room = room_of(topic);
        let of_room = self.seen.iter().filter(|(other, _)| room_of(other) == room);
        let last = of_room.filter_map(|(_, seen)| seen.last());
        last.map(|at| (at.epoch.0, at.seq.0)).max()
    }

    pub fn is_lossy(&self) -> bool {
        self.is_lossy
    }

    /// Processes a received record; returns an error, if any.
    fn takes(
        &mut self,
        by_pattern: bool,
        topic: &str,
        position: Position,
        known: &BTreeSet<(u64, u64)>,
    ) -> Option<String> {
        let seen = self.seen.entry(topic.to_owned()).or_default();
        let last = seen.last().copied();
        seen.push(position);
        let of_life =
            |from: u64| (position.epoch.0, from.min(position.seq.0))..(position.epoch.0, position.seq.0);
        let Some(last) = last else {
            let (begins, first) = self.begins?;
            if begins.epoch == position.epoch {
                if position.seq < first {
                    return Some(format!("{position} of {topic} is before {first:?}, where it began"));
                }
                return self.untold(by_pattern, topic, known.range(of_life(first.0)), position);
            }
            let behind = (begins.epoch.0, first.0)..(begins.epoch.0, u64::MAX);
            let missing = known.range(behind).chain(known.range(of_life(1)));
            return self.untold(by_pattern, topic, missing, position);
        };
        if last.epoch == position.epoch {
            if position.seq <= last.seq {
                return Some(format!("{position} of {topic} comes behind {last}"));
            }
            return self.untold(by_pattern, topic, known.range(of_life(last.seq.0 + 1)), position);
        }
        if self.seen[topic].iter().rev().skip(1).any(|at| at.epoch == position.epoch) {
            return Some(format!("{position} of {topic} is of an epoch that was over, behind {last}"));
        }
        let behind = (last.epoch.0, last.seq.0 + 1)..(last.epoch.0, u64::MAX);
        self.untold(by_pattern, topic, known.range(behind).chain(known.range(of_life(1))), position)
    }

    fn untold<'a>(
        &self,
        by_pattern: bool,
        topic: &str,
        mut missing: impl Iterator<Item = &'a (u64, u64)>,
        position: Position,
    ) -> Option<String> {
        // A pattern gets a notice of missing records when the leader serves it again, perhaps after this
        // record.
        if self.is_lossy || by_pattern {
            return None;
        }
        let is_told = |epoch, seq| !is_logged(topic) && self.is_told_of_room(topic, epoch, seq);
        let (epoch, seq) = missing.find(|(epoch, seq)| !is_told(*epoch, *seq))?;
        Some(format!("{position} of {topic} comes and {epoch}-{seq} did not, untold"))
    }
}
