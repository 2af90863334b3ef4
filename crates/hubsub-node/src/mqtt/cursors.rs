//! Where a session stands in rooms with a log: behind a position in each topic that it subscribes to, and behind an
//! offset in each hub for all its wildcards together. Whatever is before that its client has acknowledged, or is not to
//! get, or is among the messages that are under way to it; whatever is behind it the log has, and nobody keeps it.
//!
//! A record is *taken* when it is for the client from then on, in its window or waiting for that, or is passed by; it is
//! *done* when the client has said its last word on it. What waited when the connection ends is taken back. How this
//! follows the broker is in [`standing`](super::standing), how it outlives its process in [`durable`](super::durable).
//!
//! Invariant: no record that matches is behind a cursor's `taken` without having been taken.

mod bytes;

use super::message::Said;
use super::pending::Pending;
use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use hubsub_types::{Epoch, HubId, Position, Seq};
use hubsub_wire::mqtt::Progress;

/// Which cursor counts a record that is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Row {
    /// None.
    #[default]
    None,
    /// That of its topic.
    Topic,
    /// That of its hub.
    Hub,
}

/// Where a session stands in a topic.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct InTopic {
    /// The life of its room in which it stands.
    life: Epoch,
    /// Seqs of that.
    progress: Progress,
    /// What is older and of QoS 0 is not for it, in µs since 1970.
    quiet_us: u64,
}

/// Likewise, in a hub.
#[derive(Clone, PartialEq, Eq, Debug)]
struct InHub {
    hub: HubId,
    /// Offsets.
    progress: Progress,
    /// The first offset that came and was not taken; 0: none.
    stop: u64,
}

impl InHub {
    fn stop_at(&mut self, offset: u64) {
        self.stop = if self.stop == 0 { offset } else { self.stop.min(offset) };
    }

    /// Whatever matches up to there was taken, unless it was stopped before.
    fn passed(&mut self, upto: u64) {
        self.progress.passed(if self.stop == 0 { upto } else { upto.min(self.stop - 1) });
    }
}

/// Topics that are looked through one by one.
const FEW: usize = 8;

/// Cursors by their topics: most sessions have one or a few, which need no table.
#[derive(Clone, Default)]
struct Topics {
    /// Until there are more than `FEW`.
    few: Vec<(Box<str>, InTopic)>,
    many: Option<Box<HashMap<Box<str>, InTopic, RandomState>>>,
}

impl Topics {
    fn is_empty(&self) -> bool {
        self.few.is_empty() && self.many.as_ref().is_none_or(|many| many.is_empty())
    }

    fn iter(&self) -> impl Iterator<Item = (&str, &InTopic)> {
        let many = self.many.iter().flat_map(|many| many.iter());
        self.few.iter().map(|(topic, at)| (&**topic, at)).chain(many.map(|(topic, at)| (&**topic, at)))
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = (&str, &mut InTopic)> {
        let many = self.many.iter_mut().flat_map(|many| many.iter_mut());
        let few = self.few.iter_mut().map(|(topic, at)| (&**topic, at));
        few.chain(many.map(|(topic, at)| (&**topic, at)))
    }

    fn get(&self, topic: &str) -> Option<&InTopic> {
        match &self.many {
            None => self.few.iter().find(|(own, _)| **own == *topic).map(|(_, at)| at),
            Some(many) => many.get(topic),
        }
    }

    fn get_mut(&mut self, topic: &str) -> Option<&mut InTopic> {
        match &mut self.many {
            None => self.few.iter_mut().find(|(own, _)| **own == *topic).map(|(_, at)| at),
            Some(many) => many.get_mut(topic),
        }
    }

    fn insert(&mut self, topic: &str, at: InTopic) {
        if let Some(known) = self.get_mut(topic) {
            *known = at;
        } else if let Some(many) = &mut self.many {
            many.insert(topic.into(), at);
        } else {
            self.few.reserve_exact(1);
            self.few.push((topic.into(), at));
            if self.few.len() > FEW {
                self.many = Some(Box::new(std::mem::take(&mut self.few).into_iter().collect()));
            }
        }
    }

    fn remove(&mut self, topic: &str) {
        match &mut self.many {
            None => self.few.retain(|(own, _)| **own != *topic),
            Some(many) => _ = many.remove(topic),
        }
    }
}

/// See the module.
#[derive(Clone, Default)]
pub struct Cursors {
    topics: Topics,
    /// In order of their hubs.
    hubs: Vec<InHub>,
    /// Of wildcards what is older and of QoS 0 is not for it, in µs since 1970.
    quiet_us: u64,
    /// Whether its wildcards stand in hubs.
    pub(super) follows: bool,
    /// Whether a wildcard of it began in the past, and has its own places: what wildcards bring is queued as that of
    /// rooms without a log.
    pub(super) is_queued: bool,
    /// Topics whose subscriptions are not confirmed, by the numbers of the requests.
    pub(super) asked: Vec<(u32, Box<str>)>,
    /// Wildcards that wait until it is known where logs end, likewise.
    pub(super) waiting: Vec<(u32, Box<str>)>,
    /// The number of the last question where logs end, and whether it is open.
    pub(super) ends: u32,
    pub(super) awaits_ends: bool,
}

impl Cursors {
    /// Which cursor counts a record; `by_topic`: it comes by the subscription to its topic, else by a wildcard.
    pub(super) fn row(&self, by_topic: bool, topic: &[u8], offset: u64) -> Row {
        match by_topic {
            true if std::str::from_utf8(topic).is_ok_and(|topic| self.topics.get(topic).is_some()) => {
                Row::Topic
            }
            false if self.follows && offset > 0 => Row::Hub,
            _ => Row::None,
        }
    }

