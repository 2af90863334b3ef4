//! Which hubs the cluster has and who leads them, as the control plane says: from names and rows to what
//! brokers are told.
//!
//! It owns the rows as they were told last, and what each shard was told of them. Classes come before
//! hubs. Once all hubs of the classes that this node knows are told, its shards join the cluster with
//! them: rooms have a home from then on. A class that the node does not know is served by others alone,
//! until a start brings it.
//!
//! Invariants: a hub's home shard alone is told who leads it, and only what has changed. This process is a
//! leader where the row names it *and* its incarnation: a process that was started again does not lead
//! the term of the one before. A row of an earlier term than the one before changes nothing.

use crate::control::{Control, Level};
use crate::inbox::Inbox;
use crate::link::Board;
use crate::mail::Mail;
use hubsub_route::places::{Places, UNPLACED};
use hubsub_route::relay::message::home;
use hubsub_route::{Cluster, Hubs, Leader, RelayLimits};
use hubsub_types::class::ClassIndex;
use hubsub_types::{ClassTable, HubId, ProducerId, Term};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, RwLock};

/// Bits of an incarnation's producer ids that number its shards.
const SHARD_BITS: u32 = 8;

/// Those ids have this bit, so that they are none that a client chose, which are small.
const OF_SHARDS: u64 = 1 << 63;

/// A class, as the control plane tells it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClassRow {
    /// Its name.
    pub name: Box<str>,
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
    /// The node is of a cluster with these hubs.
    Join(Arc<Hubs>),
    /// To the home of these hubs: who leads them.
    Leaders(Vec<(HubId, Term, Leader)>),
    /// The table has these rooms of a class, or has them no more, and whether that moved them.
    Rooms(ClassIndex, Arc<[(Box<[u8]>, bool)]>),
    /// These rooms get no place now.
    Refused(Arc<[Box<[u8]>]>),
    /// A shard to the first one: where is this room?
    Miss(ClassIndex, Box<[u8]>),
}

/// The hubs of the node as they are known now.
pub struct HubsNow(RwLock<Arc<Hubs>>);

impl HubsNow {
    /// These.
    #[must_use]
    pub fn new(hubs: Arc<Hubs>) -> HubsNow {
        HubsNow(RwLock::new(hubs))
    }

    /// As they are now.
    #[must_use]
    pub fn get(&self) -> Arc<Hubs> {
        Arc::clone(&self.0.read().expect("nothing panics under this lock"))
    }

    fn set(&self, hubs: Arc<Hubs>) {
        *self.0.write().expect("nothing panics under this lock") = hubs;
    }
}

/// See the module.
pub struct Routes {
    inboxes: Arc<[Inbox]>,
    control: Arc<Control>,
    board: Arc<Board>,
    classes: Arc<ClassTable>,
    hubs: Arc<HubsNow>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// This process, once links have begun.
    me: Option<u64>,
    /// Other processes that are registered: the incarnation of each.
    registered: HashMap<Box<str>, u64>,
    /// Of each class that the node knows, what was told.
    classes: Vec<Option<ClassRow>>,
    rows: BTreeMap<HubId, HubRow>,
    /// What home shards were told.
    told: BTreeMap<HubId, (Term, Leader)>,
    /// Rooms that were told before all hubs were.
    early: Vec<(ClassIndex, Vec<Placed>)>,
    is_joined: bool,
}

/// A room, and the hub that has it; none: the ring says, or it is to be asked for.
type Placed = (Box<[u8]>, Option<HubId>);

impl Routes {
    /// Of a node that knows these classes.
    pub(crate) fn new(
        inboxes: Arc<[Inbox]>,
        control: Arc<Control>,
        board: Arc<Board>,
        classes: Arc<ClassTable>,
        hubs: Arc<HubsNow>,
    ) -> Routes {
        Routes { inboxes, control, board, classes, hubs, state: Mutex::default() }
    }

    /// Links begin: the node is of a cluster from now on, whose hubs are to be told.
    pub(crate) fn begin(&self, incarnation: u64) {
        let mut state = self.state();
        if state.me.replace(incarnation) == Some(incarnation) {
            return;
        }
        state.is_joined = false;
        state.told.clear();
        let none = vec![Vec::new(); self.classes.classes().len()];
        self.join(&state, &none, incarnation);
        self.tell(&mut state);
    }

