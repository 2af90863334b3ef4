//! Requests of other nodes to this node's hubs: interest, publishes and reads.

use super::{Admit, Broker};
use crate::Names;
use crate::cursors::{OfNode, Range, Read};
use crate::logread::{Ask, Known};
use crate::relay::limits::{READ_BYTES_MAX, READ_RECORDS_MAX};
use crate::relay::{AskId, Leader, NodeMessage};
use crate::rooms::{HistoryPart, HistoryQuery, TopicKey};
use crate::rows::RowPage;
use crate::{Asker, Attach, Attached, Now, Outcome, Sink, Start, Ticket};
use hubsub_types::{ConnKey, ErrorCode, HubId, NodeId, Position, Seq, ShardId, Term};
use std::sync::Arc;

/// Shard number in an [`Ask`] of another node.
pub(in crate::broker) const OF_NODES: ShardId = ShardId(u16::MAX);

impl Broker {
    pub(super) fn serve(
        &mut self,
        from: NodeId,
        hub: HubId,
        message: NodeMessage,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let Some(message) = self.miss_message(from, message, now, sink) else { return };
        let relay = self.relay();
        if let (NodeMessage::Counts { names, count: 0, .. }, Some(slot)) = (&message, relay.slot_of(hub))
            && relay.hub(slot).leader == Leader::Node(from)
        {
            return self.interest_ended(slot, names, now);
        }
        let Some(slot) = relay.slot_of(hub) else {
            // This node does not know all hubs yet; the requester looks up the leader again.
            return relay.refuse_of(from, (hub, Term(0)), &message, sink);
        };
        let term = match message {
            NodeMessage::Publish { term, .. }
            | NodeMessage::Interest { term, .. }
            | NodeMessage::Counts { term, .. }
            | NodeMessage::CountAsk { term, .. } => term,
            _ => relay.hub(slot).term,
        };
        match relay.admit(slot, term) {
            // A read has no term: it is for the current leader.
            Admit::Early
                if matches!(
                    message,
                    NodeMessage::Read { .. } | NodeMessage::ReadHub { .. } | NodeMessage::Rows { .. }
                ) =>
            {
                relay.refuse(from, slot, &message, sink);
            }
            Admit::Early => {
                if let Some(message) = self.keep_early(slot, from, message, now) {
                    self.relay().refuse(from, slot, &message, sink);
                }
            }
            Admit::No => relay.refuse(from, slot, &message, sink),
            Admit::Mine => self.serve_led(from, slot, message, now, sink),
        }
    }

    fn serve_led(&mut self, from: NodeId, slot: u16, message: NodeMessage, now: Now, sink: &mut impl Sink) {
        match message {
            NodeMessage::Publish { ask, record, .. } => {
                let hub = self.relay().hub(slot).id;
                let ticket = Ticket { shard: self.shard, asker: Asker::Node { node: from, ask, hub } };
                if let Some(refused) = self.refuses_record(slot, &record, now, sink) {
                    if refused == ErrorCode::HubDiffers {
                        return self.relay().not_mine(from, ask, slot, sink);
                    }
                    return self.tell_published(ticket, Err(refused), sink);
                }
                self.lead_here(ticket, slot, record, now, sink);
            }
            NodeMessage::Interest { ask, names, count, start, .. } => {
                if let Err(refused) = self.serve_interest(from, slot, (ask, count, start), &names, now, sink)
                {
                    if refused == ErrorCode::HubDiffers {
                        return self.relay().not_mine(from, ask, slot, sink);
                    }
                    self.deny(from, slot, ask, refused, sink);
                }
            }
            NodeMessage::Counts { names, count, .. } => {
                self.set_interest(from, slot, &names, count, now, sink);
            }
            NodeMessage::CountAsk { ask, names, settles, .. } => {
                let room = self.rooms.find_of_topic(&names.topic);
                let counts = room.and_then(|room| self.rooms.counts_of(room, names.namespace, &names.topic));
                let count = counts.map_or(0, |counts| counts.total());
                let hub = self.relay().hub(slot).id;
                let ticket = Ticket { shard: self.shard, asker: Asker::Node { node: from, ask, hub } };
                if settles && self.count_settled(ticket, &names.topic, Ok(count)) == Outcome::Later {
                    return;
                }
                self.relay().peers.send(from, hub, NodeMessage::Counted { ask, count }, sink);
            }
            NodeMessage::Rows { ask, filter, after, bytes_max, .. } => {
                let after = (!after.is_empty()).then_some(&*after);
                match self.rows_led(slot, &filter, after, bytes_max) {
                    Ok(page) => self.tell_node_rows(from, slot, ask, page, sink),
                    Err(refused) => self.deny(from, slot, ask, refused, sink),
                }
            }
            message @ NodeMessage::ReadHub { .. } => self.serve_hub_read(from, message, now, sink),
            NodeMessage::Read { ask, names, start, records_max, bytes_max, .. } => {
                let wanted = (start, records_max, bytes_max);
                if let Err(refused) = self.serve_read((from, ask), slot, names, wanted, now, sink) {
                    self.deny(from, slot, ask, refused, sink);
                }
            }
            _ => {}
        }
    }

