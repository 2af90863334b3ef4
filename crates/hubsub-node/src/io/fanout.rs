//! Delivery of records into connections' output. A record is encoded once per variant that its receivers
//! want, into an arena of the turn, and each receiver gets a range of it. A receiver whose socket is full
//! gets a shared frame in its queue instead, up to its output limit.

mod encoded;
mod queue;

pub(crate) use encoded::Encoded;
use encoded::variant_of;
pub(crate) use queue::write_gap;

use crate::consumers::Wanted;
use crate::http;
use crate::io::conn::{Conn, Dialect, Flags};
use crate::io::context::{Rim, TURN_BYTES};
use crate::io::log_lines::Level;
use crate::io::meter::{BYTES_OUT, MESSAGES_OUT};
use crate::io::output::{Pending, Tag};
use crate::log::{LogEnd, LogQuestion};
use crate::shard::mail::{Mail, Part};
use hubsub_route::rooms::HistoryPart;
use hubsub_route::{
    Answer, Ask, Asker, CloseReason, Delivery, HubLogRead, LogRead, Msg, NodeMessage, Recalled, Record,
    RecordView, Sink, Via,
};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ErrorCode, HubId, NodeId, OnGap, OnSlow, Position, Protocol, ShardId, Term};
use hubsub_wire::resp;
use std::sync::Arc;

/// Frames of at least this size are shared individually instead of through an arena.
pub(crate) const FRAME_SHARED: usize = 16 * 1024;

/// Limit of an arena per turn; further frames are shared individually.
const ARENA_BYTES: usize = 4 * TURN_BYTES;

/// A lagging connection reads on while its output is below this.
const REPLAY_BELOW: usize = 64 * 1024;

impl Sink for Rim {
    fn record_begins(&mut self) {
        self.encoded.begin();
    }

    fn keep_for_absent(&mut self, conn: u32, group: (&[u8], u64), record: &RecordView<'_>) -> Delivery {
        self.share_with_offline(conn, group, record)
    }

    #[inline]
    fn deliver(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
        let Some(c) = self.conns.at_mut(conn) else {
            return self.deliver_to_none(conn, via, record);
        };
        if c.is_closing() {
            return self.deliver_to_closing(conn, via, record);
        }
        if c.mqtt.is_some() {
            if self.deliver_plain(conn, via, record) {
                return Delivery::Taken;
            }
            return self.deliver_mqtt(conn, via, record);
        }
        if let Via::Group(group) = via {
            return self.deliver_consumed(conn, group, record);
        }
        if c.output.as_ref().is_some_and(|output| output.holds_records()) {
            return self.deliver_behind(conn, via, record);
        }
        self.deliver_at_once(conn, via, record)
    }

    fn squeeze(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>, policy: OnSlow, on_gap: OnGap) {
        let Some(c) = self.conns.at_mut(conn) else { return };
        if c.mqtt.is_some() {
            return self.squeeze_mqtt(conn, via, record, policy, on_gap);
        }
        let tells = c.hears_of_gaps();
        if !tells && on_gap == OnGap::Disconnect {
            return self.close(conn, CloseReason::Gap);
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
            self.close(conn, CloseReason::Gap);
        }
    }

    fn gap(&mut self, conn: u32, topic: &[u8], from: Position, to: Position, on_gap: OnGap) {
        let Some(key) = self.conns.key_at(conn) else {
            if self.own.is_at(conn) {
                self.own.miss(topic);
            }
            return;
        };
        self.metrics.gap_records_total.add(to.seq.0.saturating_sub(from.seq.0) + 1);
        if self.note_gap_mqtt(conn, topic, from, to) {
            return;
        }
        if let Some(dialect) = self.conns.get(key).filter(|c| c.hears_of_gaps()).map(Conn::dialect) {
            self.push_behind(key, |out, _| write_gap(out, dialect, topic, from, to));
        } else if on_gap == OnGap::Disconnect {
            self.close(conn, CloseReason::Gap);
        }
    }

    fn recall(&self, hub: HubId, room: &[u8]) -> Option<Recalled> {
        self.log.as_ref()?.recall(hub, room)
    }