    /// Whether there is one of a topic.
    pub(super) fn has_topics(&self) -> bool {
        !self.topics.is_empty()
    }

    /// Whether it stands in a topic, or will.
    pub(super) fn has(&self, topic: &str) -> bool {
        self.topics.get(topic).is_some() || self.asked.iter().any(|(_, asked)| **asked == *topic)
    }

    fn hub(&mut self, hub: HubId) -> &mut InHub {
        let place = self.hubs.binary_search_by_key(&hub, |at| at.hub).unwrap_or_else(|place| {
            self.hubs.reserve_exact(1);
            self.hubs.insert(place, InHub { hub, progress: Progress::default(), stop: 0 });
            place
        });
        &mut self.hubs[place]
    }

    /// A subscription to a topic holds: it stands behind this position.
    pub(super) fn stand(&mut self, topic: &str, after: Position) {
        let progress = Progress::from(after.seq.0);
        self.topics.insert(topic, InTopic { life: after.epoch, progress, quiet_us: 0 });
    }

    /// A subscription to a topic has ended.
    pub(super) fn leave_topic(&mut self, topic: &str) {
        self.topics.remove(topic);
        self.asked.retain(|(_, asked)| **asked != *topic);
    }

    /// Its wildcards stand behind these offsets from now on.
    pub(super) fn follow(&mut self, ends: &[(HubId, u64)]) {
        self.follows = true;
        for &(hub, end) in ends {
            self.hub(hub).progress = Progress::from(end);
        }
    }

    /// They stand nowhere any more.
    pub(super) fn unfollow(&mut self) {
        (self.follows, self.hubs) = (false, Vec::new());
    }

    /// A record is taken, to be acknowledged if it `is_open`. False: it is not for this client, or was taken before.
    pub(super) fn take(&mut self, row: Row, said: &Said<'_>, is_open: bool) -> bool {
        let (progress, place, quiet_us) = match row {
            Row::None => return true,
            Row::Topic => {
                let Some(at) = self.topics.get_mut(said.topic) else { return true };
                if at.life != said.position.epoch {
                    (at.life, at.progress) = (said.position.epoch, Progress::default());
                }
                (&mut at.progress, said.position.seq.0, at.quiet_us)
            }
            Row::Hub => {
                let (place, quiet_us) = (said.place, self.quiet_us);
                let at = self.hub(place.hub);
                if at.stop == place.offset {
                    at.stop = 0;
                }
                (&mut at.progress, place.offset, quiet_us)
            }
        };
        if is_open {
            return progress.sent(place);
        }
        let is_new = place > progress.taken();
        progress.passed(place);
        is_new && said.timestamp_us >= quiet_us
    }

    /// A record came and was not taken: it comes again, or is read by who comes back.
    pub(super) fn refuse(&mut self, row: Row, hub: HubId, offset: u64) {
        if row == Row::Hub {
            self.hub(hub).stop_at(offset);
        }
    }

    /// The client has said its last word on a record.
    pub(super) fn done(&mut self, row: Row, said: &Said<'_>) {
        match row {
            Row::None => {}
            Row::Topic => {
                let at = self.topics.get_mut(said.topic).filter(|at| at.life == said.position.epoch);
                at.into_iter().for_each(|at| _ = at.progress.acknowledged(said.position.seq.0));
            }
            Row::Hub if !self.follows => {}
            Row::Hub => _ = self.hub(said.place.hub).progress.acknowledged(said.place.offset),
        }
    }

