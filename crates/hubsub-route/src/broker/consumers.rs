//! Named consumers ([`crate::consumers`]) at the leader of their room. A consumer is opened when the first
//! member of a group of its topic joins. It reads on while its window has room, delivers records to members,
//! and redelivers those that are not acknowledged in time.

use super::{Broker, Turn};
use crate::Give;
use crate::consumers::{Consumer, ConsumerInfo};
use crate::counts::Holder;
use crate::cursors::{Range, Read};
use crate::relay::{HubState, Leader};
use crate::topics::TopicId;
use crate::{Msg, Now, Sink};
use hubsub_message::{Namespace, NodeMessage, Record};
use hubsub_types::names::group_of;
use hubsub_types::{ConnKey, ErrorCode, Position};
use std::sync::Arc;

/// Connection index that marks reads of consumers; no client has it.
const READER: u32 = u32::MAX - 1;

const READ_BYTES: usize = 64 * 1024;

/// Immediate retries of a record that no member accepted: all members may be full.
const AT_ONCE_MAX: u8 = 4;

impl Broker {
    /// The topic of a group that has a position: one without a wildcard, in a class with a log.
    pub(super) fn kept_topic<'s>(&self, source: &'s [u8]) -> Option<&'s [u8]> {
        let (_, topic) = group_of(source)?;
        let is_exact = !topic.iter().any(|byte| matches!(byte, b'+' | b'#'));
        let class = self.classes.class_of_room(&self.classes.room(topic));
        (is_exact && self.classes.get(class).durability.is_logged()).then_some(topic)
    }

    fn leads_topic(&mut self, topic: &[u8]) -> bool {
        let id = self.topics.intern(Namespace::Global, topic);
        let room = self.classes.room(topic);
        self.topics.get(id).shard == self.shard
            && self.relayed_slot(&room).is_none()
            && self.rooms.log_of_name(&room).is_some()
    }

    /// Runs each second, and when a group may have gained a member. Opens consumers whose room is led here,
    /// delivers waiting records and redelivers due ones. Consumers of rooms that are led elsewhere are
    /// dropped from memory.
    pub fn tend_consumers(&mut self, now: Now, sink: &mut impl Sink) {
        if self.groups.is_empty() && self.consumers.by_source.is_empty() {
            return;
        }
        let turn = &mut Turn { now, sink };
        for source in self.consumers.sources() {
            let topic = self.consumers.by_source.get(&source).map(|consumer| Arc::clone(&consumer.topic));
            if topic.is_some_and(|topic| !self.leads_topic(&topic)) {
                self.consumers.by_source.remove(&source);
            }
        }
        let groups: Vec<Arc<[u8]>> =
            self.groups.table.iter().map(|group| Arc::clone(&group.source)).collect();
        for source in groups {
            self.open_consumer(&source, turn);
        }
        for source in self.consumers.sources() {
            self.consumers.retry_requests(&source, turn);
            self.redeliver_due(&source, turn);
            self.pump_consumer(&source, turn);
            self.consumers.save(&source, turn);
        }
    }

    /// A group has a member: if its position belongs here, the stored position is loaded.
    pub(super) fn open_consumer(&mut self, source: &Arc<[u8]>, turn: &mut Turn<impl Sink>) {
        if self.consumers.by_source.contains_key(source) {
            return self.pump_consumer(source, turn);
        }
        let Some(topic) = self.kept_topic(source) else { return };
        if !self.leads_topic(topic) {
            return;
        }
        let last = self.last_of(topic, turn.sink);
        if self.consumers.by_source.len() as u64 >= self.limits.groups_max {
            self.forget_absent_consumer();
        }
        self.consumers
            .by_source
            .insert(Arc::clone(source), Consumer::new(topic.into(), last, turn.now.mono_ms));
        turn.sink.load_consumer(source);
    }

    /// Drops one consumer without members whose stored position is up to date, from where it is loaded again.
    fn forget_absent_consumer(&mut self) {
        let groups = &self.groups.table;
        let mut consumers = self.consumers.by_source.iter();
        let found = consumers.find(|(source, it)| groups.find(source).is_none() && it.is_in_its_row());
        if let Some(source) = found.map(|(source, _)| Arc::clone(source)) {
            self.consumers.by_source.remove(&source);
        }
    }

    fn last_of(&mut self, topic: &[u8], sink: &impl Sink) -> Position {
        let room = self.classes.room(topic).into_owned();
        match self.rooms.find(&room) {
            Some(found) => self.rooms.position(found),
            None => self.rooms.last_of_cold_room(&room, |hub| sink.recall(hub, &room)),
        }
    }

    /// The stored position of a consumer, or none. After an error it is requested again.
    pub fn consumer_loaded(
        &mut self,
        source: &[u8],
        row: Result<Option<&[u8]>, ErrorCode>,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let turn = &mut Turn { now, sink };
        let Some((source, consumer)) = self.consumers.by_source.get_key_value_mut(source) else { return };
        let Some(row) = row.ok().filter(|_| consumer.loading_ms.is_some()) else { return };
        consumer.loaded(row);
        let source = Arc::clone(source);
        self.pump_consumer(&source, turn);
        self.consumers.save(&source, turn);
    }

    /// The position that was written last is persisted, or the write failed.
    pub fn consumer_saved(&mut self, source: &[u8], is_safe: bool, now: Now, sink: &mut impl Sink) {
        let Some((source, consumer)) = self.consumers.by_source.get_key_value_mut(source) else { return };
        consumer.saving_ms = None;
        if is_safe {
            let source = Arc::clone(source);
            self.consumers.save(&source, &mut Turn { now, sink });
        } else {
            // It is written again at the next `tend_consumers`.
            consumer.is_dirty = true;
        }
    }

    /// A record of a topic is committed: a consumer that has all records before it gets it at once.
    pub(super) fn consume(&mut self, source: &Arc<[u8]>, record: &Arc<Record>, turn: &mut Turn<impl Sink>) {
        let ack_ms = self.limits.consumer_ack_ms;
        let Some(consumer) = self.consumers.by_source.get_mut(source) else {
            return self.open_consumer(source, turn);
        };
        self.consumers.full += u64::from(consumer.is_full(&self.limits));
        if consumer.reading.is_none() && consumer.takes(&self.limits) && consumer.next() == record.position {
            if consumer.take(record, turn.now.mono_ms + ack_ms) {
                self.deliver_consumed(source, record.position, 0, None, turn);
            }
        } else {
            self.pump_consumer(source, turn);
        }
    }

    /// Reads on for a consumer that has members and a window with room.
    fn pump_consumer(&mut self, source: &Arc<[u8]>, turn: &mut Turn<impl Sink>) {
        if self.groups.table.find(source).is_none() {
            return;
        }
        let takes = |it: &&Consumer| it.takes(&self.limits) && it.reading.is_none();
        let Some(consumer) = self.consumers.by_source.get(source).filter(takes) else { return };
        let topic = Arc::clone(&consumer.topic);
        let last = self.last_of(&topic, turn.sink);
        let Some(consumer) = self.consumers.by_source.get_mut(source) else { return };
        if last.epoch != consumer.next().epoch && last.epoch.0 != 0 {
            consumer.begin_epoch(last.epoch);
        }
        if consumer.next().seq > last.seq {
            return;
        }
        self.consumers.last_read = self.consumers.last_read.wrapping_add(1);
        let number = self.consumers.last_read;
        let Some(consumer) = self.consumers.by_source.get_mut(source) else { return };
        consumer.reading = Some((number, turn.now.mono_ms));
        let read = Read {
            from: self.shard,
            conn: ConnKey { index: READER, generation: number },
            pattern: None,
            namespace: Namespace::Global,
            topic,
            next: consumer.next(),
            bytes_max: READ_BYTES,
            of: None,
        };
        self.read_here(read, turn);
    }

    pub(super) fn is_consumers(read: &Read) -> bool {
        read.conn.index == READER
    }

    pub(super) fn consumer_range(&mut self, read: &Read, range: Range, turn: &mut Turn<impl Sink>) {
        let ack_ms = self.limits.consumer_ack_ms;
        let is_its = |consumer: &Consumer| consumer.reading.is_some_and(|(id, _)| id == read.conn.generation);
        let Some((source, consumer)) =
            self.consumers.by_source.iter_mut().find(|(_, consumer)| is_its(consumer))
        else {
            return;
        };
        consumer.reading = None;
        if range.is_gone {
            // The next `pump_consumer` sees the room's next epoch.
            return;
        }
        if let Some((first, last)) = range.gap {
            self.consumers.missed += last.0 - first.0 + 1;
        }
        let mut taken = Vec::new();
        let mut is_full = false;
        for record in &range.records {
            if !consumer.takes(&self.limits) {
                consumer.skip_to(record.position.seq);
                is_full = true;
                break;
            }
            if consumer.take(record, turn.now.mono_ms + ack_ms) {
                taken.push(record.position);
            }
        }
        if !is_full {
            consumer.skip_to(range.next);
        }
        let source = Arc::clone(source);
        for position in taken {
            self.deliver_consumed(&source, position, 0, None, turn);
        }
        if !is_full && !range.at_end {
            self.pump_consumer(&source, turn);
        }
        self.consumers.save(&source, turn);
    }

    /// Delivers a record of the window to a member, not on `from` if there is another; `tries` failed so far.
    fn deliver_consumed(
        &mut self,
        source: &Arc<[u8]>,
        position: Position,
        tries: u8,
        from: Option<Holder>,
        turn: &mut Turn<impl Sink>,
    ) {
        let Some(record) = self.consumers.given(source, position) else { return };
        let id = self.topics.intern(record.namespace, record.topic());
        match self.pick_for(source, id, &record, false, from, turn.sink) {
            Some(holder) => {
                let give = Give { group: Arc::clone(source), record, tries, was_taken: false };
                self.send_to_member(id, holder, give, turn);
            }
            None => self.consumers.retry_later(source, position, turn.now),
        }
    }

    /// A record of a group with a position was returned: it goes to another member now, or to any within a
    /// second. Returns whether the group has a position. A record that was lost with a member counts as a
    /// try; one that no member accepted does not.
    pub(super) fn returned_to_consumer(
        &mut self,
        give: &Give,
        from: Option<Holder>,
        turn: &mut Turn<impl Sink>,
    ) -> bool {
        let (group, position) = (&give.group, give.record.position);
        if self.kept_topic(group).is_none() {
            return false;
        }
        if give.was_taken && !self.consumers.may_try(group, position, &self.limits, turn) {
            return true;
        }
        let counts = self.groups.table.find(group).map(|id| &self.groups.table.get(id).counts);
        let has_all = |from| counts.is_none_or(|counts| counts.total() == u64::from(counts.of(from)));
        if from.is_some_and(has_all) || give.tries > AT_ONCE_MAX {
            self.consumers.retry_later(group, position, turn.now);
        } else {
            self.deliver_consumed(group, position, give.tries, from, turn);
        }
        true
    }

    /// Delivers records again that were not acknowledged in time, or that no member accepted.
    fn redeliver_due(&mut self, source: &Arc<[u8]>, turn: &mut Turn<impl Sink>) {
        let has_members = self.groups.table.find(source).is_some();
        let Some(consumer) = self.consumers.by_source.get(source).filter(|_| has_members) else { return };
        for position in consumer.due(turn.now.mono_ms) {
            if self.consumers.may_try(source, position, &self.limits, turn) {
                self.deliver_consumed(source, position, 0, None, turn);
            }
        }
    }

    /// A member acknowledges a record: no other member gets it. Has no effect for a group without a position.
    pub fn acknowledge(&mut self, group: &[u8], position: Position, now: Now, sink: &mut impl Sink) {
        let Some(topic) = self.kept_topic(group) else { return };
        let id = self.topics.intern(Namespace::Global, topic);
        match self.topics.get(id).shard {
            crate::ring::NOWHERE => {}
            shard => self.pass(shard, Msg::Acknowledge(group.into(), position), &mut Turn { now, sink }),
        }
    }

    /// As `acknowledge`, at the home of the topic's room.
    pub(super) fn acknowledged(&mut self, group: Arc<[u8]>, position: Position, turn: &mut Turn<impl Sink>) {
        let Some(topic) = self.kept_topic(&group) else { return };
        let room = self.classes.room(topic).into_owned();
        if let Some(slot) = self.relayed_slot(&room) {
            let &HubState { id: hub, leader, .. } = self.relay.hub(slot);
            if let Leader::Node(leader) = leader {
                // If it is lost, the record is redelivered.
                self.relay.peers.send(
                    leader,
                    hub,
                    NodeMessage::Acknowledge { hub, group, position },
                    turn.sink,
                );
            }
            return;
        }
        if self.consumers.by_source.get_mut(&group).is_some_and(|consumer| consumer.acknowledge(position)) {
            self.pump_consumer(&group, turn);
            self.consumers.save(&group, turn);
        }
    }

    /// All consumers whose room is led here and whose stored position is known, in order of their names.
    pub fn consumers(&mut self, sink: &impl Sink) -> Vec<ConsumerInfo> {
        let sources = self.consumers.sources();
        let info = |source: Arc<[u8]>| {
            let topic = Arc::clone(&self.consumers.by_source.get(&source)?.topic);
            let last = self.last_of(&topic, sink);
            let members = self.group_members(&source);
            let consumer = self.consumers.by_source.get(&source)?;
            let (position, lag, given) = (consumer.position(), consumer.lag(last), consumer.given() as u64);
            consumer.loading_ms.is_none().then_some(ConsumerInfo { source, position, lag, given, members })
        };
        sources.into_iter().filter_map(info).collect()
    }

    /// Drops a consumer from memory: it continues from its stored position. Returns whether it was here.
    pub fn forget_consumer(&mut self, source: &[u8]) -> bool {
        self.consumers.by_source.remove(source).is_some()
    }

    pub(super) fn pick_for(
        &mut self,
        source: &[u8],
        id: TopicId,
        record: &Arc<Record>,
        here_only: bool,
        from: Option<Holder>,
        sink: &impl Sink,
    ) -> Option<Holder> {
        let group = self.groups.table.find(source)?;
        let (mut may, _) = self.may_get(group, id, sink);
        if here_only {
            may = may.shards(self.shards);
        }
        let (strategy, key) = self.strategy_for(id, record, sink);
        let mut others = may;
        let has_from = from.is_some_and(|from| others.remove(from));
        let picked = self.groups.pick(group, others, &strategy, key);
        if picked.is_none() && has_from { self.groups.pick(group, may, &strategy, key) } else { picked }
    }
}