    fn append(&mut self, hub: HubId, offset: u64, room: &[u8], record: &Record) {
        self.expects_more = true;
        if let Some(log) = &mut self.log {
            log.append(hub, offset, room, record);
        }
    }

    fn append_deletion(&mut self, hub: HubId, offset: u64, room: &[u8], last: Position, timestamp_us: u64) {
        if let Some(log) = &mut self.log {
            log.append_deletion(hub, offset, room, last, timestamp_us);
        }
    }

    fn recalls_through(&self, hub: HubId) -> u64 {
        self.log.as_ref().map_or(0, |log| log.recalls_through(hub))
    }

    fn log_refuses(&self, hub: HubId) -> Option<ErrorCode> {
        self.log.as_ref().map_or(Some(ErrorCode::LogFailed), |log| log.refuses(hub))
    }

    fn log_is_behind(&self) -> bool {
        self.log.as_ref().is_some_and(LogEnd::is_behind)
    }

    fn read_log(&mut self, read: Box<LogRead>) {
        if let Some(log) = &mut self.log {
            log.read(LogQuestion::Room(read));
        }
    }

    fn read_hub_log(&mut self, read: Box<HubLogRead>) {
        if let Some(log) = &mut self.log {
            log.read(LogQuestion::Hub(read));
        }
    }

    fn history(&mut self, ask: Ask, part: Result<HistoryPart, ErrorCode>) {
        self.answer_part(ask, part.map_or_else(Part::Refused, Part::History));
    }

    fn deleted(&mut self, ask: Ask, outcome: Result<(), ErrorCode>) {
        self.answer_part(ask, Part::Number(outcome.map(|()| 1)));
    }

