//! Records as PUBLISH packets. A record is encoded once for all clients of a shard with the same version and
//! QoS, and without subscription identifiers and aliases. Packets of QoS 1 and 2 are copies with their own
//! id; a long payload is shared apart from its head. Queued records are sent as window and socket have room.
//!
//! Invariant: a packet id is assigned when the packet is written, not before.

use super::client::Client;
use super::deliver::Way;
use super::gaps::Gaps;
use super::message::{Content, Message};
use super::pending::Item;
use super::session::Sent;
use crate::io::conn::{Conn, Flags};
use crate::io::meter::{BYTES_OUT, MESSAGES_OUT};
use crate::io::shard_io::{Io, REPLIES, TURN_BYTES};
use hubsub_mqtt::{Grant, write_headers};
use hubsub_types::{ConnKey, Qos};
use hubsub_wire::mqtt::{
    Encoded, PacketId, Pair, Property, PropertyList, Publish, Version, write_publish, write_publish_head,
};
use std::rc::Rc;

/// Payloads of this size and more are shared, in bytes.
pub(super) const PAYLOAD_SHARED: usize = 16 * 1024;

/// Arena size above which a packet for a single client is written at once, in bytes.
pub(super) const ARENA_BYTES: usize = 4 * TURN_BYTES;

/// The most queued bytes sent to a client in one turn.
const PUMP_BYTES: usize = 64 * 1024;

/// Shared encodings of a record: three QoS, with and without properties, with and without RETAIN.
const VARIANTS: usize = 12;

/// The encodings of the current record.
#[derive(Default)]
pub struct Cache {
    is_used: bool,
    packets: [Option<Encoded>; VARIANTS],
    /// Index 0: before 5.0, 1: 5.0.
    plain: [Option<(u32, u32)>; 2],
    message: Option<Rc<Message>>,
}

impl Cache {
    /// Starts the next record.
    #[inline]
    pub fn begin(&mut self) {
        if self.is_used {
            *self = Cache::default();
        }
    }

    /// The QoS 0 packet of most clients of a version, as a range of the packet arena; `make` creates it on
    /// first use. None if there is none.
    #[inline]
    pub(super) fn plain(
        &mut self,
        version: usize,
        make: impl FnOnce() -> Option<(u32, u32)>,
    ) -> Option<(u32, u32)> {
        if self.plain[version].is_none() {
            self.is_used = true;
            self.plain[version] = make();
        }
        self.plain[version]
    }

    pub(super) fn message(&mut self, content: &Content<'_>) -> Rc<Message> {
        self.is_used = true;
        Rc::clone(self.message.get_or_insert_with(|| Rc::new(content.keep())))
    }
}

/// Identifies a message that has a packet id already.
#[derive(Clone, Copy)]
pub(super) struct Under {
    pub id: PacketId,
    /// Its key in the session.
    pub key: u64,
    /// True for a retransmission.
    pub dup: bool,
}

/// The user property with a message's position.
const POSITION: &str = "hubsub-position";

/// The user property that reports a gap: first and last missing record, and topic or filter.
const GAP: &str = "hubsub-gap";

impl Client {
    /// The properties of a packet, and whether they are specific to this client.
    fn properties(&self, content: &Content<'_>, grant: &Grant, now_us: u64) -> (PropertyList, bool) {
        let mut list = PropertyList::default();
        if self.machine.version() < Version::V5 {
            return (list, false);
        }
        let mut push = |property| list.push(property).expect("numbers and short texts fit");
        let aliases = &self.machine.own_aliases;
        let alias =
            if aliases.is_empty() { None } else { aliases.find(content.topic).or_else(|| aliases.free()) };
        alias.into_iter().for_each(|alias| push(Property::TopicAlias(alias)));
        grant.ids.iter().for_each(|&id| push(Property::SubscriptionId(id)));
        let position = self.reports_positions.then(|| content.position.to_string());
        position.iter().for_each(|position| push(Property::User(Pair { name: POSITION, value: position })));
        for text in self.gaps.texts() {
            // The topic may be too long for a property.
            let _ = list.push(Property::User(Pair { name: GAP, value: text }));
        }
        let is_alone = !list.as_properties().is_empty();
        write_headers(content.headers, content.age_s(now_us), &mut list);
        (list, is_alone)
    }
}

