//! Classes that change while the node runs. If the new rules change a room's class, or the room of a topic,
//! the room begins a new epoch at its new place: homes drop their state of it, shards subscribe again there,
//! and waiting publishes go there. The control plane never lets this happen to a room of a class with a log.
//!
//! Invariant: all shards of a node have the new classes before they handle a message that another shard sent
//! with them (`hubsub-node`, `classes.rs`). Another node may still have old classes, and gets `NotMine` then.

use super::{Broker, Turn};
use crate::{Asker, Hubs, Now, Sink};
use hubsub_types::ClassTable;
use std::sync::Arc;

impl Broker {
    /// Applies classes made from the previous ones ([`ClassTable::changed`]), with hubs of the new ones.
    pub fn set_classes(&mut self, classes: Arc<ClassTable>, hubs: Arc<Hubs>, now: Now, sink: &mut impl Sink) {
        let turn = &mut Turn { now, sink };
        if self.relay.is_alone {
            return;
        }
        let rooms = self.rooms.elsewhere(&classes);
        for &room in &rooms {
            let last = self.rooms.position(room);
            for key in self.rooms.topics_of(room).into_iter().filter(|_| last.epoch.0 != 0) {
                self.report_epoch_end(&key, last, turn.sink);
            }
        }
        let before = std::mem::replace(&mut self.classes, Arc::clone(&classes));
        self.rooms.set_classes(Arc::clone(&classes), Arc::clone(&hubs), self.shard);
        let topics = self.topics.set_classes(classes, hubs);
        self.count_anew(&before);
        let known = self.relay.hubs.len();
        self.relay.add_hubs(self.rooms.hub_ids().skip(known));

        let mut waiting = Vec::new();
        for room in rooms {
            waiting.extend(self.close_room(room, false, turn));
        }
        // A topic without a home has no interest to remove.
        for &id in &topics {
            self.resubscribe_elsewhere(id, turn);
        }
        self.return_attaches(waiting, turn);
        for slot in 0..known as u16 {
            self.forward_elsewhere(slot, turn);
        }
        self.add_new_hubs();
    }

    /// Publishes that wait for a hub, and whose rooms are in another hub now, go there.
    fn forward_elsewhere(&mut self, slot: u16, turn: &mut Turn<impl Sink>) {
        let (mut moved, mut stays) = (Vec::new(), Vec::new());
        while let Some(parked) = self.relay.unpark(slot) {
            let id = self.topics.intern(parked.record.namespace, parked.record.topic());
            if self.slot_of_topic(id) == Some(slot) { &mut stays } else { &mut moved }.push(parked);
        }
        stays.into_iter().for_each(|parked| self.relay.park(slot, parked));
        self.relay.settle(slot);
        for parked in moved {
            match parked.ticket.asker {
                // The requesting node looks up the leader again.
                Asker::Node { node, ask, .. } => self.relay.not_mine(node, ask, slot, turn.sink),
                _ => self.lead_elsewhere(parked.ticket, parked.record, turn),
            }
        }
    }
}
