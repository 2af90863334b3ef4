//! The cluster's hubs and their leaders, as set by the control plane, translated from names and entries to
//! messages for brokers.
//!
//! It owns the latest entries and what each shard was sent of them. Classes must be set before hubs. Once all
//! hubs of the classes that this node was started with are known, its shards join the cluster with them; from
//! then on rooms have a home. Later, a new class takes effect once all its hubs are known; other changes of
//! classes take effect at once.
//!
//! Invariants: only a hub's home shard is notified of its leader, and only of changes. This process is a
//! leader if the entry has its name *and* its incarnation: a restarted process does not lead its
//! predecessor's term. An entry with an earlier term than the last one is ignored.

use crate::context::mail::Mail;
use crate::control::Control;
use crate::control::early::{EarlyRooms, Placed};
use crate::io::classes::ClassesNow;
use crate::io::inbox::Inboxes;
use crate::io::log_lines::Level;
use crate::link::PeerTable;
use crate::shard::state::room_changes::{RoomChanges, RouteMail, UnusedRooms};
use hubsub_message::home;
use hubsub_route::places::Places;
use hubsub_route::{Cluster, Hubs, Leader, RelayLimits};
use hubsub_types::class::ClassIndex;
use hubsub_types::{Class, ClassTable, ErrorCode, HubId, ProducerId, Term};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

/// Number of bits of a producer id that hold the shard.
const SHARD_BITS: u32 = 8;

/// Set in producer ids of shards, to distinguish them from those that clients chose, which are small.
const OF_SHARDS: u64 = 1 << 63;

#[derive(Clone, Debug)]
pub struct ClassRow {
    pub class: Class,
    /// Increases by one with each change.
    pub version: u64,
    /// Number of its hubs in the cluster; it never changes.
    pub hubs: u16,
    /// Whether the ring places its rooms by name. Else their place is looked up.
    pub is_ring: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HubRow {
    pub hub: HubId,
    pub class: Box<str>,
    pub index: u16,
    /// Term of its leader, from 1.
    pub term: Term,
    /// Name and incarnation of the leader; `None`: no leader.
    pub leader: Option<(Box<str>, u64)>,
}

pub struct Routes {
    inboxes: Arc<Inboxes<Mail>>,
    changes: Arc<RoomChanges>,
    control: Arc<Control>,
    peer_table: Arc<PeerTable>,
    classes: Arc<ClassesNow>,
    /// Number of rooms whose place was dropped because too many are known.
    left_out: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Incarnation of this process, once links have begun.
    me: Option<u64>,
    /// Incarnations of other registered processes, by name.
    registered: HashMap<Box<str>, u64>,
    /// All classes as set, in order of precedence.
    classes: Vec<ClassRow>,
    /// Names and versions of the classes in effect, in order of precedence.
    counted: Vec<(String, u64)>,
    /// Hub ids of each class in effect, by class index.
    ids: Vec<Vec<HubId>>,
    rows: BTreeMap<HubId, HubRow>,
    /// The last leader sent to each hub's home.
    told: BTreeMap<HubId, (Term, Leader)>,
    /// Hubs that this process serves as acting leader.
    served: BTreeSet<HubId>,
    /// Rooms whose place arrived before their class took effect.
    early: EarlyRooms,
    is_joined: bool,
}

impl Routes {
    pub(crate) fn new(
        inboxes: Arc<Inboxes<Mail>>,
        control: Arc<Control>,
        peer_table: Arc<PeerTable>,
        classes: Arc<ClassesNow>,
    ) -> Routes {
        let changes = Arc::new(RoomChanges::new(inboxes.clone()));
        let (left_out, state) = (AtomicU64::new(0), Mutex::default());
        Routes { inboxes, changes, control, peer_table, classes, left_out, state }
    }

    /// Starts membership in a cluster, whose hubs are yet to be set.
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

