//! Server-sent events ([docs/protocol/events.md]): a subscription to one topic whose records are written as
//! they arrive, encoded once per shard for all streams. Output for a slow reader is queued as for every
//! client ([`crate::context::fanout`]). Python is not involved.
//!
//! Invariants: the response's head is written after the broker's reply, so that a refusal has its HTTP
//! status. A client may resume from any id that it has received: while older records are pending, no newer id
//! is sent.

use super::refusals::{refuse, write_refused};
use crate::context::Ctx;
use crate::context::io::{Io, Timer};
use crate::context::session::Session;
use crate::io::access;
use crate::io::origin_check::fields_for;
use crate::io::output::{Opening, Pending, Slot};
use hubsub_route::{Answer, Attached, Namespace, Outcome, Start, Wish};
use hubsub_types::{ConnKey, ErrorCode, Position};
use hubsub_wire::events::{self, CONTENT_TYPE, EventsRequest, HEARTBEAT, missing, write_place};
use hubsub_wire::http::{Refusal, Request, write_stream_head};
use hubsub_wire::phoenix;

pub(super) fn begin(ctx: &mut Ctx, key: ConnKey, request: &Request<'_>) {
    let wanted = match EventsRequest::read(request) {
        Ok(wanted) => wanted,
        Err(refusal) => return refuse(&mut ctx.io, key, request.origin, refusal),
    };
    let Some(principal) = ctx.io.access.principal_of(wanted.token.as_deref()) else {
        return refuse(&mut ctx.io, key, request.origin, Refusal::Denied);
    };
    let Some(conn) = ctx.io.conns.get_mut(key) else { return };
    conn.principal = principal;
    conn.session = Session::Events;
    ctx.io.states.http.streams += 1;
    let now = ctx.io.now;
    let (start, after) = match wanted.start {
        phoenix::Start::Live => (Start::Live, None),
        phoenix::Start::Last(count) => (Start::Last(count), None),
        phoenix::Start::Past { ms } => {
            (Start::Since(now.wall_us.saturating_sub(ms.saturating_mul(1000))), None)
        }
        phoenix::Start::After(position) => (Start::After(position), Some(position)),
    };
    let opening = Opening { after, origin: request.origin.map(Into::into) };
    // Topics that browsers may not join are not readable this way, either.
    let is_open = ctx.io.states.phoenix.rules.opens(&wanted.topic);
    let outcome = if is_open && ctx.io.access.allowed(principal, access::Action::Subscribe, &wanted.topic) {
        let wish = Wish { topic: &wanted.topic, namespace: Namespace::Global, start };
        ctx.broker.subscribe(ctx.io.ticket(key), key, wish, now, &mut ctx.io)
    } else {
        Outcome::Now(Err(ErrorCode::NotAllowed))
    };
    match outcome {
        Outcome::Later => ctx.io.wait(key, Pending::Events(Box::new(opening))),
        Outcome::Now(attached) => {
            let head = open(&mut ctx.io, key, &opening, attached);
            ctx.io.push(key, |out, _| out.extend_from_slice(&head));
            // The requested older records follow.
            ctx.broker.drained(key, ctx.io.now, &mut ctx.io);
        }
    }
}

/// Fills the slot of a request with the broker's reply.
pub fn answer(io: &mut Io, key: ConnKey, slot: u32, answer: Answer) {
    let output = io.conns.get_mut(key).and_then(|conn| conn.output.as_mut());
    let (Some(Slot::Waiting(place)), Answer::Attached(attached)) =
        (output.and_then(|output| output.waiting(slot)), answer)
    else {
        return;
    };
    let Pending::Events(opening) = std::mem::replace(place, Pending::Confirm(Vec::new())) else {
        unreachable!("a stream opens one slot")
    };
    let head = open(io, key, &opening, attached);
    io.resolve(key, slot, |out, _, _| out.extend_from_slice(&head));
}

/// The start of the response. A refusal also ends the connection.
fn open(io: &mut Io, key: ConnKey, opening: &Opening, attached: Result<Attached, ErrorCode>) -> Vec<u8> {
    let (mut out, origin) = (Vec::new(), opening.origin.as_deref());
    match attached {
        Ok(attached) => {
            write_stream_head(&mut out, CONTENT_TYPE, &fields_for(origin));
            write_beginning(&mut out, opening.after, &attached);
            io.timers.set(io.now.mono_ms + io.limits.events_heartbeat_ms, Timer::Beat(key));
        }
        Err(refused) => {
            io.metrics.events_refused_total.add(1);
            write_refused(&mut out, origin, refused);
            io.close_soon(key);
        }
    }
    out
}

/// Writes the position where a stream begins unless older records follow, and the gap if the requested ones
/// are not all available.
fn write_beginning(out: &mut Vec<u8>, after: Option<Position>, attached: &Attached) {
    let Attached { position, replay_from, recovered } = *attached;
    let before = replay_from.map_or(position, |first| {
        let seq = hubsub_types::Seq(first.0.saturating_sub(1));
        Position { epoch: position.epoch, seq }
    });
    match after {
        Some(asked) if !recovered => {
            let (from, to) = missing(asked, before);
            events::write_gap(out, from, to, before);
        }
        _ if replay_from.is_none() => write_place(out, position),
        _ => {}
    }
}

/// Sends a heartbeat if the stream is idle.
pub fn beat(io: &mut Io, key: ConnKey) {
    let Some(conn) = io.conns.get(key).filter(|conn| !conn.is_closing()) else { return };
    if conn.output.is_none() {
        io.push(key, |out, _| out.extend_from_slice(HEARTBEAT));
    }
    io.timers.set(io.now.mono_ms + io.limits.events_heartbeat_ms, Timer::Beat(key));
}
