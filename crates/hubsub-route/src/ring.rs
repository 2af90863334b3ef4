//! Assigns rooms to hubs: consistent hashing over the hubs of a class, so that adding or removing a hub moves
//! only its own share of rooms.
//!
//! Source: Karger et al., "Consistent Hashing and Random Trees", STOC 1997. The hash is fixed
//! (`hubsub_types::names::hash`), since every node must agree.

use crate::places::{Change, Place, Places, UNPLACED};
use hubsub_message::home;
use hubsub_types::class::ClassIndex;
use hubsub_types::names::{hash, mix};
use hubsub_types::{HubId, ShardId};
use std::sync::Arc;

/// Points of each hub on the ring: 128 keep shares within about 10 %.
const POINTS: u64 = 128;

/// The hub, and so the shard, of each room. A single node has hub `k` of a class on shard `k` modulo shards.
#[derive(Clone, Debug)]
pub struct Placement {
    shards: u16,
    /// By class, the index of its ring in `rings`.
    classes: Vec<usize>,
    /// One ring for each number of hubs.
    rings: Vec<(u16, Ring)>,
    /// In a cluster: by class, the ids of its hubs.
    ids: Option<Vec<Vec<HubId>>>,
    /// In a cluster: rooms in other hubs than the ring assigns.
    places: Option<Arc<Places>>,
}

/// The shard of a room whose place has to be requested.
pub const NOWHERE: ShardId = ShardId(u16::MAX);

impl Placement {
    /// Over `shards` shards, for classes with these numbers of hubs; 0: one per shard.
    pub fn new(shards: u16, hubs_by_class: &[u16]) -> Placement {
        let mut placement =
            Placement { shards, classes: Vec::new(), rings: Vec::new(), ids: None, places: None };
        for &hubs in hubs_by_class {
            let hubs = if hubs == 0 { shards } else { hubs };
            let known = placement.rings.iter().position(|ring| ring.0 == hubs);
            let at = known.unwrap_or_else(|| {
                placement.rings.push((hubs, Ring::new(hubs)));
                placement.rings.len() - 1
            });
            placement.classes.push(at);
        }
        placement
    }

    /// Over `shards` shards of a node in a cluster, whose classes have these hubs in the order of their
    /// index: a hub's id determines its home shard on every node. Rooms of a class without hubs have no home:
    /// its hubs are not known yet.
    ///
    /// # Panics
    /// A class has more than 65,534 hubs.
    pub fn in_cluster(shards: u16, ids: &[Vec<HubId>], places: Arc<Places>) -> Placement {
        let count = |ids: &Vec<HubId>| match u16::try_from(ids.len()) {
            Ok(count) if count < u16::MAX => count.max(1),
            _ => panic!("a class has few hubs: {}", ids.len()),
        };
        let counts: Vec<u16> = ids.iter().map(count).collect();
        Placement { ids: Some(ids.to_vec()), places: Some(places), ..Placement::new(shards, &counts) }
    }

    pub fn classes(&self) -> ClassIndex {
        self.classes.len() as ClassIndex
    }

    pub fn hubs(&self, class: ClassIndex) -> u16 {
        match &self.ids {
            Some(ids) => ids[usize::from(class)].len() as u16,
            None => self.rings[self.classes[usize::from(class)]].0,
        }
    }

    /// Index of a room's hub in its class; [`UNPLACED`] if the place has to be requested.
    pub fn hub(&self, class: ClassIndex, room: &[u8]) -> u16 {
        self.place(class, room).hub
    }

    /// As `hub`, with the revision of the place.
    pub fn place(&self, class: ClassIndex, room: &[u8]) -> Place {
        let known = self.places.as_ref().and_then(|places| places.find(class, room));
        known.unwrap_or_else(|| Place { hub: self.ring_hub(class, room), revision: 0 })
    }

    /// As `Places::set`; none also without a cluster.
    pub fn move_room(&self, class: ClassIndex, room: &[u8], hub: Option<u16>) -> Option<Change> {
        self.places.as_ref()?.set(class, room, hub, self.ring_hub(class, room))
    }

    /// Whether rooms of a class may be in other hubs than its ring assigns.
    #[inline]
    pub fn moves(&self, class: ClassIndex) -> bool {
        self.places.as_ref().is_some_and(|places| places.moves(class))
    }

    pub fn places(&self) -> Option<&Places> {
        self.places.as_deref()
    }

