//! Members join and leave groups that share records; each record is delivered to at most one member of a
//! group. Once nothing is in flight and nobody is slow, each group with members gets each record that matches
//! its filter.

use crate::Sim;
use crate::check::{Conn, Model};
use crate::net::{CONNS, key};
use hubsub_route::Outcome;
use hubsub_types::names::group_pattern;
use std::collections::{BTreeMap, BTreeSet};

/// One group for all topics, and one for a topic of each class without a log.
pub const GROUPS: [(&str, &str); 3] = [("all", "#"), ("g", "e:a"), ("g", "h:a")];

/// Members of groups, and the records delivered to them.
#[derive(Debug, Default)]
pub struct Shares {
    /// Connection, and index of the group.
    pub members: BTreeSet<(Conn, usize)>,
    /// From group and publish to the member.
    pub given: BTreeMap<(usize, u32), Conn>,
}

impl Model {
    /// Checks a record that was delivered to a member.
    pub fn given(&mut self, conn: Conn, group: &[u8], topic: &str, id: u32) {
        let is_it =
            |(name, filter): &(&str, &str)| group_pattern(name.as_bytes(), filter.as_bytes()) == group;
        let Some(number) = GROUPS.iter().position(is_it) else {
            return self.fail(format!("nobody made the group {group:?}"));
        };
        if !self.shares.members.contains(&(conn, number)) {
            self.fail(format!("{conn:?} was given record {id} and is no member of {:?}", GROUPS[number]));
        }
        if !filters(number, topic) {
            self.fail(format!("{conn:?} was given a record of {topic} by {:?}", GROUPS[number]));
        }
        if let Some(before) = self.shares.given.insert((number, id), conn) {
            self.fail(format!("record {id} was given to {before:?} and to {conn:?} by {:?}", GROUPS[number]));
        }
    }

    /// The groups that have members and match a topic.
    pub fn groups_for(&self, topic: &str) -> Vec<usize> {
        let has_members = |group: &usize| self.shares.members.iter().any(|(_, own)| own == group);
        (0..GROUPS.len()).filter(|&group| filters(group, topic)).filter(has_members).collect()
    }
}

fn filters(group: usize, topic: &str) -> bool {
    GROUPS[group].1 == "#" || GROUPS[group].1 == topic
}

impl Sim {
    pub(super) fn join_somewhere(&mut self) {
        let (node, shard) = self.somewhere();
        let conn = (node, shard, self.net.rng.below(CONNS as usize) as u32);
        let group = self.net.rng.below(GROUPS.len());
        if !self.net.model.shares.members.insert((conn, group)) {
            return;
        }
        let (ticket, slot) = self.ticket(conn, crate::Waits::Join);
        let (name, filter) = GROUPS[group];
        let outcome = self.net.act(node, shard, |broker, world, now| {
            broker.join_group(ticket, key(conn.2), name.as_bytes(), filter.as_bytes(), now, world)
        });
        if outcome == Outcome::Now(Ok(())) {
            self.net.model.waiting.remove(&slot);
        }
    }

    pub(super) fn leave_somewhere(&mut self) {
        let members: Vec<_> = self.net.model.shares.members.iter().copied().collect();
        if members.is_empty() {
            return;
        }
        let (conn, group) = members[self.net.rng.below(members.len())];
        self.net.model.shares.members.remove(&(conn, group));
        let (name, filter) = GROUPS[group];
        let was = self.net.act(conn.0, conn.1, |broker, world, _| {
            broker.leave_group(key(conn.2), name.as_bytes(), filter.as_bytes(), world)
        });
        if !was {
            self.net.model.fail(format!("{conn:?} was no member of {:?}", GROUPS[group]));
        }
    }
}
