//! Long polls of browsers ([docs/protocol/phoenix.md], "Long poll"): a session is a connection as any browser's, of which
//! only the socket is missing. What it is told waits in its [`Polled`] until a request asks for it; the lines of a
//! request are its input.
//!
//! ```text
//!  the shard of the request                 the shard of the session
//!      │ ── Ask: GET or POST ────────────────► │  waits for something to say, or to be taken
//!      │ ◄─ Answer ─────────────────────────── │
//! ```
//!
//! A session is of the shard that was asked first, and its token says which. Requests come by connections of any shard.
//!
//! Invariants: of each kind one request waits; a connection reads no further request before its answer; a session whose
//! requests do not come back ends as a browser does that is silent, and one that nobody asks anything, with the token that
//! its first request got, as a connection that says nothing; of a session one timer for its requests is pending.

use super::fields_for;
use crate::conn::{Conn, Flags, append};
use crate::core::Core;
use crate::listener::Door;
use crate::mail::Mail;
use crate::rim::{Rim, Timer};
use crate::transport::Transport;
use hubsub_types::{ConnKey, ShardId};
use hubsub_wire::http::{Answer, Request};
use hubsub_wire::phoenix::{
    Connect, LONGPOLL_PATH, PollStatus, PollToken, poll_token, read_lines, write_messages, write_poll_status,
};
use std::io::{self, ErrorKind, IoSlice};
use std::sync::atomic::Ordering;

/// Bytes that wait for the next request; further ones wait as those for a full socket do.
const POLLED_BYTES: usize = 64 * 1024;

/// In the place of a socket.
pub struct Polled {
    secret: u128,
    /// Frames that no answer has taken.
    frames: Vec<u8>,
    /// The GET that waits, and until when, in ms.
    waits: Option<(Asker, u64)>,
    /// Whether a timer looks how long it does.
    is_watched: bool,
    /// The POST whose lines are not all taken.
    posts: Option<Asker>,
}

/// Who asked: a connection of a shard, for a page.
#[derive(Debug)]
pub struct Asker {
    shard: ShardId,
    conn: ConnKey,
    origin: Option<Box<str>>,
    is_last: bool,
}

/// What is asked of a session.
#[derive(Debug)]
pub enum What {
    /// What there is to say.
    Get,
    /// That these frames of the page are taken.
    Post(Vec<u8>),
}

/// Letters about long polls.
#[derive(Debug)]
pub enum PollMail {
    /// To the session.
    Ask(Asker, PollToken, What),
    /// To who asked: the whole answer, and whether the connection ends behind it.
    Answer(ConnKey, Vec<u8>, bool),
}

impl PollMail {
    /// What it counts against the mailbox limit.
    #[must_use]
    pub fn weight(&self) -> usize {
        let bytes = match self {
            PollMail::Ask(_, _, What::Post(bytes)) | PollMail::Answer(_, bytes, _) => bytes.len(),
            PollMail::Ask(..) => 0,
        };
        std::mem::size_of::<PollMail>() + bytes
    }
}

impl Polled {
    fn new(secret: u128) -> Polled {
        Polled { secret, frames: Vec::new(), waits: None, is_watched: false, posts: None }
    }

    /// Takes slices, each of whole frames, until too much waits.
    ///
    /// # Errors
    /// `WouldBlock` when it does already.
    pub fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.frames.len() >= POLLED_BYTES {
            return Err(ErrorKind::WouldBlock.into());
        }
        let before = self.frames.len();
        for slice in from {
            self.frames.extend_from_slice(slice);
            if self.frames.len() >= POLLED_BYTES {
                break;
            }
        }
        Ok(self.frames.len() - before)
    }
}

