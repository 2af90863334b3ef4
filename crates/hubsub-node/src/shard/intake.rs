//! Input of connections: read once per turn, decoded in place, executed command by command. Incomplete commands,
//! and commands that a paused connection may not execute yet, are kept with the connection.

use super::Shard;
use crate::context::conn::{Conn, Flags, Input, append};
use crate::context::io::{Io, TURN_BYTES};
use crate::context::session::Session;
use crate::context::{Ctx, refusals};
use crate::io::log_lines::Level;
use crate::io::meter::BYTES_IN;
use crate::io::origin_check::ForeignOrigin;
use crate::io::wrong_protocol;
use crate::{http, mqtt, phoenix, redis};
use hubsub_route::Sink;
use hubsub_types::ConnKey;
use hubsub_wire::resp::{DecodeLimits, Decoded, Decoder};
use std::io::ErrorKind;

/// The most bytes read from a socket at once.
pub(super) const READ_BYTES: usize = 64 * 1024;

/// Smaller buffers are not reused: allocating them costs less.
const JOINED_BYTES_MIN: usize = 4 * 1024;

/// The most arguments of a command that are passed on without an allocation.
const FEW: usize = 8;

/// The most requests to other shards that a client may have in flight: responses may be long.
const QUESTIONS_MAX: u32 = 16;

