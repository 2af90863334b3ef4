//! Rooms with explicit placement, in some seeds for all classes without a log: nodes look up rooms at the
//! controller, which gives each a hub and a room record. Nodes learn of room records late, and these may
//! overtake the controller's answers. Room records of unused rooms are removed, after the leader has given
//! the room up.
//!
//! The rules are those of docs/protocol/moves.md; a [`Flaw`] breaks one of them.

use crate::net::{Mail, Net, Step};
use hubsub_route::places::Change;
use hubsub_types::class::ClassIndex;
use hubsub_types::{HubId, ShardId, Term};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// An injected violation of a rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Flaw {
    #[default]
    None,
    /// Room records are removed without asking the leader.
    Unasked,
    /// A leader that gave a room up takes it back by its own view, while its room record is removed.
    OwnView,
    /// A room may get any hub although some nodes do not know that its room record was removed.
    AnyHub,
}

type Room = Box<[u8]>;

#[derive(Debug, Default)]
pub struct View {
    /// Known room records: the index of the hub.
    known: BTreeMap<Room, u16>,
    /// Room records that it has not received yet; none: the room record was removed.
    records: VecDeque<(ClassIndex, Room, Option<u16>)>,
    pub asks: VecDeque<(ClassIndex, Room, bool)>,
    /// Answers in flight, each with the number of removals that the node knew when it asked.
    answers: VecDeque<(ClassIndex, Room, bool, Option<u16>, u64)>,
    /// Rooms that it gave up: only the controller knows where they are.
    given_up: BTreeSet<Room>,
    /// Number of known removals, and the last of each room.
    removals: u64,
    removed: BTreeMap<Room, u64>,
}

impl View {
    pub(crate) fn steps(&self, node: u16) -> impl Iterator<Item = Step> {
        let record = (!self.records.is_empty()).then_some(Step::Record(node));
        let ask = (!self.asks.is_empty()).then_some(Step::Ask(node));
        let answer = (!self.answers.is_empty()).then_some(Step::Answer(node));
        [record, ask, answer].into_iter().flatten()
    }

    fn is_asking(&self, room: &[u8]) -> bool {
        self.asks.iter().any(|ask| *ask.1 == *room) || self.answers.iter().any(|it| *it.1 == *room)
    }
}

/// A room whose room record is being removed.
#[derive(Debug)]
pub struct Forgetting {
    class: ClassIndex,
    room: Room,
    hub: (HubId, u64),
    leader: u16,
    is_given_up: bool,
}

#[derive(Debug, Default)]
pub struct Records {
    /// Whether rooms are placed explicitly.
    pub is_on: bool,
    pub flaw: Flaw,
    /// At most one at a time.
    pub forgetting: Option<Forgetting>,
    /// Number of removed room records, and of rooms that were in use instead.
    pub forgotten: (u64, u64),
    places: BTreeMap<Room, (ClassIndex, u16)>,
    /// Rooms with removed room records: the hub, and the nodes that do not know of the removal.
    removed: BTreeMap<Room, (u16, BTreeSet<u16>)>,
}

impl Records {
    pub fn new(seed: u64) -> Records {
        Records { is_on: seed % 5 < 2, ..Records::default() }
    }

    /// The hub of a room with a room record.
    pub fn place(&self, room: &[u8]) -> Option<u16> {
        self.places.get(room).map(|&(_, index)| index)
    }
}

impl Net {
    /// A node's control plane receives a room record.
    pub(crate) fn hear_of_record(&mut self, node: u16) {
        let view = &mut self.nodes[usize::from(node)].view;
        let Some((class, room, index)) = view.records.pop_front() else { return };
        if let Some(index) = index {
            view.known.insert(room, index);
            return;
        }
        view.known.remove(&room);
        view.given_up.remove(&room);
        view.removals += 1;
        view.removed.insert(room.clone(), view.removals);
        if let Some((_, unheard)) = self.records.removed.get_mut(&room) {
            unheard.remove(&node);
        }
        self.tell_place(node, class, room, None);
    }

    /// The control plane handles a lookup from its own view, or asks the controller.
    pub(crate) fn ask_for_room(&mut self, node: u16) {
        let view = &mut self.nodes[usize::from(node)].view;
        let Some((class, room, makes)) = view.asks.pop_front() else { return };
        if let Some(&index) = view.known.get(&room).filter(|_| !view.given_up.contains(&room)) {
            return self.tell_place(node, class, room, Some(index));
        }
        let asked = view.removals;
        if self.records.forgetting.as_ref().is_some_and(|it| it.room == room) {
            // Retry after the decision.
            self.nodes[usize::from(node)].view.asks.push_back((class, room, makes));
            return;
        }
        let mut index = self.records.place(&room);
        if index.is_none() && makes {
            index = Some(self.place_room(class, &room));
        }
        self.nodes[usize::from(node)].view.answers.push_back((class, room, makes, index, asked));
    }

    /// The controller assigns a hub to a room: the previous one while some node may not know of the removal.
    fn place_room(&mut self, class: ClassIndex, room: &[u8]) -> u16 {
        let hubs = self.nodes[0].hubs.placement.hubs(class);
        let any = self.rng.below(usize::from(hubs)) as u16;
        let is_late = |(_, unheard): &&(u16, BTreeSet<u16>)| !unheard.is_empty();
        let late = self.records.removed.get(room).filter(is_late).map(|&(index, _)| index);
        let index = late.filter(|_| self.records.flaw != Flaw::AnyHub).unwrap_or(any);
        self.records.places.insert(room.into(), (class, index));
        self.write_record(class, room, Some(index));
        index
    }

    fn write_record(&mut self, class: ClassIndex, room: &[u8], index: Option<u16>) {
        for node in &mut self.nodes {
            node.view.records.push_back((class, room.into(), index));
        }
    }

