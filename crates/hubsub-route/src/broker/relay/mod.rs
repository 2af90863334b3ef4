//! The broker's part in a cluster (docs/adr/0014). A node that is alone is a cluster of one: it leads its hubs, and
//! nothing here ever waits.
//!
//! - leaders: their changes ([`route`], [`handover`]), publishes to them ([`forward`]), requests to them
//!   ([`questions`], [`reads`])
//! - interest: subscriptions ([`attach`]), counts of subscribers ([`interest`]), patterns ([`patterns`])
//! - records from a leader ([`records`]), holes in them ([`holes`]), and records of whole hubs that may be
//!   missing ([`hubs`], [`watch`])
//! - requests of other nodes to hubs that are led here ([`serve`])
//! - rooms: their places ([`misses`]), moves ([`moves`], [`closing`], [`requeue`]), changes of their class
//!   ([`classes`]) and their removal ([`forget`])
//! - links ([`links`]); this file has messages of nodes, and timers

mod attach;
mod classes;
mod closing;
mod forget;
mod forward;
mod handover;
mod holes;
mod hubs;
mod interest;
mod links;
mod misses;
mod moves;
mod patterns;
mod questions;
mod reads;
mod records;
mod requeue;
mod route;
mod serve;
mod watch;

pub(crate) use closing::Gone;

use super::{Broker, Turn};
use crate::counts::NODES_MAX;
use crate::hubread::HubRange;
use crate::relay::{
    Admit, EARLY_BYTES_MAX, EARLY_MAX, HELD_BYTES_MAX, InFlight, Leader, Missing, Question, Request,
    UNSENT_MAX,
};
use crate::rooms::TopicKey;
use crate::topics::TopicId;
use crate::{Answer, Msg, Now, Sink, Ticket};
use hubsub_message::{AskId, NodeMessage};
use hubsub_types::{ErrorCode, HubId, NodeId, Term};
use std::sync::Arc;

impl Broker {
    pub fn has_nodes(&self) -> bool {
        self.is_clustered()
    }

    /// Whether this shard buffers so much for a node that the node should get no more credit.
    pub fn is_behind(&self, node: NodeId) -> bool {
        self.relay.early.number > EARLY_MAX / 2
            || self.relay.early.bytes > EARLY_BYTES_MAX / 2
            || self.relay.holes.bytes() > HELD_BYTES_MAX
            || self.relay.peers.unsent_of(node) > UNSENT_MAX
    }

    /// Whether anything waits for a link to accept more, and should be retried soon.
    pub fn waits_for_nodes(&self) -> bool {
        self.relay.is_held_up || self.relay.peers.unsent() > 0
    }

    /// The number of other known nodes, at most [`NODES_MAX`].
    pub fn nodes(&self) -> usize {
        self.relay.peers.len().min(usize::from(NODES_MAX))
    }

    /// The slot of a topic's hub whose home is here: that of the open room, or else the table's.
    pub(crate) fn slot_of_topic(&self, id: TopicId) -> Option<u16> {
        let topic = self.topics.get(id);
        let open = self.rooms.slot_of_room(topic.room);
        if open.is_some() || !self.topics.moves(topic.class) {
            return open.or_else(|| self.rooms.hubs.find(topic.class, topic.hub));
        }
        // All topics of a room are at its place, including those that are not linked to it yet.
        let name = self.classes.room(&topic.name);
        self.rooms.find(&name).map_or_else(|| self.slot_of_name(&name), |room| self.rooms.slot_of_room(room))
    }

    fn slot_of_name(&self, room: &[u8]) -> Option<u16> {
        let (class, hub) = self.topics.place(room);
        self.rooms.hubs.find(class, hub)
    }

    /// The slot of a room's hub, if its home is here and this node does not lead it.
    pub(crate) fn relayed_slot(&self, room: &[u8]) -> Option<u16> {
        if self.relay.is_alone {
            return None;
        }
        self.slot_of_name(room).filter(|&slot| !self.is_led(slot))
    }