impl Shard {
    pub(super) fn read(&mut self, key: ConnKey) {
        let second = self.ctx.io.second();
        let Some(conn) = self.ctx.io.conns.get_mut(key) else { return };
        if conn.is_closing() || conn.flags.any(Flags::PAUSED) || self.stopping.is_some() {
            return;
        }
        let unfinished = conn.io.unfinished_bytes();
        self.clock.split(false);
        let got = conn.read(&mut self.scratch);
        self.clock.split(true);
        self.ctx.io.input_bytes += conn.io.unfinished_bytes();
        self.ctx.io.input_bytes -= unfinished;
        self.ctx.io.metrics.reads_total.add(1);
        match got {
            // It may have closed only its sending side: it still gets its replies.
            Ok(0) => self.ctx.io.close_soon(key),
            Ok(n) => {
                self.ctx.io.metrics.bytes_in_total.add(n as u64);
                if conn.session.is_mqtt() {
                    self.ctx.io.metrics.mqtt_bytes_in_total.add(n as u64);
                }
                conn.meter.totals[BYTES_IN] += n as u64;
                if conn.created_s != second {
                    conn.meter.roll(second);
                }
                // The end of input follows the last bytes, without an event of its own.
                if n == self.scratch.len() || conn.io.has_more() || conn.flags.any(Flags::ENDED) {
                    self.ready.push(key);
                }
                let mut scratch = std::mem::take(&mut self.scratch);
                self.input(key, &mut scratch[..n]);
                self.scratch = scratch;
            }
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) if e.kind() == ErrorKind::Interrupted => self.ready.push(key),
            Err(e) => {
                if let Some(stranger) = e.get_ref().and_then(|e| e.downcast_ref::<ForeignOrigin>()) {
                    self.ctx.io.note_stranger(key, stranger);
                }
                if let Some(stranger) =
                    e.get_ref().and_then(|e| e.downcast_ref::<wrong_protocol::WrongProtocol>())
                {
                    refusals::note_protocol(&mut self.ctx.io, key, *stranger);
                }
                self.ctx.io.close_now(key);
            }
        }
    }

    /// Executes new input of a connection, after the input that it kept.
    pub(super) fn input(&mut self, key: ConnKey, bytes: &mut [u8]) {
        let Some(conn) = self.ctx.io.conns.get_mut(key) else { return };
        if !conn.flags.any(Flags::HANDSHAKED)
            && conn.input.is_none()
            && let Some(stranger) = wrong_protocol::recognized(conn.kind, bytes)
        {
            return refusals::refuse_protocol(&mut self.ctx.io, key, stranger);
        }
        match conn.input.take() {
            None => {
                let mut decoder = std::mem::take(&mut self.decoder);
                let used = self.execute(key, bytes, &mut decoder);
                if used < bytes.len() {
                    self.keep(key, Input { bytes: bytes[used..].to_vec(), decoder, counted: 0 });
                } else {
                    self.decoder = decoder;
                }
            }
            Some(mut input) => {
                self.ctx.io.input_bytes -= std::mem::take(&mut input.counted);
                let (frame_len, bytes_max) =
                    (input.decoder.frame_len(), self.ctx.io.limits.input_shard_bytes_max);
                self.lend(&mut input.bytes, bytes.len());
                append(&mut input.bytes, bytes, frame_len, bytes_max);
                self.execute_kept(key, *input);
            }
        }
    }

    /// Executes the input that a connection kept, as far as possible.
    fn execute_kept(&mut self, key: ConnKey, mut input: Input) {
        if input.bytes.len() < input.decoder.needed() {
            return self.keep(key, input);
        }
        let used = self.execute(key, &mut input.bytes, &mut input.decoder);
        if used < input.bytes.len() {
            let left_over = input.consume(used);
            self.keep(key, input);
            left_over.into_iter().for_each(|buffer| self.take_back(buffer));
        } else {
            self.take_back(input.bytes);
        }
    }

    /// Moves a short remainder of input into the shard's buffer, if that has space for `more` bytes and little
    /// beyond: a client that pipelines allocates nothing but its remainder.
    fn lend(&mut self, rest: &mut Vec<u8>, more: usize) {
        let (len, room) = (rest.len() + more, self.joined.capacity());
        if len > rest.capacity() && len <= room && room <= len + len / 4 {
            let mut joined = std::mem::take(&mut self.joined);
            joined.extend_from_slice(rest);
            *rest = joined;
        }
    }

    /// Keeps a buffer whose bytes were executed, to lend it to the next client.
    fn take_back(&mut self, mut buffer: Vec<u8>) {
        if (JOINED_BYTES_MIN..=2 * READ_BYTES).contains(&buffer.capacity()) {
            buffer.clear();
            self.joined = buffer;
        }
    }

    fn keep(&mut self, key: ConnKey, mut input: Input) {
        if let Some(conn) = self.ctx.io.conns.get_mut(key) {
            input.counted = input.bytes.capacity();
            self.ctx.io.input_bytes += input.counted;
            conn.input = Some(Box::new(input));
        }
    }

    /// Executes what is complete of `input`; returns how many bytes it used.
    fn execute(&mut self, key: ConnKey, input: &mut [u8], decoder: &mut Decoder) -> usize {
        let Some(conn) = self.ctx.io.conns.get(key) else { return input.len() };
        match conn.session {
            Session::Redis(_) => self.execute_redis(key, input, decoder),
            Session::Mqtt(..) if input.is_empty() => 0,
            Session::Mqtt(..) => self.execute_each(key, input, |ctx, input| mqtt::execute(ctx, key, input)),
            Session::Phoenix(..) => {
                self.execute_each(key, input, |ctx, input| phoenix::execute(ctx, key, input))
            }
            Session::Http(_) | Session::Events => {
                self.execute_each(key, input, |ctx, input| execute_request(ctx, key, input))
            }
        }
    }

    fn execute_redis(&mut self, key: ConnKey, input: &[u8], decoder: &mut Decoder) -> usize {
        let limits = decode_limits(&self.ctx.io);
        let mut used = 0;
        while used < input.len() {
            let frame = &input[used..];
            match decoder.decode(frame, &limits) {
                Ok(Decoded::Command { len }) => {
                    used += len;
                    let count = decoder.argc();
                    if count <= FEW {
                        let mut args: [&[u8]; FEW] = [&[]; FEW];
                        (0..count).for_each(|i| args[i] = decoder.arg(frame, i));
                        redis::execute(&mut self.ctx, key, &args[..count]);
                    } else {
                        let args: Vec<&[u8]> = (0..count).map(|i| decoder.arg(frame, i)).collect();
                        redis::execute(&mut self.ctx, key, &args);
                    }
                    if self.ctx.io.turn_bytes() > TURN_BYTES {
                        super::turn::flush(&mut self.ctx);
                    }
                    match self.ctx.io.conns.get(key) {
                        Some(conn) if !conn.is_closing() => {}
                        _ => return input.len(),
                    }
                    if must_pause(&self.ctx.io, key) {
                        self.pause(key);
                        break;
                    }
                }
                Ok(Decoded::Skip { len }) => used += len,
                Ok(Decoded::Incomplete) => break,
                Err(error) => {
                    // The decoder may serve the next connection.
                    decoder.reset();
                    let io = &mut self.ctx.io;
                    io.metrics.protocol_errors_total.add(1);
                    io.push(key, |out, _| error.write(out));
                    io.log_conn(Level::Info, "protocol error", key, vec![("error", error.to_string())]);
                    io.close_soon(key);
                    return input.len();
                }
            }
        }
        used
    }

    /// Executes packets, frames or requests: `one` executes the first of its input and returns its length, or `None`
    /// if it is incomplete or has to wait. Empty input is executed, too: a browser's message may wait with no input
    /// after it.
    fn execute_each(
        &mut self,
        key: ConnKey,
        input: &mut [u8],
        one: impl Fn(&mut Ctx, &mut [u8]) -> Option<usize>,
    ) -> usize {
        let mut used = 0;
        loop {
            let len = one(&mut self.ctx, &mut input[used..]);
            used += len.unwrap_or_default();
            if self.ctx.io.turn_bytes() > TURN_BYTES {
                super::turn::flush(&mut self.ctx);
            }
            if self.ctx.io.conns.get(key).is_none_or(Conn::is_closing) {
                return input.len();
            }
            if must_pause(&self.ctx.io, key) {
                self.pause(key);
                return used;
            }
            if len.is_none() || (used == input.len() && !input.is_empty()) {
                return used;
            }
        }
    }

    fn pause(&mut self, key: ConnKey) {
        let Some(conn) = self.ctx.io.conns.get_mut(key) else { return };
        conn.flags.set(Flags::PAUSED, true);
        // Thousands of HTTP clients may wait, and `paused` is checked every turn: their response resumes them.
        if !conn.session.awaits_answer() {
            self.paused.push(key);
            self.ctx.io.metrics.pauses_total.add(1);
        }
    }

    /// Resumes connections that need not pause any longer, with the input that they kept.
    pub(super) fn resume_paused(&mut self) {
        self.paused.append(&mut self.ctx.io.answered);
        for key in std::mem::take(&mut self.paused) {
            if self.ctx.io.conns.get(key).is_none_or(Conn::is_closing) {
                continue;
            }
            if must_pause(&self.ctx.io, key) {
                self.paused.push(key);
                continue;
            }
            let conn = self.ctx.io.conns.get_mut(key).expect("looked up above");
            conn.flags.set(Flags::PAUSED, false);
            if let Some(mut input) = conn.input.take() {
                self.ctx.io.input_bytes -= std::mem::take(&mut input.counted);
                self.execute_kept(key, *input);
            } else if conn.session.browser().is_some() {
                let mut decoder = Decoder::default();
                self.execute(key, &mut [], &mut decoder);
            }
            self.ready.push(key);
        }
    }
}

