//! Replies in order. A known reply goes straight into the turn's output. One that is not known yet takes a
//! slot, and later replies wait for it.

use crate::context::conn::{Conn, Flags};
use crate::context::encoding::FRAME_SHARED;
use crate::context::io::{Io, REPLIES};
use crate::io::output::{Bytes, Frame, Output, Pending, Slot};
use hubsub_route::{Asker, Record, Ticket};
use hubsub_types::ConnKey;
use hubsub_types::shared::Shared;
use hubsub_wire::resp::{self, Proto};
use std::sync::Arc;

/// A long reply continues while the connection's output is below this, in bytes.
const LONG_BELOW: usize = 64 * 1024;

impl Io {
    /// Replies to the current command.
    #[inline]
    pub fn reply(&mut self, key: ConnKey, write: impl FnOnce(&mut Vec<u8>, Proto)) {
        self.put(key, Flags::REPLY_OFF.or(Flags::REPLY_SKIP), false, write);
    }

    /// Like `reply`, when later records have another encoding and must not overtake it.
    pub fn reply_before_records(&mut self, key: ConnKey, write: impl FnOnce(&mut Vec<u8>, Proto)) {
        self.put(key, Flags::REPLY_OFF.or(Flags::REPLY_SKIP), true, write);
    }

    /// Writes output in order with replies, even if replies are switched off.
    pub fn push(&mut self, key: ConnKey, write: impl FnOnce(&mut Vec<u8>, Proto)) {
        self.put(key, Flags::default(), true, write);
    }

    /// Like `push`, for bytes with several receivers: long ones are shared.
    pub fn push_shared(&mut self, key: ConnKey, frame: &Shared) {
        let Some(conn) = self.conns.get_mut(key).filter(|conn| !conn.flags.any(Flags::CLOSE_NOW)) else {
            return;
        };
        let has_slots = conn.output.as_ref().is_some_and(|output| !output.slots.is_empty());
        if frame.len() < FRAME_SHARED || has_slots {
            return self.push(key, |out, _| out.extend_from_slice(frame));
        }
        let output = conn.output.get_or_insert_with(|| self.pool.pop().unwrap_or_default());
        if !output.queue.is_empty() {
            self.output_bytes += frame.len();
            return output.enqueue(Frame::plain(Bytes::Shared(frame.clone())));
        }
        output.push_frame(frame.clone());
        if !conn.flags.any(Flags::DIRTY) {
            conn.flags.set(Flags::DIRTY, true);
            self.dirty.push(key);
        }
    }

