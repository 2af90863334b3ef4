//! Lagging subscriptions read from history as their connection's output drains (see `cursors`).

use super::{Broker, Turn};
use crate::cursors::{CursorKey, Cursors, Key, Range, Read};
use crate::logread::Known;
use crate::ring::NOWHERE;
use crate::{Delivery, Gap, Msg, Now, Sink, Via};
use hubsub_types::{ConnKey, Epoch, ErrorCode, HubId, Position, Seq, ShardId};

const READ_BYTES: usize = 64 * 1024;

impl Broker {
    pub fn drained(&mut self, conn: ConnKey, now: Now, sink: &mut impl Sink) {
        while sink.wants_replay(conn.index) {
            let Some(read) = self.next_read(conn) else {
                if self.read_hubs(conn, sink) {
                    continue;
                }
                return;
            };
            sink.replays(conn.index);
            let shard = self.topics_shard(&read);
            if shard == NOWHERE {
                // Its room is being moved, or waits for a place.
                if !self.replay(&read, Range::gone(Epoch(0)), sink) {
                    return;
                }
                continue;
            }
            if shard != self.shard {
                sink.send(shard, Msg::Read(Box::new(read)));
                return;
            }
            let Some((read, range)) = self.read_led(read, &mut Turn { now, sink }) else { return };
            let goes_on = self.replay(&read, range, sink);
            if !goes_on {
                return;
            }
        }
    }

    /// Reads for a cursor at the home of the room's hub: returns the records, or none if they come later.
    fn read_led(&mut self, read: Read, turn: &mut Turn<impl Sink>) -> Option<(Read, Range)> {
        let name = read.room_name(&self.classes);
        if self.is_read_elsewhere(&name) {
            return Some((read, Range::gone(Epoch(0))));
        }
        if let Some(slot) = self.relayed_slot(&name) {
            self.read_relayed(slot, read, turn.sink);
            return None;
        }
        let log = self.rooms.log_of_name(&name);
        if let Some(hub) =
            log.map(|log| log.id).filter(|&hub| turn.sink.log_refuses(hub) == Some(ErrorCode::HubClosed))
        {
            self.block_read(read, hub, turn.sink);
            return None;
        }
        match self.rooms.range(&read, turn.now, |hub, room| turn.sink.recall(hub, room)) {
            Known::Here(range) => Some((read, range)),
            Known::InLog(ask) => {
                turn.sink.read_log(ask);
                None
            }
        }
    }

    /// As `read_led`, for a connection of any shard, or a node.
    pub(super) fn read_here(&mut self, read: Read, turn: &mut Turn<impl Sink>) {
        if let Some((read, range)) = self.read_led(read, turn) {
            self.answer_read(read, range, turn);
        }
    }

    pub(super) fn answer_read(&mut self, read: Read, range: Range, turn: &mut Turn<impl Sink>) {
        if Broker::is_consumers(&read) {
            self.consumer_range(&read, range, turn);
        } else if read.of.is_some() {
            self.answer_node_read(&read, range, turn.sink);
        } else if read.from != self.shard {
            turn.sink.send(read.from, Msg::Range(Box::new((read, range))));
        } else if self.replay(&read, range, turn.sink) {
            self.drained(read.conn, turn.now, turn.sink);
        }
    }

    /// Blocks a read of a hub that left this node until it is open again; another node repeats its request.
    pub(super) fn block_read(&mut self, read: Read, hub: HubId, sink: &mut impl Sink) {
        match &read.of {
            Some(of) => self.relay.deny((of.node, of.hub), of.ask, ErrorCode::HubClosed, sink),
            None => self.blocked_reads.block(hub, read),
        }
    }

    /// Resumes reads of hubs that are open now, or of hubs that another node leads now.
    pub(super) fn retry_blocked_reads(&mut self, turn: &mut Turn<impl Sink>) {
        for (hub, read) in self.blocked_reads.take() {
            if read.from == self.shard && !self.clients.has(read.conn) {
                continue;
            }
            let is_here = self.relayed_slot(&read.room_name(&self.classes)).is_none();
            if is_here && turn.sink.log_refuses(hub) == Some(ErrorCode::HubClosed) {
                self.blocked_reads.block(hub, read);
            } else {
                self.read_here(read, turn);
            }
        }
    }