    /// A node receives the controller's answer. If it learned of a removal while the answer was in flight, it
    /// asks again.
    pub(crate) fn hear_answer(&mut self, node: u16) {
        let view = &mut self.nodes[usize::from(node)].view;
        let Some((class, room, makes, index, asked)) = view.answers.pop_front() else { return };
        if view.removed.get(&room).is_some_and(|&removal| removal > asked) {
            return view.asks.push_back((class, room, makes));
        }
        if let Some(index) = index {
            view.given_up.remove(&room);
            return self.tell_place(node, class, room, Some(index));
        }
        self.mail_all(node, || Mail::Absent(room.clone()));
    }

    fn tell_place(&mut self, node: u16, class: ClassIndex, room: Room, index: Option<u16>) {
        let at = &mut self.nodes[usize::from(node)];
        let change = at.hubs.placement.move_room(class, &room, index).expect("there are few rooms");
        self.tell_change(node, class, room, change);
    }

    pub(crate) fn tell_change(&mut self, node: u16, class: ClassIndex, room: Room, change: Change) {
        let placed: crate::moves::Placed = [(room, change)].into();
        self.mail_all(node, || Mail::Placed(class, Arc::clone(&placed)));
    }

    /// Mail from the control plane to all shards of a node.
    fn mail_all(&mut self, node: u16, mail: impl Fn() -> Mail) {
        let at = &mut self.nodes[usize::from(node)];
        for shard in 0..at.brokers.len() as u16 {
            at.mail.entry((crate::moves::CONTROL, shard)).or_default().push_back(mail());
        }
    }

    // -- removal of room records --

    /// The controller chooses a room with a room record.
    pub(crate) fn begin_to_forget(&mut self) {
        if self.records.forgetting.is_some() || self.records.places.is_empty() {
            return;
        }
        let at = self.rng.below(self.records.places.len());
        let (room, &(class, index)) = self.records.places.iter().nth(at).expect("there are so many");
        let id = self.nodes[0].hubs.placement.id(class, index).expect("records name hubs");
        let Some(row) = self.hubs.iter().find(|row| row.id == id) else { return };
        let Some(leader) = row.leader else { return };
        let (room, is_given_up) = (room.clone(), self.records.flaw == Flaw::Unasked);
        self.records.forgetting = Some(Forgetting { class, room, hub: (id, row.term), leader, is_given_up });
    }

    /// The leader gives the room up, or refuses; then the room record is removed if the node is still the
    /// leader.
    pub(crate) fn go_on_forgetting(&mut self) {
        let Some(mut it) = self.records.forgetting.take() else { return };
        if it.is_given_up {
            return self.forget(it);
        }
        let view = &mut self.nodes[usize::from(it.leader)].view;
        if view.is_asking(&it.room) {
            self.records.forgotten.1 += 1;
            return;
        }
        let shards = self.nodes[usize::from(it.leader)].brokers.len() as u16;
        let home = hubsub_message::home(it.hub.0, shards).0;
        let (hub, rooms) = ((it.hub.0, Term(it.hub.1)), vec![it.room.clone()]);
        let given_up = self.act(it.leader, home, |broker, world, _| broker.give_up_rooms(hub, rooms, world));
        let Some((_, change)) = given_up.1.into_iter().next() else {
            self.records.forgotten.1 += 1;
            return;
        };
        self.tell_change(it.leader, it.class, it.room.clone(), change);
        if self.records.flaw != Flaw::OwnView {
            self.nodes[usize::from(it.leader)].view.given_up.insert(it.room.clone());
        }
        it.is_given_up = true;
        self.records.forgetting = Some(it);
    }

    fn forget(&mut self, it: Forgetting) {
        let row = self.hubs.iter().find(|row| row.id == it.hub.0).expect("hubs stay");
        if row.term != it.hub.1 {
            return;
        }
        for (number, node) in self.nodes.iter().enumerate() {
            let home = hubsub_message::home(it.hub.0, node.brokers.len() as u16).0;
            let broker = &node.brokers[usize::from(home)];
            let room =
                broker.rooms.find(&it.room).and_then(|room| broker.rooms.info(room, ShardId(home), self.now));
            let is_used = room.is_some_and(|room| room.subscribers > 0 || room.history > 0);
            if broker.leads(it.hub.0).is_some() && is_used {
                let room = String::from_utf8_lossy(&it.room).into_owned();
                self.model.fail(format!("{room} is forgotten, and node {number} has a use for it"));
                return;
            }
        }
        let index = self.records.places.remove(&it.room).expect("it had a record").1;
        let unheard = (0..self.nodes.len() as u16).collect();
        self.records.removed.insert(it.room.clone(), (index, unheard));
        self.records.forgotten.0 += 1;
        self.write_record(it.class, &it.room, None);
    }

    /// Checks that the leaders of two hubs never have the same room.
    pub(crate) fn check_places(&mut self) {
        if !self.records.is_on {
            return;
        }
        let mut hubs: BTreeMap<&str, BTreeSet<u16>> = BTreeMap::new();
        for node in &self.nodes {
            for room in ["e:a", "e:b", "h:a", "h:b"] {
                let (class, index) = node.brokers[0].topics.place(room.as_bytes());
                let Some(hub) = node.brokers[0].topics.hub_id(class, index) else { continue };
                let home = hubsub_message::home(hub, node.brokers.len() as u16).0;
                if node.brokers[usize::from(home)].leads(hub).is_some() {
                    hubs.entry(room).or_default().insert(index);
                }
            }
        }
        if let Some((room, hubs)) = hubs.into_iter().find(|(_, hubs)| hubs.len() > 1) {
            self.model.fail(format!("leaders of the hubs {hubs:?} have {room}"));
        }
    }
}