    pub(crate) fn roster<'a>(&self, peers: impl Iterator<Item = (&'a str, u64)>) {
        let mut state = self.state();
        state.registered = peers.map(|(node, incarnation)| (node.into(), incarnation)).collect();
        self.tell(&mut state);
    }

    /// Sets all classes, in order of precedence; the last one matches every room.
    ///
    /// # Errors
    /// A class has no hub, its number of hubs or its placement changed, or the last class does not match
    /// every room.
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

    /// Sets all hubs. Those of logged classes that this process leads must be open.
    pub fn set_hubs(&self, rows: Vec<HubRow>) {
        let mut state = self.state();
        state.rows = rows.into_iter().map(|row| (row.hub, row)).collect();
        self.tell(&mut state);
    }

    /// Sets all hubs that this process serves as acting leader, for its side of a netsplit.
    pub fn set_served(&self, hubs: BTreeSet<HubId>) {
        let mut state = self.state();
        let before = std::mem::replace(&mut state.served, hubs);
        self.tell_served(before.symmetric_difference(&state.served), &state.served);
    }

    /// Notifies the homes of hubs whether these are served.
    fn tell_served<'a>(&self, hubs: impl Iterator<Item = &'a HubId>, served: &BTreeSet<HubId>) {
        let news = hubs.map(|hub| (*hub, served.contains(hub)));
        self.inboxes.send_home(news, |news| Mail::Route(RouteMail::Serves(news)));
    }

    /// Sets the places of some rooms of a class; `None`: the ring places the room, or it must be looked up
    /// again. A hub of another class is ignored.
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

    /// Refuses these rooms a place: requests that wait for them fail with this code.
    pub fn refuse_rooms(&self, rooms: Vec<Box<[u8]>>, code: ErrorCode) {
        let rooms: Arc<[Box<[u8]>]> = rooms.into();
        self.tell_all(|| RouteMail::Refused(Arc::clone(&rooms), code));
    }

    /// Requests which of these rooms are unused in a hub that this process leads, and optionally gives those
    /// up; the response is an event.
    pub fn ask_unused(&self, ticket: u64, of: (HubId, Term), rooms: Vec<Box<[u8]>>, gives_up: bool) {
        let home = home(of.0, self.inboxes.len() as u16);
        let changes = Arc::clone(&self.changes);
        let question = UnusedRooms { ticket, of, rooms, gives_up, changes };
        self.inboxes[usize::from(home.0)].send(&mut vec![Mail::Route(RouteMail::Unused(question))]);
    }

    /// Reports that these rooms have no place: lookups that did not ask for one are answered.
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

    fn leave_out(&self, class: &str, count: usize) {
        if count > 0 {
            self.left_out.fetch_add(count as u64, Ordering::Relaxed);
            let fields = vec![("room_class", class.to_owned()), ("rooms", count.to_string())];
            self.control.log(Level::Warning, "too many rooms are known", fields);
        }
    }

    /// Number of places that were dropped since the start because too many rooms are known.
    pub fn left_out(&self) -> u64 {
        self.left_out.load(Ordering::Relaxed)
    }

    fn tell_all(&self, mail: impl Fn() -> RouteMail) {
        self.inboxes.send_all(|| Mail::Route(mail()));
    }

    /// Room, name of its class, and the index of its hub in the ring.
    pub fn of(&self, topic: &[u8]) -> (Vec<u8>, String, u16) {
        let (classes, hubs) = self.classes.both();
        let room = classes.room(topic);
        let class = classes.class_of_room(&room);
        let index = hubs.placement.ring_hub(class, &room);
        (room.into_owned(), classes.get(class).name.clone(), index)
    }

    /// The ids of a class's hubs in order of index, once all are known.
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

    /// The hub ids of all classes that the node was started with, once all are known; empty for a class that
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

    /// Whether rooms need a lookup, per class from index `from` on.
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

    /// Puts classes into effect that changed, or whose hubs are all known now.
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
            // The new default class must arrive first.
            return;
        }
        let counted: Vec<_> = rows.iter().map(|row| (row.class.name.clone(), row.version)).collect();
        if counted == state.counted {
            return;
        }
        let classes = before.changed(rows.into_iter().map(|row| row.class.clone()).collect());
        state.counted = counted;
        // Their homes did not know these hubs until now.
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

    /// Sends shards what they do not know yet.
    fn tell(&self, state: &mut State) {
        let Some(me) = state.me else { return };
        if !state.is_joined {
            let Some(ids) = self.whole(state) else { return };
            (state.is_joined, state.ids) = (true, ids);
            self.join(state, me);
            self.tell_served(state.served.iter(), &state.served);
        }
        self.see_classes(state, me);
        let mut news = Vec::new();
        for (&hub, row) in &state.rows {
            let leader = match &row.leader {
                None => Leader::None,
                Some((node, incarnation)) => match self.peer_table.id_of(node) {
                    Some(PeerTable::OWN) if *incarnation == me => Leader::Me,
                    None | Some(PeerTable::OWN) => Leader::None,
                    Some(_) if state.registered.get(node).is_some_and(|now| now != incarnation) => {
                        Leader::None
                    }
                    Some(id) => Leader::Node(id),
                },
            };
            let known = state.told.get(&hub);
            if known.is_none_or(|&(term, before)| row.term > term || (row.term == term && leader != before)) {
                state.told.insert(hub, (row.term, leader));
                news.push((hub, (row.term, leader)));
            }
        }
        self.inboxes.send_home(news.into_iter(), |news| Mail::Route(RouteMail::Leaders(news)));
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }
}
