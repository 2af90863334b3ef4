//! The hubs of a node, and those of one shard: the state of a hub other than its rooms.
//!
//! A hub of a logged class gives each record its offset. In a durable class the record waits until the log
//! has persisted it. Then records are committed in the order of offsets: stored in memory, delivered,
//! acknowledged. Nobody gets a record before that ([`log`]).

mod log;

pub use log::{HubLog, Pending, Repeat, Waits};

use crate::history::Ledger;
use crate::places::Places;
use crate::producers::Producers;
use crate::relay::Cluster;
use crate::ring::Placement;
use crate::rows::Rows;
use crate::traffic::Traffic;
use hubsub_message::home;
use hubsub_types::class::ClassIndex;
use hubsub_types::{ClassTable, Durability, HubId, ShardId};
use std::sync::{Arc, Mutex};

#[derive(Clone, Debug, Default)]
pub struct HubSeed {
    pub id: HubId,
    pub class: ClassIndex,
    pub index: u16,
    pub next: u64,
    pub last_us: u64,
    /// Rooms whose last record is below this offset begin a new epoch.
    pub continuous_from: u64,
    pub traffic: Arc<Traffic>,
}

pub struct Hubs {
    pub placement: Placement,
    pub seeds: Vec<HubSeed>,
    /// Memory for the latest records of each hub with a log, in bytes; older ones are read from the log.
    pub tail_bytes_max: u64,
    /// The duplicate windows of the logs, until each hub's shard takes its own.
    pub producers: Mutex<Vec<(HubId, Producers)>>,
    /// The retained messages in the logs, until each hub's shard takes its own.
    pub rows: Mutex<Vec<(HubId, Rows)>>,
    /// Whether a controller numbers hubs with a log: each is at its home from the start, and the node opens
    /// it there when it learns of the cluster's hubs.
    pub is_given: bool,
    /// If the node is in a cluster: other nodes lead hubs, too.
    pub cluster: Option<Cluster>,
}

/// Default memory for the latest records of a hub with a log, in bytes.
pub const TAIL_BYTES: u64 = 64 << 20;

impl Hubs {
    /// The hubs of `shards` shards. A class without a log has one on each; a class with a log has those in
    /// `seeds`, which are all hubs of a single node.
    pub fn new(shards: u16, classes: &ClassTable, seeds: Vec<HubSeed>) -> Hubs {
        let of_class = |class| {
            let behind =
                seeds.iter().filter(|seed| seed.class == class).map(|seed| seed.index.saturating_add(1));
            behind.max().unwrap_or(0)
        };
        let counts: Vec<u16> = (0..classes.classes().len() as u16).map(of_class).collect();
        Hubs::with_counts(shards, &counts, seeds)
    }

    /// The hubs of `shards` shards, of a node that is assigned hubs: `hubs_by_class` is the total number of
    /// hubs of each class, on all nodes. 0: one per shard.
    pub fn with_counts(shards: u16, hubs_by_class: &[u16], seeds: Vec<HubSeed>) -> Hubs {
        let placement = Placement::new(shards, hubs_by_class);
        let (tail_bytes_max, producers, rows) = (TAIL_BYTES, Mutex::default(), Mutex::default());
        Hubs { placement, seeds, tail_bytes_max, producers, rows, is_given: false, cluster: None }
    }

    /// The hubs of a cluster as a node of `shards` shards sees them: for each class its ids in the order of
    /// their index. The node leads none until [`crate::Broker::route`] assigns it.
    ///
    /// # Panics
    /// An id occurs twice.
    pub fn in_cluster(shards: u16, ids_by_class: &[Vec<HubId>], cluster: Cluster) -> Hubs {
        let places = Places::new(ids_by_class.iter().map(|_| false));
        Hubs::with_places(shards, ids_by_class, Arc::new(places), cluster)
    }

    /// As `in_cluster`, where rooms may be in other hubs than those of their classes' rings.
    ///
    /// # Panics
    /// An id occurs twice.
    pub fn with_places(
        shards: u16,
        ids_by_class: &[Vec<HubId>],
        places: Arc<Places>,
        cluster: Cluster,
    ) -> Hubs {
        let mut ids: Vec<HubId> = ids_by_class.iter().flatten().copied().collect();
        ids.sort_unstable();
        assert!(ids.windows(2).all(|two| two[0] != two[1]), "a hub's id stands once");
        let placement = Placement::in_cluster(shards, ids_by_class, places);
        Hubs {
            placement,
            is_given: true,
            cluster: Some(cluster),
            ..Hubs::with_counts(shards, &[], Vec::new())
        }
    }

