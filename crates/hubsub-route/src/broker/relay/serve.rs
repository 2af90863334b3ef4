//! Requests of other nodes to this node's hubs: interest, publishes and reads.

use super::{Broker, Turn};
use crate::Names;
use crate::cursors::{OfNode, Range, Read};
use crate::logread::Known;
use crate::relay::{Admit, Leader, READ_BYTES_MAX, READ_RECORDS_MAX};
use crate::requests::{Ask, HistoryPart, HistoryQuery};
use crate::rooms::TopicKey;
use crate::rows::RowPage;
use crate::topics::TopicId;
use crate::traces::StepKind;
use crate::{Asker, Attach, Attached, Namespace, Outcome, Record, Sink, Start, Ticket};
use hubsub_message::{AskId, NodeMessage};
use hubsub_types::{ConnKey, ErrorCode, HubId, NodeId, Position, Seq, ShardId, Term};
use std::sync::Arc;

/// Shard number in an [`Ask`] of another node.
pub(crate) const OF_NODES: ShardId = ShardId(u16::MAX);

impl Broker {
    pub(crate) fn serve(
        &mut self,
        from: NodeId,
        hub: HubId,
        message: NodeMessage,
        turn: &mut Turn<impl Sink>,
    ) {
        let Some(message) = self.miss_message(from, message, turn) else { return };
        let relay = &mut self.relay;
        if let (NodeMessage::Counts { names, count: 0, .. }, Some(slot)) = (&message, relay.slot_of(hub))
            && relay.hub(slot).leader == Leader::Node(from)
        {
            return self.interest_ended(slot, names, turn.now);
        }
        let Some(slot) = relay.slot_of(hub) else {
            // This node does not know all hubs yet; the requester looks up the leader again.
            return relay.refuse_of(from, (hub, Term(0)), &message, turn.sink);
        };
        let term = match message {
            NodeMessage::Publish { term, .. }
            | NodeMessage::Interest { term, .. }
            | NodeMessage::Counts { term, .. }
            | NodeMessage::CountAsk { term, .. } => term,
            _ => relay.hub(slot).term,
        };
        match relay.admit(slot, term, from) {
            // A read has no term: it is for the current leader.
            Admit::Early
                if matches!(
                    message,
                    NodeMessage::Read { .. } | NodeMessage::ReadHub { .. } | NodeMessage::Rows { .. }
                ) =>
            {
                relay.refuse(from, slot, &message, turn.sink);
            }
            Admit::Early => {
                if let Some(message) = self.buffer_early(slot, from, message, turn.now) {
                    self.relay.refuse(from, slot, &message, turn.sink);
                }
            }
            Admit::No | Admit::Sender => relay.refuse(from, slot, &message, turn.sink),
            Admit::Here => self.serve_led(from, slot, message, turn),
        }
    }

