//! Join and leave records in `$stats/presence/ROOM` of rooms whose class has them; the job `sessions` reads
//! these.
//!
//! ```text
//! {"kind":"join","user":"ann","room":"chat:lobby","ts":1785000000000,"ref":"RUN.N"}
//! ```
//!
//! Each node records its own members, under the reference of the join, which metadata updates do not change.
//! For members of a dead process the node that stores the records adds the leaves
//! (`hubsub.control.leave_events`).

use super::state::{Next, PresenceAsked, Unsaid};
use crate::context::Ctx;
use crate::context::io::Timer;
use hubsub_types::ErrorCode;
use hubsub_wire::phoenix::{reference_text, write_text};

const ROOMS: &[u8] = b"$stats/presence/";

/// The retry delay of a refused record, in ms.
const AGAIN_MS: u64 = 1_000;

/// Records that a member of this node joined or left.
pub fn record(ctx: &mut Ctx, room: &[u8], kind: &str, (reference, key): (u64, &str)) {
    let classes = ctx.broker.classes();
    if !classes.get(classes.class_of_room(room)).presence_records {
        return;
    }
    let topic = [ROOMS, room].concat();
    if !classes.get(classes.class_of_room(&topic)).name.starts_with('$') {
        // The node has no class for it.
        return;
    }
    let mut said = format!("{{\"kind\":\"{kind}\",\"user\":").into_bytes();
    write_text(&mut said, key);
    said.extend_from_slice(b",\"room\":");
    write_text(&mut said, &String::from_utf8_lossy(room));
    let ts = ctx.io.now.wall_us / 1000;
    let text = reference_text(ctx.io.states.presence.run(), reference);
    said.extend_from_slice(format!(",\"ts\":{ts},\"ref\":\"{text}\"}}").as_bytes());
    let waiting_max = ctx.io.limits.presence_members_max;
    let next = ctx.io.states.presence.records.add(reference, topic.into(), said.into(), waiting_max);
    follow(ctx, reference, next);
}

pub fn record_again(ctx: &mut Ctx, reference: u64) {
    if let Some(Unsaid { topic, payload, .. }) =
        ctx.io.states.presence.records.unsaid.get(&reference).cloned()
    {
        ctx.say_in(&topic, &payload, PresenceAsked::Recorded(reference));
    }
}

pub fn recorded(ctx: &mut Ctx, reference: u64, outcome: Result<u64, ErrorCode>) {
    let next = ctx.io.states.presence.records.said(reference, outcome);
    follow(ctx, reference, next);
}

fn follow(ctx: &mut Ctx, reference: u64, next: Next) {
    match next {
        Next::Say => record_again(ctx, reference),
        Next::SayLater => {
            let at_ms = ctx.io.now.mono_ms + AGAIN_MS;
            ctx.io.timers.set(at_ms, Timer::PresenceRecord(reference));
        }
        Next::Nothing => {}
    }
}
