//! Delivery to MQTT clients: a record is sent, queued, or dropped by the policy of its class.
//!
//! Invariant: while a record is queued for a client, later ones are queued too, so order is preserved.

use super::client::Client;
use super::cursors::CountedBy;
use super::message::Content;
use super::pending::Item;
use super::plain::Plain;
use crate::io::conn::Conn;
use crate::io::output::Output;
use crate::io::shard_io::Io;
use hubsub_mqtt::{Grant, Match};
use hubsub_route::{CloseReason, Delivery, RecordView, Sink, Via, is_publisher};
use hubsub_types::names::{FILTER_MARK, group_of};
use hubsub_types::{OnGap, OnSlow, Position, Qos};
use hubsub_wire::mqtt::Version;

/// A slow client resumes replay when its output is below this, in bytes.
const REPLAY_BELOW: usize = 64 * 1024;

/// How a record reached a client.
#[derive(Clone, Copy, Default)]
pub(super) struct Way<'a> {
    /// The group, if the client got it as a member.
    pub group: Option<&'a [u8]>,
    /// The cursor of the client's session that counts it.
    pub counted: CountedBy,
}

impl Client {
    pub(super) fn must_queue(&self, output: Option<&Output>, qos: Qos) -> bool {
        !self.pending.is_empty()
            || self.connecting.is_some()
            || output.is_some_and(|output| !output.queue.is_empty())
            || (qos > Qos::AtMostOnce && self.machine.window.is_full())
            || self.waits_for_records(qos)
    }

    /// True if a message of that QoS, or one before it, must be persisted before it is sent.
    fn waits_for_records(&self, qos: Qos) -> bool {
        let persistence = self.session.as_ref().and_then(|session| session.persistence.as_ref());
        persistence.is_some_and(|persistence| qos == Qos::ExactlyOnce || persistence.has_prepared())
    }

    /// How a record is sent for this subscription, if at all.
    #[inline]
    fn grant(&self, via: Via<'_>, record: &RecordView<'_>) -> Option<Grant> {
        let by = match via {
            Via::Topic => Match::Topic,
            Via::Pattern(_, source) => Match::Filter(source.strip_prefix(FILTER_MARK)?),
            Via::Group(source) => {
                let grant = self.machine.grant_shared(&shared_filter(source)?)?;
                return Some(Grant { qos: grant.qos.min(record.qos), ..grant });
            }
        };
        let is_own = is_publisher(record.publisher, self.machine.client_id());
        let grant = self.machine.grant(by, record.topic, is_own)?;
        Some(Grant { qos: grant.qos.min(record.qos), ..grant })
    }

    /// True if its session has topic cursors; these count QoS 0 records too.
    pub(super) fn has_topic_cursors(&self) -> bool {
        let cursors = self.session.as_ref().and_then(|session| session.cursors.as_ref());
        cursors.is_some_and(|cursors| cursors.has_topics())
    }

    /// The cursor of its session that counts a record.
    #[inline]
    fn counted_by(&self, via: Via<'_>, record: &RecordView<'_>) -> CountedBy {
        let Some(cursors) = self.session.as_ref().and_then(|session| session.cursors.as_ref()) else {
            return CountedBy::None;
        };
        match via {
            Via::Group(_) => CountedBy::None,
            via => cursors.counted_by(matches!(via, Via::Topic), record.topic, record.place.offset),
        }
    }

    /// Marks a record as taken by its session; false if it was taken before.
    fn takes(&mut self, counted: CountedBy, content: &Content<'_>, is_open: bool) -> bool {
        let cursors = self.session.as_mut().and_then(|session| session.cursors.as_mut());
        cursors
            .filter(|_| counted != CountedBy::None)
            .is_none_or(|cursors| cursors.take(counted, content, is_open))
    }

    /// Marks a record as not taken for now.
    fn refuses(&mut self, counted: CountedBy, record: &RecordView<'_>) {
        let cursors = self.session.as_mut().and_then(|session| session.cursors.as_mut());
        if let Some(cursors) = cursors.filter(|_| counted != CountedBy::None) {
            cursors.refuse(counted, record.place.hub, record.place.offset);
        }
    }
}