    fn serve_led(&mut self, from: NodeId, slot: u16, message: NodeMessage, turn: &mut Turn<impl Sink>) {
        let hub = self.relay.hub(slot).id;
        match message {
            NodeMessage::Publish { ask, record, .. } => {
                let ticket = Ticket { shard: self.shard, asker: Asker::Node { node: from, ask, hub } };
                match self.admit_record(slot, &record, turn) {
                    Ok(id) => {
                        if self.traces.is_on() {
                            self.trace_arrival(ticket, &record, StepKind::FromNode(from), turn.sink);
                        }
                        self.lead_or_forward(ticket, (id, slot), record, turn);
                    }
                    Err(ErrorCode::HubDiffers) => self.relay.not_mine(from, ask, slot, turn.sink),
                    Err(refused) => self.answer_publish(ticket, Err(refused), turn.sink),
                }
            }
            NodeMessage::Interest { ask, names, count, start, .. } => {
                if let Err(refused) = self.serve_interest(from, slot, (ask, count, start), &names, turn) {
                    if refused == ErrorCode::HubDiffers {
                        return self.relay.not_mine(from, ask, slot, turn.sink);
                    }
                    self.relay.deny((from, hub), ask, refused, turn.sink);
                }
            }
            NodeMessage::Counts { names, count, .. } => {
                self.set_interest(from, slot, &names, count, turn);
            }
            NodeMessage::CountAsk { ask, names, settles, .. } => {
                let room = self.rooms.find_of_topic(&names.topic);
                let counts = room.and_then(|room| self.rooms.counts_of(room, names.namespace, &names.topic));
                let count = counts.map_or(0, |counts| counts.total());
                let ticket = Ticket { shard: self.shard, asker: Asker::Node { node: from, ask, hub } };
                if settles && self.count_settled(ticket, &names.topic, Ok(count)) == Outcome::Later {
                    return;
                }
                self.relay.peers.send(from, hub, NodeMessage::Counted { ask, count }, turn.sink);
            }
            NodeMessage::Rows { ask, filter, after, bytes_max, .. } => {
                let after = (!after.is_empty()).then_some(&*after);
                match self.entries_led(slot, &filter, after, bytes_max) {
                    Ok(page) => self.answer_node_entries((from, hub), ask, page, turn.sink),
                    Err(refused) => self.relay.deny((from, hub), ask, refused, turn.sink),
                }
            }
            message @ NodeMessage::ReadHub { .. } => self.serve_hub_read(from, message, turn),
            NodeMessage::Read { ask, names, start, records_max, bytes_max, .. } => {
                let wanted = (start, records_max, bytes_max);
                if let Err(refused) = self.serve_read((from, ask), slot, names, wanted, turn) {
                    self.relay.deny((from, hub), ask, refused, turn.sink);
                }
            }
            _ => {}
        }
    }

    /// The handle of a topic, if it belongs to a hub.
    fn topic_of_hub(
        &mut self,
        slot: u16,
        (namespace, topic): (Namespace, &[u8]),
        turn: &mut Turn<impl Sink>,
    ) -> Option<TopicId> {
        let fits = self.topic_fits(topic);
        self.rehome_of(topic, turn);
        let id = self.topics.intern(namespace, topic);
        (fits && self.slot_of_topic(id) == Some(slot)).then_some(id)
    }

    /// The handle of the topic of a node's record.
    ///
    /// # Errors
    /// The reason why the record is refused.
    fn admit_record(
        &mut self,
        slot: u16,
        record: &Record,
        turn: &mut Turn<impl Sink>,
    ) -> Result<TopicId, ErrorCode> {
        if !self.topic_fits(record.topic()) {
            return Err(ErrorCode::TopicLength);
        }
        let id = self.topic_of_hub(slot, (record.namespace, record.topic()), turn);
        let id = id.ok_or(ErrorCode::HubDiffers)?;
        let class = self.classes.get(self.relay.hub(slot).class);
        if record.payload().len() as u64 > class.payload_bytes_max {
            return Err(ErrorCode::PayloadLength);
        }
        if record.producer().is_some() && !class.durability.is_logged() {
            return Err(ErrorCode::NotLogged);
        }
        Ok(id)
    }

    fn set_interest(
        &mut self,
        from: NodeId,
        slot: u16,
        names: &Names,
        count: u32,
        turn: &mut Turn<impl Sink>,
    ) {
        let shards = self.shards;
        if self.topic_of_hub(slot, (names.namespace, &names.topic), turn).is_none() {
            return;
        }
        let Some(holder) = self.relay.peers.holder(from, shards) else { return };
        let Some(room) = self.rooms.find_of_topic(&names.topic) else { return };
        let key: TopicKey = (names.namespace, Arc::clone(&names.topic));
        self.rooms.count(room, &key, |counts| counts.set(holder, count, shards), turn.now);
        self.rooms.forget_unused(room);
    }

