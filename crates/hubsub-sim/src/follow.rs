//! Followers of whole hubs, like sessions: each begins at the first record of all logs, and some continue on
//! another connection with their state.

use crate::Sim;
use crate::check::{Conn, Sub, Waits};
use crate::net::{FOLLOWER, key};
use hubsub_route::HubsFrom;
use hubsub_types::HubId;

/// Subscriptions of each follower: two patterns that match all topics with a log.
const FOLLOWED: [&str; 2] = ["l:*", "{l*"];

impl Sim {
    /// Makes a connection follow all hubs from these offsets on, with the state `seen`.
    pub(super) fn follow(&mut self, conn: Conn, offsets: &[(HubId, u64)], seen: Option<Vec<Sub>>) {
        let mut seen = seen.into_iter().flatten();
        for pattern in FOLLOWED {
            let seen = seen.next().unwrap_or_else(Sub::of_follower);
            self.hold_pattern((conn, true, pattern.to_owned()), seen);
        }
        self.net.act(conn.0, conn.1, |broker, world, now| {
            broker.follow_hubs(key(conn.2), HubsFrom::Offsets(offsets), now, world);
        });
    }

    /// A follower disconnects, and continues on another connection with its state.
    pub(super) fn return_somewhere(&mut self) {
        let of = |conn: Conn| FOLLOWED.map(|pattern| (conn, true, pattern.to_owned()));
        let subs = &self.net.model.subs;
        let followers: Vec<Conn> = subs.keys().map(|key| key.0).filter(|conn| conn.2 == FOLLOWER).collect();
        if followers.is_empty() {
            return;
        }
        let from = followers[self.net.rng.below(followers.len())];
        let to = self.somewhere();
        let to = (to.0, to.1, FOLLOWER);
        let subs = &self.net.model.subs;
        let is_there = of(from).iter().all(|key| subs.get(key).is_some_and(|sub| sub.is_live));
        if !is_there || (from != to && of(to).iter().any(|key| subs.contains_key(key))) {
            return;
        }
        let seen: Vec<Sub> = of(from).iter().filter_map(|key| self.net.model.subs.remove(key)).collect();
        let offsets = self.net.act(from.0, from.1, |broker, world, now| {
            let offsets: Vec<_> =
                broker.cursors.hubs.places(FOLLOWER).map(|(hub, next, _)| (hub, next)).collect();
            broker.disconnected(key(FOLLOWER), now, world);
            broker.connected(key(FOLLOWER));
            offsets
        });
        self.returns += 1;
        self.follow(to, &offsets, Some(seen.into_iter().map(Sub::returned).collect()));
    }

    /// Requests the end offsets of all logs, which must not exceed the number of publishes.
    pub(super) fn ask_ends(&mut self, by: Conn) {
        let (ticket, slot) = self.ticket(by, Waits::Ends);
        let outcome = self.net.act(by.0, by.1, |broker, world, now| broker.hub_ends(ticket, now, world));
        if let Some(ends) = self.at_once(slot, outcome) {
            self.net.model.ended(ends);
        }
    }
}
