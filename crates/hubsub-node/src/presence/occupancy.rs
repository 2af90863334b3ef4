//! Occupancy records: the cluster-wide counts of rooms whose class has them, published on change in
//! `$stats/room/ROOM/occupancy`:
//!
//! ```text
//! {"room":"chat:lobby","subscribers":2,"by_protocol":{"redis":1,"mqtt":0,"phoenix":1,"events":0},
//!  "publishers":1,"members":1,"ts":1785000000000}
//! ```
//!
//! The broker of each shard counts. Nodes exchange counts as they exchange members: there are [`BUCKETS`]
//! node rooms; each node is in all of them and sends its part of each room in the bucket. So all nodes know
//! all parts, the part of a dead node is removed like its members, and one process publishes: the oldest.
//!
//! A bucket belongs to one shard of a node. That shard sums the node's shards, and
//! `hubsub_route::occupancy::Telling` decides there when to publish.

use super::rooms::{BUCKET, event, has_nodes, home_of, tell, topic_of};
use super::state::{Occupancies, PresenceAsked, PresenceMail};
use crate::context::Ctx;
use crate::context::io::Timer;
use crate::io::inbox::shard_of;
use hubsub_route::occupancy::{Action, Counts, Telling};
use hubsub_route::presence::{Diff, Member};
use hubsub_types::{Protocol, ShardId};
use hubsub_wire::phoenix::write_text;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The number of node rooms for occupancy.
const BUCKETS: u16 = 16;

const RECORDS: &[u8] = b"$stats/room/";

/// The suffix of record topics.
const RECORD: &[u8] = b"/occupancy";

fn bucket(number: u16) -> Vec<u8> {
    [BUCKET, number.to_string().as_bytes()].concat()
}

fn bucket_of(room: &[u8]) -> Vec<u8> {
    bucket(shard_of(room, BUCKETS).0)
}

pub fn tell_changed(ctx: &mut Ctx) {
    if !ctx.broker.occupancy.has_changed() {
        return;
    }
    for room in ctx.broker.occupancy.take_changed() {
        let tells = ctx.broker.tells_occupancy(&room);
        let counts = if tells { ctx.broker.occupancy_of(&room) } else { Counts::default() };
        let (shard, home) = (ctx.io.shard, home_of(ctx, &bucket_of(&room)));
        if home == shard {
            occupied(ctx, &room, shard, counts);
        } else {
            tell(ctx, home, PresenceMail::Occupied(room, shard, counts));
        }
    }
}

pub(super) fn occupied(ctx: &mut Ctx, room: &Arc<[u8]>, shard: ShardId, counts: Counts) {
    let Occupancies { own, last, .. } = &mut ctx.io.states.presence.occupancies;
    let part = own.entry(Arc::clone(room)).or_default();
    if counts.is_none() {
        part.shards.remove(&shard);
    } else {
        part.shards.insert(shard, counts);
    }
    let total: Counts = part.shards.values().sum();
    let before = part.said;
    if before.map_or_else(Counts::default, |(_, counts)| counts) == total {
        if total.is_none() {
            own.remove(room);
        }
        return;
    }
    let said = (!total.is_none()).then(|| {
        *last += 1;
        (*last, total)
    });
    if said.is_some() {
        part.said = said;
    } else {
        own.remove(room);
    }
    let bucket = bucket_of(room);
    let former = before.map(|(number, _)| number);
    event(ctx, |p, now, actions| {
        if let Some((reference, counts)) = said {
            let (key, meta) = (Box::default(), counts.encode(room));
            let member = Member { reference, former: former.unwrap_or_default(), key, meta };
            p.join_listed(&bucket, member, now, actions);
        }
        if let Some(former) = former {
            p.leave(&bucket, former, now, actions);
        }
    });
}

/// The parts of all nodes in a bucket are known now.
pub(super) fn ready(ctx: &mut Ctx, bucket: &[u8]) {
    let Some((parts, _)) = ctx.io.states.presence.machine.shown(bucket) else { return };
    changed(ctx, &Diff { joins: parts, ..Diff::default() });
}

pub(super) fn changed(ctx: &mut Ctx, diff: &Diff) {
    // Joins first: otherwise the room would be empty between an old part and its replacement.
    for (run, member) in &diff.joins {
        if let Some((counts, room)) = Counts::decode(&member.meta) {
            let part = (member.reference, counts);
            act(ctx, |telling, now, actions| telling.part(*run, room, part, now, actions));
        }
    }
    for (run, member) in &diff.leaves {
        if let Some((_, room)) = Counts::decode(&member.meta) {
            act(ctx, |telling, now, actions| telling.drop_part(*run, room, member.reference, now, actions));
        }
    }
}

