//! Carries out the broker's decisions for this shard: each goes to the protocol of its connection,
//! to the log, to links or to other shards.

use crate::consumers::state::Wanted;
use crate::context::conn::{Conn, Flags};
use crate::context::encoding::write_gap;
use crate::context::io::Io;
use crate::context::session::Session;
use crate::io::output::Pending;
use crate::io::questions::Part;
use crate::log::{LogEnd, LogQuestion};
use crate::mqtt::state::Retained;
use crate::{http, link, mqtt, redis};
use hubsub_route::rooms::HistoryPart;
use hubsub_route::{
    Answer, Ask, Asker, CloseReason, Delivery, HubLogRead, LogRead, Msg, NodeMessage, Recalled, Record,
    RecordView, Sink, Via,
};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ErrorCode, HubId, NodeId, OnGap, OnSlow, Position, Protocol, ShardId, Term};
use hubsub_wire::resp;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A lagging connection reads on while its output is below this.
const REPLAY_BELOW: usize = 64 * 1024;

impl Sink for Io {
    fn record_begins(&mut self) {
        self.encoded.begin();
        self.states.mqtt.cache.begin();
    }

    fn keep_for_absent(&mut self, conn: u32, group: (&[u8], u64), record: &RecordView<'_>) -> Delivery {
        mqtt::share_with_offline(self, conn, group, record)
    }

    #[inline]
    fn deliver(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
        let Some(c) = self.conns.at_mut(conn) else {
            return deliver_to_none(self, conn, via, record);
        };
        if c.is_closing() {
            return deliver_to_closing(self, conn, via, record);
        }
        if c.session.mqtt().is_some() {
            return mqtt::deliver(self, conn, via, record);
        }
        if let Via::Group(group) = via {
            return crate::consumers::deliver_consumed(self, conn, group, record);
        }
        if c.output.as_ref().is_some_and(|output| output.holds_records()) {
            return self.deliver_behind(conn, via, record);
        }
        self.deliver_at_once(conn, via, record)
    }

    fn squeeze(&mut self, conn: u32, via: Via<'_>, record: &RecordView<'_>, policy: OnSlow, on_gap: OnGap) {
        let Some(c) = self.conns.at(conn) else { return };
        if c.session.mqtt().is_some() {
            return mqtt::squeeze(self, conn, via, record, policy, on_gap);
        }
        self.squeeze_queue(conn, via, record, policy, on_gap);
    }

    fn gap(&mut self, conn: u32, topic: &[u8], from: Position, to: Position, on_gap: OnGap) {
        let Some(key) = self.conns.key_at(conn) else {
            if self.own.is_at(conn) {
                self.own.miss(topic);
            }
            return;
        };
        self.metrics.gap_records_total.add(to.seq.0.saturating_sub(from.seq.0) + 1);
        if mqtt::note_gap(self, conn, topic, from, to) {
            return;
        }
        if let Some(dialect) = self.conns.get(key).filter(|c| c.hears_of_gaps()).map(|c| c.session.dialect())
        {
            self.push_behind(key, |out, _| write_gap(out, dialect, topic, from, to));
        } else if on_gap == OnGap::Disconnect {
            self.close(conn, CloseReason::Gap);
        }
    }

    fn wall_us(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros() as u64
    }

    fn recall(&self, hub: HubId, room: &[u8]) -> Option<Recalled> {
        self.states.log.as_ref()?.recall(hub, room)
    }

    fn append(&mut self, hub: HubId, offset: u64, room: &[u8], record: &Record) {
        self.expects_more = true;
        if let Some(log) = &mut self.states.log {
            log.append(hub, offset, room, record);
        }
    }

    fn append_deletion(&mut self, hub: HubId, offset: u64, room: &[u8], last: Position, timestamp_us: u64) {
        if let Some(log) = &mut self.states.log {
            log.append_deletion(hub, offset, room, last, timestamp_us);
        }
    }

    fn recalls_through(&self, hub: HubId) -> u64 {
        self.states.log.as_ref().map_or(0, |log| log.recalls_through(hub))
    }

    fn log_refuses(&self, hub: HubId) -> Option<ErrorCode> {
        self.states.log.as_ref().map_or(Some(ErrorCode::LogFailed), |log| log.refuses(hub))
    }

    fn log_is_behind(&self) -> bool {
        self.states.log.as_ref().is_some_and(LogEnd::is_behind)
    }

    fn read_log(&mut self, read: Box<LogRead>) {
        if let Some(log) = &mut self.states.log {
            log.read(LogQuestion::Room(read));
        }
    }