    pub fn node_message(&mut self, from: NodeId, message: NodeMessage, now: Now, sink: &mut impl Sink) {
        let turn = &mut Turn { now, sink };
        if self.relay.is_alone {
            return;
        }
        match message {
            NodeMessage::Publish { hub, .. }
            | NodeMessage::Interest { hub, .. }
            | NodeMessage::Counts { hub, .. }
            | NodeMessage::CountAsk { hub, .. }
            | NodeMessage::Rows { hub, .. }
            | NodeMessage::Read { hub, .. }
            | NodeMessage::ReadHub { hub, .. } => self.serve(from, hub, message, turn),
            NodeMessage::SettleAsk { ask } => self.settle_for_node(from, ask, turn.sink),
            NodeMessage::Settled { ask } => self.node_settled(from, ask, turn.sink),
            NodeMessage::Deliver { hub, term, .. }
            | NodeMessage::PatternsLive { hub, term, .. }
            | NodeMessage::LeadershipEnded { hub, term, .. }
            | NodeMessage::InterestSynced { hub, term } => self.notified(from, (hub, term), message, turn),
            NodeMessage::Acknowledge { group, position, .. } => self.acknowledged(group, position, turn),
            NodeMessage::Give { hub, give } => self.group_record_received(from, hub, give, turn),

            NodeMessage::Published { ask, .. }
            | NodeMessage::NotMine { ask, .. }
            | NodeMessage::Denied { ask, .. }
            | NodeMessage::Attached { ask, .. }
            | NodeMessage::Counted { ask, .. }
            | NodeMessage::Range { ask, .. }
            | NodeMessage::RangeEnd { ask, .. }
            | NodeMessage::HubEnd { ask, .. } => self.answered(from, ask, message, turn),
            NodeMessage::Pattern { .. }
            | NodeMessage::PatternsBegin { .. }
            | NodeMessage::PatternsEntry { .. }
            | NodeMessage::PatternsEnd { .. }
            | NodeMessage::PatternsHeld { .. } => self.pattern_message(from, message, turn.sink),
        }
    }

    /// Handles a message about a hub without a response: from its leader in that term, or for it.
    #[inline]
    fn notified(
        &mut self,
        from: NodeId,
        (hub, term): (HubId, Term),
        message: NodeMessage,
        turn: &mut Turn<impl Sink>,
    ) {
        let Some(slot) = self.relay.slot_of(hub) else { return };
        match (self.relay.admit(slot, term, from), message) {
            (Admit::Early, message) => {
                // If it cannot be buffered, gaps are reported, and a new leader waits until its time limit.
                let refused = self.buffer_early(slot, from, message, turn.now);
                self.lack_if(slot, refused.is_some_and(|message| message.is_of_leader()));
            }
            (Admit::Sender, NodeMessage::Deliver { previous, before, record, .. }) => {
                self.record_received(from, slot, (previous, before), record, turn);
            }
            (Admit::Sender, NodeMessage::PatternsLive { epoch, expected, .. }) => {
                let has_all = self.relay.hub_mut(slot).watched.live(epoch, term, expected);
                if !has_all {
                    self.report_lack(slot, turn.sink);
                }
            }
            (Admit::Sender, NodeMessage::LeadershipEnded { end, .. }) => {
                let is_confirmed = self.is_confirmed(slot);
                self.relay.hub_mut(slot).watched.ends(term, end, is_confirmed);
                self.apply_due_routes(slot, turn);
            }
            (Admit::Here, NodeMessage::InterestSynced { .. }) => self.interest_synced(slot, from, turn),
            _ => {}
        }
    }

    /// Handles the response to a request; ignores one to an unknown request.
    fn answered(&mut self, from: NodeId, ask: AskId, message: NodeMessage, turn: &mut Turn<impl Sink>) {
        if self.relay.requests.get(&ask).is_none_or(|in_flight| in_flight.to != from) {
            return;
        }
        if let NodeMessage::Range { record, .. } = message {
            return self.take_record(ask, record);
        }
        let Some(InFlight { slot, term, what, records, .. }) = self.relay.take(ask) else { return };
        match (what, message) {
            (Request::Publish(parked), NodeMessage::Published { again, position, receivers, .. }) => {
                let published = crate::Published { receivers, position, is_duplicate: again };
                self.refuse_overtaken(slot, &parked, turn.sink);
                self.answer_publish(parked.ticket, Ok(published), turn.sink);
                self.push_queue(slot, turn);
            }
            // Records that it sent before wait for its next term: the request is repeated then.
            (Request::Interest(asked), NodeMessage::Attached { .. })
                if self.relay.hub(slot).early.iter().any(|early| early.from == from) =>
            {
                self.interest_lost(ask, &asked);
            }
            (Request::Interest(asked), NodeMessage::Attached { attached, .. }) => {
                self.interest_confirmed(ask, asked, attached, turn);
            }
            (
                Request::Question(Question { what: Missing::Count(ticket, _), .. }),
                NodeMessage::Counted { count, .. },
            ) => {
                self.answer_count(ticket, Ok(count), turn.sink);
            }
            (Request::Hub(read), NodeMessage::HubEnd { next, committed, lost, .. }) => {
                self.hub_range(*read, HubRange { records, next, committed, lost }, turn);
            }
            (what, NodeMessage::RangeEnd { oldest, next, gap, at_end, is_gone, .. }) => {
                let epoch = hubsub_types::Epoch(0);
                let range = crate::cursors::Range { records, next, gap, at_end, is_gone, epoch };
                self.range_came((ask, slot), what, oldest, range, turn);
            }
            (what, NodeMessage::NotMine { term: knows, .. }) => {
                self.not_theirs(ask, slot, (term, knows), what, turn);
            }
            (what, NodeMessage::Denied { code, .. }) => self.denied(ask, slot, what, code, turn),
            // A response to another kind of request: the outcome is unknown.
            (what, _) => self.lost(ask, slot, what, turn.sink),
        }
    }

