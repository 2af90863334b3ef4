//! Who is in a room, over all nodes. Each node speaks for its own members, in a room that nodes alone are in: so the
//! order of that room is the order in which all of them see who comes and goes. See docs/presence.md.
//!
//! Events in as calls, actions out: it knows neither connections nor rooms of the broker nor a clock. One [`Presence`] a
//! shard, for the rooms that are the shard's by their hash.
//!
//! Invariants: what is shown of a node is what that node said last, whole; who shows a room and may have missed a word asks
//! for all parts anew, and drops those of nodes that do not answer; what changes within [`Limits::batch_ms`] is one word.

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

/// Processes that are remembered as gone: what they said last may still come.
const GONE_MAX: usize = 1_024;

/// Bounds, and times in ms.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Changes wait so long for others.
    pub batch_ms: u64,
    /// Nodes have so long to tell their parts, and a room that cannot be reached is tried again after it.
    pub answer_ms: u64,
    /// Members of one room that a node lists; the others are counted.
    pub listed_max: usize,
    /// Bytes of members in one word.
    pub word_bytes: usize,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Listen in the room of nodes: [`Presence::entered`] says what came of it.
    Enter(Arc<[u8]>),
    /// End that.
    Exit(Arc<[u8]>),
    /// Say this there: [`Presence::said`] says what came of it, under this number.
    Say(Arc<[u8]>, u64, Vec<u8>),
    /// Call [`Presence::tick`] for the room at this time, in ms.
    Wait(Arc<[u8]>, u64),
    /// Who watches the room can be told who is there ([`Presence::shown`]); now, and after each `Ready` anew.
    Ready(Arc<[u8]>),
    /// Who watches it is told this, where it was told who was there before.
    Tell(Arc<[u8]>, Diff),
}

/// A member, and the run of its node.
pub type Seen = (u64, Arc<Member>);

/// What changed, as all nodes see it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Diff {
    /// Who came.
    pub joins: Vec<Seen>,
    /// Who went.
    pub leaves: Vec<Seen>,
    /// How many are there now, those that are not listed among them.
    pub count: u64,
    /// How many of them are not listed.
    pub more: u64,
}

impl Diff {
    fn is_empty(&self) -> bool {
        self.joins.is_empty() && self.leaves.is_empty()
    }
}

/// See the module.
#[derive(Debug)]
pub struct Presence {
    /// Of this node.
    run: u64,
    limits: Limits,
    rooms: HashMap<Arc<[u8]>, Room, RandomState>,
    /// The number given last to a word, or to a part.
    last: u64,
    /// Runs of processes that are gone, the latest last.
    gone: VecDeque<u64>,
    /// Members that were counted as they came, and not listed.
    pub unlisted: u64,
}

impl Presence {
    /// Of a node that knows nobody yet.
    #[must_use]
    pub fn new(run: u64, limits: Limits) -> Presence {
        Presence { run, limits, rooms: HashMap::default(), last: 0, gone: VecDeque::new(), unlisted: 0 }
    }

    /// It speaks for that run from now on: nobody is known yet.
    pub fn begin(&mut self, run: u64) {
        debug_assert!(
            self.run == run || self.rooms.is_empty(),
            "clients come when the node is of its cluster"
        );
        self.run = run;
    }

    /// Which one that is.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.run
    }

    /// Rooms in which somebody of this node is, or that somebody here watches.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rooms.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rooms.is_empty()
    }

    /// Somebody of this node is in a room from now on; the reference must be none that was used before.
    pub fn join(&mut self, room: &[u8], member: Member, now_ms: u64, actions: &mut Vec<Action>) {
        let (mut is_listed, max) = (true, self.limits.listed_max);
        self.event(room, true, now_ms, actions, |room, turn| is_listed = room.join(member, max, turn));
        self.unlisted += u64::from(!is_listed);
    }

    /// Likewise, and it is listed, however many are: in rooms in which nodes say something else than who is there.
    pub fn join_listed(&mut self, room: &[u8], member: Member, now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, true, now_ms, actions, |room, turn| _ = room.join(member, usize::MAX, turn));
    }

    /// That one is not any more.
    pub fn leave(&mut self, room: &[u8], reference: u64, now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, false, now_ms, actions, |room, turn| room.leave(reference, turn));
    }

    /// One more here wants to be told who is there: what is [shown](Presence::shown) before this call, if anything is, and
    /// what changes from then on; else what is shown when it is ready.
    pub fn watch(&mut self, room: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, true, now_ms, actions, |room, _| room.watchers += 1);
    }

    /// One less does.
    pub fn unwatch(&mut self, room: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, false, now_ms, actions, |room, _| room.watchers = room.watchers.saturating_sub(1));
    }

    /// What came of [`Action::Enter`].
    pub fn entered(&mut self, room: &[u8], is_held: bool, now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, false, now_ms, actions, |room, turn| room.entered(is_held, turn));
    }

    /// What came of [`Action::Say`]: how many nodes were there, this one among them; none if it may not have been said.
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

    /// What a node, perhaps this one, said in the room of nodes; in the order of that room. What is no word is passed over:
    /// a later version may say more.
    pub fn heard(&mut self, room: &[u8], bytes: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        if let Ok((from, word)) = Word::decode(bytes)
            && !self.gone.contains(&from)
        {
            self.event(room, false, now_ms, actions, |room, turn| room.heard(from, word, turn));
        }
    }

    /// Not all that was said there may have been heard.
    pub fn missed(&mut self, room: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, false, now_ms, actions, |room, turn| room.missed(turn));
    }

    /// The process of a node is gone: all of its members are, and what it said that comes only now counts no more.
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

    /// A process is heard that was taken for gone: it is asked who is there.
    pub fn back(&mut self, run: u64, now_ms: u64, actions: &mut Vec<Action>) {
        let Some(at) = self.gone.iter().position(|&gone| gone == run) else { return };
        self.gone.remove(at);
        let rooms: Vec<Arc<[u8]>> = self.rooms.keys().cloned().collect();
        for name in rooms {
            self.event(&name, false, now_ms, actions, Room::missed);
        }
    }

    /// The time has come that [`Action::Wait`] named.
    pub fn tick(&mut self, room: &[u8], now_ms: u64, actions: &mut Vec<Action>) {
        self.event(room, false, now_ms, actions, |room, turn| room.tick(turn));
    }

    /// Who is there, by the runs of their nodes and in the order in which they came to each; and how many with those that
    /// are not listed. None while that is not known.
    #[must_use]
    pub fn shown(&self, room: &[u8]) -> Option<(Vec<Seen>, u64)> {
        self.rooms.get(room).filter(|room| room.is_known()).map(Room::shown)
    }

    /// Something happens to a room, and what follows from it is done.
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

/// What a room has at hand while something happens to it.
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

    /// Says a word; its number.
    fn say(&mut self, word: &Word) -> u64 {
        let number = self.number();
        self.actions.push(Action::Say(self.name.clone(), number, word.encode(self.run)));
        number
    }
}
