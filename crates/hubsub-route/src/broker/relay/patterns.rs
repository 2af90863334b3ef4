//! Every shard of every node holds the patterns of the whole cluster. Shard 0 represents its node: it numbers
//! the changes of the node's set, sends them to all nodes, and distributes the sets of other nodes to all
//! shards here.

use super::Broker;
use crate::Msg;
use crate::broker::unconfirmed::UnheldPattern;
use crate::relay::{PATTERNS_MAX, PatternChange};
use crate::{Answer, Sink};
use hubsub_message::{NodeMessage, PATTERNS};
use hubsub_types::names::{group_of, pattern_len};
use hubsub_types::{NodeId, ShardId};
use std::sync::Arc;

impl Broker {
    /// Whether all shards of this node hold the patterns of a node; valid on shard 0.
    pub fn holds_patterns_of(&self, node: NodeId) -> bool {
        let peer = self.relay.patterns.peers.get(&node);
        peer.is_some_and(|peer| peer.version.is_some() && peer.held() >= peer.version)
    }

    /// The number of a pattern's subscribers on this node has changed: shard 0 notifies all nodes. A waiting
    /// subscription is answered when all of them hold the pattern; true if they do.
    pub(crate) fn pattern_changed(
        &mut self,
        source: &Arc<[u8]>,
        waiting: Option<(ShardId, u32)>,
        sink: &mut impl Sink,
    ) -> bool {
        let shards = self.shards;
        let Broker { relay, patterns, groups, .. } = self;
        let held = if group_of(source).is_some() { &groups.table } else { &*patterns };
        relay.patterns.version += 1;
        if relay.patterns.peers.is_empty() {
            return true;
        }
        let version = relay.patterns.version;
        let count = held.find(source).map_or(0, |id| held.get(id).counts.of_shards(shards));
        let mut nodes: Vec<NodeId> = relay.patterns.peers.keys().copied().collect();
        nodes.sort_unstable();
        for node in nodes {
            let message = NodeMessage::Pattern { version, count, pattern: Arc::clone(source) };
            relay.peers.send(node, PATTERNS, message, sink);
        }
        relay.patterns.waiting.extend(waiting.map(|(shard, id)| (version, shard, id)));
        false
    }

    pub(crate) fn send_patterns(&mut self, node: NodeId, sink: &mut impl Sink) {
        let shards = self.shards;
        let Broker { relay, patterns, groups, .. } = self;
        relay.patterns.up(node, shards);
        let version = relay.patterns.version;
        let own = patterns.iter().chain(groups.table.iter());
        let own = own.map(|held| (Arc::clone(&held.source), held.counts.of_shards(shards)));
        let own: Vec<_> = own.filter(|(_, count)| *count > 0).collect();
        let begin = NodeMessage::PatternsBegin { version, patterns: own.len() as u32 };
        relay.peers.send(node, PATTERNS, begin, sink);
        for (pattern, count) in own {
            relay.peers.send(node, PATTERNS, NodeMessage::PatternsEntry { count, pattern }, sink);
        }
        relay.peers.send(node, PATTERNS, NodeMessage::PatternsEnd { version }, sink);
    }

    /// A node's link for patterns has ended: removes the node's patterns, and no longer waits for it.
    pub(crate) fn lose_patterns(&mut self, node: NodeId, sink: &mut impl Sink) {
        let Some(peer) = self.relay.patterns.peers.remove(&node) else { return };
        let session = peer.session;
        let change =
            PatternChange { node, session, is_whole: true, is_lost: true, ..PatternChange::default() };
        self.spread_patterns(change, sink);
        self.patterns_were_held(sink);
    }

