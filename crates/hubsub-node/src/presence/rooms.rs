//! The rooms that belong to this shard: their members, and those who watch them.

use super::state::{Members, Out, PresenceAsked, PresenceMail, Told, Waiting};
use crate::context::Ctx;
use crate::context::io::Timer;
use crate::io::inbox::shard_of;
use crate::io::questions::{Part, Shown};
use hubsub_route::Ask;
use hubsub_route::presence::{Action, Diff, Presence};
use hubsub_types::{ErrorCode, ShardId};
use std::sync::Arc;

/// The prefix of node rooms, in which nodes exchange their members.
const ROOMS: &[u8] = b"$members/";

/// The prefix of the node rooms in which nodes exchange counts, followed by a number.
pub const BUCKET: &[u8] = b"$occupancy/";

/// How long a query waits for a room whose members are unknown, in ms.
const QUESTION_MS: u64 = 5_000;

fn is_bucket(room: &[u8]) -> bool {
    room.starts_with(BUCKET)
}

pub fn room_of(topic: &[u8]) -> Option<&[u8]> {
    topic.strip_prefix(ROOMS)
}

pub fn topic_of(room: &[u8]) -> Vec<u8> {
    [ROOMS, room].concat()
}

/// The longest name of a room with members, in bytes.
pub fn room_bytes_max(topic_bytes_max: u64) -> usize {
    (topic_bytes_max as usize).saturating_sub(ROOMS.len())
}

pub fn tell(ctx: &mut Ctx, shard: ShardId, mail: PresenceMail) {
    if shard == ctx.io.shard {
        deliver_later(ctx, Out::Mail(mail));
    } else {
        ctx.io.mailer.post(shard, mail);
    }
}

pub fn tell_home(ctx: &mut Ctx, room: &[u8], mail: PresenceMail) {
    let shard = home_of(ctx, room);
    tell(ctx, shard, mail);
}

fn deliver_later(ctx: &mut Ctx, out: Out) {
    ctx.io.states.presence.outbox.push_back(out);
}

/// The shard of this node to which a room's members belong.
pub fn home_of(ctx: &Ctx, room: &[u8]) -> ShardId {
    shard_of(room, ctx.io.mailer.shards())
}

pub fn heard(ctx: &mut Ctx, room: &[u8], said: &[u8]) {
    ctx.io.metrics.presence_messages_total.add(1);
    event(ctx, |p, now, actions| p.heard(room, said, now, actions));
}

pub fn missed(ctx: &mut Ctx, room: &[u8]) {
    event(ctx, |p, now, actions| p.missed(room, now, actions));
}

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
pub fn has_nodes(ctx: &Ctx, room: &[u8]) -> bool {
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

pub fn watch(ctx: &mut Ctx, room: &Arc<[u8]>, shard: ShardId, seat: u64) {
    let audience = ctx.io.states.presence.audiences.entry(room.clone()).or_default();
    *audience.shards.entry(shard).or_default() += 1;
    let shown = shown_now(ctx, room);
    let audience = ctx.io.states.presence.audiences.entry(room.clone()).or_default();
    match shown {
        Some(shown) => {
            audience.had_more = has_more(&shown);
            tell(ctx, shard, PresenceMail::Shown(room.clone(), seat, shown));
        }
        None => audience.waiting.push(Waiting::Seat(shard, seat)),
    }
    event(ctx, |p, now, actions| p.watch(room, now, actions));
}

pub fn unwatch(ctx: &mut Ctx, room: &[u8], shard: ShardId, seat: u64) {
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

pub fn has_more(shown: &Shown) -> bool {
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
pub fn event(ctx: &mut Ctx, event: impl FnOnce(&mut Presence, u64, &mut Vec<Action>)) {
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
            Action::Ready(room) if is_bucket(&room) => deliver_later(ctx, Out::CountsKnown(room)),
            Action::Ready(room) => ready(ctx, &room),
            Action::Tell(room, diff) if is_bucket(&room) => deliver_later(ctx, Out::CountsChanged(diff)),
            Action::Tell(room, diff) => changed(ctx, &room, diff),
        }
    }
}
