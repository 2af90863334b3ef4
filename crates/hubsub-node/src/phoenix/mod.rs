//! Phoenix channels of browsers ([docs/protocol/phoenix.md]): WebSocket messages become calls to the broker, and
//! its results become replies. A state machine in `hubsub-wire` keeps the topics that a connection has joined;
//! this module connects it with the broker, the socket and the clock.
//!
//! Records, replies and gaps use the same code as Redis clients ([`crate::context::fanout`], [`crate::context::reply`]): a record
//! is encoded once per shard and version, a result that is not known yet takes a reply slot, and output to a
//! slow client waits in its queue.
//!
//! - [`channels`]: joins, leaves and pushes, with their effects
//!
//! Invariant: messages are handled whole and in order; while its topic is joining, a message waits and the
//! socket is not read.

pub(crate) mod channels;
pub(crate) mod poll;
pub(crate) mod state;

use crate::context::Ctx;
use crate::context::conn::{Flags, append};
use crate::context::io::{Io, Timer};
use crate::context::session::Session;
use crate::io::log_lines::Level;
use hubsub_types::ConnKey;
use hubsub_wire::phoenix::{Connect, DecodeLimits as PushLimits, End, Flaw, Push, Refused, Socket, Taken};
use hubsub_wire::websocket::{
    CloseCode, DecodeLimits, Decoded, Decoder, Kind, Opcode, Peer, Request, write_close, write_frame,
};
use state::Client;
pub use state::rules;
use std::mem;
use std::rc::Rc;

/// Handles the waiting message or one frame of a connection's input. Returns how many bytes of the input it
/// used; `None` if the message must still wait or the frame is incomplete.
pub fn execute(ctx: &mut Ctx, key: ConnKey, input: &mut [u8]) -> Option<usize> {
    let (second, now_ms) = (ctx.io.second(), ctx.io.now.mono_ms);
    let max = ctx.io.limits.phoenix_message_bytes_max;
    let conn = ctx.io.conns.get_mut(key)?;
    conn.active_s = second;
    let Some(client) = conn.session.browser_mut() else {
        return (!conn.is_closing() && !input.is_empty()).then(|| begin(&mut ctx.io, key, input));
    };
    client.socket.heard(now_ms);
    if client.waits() {
        return None;
    }
    if let Some(kind) = client.waiting.take() {
        let message = mem::take(&mut client.message);
        ctx.io.input_bytes -= message.capacity();
        take(ctx, key, kind, &message);
        return Some(0);
    }
    let limits = DecodeLimits { frame_bytes_max: max, message_bytes_max: max };
    let len = match client.decoder.decode(input, &limits) {
        Ok(Decoded::Incomplete { .. }) => return None,
        Ok(Decoded::Data { kind, bytes, last: true, len }) if client.message.is_empty() => {
            take(ctx, key, kind, bytes);
            len
        }
        Ok(Decoded::Data { kind, bytes, last, len }) => {
            ctx.io.input_bytes -= client.message.capacity();
            // Nor does its capacity exceed the longest message.
            append(&mut client.message, bytes, 0, ctx.io.limits.input_shard_bytes_max.min(max));
            ctx.io.input_bytes += client.message.capacity();
            if last {
                let message = mem::take(&mut client.message);
                ctx.io.input_bytes -= message.capacity();
                take(ctx, key, kind, &message);
            }
            len
        }
        Ok(Decoded::Ping { payload, len }) => {
            ctx.io.push(key, |out, _| write_frame(out, Opcode::Pong, true, payload, None));
            len
        }
        Ok(Decoded::Pong { len, .. } | Decoded::AfterClose { len }) => len,
        Ok(Decoded::Close { code, len, .. }) => {
            close(&mut ctx.io, key, code.unwrap_or(CloseCode::NORMAL), "");
            len
        }
        Err(flaw) => {
            ctx.io.metrics.protocol_errors_total.add(1);
            log_end(&ctx.io, key, flaw.to_string());
            close(&mut ctx.io, key, flaw.code(), &flaw.to_string());
            input.len()
        }
    };
    Some(len)
}

/// Responds to the request that opens a connection, which the transport has read whole. Returns its length.
fn begin(io: &mut Io, key: ConnKey, input: &[u8]) -> usize {
    let Ok(Some(request)) = Request::read(input) else { unreachable!("the transport has read it") };
    let connect = Connect::read(request.path, request.subprotocols());
    let admitted = connect.and_then(|connect| {
        let principal = io.access.principal_of(connect.token.as_deref()).ok_or(Refused::Denied)?;
        Ok((connect, principal))
    });
    match admitted {
        Ok((connect, principal)) => {
            let Some(conn) = io.conns.get_mut(key) else { return input.len() };
            conn.principal = principal;
            admit(io, key, &connect);
            io.push(key, |out, _| request.write_accept(out, connect.subprotocol));
        }
        Err(refused) => {
            io.metrics.phoenix_refused_total.add(1);
            io.log_conn(Level::Info, "browser refused", key, vec![("reason", refused.to_string())]);
            io.push(key, |out, _| refused.write(out));
            io.close_soon(key);
        }
    }
    request.len
}

