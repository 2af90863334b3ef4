//! Plain clients: no wildcard, no identifier, nothing queued. Most clients are plain most of the time; a
//! delivery to one checks a single byte of its connection, as for Redis clients.
//!
//! Invariant: the fast path sends what [`Client::send`] would send.

use super::client::Client;
use super::encodings::{ARENA_BYTES_MAX, PAYLOAD_SHARED};
use super::message::Content;
use crate::machine::write_headers;
use hubsub_route::{RecordView, Via};
use hubsub_types::Qos;
use hubsub_wire::mqtt::{PropertyList, REMAINING_LENGTH_MAX, Version, is_topic_name, write_plain};

/// Whether a connection is a plain client, and of which version.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Plain {
    /// Each record needs the full delivery path.
    #[default]
    No,
    /// Records of QoS 0 are delivered on the fast path.
    Once {
        /// True for 5.0, false for an earlier version.
        v5: bool,
    },
    /// All records are delivered on the fast path: it subscribes with QoS 0.
    Always {
        /// True for 5.0, false for an earlier version.
        v5: bool,
    },
}

impl Plain {
    /// The packet version (5.0 or not) for a record on the fast path; none if it needs the full path.
    #[inline]
    #[must_use]
    pub fn v5(self, via: Via<'_>, record: &RecordView<'_>) -> Option<bool> {
        match (self, via) {
            // The RETAIN flag may have to be sent, and reads of retained messages must note the topic.
            _ if record.retain => None,
            (Plain::Always { v5 }, Via::Topic) => Some(v5),
            (Plain::Once { v5 }, Via::Topic) if record.qos == Qos::AtMostOnce => Some(v5),
            _ => None,
        }
    }
}

impl Client {
    pub fn plain(&self) -> Plain {
        let is_plain = self.pending.is_empty()
            && self.gaps.is_empty()
            && !self.has_topic_cursors()
            && !self.reports_positions
            && !(self.is_recorded() && self.machine.filters.plain_qos() > Some(Qos::AtMostOnce))
            && self.machine.own_aliases.is_empty()
            && self.machine.packet_bytes_max() > REMAINING_LENGTH_MAX;
        let v5 = self.machine.version() >= Version::V5;
        match self.machine.filters.plain_qos().filter(|_| is_plain) {
            None => Plain::No,
            Some(Qos::AtMostOnce) => Plain::Always { v5 },
            Some(_) => Plain::Once { v5 },
        }
    }
}

/// Appends a QoS 0 packet. None if the topic is invalid in MQTT, the message expired, or too long for the
/// arena.
pub fn encode_plain(
    arena: &mut Vec<u8>,
    v5: bool,
    record: &RecordView<'_>,
    now_us: u64,
) -> Option<(u32, u32)> {
    if record.payload.len() >= PAYLOAD_SHARED || arena.len() > ARENA_BYTES_MAX {
        return None;
    }
    if !is_topic_name(record.topic) {
        return None;
    }
    let version = if v5 { Version::V5 } else { Version::V311 };
    let mut properties = PropertyList::default();
    if !record.headers.is_empty() {
        let content = Content::of(record).filter(|content| !content.is_expired(now_us))?;
        if v5 {
            write_headers(content.headers, content.age_s(now_us), &mut properties);
        }
    }
    let written = write_plain(arena, version, record.topic, properties.as_properties(), record.payload);
    written.ok().map(|(start, end)| (start as u32, end as u32))
}
