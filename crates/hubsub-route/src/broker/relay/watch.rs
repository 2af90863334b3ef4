//! Followers by pattern alone have no interest registered. So a hub's leader notifies each node from when on
//! it sends the records that match its patterns, and how many were due before; a node that received fewer
//! reports to its followers by pattern that records of the hub may be missing.

use super::{Broker, Turn};
use crate::counts::NODES_MAX;
use crate::hubread::END;
use crate::relay::{Buffered, Leader, PatternChange, Watchers};
use crate::rooms::RoomHandle;
use crate::topics::TopicId;
use crate::{Attached, Msg, Sink};
use hubsub_message::NodeMessage;
use hubsub_types::class::ClassIndex;
use hubsub_types::{NodeId, Position, Seq};

impl Broker {
    // -- the leader's side --

    pub(crate) fn count_commit(&mut self, id: TopicId) {
        if let Some(slot) = self.slot_of_topic(id) {
            let offset = self.rooms.committed_of(slot);
            self.relay.hub_mut(slot).watchers.commit(offset);
        }
    }

    /// This node begins to lead a hub, or leads it in another term: notifies nodes whose patterns are held.
    pub(crate) fn watch_hub(&mut self, slot: u16, begins: bool, sink: &mut impl Sink) {
        if begins {
            let watchers = Watchers::new(self.rooms.fresh_epoch(), self.rooms.committed_of(slot));
            self.watch_as(slot, watchers, sink);
        }
        self.watch_all(slot, sink);
    }

    pub(crate) fn watch_new_epoch(&mut self, slot: u16, sink: &mut impl Sink) {
        let watchers = Watchers::anew(self.rooms.fresh_epoch(), self.rooms.committed_of(slot));
        self.watch_as(slot, watchers, sink);
        self.watch_all(slot, sink);
    }

    fn watch_as(&mut self, slot: u16, watchers: Watchers, sink: &mut impl Sink) {
        let hub = self.relay.hub_mut(slot);
        let (life, due) = (watchers.life, watchers.commits());
        hub.watchers = watchers;
        if !hub.watched.live(life, hub.term, due) {
            self.report_lack(slot, sink);
        }
    }

    fn watch_all(&mut self, slot: u16, sink: &mut impl Sink) {
        let nodes: Vec<NodeId> = self.relay.holding.keys().copied().collect();
        nodes.into_iter().for_each(|node| self.watch(slot, node, sink));
    }

    /// From now on a node gets all records that match its patterns, if these are held and the link is up.
    pub(crate) fn watch(&mut self, slot: u16, node: NodeId, sink: &mut impl Sink) {
        let relay = &mut self.relay;
        let (hub, term) = (relay.hub(slot).id, relay.hub(slot).term);
        let is_held = relay.holding.contains_key(&node);
        if !is_held || relay.hub(slot).leader != Leader::Me || !relay.peers.reaches(node, hub) {
            return;
        }
        let watchers = &mut relay.hub_mut(slot).watchers;
        let (epoch, expected) = (watchers.life, watchers.begin(node));
        relay.peers.send(node, hub, NodeMessage::PatternsLive { hub, term, epoch, expected }, sink);
    }

    /// A node's patterns are held in this version, or not any more.
    pub(crate) fn watch_by(&mut self, change: &PatternChange, sink: &mut impl Sink) {
        let (node, version) = (change.node, change.version);
        let relay = &mut self.relay;
        if change.is_lost {
            if let Some(held) = relay.holding.remove(&node) {
                relay.held_before.insert(node, held);
            }
            if relay.held_before.len() > usize::from(NODES_MAX) {
                relay.held_before.pop_first();
            }
            return relay.hubs.iter_mut().for_each(|hub| hub.watchers.end(node));
        }
        relay.holding.insert(node, version);
        if !change.is_whole {
            return;
        }
        // A hub may have waited for these patterns.
        relay.is_held_up = true;
        if relay.held_before.remove(&node) != Some(version) {
            relay.hubs.iter_mut().for_each(|hub| hub.watchers.doubt(node));
        }
        if change.patterns.is_empty() {
            relay.hubs.iter_mut().for_each(|hub| hub.watchers.meet(node));
        }
        for slot in 0..self.relay.hubs.len() as u16 {
            self.watch(slot, node, sink);
        }
    }

    // -- the follower's side --

    /// Notes whether records of a hub's leader were skipped: reported at the end of the turn.
    pub(crate) fn lack_if(&mut self, slot: u16, lacks: bool) {
        self.relay.hub_mut(slot).watched.lacks |= lacks;
    }

    /// A room no longer waits for a hole; buffered records are skipped.
    pub(crate) fn drop_resume(&mut self, room: RoomHandle) {
        let Some(lacks) = self.relay.holes.remove(room) else { return };
        match self.rooms.slot_of_room(room) {
            Some(slot) => self.lack_if(slot, lacks),
            // The room was removed meanwhile.
            None => (0..self.relay.hubs.len() as u16).for_each(|slot| self.lack_if(slot, lacks)),
        }
    }

    /// A room is in another epoch: the followed one cannot be read, the current one is due from its start.
    pub(crate) fn begin_unseen(&mut self, room: RoomHandle, there: Position, turn: &mut Turn<impl Sink>) {
        self.begin_epoch(room, Position { seq: Seq(0), ..there }, turn);
        let resume = self.relay.holes.rooms.entry(room).or_default();
        (resume.pending, resume.upto, resume.read) = (resume.pending.max(1), Seq(0), None);
        let is_over =
            |held: &Buffered| matches!(held, Buffered::Deliver(_, it) if it.position.epoch != there.epoch);
        let has_over = self.relay.holes.drop_messages(room, is_over);
        // A confirmation in the previous epoch would lead back there: it is valid at this epoch's position.
        for held in self.relay.holes.rooms.get_mut(&room).into_iter().flat_map(|resume| &mut resume.held) {
            if let Buffered::Attached(_, _, attached) = held
                && attached.position.epoch != there.epoch
            {
                *attached = Attached { position: there, replay_from: None, recovered: false };
            }
        }
        if let Some(slot) = self.rooms.slot_of_room(room) {
            self.lack_if(slot, has_over);
        }
    }

    pub(crate) fn report_lacks(&mut self, sink: &mut impl Sink) {
        for slot in 0..self.relay.hubs.len() as u16 {
            if std::mem::take(&mut self.relay.hub_mut(slot).watched.lacks) {
                self.report_lack(slot, sink);
            }
        }
    }

    /// Followers by pattern on this node may lack records of a hub.
    pub(crate) fn report_lack(&mut self, slot: u16, sink: &mut impl Sink) {
        if self.patterns.is_empty() {
            return;
        }
        self.lack_of_hub(slot, END, sink);
        let class = self.relay.hub(slot).class;
        for shard in self.other_shards() {
            sink.send(shard, Msg::Lack(class));
        }
        self.lack_here(class, sink);
    }

    /// As `report_lack`, on this shard. The gap names the pattern, as topics and records are unknown.
    pub(crate) fn lack_here(&mut self, class: ClassIndex, sink: &mut impl Sink) {
        let class = self.classes.get(class);
        let (on_gap, is_logged) = (class.on_gap, class.durability.is_logged());
        for pattern in self.patterns.iter() {
            for &conn in pattern.subs.as_slice() {
                let id = self.patterns.find(&pattern.source);
                // A subscriber that follows the hub reads the missing records there.
                if is_logged && id.is_some_and(|id| self.cursors.hubs.covers(conn, id)) {
                    continue;
                }
                sink.gap(conn, &pattern.source, Position::default(), Position::default(), on_gap);
            }
        }
    }
}