    /// A record that was taken and has waited since is taken back; whether it is counted.
    pub(super) fn take_back(&mut self, row: Row, said: &Said<'_>) -> bool {
        match row {
            Row::None => return false,
            Row::Topic => {
                let at = self.topics.get_mut(said.topic).filter(|at| at.life == said.position.epoch);
                at.into_iter().for_each(|at| at.progress.take_back(said.position.seq.0));
            }
            Row::Hub => {
                let at = self.hub(said.place.hub);
                at.progress.take_back(said.place.offset);
                at.stop_at(said.place.offset);
            }
        }
        true
    }

    /// Whatever waits for the client is taken back.
    pub(super) fn take_back_all(&mut self, pending: &Pending) {
        // The last one first: what is behind one that is taken back has to be remembered.
        for item in pending.iter().rev() {
            self.take_back(item.row, &item.message.said());
        }
    }

    /// As it is to be recorded while there is a connection, to which whatever wildcards match up to these offsets has come:
    /// what waits is taken back.
    pub(super) fn as_sent(&self, pending: &Pending, places: &[(HubId, u64)]) -> Cursors {
        let mut cursors = self.clone();
        cursors.take_back_all(pending);
        let places = if self.follows { places } else { &[] };
        for &(hub, upto) in places {
            cursors.came(hub, upto);
        }
        cursors
    }

    /// A record was sent after this was recorded, and before the process ended: it is under way, and is not taken again.
    pub(super) fn sent_ahead(&mut self, row: Row, said: &Said<'_>) {
        match row {
            Row::None => {}
            Row::Topic => {
                let Some(at) = self.topics.get_mut(said.topic) else { return };
                if at.life != said.position.epoch {
                    (at.life, at.progress) = (said.position.epoch, Progress::default());
                }
                at.progress.sent_ahead(said.position.seq.0);
            }
            Row::Hub if !self.follows => {}
            Row::Hub => self.hub(said.place.hub).progress.sent_ahead(said.place.offset),
        }
    }

    /// The process has ended: of what is not acknowledged these are under way, and whatever else is not comes again.
    pub(super) fn lose<'a>(&mut self, under_way: impl Iterator<Item = (Row, Said<'a>)>) {
        let (mut in_topics, mut in_hubs) = (HashSet::new(), HashSet::new());
        for (row, said) in under_way {
            match row {
                Row::None => {}
                Row::Topic => _ = in_topics.insert((said.topic, said.position)),
                Row::Hub => _ = in_hubs.insert((said.place.hub, said.place.offset)),
            }
        }
        for (topic, at) in self.topics.iter_mut() {
            let epoch = at.life;
            at.progress.lose(|seq| in_topics.contains(&(topic, Position { epoch, seq: Seq(seq) })));
        }
        for at in &mut self.hubs {
            at.progress.lose(|offset| in_hubs.contains(&(at.hub, offset)));
        }
    }

    /// Whatever wildcards match in a hub up to an offset has come.
    pub(super) fn came(&mut self, hub: HubId, upto: u64) {
        self.hub(hub).passed(upto);
    }

    /// Nobody is connected: what is not needed meanwhile goes.
    pub(super) fn rest(&mut self) {
        (self.asked, self.waiting) = (Vec::new(), Vec::new());
        self.awaits_ends = false;
        self.topics.iter_mut().for_each(|(_, at)| at.progress.rest());
        self.hubs.iter_mut().for_each(|at| at.progress.rest());
    }

    /// The client is back, at this time in µs since 1970: what of QoS 0 is older was not for it.
    pub(super) fn wake(&mut self, now_us: u64) {
        (self.quiet_us, self.awaits_ends) = (now_us, false);
        self.topics.iter_mut().for_each(|(_, at)| at.quiet_us = now_us);
        self.hubs.iter_mut().for_each(|at| at.stop = 0);
    }

    /// Its topics, each with the position behind which it goes on.
    pub(super) fn positions(&self) -> impl Iterator<Item = (&str, Position)> {
        let seq = |at: &InTopic| Seq(at.progress.taken());
        self.topics.iter().map(move |(topic, at)| (topic, Position { epoch: at.life, seq: seq(at) }))
    }

    /// Hubs, each with the first offset that it has not had.
    pub(super) fn offsets(&self) -> impl Iterator<Item = (HubId, u64)> {
        self.hubs.iter().map(|at| (at.hub, at.progress.taken() + 1))
    }
}

#[cfg(test)]
mod tests;