    /// The next read of the connection's longest waiting cursor; none while a read is in flight.
    fn next_read(&mut self, conn: ConnKey) -> Option<Read> {
        let (CursorKey { pattern, namespace, topic }, next) = self.cursors.begin_read(conn.index)?;
        Some(Read {
            from: self.shard,
            conn,
            pattern,
            namespace,
            topic,
            next,
            bytes_max: READ_BYTES,
            of: None,
        })
    }

    fn topics_shard(&mut self, read: &Read) -> ShardId {
        let id = self.topics.intern(read.namespace, &read.topic);
        self.topics.get(id).shard
    }

    /// Subscribers here will not get these records. Cursors that catch up detect the gap themselves.
    pub(super) fn gap_here(&mut self, gap: &Gap, sink: &mut impl Sink) {
        let Gap { namespace, ref topic, from, to } = *gap;
        let id = self.topics.intern(namespace, topic);
        let class = self.classes.get(self.topics.get(id).class);
        let (on_gap, is_logged) = (class.on_gap, class.durability.is_logged());
        let lags = |cursors: &Cursors, conn, pattern| {
            cursors.has(conn) && cursors.holds(conn, Key(pattern, namespace, topic))
        };
        for &conn in self.topics.get(id).subs.as_slice() {
            if !lags(&self.cursors, conn, None) {
                sink.gap(conn, topic, from, to, on_gap);
            }
        }
        for &pattern in self.matching(namespace, topic).iter().flat_map(|m| m.iter()) {
            for &conn in self.patterns.get(pattern).subs.as_slice() {
                // A subscriber that follows the hub reads the missing records there.
                let reads = is_logged && self.cursors.hubs.covers(conn, pattern);
                if !reads && !lags(&self.cursors, conn, Some(pattern)) {
                    sink.gap(conn, topic, from, to, on_gap);
                }
            }
        }
    }

    /// Delivers records that a cursor requested; returns whether the connection accepts more.
    pub(super) fn replay(&mut self, read: &Read, range: Range, sink: &mut impl Sink) -> bool {
        let conn = read.conn.index;
        if !self.clients.has(read.conn) {
            return false;
        }
        let id = self.topics.intern(read.namespace, &read.topic);
        let class = self.classes.get(self.topics.get(id).class);
        let key = Key(read.pattern, read.namespace, &read.topic);
        if !self.cursors.end_read(conn, key, read.next) {
            return true;
        }
        let epoch = read.next.epoch;
        if let Some((from, to)) = range.gap {
            let at = |seq| Position { epoch, seq };
            sink.gap(conn, &read.topic, at(from), at(to), class.on_gap);
        }
        if range.is_gone {
            sink.gap(conn, &read.topic, read.next, Position { epoch, seq: Seq(0) }, class.on_gap);
            if range.epoch.0 != 0 {
                // Records of the next epoch bypassed the cursor.
                let first = Position { epoch: range.epoch, seq: Seq(1) };
                self.cursors.place(conn, key, Some(first));
                return true;
            }
            if let Some(pattern) = read.pattern {
                // Records of the next epoch may have bypassed the cursor.
                let pattern = &self.patterns.get(pattern).source;
                sink.gap(conn, pattern, Position::default(), Position::default(), class.on_gap);
            }
        }
        for record in &range.records {
            let via = match read.pattern {
                Some(id) => Via::Pattern(id, &self.patterns.get(id).source),
                None => Via::Topic,
            };
            sink.record_begins();
            if sink.deliver(conn, via, &record.view(class.on_slow)) == Delivery::Full {
                self.cursors.place(conn, key, Some(record.position));
                return false;
            }
        }
        if range.at_end {
            self.cursors.remove(conn, key);
        } else {
            self.cursors.place(conn, key, Some(Position { epoch, seq: range.next }));
        }
        true
    }
}