    fn rows_of(&self, hub: HubId) -> Rows {
        take_of(&self.rows, hub)
    }

    fn window_of(&self, hub: HubId) -> Producers {
        take_of(&self.producers, hub)
    }
}

/// The state of a hub from its log; empty when called again.
fn take_of<T: Default>(all: &Mutex<Vec<(HubId, T)>>, hub: HubId) -> T {
    let mut all = all.lock().expect("nothing panics under this lock");
    let at = all.iter().position(|(of, _)| *of == hub);
    at.map(|at| all.swap_remove(at).1).unwrap_or_default()
}

#[derive(Debug)]
pub struct Hub {
    pub class: ClassIndex,
    pub index: u16,
    /// Whether another node leads it, or nobody: its rooms here represent those of the leader.
    pub is_relayed: bool,
    pub ledger: Ledger,
    pub rows: Rows,
    pub log: Option<HubLog>,
}

impl Hub {
    fn new(class: ClassIndex, index: u16, is_relayed: bool) -> Hub {
        Hub { class, index, is_relayed, ledger: Ledger::default(), rows: Rows::default(), log: None }
    }
}

/// The hubs of one shard: for each class one or more, in the order of their index.
#[derive(Debug)]
pub struct ShardHubs {
    hubs: Vec<Hub>,
    places: Vec<Vec<Option<u16>>>,
    logged: Vec<u16>,
}

impl ShardHubs {
    pub fn none() -> ShardHubs {
        ShardHubs { hubs: Vec::new(), places: Vec::new(), logged: Vec::new() }
    }

    pub fn new(all: &Hubs, classes: &ClassTable, shard: ShardId) -> ShardHubs {
        let placement = &all.placement;
        let (mut hubs, mut places): (Vec<Hub>, Vec<Vec<_>>) = (Vec::new(), Vec::new());
        for (class, settings) in (0u16..).zip(classes.classes()) {
            places.push(vec![None; usize::from(placement.hubs(class))]);
            let is_here = |index: &u16| placement.shard(class, *index) == shard;
            for index in (0..placement.hubs(class)).filter(is_here) {
                let is_it = |seed: &&HubSeed| (seed.class, seed.index) == (class, index) && !all.is_given;
                let seed = all.seeds.iter().find(is_it);
                let log = seed.map(|seed| HubLog::new(seed, settings.durability, all.window_of(seed.id)));
                places[usize::from(class)][usize::from(index)] = Some(hubs.len() as u16);
                let rows = seed.map(|seed| all.rows_of(seed.id)).unwrap_or_default();
                hubs.push(Hub { rows, log, ..Hub::new(class, index, all.cluster.is_some()) });
            }
        }
        let logged = (0u16..).zip(&hubs).filter(|(_, hub)| hub.log.is_some()).map(|(slot, _)| slot).collect();
        let mut of_shard = ShardHubs { hubs, places, logged };
        let is_home = |seed: &&HubSeed| all.is_given && home(seed.id, placement.shards()) == shard;
        for seed in all.seeds.iter().filter(is_home) {
            of_shard.add(seed, classes.get(seed.class).durability, all.window_of(seed.id));
            if let Some(slot) = of_shard.slot_of(seed.id) {
                of_shard.get_mut(slot).rows = all.rows_of(seed.id);
            }
        }
        of_shard
    }

    /// The hubs of a cluster on a shard, after the node learned of them; open hubs stay open.
    #[must_use]
    pub fn joined(self, all: &Hubs, classes: &ClassTable, shard: ShardId) -> ShardHubs {
        let mut joined = ShardHubs::new(all, classes, shard);
        for hub in self.hubs {
            let Some(log) = hub.log else { continue };
            let place = joined.find(hub.class, hub.index);
            let is_it = |&place: &u16| {
                all.placement.id(hub.class, hub.index) == Some(log.id) && joined.get(place).log.is_none()
            };
            let slot = place.filter(is_it).unwrap_or(joined.hubs.len() as u16);
            if usize::from(slot) == joined.hubs.len() {
                joined.hubs.push(Hub::new(hub.class, hub.index, false));
            }
            let place = joined.get_mut(slot);
            (place.log, place.rows) = (Some(log), hub.rows);
            joined.logged.push(slot);
        }
        joined
    }

    pub fn extend(&mut self, all: &Hubs, shard: ShardId) {
        let placement = &all.placement;
        for class in self.places.len() as ClassIndex..placement.classes() {
            let mut places = vec![None; usize::from(placement.hubs(class))];
            for index in (0..placement.hubs(class)).filter(|&index| placement.shard(class, index) == shard) {
                places[usize::from(index)] = Some(self.hubs.len() as u16);
                self.hubs.push(Hub::new(class, index, true));
            }
            self.places.push(places);
        }
    }