    /// Writes in order with replies, unless one of these flags is set. With `holds_records`, later records do
    /// not overtake it.
    #[inline]
    fn put(
        &mut self,
        key: ConnKey,
        silenced_by: Flags,
        holds_records: bool,
        write: impl FnOnce(&mut Vec<u8>, Proto),
    ) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        if conn.flags.any(silenced_by.or(Flags::CLOSE_NOW)) {
            return;
        }
        let output = conn.output.get_or_insert_with(|| self.pool.pop().unwrap_or_default());
        if !output.slots.is_empty() {
            return self.put_behind(key, holds_records, write);
        }
        let arena = &mut self.arenas[usize::from(REPLIES)];
        let start = arena.len();
        write(arena, conn.session.proto());
        if emit(conn, arena, start, (&mut self.output_bytes, &mut self.reply_bytes)) {
            self.dirty.push(key);
        }
    }

    /// Adds a reply after replies that are not known yet.
    #[cold]
    #[inline(never)]
    fn put_behind(&mut self, key: ConnKey, holds_records: bool, write: impl FnOnce(&mut Vec<u8>, Proto)) {
        let Some(Conn { session, output: Some(output), .. }) = self.conns.get_mut(key) else { return };
        let mut bytes = Vec::new();
        write(&mut bytes, session.proto());
        self.output_bytes += bytes.len();
        if holds_records {
            output.push_confirmed(bytes)
        } else {
            output.push_ready(bytes)
        }
        output.count_replies(&mut self.reply_bytes);
    }

    /// Like `push`, but after the replies of an EXEC in progress.
    pub fn push_behind(&mut self, key: ConnKey, write: impl FnOnce(&mut Vec<u8>, Proto)) {
        if !self.holds(key) {
            return self.push(key, write);
        }
        let Some(Conn { session, output: Some(output), .. }) = self.conns.get_mut(key) else { return };
        let held = output.held.get_or_insert_default();
        let start = held.len();
        write(held, session.proto());
        output.slot_bytes += held.len() - start;
        self.output_bytes += held.len() - start;
    }

    /// A ticket for the slot that the next `wait` of this connection opens.
    pub fn ticket(&self, key: ConnKey) -> Ticket {
        let output = self.conns.get(key).and_then(|c| c.output.as_ref());
        let slot = output.map_or(0, |o| o.next_slot());
        Ticket { shard: self.shard, asker: Asker::Client { conn: key, slot } }
    }

    /// Opens the slot of `ticket`; its reply comes later.
    pub fn wait(&mut self, key: ConnKey, pending: Pending) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let is_silent = conn.flags.any(Flags::REPLY_OFF.or(Flags::REPLY_SKIP));
        let output = conn.output.get_or_insert_with(|| self.pool.pop().unwrap_or_default());
        // A confirmation is not a reply: it is sent even if replies are off.
        let is_silent = is_silent && !pending.is_confirm();
        output.open_slot(if is_silent { Pending::Silence } else { pending });
    }

    /// Opens the slot of `ticket` for a publish that may be delivered back to its client: records of its
    /// topic stay after the reply, others need not.
    pub fn wait_for_own(&mut self, key: ConnKey, topic: &[u8]) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        if !conn.flags.any(Flags::REPLY_OFF.or(Flags::REPLY_SKIP)) {
            let output = conn.output.get_or_insert_with(|| self.pool.pop().unwrap_or_default());
            output.note_own_publish(topic);
        }
        self.wait(key, Pending::Publish);
    }

    /// Opens a slot for a scatter-gather request.
    pub fn open_slot(&mut self, key: ConnKey) -> u32 {
        self.open_question(key, 1)
    }

    /// Opens a slot for a scatter-gather request that counts as `weight` requests.
    pub fn open_question(&mut self, key: ConnKey, weight: u32) -> u32 {
        let Asker::Client { slot, .. } = self.ticket(key).asker else { unreachable!("a client's ticket") };
        self.wait(key, Pending::Parts);
        if let Some(output) = self.conns.get_mut(key).and_then(|c| c.output.as_mut()) {
            output.questions += weight;
        }
        slot
    }

    /// Notes that the publish of a slot waits for the log.
    pub fn note_logged(&mut self, key: ConnKey, slot: u32) {
        if let Some(output) = self.conns.get_mut(key).and_then(|c| c.output.as_mut()) {
            output.logged_slot = Some(slot);
            self.expects_more = true;
        }
    }

    /// Ends a scatter-gather request of this weight.
    pub fn close_question(&mut self, key: ConnKey, weight: u32) {
        if let Some(output) = self.conns.get_mut(key).and_then(|c| c.output.as_mut()) {
            output.questions -= weight;
        }
    }

    /// Holds back records for this connection until `release`: an EXEC is in progress, and its replies are
    /// one array.
    pub fn hold(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let output = conn.output.get_or_insert_with(|| self.pool.pop().unwrap_or_default());
        output.confirms += 1;
        output.held = Some(Vec::new());
    }

    /// Whether records for this connection are held back.
    pub fn holds(&self, key: ConnKey) -> bool {
        self.conns.get(key).and_then(|c| c.output.as_ref()).is_some_and(|o| o.held.is_some())
    }

    /// Ends an EXEC: the held records follow its replies, including those that are still pending.
    pub fn release(&mut self, key: ConnKey) {
        let Some(output) = self.conns.get_mut(key).and_then(|c| c.output.as_mut()) else { return };
        let Some(held) = output.held.take() else { return };
        if !output.slots.is_empty() {
            return output.slots.push_back(Slot::Confirmed(held));
        }
        output.confirms -= 1;
        output.slot_bytes -= held.len();
        self.output_bytes -= held.len();
        output.count_replies(&mut self.reply_bytes);
        if !held.is_empty() {
            self.push(key, |out, _| out.extend_from_slice(&held));
        }
        self.release_idle_output(key.index);
    }

    /// Fills a slot; `write` encodes the reply.
    pub fn resolve(&mut self, key: ConnKey, slot: u32, write: impl FnOnce(&mut Vec<u8>, Proto, Pending)) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let Some(output) = &mut conn.output else { return };
        let Some(place) = output.waiting(slot) else { return };
        let Slot::Waiting(pending) = std::mem::replace(place, Slot::Ready(Vec::new())) else {
            unreachable!("`waiting` finds slots that wait")
        };
        self.expects_more |= output.logged_slot == Some(slot);
        let confirms = pending.is_confirm();
        if slot == output.first_slot {
            // Nothing precedes it, so it is written directly.
            output.pop_slot();
            output.confirms -= u32::from(confirms);
            let arena = &mut self.arenas[usize::from(REPLIES)];
            let start = arena.len();
            write(arena, conn.session.proto(), pending);
            if emit(conn, arena, start, (&mut self.output_bytes, &mut self.reply_bytes)) {
                self.dirty.push(key);
            }
        } else {
            let mut bytes = Vec::new();
            write(&mut bytes, conn.session.proto(), pending);
            output.slot_bytes += bytes.len();
            self.output_bytes += bytes.len();
            *output.slot_mut(slot) = if confirms { Slot::Confirmed(bytes) } else { Slot::Ready(bytes) };
        }
        self.pump_slots(key);
    }

    /// Fills a slot with an array of records.
    pub fn resolve_records(&mut self, key: ConnKey, slot: u32, records: Vec<Arc<Record>>) {
        let Some(output) = self.conns.get_mut(key).and_then(|c| c.output.as_mut()) else { return };
        let Some(place) = output.waiting(slot) else { return };
        if matches!(place, Slot::Waiting(Pending::Silence)) {
            *place = Slot::Ready(Vec::new());
        } else {
            // The slot keeps the records alive after history drops them, so their weight counts.
            let bytes: usize = records.iter().map(|record| record.weight()).sum();
            *place = Slot::Long { records, next: 0 };
            output.confirms += 1;
            output.long_bytes += bytes;
            self.output_bytes += bytes;
        }
        self.pump_slots(key);
    }

    /// Moves replies whose turn has come into the output.
    pub(crate) fn pump_slots(&mut self, key: ConnKey) {
        loop {
            let Some(conn) = self.conns.get_mut(key) else { return };
            let proto = conn.session.proto();
            let Some(output) = &mut conn.output else { return };
            output.count_replies(&mut self.reply_bytes);
            let waits = output.queue_bytes + output.turn_bytes;
            let start = self.arenas[usize::from(REPLIES)].len();
            match output.slots.front_mut() {
                None | Some(Slot::Waiting(_)) => return,
                Some(Slot::Long { .. }) if waits >= LONG_BELOW => return,
                Some(Slot::Long { records, next }) => {
                    let arena = &mut self.arenas[usize::from(REPLIES)];
                    if *next == 0 {
                        resp::array_header(arena, records.len());
                    }
                    while *next < records.len() && arena.len() - start < LONG_BELOW {
                        let record = &records[*next];
                        write_record(arena, proto, record);
                        output.long_bytes -= record.weight();
                        self.output_bytes -= record.weight();
                        *next += 1;
                    }
                    if *next == records.len() {
                        output.pop_slot();
                    }
                }
                Some(Slot::Ready(bytes) | Slot::Confirmed(bytes)) => {
                    self.output_bytes -= bytes.len();
                    self.arenas[usize::from(REPLIES)].extend_from_slice(bytes);
                    output.pop_slot();
                }
            }
            let arena = &mut self.arenas[usize::from(REPLIES)];
            if emit(conn, arena, start, (&mut self.output_bytes, &mut self.reply_bytes)) {
                self.dirty.push(key);
            }
        }
    }
}

