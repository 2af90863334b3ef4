//! Sends records to MQTT clients. Queued records are sent as window and socket have room.

use super::client::client_mut;
use crate::context::conn::{Conn, Flags};
use crate::context::io::{Io, REPLIES, TURN_BYTES};
use crate::io::meter::{BYTES_OUT, MESSAGES_OUT};
use hubsub_mqtt::{
    ARENA_BYTES_MAX, Content, CountedBy, Grant, Message, Next, Outgoing, Prepared, Sent, Under, Way,
};
use hubsub_types::ConnKey;
use std::rc::Rc;

// A packet for a single client is written at once when the arena is longer than a few turns.
const _: () = assert!(ARENA_BYTES_MAX == 4 * TURN_BYTES);

/// The most queued bytes sent to a client in one turn.
const PUMP_BYTES: usize = 64 * 1024;

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
        let (soft, now_us) = (self.limits.output_soft_bytes as usize, self.now.wall_us);
        loop {
            let Some(c) = self.conns.get_mut(key).filter(|c| !c.is_closing()) else { return };
            let has_room = has_room(c);
            let Some(client) = c.mqtt.as_mut().filter(|_| has_room) else { return };
            let item = match client.next_queued() {
                Next::Ready(item) => item,
                Next::Record => return super::persist::schedule(self, key),
                Next::None | Next::Waits => return,
            };
            if client.pending.bytes() <= soft {
                client.pending.set_soft_since_ms(None);
            }
            let is_last = client.pending.is_empty();
            let under = client.send_under_key(&item, now_us);
            self.output_bytes -= item.message.weight();
            let way = Way { group: item.group.as_deref(), counted: item.counted };
            self.send_mqtt(key.index, &item.message.content(), &item.grant, Some(&item.message), way, under);
            if is_last {
                return self.update_plain(key.index);
            }
        }
    }

    /// Resends what a client has not acknowledged on an older connection, as far as there is room; returns
    /// whether all of it was sent.
    fn send_again_mqtt(&mut self, key: ConnKey) -> bool {
        loop {
            let Some(conn) = self.conns.get(key).filter(|conn| !conn.is_closing()) else { return true };
            if !has_room(conn) {
                return false;
            }
            let next = self.with_mqtt(key, |client, out| {
                let (id, _, number) = client.machine.send_again(out)?;
                let sent = client.session.as_ref().and_then(|session| session.sent(number).cloned());
                if sent.is_none() {
                    client.machine.window.unsend(id);
                }
                Some((Under { id, key: number, dup: true }, sent))
            });
            let Some(Some((under, sent))) = next else { return true };
            if let Some(Sent { message, grant, .. }) = sent {
                let (content, way) = (message.content(), Way::default());
                self.send_mqtt(key.index, &content, &grant, Some(&message), way, Some(under));
            }
        }
    }

    /// Sends messages whose entry is safe, as far as there is room; returns whether none is left.
    fn send_prepared(&mut self, key: ConnKey) -> bool {
        loop {
            let Some(conn) = self.conns.get_mut(key).filter(|conn| !conn.is_closing()) else { return false };
            let has_room = has_room(conn);
            let Some(client) = &mut conn.mqtt else { return true };
            let Prepared { message, grant, group, under, .. } = match client.next_prepared(has_room) {
                Next::Ready(prepared) => prepared,
                Next::None => return true,
                Next::Waits | Next::Record => return false,
            };
            let way = Way { group: group.as_deref(), counted: CountedBy::None };
            self.send_mqtt(key.index, &message.content(), &grant, Some(&message), way, under);
        }
    }

    /// Assigns packet ids to waiting QoS 2 messages and those after them; they are sent once that is
    /// persisted.
    pub(super) fn prepare(&mut self, key: ConnKey) {
        let now_us = self.now.wall_us;
        if self.conns.get(key).is_none_or(|conn| conn.is_closing()) {
            return;
        }
        let Some(client) = client_mut(self, key) else { return };
        let (bytes, expired) = client.prepare(now_us);
        self.output_bytes -= bytes;
        self.metrics.mqtt_unsent_total.add(expired);
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

    /// Sends a record to a client: `queued` if it was queued, else the current record. `under`: its packet id
    /// and key, if it has them.
    pub(super) fn send_mqtt(
        &mut self,
        conn: u32,
        content: &Content<'_>,
        grant: &Grant,
        queued: Option<&Rc<Message>>,
        way: Way<'_>,
        under: Option<Under>,
    ) {
        let Some(c) = self.conns.at_mut(conn) else { return };
        let Some(client) = &mut c.mqtt else { return };
        let arena = &mut self.arenas[usize::from(REPLIES)];
        let before = arena.len();
        let outgoing = Outgoing { content, grant, queued, way, under };
        let sent = client.send(&outgoing, &mut self.states.mqtt.cache, arena, self.now.wall_us);
        let is_final = |group: &&[u8]| sent.is_final && !group.iter().any(|byte| b"+#".contains(byte));
        if let Some(group) = way.group.filter(is_final) {
            // No acknowledgement will come, so the group's position advances now.
            self.own.acknowledge(group.into(), content.position);
        }
        let Some(packet) = sent.packet else {
            self.metrics.mqtt_unsent_total.add(1);
            return;
        };
        let mut bytes = packet.end - packet.start;
        let output = c.output.get_or_insert_with(|| self.pool.pop().unwrap_or_default());
        output.push_range(REPLIES, packet.start as u32, packet.end as u32);
        if let Some(payload) = packet.payload {
            bytes += payload.len();
            self.frame_bytes += payload.len();
            output.push_frame(payload);
        }
        let turn_bytes = output.turn_bytes;
        self.count_sent(conn, bytes);
        if packet.reports_gaps {
            self.update_plain(conn);
        }
        let is_long = self.arenas[usize::from(REPLIES)].len() > ARENA_BYTES_MAX
            && packet.start == before
            && !packet.is_cached;
        if is_long || turn_bytes >= TURN_BYTES.min(self.limits.output_bytes_max as usize / 2) {
            self.write_pieces(conn);
            if is_long {
                self.arenas[usize::from(REPLIES)].truncate(before);
            }
        }
    }
}

/// True if an MQTT client may be sent more queued records in this turn.
fn has_room(conn: &Conn) -> bool {
    conn.output.as_ref().is_none_or(|o| o.queue.is_empty() && o.turn_bytes < PUMP_BYTES)
}
