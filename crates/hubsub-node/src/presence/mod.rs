//! Who is in a room ([docs/presence.md]): what `hubsub_route::presence` decides is carried out here. Each room belongs to
//! one shard of the node, by the hash of its name, which speaks for the node in the room of nodes `$members/ROOM` and
//! knows all who are there; the shards of connections tell it who comes and goes, and it tells them what is to be shown.
//!
//! - [`edge`]: connections, of this shard: which members they are, and what they are told
//! - [`records`]: who comes and goes, for later
//! - [`occupancy`]: how many are there, on change
//! - [`shown`]: what is told, as browsers read it
//!
//! Invariants: a connection is told who is there once, and from then on each change, in order; a member is in the room
//! from when its connection's join is done until it has left or the connection has ended.

mod edge;
mod occupancy;
mod records;
mod shown;
#[cfg(test)]
mod tests;

pub use edge::{Edge, Refusal, Wish, ends, joined, left, refused, reserve, update};
pub use occupancy::{look_after, tell_changed, tick as tick_occupancy, told as occupancy_told};
pub use records::{Records, record_again, recorded};

use crate::core::Core;
use crate::mail::{Mail, Part};
use crate::node::NodeInfo;
use crate::own::{Asked, shard_of};
use crate::rim::Timer;
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::Ask;
use hubsub_route::occupancy::Counts;
use hubsub_route::presence::{Action, Diff, Limits, Member, Presence, Seen};
use hubsub_types::{ErrorCode, NodeId, ShardId};
use occupancy::Occupancies;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The rooms in which nodes say who is in a room.
const ROOMS: &[u8] = b"$members/";

/// Changes of a room wait so long for others, in ms.
const BATCH_MS: u64 = 250;

/// Nodes have so long to say who of theirs is in a room, in ms.
const ANSWER_MS: u64 = 1_000;

/// How long a question waits for a room whose members are not known, in ms.
const QUESTION_MS: u64 = 5_000;

/// Bytes of members in one word of a node.
const WORD_BYTES: usize = 64 * 1024;

/// Who is in a room.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// Those that are listed, by key.
    pub members: Vec<Seen>,
    /// How many are there, those that are not listed among them.
    pub count: u64,
}

/// What changed in a room.
#[derive(Debug)]
pub struct Told {
    diff: Diff,
    /// Whether it is told how many are there: not all are listed, or were a moment ago.
    is_counted: bool,
}

/// What shards say to each other of members.
#[derive(Debug)]
pub enum PresenceMail {
    /// To the room's shard: somebody is there.
    Join(Arc<[u8]>, Member),
    /// That one is not any more.
    Leave(Arc<[u8]>, u64),
    /// This seat of that shard is to be told who is there.
    Watch(Arc<[u8]>, ShardId, u64),
    /// It is not any more.
    Unwatch(Arc<[u8]>, ShardId, u64),
    /// From there, to a seat: who is there.
    Shown(Arc<[u8]>, u64, Arc<Shown>),
    /// To all seats of a shard that were told who is there: what changed.
    Told(Arc<[u8]>, Arc<Told>),
    /// To the shard of the room's bucket: so many of a shard are in a room.
    Occupied(Arc<[u8]>, ShardId, Counts),
}

impl PresenceMail {
    /// Bytes that it keeps from being freed, for mailbox limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        let of = |members: &[Seen]| members.iter().map(|(_, member)| member.weight()).sum::<usize>();
        std::mem::size_of::<Mail>()
            + match self {
                PresenceMail::Join(_, member) => member.weight(),
                PresenceMail::Told(_, told) => of(&told.diff.joins) + of(&told.diff.leaves),
                // The members themselves are the room's.
                PresenceMail::Shown(_, _, shown) => shown.members.len() * std::mem::size_of::<Seen>(),
                _ => 0,
            }
    }
}

/// What was asked of a room of nodes.
pub enum PresenceAsked {
    /// To be in it.
    Enter(Arc<[u8]>),
    /// To say a word there, of that number.
    Say(Arc<[u8]>, u64),
}

/// Who is told of a room.
#[derive(Default)]
struct Audience {
    /// Seats of each shard, those that wait among them.
    shards: BTreeMap<ShardId, u64>,
    /// Who is told as soon as it is known who is there.
    waiting: Vec<Waiting>,
    /// Whether more were there than are listed when it was told last.
    had_more: bool,
}

