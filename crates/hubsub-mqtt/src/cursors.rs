//! A session's cursors in rooms with a log: a position per subscribed topic, and an offset per hub for all
//! its wildcards together. Records before a cursor are acknowledged, not for this client, or in flight;
//! records after it are in the log and nowhere else.
//!
//! A record is *taken* when it enters the client's window or queue, or is skipped; it is *done* when the
//! client has completed its acknowledgement. Records that are queued when the connection ends are taken back.
//! The node keeps cursors in step with the broker; a session's snapshot has them
//! ([`Persistence`](super::Persistence)).
//!
//! Invariant: every matching record up to a cursor's `taken` was taken.

mod bytes;

use super::few::Few;
use super::message::{Content, CountedBy};
use super::pending::Pending;
use crate::machine::Progress;
use hashbrown::HashSet;
use hubsub_types::{Epoch, HubId, Position, Seq};

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct InTopic {
    /// The epoch of its room to which the cursor refers.
    epoch: Epoch,
    progress: Progress,
    /// Records of QoS 0 before this time are skipped, in µs since 1970.
    quiet_us: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct InHub {
    hub: HubId,
    progress: Progress,
    /// The first offset that arrived and was not taken; 0 if none.
    stop: u64,
}

impl InTopic {
    /// In another epoch it starts again.
    fn enter(&mut self, epoch: Epoch) {
        if self.epoch != epoch {
            (self.epoch, self.progress) = (epoch, Progress::default());
        }
    }
}

impl InHub {
    fn stop_at(&mut self, offset: u64) {
        self.stop = if self.stop == 0 { offset } else { self.stop.min(offset) };
    }

    /// All matching records up to there were taken, unless one was stopped before.
    fn passed(&mut self, upto: u64) {
        self.progress.passed(if self.stop == 0 { upto } else { upto.min(self.stop - 1) });
    }
}

#[derive(Clone, Default)]
pub struct Cursors {
    topics: Few<InTopic>,
    hubs: Vec<InHub>,
    /// For wildcards: records of QoS 0 before this time are skipped, in µs since 1970.
    quiet_us: u64,
    pub has_hub_cursors: bool,
    /// True if a wildcard started at a past position and has cursors of its own: records that wildcards
    /// deliver are then queued like those of rooms without a log.
    pub is_queued: bool,
    /// Topics whose subscriptions are not confirmed, with the request number.
    pub asked: Vec<(u32, Box<str>)>,
    /// Wildcards that wait for the log ends, with the request number.
    pub waiting: Vec<(u32, Box<str>)>,
    /// The number of the last log-end request; `awaits_ends` while it is outstanding.
    pub ends: u32,
    pub awaits_ends: bool,
}

impl Cursors {
    /// The cursor that counts a record; `by_topic`: it arrived by a topic subscription, else by a wildcard.
    #[inline]
    pub fn counted_by(&self, by_topic: bool, topic: &[u8], offset: u64) -> CountedBy {
        match by_topic {
            true if self.topics.get(topic).is_some() => CountedBy::Topic,
            false if self.has_hub_cursors && offset > 0 => CountedBy::Hub,
            _ => CountedBy::None,
        }
    }

    pub fn has_topics(&self) -> bool {
        self.topics.len() > 0
    }

    /// True if it has a cursor for a topic, or one is pending.
    pub fn has(&self, topic: &str) -> bool {
        self.topics.get(topic.as_bytes()).is_some() || self.asked.iter().any(|(_, asked)| **asked == *topic)
    }

    fn hub(&mut self, hub: HubId) -> &mut InHub {
        let place = self.hubs.binary_search_by_key(&hub, |at| at.hub).unwrap_or_else(|place| {
            self.hubs.reserve_exact(1);
            self.hubs.insert(place, InHub { hub, progress: Progress::default(), stop: 0 });
            place
        });
        &mut self.hubs[place]
    }

    /// A subscription to a topic is confirmed: its cursor starts after this position.
    pub fn start(&mut self, topic: &str, after: Position) {
        let progress = Progress::from(after.seq.0);
        self.topics.insert(topic.as_bytes(), InTopic { epoch: after.epoch, progress, quiet_us: 0 });
    }

    pub fn remove_topic(&mut self, topic: &str) {
        self.topics.remove(topic.as_bytes());
        self.asked.retain(|(_, asked)| **asked != *topic);
    }

    /// Its wildcards start after these offsets.
    pub fn start_hubs(&mut self, ends: &[(HubId, u64)]) {
        self.has_hub_cursors = true;
        for &(hub, end) in ends {
            self.hub(hub).progress = Progress::from(end);
        }
    }

    pub fn remove_hubs(&mut self) {
        (self.has_hub_cursors, self.hubs) = (false, Vec::new());
    }

    /// Takes a record, to be acknowledged if `is_open`. False if it is not for this client or was taken.
    #[inline]
    pub fn take(&mut self, counted: CountedBy, content: &Content<'_>, is_open: bool) -> bool {
        let (progress, place, quiet_us) = match counted {
            CountedBy::None => return true,
            CountedBy::Topic => {
                let Some(at) = self.topics.get_mut(content.topic.as_bytes()) else { return true };
                at.enter(content.position.epoch);
                (&mut at.progress, content.position.seq.0, at.quiet_us)
            }
            CountedBy::Hub => {
                let (place, quiet_us) = (content.place, self.quiet_us);
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
        is_new && content.timestamp_us >= quiet_us
    }

    /// A record arrived and was not taken: it is delivered again, or read after the reconnect.
    pub fn refuse(&mut self, counted: CountedBy, hub: HubId, offset: u64) {
        if counted == CountedBy::Hub {
            self.hub(hub).stop_at(offset);
        }
    }

    /// The client has completed the acknowledgement of a record.
    pub fn done(&mut self, counted: CountedBy, content: &Content<'_>) {
        if counted == CountedBy::Hub && !self.has_hub_cursors {
            return;
        }
        if let Some((progress, place)) = self.counter(counted, content) {
            progress.acknowledged(place);
        }
    }

    /// The progress that counts a record, and its number there; none if the topic's cursor is in another
    /// epoch.
    fn counter(&mut self, counted: CountedBy, content: &Content<'_>) -> Option<(&mut Progress, u64)> {
        match counted {
            CountedBy::None => None,
            CountedBy::Topic => {
                let at = self.topics.get_mut(content.topic.as_bytes())?;
                (at.epoch == content.position.epoch).then_some((&mut at.progress, content.position.seq.0))
            }
            CountedBy::Hub => Some((&mut self.hub(content.place.hub).progress, content.place.offset)),
        }
    }

    /// Takes back a queued record; returns whether a cursor counts it.
    pub fn take_back(&mut self, counted: CountedBy, content: &Content<'_>) -> bool {
        if let Some((progress, place)) = self.counter(counted, content) {
            progress.take_back(place);
        }
        self.refuse(counted, content.place.hub, content.place.offset);
        counted != CountedBy::None
    }

    pub fn take_back_all(&mut self, pending: &Pending) {
        // In reverse, because a cursor stores each number after one that is taken back.
        for item in pending.iter().rev() {
            self.take_back(item.counted, &item.message.content());
        }
    }

    /// A copy to persist while the client is online: queued records are taken back. `places`: the offset per
    /// hub up to which all records that match wildcards have arrived.
    pub fn as_sent(&self, pending: &Pending, places: &[(HubId, u64)]) -> Cursors {
        let mut cursors = self.clone();
        cursors.take_back_all(pending);
        let places = if self.has_hub_cursors { places } else { &[] };
        for &(hub, upto) in places {
            cursors.arrived(hub, upto);
        }
        cursors
    }

    /// A record sent after the snapshot and before the process ended: it is in flight and is not taken again.
    pub fn sent_since(&mut self, counted: CountedBy, content: &Content<'_>) {
        if counted == CountedBy::Hub && !self.has_hub_cursors {
            return;
        }
        if counted == CountedBy::Topic
            && let Some(at) = self.topics.get_mut(content.topic.as_bytes())
        {
            at.enter(content.position.epoch);
        }
        if let Some((progress, place)) = self.counter(counted, content) {
            progress.sent_ahead(place);
        }
    }

    /// The process has ended: of unacknowledged records only these are in flight, the others come again.
    pub fn process_lost<'a>(&mut self, in_flight: impl Iterator<Item = (CountedBy, Content<'a>)>) {
        let (mut in_topics, mut in_hubs) = (HashSet::new(), HashSet::new());
        for (counted, content) in in_flight {
            match counted {
                CountedBy::None => {}
                CountedBy::Topic => _ = in_topics.insert((content.topic.as_bytes(), content.position)),
                CountedBy::Hub => _ = in_hubs.insert((content.place.hub, content.place.offset)),
            }
        }
        for (topic, at) in self.topics.iter_mut() {
            let epoch = at.epoch;
            at.progress.lose(|seq| in_topics.contains(&(topic, Position { epoch, seq: Seq(seq) })));
        }
        for at in &mut self.hubs {
            at.progress.lose(|offset| in_hubs.contains(&(at.hub, offset)));
        }
    }

    /// All records that match wildcards up to an offset of a hub have arrived.
    pub fn arrived(&mut self, hub: HubId, upto: u64) {
        self.hub(hub).passed(upto);
    }

    pub fn detach(&mut self) {
        (self.asked, self.waiting) = (Vec::new(), Vec::new());
        self.awaits_ends = false;
        self.topics.iter_mut().for_each(|(_, at)| at.progress.rest());
        self.hubs.iter_mut().for_each(|at| at.progress.rest());
    }

    /// The client is back at this time, in µs since 1970: older records of QoS 0 are skipped.
    pub fn resume(&mut self, now_us: u64) {
        (self.quiet_us, self.awaits_ends) = (now_us, false);
        self.topics.iter_mut().for_each(|(_, at)| at.quiet_us = now_us);
        self.hubs.iter_mut().for_each(|at| at.stop = 0);
    }

    /// Its topics, each with the position after which it continues.
    pub fn positions(&self) -> impl Iterator<Item = (&str, Position)> {
        self.topics.iter().map(|(topic, at)| {
            let topic = std::str::from_utf8(topic).expect("it was started as a text");
            (topic, Position { epoch: at.epoch, seq: Seq(at.progress.taken()) })
        })
    }

    /// Hubs, each with the first offset that it has not received.
    pub fn offsets(&self) -> impl Iterator<Item = (HubId, u64)> {
        self.hubs.iter().map(|at| (at.hub, at.progress.taken() + 1))
    }
}

#[cfg(test)]
mod tests;
