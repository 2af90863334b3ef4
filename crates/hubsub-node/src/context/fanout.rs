//! Delivery of records into connections' output. A record is encoded once per variant that its receivers
//! want, into an arena of the turn, and each receiver gets a range of it. A receiver whose socket is full
//! gets a shared frame in its queue instead, up to its output limit.

use super::conn::{Conn, Flags};
use super::encoding::variant_of;
use super::io::{Io, TURN_BYTES};
use super::scatter_gather::GatherMail;
use crate::io::log_lines::Level;
use crate::io::output::Tag;
use crate::io::questions::Part;
use hubsub_route::{Ask, CloseReason, Delivery, RecordView, Via};
use hubsub_types::{OnGap, OnSlow};

// The common delivery is one function, and each rare case has its own, so that the common one keeps its
// values in registers.
impl Io {
    /// Adds a record for a connection to the turn's output.
    #[inline(always)]
    pub(crate) fn deliver_at_once(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
        let Some(c) = self.conns.at_mut(conn) else { return Delivery::Taken };
        let variant = variant_of(c);
        let output = c.output.get_or_insert_with(|| self.pool.pop().unwrap_or_default());
        let place = self.encoded.place(variant, via);
        let bytes = if let Some((start, end)) = self.encoded.range(place) {
            output.push_range(variant as u8, start, end);
            (end - start) as usize
        } else {
            let arena = &mut self.arenas[variant];
            self.encoded.push_new(output, place, (arena, variant), &mut self.frame_bytes, via, record)
        };
        c.meter.sent(bytes);
        self.metrics.delivered_total.add(1);
        // Output that a full socket leaves over cannot be dropped later, so a turn holds at most half of the
        // limit.
        let must_write = output.turn_bytes >= TURN_BYTES.min(self.limits.output_bytes_max as usize / 2);
        if !c.flags.any(Flags::DIRTY) {
            c.flags.set(Flags::DIRTY, true);
            self.dirty.push(self.conns.key_at(conn).expect("it is there"));
        }
        if must_write {
            self.write_pieces(conn);
        }
        Delivery::Taken
    }

    /// Delivers a record to a connection whose output may hold something that must go first.
    #[cold]
    #[inline(never)]
    pub(crate) fn deliver_behind(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
        let Some(output) = self.conns.at(conn).and_then(|c| c.output.as_ref()) else {
            return Delivery::Taken;
        };
        let has_queue = !output.queue.is_empty();
        let stays_behind = output.confirms > 0 || output.answers_first(record.topic);
        let has_gaps = !output.gaps.is_empty();
        let may_be_full = has_queue || (output.slot_bytes > 0 && (stays_behind || has_gaps));
        if may_be_full && self.is_full_at(conn) {
            return Delivery::Full;
        }
        if has_queue || stays_behind {
            self.enqueue(conn, via, record);
            return Delivery::Taken;
        }
        if has_gaps {
            self.tell_gaps(conn);
            let Some(c) = self.conns.at(conn).filter(|c| !c.is_closing()) else { return Delivery::Taken };
            if c.output.as_ref().is_some_and(|output| output.holds_records()) {
                return self.deliver_behind(conn, via, record);
            }
        }
        self.deliver_at_once(conn, via, record)
    }

    /// Makes room for a record in a full queue by its class's policy, or drops the record.
    pub(crate) fn squeeze_queue(
        &mut self,
        conn: u32,
        via: Via<'_>,
        record: &RecordView<'_>,
        policy: OnSlow,
        on_gap: OnGap,
    ) {
        let Some(c) = self.conns.at_mut(conn) else { return };
        let tells = c.hears_of_gaps();
        if !tells && on_gap == OnGap::Disconnect {
            return self.close_slow(conn, CloseReason::Gap);
        }
        let variant = variant_of(c);
        let size = self.shared_frame(variant, via, record).len();
        let Some(output) = self.conns.at_mut(conn).and_then(|c| c.output.as_mut()) else { return };
        let (mut freed, mut lost) = match policy {
            OnSlow::Conflate => output.conflate(record.topic, tells),
            _ => (0, 0),
        };
        if freed < size {
            let oldest = output.drop_oldest(size - freed, tells);
            (freed, lost) = (freed + oldest.0, lost + oldest.1);
        }
        if output.closers == 0 {
            output.soft_since_ms = None;
        }
        let fits = freed >= size;
        self.output_bytes -= freed;
        self.lose(conn, lost);
        if fits {
            self.enqueue(conn, via, record);
        } else {
            // Nothing that is queued may be dropped, so this record is.
            self.lose(conn, 1);
            let tag = Tag { topic: self.encoded.topic(record), position: record.position };
            if tells && let Some(output) = self.conns.at_mut(conn).and_then(|c| c.output.as_mut()) {
                output.remember_gap(tag);
            }
        }
        let gaps = self.conns.at(conn).and_then(|c| c.output.as_ref()).map_or(0, |o| o.gaps.bytes);
        if gaps as u64 > self.limits.output_bytes_max {
            self.close_slow(conn, CloseReason::Gap);
        }
    }

    /// Closes a subscriber that lags.
    pub(crate) fn close_slow(&mut self, conn: u32, reason: CloseReason) {
        let Some(key) = self.conns.key_at(conn) else { return };
        if self.conns.get(key).is_none_or(Conn::is_closing) {
            return;
        }
        let why = match reason {
            CloseReason::OutputLimit => "output limit",
            CloseReason::Gap => "would miss records",
            CloseReason::TooManyCursors => "too many subscriptions catch up",
        };
        let pending = self.conns.get(key).and_then(|c| c.output.as_ref()).map_or(0, |o| o.pending_bytes());
        let fields = vec![("reason", why.to_owned()), ("pending_bytes", pending.to_string())];
        self.log_conn(Level::Warning, "slow subscriber closed", key, fields);
        self.metrics.slow_closed_total.add(1);
        self.close_now(key);
    }

    /// Delivers a response that had to wait for the log.
    pub(crate) fn answer_part(&mut self, ask: Ask, part: Part) {
        if ask.shard == self.shard {
            self.gather(ask.number, part);
        } else {
            self.mailer.post(ask.shard, GatherMail::Part { number: ask.number, part });
        }
    }
}