enum Waiting {
    Seat(ShardId, u64),
    /// A question, and until when it waits, in ms.
    Question(Ask, u64),
}

/// See the module.
pub struct Members {
    machine: Presence,
    audiences: HashMap<Arc<[u8]>, Audience, RandomState>,
    /// Who is there now in rooms with an audience that was asked for it in this second: a crowd that comes at once is told
    /// one list.
    lists: HashMap<Arc<[u8]>, Arc<Shown>, RandomState>,
    /// The runs of processes that may have links.
    runs: BTreeMap<NodeId, u64>,
    occupancies: Occupancies,
    /// What connections of this shard have to do with it.
    pub edge: Edge,
    /// What is recorded of them.
    pub records: Records,
}

impl Members {
    /// Of a node that is of no cluster yet.
    #[must_use]
    pub fn new(shard: ShardId, node: &NodeInfo, listed_max: u64) -> Members {
        let listed_max = usize::try_from(listed_max).unwrap_or(usize::MAX);
        let limits = Limits { batch_ms: BATCH_MS, answer_ms: ANSWER_MS, listed_max, word_bytes: WORD_BYTES };
        Members {
            machine: Presence::new(run_of(&node.name, node.incarnation.into()), limits),
            audiences: HashMap::default(),
            lists: HashMap::default(),
            runs: BTreeMap::new(),
            occupancies: Occupancies::default(),
            edge: Edge::new(shard),
            records: Records::default(),
        }
    }

    /// The node is this process of its cluster. Nobody can be a member before.
    pub fn begin(&mut self, node: &str, incarnation: u64) {
        self.machine.begin(run_of(node, incarnation));
        self.occupancies.incarnation = incarnation;
    }

    /// The process that it speaks for.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.machine.run()
    }

    /// Lists are made anew for those who come from now on: they are not kept for nobody.
    pub fn forget_lists(&mut self) {
        self.lists = HashMap::default();
        self.edge.forget_lists();
    }

    /// Rooms with members of this node, or that somebody here watches, of this shard.
    #[must_use]
    pub fn rooms(&self) -> usize {
        self.machine.len()
    }

    /// Members that were counted as they came, and not listed.
    #[must_use]
    pub fn unlisted(&self) -> u64 {
        self.machine.unlisted
    }
}

/// The name of a process of a node, among all that ever were (FNV-1a).
#[must_use]
pub fn run_of(node: &str, incarnation: u64) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    node.as_bytes().iter().chain(&incarnation.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, step)
}

/// The room that a room of nodes is about.
#[must_use]
pub fn room_of(topic: &[u8]) -> Option<&[u8]> {
    topic.strip_prefix(ROOMS)
}

fn topic_of(room: &[u8]) -> Vec<u8> {
    [ROOMS, room].concat()
}

/// The longest name of a room that has members, where topics have so many bytes.
fn room_bytes_max(topic_bytes_max: u64) -> usize {
    (topic_bytes_max as usize).saturating_sub(ROOMS.len())
}

/// Sends a letter.
fn tell(core: &mut Core, shard: ShardId, mail: PresenceMail) {
    if shard == core.rim.shard {
        receive(core, mail);
    } else {
        core.rim.mailer.post(shard, Mail::Presence(mail));
    }
}

fn tell_home(core: &mut Core, room: &[u8], mail: PresenceMail) {
    let shard = home_of(core, room);
    tell(core, shard, mail);
}

/// The shard of this node to which a room's members belong.
#[must_use]
pub fn home_of(core: &Core, room: &[u8]) -> ShardId {
    shard_of(room, core.rim.mailer.shards())
}

/// Acts on a letter.
pub fn receive(core: &mut Core, mail: PresenceMail) {
    match mail {
        PresenceMail::Join(room, member) => {
            event(core, |p, now, actions| p.join(&room, member, now, actions))
        }
        PresenceMail::Leave(room, reference) => {
            event(core, |p, now, actions| p.leave(&room, reference, now, actions));
        }
        PresenceMail::Watch(room, shard, seat) => watch(core, &room, shard, seat),
        PresenceMail::Unwatch(room, shard, seat) => unwatch(core, &room, shard, seat),
        PresenceMail::Shown(room, seat, who) => edge::show(core, &room, seat, &who),
        PresenceMail::Told(room, told) => edge::tell(core, &room, &told),
        PresenceMail::Occupied(room, shard, counts) => occupancy::occupied(core, &room, shard, counts),
    }
}