impl Io {
    /// Sends an MQTT client its queued records, as far as window and socket have room.
    pub(crate) fn pump_mqtt(&mut self, key: ConnKey) {
        let is_connecting = |conn: &Conn| conn.mqtt.as_ref().is_none_or(|client| client.connecting.is_some());
        if self.conns.get(key).is_none_or(is_connecting)
            || !self.send_again_mqtt(key)
            || !self.send_prepared(key)
        {
            return;
        }
        let soft = self.limits.output_soft_bytes as usize;
        loop {
            let Some(c) = self.conns.get_mut(key).filter(|c| !c.is_closing()) else { return };
            let has_room = has_room(c);
            let Some(client) = c.mqtt.as_mut().filter(|_| has_room) else { return };
            let is_recorded = client.is_recorded();
            let Some(next) = client.pending.front() else { return };
            if is_recorded && next.is_recorded() {
                return super::persist::schedule(self, key);
            }
            if next.grant.qos > Qos::AtMostOnce && client.machine.window.is_full() {
                return;
            }
            let Some(Item { message, grant, group, key: queued, counted, .. }) = client.pending.pop() else {
                return;
            };
            if client.pending.bytes() <= soft {
                client.pending.set_soft_since_ms(None);
            }
            self.output_bytes -= message.weight();
            let is_last = client.pending.is_empty();
            let way = Way { group: group.as_deref(), counted };
            self.send_queued_mqtt(key, &message, &grant, way, queued);
            if is_last {
                return self.update_plain(key.index);
            }
        }
    }

    /// Sends a queued message, under its key if it has one.
    fn send_queued_mqtt(
        &mut self,
        key: ConnKey,
        message: &Rc<Message>,
        grant: &Grant,
        way: Way<'_>,
        queued: u64,
    ) {
        let is_over = grant.qos == Qos::AtMostOnce || message.content().is_expired(self.now.wall_us);
        let mut under = None;
        let client = self.conns.get_mut(key).and_then(|conn| conn.mqtt.as_mut());
        if let Some(client) = client.filter(|_| queued > 0 && !is_over)
            && let Some(session) = &mut client.session
        {
            let (message, counted) = (Rc::clone(message), way.counted);
            session.send(queued, Sent { message, grant: grant.clone(), counted, is_recorded: true });
            let id = client.machine.window.send(grant.qos, queued).expect("the window was looked at");
            under = Some(Under { id, key: queued, dup: false });
        }
        self.send_mqtt(key.index, &message.content(), grant, Some(message), way, under);
    }

    /// Counts a record's packet that was added to a connection's output.
    #[inline]
    pub(super) fn count_sent(&mut self, conn: u32, bytes: usize) {
        let Some(c) = self.conns.at_mut(conn) else { return };
        c.meter.totals[MESSAGES_OUT] += 1;
        c.meter.totals[BYTES_OUT] += bytes as u64;
        self.metrics.delivered_total.add(1);
        self.metrics.mqtt_packets_sent_total.add(1);
        self.metrics.mqtt_delivered_total.add(1);
        if !c.flags.any(Flags::DIRTY) {
            c.flags.set(Flags::DIRTY, true);
            self.dirty.push(self.conns.key_at(conn).expect("it is there"));
        }
    }

    /// Sends a message again with its packet id and key.
    pub(super) fn send_mqtt_again(
        &mut self,
        conn: u32,
        message: &Rc<Message>,
        grant: &Grant,
        id: PacketId,
        number: u64,
    ) {
        let under = Some(Under { id, key: number, dup: true });
        self.send_mqtt(conn, &message.content(), grant, Some(message), Way::default(), under);
    }