    fn deny(&mut self, to: NodeId, slot: u16, ask: AskId, code: ErrorCode, sink: &mut impl Sink) {
        let relay = self.relay();
        let hub = relay.hub(slot).id;
        if ask != AskId::NONE {
            relay.peers.send(to, hub, NodeMessage::Denied { ask, code }, sink);
        }
    }

    /// Whether a topic belongs to a hub.
    fn is_of(
        &mut self,
        slot: u16,
        namespace: crate::Namespace,
        topic: &[u8],
        now: Now,
        sink: &mut impl Sink,
    ) -> bool {
        let fits = self.topic_fits(topic);
        self.rehome_of(topic, now, sink);
        let id = self.topics.intern(namespace, topic);
        fits && self.slot_of_topic(id) == Some(slot)
    }

    /// The reason why a node's record is refused.
    fn refuses_record(
        &mut self,
        slot: u16,
        record: &crate::Record,
        now: Now,
        sink: &mut impl Sink,
    ) -> Option<ErrorCode> {
        if !self.topic_fits(record.topic()) {
            return Some(ErrorCode::TopicLength);
        }
        if !self.is_of(slot, record.namespace, record.topic(), now, sink) {
            return Some(ErrorCode::HubDiffers);
        }
        let class = self.relay().hub(slot).class;
        let class = self.classes.get(class);
        if record.payload().len() as u64 > class.payload_bytes_max {
            return Some(ErrorCode::PayloadLength);
        }
        (record.producer().is_some() && !class.durability.is_logged()).then_some(ErrorCode::NotLogged)
    }

    /// Sets the number of subscribers on a node.
    fn set_interest(
        &mut self,
        from: NodeId,
        slot: u16,
        names: &Names,
        count: u32,
        now: Now,
        sink: &mut impl Sink,
    ) {
        let shards = self.shards;
        if !self.is_of(slot, names.namespace, &names.topic, now, sink) {
            return;
        }
        let Some(holder) = self.relay().peers.holder(from, shards) else { return };
        let Some(room) = self.rooms.find_of_topic(&names.topic) else { return };
        let key: TopicKey = (names.namespace, Arc::clone(&names.topic));
        self.rooms.count(room, &key, |counts| counts.set(holder, count, shards), now);
        self.rooms.forget_unused(room);
    }

    fn serve_interest(
        &mut self,
        from: NodeId,
        slot: u16,
        (ask, count, start): (AskId, u32, Start),
        names: &Names,
        now: Now,
        sink: &mut impl Sink,
    ) -> Result<(), ErrorCode> {
        if !self.is_of(slot, names.namespace, &names.topic, now, sink) {
            return Err(ErrorCode::HubDiffers);
        }
        if count == 0 {
            self.set_interest(from, slot, names, 0, now, sink);
            return Ok(());
        }
        let shards = self.shards;
        let Some(holder) = self.relay().peers.holder(from, shards) else {
            return Err(ErrorCode::NotLinked);
        };
        let hub = self.relay().hub(slot).id;
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
        self.refuses_start(&attach, sink).map_or(Ok(()), Err)?;
        let recall = |hub, room: &[u8]| sink.recall(hub, room);
        let (known, room) = self.rooms.attach(&attach, self.shard, now, recall)?;
        let key: TopicKey = (names.namespace, Arc::clone(&names.topic));
        self.rooms.count(room, &key, |counts| counts.set(holder, count, shards), now);
        let position = self.rooms.position(room);
        self.relay().set_due(room, holder.0 - shards, position);
        match known {
            Known::Here(attached) => self.tell_attached(&attach, (from, ask, hub), Ok(attached), sink),
            Known::InLog(read) => sink.read_log(read),
        }
        Ok(())
    }