/// Turns an accepted connection into a browser's.
pub fn admit(io: &mut Io, key: ConnKey, connect: &Connect<'_>) {
    let now_ms = io.now.mono_ms;
    let Some(conn) = io.conns.get_mut(key) else { return };
    conn.flags.set(Flags::HANDSHAKED, true);
    conn.flags.set(Flags::POSITIONS, connect.positions);
    let browser = Client {
        socket: Socket::new(connect.version, now_ms),
        decoder: Decoder::new(Peer::Client),
        message: Vec::new(),
        waiting: None,
        is_early: false,
        was_told: false,
    };
    conn.session = Session::Phoenix(connect.version, Some(Box::new(browser)));
    io.states.phoenix.clients += 1;
    io.timers.set(now_ms + io.states.phoenix.rules.silence_ms_max, Timer::Heartbeat(key));
}

/// Records that a long-polling browser is alive, on each of its requests.
pub fn heard(io: &mut Io, key: ConnKey) {
    let (second, now_ms) = (io.second(), io.now.mono_ms);
    if let Some(conn) = io.conns.get_mut(key) {
        conn.active_s = second;
        conn.flags.set(Flags::HANDSHAKED, true);
        conn.session.browser_mut().into_iter().for_each(|client| client.socket.heard(now_ms));
    }
}

fn take(ctx: &mut Ctx, key: ConnKey, kind: Kind, bytes: &[u8]) {
    let limits = PushLimits { topic_bytes_max: ctx.io.limits.topic_bytes_max as usize };
    let rules = Rc::clone(&ctx.io.states.phoenix.rules);
    let now_ms = ctx.io.now.mono_ms;
    let Some(client) = ctx.io.conns.get_mut(key).and_then(|conn| conn.session.browser_mut()) else { return };
    let version = client.socket.version();
    let read = match kind {
        Kind::Text => match std::str::from_utf8(bytes) {
            Ok(text) => Push::read_text(version, text, &limits),
            Err(_) => Err(Flaw::NotUtf8),
        },
        Kind::Binary => Push::read_binary(version, bytes, &limits),
    };
    let push = match read {
        Ok(push) => push,
        Err(flaw) => {
            ctx.io.metrics.protocol_errors_total.add(1);
            return end(&mut ctx.io, key, End::Flaw(flaw));
        }
    };
    // Its actions access the connection, which must not be borrowed meanwhile.
    let mut socket = mem::replace(&mut client.socket, Socket::new(version, now_ms));
    let mut joined = None;
    let taken = socket
        .receive(&push, &rules, &mut |action| joined = channels::act(ctx, key, action).or(joined.take()));
    let Some(client) = ctx.io.conns.get_mut(key).and_then(|conn| conn.session.browser_mut()) else { return };
    client.socket = socket;
    match taken {
        Taken::Waits => {
            (client.message, client.waiting, client.is_early) = (bytes.to_vec(), Some(kind), true);
            ctx.io.input_bytes += client.message.capacity();
        }
        Taken::Yes => {
            ctx.io.metrics.phoenix_messages_total.add(1);
            if let Some(outcome) = joined {
                channels::joined(ctx, key, &push.topic, outcome);
            }
        }
    }
}

/// Closes a browser that has been silent for too long; a paused socket does not count as silent.
pub fn look_for_silence(io: &mut Io, key: ConnKey) {
    let (rules, now_ms) = (Rc::clone(&io.states.phoenix.rules), io.now.mono_ms);
    let Some(conn) = io.conns.get_mut(key).filter(|conn| !conn.is_closing()) else { return };
    // A long-polling browser sends requests even while it is paused, and nothing else ends it if it is gone.
    let is_paused = conn.flags.any(Flags::PAUSED) && !conn.io.is_polled();
    let Some(client) = conn.session.browser_mut() else { return };
    if is_paused {
        client.socket.heard(now_ms);
    }
    match client.socket.silent_at_ms(&rules) {
        at_ms if at_ms > now_ms => io.timers.set(at_ms, Timer::Heartbeat(key)),
        _ => {
            io.metrics.phoenix_silent_total.add(1);
            end(io, key, End::Silent);
        }
    }
}

/// Closes a browser's connection and sends the reason; does nothing for other clients.
pub fn end(io: &mut Io, key: ConnKey, why: End) {
    let is_there = |conn: &crate::context::conn::Conn| conn.session.browser().is_some() && !conn.is_closing();
    if !io.conns.get(key).is_some_and(is_there) {
        return;
    }
    let words = match why {
        End::Flaw(flaw) => flaw.to_string(),
        End::Silent => "silent for too long".to_owned(),
        End::Debtor => crate::context::conn::UNFINISHED.to_owned(),
        End::Disconnected | End::Restart => String::new(),
    };
    if !words.is_empty() {
        log_end(io, key, words.clone());
    }
    close(io, key, why.code(), &words);
}

fn log_end(io: &Io, key: ConnKey, why: String) {
    io.log_conn(Level::Info, "browser disconnected", key, vec![("reason", why)]);
}

fn close(io: &mut Io, key: ConnKey, code: CloseCode, words: &str) {
    if let Some(client) = io.conns.get_mut(key).and_then(|conn| conn.session.browser_mut()) {
        client.was_told = true;
    }
    io.push(key, |out, _| write_close(out, code, words, None));
    if io.conns.get(key).is_some_and(|conn| conn.io.is_polled()) {
        // Output that it has not fetched by now is lost.
        io.close_now(key);
    } else {
        io.close_soon(key);
    }
}
