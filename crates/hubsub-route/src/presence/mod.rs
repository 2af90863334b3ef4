//! Members of rooms, over all nodes. Each node publishes its own members in a room to which only nodes
//! subscribe: the order of that room is the order in which all nodes see members join and leave. See
//! docs/presence.md.
//!
//! Events come in as calls, actions go out: it has no access to connections, the broker's rooms or a clock.
//! There is one [`Presence`] per shard, for the rooms that belong to the shard by their hash.
//!
//! Invariants: the shown part of a node is the last one that the node sent, completely; a node that shows a
//! room and may have missed a message requests all parts again, and drops those of nodes that do not respond;
//! changes within [`Limits::batch_ms`] are sent in one message.

mod room;
#[cfg(test)]
mod tests;
mod words;

pub use words::{BadWord, Member, Word};

use ahash::RandomState;
use hashbrown::HashMap;
use room::Room;
use std::collections::VecDeque;
use std::sync::Arc;

/// Processes that are remembered as gone, at most: their last messages may still arrive.
const GONE_MAX: usize = 1_024;

/// Limits of presence, and times in ms.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Changes wait for others for this time.
    pub batch_ms: u64,
    /// Nodes have this time to send their parts; an unreachable room is tried again after it.
    pub answer_ms: u64,
    /// Members of one room that a node lists, at most; further ones are only counted.
    pub listed_max: usize,
    /// Bytes of members in one message.
    pub word_bytes: usize,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Subscribe to the room of nodes: the result goes to [`Presence::entered`].
    Enter(Arc<[u8]>),
    Exit(Arc<[u8]>),
    /// Publish this there: the outcome goes to [`Presence::said`], under this number.
    Say(Arc<[u8]>, u64, Vec<u8>),
    /// Call [`Presence::tick`] for the room at this time, in ms.
    Wait(Arc<[u8]>, u64),
    /// The members can be shown ([`Presence::shown`]): now, and again after each later `Ready`.
    Ready(Arc<[u8]>),
    /// Send this change to watchers that were shown the members before.
    Tell(Arc<[u8]>, Diff),
}

pub type Seen = (u64, Arc<Member>);

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diff {
    pub joins: Vec<Seen>,
    pub leaves: Vec<Seen>,
    /// The number of members now, including those that are not listed.
    pub count: u64,
    pub more: u64,
}

impl Diff {
    fn is_empty(&self) -> bool {
        self.joins.is_empty() && self.leaves.is_empty()
    }
}

#[derive(Debug)]
pub struct Presence {
    run: u64,
    limits: Limits,
    rooms: HashMap<Arc<[u8]>, Room, RandomState>,
    last: u64,
    /// Incarnations of processes that are gone, the latest last.
    gone: VecDeque<u64>,
    /// Members that were counted and not listed when they joined.
    pub unlisted: u64,
}

impl Presence {
    pub fn new(run: u64, limits: Limits) -> Presence {
        Presence { run, limits, rooms: HashMap::default(), last: 0, gone: VecDeque::new(), unlisted: 0 }
    }

    /// Sets the incarnation of this node; no members are known yet.
    pub fn begin(&mut self, run: u64) {
        debug_assert!(
            self.run == run || self.rooms.is_empty(),
            "clients come when the node is of its cluster"
        );
        self.run = run;
    }

    /// Incarnation of this node.
    pub fn run(&self) -> u64 {
        self.run
    }

    pub fn len(&self) -> usize {
        self.rooms.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rooms.is_empty()
    }

    /// A member of this node joins a room; its reference must not have been used before.
    pub fn join(&mut self, room: &[u8], member: Member, now_ms: u64, actions: &mut Vec<Action>) {
        let (mut is_listed, max) = (true, self.limits.listed_max);
        self.event(room, true, now_ms, actions, |room, turn| is_listed = room.join(member, max, turn));
        self.unlisted += u64::from(!is_listed);
    }