    fn serve_interest(
        &mut self,
        from: NodeId,
        slot: u16,
        (ask, count, start): (AskId, u32, Start),
        names: &Names,
        turn: &mut Turn<impl Sink>,
    ) -> Result<(), ErrorCode> {
        if self.topic_of_hub(slot, (names.namespace, &names.topic), turn).is_none() {
            return Err(ErrorCode::HubDiffers);
        }
        if count == 0 {
            self.set_interest(from, slot, names, 0, turn);
            return Ok(());
        }
        let shards = self.shards;
        let Some(holder) = self.relay.peers.holder(from, shards) else {
            return Err(ErrorCode::NotLinked);
        };
        let hub = self.relay.hub(slot).id;
        let asker = Asker::Node { node: from, ask, hub };
        let attach = Attach {
            ticket: Ticket { shard: self.shard, asker },
            conn: u32::MAX,
            namespace: names.namespace,
            topic: Arc::clone(&names.topic),
            start,
            adds: false,
            id: 0,
            home: self.shard,
            revision: 0,
            left: None,
        };
        let (known, room) = self.attach_led(&attach, self.shard, turn)?;
        let key: TopicKey = (names.namespace, Arc::clone(&names.topic));
        self.rooms.count(room, &key, |counts| counts.set(holder, count, shards), turn.now);
        let position = self.rooms.position(room);
        self.relay.set_due(room, holder.0 - shards, position);
        match known {
            Known::Here(attached) => {
                self.answer_node_attach(&attach, (from, ask, hub), Ok(attached), turn.sink)
            }
            Known::InLog(read) => turn.sink.read_log(read),
        }
        Ok(())
    }

    pub(crate) fn answer_node_attach(
        &mut self,
        attach: &Attach,
        (to, ask, hub): (NodeId, AskId, HubId),
        attached: Result<Attached, ErrorCode>,
        sink: &mut impl Sink,
    ) {
        let is_held = self.interest_of(to, attach.namespace, &attach.topic) > 0;
        if self.leads(hub).is_none() || (attached.is_ok() && !is_held) {
            // This node was the leader when its log was read. Since then another node may lead its rooms, or
            // they were removed, or the hub had no leader for a while; the node's interest is no longer
            // registered here.
            if let Some(slot) = self.relay.slot_of(hub) {
                self.relay.not_mine(to, ask, slot, sink);
            }
            return;
        }
        let message = match attached {
            Ok(attached) => NodeMessage::Attached { ask, attached },
            Err(code) => NodeMessage::Denied { ask, code },
        };
        self.relay.peers.send(to, hub, message, sink);
    }

    fn serve_read(
        &mut self,
        (from, ask): (NodeId, AskId),
        slot: u16,
        names: Names,
        (start, records_max, bytes_max): (Start, u32, u32),
        turn: &mut Turn<impl Sink>,
    ) -> Result<(), ErrorCode> {
        self.rehome_of(&names.room, turn);
        let (class, hub) = self.topics.place(&names.room);
        if self.rooms.hubs.find(class, hub) != Some(slot) {
            return Err(ErrorCode::HubDiffers);
        }
        self.check_past(&names.room, turn.sink)?;
        let is_whole = names.topic.is_empty();
        let hub = self.relay.hub(slot).id;
        let recall = |hub| turn.sink.recall(hub, &names.room);
        let room = self.rooms.find(&names.room);
        let last = match room {
            Some(room) => self.rooms.position(room),
            None => self.rooms.last_of_cold_room(&names.room, recall),
        };
        let next = match start {
            Start::Last(n) => {
                let count = n.min(u64::from(records_max)).min(READ_RECORDS_MAX);
                let topic = (!is_whole).then(|| names.topic.to_vec());
                let query = HistoryQuery { room: names.room.to_vec(), count, after: None, topic };
                self.relay.last_question = self.relay.last_question.wrapping_add(1);
                let number = self.relay.last_question;
                self.relay.questions.insert(number, (from, ask));
                let asked = Ask { shard: OF_NODES, number };
                if let Some(part) = self.history_led(&query, asked, turn) {
                    self.answer_history(&query.room, asked, Ok(part), turn.sink);
                }
                return Ok(());
            }
            Start::After(position) => Position { seq: position.seq.next(), ..position },
            // Older records are left out of the response.
            Start::Since(_) => Position { seq: Seq(1), ..last },
            Start::Live => Position { seq: last.seq.next(), ..last },
        };
        let since_us = if let Start::Since(us) = start { us } else { 0 };
        let whole = is_whole.then(|| Arc::clone(&names.room));
        let of = OfNode { node: from, ask, hub, whole, records_max, since_us };
        let read = Read {
            from: self.shard,
            conn: ConnKey { index: u32::MAX, generation: 0 },
            pattern: None,
            namespace: names.namespace,
            topic: names.topic,
            next,
            bytes_max: (bytes_max as usize).clamp(1, READ_BYTES_MAX),
            of: Some(Box::new(of)),
        };
        self.read_here(read, turn);
        Ok(())
    }

