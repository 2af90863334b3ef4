//! Room moves: the controller puts a room into another hub of its class, or back, once or several times, and
//! nodes learn of it at different times. A node's table changes at once for all its shards; each shard is
//! notified later.

use crate::Sim;
use crate::net::Net;
use hubsub_route::places::Change;
use hubsub_types::class::ClassIndex;
use std::sync::Arc;

/// Sender of mail from the control plane.
pub const CONTROL: u16 = u16::MAX;

/// A room of a class, and its new hub; none: back to its hub on the ring.
pub type Move = (ClassIndex, Box<[u8]>, Option<u16>);

/// The notification that shards receive.
pub type Placed = Arc<[(Box<[u8]>, Change)]>;

impl Net {
    /// The controller moves a room. A node may learn only of the last of several moves.
    pub fn move_room(&mut self, room: &str) {
        let class = self.classes.class_of_room(room.as_bytes());
        let hubs = self.nodes[0].hubs.placement.hubs(class);
        let hub = (!self.rng.percent(20)).then(|| self.rng.below(usize::from(hubs)) as u16);
        for node in &mut self.nodes {
            let last = node.moves.iter_mut().rev().find(|(_, other, _)| **other == *room.as_bytes());
            match last {
                Some(last) if self.rng.percent(40) => last.2 = hub,
                _ => node.moves.push_back((class, room.as_bytes().into(), hub)),
            }
        }
    }

    /// A node learns of a move: its table first, then each shard by mail.
    pub fn hear_of_move(&mut self, node: u16) {
        let at = &mut self.nodes[usize::from(node)];
        let Some((class, room, hub)) = at.moves.pop_front() else { return };
        let change = at.hubs.placement.move_room(class, &room, hub).expect("there are few rooms");
        self.moves += u64::from(change.before != change.after);
        self.tell_change(node, class, room, change);
    }
}

impl Sim {
    /// Moves a room of a class without a log, often back and forth.
    pub(super) fn move_room_somewhere(&mut self) {
        let rooms = ["e:a", "e:b", "h:a", "h:b"];
        let room = rooms[self.net.rng.below(rooms.len())];
        for _ in 0..1 + self.net.rng.below(3) {
            self.net.move_room(room);
        }
    }
}
