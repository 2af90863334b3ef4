//! Presence ([docs/presence.md]): executes the decisions of `hubsub_route::presence`. Each room belongs to
//! one shard of the node, by the hash of its name. That shard represents the node in the node room
//! `$members/ROOM` and has all members; the shards of connections report joins and leaves to it, and it sends
//! them lists and changes.
//!
//! Layers, from below. None calls one above: results for another part go to an outbox, which the functions of
//! this file empty.
//!
//! 1. [`state`]
//! 2. [`rooms`], the members and watchers of this shard's rooms; [`records`], of joins and leaves
//! 3. [`occupancy`], records of member and subscriber counts; [`shown`], lists and changes in the clients'
//!    formats
//! 4. [`edge`], this shard's connections: their memberships and watches
//!
//! Invariants: a watcher gets the member list once, then each change in order; a connection is a member from
//! the confirmation of its join until it leaves or ends.

mod edge;
mod occupancy;
mod records;
mod rooms;
mod shown;
pub(crate) mod state;
#[cfg(test)]
mod tests;

pub use edge::reserve;
pub use occupancy::tick as tick_occupancy;
pub use records::record_again;
pub use rooms::room_of;

use crate::context::scatter_gather::{Then, To};
use crate::context::{Ctx, ProcessChange};
use crate::io::node_info::run_of;
use crate::io::questions::{Part, Question};
use hubsub_route::Ask;
use hubsub_types::{ConnKey, ErrorCode, NodeId};
use rooms::event;
use state::{Out, PresenceAsked, PresenceMail, Refusal};
use std::collections::BTreeMap;

/// Requests a room's members from the shard that owns them.
pub fn ask_members(ctx: &mut Ctx, room: Vec<u8>, then: Then) {
    let shard = rooms::home_of(ctx, &room);
    ctx.ask(To::One(shard), Question::Members(room), then);
}

pub fn receive(ctx: &mut Ctx, mail: PresenceMail) {
    take(ctx, mail);
    deliver(ctx);
}

fn take(ctx: &mut Ctx, mail: PresenceMail) {
    match mail {
        PresenceMail::Join(room, member) => event(ctx, |p, now, actions| p.join(&room, member, now, actions)),
        PresenceMail::Leave(room, reference) => {
            event(ctx, |p, now, actions| p.leave(&room, reference, now, actions));
        }
        PresenceMail::Watch(room, shard, seat) => rooms::watch(ctx, &room, shard, seat),
        PresenceMail::Unwatch(room, shard, seat) => rooms::unwatch(ctx, &room, shard, seat),
        PresenceMail::Shown(room, seat, who) => edge::show(ctx, &room, seat, &who),
        PresenceMail::Told(room, told) => edge::tell(ctx, &room, &told),
        PresenceMail::Occupied(room, shard, counts) => occupancy::occupied(ctx, &room, shard, counts),
    }
}

/// Delivers the results in the outbox, in order.
fn deliver(ctx: &mut Ctx) {
    if std::mem::replace(&mut ctx.io.states.presence.is_delivering, true) {
        return;
    }
    while let Some(out) = ctx.io.states.presence.outbox.pop_front() {
        match out {
            Out::Mail(mail) => take(ctx, mail),
            Out::CountsKnown(bucket) => occupancy::ready(ctx, &bucket),
            Out::CountsChanged(diff) => occupancy::changed(ctx, &diff),
        }
    }
    ctx.io.states.presence.is_delivering = false;
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
    deliver(ctx);
}

/// Applies a change of the cluster's processes.
pub fn process_changed(ctx: &mut Ctx, change: ProcessChange<'_>) {
    match change {
        ProcessChange::Own(node, incarnation) => ctx.io.states.presence.begin(node, incarnation),
        ProcessChange::Registered(others) => registered(ctx, others),
        ProcessChange::Up(node) => {
            if let Some(&run) = ctx.io.states.presence.runs.get(&node) {
                event(ctx, |p, now, actions| p.back(run, now, actions));
                deliver(ctx);
                occupancy::gone(ctx, run, false);
            }
        }
        ProcessChange::Gone(run) => process_gone(ctx, run),
    }
}

fn process_gone(ctx: &mut Ctx, run: u64) {
    event(ctx, |p, now, actions| p.gone(run, now, actions));
    // Its counts are dropped before another process may publish in its place.
    deliver(ctx);
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

macro_rules! delivered {
    ($($(#[doc = $doc:literal])+ $name:ident: $run:path $(, $arg:ident: $of:ty)*;)+) => {
        $($(#[doc = $doc])+
        pub fn $name(ctx: &mut Ctx $(, $arg: $of)*) {
            $run(ctx $(, $arg)*);
            deliver(ctx);
        })+
    };
}

delivered! {
    /// A node's message in a node room.
    heard: rooms::heard, room: &[u8], said: &[u8];
    /// Messages in a node room may have been missed.
    missed: rooms::missed, room: &[u8];
    /// A timer of a room has fired.
    tick: rooms::tick, room: &[u8];
    /// A join is confirmed: the member is added, and a watcher gets the member list.
    joined: edge::joined, key: ConnKey, number: u64;
    /// A join was refused, or the seat is left.
    refused: edge::refused, key: ConnKey, number: u64;
    /// A connection leaves a topic.
    left: edge::left, key: ConnKey, topic: &str;
    /// A connection has ended.
    ends: edge::ends, key: ConnKey;
    /// Sends this turn's changes of counts.
    tell_changed: occupancy::tell_changed;
    /// Runs each second: watches the buckets if any class has occupancy records, and forgets old state.
    look_after: occupancy::look_after;
}

/// A query for members: the response, or none if it comes later.
pub fn asked(ctx: &mut Ctx, room: &[u8], ask: Ask) -> Option<Part> {
    let part = rooms::asked(ctx, room, ask);
    deliver(ctx);
    part
}

/// Replaces a member's metadata.
///
/// # Errors
/// If it is no member, or the metadata is too long.
pub fn update(ctx: &mut Ctx, key: ConnKey, topic: &str, meta: &str) -> Result<(), Refusal> {
    let updated = edge::update(ctx, key, topic, meta);
    deliver(ctx);
    updated
}
