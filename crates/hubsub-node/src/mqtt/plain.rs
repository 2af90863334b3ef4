//! The fast path of delivery, for [`Plain`] clients.
//!
//! Invariant: [`Io::deliver_plain`] sends what [`Io::deliver_mqtt`] would send.

use crate::context::io::{Io, PACKETS, TURN_BYTES};
use hubsub_mqtt::{Plain, encode_plain};
use hubsub_route::{RecordView, Via};

impl Io {
    /// Reclassifies a client after a change of its subscriptions, its queue or its gaps.
    pub(super) fn update_plain(&mut self, conn: u32) {
        if let Some(c) = self.conns.at_mut(conn) {
            c.plain = c.mqtt.as_ref().map_or(Plain::No, |client| client.plain());
        }
    }

    /// Delivers a record on the fast path; false if it needs the full path.
    #[inline]
    pub(crate) fn deliver_plain(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> bool {
        let Some(c) = self.conns.at_mut(conn) else { return false };
        let Some(v5) = c.plain.v5(via, record) else { return false };
        let output = c.output.get_or_insert_with(|| self.pool.pop().unwrap_or_default());
        if !output.queue.is_empty() {
            return false;
        }
        let (arena, now_us) = (&mut self.arenas[usize::from(PACKETS)], self.now.wall_us);
        let made = self.states.mqtt.cache.plain(usize::from(v5), || encode_plain(arena, v5, record, now_us));
        let Some((start, end)) = made else { return false };
        output.push_range(PACKETS, start, end);
        let must_write = output.turn_bytes >= TURN_BYTES.min(self.limits.output_bytes_max as usize / 2);
        self.count_sent(conn, (end - start) as usize);
        if must_write {
            self.write_pieces(conn);
        }
        true
    }
}
