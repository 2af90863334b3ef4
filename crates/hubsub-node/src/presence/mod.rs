//! Presence ([docs/presence.md]): executes the decisions of `hubsub_route::presence`. Each room belongs to
//! one shard of the node, by the hash of its name. That shard represents the node in the node room
//! `$members/ROOM` and has all members; the shards of connections report joins and leaves to it, and it sends
//! them lists and changes.
//!
//! - [`edge`]: this shard's connections: their memberships and watches
//! - [`records`]: join and leave records
//! - [`occupancy`]: records of member and subscriber counts
//! - [`shown`]: lists and changes in the clients' formats
//!
//! Invariants: a watcher gets the member list once, then each change in order; a connection is a member from
//! the confirmation of its join until it leaves or ends.

mod edge;
mod occupancy;
mod records;
mod shown;
/// Requests a room's members from the shard that owns them.
pub fn ask_members(ctx: &mut Ctx, room: Vec<u8>, then: Then) {
    let shard = home_of(ctx, &room);
    ctx.ask(To::One(shard), Question::Members(room), then);
}

#[cfg(test)]
mod tests;

pub use edge::{Edge, Refusal, Wish, ends, joined, left, refused, reserve, update};
pub use occupancy::{look_after, tell_changed, tick as tick_occupancy};
pub use records::{Records, record_again};

use crate::context::io::Timer;
use crate::context::scatter_gather::{Then, To};
use crate::context::{Ctx, ProcessChange};
use crate::io::inbox::LETTER_BYTES;
use crate::io::inbox::shard_of;
use crate::io::node_info::{NodeInfo, run_of};
pub use crate::io::questions::Shown;
use crate::io::questions::{Part, Question};
use ahash::RandomState;
use hashbrown::HashMap;
use hubsub_route::Ask;
use hubsub_route::occupancy::Counts;
use hubsub_route::presence::{Action, Diff, Limits, Member, Presence, Seen};
use hubsub_types::{ErrorCode, NodeId, ShardId};
use occupancy::Occupancies;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The prefix of node rooms, in which nodes exchange their members.
const ROOMS: &[u8] = b"$members/";

/// How long changes of a room are batched, in ms.
const BATCH_MS: u64 = 250;

/// The timeout for nodes to send their members of a room, in ms.
const ANSWER_MS: u64 = 1_000;

/// How long a query waits for a room whose members are unknown, in ms.
const QUESTION_MS: u64 = 5_000;

/// The maximal bytes of members in one message of a node.
const WORD_BYTES: usize = 64 * 1024;

/// A change of a room's members.
#[derive(Debug)]
pub struct Told {
    diff: Diff,
    /// True if the count is sent too: not all members are listed, or were not before the change.
    is_counted: bool,
}

/// Messages between shards about members.
#[derive(Debug)]
pub enum PresenceMail {
    /// To the room's shard: a member has joined.
    Join(Arc<[u8]>, Member),
    /// To the room's shard: the member of this reference has left.
    Leave(Arc<[u8]>, u64),
    /// To the room's shard: this seat of that shard watches.
    Watch(Arc<[u8]>, ShardId, u64),
    /// To the room's shard: this seat of that shard no longer watches.
    Unwatch(Arc<[u8]>, ShardId, u64),
    /// From the room's shard to a seat: the member list.
    Shown(Arc<[u8]>, u64, Arc<Shown>),
    /// From the room's shard to all seats of a shard that have the list: a change.
    Told(Arc<[u8]>, Arc<Told>),
    /// To the shard of the room's bucket: the counts of a shard's part of a room.
    Occupied(Arc<[u8]>, ShardId, Counts),
}

impl PresenceMail {
    /// Its memory in bytes, for mailbox limits.
    #[must_use]
    pub fn weight(&self) -> usize {
        let of = |members: &[Seen]| members.iter().map(|(_, member)| member.weight()).sum::<usize>();
        LETTER_BYTES
            + match self {
                PresenceMail::Join(_, member) => member.weight(),
                PresenceMail::Told(_, told) => of(&told.diff.joins) + of(&told.diff.leaves),
                // The members themselves belong to the room.
                PresenceMail::Shown(_, _, shown) => shown.members.len() * std::mem::size_of::<Seen>(),
                _ => 0,
            }
    }
}

/// A request to a node room or about a room of this node.
pub enum PresenceAsked {
    /// To join that room.
    Enter(Arc<[u8]>),
    /// To publish the message of that number there.
    Say(Arc<[u8]>, u64),
    /// To write the join or leave record with this reference.
    Recorded(u64),
    /// To publish a room's occupancy.
    Occupancy(Arc<[u8]>),
}

