//! Long polls of browsers ([docs/protocol/phoenix.md], "Long poll"). A session is a browser's connection
//! without a socket: its output waits in its [`Polled`] until a request fetches it, and the lines of a
//! request are its input. It lives on the shard of its first request, which its token names. Later requests may
//! arrive at any shard, which sends `Ask` there and gets `Answer` when there is output, or its lines are read.
//!
//! Invariants:
//!
//! - At most one request of each kind waits, and a connection reads no further request before the response.
//! - A session whose client stops polling ends like a silent browser. One that never gets a request with the
//!   token from its first response ends like a connection that sends nothing.
//! - A session has at most one pending timer for its requests.

use super::state::{PollMail, What};
use crate::context::Ctx;
use crate::context::conn::{Conn, Flags, append};
use crate::context::io::{Io, Timer};
use crate::context::session::Session;
use crate::io::listener::ListenerKind;
use crate::io::origin_check::fields_for;
use crate::io::transport::{Asker, Polled, Transport};
use hubsub_types::{ConnKey, ShardId};
use hubsub_wire::http::{Answer, Request};
use hubsub_wire::phoenix::{
    Connect, PollStatus, PollToken, poll_token, read_lines, write_messages, write_poll_status,
};
use std::sync::atomic::Ordering;

/// Handles a request with its body; one that is not a long poll's has no effect.
pub(crate) fn request(ctx: &mut Ctx, key: ConnKey, request: &Request<'_>, body: &[u8]) {
    let io = &mut ctx.io;
    let (shard, origin) = (io.shard, request.origin.map(Into::into));
    // Nobody parses bytes after the response to a method such as HEAD, so the connection closes.
    let is_known = ["GET", "POST", "OPTIONS"].contains(&request.method);
    let asker = Asker { shard, conn: key, origin, is_last: request.is_last() || !is_known };
    let what = match request.method {
        "OPTIONS" => return allow(io, key, request),
        "GET" => Ok(What::Get),
        "POST" => {
            let mut frames = Vec::new();
            let lines =
                request.field("Content-Type").is_some_and(|of| of.starts_with("application/x-ndjson"));
            read_lines(body, lines, &mut frames).map(|()| What::Post(frames))
        }
        _ => Err(PollStatus::Bad),
    };
    match (what, poll_token(request)) {
        (Err(status), _) => refuse(ctx, &asker, status),
        (Ok(what), Some(token)) => {
            if let Some(conn) = io.conns.get_mut(key) {
                conn.session = Session::Http(true);
            }
            // The response ends the wait.
            match ShardId(token.shard) {
                to if to == shard => asked(ctx, asker, token, what),
                to if to.0 < io.mailer.shards() => {
                    io.mailer.post(to, PollMail::Ask(asker, token, what));
                }
                _ => refuse(ctx, &asker, PollStatus::Gone),
            }
        }
        (Ok(What::Get), None) => match Connect::of_poll(request) {
            Ok(connect) => begin(ctx, &asker, &connect),
            Err(_) => refuse(ctx, &asker, PollStatus::Forbidden),
        },
        (Ok(What::Post(_)), None) => refuse(ctx, &asker, PollStatus::Gone),
    }
}

pub(crate) fn refuse_long(ctx: &mut Ctx, key: ConnKey, request: &Request<'_>) {
    let (shard, origin) = (ctx.io.shard, request.origin.map(Into::into));
    refuse(ctx, &Asker { shard, conn: key, origin, is_last: true }, PollStatus::TooLong);
}

fn allow(io: &mut Io, key: ConnKey, request: &Request<'_>) {
    let fields = format!(
        "{}Access-Control-Allow-Methods: GET, POST\r\n\
Access-Control-Allow-Headers: content-type, x-phoenix-authtoken\r\nAccess-Control-Max-Age: 86400\r\n",
        fields_for(request.origin)
    );
    let is_last = request.is_last();
    let answer = Answer { status: "204 No Content", content_type: "", fields: &fields, body: b"", is_last };
    io.push(key, |out, _| answer.write(out));
    if is_last {
        io.close_soon(key);
    }
}

fn refuse(ctx: &mut Ctx, asker: &Asker, status: PollStatus) {
    ctx.io.metrics.events_refused_total.add(1);
    answer_status(ctx, asker, status, None);
}

