//! Publishes to a leader on another node: they wait here in order of arrival, are sent with a number, and
//! their responses are matched by that number.
//!
//! Invariant: publishes of one shard to one hub keep their order among those that a leader accepts. So
//! nothing is sent to a leader while a publish to the previous one is in flight, and a refused publish
//! returns to its place.

use super::{Broker, Turn};
use crate::counts::{Holder, HolderSet};
use crate::relay::{FORMER_MS, IN_FLIGHT_MAX, Leader, Parked, Request};
use crate::topics::TopicId;
use crate::traces::StepKind;
use crate::{Asker, Now, Outcome, Published, Reply, Sink, Ticket};
use hubsub_message::{AskId, NodeMessage, Producer, Record};
use hubsub_types::{ErrorCode, HubId, NodeId, ShardId};
use std::sync::Arc;

impl Broker {
    /// Whether a publish waits: its hub is led elsewhere, earlier ones wait, or this process may not lead.
    #[inline]
    pub(crate) fn waits(&self, slot: u16, sink: &impl Sink) -> bool {
        !self.relay.hub(slot).is_clear || !self.may_lead(slot, sink)
    }

    pub(crate) fn is_led(&self, slot: u16) -> bool {
        self.relay.hub(slot).leader == Leader::Me
    }

    /// Whether this process, which a hub's route names, may order records of the hub now.
    pub(crate) fn may_lead(&self, slot: u16, sink: &impl Sink) -> bool {
        let hub = self.relay.hub(slot);
        hub.serves || self.classes.get(hub.class).durability.is_logged() || sink.leads(hub.id, hub.term)
    }

    /// The slot of a topic's hub, if its home is here and this process may not order its records now.
    pub(crate) fn unled_slot(&self, id: TopicId, sink: &impl Sink) -> Option<u16> {
        self.slot_of_topic(id).filter(|&slot| !self.may_lead(slot, sink))
    }

    /// Queues a publish that cannot be committed here at once. This call answers it only with a refusal.
    pub(crate) fn forward(
        &mut self,
        ticket: Ticket,
        slot: u16,
        mut record: Arc<Record>,
        turn: &mut Turn<impl Sink>,
    ) -> Reply<Published> {
        let class = self.relay.hub(slot).class;
        let is_logged = self.classes.get(class).durability.is_logged();
        let relay = &mut self.relay;
        let producer = relay.producer;
        if relay.is_full(record.weight()) {
            return Outcome::Now(Err(ErrorCode::LinkFull));
        }
        let number = relay.number();
        if is_logged && record.producer().is_none() && !ticket.is_of_node() {
            let hub = relay.hub_mut(slot);
            hub.sequence += 1;
            Arc::make_mut(&mut record).number(Producer { id: producer, sequence: hub.sequence });
        }
        relay.park(slot, Parked { number, ticket, record, since_ms: turn.now.mono_ms });
        if self.traces.is_on() {
            self.trace_step(ticket, StepKind::Waits, turn.sink);
        }
        if self.relay.hub(slot).leader == Leader::Me {
            // Earlier publishes are examined in a moment; it may be committed and answered then.
            self.relay.is_held_up = true;
        } else {
            self.push_queue(slot, turn);
        }
        Outcome::Later
    }

    /// As `forward`, but replies to the publisher if the publish is refused.
    pub(crate) fn forward_or_refuse(
        &mut self,
        ticket: Ticket,
        slot: u16,
        record: Arc<Record>,
        turn: &mut Turn<impl Sink>,
    ) {
        if let Outcome::Now(refused) = self.forward(ticket, slot, record, turn) {
            self.answer_publish(ticket, refused, turn.sink);
        }
    }