    /// Replies to a node's subscription with its start.
    pub(in crate::broker) fn tell_attached(
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
            if let Some(slot) = self.relay().slot_of(hub) {
                self.relay().not_mine(to, ask, slot, sink);
            }
            return;
        }
        let message = match attached {
            Ok(attached) => NodeMessage::Attached { ask, attached },
            Err(code) => NodeMessage::Denied { ask, code },
        };
        self.relay().peers.send(to, hub, message, sink);
    }

    fn serve_read(
        &mut self,
        (from, ask): (NodeId, AskId),
        slot: u16,
        names: Names,
        (start, records_max, bytes_max): (Start, u32, u32),
        now: Now,
        sink: &mut impl Sink,
    ) -> Result<(), ErrorCode> {
        self.rehome_of(&names.room, now, sink);
        let (class, hub) = self.topics.place(&names.room);
        if self.rooms.hubs.find(class, hub) != Some(slot) {
            return Err(ErrorCode::HubDiffers);
        }
        self.refuses_past(&names.room, sink).map_or(Ok(()), Err)?;
        let is_whole = names.topic.is_empty();
        let hub = self.relay().hub(slot).id;
        let recall = |hub| sink.recall(hub, &names.room);
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
                let relay = self.relay();
                relay.last_question = relay.last_question.wrapping_add(1);
                let number = relay.last_question;
                relay.questions.insert(number, (from, ask));
                let asked = Ask { shard: OF_NODES, number };
                if let Some(part) = self.history_led(&query, asked, now, sink) {
                    self.tell_part(&query.room, asked, Ok(part), sink);
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
        self.read_here(read, now, sink);
        Ok(())
    }

    /// Sends records to the node that requested them.
    pub(in crate::broker) fn tell_node_range(&mut self, read: &Read, mut range: Range, sink: &mut impl Sink) {
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
            None => self.classes.room(&read.topic).as_ref().into(),
        };
        let room = self.rooms.find(&name);
        let first = range.gap.map(|gap| gap.1);
        let oldest = Position {
            epoch: room.map_or(read.next.epoch, |room| self.rooms.position(room).epoch),
            seq: first.or_else(|| self.rooms.before_first(room?)).unwrap_or_default(),
        };
        let (node, ask, hub) = (of.node, of.ask, of.hub);
        let relay = self.relay();
        for record in range.records {
            relay.peers.send(node, hub, NodeMessage::Range { ask, record }, sink);
        }
        let Range { next, gap, at_end, is_gone, .. } = range;
        relay.peers.send(node, hub, NodeMessage::RangeEnd { ask, oldest, next, gap, at_end, is_gone }, sink);
    }

    fn tell_node_rows(&mut self, to: NodeId, slot: u16, ask: AskId, page: RowPage, sink: &mut impl Sink) {
        let relay = self.relay();
        let hub = relay.hub(slot).id;
        for record in page.rows {
            relay.peers.send(to, hub, NodeMessage::Range { ask, record }, sink);
        }
        let (oldest, next, gap) = (Position::default(), Seq(0), None);
        let end = NodeMessage::RangeEnd { ask, oldest, next, gap, at_end: page.is_last, is_gone: false };
        relay.peers.send(to, hub, end, sink);
    }

    /// Refuses a node's read.
    pub(in crate::broker) fn refuse_read(&mut self, of: &OfNode, code: ErrorCode, sink: &mut impl Sink) {
        let message = NodeMessage::Denied { ask: of.ask, code };
        if let Some(relay) = &mut self.relay {
            relay.peers.send(of.node, of.hub, message, sink);
        }
    }

    /// The response to a history request: to the requesting shard of this node, or to another node.
    pub(in crate::broker) fn tell_part(
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
        let relay = self.relay();
        let Some((to, ask)) = relay.questions.remove(&ask.number) else { return };
        let hub = relay.hub(slot).id;
        match part {
            Err(code) => _ = relay.peers.send(to, hub, NodeMessage::Denied { ask, code }, sink),
            Ok(HistoryPart { start, records, .. }) => {
                let next = records.last().map_or(start.seq, |record| record.position.seq).next();
                for record in records {
                    relay.peers.send(to, hub, NodeMessage::Range { ask, record }, sink);
                }
                let (gap, at_end, is_gone) = (None, true, false);
                let end = NodeMessage::RangeEnd { ask, oldest: start, next, gap, at_end, is_gone };
                relay.peers.send(to, hub, end, sink);
            }
        }
    }

    /// The term in which this node leads a hub; none: it does not.
    #[must_use]
    pub fn leads(&self, hub: HubId) -> Option<Term> {
        let relay = self.relay.as_ref()?;
        let state = relay.hub(relay.slot_of(hub)?);
        (state.leader == Leader::Me).then_some(state.term)
    }
}
