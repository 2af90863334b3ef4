//! Subscriptions of a client. A broker reports a message once per matching subscription, but the client gets
//! it once: by its topic if the client subscribes to exactly that, else by its earliest matching filter. So
//! the choice is the same for every message of a topic, live or historical.
//!
//! Shared subscriptions are separate: each yields messages of its own, which the caller assigned to this
//! client.

use super::seldom::Seldom;
use crate::few::Few;
use hubsub_types::names::Filter;
use hubsub_wire::mqtt::{Options, Qos, SubscriptionId};
use std::collections::HashMap;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Match<'a> {
    /// A subscription to exactly its topic.
    Topic,
    Filter(&'a [u8]),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// Maximum QoS of all matching subscriptions.
    pub qos: Qos,
    /// Identifiers of those that have one.
    pub ids: Vec<SubscriptionId>,
    /// Whether one of them has Retain As Published.
    pub retain: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    options: Options,
    id: Option<SubscriptionId>,
    /// Number of the request that must confirm it; `None` once confirmed.
    asked: Option<u32>,
}

#[derive(Clone, Debug, Default)]
pub struct Filters {
    topics: Few<Entry>,
    /// Filters with wildcards, in order of subscription.
    wild: Seldom<Vec<(Filter, Entry)>>,
    /// Shared subscriptions, with `$share/` and the group in front.
    #[allow(clippy::box_collection, reason = "most clients have none, and pay for a pointer")]
    shared: Option<Box<HashMap<Box<[u8]>, Entry>>>,
}

impl Filters {
    #[allow(clippy::len_without_is_empty, reason = "it is a figure, and no collection")]
    pub fn len(&self) -> usize {
        self.topics.len() + self.wild.len() + self.shared.as_ref().map_or(0, |shared| shared.len())
    }

    /// Their maximum QoS, if they are few topics and no option affects their messages.
    pub fn plain_qos(&self) -> Option<Qos> {
        let is_plain = |entry: &Entry| {
            entry.id.is_none() && !entry.options.no_local && !entry.options.retain_as_published
        };
        if !self.wild.is_empty() || !self.topics.few()?.all(is_plain) {
            return None;
        }
        self.topics.few()?.map(|entry| entry.options.qos).max()
    }

    fn find(&mut self, filter: &[u8]) -> Option<&mut Entry> {
        if is_shared(filter) {
            return self.shared.as_mut()?.get_mut(filter);
        }
        if !has_wildcard(filter) {
            return self.topics.get_mut(filter);
        }
        self.wild.iter_mut().find(|(own, _)| own.source() == filter).map(|(_, entry)| entry)
    }

    pub fn qos_of(&self, filter: &[u8]) -> Option<Qos> {
        self.get(filter).map(|entry| entry.options.qos)
    }

    fn get(&self, filter: &[u8]) -> Option<&Entry> {
        match has_wildcard(filter) {
            false => self.topics.get(filter),
            true => self.wild.iter().find(|(own, _)| own.source() == filter).map(|(_, entry)| entry),
        }
    }

    /// Handles a requested subscription, or new options of one; returns whether it is new.
    pub(super) fn ask(
        &mut self,
        filter: &str,
        options: Options,
        id: Option<SubscriptionId>,
        number: u32,
    ) -> bool {
        let filter = filter.as_bytes();
        if let Some(entry) = self.find(filter) {
            (entry.options, entry.id) = (options, id);
            return false;
        }
        self.add(filter, Entry { options, id, asked: Some(number) });
        true
    }

    fn add(&mut self, filter: &[u8], entry: Entry) {
        if is_shared(filter) {
            self.shared.get_or_insert_default().insert(filter.into(), entry);
        } else if !has_wildcard(filter) {
            self.topics.insert(filter, entry);
        } else if let Ok(filter) = Filter::new(filter) {
            self.wild.push((filter, entry));
        }
    }

    /// Adds a filter from a session; returns whether it was not present.
    pub(super) fn restore(&mut self, filter: &str, options: Options, id: Option<SubscriptionId>) -> bool {
        let filter = filter.as_bytes();
        let is_new = self.find(filter).is_none();
        if is_new {
            self.add(filter, Entry { options, id, asked: None });
        }
        is_new
    }

    pub(super) fn settle(&mut self) {
        let holds = |entry: &Entry| entry.asked.is_none();
        self.topics.retain(|_, entry| holds(entry));
        self.wild.retain(|(_, entry)| holds(entry));
        if let Some(shared) = &mut self.shared {
            shared.retain(|_, entry| holds(entry));
        }
    }