    pub(crate) fn pattern_message(&mut self, from: NodeId, message: NodeMessage, sink: &mut impl Sink) {
        let bytes_max = self.limits.pattern_bytes_max;
        let Some(peer) = self.relay.patterns.peers.get_mut(&from) else { return };
        let of_node = PatternChange { node: from, session: peer.session, ..PatternChange::default() };
        let change = match message {
            NodeMessage::PatternsHeld { version } => {
                peer.holds = peer.holds.max(version);
                return self.patterns_were_held(sink);
            }
            NodeMessage::PatternsBegin { version, patterns } => {
                if patterns <= PATTERNS_MAX {
                    peer.coming = Some((version, patterns, Vec::new()));
                }
                return;
            }
            NodeMessage::PatternsEntry { count, pattern } => {
                if let Some((_, announced, came)) = &mut peer.coming
                    && came.len() < *announced as usize
                    && pattern_len(&pattern) as u64 <= bytes_max
                {
                    came.push((pattern, count));
                }
                return;
            }
            NodeMessage::PatternsEnd { version } => {
                let Some((begun, _, came)) = peer.coming.take().filter(|coming| coming.0 == version) else {
                    return;
                };
                peer.version = Some(begun);
                PatternChange { version, is_whole: true, patterns: came.into(), ..of_node }
            }
            NodeMessage::Pattern { version, count, pattern } => {
                if peer.version.is_none_or(|held| version <= held) || pattern_len(&pattern) as u64 > bytes_max
                {
                    return;
                }
                peer.version = Some(version);
                let patterns = Arc::new([(pattern, count)]);
                PatternChange { version, patterns, ..of_node }
            }
            _ => return,
        };
        self.spread_patterns(change, sink);
    }

    /// Distributes a change of a node's set to all shards of this node.
    fn spread_patterns(&mut self, change: PatternChange, sink: &mut impl Sink) {
        for shard in (1..self.shards).map(ShardId) {
            sink.send(shard, Msg::NodePatterns(Box::new(change.clone())));
        }
        self.hold_patterns(&change, sink);
        let (own, PatternChange { node, session, version, .. }) = (self.shard, change);
        self.shard_holds(own, node, session, version, sink);
    }

    pub(crate) fn hold_patterns(&mut self, change: &PatternChange, sink: &mut impl Sink) {
        if self.relay.is_alone {
            // This shard learns of the cluster in a moment, and of its nodes after that.
            return;
        }
        let shards = self.shards;
        let Broker { relay, patterns, groups, .. } = self;
        let mut held = (patterns, &mut groups.table);
        if change.is_whole {
            relay.peers.clear_patterns(change.node, shards, &mut held);
        }
        if change.is_whole
            && !change.patterns.is_empty()
            && let Some(place) = relay.peers.place(change.node)
        {
            // Records that match its patterns passed while these were not held: the node has to detect that.
            for of_room in relay.due.values_mut() {
                of_room.retain(|(other, _)| usize::from(*other) != place);
            }
        }
        for (source, count) in change.patterns.iter() {
            relay.peers.set_pattern(change.node, source, *count, shards, &mut held);
        }
        self.watch_by(change, sink);
    }

    pub(crate) fn shard_holds(
        &mut self,
        shard: ShardId,
        node: NodeId,
        session: u64,
        version: u64,
        sink: &mut impl Sink,
    ) {
        let relay = &mut self.relay;
        let Some(peer) = relay.patterns.peers.get_mut(&node).filter(|peer| peer.session == session) else {
            return;
        };
        peer.held[usize::from(shard.0)] = Some(version);
        let held = peer.held();
        if held > peer.told
            && let Some(version) = held
        {
            peer.told = held;
            relay.peers.send(node, PATTERNS, NodeMessage::PatternsHeld { version }, sink);
        }
    }

    fn patterns_were_held(&mut self, sink: &mut impl Sink) {
        loop {
            let own = self.shard;
            let sets = &mut self.relay.patterns;
            let held = sets.held_by_all();
            let Some(&(_, shard, id)) = sets.waiting.front().filter(|waiting| waiting.0 <= held) else {
                return;
            };
            sets.waiting.pop_front();
            if shard == own {
                self.pattern_held(id, sink);
            } else {
                sink.send(shard, Msg::PatternHeld(id));
            }
        }
    }

    /// One holder of a new pattern has confirmed it.
    pub(crate) fn pattern_held(&mut self, id: u32, sink: &mut impl Sink) {
        let Some((waiting, is_live)) = self.unconfirmed.pattern_held(id) else { return };
        let UnheldPattern { asker, conn, pattern, .. } = waiting;
        if is_live {
            self.patterns.get_mut(pattern).subs.insert(conn.index);
            self.cursors.hubs.changed(conn.index);
        }
        sink.answer(asker, Answer::PatternHeld);
    }
}