pub fn tick(ctx: &mut Ctx, room: &[u8]) {
    act(ctx, |telling, now, actions| telling.tick(room, now, actions));
}

pub fn told(ctx: &mut Ctx, room: &[u8], is_told: bool) {
    act(ctx, |telling, now, actions| telling.told(room, is_told, now, actions));
}

pub fn look_after(ctx: &mut Ctx) {
    ctx.broker.expire_publishers(ctx.io.now);
    let now_ms = ctx.io.now.mono_ms;
    ctx.io.states.presence.occupancies.telling.sweep(now_ms);
    let listens = ctx.broker.classes().tells_occupancy() && has_nodes(ctx, &topic_of(BUCKET));
    if std::mem::replace(&mut ctx.io.states.presence.occupancies.listens, listens) == listens {
        return;
    }
    if !listens {
        ctx.io.states.presence.occupancies.telling = Telling::default();
        elect(ctx);
    }
    for bucket in (0..BUCKETS).map(bucket) {
        if home_of(ctx, &bucket) != ctx.io.shard {
            continue;
        }
        if listens {
            // Includes this node's earlier parts.
            ready(ctx, &bucket);
            event(ctx, |p, now, actions| p.watch(&bucket, now, actions));
        } else {
            event(ctx, |p, now, actions| p.unwatch(&bucket, now, actions));
        }
    }
}

/// Applies the registered processes: run ids and incarnations.
pub(super) fn registered(ctx: &mut Ctx, processes: BTreeMap<u64, u64>) {
    let occupancies = &mut ctx.io.states.presence.occupancies;
    occupancies.gone.retain(|run| processes.contains_key(run));
    occupancies.processes = processes;
    elect(ctx);
}

/// A process is gone, or is back.
pub(super) fn gone(ctx: &mut Ctx, run: u64, is_gone: bool) {
    let Occupancies { gone, processes, .. } = &mut ctx.io.states.presence.occupancies;
    let is_news = if is_gone { processes.contains_key(&run) && gone.insert(run) } else { gone.remove(&run) };
    if is_news {
        elect(ctx);
    }
}

/// The oldest process publishes, because a new one lacks parts.
fn elect(ctx: &mut Ctx) {
    let Occupancies { gone, processes, incarnation, .. } = &ctx.io.states.presence.occupancies;
    let own = (*incarnation, ctx.io.states.presence.run());
    let alive = processes.iter().filter(|(run, _)| !gone.contains(*run));
    let tells = alive.map(|(&run, &incarnation)| (incarnation, run)).all(|other| own <= other);
    act(ctx, |telling, now, actions| telling.lead(tells, now, actions));
}

fn act(ctx: &mut Ctx, event: impl FnOnce(&mut Telling, u64, &mut Vec<Action>)) {
    let mut actions = Vec::new();
    event(&mut ctx.io.states.presence.occupancies.telling, ctx.io.now.mono_ms, &mut actions);
    for action in actions {
        match action {
            Action::Wait(room, at_ms) => ctx.io.timers.set(at_ms, Timer::Occupancy(Box::new(room))),
            Action::Tell(room, counts) => record(ctx, room, counts),
        }
    }
}

fn record(ctx: &mut Ctx, room: Arc<[u8]>, counts: Counts) {
    let topic = [RECORDS, &room, RECORD].concat();
    if !has_nodes(ctx, &topic) {
        // The node has no class for it.
        return;
    }
    let mut said = b"{\"room\":".to_vec();
    write_text(&mut said, &String::from_utf8_lossy(&room));
    said.extend_from_slice(
        format!(",\"subscribers\":{},\"by_protocol\":{{", counts.subscriptions()).as_bytes(),
    );
    for (at, (name, count)) in Protocol::NAMES.iter().zip(counts.subscribers).enumerate() {
        let comma = if at == 0 { "" } else { "," };
        said.extend_from_slice(format!("{comma}\"{name}\":{count}").as_bytes());
    }
    let (Counts { publishers, members, .. }, ts) = (counts, ctx.io.now.wall_us / 1000);
    said.extend_from_slice(
        format!("}},\"publishers\":{publishers},\"members\":{members},\"ts\":{ts}}}").as_bytes(),
    );
    ctx.say_in(&topic, &said, PresenceAsked::Occupancy(room));
}