/// The client's name of a broker group: `$share/GROUP/FILTER`.
pub(super) fn shared_filter(source: &[u8]) -> Option<Vec<u8>> {
    let (group, filter) = group_of(source)?;
    Some([b"$share/", group, b"/", filter].concat())
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
        let must_queue = client.must_queue(c.output.as_deref(), grant.qos);
        let is_full = must_queue && self.is_full_mqtt(conn);
        if counted != CountedBy::None {
            let Some(client) = self.conns.at_mut(conn).and_then(|c| c.mqtt.as_mut()) else {
                return Delivery::Taken;
            };
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
        let Some(client) = self.conns.at_mut(conn).and_then(|c| c.mqtt.as_mut()) else { return };
        let counted = client.counted_by(via, record);
        if counted != CountedBy::None {
            return client.refuses(counted, record);
        }
        let grant = client.grant(via, record);
        if let (Some(grant), Some(content)) = (grant.filter(|g| g.qos > Qos::AtMostOnce), Content::of(record))
        {
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
        let mut dropped = 0;
        let before = client.pending.bytes();
        if on_slow == OnSlow::Conflate && client.pending.conflates() {
            let Client { pending, session, .. } = &mut **client;
            pending.conflate(content.topic, |item| {
                dropped += 1;
                session.iter_mut().for_each(|session| session.done(item.counted, &item.message.content()));
            });
        }
        self.output_bytes -= before - client.pending.bytes();
        self.output_bytes += message.weight();
        let must_record = grant.qos == Qos::ExactlyOnce && client.is_recorded();
        let Way { group, counted } = way;
        client.pending.push(Item { message, grant, on_slow, group: group.map(Into::into), key: 0, counted });
        c.plain = Plain::No;
        if must_record && let Some(key) = self.conns.key_at(conn) {
            super::persist::schedule(self, key);
        }
        let Some(client) = self.conns.at_mut(conn).and_then(|c| c.mqtt.as_mut()) else { return };
        let soft = self.limits.output_soft_bytes as usize;
        let is_news = client.pending.soft_since_ms().is_none();
        if soft > 0 && client.pending.bytes() > soft && is_news {
            client.pending.set_soft_since_ms(Some(self.now.mono_ms));
            self.watch_soft_limit(conn, self.now.mono_ms + self.limits.output_soft_ms);
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
        let Some(client) = self.conns.at_mut(conn).and_then(|c| c.mqtt.as_mut()) else { return };
        let reports_gaps = client.machine.version() >= Version::V5;
        if !reports_gaps && on_gap == OnGap::Disconnect {
            return self.close(conn, CloseReason::Gap);
        }
        let (Some(grant), Some(content)) = (client.grant(via, record), Content::of(record)) else { return };
        let counted = client.counted_by(via, record);
        if !client.takes(counted, &content, grant.qos > Qos::AtMostOnce) {
            return;
        }
        let needed = content.payload.len() + content.topic.len();
        let (mut lost, mut gaps) = (0, Vec::new());
        let Client { pending, session, .. } = &mut **client;
        let mut each = |item: &Item| {
            lost += 1;
            session.iter_mut().for_each(|session| session.done(item.counted, &item.message.content()));
            if reports_gaps {
                let content = item.message.content();
                gaps.push((content.topic.to_owned(), content.position));
            }
        };
        let before = pending.bytes();
        let mut freed = match policy {
            OnSlow::Conflate => pending.conflate(content.topic, &mut each),
            _ => 0,
        };
        if freed < needed {
            freed += pending.drop_oldest(needed - freed, &mut each);
        }
        for (topic, position) in gaps {
            client.gaps.add(topic.as_bytes(), position, position);
        }
        if !client.pending.has_closers() {
            client.pending.set_soft_since_ms(None);
        }
        self.output_bytes -= before - client.pending.bytes();
        if freed >= needed {
            let counted = if grant.qos > Qos::AtMostOnce { counted } else { CountedBy::None };
            self.queue_mqtt(conn, &content, grant, record.on_slow, Way { group: None, counted });
        } else {
            // Nothing queued may be dropped, so this record is.
            lost += 1;
            client.session.iter_mut().for_each(|session| session.done(counted, &content));
            if reports_gaps {
                client.gaps.add(record.topic, record.position, record.position);
            }
        }
        self.lose(conn, lost);
        self.update_plain(conn);
    }

    /// Records a gap for an MQTT client; false if its protocol version cannot report one.
    pub(crate) fn note_gap_mqtt(&mut self, conn: u32, topic: &[u8], from: Position, to: Position) -> bool {
        let client = self.conns.at_mut(conn).and_then(|c| c.mqtt.as_mut());
        match client.filter(|client| client.machine.version() >= Version::V5) {
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