/// Executes an HTTP request; those of long polls are of browsers.
fn execute_request(ctx: &mut Ctx, key: ConnKey, input: &[u8]) -> Option<usize> {
    let (len, taken) = http::execute(ctx, key, input)?;
    match taken {
        http::Taken::Done => {}
        http::Taken::Poll(request, Some(body)) => phoenix::poll::request(ctx, key, &request, body),
        http::Taken::Poll(request, None) => phoenix::poll::refuse_long(ctx, key, &request),
    }
    Some(len)
}

/// Whether a connection must not execute further input: too many of its replies or of its requests to other
/// shards are outstanding, it does not read its replies, it waits for a join or an HTTP response, it waits for
/// replies while a shard is congested, or it waits for a log that lags.
pub(super) fn must_pause(io: &Io, key: ConnKey) -> bool {
    let Some(conn) = io.conns.get(key) else { return false };
    match &conn.session {
        Session::Mqtt(_, Some(client)) => {
            let unread = conn.output.as_ref().map_or(0, |output| output.pending_bytes());
            let (is_congested, log_is_behind) = (|| io.mailer.any_congested(), || io.log_is_behind());
            return unread as u64 >= io.limits.reply_bytes_max
                || client.must_pause(io.limits.pending_per_client_max, is_congested, log_is_behind);
        }
        Session::Phoenix(_, Some(browser)) if browser.waits() => return true,
        Session::Http(true) => return true,
        _ => {}
    }
    let Some(output) = &conn.output else { return false };
    if output.slots.is_empty() && output.queue.is_empty() {
        return false;
    }
    output.slots.len() as u64 >= io.limits.pending_per_client_max
        || output.questions >= QUESTIONS_MAX
        || output.pending_bytes() as u64 >= io.limits.reply_bytes_max
        || (!output.slots.is_empty() && io.mailer.any_congested())
        || (io.log_is_behind() && output.waits_for_log())
}

fn decode_limits(io: &Io) -> DecodeLimits {
    DecodeLimits {
        frame_bytes_max: io.limits.frame_bytes_max as usize,
        args_max: io.limits.frame_args_max as usize,
        inline_bytes_max: io.limits.inline_bytes_max as usize,
    }
}