/// The watchers of a room.
#[derive(Default)]
struct Audience {
    /// The number of watching seats per shard, including waiting ones.
    shards: BTreeMap<ShardId, u64>,
    /// Requests that wait until the members are known.
    waiting: Vec<Waiting>,
    /// True if not all members were listed in the last list or change.
    had_more: bool,
}

enum Waiting {
    Seat(ShardId, u64),
    /// A query, and until when it waits, in ms.
    Question(Ask, u64),
}

/// The presence state of a shard.
pub struct Members {
    machine: Presence,
    audiences: HashMap<Arc<[u8]>, Audience, RandomState>,
    /// Member lists of watched rooms, reused within a second for many watchers that come at once.
    lists: HashMap<Arc<[u8]>, Arc<Shown>, RandomState>,
    /// The run ids of registered processes.
    runs: BTreeMap<NodeId, u64>,
    occupancies: Occupancies,
    /// Seats of this shard's connections.
    pub edge: Edge,
    /// Join and leave records not known to be logged.
    pub records: Records,
}

impl Members {
    /// The state of a node outside a cluster, until `begin`.
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

    /// Sets this process's identity in the cluster; no member can exist before.
    fn begin(&mut self, node: &str, incarnation: u64) {
        self.machine.begin(run_of(node, incarnation));
        self.occupancies.incarnation = incarnation;
    }

    /// The run id of this process.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.machine.run()
    }

    /// Drops the lists, so that unused ones take no memory; later watchers get new ones.
    pub fn forget_lists(&mut self) {
        self.lists = HashMap::default();
        self.edge.forget_lists();
    }

    /// The number of this shard's rooms with local members or watchers.
    #[must_use]
    pub fn rooms(&self) -> usize {
        self.machine.len()
    }

    /// The number of members that are counted and not listed.
    #[must_use]
    pub fn unlisted(&self) -> u64 {
        self.machine.unlisted
    }
}

/// The room of a node room.
#[must_use]
pub fn room_of(topic: &[u8]) -> Option<&[u8]> {
    topic.strip_prefix(ROOMS)
}

fn topic_of(room: &[u8]) -> Vec<u8> {
    [ROOMS, room].concat()
}

/// The longest name of a room with members, in bytes.
fn room_bytes_max(topic_bytes_max: u64) -> usize {
    (topic_bytes_max as usize).saturating_sub(ROOMS.len())
}

/// Sends a message to a shard.
fn tell(ctx: &mut Ctx, shard: ShardId, mail: PresenceMail) {
    if shard == ctx.io.shard {
        receive(ctx, mail);
    } else {
        ctx.io.mailer.post(shard, mail);
    }
}

fn tell_home(ctx: &mut Ctx, room: &[u8], mail: PresenceMail) {
    let shard = home_of(ctx, room);
    tell(ctx, shard, mail);
}

/// The shard of this node to which a room's members belong.
#[must_use]
pub fn home_of(ctx: &Ctx, room: &[u8]) -> ShardId {
    shard_of(room, ctx.io.mailer.shards())
}

pub fn receive(ctx: &mut Ctx, mail: PresenceMail) {
    match mail {
        PresenceMail::Join(room, member) => event(ctx, |p, now, actions| p.join(&room, member, now, actions)),
        PresenceMail::Leave(room, reference) => {
            event(ctx, |p, now, actions| p.leave(&room, reference, now, actions));
        }
        PresenceMail::Watch(room, shard, seat) => watch(ctx, &room, shard, seat),
        PresenceMail::Unwatch(room, shard, seat) => unwatch(ctx, &room, shard, seat),
        PresenceMail::Shown(room, seat, who) => edge::show(ctx, &room, seat, &who),
        PresenceMail::Told(room, told) => edge::tell(ctx, &room, &told),
        PresenceMail::Occupied(room, shard, counts) => occupancy::occupied(ctx, &room, shard, counts),
    }
}

/// The outcome of a request to a node room.
pub fn answered(ctx: &mut Ctx, asked: PresenceAsked, outcome: Result<u64, ErrorCode>) {
    match asked {
        PresenceAsked::Enter(room) => {
            event(ctx, |p, now, actions| p.entered(&room, outcome.is_ok(), now, actions));
        }
        PresenceAsked::Say(room, number) => {
            event(ctx, |p, now, actions| p.said(&room, number, outcome.ok(), now, actions));
        }
        PresenceAsked::Recorded(reference) => records::recorded(ctx, reference, outcome),
        PresenceAsked::Occupancy(room) => occupancy::told(ctx, &room, outcome.is_ok()),
    }
}

