//! Which hubs the cluster has and who leads them, as the control plane says: from names and rows to what
//! brokers are told.
//!
//! It owns the rows as they were told last, and what each shard was told of them. Classes come before
//! hubs. Once all hubs of the classes that this node was started with are told, its shards join the cluster
//! with them: rooms have a home from then on. Later a class that is new counts from when all its hubs are told;
//! what else changes of classes does at once.
//!
//! Invariants: a hub's home shard alone is told who leads it, and only what has changed. This process is a
//! leader where the row names it *and* its incarnation: a process that was started again does not lead
//! the term of the one before. A row of an earlier term than the one before changes nothing.

use crate::classes::ClassesNow;
use crate::control::{Control, Level};
use crate::early::{EarlyRooms, Placed};
use crate::inbox::Inbox;
use crate::link::Board;
use crate::mail::Mail;
use crate::room_changes::RoomChanges;
use hubsub_route::places::{Change, Places};
use hubsub_route::relay::message::home;
use hubsub_route::{Cluster, Hubs, Leader, RelayLimits};
use hubsub_types::class::ClassIndex;
use hubsub_types::{Class, ClassTable, ErrorCode, HubId, ProducerId, Term};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Bits of an incarnation's producer ids that number its shards.
const SHARD_BITS: u32 = 8;

/// Those ids have this bit, so that they are none that a client chose, which are small.
const OF_SHARDS: u64 = 1 << 63;

/// A class, as the control plane tells it.
#[derive(Clone, Debug)]
pub struct ClassRow {
    /// What it is.
    pub class: Class,
    /// One more with each change of it.
    pub version: u64,
    /// How many hubs it has in the cluster, for good.
    pub hubs: u16,
    /// Whether its rooms are where their names say. Else they are asked for.
    pub is_ring: bool,
}

/// A hub, likewise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HubRow {
    /// Its id, from 1.
    pub hub: HubId,
    /// Name of its class.
    pub class: Box<str>,
    /// Which of the class's hubs it is.
    pub index: u16,
    /// Of its leader, from 1.
    pub term: Term,
    /// Name and incarnation of that; none: nobody leads it.
    pub leader: Option<(Box<str>, u64)>,
}

/// What shards are told of routes.
pub enum RouteMail {
    /// The node is of a cluster, with the hubs that it knows now.
    Join,
    /// Classes have changed.
    Classes,
    /// To the home of these hubs: who leads them.
    Leaders(Vec<(HubId, Term, Leader)>),
    /// To the home of these hubs: whether this node acts as their leader without a lead.
    Serves(Vec<(HubId, bool)>),
    /// The table has these rooms of a class, or has them no more, and what that changed.
    Rooms(ClassIndex, Arc<[(Box<[u8]>, Change)]>),
    /// These rooms get no place, for this reason.
    Refused(Arc<[Box<[u8]>]>, ErrorCode),
    /// These rooms have no place, and were asked for by who wants none.
    Absent(Arc<[Box<[u8]>]>),
    /// To the home of a hub: which of these rooms does nobody use?
    Unused(UnusedRooms),
    /// A shard to the first one: where is this room? Whether it gets a place if it has none.
    Miss(ClassIndex, Box<[u8]>, bool),
}

/// A question about rooms that nobody may use any more.
pub struct UnusedRooms {
    /// Of the question: the answer is an event with it.
    pub ticket: u64,
    /// Their hub, and the term in which this process leads it.
    pub of: (HubId, Term),
    /// Their names.
    pub rooms: Vec<Box<[u8]>>,
    /// Whether this process gives up those that nobody uses: no shard has a place for them then.
    pub gives_up: bool,
    /// By which all shards are told before the answer.
    pub changes: Arc<RoomChanges>,
}

/// See the module.
pub struct Routes {
    inboxes: Arc<[Inbox]>,
    changes: Arc<RoomChanges>,
    control: Arc<Control>,
    board: Arc<Board>,
    classes: Arc<ClassesNow>,
    /// Rooms whose place is not known here, as too many are.
    left_out: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// This process, once links have begun.
    me: Option<u64>,
    /// Other processes that are registered: the incarnation of each.
    registered: HashMap<Box<str>, u64>,
    /// All classes as they were told, in order of precedence.
    classes: Vec<ClassRow>,
    /// Names and versions of those that count, likewise.
    counted: Vec<(String, u64)>,
    /// The ids of the hubs of each class that counts, by its index.
    ids: Vec<Vec<HubId>>,
    rows: BTreeMap<HubId, HubRow>,
    /// What home shards were told.
    told: BTreeMap<HubId, (Term, Leader)>,
    /// Hubs that they serve without a lead.
    served: BTreeSet<HubId>,
    /// Rooms that were told before their class counted.
    early: EarlyRooms,
    is_joined: bool,
}