    /// Sends a record to a client: `queued` if it was queued, else the current record. `under`: its packet id
    /// and key, if it has them.
    pub(super) fn send_mqtt(
        &mut self,
        conn: u32,
        content: &Content<'_>,
        grant: &Grant,
        queued: Option<&Rc<Message>>,
        Way { group, counted }: Way<'_>,
        under: Option<Under>,
    ) {
        let now_us = self.now.wall_us;
        let Some(c) = self.conns.at_mut(conn) else { return };
        let Some(client) = &mut c.mqtt else { return };
        let is_expired = under.is_none() && content.is_expired(now_us);
        let is_done = grant.qos == Qos::AtMostOnce || is_expired;
        if let Some(group) = group.filter(|group| is_done && !group.iter().any(|byte| b"+#".contains(byte))) {
            // No acknowledgement will come, so the group's position advances now.
            self.own.acknowledge(group.into(), content.position);
        }
        if is_expired {
            client.session.iter_mut().for_each(|session| session.done(counted, content));
            self.metrics.mqtt_unsent_total.add(1);
            return;
        }
        let id = match (grant.qos, under) {
            (Qos::AtMostOnce, _) => None,
            (_, Some(Under { id, .. })) => Some(id),
            (qos, None) => {
                let key = client.session.as_mut().map_or(0, |session| session.next_key());
                if let Some(session) = &mut client.session {
                    let message = queued.map_or_else(|| self.states.mqtt.cache.message(content), Rc::clone);
                    session.send(key, Sent { message, grant: grant.clone(), counted, is_recorded: false });
                }
                Some(client.machine.window.send(qos, key).expect("the window was looked at"))
            }
        };
        let version = client.machine.version();
        let retain = content.retain && grant.retain;
        let variant =
            grant.qos as usize + if version >= Version::V5 { 3 } else { 0 } + if retain { 6 } else { 0 };
        let is_alone = !client.machine.own_aliases.is_empty()
            || !grant.ids.is_empty()
            || !client.gaps.is_empty()
            || client.reports_positions;
        let packet_bytes_max = client.machine.packet_bytes_max();
        let is_shared = content.payload.len() >= PAYLOAD_SHARED;
        let arena = &mut self.arenas[usize::from(REPLIES)];
        let start = arena.len();
        let cache = &mut self.states.mqtt.cache;
        let made = cache.packets[variant].filter(|_| !is_alone && !is_shared && queued.is_none());
        let mut reported_gaps = false;
        let range = match made {
            Some(made) if made.end - made.start > packet_bytes_max => None,
            Some(made) => match id {
                None => Some((made.start, made.end)),
                Some(id) => {
                    arena.extend_from_within(made.start..made.end);
                    let shift = start - made.start;
                    let copy = Encoded { start, end: arena.len(), id_at: made.id_at.map(|at| at + shift) };
                    copy.patch(arena, id, false);
                    Some((copy.start, copy.end))
                }
            },
            None => {
                let (properties, is_alone) = client.properties(content, grant, now_us);
                let aliases = &mut client.machine.own_aliases;
                let is_known = !aliases.is_empty() && aliases.find(content.topic).is_some();
                let publish = Publish {
                    dup: under.is_some_and(|under| under.dup),
                    qos: grant.qos,
                    retain,
                    topic: if is_known { "" } else { content.topic },
                    id,
                    properties: properties.as_properties(),
                    payload: if is_shared { &[] } else { content.payload },
                };
                let written = if is_shared {
                    write_publish_head(arena, version, &publish, content.payload.len(), packet_bytes_max)
                } else {
                    write_publish(arena, version, &publish, packet_bytes_max)
                };
                written.ok().map(|written| {
                    if !aliases.is_empty() && !is_known && aliases.free().is_some() {
                        aliases.told(content.topic);
                    }
                    reported_gaps = !client.gaps.is_empty();
                    client.gaps = Gaps::default();
                    if !is_alone && !is_shared && queued.is_none() {
                        cache.is_used = true;
                        cache.packets[variant] = Some(written);
                    }
                    (written.start, written.end)
                })
            }
        };
        let Some((from, to)) = range else {
            // The client accepts no packet of this length: treated as sent (section 3.1.2.11.4 of 5.0).
            if let Some(id) = id {
                client.machine.window.unsend(id);
                if let Some(session) = &mut client.session {
                    session.ended(under.map_or_else(|| session.last_key(), |under| under.key));
                }
            }
            self.metrics.mqtt_unsent_total.add(1);
            return;
        };
        if let Some((group, id)) = group.zip(id) {
            let message = queued.map_or_else(|| cache.message(content), Rc::clone);
            client.shares.get_or_insert_default().sent(id, group, message, grant.qos);
        } else if let Some((shares, id)) = client.shares.as_mut().zip(id) {
            shares.ended(id);
        }
        if let Some(id) = id {
            client.sends_action(id, content);
        }
        let output = c.output.get_or_insert_with(|| self.pool.pop().unwrap_or_default());
        output.push_range(REPLIES, from as u32, to as u32);
        let mut bytes = to - from;
        if is_shared {
            let payload = match queued {
                Some(message) => message.payload().clone(),
                None => cache.message(content).payload().clone(),
            };
            bytes += payload.len();
            self.frame_bytes += payload.len();
            output.push_frame(payload);
        }
        let turn_bytes = output.turn_bytes;
        self.count_sent(conn, bytes);
        if reported_gaps {
            self.update_plain(conn);
        }
        let is_cached = self.states.mqtt.cache.packets[variant].is_some_and(|made| made.start == from);
        let is_long = self.arenas[usize::from(REPLIES)].len() > ARENA_BYTES && from == start && !is_cached;
        if is_long || turn_bytes >= TURN_BYTES.min(self.limits.output_bytes_max as usize / 2) {
            self.write_pieces(conn);
            if is_long {
                self.arenas[usize::from(REPLIES)].truncate(start);
            }
        }
    }
}

/// True if an MQTT client may be sent more queued records in this turn.
pub(super) fn has_room(conn: &Conn) -> bool {
    conn.output.as_ref().is_none_or(|o| o.queue.is_empty() && o.turn_bytes < PUMP_BYTES)
}