    pub fn ring_hub(&self, class: ClassIndex, room: &[u8]) -> u16 {
        self.rings[self.classes[usize::from(class)]].1.hub(room)
    }

    /// The shard of a hub: on a single node by its index, in a cluster by its id.
    pub fn shard(&self, class: ClassIndex, hub: u16) -> ShardId {
        match (&self.ids, self.id(class, hub)) {
            (_, Some(id)) => home(id, self.shards),
            (Some(_), None) if hub == UNPLACED => NOWHERE,
            (Some(_), None) => ShardId(0),
            (None, None) => ShardId(hub % self.shards),
        }
    }

    /// The id of a hub of a class, in a known cluster.
    pub fn id(&self, class: ClassIndex, hub: u16) -> Option<HubId> {
        self.ids.as_ref()?[usize::from(class)].get(usize::from(hub)).copied()
    }

    pub fn shards(&self) -> u16 {
        self.shards
    }
}

#[derive(Clone, Debug)]
pub struct Ring {
    /// (point, hub), by point.
    points: Vec<(u64, u16)>,
}

impl Ring {
    /// A ring of `hubs` ≥ 1 hubs.
    pub fn new(hubs: u16) -> Ring {
        assert!(hubs > 0, "a ring without hubs places nothing");
        let mut points: Vec<(u64, u16)> = (0..hubs)
            .flat_map(|hub| (0..POINTS).map(move |i| (mix((u64::from(hub) << 32) | i), hub)))
            .collect();
        points.sort_unstable();
        Ring { points }
    }

    pub fn hub(&self, room: &[u8]) -> u16 {
        let at = hash(room);
        let next = self.points.partition_point(|&(point, _)| point < at);
        self.points[next % self.points.len()].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hub_more_takes_its_share_and_moves_nothing_else() {
        let (before, after) = (Ring::new(4), Ring::new(5));
        let rooms: Vec<String> = (0..20_000).map(|i| format!("room:{i}")).collect();
        let moved: Vec<_> =
            rooms.iter().filter(|r| before.hub(r.as_bytes()) != after.hub(r.as_bytes())).collect();
        assert!(moved.iter().all(|r| after.hub(r.as_bytes()) == 4));
        let share = moved.len() as f64 / rooms.len() as f64;
        assert!((0.14..0.26).contains(&share), "share: {share}");
    }

    #[test]
    fn hubs_that_come_and_go_move_their_own_rooms_and_give_them_back() {
        let rooms: Vec<String> = (0..100_000).map(|i| format!("room:{i}")).collect();
        let of = |hubs: u16| -> Vec<u16> {
            let ring = Ring::new(hubs);
            rooms.iter().map(|room| ring.hub(room.as_bytes())).collect()
        };
        for (before, after) in [(3, 4), (4, 3), (3, 2), (2, 3), (3, 4)] {
            let changes = of(before).into_iter().zip(of(after)).filter(|(a, b)| a != b);
            let moved: Vec<(u16, u16)> = changes.collect();
            let (few, many) = (before.min(after), before.max(after));
            assert!(moved.iter().all(|(a, b)| *a.max(b) == few), "{before} to {after}: only of that hub");
            let bound = rooms.len() * 5 / (4 * usize::from(many));
            assert!(!moved.is_empty() && moved.len() <= bound, "{before} to {after}: {} rooms", moved.len());
        }
    }

    #[test]
    fn no_hub_has_more_than_three_halves_of_its_share_however_many_there_are() {
        let rooms: Vec<String> = (0..200_000).map(|i| format!("chat:{i}")).collect();
        for hubs in [2, 3, 4, 8, 16, 64, 128] {
            let (ring, mut shares) = (Ring::new(hubs), vec![0; usize::from(hubs)]);
            rooms.iter().for_each(|room| shares[usize::from(ring.hub(room.as_bytes()))] += 1);
            let most = shares.into_iter().max().unwrap_or(0);
            assert!(most * usize::from(hubs) * 2 <= rooms.len() * 3, "{hubs} hubs: {most} rooms in one");
        }
    }

    #[test]
    fn placement_is_the_same_in_every_build() {
        let ring = Ring::new(8);
        let hubs = ["lobby", "chat:1", "chat:2", ""].map(|room| ring.hub(room.as_bytes()));
        assert_eq!(hubs, [0, 6, 7, 5]);
    }
}
