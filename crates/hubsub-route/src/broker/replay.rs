//! Lagging subscriptions read on from history as their connection's output
//! drains (see `cursors`).

use super::Broker;
use crate::cursors::{CursorKey, Key, Range, Read};
use crate::logread::Known;
use crate::{Delivery, Msg, Now, Sink, Via};
use hubsub_types::{ConnKey, Position, Seq, ShardId};

/// Bytes that a cursor reads at once.
const READ_BYTES: usize = 64 * 1024;

impl Broker {
    /// A connection's output has room again: its cursors read on.
    pub fn drained(&mut self, conn: ConnKey, now: Now, sink: &mut impl Sink) {
        while sink.wants_replay(conn.index) {
            let Some(read) = self.next_read(conn) else { return };
            sink.replays(conn.index);
            let shard = self.topics_shard(&read);
            if shard != self.shard {
                sink.send(shard, Msg::Read(Box::new(read)));
                return;
            }
            let goes_on = match self.rooms.range(&read, now, |hub, room| sink.recall(hub, room)) {
                Known::Here(range) => self.replay(&read, range, sink),
                Known::InLog(ask) => return sink.read_log(ask),
            };
            if !goes_on {
                return;
            }
        }
    }

    /// The read that the connection's longest waiting cursor needs next; none
    /// while one is under way.
    fn next_read(&mut self, conn: ConnKey) -> Option<Read> {
        let (CursorKey { pattern, namespace, topic }, next) = self.cursors.begin_read(conn.index)?;
        Some(Read { from: self.shard, conn, pattern, namespace, topic, next, bytes_max: READ_BYTES })
    }

    fn topics_shard(&mut self, read: &Read) -> ShardId {
        let id = self.topics.intern(read.namespace, &read.topic);
        self.topics.get(id).shard
    }

    /// Records that a cursor asked for go to its connection. Whether the
    /// connection takes more.
    pub(super) fn replay(&mut self, read: &Read, range: Range, sink: &mut impl Sink) -> bool {
        let conn = read.conn.index;
        if self.clients.get(conn as usize).is_none_or(|c| c.generation != read.conn.generation) {
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
