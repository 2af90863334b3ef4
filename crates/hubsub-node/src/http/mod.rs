//! HTTP/1.1 requests on the WebSocket listener, for networks that block WebSockets. They use the same port, so
//! a page that may open a WebSocket there (`ws_origins`) may also send these requests. The listener of the REST
//! API does not serve them: Python answers its requests, so each record would cross into Python.
//!
//! - [`events`]: `GET /v1/rooms/{room}/events`, a stream of records that ends with its connection
//!
//! Requests of `/socket/longpoll`, Phoenix channels by long polling, are left to the caller.
//!
//! Invariants: requests of a connection are answered one at a time, in order; input after the request of a
//! stream is discarded.

mod events;
mod refusals;
pub(crate) mod state;

pub use events::{answer, beat};

use crate::context::Ctx;
use crate::context::conn::Flags;
use crate::context::io::{Io, Timer};
use crate::context::session::Session;
use crate::io::transport::is_poll;
use hubsub_types::{ConnKey, Limits};
use hubsub_wire::events::topic_of;
use hubsub_wire::http::{Refusal, Request};
use refusals::{refuse, turn_away};

/// Longest body, in messages of the largest size: room for one in base64 and others. Head and body together
/// are also at most `input_shard_bytes_max`, since they are buffered whole.
const BODY_MESSAGES: u64 = 2;

pub enum Taken<'a> {
    Done,
    /// It is a long poll, to be handled with its body; `None` if that is too long.
    Poll(Request<'a>, Option<&'a [u8]>),
}

/// Handles the first request of a connection's input and returns its length in bytes; `None` if it is
/// incomplete or must wait for the response to the previous one.
pub fn execute<'a>(ctx: &mut Ctx, key: ConnKey, input: &'a [u8]) -> Option<(usize, Taken<'a>)> {
    let second = ctx.io.second();
    let Limits { phoenix_message_bytes_max, input_shard_bytes_max, .. } = ctx.io.limits;
    let body_bytes_max = BODY_MESSAGES * phoenix_message_bytes_max;
    let conn = ctx.io.conns.get_mut(key).filter(|conn| !conn.is_closing())?;
    if conn.session.is_events() {
        return (!input.is_empty()).then_some((input.len(), Taken::Done));
    }
    if conn.session.awaits_answer() {
        return None;
    }
    let (own, request) = (conn.io.local(), Request::read(input));
    let request = match request {
        Ok(None) => return None,
        Ok(Some(request)) => request,
        Err(refusal) => {
            refuse(&mut ctx.io, key, None, refusal);
            return Some((input.len(), Taken::Done));
        }
    };
    if !conn.flags.any(Flags::HANDSHAKED) {
        conn.flags.set(Flags::HANDSHAKED, true);
        ctx.io.timers.set(ctx.io.now.mono_ms + ctx.io.limits.phoenix_silence_ms, Timer::Idle(key));
    }
    let welcome = ctx.io.info.pages.welcome(request.origin, request.host, own);
    let whole = request.len.saturating_add(usize::try_from(request.body_bytes).unwrap_or(usize::MAX));
    if let Err(stranger) = welcome {
        turn_away(&mut ctx.io, key, &stranger);
    } else if topic_of(request.path).is_some() {
        events::begin(ctx, key, &request);
    } else if !is_poll(request.path) {
        refuse(&mut ctx.io, key, request.origin, Refusal::Path);
    } else if request.body_bytes > body_bytes_max || whole as u64 > input_shard_bytes_max {
        return Some((input.len(), Taken::Poll(request, None)));
    } else {
        let body = input.get(request.len..whole)?;
        if let Some(conn) = ctx.io.conns.get_mut(key) {
            conn.active_s = second;
        }
        return Some((whole, Taken::Poll(request, Some(body))));
    }
    Some((input.len(), Taken::Done))
}

/// Closes a connection that has sent no complete request for too long, even if one has begun to arrive.
pub fn look_whether_idle(io: &mut Io, key: ConnKey) {
    let (second, silence_ms) = (io.second(), io.limits.phoenix_silence_ms);
    let Some(conn) = io.conns.get(key).filter(|conn| matches!(conn.session, Session::Http(_))) else {
        return;
    };
    let silent_ms = u64::from(second - conn.active_s) * 1000;
    match silence_ms.saturating_sub(silent_ms) {
        _ if conn.session.awaits_answer() => io.timers.set(io.now.mono_ms + silence_ms, Timer::Idle(key)),
        0 => io.close_now(key),
        left_ms => io.timers.set(io.now.mono_ms + left_ms, Timer::Idle(key)),
    }
}

/// Closes a connection with much unfinished input because the shard's sum is too large.
pub fn refuse_debtor(io: &mut Io, key: ConnKey) {
    let asks = |conn: &crate::context::conn::Conn| !conn.session.awaits_answer() && !conn.session.is_events();
    if io.conns.get(key).is_some_and(asks) {
        refuse(io, key, None, Refusal::Debtor);
    } else {
        // The client would take an error for the response that it waits for.
        io.close_now(key);
    }
}