/// Moves the bytes of the reply arena from `start` on into a connection's output. Returns whether the
/// connection must be listed as dirty.
#[inline]
pub(crate) fn emit(
    conn: &mut Conn,
    arena: &mut Vec<u8>,
    start: usize,
    (output_bytes, reply_bytes): (&mut usize, &mut usize),
) -> bool {
    let Some(output) = &mut conn.output else { return false };
    if !output.queue.is_empty() {
        queue_reply(output, arena, start, (output_bytes, reply_bytes));
        return false;
    }
    // A write of nothing would look like a closed socket.
    if arena.len() > start {
        output.push_range(REPLIES, start as u32, arena.len() as u32);
    }
    let is_news = !conn.flags.any(Flags::DIRTY);
    conn.flags.set(Flags::DIRTY, true);
    is_news
}

/// Like `emit`, if the socket has not taken earlier output.
#[cold]
#[inline(never)]
fn queue_reply(
    output: &mut Output,
    arena: &mut Vec<u8>,
    start: usize,
    (output_bytes, reply_bytes): (&mut usize, &mut usize),
) {
    if arena.len() > start {
        *output_bytes += arena.len() - start;
        output.enqueue_plain(&arena[start..], true);
        output.count_replies(reply_bytes);
        arena.truncate(start);
    }
}

/// Writes an entry of HUBSUB HISTORY.
fn write_record(out: &mut Vec<u8>, _proto: Proto, record: &Record) {
    resp::array_header(out, 5);
    resp::bulk(out, record.position.to_string().as_bytes());
    resp::int(out, (record.timestamp_us / 1000) as i64);
    resp::bulk(out, record.topic());
    resp::bulk(out, record.publisher.as_bytes());
    resp::bulk(out, record.payload());
}