/// Takes a request, with its body; nothing comes of one that is not a long poll's.
pub(super) fn request(core: &mut Core, key: ConnKey, request: &Request<'_>, body: &[u8]) {
    let rim = &mut core.rim;
    let (shard, origin) = (rim.shard, request.origin.map(Into::into));
    // What follows the body of an answer to HEAD, say, nobody reads as an answer.
    let is_known = ["GET", "POST", "OPTIONS"].contains(&request.method);
    let asker = Asker { shard, conn: key, origin, is_last: request.is_last() || !is_known };
    let what = match request.method {
        "OPTIONS" => return allow(rim, key, request),
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
        (Err(status), _) => refuse(core, &asker, status),
        (Ok(what), Some(token)) => {
            if let Some(conn) = rim.conns.get_mut(key) {
                conn.io.await_answer(true);
            }
            // Its answer ends the wait.
            match ShardId(token.shard) {
                to if to == shard => asked(core, asker, token, what),
                to if to.0 < rim.mailer.shards() => {
                    rim.mailer.post(to, Mail::Poll(PollMail::Ask(asker, token, what)));
                }
                _ => refuse(core, &asker, PollStatus::Gone),
            }
        }
        (Ok(What::Get), None) => match Connect::of_poll(request) {
            Ok(connect) => begin(core, &asker, &connect),
            Err(_) => refuse(core, &asker, PollStatus::Forbidden),
        },
        (Ok(What::Post(_)), None) => refuse(core, &asker, PollStatus::Gone),
    }
}

/// A request's body is longer than it may be.
pub(super) fn refuse_long(core: &mut Core, key: ConnKey, request: &Request<'_>) {
    let (shard, origin) = (core.rim.shard, request.origin.map(Into::into));
    refuse(core, &Asker { shard, conn: key, origin, is_last: true }, PollStatus::TooLong);
}

/// Whether a request is one of these.
#[must_use]
pub fn is_poll(path: &str) -> bool {
    path == LONGPOLL_PATH
}

/// What a page of another origin may ask.
fn allow(rim: &mut Rim, key: ConnKey, request: &Request<'_>) {
    let fields = format!(
        "{}Access-Control-Allow-Methods: GET, POST\r\n\
Access-Control-Allow-Headers: content-type, x-phoenix-authtoken\r\nAccess-Control-Max-Age: 86400\r\n",
        fields_for(request.origin)
    );
    let is_last = request.is_last();
    let answer = Answer { status: "204 No Content", content_type: "", fields: &fields, body: b"", is_last };
    rim.push(key, |out, _| answer.write(out));
    if is_last {
        rim.close_soon(key);
    }
}

fn refuse(core: &mut Core, asker: &Asker, status: PollStatus) {
    core.rim.metrics.events_refused_total.add(1);
    answer_status(core, asker, status, None);
}

/// Begins a session, whose first request is answered at once.
fn begin(core: &mut Core, asker: &Asker, connect: &Connect<'_>) {
    let rim = &mut core.rim;
    let Some(principal) = rim.access.principal_of(connect.token.as_deref()) else {
        return refuse(core, asker, PollStatus::Forbidden);
    };
    let share = rim.limits.longpoll_sessions_max.div_ceil(u64::from(rim.mailer.shards()));
    let open = rim.info.connections.fetch_add(1, Ordering::Relaxed);
    if open >= rim.limits.connections_max || rim.polled_clients as u64 >= share {
        rim.info.connections.fetch_sub(1, Ordering::Relaxed);
        rim.metrics.connections_refused_total.add(1);
        return refuse(core, asker, PollStatus::Full);
    }
    let random = crate::sys::random();
    let secret = u128::from_be_bytes(*random.first_chunk().expect("32 bytes have 16"));
    let id = rim.info.clients.fetch_add(1, Ordering::Relaxed);
    let polled = Polled::new(secret);
    let mut conn = Conn::new(Transport::Polled(Box::new(polled)), Door::WebSocket, id, rim.second());
    conn.principal = principal;
    let key = rim.add(conn);
    rim.polled_clients += 1;
    rim.metrics.connections_accepted_total.add(1);
    crate::phoenix::admit(rim, key, connect);
    if let Some(conn) = rim.conns.get_mut(key) {
        // Who asks once and never with its token has no page.
        conn.flags.set(Flags::HANDSHAKED, false);
    }
    core.broker.connected(key);
    let token = token_of(core.rim.shard, key, secret);
    answer_status(core, asker, PollStatus::Gone, Some(&token));
}

/// The session that a token names; none that is gone, or whose secret is another.
fn session(rim: &mut Rim, token: &PollToken) -> Option<ConnKey> {
    let key = ConnKey { index: token.place, generation: token.generation };
    let conn = rim.conns.get_mut(key).filter(|conn| !conn.is_closing())?;
    let Transport::Polled(polled) = &conn.io else { return None };
    (polled.secret == token.secret).then_some(key)
}

fn token_of(shard: ShardId, key: ConnKey, secret: u128) -> PollToken {
    PollToken { secret, shard: shard.0, place: key.index, generation: key.generation }
}