    fn read_hub_log(&mut self, read: Box<HubLogRead>) {
        if let Some(log) = &mut self.states.log {
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
        self.close_slow(conn, reason);
    }

    fn wants_replay(&self, conn: u32) -> bool {
        let Some(c) = self.conns.at(conn) else { return self.states.mqtt.sessions.reads(conn) };
        if c.session.mqtt().is_some() {
            return !c.is_closing() && mqtt::wants_replay(c);
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
        Some(match conn.session {
            Session::Mqtt(..) => Protocol::Mqtt,
            Session::Phoenix(..) => Protocol::Phoenix,
            Session::Events => Protocol::Events,
            Session::Redis(_) | Session::Http(_) => Protocol::Redis,
        })
    }

    fn publisher(&self, conn: u32) -> Box<str> {
        self.conns.at(conn).map_or_else(Box::default, Conn::publisher)
    }

    fn send(&mut self, to: ShardId, msg: Msg) {
        self.mailer.post(to, msg);
    }

    fn congested(&self, to: ShardId) -> bool {
        self.mailer.congested(to)
    }

    fn send_node(&mut self, node: NodeId, hub: HubId, message: NodeMessage) -> Result<(), NodeMessage> {
        link::sending::send(self, node, hub, message)
    }

    fn node_flows(&self, node: NodeId, hub: HubId) -> bool {
        link::sending::flows(self, node, hub)
    }

    fn node_is_silent(&self, node: NodeId, hub: HubId) -> bool {
        link::sending::is_silent(self, node, hub)
    }

    fn load_consumer(&mut self, source: &Arc<[u8]>) {
        self.own.queue(Wanted::Load(Arc::clone(source)));
    }

    fn save_consumer(&mut self, source: &Arc<[u8]>, row: Vec<u8>) {
        self.own.queue(Wanted::Save(Arc::clone(source), row));
    }

    fn bury(&mut self, source: &Arc<[u8]>, record: &Arc<Record>) {
        self.own.queue(Wanted::Bury(Arc::clone(source), Arc::clone(record)));
    }

    fn room_miss(&mut self, class: ClassIndex, room: &[u8], makes: bool) {
        crate::shard::routing::ask_for_room(self, class, room, makes);
    }

    fn leads(&self, hub: HubId, term: Term) -> bool {
        self.states.led.leads(hub, self.states.links.now_us()) == Some(term)
    }

    fn answer(&mut self, asker: Asker, answer: Answer) {
        match asker {
            Asker::Control { ticket, item } => self.answer_control(ticket, item, answer),
            Asker::Gathering { number, item } => self.gather_count(number, item, answer),
            Asker::Node { .. } | Asker::Row(_) => unreachable!("the broker answers nodes and itself"),
            Asker::Retained { conn, number } => {
                self.states.mqtt.retained.push((conn, Retained::Came(number, answer)));
            }
            Asker::Client { conn, slot }
                if self.conns.get(conn).is_some_and(|c| c.session.mqtt().is_some()) =>
            {
                mqtt::answer(self, conn, slot, answer);
            }
            Asker::Client { conn, slot }
                if self.conns.get(conn).is_some_and(|c| c.session.browser().is_some()) =>
            {
                crate::phoenix::channels::answer_phoenix(self, conn, slot, answer);
            }
            Asker::Client { conn, slot } if self.conns.get(conn).is_some_and(|c| c.session.is_events()) => {
                http::answer(self, conn, slot, answer);
            }
            Asker::Client { conn, slot } if self.own.is_at(conn.index) => self.own.answer(slot, answer),
            Asker::Client { conn, slot } if self.states.mqtt.sessions.is_offline(conn.index) => {
                mqtt::answer_offline(self, conn, slot, answer);
            }
            Asker::Client { conn, slot } => {
                self.resolve(conn, slot, |out, _, pending| match (answer, pending) {
                    (_, Pending::Silence) => {}
                    (Answer::Published(Ok(published)), _) => resp::int(out, published.receivers as i64),
                    (Answer::Published(Err(e)) | Answer::Attached(Err(e)), _) => {
                        resp::error(out, &*e.resp_line())
                    }
                    (Answer::Attached(Ok(attached)), Pending::Start(topic, count, proto)) => {
                        redis::write_started(out, proto, &topic, count, &attached);
                    }
                    (_, Pending::Confirm(frame)) => out.extend_from_slice(&frame),
                    (answer, _) => unreachable!("a slot is opened for its own answer: {answer:?}"),
                })
            }
        }
    }
}

/// Delivers a record to a subscriber without a connection: the internal client, or an offline session.
#[cold]
#[inline(never)]
fn deliver_to_none(io: &mut Io, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
    if io.own.is_at(conn) {
        io.own.deliver(record);
        return Delivery::Taken;
    }
    mqtt::deliver_offline(io, conn, via, record)
}

/// Handles a record for a connection that is closing.
#[cold]
#[inline(never)]
fn deliver_to_closing(io: &mut Io, conn: u32, via: Via<'_>, record: &RecordView<'_>) -> Delivery {
    // A record for one group member goes to another member if this one is closing.
    if let Via::Group(_) = via {
        return Delivery::Full;
    }
    let client = io.conns.at(conn).and_then(|c| c.session.mqtt());
    if client.is_some_and(|client| client.outlives()) {
        mqtt::keep_for_session(io, conn, via, record);
    }
    Delivery::Taken
}