/// Begins a session; its first request is answered at once.
fn begin(ctx: &mut Ctx, asker: &Asker, connect: &Connect<'_>) {
    let io = &mut ctx.io;
    let Some(principal) = io.access.principal_of(connect.token.as_deref()) else {
        return refuse(ctx, asker, PollStatus::Forbidden);
    };
    let share = io.limits.longpoll_sessions_max.div_ceil(u64::from(io.mailer.shards()));
    let open = io.info.connections.fetch_add(1, Ordering::Relaxed);
    if open >= io.limits.connections_max || io.states.phoenix.polled_clients as u64 >= share {
        io.info.connections.fetch_sub(1, Ordering::Relaxed);
        io.metrics.connections_refused_total.add(1);
        return refuse(ctx, asker, PollStatus::Full);
    }
    let random = crate::io::sys::random();
    let secret = u128::from_be_bytes(*random.first_chunk().expect("32 bytes have 16"));
    let id = io.info.clients.fetch_add(1, Ordering::Relaxed);
    let polled = Polled::new(secret);
    let mut conn = Conn::new(Transport::Polled(Box::new(polled)), ListenerKind::WebSocket, id, io.second());
    conn.principal = principal;
    let key = io.add(conn);
    io.states.phoenix.polled_clients += 1;
    io.metrics.connections_accepted_total.add(1);
    crate::phoenix::admit(io, key, connect);
    if let Some(conn) = io.conns.get_mut(key) {
        // A client that never sends its token is not a browser: the handshake time-out ends it.
        conn.flags.set(Flags::HANDSHAKED, false);
    }
    ctx.broker.connected(key);
    let token = token_of(ctx.io.shard, key, secret);
    answer_status(ctx, asker, PollStatus::Gone, Some(&token));
}

/// The session that a token names; `None` if it is gone or the secret differs.
fn session(io: &mut Io, token: &PollToken) -> Option<ConnKey> {
    let key = ConnKey { index: token.place, generation: token.generation };
    let conn = io.conns.get_mut(key).filter(|conn| !conn.is_closing())?;
    let Transport::Polled(polled) = &conn.io else { return None };
    (polled.secret == token.secret).then_some(key)
}

fn token_of(shard: ShardId, key: ConnKey, secret: u128) -> PollToken {
    PollToken { secret, shard: shard.0, place: key.index, generation: key.generation }
}

pub fn receive(ctx: &mut Ctx, mail: PollMail) {
    match mail {
        PollMail::Ask(asker, token, what) => asked(ctx, asker, token, what),
        PollMail::Answer(key, bytes, is_last) => answered(&mut ctx.io, key, &bytes, is_last),
    }
}

/// Handles a request to a session of this shard.
fn asked(ctx: &mut Ctx, asker: Asker, token: PollToken, what: What) {
    let now_ms = ctx.io.now.mono_ms;
    let window_ms = ctx.io.limits.longpoll_window_ms;
    let Some(key) = session(&mut ctx.io, &token) else {
        return answer_status(ctx, &asker, PollStatus::Gone, None);
    };
    crate::phoenix::heard(&mut ctx.io, key);
    let Some(polled) = polled_of(&mut ctx.io, key) else { return };
    match what {
        What::Get => {
            let was_watched = std::mem::replace(&mut polled.is_watched, true);
            let before = polled.waits.replace((asker, now_ms + window_ms));
            if let Some((before, _)) = before {
                // A new GET means that the client gave the earlier one up.
                answer(ctx, &before, |out| write_messages(out, &token, &mut []));
            }
            if !was_watched {
                ctx.io.timers.set(now_ms + window_ms, Timer::Window(key));
            }
            tell(ctx, key);
        }
        What::Post(_) if polled.posts.is_some() => refuse(ctx, &asker, PollStatus::TooMany),
        What::Post(frames) => {
            polled.posts = Some(asker);
            ctx.io.posted.push((key, frames));
        }
    }
}

fn polled_of(io: &mut Io, key: ConnKey) -> Option<&mut Polled> {
    match &mut io.conns.get_mut(key)?.io {
        Transport::Polled(polled) => Some(polled),
        _ => None,
    }
}

/// Sends a session's pending output to its waiting GET, if there is one.
pub fn tell(ctx: &mut Ctx, key: ConnKey) {
    let shard = ctx.io.shard;
    let Some(polled) = polled_of(&mut ctx.io, key) else { return };
    if polled.frames.is_empty() {
        return;
    }
    let Some((asker, _)) = polled.waits.take() else { return };
    let token = token_of(shard, key, polled.secret);
    let mut frames = std::mem::take(&mut polled.frames);
    answer(ctx, &asker, |out| write_messages(out, &token, &mut frames));
    // Output that waited as for a full socket.
    ctx.io.write_queue(key);
}

/// Ends the wait of a GET at its deadline. The timer may also find that a newer GET waits: then it is set
/// again.
pub fn look_at_window(ctx: &mut Ctx, key: ConnKey) {
    let (shard, now_ms) = (ctx.io.shard, ctx.io.now.mono_ms);
    let Some(polled) = polled_of(&mut ctx.io, key) else { return };
    let later_ms = polled.waits.as_ref().map(|(_, until_ms)| *until_ms).filter(|until_ms| *until_ms > now_ms);
    polled.is_watched = later_ms.is_some();
    if let Some(until_ms) = later_ms {
        ctx.io.timers.set(until_ms, Timer::Window(key));
    } else if let Some((asker, _)) = polled.waits.take() {
        let token = token_of(shard, key, polled.secret);
        answer(ctx, &asker, |out| write_messages(out, &token, &mut []));
    }
}