/// What came of something that was asked of a room of nodes.
pub fn answered(core: &mut Core, asked: PresenceAsked, outcome: Result<u64, ErrorCode>) {
    event(core, |p, now, actions| match asked {
        PresenceAsked::Enter(room) => p.entered(&room, outcome.is_ok(), now, actions),
        PresenceAsked::Say(room, number) => p.said(&room, number, outcome.ok(), now, actions),
    });
}

/// A node said something in a room of nodes.
pub fn heard(core: &mut Core, room: &[u8], said: &[u8]) {
    core.rim.metrics.presence_words_total.add(1);
    event(core, |p, now, actions| p.heard(room, said, now, actions));
}

/// Something that was said there may not have come.
pub fn missed(core: &mut Core, room: &[u8]) {
    event(core, |p, now, actions| p.missed(room, now, actions));
}

/// The process of a node is gone.
pub fn process_gone(core: &mut Core, run: u64) {
    event(core, |p, now, actions| p.gone(run, now, actions));
    occupancy::gone(core, run, true);
}

/// There is a link to a node: it was not gone, if that was thought.
pub fn process_up(core: &mut Core, node: NodeId) {
    if let Some(&run) = core.rim.presence.runs.get(&node) {
        event(core, |p, now, actions| p.back(run, now, actions));
        occupancy::gone(core, run, false);
    }
}

/// These processes are registered: each one that was, and is not any more, is gone.
pub fn registered<'a>(core: &mut Core, processes: impl Iterator<Item = (NodeId, &'a str, u64)>) {
    let (mut runs, mut incarnations) = (BTreeMap::new(), BTreeMap::new());
    for (id, node, incarnation) in processes {
        let run = run_of(node, incarnation);
        runs.insert(id, run);
        incarnations.insert(run, incarnation);
    }
    let before = std::mem::replace(&mut core.rim.presence.runs, runs);
    for (id, run) in before {
        if core.rim.presence.runs.get(&id) != Some(&run) {
            process_gone(core, run);
        }
    }
    occupancy::registered(core, incarnations);
}

/// The time has come for what is due in a room.
pub fn tick(core: &mut Core, room: &[u8]) {
    event(core, |p, now, actions| p.tick(room, now, actions));
    let now_ms = core.rim.now.mono_ms;
    let Some(audience) = core.rim.presence.audiences.get_mut(room) else { return };
    let is_late =
        |waits: &mut Waiting| matches!(waits, Waiting::Question(_, until_ms) if *until_ms <= now_ms);
    let late: Vec<Waiting> = audience.waiting.extract_if(.., is_late).collect();
    for waits in late {
        if let Waiting::Question(ask, _) = waits {
            core.rim.answer_part(ask, Part::Refused(ErrorCode::TimedOut));
            end_watch(core, room);
        }
    }
}

/// Whether a room is of a class of the node's own, as those that nodes alone speak in.
fn has_nodes(core: &Core, room: &[u8]) -> bool {
    let classes = core.broker.classes();
    classes.get(classes.class_of_room(room)).name.starts_with('$')
}

/// A question who is there: the answer, or none if it comes later.
pub fn asked(core: &mut Core, room: &[u8], ask: Ask) -> Option<Part> {
    if !has_nodes(core, &topic_of(room)) {
        // No node here takes in anybody who can be one.
        return Some(Part::Members(Arc::default()));
    }
    if let Some(shown) = shown_now(core, room) {
        return Some(Part::Members(shown));
    }
    let until_ms = core.rim.now.mono_ms + QUESTION_MS;
    let name: Arc<[u8]> = room.into();
    let audience = core.rim.presence.audiences.entry(name.clone()).or_default();
    audience.waiting.push(Waiting::Question(ask, until_ms));
    core.rim.timers.set(until_ms, Timer::Presence(Box::new(name)));
    event(core, |p, now, actions| p.watch(room, now, actions));
    None
}

fn watch(core: &mut Core, room: &Arc<[u8]>, shard: ShardId, seat: u64) {
    let audience = core.rim.presence.audiences.entry(room.clone()).or_default();
    *audience.shards.entry(shard).or_default() += 1;
    let shown = shown_now(core, room);
    let audience = core.rim.presence.audiences.entry(room.clone()).or_default();
    match &shown {
        Some(shown) => audience.had_more = has_more(shown),
        None => audience.waiting.push(Waiting::Seat(shard, seat)),
    }
    if let Some(shown) = shown {
        tell(core, shard, PresenceMail::Shown(room.clone(), seat, shown));
    }
    event(core, |p, now, actions| p.watch(room, now, actions));
}