/// A letter about long polls.
pub fn receive(core: &mut Core, mail: PollMail) {
    match mail {
        PollMail::Ask(asker, token, what) => asked(core, asker, token, what),
        PollMail::Answer(key, bytes, is_last) => answered(&mut core.rim, key, &bytes, is_last),
    }
}

/// Something is asked of a session of this shard.
fn asked(core: &mut Core, asker: Asker, token: PollToken, what: What) {
    let now_ms = core.rim.now.mono_ms;
    let window_ms = core.rim.limits.longpoll_window_ms;
    let Some(key) = session(&mut core.rim, &token) else {
        return answer_status(core, &asker, PollStatus::Gone, None);
    };
    crate::phoenix::heard(&mut core.rim, key);
    let Some(polled) = polled_of(&mut core.rim, key) else { return };
    match what {
        What::Get => {
            let was_watched = std::mem::replace(&mut polled.is_watched, true);
            let before = polled.waits.replace((asker, now_ms + window_ms));
            if let Some((before, _)) = before {
                // Whoever asks again has given the first one up.
                answer(core, &before, |out| write_messages(out, &token, &mut []));
            }
            if !was_watched {
                core.rim.timers.set(now_ms + window_ms, Timer::Window(key));
            }
            tell(core, key);
        }
        What::Post(_) if polled.posts.is_some() => refuse(core, &asker, PollStatus::TooMany),
        What::Post(frames) => {
            polled.posts = Some(asker);
            core.rim.posted.push((key, frames));
        }
    }
}

fn polled_of(rim: &mut Rim, key: ConnKey) -> Option<&mut Polled> {
    match &mut rim.conns.get_mut(key)?.io {
        Transport::Polled(polled) => Some(polled),
        _ => None,
    }
}

/// What waits for a session's next request goes to the one that waits, if there is one.
pub fn tell(core: &mut Core, key: ConnKey) {
    let shard = core.rim.shard;
    let Some(polled) = polled_of(&mut core.rim, key) else { return };
    if polled.frames.is_empty() {
        return;
    }
    let Some((asker, _)) = polled.waits.take() else { return };
    let token = token_of(shard, key, polled.secret);
    let mut frames = std::mem::take(&mut polled.frames);
    answer(core, &asker, |out| write_messages(out, &token, &mut frames));
    // What waited as for a full socket.
    core.rim.write_queue(key);
}

/// A request has waited for as long as it may, perhaps; or another one waits since.
pub fn look_at_window(core: &mut Core, key: ConnKey) {
    let (shard, now_ms) = (core.rim.shard, core.rim.now.mono_ms);
    let Some(polled) = polled_of(&mut core.rim, key) else { return };
    let later_ms = polled.waits.as_ref().map(|(_, until_ms)| *until_ms).filter(|until_ms| *until_ms > now_ms);
    polled.is_watched = later_ms.is_some();
    if let Some(until_ms) = later_ms {
        core.rim.timers.set(until_ms, Timer::Window(key));
    } else if let Some((asker, _)) = polled.waits.take() {
        let token = token_of(shard, key, polled.secret);
        answer(core, &asker, |out| write_messages(out, &token, &mut []));
    }
}

/// A session has ended: what it was told last goes with the request that waits, and the next one hears that it is gone.
pub fn ended(core: &mut Core, key: ConnKey, mut polled: Polled) {
    core.rim.polled_clients -= 1;
    let token = token_of(core.rim.shard, key, polled.secret);
    if let Some((asker, _)) = polled.waits.take() {
        // A Close has no place in an answer.
        if polled.frames.first().is_none_or(|first| first & 0x08 != 0) {
            answer_status(core, &asker, PollStatus::Gone, None);
        } else {
            answer(core, &asker, |out| write_messages(out, &token, &mut polled.frames));
        }
    }
    if let Some(asker) = polled.posts.take() {
        answer_status(core, &asker, PollStatus::Gone, None);
    }
}

/// Whether all lines of a request are taken: then it is answered.
pub fn look_at_post(core: &mut Core, key: ConnKey) -> bool {
    let Some(conn) = core.rim.conns.get_mut(key) else { return true };
    if conn.input.is_some() && !conn.is_closing() {
        return false;
    }
    let Some(asker) = polled_of(&mut core.rim, key).and_then(|polled| polled.posts.take()) else {
        return true;
    };
    answer_status(core, &asker, PollStatus::Taken, None);
    true
}