    /// Adds a hub while the node runs: in its place among those of its class, or after all others if there is
    /// no such place: no room is in it until a route leads there. A hub that was here before continues
    /// unchanged, with the requests that wait for its log.
    pub fn add(&mut self, seed: &HubSeed, durability: Durability, producers: Producers) {
        let known = self.slot_of(seed.id);
        let log = known.and_then(|slot| self.get(slot).log.as_ref());
        if log.is_some_and(|log| log.next == seed.next) {
            return;
        }
        let place = self.find(seed.class, seed.index).filter(|&place| self.get(place).log.is_none());
        let slot = known.or(place).unwrap_or(self.hubs.len() as u16);
        if usize::from(slot) == self.hubs.len() {
            self.hubs.push(Hub::new(seed.class, seed.index, false));
        }
        self.get_mut(slot).log = Some(HubLog::new(seed, durability, producers));
        if !self.logged.contains(&slot) {
            self.logged.push(slot);
        }
    }

    /// Slot of a class's hub, which must be on this shard.
    pub fn slot(&self, class: ClassIndex, index: u16) -> u16 {
        self.find(class, index).expect("who asks has looked where the hub lives")
    }

    #[inline]
    pub fn find(&self, class: ClassIndex, index: u16) -> Option<u16> {
        self.places.get(usize::from(class))?.get(usize::from(index)).copied().flatten()
    }

    #[inline]
    pub fn get(&self, slot: u16) -> &Hub {
        &self.hubs[usize::from(slot)]
    }

    pub fn get_mut(&mut self, slot: u16) -> &mut Hub {
        &mut self.hubs[usize::from(slot)]
    }

    pub fn slot_of(&self, id: HubId) -> Option<u16> {
        let is_it = |hub: &Hub| hub.log.as_ref().is_some_and(|log| log.id == id);
        self.hubs.iter().position(is_it).map(|slot| slot as u16)
    }

    pub fn logged(&self) -> &[u16] {
        &self.logged
    }

    pub fn pending(&self) -> usize {
        self.hubs.iter().filter_map(|hub| hub.log.as_ref()).map(HubLog::pending).sum()
    }

    pub fn give_up(&mut self) -> Vec<Waits> {
        let logs = self.hubs.iter_mut().filter_map(|hub| hub.log.as_mut());
        logs.flat_map(HubLog::give_up).collect()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Hub> {
        self.hubs.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hubsub_types::Class;

    #[test]
    fn a_hub_that_comes_takes_its_place_or_stands_behind_all_others_and_stays_as_it_is() {
        let durable = |name| Class { durability: Durability::Durable, ..Class::named(name) };
        let classes = ClassTable::new(vec![durable("a"), durable("b")], false);
        let mut hubs = ShardHubs::new(&Hubs::new(2, &classes, Vec::new()), &classes, ShardId(1));
        let places = hubs.iter().count() as u16;
        let mut add = |id, class, index, next| {
            let seed = HubSeed { id: HubId(id), class, index, next, ..HubSeed::default() };
            hubs.add(&seed, Durability::Durable, Producers::default());
            let slot = hubs.slot_of(seed.id).expect("it was added");
            (slot, hubs.find(class, index), hubs.get(slot).log.as_ref().map(HubLog::last))
        };
        let (slot, place, last) = add(70, 1, 1, 5);
        assert_eq!((Some(slot), last), (place, Some(4)), "rooms of its class find it");
        // No route leads to these yet.
        assert_eq!(add(71, 0, 3, 1).0, places, "the place that it would have is another class's");
        assert_eq!(add(72, 1, 3, 1).0, places + 1);
        assert_eq!(hubs.logged(), [slot, places, places + 1]);

        let log = hubs.get_mut(slot).log.as_mut().unwrap();
        assert_eq!(log.take_offset(), 5);
        let mut add_again = |next| {
            let seed = HubSeed { id: HubId(70), class: 1, index: 1, next, ..HubSeed::default() };
            hubs.add(&seed, Durability::Durable, Producers::default());
            let log = hubs.get(slot).log.as_ref().unwrap();
            (log.last(), log.committed())
        };
        assert_eq!(add_again(6), (5, 4), "it went on here: what waits still does");
        assert_eq!(add_again(9), (8, 8), "it went on elsewhere");
        assert_eq!((hubs.iter().count() as u16, hubs.logged().len()), (places + 2, 3));
    }
}