impl Routes {
    /// Of a node that was started with these classes.
    pub(crate) fn new(
        inboxes: Arc<[Inbox]>,
        control: Arc<Control>,
        board: Arc<Board>,
        classes: Arc<ClassesNow>,
    ) -> Routes {
        let changes = Arc::new(RoomChanges::new(Arc::clone(&inboxes)));
        let (left_out, state) = (AtomicU64::new(0), Mutex::default());
        Routes { inboxes, changes, control, board, classes, left_out, state }
    }

    /// Links begin: the node is of a cluster from now on, whose hubs are to be told.
    pub(crate) fn begin(&self, incarnation: u64) {
        let mut state = self.state();
        if state.me.replace(incarnation) == Some(incarnation) {
            return;
        }
        state.is_joined = false;
        state.told.clear();
        state.served.clear();
        state.ids = vec![Vec::new(); self.classes.get().classes().len()];
        self.join(&state, incarnation);
        self.tell(&mut state);
    }

    /// Who is registered.
    pub(crate) fn roster<'a>(&self, peers: impl Iterator<Item = (&'a str, u64)>) {
        let mut state = self.state();
        state.registered = peers.map(|(node, incarnation)| (node.into(), incarnation)).collect();
        self.tell(&mut state);
    }

    /// Sets all classes, in order of precedence; the last one matches all.
    ///
    /// # Errors
    /// A class has no hub, or another number of them or another placement than before, or the last does not match all.
    pub fn set_classes(&self, rows: Vec<ClassRow>) -> Result<(), String> {
        let mut state = self.state();
        if rows.last().is_none_or(|row| !row.class.matches.is_empty()) {
            return Err("the last class does not match all rooms".to_owned());
        }
        for row in &rows {
            let name = &row.class.name;
            if row.hubs == 0 || row.hubs == u16::MAX {
                return Err(format!("class {name} has {} hubs", row.hubs));
            }
            let known = state.classes.iter().find(|known| known.class.name == *name);
            if let Some(known) = known.filter(|known| known.hubs != row.hubs) {
                return Err(format!("class {name} has {} hubs, not {}", known.hubs, row.hubs));
            }
            if known.is_some_and(|known| known.is_ring != row.is_ring) {
                return Err(format!("class {name} keeps its placement"));
            }
        }
        state.classes = rows;
        self.tell(&mut state);
        Ok(())
    }

    /// Sets all hubs. Those of logged classes that this process leads are open.
    pub fn set_hubs(&self, rows: Vec<HubRow>) {
        let mut state = self.state();
        state.rows = rows.into_iter().map(|row| (row.hub, row)).collect();
        self.tell(&mut state);
    }

    /// Sets the hubs that this process serves without a lead, for its side of a network that is split: all of them.
    pub fn set_served(&self, hubs: BTreeSet<HubId>) {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.served, hubs);
        self.tell_served(before.symmetric_difference(&state.served), &state.served);
    }

    /// Tells homes of hubs whether they are served.
    fn tell_served<'a>(&self, hubs: impl Iterator<Item = &'a HubId>, served: &BTreeSet<HubId>) {
        let shards = self.inboxes.len() as u16;
        let mut news: Vec<Vec<(HubId, bool)>> = vec![Vec::new(); usize::from(shards)];
        for hub in hubs {
            news[usize::from(home(*hub, shards).0)].push((*hub, served.contains(hub)));
        }
        for (news, inbox) in news.into_iter().zip(self.inboxes.iter()) {
            if !news.is_empty() {
                inbox.send(&mut vec![Mail::Route(RouteMail::Serves(news))]);
            }
        }
    }

    /// Says where some rooms of a class are; none: where the ring has them, or it is to be asked again. A
    /// hub that is none of the class's changes nothing.
    ///
    /// # Errors
    /// The node does not know the class.
    pub fn set_rooms(&self, class: &str, rooms: Vec<(Box<[u8]>, Option<HubId>)>) -> Result<(), String> {
        let mut state = self.state();
        let counts = state.counted.iter().any(|(name, _)| name == class);
        if counts && let Some(index) = self.classes.get().index_of(class) {
            self.place(&state, index, rooms);
        } else if counts || state.classes.iter().any(|row| row.class.name == *class) {
            let left_out = state.early.keep(class, rooms);
            self.leave_out(class, left_out);
        } else {
            return Err(format!("the node does not know class {class}"));
        }
        Ok(())
    }

    /// Says that these rooms get no place: what waits for them is refused with this code.
    pub fn refuse_rooms(&self, rooms: Vec<Box<[u8]>>, code: ErrorCode) {
        let rooms: Arc<[Box<[u8]>]> = rooms.into();
        self.tell_all(|| RouteMail::Refused(Arc::clone(&rooms), code));
    }

    /// Asks which rooms of a hub that this process leads nobody uses, and perhaps gives these up; the answer is an event.
    pub fn ask_unused(&self, ticket: u64, of: (HubId, Term), rooms: Vec<Box<[u8]>>, gives_up: bool) {
        let home = home(of.0, self.inboxes.len() as u16);
        let changes = Arc::clone(&self.changes);
        let question = UnusedRooms { ticket, of, rooms, gives_up, changes };
        self.inboxes[usize::from(home.0)].send(&mut vec![Mail::Route(RouteMail::Unused(question))]);
    }

    /// Says that these rooms have no place, where none was wanted: questions about them are answered so.
    pub fn absent_rooms(&self, rooms: Vec<Box<[u8]>>) {
        let rooms: Arc<[Box<[u8]>]> = rooms.into();
        self.tell_all(|| RouteMail::Absent(Arc::clone(&rooms)));
    }

    fn place(&self, state: &State, class: ClassIndex, rooms: Vec<Placed>) {
        let (classes, hubs) = self.classes.both();
        let name = &*classes.get(class).name;
        let mut moves = Vec::with_capacity(rooms.len());
        for (room, hub) in rooms {
            let row = hub.and_then(|hub| state.rows.get(&hub)).filter(|row| *row.class == *name);
            if hub.is_some() && row.is_none() {
                let fields =
                    vec![("room_class", name.to_owned()), ("hub", format!("{:?}", hub.map(|hub| hub.0)))];
                self.control.log(Level::Error, "a room's hub is none of its class", fields);
                continue;
            }
            moves.push((room, row.map(|row| row.index)));
        }
        let mut left_out = 0;
        self.changes.make(|| {
            let mut news = Vec::with_capacity(moves.len());
            for (room, index) in moves {
                match hubs.placement.move_room(class, &room, index) {
                    Some(change) => news.push((room, change)),
                    None => left_out += 1,
                }
            }
            (class, news)
        });
        self.leave_out(name, left_out);
    }

    /// There is no room for so many rooms of a class.
    fn leave_out(&self, class: &str, count: usize) {
        if count > 0 {
            self.left_out.fetch_add(count as u64, Ordering::Relaxed);
            let fields = vec![("room_class", class.to_owned()), ("rooms", count.to_string())];
            self.control.log(Level::Warning, "too many rooms are known", fields);
        }
    }

    /// Rooms that it was told of since the start and did not keep, as too many are known.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    fn tell_all(&self, mail: impl Fn() -> RouteMail) {
        for inbox in self.inboxes.iter() {
            inbox.send(&mut vec![Mail::Route(mail())]);
        }
    }

    /// Room, name of its class, and the index of the hub that the ring has for it.
    pub fn of(&self, topic: &[u8]) -> (Vec<u8>, String, u16) {
        let (classes, hubs) = self.classes.both();
        let room = classes.room(topic);
        let class = classes.class_of_room(&room);
        let index = hubs.placement.ring_hub(class, &room);
        (room.into_owned(), classes.get(class).name.clone(), index)
    }

    /// The ids of a class's hubs in order of index, once all are told.
    fn ids_of(&self, state: &State, row: &ClassRow) -> Option<Vec<HubId>> {
        let mut ids = vec![HubId(0); usize::from(row.hubs)];
        for hub in state.rows.values().filter(|hub| *hub.class == *row.class.name) {
            let place = ids.get_mut(usize::from(hub.index))?;
            if place.0 != 0 {
                let fields = vec![("room_class", hub.class.to_string()), ("index", hub.index.to_string())];
                self.control.log(Level::Error, "two hubs have one place", fields);
                return None;
            }
            *place = hub.hub;
        }
        ids.iter().all(|id| id.0 != 0).then_some(ids)
    }

    /// Of all classes that the node was started with the ids of their hubs, once all are told; none of a class that
    /// the cluster does not have.
    fn whole(&self, state: &State) -> Option<Vec<Vec<HubId>>> {
        if state.classes.is_empty() {
            return None;
        }
        let classes = self.classes.get();
        let of_class = |class: &Class| {
            let row = state.classes.iter().find(|row| row.class.name == class.name);
            row.map_or(Some(Vec::new()), |row| self.ids_of(state, row))
        };
        classes.classes().iter().map(of_class).collect()
    }

    fn hubs(&self, state: &State, places: Places, me: u64) -> Arc<Hubs> {
        let before = self.classes.hubs();
        let producer = ProducerId(OF_SHARDS | (me << SHARD_BITS) | 1);
        let cluster = Cluster { producer, limits: RelayLimits::default() };
        let hubs = Hubs::with_places(self.inboxes.len() as u16, &state.ids, Arc::new(places), cluster);
        Arc::new(Hubs { tail_bytes_max: before.tail_bytes_max, ..hubs })
    }

    /// Whether rooms of each class are asked for, from the class of an index on.
    fn are_asked(&self, state: &State, classes: &ClassTable, from: usize) -> Vec<bool> {
        let is_asked =
            |class: &Class| state.classes.iter().any(|row| row.class.name == class.name && !row.is_ring);
        classes.classes()[from..].iter().map(is_asked).collect()
    }

    fn join(&self, state: &State, me: u64) {
        let asked = self.are_asked(state, &self.classes.get(), 0);
        let hubs = self.hubs(state, Places::new(asked.into_iter()), me);
        self.changes.begin_anew(|| {
            self.classes.set_hubs(hubs);
            self.tell_all(|| RouteMail::Join);
        });
    }

    /// Lets classes count that changed, or whose hubs are all known by now.
    fn see_classes(&self, state: &mut State, me: u64) {
        let before = self.classes.get();
        let mut news = Vec::new();
        let mut rows = Vec::with_capacity(state.classes.len());
        for row in &state.classes {
            if before.index_of(&row.class.name).is_none() {
                let Some(ids) = self.ids_of(state, row) else { continue };
                news.push(ids);
            }
            rows.push(row);
        }
        if rows.last().is_none_or(|row| !row.class.matches.is_empty()) {
            // The new default class comes first.
            return;
        }
        let counted: Vec<_> = rows.iter().map(|row| (row.class.name.clone(), row.version)).collect();
        if counted == state.counted {
            return;
        }
        let classes = before.changed(rows.into_iter().map(|row| row.class.clone()).collect());
        state.counted = counted;
        // Their homes did not know them until now.
        news.iter().flatten().for_each(|hub| _ = state.told.remove(hub));
        let served: Vec<HubId> =
            news.iter().flatten().filter(|hub| state.served.contains(hub)).copied().collect();
        state.ids.extend(news);
        let hubs = self.classes.hubs();
        let Some(places) = hubs.placement.places() else { return };
        let asked = self.are_asked(state, &classes, before.classes().len());
        let hubs = self.hubs(state, places.with(asked.into_iter()), me);
        self.classes.set(Arc::new(classes), hubs);
        self.tell_all(|| RouteMail::Classes);
        self.tell_served(served.iter(), &state.served);
        let counted: Vec<String> = state.counted.iter().map(|(name, _)| name.clone()).collect();
        for name in counted {
            let rooms = state.early.take(&name);
            if !rooms.is_empty()
                && let Some(index) = self.classes.get().index_of(&name)
            {
                self.place(state, index, rooms);
            }
        }
    }

    /// Tells shards what they do not know yet.
    fn tell(&self, state: &mut State) {
        let Some(me) = state.me else { return };
        if !state.is_joined {
            let Some(ids) = self.whole(state) else { return };
            (state.is_joined, state.ids) = (true, ids);
            self.join(state, me);
            self.tell_served(state.served.iter(), &state.served);
        }
        self.see_classes(state, me);
        let shards = self.inboxes.len() as u16;
        let mut news: Vec<Vec<(HubId, Term, Leader)>> = vec![Vec::new(); usize::from(shards)];
        for (&hub, row) in &state.rows {
            let leader = match &row.leader {
                None => Leader::None,
                Some((node, incarnation)) => match self.board.id_of(node) {
                    Some(Board::OWN) if *incarnation == me => Leader::Me,
                    None | Some(Board::OWN) => Leader::None,
                    Some(_) if state.registered.get(node).is_some_and(|now| now != incarnation) => {
                        Leader::None
                    }
                    Some(id) => Leader::Node(id),
                },
            };
            let known = state.told.get(&hub);
            if known.is_none_or(|&(term, before)| row.term > term || (row.term == term && leader != before)) {
                state.told.insert(hub, (row.term, leader));
                news[usize::from(home(hub, shards).0)].push((hub, row.term, leader));
            }
        }
        for (news, inbox) in news.into_iter().zip(self.inboxes.iter()) {
            if !news.is_empty() {
                inbox.send(&mut vec![Mail::Route(RouteMail::Leaders(news))]);
            }
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }
}