/// Ends a session: its last output goes to the waiting request, and the next request gets `Gone`.
pub fn ended(ctx: &mut Ctx, key: ConnKey, mut polled: Polled) {
    ctx.io.states.phoenix.polled_clients -= 1;
    let token = token_of(ctx.io.shard, key, polled.secret);
    if let Some((asker, _)) = polled.waits.take() {
        // A Close frame cannot be sent in a response.
        if polled.frames.first().is_none_or(|first| first & 0x08 != 0) {
            answer_status(ctx, &asker, PollStatus::Gone, None);
        } else {
            answer(ctx, &asker, |out| write_messages(out, &token, &mut polled.frames));
        }
    }
    if let Some(asker) = polled.posts.take() {
        answer_status(ctx, &asker, PollStatus::Gone, None);
    }
}

/// Answers the POST once all its lines are read, and returns whether they are.
pub fn look_at_post(ctx: &mut Ctx, key: ConnKey) -> bool {
    let Some(conn) = ctx.io.conns.get_mut(key) else { return true };
    if conn.input.is_some() && !conn.is_closing() {
        return false;
    }
    let Some(asker) = polled_of(&mut ctx.io, key).and_then(|polled| polled.posts.take()) else {
        return true;
    };
    answer_status(ctx, &asker, PollStatus::Taken, None);
    true
}

/// Appends lines to the unfinished input of a session that is paused; else returns them.
pub fn keep(io: &mut Io, key: ConnKey, frames: Vec<u8>) -> Option<Vec<u8>> {
    let Some(conn) = io.conns.get_mut(key).filter(|conn| conn.flags.any(Flags::PAUSED)) else {
        return Some(frames);
    };
    let input = conn.input.get_or_insert_default();
    append(&mut input.bytes, &frames, 0, io.limits.input_shard_bytes_max);
    io.input_bytes -= input.counted;
    input.counted = input.bytes.capacity();
    io.input_bytes += input.counted;
    None
}

fn answer_status(ctx: &mut Ctx, asker: &Asker, status: PollStatus, token: Option<&PollToken>) {
    answer(ctx, asker, |out| write_poll_status(out, status, token));
}

/// Answers a request, on whichever shard its connection is.
fn answer(ctx: &mut Ctx, asker: &Asker, write: impl FnOnce(&mut Vec<u8>)) {
    let (mut body, mut out) = (Vec::new(), Vec::new());
    write(&mut body);
    let fields = fields_for(asker.origin.as_deref());
    let (status, content_type, is_last) = ("200 OK", "application/json", asker.is_last);
    Answer { status, content_type, fields: &fields, body: &body, is_last }.write(&mut out);
    if asker.shard == ctx.io.shard {
        answered(&mut ctx.io, asker.conn, &out, is_last);
    } else {
        ctx.io.mailer.post(asker.shard, PollMail::Answer(asker.conn, out, is_last));
    }
}

/// Writes the response to a request of a connection of this shard.
fn answered(io: &mut Io, key: ConnKey, bytes: &[u8], is_last: bool) {
    let Some(conn) = io.conns.get_mut(key) else { return };
    if let Session::Http(waits) = &mut conn.session {
        *waits = false;
    }
    if conn.flags.any(Flags::PAUSED) {
        io.answered.push(key);
    }
    io.push(key, |out, _| out.extend_from_slice(bytes));
    if is_last {
        io.close_soon(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lone::Lone;
    use hubsub_types::Limits;

    #[test]
    fn however_much_a_session_asks_one_timer_looks_at_its_requests() {
        let mut lone = Lone::new(Limits { longpoll_window_ms: 1_000, ..Limits::default() });
        let (conn, _peer) = lone.connect();
        let ctx = &mut lone.ctx;
        let asker = || Asker { shard: ShardId(0), conn, origin: None, is_last: false };
        let head = b"GET /socket/longpoll?vsn=2.0.0 HTTP/1.1\r\nHost: a\r\n\r\n";
        let request = Request::read(head).unwrap().unwrap();
        begin(ctx, &asker(), &Connect::of_poll(&request).unwrap());
        let key = ctx.io.conns.key_at(conn.index + 1).unwrap();
        let secret = polled_of(&mut ctx.io, key).unwrap().secret;
        let token = token_of(ShardId(0), key, secret);
        let mut looks = 0;
        for _ in 0..5 {
            for _ in 0..100 {
                asked(ctx, asker(), token, What::Get);
            }
            ctx.io.now.mono_ms += 900;
            let mut due = Vec::new();
            ctx.io.timers.due(ctx.io.now.mono_ms, &mut due);
            for timer in due {
                if let Timer::Window(key) = timer {
                    looks += 1;
                    look_at_window(ctx, key);
                    assert!(polled_of(&mut ctx.io, key).unwrap().waits.is_some(), "its own time is not over");
                }
            }
        }
        assert!((2..=5).contains(&looks), "{looks}");
        ctx.io.now.mono_ms += 1_000;
        look_at_window(ctx, key);
        assert!(polled_of(&mut ctx.io, key).unwrap().waits.is_none());
    }
}
