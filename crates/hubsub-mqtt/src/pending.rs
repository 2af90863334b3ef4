//! Records that wait for one client because its window or socket is full. They wait in order, without packet
//! ids, and are encoded when sent, so dropping one affects no other.
//!
//! Invariant: while one waits, later records wait too.

use super::message::{CountedBy, Message};
use super::shares::Group;
use crate::machine::Grant;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_types::{OnSlow, Qos};
use std::collections::VecDeque;
use std::rc::Rc;

pub struct Item {
    pub message: Rc<Message>,
    pub grant: Grant,
    pub on_slow: OnSlow,
    pub group: Option<Group>,
    /// Its key, if it was queued while the client was offline and is persisted; else 0.
    pub key: u64,
    pub counted: CountedBy,
}

impl Item {
    /// True if a persistent session must record it before it is sent.
    pub fn is_recorded(&self) -> bool {
        self.grant.qos == Qos::ExactlyOnce && self.group.is_none()
    }

    fn may_give_way(&self) -> bool {
        matches!(self.on_slow, OnSlow::DropOldest | OnSlow::Conflate)
    }
}

/// Per topic, the number of the latest record that may be dropped.
type Latest = HashMap<Box<str>, u64, RandomState>;

/// The queue of a client. Most clients have none and pay for a pointer.
#[derive(Default)]
pub struct Pending(Option<Box<Queue>>);

#[derive(Default)]
struct Queue {
    /// None where a record was dropped.
    items: VecDeque<Option<Item>>,
    first: u64,
    /// No item below this number may be dropped.
    oldest: u64,
    len: usize,
    bytes: usize,
    /// Records whose class disconnects slow clients.
    closers: usize,
    /// Set once records were conflated, until the queue is empty.
    latest: Option<Box<Latest>>,
    /// Since when the soft limit is exceeded; see [`Pending::soft_since_ms`].
    soft_since_ms: Option<u64>,
}

impl Pending {
    #[inline]
    pub fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |queue| queue.len)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    pub fn bytes(&self) -> usize {
        self.0.as_ref().map_or(0, |queue| queue.bytes)
    }

    pub fn has_closers(&self) -> bool {
        self.0.as_ref().is_some_and(|queue| queue.closers > 0)
    }

    /// The time since which the queue exceeds the soft limit, in ms; none if it does not.
    pub fn soft_since_ms(&self) -> Option<u64> {
        self.0.as_ref()?.soft_since_ms
    }

    pub fn set_soft_since_ms(&mut self, since_ms: Option<u64>) {
        if let Some(queue) = &mut self.0 {
            queue.soft_since_ms = since_ms;
        }
    }

    /// Appends a record; when conflating, earlier ones of its topic were dropped before.
    pub fn push(&mut self, item: Item) {
        self.0.get_or_insert_default().push(item);
    }

    pub fn front(&mut self) -> Option<&Item> {
        self.0.as_mut()?.front()
    }

    pub fn into_items(self) -> impl Iterator<Item = Item> {
        self.0.into_iter().flat_map(|queue| queue.items).flatten()
    }

    pub fn iter(&self) -> impl DoubleEndedIterator<Item = &Item> {
        self.0.iter().flat_map(|queue| &queue.items).flatten()
    }

    pub fn pop(&mut self) -> Option<Item> {
        let queue = self.0.as_mut()?;
        queue.front()?;
        let item = queue.give_way(0);
        queue.front();
        if queue.items.is_empty() {
            self.0 = None;
        }
        item
    }

    /// Drops records, oldest first, until `needed` bytes are free or none may be dropped. Calls `each` per
    /// dropped record and returns the bytes freed.
    pub fn drop_oldest(&mut self, needed: usize, each: impl FnMut(&Item)) -> usize {
        self.0.as_mut().map_or(0, |queue| queue.drop_oldest(needed, each))
    }

    /// Drops all but the latest record of each topic, all of `topic`. `each` gets them; returns the bytes
    /// freed.
    pub fn conflate(&mut self, topic: &str, each: impl FnMut(&Item)) -> usize {
        self.0.as_mut().map_or(0, |queue| queue.conflate(topic, each))
    }

    /// True if records are conflated although there is room.
    pub fn conflates(&self) -> bool {
        self.0.as_ref().is_some_and(|queue| queue.latest.is_some())
    }
}

impl Queue {
    fn push(&mut self, item: Item) {
        self.len += 1;
        self.bytes += item.message.weight();
        self.closers += usize::from(item.on_slow == OnSlow::Disconnect);
        if let Some(latest) = self.latest.as_mut().filter(|_| item.may_give_way()) {
            latest.insert(item.message.content().topic.into(), self.first + self.items.len() as u64);
        }
        self.items.push_back(Some(item));
    }

    fn front(&mut self) -> Option<&Item> {
        while let Some(None) = self.items.front() {
            self.items.pop_front();
            self.first += 1;
        }
        self.items.front().and_then(Option::as_ref)
    }