/// A node's message in a node room.
pub fn heard(ctx: &mut Ctx, room: &[u8], said: &[u8]) {
    ctx.io.metrics.presence_messages_total.add(1);
    event(ctx, |p, now, actions| p.heard(room, said, now, actions));
}

/// Messages in a node room may have been missed.
pub fn missed(ctx: &mut Ctx, room: &[u8]) {
    event(ctx, |p, now, actions| p.missed(room, now, actions));
}

/// Applies a change of the cluster's processes.
pub fn process_changed(ctx: &mut Ctx, change: ProcessChange<'_>) {
    match change {
        ProcessChange::Own(node, incarnation) => ctx.io.states.presence.begin(node, incarnation),
        ProcessChange::Registered(others) => registered(ctx, others),
        ProcessChange::Up(node) => {
            if let Some(&run) = ctx.io.states.presence.runs.get(&node) {
                event(ctx, |p, now, actions| p.back(run, now, actions));
                occupancy::gone(ctx, run, false);
            }
        }
        ProcessChange::Gone(run) => process_gone(ctx, run),
    }
}

fn process_gone(ctx: &mut Ctx, run: u64) {
    event(ctx, |p, now, actions| p.gone(run, now, actions));
    occupancy::gone(ctx, run, true);
}

/// Applies the registered processes: each one that no longer is has gone.
fn registered<'a>(ctx: &mut Ctx, processes: impl Iterator<Item = (NodeId, &'a str, u64)>) {
    let (mut runs, mut incarnations) = (BTreeMap::new(), BTreeMap::new());
    for (id, node, incarnation) in processes {
        let run = run_of(node, incarnation);
        runs.insert(id, run);
        incarnations.insert(run, incarnation);
    }
    let before = std::mem::replace(&mut ctx.io.states.presence.runs, runs);
    for (id, run) in before {
        if ctx.io.states.presence.runs.get(&id) != Some(&run) {
            process_gone(ctx, run);
        }
    }
    occupancy::registered(ctx, incarnations);
}

/// A timer of a room has fired.
pub fn tick(ctx: &mut Ctx, room: &[u8]) {
    event(ctx, |p, now, actions| p.tick(room, now, actions));
    let now_ms = ctx.io.now.mono_ms;
    let Some(audience) = ctx.io.states.presence.audiences.get_mut(room) else { return };
    let is_late =
        |waits: &mut Waiting| matches!(waits, Waiting::Question(_, until_ms) if *until_ms <= now_ms);
    let late: Vec<Waiting> = audience.waiting.extract_if(.., is_late).collect();
    for waits in late {
        if let Waiting::Question(ask, _) = waits {
            ctx.io.answer_part(ask, Part::Refused(ErrorCode::TimedOut));
            end_watch(ctx, room);
        }
    }
}

/// True if a room is in an internal class, so that only nodes publish there.
fn has_nodes(ctx: &Ctx, room: &[u8]) -> bool {
    let classes = ctx.broker.classes();
    classes.get(classes.class_of_room(room)).name.starts_with('$')
}

/// A query for members: the response, or none if it comes later.
pub fn asked(ctx: &mut Ctx, room: &[u8], ask: Ask) -> Option<Part> {
    if !has_nodes(ctx, &topic_of(room)) {
        // This node admits no members.
        return Some(Part::Members(Arc::default()));
    }
    if let Some(shown) = shown_now(ctx, room) {
        return Some(Part::Members(shown));
    }
    let until_ms = ctx.io.now.mono_ms + QUESTION_MS;
    let name: Arc<[u8]> = room.into();
    let audience = ctx.io.states.presence.audiences.entry(name.clone()).or_default();
    audience.waiting.push(Waiting::Question(ask, until_ms));
    ctx.io.timers.set(until_ms, Timer::Presence(Box::new(name)));
    event(ctx, |p, now, actions| p.watch(room, now, actions));
    None
}

fn watch(ctx: &mut Ctx, room: &Arc<[u8]>, shard: ShardId, seat: u64) {
    let audience = ctx.io.states.presence.audiences.entry(room.clone()).or_default();
    *audience.shards.entry(shard).or_default() += 1;
    let shown = shown_now(ctx, room);
    let audience = ctx.io.states.presence.audiences.entry(room.clone()).or_default();
    match &shown {
        Some(shown) => audience.had_more = has_more(shown),
        None => audience.waiting.push(Waiting::Seat(shard, seat)),
    }
    if let Some(shown) = shown {
        tell(ctx, shard, PresenceMail::Shown(room.clone(), seat, shown));
    }
    event(ctx, |p, now, actions| p.watch(room, now, actions));
}