    /// Sends or commits waiting publishes in order, as far as possible.
    pub(crate) fn push_queue(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        self.check_synced(slot, turn.now, turn.sink);
        let is_free = self.may_lead(slot, turn.sink);
        loop {
            let relay = &mut self.relay;
            let hub = relay.hub(slot);
            let id = hub.id;
            let Some(first) = hub.queue.front().filter(|_| hub.former == 0) else { break };
            match hub.leader {
                Leader::None => break,
                Leader::Me if hub.handover.interest_wait.is_some() => break,
                Leader::Me if !is_free => {
                    // The leader lease may return at any moment.
                    relay.is_held_up = true;
                    break;
                }
                Leader::Me => {
                    let Some(parked) = relay.unpark(slot) else { break };
                    let id = self.topics.intern(parked.record.namespace, parked.record.topic());
                    self.commit_led(parked.ticket, id, parked.record, turn);
                }
                Leader::Node(_) if first.ticket.is_of_node() => {
                    // Another node sent it while this node was the leader: it looks up the leader again.
                    let Some(parked) = relay.unpark(slot) else { break };
                    if let Asker::Node { node, ask, .. } = parked.ticket.asker {
                        relay.not_mine(node, ask, slot, turn.sink);
                    }
                }
                Leader::Node(node) => {
                    // The leader would refuse it if the next leader is known.
                    let may = hub.handover.routes.is_empty()
                        && relay.peers.reaches(node, id)
                        && hub.in_flight < IN_FLIGHT_MAX
                        && hub.retry_ms == u64::MAX;
                    if !may {
                        break;
                    }
                    // A refused publish is sent again once the outcome of later ones is known.
                    if first.number < hub.sent && hub.in_flight > 0 && self.is_before_sent(slot) {
                        break;
                    }
                    if !self.relay.peers.flows(node, id, turn.sink) {
                        self.relay.is_held_up = true;
                        break;
                    }
                    self.send_first(slot, node, turn.sink);
                }
            }
        }
        self.relay.settle(slot);
    }

    /// Whether later publishes of the same shard and room as the first waiting one are in flight.
    fn is_before_sent(&self, slot: u16) -> bool {
        let Some(first) = self.relay.hub(slot).queue.front() else { return false };
        let room = self.classes.room(first.record.topic());
        let is_later = |what: &Request| {
            matches!(what, Request::Publish(sent) if sent.number > first.number
                && sent.ticket.shard == first.ticket.shard
                && self.classes.room(sent.record.topic()) == room)
        };
        self.relay.requests.values().any(|in_flight| in_flight.slot == slot && is_later(&in_flight.what))
    }

    fn send_first(&mut self, slot: u16, to: NodeId, sink: &mut impl Sink) {
        self.send_counts(sink);
        let Some(parked) = self.relay.unpark(slot) else { return };
        let hub = self.relay.hub_mut(slot);
        hub.in_flight += 1;
        hub.sent = hub.sent.max(parked.number);
        if self.traces.is_on() {
            self.trace_step(parked.ticket, StepKind::SentToLeader(to), sink);
        }
        let record = Arc::clone(&parked.record);
        let message = |ask, hub, term| NodeMessage::Publish { ask, hub, term, record };
        self.relay.request((to, slot), Request::Publish(parked), message, sink);
    }

    /// A publish in flight is lost. A numbered one is sent again; the outcome of any other is unknown.
    pub(crate) fn publish_lost(&mut self, slot: u16, parked: Parked, sink: &mut impl Sink) {
        let class = self.relay.hub(slot).class;
        if self.classes.get(class).durability.is_logged() {
            self.relay.park(slot, parked);
        } else {
            self.answer_publish(parked.ticket, Err(ErrorCode::LinkLost), sink);
        }
    }

    /// A silent former leader will not respond in time: its publishes do not block others.
    pub(crate) fn lose_silent_former(&mut self, slot: u16, sink: &mut impl Sink) {
        if self.relay.hub(slot).former == 0 {
            return;
        }
        let id = self.relay.hub(slot).id;
        let to = self.relay.requests.values().filter(|in_flight| in_flight.slot == slot);
        let mut silent: Vec<NodeId> = to.map(|in_flight| in_flight.to).collect();
        silent.sort_unstable();
        silent.dedup();
        silent.retain(|&node| sink.node_is_silent(node, id));
        if !silent.is_empty() {
            self.lose_former(slot, |node| silent.contains(&node), sink);
        }
    }

