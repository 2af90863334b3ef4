//! When it is said how many are in a room, all nodes together: on change, at most once in [`EACH_MS`], the last state
//! always, and by one node. Each node knows the parts of all, so another one goes on where that one dies.
//!
//! Events in as calls, actions out; it knows no other node and no clock. Who tells is decided elsewhere, the same on all
//! nodes; who begins to tells what changed shortly before again, as nobody knows whether that was told. An older one that
//! was taken for gone and is back does not know what was told meanwhile, so who told goes on beside it for a while.

use super::Counts;
use ahash::RandomState;
use hashbrown::HashMap;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// A room is told of at most once in so long, in ms.
pub const EACH_MS: u64 = 250;

/// What could not be told is told again after so long, in ms.
const AGAIN_MS: u64 = 1_000;

/// What changed within so long may not have been told by a node that is gone, in ms: longer than a failover takes.
const RECENT_MS: u64 = 60_000;

/// Who has told in the place of another goes on for so long when that is back, in ms: its part comes back only then.
const BESIDE_MS: u64 = 10_000;

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Tell so many of a room: [`Telling::told`] says what came of it.
    Tell(Arc<[u8]>, Counts),
    /// Call [`Telling::tick`] for the room at this time, in ms.
    Wait(Arc<[u8]>, u64),
}

/// See the module.
#[derive(Debug)]
pub struct Telling {
    rooms: HashMap<Arc<[u8]>, Room, RandomState>,
    /// Rooms in which nobody was at this time, in ms, while another node told.
    empty: VecDeque<(u64, Arc<[u8]>)>,
    tells: bool,
    /// Whether it began to as another one was gone.
    has_followed: bool,
    /// Until when it tells beside one that is back, in ms.
    beside_ms: Option<u64>,
}

#[derive(Debug, Default)]
struct Room {
    /// Of each node's run, with a number that grows.
    parts: BTreeMap<u64, (u64, Counts)>,
    /// What was told last.
    told: Counts,
    /// What is just being told.
    telling: Option<Counts>,
    /// Whether `told` may not be true.
    is_owed: bool,
    /// When it changed last, in ms.
    changed_ms: u64,
    /// Nothing is told before, in ms.
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
    /// A node's part of a room is this; a lower number than before is older.
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

    /// That part, of that number, is not any more.
    pub fn drop_part(&mut self, run: u64, room: &[u8], number: u64, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(of) = self.rooms.get_mut(room) else { return };
        if of.parts.get(&run).is_some_and(|(known, _)| *known == number) {
            of.parts.remove(&run);
            self.changed(room, now_ms, actions);
        }
    }

    /// Whether this node tells from now on.
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

    /// What came of [`Action::Tell`].
    pub fn told(&mut self, room: &[u8], is_told: bool, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(of) = self.rooms.get_mut(room) else { return };
        match of.telling.take() {
            Some(counts) if is_told => of.told = counts,
            _ => (of.is_owed, of.next_ms) = (true, of.next_ms.max(now_ms + AGAIN_MS)),
        }
        self.go_on(room, now_ms, actions);
    }

    /// The time has come that [`Action::Wait`] named.
    pub fn tick(&mut self, room: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        self.go_on(room, now_ms, actions);
    }

    /// Forgets rooms in which nobody has been for a while, and ends telling beside another node; to be called now and then.
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

    /// Rooms that are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rooms.len()
    }

    /// Whether there is none.
    #[must_use]
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
            // What comes of that goes on.
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
