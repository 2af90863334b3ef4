//! Messages of a shard to other nodes about its hubs: requests to leaders, and replies to requests.

use super::Leader;
use super::state::{HubState, InFlight, Relay, Request};
use crate::rooms::RoomHandle;
use crate::{Sink, Start};
use hubsub_message::{AskId, Names, NodeMessage, Record};
use hubsub_types::{ErrorCode, HubId, NodeId, Position, Seq, Term};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Admit {
    Here,
    Sender,
    /// Unknown yet: the term is not known here.
    Early,
    /// Another node leads it, or the term has ended.
    No,
}

impl Relay {
    /// Whose message about a hub this is, by its term.
    pub fn admit(&self, slot: u16, term: Term, from: NodeId) -> Admit {
        let hub = self.hub(slot);
        match hub.leader {
            Leader::Me if term == hub.term => Admit::Here,
            Leader::Node(leader) if (term, from) == (hub.term, leader) => Admit::Sender,
            Leader::None if term == hub.term => Admit::Early,
            _ if term > hub.term => Admit::Early,
            _ => Admit::No,
        }
    }

    /// Replies that another node leads, if the message expects a reply.
    pub fn refuse(&mut self, to: NodeId, slot: u16, message: &NodeMessage, sink: &mut impl Sink) {
        let of = (self.hub(slot).id, self.hub(slot).term);
        self.refuse_of(to, of, message, sink);
    }

    pub fn refuse_of(
        &mut self,
        to: NodeId,
        (hub, term): (HubId, Term),
        message: &NodeMessage,
        sink: &mut impl Sink,
    ) {
        let ask = ask_of(message);
        if ask != AskId::NONE {
            self.peers.send(to, hub, NodeMessage::NotMine { ask, hub, term }, sink);
        }
    }

    pub fn not_mine(&mut self, to: NodeId, ask: AskId, slot: u16, sink: &mut impl Sink) {
        if ask != AskId::NONE {
            self.send((to, slot), |hub, term| NodeMessage::NotMine { ask, hub, term }, sink);
        }
    }

    pub fn deny(&mut self, (to, hub): (NodeId, HubId), ask: AskId, code: ErrorCode, sink: &mut impl Sink) {
        if ask != AskId::NONE {
            self.peers.send(to, hub, NodeMessage::Denied { ask, code }, sink);
        }
    }

    pub fn answer_read(
        &mut self,
        (to, hub): (NodeId, HubId),
        ask: AskId,
        records: Vec<Arc<Record>>,
        end: NodeMessage,
        sink: &mut impl Sink,
    ) {
        for record in records {
            self.peers.send(to, hub, NodeMessage::Range { ask, record }, sink);
        }
        self.peers.send(to, hub, end, sink);
    }

    /// As `leader_of`, unless the leader has refused a request and is to be asked later.
    pub fn ready_leader_of(&self, slot: u16) -> Option<NodeId> {
        self.leader_of(slot).filter(|_| self.hub(slot).retry_ms == u64::MAX)
    }

    pub fn next_ask(&mut self) -> AskId {
        self.last_ask += 1;
        AskId::new(self.last_ask, self.shard)
    }

    /// Sends a request to a node about a hub; `message` gets its number, and the hub's id and term.
    pub fn request(
        &mut self,
        (to, slot): (NodeId, u16),
        what: Request,
        message: impl FnOnce(AskId, HubId, Term) -> NodeMessage,
        sink: &mut impl Sink,
    ) -> AskId {
        let ask = self.next_ask();
        let &HubState { id: hub, term, .. } = self.hub(slot);
        self.requests.insert(ask, InFlight { to, slot, term, what, records: Vec::new(), bytes: 0 });
        self.peers.send(to, hub, message(ask, hub, term), sink);
        ask
    }

    /// Sends a message about a hub that expects no reply, or is one.
    pub fn send(
        &mut self,
        (to, slot): (NodeId, u16),
        message: impl FnOnce(HubId, Term) -> NodeMessage,
        sink: &mut impl Sink,
    ) {
        let &HubState { id: hub, term, .. } = self.hub(slot);
        self.peers.send(to, hub, message(hub, term), sink);
    }

    /// The numbers of the requests in flight for which `is_meant` is true, in the order in which they were sent.
    pub fn requests_where(&self, is_meant: impl Fn(&InFlight) -> bool) -> Vec<AskId> {
        self.requests.iter().filter(|(_, in_flight)| is_meant(in_flight)).map(|(&ask, _)| ask).collect()
    }

    pub fn take(&mut self, ask: AskId) -> Option<InFlight> {
        let in_flight = self.requests.remove(&ask)?;
        if let Request::Publish(_) = in_flight.what {
            let hub = self.hub_mut(in_flight.slot);
            hub.in_flight -= 1;
            if in_flight.is_to_former(hub) {
                hub.former -= 1;
            }
        }
        Some(in_flight)
    }

    /// Notifies the leader of a hub, if it is reachable, that nobody here is interested in a topic.
    pub fn send_no_interest(&mut self, slot: u16, names: Names, known: Position, sink: &mut impl Sink) {
        let Some(to) = self.leader_of(slot) else { return };
        let (ask, count, start) = (AskId::NONE, 0, Start::Live);
        let message = |hub, term| NodeMessage::Interest { ask, hub, term, names, count, known, start };
        self.send((to, slot), message, sink);
    }

    /// Publishes in flight to the selected former leaders of a hub, in order of arrival.
    pub fn former_publishes(&self, slot: u16, is_meant: impl Fn(NodeId) -> bool) -> Vec<AskId> {
        let hub = self.hub(slot);
        self.requests_where(|it| {
            let is_publish = it.slot == slot && matches!(it.what, Request::Publish(_));
            is_publish && it.is_to_former(hub) && is_meant(it.to)
        })
    }

    /// The last seq that was due to a node before this one. Without an entry, all were due.
    pub fn was_due(&mut self, room: RoomHandle, place: u16, seq: Seq) -> Seq {
        let of_room = self.due.entry(room).or_default();
        match of_room.iter_mut().find(|(other, _)| *other == place) {
            Some((_, last)) => std::mem::replace(last, seq),
            None => {
                of_room.push((place, seq));
                Seq(seq.0 - 1)
            }
        }
    }

    /// Notes that all records up to a position were due to a node.
    pub fn set_due(&mut self, room: RoomHandle, place: u16, position: Position) {
        self.was_due(room, place, Seq(position.seq.0.max(1)));
        if let Some((_, last)) =
            self.due.get_mut(&room).and_then(|of_room| of_room.iter_mut().find(|(other, _)| *other == place))
        {
            *last = position.seq;
        }
    }
}

/// The number of a node's request to a hub; none: it expects no reply if it cannot be served.
pub fn ask_of(message: &NodeMessage) -> AskId {
    match *message {
        NodeMessage::Publish { ask, .. }
        | NodeMessage::Interest { ask, .. }
        | NodeMessage::CountAsk { ask, .. }
        | NodeMessage::Read { ask, .. }
        | NodeMessage::ReadHub { ask, .. } => ask,
        _ => AskId::NONE,
    }
}