    /// As `join`, and always listed: for rooms in which nodes publish other data than members.
    pub fn join_listed(&mut self, room: &[u8], member: Member, now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, true, now_ms, actions, |room, turn| _ = room.join(member, usize::MAX, turn));
    }

    pub fn leave(&mut self, room: &[u8], reference: u64, now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, false, now_ms, actions, |room, turn| room.leave(reference, turn));
    }

    /// Adds a watcher on this node. It gets the members that are [shown](Presence::shown) before this call,
    /// if any, and later changes; otherwise it gets the members when they are ready.
    pub fn watch(&mut self, room: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, true, now_ms, actions, |room, _| room.watchers += 1);
    }

    pub fn unwatch(&mut self, room: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, false, now_ms, actions, |room, _| room.watchers = room.watchers.saturating_sub(1));
    }

    pub fn entered(&mut self, room: &[u8], is_held: bool, now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, false, now_ms, actions, |room, turn| room.entered(is_held, turn));
    }

    /// The outcome of [`Action::Say`]: the nodes in the room, with this one; none: possibly not published.
    pub fn said(
        &mut self,
        room: &[u8],
        number: u64,
        nodes: Option<u64>,
        now_ms: u64,
        actions: &mut Vec<Action>,
    ) {
        self.event(room, false, now_ms, actions, |room, turn| room.said(number, nodes, turn));
    }

    /// A message of a node, possibly this one, in the room of nodes; in the order of that room. Unknown
    /// messages are ignored: later versions may send more.
    pub fn heard(&mut self, room: &[u8], bytes: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        if let Ok((from, word)) = Word::decode(bytes)
            && !self.gone.contains(&from)
        {
            self.event(room, false, now_ms, actions, |room, turn| room.heard(from, word, turn));
        }
    }

    /// Messages in the room of nodes may have been missed.
    pub fn missed(&mut self, room: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, false, now_ms, actions, |room, turn| room.missed(turn));
    }

    /// The process of a node is gone: so are all its members, and its messages that arrive later are ignored.
    pub fn gone(&mut self, run: u64, now_ms: u64, actions: &mut Vec<Action>) {
        if run == self.run || self.gone.contains(&run) {
            return;
        }
        if self.gone.len() >= GONE_MAX {
            self.gone.pop_front();
        }
        self.gone.push_back(run);
        let rooms: Vec<Arc<[u8]>> =
            self.rooms.iter().filter(|(_, room)| room.knows(run)).map(|(name, _)| name.clone()).collect();
        for name in rooms {
            self.event(&name, false, now_ms, actions, |room, turn| room.gone(run, turn));
        }
    }

    /// A process that was considered gone has sent something: its members are requested.
    pub fn back(&mut self, run: u64, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(at) = self.gone.iter().position(|&gone| gone == run) else { return };
        self.gone.remove(at);
        let rooms: Vec<Arc<[u8]>> = self.rooms.keys().cloned().collect();
        for name in rooms {
            self.event(&name, false, now_ms, actions, Room::missed);
        }
    }

    pub fn tick(&mut self, room: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, false, now_ms, actions, |room, turn| room.tick(turn));
    }

    /// The members of a room, by the incarnations of their nodes and in the order in which they joined there;
    /// and their number including those that are not listed. None while they are not known.
    pub fn shown(&self, room: &[u8]) -> Option<(Vec<Seen>, u64)> {
        self.rooms.get(room).filter(|room| room.is_known()).map(Room::shown)
    }

    /// Handles an event of a room, and performs the next steps.
    fn event(
        &mut self,
        name: &[u8],
        makes: bool,
        now_ms: u64,
        actions: &mut Vec<Action>,
        event: impl FnOnce(&mut Room, &mut Turn<'_>),
    ) {
        if makes && !self.rooms.contains_key(name) {
            self.rooms.insert(name.into(), Room::default());
        }
        let Some((name, _)) = self.rooms.get_key_value(name) else { return };
        let name = name.clone();
        let Some(room) = self.rooms.get_mut(&name) else { return };
        let Presence { run, limits, last, .. } = self;
        let mut turn = Turn { run: *run, limits, last, now_ms, name: &name, actions };
        event(room, &mut turn);
        if room.go_on(&mut turn) {
            self.rooms.remove(&name);
        }
    }
}

struct Turn<'a> {
    run: u64,
    limits: &'a Limits,
    last: &'a mut u64,
    now_ms: u64,
    name: &'a Arc<[u8]>,
    actions: &'a mut Vec<Action>,
}

impl Turn<'_> {
    fn number(&mut self) -> u64 {
        *self.last += 1;
        *self.last
    }

    fn say(&mut self, word: &Word) -> u64 {
        let number = self.number();
        self.actions.push(Action::Say(self.name.clone(), number, word.encode(self.run)));
        number
    }
}