    fn close(&mut self, conn: u32, reason: CloseReason) {
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

    fn wants_replay(&self, conn: u32) -> bool {
        let Some(c) = self.conns.at(conn) else { return self.reads_offline(conn) };
        if c.mqtt.is_some() {
            return !c.is_closing() && Rim::wants_replay_mqtt(c);
        }
        !c.is_closing() && c.output.as_ref().is_none_or(|o| o.pending_bytes() < REPLAY_BELOW)
    }

    fn replays(&mut self, conn: u32) {
        if let Some(c) = self.conns.at_mut(conn).filter(|c| !c.flags.any(Flags::PACED)) {
            c.flags.set(Flags::PACED, true);
            c.io.pace();
        }
    }

    fn protocol(&self, conn: u32) -> Option<Protocol> {
        let Some(conn) = self.conns.at(conn) else {
            // A session continues without its client.
            return (!self.own.is_at(conn)).then_some(Protocol::Mqtt);
        };
        Some(match conn.dialect() {
            _ if conn.mqtt.is_some() => Protocol::Mqtt,
            Dialect::Redis(_) => Protocol::Redis,
            Dialect::Phoenix(_) => Protocol::Phoenix,
            Dialect::Events => Protocol::Events,
        })
    }

    fn publisher(&self, conn: u32) -> Box<str> {
        self.conns.at(conn).map_or_else(Box::default, Conn::publisher)
    }

    fn send(&mut self, to: ShardId, msg: Msg) {
        self.mailer.post(to, Mail::Broker(msg));
    }

    fn congested(&self, to: ShardId) -> bool {
        self.mailer.congested(to)
    }

    fn send_node(&mut self, node: NodeId, hub: HubId, message: NodeMessage) -> Result<(), NodeMessage> {
        self.send_to_node(node, hub, message)
    }

    fn node_flows(&self, node: NodeId, hub: HubId) -> bool {
        self.flows_to_node(node, hub)
    }

    fn node_is_silent(&self, node: NodeId, hub: HubId) -> bool {
        self.is_silent(node, hub)
    }

    fn load_consumer(&mut self, source: &Arc<[u8]>) {
        self.own.want(Wanted::Load(Arc::clone(source)));
    }

    fn save_consumer(&mut self, source: &Arc<[u8]>, row: Vec<u8>) {
        self.own.want(Wanted::Save(Arc::clone(source), row));
    }

    fn bury(&mut self, source: &Arc<[u8]>, record: &Arc<Record>) {
        self.own.want(Wanted::Bury(Arc::clone(source), Arc::clone(record)));
    }

    fn room_miss(&mut self, class: ClassIndex, room: &[u8], makes: bool) {
        self.ask_for_room(class, room, makes);
    }

    fn leads(&self, hub: HubId, term: Term) -> bool {
        self.led.leads(hub, self.links.now_us()) == Some(term)
    }

    fn answer(&mut self, asker: Asker, answer: Answer) {
        match asker {
            Asker::Control { ticket, item } => self.answer_control(ticket, item, answer),
            Asker::Gathering { number, item } => self.gather_count(number, item, answer),
            Asker::Node { .. } | Asker::Row(_) => unreachable!("the broker answers nodes and itself"),
            Asker::Retained { conn, number } => {
                self.retained.push((conn, crate::mqtt::Retained::Came(number, answer)));
            }
            Asker::Client { conn, slot } if self.conns.get(conn).is_some_and(|c| c.mqtt.is_some()) => {
                self.answer_mqtt(conn, slot, answer);
            }
            Asker::Client { conn, slot } if self.conns.get(conn).is_some_and(|c| c.phoenix.is_some()) => {
                self.answer_phoenix(conn, slot, answer);
            }
            Asker::Client { conn, slot } if self.conns.get(conn).is_some_and(|c| c.io.is_events()) => {
                http::answer(self, conn, slot, answer);
            }
            Asker::Client { conn, slot } if self.own.is_at(conn.index) => self.own.answer(slot, answer),
            Asker::Client { conn, slot } if self.is_offline(conn.index) => {
                match (answer, self.sessions.get_mut(conn)) {
                    (Answer::Published(outcome), Some(offline)) => offline.published(slot, outcome.is_ok()),
                    (Answer::HubEnds(ends), _) => self.ends.push((conn, (slot, ends))),
                    (Answer::Attached(Err(refused)), _) => self.refused_offline(conn, slot, refused),
                    _ => {}
                }
            }
            Asker::Client { conn, slot } => {
                self.resolve(conn, slot, |out, _, pending| match (answer, pending) {
                    (_, Pending::Silence) => {}
                    (Answer::Published(Ok(published)), _) => resp::int(out, published.receivers as i64),
                    (Answer::Published(Err(e)) | Answer::Attached(Err(e)), _) => {
                        resp::error(out, &*e.resp_line())
                    }
                    (Answer::Attached(Ok(attached)), Pending::Start(topic, count, proto)) => {
                        crate::redis::write_started(out, proto, &topic, count, &attached);
                    }
                    (_, Pending::Confirm(frame)) => out.extend_from_slice(&frame),
                    (answer, _) => unreachable!("a slot is opened for its own answer: {answer:?}"),
                })
            }
        }
    }
}

// The common delivery is one function, and each rare case has its own, so that the common one keeps its
// values in registers.
impl Rim {
    /// Adds a record for a connection to the turn's output.
    #[inline(always)]
    fn deliver_at_once(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
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
        c.meter.totals[MESSAGES_OUT] += 1;
        c.meter.totals[BYTES_OUT] += bytes as u64;
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
    fn deliver_behind(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
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
            return self.deliver(conn, via, record);
        }
        self.deliver_at_once(conn, via, record)
    }

    /// Delivers a record to a subscriber without a connection: the internal client, or an offline session.
    #[cold]
    #[inline(never)]
    fn deliver_to_none(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
        if self.own.is_at(conn) {
            self.own.deliver(record);
            return Delivery::Taken;
        }
        self.deliver_offline(conn, via, record)
    }

    /// Handles a record for a connection that is closing.
    #[cold]
    #[inline(never)]
    fn deliver_to_closing(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
        // A record for one group member goes to another member if this one is closing.
        if let Via::Group(_) = via {
            return Delivery::Full;
        }
        let client = self.conns.at(conn).and_then(|c| c.mqtt.as_ref());
        if client.is_some_and(|client| client.outlives()) {
            self.keep_for_session(conn, via, record);
        }
        Delivery::Taken
    }

    /// Delivers a response that had to wait for the log.
    pub(crate) fn answer_part(&mut self, ask: Ask, part: Part) {
        if ask.shard == self.shard {
            self.gather(ask.number, part);
        } else {
            self.mailer.post(ask.shard, Mail::Part { gathering: ask.number, part });
        }
    }
}