    /// A request whose response will not arrive.
    fn lose(&mut self, ask: AskId, sink: &mut impl Sink) {
        if let Some(InFlight { to, slot, term, what, .. }) = self.relay.take(ask) {
            let hub = self.relay.hub(slot);
            let is_current = (hub.term, hub.leader) == (term, Leader::Node(to));
            if let Request::Publish(parked) = &what
                && is_current
            {
                // It may be committed there.
                self.refuse_overtaken(slot, parked, sink);
            }
            self.lost(ask, slot, what, sink);
        }
    }

    fn lost(&mut self, ask: AskId, slot: u16, what: Request, sink: &mut impl Sink) {
        match what {
            Request::Publish(parked) => self.publish_lost(slot, parked, sink),
            // It is sent again when the link returns, or another leader is known.
            Request::Interest(asked) => self.interest_lost(ask, &asked),
            // It changes nothing, so it can be repeated.
            Request::Question(question) => self.keep_question(slot, question, sink),
            Request::Read(read) => self.relay.keep_read(slot, *read),
            Request::Hub(read) => self.relay.keep_hub_read(slot, *read),
            Request::Hole(room) => {
                if let Some(resume) = self.relay.holes.rooms.get_mut(&room) {
                    resume.read = None;
                }
            }
        }
    }

    fn not_theirs(
        &mut self,
        ask: AskId,
        slot: u16,
        (asked, knows): (Term, Term),
        what: Request,
        turn: &mut Turn<impl Sink>,
    ) {
        match what {
            Request::Publish(parked) => self.park_again(slot, parked, turn),
            what => self.lost(ask, slot, what, turn.sink),
        }
        // If that node knows a later term, this node will learn of it, too.
        if self.relay.hub(slot).term == asked && knows <= asked {
            self.retry_later(slot, turn.now.mono_ms + crate::relay::RETRY_MS);
        } else if self.relay.hub(slot).term > asked {
            self.read_waiting(slot, turn);
        }
        self.push_queue(slot, turn);
    }

    fn retry_later(&mut self, slot: u16, at_ms: u64) {
        self.relay.wake_by(at_ms);
        let hub = self.relay.hub_mut(slot);
        hub.retry_ms = hub.retry_ms.min(at_ms);
    }

    /// The time at which [`Broker::commit_due`] next has work for relays, in ms.
    pub(crate) fn relay_due_ms(&self) -> Option<u64> {
        let due_ms = self.relay.due_ms;
        (due_ms != u64::MAX).then_some(due_ms)
    }

    /// Refuses requests that have waited too long, and retries requests to leaders.
    pub(crate) fn relay_due(&mut self, turn: &mut Turn<impl Sink>) {
        if self.relay.due_ms > turn.now.mono_ms {
            return;
        }
        self.relay.due_ms = u64::MAX;
        for slot in 0..self.relay.hubs.len() as u16 {
            self.expire_early(slot, turn);
            let hub = self.relay.hub(slot);
            if hub.former > 0 && hub.former_until_ms <= turn.now.mono_ms {
                self.lose_former(slot, |_| true, turn.sink);
            }
            self.apply_due_routes(slot, turn);
            if self.relay.hub(slot).retry_ms <= turn.now.mono_ms {
                self.requeue_moved(slot, turn);
                self.reach_leader(slot, turn);
            }
            self.push_queue(slot, turn);
            self.expire_queue(slot, turn);
            self.expire_questions(slot, turn);
            let hub = self.relay.hub(slot);
            let former_ms = if hub.former > 0 { hub.former_until_ms } else { u64::MAX };
            let due_ms = former_ms.min(hub.retry_ms).min(hub.handover.due_ms());
            self.relay.wake_by(due_ms);
        }
        self.expire_attaches(turn);
        self.expire_misses(turn);
        self.moves_due(turn);
    }

    pub(crate) fn push_relay(&mut self, turn: &mut Turn<impl Sink>) {
        if self.relay.is_alone {
            return;
        }
        self.relay.peers.resend(turn.sink);
        if std::mem::take(&mut self.relay.is_held_up) {
            for slot in 0..self.relay.hubs.len() as u16 {
                self.push_queue(slot, turn);
            }
        }
        self.settle_leavers(true, turn);
        self.send_counts(turn.sink);
        self.report_lacks(turn.sink);
        for class in std::mem::take(&mut self.relay.moves.lacks) {
            self.lack_here(class, turn.sink);
        }
    }

    pub(crate) fn answer_count(&self, to: Ticket, count: Result<u64, ErrorCode>, sink: &mut impl Sink) {
        if to.shard == self.shard {
            sink.answer(to.asker, Answer::Counted(count));
        } else {
            sink.send(to.shard, Msg::Counted(to, count));
        }
    }

    pub(crate) fn key_of(&self, id: TopicId) -> TopicKey {
        let topic = self.topics.get(id);
        (topic.namespace, Arc::clone(&topic.name))
    }
}
