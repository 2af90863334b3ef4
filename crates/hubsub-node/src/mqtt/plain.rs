//! Clients that get records of their topics as everybody does: no wildcard, no identifier, nothing that waits. Most
//! clients are such most of the time, and for them a delivery looks neither at what they asked for nor at what they are,
//! but at one byte of the connection, as with Redis's.
//!
//! Invariant: what a client is sent by [`Rim::deliver_plain`] is what [`Rim::deliver_mqtt`] would send it.

use super::client::Client;
use super::message::Said;
use super::sending::{ARENA_BYTES, PAYLOAD_SHARED};
use crate::rim::{PACKETS, Rim, TURN_BYTES};
use hubsub_route::{RecordView, Via};
use hubsub_types::Qos;
use hubsub_wire::mqtt::{
    PropertyList, REMAINING_LENGTH_MAX, Version, is_topic_name, write_headers, write_plain,
};

/// What a delivery needs to know of such a client; of another one that it is none.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Plain {
    /// Its records need a look at it.
    #[default]
    No,
    /// Records of QoS 0 do not; it speaks 5.0 or an earlier version.
    Once {
        /// Whether it speaks 5.0.
        v5: bool,
    },
    /// No record does: it subscribes with QoS 0.
    Always {
        /// Likewise.
        v5: bool,
    },
}

impl Plain {
    /// In which version's packet a record comes, if it needs no look.
    #[inline]
    fn v5(self, via: Via<'_>, record: &RecordView<'_>) -> Option<bool> {
        match (self, via) {
            // Some want to know that, and who reads what topics kept takes note of it.
            _ if record.retain => None,
            (Plain::Always { v5 }, Via::Topic) => Some(v5),
            (Plain::Once { v5 }, Via::Topic) if record.qos == Qos::AtMostOnce => Some(v5),
            _ => None,
        }
    }
}

impl Client {
    /// Whether it is such a client, as it is now.
    fn plain(&self) -> Plain {
        let is_plain = self.pending.is_empty()
            && self.gaps.is_empty()
            && !self.stands_in_topics()
            && !self.tells_positions
            && !(self.is_recorded() && self.machine.plain_qos() > Some(Qos::AtMostOnce))
            && self.machine.own_aliases.is_empty()
            && self.machine.packet_bytes_max() > REMAINING_LENGTH_MAX;
        let v5 = self.machine.version() >= Version::V5;
        match self.machine.plain_qos().filter(|_| is_plain) {
            None => Plain::No,
            Some(Qos::AtMostOnce) => Plain::Always { v5 },
            Some(_) => Plain::Once { v5 },
        }
    }
}

impl Rim {
    /// Something of a client changed: its subscriptions, what waits for it, what it is to be told.
    pub(super) fn look_whether_plain(&mut self, conn: u32) {
        if let Some(c) = self.conns.at_mut(conn) {
            c.plain = c.mqtt.as_ref().map_or(Plain::No, |client| client.plain());
        }
    }

    /// A record for an MQTT client, if that needs no look at it; whether it was delivered.
    #[inline]
    pub(crate) fn deliver_plain(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> bool {
        let Some(c) = self.conns.at_mut(conn) else { return false };
        let Some(v5) = c.plain.v5(via, record) else { return false };
        let output = c.output.get_or_insert_with(|| self.pool.pop().unwrap_or_default());
        if !output.queue.is_empty() {
            return false;
        }
        let (arena, now_us) = (&mut self.arenas[usize::from(PACKETS)], self.now.wall_us);
        let made = self.encoded.mqtt.plain(usize::from(v5), || encode(arena, v5, record, now_us));
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

/// The packet of QoS 0 of a record, behind the others; none if MQTT cannot say it, its time is over, or it is not for the arena.
fn encode(arena: &mut Vec<u8>, v5: bool, record: &RecordView<'_>, now_us: u64) -> Option<(u32, u32)> {
    if record.payload.len() >= PAYLOAD_SHARED || arena.len() > ARENA_BYTES {
        return None;
    }
    if !is_topic_name(record.topic) {
        return None;
    }
    let version = if v5 { Version::V5 } else { Version::V311 };
    let mut properties = PropertyList::default();
    if !record.headers.is_empty() {
        let said = Said::of(record).filter(|said| !said.is_expired(now_us))?;
        if v5 {
            write_headers(said.headers, said.age_s(now_us), &mut properties);
        }
    }
    let written = write_plain(arena, version, record.topic, properties.as_properties(), record.payload);
    written.ok().map(|(start, end)| (start as u32, end as u32))
}
