//! Publishing of occupancy over all nodes: on change, at most once per [`EACH_MS`], always including the last
//! state, by one node. Each node knows the parts of all nodes, so another one continues if that one dies.
//!
//! Events come in as calls, actions go out; it has no access to other nodes or a clock. The publishing node
//! is selected elsewhere, in the same way on all nodes. A node that starts to publish repeats recent changes,
//! because it is unknown whether they were published. An older node that was considered dead and returns does
//! not know what was published meanwhile, so the other node continues beside it for a while.

use super::Counts;
use ahash::RandomState;
use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A room's occupancy is published at most once in this time, in ms.
pub const EACH_MS: u64 = 250;

/// A failed publish is repeated after this time, in ms.
const AGAIN_MS: u64 = 1_000;

/// Changes within this time may be unpublished by a node that is gone, in ms: a failover is shorter.
const RECENT_MS: u64 = 60_000;

/// A node that replaced another publishes this long beside it when it returns, in ms.
const BESIDE_MS: u64 = 10_000;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Publish these counts of a room: the outcome goes to [`Telling::told`].
    Tell(Arc<[u8]>, Counts),
    /// Call [`Telling::tick`] for the room at this time, in ms.
    Wait(Arc<[u8]>, u64),
}

/// The occupancy of rooms over all nodes, and the state of its publishing.
#[derive(Debug)]
pub struct Telling {
    rooms: HashMap<Arc<[u8]>, Room, RandomState>,
    /// Rooms that became empty at this time, in ms, while another node published.
    empty: VecDeque<(u64, Arc<[u8]>)>,
    tells: bool,
    has_followed: bool,
    /// The time until which it publishes beside a returned node, in ms.
    beside_ms: Option<u64>,
}

#[derive(Debug, Default)]
struct Room {
    /// By node incarnation: a rising number, and the counts.
    parts: BTreeMap<u64, (u64, Counts)>,
    told: Counts,
    telling: Option<Counts>,
    /// Whether `told` may be outdated.
    is_owed: bool,
    /// The time of the last change, in ms.
    changed_ms: u64,
    /// The earliest time of the next publish, in ms.
    next_ms: u64,
}

impl Room {
    fn total(&self) -> Counts {
        self.parts.values().map(|(_, counts)| counts).sum()
    }
}

impl Default for Telling {
    fn default() -> Telling {
        let (rooms, empty) = (HashMap::default(), VecDeque::new());
        Telling { rooms, empty, tells: true, has_followed: false, beside_ms: None }
    }
}

impl Telling {
    /// Sets a node's part of a room; a part with a lower number than the known one is outdated.
    pub fn part(
        &mut self,
        run: u64,
        room: &[u8],
        (number, counts): (u64, Counts),
        now_ms: u64,
        actions: &mut Vec<Action>,
    ) {
        if !self.rooms.contains_key(room) {
            self.rooms.insert(room.into(), Room::default());
        }
        let Some(of) = self.rooms.get_mut(room) else { return };
        if of.parts.get(&run).is_none_or(|(known, _)| *known < number) {
            of.parts.insert(run, (number, counts));
            self.changed(room, now_ms, actions);
        }
    }

    pub fn drop_part(&mut self, run: u64, room: &[u8], number: u64, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(of) = self.rooms.get_mut(room) else { return };
        if of.parts.get(&run).is_some_and(|(known, _)| *known == number) {
            of.parts.remove(&run);
            self.changed(room, now_ms, actions);
        }
    }

    /// Sets whether this node publishes.
    pub fn lead(&mut self, tells: bool, now_ms: u64, actions: &mut Vec<Action>) {
        if !tells && self.tells && self.has_followed {
            self.beside_ms.get_or_insert(now_ms + BESIDE_MS);
            return;
        }
        self.beside_ms = None;
        if std::mem::replace(&mut self.tells, tells) || !tells {
            return;
        }
        self.has_followed = true;
        for room in self.rooms.values_mut() {
            if room.changed_ms + RECENT_MS > now_ms {
                room.is_owed = true;
            } else {
                room.told = room.total();
            }
        }
        let names: Vec<Arc<[u8]>> = self.rooms.keys().cloned().collect();
        names.iter().for_each(|name| self.go_on(name, now_ms, actions));
    }

    /// The outcome of [`Action::Tell`].
    pub fn told(&mut self, room: &[u8], is_told: bool, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(of) = self.rooms.get_mut(room) else { return };
        match of.telling.take() {
            Some(counts) if is_told => of.told = counts,
            _ => (of.is_owed, of.next_ms) = (true, of.next_ms.max(now_ms + AGAIN_MS)),
        }
        self.go_on(room, now_ms, actions);
    }

    pub fn tick(&mut self, room: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        self.go_on(room, now_ms, actions);
    }

    /// Removes rooms that are empty for long, and ends publishing beside a node; called from time to time.
    pub fn sweep(&mut self, now_ms: u64) {
        if self.beside_ms.is_some_and(|until_ms| until_ms <= now_ms) {
            (self.tells, self.has_followed, self.beside_ms) = (false, false, None);
            let is_over = |room: &Room| room.parts.is_empty();
            self.empty.extend(
                self.rooms
                    .iter()
                    .filter(|(_, room)| is_over(room))
                    .map(|(name, _)| (now_ms, Arc::clone(name))),
            );
        }
        while self.empty.front().is_some_and(|(since_ms, _)| since_ms + RECENT_MS <= now_ms)
            && let Some((_, name)) = self.empty.pop_front()
        {
            let is_over = |room: &Room| room.parts.is_empty() && room.changed_ms + RECENT_MS <= now_ms;
            if !self.tells && self.rooms.get(&name).is_some_and(is_over) {
                self.rooms.remove(&name);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.rooms.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rooms.is_empty()
    }

    fn changed(&mut self, room: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        if let Some(room) = self.rooms.get_mut(room) {
            room.changed_ms = now_ms;
        }
        self.go_on(room, now_ms, actions);
    }

    fn go_on(&mut self, name: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        let Some((name, _)) = self.rooms.get_key_value(name) else { return };
        let name = Arc::clone(name);
        let Some(room) = self.rooms.get_mut(&name) else { return };
        if !self.tells {
            if room.parts.is_empty() {
                self.empty.push_back((now_ms, name));
            }
            return;
        }
        let total = room.total();
        let has_news = room.is_owed || total != room.told;
        if room.telling.is_some() {
            // The outcome of the publish in flight continues.
        } else if now_ms < room.next_ms {
            if has_news || total.is_none() {
                actions.push(Action::Wait(name, room.next_ms));
            }
        } else if has_news {
            (room.telling, room.is_owed, room.next_ms) = (Some(total), false, now_ms + EACH_MS);
            actions.push(Action::Tell(name, total));
        } else if room.parts.is_empty() {
            self.rooms.remove(&name);
        }
    }
}