    /// Who is registered.
    pub(crate) fn roster<'a>(&self, peers: impl Iterator<Item = (&'a str, u64)>) {
        let mut state = self.state();
        state.registered = peers.map(|(node, incarnation)| (node.into(), incarnation)).collect();
        self.tell(&mut state);
    }

    /// Sets all classes.
    ///
    /// # Errors
    /// A class has no hub, or another number of them than before.
    pub fn set_classes(&self, rows: Vec<ClassRow>) -> Result<(), String> {
        let mut state = self.state();
        state.classes.resize(self.classes.classes().len(), None);
        if let Some(row) = rows.iter().find(|row| row.hubs == 0 || row.hubs == u16::MAX) {
            return Err(format!("class {} has {} hubs", row.name, row.hubs));
        }
        for row in rows {
            let Some(class) = self.class(&row.name) else {
                let fields = vec![("room_class", row.name.to_string())];
                self.control.log(Level::Warning, "a class is served here after the next start", fields);
                continue;
            };
            match &mut state.classes[usize::from(class)] {
                Some(known) if known.hubs != row.hubs => {
                    return Err(format!("class {} has {} hubs, not {}", row.name, known.hubs, row.hubs));
                }
                place => *place = Some(row),
            }
        }
        self.tell(&mut state);
        Ok(())
    }

    /// Sets all hubs. Those of logged classes that this process leads are open.
    pub fn set_hubs(&self, rows: Vec<HubRow>) {
        let mut state = self.state();
        state.rows = rows.into_iter().map(|row| (row.hub, row)).collect();
        self.tell(&mut state);
    }

    /// Says where some rooms of a class are; none: where the ring has them, or it is to be asked again. A
    /// hub that is none of the class's changes nothing.
    ///
    /// # Errors
    /// The node does not know the class.
    pub fn set_rooms(&self, class: &str, rooms: Vec<(Box<[u8]>, Option<HubId>)>) -> Result<(), String> {
        let index = self.class(class).ok_or_else(|| format!("the node does not know class {class}"))?;
        let mut state = self.state();
        if state.is_joined {
            self.place(&state, index, rooms);
        } else {
            state.early.push((index, rooms));
        }
        Ok(())
    }

    /// Says that these rooms get no place now: what waits for them is refused.
    pub fn refuse_rooms(&self, rooms: Vec<Box<[u8]>>) {
        let rooms: Arc<[Box<[u8]>]> = rooms.into();
        self.tell_all(|| RouteMail::Refused(Arc::clone(&rooms)));
    }

    fn place(&self, state: &State, class: ClassIndex, rooms: Vec<Placed>) {
        let hubs = self.hubs.get();
        let Some(places) = hubs.placement.places() else { return };
        let name = &*self.classes.get(class).name;
        let mut news = Vec::with_capacity(rooms.len());
        for (room, hub) in rooms {
            let row = hub.and_then(|hub| state.rows.get(&hub)).filter(|row| *row.class == *name);
            if hub.is_some() && row.is_none() {
                let fields =
                    vec![("room_class", name.to_owned()), ("hub", format!("{:?}", hub.map(|hub| hub.0)))];
                self.control.log(Level::Error, "a room's hub is none of its class", fields);
                continue;
            }
            let before = hubs.placement.hub(class, &room);
            if places.set(class, &room, row.map(|row| row.index)).is_none() {
                self.control.log(
                    Level::Warning,
                    "too many rooms are known",
                    vec![("room_class", name.to_owned())],
                );
                continue;
            }
            let after = hubs.placement.hub(class, &room);
            let was_moved = before != UNPLACED && after != UNPLACED && before != after;
            news.push((room, was_moved));
        }
        let news: Arc<[_]> = news.into();
        self.tell_all(|| RouteMail::Rooms(class, Arc::clone(&news)));
    }

    fn tell_all(&self, mail: impl Fn() -> RouteMail) {
        for inbox in self.inboxes.iter() {
            inbox.send(&mut vec![Mail::Route(mail())]);
        }
    }

    /// Room, name of its class, and the index of the hub that the ring has for it.
    pub fn of(&self, topic: &[u8]) -> (Vec<u8>, &str, u16) {
        let room = self.classes.room(topic);
        let class = self.classes.class_of_room(&room);
        let index = self.hubs.get().placement.ring_hub(class, &room);
        (room.into_owned(), &self.classes.get(class).name, index)
    }

    fn class(&self, name: &str) -> Option<ClassIndex> {
        let at = self.classes.classes().iter().position(|class| class.name == *name)?;
        Some(at as ClassIndex)
    }

    /// Of all classes the ids of their hubs, once all are told.
    fn whole(&self, state: &State) -> Option<Vec<Vec<HubId>>> {
        let count = |class: &Option<ClassRow>| class.as_ref().map_or(0, |class| usize::from(class.hubs));
        if state.classes.iter().all(Option::is_none) {
            return None;
        }
        let mut ids: Vec<Vec<HubId>> =
            state.classes.iter().map(|class| vec![HubId(0); count(class)]).collect();
        for row in state.rows.values() {
            let Some(class) = self.class(&row.class) else { continue };
            let place = ids[usize::from(class)].get_mut(usize::from(row.index))?;
            if place.0 != 0 {
                let fields = vec![("room_class", row.class.to_string()), ("index", row.index.to_string())];
                self.control.log(Level::Error, "two hubs have one place", fields);
                return None;
            }
            *place = row.hub;
        }
        ids.iter().flatten().all(|id| id.0 != 0).then_some(ids)
    }

    fn join(&self, state: &State, ids: &[Vec<HubId>], incarnation: u64) {
        let before = self.hubs.get();
        let producer = ProducerId(OF_SHARDS | (incarnation << SHARD_BITS) | 1);
        let cluster = Cluster { producer, limits: RelayLimits::default() };
        let is_asked = |class: usize| {
            state.classes.get(class).and_then(Option::as_ref).is_some_and(|class| !class.is_ring)
        };
        let places = Arc::new(Places::new((0..ids.len()).map(is_asked)));
        let hubs = Hubs::with_places(self.inboxes.len() as u16, ids, places, cluster);
        let hubs = Arc::new(Hubs { tail_bytes_max: before.tail_bytes_max, ..hubs });
        self.hubs.set(Arc::clone(&hubs));
        self.tell_all(|| RouteMail::Join(Arc::clone(&hubs)));
    }

    /// Tells shards what they do not know yet.
    fn tell(&self, state: &mut State) {
        let Some(me) = state.me else { return };
        if !state.is_joined {
            let Some(ids) = self.whole(state) else { return };
            state.is_joined = true;
            self.join(state, &ids, me);
            for (class, rooms) in std::mem::take(&mut state.early) {
                self.place(state, class, rooms);
            }
        }
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