/// Lines of a session that does not read on wait behind what it has, and count as its unfinished input.
pub fn keep(rim: &mut Rim, key: ConnKey, frames: Vec<u8>) -> Option<Vec<u8>> {
    let Some(conn) = rim.conns.get_mut(key).filter(|conn| conn.flags.any(Flags::PAUSED)) else {
        return Some(frames);
    };
    let input = conn.input.get_or_insert_default();
    append(&mut input.bytes, &frames, 0, rim.limits.input_shard_bytes_max);
    rim.input_bytes -= input.counted;
    input.counted = input.bytes.capacity();
    rim.input_bytes += input.counted;
    None
}

fn answer_status(core: &mut Core, asker: &Asker, status: PollStatus, token: Option<&PollToken>) {
    answer(core, asker, |out| write_poll_status(out, status, token));
}

/// Answers a request, wherever its connection is.
fn answer(core: &mut Core, asker: &Asker, write: impl FnOnce(&mut Vec<u8>)) {
    let (mut body, mut out) = (Vec::new(), Vec::new());
    write(&mut body);
    let fields = fields_for(asker.origin.as_deref());
    let (status, content_type, is_last) = ("200 OK", "application/json", asker.is_last);
    Answer { status, content_type, fields: &fields, body: &body, is_last }.write(&mut out);
    if asker.shard == core.rim.shard {
        answered(&mut core.rim, asker.conn, &out, is_last);
    } else {
        core.rim.mailer.post(asker.shard, Mail::Poll(PollMail::Answer(asker.conn, out, is_last)));
    }
}

/// The answer to a request of a connection of this shard.
fn answered(rim: &mut Rim, key: ConnKey, bytes: &[u8], is_last: bool) {
    let Some(conn) = rim.conns.get_mut(key) else { return };
    conn.io.await_answer(false);
    if conn.flags.any(Flags::PAUSED) {
        rim.answered.push(key);
    }
    rim.push(key, |out, _| out.extend_from_slice(bytes));
    if is_last {
        rim.close_soon(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lone::Lone;
    use hubsub_types::Limits;

    #[test]
    fn what_waits_for_a_request_is_bounded_and_has_whole_frames() {
        let mut polled = Polled::new(0);
        let frame = [0; 48 * 1024];
        let queue = [IoSlice::new(&frame); 100];
        assert_eq!(polled.write(&queue).unwrap(), 2 * frame.len());
        assert_eq!(polled.write(&queue).unwrap_err().kind(), ErrorKind::WouldBlock);
        polled.frames.clear();
        assert_eq!(polled.write(&queue[..1]).unwrap(), frame.len());
    }

    #[test]
    fn however_much_a_session_asks_one_timer_looks_at_its_requests() {
        let mut lone = Lone::new(Limits { longpoll_window_ms: 1_000, ..Limits::default() });
        let (conn, _peer) = lone.connect();
        let core = &mut lone.core;
        let asker = || Asker { shard: ShardId(0), conn, origin: None, is_last: false };
        let head = b"GET /socket/longpoll?vsn=2.0.0 HTTP/1.1\r\nHost: a\r\n\r\n";
        let request = Request::read(head).unwrap().unwrap();
        begin(core, &asker(), &Connect::of_poll(&request).unwrap());
        let key = core.rim.conns.key_at(conn.index + 1).unwrap();
        let secret = polled_of(&mut core.rim, key).unwrap().secret;
        let token = token_of(ShardId(0), key, secret);
        let mut looks = 0;
        for _ in 0..5 {
            for _ in 0..100 {
                asked(core, asker(), token, What::Get);
            }
            core.rim.now.mono_ms += 900;
            let mut due = Vec::new();
            core.rim.timers.due(core.rim.now.mono_ms, &mut due);
            for timer in due {
                if let Timer::Window(key) = timer {
                    looks += 1;
                    look_at_window(core, key);
                    assert!(
                        polled_of(&mut core.rim, key).unwrap().waits.is_some(),
                        "its own time is not over"
                    );
                }
            }
        }
        assert!((2..=5).contains(&looks), "{looks}");
        core.rim.now.mono_ms += 1_000;
        look_at_window(core, key);
        assert!(polled_of(&mut core.rim, key).unwrap().waits.is_none());
    }
}
