//! Delivery of a committed record: to shards and nodes with interest, and on each shard to its connections.

use super::Broker;
use crate::counts::HolderSet;
use crate::cursors::{CursorKey, Cursors, Key};
use crate::rooms::RoomHandle;
use crate::topics::TopicId;
use crate::{CloseReason, Delivery, Msg, Sink, Via};
use hubsub_message::{Namespace, Record, RecordView};
use hubsub_types::{Class, OnSlow, ShardId};
use std::rc::Rc;
use std::sync::Arc;

pub(super) struct Audience {
    pub(super) holders: HolderSet,
    pub(super) is_local: bool,
    /// Subscribers in the whole room, patterns included.
    pub(super) receivers: u64,
    pub(super) matched: Option<Rc<[u32]>>,
}

impl Broker {
    pub(super) fn audience(
        &mut self,
        id: TopicId,
        room: RoomHandle,
        namespace: Namespace,
        name: &[u8],
        sink: &impl Sink,
    ) -> Option<Audience> {
        let is_room = self.topics.get(id).is_room();
        let mut holders = HolderSet::default();
        let mut receivers = self.rooms.interest(room, is_room, namespace, name, &mut holders);
        let matched = self.matching(namespace, name);
        for &pattern in matched.iter().flat_map(|m| m.iter()) {
            let counts = &self.patterns.get(pattern).counts;
            counts.holders(&mut holders);
            receivers += counts.total();
        }
        let is_local = holders.remove(self.shard);
        if !holders.is_empty() && self.is_congested(id, &mut holders, sink) {
            return None;
        }
        Some(Audience { holders, is_local, receivers, matched })
    }

    /// Whether a holder is congested. A node whose link is down gets nothing, and leaves `holders`.
    fn is_congested(&mut self, id: TopicId, holders: &mut HolderSet, sink: &impl Sink) -> bool {
        if holders.has_nodes(self.shards) {
            return self.is_congested_somewhere(id, holders, sink);
        }
        holders.iter().any(|shard| sink.congested(ShardId(shard.0)))
    }

    /// Sends a committed record to every shard and node with interest.
    pub(super) fn deliver_committed(
        &mut self,
        id: TopicId,
        room: RoomHandle,
        record: &Arc<Record>,
        audience: &Audience,
        sink: &mut impl Sink,
    ) {
        let revision = self.rooms.revision(room).unwrap_or(0);
        for holder in audience.holders.iter() {
            if holder.0 < self.shards {
                sink.send(ShardId(holder.0), Msg::Deliver(Arc::clone(record), revision));
            } else {
                self.send_record(room, id, holder, record, sink);
            }
        }
        if audience.is_local {
            self.fan_out_current(id, record, revision, audience.matched.as_deref(), sink);
        }
    }

    /// As `fan_out`, if this shard knows the room by the revision at which the record was committed.
    pub(super) fn fan_out_current(
        &mut self,
        id: TopicId,
        record: &Arc<Record>,
        revision: u64,
        matched: Option<&[u32]>,
        sink: &mut impl Sink,
    ) {
        let of = (revision, record.position.seq);
        if self.is_current(id, of, matched.is_some_and(|ids| !ids.is_empty())) {
            let on_slow = self.classes.get(self.topics.get(id).class).on_slow;
            self.fan_out(id, &record.view(on_slow), matched, sink);
        }
    }

    pub(super) fn matching(&mut self, namespace: Namespace, topic: &[u8]) -> Option<Rc<[u32]>> {
        let has_patterns = namespace == Namespace::Global && !self.patterns.is_empty();
        has_patterns.then(|| self.patterns.matching(topic))
    }

    /// A committed record for this shard's connections: subscribers of the topic, then of matching patterns.
    pub(super) fn fan_out(
        &mut self,
        id: TopicId,
        record: &RecordView<'_>,
        matched: Option<&[u32]>,
        sink: &mut impl Sink,
    ) {
        let topic = self.topics.get(id);
        let class = self.classes.get(topic.class);
        let cursors = &mut self.cursors;
        let lagging = cursors.len();
        cursors.hubs.record_begins();
        sink.record_begins();
        for &conn in topic.subs.as_slice() {
            deliver(cursors, class, conn, Via::Topic, record, sink);
        }
        for &id in matched.unwrap_or_default() {
            let pattern = self.patterns.get(id);
            for &conn in pattern.subs.as_slice() {
                deliver(cursors, class, conn, Via::Pattern(id, &pattern.source), record, sink);
            }
        }
        self.catch_ups += (cursors.len() - lagging) as u64;
        if self.traces.is_on() {
            self.trace_delivery(id, record, matched, sink);
        }
    }
}

/// Delivers one record to one connection, unless a cursor catches up; the class decides on slow ones.
fn deliver(
    cursors: &mut Cursors,
    class: &Class,
    conn: u32,
    via: Via<'_>,
    record: &RecordView<'_>,
    sink: &mut impl Sink,
) {
    let pattern = match via {
        Via::Topic | Via::Group(_) => None,
        Via::Pattern(id, _) => Some(id),
    };
    if cursors.has(conn) && cursors.holds(conn, Key(pattern, record.namespace, record.topic)) {
        return;
    }
    if pattern.is_some_and(|pattern| !cursors.hubs.takes(conn, pattern, record.place)) {
        return;
    }
    if sink.deliver(conn, via, record) == Delivery::Taken {
        return;
    }
    match class.on_slow {
        OnSlow::CatchUp if pattern.is_some_and(|it| cursors.hubs.refused(conn, it, record.place)) => {}
        OnSlow::DropOldest | OnSlow::Conflate => sink.squeeze(conn, via, record, class.on_slow, class.on_gap),
        OnSlow::CatchUp if class.history.is_some() => {
            let key = CursorKey { pattern, namespace: record.namespace, topic: record.topic.into() };
            if !cursors.set(conn, key, Some(record.position)) {
                sink.close(conn, CloseReason::TooManyCursors);
            }
        }
        OnSlow::CatchUp | OnSlow::Disconnect => sink.close(conn, CloseReason::OutputLimit),
    }
}
