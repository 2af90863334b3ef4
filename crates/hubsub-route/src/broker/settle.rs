//! Flush barriers ([`super::barrier`]): a reader of entries waits until all entries that are in flight now, on all
//! shards of all nodes, are written.

use super::Broker;
use super::barrier::Then;
use super::retaining::Waits;
use crate::{Answer, Asker, Msg, Sink};
use hubsub_message::{AskId, NodeMessage, PATTERNS};
use hubsub_types::{NodeId, ShardId};

impl Broker {
    /// Answers the asker with [`Answer::Settled`] when all entries in flight now, on all nodes, are written.
    pub fn settle(&mut self, asker: Asker, sink: &mut impl Sink) {
        self.begin_barrier(Then::Asker(asker), true, sink);
    }

    /// Another node requests a flush barrier of all shards of this node.
    pub(super) fn settle_for_node(&mut self, node: NodeId, ask: AskId, sink: &mut impl Sink) {
        self.begin_barrier(Then::Node(node, ask), false, sink);
    }

    fn begin_barrier(&mut self, then: Then, nodes: bool, sink: &mut impl Sink) {
        let number = self.barriers.begin(usize::from(self.shards), then);
        for shard in self.other_shards() {
            sink.send(shard, Msg::Settle(self.shard, number, nodes));
        }
        self.settle_for(self.shard, number, nodes, sink);
    }

    /// A flush barrier of this shard, for a shard. Shard 0 also requests the other nodes, if `nodes` is set.
    pub(super) fn settle_for(&mut self, from: ShardId, number: u32, nodes: bool, sink: &mut impl Sink) {
        let asks_nodes = nodes && self.shard == ShardId(0);
        let reached: Vec<NodeId> = self.relay.peers.reached(PATTERNS).filter(|_| asks_nodes).collect();
        let (from, number) = if reached.is_empty() {
            (from, number)
        } else {
            (self.shard, self.barriers.begin(1 + reached.len(), Then::Shard(from, number)))
        };
        for node in reached {
            let ask = self.relay.next_ask();
            self.barriers.asked.insert(ask, (node, number));
            self.relay.peers.send(node, PATTERNS, NodeMessage::SettleAsk { ask }, sink);
        }
        if let Some(waits) = self.retaining.wait(Waits::All(from, number)) {
            self.answer_waiting(waits, sink);
        }
    }

    pub(super) fn answer_barrier(&mut self, to: ShardId, number: u32, sink: &mut impl Sink) {
        if to == self.shard {
            self.settled(number, sink);
        } else {
            sink.send(to, Msg::Settled(number));
        }
    }

    pub(super) fn settled(&mut self, number: u32, sink: &mut impl Sink) {
        let Some(then) = self.barriers.reduce(number) else { return };
        match then {
            Then::Asker(asker) => sink.answer(asker, Answer::Settled),
            Then::Shard(shard, number) => self.answer_barrier(shard, number, sink),
            Then::Node(node, ask) => {
                self.relay.peers.send(node, PATTERNS, NodeMessage::Settled { ask }, sink);
            }
        }
    }

    pub(super) fn node_settled(&mut self, node: NodeId, ask: AskId, sink: &mut impl Sink) {
        if self.barriers.asked.get(&ask).is_some_and(|asked| asked.0 == node)
            && let Some((_, number)) = self.barriers.asked.remove(&ask)
        {
            self.settled(number, sink);
        }
    }

    /// A node's responses will not arrive: other nodes lead its hubs now, and nobody there is answered.
    pub(super) fn settled_without(&mut self, node: NodeId, sink: &mut impl Sink) {
        let asked = self.barriers.asked.iter().filter(|(_, asked)| asked.0 == node);
        let requests: Vec<AskId> = asked.map(|(&ask, _)| ask).collect();
        requests.into_iter().for_each(|ask| self.node_settled(node, ask, sink));
    }
}