    /// Empties an item's place; others keep theirs.
    fn give_way(&mut self, place: usize) -> Option<Item> {
        let item = self.items.get_mut(place)?.take()?;
        self.len -= 1;
        self.bytes -= item.message.weight();
        self.closers -= usize::from(item.on_slow == OnSlow::Disconnect);
        if let Some(latest) = &mut self.latest {
            let topic = item.message.content().topic;
            if latest.get(topic) == Some(&(self.first + place as u64)) {
                latest.remove(topic);
            }
        }
        Some(item)
    }

    fn drop_oldest(&mut self, needed: usize, mut each: impl FnMut(&Item)) -> usize {
        let before = self.bytes;
        let mut place = self.oldest.saturating_sub(self.first) as usize;
        while before - self.bytes < needed && place < self.items.len() {
            if self.items[place].as_ref().is_some_and(Item::may_give_way)
                && let Some(item) = self.give_way(place)
            {
                each(&item);
            }
            place += 1;
        }
        self.oldest = self.first + place as u64;
        self.front();
        before - self.bytes
    }

    fn conflate(&mut self, topic: &str, mut each: impl FnMut(&Item)) -> usize {
        let before = self.bytes;
        if self.latest.is_none() {
            let mut latest = Latest::default();
            for place in (0..self.items.len()).rev() {
                let Some(item) = self.items[place].as_ref().filter(|item| item.may_give_way()) else {
                    continue;
                };
                let topic = item.message.content().topic;
                if !latest.contains_key(topic) {
                    latest.insert(topic.into(), self.first + place as u64);
                } else if let Some(item) = self.give_way(place) {
                    each(&item);
                }
            }
            self.latest = Some(Box::new(latest));
        }
        let place =
            self.latest.as_ref().and_then(|latest| latest.get(topic)).map(|number| number - self.first);
        if let Some(item) = place.and_then(|place| self.give_way(place as usize)) {
            each(&item);
        }
        self.front();
        before - self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Content;
    use hubsub_route::LogPlace;
    use hubsub_types::Position;

    fn item(topic: &str, payload: &[u8], on_slow: OnSlow) -> Item {
        let position = Position::default();
        let qos = Qos::AtMostOnce;
        let place = LogPlace::default();
        let content =
            Content { topic, payload, headers: &[], timestamp_us: 0, position, place, qos, retain: false };
        let grant = Grant { qos, ids: Vec::new(), retain: false };
        Item {
            message: Rc::new(content.keep()),
            grant,
            on_slow,
            group: None,
            key: 0,
            counted: CountedBy::None,
        }
    }

    fn all(pending: &mut Pending) -> String {
        let text = |item: Item| {
            let content = item.message.content();
            format!("{}{}", content.topic, String::from_utf8_lossy(content.payload))
        };
        std::iter::from_fn(|| pending.pop().map(text)).collect::<Vec<_>>().join(" ")
    }

    fn filled(rows: &[(&str, &str, OnSlow)]) -> Pending {
        let mut pending = Pending::default();
        rows.iter().for_each(|(topic, payload, slow)| pending.push(item(topic, payload.as_bytes(), *slow)));
        pending
    }

    #[test]
    fn the_oldest_that_may_give_way_do_and_the_others_stay() {
        use OnSlow::{Disconnect, DropOldest};
        let mut pending = filled(&[
            ("a", "1", DropOldest),
            ("b", "1", Disconnect),
            ("a", "2", DropOldest),
            ("a", "3", DropOldest),
        ]);
        let mut gone = 0;
        assert!(pending.drop_oldest(1, |_| gone += 1) > 0);
        assert!(pending.drop_oldest(1, |_| gone += 1) > 0);
        assert_eq!((gone, pending.len(), pending.has_closers()), (2, 2, true));
        assert_eq!(all(&mut pending), "b1 a3");
        assert_eq!((pending.bytes(), pending.len(), pending.has_closers()), (0, 0, false));
    }

    #[test]
    fn the_latest_of_each_topic_stays_in_its_place() {
        use OnSlow::Conflate;
        let mut pending = filled(&[
            ("a", "1", Conflate),
            ("b", "1", Conflate),
            ("a", "2", Conflate),
            ("c", "1", OnSlow::CatchUp),
        ]);
        let mut gone = Vec::new();
        pending.conflate("b", |item| gone.push(item.message.content().topic.to_owned()));
        assert_eq!(gone, ["a", "b"]);
        pending.push(item("b", b"2", Conflate));
        pending.conflate("b", |_| {});
        pending.push(item("b", b"3", Conflate));
        assert_eq!(all(&mut pending), "a2 c1 b3");
        assert!(!pending.conflates(), "all were sent");
    }

    #[test]
    fn what_gave_way_at_the_front_is_passed_over() {
        let mut pending = filled(&[("a", "1", OnSlow::DropOldest), ("b", "1", OnSlow::CatchUp)]);
        pending.drop_oldest(1, |_| {});
        assert_eq!(pending.front().map(|item| item.message.content().topic), Some("b"));
        assert_eq!(pending.drop_oldest(1, |_| panic!("b may not give way")), 0);
        assert_eq!(all(&mut pending), "b1");
    }
}
