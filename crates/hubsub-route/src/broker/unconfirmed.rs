//! Subscriptions that are not live yet: to topics, which the home of the room has to confirm, and to patterns
//! and groups, which all shards and nodes have to hold.
//!
//! Invariant: a subscription that ends while its attach is in flight is cancelled, and its interest is removed
//! once the home has confirmed it.

use crate::sparse::is_sparse;
use crate::topics::TopicId;
use crate::{Asker, Attach};
use ahash::RandomState;
use hashbrown::{HashMap, HashSet};
use hubsub_types::ConnKey;

pub(super) struct UnheldPattern {
    pub(super) asker: Asker,
    pub(super) conn: ConnKey,
    pub(super) pattern: u32,
    pub(super) left: u16,
}

/// Attaches in flight of one connection to one topic.
#[derive(Clone, Copy)]
struct Attaching {
    /// The attach that is valid: a later one replaces the start of an earlier one.
    latest: u32,
    /// The one that adds a subscription, if there is one.
    adding: Option<u32>,
}

#[derive(Default)]
pub(super) struct Unconfirmed {
    last_id: u32,
    patterns: HashMap<u32, UnheldPattern, RandomState>,
    /// The id of the confirmation that makes a connection's subscription to a pattern live.
    live_by: HashMap<(u32, u32), u32, RandomState>,
    topics: HashMap<(u32, TopicId), Attaching, RandomState>,
    /// Attaches in flight whose subscription has ended meanwhile.
    cancelled: HashSet<u32, RandomState>,
}

impl Unconfirmed {
    pub(super) fn next_id(&mut self) -> u32 {
        self.last_id = self.last_id.wrapping_add(1);
        self.last_id
    }

    // -- patterns and groups --

    pub(super) fn add_pattern(&mut self, id: u32, pattern: UnheldPattern) {
        self.patterns.insert(id, pattern);
    }

    /// The last id makes a subscription to a pattern live.
    pub(super) fn makes_live(&mut self, conn: u32, pattern: u32) {
        self.live_by.insert((conn, pattern), self.last_id);
    }

    pub(super) fn drop_pattern(&mut self, conn: u32, pattern: u32) {
        self.live_by.remove(&(conn, pattern));
    }

    /// A holder confirms a pattern: if it was the last one, the subscription, and whether it is live now.
    pub(super) fn pattern_held(&mut self, id: u32) -> Option<(UnheldPattern, bool)> {
        let waiting = self.patterns.get_mut(&id)?;
        waiting.left -= 1;
        if waiting.left > 0 {
            return None;
        }
        let waiting = self.patterns.remove(&id)?;
        let key = (waiting.conn.index, waiting.pattern);
        let is_live = self.live_by.get(&key) == Some(&id);
        if is_live {
            self.live_by.remove(&key);
        }
        Some((waiting, is_live))
    }

    // -- topics --

    pub(super) fn add_attach(&mut self, id: TopicId, attach: &Attach) {
        let attaching = self.topics.entry((attach.conn, id));
        let attaching = attaching.or_insert(Attaching { latest: attach.id, adding: None });
        attaching.latest = attach.id;
        attaching.adding = attaching.adding.or(attach.adds.then_some(attach.id));
    }

    pub(super) fn is_attaching(&self, conn: u32, id: TopicId) -> bool {
        self.topics.contains_key(&(conn, id))
    }

    /// A subscription has ended; returns whether the attach that adds it is in flight.
    pub(super) fn cancel(&mut self, conn: u32, id: TopicId) -> bool {
        let adding = self.topics.remove(&(conn, id)).and_then(|attaching| attaching.adding);
        self.cancelled.extend(adding);
        adding.is_some()
    }

    /// An attach is answered or given up; returns whether its subscription had ended.
    pub(super) fn take_cancelled(&mut self, attach: u32) -> bool {
        self.cancelled.remove(&attach)
    }

    /// An attach is answered; returns whether it is the valid one. None: none is in flight.
    pub(super) fn attached(&mut self, attach: &Attach, id: TopicId) -> Option<bool> {
        let attaching = self.topics.get_mut(&(attach.conn, id))?;
        let is_latest = attaching.latest == attach.id;
        if attaching.adding == Some(attach.id) {
            attaching.adding = None;
        }
        if is_latest {
            self.topics.remove(&(attach.conn, id));
        }
        Some(is_latest)
    }

    pub(super) fn shrink(&mut self) {
        if is_sparse(self.topics.len(), self.topics.capacity()) {
            self.topics.shrink_to(2 * self.topics.len());
        }
        if is_sparse(self.patterns.len(), self.patterns.capacity()) {
            self.patterns.shrink_to(2 * self.patterns.len());
        }
    }
}
