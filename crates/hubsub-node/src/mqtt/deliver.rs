//! Delivers records to MQTT clients: passes each to its [`Client`](hubsub_mqtt::Client), and sends or queues
//! it as that decides.

use super::client::client_at;
use crate::context::conn::Conn;
use crate::context::io::Io;
use hubsub_mqtt::{Content, CountedBy, Grant, Plain, Way};
use hubsub_route::{CloseReason, Delivery, RecordView, Sink, Via};
use hubsub_types::{OnGap, OnSlow, Position, Qos};

/// A slow client resumes replay when its output is below this, in bytes.
const REPLAY_BELOW: usize = 64 * 1024;

/// True if an MQTT client's output waits for its socket.
pub(super) fn has_output(conn: &Conn) -> bool {
    conn.output.as_ref().is_some_and(|output| !output.queue.is_empty())
}

impl Io {
    /// Delivers a record to an MQTT client.
    pub(crate) fn deliver_mqtt(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
        let Some(c) = self.conns.at_mut(conn) else { return Delivery::Taken };
        let Some(client) = &c.mqtt else { return Delivery::Taken };
        let group = if let Via::Group(group) = via { Some(group) } else { None };
        let Some(grant) = client.grant(via, record) else {
            // A group's record goes to another member if this one has left.
            return if group.is_some() { Delivery::Full } else { Delivery::Taken };
        };
        let Some(content) = Content::of(record) else {
            self.metrics.mqtt_unsent_total.add(1);
            return Delivery::Taken;
        };
        if record.retain {
            self.note_live(conn, &content);
        }
        let Some(c) = self.conns.at(conn) else { return Delivery::Taken };
        let Some(client) = &c.mqtt else { return Delivery::Taken };
        let (counted, is_open) = (client.counted_by(via, record), grant.qos > Qos::AtMostOnce);
        let must_queue = client.must_queue(has_output(c), grant.qos);
        let is_full = must_queue && self.is_full_mqtt(conn);
        if counted != CountedBy::None {
            let Some(client) = client_at(self, conn) else { return Delivery::Taken };
            if is_full {
                client.refuses(counted, record);
            } else if !client.takes(counted, &content, is_open) {
                return Delivery::Taken;
            }
        }
        let way = Way { group, counted: if is_open { counted } else { CountedBy::None } };
        if is_full {
            return Delivery::Full;
        }
        if must_queue {
            self.queue_mqtt(conn, &content, grant, record.on_slow, way);
        } else {
            self.send_mqtt(conn, &content, &grant, None, way, None);
        }
        Delivery::Taken
    }

    /// Queues a record for a session whose connection is closing.
    pub(crate) fn keep_for_session(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) {
        let Some(client) = client_at(self, conn) else { return };
        let counted = client.counted_by(via, record);
        if counted != CountedBy::None {
            return client.refuses(counted, record);
        }
        let grant = client.grant(via, record).filter(|grant| grant.qos > Qos::AtMostOnce);
        if let (Some(grant), Some(content)) = (grant, Content::of(record)) {
            self.queue_mqtt(conn, &content, grant, record.on_slow, Way::default());
        }
    }

    /// True if the output queued for an MQTT client is at its limit.
    fn is_full_mqtt(&self, conn: u32) -> bool {
        let Some(c) = self.conns.at(conn) else { return false };
        let Some(client) = &c.mqtt else { return false };
        let soft_since_ms = client.pending.soft_since_ms();
        let limits = &self.limits;
        let waiting = waiting_bytes(c);
        waiting >= limits.output_bytes_max as usize
            || soft_since_ms.is_some_and(|ms| self.now.mono_ms >= ms + limits.output_soft_ms)
            || (waiting > 0 && self.record_bytes() >= limits.output_shard_bytes_max as usize)
    }

    /// Queues a record after those that wait.
    pub(super) fn queue_mqtt(
        &mut self,
        conn: u32,
        content: &Content<'_>,
        grant: Grant,
        on_slow: OnSlow,
        way: Way<'_>,
    ) {
        let message = self.states.mqtt.cache.message(content);
        let Some(c) = self.conns.at_mut(conn) else { return };
        let Some(client) = &mut c.mqtt else { return };
        let must_record = grant.qos == Qos::ExactlyOnce && client.is_recorded();
        let before = client.pending.bytes();
        let dropped = client.queue(message, grant, on_slow, way);
        self.output_bytes = self.output_bytes - before + client.pending.bytes();
        c.plain = Plain::No;
        if must_record && let Some(key) = self.conns.key_at(conn) {
            super::persist::schedule(self, key);
        }
        let (soft, now_ms) = (self.limits.output_soft_bytes as usize, self.now.mono_ms);
        let Some(client) = client_at(self, conn) else { return };
        let is_news = client.pending.soft_since_ms().is_none();
        if soft > 0 && client.pending.bytes() > soft && is_news {
            client.pending.set_soft_since_ms(Some(now_ms));
            self.watch_soft_limit(conn, now_ms + self.limits.output_soft_ms);
        }
        self.lose(conn, dropped);
    }

    /// Handles a record for an MQTT client at its output limit, in a class that drops records.
    pub(crate) fn squeeze_mqtt(
        &mut self,
        conn: u32,
        via: Via<'_>,
        record: &RecordView<'_>,
        policy: OnSlow,
        on_gap: OnGap,
    ) {
        let Some(client) = client_at(self, conn) else { return };
        if !client.reports_gaps() && on_gap == OnGap::Disconnect {
            return self.close(conn, CloseReason::Gap);
        }
        let Some(content) = Content::of(record) else { return };
        let before = client.pending.bytes();
        let Some(squeezed) = client.squeeze(via, record, &content, policy) else { return };
        let freed = before - client.pending.bytes();
        self.output_bytes -= freed;
        if let Some((grant, counted)) = squeezed.queue {
            self.queue_mqtt(conn, &content, grant, record.on_slow, Way { group: None, counted });
        }
        self.lose(conn, squeezed.dropped);
        self.update_plain(conn);
    }

    /// Records a gap for an MQTT client; false if its protocol version cannot report one.
    pub(crate) fn note_gap_mqtt(&mut self, conn: u32, topic: &[u8], from: Position, to: Position) -> bool {
        match client_at(self, conn).filter(|client| client.reports_gaps()) {
            Some(client) => client.gaps.add(topic, from, to),
            None => return false,
        }
        self.update_plain(conn);
        true
    }

    /// True if an MQTT client has room for replayed records.
    pub(crate) fn wants_replay_mqtt(conn: &Conn) -> bool {
        waiting_bytes(conn) < REPLAY_BELOW
    }
}

/// Queued bytes of an MQTT client, approximately.
fn waiting_bytes(conn: &Conn) -> usize {
    let pending = conn.mqtt.as_ref().map_or(0, |client| client.pending.bytes());
    pending + conn.output.as_ref().map_or(0, |output| output.queue_bytes + output.turn_bytes)
}
