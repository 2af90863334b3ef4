//! Queued records after those that a connection has not taken yet, their limits, and gaps where some were
//! dropped.

use super::encoding::{encode, variant_of, write_gap};
use super::io::Io;
use crate::io::output::{Bytes, Frame, Output, Tag};
use hubsub_route::{RecordView, Via};
use hubsub_types::OnSlow;
use hubsub_types::shared::Shared;

impl Io {
    /// The record's shared frame of one variant.
    pub(crate) fn shared_frame(&mut self, variant: usize, via: Via<'_>, record: &RecordView<'_>) -> Shared {
        let place = self.encoded.place(variant, via);
        if let Some(frame) = self.encoded.frame(place) {
            return frame.clone();
        }
        let frame: Shared = match self.encoded.range(place) {
            Some((start, end)) => self.arenas[variant][start as usize..end as usize].into(),
            None => {
                let mut bytes = Vec::new();
                encode(&mut bytes, variant, via, record);
                bytes.into()
            }
        };
        self.encoded.set_frame(place, frame.clone());
        frame
    }

    /// Queues a record for a connection whose socket is full or whose confirmation or reply is not written
    /// yet.
    pub(crate) fn enqueue(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) {
        let Some(variant) = self.conns.at(conn).map(variant_of) else { return };
        let frame = self.shared_frame(variant, via, record);
        let may_drop = matches!(record.on_slow, OnSlow::DropOldest | OnSlow::Conflate);
        let tag = may_drop.then(|| Tag { topic: self.encoded.topic(record), position: record.position });
        let Some(c) = self.conns.at_mut(conn) else { return };
        let (dialect, tells) = (c.session.dialect(), c.hears_of_gaps());
        let Some(output) = &mut c.output else { return };
        c.meter.sent(frame.len());
        self.metrics.delivered_total.add(1);
        if let Some(held) = &mut output.held {
            self.output_bytes += frame.len();
            output.slot_bytes += frame.len();
            held.extend_from_slice(&frame);
            return;
        }
        if output.confirms > 0 || output.answers_first(record.topic) {
            // Gaps are reported before this record, unless the queue reports them in their place.
            if !output.gaps.is_empty() && output.first_droppable().is_none() {
                self.output_bytes +=
                    output.tell_gaps(|out, gap| write_gap(out, dialect, &gap.topic, gap.from, gap.to));
            }
            self.output_bytes += frame.len();
            output.push_confirmed(frame.to_vec());
            return;
        }
        if record.on_slow == OnSlow::Conflate && output.conflates() {
            let (freed, lost) = output.conflate(record.topic, tells);
            self.output_bytes -= freed;
            c.extra.get_or_insert_default().dropped += lost;
            self.metrics.dropped_total.add(lost);
        }
        self.output_bytes += frame.len();
        let closes = record.on_slow == OnSlow::Disconnect;
        output.enqueue(Frame { bytes: Bytes::Shared(frame), tag, closes, is_reply: false });
        let soft = self.limits.output_soft_bytes as usize;
        if soft > 0 && output.queue_bytes > soft && output.soft_since_ms.is_none() {
            output.soft_since_ms = Some(self.now.mono_ms);
            self.watch_soft_limit(conn, self.now.mono_ms + self.limits.output_soft_ms);
        }
    }

    /// Whether a connection's output is at its limit.
    pub(crate) fn is_full(&self, output: &Output) -> bool {
        let limits = &self.limits;
        let pending = output.queue_bytes + output.slot_bytes;
        let since = output.soft_since_ms;
        pending >= limits.output_bytes_max as usize
            || since.is_some_and(|ms| self.now.mono_ms >= ms + limits.output_soft_ms)
            || (pending > 0 && self.record_bytes() >= limits.output_shard_bytes_max as usize)
    }

    pub(crate) fn lose(&mut self, conn: u32, records: u64) {
        if records > 0
            && let Some(c) = self.conns.at_mut(conn)
        {
            c.extra().dropped += records;
            self.metrics.dropped_total.add(records);
        }
    }

    /// Reports gaps after all output of a connection. If it has a queue, they are reported at the place of
    /// the missing records as the queue is written.
    pub(crate) fn tell_gaps(&mut self, conn: u32) {
        let Some(key) = self.conns.key_at(conn) else { return };
        let Some(c) = self.conns.get_mut(key) else { return };
        let dialect = c.session.dialect();
        let Some(output) = &mut c.output else { return };
        if output.held.is_none() && output.queue.is_empty() {
            for gap in output.gaps.take() {
                self.push(key, |out, _| write_gap(out, dialect, &gap.topic, gap.from, gap.to));
            }
        }
    }

    pub(crate) fn is_full_at(&self, conn: u32) -> bool {
        self.conns.at(conn).and_then(|c| c.output.as_ref()).is_some_and(|o| self.is_full(o))
    }
}