    /// All: topics, filters with wildcards in order of subscription, shared ones with `$share/` and group.
    pub fn iter(&self) -> impl Iterator<Item = (&str, Options, Option<SubscriptionId>)> {
        let wild = self.wild.iter().map(|(filter, entry)| (filter.source(), entry));
        let shared = self.shared.iter().flat_map(|shared| shared.iter());
        let all = self.topics.iter().chain(wild).chain(shared.map(|(filter, entry)| (&**filter, entry)));
        all.map(|(filter, entry)| {
            let filter = std::str::from_utf8(filter).expect("it was asked for as a text");
            (filter, entry.options, entry.id)
        })
    }

    pub(super) fn confirm(&mut self, filter: &[u8], number: u32) {
        if let Some(entry) = self.find(filter).filter(|entry| entry.asked == Some(number)) {
            entry.asked = None;
        }
    }

    /// Refuses a requested subscription; one that was confirmed before stays.
    pub(super) fn refuse(&mut self, filter: &[u8], number: u32) {
        if self.find(filter).is_some_and(|entry| entry.asked == Some(number)) {
            self.take(filter);
        }
    }

    pub(super) fn remove(&mut self, filter: &str) -> bool {
        self.take(filter.as_bytes())
    }

    fn take(&mut self, filter: &[u8]) -> bool {
        if is_shared(filter) {
            return self.shared.as_mut().is_some_and(|shared| shared.remove(filter).is_some());
        }
        if !has_wildcard(filter) {
            return self.topics.remove(filter);
        }
        let place = self.wild.iter().position(|(own, _)| own.source() == filter);
        place.map(|place| self.wild.remove(place)).is_some()
    }

    /// How a message that was assigned to this client by a shared subscription is sent; `None` if the client
    /// has no such subscription. `filter` begins with `$share/`.
    pub fn grant_shared(&self, filter: &[u8]) -> Option<Grant> {
        self.shared.as_ref()?.get(filter).and_then(|entry| all([entry].into_iter(), false))
    }

    /// How a retained message is sent for a subscription, if that exists. `is_own`: this client published it.
    pub fn grant_kept(&self, filter: &[u8], is_own: bool) -> Option<Grant> {
        let grant = self.get(filter).and_then(|entry| all([entry].into_iter(), is_own))?;
        Some(Grant { retain: true, ..grant })
    }

    /// How a message that matched this subscription is sent; `None` if another subscription delivers it, or
    /// none does. `is_own`: this client published it.
    #[inline]
    pub fn grant(&self, by: Match<'_>, topic: &[u8], is_own: bool) -> Option<Grant> {
        if self.wild.is_empty() {
            let entry = match by {
                Match::Topic => self.topics.get(topic),
                Match::Filter(_) => None,
            };
            return entry.and_then(|entry| all([entry].into_iter(), is_own));
        }
        let own = self.topics.get(topic).filter(|entry| entry.asked.is_none());
        let mut wild = self.wild.iter().filter(|(filter, e)| e.asked.is_none() && filter.matches(topic));
        match (by, own) {
            (Match::Topic, Some(entry)) => all([entry].into_iter().chain(wild.map(|(_, e)| e)), is_own),
            (Match::Filter(source), None) => {
                let (first, entry) = wild.next()?;
                let is_first = first.source() == source;
                is_first.then(|| all([entry].into_iter().chain(wild.map(|(_, e)| e)), is_own)).flatten()
            }
            (Match::Topic, None) | (Match::Filter(_), Some(_)) => None,
        }
    }
}

#[inline]
fn all<'a>(entries: impl Iterator<Item = &'a Entry>, is_own: bool) -> Option<Grant> {
    let mut grant: Option<Grant> = None;
    for entry in entries.filter(|entry| !(is_own && entry.options.no_local)) {
        let grant = grant.get_or_insert(Grant { qos: Qos::AtMostOnce, ids: Vec::new(), retain: false });
        grant.qos = grant.qos.max(entry.options.qos);
        grant.ids.extend(entry.id);
        grant.retain |= entry.options.retain_as_published;
    }
    grant
}

fn is_shared(filter: &[u8]) -> bool {
    filter.starts_with(b"$share/")
}

pub(super) fn has_wildcard(filter: &[u8]) -> bool {
    memchr::memchr2(b'+', b'#', filter).is_some()
}