fn unwatch(core: &mut Core, room: &[u8], shard: ShardId, seat: u64) {
    let Some(audience) = core.rim.presence.audiences.get_mut(room) else { return };
    let is_it =
        |waits: &Waiting| matches!(waits, Waiting::Seat(of, number) if (*of, *number) == (shard, seat));
    audience.waiting.retain(|waits| !is_it(waits));
    if let Some(seats) = audience.shards.get_mut(&shard) {
        *seats -= 1;
        if *seats == 0 {
            audience.shards.remove(&shard);
        }
    }
    end_watch(core, room);
}

/// One less is told of a room.
fn end_watch(core: &mut Core, room: &[u8]) {
    let audiences = &mut core.rim.presence.audiences;
    if audiences.get(room).is_some_and(|audience| audience.shards.is_empty() && audience.waiting.is_empty()) {
        audiences.remove(room);
        core.rim.presence.lists.remove(room);
    }
    event(core, |p, now, actions| p.unwatch(room, now, actions));
}

/// Who is there, by key; none while that is not known.
fn shown_now(core: &mut Core, room: &[u8]) -> Option<Arc<Shown>> {
    let Members { machine, audiences, lists, .. } = &mut core.rim.presence;
    if let Some(shown) = lists.get(room) {
        return Some(Arc::clone(shown));
    }
    let (mut members, count) = machine.shown(room)?;
    members.sort_by(|(run, a), (other, b)| (&a.key, run, a.reference).cmp(&(&b.key, other, b.reference)));
    let shown = Arc::new(Shown { members, count });
    // Of a room without an audience nobody says that it changes.
    if let Some((name, _)) = audiences.get_key_value(room) {
        lists.insert(name.clone(), Arc::clone(&shown));
    }
    Some(shown)
}

fn has_more(shown: &Shown) -> bool {
    shown.count > shown.members.len() as u64
}

/// It is known who is in a room.
fn ready(core: &mut Core, room: &Arc<[u8]>) {
    let Some(shown) = shown_now(core, room) else { return };
    let Some(audience) = core.rim.presence.audiences.get_mut(room) else { return };
    audience.had_more = has_more(&shown);
    for waits in std::mem::take(&mut audience.waiting) {
        match waits {
            Waiting::Seat(shard, seat) => {
                tell(core, shard, PresenceMail::Shown(room.clone(), seat, Arc::clone(&shown)));
            }
            Waiting::Question(ask, _) => {
                core.rim.answer_part(ask, Part::Members(Arc::clone(&shown)));
                end_watch(core, room);
            }
        }
    }
}

fn changed(core: &mut Core, room: &Arc<[u8]>, diff: Diff) {
    core.rim.presence.lists.remove(room);
    let Some(audience) = core.rim.presence.audiences.get_mut(room) else { return };
    let is_counted = diff.more > 0 || audience.had_more;
    audience.had_more = diff.more > 0;
    let shards: Vec<ShardId> = audience.shards.keys().copied().collect();
    let told = Arc::new(Told { diff, is_counted });
    for shard in shards {
        tell(core, shard, PresenceMail::Told(room.clone(), Arc::clone(&told)));
    }
}

/// Something happens to a room of this shard, and what is to be done is done.
fn event(core: &mut Core, event: impl FnOnce(&mut Presence, u64, &mut Vec<Action>)) {
    let mut actions = Vec::new();
    event(&mut core.rim.presence.machine, core.rim.now.mono_ms, &mut actions);
    for action in actions {
        match action {
            Action::Enter(room) => {
                core.watch(&topic_of(&room), Asked::Members(PresenceAsked::Enter(room)));
            }
            Action::Exit(room) => core.unwatch(&topic_of(&room)),
            Action::Say(room, number, bytes) => {
                core.say_in(&topic_of(&room), &bytes, Asked::Members(PresenceAsked::Say(room, number)));
            }
            Action::Wait(room, at_ms) => core.rim.timers.set(at_ms, Timer::Presence(Box::new(room))),
            Action::Ready(room) if occupancy::is_bucket(&room) => occupancy::ready(core, &room),
            Action::Ready(room) => ready(core, &room),
            Action::Tell(room, diff) if occupancy::is_bucket(&room) => occupancy::changed(core, &diff),
            Action::Tell(room, diff) => changed(core, &room, diff),
        }
    }
}