fn unwatch(ctx: &mut Ctx, room: &[u8], shard: ShardId, seat: u64) {
    let Some(audience) = ctx.io.states.presence.audiences.get_mut(room) else { return };
    let is_it =
        |waits: &Waiting| matches!(waits, Waiting::Seat(of, number) if (*of, *number) == (shard, seat));
    audience.waiting.retain(|waits| !is_it(waits));
    if let Some(seats) = audience.shards.get_mut(&shard) {
        *seats -= 1;
        if *seats == 0 {
            audience.shards.remove(&shard);
        }
    }
    end_watch(ctx, room);
}

/// Removes one watcher or query of a room.
fn end_watch(ctx: &mut Ctx, room: &[u8]) {
    let audiences = &mut ctx.io.states.presence.audiences;
    if audiences.get(room).is_some_and(|audience| audience.shards.is_empty() && audience.waiting.is_empty()) {
        audiences.remove(room);
        ctx.io.states.presence.lists.remove(room);
    }
    event(ctx, |p, now, actions| p.unwatch(room, now, actions));
}

/// The members, sorted by key; none while they are unknown.
fn shown_now(ctx: &mut Ctx, room: &[u8]) -> Option<Arc<Shown>> {
    let Members { machine, audiences, lists, .. } = &mut ctx.io.states.presence;
    if let Some(shown) = lists.get(room) {
        return Some(Arc::clone(shown));
    }
    let (mut members, count) = machine.shown(room)?;
    members.sort_by(|(run, a), (other, b)| (&a.key, run, a.reference).cmp(&(&b.key, other, b.reference)));
    let shown = Arc::new(Shown { members, count });
    // Changes of a room without watchers are not reported.
    if let Some((name, _)) = audiences.get_key_value(room) {
        lists.insert(name.clone(), Arc::clone(&shown));
    }
    Some(shown)
}

fn has_more(shown: &Shown) -> bool {
    shown.count > shown.members.len() as u64
}

/// The members of a room are known now.
fn ready(ctx: &mut Ctx, room: &Arc<[u8]>) {
    let Some(shown) = shown_now(ctx, room) else { return };
    let Some(audience) = ctx.io.states.presence.audiences.get_mut(room) else { return };
    audience.had_more = has_more(&shown);
    for waits in std::mem::take(&mut audience.waiting) {
        match waits {
            Waiting::Seat(shard, seat) => {
                tell(ctx, shard, PresenceMail::Shown(room.clone(), seat, Arc::clone(&shown)));
            }
            Waiting::Question(ask, _) => {
                ctx.io.answer_part(ask, Part::Members(Arc::clone(&shown)));
                end_watch(ctx, room);
            }
        }
    }
}

fn changed(ctx: &mut Ctx, room: &Arc<[u8]>, diff: Diff) {
    ctx.io.states.presence.lists.remove(room);
    let Some(audience) = ctx.io.states.presence.audiences.get_mut(room) else { return };
    let is_counted = diff.more > 0 || audience.had_more;
    audience.had_more = diff.more > 0;
    let shards: Vec<ShardId> = audience.shards.keys().copied().collect();
    let told = Arc::new(Told { diff, is_counted });
    for shard in shards {
        tell(ctx, shard, PresenceMail::Told(room.clone(), Arc::clone(&told)));
    }
}

/// Passes an event to a room of this shard and executes the resulting actions.
fn event(ctx: &mut Ctx, event: impl FnOnce(&mut Presence, u64, &mut Vec<Action>)) {
    let mut actions = Vec::new();
    event(&mut ctx.io.states.presence.machine, ctx.io.now.mono_ms, &mut actions);
    for action in actions {
        match action {
            Action::Enter(room) => {
                ctx.watch(&topic_of(&room), PresenceAsked::Enter(room));
            }
            Action::Exit(room) => ctx.unwatch(&topic_of(&room)),
            Action::Say(room, number, bytes) => {
                ctx.say_in(&topic_of(&room), &bytes, PresenceAsked::Say(room, number));
            }
            Action::Wait(room, at_ms) => ctx.io.timers.set(at_ms, Timer::Presence(Box::new(room))),
            Action::Ready(room) if occupancy::is_bucket(&room) => occupancy::ready(ctx, &room),
            Action::Ready(room) => ready(ctx, &room),
            Action::Tell(room, diff) if occupancy::is_bucket(&room) => occupancy::changed(ctx, &diff),
            Action::Tell(room, diff) => changed(ctx, &room, diff),
        }
    }
}
