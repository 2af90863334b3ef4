//! The end of a turn: everything that it produced for a connection goes out in one call. Bytes that a socket
//! does not take become the connection's queue, which is written once the socket is writable.

use crate::context::conn::{Conn, Flags};
use crate::context::encoding::write_gap;
use crate::context::io::{Io, REPLIES};
use crate::io::output::{Bytes, Frame, Output, Piece};
use hubsub_types::ConnKey;
use std::io::{ErrorKind, IoSlice};

/// Buffers per system call that are listed without an allocation.
const SLICES: usize = 8;

/// Maximum number of buffers per system call; the kernel's limit is 1,024.
const SLICES_MAX: usize = 512;

/// A connection's cursors and long replies continue while its output is below this, in bytes.
const LOW_WATER: usize = 32 * 1024;

impl Io {
    /// Writes the turn's output of every connection and empties the arenas.
    pub fn flush(&mut self) {
        while let Some(key) = self.dirty.pop() {
            if self.conns.get(key).is_some() {
                self.write_pieces(key.index);
                self.release_idle_output(key.index);
            }
        }
        self.frame_bytes = 0;
        for arena in &mut self.arenas {
            const KEPT: usize = 1024 * 1024;
            arena.clear();
            arena.shrink_to(KEPT);
        }
    }

    /// Bytes that the turn has encoded so far.
    pub fn turn_bytes(&self) -> usize {
        self.arenas.iter().map(Vec::len).sum::<usize>() + self.frame_bytes
    }

    /// Writes this turn's pieces of one connection; the rest becomes its queue.
    pub(crate) fn write_pieces(&mut self, index: u32) {
        let second = self.second();
        let Some(key) = self.conns.key_at(index) else { return };
        let Some(conn) = self.conns.at_mut(index) else { return };
        conn.flags.set(Flags::DIRTY, false);
        conn.meter.roll(second);
        let (is_mqtt, is_polled) = (conn.session.is_mqtt(), conn.io.is_polled());
        let has_pending = conn.session.mqtt().is_some_and(|client| client.wants_more());
        let Conn { output, io, .. } = conn;
        let Some(output) = output else { return };
        let arenas = &self.arenas;
        let mut done = 0; // Pieces written whole.
        let mut offset = 0; // Bytes written of the next piece.
        let mut failed = false;
        while done < output.pieces.len() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut many; // Most connections get one piece a turn, some a few, hardly any many.
            let pieces = &output.pieces[done..];
            let slices = if pieces.len() <= SLICES {
                &mut slices[..pieces.len()]
            } else {
                many = vec![IoSlice::new(&[]); pieces.len().min(SLICES_MAX)];
                &mut many[..]
            };
            for (slice, piece) in slices.iter_mut().zip(pieces) {
                *slice = IoSlice::new(piece_bytes(piece, arenas));
            }
            slices[0] = IoSlice::new(&piece_bytes(&pieces[0], arenas)[offset..]);
            self.metrics.writes_total.add(1);
            match io.write(slices) {
                Ok(0) => failed = true,
                Ok(mut sent) => {
                    self.metrics.count_written(sent, is_mqtt);
                    while sent > 0 {
                        let left = piece_bytes(&output.pieces[done], arenas).len() - offset;
                        if sent < left {
                            offset += sent;
                            break;
                        }
                        sent -= left;
                        (done, offset) = (done + 1, 0);
                    }
                    continue;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(_) => failed = true,
            }
            break;
        }
        if is_polled && (done > 0 || offset > 0) {
            self.polled.push(key);
        }
        output.turn_bytes = 0;
        if done == output.pieces.len() {
            output.pieces.clear();
        } else {
            self.output_bytes += queue_rest(output, arenas, (done, offset), is_mqtt);
        }
        output.count_replies(&mut self.reply_bytes);
        let (has_queue, has_gaps) = (!output.queue.is_empty(), !output.gaps.is_empty());
        let waits = self.lagging || !output.slots.is_empty() || has_pending;
        if failed {
            self.close_now(key);
        } else if !has_queue && waits {
            self.drained.push(key);
        }
        if has_gaps && !failed && !has_queue {
            self.tell_gaps(index);
        }
    }

    /// Writes the queue once the socket is writable.
    pub fn write_queue(&mut self, key: ConnKey) {
        let second = self.second();
        loop {
            let Some(conn) = self.conns.get_mut(key) else { return };
            let (dialect, is_mqtt) = (conn.session.dialect(), conn.session.is_mqtt());
            let Conn { output: Some(output), io, meter, .. } = conn else { return };
            meter.roll(second);
            self.output_bytes +=
                output.tell_gaps(|out, gap| write_gap(out, dialect, &gap.topic, gap.from, gap.to));
            output.advance(0);
            if output.queue.is_empty() {
                break;
            }
            let frames = output.queue.iter().take(SLICES_MAX);
            let mut slices: Vec<IoSlice<'_>> =
                frames.map(|frame| IoSlice::new(frame.bytes.as_slice())).collect();
            slices[0] = IoSlice::new(&output.queue[0].bytes.as_slice()[output.head_sent..]);
            self.metrics.writes_total.add(1);
            match io.write(&slices) {
                Ok(0) => return self.close_now(key),
                Ok(sent) => {
                    if io.is_polled() {
                        self.polled.push(key);
                    }
                    self.metrics.count_written(sent, is_mqtt);
                    self.output_bytes -= sent;
                    output.advance(sent);
                    output.count_replies(&mut self.reply_bytes);
                    if output.queue_bytes <= self.limits.output_soft_bytes as usize {
                        output.soft_since_ms = None;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.close_now(key),
            }
        }
        let Some(Conn { output, session, .. }) = self.conns.get(key) else { return };
        let has_pending = session.mqtt().is_some_and(|client| client.wants_more());
        let waits = self.lagging || has_pending || output.as_ref().is_some_and(|o| !o.slots.is_empty());
        if waits && output.as_ref().is_none_or(|o| o.queue_bytes < LOW_WATER) {
            self.drained.push(key);
        }
        self.release_idle_output(key.index);
    }
}

/// Moves the turn's pieces that a socket did not take into the queue: those from index `done` on, of which
/// `offset` bytes are written. Returns their bytes.
#[cold]
#[inline(never)]
fn queue_rest(
    output: &mut Output,
    arenas: &[Vec<u8>],
    (done, offset): (usize, usize),
    is_mqtt: bool,
) -> usize {
    let rest: Vec<Piece> = output.pieces.drain(..).skip(done).collect();
    let queued = output.queue_bytes;
    for (i, piece) in rest.into_iter().enumerate() {
        let skip = if i == 0 { offset } else { 0 };
        match piece {
            Piece::Frame(frame) => {
                let length = frame.len();
                output.queue.push_back(Frame::plain(Bytes::Shared(frame)));
                output.queue_bytes += length - skip;
                if skip > 0 {
                    output.head_sent = skip;
                }
            }
            Piece::Range { arena, .. } => {
                // An MQTT client's records are among its replies, which are short.
                let is_reply = arena == REPLIES && !is_mqtt;
                output.enqueue_plain(&piece_bytes(&piece, arenas)[skip..], is_reply);
            }
        }
    }
    output.queue_bytes - queued
}

fn piece_bytes<'a>(piece: &'a Piece, arenas: &'a [Vec<u8>]) -> &'a [u8] {
    match piece {
        Piece::Range { arena, start, end } => &arenas[usize::from(*arena)][*start as usize..*end as usize],
        Piece::Frame(frame) => frame,
    }
}

const _: () = assert!(REPLIES as usize == crate::context::io::ARENAS - 1);