    pub(crate) fn answer_node_read(&mut self, read: &Read, mut range: Range, sink: &mut impl Sink) {
        let Some(of) = &read.of else { return };
        let max = (of.records_max as usize).clamp(1, READ_RECORDS_MAX as usize);
        if range.records.len() > max {
            range.next = range.records[max].position.seq;
            range.at_end = false;
            range.records.truncate(max);
        }
        if of.since_us > 0 {
            range.gap = None;
            range.records.retain(|record| record.timestamp_us >= of.since_us);
        }
        let name = match &of.whole {
            Some(room) => Arc::clone(room),
            None => self.room_of(&read.topic),
        };
        let room = self.rooms.find(&name);
        let first = range.gap.map(|gap| gap.1);
        let oldest = Position {
            epoch: room.map_or(read.next.epoch, |room| self.rooms.position(room).epoch),
            seq: first.or_else(|| self.rooms.before_first(room?)).unwrap_or_default(),
        };
        let (node, ask, hub) = (of.node, of.ask, of.hub);
        let Range { records, next, gap, at_end, is_gone, .. } = range;
        let end = NodeMessage::RangeEnd { ask, oldest, next, gap, at_end, is_gone };
        self.relay.answer_read((node, hub), ask, records, end, sink);
    }

    fn answer_node_entries(&mut self, to: (NodeId, HubId), ask: AskId, page: RowPage, sink: &mut impl Sink) {
        let (oldest, next, gap) = (Position::default(), Seq(0), None);
        let end = NodeMessage::RangeEnd { ask, oldest, next, gap, at_end: page.is_last, is_gone: false };
        self.relay.answer_read(to, ask, page.rows, end, sink);
    }

    /// The response to a history request: to the requesting shard of this node, or to another node.
    pub(crate) fn answer_history(
        &mut self,
        room: &[u8],
        ask: Ask,
        part: Result<HistoryPart, ErrorCode>,
        sink: &mut impl Sink,
    ) {
        if ask.shard != OF_NODES {
            return sink.history(ask, part);
        }
        let (class, hub) = self.topics.place(room);
        let Some(slot) = self.rooms.hubs.find(class, hub) else { return };
        let Some((to, ask)) = self.relay.questions.remove(&ask.number) else { return };
        let hub = self.relay.hub(slot).id;
        match part {
            Err(code) => self.relay.deny((to, hub), ask, code, sink),
            Ok(HistoryPart { start, records, .. }) => {
                let next = records.last().map_or(start.seq, |record| record.position.seq).next();
                let (gap, at_end, is_gone) = (None, true, false);
                let end = NodeMessage::RangeEnd { ask, oldest: start, next, gap, at_end, is_gone };
                self.relay.answer_read((to, hub), ask, records, end, sink);
            }
        }
    }

    /// The term in which this node leads a hub; none: it does not.
    pub fn leads(&self, hub: HubId) -> Option<Term> {
        let state = self.relay.hub(self.relay.slot_of(hub)?);
        (state.leader == Leader::Me).then_some(state.term)
    }
}