    pub(crate) fn lose_former(&mut self, slot: u16, is_meant: impl Fn(NodeId) -> bool, sink: &mut impl Sink) {
        for ask in self.relay.former_publishes(slot, is_meant) {
            self.lose(ask, sink);
        }
    }

    pub(crate) fn count_former(&mut self, slot: u16, now: Now) {
        let former = self.relay.former_publishes(slot, |_| true).len();
        let until_ms = now.mono_ms + FORMER_MS;
        if former > 0 {
            self.relay.wake_by(until_ms);
        }
        let hub = self.relay.hub_mut(slot);
        (hub.former, hub.former_until_ms) = (former, until_ms);
        self.relay.settle(slot);
    }

    /// Refuses publishes that have waited too long. A numbered one may have been sent.
    pub(crate) fn expire_queue(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        loop {
            let relay = &mut self.relay;
            let parked_ms = relay.limits.parked_ms;
            let Some(first) = relay.hub(slot).queue.front() else { break };
            let due_ms = first.since_ms + parked_ms;
            if due_ms > turn.now.mono_ms {
                relay.wake_by(due_ms);
                break;
            }
            let Some(parked) = relay.unpark(slot) else { break };
            relay.settle(slot);
            let code =
                if parked.record.producer().is_some() { ErrorCode::TimedOut } else { ErrorCode::HubClosed };
            self.answer_publish(parked.ticket, Err(code), turn.sink);
        }
    }

    /// Sends a committed record to a node, with the previous seq due there, so that it detects a hole.
    pub(crate) fn send_record(
        &mut self,
        room: crate::rooms::RoomHandle,
        id: TopicId,
        holder: Holder,
        record: &Arc<Record>,
        sink: &mut impl Sink,
    ) {
        let Some(slot) = self.slot_of_topic(id) else { return };
        let shards = self.shards;
        let relay = &mut self.relay;
        let Some(to) = relay.peers.node_of(holder, shards) else { return };
        let seq = record.position.seq;
        let (hub, term) = (relay.hub(slot).id, relay.hub(slot).term);
        let before = relay.hub_mut(slot).watchers.sent(to, record.place.offset);
        let previous = if seq.0 == 0 { seq } else { relay.was_due(room, holder.0 - shards, seq) };
        let message = NodeMessage::Deliver { hub, term, previous, before, record: Arc::clone(record) };
        relay.peers.send(to, hub, message, sink);
        if self.traces.is_on() {
            self.trace_record(record, StepKind::SentToNode(to), sink);
        }
    }

    /// As `is_congested`, with nodes among the holders.
    #[cold]
    pub(crate) fn is_congested_somewhere(
        &mut self,
        id: TopicId,
        holders: &mut HolderSet,
        sink: &impl Sink,
    ) -> bool {
        let slot = self.slot_of_topic(id);
        let shards = self.shards;
        let relay = &mut self.relay;
        for holder in holders.iter() {
            if holder.0 < shards {
                if sink.congested(ShardId(holder.0)) {
                    return true;
                }
                continue;
            }
            let hub = slot.map(|slot| relay.hub(slot).id);
            let node = relay.peers.node_of(holder, shards);
            match node.zip(hub).filter(|&(node, hub)| relay.peers.reaches(node, hub)) {
                None => _ = holders.remove(holder),
                Some((node, hub)) if !relay.peers.flows(node, hub, sink) => {
                    relay.is_held_up = true;
                    return true;
                }
                Some(_) => {}
            }
        }
        false
    }

    pub(crate) fn answer_node_publish(
        &mut self,
        (to, ask, hub): (NodeId, AskId, HubId),
        published: Result<Published, ErrorCode>,
        sink: &mut impl Sink,
    ) {
        let message = match published {
            Ok(Published { receivers, position, is_duplicate: again }) => {
                NodeMessage::Published { ask, again, position, receivers }
            }
            Err(code) => NodeMessage::Denied { ask, code },
        };
        self.relay.peers.send(to, hub, message, sink);
    }
}
